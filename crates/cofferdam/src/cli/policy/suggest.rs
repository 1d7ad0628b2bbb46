//! `cofferdam policy suggest RUN`: what a run was denied, as rules that a person can add.
//!
//! It prints and changes nothing. What was asked for was chosen by the program, perhaps on behalf of whoever wrote
//! what it read: so each line says how often, why, and how much it would let out.

use std::io::{self, Write};
use std::path::Path;

use cofferdam_core::audit::AuditError;
use cofferdam_core::egress::Breadth;
use cofferdam_core::outcome::RunId;
use cofferdam_core::policy::{AllowFlag, NetworkRule};
use cofferdam_engine::record::{Line, RunFilter, events};
use serde_json::Value;

/// Why nothing can be suggested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuggestError {
    /// The log can't be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// What was named is no run of the log.
    #[error(
        "{text:?} is no run in the audit log: give an id such as r_01jd0000000000000000000000, or `last`"
    )]
    NoRun {
        /// What was named.
        text: String,
    },
    /// The output can't be written.
    #[error("could not write the suggestions: {0}")]
    Write(#[from] io::Error),
}

/// What some denials have in common.
#[derive(Debug, PartialEq, Eq)]
struct Suggestion {
    /// The flag that would allow them; none where no rule can.
    rule: Option<NetworkRule>,
    host: String,
    code: String,
    count: u64,
}

/// Prints a diff of flags for the denials of a run, in the order in which they happened first.
///
/// # Errors
///
/// [`SuggestError`] if the log can't be read, has no such run, or `out` can't be written.
pub(crate) fn suggest(state: &Path, run: &str, out: &mut dyn Write) -> Result<(), SuggestError> {
    let no_run = || SuggestError::NoRun { text: run.to_owned() };
    let filter = match run {
        "last" => RunFilter::Last,
        text => RunFilter::One(RunId::parse(text).ok_or_else(no_run)?),
    };
    let mut is_there = false;
    let mut found: Vec<Suggestion> = vec![];
    for entry in events(state, filter)? {
        is_there = true;
        // A line that isn't ours suggests nothing.
        let Ok(line) = entry?.line else { continue };
        let Some(new) = of_line(&line) else { continue };
        let same = |known: &&mut Suggestion| {
            known.rule == new.rule
                && (new.rule.is_some() || (&known.host, &known.code) == (&new.host, &new.code))
        };
        match found.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(new.count),
            None => found.push(new),
        }
    }
    if !is_there {
        return Err(no_run());
    }
    print(&found, out).map_err(SuggestError::from)
}

fn print(found: &[Suggestion], out: &mut dyn Write) -> io::Result<()> {
    if found.is_empty() {
        return writeln!(out, "nothing was denied");
    }
    for Suggestion { rule, host, code, count } in found {
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        match rule {
            Some(rule) => {
                writeln!(out, "+--allow {:<40}  # {code}, {times}{}", quoted(rule), broad(rule))?;
            }
            None => writeln!(out, "#{host:<48}  # {code}, {times}: no rule allows that")?,
        }
    }
    Ok(())
}

/// How much a rule lets out beyond what was asked for.
fn broad(rule: &NetworkRule) -> String {
    let lets_out: Vec<_> = Breadth::of(rule).iter().map(ToString::to_string).collect();
    let first = |text: &String| text.split([':', ',']).next().unwrap_or_default().to_owned();
    let lets_out: Vec<_> = lets_out.iter().map(first).collect();
    if lets_out.is_empty() { String::new() } else { format!("; lets out {}", lets_out.join(", ")) }
}

fn quoted(rule: &NetworkRule) -> String {
    let text = rule.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:/,".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The denial that a line of the log tells of.
fn of_line(line: &Line) -> Option<Suggestion> {
    if !matches!(line.event.as_str(), "egress.denied" | "dns.denied") {
        return None;
    }
    let member = |name: &str| line.members.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let text = |name: &str| member(name).and_then(Value::as_str).unwrap_or_default();
    // What the log holds can be anybody's text: only what is a rule is printed, in our own words.
    let rule = rule_of(text("needs"));
    let harmless = |text: &str| cofferdam_core::egress::shown(text.as_bytes());
    Some(Suggestion {
        rule,
        host: harmless(text("host")),
        code: harmless(text("code")),
        count: 1 + member("more").and_then(Value::as_u64).unwrap_or(0),
    })
}

/// The rule of `--allow RULE`, as a denial says what it needs.
fn rule_of(needs: &str) -> Option<NetworkRule> {
    let flag = needs.strip_prefix("--allow ")?;
    let flag = match flag.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(quoted) => quoted.replace(r"'\''", "'"),
        None => flag.to_owned(),
    };
    match NetworkRule::parse_flag(&flag) {
        Ok(AllowFlag::Rule(rule)) => Some(rule),
        Ok(AllowFlag::Preset(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_core::audit::{AuditSink as _, Event};
    use cofferdam_core::egress::{Denial, DenialCode, Host, Rules};
    use cofferdam_engine::record::AuditLog;

    use super::*;

    const RUN: &str = "r_01jd0000000000000000000001";

    fn suggested(events: &[Event]) -> String {
        let state = tempfile::tempdir().unwrap();
        let start = Event::TaskStart { program: "p".into(), labels: Default::default() };
        let all: Vec<_> = std::iter::once(start).chain(events.iter().cloned()).collect();
        AuditLog::open(state.path()).unwrap().append(&RunId::parse(RUN).unwrap(), &all).unwrap();
        let mut out = vec![];
        suggest(state.path(), RUN, &mut out).unwrap();
        assert!(suggest(state.path(), "nonsense", &mut vec![]).is_err());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_denial_is_one_line_that_says_how_much_it_lets_out() {
        let name = Rules::new(&[]).lookup(&Host::parse(b"evil.test").unwrap()).unwrap_err();
        let asked = Event::DnsDenied { denial: name.clone(), more: 2 };
        let dialled = Event::EgressDenied { denial: name, door: None, ip: None, more: 0 };
        let text = suggested(&[asked, dialled]);
        assert!(text.starts_with("+--allow evil.test "), "{text}");
        assert!(
            text.trim_end().ends_with("# host_not_allowed, 4 times; lets out any method, any path"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
        assert_eq!(suggested(&[]), "nothing was denied\n");
    }

    #[test]
    fn what_no_rule_allows_is_said_and_drives_no_terminal() {
        let denial = Denial::of_bytes(DenialCode::InvalidHost, b"a\x1b[2Jb");
        let text = suggested(&[Event::EgressDenied { denial, door: None, ip: None, more: 0 }]);
        assert!(
            text.starts_with('#') && text.contains("no rule allows that") && !text.contains('\x1b'),
            "{text:?}"
        );
    }
}
