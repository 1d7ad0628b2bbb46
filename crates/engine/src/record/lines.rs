//! The lines of a log, from its first or from its last, without ever holding more than one long.

use std::fs::File;
use std::io::{self, BufRead, Read as _};
use std::os::unix::fs::FileExt as _;

use cofferdam_core::outcome::RunId;

use super::line::LINE_MAX_BYTES;

/// How a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By a newline.
    Newline,
    /// By the end of the log: whoever wrote it didn't get to its end.
    Torn,
}

/// One line's bytes.
#[derive(Debug)]
pub(super) struct Raw<'a> {
    /// The line without its newline. Of a line that is too long, a part that is too long as well.
    pub(super) bytes: &'a [u8],
    pub(super) ending: Ending,
    /// How many bytes of the log stand before the next line.
    pub(super) until: u64,
}

/// The lines of a log from its first to its last.
#[derive(Debug)]
pub(super) struct Forward<R> {
    from: R,
    line: Vec<u8>,
    until: u64,
}

impl<R: BufRead> Forward<R> {
    /// The lines of `from`, which starts after so many bytes of the log.
    pub(super) fn new(from: R, start: u64) -> Self {
        Forward { from, line: Vec::new(), until: start }
    }

    /// Where the lines come from.
    pub(super) fn source(&self) -> &R {
        &self.from
    }

    /// The next line; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Raw<'_>>> {
        self.line.clear();
        // One byte more than a line and its newline may have, so that a longer line shows as one.
        let limit = LINE_MAX_BYTES as u64 + 2;
        self.until += self.from.by_ref().take(limit).read_until(b'\n', &mut self.line)? as u64;
        let mut ending = ending(&self.line);
        if self.line.len() as u64 == limit && ending == Ending::Torn {
            ending = self.skip()?;
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        let bytes = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some(Raw { bytes, ending, until: self.until }))
    }

    /// Skips the rest of a line that is too long to be one.
    fn skip(&mut self) -> io::Result<Ending> {
        loop {
            let buffer = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if buffer.is_empty() {
                return Ok(Ending::Torn);
            }
            let newline = buffer.iter().position(|&byte| byte == b'\n');
            let skipped = newline.map_or(buffer.len(), |at| at + 1);
            self.from.consume(skipped);
            self.until += skipped as u64;
            if newline.is_some() {
                return Ok(Ending::Newline);
            }
        }
    }
}

fn ending(line: &[u8]) -> Ending {
    if line.ends_with(b"\n") { Ending::Newline } else { Ending::Torn }
}

/// The whole lines of a log from its last to its first. Ends early at a line that is too long.
#[derive(Debug)]
pub(super) struct Backward<'a> {
    log: &'a File,
    /// How many bytes of the log were not read yet; `held` are those that follow.
    unread: u64,
    held: Vec<u8>,
    done: bool,
}

impl<'a> Backward<'a> {
    /// The lines of a log's first so many bytes. An unfinished line at their end is left out.
    pub(super) fn new(log: &'a File, bytes: u64) -> io::Result<Self> {
        let mut lines = Backward { log, unread: bytes, held: Vec::new(), done: false };
        lines.take_line()?; // what follows the last newline
        Ok(lines)
    }

    /// Takes what follows the last newline that is left, or everything where none is left.
    fn take_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched = 0; // bytes at the end of `held` that have no newline
        while !self.done {
            let fresh = &self.held[..self.held.len() - searched];
            if let Some(at) = fresh.iter().rposition(|&byte| byte == b'\n') {
                let line = self.held.split_off(at + 1);
                self.held.truncate(at);
                return Ok(Some(line));
            }
            searched = self.held.len();
            if self.unread == 0 {
                self.done = true;
                return Ok(Some(std::mem::take(&mut self.held)));
            }
            self.done = searched > LINE_MAX_BYTES;
            self.hold_more()?;
        }
        Ok(None)
    }

    /// Reads the block before what is held.
    fn hold_more(&mut self) -> io::Result<()> {
        const BLOCK_BYTES: usize = 16 << 10;
        let bytes = usize::try_from(self.unread).map_or(BLOCK_BYTES, |unread| unread.min(BLOCK_BYTES));
        let mut block = vec![0; bytes];
        self.unread -= bytes as u64;
        self.log.read_exact_at(&mut block, self.unread)?;
        block.append(&mut self.held);
        self.held = block;
        Ok(())
    }
}

impl Iterator for Backward<'_> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take_line().transpose()
    }
}

/// Whether a line can belong to a run: a look that is much cheaper than reading the line.
pub(super) fn mentions(line: &[u8], run: &RunId) -> bool {
    const BEFORE_BYTES: usize = 100; // more than `seq`, `time` and `run` take, with the longest number
    let run = run.as_str().as_bytes();
    line[..line.len().min(BEFORE_BYTES)].windows(run.len()).any(|part| part == run)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn both_ways(text: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let backward = Backward::new(&file, text.len() as u64).unwrap().map(Result::unwrap).collect();
        let mut forward = vec![];
        let mut lines = Forward::new(text, 0);
        while let Some(raw) = lines.next().unwrap() {
            if raw.ending == Ending::Newline {
                forward.push(raw.bytes.to_vec());
            }
        }
        assert_eq!(lines.until, text.len() as u64);
        (forward, backward)
    }

    #[test]
    fn both_ways_find_the_same_whole_lines() {
        let long = [vec![b'x'; 40_000], b"\nb\n".to_vec()].concat();
        for text in [&b""[..], b"a", b"a\n", b"\n\n", b"a\nbb\n\nccc\nd", &long] {
            let (forward, mut backward) = both_ways(text);
            backward.reverse();
            assert_eq!(forward, backward, "{:?}", text.first_chunk::<9>());
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_seen_and_never_held_whole() {
        let text = [&b"a\n"[..], &vec![b'x'; 3 << 20], b"\nb\n"].concat();
        let (forward, backward) = both_ways(&text);
        assert_eq!((forward[0].as_slice(), forward[2].as_slice()), (&b"a"[..], &b"b"[..]));
        assert!((LINE_MAX_BYTES + 1..LINE_MAX_BYTES + 3).contains(&forward[1].len()));
        assert_eq!(backward, [b"b"]); // and ends there
    }
}
