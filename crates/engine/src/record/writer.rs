//! Appends events, and makes the log and its head file agree again after a crash.
//!
//! Everything here happens while the lock is held. An append writes the line, then the head. So a
//! log that is longer than its head says was left by a writer that died in between: whole lines
//! that follow are adopted, an unfinished one is cut off and told by an `audit.gap`. A log that is
//! shorter was cut by somebody else, and nothing is written to it again.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::time::SystemTime;

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::outcome::{AuditSpan, RunId};
use cofferdam_core::weaken::stop_at;

use super::event::{BYTES_TORN, EVENTS_LOST, GAP, START, gap_members, members};
use super::files::{Folder, Storage, failed};
use super::head::Head;
use super::line::{Draft, HASH_MEMBER_BYTES, Hash, LINE_MAX_BYTES, Line, parse_line};
use super::lines::{Backward, Ending, Forward, mentions};

/// Ended runs that are still remembered, for events that come after a run's last.
const ENDED_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Writer<S> {
    storage: S,
    folder: Folder,
    /// The newest end of the log that this writer knows, which the log can't go back behind.
    seen: Head,
    runs: Runs,
}

impl<S: Storage> Writer<S> {
    /// Takes up a log where it ended, and tells what it lacks.
    pub(super) fn open(storage: S, folder: Folder, now: SystemTime) -> Result<Self, AuditError> {
        let mut writer = Writer { storage, folder, seen: Head::EMPTY, runs: Runs::default() };
        let head = writer.settle()?;
        writer.confirm_last_line(&head)?;
        writer.tell_gap(head, now)?;
        Ok(writer)
    }

    /// Appends events of a run, all or none.
    pub(super) fn append(
        &mut self,
        run: &RunId,
        events: &[Event],
        now: SystemTime,
    ) -> Result<AuditSpan, AuditError> {
        let head = self.settle()?;
        let head = self.tell_gap(head, now)?;
        let known = match self.runs.known.get(run) {
            Some(span) => Some(*span),
            // Only a sweep records events of a run that another process started.
            None if events.iter().any(is_of_a_sweep) => self.find(run, &head)?,
            None => None,
        };
        let prev = known.map_or(head.hash, |span| span.hash);
        let mut lines = Lines { bytes: vec![], head, prev, count: 0 };
        for event in events {
            let members = members(event);
            lines
                .push(Some(run), event.name(), &members, now)
                .map_err(|error| self.failed_log("write", error))?;
        }
        let head = self.write(head, &lines)?;
        let first = known.map_or(head.seq + 1 - lines.count, |span| span.first);
        let span = Span { first, last: head.seq, hash: head.hash };
        self.runs.remember(run, span, events.iter().any(|event| matches!(event, Event::TaskEnd { .. })));
        Ok(AuditSpan { first: span.first, last: span.last, head: span.hash.to_string() })
    }

    /// Reads the head and makes the log end where it says, or says why that can't be.
    fn settle(&mut self) -> Result<Head, AuditError> {
        let head = self.read_head()?;
        match (head.seq.cmp(&self.seen.seq), head.bytes.cmp(&self.seen.bytes)) {
            (Ordering::Less, _) => return Err(AuditError::Cut { head: self.seen.seq, last: head.seq }),
            (Ordering::Equal, Ordering::Equal) if head.hash == self.seen.hash => {}
            (Ordering::Greater, Ordering::Greater) => {}
            _ => return Err(AuditError::Changed { seq: head.seq }),
        }
        let bytes = self.log_bytes()?;
        self.catch_up(head.bytes.min(bytes))?;
        let head = match bytes.cmp(&head.bytes) {
            Ordering::Less => {
                let last = self.last_line(bytes)?.map_or(0, |line| line.seq);
                return Err(AuditError::Cut { head: head.seq, last });
            }
            Ordering::Equal => head,
            Ordering::Greater => self.adopt(head, bytes)?,
        };
        self.confirm_last_hash(&head)?;
        self.seen = head;
        Ok(head)
    }

    /// Takes into account what sweeps of other processes have written of runs of this one, whose broker alone was
    /// killed. Nobody else writes events of a run that lives.
    fn catch_up(&mut self, until: u64) -> Result<(), AuditError> {
        if self.runs.known.is_empty() || until <= self.seen.bytes {
            return Ok(());
        }
        let mut log = self.storage.log();
        log.seek(SeekFrom::Start(self.seen.bytes)).map_err(|source| self.failed_log("read", source))?;
        let unseen = log.take(until - self.seen.bytes);
        let mut lines = Forward::new(BufReader::new(unseen), self.seen.bytes);
        while let Some(raw) = lines.next().map_err(|source| self.failed_log("read", source))? {
            if raw.bytes.windows(ORPHANED.len()).any(|part| part == ORPHANED)
                && let Ok(line) = parse_line(raw.bytes)
            {
                self.runs.adopt(&line);
            }
        }
        Ok(())
    }

    /// Takes over what a writer that died had put behind the log's known end.
    fn adopt(&mut self, mut head: Head, bytes: u64) -> Result<Head, AuditError> {
        let mut log = self.storage.log();
        log.seek(SeekFrom::Start(head.bytes)).map_err(|source| self.failed_log("read", source))?;
        let mut lines = Forward::new(BufReader::new(log.take(bytes - head.bytes)), head.bytes);
        let mut torn = 0;
        while let Some(raw) = lines.next().map_err(|source| self.failed_log("read", source))? {
            if raw.ending == Ending::Torn && raw.bytes.len() <= LINE_MAX_BYTES {
                torn = raw.bytes.len() as u64;
                break;
            }
            let line = parse_line(raw.bytes).ok();
            let follows = |line: &Line| line.intact && line.seq == head.seq + 1 && line.after == head.hash;
            let Some(line) = line.filter(follows) else {
                return Err(AuditError::Changed { seq: head.seq + 1 });
            };
            head = Head { seq: line.seq, bytes: raw.until, hash: line.hash, ..head };
            if line.event == GAP {
                (head.lost, head.torn) = untold(&head, &line);
            }
            self.runs.adopt(&line);
        }
        // The head goes first: if this writer dies too, what is torn is told twice, not never.
        head.torn = head.torn.saturating_add(torn);
        self.write_head(&head)?;
        if torn > 0 {
            self.storage.cut(head.bytes).map_err(|source| self.failed_log("shorten", source))?;
        }
        Ok(head)
    }

    /// Writes the event that tells what the log lacks, if it lacks something.
    fn tell_gap(&mut self, head: Head, now: SystemTime) -> Result<Head, AuditError> {
        if !head.has_gap() {
            return Ok(head);
        }
        let mut lines = Lines { bytes: vec![], head, prev: head.hash, count: 0 };
        let pushed = lines.push(None, GAP, &gap_members(&head), now);
        pushed.map_err(|error| self.failed_log("write", error))?;
        self.write(head, &lines)
    }

    /// Writes lines and then the head. If either fails, the log ends again where it did, and the
    /// next append tells that events were lost.
    fn write(&mut self, old: Head, lines: &Lines) -> Result<Head, AuditError> {
        let back = Head { lost: old.lost.saturating_add(lines.count), ..old };
        if let Err(source) = self.storage.append(&lines.bytes) {
            // Whatever of this fails as well, the next append finds a torn line and cuts it off.
            let _ = self.storage.cut(old.bytes);
            let _ = self.write_head(&back);
            return Err(self.failed_log("write", source));
        }
        stop_at("event-written");
        let head = Head { lost: 0, torn: 0, ..lines.head };
        if let Err(error) = self.write_head(&head) {
            // A head that is ahead of its log would look like a cut for ever after. So the lines go
            // only if the old head is back; else they stay, and the next append adopts them.
            if self.write_head(&back).is_ok() {
                let _ = self.storage.cut(old.bytes);
            }
            return Err(error);
        }
        self.seen = head;
        Ok(head)
    }

    /// The span of a run that another process wrote, from its `task.start` on.
    fn find(&self, run: &RunId, head: &Head) -> Result<Option<Span>, AuditError> {
        let failed = |source| self.failed_log("read", source);
        let mut span: Option<Span> = None;
        for line in Backward::new(self.storage.log(), head.bytes).map_err(failed)? {
            let line = line.map_err(failed)?;
            if !mentions(&line, run) {
                continue;
            }
            let Some(line) = parse_line(&line).ok().filter(|line| line.run.as_ref() == Some(run)) else {
                continue;
            };
            let last = span.map_or((line.seq, line.hash), |span| (span.last, span.hash));
            span = Some(Span { first: line.seq, last: last.0, hash: last.1 });
            if line.event == START {
                break;
            }
        }
        Ok(span)
    }

    /// Compares what the log ends with to the head's hash: one short read an append.
    fn confirm_last_hash(&self, head: &Head) -> Result<(), AuditError> {
        const TAIL_BYTES: usize = HASH_MEMBER_BYTES + 1;
        let expected = format!(",\"hash\":\"{}\"}}\n", head.hash);
        let mut tail = [0; TAIL_BYTES];
        let holds = match head.bytes.checked_sub(TAIL_BYTES as u64) {
            None => *head == Head { lost: head.lost, torn: head.torn, ..Head::EMPTY },
            Some(at) => {
                let read = self.storage.log().read_exact_at(&mut tail, at);
                read.map_err(|source| self.failed_log("read", source))?;
                tail == expected.as_bytes()
            }
        };
        if holds { Ok(()) } else { Err(AuditError::Changed { seq: head.seq }) }
    }

    /// Compares the whole last line to the head: once, when a log is opened.
    fn confirm_last_line(&self, head: &Head) -> Result<(), AuditError> {
        let holds = match self.last_line(head.bytes)? {
            Some(line) => line.intact && (line.seq, line.hash) == (head.seq, head.hash),
            None => head.bytes == 0,
        };
        if holds { Ok(()) } else { Err(AuditError::Changed { seq: head.seq }) }
    }

    /// The last whole line, if it has the form of one.
    fn last_line(&self, bytes: u64) -> Result<Option<Line>, AuditError> {
        let failed = |source| self.failed_log("read", source);
        let last = Backward::new(self.storage.log(), bytes).and_then(|mut lines| lines.next().transpose());
        Ok(last.map_err(failed)?.and_then(|line| parse_line(&line).ok()))
    }

    fn log_bytes(&self) -> Result<u64, AuditError> {
        let found = self.storage.log().metadata();
        found.map(|found| found.len()).map_err(|source| self.failed_log("read", source))
    }

    fn read_head(&self) -> Result<Head, AuditError> {
        let failed = |source| failed("read the head of", &self.folder.head(), source);
        let bytes = self.storage.read_head().map_err(failed)?;
        let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "it is not as it was written");
        Head::parse(&bytes).ok_or_else(unreadable).map_err(failed)
    }

    fn write_head(&mut self, head: &Head) -> Result<(), AuditError> {
        let written = self.storage.write_head(&head.render());
        written.map_err(|source| failed("write the head of", &self.folder.head(), source))
    }

    fn failed_log(&self, action: &'static str, source: io::Error) -> AuditError {
        failed(action, &self.folder.log(), source)
    }
}

/// Whether only a sweep has such an event.
fn is_of_a_sweep(event: &Event) -> bool {
    matches!(event, Event::SandboxClosed { swept: true, .. } | Event::LeaseOrphaned(_))
}

/// What a line has whose event a sweep may have written while its run lives: a look that is cheaper than reading it.
const ORPHANED: &[u8] = b"lease.orphaned";

/// Lines that follow each other, to be written at once.
struct Lines {
    bytes: Vec<u8>,
    /// The head that the log has with them.
    head: Head,
    /// The hash of the same run's line before.
    prev: Hash,
    count: u64,
}

impl Lines {
    fn push(&mut self, run: Option<&RunId>, event: &str, members: &str, now: SystemTime) -> io::Result<()> {
        let (seq, after, prev) = (self.head.seq + 1, self.head.hash, self.prev);
        let (line, hash) = Draft { seq, time: now, run, event, members, after, prev }.seal();
        if line.len() > LINE_MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the event is longer than 1 MiB"));
        }
        self.head = Head { seq, bytes: self.head.bytes + line.len() as u64, hash, ..self.head };
        (self.prev, self.count) = (hash, self.count + 1);
        self.bytes.extend_from_slice(&line);
        Ok(())
    }
}

/// Where one run's events are so far.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    last: u64,
    hash: Hash,
}

/// The runs that this process writes.
#[derive(Debug, Default)]
struct Runs {
    known: HashMap<RunId, Span>,
    /// Those of them that are over, oldest first.
    ended: VecDeque<RunId>,
}

impl Runs {
    fn remember(&mut self, run: &RunId, span: Span, ends: bool) {
        match self.known.get_mut(run) {
            Some(known) => *known = span,
            None => {
                self.known.insert(run.clone(), span);
            }
        }
        if ends {
            self.ended.push_back(run.clone());
        }
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Takes a line into account that this process may have written without learning of it.
    fn adopt(&mut self, line: &Line) {
        if let Some(known) = line.run.as_ref().and_then(|run| self.known.get_mut(run)) {
            *known = Span { first: known.first, last: line.seq, hash: line.hash };
        }
    }
}

/// What a head still has to tell once this `audit.gap` is in the log.
fn untold(head: &Head, gap: &Line) -> (u64, u64) {
    let told = |name| gap.members.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
    (head.lost.saturating_sub(told(EVENTS_LOST)), head.torn.saturating_sub(told(BYTES_TORN)))
}
