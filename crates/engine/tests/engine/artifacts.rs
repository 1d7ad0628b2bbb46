//! What a program changed, over a backend that may say anything: what comes out, what doesn't, and
//! what happens when it can't be kept.

use std::io::{self, Read};
use std::path::Path;

use cofferdam_core::artifact::{Change, Rejected, Rejection};
use cofferdam_core::files::Pattern;
use cofferdam_core::outcome::{Blame, End, Outcome, Ran, RunId};
use cofferdam_core::policy::{FilesLayer, Layer};
use cofferdam_engine::run::{FileKept, Gone, Keep};
use cofferdam_engine::{Engine, record};
use cofferdam_testkit::scripted::{Changed, Script, Scripted, What};
use serde_json::Value;

use super::{Collected, events, internal, only, run_and_collect, script};

/// Keeps in memory, and may run full.
#[derive(Default)]
struct Memory {
    told: Vec<String>,
    /// The file that finds the disk full.
    full_at: Option<&'static str>,
    full_at_the_end: bool,
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Keep for Memory {
    fn begin(&mut self, _: &RunId) -> io::Result<()> {
        self.told.push("begin".into());
        Ok(())
    }

    fn folder(&mut self, path: &str, _: Change) -> io::Result<()> {
        self.told.push(format!("folder {path}"));
        Ok(())
    }

    fn file(&mut self, file: FileKept<'_, '_>) -> io::Result<()> {
        let mut held = String::new();
        if self.full_at == Some(file.path) {
            return Err(full());
        }
        file.now.read_to_string(&mut held)?;
        self.told.push(format!("{} {} {held}", file.change.name(), file.path));
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str, _: Change) -> io::Result<()> {
        self.told.push(format!("link {path} {target}"));
        Ok(())
    }

    fn gone(&mut self, path: &str, what: Gone<'_>) -> io::Result<()> {
        let mut held = String::new();
        if let Gone::File(Some(before)) = what {
            before.content.read_to_string(&mut held)?;
        }
        self.told.push(format!("gone {path} {held}"));
        Ok(())
    }

    fn rejected(&mut self, rejected: &Rejected) -> io::Result<()> {
        self.told.push(format!("rejected {} {}", rejected.path, rejected.why));
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.full_at_the_end {
            return Err(full());
        }
        self.told.push("finish".into());
        Ok(())
    }
}

struct Done {
    outcome: Outcome,
    backend: Vec<String>,
    events: Vec<String>,
}

/// Runs a program that changed something.
fn collect_with(state: &Path, script: Script, layer: Layer, keep: Option<&mut dyn Keep>) -> Done {
    let backend = Scripted::new(script);
    let engine = Engine::open(only(&backend), state).unwrap();
    let outcome = run_and_collect(&engine, layer, &Collected::default(), true, keep);
    Done { outcome, backend: backend.told(), events: events(state) }
}

fn collect(changed: Vec<Changed>, keep: &mut Memory) -> Done {
    let state = tempfile::tempdir().unwrap();
    collect_with(state.path(), Script { changed, ..script() }, internal(), Some(keep))
}

fn why(outcome: &Outcome) -> Vec<(&str, Rejection)> {
    outcome.rejected.iter().map(|rejected| (rejected.path.as_str(), rejected.why)).collect()
}

#[test]
fn what_changed_comes_out_after_the_halt_and_before_the_close() {
    let mut keep = Memory::default();
    let changed = vec![
        Changed::folder("d", Change::Added),
        Changed::added("d/x", b"hello"),
        Changed::file("y", Change::Modified, Some(b"new"), Some(b"old")),
        Changed::file("z", Change::Deleted, None, Some(b"was")),
        Changed::link("l", Change::Added, "d/x"),
    ];
    let done = collect(changed, &mut keep);
    assert_eq!(done.backend, ["open", "exec prog", "halt", "get", "close"]);
    assert_eq!(
        keep.told,
        ["begin", "folder d", "added d/x hello", "modified y new", "gone z was", "link l d/x", "finish"]
    );
    assert_eq!((done.outcome.end, done.outcome.exit_code()), (End::Exited(0), 0));
    let artifacts: Vec<_> =
        done.outcome.artifacts.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(artifacts, [("d/x", 5), ("y", 3)]);
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(done.outcome.artifacts[0].sha256, sha256);
}

#[test]
fn nothing_is_taken_out_that_nobody_asked_for() {
    let state = tempfile::tempdir().unwrap();
    let backend = Scripted::new(Script { changed: vec![Changed::added("x", b"1")], ..script() });
    let engine = Engine::open(only(&backend), state.path()).unwrap();
    let outcome = run_and_collect(&engine, internal(), &Collected::default(), false, None);
    assert_eq!(backend.told(), ["open", "exec prog", "halt", "close"]);
    assert!(outcome.artifacts.is_empty());
}

#[test]
fn without_a_place_to_go_it_is_listed() {
    let state = tempfile::tempdir().unwrap();
    let changed = vec![Changed::added("x", b"1")];
    let done = collect_with(state.path(), Script { changed, ..script() }, internal(), None);
    assert_eq!(done.outcome.artifacts[0].path, "x");
}

#[test]
fn hostile_names_do_not_come_out_and_are_told_as_harmless_text() {
    let mut keep = Memory::default();
    let named = |path: &[u8]| Changed { path: path.to_vec(), ..Changed::added("", b"1") };
    let changed = vec![
        named(b"../up"),
        named(b"/etc/passwd"),
        named(b"a\x1b[2Jb"),
        named(b"\xff\xfe"),
        named("a\u{202e}b".as_bytes()),
        named(b""),
        named(b"fine"),
        named(b"FINE"),
        Changed::link("out", Change::Added, "../../etc/passwd"),
        Changed { what: What::Refused(Rejection::Type), ..named(b"fifo\n") },
    ];
    let done = collect(changed, &mut keep);
    assert_eq!(
        why(&done.outcome),
        [
            ("../up", Rejection::Name),
            ("/etc/passwd", Rejection::Name),
            ("a\\u{1b}[2Jb", Rejection::Name),
            ("\\xff\\xfe", Rejection::Name),
            ("a\\u{202e}b", Rejection::Name),
            ("", Rejection::Name),
            ("FINE", Rejection::Collision),
            ("out", Rejection::Symlink),
            ("fifo\\u{a}", Rejection::Type),
        ]
    );
    assert_eq!(done.outcome.artifacts.len(), 1);
    assert_eq!(done.outcome.end, End::Exited(0), "the program's own end stays");
}

#[test]
fn a_size_that_is_a_lie_is_found_and_the_rest_comes_out() {
    let lying = |path: &str, bytes, held: Option<&[u8]>| Changed {
        path: path.into(),
        change: Change::Added,
        what: What::File { bytes, now: held.map(|held| (false, held.to_vec())), before: None },
    };
    let mut keep = Memory::default();
    let changed = vec![
        lying("long", 3, Some(b"longer")),
        lying("short", 9, Some(b"short")),
        lying("none", 3, None),
        lying("huge", u64::MAX, Some(b"x")),
        Changed::added("true", b"1"),
    ];
    let done = collect(changed, &mut keep);
    assert_eq!(
        why(&done.outcome),
        [
            ("long", Rejection::Unreadable),
            ("short", Rejection::Unreadable),
            ("none", Rejection::Unreadable),
            ("huge", Rejection::Size),
        ]
    );
    assert!(keep.told.contains(&"added true 1".to_owned()));
    let state = tempfile::tempdir().unwrap();
    let changed = vec![lying("long", 3, Some(b"longer"))];
    let done = collect_with(state.path(), Script { changed, ..script() }, internal(), None);
    assert_eq!(why(&done.outcome), [("long", Rejection::Unreadable)], "also where nobody reads it");
}

#[test]
fn a_place_that_is_full_is_the_hosts_failure_and_says_what_is_incomplete() {
    let changed =
        || vec![Changed::added("one", b"1"), Changed::added("two", b"2"), Changed::added("three", b"3")];
    let mut keep = Memory { full_at: Some("two"), ..Memory::default() };
    let done = collect(changed(), &mut keep);
    assert_eq!((done.outcome.end, done.outcome.ran), (End::SandboxError, Ran::Yes));
    assert_eq!(done.outcome.exit_code(), 125);
    let fault = done.outcome.error.unwrap();
    assert_eq!(fault.code.blame(), Blame::Host);
    assert!(fault.message.contains("two") && fault.message.contains("incomplete"), "{fault:?}");
    assert!(!keep.told.iter().any(|told| told.contains("three") || told == "finish"), "{:?}", keep.told);
    assert_eq!(done.backend.last().unwrap(), "close");

    let mut keep = Memory { full_at_the_end: true, ..Memory::default() };
    let done = collect(changed(), &mut keep);
    assert_eq!((done.outcome.end, done.outcome.exit_code()), (End::SandboxError, 125));
}

#[test]
fn a_sandbox_that_cannot_be_read_is_the_hosts_failure() {
    let mut keep = Memory::default();
    let state = tempfile::tempdir().unwrap();
    let broken = Script { changed: vec![Changed::added("x", b"1")], get_fails: true, ..script() };
    let done = collect_with(state.path(), broken, internal(), Some(&mut keep));
    assert_eq!(
        (done.outcome.end, done.outcome.ran, done.outcome.exit_code()),
        (End::SandboxError, Ran::Yes, 125)
    );
    assert!(!keep.told.contains(&"finish".to_owned()));
    assert_eq!(done.backend.last().unwrap(), "close");
}

#[test]
fn what_the_host_would_run_is_quarantined_unless_the_policy_keeps_it() {
    let changed = vec![Changed::added(".envrc", b"rm"), Changed::added(".vscode/tasks.json", b"{}")];
    let done = collect(changed.clone(), &mut Memory::default());
    assert_eq!(done.events.iter().filter(|name| *name == "artifact.quarantined").count(), 2);
    assert_eq!(done.outcome.artifacts, []);
    let keep = vec![Pattern::new(".vscode/tasks.json").unwrap()];
    let layer = Layer { files: FilesLayer { keep, ..FilesLayer::default() }, ..internal() };
    let state = tempfile::tempdir().unwrap();
    let done = collect_with(state.path(), Script { changed, ..script() }, layer, None);
    assert_eq!(done.outcome.artifacts[0].path, ".vscode/tasks.json");
    assert_eq!(why(&done.outcome), [(".envrc", Rejection::HostExec)]);
}

#[test]
fn a_flood_of_rejections_is_listed_and_recorded_up_to_a_bound() {
    let refused = |at: u32| Changed {
        path: format!("f{at}").into(),
        change: Change::Added,
        what: What::Refused(Rejection::Type),
    };
    let changed = (0..10_050).map(refused).collect();
    let state = tempfile::tempdir().unwrap();
    let done = collect_with(state.path(), Script { changed, ..script() }, internal(), None);
    assert_eq!(done.outcome.rejected.len(), 10_000);
    assert!(done.outcome.hints[0].starts_with("50 more"), "{:?}", done.outcome.hints);
    assert_eq!(done.events.iter().filter(|name| *name == "artifact.rejected").count(), 1_000);
    let log = std::fs::read_to_string(state.path().join("audit/log.ndjson")).unwrap();
    let last = log.lines().rfind(|line| line.contains("artifact.rejected")).unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!((&last["path"], &last["more"]), (&"f999".into(), &9_050.into()));
    assert!(record::events(state.path(), record::RunFilter::All).unwrap().all(|entry| entry.is_ok()));
}

#[test]
fn a_program_that_was_killed_has_its_files_taken_out_and_one_that_never_started_has_not() {
    use std::time::Duration;
    let timeout = Some(Duration::from_millis(20));
    let limits = cofferdam_core::policy::LimitsLayer { timeout, ..Default::default() };
    let layer = Layer { limits, ..internal() };
    let state = tempfile::tempdir().unwrap();
    let changed = vec![Changed::added("x", b"1")];
    let never = Script { ending: None, changed: changed.clone(), ..script() };
    let done = collect_with(state.path(), never, layer, None);
    assert_eq!((done.outcome.end, done.outcome.artifacts.len()), (End::TimedOut, 1));
    let lost = Script { ending: Some(cofferdam_core::backend::Ending::Lost), changed, ..script() };
    let state = tempfile::tempdir().unwrap();
    let done = collect_with(state.path(), lost, internal(), None);
    assert_eq!((done.outcome.end, done.outcome.artifacts.len()), (End::BackendLost, 0));
}
