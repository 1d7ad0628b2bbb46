//! Surrogates: what a sandbox sees in place of a credential, and how one is known wherever it turns up.
//!
//! A surrogate is a mark and random letters, perhaps after a prefix that programs expect. It is worth nothing: who has
//! one can have it swapped only on the way out of the sandbox that it was made for, in the one place of a request to the
//! one host that it is for. So whoever looks at what leaves needs no list of them to see one that is astray.

use crate::weaken::{self, Control};

/// By what a surrogate is known. Letters and a digit, so that it stands unchanged in a header, an address, JSON and a
/// form; a name in another spelling isn't one, since random letters have to follow.
pub const MARK: &str = "cofferdam0";

/// How many letters follow the mark: five random bits each, so 120 bits.
pub const LETTERS: usize = 24;

/// The letters: those of Crockford's base 32 in lower case (<https://www.crockford.com/base32.html>).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A mark and its letters, in bytes.
const LENGTH: usize = MARK.len() + LETTERS;

/// What the mark is in base64 behind 0, 1 and 2 bytes of something else, as far as those change nothing of it, and how
/// many letters before it belong to the same group.
const IN_BASE64: [(&[u8], usize); 3] = [(b"Y29mZmVyZGFt", 0), (b"NvZmZlcmRhbT", 2), (b"jb2ZmZXJkYW0w", 3)];

/// How many letters of base64 have all of a surrogate, with what stands before it in the first group.
const BASE64_LENGTH: usize = (LENGTH + 2).div_ceil(3) * 4;

/// A surrogate of these random bytes, after a prefix.
#[must_use]
pub fn of(prefix: &str, random: &[u8; LETTERS]) -> String {
    let letters = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)]));
    prefix.chars().chain(MARK.chars()).chain(letters).collect()
}

/// Whether a surrogate stands in these bytes, as it is or in base64.
#[must_use]
pub fn stands_in(bytes: &[u8]) -> bool {
    if weaken::is_off(Control::SurrogatePlace) {
        return false;
    }
    positions(bytes, MARK.as_bytes()).any(|at| is_one(&bytes[at..]))
        || IN_BASE64.iter().any(|(mark, before)| {
            positions(bytes, mark).any(|at| decodes_to_one(&bytes[at.saturating_sub(*before)..]))
        })
}

fn is_one(bytes: &[u8]) -> bool {
    let letters = bytes.get(MARK.len()..LENGTH);
    letters.is_some_and(|letters| letters.iter().all(|letter| ALPHABET.contains(letter)))
}

/// Whether a surrogate stands in what these letters of base64 are, near their beginning.
fn decodes_to_one(letters: &[u8]) -> bool {
    let decoded = from_base64(&letters[..letters.len().min(BASE64_LENGTH)]);
    positions(&decoded, MARK.as_bytes()).any(|at| is_one(&decoded[at..]))
}

/// The bytes of base64 in either alphabet (RFC 4648, sections 4 and 5), up to what is no letter of it.
fn from_base64(letters: &[u8]) -> Vec<u8> {
    let values = letters.iter().map_while(|letter| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    });
    let (mut bytes, mut bits, mut held) = (vec![], 0, 0_u32);
    for value in values {
        (held, bits) = (held << 6 | u32::from(value), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

fn positions<'a>(bytes: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    memchr::memmem::find_iter(bytes, wanted)
}

/// Looks for surrogates in bytes that come in pieces. A piece is looked at before it goes on, so of a surrogate in
/// several pieces the last doesn't go.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The end of what went on.
    before: Vec<u8>,
}

impl Watch {
    /// Whether a surrogate ends in this piece.
    pub fn sees(&mut self, piece: &[u8]) -> bool {
        const KEPT: usize = BASE64_LENGTH;
        self.before.extend_from_slice(&piece[..piece.len().min(KEPT)]);
        let is_seen = stands_in(&self.before) || stands_in(piece);
        if piece.len() > KEPT {
            self.before.clear();
            self.before.extend_from_slice(&piece[piece.len() - KEPT..]);
        } else {
            self.before.drain(..self.before.len().saturating_sub(KEPT));
        }
        is_seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648, section 4.
    fn base64(bytes: &[u8]) -> Vec<u8> {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |group: &[u8]| {
            let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            let letter = move |at: usize| LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            (0..=group.len())
                .map(letter)
                .chain(std::iter::repeat_n(b'=', 3 - group.len()))
                .collect::<Vec<_>>()
        };
        bytes.chunks(3).flat_map(group).collect()
    }

    fn one() -> String {
        of("", &std::array::from_fn(|at| at as u8 * 11))
    }

    #[test]
    fn a_surrogate_is_known_as_it_is_and_in_base64_wherever_it_begins() {
        for before in ["", "u", "us", "user:", "a much longer name than that:"] {
            let text = format!("{before}{} and more", one());
            assert!(stands_in(text.as_bytes()), "{text}");
            let encoded = base64(text.as_bytes());
            assert!(stands_in(&encoded), "{}", String::from_utf8_lossy(&encoded));
            let url: Vec<u8> = encoded.iter().map(|byte| if *byte == b'+' { b'-' } else { *byte }).collect();
            assert!(stands_in(&[b"x=", &url[..], b"&y"].concat()));
            let short = base64(format!("{before}{}", one()).as_bytes());
            assert!(stands_in(&short), "nothing behind it");
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        let one = one();
        for text in [
            "cofferdam",
            "host.cofferdam.internal",
            "cofferdam_0123456789abcdefghjkmnpq",
            &one[..one.len() - 1],
        ] {
            assert!(!stands_in(text.as_bytes()) && !stands_in(&base64(text.as_bytes())), "{text}");
        }
        assert!(!stands_in(&base64(b"pub const MARK: &str = \"cofferdam0\";")), "its own source");
    }

    #[test]
    fn pieces_hide_nothing() {
        let text = format!("xxxxxxxxxxxxxxxx {} yyyyyyyyyyyyyyyyyy", one()).repeat(1).into_bytes();
        for text in [text.clone(), base64(&text)] {
            for size in 1..text.len() {
                let mut watch = Watch::default();
                assert!(text.chunks(size).any(|piece| watch.sees(piece)), "{size}");
            }
            let mut watch = Watch::default();
            assert!(!text.chunks(3).any(|piece| watch.sees(&piece.to_ascii_uppercase())));
        }
    }
}
