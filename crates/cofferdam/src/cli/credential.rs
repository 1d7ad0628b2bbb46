//! `cofferdam credential`: what credentials may live, whether the operator's issuers do what they should, and the end of
//! what a run left.
//!
//! What is printed was partly chosen by whoever asked for a run: nothing of it drives a terminal.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use cofferdam_broker::client::{LONGEST_END, Orphaned};
use cofferdam_broker::{Finding, MayLive, Seen, Tested};
use cofferdam_core::outcome::{Fault, RunId};
use cofferdam_engine::record::{AuditLog, RunFilter, events};
use serde::Serialize;

use super::Failure;
use crate::report::{inert, short};
use crate::{credentials, host};

/// The exit code where the answer is no: an issuer failed, or something isn't dead.
const NO: u8 = 1;

#[derive(Debug, Subcommand)]
pub(super) enum CredentialCommand {
    /// Show the credentials that may live: each that was minted and that nobody has seen dead
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Have each issuer mint a credential, and see that it works, is revoked and is dead
    ///
    /// It is minted with the first value of each field of the issuer's table. The exit code is 0 if every issuer did
    /// what it should, and 1 if one didn't; what its server lets in besides is said, and doesn't change that.
    Test {
        /// One issuer of issuers.toml, like postgres.main
        issuer: Option<String>,
    },
    /// Revoke now what a run has left, and see that it is dead
    ///
    /// The exit code is 0 if nothing of it is alive, and 1 if something is, or may be.
    Revoke {
        /// A run's id, or `last`
        run: String,
        /// One of its credentials
        name: Option<String>,
    },
}

/// Does one of them, and gives the exit code.
///
/// # Errors
///
/// Where what it needs can't be read, or `out` not be written.
pub(super) fn main(command: &CredentialCommand, out: &mut dyn Write) -> Result<u8, Failure> {
    match command {
        CredentialCommand::List { json } => list(&host::state_folder(&super::node()?), *json, out),
        CredentialCommand::Test { issuer } => test(issuer.as_deref(), out),
        CredentialCommand::Revoke { run, name } => {
            revoke(&host::state_folder(&super::node()?), run, name.as_deref(), out)
        }
    }
}

impl From<Fault> for Failure {
    fn from(Fault { message, fix, .. }: Fault) -> Self {
        Failure { message, fix }
    }
}

/// What `list --json` prints: version 1 of a format that people script against.
#[derive(Serialize)]
struct Listed<'a> {
    version: u32,
    leases: Vec<ListedLease<'a>>,
}

/// A lease that may live. Times are RFC 3339, UTC.
#[derive(Serialize)]
struct ListedLease<'a> {
    run: &'a str,
    name: &'a str,
    issuer: &'a str,
    scope: &'a BTreeMap<String, Vec<String>>,
    minted: String,
    /// Null where its issuer doesn't end it by itself.
    expires: Option<String>,
    /// Whether a run that lives holds it. If none does, the next command revokes it.
    held: bool,
}

impl<'a> From<&'a MayLive> for ListedLease<'a> {
    fn from(lease: &'a MayLive) -> Self {
        ListedLease {
            run: &lease.run,
            name: &lease.name,
            issuer: &lease.issuer,
            scope: &lease.scope,
            minted: time(lease.minted),
            expires: lease.expires.map(time),
            held: lease.is_held,
        }
    }
}

fn list(state: &Path, json: bool, out: &mut dyn Write) -> Result<u8, Failure> {
    let leases = may_live(state)?;
    if json {
        let listed = Listed { version: 1, leases: leases.iter().map(ListedLease::from).collect() };
        serde_json::to_writer_pretty(&mut *out, &listed).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(0);
    }
    for lease in &leases {
        writeln!(out, "{}", inert_line(&in_words(lease)))?;
    }
    if leases.is_empty() {
        writeln!(
            out,
            "no credential may live: all that were minted are dead, or can't be revoked and expire"
        )?;
    }
    Ok(0)
}

fn may_live(state: &Path) -> Result<Vec<MayLive>, Failure> {
    MayLive::all(state).map_err(|error| Failure {
        message: format!("the journal of leases below {} can't be read: {error}", state.display()),
        fix: Some("ask as the user whose runs they are".to_owned()),
    })
}

/// One line for a person.
fn in_words(lease: &MayLive) -> String {
    let MayLive { run, name, issuer, scope, minted, expires, is_held } = lease;
    let fields: Vec<_> =
        scope.iter().map(|(field, values)| format!("{field}={}", values.join(","))).collect();
    let scope = if fields.is_empty() { String::new() } else { format!(": {}", fields.join(" ")) };
    let expires =
        expires.map_or("doesn't expire by itself".to_owned(), |end| format!("expires {}", time(end)));
    let whose = match is_held {
        true => "held by a run that lives",
        false => "left by a killed run: the next command revokes it",
    };
    format!("{run}  {name} ({issuer}{scope}), minted {}, {expires}, {whose}", time(*minted))
}

/// RFC 3339 in UTC, which has no year after 9999.
fn time(time: SystemTime) -> String {
    let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(time.clamp(UNIX_EPOCH, last)).to_string()
}

/// Text on one line, harmless to a terminal.
fn inert_line(text: &str) -> String {
    inert(&text.replace('\n', "\\n"))
}

fn test(issuer: Option<&str>, out: &mut dyn Write) -> Result<u8, Failure> {
    let tested = credentials::test(issuer)?;
    if tested.is_empty() {
        writeln!(out, "issuers.toml has no issuer, so there is nothing to try")?;
    }
    for one in &tested {
        print(one, out)?;
    }
    Ok(if tested.iter().all(|one| one.seen.is_fine()) { 0 } else { NO })
}

fn print(Tested { issuer, seen: what, findings }: &Tested, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", inert_line(&format!("{issuer}: {}", seen(what))))?;
    if let Seen::Failed(Finding { fix, .. }) = what {
        writeln!(out, "  to mend it: {}", inert_line(fix))?;
    }
    for Finding { message, fix } in findings {
        writeln!(out, "  {}", inert_line(message))?;
        writeln!(out, "  to mend it: {}", inert_line(fix))?;
    }
    Ok(())
}

/// What came of trying an issuer, in a line.
pub(super) fn seen(seen: &Seen) -> String {
    match seen {
        Seen::Dead { minted, after, verified } => {
            let (minted, after) = (short(*minted), short(*after));
            format!("minted in {minted}, works, revoked and dead after {after}: {verified}")
        }
        Seen::Expires { minted, expires } => {
            let when = expires.map_or(String::new(), |end| format!(" {}", time(end)));
            format!(
                "minted in {}; it can't be revoked and expires{when}, so nothing saw it work or dead",
                short(*minted)
            )
        }
        Seen::Failed(Finding { message, .. }) => format!("FAILED: {message}"),
        Seen::Weak => {
            "weak: its secret is there, outlives every run, and is only kept from programs; nothing can be \
                       minted, so nothing was tried"
                .to_owned()
        }
    }
}

/// The run that was named, as the journal has it.
fn run_of(state: &Path, text: &str) -> Result<RunId, Failure> {
    if text != "last" {
        return RunId::parse(text).ok_or_else(|| Failure {
            message: format!("{text:?} is no run"),
            fix: Some("give an id such as r_01jd0000000000000000000000, or `last`".to_owned()),
        });
    }
    let mut found = events(state, RunFilter::Last).map_err(|error| Failure::of(&error))?;
    let run = found.find_map(|entry| entry.ok()?.line.ok()?.run);
    run.ok_or_else(|| Failure {
        message: "the audit log has no run yet".to_owned(),
        fix: Some("`cofferdam credential list` shows what may live".to_owned()),
    })
}

fn revoke(state: &Path, run: &str, name: Option<&str>, out: &mut dyn Write) -> Result<u8, Failure> {
    let run = run_of(state, run)?;
    let its: Vec<_> = may_live(state)?.into_iter().filter(|lease| lease.run == run.as_str()).collect();
    let (named, others): (Vec<_>, Vec<_>) =
        its.into_iter().partition(|lease| name.is_none_or(|name| name == lease.name));
    if let (Some(name), [], [_, ..]) = (name, &named[..], &others[..]) {
        let others: Vec<_> = others.iter().map(|lease| format!("`{}`", lease.name)).collect();
        return Err(Failure {
            message: format!("{run} has nothing called {name:?} that may live"),
            fix: Some(format!("it has {}", others.join(", "))),
        });
    }
    if named.is_empty() {
        writeln!(
            out,
            "{run} holds nothing that may live: what was minted for it is dead, or can't be revoked and expires"
        )?;
        return Ok(0);
    }
    let (held, left): (Vec<_>, Vec<_>) = named.into_iter().partition(|lease| lease.is_held);
    let mut code = 0;
    if !left.is_empty() {
        let audit = AuditLog::open(state).map_err(|error| Failure::of(&error))?;
        let which = Orphaned { run: Some(run.to_string()), name: name.map(str::to_owned) };
        let revoked = credentials::revoke(&audit, &which, LONGEST_END)?;
        for line in &revoked.lines {
            writeln!(out, "{}", inert_line(line))?;
        }
        if !revoked.all_dead {
            code = NO;
        }
    }
    for MayLive { name, issuer, .. } in &held {
        let line = format!(
            "the credential `{name}` of {issuer} is held by the run {run}, which lives: end that run, which revokes it"
        );
        writeln!(out, "{}", inert_line(&line))?;
        code = NO;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> MayLive {
        MayLive {
            run: "r_01jd0000000000000000000001".to_owned(),
            name: "db".to_owned(),
            issuer: "postgres.main".to_owned(),
            scope: BTreeMap::from([("database".to_owned(), vec!["shop".to_owned(), "site".to_owned()])]),
            minted: UNIX_EPOCH,
            expires: Some(UNIX_EPOCH + Duration::from_secs(60)),
            is_held: false,
        }
    }

    #[test]
    fn a_lease_is_one_line_that_says_whose_it_is() {
        assert_eq!(
            in_words(&lease()),
            "r_01jd0000000000000000000001  db (postgres.main: database=shop,site), minted 1970-01-01T00:00:00Z, \
             expires 1970-01-01T00:01:00Z, left by a killed run: the next command revokes it"
        );
        let held = MayLive { is_held: true, expires: None, scope: BTreeMap::new(), ..lease() };
        let said = in_words(&held);
        assert!(said.contains("db (postgres.main), minted"), "{said}");
        assert!(said.ends_with("doesn't expire by itself, held by a run that lives"), "{said}");
        assert_eq!(inert_line("a\n\u{1b}[2J"), "a\\n\\u{1b}[2J");
    }

    #[test]
    fn a_program_reads_what_is_held_and_until_when() {
        let (lease, endless) = (lease(), MayLive { expires: None, is_held: true, ..lease() });
        let leases = [&lease, &endless].map(ListedLease::from).into();
        let json = serde_json::to_value(Listed { version: 1, leases }).unwrap();
        assert_eq!(
            json["leases"][0],
            serde_json::json!({
                "run": "r_01jd0000000000000000000001", "name": "db", "issuer": "postgres.main",
                "scope": {"database": ["shop", "site"]}, "minted": "1970-01-01T00:00:00Z",
                "expires": "1970-01-01T00:01:00Z", "held": false,
            })
        );
        assert_eq!((&json["leases"][1]["expires"], &json["leases"][1]["held"]), (&().into(), &true.into()));
    }

    #[test]
    fn where_nothing_was_minted_there_is_nothing_to_list_or_to_revoke() {
        let state = tempfile::tempdir().unwrap();
        let mut out = vec![];
        assert_eq!(list(state.path(), false, &mut out).unwrap(), 0);
        let run = lease().run;
        assert_eq!(revoke(state.path(), &run, None, &mut out).unwrap(), 0);
        let said = String::from_utf8(out).unwrap();
        assert!(said.starts_with("no credential may live") && said.contains("holds nothing"), "{said}");
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "looking makes nothing");
        let refused = revoke(state.path(), "all", None, &mut vec![]).unwrap_err();
        assert!(refused.message.contains("is no run") && refused.fix.is_some());
        let refused = revoke(state.path(), "last", None, &mut vec![]).unwrap_err();
        assert!(refused.message.contains("no run yet"), "{}", refused.message);
    }

    #[test]
    fn what_was_seen_of_an_issuer_has_its_times_and_its_way_out() {
        let ms = Duration::from_millis;
        let finding = Finding { message: "PUBLIC may connect".to_owned(), fix: "REVOKE CONNECT".to_owned() };
        let said = |seen: Seen, findings: &[Finding]| {
            let mut out = vec![];
            let tested = Tested { issuer: "postgres.main".to_owned(), seen, findings: findings.to_vec() };
            print(&tested, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let dead =
            Seen::Dead { minted: ms(3), after: ms(11), verified: "the server refused its login".to_owned() };
        assert_eq!(
            said(dead, std::slice::from_ref(&finding)),
            "postgres.main: minted in 3.0 ms, works, revoked and dead after 11 ms: the server refused its login\n  \
             PUBLIC may connect\n  to mend it: REVOKE CONNECT\n"
        );
        let failed = said(Seen::Failed(finding), &[]);
        assert_eq!(failed, "postgres.main: FAILED: PUBLIC may connect\n  to mend it: REVOKE CONNECT\n");
        let expires = said(Seen::Expires { minted: ms(1), expires: Some(UNIX_EPOCH) }, &[]);
        assert!(expires.contains("can't be revoked and expires 1970-01-01T00:00:00Z"), "{expires}");
        assert!(said(Seen::Weak, &[]).contains("nothing can be minted"));
    }
}
