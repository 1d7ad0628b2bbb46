//! What can be found wrong with a log, in types and in sentences.

use std::fmt;

use super::line::{BadLine, Hash};

/// What a log is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Lines that have the form of an event.
    pub events: u64,
    /// Different runs among them.
    pub runs: usize,
    /// The hash of the last of them.
    pub head: Hash,
    /// What was found: by line, then missing events, then the head. The first thousand.
    pub findings: Vec<Finding>,
    /// How many more there were.
    pub more_findings: u64,
}

impl Report {
    /// Whether nothing was changed. What a crash leaves is no change.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.findings.iter().all(Finding::is_harmless) && self.more_findings == 0
    }
}

/// One thing that was found. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An event's bytes are not those that its hash was made of.
    Changed {
        /// Where.
        line: u64,
        /// Which event.
        seq: u64,
    },
    /// The head file knows events that are not in the log.
    CutTail {
        /// The last event that the head file knows.
        head: u64,
        /// The last event in the log.
        last: u64,
    },
    /// The log goes on after what the head file knows: a crash, which the next append puts right.
    HeadBehind {
        /// The last event that the head file knows.
        head: u64,
        /// The last event in the log.
        last: u64,
    },
    /// The event that the head file knows is not the one in the log.
    HeadDiffers {
        /// Which event.
        seq: u64,
    },
    /// The head file isn't there, although the log holds something.
    HeadMissing,
    /// The head file is not as it was written.
    HeadUnreadable,
    /// Something could not be recorded, and the next append will tell it by an `audit.gap`.
    Lost {
        /// Events that could not be written.
        events: u64,
        /// Bytes of an unfinished line that were cut off.
        bytes: u64,
    },
    /// A line is not one of ours.
    Malformed {
        /// Where.
        line: u64,
        /// Why.
        why: BadLine,
    },
    /// Events are not there.
    Missing {
        /// The last event before them.
        after_seq: u64,
        /// The next one that is there.
        next: u64,
    },
    /// An event stands after a later one, or twice.
    Reordered {
        /// Where.
        line: u64,
        /// Which event.
        seq: u64,
    },
    /// The last line has no end: a crash, which the next append puts right.
    Torn {
        /// Where.
        line: u64,
        /// How many bytes of it there are.
        bytes: u64,
    },
    /// An event was written after another one than the one that now stands before it.
    Unlinked {
        /// Where.
        line: u64,
        /// Which event.
        seq: u64,
        /// Before it in what.
        chain: Chain,
    },
}

/// What links one event to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// All events of the log.
    Log,
    /// The events of one run.
    Run,
}

impl Finding {
    /// Whether a crash leaves this behind, so that it is no sign of a change.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        matches!(self, Finding::HeadBehind { .. } | Finding::Lost { .. } | Finding::Torn { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Changed { line, seq } => write!(f, "line {line}: event {seq} was changed"),
            Finding::CutTail { head, last } => {
                write!(f, "the log was cut: its last event is {last}, and {head} were written")
            }
            Finding::HeadBehind { head, last } => {
                write!(f, "the head file knows event {head}, the log goes on to {last}")
            }
            Finding::HeadDiffers { seq } => {
                write!(f, "the head file knows another event {seq} than the log, or another length")
            }
            Finding::HeadMissing => write!(f, "the head file is missing"),
            Finding::HeadUnreadable => write!(f, "the head file is not as it was written"),
            Finding::Lost { events, bytes } => {
                write!(f, "not recorded: {events} events, and {bytes} bytes of an unfinished line")
            }
            Finding::Malformed { line, why } => write!(f, "line {line} is not one of ours: {why}"),
            Finding::Missing { after_seq, next } if after_seq + 2 == *next => {
                write!(f, "event {} is missing", after_seq + 1)
            }
            Finding::Missing { after_seq, next } => {
                write!(f, "events {} to {} are missing", after_seq + 1, next - 1)
            }
            Finding::Reordered { line, seq } => {
                write!(f, "line {line}: event {seq} is out of its place, or there twice")
            }
            Finding::Torn { line, bytes } => {
                write!(f, "line {line} has no end; there are {bytes} bytes of it")
            }
            Finding::Unlinked { line, seq, chain: Chain::Log } => {
                write!(f, "line {line}: event {seq} was written after another event than the one before it")
            }
            Finding::Unlinked { line, seq, chain: Chain::Run } => {
                write!(f, "line {line}: event {seq} was written after another event of its run")
            }
        }
    }
}
