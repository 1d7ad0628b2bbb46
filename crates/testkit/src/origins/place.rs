//! Who is where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a product asks for names. Any other address answers too.
pub const RESOLVER: &str = "203.0.113.53:53";

/// TCP ports on which what is sent comes back, besides those of HTTP, HTTPS and DNS: SSH, mail, DNS over TLS,
/// PostgreSQL, and one that nothing is registered for.
pub const ECHO_PORTS: [u16; 7] = [7, 22, 25, 853, 5432, 9418, 47_474];

/// TCP ports on which HTTP, HTTPS and DNS are spoken.
pub(super) const SPOKEN_PORTS: [u16; 5] = [53, 80, 443, 8080, 8443];

/// UDP ports on which what is sent comes back: time, network management, QUIC, mDNS, LLMNR, DNS over QUIC and
/// one that nothing is registered for. On port 53 there is the resolver.
pub const UDP_PORTS: [u16; 7] = [123, 161, 443, 853, 5353, 5355, 47_474];

/// Addresses that are the machine's own, besides its loopback: public ones and one of IPv6, as a server has.
pub const OWN: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200)),
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x200)),
];

/// Names and their addresses. Any other name below `wild.test` is at one of its own; no other exists.
///
/// The server called `untrusted.test` proves itself by an authority that nobody knows, `misnamed.test` by the
/// certificate of another.
pub const ZONE: &[(&str, &[&str])] = &[
    ("api.test", &["203.0.113.10", "2001:db8::10"]),
    ("second.test", &["203.0.113.11"]),
    ("other.test", &["203.0.113.12"]),
    ("allowed.test", &["203.0.113.13"]),
    ("six.test", &["2001:db8::14"]),
    ("db.test", &["203.0.113.15"]),
    ("misnamed.test", &["203.0.113.16"]),
    ("untrusted.test", &["203.0.113.17"]),
    // Look-alikes.
    ("github.test", &["203.0.113.20"]),
    ("api.github.test", &["203.0.113.21"]),
    ("deep.api.github.test", &["203.0.113.22"]),
    ("evilgithub.test", &["203.0.113.23"]),
    ("xgithub.test", &["203.0.113.24"]),
    ("github.test.evil.test", &["203.0.113.25"]),
    ("allowed.test.evil.test", &["203.0.113.26"]),
    ("evil.test", &["203.0.113.27"]),
    ("xn--llowed-8fg.test", &["203.0.113.28"]), // with a Cyrillic a
    // At addresses that aren't public.
    ("private.test", &["10.0.0.5"]),
    ("carrier.test", &["100.64.0.1"]),
    ("link-local.test", &["169.254.7.7"]),
    ("loopback.test", &["127.0.0.1"]),
    ("loopback6.test", &["::1"]),
    ("own.test", &["203.0.113.200"]),
    ("metadata.test", &["169.254.169.254"]),
    ("metadata.google.internal", &["169.254.169.254"]),
    ("ecs.test", &["169.254.170.2"]),
    ("alibaba.test", &["100.100.100.200"]),
    ("metadata6.test", &["fd00:ec2::254"]),
    ("mapped.test", &["::ffff:10.0.0.5"]),
    ("nat64.test", &["64:ff9b::a9fe:a9fe"]),
    ("sixtofour.test", &["2002:a9fe:a9fe::1"]),
    ("multicast.test", &["224.0.0.251"]),
    ("unspecified.test", &["0.0.0.0"]),
    ("mixed.test", &["10.0.0.5", "127.0.0.1"]),
];

/// Where the names below `wild.test` are.
const WILD: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 40));

/// The addresses of a name, in lower case and without a dot at its end. None if there is no such name.
pub(super) fn addresses(name: &str) -> Option<Vec<IpAddr>> {
    if name.ends_with(".wild.test") {
        return Some(vec![WILD]);
    }
    let (_, addresses) = ZONE.iter().find(|(known, _)| *known == name)?;
    Some(addresses.iter().map(|address| address.parse().unwrap()).collect())
}
