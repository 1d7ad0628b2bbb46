//! Looks for secrets in what came out, however somebody may have written them down.
//!
//! A secret is looked for as it is and in the forms of [`forms`], in what came out as it is and in each of
//! its [`readings`]. Compressed and encrypted forms are not looked for.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;

/// Secrets, in every form that is looked for, by what they begin with: one pass finds them all.
pub struct Secrets(Vec<Vec<(&'static str, Vec<u8>)>>);

impl Secrets {
    /// Secrets of text, none shorter than a few characters.
    #[must_use]
    pub fn new(secrets: &[String]) -> Self {
        let mut by_start = vec![vec![]; 1 << 16];
        for (form, bytes) in secrets.iter().flat_map(|secret| forms(secret)) {
            by_start[start(bytes[0], bytes[1])].push((form, bytes));
        }
        Secrets(by_start)
    }

    /// In which form, and in which reading, one of them is in something.
    #[must_use]
    pub fn found_in(&self, bytes: &[u8]) -> Option<String> {
        readings(bytes).into_iter().find_map(|(reading, bytes)| {
            let form = self.form_in(&bytes)?;
            Some(format!("{form}{reading}"))
        })
    }

    fn form_in(&self, bytes: &[u8]) -> Option<&'static str> {
        (1..bytes.len()).find_map(|at| {
            let forms = &self.0[start(bytes[at - 1], bytes[at])];
            forms.iter().find(|(_, form)| bytes[at - 1..].starts_with(form)).map(|(name, _)| *name)
        })
    }
}

/// Whether one of them, in any form, is in the memory that a process could write to. What of it can't be read isn't looked
/// at: who is not root sees none.
#[must_use]
pub fn in_memory_of(pid: i32, secrets: &Secrets) -> bool {
    use std::os::unix::fs::FileExt as _;
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return false };
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    let written =
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")));
    let ranges = written.filter_map(|line| {
        let (begin, end) = line.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    ranges.into_iter().any(|(begin, end)| {
        const PIECE: u64 = 1 << 20;
        (begin..end).step_by(PIECE as usize).any(|at| {
            // Each piece with the beginning of the next, so that nothing is cut in two.
            let mut bytes = vec![0; (end - at).min(PIECE + 4096) as usize];
            memory.read_exact_at(&mut bytes, at).is_ok() && secrets.form_in(&bytes).is_some()
        })
    })
}

/// What two bytes that begin something are in the table.
fn start(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// The forms of a secret.
fn forms(secret: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = secret.as_bytes();
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // a String takes everything
        hex
    });
    let mut forms = vec![
        ("as it is", bytes.to_vec()),
        ("reversed", bytes.iter().rev().copied().collect()),
        ("in hexadecimal", hex.to_uppercase().into_bytes()),
        ("in hexadecimal", hex.into_bytes()),
    ];
    // What comes before it decides where its groups of three begin, what follows how the last one ends.
    for skipped in 0..3 {
        let rest = &bytes[skipped..];
        let groups = &rest[..rest.len() / 3 * 3];
        forms.push(("in base64", STANDARD_NO_PAD.encode(groups).into_bytes()));
        forms.push(("in base64 for URLs", URL_SAFE_NO_PAD.encode(groups).into_bytes()));
    }
    forms
}

/// Something as it is, and as others may read it.
fn readings(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let said = said_in_json(bytes);
    let mut readings = vec![];
    for (bytes, [plain, joined, percent]) in [
        (bytes, ["", ", over breaks of lines", ", percent-encoded"]),
        (
            &said,
            [
                " as JSON says it",
                " as JSON says it, over breaks of lines",
                " as JSON says it, percent-encoded",
            ],
        ),
    ] {
        readings.push((plain, bytes.to_vec()));
        readings.push((joined, bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()));
        readings.push((percent, percent_decoded(bytes)));
    }
    readings
}

/// Bytes with each `%XX` as the byte that it stands for.
fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%');
        let byte = digits.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        decoded.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded
}

/// What the strings say of every line that is JSON, or of the whole that is; what an Outcome carries as
/// base64 is what it stands for.
fn said_in_json(bytes: &[u8]) -> Vec<u8> {
    let mut said = vec![];
    if let Ok(value) = serde_json::from_slice(bytes) {
        collect_strings(&value, &mut said);
        return said;
    }
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        if let Ok(value) = serde_json::from_slice(line) {
            collect_strings(&value, &mut said);
        }
    }
    said
}

fn collect_strings(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::String(text) => {
            into.extend(text.as_bytes());
            into.push(0); // two strings beside one another are not one
        }
        Value::Array(values) => values.iter().for_each(|value| collect_strings(value, into)),
        Value::Object(members) => {
            members.values().for_each(|value| collect_strings(value, into));
            if members.get("encoding").is_some_and(|encoding| encoding == "base64") {
                let text = members.get("text").and_then(Value::as_str).unwrap_or_default();
                into.extend(STANDARD.decode(text).unwrap_or_default());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its base64 is another one for URLs.
    const SECRET: &str = "canary?>~~?-0123456789";

    fn found(bytes: impl AsRef<[u8]>) -> Option<String> {
        Secrets::new(&[SECRET.to_owned()]).found_in(bytes.as_ref())
    }

    #[test]
    fn a_secret_is_found_as_it_is_reversed_and_in_hexadecimal() {
        let reversed: String = SECRET.chars().rev().collect();
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        for text in [SECRET, &reversed, &hex, &hex.to_uppercase()] {
            assert!(found(format!("TOKEN={text}\n")).is_some(), "{text}");
        }
        assert_eq!(found("canary?>~~?-012345678"), None, "one character short");
        assert_eq!(found(""), None);
    }

    #[test]
    fn base64_is_found_wherever_its_groups_begin() {
        for before in ["", "x", "xx", "xxx"] {
            for after in ["", "y", "yy"] {
                let text = format!("{before}{SECRET}{after}");
                assert!(found(STANDARD.encode(&text)).is_some(), "{text}");
                assert!(found(URL_SAFE_NO_PAD.encode(&text)).is_some(), "{text}");
            }
        }
        assert_ne!(STANDARD_NO_PAD.encode(SECRET), URL_SAFE_NO_PAD.encode(SECRET));
    }

    #[test]
    fn breaks_of_lines_do_not_hide_what_they_part() {
        let lines = STANDARD.encode(format!("A=1\nTOKEN={SECRET}\n"));
        let lines: Vec<_> = lines.as_bytes().chunks(8).map(|line| str::from_utf8(line).unwrap()).collect();
        assert!(found(lines.join("\n")).is_some());
        assert!(found(serde_json::json!({"text": lines.join("\n")}).to_string()).is_some());
    }

    #[test]
    fn percent_encoding_is_found_in_whole_and_in_part() {
        let all: String = SECRET.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for text in [all.as_str(), "canary%3F%3e~~?-0123456789", "100%&canary%3f>~~?-0123456789"] {
            assert!(found(text).is_some(), "{text}");
        }
        assert_eq!(percent_decoded(b"%zz%4%"), b"%zz%4%");
    }

    #[test]
    fn what_an_outcome_carries_as_base64_is_read() {
        let output = [&b"\xff"[..], SECRET.as_bytes(), b"\xfe"].concat();
        let reversed: Vec<u8> = output.iter().rev().copied().collect();
        for bytes in [output, reversed] {
            let outcome =
                serde_json::json!({"stdout": {"text": STANDARD.encode(bytes), "encoding": "base64"}});
            assert!(found(format!("said before\n{outcome}\n")).is_some(), "{outcome}");
        }
        let escaped = serde_json::json!({"label": SECRET}).to_string().replace('n', "\\u006e");
        assert!(found(escaped).is_some());
    }
}
