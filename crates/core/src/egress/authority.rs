//! `host:port`, as `CONNECT`, `Host` and `:authority` carry it.

use std::fmt;

use super::host::{BadHost, Host};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority {
    host: Host,
    port: u16,
}

/// Why bytes are no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAuthority {
    /// The host is none.
    #[error(transparent)]
    Host(#[from] BadHost),
    /// There is no port where one is needed.
    #[error("it has no port")]
    NoPort,
    /// The port is not written as one.
    #[error("its port is not a number from 1 to 65535 in plain digits")]
    Port,
    /// Something stands before an `@`.
    #[error("it holds user information")]
    UserInformation,
}

impl Authority {
    /// Reads a host and its port, which has to be there.
    ///
    /// # Errors
    ///
    /// [`BadAuthority`] says what is wrong first.
    pub fn parse(bytes: &[u8]) -> Result<Authority, BadAuthority> {
        let (host, port) = split(bytes)?;
        Ok(Authority { host: Host::parse(host)?, port: port.ok_or(BadAuthority::NoPort)? })
    }

    /// Reads a host and its port, or a host alone, which stands for the port that its scheme has.
    ///
    /// # Errors
    ///
    /// As [`Authority::parse`], but for the port.
    pub fn parse_with_default(bytes: &[u8], port: u16) -> Result<Authority, BadAuthority> {
        let (host, given) = split(bytes)?;
        Ok(Authority { host: Host::parse(host)?, port: given.unwrap_or(port) })
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The text from which the same authority is read again: an IPv6 address has brackets.
impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Bracketed(&self.host), self.port)
    }
}

/// A host as it stands before a port or a path: RFC 3986, section 3.2.2.
pub(crate) struct Bracketed<'a>(pub(crate) &'a Host);

impl fmt::Display for Bracketed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Host::Address(address) if address.is_ipv6() => write!(f, "[{address}]"),
            host => host.fmt(f),
        }
    }
}

/// The host's part and the port, if there is one. An IPv6 address needs its brackets here.
fn split(bytes: &[u8]) -> Result<(&[u8], Option<u16>), BadAuthority> {
    if bytes.contains(&b'@') {
        return Err(BadAuthority::UserInformation);
    }
    let end = match bytes.iter().position(|byte| *byte == b']') {
        Some(at) => at + 1,
        None => bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len()),
    };
    match bytes.split_at(end) {
        (host, []) => Ok((host, None)),
        (host, [b':', digits @ ..]) => Ok((host, Some(port(digits).ok_or(BadAuthority::Port)?))),
        _ => Err(BadAuthority::Host(BadHost::Address)),
    }
}

/// Reads a port: 1 to 65535, in digits without a zero before them, as everybody reads them.
pub(crate) fn port(digits: &[u8]) -> Option<u16> {
    let plain = digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0");
    plain.then(|| str::from_utf8(digits).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_port_is_plain_digits_and_stands_once() {
        for text in [
            "a.test:",
            "a.test:0",
            "a.test:65536",
            "a.test:+443",
            "a.test: 443",
            "a.test:443 ",
            "a.test:443:1",
            "a.test:0443",
            "a.test:4a3",
            "a.test:-1",
            "a.test:0x1bb",
            "[::1]:",
            "[::1]:99999",
            "::1:443",
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), Err(BadAuthority::Port), "{text}");
        }
        for text in ["a.test", "[::1]"] {
            assert_eq!(Authority::parse(text.as_bytes()), Err(BadAuthority::NoPort), "{text}");
        }
        for text in ["u@a.test:443", "a.test:443@evil.test", "a.test#@evil.test", "u:p@a.test:1"] {
            assert_eq!(Authority::parse(text.as_bytes()), Err(BadAuthority::UserInformation), "{text}");
        }
        for text in
            ["[::1]x:443", "[fe80::1%1]:443", "a]:443", "[a.test]:443", "a%2etest:443", "a.test/:443", ":443"]
        {
            assert!(matches!(Authority::parse(text.as_bytes()), Err(BadAuthority::Host(_))), "{text}");
        }
    }

    #[test]
    fn a_port_that_is_left_out_is_the_schemes() {
        let shown = |text: &str| Authority::parse_with_default(text.as_bytes(), 443).unwrap().to_string();
        assert_eq!(shown("A.test."), "a.test:443");
        assert_eq!(shown("a.test:8443"), "a.test:8443");
        assert_eq!(shown("[::1]"), "[::1]:443");
        assert_eq!(shown("[::ffff:10.0.0.1]:80"), "10.0.0.1:80");
        assert!(Authority::parse_with_default(b"a.test:", 443).is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_reads_back(text in r"[a-c0-9xX.:\[\]@_%-]{0,30}") {
            if let Ok(authority) = Authority::parse(text.as_bytes()) {
                prop_assert_eq!(Authority::parse(authority.to_string().as_bytes()), Ok(authority));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), default in 1u16..) {
            let read = Authority::parse_with_default(&bytes, default);
            prop_assert!(read.is_ok() || Authority::parse(&bytes).is_err());
        }
    }
}
