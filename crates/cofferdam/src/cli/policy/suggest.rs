//! `cofferdam policy suggest RUN`: what a run was denied, as rules that a person can add: flags, or a diff of a policy
//! file.
//!
//! It prints and changes nothing. What was asked for was chosen by the program, perhaps on behalf of whoever wrote
//! what it read: so each line says how often, why, and how much it would let out.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use cofferdam_core::audit::AuditError;
use cofferdam_core::egress::{Breadth, DenialCode};
use cofferdam_core::outcome::RunId;
use cofferdam_core::policy::{AllowFlag, NetworkRule};
use cofferdam_engine::record::{Line, RunFilter, events};
use serde_json::Value;

use crate::files::{PolicyFile, allowing};

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
    /// The policy file can't be read.
    #[error("could not read {path}: {source}")]
    Read {
        /// Which.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The policy file is wrong as it is.
    #[error("{path} is no policy ({why}): `cofferdam policy check {path}` shows where")]
    Wrong {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing can be put behind what a policy file says.
    #[error(
        "{path} can't take `[[network.allow]]` at its end ({why}): add by hand what it says without --policy"
    )]
    Appended {
        /// Which.
        path: String,
        /// What is wrong then.
        why: String,
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
    /// The limit that was used up, where it was that.
    limit: Option<String>,
    /// Whether it was no refusal of a rule's: whoever was asked wasn't there.
    is_upstreams: bool,
}

/// Prints what would have allowed the denials of a run, in the order in which they happened first: flags, or a diff of
/// a policy file, which is left as it is.
///
/// # Errors
///
/// [`SuggestError`] if the log can't be read, has no such run, the file takes no more rules, or `out` can't be written.
pub(crate) fn suggest(
    state: &Path,
    run: &str,
    policy: Option<&Path>,
    out: &mut dyn Write,
) -> Result<(), SuggestError> {
    let found = denied(state, run)?;
    match policy.filter(|_| found.iter().any(|one| one.rule.is_some())) {
        Some(file) => print_diff(&found, file, out),
        None => print(&found, out).map_err(SuggestError::from),
    }
}

/// What a run was denied.
fn denied(state: &Path, run: &str) -> Result<Vec<Suggestion>, SuggestError> {
    let no_run = || SuggestError::NoRun { text: run.to_owned() };
    let filter = match run {
        "last" => RunFilter::Last,
        text => RunFilter::One(RunId::parse(text).ok_or_else(no_run)?),
    };
    let mut is_there = false;
    let mut all = vec![];
    for entry in events(state, filter)? {
        is_there = true;
        // A line that isn't ours suggests nothing.
        let Ok(line) = entry?.line else { continue };
        let is_lookup = line.event == "dns.denied";
        all.extend(of_line(&line).map(|suggestion| (is_lookup, suggestion)));
    }
    if is_there { Ok(merged(all)) } else { Err(no_run()) }
}

/// Each once, in the order in which it happened first. A name that was looked up says nothing where something was sent
/// there: that has the port.
fn merged(all: Vec<(bool, Suggestion)>) -> Vec<Suggestion> {
    let is_dialled = |host: &str| all.iter().any(|(is_lookup, one)| !is_lookup && one.host == host);
    let spoken_to: Vec<_> = all.iter().map(|(_, one)| is_dialled(&one.host)).collect();
    let mut found: Vec<Suggestion> = vec![];
    for ((is_lookup, new), is_dialled) in all.into_iter().zip(spoken_to) {
        if is_lookup && is_dialled {
            continue;
        }
        let same = |known: &&mut Suggestion| {
            known.rule == new.rule
                && (new.rule.is_some() || (&known.host, &known.code) == (&new.host, &new.code))
        };
        match found.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(new.count),
            None => found.push(new),
        }
    }
    found
}

fn print(found: &[Suggestion], out: &mut dyn Write) -> io::Result<()> {
    if found.is_empty() {
        return writeln!(out, "nothing was denied");
    }
    for one in found {
        match &one.rule {
            Some(rule) => writeln!(out, "+--allow {:<40}  # {}", quoted(rule), one.why())?,
            None => writeln!(out, "#{:<48}  # {}", one.host, one.why())?,
        }
    }
    Ok(())
}

/// What no rule allows stands before the diff, where those who apply it pass over it.
fn print_diff(found: &[Suggestion], file: &Path, out: &mut dyn Write) -> Result<(), SuggestError> {
    let path = file.display().to_string();
    let text =
        fs::read_to_string(file).map_err(|source| SuggestError::Read { path: path.clone(), source })?;
    let cannot = |why: &dyn Display| SuggestError::Appended { path: path.clone(), why: why.to_string() };
    if let Err(error) = toml::from_str::<PolicyFile>(&text) {
        let why = error.message().to_string();
        return Err(SuggestError::Wrong { path, why });
    }
    let mut added = String::new();
    for one in found {
        let Some(rule) = &one.rule else {
            writeln!(out, "#{:<48}  # {}", one.host, one.why())?;
            continue;
        };
        let table = allowing(rule).map_err(|error| cannot(&error))?;
        added.push_str(&format!("\n# {}\n{table}", one.why()));
    }
    let whole = format!("{text}\n{added}");
    toml::from_str::<PolicyFile>(&whole).map_err(|error| cannot(&error.message()))?;
    Ok(out.write_all(appending(&path, &text, &added).as_bytes())?)
}

/// Lines before a change that stay as they are.
const CONTEXT: usize = 3;

/// A unified diff that puts lines behind a text.
fn appending(path: &str, text: &str, added: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let context = &lines[lines.len().saturating_sub(CONTEXT)..];
    let first = lines.len() - context.len() + usize::from(!lines.is_empty());
    let (before, after) = (context.len(), context.len() + added.lines().count());
    let new_first = first.max(1);
    let mut diff = format!("--- {path}\n+++ {path}\n@@ -{first},{before} +{new_first},{after} @@\n");
    for (at, line) in context.iter().enumerate() {
        let is_cut_short = at + 1 == context.len() && !text.ends_with('\n');
        diff.push_str(&match is_cut_short {
            true => format!("-{line}\n\\ No newline at end of file\n+{line}\n"),
            false => format!(" {line}\n"),
        });
    }
    added.lines().for_each(|line| diff.push_str(&format!("+{line}\n")));
    diff
}

impl Suggestion {
    /// Why it was denied, how often, and how much a rule would let out.
    fn why(&self) -> String {
        let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
        let none = match (&self.limit, self.is_upstreams) {
            (Some(limit), _) => format!(": {limit} was used up"),
            (None, true) => ": allowed, and not reached".to_owned(),
            (None, false) => ": no rule allows that".to_owned(),
        };
        let then = self.rule.as_ref().map_or(none, broad);
        format!("{}, {times}{then}", self.code)
    }
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
    let is_upstreams = [DenialCode::UpstreamTls, DenialCode::UpstreamUnreachable]
        .iter()
        .any(|code| code.code() == text("code"));
    let limit = Some(text("rule")).filter(|rule| rule.starts_with("limits.")).map(harmless);
    Some(Suggestion {
        is_upstreams,
        limit,
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
    use cofferdam_core::egress::{Denial, Door, Host, Rules};
    use cofferdam_engine::record::AuditLog;

    use super::*;

    const RUN: &str = "r_01jd0000000000000000000001";

    fn suggested(events: &[Event]) -> String {
        let state = tempfile::tempdir().unwrap();
        let start = Event::TaskStart { program: "p".into(), labels: Default::default() };
        let all: Vec<_> = std::iter::once(start).chain(events.iter().cloned()).collect();
        AuditLog::open(state.path()).unwrap().append(&RunId::parse(RUN).unwrap(), &all).unwrap();
        let mut out = vec![];
        suggest(state.path(), RUN, None, &mut out).unwrap();
        assert!(suggest(state.path(), "nonsense", None, &mut vec![]).is_err());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_denial_is_one_line_that_says_how_much_it_lets_out() {
        let (rules, host) = (Rules::new(&[]), Host::parse(b"evil.test").unwrap());
        let asked = Event::DnsDenied { denial: rules.lookup(&host).unwrap_err(), more: 2 };
        let denial = rules.connection(Door::Connect, &host, 8443).unwrap_err();
        let dialled = Event::EgressDenied { denial, door: None, ip: None, more: 1 };
        let only_asked = suggested(std::slice::from_ref(&asked));
        assert!(only_asked.starts_with("+--allow evil.test "), "{only_asked}");
        assert!(
            only_asked.contains("# host_not_allowed, 3 times; lets out any method, any path"),
            "{only_asked}"
        );
        // What was dialled has the port, and stands for the lookup before it.
        let text = suggested(&[asked, dialled]);
        assert!(text.starts_with("+--allow evil.test:8443 "), "{text}");
        assert!(text.contains("# host_not_allowed, 2 times;"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert_eq!(suggested(&[]), "nothing was denied\n");
    }

    #[test]
    fn a_diff_puts_rules_behind_what_a_policy_says_and_patch_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let denial = Rules::new(&[]).lookup(&Host::parse(b"evil.test").unwrap()).unwrap_err();
        let other = Denial::of_bytes(DenialCode::InvalidHost, b"..");
        let found = [
            Suggestion {
                rule: None,
                host: other.host,
                code: "invalid_host".to_owned(),
                count: 1,
                is_upstreams: false,
                limit: None,
            },
            Suggestion {
                rule: rule_of(&denial.needs.unwrap()),
                host: denial.host,
                code: "host_not_allowed".to_owned(),
                count: 2,
                is_upstreams: false,
                limit: None,
            },
        ];
        for text in ["version = 1\n\n[limits]\npids = 7\n", "version = 1", ""] {
            let file = folder.path().join("policy.toml");
            fs::write(&file, text).unwrap();
            let mut diff = vec![];
            let printed = print_diff(&found, &file, &mut diff);
            if text.is_empty() {
                assert!(
                    matches!(printed, Err(SuggestError::Wrong { .. })),
                    "no policy is without its version"
                );
                continue;
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is for a person to apply");
            let diff = String::from_utf8(diff).unwrap().replace(file.to_str().unwrap(), "policy.toml");
            let mut patch = std::process::Command::new("git");
            let patch = patch.args(["apply", "-p0", "-"]).current_dir(folder.path());
            let mut patch = patch.stdin(std::process::Stdio::piped()).spawn().unwrap();
            patch.stdin.take().unwrap().write_all(diff.as_bytes()).unwrap();
            assert!(patch.wait().unwrap().success(), "{diff}");
            let now = fs::read_to_string(&file).unwrap();
            let table = "# host_not_allowed, 2 times; lets out any method, any path\n[[network.allow]]\nhost = \"evil.test\"\n";
            assert_eq!(now, format!("{}\n\n{table}", text.trim_end()));
        }
    }

    #[test]
    fn a_policy_that_lists_its_rules_in_another_way_is_not_broken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        fs::write(&file, "version = 1\nnetwork.allow = [{ host = \"a.test\" }]\n").unwrap();
        let denial = Rules::new(&[]).lookup(&Host::parse(b"evil.test").unwrap()).unwrap_err();
        let rule = rule_of(&denial.needs.unwrap());
        let one = Suggestion {
            rule,
            host: denial.host,
            code: "host_not_allowed".to_owned(),
            count: 1,
            is_upstreams: false,
            limit: None,
        };
        let refused = print_diff(&[one], &file, &mut vec![]).unwrap_err().to_string();
        assert!(refused.contains("add by hand"), "{refused}");
    }

    #[test]
    fn a_rule_for_this_machines_own_services_is_written_as_a_policy_takes_it() {
        let AllowFlag::Rule(rule) = NetworkRule::parse_flag("host.cofferdam.internal:443,private").unwrap()
        else {
            panic!("it is a rule")
        };
        let text = format!("version = 1\n{}", allowing(&rule).unwrap());
        assert!(text.contains("ports = [443]"), "{text}");
        toml::from_str::<PolicyFile>(&text).unwrap();
    }

    #[test]
    fn whoever_was_not_there_was_not_denied() {
        let denial = Denial::of_bytes(DenialCode::UpstreamUnreachable, b"a.test");
        let text = suggested(&[Event::EgressDenied { denial, door: None, ip: None, more: 0 }]);
        assert!(text.contains("upstream_unreachable, once: allowed, and not reached"), "{text}");
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
