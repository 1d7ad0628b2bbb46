//! Hosts: one parser for everything that names one, be it a policy, a request, a handshake or a question to
//! the resolver.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The most bytes in a name, without a trailing dot: RFC 1035, section 2.3.4, counts 255 with the lengths of
/// the labels and of the root, which leaves 253 as text.
pub const NAME_BYTES: usize = 253;

/// The most bytes in a label: RFC 1035, section 2.3.4.
pub const LABEL_BYTES: usize = 63;

/// Where something may be reached: a name, or an address that needs no lookup.
///
/// Two hosts are the same if they are equal: a name is in lower case and without a trailing dot, an address is
/// the one that would be dialled, however it was written. No name can be read as an address by anybody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name.
    Name(HostName),
    /// An address; never an IPv4 address within IPv6 (`::ffff:0:0/96`), which is an IPv4 address here.
    Address(IpAddr),
}

/// A name of letters, digits, `-` and `_` in labels, which doesn't end in a number. Only [`Host::parse`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Why bytes name no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHost {
    /// Something with a colon or in brackets that is no IPv6 address, or one with a zone.
    #[error("it is no IPv6 address (zones have no meaning here)")]
    Address,
    /// A byte that no host holds.
    #[error("it holds the byte {0:#04x}, which no host name has")]
    Byte(u8),
    /// Nothing, or a lone dot.
    #[error("it is empty")]
    Empty,
    /// A label that is empty or too long, or begins or ends with `-`.
    #[error("a label is empty, longer than 63 bytes, or begins or ends with `-`")]
    Label,
    /// Letters beyond ASCII.
    #[error("it is not ASCII: write its A-label, which begins with `xn--`")]
    NotAscii,
    /// The last label is a number, and the whole is no IPv4 address.
    #[error("it ends in a number and is no IPv4 address")]
    Number,
    /// More bytes than a name can have.
    #[error("it is longer than 253 bytes")]
    TooLong,
}

impl Host {
    /// Reads a name, an IPv4 address in any form that `inet_aton` takes (decimal, octal, hexadecimal, fewer
    /// than four parts), or an IPv6 address with or without brackets.
    ///
    /// Nothing is guessed or taken away but the case and one trailing dot. What ends in a number is an
    /// address or refused, as the URL Standard has it (section 3.5, "ends in a number checker"), so that no
    /// resolver takes for an address what was matched as a name. Letters beyond ASCII are refused rather than
    /// mapped: every client sends A-labels, mapping would let two texts that look alike stand for one host,
    /// and its tables are two dozen crates that this one has no other use for.
    ///
    /// # Errors
    ///
    /// [`BadHost`] says what is wrong first.
    pub fn parse(bytes: &[u8]) -> Result<Host, BadHost> {
        if !bytes.is_ascii() {
            return Err(BadHost::NotAscii);
        }
        if let Some(inside) = bytes.strip_prefix(b"[") {
            return ipv6(inside.strip_suffix(b"]").ok_or(BadHost::Address)?);
        }
        if bytes.contains(&b':') {
            return ipv6(bytes);
        }
        let name = bytes.strip_suffix(b".").unwrap_or(bytes);
        let text: String = name.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect();
        check_name(&text)?;
        match text.rsplit('.').next().filter(|last| is_number(last)) {
            Some(_) => ipv4(&text).map(|address| Host::Address(address.into())).ok_or(BadHost::Number),
            None => Ok(Host::Name(HostName(text))),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Host {
        Host::Address(address.to_canonical())
    }
}

impl HostName {
    /// The name, in lower case and without a trailing dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name one label up, if there is one.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        self.0.split_once('.').map(|(_, parent)| parent)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text from which the same host is read again; an IPv6 address without brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => name.fmt(f),
            Host::Address(address) => address.fmt(f),
        }
    }
}

/// Takes the text of a name: RFC 1123, section 2.1, with the underscore that service names use (RFC 2181,
/// section 11, leaves it to those who use a name).
fn check_name(text: &str) -> Result<(), BadHost> {
    if text.is_empty() {
        return Err(BadHost::Empty);
    }
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if let Some(&byte) = text.as_bytes().iter().find(|byte| !known(byte)) {
        return Err(BadHost::Byte(byte));
    }
    if text.len() > NAME_BYTES {
        return Err(BadHost::TooLong);
    }
    let is_label = |label: &str| {
        (1..=LABEL_BYTES).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    if text.split('.').all(is_label) { Ok(()) } else { Err(BadHost::Label) }
}

/// Whether some parser takes a label for a number: digits, or what `0x` begins.
fn is_number(label: &str) -> bool {
    let is_hex = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    label.bytes().all(|byte| byte.is_ascii_digit()) || label.strip_prefix("0x").is_some_and(is_hex)
}

/// One to four numbers with dots between them, of which the last fills all bytes that are left: what
/// `inet_aton` takes. A lone `0x`, which parsers read differently, is nothing.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.split('.').map(number).collect::<Option<_>>()?;
    let (&last, front) = parts.split_last()?;
    let left = 4u32.checked_sub(u32::try_from(front.len()).ok()?).filter(|left| *left > 0)?;
    if last >= 1 << (8 * left) || front.iter().any(|part| *part > 255) {
        return None;
    }
    let high = front.iter().fold(0, |sum, part| sum << 8 | part);
    let bits = if front.is_empty() { last } else { high << (8 * left) | last };
    u32::try_from(bits).ok().map(Ipv4Addr::from)
}

/// A number in the base that its beginning says: `0x` 16, `0` 8, else 10.
fn number(text: &str) -> Option<u64> {
    let (digits, base) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    // `from_str_radix` takes a sign, which no label that got here has.
    u64::from_str_radix(digits, base).ok()
}

fn ipv6(bytes: &[u8]) -> Result<Host, BadHost> {
    let text = str::from_utf8(bytes).map_err(|_| BadHost::NotAscii)?;
    let address: Ipv6Addr = text.parse().map_err(|_| BadHost::Address)?;
    Ok(Host::from(IpAddr::from(address)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<String, BadHost> {
        Host::parse(text.as_bytes()).map(|host| host.to_string())
    }

    #[test]
    fn one_trailing_dot_and_the_case_are_taken_away_and_nothing_else() {
        assert_eq!(parsed("API.GitHub.TEST.").unwrap(), "api.github.test");
        assert_eq!(parsed("XN--BCHER-KVA.test").unwrap(), "xn--bcher-kva.test");
        assert_eq!(parsed("_sip.a-b.test").unwrap(), "_sip.a-b.test");
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        assert_eq!(parsed(&format!("{longest}.")).unwrap(), longest);
        for (text, why) in [
            ("", BadHost::Empty),
            (".", BadHost::Empty),
            ("a.test..", BadHost::Label),
            (".a.test", BadHost::Label),
            ("a..test", BadHost::Label),
            ("-a.test", BadHost::Label),
            ("a-.test", BadHost::Label),
            (&format!("{}.test", "a".repeat(64)), BadHost::Label),
            (&format!("{longest}b"), BadHost::TooLong),
        ] {
            assert_eq!(parsed(text), Err(why), "{text}");
        }
    }

    #[test]
    fn a_byte_that_no_name_has_is_refused_wherever_it_stands() {
        for byte in b"\0\r\n\t %@/#?\\\"'()*+,;<=>^`{|}~!$&\x7f" {
            for at in 0..=6 {
                let mut bytes = b"a.test".to_vec();
                bytes.insert(at, *byte);
                assert_eq!(Host::parse(&bytes), Err(BadHost::Byte(*byte)), "{byte:#x} at {at}");
            }
        }
        // Full-width dot, soft hyphen, Cyrillic a, and bytes that are no text.
        for bytes in ["a\u{3002}test", "a\u{ad}b.test", "\u{430}.test"].map(str::as_bytes) {
            assert_eq!(Host::parse(bytes), Err(BadHost::NotAscii));
        }
        assert_eq!(Host::parse(b"a\xff.test"), Err(BadHost::NotAscii));
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
        for text in [
            "169.254.169.254",
            "169.254.169.254.",
            "2852039166",
            "0xA9FEA9FE",
            "0xa9.0xfe.0xa9.0xfe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "169.16689662",
            "0xa9.254.0124776",
            "0000000000000000000000000000251.254.169.254",
            "[::ffff:169.254.169.254]",
            "::ffff:a9fe:a9fe",
        ] {
            assert_eq!(parsed(text).unwrap(), "169.254.169.254", "{text}");
        }
        assert_eq!(parsed("0").unwrap(), "0.0.0.0");
        assert_eq!(parsed("0xffffffff").unwrap(), "255.255.255.255");
        assert_eq!(parsed("[0:0::0]").unwrap(), "::");
        assert_eq!(parsed("FD00:EC2::254").unwrap(), "fd00:ec2::254");
    }

    #[test]
    fn what_ends_in_a_number_is_an_address_or_nothing() {
        for text in [
            "1.2.3.4.5",
            "a.1",
            "a.0x1",
            "1.2.3.256",
            "1.2.65536",
            "4294967296",
            "08",
            "1.2.3.0xg.1",
            "0x",
            "a.0x",
            "1.0x.2",
            "1..2",
            "0x100000000",
            "99999999999999999999999",
            "256.1",
            "1.2.3.4.0x",
        ] {
            assert!(matches!(parsed(text), Err(BadHost::Number | BadHost::Label)), "{text}");
        }
        for text in ["1.a", "0xg", "a.0xg", "1a", "1-2", "4chan.test", "0.test"] {
            assert_eq!(parsed(text).unwrap(), text);
        }
    }

    #[test]
    fn an_address_with_a_zone_or_half_a_bracket_is_none() {
        for text in [
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "[::1",
            "::1]",
            "[1.2.3.4]",
            "[]",
            "[[::1]]",
            ":",
            "1:2",
            "a:",
        ] {
            assert_eq!(parsed(text), Err(BadHost::Address), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_read_reads_back(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            reads_back(&bytes)?;
        }

        #[test]
        fn what_looks_like_a_host_reads_back(text in r"[0-9a-fxA-F.:\[\]_-]{0,40}") {
            reads_back(text.as_bytes())?;
        }
    }

    fn reads_back(bytes: &[u8]) -> Result<(), TestCaseError> {
        let Ok(host) = Host::parse(bytes) else { return Ok(()) };
        let shown = host.to_string();
        prop_assert_eq!(Host::parse(shown.as_bytes()), Ok(host.clone()));
        if let Host::Name(name) = host {
            prop_assert!(name.as_str().parse::<IpAddr>().is_err());
        }
        Ok(())
    }
}
