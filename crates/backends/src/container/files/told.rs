//! What the thread that reads a working directory tells: one change after the other.

use std::cell::Cell;
use std::fs::File;
use std::io;

use cofferdam_core::artifact::{Before, Change, Collect, Entry, FileFound, Found, Rejection};
use tokio::sync::mpsc;

/// A change, with its files open.
#[derive(Debug)]
pub(super) struct Told {
    path: Vec<u8>,
    change: Change,
    what: What,
}

/// What a changed entry is, or was.
#[derive(Debug)]
pub(super) enum What {
    File { bytes: u64, executable: bool, now: Option<File>, before: Option<(bool, File)> },
    Folder,
    Link(Vec<u8>),
    Refused(Rejection),
}

/// How many changes are told ahead: each may hold two descriptors.
pub(super) const IN_HAND: usize = 32;

impl Told {
    /// Hands it over.
    pub(super) fn hand_over(self, receiver: &mut dyn Collect) -> io::Result<()> {
        let Told { path, change, what } = self;
        let found = |entry| Found { path: &path, change, entry };
        match what {
            What::File { bytes, executable, mut now, mut before } => {
                let now = now.as_mut().map(|file| file as &mut dyn io::Read);
                let before = before.as_mut();
                let before = before.map(|(executable, content)| Before { executable: *executable, content });
                receiver.take(found(Entry::File(FileFound { bytes, executable, now, before })))
            }
            What::Folder => receiver.take(found(Entry::Folder)),
            What::Link(says) => receiver.take(found(Entry::Link(&says))),
            What::Refused(why) => receiver.take(found(Entry::Refused(why))),
        }
    }
}

/// Why the reading ended before its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Whoever wanted to know has stopped waiting.
    NobodyListens,
    /// The working directory itself can't be read.
    Unreadable(io::Error),
}

/// The thread's end: tells, and counts what was compared.
pub(super) struct Teller {
    told: mpsc::Sender<Told>,
    compared: Cell<u64>,
}

/// The most bytes that are compared in all. What is beyond counts as changed.
const COMPARED_BYTES: u64 = 4 << 30;

/// The most bytes of one file that are compared: no larger one comes out in any case.
const FILE_BYTES: u64 = cofferdam_core::artifact::TOTAL_BYTES;

impl Teller {
    pub(super) fn new(told: mpsc::Sender<Told>) -> Self {
        Teller { told, compared: Cell::new(0) }
    }

    pub(super) fn tell(&self, path: &[u8], change: Change, what: What) -> Result<(), Stopped> {
        let told = Told { path: path.to_vec(), change, what };
        self.told.blocking_send(told).map_err(|_| Stopped::NobodyListens)
    }

    /// Whether so many bytes may still be compared; they count as compared then.
    pub(super) fn may_compare(&self, bytes: u64) -> bool {
        let compared = self.compared.get().saturating_add(bytes);
        let may = bytes <= FILE_BYTES && compared <= COMPARED_BYTES;
        if may {
            self.compared.set(compared);
        }
        may
    }

    /// Whether somebody still wants to know.
    pub(super) fn is_heard(&self) -> bool {
        !self.told.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_bounded_by_file_and_in_all() {
        let teller = Teller::new(mpsc::channel(1).0);
        assert!(!teller.may_compare(FILE_BYTES + 1));
        for _ in 0..COMPARED_BYTES / FILE_BYTES {
            assert!(teller.may_compare(FILE_BYTES));
        }
        assert!(!teller.may_compare(1));
    }

    #[test]
    fn reading_ends_when_nobody_listens() {
        let (told, listening) = mpsc::channel(1);
        let teller = Teller::new(told);
        assert!(teller.is_heard());
        drop(listening);
        assert!(!teller.is_heard());
        let told = teller.tell(b"x", Change::Added, What::Folder);
        assert!(matches!(told, Err(Stopped::NobodyListens)));
    }
}
