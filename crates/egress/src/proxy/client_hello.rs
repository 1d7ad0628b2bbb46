//! The first message of TLS: who is called, and what is to be spoken.
//!
//! Read before anything answers, and strictly: what is passed through unopened is decided by the name in here,
//! so it has to be the name that the server reads. The message may come in any number of records
//! (RFC 8446, section 5.1), as those with post-quantum keys do.

/// The longest message that is taken, in bytes. A long one with two key shares of ML-KEM is about 2,000.
pub const MOST_BYTES: usize = 16 << 10;

/// The most bytes of a record: RFC 8446, section 5.1.
const RECORD_BYTES: usize = 1 << 14;

/// The extensions that matter here, by IANA's registry of TLS extension types.
const SERVER_NAME: u16 = 0;
const APPLICATION_PROTOCOLS: u16 = 16;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// What a client says first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the server, as it was sent.
    pub server_name: Option<Vec<u8>>,
    /// The protocols that it would speak.
    pub protocols: Vec<Vec<u8>>,
    /// Whether there may be another message inside, with another name (RFC 9849).
    pub has_encrypted: bool,
}

/// What bytes are the beginning of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A whole first message.
    Hello(ClientHello),
    /// Maybe of one; more has to come.
    Incomplete,
    /// Of nothing that is TLS, or of TLS that is malformed.
    Malformed,
}

/// Reads what a connection begins with.
#[must_use]
pub fn read(bytes: &[u8]) -> Beginning {
    match message(bytes) {
        Ok(Some(message)) => hello(&message).map_or(Beginning::Malformed, Beginning::Hello),
        Ok(None) => Beginning::Incomplete,
        Err(Malformed) => Beginning::Malformed,
    }
}

struct Malformed;

/// The body of the first handshake message, put together from its records, if all of it is there.
fn message(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut handshake = vec![];
    loop {
        // What is there may show already that no more is worth waiting for.
        if !may_begin_hello(&handshake) {
            return Err(Malformed);
        }
        if let Some((head, body)) = handshake.split_first_chunk::<4>() {
            let length = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
            // No client says more before it was answered.
            if body.len() > length {
                return Err(Malformed);
            }
            if body.len() == length {
                return Ok(Some(body.to_vec()));
            }
        }
        if !may_begin_record(bytes) {
            return Err(Malformed);
        }
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > RECORD_BYTES {
            return Err(Malformed);
        }
        let fragment = rest.get(..length.min(rest.len())).unwrap_or_default();
        handshake.extend_from_slice(fragment);
        if fragment.len() < length {
            return if may_begin_hello(&handshake) { Ok(None) } else { Err(Malformed) };
        }
        bytes = &rest[length..];
    }
}

/// Whether a handshake begins as a hello does that isn't too long: RFC 8446, section 4.
fn may_begin_hello(handshake: &[u8]) -> bool {
    let length =
        handshake.get(1..4).unwrap_or(&[0; 3]).iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    handshake.first().is_none_or(|kind| *kind == 1)
        && handshake.get(1).is_none_or(|high| *high == 0)
        && length <= MOST_BYTES
}

/// Whether bytes begin as a record with a handshake does: type 22, version 3.1 or 3.3 and their like.
#[must_use]
pub fn may_begin_record(bytes: &[u8]) -> bool {
    let [kind, major, minor] = [0, 1, 2].map(|at| bytes.get(at).copied());
    kind.is_none_or(|kind| kind == 22)
        && major.is_none_or(|major| major == 3)
        && minor.is_none_or(|minor| minor <= 4)
}

/// Bytes that are read from the front.
struct Part<'a>(&'a [u8]);

impl<'a> Part<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector with a length of one byte before it.
    fn vector8(&mut self) -> Option<Part<'a>> {
        let count = self.byte()?;
        self.take(count.into()).map(Part)
    }

    /// A vector with a length of two bytes before it.
    fn vector16(&mut self) -> Option<Part<'a>> {
        let count = self.short()?;
        self.take(count.into()).map(Part)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// RFC 8446, section 4.1.2.
fn hello(body: &[u8]) -> Option<ClientHello> {
    let mut part = Part(body);
    let version = part.short()?;
    part.take(32)?; // random
    let session = part.vector8()?;
    let suites = part.vector16()?;
    let compressions = part.vector8()?;
    let is_sound = version >> 8 == 3
        && session.0.len() <= 32
        && !suites.is_empty()
        && suites.0.len() % 2 == 0
        && !compressions.is_empty();
    if !is_sound {
        return None;
    }
    let mut hello = ClientHello::default();
    if part.is_empty() {
        return Some(hello); // before TLS 1.2 there may be no extensions
    }
    let mut extensions = part.vector16()?;
    let mut seen = vec![];
    while !extensions.is_empty() {
        let kind = extensions.short()?;
        let content = extensions.vector16()?;
        if seen.contains(&kind) {
            return None; // RFC 8446, section 4.2: one of each
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => hello.server_name = Some(server_name(content)?),
            APPLICATION_PROTOCOLS => hello.protocols = protocols(content)?,
            ENCRYPTED_CLIENT_HELLO => hello.has_encrypted = true,
            _ => {}
        }
    }
    part.is_empty().then_some(hello)
}

/// RFC 6066, section 3. Nobody sends more than one name, and of two it would be open which one counts.
fn server_name(mut content: Part) -> Option<Vec<u8>> {
    let mut list = content.vector16()?;
    let kind = list.byte()?;
    let name = list.vector16()?;
    let is_sound = content.is_empty() && list.is_empty() && kind == 0 && !name.is_empty();
    is_sound.then(|| name.0.to_vec())
}

/// RFC 7301, section 3.1.
fn protocols(mut content: Part) -> Option<Vec<Vec<u8>>> {
    let mut list = content.vector16()?;
    let mut protocols = vec![];
    while !list.is_empty() {
        protocols.push(list.vector8().filter(|name| !name.is_empty())?.0.to_vec());
    }
    content.is_empty().then_some(protocols)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with these extensions, in records of at most so many bytes.
    fn records(extensions: &[(u16, Vec<u8>)], most: usize) -> Vec<u8> {
        let vector16 = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        let list: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &vector16(content)].concat())
            .collect();
        let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &vector16(&list)].concat();
        let message = [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
        let record = |piece: &[u8]| [&[22, 3, 1][..], &vector16(piece)].concat();
        message.chunks(most).flat_map(record).collect()
    }

    fn name(host: &str) -> (u16, Vec<u8>) {
        let length = host.len() as u16;
        let list = [&[0][..], &length.to_be_bytes(), host.as_bytes()].concat();
        (SERVER_NAME, [&(length + 3).to_be_bytes()[..], &list].concat())
    }

    fn sound() -> Vec<(u16, Vec<u8>)> {
        vec![
            (0x7777, vec![0; 3000]),
            name("a.test"),
            (APPLICATION_PROTOCOLS, b"\0\x0c\x02h2\x08http/1.1".to_vec()),
        ]
    }

    fn expected() -> ClientHello {
        ClientHello {
            server_name: Some(b"a.test".to_vec()),
            protocols: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            has_encrypted: false,
        }
    }

    #[test]
    fn the_name_is_found_across_records_beyond_any_first_kilobyte() {
        for most in [1, 7, 100, 1400, RECORD_BYTES] {
            assert_eq!(read(&records(&sound(), most)), Beginning::Hello(expected()), "{most}");
        }
    }

    #[test]
    fn every_beginning_of_it_is_incomplete() {
        let bytes = records(&sound(), 500);
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Beginning::Incomplete, "{end}");
        }
    }

    #[test]
    fn a_hello_with_two_meanings_is_malformed() {
        let two_names = (SERVER_NAME, [&[0, 18][..], b"\0\0\x06a.test", b"\0\0\x06b.test"].concat());
        for extensions in [
            vec![name("a.test"), name("b.test")],
            vec![two_names],
            vec![(SERVER_NAME, vec![])],
            vec![name("")],
            vec![(APPLICATION_PROTOCOLS, b"\0\x01\0".to_vec())],
        ] {
            assert_eq!(read(&records(&extensions, 1000)), Beginning::Malformed, "{extensions:?}");
        }
        let more = [records(&sound(), 5000), records(&sound(), 5000)].concat();
        assert!(
            matches!(read(&more), Beginning::Hello(_)),
            "what follows in another record is its own business"
        );
    }

    #[test]
    fn an_inner_hello_is_seen() {
        let found = read(&records(&[name("outer.test"), (ENCRYPTED_CLIENT_HELLO, vec![0; 8])], 1000));
        assert!(matches!(found, Beginning::Hello(hello) if hello.has_encrypted));
    }

    #[test]
    fn what_is_no_tls_or_too_long_is_told_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1"[..],
            b"SSH-2.0",
            &[22, 2],
            &[22, 3, 9],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0xff, 0xff],
            &[22, 3, 1, 0, 10, 2],
            &[22, 3, 1, 0, 10, 1, 1],
            &[22, 3, 1, 0, 4, 1, 0, 0x40, 1],
        ] {
            assert_eq!(read(bytes), Beginning::Malformed, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
            let _ = read(&[&[22, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3][..], &bytes].concat());
        }

        #[test]
        fn a_changed_byte_panics_nobody(at in 0usize..3000, byte: u8) {
            let mut bytes = records(&sound(), 1000);
            bytes[at] = byte;
            let _ = read(&bytes);
        }
    }
}
