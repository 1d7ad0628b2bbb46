//! A capture of one stream: its first and its last 5 MiB, and the number of bytes between them.
//!
//! What a program says little of is held as it is. The bytes of more are in a memory file, so that what a
//! program floods us with isn't resident in this process, and a report can be written without holding it
//! whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use cofferdam_sys::fd;

/// What is kept of the beginning, and as much of the end, in bytes.
pub(crate) const KEPT_BYTES: u64 = 5 << 20;

/// How much is read back at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// How much is held without a file, in bytes.
const HELD_BYTES: usize = 64 << 10;

/// A capture. The file's first [`KEPT_BYTES`] are the head, the next are a ring of the tail.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// Everything, as long as there is no file.
    held: Vec<u8>,
    file: Option<File>,
    bytes: u64,
}

impl Spool {
    /// Takes in bytes.
    ///
    /// # Errors
    ///
    /// What the kernel said: there may be no memory.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() && self.held.len() + bytes.len() <= HELD_BYTES {
            self.held.extend_from_slice(bytes);
            self.bytes += bytes.len() as u64;
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = fd::scratch_file()?;
                file.write_all_at(&self.held, 0)?;
                self.held = vec![];
                none.insert(file)
            }
        };
        while !bytes.is_empty() {
            let (place, room) = place(self.bytes);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let part = bytes.split_off(..room.min(bytes.len())).unwrap_or_default();
            file.write_all_at(part, place)?;
            self.bytes += part.len() as u64;
        }
        Ok(())
    }

    /// How many bytes came.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them aren't kept.
    pub(crate) fn dropped(&self) -> u64 {
        let [head, tail] = self.kept();
        self.bytes - (head.end - head.start) - (tail.end - tail.start)
    }

    /// Calls a function with what is kept, piece by piece, in order.
    ///
    /// # Errors
    ///
    /// What the function said, or the kernel.
    pub(crate) fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.kept().into_iter().try_for_each(|range| self.read(range, f))
    }

    /// The last bytes of the stream, at most so many and at most [`KEPT_BYTES`].
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn tail(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        let from = self.bytes.saturating_sub(most.min(KEPT_BYTES));
        self.read(from..self.bytes, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// The parts of the stream that are kept: its head and its tail. What lies between begins and
    /// ends with whole characters, so that text stays text.
    fn kept(&self) -> [Range<u64>; 2] {
        if self.bytes <= 2 * KEPT_BYTES {
            return [0..self.bytes.min(KEPT_BYTES), KEPT_BYTES.min(self.bytes)..self.bytes];
        }
        let oldest = self.bytes - KEPT_BYTES;
        let edge = |from: u64| {
            let mut bytes = vec![];
            let mut take = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            // An edge that can't be read is left as it is: the report will say so itself.
            self.read(from..from + 3, &mut take).map_or_else(|_| vec![], |()| bytes)
        };
        let head = KEPT_BYTES - unfinished(&edge(KEPT_BYTES - 3));
        let tail = oldest + continued(&edge(oldest));
        [0..head, tail..self.bytes]
    }

    /// Reads a part of the stream that is still there.
    fn read(&self, range: Range<u64>, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some(file) = &self.file else {
            let part = &self.held[range.start as usize..range.end as usize];
            return if part.is_empty() { Ok(()) } else { f(part) };
        };
        let mut buffer = [0; CHUNK_BYTES];
        let mut at = range.start;
        while at < range.end {
            let (place, room) = place(at);
            let part = (range.end - at).min(room).min(CHUNK_BYTES as u64) as usize;
            file.read_exact_at(&mut buffer[..part], place)?;
            f(&buffer[..part])?;
            at += part as u64;
        }
        Ok(())
    }
}

/// Where in the file a byte of the stream is, and how many follow it there without a gap.
fn place(at: u64) -> (u64, u64) {
    match at.checked_sub(KEPT_BYTES) {
        None => (at, KEPT_BYTES - at),
        Some(beyond) => {
            let place = beyond % KEPT_BYTES;
            (KEPT_BYTES + place, KEPT_BYTES - place)
        }
    }
}

/// How many bytes at the end are the beginning of a character that isn't there whole.
fn unfinished(bytes: &[u8]) -> u64 {
    let from_end = bytes.iter().rev().position(|byte| byte & 0b1100_0000 != 0b1000_0000);
    let Some((from_end, lead)) = from_end.and_then(|at| Some((at + 1, bytes.get(bytes.len() - at - 1)?)))
    else {
        return 0;
    };
    let length = match lead {
        0b1100_0000..0b1110_0000 => 2,
        0b1110_0000..0b1111_0000 => 3,
        0b1111_0000..0b1111_1000 => 4,
        _ => 1,
    };
    if length > from_end { from_end as u64 } else { 0 }
}

/// How many bytes at the start are the end of a character that isn't there whole.
fn continued(bytes: &[u8]) -> u64 {
    bytes.iter().take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spool that took `count` bytes, each telling its place, in pieces of a size.
    fn filled(count: usize, piece: usize) -> (Vec<u8>, Spool) {
        let all: Vec<u8> = (0..count).map(|at| (at % 127) as u8).collect();
        (all.clone(), pushed(&all, piece))
    }

    fn pushed(all: &[u8], piece: usize) -> Spool {
        let mut spool = Spool::default();
        for bytes in all.chunks(piece) {
            spool.push(bytes).unwrap();
        }
        spool
    }

    fn kept(spool: &Spool) -> Vec<u8> {
        let mut bytes = vec![];
        spool
            .for_each_chunk(&mut |chunk| {
                bytes.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        bytes
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let most = 2 * KEPT_BYTES as usize;
        for count in [0, 1, HELD_BYTES, HELD_BYTES + 1, most / 2 - 1, most / 2, most / 2 + 1, most - 1, most]
        {
            for piece in [70_001, 1000] {
                let (all, spool) = filled(count, piece);
                assert!(kept(&spool) == all, "{count} bytes");
                assert_eq!(spool.dropped(), 0);
            }
        }
    }

    #[test]
    fn of_more_the_head_and_the_tail_are_kept_and_the_rest_is_counted() {
        let half = KEPT_BYTES as usize;
        for extra in [1, 70_001, half - 1, half, 3 * half + 7] {
            let (all, spool) = filled(2 * half + extra, 65_536);
            let kept = kept(&spool);
            assert!(kept[..half] == all[..half], "head with {extra} dropped");
            assert!(kept[half..] == all[all.len() - half..], "tail with {extra} dropped");
            assert_eq!(spool.dropped(), extra as u64);
        }
    }

    #[test]
    fn the_tail_is_the_end_of_the_stream_wherever_it_lies() {
        let half = KEPT_BYTES as usize;
        for count in [0, 10, half + 5, 2 * half, 2 * half + 3, 3 * half + 7] {
            let (all, spool) = filled(count, 70_001);
            assert!(spool.tail(4096).unwrap() == all[count.saturating_sub(4096)..], "{count} bytes");
        }
    }

    #[test]
    fn text_stays_text_wherever_it_is_cut() {
        for character in ["é", "→", "🦀"] {
            for shift in 0..4 {
                let text = "x".repeat(shift) + &character.repeat(3 * KEPT_BYTES as usize / character.len());
                let spool = pushed(text.as_bytes(), 65_536);
                let kept = kept(&spool);
                assert!(std::str::from_utf8(&kept).is_ok(), "{character} shifted by {shift}");
                assert_eq!(spool.dropped() + kept.len() as u64, spool.bytes());
            }
        }
    }
}
