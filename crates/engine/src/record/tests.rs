//! What the log promises, against files that are broken on purpose.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_core::lease::{LeaseEnd, LeaseState};
use cofferdam_core::outcome::End;
use cofferdam_core::policy::{PolicyHash, Profile};
use tempfile::TempDir;

use super::files::Storage;
use super::head::HEAD_BYTES;
use super::*;

fn run(number: u64) -> RunId {
    RunId::parse(&format!("r_{number:026}")).unwrap()
}

fn start() -> Event {
    labelled(&[("job", "7")])
}

fn labelled(labels: &[(&str, &str)]) -> Event {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Event::TaskStart { program: "python3".into(), labels }
}

fn loaded() -> Event {
    Event::PolicyLoaded { policy: PolicyHash("ab".into()), profile: Profile::Internal }
}

fn end() -> Event {
    Event::TaskEnd { end: End::Exited(0), policy: None }
}

fn swept() -> Event {
    Event::SandboxClosed { left_processes: 1, swept: true }
}

fn paths(state: &TempDir) -> (PathBuf, PathBuf) {
    (state.path().join("audit/log.ndjson"), state.path().join("audit/head"))
}

fn findings(state: &TempDir) -> Vec<Finding> {
    verify(state.path()).unwrap().findings
}

fn lines(state: &TempDir) -> Vec<String> {
    fs::read_to_string(paths(state).0).unwrap().split_inclusive('\n').map(str::to_owned).collect()
}

fn names(state: &TempDir, filter: RunFilter) -> Vec<String> {
    events(state.path(), filter).unwrap().map(|entry| entry.unwrap().line.unwrap().event).collect()
}

/// A log of two runs that ran at the same time, six events. Nothing was started after them.
fn two_runs() -> TempDir {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for (run_number, event) in
        [(1, start()), (2, start()), (1, loaded()), (2, loaded()), (1, end()), (2, end())]
    {
        log.append(&run(run_number), &[event]).unwrap();
    }
    assert_eq!(verify(state.path()).unwrap().findings, []);
    state
}

fn rewrite(state: &TempDir, lines: &[String]) {
    fs::write(paths(state).0, lines.concat()).unwrap();
}

/// Gives a line that was edited the hash that it should have, as a forger would.
fn rehash(line: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let (body, _) = line.split_once(",\"hash\":").unwrap();
    let digest = Sha256::digest(format!("{body}}}"));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{body},\"hash\":\"sha256:{digits}\"}}\n")
}

/// Makes the head file say what the log now holds, as a forger would.
fn forge_head(state: &TempDir) {
    let lines = lines(state);
    let last = parse_line(lines.last().unwrap().trim_end().as_bytes()).unwrap();
    let bytes = lines.concat().len() as u64;
    let head = Head { seq: last.seq, bytes, hash: last.hash, lost: 0, torn: 0 };
    fs::write(paths(state).1, head.render()).unwrap();
}

fn refusal(state: &Path) -> AuditError {
    AuditLog::open(state).unwrap_err()
}

#[test]
fn events_that_are_appended_together_are_lines_of_their_own_in_their_order() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    let span = log.append(&run(1), &[start(), loaded(), end()]).unwrap();
    assert_eq!((span.first, span.last), (1, 3));
    let names: Vec<_> =
        lines(&state).iter().map(|line| parse_line(line.trim_end().as_bytes()).unwrap().event).collect();
    assert_eq!(names, ["task.start", "policy.loaded", "task.end"]);
    assert_eq!(verify(state.path()).unwrap().findings, []);
}

#[test]
fn of_events_together_all_are_in_the_log_or_none() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    log.append(&run(1), &[start()]).unwrap();
    let long = "x".repeat(LINE_MAX_BYTES);
    log.append(&run(2), &[start(), labelled(&[("a", &long)])]).unwrap_err();
    assert_eq!(lines(&state).len(), 1);
    log.append(&run(1), &[end()]).unwrap();
    assert_eq!(verify(state.path()).unwrap().findings, []);
}

#[test]
fn a_log_that_was_never_begun_has_no_events_and_nothing_wrong() {
    let state = tempfile::tempdir().unwrap();
    let report = verify(state.path()).unwrap();
    assert_eq!((report.events, report.findings, report.head), (0, vec![], Hash::GENESIS));
    assert!(!state.path().join("audit").exists());
}

#[test]
fn a_state_folder_that_cannot_be_written_is_an_error_with_its_path() {
    let state = tempfile::tempdir().unwrap();
    let missing = state.path().join("missing");
    for folder in [missing.as_path(), Path::new("/proc/self/cmdline"), Path::new("/proc/self")] {
        match refusal(folder) {
            AuditError::Io { path, .. } => assert_eq!(path, folder.join("audit").display().to_string()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_byte_of_the_log_has_a_meaning_and_every_change_of_one_is_found() {
    let state = two_runs();
    let (log, _) = paths(&state);
    let good = fs::read(&log).unwrap();
    for at in 0..good.len() {
        for mask in [0x01, 0x20, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= mask;
            fs::write(&log, bad).unwrap();
            assert!(!verify(state.path()).unwrap().is_intact(), "byte {at}, mask {mask:#x}");
        }
    }
}

#[test]
fn every_byte_of_the_head_has_a_meaning_and_every_change_of_one_is_found() {
    let state = two_runs();
    let (_, head) = paths(&state);
    let good = fs::read(&head).unwrap();
    for at in 0..good.len() {
        for mask in [0x01, 0x20, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= mask;
            fs::write(&head, bad).unwrap();
            assert_ne!(findings(&state), [], "byte {at}, mask {mask:#x}");
        }
    }
}

#[test]
fn a_changed_event_is_named_by_its_line_and_number() {
    let state = two_runs();
    let mut changed = lines(&state);
    changed[2] = changed[2].replace("internal", "external");
    rewrite(&state, &changed);
    assert_eq!(findings(&state), [Finding::Changed { line: 3, seq: 3 }]);
    changed[2] = changed[2].replace("\"seq\":3", "\"seq\":9");
    rewrite(&state, &changed);
    assert_eq!(findings(&state), [Finding::Changed { line: 3, seq: 9 }]);
}

/// Event 5 is the last of its run and no run began after it, so no `prev` leads to it.
#[test]
fn a_change_that_was_given_its_proper_hash_breaks_the_link_of_the_next_event() {
    let state = two_runs();
    let mut changed = lines(&state);
    changed[4] = rehash(&changed[4].replace("\"exit_code\":0", "\"exit_code\":1"));
    rewrite(&state, &changed);
    assert_eq!(findings(&state), [Finding::Unlinked { line: 6, seq: 6, chain: Chain::Log }]);
}

#[test]
fn an_event_that_claims_another_past_of_its_run_is_found() {
    let state = two_runs();
    let mut changed = lines(&state);
    let genesis = Hash::GENESIS.to_string();
    let last = changed[5].clone();
    let prev = parse_line(last.trim_end().as_bytes()).unwrap().prev;
    changed[5] = rehash(&last.replace(&format!("\"prev\":\"{prev}\""), &format!("\"prev\":\"{genesis}\"")));
    rewrite(&state, &changed);
    forge_head(&state);
    assert_eq!(findings(&state), [Finding::Unlinked { line: 6, seq: 6, chain: Chain::Run }]);
}

#[test]
fn two_events_that_changed_places_are_found() {
    for at in 0..5 {
        let state = two_runs();
        let mut changed = lines(&state);
        changed.swap(at, at + 1);
        rewrite(&state, &changed);
        let found = findings(&state);
        let reordered = Finding::Reordered { line: at as u64 + 2, seq: at as u64 + 1 };
        assert!(found.contains(&reordered), "{found:?}");
        assert!(!found.iter().any(|finding| matches!(finding, Finding::Missing { .. })), "{found:?}");
    }
}

#[test]
fn an_event_that_was_taken_out_is_missing() {
    for at in 0..5 {
        let state = two_runs();
        let mut changed = lines(&state);
        changed.remove(at);
        rewrite(&state, &changed);
        let at = at as u64;
        assert_eq!(findings(&state), [Finding::Missing { after_seq: at, next: at + 2 }]);
    }
}

#[test]
fn an_event_that_is_there_twice_or_from_another_log_is_found() {
    let state = two_runs();
    let good = lines(&state);
    let mut changed = good.clone();
    changed.insert(3, good[2].clone());
    rewrite(&state, &changed);
    assert_eq!(findings(&state), [Finding::Reordered { line: 4, seq: 3 }]);
    // Of another time: two logs of the same events in the same millisecond are the same log.
    std::thread::sleep(Duration::from_millis(5));
    let foreign = lines(&two_runs());
    changed = good.clone();
    changed[3] = foreign[3].clone();
    rewrite(&state, &changed);
    let unlinked = |line| Finding::Unlinked { line, seq: line, chain: Chain::Log };
    assert!(findings(&state).contains(&unlinked(4)) && findings(&state).contains(&unlinked(5)));
}

#[test]
fn a_log_that_was_cut_is_found_and_takes_no_more_events() {
    let state = two_runs();
    let (log, _) = paths(&state);
    let good = fs::read(&log).unwrap();
    for bytes in 0..good.len() {
        fs::write(&log, &good[..bytes]).unwrap();
        let last = good[..bytes].iter().filter(|&&byte| byte == b'\n').count() as u64;
        assert!(findings(&state).contains(&Finding::CutTail { head: 6, last }), "{bytes}");
        let refusal = refusal(state.path());
        assert!(matches!(refusal, AuditError::Cut { head: 6, last: found } if found == last), "{refusal:?}");
        assert_eq!(fs::read(&log).unwrap(), &good[..bytes], "a cut log is evidence");
    }
    fs::remove_file(&log).unwrap();
    assert_eq!(findings(&state), [Finding::CutTail { head: 6, last: 0 }]);
    assert!(matches!(refusal(state.path()), AuditError::Cut { head: 6, last: 0 }));
}

#[test]
fn a_cut_with_a_forged_head_is_found_by_who_knew_a_later_event() {
    let state = two_runs();
    let log = AuditLog::open(state.path()).unwrap();
    let span = log.append(&run(3), &[start()]).unwrap();
    let mut cut = lines(&state);
    cut.pop();
    rewrite(&state, &cut);
    forge_head(&state);
    // The files alone can't tell: they are what they were before that event.
    assert_eq!(findings(&state), []);
    let head = verify(state.path()).unwrap().head.to_string();
    assert_ne!(head, span.head, "an Outcome that was kept");
    assert!(matches!(log.append(&run(3), &[end()]), Err(AuditError::Cut { head: 7, last: 6 })), "a writer");
}

#[test]
fn a_log_without_its_head_takes_no_more_events() {
    let state = two_runs();
    let (log, head) = paths(&state);
    let good = fs::read(&log).unwrap();
    fs::remove_file(&head).unwrap();
    assert_eq!(findings(&state), [Finding::HeadMissing]);
    for head_bytes in [&b""[..], b"{}", &[b' '; HEAD_BYTES], &[b'x'; 9999]] {
        fs::write(&head, head_bytes).unwrap();
        assert!(matches!(refusal(state.path()), AuditError::Io { action: "read the head of", .. }));
        assert!(!verify(state.path()).unwrap().is_intact());
    }
    assert_eq!(fs::read(&log).unwrap(), good);
}

#[test]
fn a_last_event_that_is_not_the_one_that_was_written_stops_a_writer() {
    let state = two_runs();
    let open = AuditLog::open(state.path()).unwrap();
    let good = lines(&state);
    let mut changed = good.clone();
    changed[5] = rehash(&good[5].replace("\"exit_code\":0", "\"exit_code\":1"));
    rewrite(&state, &changed);
    assert!(matches!(open.append(&run(1), &[end()]), Err(AuditError::Changed { seq: 6 })));
    assert!(matches!(refusal(state.path()), AuditError::Changed { seq: 6 }));
    changed[5] = good[5].replace("\"exit_code\":0", "\"exit_code\":1"); // its hash stays
    rewrite(&state, &changed);
    assert!(matches!(refusal(state.path()), AuditError::Changed { seq: 6 }));
    rewrite(&state, &good);
    forge_head(&state);
    open.append(&run(1), &[end()]).unwrap();
}

#[test]
fn a_head_that_went_on_without_its_log_stops_a_writer() {
    let state = two_runs();
    let open = AuditLog::open(state.path()).unwrap();
    let (_, head) = paths(&state);
    let good = Head::parse(&fs::read(&head).unwrap()).unwrap();
    for forged in [Head { seq: 7, ..good }, Head { seq: u64::MAX / 2 - 1, ..good }, Head { bytes: 1, ..good }]
    {
        fs::write(&head, forged.render()).unwrap();
        let refused = open.append(&run(1), &[end()]);
        assert!(matches!(refused, Err(AuditError::Changed { seq }) if seq == forged.seq), "{refused:?}");
    }
}

#[test]
fn what_a_writer_left_that_died_before_the_head_is_adopted() {
    let state = two_runs();
    let (_, head) = paths(&state);
    let before = fs::read(&head).unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for number in 3..6 {
        log.append(&run(number), &[start()]).unwrap();
    }
    drop(log);
    fs::write(&head, before).unwrap();
    assert_eq!(findings(&state), [Finding::HeadBehind { head: 6, last: 9 }]);
    assert!(verify(state.path()).unwrap().is_intact());
    let span = AuditLog::open(state.path()).unwrap().append(&run(6), &[start()]).unwrap();
    assert_eq!((span.first, findings(&state)), (10, vec![]));
}

#[test]
fn a_line_behind_the_head_that_follows_from_nothing_is_not_adopted() {
    let state = two_runs();
    let good = lines(&state);
    for forged in [good[5].clone(), good[0].clone(), "{}\n".into(), "\n".into(), "x".repeat(2 << 20)] {
        let mut changed = good.clone();
        changed.push(forged);
        rewrite(&state, &changed);
        assert!(matches!(refusal(state.path()), AuditError::Changed { seq: 7 }));
        assert_eq!(lines(&state), changed);
        assert!(!verify(state.path()).unwrap().is_intact());
    }
}

#[test]
fn an_unfinished_line_is_cut_off_and_told() {
    let state = two_runs();
    let good = lines(&state);
    let open = AuditLog::open(state.path()).unwrap();
    let full = open.append(&run(3), &[start()]).map(|_| lines(&state)).unwrap();
    let seventh = full[6].trim_end();
    for bytes in [1, 100, seventh.len()] {
        rewrite(&state, &good);
        forge_head(&state);
        rewrite(&state, &[good.concat(), seventh[..bytes].to_owned()]);
        let bytes = bytes as u64;
        assert_eq!(findings(&state), [Finding::Torn { line: 7, bytes }]);
        assert!(verify(state.path()).unwrap().is_intact());
        let span = AuditLog::open(state.path()).unwrap().append(&run(4), &[start()]).unwrap();
        assert_eq!((span.first, findings(&state)), (8, vec![]));
        let gap = parse_line(lines(&state)[6].trim_end().as_bytes()).unwrap();
        assert_eq!((gap.event.as_str(), gap.run), ("audit.gap", None));
        assert_eq!((&gap.members["bytes_torn"], &gap.members["events_lost"]), (&bytes.into(), &0.into()));
    }
}

/// A disk that fails when it is told to.
#[derive(Debug)]
struct Failing {
    disk: Disk,
    /// How many bytes still fit into the log.
    room: usize,
    /// Which head writes fail, counted from the next.
    head_fails: Vec<bool>,
    cut_fails: bool,
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

impl Storage for Failing {
    fn log(&self) -> &File {
        self.disk.log()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = bytes.len().min(self.room);
        self.disk.append(&bytes[..fits])?;
        if fits < bytes.len() { Err(full()) } else { Ok(()) }
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        if self.cut_fails { Err(full()) } else { self.disk.cut(bytes) }
    }

    fn read_head(&self) -> io::Result<Vec<u8>> {
        self.disk.read_head()
    }

    fn write_head(&mut self, head: &[u8; HEAD_BYTES]) -> io::Result<()> {
        let fails = !self.head_fails.is_empty() && self.head_fails.remove(0);
        if fails { Err(full()) } else { self.disk.write_head(head) }
    }
}

/// Appends one event to a disk that fails, and gives the log after it failed.
fn append_and_fail(room: usize, head_fails: &[bool], cut_fails: bool) -> TempDir {
    let state = two_runs();
    let folder = Folder::prepare(state.path()).unwrap();
    let disk = Disk {
        log: folder.write(&folder.log(), true).unwrap(),
        head: folder.write(&folder.head(), false).unwrap(),
    };
    let failing = Failing { disk, room, head_fails: head_fails.to_vec(), cut_fails };
    let mut writer = Writer::open(failing, folder, SystemTime::now()).unwrap();
    let failed = writer.append(&run(3), &[start()], SystemTime::now());
    assert!(matches!(failed, Err(AuditError::Io { .. })), "{failed:?}");
    assert!(verify(state.path()).unwrap().is_intact(), "{:?}", findings(&state));
    state
}

/// Appends to a log that had failed, on a disk that works again, and gives its `audit.gap`s.
fn gaps_afterwards(state: &TempDir) -> Vec<Line> {
    AuditLog::open(state.path()).unwrap().append(&run(4), &[start()]).unwrap();
    assert_eq!(findings(state), []);
    let lines = lines(state);
    let read = lines.iter().map(|line| parse_line(line.trim_end().as_bytes()).unwrap());
    read.filter(|line| line.event == "audit.gap").collect()
}

#[test]
fn a_full_disk_leaves_the_log_as_it_was_and_the_loss_is_told_later() {
    let before = lines(&two_runs()).len();
    for room in (0..300).step_by(7) {
        let state = append_and_fail(room, &[], false);
        assert_eq!(lines(&state).len(), before);
        assert_eq!(findings(&state), [Finding::Lost { events: 1, bytes: 0 }]);
        let gaps = gaps_afterwards(&state);
        assert_eq!(gaps.len(), 1);
        assert_eq!(gaps[0].members["events_lost"], 1);
    }
}

#[test]
fn whatever_else_fails_on_the_way_back_the_log_still_verifies() {
    const ROOM: usize = 1 << 20;
    for (room, head_fails, cut_fails, gaps) in [
        (100, &[][..], true, 1),          // the torn line stays, until the next append
        (100, &[true], false, 0),         // the loss can't even be counted
        (100, &[true], true, 1),          //
        (ROOM, &[true, false], false, 1), // the head can't be written: the line goes
        (ROOM, &[true, false], true, 1),  // … and can't go: it is adopted
        (ROOM, &[true, true], false, 0),  // the old head can't either: the line stays, adopted
    ] {
        let state = append_and_fail(room, head_fails, cut_fails);
        assert_eq!(gaps_afterwards(&state).len(), gaps, "{room} {head_fails:?} {cut_fails}");
    }
}

#[test]
fn a_run_goes_on_in_its_chain_after_an_append_that_failed() {
    let state = tempfile::tempdir().unwrap();
    AuditLog::open(state.path()).unwrap();
    let folder = Folder::prepare(state.path()).unwrap();
    let disk = Disk {
        log: folder.write(&folder.log(), true).unwrap(),
        head: folder.write(&folder.head(), false).unwrap(),
    };
    let head_fails = vec![false, true, true];
    let failing = Failing { disk, room: 1 << 20, head_fails, cut_fails: false };
    let mut writer = Writer::open(failing, folder, SystemTime::now()).unwrap();
    let now = SystemTime::now();
    writer.append(&run(1), &[start()], now).unwrap();
    writer.append(&run(1), &[loaded()], now).unwrap_err();
    let span = writer.append(&run(1), &[end()], now).unwrap();
    assert_eq!((span.first, span.last, findings(&state)), (1, 3, vec![]));
}

#[test]
fn an_event_that_is_too_long_is_refused_and_changes_nothing() {
    let state = two_runs();
    let log = AuditLog::open(state.path()).unwrap();
    let long = "\0".repeat(LINE_MAX_BYTES / 6);
    let refused = log.append(&run(3), &[labelled(&[("a", &long)])]);
    assert!(matches!(refused, Err(AuditError::Io { action: "write", .. })));
    assert_eq!((lines(&state).len(), findings(&state)), (6, vec![]));
    let fits = "x".repeat(LINE_MAX_BYTES - 1000);
    log.append(&run(3), &[labelled(&[("a", &fits)])]).unwrap();
    drop(log);
    AuditLog::open(state.path()).unwrap().append(&run(3), &[swept()]).unwrap();
    assert_eq!(findings(&state), []);
}

#[test]
fn many_writers_at_once_make_one_log() {
    let state = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for log_number in 0..8 {
            let log = std::sync::Arc::new(AuditLog::open(state.path()).unwrap());
            for thread in 0..8 {
                let log = log.clone();
                scope.spawn(move || {
                    let run = run(log_number * 8 + thread);
                    log.append(&run, &[start()]).unwrap();
                    for _ in 0..48 {
                        log.append(&run, &[loaded()]).unwrap();
                    }
                    let span = log.append(&run, &[end()]).unwrap();
                    assert!(span.last - span.first >= 49);
                });
            }
        }
    });
    let report = verify(state.path()).unwrap();
    assert_eq!((report.events, report.runs, report.findings), (64 * 50, 64, vec![]));
}

#[test]
fn a_reader_beside_writers_never_sees_a_half_written_event() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..500 {
                log.append(&run(number), &[start()]).unwrap();
            }
        });
        while !writer.is_finished() {
            assert_eq!(findings(&state), []);
        }
    });
}

#[test]
fn hostile_labels_stay_on_one_line_that_no_terminal_obeys() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    let hostile =
        "\"}\n{\"seq\":1,\"event\":\"task.end\"}\r\n\u{1b}]52;c;eA==\u{7}\u{2028}\u{85}\u{202e}\0\u{9b}2J";
    log.append(&run(1), &[labelled(&[(hostile, hostile)])]).unwrap();
    let program = hostile.to_owned();
    log.append(&run(2), &[Event::TaskStart { program, labels: BTreeMap::new() }]).unwrap();
    let text = fs::read(paths(&state).0).unwrap();
    assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 2);
    assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\n'));
    let first = events(state.path(), RunFilter::One(run(1))).unwrap().next().unwrap().unwrap();
    assert_eq!(first.line.unwrap().members["label"][hostile], hostile);
    assert_eq!(findings(&state), []);
}

#[test]
fn a_span_follows_its_run_through_the_events_of_others() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    let first = log.append(&run(1), &[start()]).unwrap();
    assert_eq!((first.first, first.last), (1, 1));
    log.append(&run(2), &[start()]).unwrap();
    let last = log.append(&run(1), &[end()]).unwrap();
    assert_eq!((last.first, last.last), (1, 3));
    assert_eq!(last.head, verify(state.path()).unwrap().head.to_string());
}

#[test]
fn a_sweep_goes_on_with_the_run_of_a_process_that_was_killed() {
    let state = two_runs();
    let span = AuditLog::open(state.path()).unwrap().append(&run(1), &[swept()]).unwrap();
    assert_eq!((span.first, span.last), (1, 7));
    let unknown = AuditLog::open(state.path()).unwrap().append(&run(9), &[swept()]).unwrap();
    assert_eq!((unknown.first, unknown.last), (8, 8));
    assert_eq!(findings(&state), []);
}

fn orphaned() -> Event {
    let state =
        LeaseState::Dead { after: Duration::from_millis(3), verified: "the server refused it".into() };
    Event::LeaseOrphaned(Box::new(LeaseEnd {
        name: "db".into(),
        issuer: "postgres.main".into(),
        scope: BTreeMap::new(),
        minted: SystemTime::UNIX_EPOCH,
        expires: None,
        can_revoke: true,
        is_weak: false,
        uses: None,
        state,
    }))
}

#[test]
fn a_credential_that_a_killed_broker_left_is_written_into_its_runs_chain_also_while_that_run_lives() {
    let state = tempfile::tempdir().unwrap();
    let lives = AuditLog::open(state.path()).unwrap();
    lives.append(&run(1), &[start()]).unwrap();
    lives.append(&run(2), &[start()]).unwrap();
    // Another command finds what the run's broker had left.
    let sweeps = AuditLog::open(state.path()).unwrap();
    sweeps.append(&run(3), &[start()]).unwrap();
    sweeps.append(&run(1), &[orphaned()]).unwrap();
    sweeps.append(&run(3), &[end()]).unwrap();
    let span = lives.append(&run(1), &[end()]).unwrap();
    assert_eq!((span.first, span.last), (1, 6));
    lives.append(&run(2), &[end()]).unwrap();
    // And once more, when nobody has the run in memory.
    drop((lives, sweeps));
    let span = AuditLog::open(state.path()).unwrap().append(&run(1), &[orphaned()]).unwrap();
    assert_eq!((span.first, span.last), (1, 8));
    assert_eq!(
        names(&state, RunFilter::One(run(1))),
        ["task.start", "lease.orphaned", "task.end", "lease.orphaned"]
    );
    assert_eq!(findings(&state), []);
}

#[test]
fn events_are_shown_by_run() {
    let state = two_runs();
    let expected = ["task.start", "policy.loaded", "task.end"];
    assert_eq!(names(&state, RunFilter::One(run(1))), expected);
    assert_eq!(names(&state, RunFilter::One(run(9))), [""; 0]);
    assert_eq!(names(&state, RunFilter::All).len(), 6);
    AuditLog::open(state.path()).unwrap().append(&run(3), &[start()]).unwrap();
    AuditLog::open(state.path()).unwrap().append(&run(1), &[swept()]).unwrap();
    assert_eq!(names(&state, RunFilter::Last), ["task.start"], "the run that started last");
    assert_eq!(names(&tempfile::tempdir().unwrap(), RunFilter::Last), [""; 0]);
}

#[test]
fn garbage_is_found_wanting_and_never_more() {
    let state = two_runs();
    let (log, head) = paths(&state);
    let good = fs::read(&log).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap()
    };
    for _ in 0..500 {
        let mut bad = good.clone();
        for _ in 0..=random() % 20 {
            let (from, to) = (random() % bad.len(), random() % bad.len());
            let part = bad[from..(from + random() % 500).min(bad.len())].to_vec();
            bad.splice(to..(to + random() % 500).min(bad.len()), part);
            bad.push(random().to_le_bytes()[0]);
        }
        fs::write(&log, &bad).unwrap();
        assert!(!verify(state.path()).unwrap().is_intact());
        refusal(state.path());
        for filter in [RunFilter::All, RunFilter::Last, RunFilter::One(run(1))] {
            assert!(events(state.path(), filter).unwrap().all(|entry| entry.is_ok()));
        }
        fs::write(&head, &bad[..bad.len().min(300)]).unwrap();
        assert!(!verify(state.path()).unwrap().is_intact());
        rewrite(&state, &[String::from_utf8(good.clone()).unwrap()]);
        forge_head(&state);
    }
}

#[test]
fn a_log_full_of_nonsense_keeps_no_more_than_a_thousand_findings() {
    let state = two_runs();
    fs::write(paths(&state).0, "x\n".repeat(5000)).unwrap();
    let report = verify(state.path()).unwrap();
    assert_eq!((report.findings.len(), report.more_findings), (1000, 4001));
    assert!(!report.is_intact());
}
