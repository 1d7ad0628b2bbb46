//! Messages of DNS, as far as questions for addresses and their answers need them (RFC 1035, section 4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cofferdam_core::egress::{BadHost, Host, NAME_BYTES, shown};

/// The longest message over UDP without EDNS: RFC 1035, section 4.2.1.
pub const UDP_BYTES: usize = 512;

/// Types and the class of the internet: RFC 1035, section 3.2, and RFC 3596.
pub const A: u16 = 1;
const CNAME: u16 = 5;
/// An address of IPv6.
pub const AAAA: u16 = 28;
const INTERNET: u16 = 1;

const HEADER_BYTES: usize = 12;
const IS_ANSWER: u16 = 0x8000;
const IS_TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const OPCODE: u16 = 0x7800;

/// How a question is answered, beside addresses: RFC 1035, section 4.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// As asked, with addresses or without.
    NoError = 0,
    /// It can't be read.
    Malformed = 1,
    /// There is no such name.
    NoSuchName = 3,
    /// It isn't answered.
    Refused = 5,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    id: u16,
    recursion_desired: bool,
    /// The name, or what is asked for instead, as text, and why it is none.
    pub name: Result<Host, (String, BadHost)>,
    /// What of it is asked for.
    pub kind: u16,
    /// Whether that is of the internet.
    pub is_internet: bool,
    /// As it came, to be repeated.
    raw: Vec<u8>,
}

/// Bytes that are read from a place in a message.
#[derive(Clone, Copy)]
struct Place<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Place<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Labels with dots between them, in lower case. `may_point` is whether labels may stand elsewhere in the
    /// message (section 4.1.4): only before the place that points, so that it ends.
    fn name(&mut self, may_point: bool) -> Option<Vec<u8>> {
        let mut text = vec![];
        let mut reading = *self;
        let mut end = None;
        loop {
            let before = reading.at;
            let length = usize::from(*reading.take(1)?.first()?);
            match length {
                0 => break,
                1..=63 => {
                    let label = reading.take(length)?;
                    if label.contains(&b'.') {
                        return None; // it would read as two
                    }
                    text.extend(label.iter().map(u8::to_ascii_lowercase).chain([b'.']));
                }
                0xc0.. if may_point => {
                    let low = usize::from(*reading.take(1)?.first()?);
                    let to = (length & 0x3f) << 8 | low;
                    end.get_or_insert(reading.at);
                    if to >= before {
                        return None;
                    }
                    reading.at = to;
                }
                _ => return None,
            }
            if text.len() > NAME_BYTES + 1 {
                return None;
            }
        }
        self.at = end.unwrap_or(reading.at);
        text.pop();
        Some(text)
    }
}

/// The header: identity, flags, and how many questions and answers there are.
fn header(place: &mut Place) -> Option<(u16, u16, u16, u16)> {
    let (id, flags, questions, answers) = (place.short()?, place.short()?, place.short()?, place.short()?);
    place.take(4)?; // authorities and additional records
    Some((id, flags, questions, answers))
}

/// Reads a message with one question. None for what isn't even worth an answer.
///
/// # Errors
///
/// The answer to something that has an identity and can't be read.
pub fn question(message: &[u8]) -> Option<Result<Question, Vec<u8>>> {
    let mut place = Place { message, at: 0 };
    let (id, flags, questions, _) = header(&mut place)?;
    if flags & IS_ANSWER != 0 {
        return None;
    }
    let refused = |code| Some(Err(bare(id, flags, code)));
    if flags & OPCODE != 0 {
        return refused(Code::Refused);
    }
    if questions != 1 {
        return refused(Code::Malformed);
    }
    let begin = place.at;
    let (Some(name), Some(kind), Some(class)) = (place.name(false), place.short(), place.short()) else {
        return refused(Code::Malformed);
    };
    Some(Ok(Question {
        id,
        recursion_desired: flags & RECURSION_DESIRED != 0,
        name: Host::parse(&name).map_err(|why| (shown(&name), why)),
        kind,
        is_internet: class == INTERNET,
        raw: message[begin..place.at].to_vec(),
    }))
}

/// An answer that repeats no question.
fn bare(id: u16, flags: u16, code: Code) -> Vec<u8> {
    let flags = IS_ANSWER | RECURSION_AVAILABLE | flags & RECURSION_DESIRED | code as u16;
    [id, flags, 0, 0, 0, 0].iter().flat_map(|word| word.to_be_bytes()).collect()
}

impl Question {
    /// The answer: a code, and an address that is good for so many seconds.
    #[must_use]
    pub fn answer(&self, code: Code, address: Option<IpAddr>, seconds: u32) -> Vec<u8> {
        let desired = if self.recursion_desired { RECURSION_DESIRED } else { 0 };
        let flags = IS_ANSWER | RECURSION_AVAILABLE | desired | code as u16;
        let words = [self.id, flags, 1, address.is_some().into(), 0, 0];
        let mut answer: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        answer.extend_from_slice(&self.raw);
        if let Some(address) = address {
            let name_of_question = 0xc000 | HEADER_BYTES as u16;
            let octets = match address {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            let words = [name_of_question, self.kind, INTERNET];
            answer.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            answer.extend_from_slice(&seconds.to_be_bytes());
            answer.extend_from_slice(&(octets.len() as u16).to_be_bytes());
            answer.extend_from_slice(&octets);
        }
        answer
    }
}

/// A question to a resolver, for the addresses of a name.
#[must_use]
pub fn ask(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let words = [id, RECURSION_DESIRED, 1, 0, 0, 0];
    let mut message: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend([kind, INTERNET].iter().flat_map(|word| word.to_be_bytes()));
    message
}

/// What a resolver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Addresses, maybe none, and for how many seconds they are good.
    Addresses(Vec<IpAddr>, u32),
    /// That it can't say, or that there is no such name.
    Nothing(u8),
    /// Too much for a datagram: it is to be asked over TCP.
    Truncated,
}

/// Reads the answer to a question of [`ask`]. None for what is no answer to it.
#[must_use]
pub fn said(message: &[u8], id: u16, name: &str, kind: u16) -> Option<Said> {
    let mut place = Place { message, at: 0 };
    let (its_id, flags, questions, answers) = header(&mut place)?;
    let is_ours = its_id == id && flags & IS_ANSWER != 0 && questions == 1;
    if !is_ours
        || place.name(true)? != name.as_bytes()
        || place.short()? != kind
        || place.short()? != INTERNET
    {
        return None;
    }
    if flags & IS_TRUNCATED != 0 {
        return Some(Said::Truncated);
    }
    match (flags & 0xf) as u8 {
        0 => {
            let (addresses, seconds) = addresses(place, answers, name, kind)?;
            Some(Said::Addresses(addresses, seconds))
        }
        code => Some(Said::Nothing(code)),
    }
}

/// The addresses among answers, of the name or of what it is another name for.
fn addresses(mut place: Place, answers: u16, name: &str, kind: u16) -> Option<(Vec<IpAddr>, u32)> {
    let mut owner = name.as_bytes().to_vec();
    let (mut addresses, mut least) = (vec![], u32::MAX);
    for _ in 0..answers {
        let (of, its_kind, class) = (place.name(true)?, place.short()?, place.short()?);
        let seconds = place.take(4)?.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let length = usize::from(place.short()?);
        let mut data = place;
        let bytes = place.take(length)?;
        if of != owner || class != INTERNET {
            continue;
        }
        least = least.min(seconds);
        match its_kind {
            CNAME => owner = data.name(true)?,
            A if kind == A => addresses.push(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
            AAAA if kind == AAAA => {
                addresses.push(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)));
            }
            _ => {}
        }
    }
    Some((addresses, if addresses_are_none(least) { 0 } else { least }))
}

fn addresses_are_none(least: u32) -> bool {
    least == u32::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(name: &[u8]) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(name);
        message.extend_from_slice(&[0, 1, 0, 1]);
        message
    }

    #[test]
    fn a_question_is_read_and_its_answer_reads_back() {
        let message = ask(7, "a.b-c.test", A);
        let question = question(&message).unwrap().unwrap();
        assert_eq!(question.name.as_ref().unwrap().to_string(), "a.b-c.test");
        assert_eq!((question.kind, question.is_internet), (A, true));
        let ip: IpAddr = "198.18.0.1".parse().unwrap();
        let answer = question.answer(Code::NoError, Some(ip), 9);
        assert_eq!(said(&answer, 7, "a.b-c.test", A), Some(Said::Addresses(vec![ip], 9)));
        let none = question.answer(Code::NoSuchName, None, 0);
        assert_eq!(said(&none, 7, "a.b-c.test", A), Some(Said::Nothing(3)));
        for (id, name, kind) in [(8, "a.b-c.test", A), (7, "b.test", A), (7, "a.b-c.test", AAAA)] {
            assert_eq!(said(&answer, id, name, kind), None);
        }
    }

    #[test]
    fn names_that_are_none_are_told_apart_from_messages_that_are_none() {
        let name = |bytes: &[u8]| question(&asked(bytes)).unwrap().map(|question| question.name.is_ok());
        assert_eq!(name(b"\x01a\x04TEST\0"), Ok(true));
        assert_eq!(name(b"\x03a\0b\x04test\0"), Ok(false));
        assert_eq!(name(b"\0"), Ok(false));
        for bytes in [&b"\x03a.b\x04test\0"[..], b"\xc0\x0c", b"\x40a", b"\x05a", b"\x04test"] {
            assert!(name(bytes).is_err(), "{bytes:?}");
        }
        let long = [&[63][..], &[b'a'; 63]].concat().repeat(4);
        assert!(name(&[&long[..], b"\0"].concat()).is_err());
        assert_eq!(question(b"short"), None);
        let mut answer = asked(b"\x01a\0");
        answer[2] = 0x80;
        assert_eq!(question(&answer), None, "an answer is never answered");
    }

    #[test]
    fn another_name_is_followed_and_addresses_of_strangers_are_not_taken() {
        let mut message = ask(1, "a.test", A);
        (message[2], message[7]) = (0x81, 3);
        let record = |owner: &[u8], kind: u8, data: &[u8]| {
            [owner, &[0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8], data].concat()
        };
        message.extend(record(b"\xc0\x0c", 5, b"\x01b\xc0\x0e"));
        message.extend(record(b"\x01b\x04test\0", 1, &[203, 0, 113, 9]));
        message.extend(record(b"\x01c\x04test\0", 1, &[10, 0, 0, 1]));
        let expected = Said::Addresses(vec!["203.0.113.9".parse().unwrap()], 60);
        assert_eq!(said(&message, 1, "a.test", A), Some(expected));
        message[2] |= 2;
        assert_eq!(said(&message, 1, "a.test", A), Some(Said::Truncated));
    }

    #[test]
    fn a_name_that_points_to_itself_ends() {
        let mut message = ask(1, "a.test", A);
        (message[2], message[7]) = (0x80, 1);
        let at = message.len() as u8;
        message.extend_from_slice(&[0xc0, at, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 1, 2, 3, 4]);
        assert_eq!(said(&message, 1, "a.test", A), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(Ok(question)) = question(&bytes) {
                let answer = question.answer(Code::NoError, Some(IpAddr::from([1, 2, 3, 4])), 1);
                prop_assert!(answer.len() <= bytes.len() + 16);
            }
            let mut message = ask(1, "a.test", A);
            (message[2], message[7]) = (0x80, 9);
            message.extend_from_slice(&bytes);
            let _ = said(&message, 1, "a.test", A);
        }
    }
}
