//! What people and programs read about a run: the JSON Outcome, the closing line, complaints.
//!
//! Errors are translated here, once: to a message, advice, and an exit code.

pub(crate) mod job_id;
pub(crate) mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cofferdam_core::artifact::Rejection;
use cofferdam_core::lease::{LeaseEnd, LeaseState};
use cofferdam_core::outcome::{
    Cancel, Denials, End, Fault, FaultCode, LimitName, NetworkUsage, Outcome, Ran, RunId, Times, Usage,
};
use cofferdam_engine::EngineError;
pub(crate) use cofferdam_engine::chain;

use cofferdam_sys::fd;

use crate::console::{Kept, Spool};
use crate::files::FileError;
use outcome::{Captured, OutcomeJson, Stream};

impl Captured for Spool {
    fn bytes(&self) -> u64 {
        Spool::bytes(self)
    }

    fn dropped(&self) -> u64 {
        Spool::dropped(self)
    }

    fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        Spool::for_each_chunk(self, f)
    }
}

/// The JSON form of an Outcome.
pub(crate) fn json<'a>(outcome: &'a Outcome, kept: &'a [Kept; 2]) -> OutcomeJson<'a> {
    let stream = |kept: &'a Kept| match kept {
        Kept::Passed { bytes, .. } => Stream::PassedThrough(*bytes),
        Kept::Captured(spool) => Stream::Captured(spool),
    };
    OutcomeJson::from(outcome).with_output(stream(&kept[0]), stream(&kept[1]))
}

/// The Outcome of a request that never became a run.
pub(crate) fn never_ran(run: &RunId, labels: BTreeMap<String, String>, fault: Fault) -> Outcome {
    Outcome {
        run: run.clone(),
        labels,
        started: SystemTime::now(),
        profile: None,
        backend: None,
        why_backend: None,
        end: End::Refused,
        ran: Ran::No,
        error: Some(fault),
        hints: vec![],
        times: Times::default(),
        usage: Usage::default(),
        network: NetworkUsage::default(),
        limits_hit: BTreeSet::new(),
        left_processes: 0,
        enforced: BTreeSet::new(),
        gaps: vec![],
        denials: Denials::default(),
        leases: vec![],
        artifacts: vec![],
        rejected: vec![],
        policy: None,
        audit: None,
    }
}

/// The state folder or the audit log can't be used: nothing starts.
pub(crate) fn state_fault(error: &EngineError, state: &Path) -> Fault {
    let (code, fix) = match error {
        EngineError::Audit(_) => (
            FaultCode::AuditUnavailable,
            "see `cofferdam audit verify`; make room for the log or make its folder writable".to_owned(),
        ),
        EngineError::State(error) if error.action == "trust" => (
            FaultCode::HostError,
            format!(
                "give {} to yourself alone (chown, chmod 700), or set COFFERDAM_STATE to another folder",
                state.display()
            ),
        ),
        EngineError::State(_) => (
            FaultCode::HostError,
            format!("make {} writable, or set COFFERDAM_STATE to a folder that is", state.display()),
        ),
    };
    Fault { code, message: chain(error), fix: Some(fix) }
}

/// Standard error, unless nobody reads it: a last word isn't worth waiting for ever.
fn stderr() -> Option<io::StderrLock<'static>> {
    const PATIENCE: Duration = Duration::from_secs(2);
    fd::takes_some_within(io::stderr(), PATIENCE).then(|| io::stderr().lock())
}

/// Says on standard error what couldn't be done and what to do next.
pub(crate) fn complain(message: &str, fix: Option<&str>) {
    let Some(mut err) = stderr() else { return };
    let paint = Paint::for_stderr();
    // Nobody is left to tell if standard error can't be written.
    let _ = writeln!(err, "{}cofferdam:{} {}", paint.bad, paint.plain, inert(message));
    if let Some(fix) = fix {
        let _ = writeln!(err, "  {}to mend it:{} {}", paint.good, paint.plain, inert(fix));
    }
}

/// Says something that happened beside what was asked for.
pub(crate) fn note(message: &str) {
    let paint = Paint::for_stderr();
    let Some(mut err) = stderr() else { return };
    let _ = writeln!(err, "{}cofferdam:{} {}", paint.dim, paint.plain, inert(message)); // as in `complain`
}

/// Says what is wrong with a file, and where in it.
pub(crate) fn complain_about_file(error: FileError) {
    let _ = writeln!(io::stderr().lock(), "{:?}", miette::Report::new(error)); // as above
}

/// What a person reads at the end of a run: the closing line on a terminal, and without one
/// whatever the exit code alone wouldn't say.
pub(crate) fn for_a_person(outcome: &Outcome, kept: &[Kept; 2], quiet: bool) {
    if let Some(fault) = &outcome.error {
        complain(&fault.message, fault.fix.as_deref());
        advise(&mut io::stderr().lock(), outcome);
        return;
    }
    let terminal = io::stderr().is_terminal();
    let advised = !outcome.hints.is_empty();
    let says_it_all = matches!(outcome.end, End::Exited(_))
        && outcome.gaps.is_empty()
        && outcome.limits_hit.is_empty()
        && outcome.denials.counts().is_empty()
        && !outcome.leases.iter().any(|lease| matches!(lease.state, LeaseState::Unknown { .. }))
        && outcome.network.udp_refused == 0
        && outcome.rejected.is_empty()
        && !advised;
    if quiet || (!terminal && says_it_all) {
        return;
    }
    let paint = Paint::for_stderr();
    let Some(mut err) = stderr() else { return };
    let within_line = |kept: &Kept| matches!(kept, Kept::Passed { within_line: true, .. });
    let begin = if terminal && kept.iter().any(within_line) { "\n" } else { "" };
    // As in `complain`: there is nobody left to tell.
    let _ = writeln!(err, "{begin}{}cofferdam:{} {}", paint.dim, paint.plain, closing_line(outcome));
    advise(&mut err, outcome);
}

/// What the closing line advises.
fn advise(err: &mut impl Write, outcome: &Outcome) {
    let paint = Paint::for_stderr();
    for hint in &outcome.hints {
        let _ = writeln!(err, "  {}hint:{} {}", paint.good, paint.plain, inert(hint)); // as in `complain`
    }
}

/// `container · exit 0 · 61 ms (start 6.2 ms)`, and whatever else is worth a word.
fn closing_line(outcome: &Outcome) -> String {
    let mut parts = vec![];
    parts.extend(outcome.backend.map(|backend| backend.to_string()));
    parts.push(ending(outcome));
    let times = &outcome.times;
    parts.push(format!("{} (start {})", short(times.total), short(times.select + times.open)));
    // Where we killed it, the program itself is among those.
    if outcome.left_processes > 0 && matches!(outcome.end, End::Exited(_) | End::Signalled(_)) {
        parts.push(format!("killed {} left behind", outcome.left_processes));
    }
    let limits: Vec<_> = outcome.limits_hit.iter().filter_map(|limit| more_of(*limit)).collect();
    if !limits.is_empty() {
        parts.push(format!("reached its limit of {}", limits.join(", ")));
    }
    if let Some(first) = outcome.denials.counts().first() {
        let others = outcome.denials.counts().len() as u64 - 1 + outcome.denials.others();
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        parts.push(format!("denied {}{more}", first.denial));
    }
    parts.extend(outcome.leases.iter().map(lease));
    if let Some(first) = outcome.rejected.first() {
        let count = outcome.rejected.len();
        // Quoted, since a name can look like the rest of the line.
        let path = first.path.to_string();
        parts.push(format!("{count} not let out, the first {path:?}: {}", kept_back(first.why)));
    }
    let gaps: Vec<_> = outcome.gaps.iter().map(|gap| gap.capability.name()).collect();
    if !gaps.is_empty() {
        parts.push(format!("NOT enforced: {}", gaps.join(", ")));
    }
    parts.join(" · ")
}

/// What became of a credential: `db (postgres.main) dead after 11 ms: the server refused its login`.
fn lease(lease: &LeaseEnd) -> String {
    let end = match &lease.state {
        LeaseState::Dead { after, verified } => format!("dead after {}: {verified}", short(*after)),
        LeaseState::Expires if lease.expires.is_none() => {
            "can't be revoked, and nobody said when it expires".to_owned()
        }
        LeaseState::Expires => "can't be revoked, and expires".to_owned(),
        LeaseState::Unknown { why } => format!("MAY STILL BE ALIVE: {why}"),
    };
    let weak = if lease.is_weak { ", a secret that outlives runs" } else { "" };
    format!("{} ({}{weak}) {end}", lease.name, lease.issuer)
}

/// Why a file wasn't let out, in plain words.
fn kept_back(why: Rejection) -> &'static str {
    match why {
        Rejection::Collision => "another name differs from it in case alone",
        Rejection::Count => "there are more files than may come out",
        Rejection::Depth => "it lies too deep",
        Rejection::Hidden => "it has the name of something that wasn't shown",
        Rejection::HostExec => "a tool of this machine may run it (let it out with --keep PATH)",
        Rejection::Name => "its name is no plain text, or too long",
        Rejection::Size => "all together would be too large",
        Rejection::Symlink => "it is a link that leads out",
        Rejection::Type => "it is no regular file",
        Rejection::Unreadable => "it could not be read",
    }
}

/// A limit and the flag that allows more; none for those that the ending's own words name.
fn more_of(limit: LimitName) -> Option<&'static str> {
    match limit {
        LimitName::BytesOut => Some("bytes that leave (`limits.bytes_out` in the policy)"),
        LimitName::Connections => Some("connections at once (`limits.connections` in the policy)"),
        LimitName::Disk => Some("disk (allow more with --disk)"),
        LimitName::Files => Some("files (allow more with --files)"),
        LimitName::Hosts => Some("hosts (`limits.hosts` in the policy)"),
        LimitName::Output => Some("captured output"),
        LimitName::Pids => Some("processes (allow more with --pids)"),
        LimitName::Requests => Some("requests (`limits.requests` in the policy)"),
        LimitName::Memory | LimitName::Timeout => None,
    }
}

fn ending(outcome: &Outcome) -> String {
    match outcome.end {
        End::BackendLost => "the sandbox was lost".into(),
        End::Cancelled(Cancel::Misuse) => "ended, since it misused a credential".into(),
        End::Cancelled(Cancel::OutputClosed) => "ended, since nobody reads its output".into(),
        End::Cancelled(Cancel::User) => "cancelled".into(),
        End::Exited(code) => format!("exit {code}"),
        End::OutOfMemory => "out of memory (allow more with --memory)".into(),
        End::OutputLimit => "ended at its output limit".into(),
        End::Refused => "refused".into(),
        End::SandboxError => "Cofferdam failed".into(),
        End::Signalled(signal) => format!("ended by signal {signal}"),
        End::TimedOut if outcome.times.run.is_zero() => {
            "timed out while it was being prepared: a module is compiled when it first runs (allow more with --timeout)"
                .into()
        }
        End::TimedOut => format!("timed out after {} (allow more with --timeout)", short(outcome.times.run)),
    }
}

/// A duration as a person reads it.
pub(crate) fn short(time: Duration) -> String {
    match time.as_secs_f64() * 1000.0 {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Text that may come from anybody, made harmless to a terminal: what moves its cursor, colours it
/// or reorders its letters is spelled out. Line ends stay.
pub(crate) fn inert(text: &str) -> String {
    let spell = |c: char| {
        if c != '\n' && drives_a_terminal(c) { c.escape_unicode().to_string() } else { c.to_string() }
    };
    text.chars().map(spell).collect()
}

/// Whether a character moves a cursor, ends a line or reorders the letters around it.
fn drives_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a stream shows colours: it is a terminal, and nobody said no (no-color.org).
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Colours, on a terminal that wants them.
struct Paint {
    bad: &'static str,
    good: &'static str,
    dim: &'static str,
    plain: &'static str,
}

impl Paint {
    fn for_stderr() -> Self {
        if colours(&io::stderr()) {
            Paint { bad: "\x1b[31m", good: "\x1b[32m", dim: "\x1b[2m", plain: "\x1b[0m" }
        } else {
            Paint { bad: "", good: "", dim: "", plain: "" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_message_drives_a_terminal() {
        assert_eq!(inert("a\x1b[2Jb\rc\u{202e}d\ne"), "a\\u{1b}[2Jb\\u{d}c\\u{202e}d\ne");
    }

    #[test]
    fn the_closing_line_says_what_was_not_enforced_and_what_was_killed() {
        let run = RunId::new(1, [0; 10]);
        let fault = Fault { code: FaultCode::Internal, message: String::new(), fix: None };
        let mut outcome = never_ran(&run, BTreeMap::new(), fault);
        outcome.end = End::Exited(3);
        outcome.left_processes = 2;
        outcome.gaps = vec![cofferdam_core::Gap {
            capability: cofferdam_core::Capability::Cpu,
            why: String::new(),
            fix: String::new(),
        }];
        let line = closing_line(&outcome);
        assert_eq!(line, "exit 3 · 0.0 ms (start 0.0 ms) · killed 2 left behind · NOT enforced: cpu");
        outcome.gaps = vec![];
        let why = Rejection::HostExec;
        outcome.rejected = vec![cofferdam_core::artifact::Rejected { path: ".envrc".into(), why }];
        let line = closing_line(&outcome);
        assert!(
            line.contains(" · 1 not let out, the first \".envrc\": a tool of this machine may run it"),
            "{line}"
        );
        assert!(line.contains("--keep PATH"), "{line}");
        for why in Rejection::ALL {
            assert!(!kept_back(why).contains('_'), "{why} is told in words");
        }
    }
}
