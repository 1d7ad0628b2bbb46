//! A capture of one stream: its first and its last 5 MiB, and the number of bytes between them.
//!
//! The bytes are in a memory file, so that what a program floods us with isn't resident in this
//! process, and a report can be written without holding it whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use cofferdam_sys::fd;

/// What is kept of the beginning, and as much of the end, in bytes: `interface.md` 3.
pub(crate) const KEPT_BYTES: u64 = 5 << 20;

/// How much is read back at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// A capture. The file's first [`KEPT_BYTES`] are the head, the next are a ring of the tail.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    bytes: u64,
}

impl Spool {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// What the kernel said about memory files.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Spool { file: fd::scratch_file()?, bytes: 0 })
    }

    /// Takes in bytes.
    ///
    /// # Errors
    ///
    /// What the kernel said: there may be no memory.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.bytes < KEPT_BYTES {
            let room = usize::try_from(KEPT_BYTES - self.bytes).unwrap_or(usize::MAX);
            let head = bytes.split_off(..room.min(bytes.len())).unwrap_or_default();
            self.file.write_all_at(head, self.bytes)?;
            self.bytes += head.len() as u64;
        }
        while !bytes.is_empty() {
            let place = (self.bytes - KEPT_BYTES) % KEPT_BYTES;
            let room = usize::try_from(KEPT_BYTES - place).unwrap_or(usize::MAX);
            let part = bytes.split_off(..room.min(bytes.len())).unwrap_or_default();
            self.file.write_all_at(part, KEPT_BYTES + place)?;
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
        self.bytes.saturating_sub(2 * KEPT_BYTES)
    }

    /// Calls a function with what is kept, piece by piece, in order.
    ///
    /// # Errors
    ///
    /// What the function said, or the kernel.
    pub(crate) fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.read(0, self.bytes.min(KEPT_BYTES), f)?;
        let tail = self.bytes.saturating_sub(KEPT_BYTES);
        if tail <= KEPT_BYTES {
            return self.read(KEPT_BYTES, tail, f);
        }
        let oldest = tail % KEPT_BYTES;
        self.read(KEPT_BYTES + oldest, KEPT_BYTES - oldest, f)?;
        self.read(KEPT_BYTES, oldest, f)
    }

    fn read(&self, start: u64, count: u64, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = [0; CHUNK_BYTES];
        let mut done = 0;
        while done < count {
            let part = (count - done).min(CHUNK_BYTES as u64) as usize;
            self.file.read_exact_at(&mut buffer[..part], start + done)?;
            f(&buffer[..part])?;
            done += part as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spool that took `count` bytes, each telling its place, in pieces of a size.
    fn filled(count: usize, piece: usize) -> (Vec<u8>, Spool) {
        let all: Vec<u8> = (0..count).map(|at| (at % 251) as u8).collect();
        let mut spool = Spool::new().unwrap();
        for bytes in all.chunks(piece) {
            spool.push(bytes).unwrap();
        }
        (all, spool)
    }

    fn kept(spool: &Spool) -> Vec<u8> {
        let mut bytes = vec![];
        spool.for_each_chunk(&mut |chunk| { bytes.extend_from_slice(chunk); Ok(()) }).unwrap();
        bytes
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let most = 2 * KEPT_BYTES as usize;
        for count in [0, 1, most / 2 - 1, most / 2, most / 2 + 1, most - 1, most] {
            let (all, spool) = filled(count, 70_001);
            assert!(kept(&spool) == all, "{count} bytes");
            assert_eq!(spool.dropped(), 0);
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
}
