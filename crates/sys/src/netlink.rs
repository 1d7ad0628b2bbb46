//! Requests to the kernel over netlink, written down to the last byte before anybody sends them.
//!
//! The numbers are those of `linux/netlink.h`.

use std::fmt;

/// The part of the kernel that a request goes to: the protocol of a netlink socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bus {
    /// Interfaces, addresses and routes.
    Route,
    /// nftables.
    Netfilter,
}

impl Bus {
    /// The kernel's number.
    pub(crate) fn number(self) -> libc::c_int {
        match self {
            Bus::Route => libc::NETLINK_ROUTE,
            Bus::Netfilter => libc::NETLINK_NETFILTER,
        }
    }
}

/// Messages that go to the kernel in one piece, and are answered with one acknowledgement or the first error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub(crate) bus: Bus,
    /// What it is for, as a verb phrase.
    pub(crate) purpose: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// The number of the message whose acknowledgement is the last word.
    pub(crate) last: u32,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.purpose)
    }
}

/// Messages in a row, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    bytes: Vec<u8>,
    count: u32,
    last: u32,
}

/// Whether a message is to be acknowledged. Errors come back in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing is said if it could be done.
    OnlyErrors,
    /// An acknowledgement, which is waited for.
    Always,
}

impl Messages {
    /// Adds a message: its type, flags beside those for the answer, the fixed part of its body and what
    /// `fill` attaches to that.
    pub(crate) fn add(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        answer: Answer,
        fixed: &[u8],
        fill: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.bytes.len();
        self.count += 1;
        let acknowledge = if answer == Answer::Always { libc::NLM_F_ACK } else { 0 };
        if answer == Answer::Always {
            self.last = self.count;
        }
        self.bytes.extend([0; 4]); // the length, known below
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(((libc::NLM_F_REQUEST | flags | acknowledge) as u16).to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend([0; 4]); // to the kernel
        self.bytes.extend(fixed);
        fill(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// The request that they make.
    pub(crate) fn request(self, bus: Bus, purpose: &'static str) -> Request {
        Request { bus, purpose, bytes: self.bytes, last: self.last }
    }
}

/// Attributes of a message or of another attribute: a length, a type and a value each, padded to four bytes.
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((ATTRIBUTE_HEADER_BYTES as u16 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.pad();
    }

    /// A number in the byte order of networks, as nftables has all of its own.
    pub(crate) fn big_endian(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A name, ended by a zero byte.
    pub(crate) fn name(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// An attribute that holds attributes.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.bytes(kind | libc::NLA_F_NESTED as u16, &[]);
        fill(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT_BYTES), 0);
    }
}

/// NLA_HDRLEN.
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// NLMSG_ALIGNTO and NLA_ALIGNTO.
const ALIGNMENT_BYTES: usize = 4;
/// NLMSG_HDRLEN.
const HEADER_BYTES: usize = 16;

/// A message that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) kind: u16,
    /// The number of the message that it answers.
    pub(crate) number: u32,
    /// What follows the header.
    pub(crate) body: &'a [u8],
}

impl Reply<'_> {
    /// The error number in an acknowledgement, zero for none; nothing if it is another message.
    pub(crate) fn errno(&self) -> Option<i32> {
        let acknowledges = self.kind == libc::NLMSG_ERROR as u16;
        acknowledges.then(|| u32_at(self.body, 0)).flatten().map(|number| (number as i32).wrapping_neg())
    }
}

/// The messages in what was read from a socket. Allocates nothing and can't panic; what is malformed ends it.
pub(crate) fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        // An error repeats the message that it is about, which may not have had room: its head will do.
        let body = bytes.get(HEADER_BYTES..length.min(bytes.len()))?;
        let reply = Reply { kind: u16_at(bytes, 4)?, number: u32_at(bytes, 8)?, body };
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT_BYTES)..).unwrap_or_default();
        Some(reply)
    })
}

/// The value of the first attribute of a type among those that some bytes hold.
pub(crate) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if u16_at(bytes, 2)? & libc::NLA_TYPE_MASK as u16 == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT_BYTES)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let mut messages = Messages::default();
        messages.add(7, 0, Answer::OnlyErrors, b"head", |inside| {
            inside.name(1, "name");
            inside.nested(2, |inside| inside.big_endian(3, 0x0102_0304));
        });
        messages.add(8, 0, Answer::Always, b"", |_| {});
        let request = messages.request(Bus::Route, "try");
        assert_eq!((request.last, request.bytes.len() % 4), (2, 0));
        let [one, two] = replies(&request.bytes).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((one.kind, one.number, two.kind, two.number), (7, 1, 8, 2));
        let attributes = &one.body[4..];
        assert_eq!(attribute(attributes, 1), Some(b"name\0".as_slice()));
        let nested = attribute(attributes, 2).unwrap();
        assert_eq!(attribute(nested, 3), Some([1, 2, 3, 4].as_slice()));
        assert_eq!((attribute(attributes, 3), attribute(nested, 1)), (None, None));
    }

    #[test]
    fn malformed_answers_end_and_never_panic() {
        let mut messages = Messages::default();
        messages.add(libc::NLMSG_ERROR as u16, 0, Answer::Always, &(-17i32).to_ne_bytes(), |_| {});
        let whole = messages.request(Bus::Route, "try").bytes;
        assert_eq!(replies(&whole).next().unwrap().errno(), Some(17));
        for length in 0..whole.len() {
            let cut = &whole[..length];
            assert!(replies(cut).count() <= 1, "{length}");
            assert!(attribute(cut, 9).is_none(), "{length}");
        }
        for filler in [0x00, 0x01, 0x04, 0xff] {
            let bytes = [filler; 64];
            assert!(replies(&bytes).count() <= 16, "{filler}");
            assert!(attribute(&bytes, 9).is_none(), "{filler}");
        }
    }
}
