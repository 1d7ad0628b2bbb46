//! A whole audit log that somebody edited: what is called intact begins with what was written, byte for
//! byte, whatever was done to it; reading it, checking it and going on with it never panics.
//!
//! The input is a list of edits of a log that was written a moment before: each is a byte for what to do
//! and two for where, and for an insertion the bytes that follow.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use cofferdam_core::audit::{AuditSink, Event};
use cofferdam_core::outcome::{End, LimitName, RunId};
use cofferdam_core::policy::BackendName;
use cofferdam_engine::record::{AuditLog, RunFilter, events, verify};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// A log with two runs in it, and its head file.
struct Written {
    log: Vec<u8>,
    head: Vec<u8>,
}

static WRITTEN: LazyLock<Written> = LazyLock::new(|| {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for number in 1..3 {
        let run = RunId::new(number, [number as u8; 10]);
        let opened =
            Event::SandboxOpened { backend: BackendName::Container, enforced: BTreeSet::new(), gaps: vec![] };
        for event in [
            Event::TaskStart { program: "python3".to_owned(), labels: BTreeMap::new() },
            opened,
            Event::LimitHit(LimitName::Timeout),
            Event::SandboxClosed { left_processes: 1, swept: false },
            Event::TaskEnd { end: End::TimedOut, policy: None },
        ] {
            log.append(&run, std::slice::from_ref(&event)).unwrap();
        }
    }
    let read = |name| fs::read(state.path().join("audit").join(name)).unwrap();
    Written { log: read("log.ndjson"), head: read("head") }
});

static STATE: LazyLock<TempDir> = LazyLock::new(|| {
    let state = tempfile::tempdir().unwrap();
    fs::DirBuilder::new().mode(0o700).create(state.path().join("audit")).unwrap();
    state
});

fuzz_target!(|bytes: &[u8]| {
    let (mut log, mut head) = (WRITTEN.log.clone(), WRITTEN.head.clone());
    let mut rest = bytes;
    while let [what, high, low, after @ ..] = rest {
        let at = usize::from(u16::from_be_bytes([*high, *low]));
        let taken = edit(*what, at, after, &mut log, &mut head);
        rest = &after[taken..];
    }
    let folder = STATE.path().join("audit");
    put(&folder.join("log.ndjson"), &log);
    put(&folder.join("head"), &head);
    let report = verify(STATE.path()).unwrap();
    if report.is_intact() {
        assert!(log.starts_with(&WRITTEN.log), "an edit that nobody sees: {report:?}");
    }
    for finding in &report.findings {
        assert!(!finding.to_string().is_empty());
    }
    for filter in [RunFilter::All, RunFilter::Last, RunFilter::One(RunId::new(1, [1; 10]))] {
        events(STATE.path(), filter).unwrap().take(1000).for_each(drop);
    }
    // What can be gone on with is intact afterwards, but for an edit before its last line, which only
    // `verify` sees.
    let went_on = AuditLog::open(STATE.path()).and_then(|log| {
        let event = Event::SandboxClosed { left_processes: 0, swept: true };
        log.append(&RunId::new(2, [2; 10]), std::slice::from_ref(&event))
    });
    if report.is_intact() {
        assert!(went_on.is_ok(), "{went_on:?}");
        assert!(verify(STATE.path()).unwrap().is_intact());
    } else if went_on.is_ok() {
        assert!(!verify(STATE.path()).unwrap().is_intact(), "going on hides an edit: {report:?}");
    }
});

/// Does one edit; gives how many of the bytes that follow it took.
fn edit(what: u8, at: usize, after: &[u8], log: &mut Vec<u8>, head: &mut Vec<u8>) -> usize {
    let place = at % (log.len() + 1);
    let lines: Vec<Vec<u8>> = log.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let line = at % lines.len().max(1);
    match what % 8 {
        0 => log.truncate(place),
        1 if place < log.len() => log[place] ^= 1 << (at % 8),
        2 => {
            let count = after.len().min(at % 64);
            log.splice(place..place, after[..count].iter().copied());
            return count;
        }
        3 if !lines.is_empty() => *log = [&lines[..line], &lines[line + 1..]].concat().concat(),
        4 if !lines.is_empty() => *log = [&lines[..=line], &lines[line..]].concat().concat(),
        5 if !lines.is_empty() => {
            let mut lines = lines;
            let last = lines.len() - 1;
            lines.swap(line, last);
            *log = lines.concat();
        }
        6 if at < head.len() => head[at] ^= 1 << (at % 8),
        7 => {
            let count = after.len().min(at % 64);
            log.extend_from_slice(&after[..count]);
            return count;
        }
        _ => {}
    }
    0
}

fn put(path: &Path, bytes: &[u8]) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(bytes).unwrap();
}
