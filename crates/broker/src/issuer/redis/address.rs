//! The address of a Redis and of its root: `redis://USER:PASSWORD@HOST:PORT/DATABASE`.

use std::str;

use cofferdam_core::secret::Secret;

use crate::issuer::is_here_by_name;

/// The port where the address names none.
const USUAL_PORT: u16 = 6379;

/// Where a server is and how its root logs in.
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// `default` where the address has a password alone.
    pub(super) user: String,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
}

impl Address {
    /// Reads it. What is wrong is said as a clause about the root, without any of it.
    pub(super) fn parse(text: &[u8]) -> Result<Address, String> {
        const SHAPE: &str = "isn't an address like redis://USER:PASSWORD@HOST:PORT/0";
        let text = str::from_utf8(text).map_err(|_| SHAPE)?;
        if text.starts_with("rediss://") {
            return Err(
                "asks for TLS, which this version doesn't speak to Redis: lead there through a tunnel that \
                        begins on this machine"
                    .to_owned(),
            );
        }
        let rest = text.strip_prefix("redis://").ok_or(SHAPE)?;
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (rest, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) =
            rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
        let (host, port) = place_of(place).ok_or(SHAPE)?;
        let (user, password) = match login {
            None => ("default".to_owned(), None),
            Some(login) => {
                let (user, password) = login.split_once(':').ok_or(SHAPE)?;
                let user = String::from_utf8(decoded(user).ok_or(SHAPE)?).map_err(|_| SHAPE)?;
                let user = if user.is_empty() { "default".to_owned() } else { user };
                (user, Some(Secret::new(decoded(password).ok_or(SHAPE)?)))
            }
        };
        if !is_here_by_name(&host) && query != "tls=disable" {
            return Err(
                "is on another machine, to which this version speaks without TLS: put `?tls=disable` behind \
                        it if the network between is yours, or lead there through a tunnel"
                    .to_owned(),
            );
        }
        let database = if database.is_empty() { 0 } else { database.parse().map_err(|_| SHAPE)? };
        Ok(Address { host, port, user, password, database })
    }
}

/// A host and a port: `db.internal:6379`, `[::1]`.
fn place_of(place: &str) -> Option<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(USUAL_PORT), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// What a part of a URL means: `%40` is `@`. Its room is that of the text, so it doesn't grow.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_who() {
        let address = Address::parse(b"redis://mint%40r:p%3aw:d@127.0.0.1:7000/3").ok().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.database), ("127.0.0.1", 7000, 3));
        assert_eq!((address.user.as_str(), address.password.unwrap().expose()), ("mint@r", &b"p:w:d"[..]));
        let address = Address::parse(b"redis://:pw@[::1]").ok().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.user.as_str()), ("::1", 6379, "default"));
        assert!(Address::parse(b"redis://localhost").ok().unwrap().password.is_none());
    }

    #[test]
    fn what_is_no_address_or_would_be_read_on_its_way_is_refused_without_being_shown() {
        for (bad, says) in [
            ("hush", "isn't an address"),
            ("redis://hush@localhost", "isn't an address"),
            ("redis://a:hush@localhost:port", "isn't an address"),
            ("redis://a:hush@localhost/zero", "isn't an address"),
            ("redis://a:hush%4@localhost", "isn't an address"),
            ("redis://a:hush@[::1", "isn't an address"),
            ("rediss://a:hush@localhost", "asks for TLS"),
            ("redis://a:hush@db.internal", "without TLS"),
            ("redis://a:hush@10.0.0.5", "without TLS"),
        ] {
            let why = Address::parse(bad.as_bytes()).err().unwrap();
            assert!(why.contains(says) && !why.contains("hush"), "{bad}: {why}");
        }
        assert!(Address::parse(b"redis://a:b@db.internal/0?tls=disable").is_ok());
    }
}
