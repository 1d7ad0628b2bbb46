//! Checks a log line by line, then what its head file says about it.
//!
//! One change shows in several ways: a line that is gone leaves a hole in the numbers, a link that
//! leads nowhere and a head that is too long. It is reported once, as what a person would call it.

use std::collections::HashMap;

use cofferdam_core::outcome::RunId;

use super::head::{Head, HeadFile};
use super::line::{Hash, LINE_MAX_BYTES, Line, parse_line};
use super::lines::{Ending, Raw};
use super::report::{Chain, Finding, Report};

/// Findings that are kept; more are counted. So a hostile log can't fill the memory with them.
const FINDINGS_MAX: usize = 1000;

/// An event's number and hash.
type Place = (u64, Hash);

const START: Place = (0, Hash::GENESIS);

#[derive(Debug)]
pub(super) struct Check {
    head: HeadFile,
    report: Report,
    line: u64,
    /// The event in the line before; none if that line isn't an event.
    before: Option<Place>,
    /// The event with the highest number so far.
    last: Place,
    /// The first and last numbers of holes.
    holes: Vec<(u64, u64)>,
    /// Whether lines are missing or unreadable, so that a run's chain may break because of that.
    broken: bool,
    /// Each run's last event.
    runs: HashMap<RunId, Hash>,
    /// The event that ends where the head file says that the log ends.
    at_head: Option<Place>,
    /// Whether the head file's event is in the log.
    head_found: bool,
}

impl Check {
    pub(super) fn new(head: HeadFile) -> Self {
        let report =
            Report { events: 0, runs: 0, head: Hash::GENESIS, findings: Vec::new(), more_findings: 0 };
        Check {
            head,
            report,
            line: 0,
            before: Some(START),
            last: START,
            holes: Vec::new(),
            broken: false,
            runs: HashMap::new(),
            at_head: None,
            head_found: false,
        }
    }

    /// Checks the next line.
    pub(super) fn line(&mut self, raw: &Raw<'_>) {
        self.line += 1;
        if raw.ending == Ending::Torn && raw.bytes.len() <= LINE_MAX_BYTES {
            self.found(Finding::Torn { line: self.line, bytes: raw.bytes.len() as u64 });
            return;
        }
        match parse_line(raw.bytes) {
            Ok(line) => self.event(&line, raw.until),
            Err(why) => {
                self.found(Finding::Malformed { line: self.line, why });
                self.before = None;
                self.broken = true;
            }
        }
    }

    fn event(&mut self, line: &Line, until: u64) {
        self.report.events += 1;
        let mut place = (line.seq, line.hash);
        if !line.intact {
            self.found(Finding::Changed { line: self.line, seq: line.seq });
        }
        if line.intact || self.last.0.checked_add(1) == Some(line.seq) {
            self.place(line.seq);
            self.link_to_log(line);
            self.link_to_run(line);
        } else {
            // Its number is what was changed: it stands for the event that belongs here.
            place.0 = self.last.0.saturating_add(1);
            self.broken = true;
        }
        if let HeadFile::Known(head) = self.head {
            if until == head.bytes {
                self.at_head = Some(place);
            }
            self.head_found |= place == (head.seq, head.hash);
        }
        self.before = Some(place);
        if place.0 > self.last.0 {
            self.last = place;
        }
    }

    /// Checks that an event's number follows the highest so far.
    fn place(&mut self, seq: u64) {
        let Some(missing) = seq.checked_sub(self.last.0).and_then(|steps| steps.checked_sub(1)) else {
            self.broken = true;
            self.found(Finding::Reordered { line: self.line, seq });
            return self.fill_hole(seq);
        };
        if missing > 0 {
            self.broken = true;
            self.hole(self.last.0 + 1, seq - 1);
        }
    }

    fn hole(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        if self.holes.len() < FINDINGS_MAX {
            self.holes.push((first, last));
        } else {
            self.report.more_findings += 1;
        }
    }

    /// An event is there after all, only too late: it is not missing.
    fn fill_hole(&mut self, seq: u64) {
        if let Some(at) = self.holes.iter().position(|&(first, last)| (first..=last).contains(&seq)) {
            let (first, last) = self.holes.swap_remove(at);
            self.hole(first, seq - 1);
            self.hole(seq + 1, last);
        }
    }

    /// Checks an event against the line before, if its numbers say that it follows that.
    fn link_to_log(&mut self, line: &Line) {
        if let Some((seq, hash)) = self.before
            && seq.checked_add(1) == Some(line.seq)
            && line.after != hash
        {
            self.found(Finding::Unlinked { line: self.line, seq: line.seq, chain: Chain::Log });
        }
    }

    /// Checks an event against the one before of the same run.
    fn link_to_run(&mut self, line: &Line) {
        let before = match &line.run {
            Some(run) => self.runs.insert(run.clone(), line.hash),
            None => None,
        };
        if line.prev != before.unwrap_or(line.after) && !self.broken {
            self.found(Finding::Unlinked { line: self.line, seq: line.seq, chain: Chain::Run });
        }
    }

    /// Checks the head file against what the log was, and reports.
    pub(super) fn finish(mut self) -> Report {
        self.holes.sort_unstable();
        for (first, last) in std::mem::take(&mut self.holes) {
            self.found(Finding::Missing { after_seq: first - 1, next: last.saturating_add(1) });
        }
        match self.head {
            HeadFile::Known(head) => self.compare(&head),
            HeadFile::Missing if self.line > 0 => self.found(Finding::HeadMissing),
            HeadFile::Missing => {}
            HeadFile::Unreadable => self.found(Finding::HeadUnreadable),
        }
        self.report.runs = self.runs.len();
        self.report.head = self.last.1;
        self.report
    }

    fn compare(&mut self, head: &Head) {
        if head.has_gap() {
            self.found(Finding::Lost { events: head.lost, bytes: head.torn });
        }
        let known = (head.seq, head.hash);
        let last = self.last.0;
        let at_head = if head.bytes == 0 { Some(START) } else { self.at_head };
        if at_head == Some(known) {
            if last > head.seq {
                self.found(Finding::HeadBehind { head: head.seq, last });
            }
        } else if last < head.seq {
            self.found(Finding::CutTail { head: head.seq, last });
        } else if !self.head_found || self.report.is_intact() {
            self.found(Finding::HeadDiffers { seq: head.seq });
        }
    }

    fn found(&mut self, finding: Finding) {
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.more_findings += 1;
        }
    }
}
