//! `cofferdam audit`: shows a state folder's log, and says whether it is as it was written.
//!
//! What the log holds was chosen by whoever asked for a run, and perhaps by whoever edited the log.
//! So nothing of it is printed before it is made harmless to a terminal.

use std::io::{self, Write};
use std::path::Path;

use cofferdam_core::audit::AuditError;
use cofferdam_core::outcome::RunId;
use cofferdam_engine::record::{Entry, Finding, Line, Report, RunFilter, events};
use serde_json::Value;

/// Why the log can't be shown or checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditCliError {
    /// The log can't be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No run has started yet.
    #[error("the audit log has no run yet")]
    NoRuns,
    /// The run isn't in the log.
    #[error("run {run} is not in the audit log")]
    NoSuchRun {
        /// The run.
        run: RunId,
    },
    /// What was named can't be a run.
    #[error("{text:?} is no run: give an id such as r_01jd0000000000000000000000, `last` or `all`")]
    NotARun {
        /// What was named.
        text: String,
    },
    /// Standard output can't be written.
    #[error("could not write the output")]
    Write(#[from] io::Error),
}

/// Prints the events of a run: an id, `last` or `all`.
///
/// With `json` the log's own lines, else one line an event for a person. A line of the log that
/// can't be read is left out of the first, and has a line in the second that says so.
///
/// # Errors
///
/// [`AuditCliError`]; after [`AuditCliError::Write`] whoever reads has gone away.
pub(crate) fn show(state: &Path, run: &str, json: bool, out: &mut dyn Write) -> Result<(), AuditCliError> {
    let filter = match run {
        "all" => RunFilter::All,
        "last" => RunFilter::Last,
        text => match RunId::parse(text) {
            Some(run) => RunFilter::One(run),
            None => return Err(AuditCliError::NotARun { text: text.to_owned() }),
        },
    };
    let mut shown = false;
    for entry in events(state, filter.clone())? {
        shown = true;
        match (entry?, json) {
            (Entry { raw, line: Ok(_), .. }, true) => {
                out.write_all(&raw)?;
                out.write_all(b"\n")?;
            }
            (Entry { line: Ok(line), .. }, false) => writeln!(out, "{}", for_person(&line))?,
            (Entry { line: Err(_), .. }, true) => {}
            (Entry { line: Err(why), number, .. }, false) => {
                writeln!(out, "line {number} is not one of ours: {why}; see `cofferdam audit verify`")?;
            }
        }
    }
    match filter {
        RunFilter::One(run) if !shown => Err(AuditCliError::NoSuchRun { run }),
        RunFilter::Last if !shown => Err(AuditCliError::NoRuns),
        RunFilter::All | RunFilter::Last | RunFilter::One(_) => Ok(()),
    }
}

/// Checks the log, prints what is wrong with it and what to do, and says whether nothing is.
///
/// What a crash leaves behind is printed too, but is nothing wrong.
///
/// # Errors
///
/// [`AuditCliError`] if the log can't be read, or the result not be printed.
pub(crate) fn verify(state: &Path, out: &mut dyn Write) -> Result<bool, AuditCliError> {
    let report = cofferdam_engine::record::verify(state)?;
    let Report { events, runs, head, findings, more_findings } = &report;
    for finding in findings {
        let kind = if finding.is_harmless() { "note" } else { "changed" };
        writeln!(out, "{kind}: {finding}")?;
    }
    if *more_findings > 0 {
        writeln!(out, "and {more_findings} more")?;
    }
    if report.is_intact() {
        if !findings.is_empty() {
            writeln!(out, "a run was killed or the disk was full; the next run puts the log in order")?;
        }
        writeln!(out, "ok: {events} events of {runs} runs, head {head}")?;
        return Ok(true);
    }
    writeln!(out, "not ok: {events} events of {runs} runs can be read, head {head}")?;
    if findings.iter().any(|finding| matches!(finding, Finding::CutTail { .. })) {
        writeln!(out, "if this machine lost its power, the last events may never have reached the disk")?;
    }
    let folder = state.join("audit");
    writeln!(
        out,
        "to do: keep {} as it is, find out who could write to it, and compare it with the `audit` part \
         of the Outcomes that you have. To run again, move the folder away: the next run begins a new log",
        word(&folder.display().to_string())
    )?;
    Ok(false)
}

/// One event on one line: number, time, the run, name, members.
fn for_person(line: &Line) -> String {
    let run = line.run.as_ref().map_or("-", |run| run.as_str());
    let mut text = format!("{:>6}  {}  {run:<28}  {:<16}", line.seq, line.time, line.event);
    for (name, value) in &line.members {
        push_member(&mut text, &word(name), value);
    }
    if !line.intact {
        text.push_str("  CHANGED: see `cofferdam audit verify`");
    }
    text.truncate(text.trim_end().len());
    text
}

/// Appends ` name=value`; a value that has parts has each under its own name. What is empty or
/// null says nothing.
fn push_member(text: &mut String, name: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) => *text += &format!(" {name}={value}"),
        Value::String(value) => *text += &format!(" {name}={}", word(value)),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let words: Vec<_> = items.iter().filter_map(Value::as_str).map(word).collect();
            if !words.is_empty() {
                *text += &format!(" {name}={}", words.join(","));
            }
        }
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                push_member(text, &format!("{name}.{position}"), item);
            }
        }
        Value::Object(members) => {
            for (inner, value) in members {
                push_member(text, &format!("{name}.{}", word(inner)), value);
            }
        }
    }
}

/// A text as it is where that is plain, else quoted and escaped: no control character, no character
/// that turns the direction of text, and none that can't be seen reaches a terminal.
fn word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@+%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use cofferdam_core::audit::{AuditSink as _, Event};
    use cofferdam_core::capability::{Capability, Gap};
    use cofferdam_core::outcome::End;
    use cofferdam_core::policy::BackendName;
    use cofferdam_engine::record::AuditLog;
    use tempfile::TempDir;

    use super::*;

    const FIRST: &str = "r_01jd0000000000000000000001";
    const SECOND: &str = "r_01jd0000000000000000000002";

    fn log(labels: &[(&str, &str)]) -> TempDir {
        let state = tempfile::tempdir().unwrap();
        let log = AuditLog::open(state.path()).unwrap();
        let labels: BTreeMap<_, _> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        for run in [FIRST, SECOND] {
            let run = RunId::parse(run).unwrap();
            let start = Event::TaskStart { program: "my prog".into(), labels: labels.clone() };
            log.append(&run, &[start]).unwrap();
            log.append(&run, &[Event::TaskEnd { end: End::Exited(3), policy: None }]).unwrap();
        }
        state
    }

    fn shown(state: &TempDir, run: &str, json: bool) -> String {
        let mut out = vec![];
        show(state.path(), run, json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn verified(state: &TempDir) -> (bool, String) {
        let mut out = vec![];
        let ok = verify(state.path(), &mut out).unwrap();
        (ok, String::from_utf8(out).unwrap())
    }

    /// A line for a person without its time.
    fn timeless(line: &str) -> String {
        let words: Vec<_> = line.split_whitespace().collect();
        [&words[..1], &words[2..]].concat().join(" ")
    }

    #[test]
    fn a_run_that_is_not_there_is_an_error_that_says_so() {
        let state = log(&[]);
        let error = |run: &str| show(state.path(), run, false, &mut vec![]).unwrap_err().to_string();
        assert_eq!(
            error("r_01jd0000000000000000000009"),
            "run r_01jd0000000000000000000009 is not in the audit log"
        );
        assert!(error("../\u{1b}x").starts_with(r#""../\u{1b}x" is no run"#));
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(show(empty.path(), "last", true, &mut vec![]), Err(AuditCliError::NoRuns)));
    }

    #[test]
    fn a_person_reads_one_line_an_event() {
        let state = log(&[("job", "7"), ("who", "a b")]);
        let all = shown(&state, "all", false);
        let lines: Vec<_> = all.lines().map(timeless).collect();
        assert_eq!(
            lines[..2],
            [
                r#"1 r_01jd0000000000000000000001 task.start label.job=7 label.who="a b" program="my prog""#,
                "2 r_01jd0000000000000000000001 task.end end=exited exit_code=3",
            ]
        );
        assert_eq!(lines.len(), 4);
        assert_eq!(shown(&state, "last", false), shown(&state, SECOND, false));
        assert_eq!(shown(&state, FIRST, false).lines().count(), 2);
    }

    #[test]
    fn a_program_reads_the_logs_own_lines() {
        let state = log(&[]);
        assert_eq!(
            shown(&state, "all", true),
            fs::read_to_string(state.path().join("audit/log.ndjson")).unwrap()
        );
        let last = shown(&state, "last", true);
        assert!(last.lines().count() == 2 && last.lines().all(|line| line.contains(SECOND)));
    }

    #[test]
    fn nothing_in_the_log_drives_a_terminal() {
        let hostile = "a\n\r\u{1b}]0;x\u{7}\u{9b}\u{7f}\u{85}\u{ad}\u{61c}\u{200e}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}é";
        let state = log(&[(hostile, hostile)]);
        for text in [shown(&state, "all", false), shown(&state, "all", true)] {
            let text = text.replace('\n', "");
            assert!(text.chars().all(|it| it == 'é' || (' '..='~').contains(&it)), "{text:?}");
        }
        assert_eq!(shown(&state, "all", false).lines().count(), 4);
        fs::write(state.path().join("audit/log.ndjson"), format!("{hostile}\n")).unwrap();
        let text = [shown(&state, "all", false), shown(&state, "all", true), verified(&state).1].concat();
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
    }

    #[test]
    fn gaps_are_shown_with_their_reasons() {
        let state = tempfile::tempdir().unwrap();
        let gap = Gap { capability: Capability::Cpu, why: "no v2".into(), fix: "mount".into() };
        let enforced = [Capability::Files, Capability::Network].into();
        let opened = Event::SandboxOpened { backend: BackendName::Container, enforced, gaps: vec![gap] };
        AuditLog::open(state.path()).unwrap().append(&RunId::parse(FIRST).unwrap(), &[opened]).unwrap();
        let line = timeless(&shown(&state, "all", false));
        let expected = "1 r_01jd0000000000000000000001 sandbox.opened backend=container enforced=files,network \
                        gaps.0.fix=mount gaps.0.name=cpu gaps.0.why=\"no v2\"";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_log_that_is_as_it_was_written_is_ok() {
        let (ok, text) = verified(&log(&[]));
        assert!(ok && text.starts_with("ok: 4 events of 2 runs, head sha256:"), "{text}");
        let (ok, text) = verified(&tempfile::tempdir().unwrap());
        assert!(ok && text.starts_with("ok: 0 events of 0 runs"), "{text}");
    }

    #[test]
    fn each_change_is_named_with_what_to_do() {
        let state = log(&[]);
        let path = state.path().join("audit/log.ndjson");
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replacen("\"exit_code\":3", "\"exit_code\":0", 1)).unwrap();
        let (ok, text) = verified(&state);
        assert!(!ok && text.starts_with("changed: line 2: event 2 was changed\nnot ok: 4 events"), "{text}");
        assert!(text.contains("to do: keep "), "{text}");
        assert!(shown(&state, "all", false).contains("exit_code=0  CHANGED: see"));
        fs::write(&path, good.split_inclusive('\n').take(3).collect::<String>()).unwrap();
        let (ok, text) = verified(&state);
        assert!(!ok && text.contains("the log was cut: its last event is 3, and 4 were written"), "{text}");
        assert!(text.contains("lost its power"), "{text}");
        fs::write(&path, good + "{\"seq\"").unwrap();
        let (ok, text) = verified(&state);
        assert!(ok && text.starts_with("note: line 5 has no end; there are 6 bytes of it\n"), "{text}");
    }
}
