//! The head file: where the log ends, kept beside it so that a cut shows.
//!
//! ```json
//! {"seq":14,"bytes":5120,"hash":"sha256:…","lost":0,"torn":0}
//! ```
//!
//! padded with spaces and a newline to a fixed width, so that one write in place replaces it whole
//! and a full disk can't refuse that write. `seq` and `hash` are those of the log's last line,
//! `bytes` is the log's length. `lost` and `torn` are what the next `audit.gap` will tell.

use std::fmt::Write as _;

use super::line::Hash;

/// The width of the file: more than the longest head.
pub(super) const HEAD_BYTES: usize = 256;

/// What no number of a log can reach, so that counting on from a forged head can't overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Where a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The last event; 0 in an empty log.
    pub(super) seq: u64,
    /// The log's length.
    pub(super) bytes: u64,
    /// The last event's hash.
    pub(super) hash: Hash,
    /// Events that could not be written since the last `audit.gap`.
    pub(super) lost: u64,
    /// Bytes of an unfinished line that were cut off since the last `audit.gap`.
    pub(super) torn: u64,
}

impl Head {
    /// The head of an empty log.
    pub(super) const EMPTY: Head = Head { seq: 0, bytes: 0, hash: Hash::GENESIS, lost: 0, torn: 0 };

    /// Whether something is missing from the log that no event tells yet.
    pub(super) fn has_gap(&self) -> bool {
        self.lost > 0 || self.torn > 0
    }

    /// The whole file.
    pub(super) fn render(&self) -> [u8; HEAD_BYTES] {
        let Head { seq, bytes, hash, lost, torn } = self;
        let mut text = String::with_capacity(HEAD_BYTES);
        // Writing to a String can't fail.
        let _ =
            write!(text, r#"{{"seq":{seq},"bytes":{bytes},"hash":"{hash}","lost":{lost},"torn":{torn}}}"#);
        let mut file = [b' '; HEAD_BYTES];
        for (byte, text) in file.iter_mut().zip(text.bytes()) {
            *byte = text;
        }
        file[HEAD_BYTES - 1] = b'\n';
        file
    }

    /// Reads a whole file, if every byte of it is as [`render`](Head::render) writes it.
    pub(super) fn parse(file: &[u8]) -> Option<Head> {
        let mut rest = std::str::from_utf8(file).ok()?;
        let seq: u64 = take(&mut rest, "{\"seq\":", ",")?.parse().ok()?;
        let bytes: u64 = take(&mut rest, "\"bytes\":", ",")?.parse().ok()?;
        let hash = take(&mut rest, "\"hash\":\"sha256:", "\",")?;
        let lost = take(&mut rest, "\"lost\":", ",")?.parse().ok()?;
        let torn = take(&mut rest, "\"torn\":", "}")?.parse().ok()?;
        let head = Head { seq, bytes, hash: Hash::from_hex(hash.as_bytes())?, lost, torn };
        (seq.max(bytes) < NUMBER_MAX && head.render() == file).then_some(head)
    }
}

/// A head file as a reader finds it.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadFile {
    /// As it was written.
    Known(Head),
    /// Not there, or empty as it is for a moment when a log begins.
    Missing,
    /// Not as it was written.
    Unreadable,
}

impl HeadFile {
    pub(super) fn of(file: &[u8]) -> HeadFile {
        match Head::parse(file) {
            Some(head) => HeadFile::Known(head),
            None if file.is_empty() => HeadFile::Missing,
            None => HeadFile::Unreadable,
        }
    }
}

/// Takes what stands between two texts at the start.
fn take<'a>(rest: &mut &'a str, before: &str, end: &str) -> Option<&'a str> {
    let (taken, tail) = rest.strip_prefix(before)?.split_once(end)?;
    *rest = tail;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Head =
        Head { seq: NUMBER_MAX - 1, bytes: NUMBER_MAX - 1, lost: u64::MAX, torn: u64::MAX, ..Head::EMPTY };

    #[test]
    fn the_longest_head_fits_and_reads_back() {
        for head in [Head::EMPTY, FULL] {
            assert_eq!(Head::parse(&head.render()), Some(head));
            assert!(head.render().ends_with(b" \n"));
        }
    }

    #[test]
    fn numbers_that_no_log_reaches_are_refused() {
        for head in [Head { seq: NUMBER_MAX, ..FULL }, Head { bytes: u64::MAX, ..FULL }] {
            assert_eq!(Head::parse(&head.render()), None);
        }
    }

    #[test]
    fn no_byte_of_a_head_is_without_meaning() {
        let good = Head { seq: 10, bytes: 4_000, ..Head::EMPTY };
        for at in 0..HEAD_BYTES {
            for bit in 0..8 {
                let mut bad = good.render();
                bad[at] ^= 1 << bit;
                assert_ne!(Head::parse(&bad), Some(good), "byte {at}, bit {bit}");
            }
            assert_eq!(Head::parse(&good.render()[..at]), None);
        }
    }
}
