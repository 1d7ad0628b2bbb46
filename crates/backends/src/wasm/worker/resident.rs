//! Which pages of a program's memory stay in place when it is wiped for the next.
//!
//! The engine copies the image over what was written, as far as that lies in few stretches, and gives the rest
//! back: each page of that costs a fault when it is used again, which is most of the time that a small program
//! takes. What an interpreter writes is a few pages in each of a hundred places. So the gaps between them are
//! written too, the smallest first, until there are few stretches.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

/// How many stretches the engine looks for: `MAX_REGIONS` in its `vm/sys/unix/pagemap.rs`, less some that the
/// next program may need for itself.
const STRETCHES: usize = 28;

/// Most pages that are in place, 3 MiB: copying all of them takes a fifth of a millisecond, while nobody waits. A third
/// of it makes a small program a third slower, twice of it none faster (docs/decisions/0015).
const MOST_PAGES: usize = 768;

/// A page of the host's, in bytes.
const PAGE_BYTES: usize = 4 << 10;

/// What the kernel says of our pages.
#[derive(Debug)]
pub(super) struct Resident {
    /// Nothing where it can't be read, and then nothing is done.
    pagemap: Option<File>,
    runs: u64,
}

impl Resident {
    /// Must be made before the process is undumpable: what the kernel says of it is somebody else's then.
    pub(super) fn new() -> Self {
        Resident { pagemap: File::open("/proc/self/pagemap").ok(), runs: 0 }
    }

    /// Looks at the memory of a program that has ended, from time to time: programs write much the same.
    pub(super) fn look(&mut self, memory: &mut [u8]) {
        self.runs += 1;
        let is_time = self.runs.is_power_of_two() || self.runs.is_multiple_of(EVERY);
        let Some(pagemap) = self.pagemap.as_ref().filter(|_| is_time) else { return };
        let first = memory.as_ptr() as usize / PAGE_BYTES;
        let mut entries = vec![0; memory.len() / PAGE_BYTES * ENTRY_BYTES];
        if pagemap.read_exact_at(&mut entries, (first * ENTRY_BYTES) as u64).is_err() {
            return;
        }
        let written =
            entries.chunks_exact(ENTRY_BYTES).map(|entry| is_written(entry.try_into().unwrap_or_default()));
        let found = stretches(written);
        for gap in gaps_to_fill(&found) {
            for page in gap {
                let at = page * PAGE_BYTES;
                memory[at] = black_box(memory[at]);
            }
        }
    }
}

/// How many programs come between two looks, once there were some.
const EVERY: u64 = 64;

/// The length of an entry in `/proc/PID/pagemap`: proc_pid_pagemap(5).
const ENTRY_BYTES: usize = 8;

/// Whether a page is there and no file's: something was written to it.
fn is_written(entry: [u8; ENTRY_BYTES]) -> bool {
    const PRESENT: u64 = 1 << 63;
    const OF_A_FILE: u64 = 1 << 61;
    u64::from_le_bytes(entry) & (PRESENT | OF_A_FILE) == PRESENT
}

/// Pages that follow each other.
type Stretch = std::ops::Range<usize>;

/// The stretches of pages that were written.
fn stretches(written: impl Iterator<Item = bool>) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = vec![];
    for (page, _) in written.enumerate().filter(|(_, written)| *written) {
        match found.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => found.push(page..page + 1),
        }
    }
    found
}

/// The gaps between stretches, the smallest, that have to be filled for as few as there may be; as far as that
/// doesn't need too many pages.
fn gaps_to_fill(stretches: &[Stretch]) -> Vec<Stretch> {
    let mut gaps: Vec<_> = stretches.windows(2).map(|pair| pair[0].end..pair[1].start).collect();
    gaps.sort_by_key(ExactSizeIterator::len);
    gaps.truncate(stretches.len().saturating_sub(STRETCHES));
    let mut pages: usize = stretches.iter().map(ExactSizeIterator::len).sum();
    gaps.retain(|gap| {
        pages += gap.len();
        pages <= MOST_PAGES
    });
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_are_a_stretch() {
        let written = [false, true, true, false, true, false, false, true];
        assert_eq!(stretches(written.into_iter()), [1..3, 4..5, 7..8]);
        assert_eq!(stretches([].into_iter()), []);
    }

    #[test]
    fn the_smallest_gaps_are_filled_until_there_are_few_stretches() {
        // A page in each of as many places as there may be, and two more.
        let mut places: Vec<Stretch> = (0..STRETCHES).map(|n| n * 10..n * 10 + 1).collect();
        assert_eq!(gaps_to_fill(&places), []);
        places.extend([300..301, 303..304]);
        let filled = gaps_to_fill(&places);
        assert_eq!(filled.len(), 2);
        assert_eq!(filled[0], 301..303);
    }

    #[test]
    fn no_more_is_filled_than_may_be_in_place() {
        let places: Vec<Stretch> = (0..=STRETCHES).map(|n| n * 1000..n * 1000 + 1).collect();
        assert_eq!(gaps_to_fill(&places), []);
    }

    #[test]
    fn what_is_filled_is_what_it_was_and_written() {
        let mut memory: Vec<u8> = (0..64 * PAGE_BYTES).map(|at| (at / PAGE_BYTES) as u8).collect();
        let before = memory.clone();
        Resident::new().look(&mut memory);
        assert_eq!(memory, before);
        assert!(is_written((1u64 << 63).to_le_bytes()) && !is_written((1u64 << 63 | 1 << 61).to_le_bytes()));
        assert!(!is_written([0; 8]));
    }
}
