//! One line of the log: how it is written, and how it is read back from bytes that nobody trusts.
//!
//! ```json
//! {"seq":7,"time":"2026-11-29T20:15:04.120Z","run":"r_…","event":"task.end",…,
//!  "after":"sha256:…","prev":"sha256:…","hash":"sha256:…"}
//! ```
//!
//! (on one line). Members stand in this order, without spaces; where `…` stands after the event are
//! that event's own members. `after` is the hash of the log's line before, `prev` that of the same
//! run's event before. `hash` is the SHA-256 of the line's bytes up to and excluding `,"hash":`,
//! with a `}` after them.
//!
//! The form is strict, so that no byte of a line is without meaning: a line that reads back is the
//! line that was written or has another hash. Every byte is printable ASCII: the rest of Unicode
//! and every control character is escaped, so printing a line can't drive a terminal.

use std::fmt::{self, Write as _};

use cofferdam_core::outcome::RunId;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::time;

/// The longest line, its newline not counted. A longer one is neither written nor read.
pub const LINE_MAX_BYTES: usize = 1 << 20;

/// `,"hash":"sha256:` and 64 digits and `"}`.
pub(super) const HASH_MEMBER_BYTES: usize = 16 + HEX_BYTES + 2;

const HEX_BYTES: usize = 64;

/// Names that every line has, which an event's own members can't have.
const COMMON: [&str; 7] = ["seq", "time", "run", "event", "after", "prev", "hash"];

/// A SHA-256, printed as `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What the first line of a log follows.
    pub const GENESIS: Hash = Hash([0; 32]);

    /// The hash of a line, given its bytes before `,"hash":`.
    fn of(body: &[u8]) -> Hash {
        Hash(Sha256::new().chain_update(body).chain_update(b"}").finalize().into())
    }

    /// Reads 64 hexadecimal digits. Capitals are another text, so they are no hash.
    pub(super) fn from_hex(text: &[u8]) -> Option<Hash> {
        let mut bytes = [0; 32];
        if text.len() != HEX_BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Hash(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let mut text = [0; HEX_BYTES];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str("sha256:")?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// A line that is about to be written.
pub(super) struct Draft<'a> {
    pub(super) seq: u64,
    pub(super) time: std::time::SystemTime,
    /// None where the event is the log's own.
    pub(super) run: Option<&'a RunId>,
    pub(super) event: &'a str,
    /// The event's members, each with a comma before it.
    pub(super) members: &'a str,
    pub(super) after: Hash,
    pub(super) prev: Hash,
}

impl Draft<'_> {
    /// The line with its newline, and its hash.
    pub(super) fn seal(&self) -> (Vec<u8>, Hash) {
        let mut text = String::with_capacity(self.members.len() + 400);
        let run = RunText(self.run);
        // Writing to a String can't fail.
        let _ = write!(text, r#"{{"seq":{},"time":"{}","#, self.seq, time::rfc3339(self.time));
        let _ = write!(text, r#""run":{run},"event":"{}"{}"#, self.event, self.members);
        let _ = write!(text, r#","after":"{}","prev":"{}""#, self.after, self.prev);
        let hash = Hash::of(text.as_bytes());
        let _ = writeln!(text, r#","hash":"{hash}"}}"#);
        (text.into_bytes(), hash)
    }
}

/// A run's identity as JSON; `null` for none.
struct RunText<'a>(Option<&'a RunId>);

impl fmt::Display for RunText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(run) => write!(f, "\"{run}\""),
            None => f.write_str("null"),
        }
    }
}

/// Appends a JSON string, in printable ASCII alone.
pub(super) fn push_text(out: &mut String, text: &str) {
    out.push('"');
    let mut units = [0; 2];
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}"); // writing to a String can't fail
                }
            }
        }
    }
    out.push('"');
}

/// A line that has the form of one.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number in the log, from 1.
    pub seq: u64,
    /// When it was written, by the host's clock: RFC 3339 in UTC with milliseconds.
    pub time: String,
    /// The run; none where the event is the log's own.
    pub run: Option<RunId>,
    /// The event's public name.
    pub event: String,
    /// The event's own members.
    pub members: Map<String, Value>,
    /// The hash of the log's line before.
    pub after: Hash,
    /// The hash of the run's event before, or the same as `after` where there is none.
    pub prev: Hash,
    /// The hash that the line says it has.
    pub hash: Hash,
    /// Whether it has that hash.
    pub intact: bool,
}

/// Why bytes are not a line of the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// One part isn't there, or isn't written as the log writes it.
    #[error("`{part}` is not where it belongs, or not written as the log writes it")]
    Form {
        /// The part.
        part: &'static str,
    },
    /// It has a byte that isn't printable ASCII.
    #[error("it has a byte that is not printable ASCII")]
    NotAscii,
    /// It is longer than [`LINE_MAX_BYTES`].
    #[error("it is longer than 1 MiB")]
    TooLong,
}

/// Reads one line, its newline left out.
///
/// A line whose hash is wrong still reads, as one that isn't [intact](Line::intact).
///
/// # Errors
///
/// [`BadLine`] names the first part that is wrong. No input makes this panic.
pub fn parse_line(bytes: &[u8]) -> Result<Line, BadLine> {
    if bytes.len() > LINE_MAX_BYTES {
        return Err(BadLine::TooLong);
    }
    if !bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err(BadLine::NotAscii);
    }
    let mut rest = Rest(bytes);
    rest.ends_with("hash", b"\"}")?;
    let hash = rest.hash("hash", b",\"hash\":\"sha256:")?;
    let body = rest.0;
    rest.ends_with("prev", b"\"")?;
    let prev = rest.hash("prev", b",\"prev\":\"sha256:")?;
    rest.ends_with("after", b"\"")?;
    let after = rest.hash("after", b",\"after\":\"sha256:")?;
    rest.starts_with("seq", b"{\"seq\":")?;
    let seq = rest.seq()?;
    rest.starts_with("time", b",\"time\":\"")?;
    let time = rest.time()?;
    rest.starts_with("run", b"\",\"run\":")?;
    let run = rest.run()?;
    rest.starts_with("event", b",\"event\":\"")?;
    let event = rest.event()?;
    let members = rest.members()?;
    Ok(Line { seq, time, run, event, members, after, prev, hash, intact: Hash::of(body) == hash })
}

/// What is left to read of a line, taken from both of its ends.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn starts_with(&mut self, part: &'static str, text: &[u8]) -> Result<(), BadLine> {
        self.0 = self.0.strip_prefix(text).ok_or(BadLine::Form { part })?;
        Ok(())
    }

    fn ends_with(&mut self, part: &'static str, text: &[u8]) -> Result<(), BadLine> {
        self.0 = self.0.strip_suffix(text).ok_or(BadLine::Form { part })?;
        Ok(())
    }

    /// Takes a number of bytes from the start.
    fn take(&mut self, part: &'static str, bytes: usize) -> Result<&'a [u8], BadLine> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(BadLine::Form { part })?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes what belongs to `known` from the start, as text.
    fn take_while(&mut self, known: fn(u8) -> bool) -> String {
        let bytes = self.0.iter().take_while(|&&byte| known(byte)).count();
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken.iter().copied().map(char::from).collect()
    }

    /// Takes 64 digits, and what must stand before them, from the end.
    fn hash(&mut self, part: &'static str, before: &[u8]) -> Result<Hash, BadLine> {
        let split = self.0.len().checked_sub(HEX_BYTES).ok_or(BadLine::Form { part })?;
        let (rest, digits) = self.0.split_at(split);
        self.0 = rest;
        self.ends_with(part, before)?;
        Hash::from_hex(digits).ok_or(BadLine::Form { part })
    }

    fn seq(&mut self) -> Result<u64, BadLine> {
        let text = self.take_while(|byte| byte.is_ascii_digit());
        let seq = text.parse().ok().filter(|_| !text.starts_with('0'));
        seq.ok_or(BadLine::Form { part: "seq" })
    }

    fn time(&mut self) -> Result<String, BadLine> {
        let text = self.take("time", time::FORM.len())?;
        let fits = |(byte, form): (&u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { *byte == form };
        if !text.iter().zip(time::FORM.bytes()).all(fits) {
            return Err(BadLine::Form { part: "time" });
        }
        Ok(text.iter().copied().map(char::from).collect())
    }

    fn run(&mut self) -> Result<Option<RunId>, BadLine> {
        if let Some(rest) = self.0.strip_prefix(b"null") {
            self.0 = rest;
            return Ok(None);
        }
        self.starts_with("run", b"\"")?;
        let text = self.take_while(|byte| byte != b'"');
        self.starts_with("run", b"\"")?;
        RunId::parse(&text).map(Some).ok_or(BadLine::Form { part: "run" })
    }

    fn event(&mut self) -> Result<String, BadLine> {
        let name = self.take_while(|byte| byte.is_ascii_lowercase() || matches!(byte, b'.' | b'_'));
        self.starts_with("event", b"\"")?;
        if name.is_empty() { Err(BadLine::Form { part: "event" }) } else { Ok(name) }
    }

    /// Reads all that is left as the event's own members.
    fn members(&self) -> Result<Map<String, Value>, BadLine> {
        let bad = BadLine::Form { part: "the event's members" };
        if self.0.is_empty() {
            return Ok(Map::new());
        }
        let Some(members) = self.0.strip_prefix(b",") else { return Err(bad) };
        let object = [b"{", members, b"}"].concat();
        match serde_json::from_slice::<Map<String, Value>>(&object) {
            Ok(map) if !map.is_empty() && !COMMON.iter().any(|name| map.contains_key(*name)) => Ok(map),
            Ok(_) | Err(_) => Err(bad),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn line(members: &str) -> Vec<u8> {
        let run = RunId::parse("r_01jd0000000000000000000000").unwrap();
        let (mut line, _) = Draft {
            seq: 7,
            time: SystemTime::UNIX_EPOCH,
            run: Some(&run),
            event: "task.end",
            members,
            after: Hash::GENESIS,
            prev: Hash::GENESIS,
        }
        .seal();
        line.pop();
        line
    }

    #[test]
    fn a_line_reads_back_as_what_was_written() {
        let line = parse_line(&line(r#","end":"exited","exit_code":3"#)).unwrap();
        assert_eq!((line.seq, line.time.as_str()), (7, "1970-01-01T00:00:00.000Z"));
        assert_eq!(line.run.unwrap().as_str(), "r_01jd0000000000000000000000");
        assert_eq!((line.event.as_str(), &line.members["exit_code"]), ("task.end", &Value::from(3)));
        assert!(line.intact);
    }

    #[test]
    fn no_byte_of_a_line_can_change_unseen() {
        let good = line(r#","end":"exited","exit_code":3"#);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(!parse_line(&bad).is_ok_and(|line| line.intact), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn the_hash_is_that_of_the_bytes_before_it_and_a_brace() {
        let line = String::from_utf8(line("")).unwrap();
        let (body, hash) = line.split_once(",\"hash\":").unwrap();
        let hash = hash.trim_matches(['"', '}']);
        assert_eq!(Hash(Sha256::digest(format!("{body}}}")).into()).to_string(), hash);
    }

    #[test]
    fn an_event_has_no_member_that_every_line_has() {
        for name in COMMON {
            assert!(parse_line(&line(&format!(r#","{name}":1"#))).is_err(), "{name}");
        }
    }

    #[test]
    fn neither_garbage_nor_any_part_of_a_line_is_a_line() {
        let good = line(r#","label":{"a":"b"}"#);
        for cut in 0..good.len() {
            assert!(parse_line(&good[..cut]).is_err(), "{cut}");
            assert!(parse_line(&good[cut + 1..]).is_err(), "{cut}");
        }
        let deep = format!(r#","a":{}"#, "[".repeat(100_000));
        for members in [",", "x", r#","a""#, r#","a":1}"#, r#","a":1,"#, &deep] {
            assert!(parse_line(&line(members)).is_err(), "{members:.20}");
        }
        assert_eq!(parse_line(&vec![b' '; LINE_MAX_BYTES + 1]).unwrap_err(), BadLine::TooLong);
        assert_eq!(parse_line(&[0xff, 0, b'\n']).unwrap_err(), BadLine::NotAscii);
    }

    #[test]
    fn hostile_text_becomes_printable_ascii_that_reads_back_as_itself() {
        let hostile = "a\"\\\n\r\t\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}\u{feff}\u{e0041}é日😀\0";
        let mut text = String::new();
        push_text(&mut text, hostile);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hostile);
    }
}
