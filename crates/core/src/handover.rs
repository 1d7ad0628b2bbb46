//! How the proxy hands a connection to the broker: what it says, and what it hears.
//!
//! The proxy has dialled what a rule with a credential permits. It sends one message over the socket that its run got
//! ([`Handover`]), and beside it two descriptors: the dialled socket, and one end of a new pair. The broker speaks TLS
//! over the first, and says on the pair what came of it, in one byte ([`Taken`]); from then on, HTTP is spoken over
//! the pair, and the broker answers each request with what the host answers or with a refusal ([`DENIED`]).

use crate::egress::{DenialCode, Host};

/// The most bytes of a message: a name of each kind.
pub const MOST_BYTES: usize = 1024;

/// The header of an answer by which the broker refuses a request; its value is the code. What a host sends under this
/// name is taken off.
pub const DENIED: &str = "x-cofferdam-broker-denied";

/// A connection that is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The credential that the rule names.
    pub credential: String,
    /// The host that was dialled, whose certificate has to be there.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// Whether HTTP/2 is to be offered beside HTTP/1.1.
    pub offers_http2: bool,
}

/// A message that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a handover that makes no sense")]
pub struct BadHandover;

impl Handover {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Handover { credential, host, port, offers_http2 } = self;
        format!("{credential}\0{host}\0{port}\0{}", u8::from(*offers_http2)).into_bytes()
    }

    /// Reads a message, every byte of which is hostile.
    ///
    /// # Errors
    ///
    /// [`BadHandover`].
    pub fn decode(bytes: &[u8]) -> Result<Handover, BadHandover> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadHandover)?;
        let parts: Vec<&str> = text.split('\0').collect();
        let [credential, host, port, offers_http2] = parts[..] else { return Err(BadHandover) };
        let offers_http2 = match offers_http2 {
            "0" => false,
            "1" => true,
            _ => return Err(BadHandover),
        };
        Ok(Handover {
            credential: credential.to_owned(),
            host: Host::parse(host.as_bytes()).map_err(|_| BadHandover)?,
            port: port.parse().map_err(|_| BadHandover)?,
            offers_http2,
        })
    }
}

/// What came of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The host proved its name, and HTTP/1.1 is spoken.
    Http1,
    /// The same, and HTTP/2.
    Http2,
    /// The host speaks none of what was offered: RFC 7301, section 3.2.
    OtherProtocol,
    /// Nothing is spoken.
    Denied(DenialCode),
}

impl Taken {
    /// The byte.
    #[must_use]
    pub fn encode(self) -> u8 {
        match self {
            Taken::Http1 => 1,
            Taken::Http2 => 2,
            Taken::OtherProtocol => 3,
            Taken::Denied(code) => 0x80 | code as u8,
        }
    }

    /// What a byte says; none where it is no such byte.
    #[must_use]
    pub fn decode(byte: u8) -> Option<Taken> {
        match byte {
            1 => Some(Taken::Http1),
            2 => Some(Taken::Http2),
            3 => Some(Taken::OtherProtocol),
            byte => {
                let code = DenialCode::ALL.get(usize::from(byte.checked_sub(0x80)?))?;
                Some(Taken::Denied(*code))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_handed_over_reads_back() {
        for host in ["api.test", "192.0.2.1", "2001:db8::1"] {
            let host = Host::parse(host.as_bytes()).unwrap();
            let handover = Handover { credential: "gh".into(), host, port: 443, offers_http2: true };
            assert_eq!(Handover::decode(&handover.encode()), Ok(handover));
        }
        for bad in [
            "",
            "gh",
            "gh\0api.test\x00443",
            "gh\0api.test\x00443\x002",
            "gh\0a b\x00443\x001",
            "gh\0a\x0070000\x001",
        ] {
            assert_eq!(Handover::decode(bad.as_bytes()), Err(BadHandover), "{bad:?}");
        }
    }

    #[test]
    fn every_answer_reads_back_and_no_other_byte_is_one() {
        let all = DenialCode::ALL.iter().map(|code| Taken::Denied(*code));
        let all: Vec<_> = [Taken::Http1, Taken::Http2, Taken::OtherProtocol].into_iter().chain(all).collect();
        for taken in &all {
            assert_eq!(Taken::decode(taken.encode()), Some(*taken));
        }
        assert_eq!((0..=u8::MAX).filter_map(Taken::decode).count(), all.len());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(handover) = Handover::decode(&bytes) {
                prop_assert_eq!(Handover::decode(&handover.encode()), Ok(handover));
            }
        }
    }
}
