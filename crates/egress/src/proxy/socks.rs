//! SOCKS version 5, as much as a client needs that wants a connection (RFC 1928).

use std::net::{Ipv4Addr, Ipv6Addr};

use cofferdam_core::egress::{BadHost, Host};

/// The answer to a greeting: no authentication (section 3).
pub const NO_AUTHENTICATION: [u8; 2] = [5, 0];

/// The answer to a greeting that offers nothing that we take.
pub const NO_METHOD: [u8; 2] = [5, 0xff];

/// What is answered to a request (section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is connected, or will be when there is something to send.
    Succeeded = 0,
    /// The rules don't allow it.
    NotAllowed = 2,
    /// Only connections are made.
    CommandNotSupported = 7,
    /// A kind of address that there isn't.
    AddressNotSupported = 8,
}

impl Reply {
    /// Its bytes. The address that it was bound to is nobody's business.
    #[must_use]
    pub fn bytes(self) -> [u8; 10] {
        [5, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The host, or the bytes that name none and why.
    pub host: Result<Host, (Vec<u8>, BadHost)>,
    /// The port.
    pub port: u16,
}

/// What bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read<T> {
    /// It, and how many bytes it took.
    Whole(T, usize),
    /// More has to come.
    Incomplete,
    /// Refused, with what to answer.
    Refused(Reply),
}

/// Reads a greeting: whether it offers to go without authentication (section 3).
#[must_use]
pub fn greeting(bytes: &[u8]) -> Read<bool> {
    let Some(&[version, count]) = bytes.first_chunk() else { return Read::Incomplete };
    if version != 5 {
        return Read::Refused(Reply::NotAllowed);
    }
    match bytes.get(2..2 + usize::from(count)) {
        Some(methods) => Read::Whole(methods.contains(&0), 2 + methods.len()),
        None => Read::Incomplete,
    }
}

/// Reads a request (section 4). A name is bytes of any kind, and goes through the one parser of hosts.
#[must_use]
pub fn request(bytes: &[u8]) -> Read<Request> {
    let Some(&[version, command, reserved, kind, first]) = bytes.first_chunk() else {
        return Read::Incomplete;
    };
    if version != 5 || reserved != 0 {
        return Read::Refused(Reply::NotAllowed);
    }
    if command != 1 {
        return Read::Refused(Reply::CommandNotSupported);
    }
    let (begin, length) = match kind {
        1 => (4, 4),
        3 => (5, usize::from(first)),
        4 => (4, 16),
        _ => return Read::Refused(Reply::AddressNotSupported),
    };
    let end = begin + length;
    let (Some(address), Some(port)) = (bytes.get(begin..end), bytes.get(end..end + 2)) else {
        return Read::Incomplete;
    };
    let host = match kind {
        1 => Ok(Host::from(std::net::IpAddr::from(Ipv4Addr::from(fixed::<4>(address))))),
        4 => Ok(Host::from(std::net::IpAddr::from(Ipv6Addr::from(fixed::<16>(address))))),
        _ => Host::parse(address).map_err(|why| (address.to_vec(), why)),
    };
    Read::Whole(Request { host, port: u16::from_be_bytes(fixed(port)) }, end + 2)
}

/// Bytes whose number was checked.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &[u8]) -> Vec<u8> {
        [&[5, 1, 0, 3, name.len() as u8][..], name, &[1, 0xbb]].concat()
    }

    fn asked(bytes: &[u8]) -> Result<String, BadHost> {
        match request(bytes) {
            Read::Whole(Request { host, port: 443 }, took) if took == bytes.len() => {
                host.map(|host| host.to_string()).map_err(|(_, why)| why)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_and_addresses_are_read() {
        assert_eq!(asked(&named(b"A.test")).unwrap(), "a.test");
        assert_eq!(asked(&[5, 1, 0, 1, 203, 0, 113, 5, 1, 0xbb]).unwrap(), "203.0.113.5");
        let mapped = [&[5, 1, 0, 4][..], &[0; 10], &[255, 255, 10, 0, 0, 1], &[1, 0xbb]].concat();
        assert_eq!(asked(&mapped).unwrap(), "10.0.0.1");
    }

    #[test]
    fn a_name_that_a_resolver_would_cut_is_no_host() {
        assert_eq!(asked(&named(b"a.test\0.b.test")), Err(BadHost::Byte(0)));
        assert_eq!(asked(&named(b"")), Err(BadHost::Empty));
        assert_eq!(asked(&named(&[b'a'; 255])), Err(BadHost::TooLong));
    }

    #[test]
    fn only_connections_are_made() {
        for command in [0, 2, 3, 255] {
            let refused = Read::Refused(Reply::CommandNotSupported);
            assert_eq!(request(&[5, command, 0, 1, 1]), refused);
        }
        assert_eq!(request(&[5, 1, 0, 2, 1]), Read::Refused(Reply::AddressNotSupported));
        assert_eq!(request(&[4, 1, 0, 1, 1]), Read::Refused(Reply::NotAllowed));
    }

    #[test]
    fn every_beginning_is_incomplete() {
        let bytes = named(b"a.test");
        for end in 0..bytes.len() {
            assert_eq!(request(&bytes[..end]), Read::Incomplete);
        }
        assert_eq!(greeting(&[5]), Read::Incomplete);
        assert_eq!(greeting(&[5, 2, 0]), Read::Incomplete);
        assert_eq!(greeting(&[5, 2, 2, 0, 9]), Read::Whole(true, 4));
        assert_eq!(greeting(&[5, 1, 2]), Read::Whole(false, 3));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = greeting(&bytes);
            let _ = request(&bytes);
            if let Read::Whole(_, took) = request(&[&[5, 1, 0, 3][..], &bytes].concat()) {
                prop_assert!(took <= bytes.len() + 4);
            }
        }
    }
}
