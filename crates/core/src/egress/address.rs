//! Which addresses are dialled. Names are decided about before; this is for what a lookup answered, and for
//! addresses that a rule names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::weaken::{self, Control};

/// An address that was judged and may be dialled. Only [`judge`] makes one, and a dialler takes nothing else.
///
/// ```compile_fail,E0423
/// let forged = cofferdam_core::egress::CheckedAddress("127.0.0.1".parse().unwrap());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedAddress(IpAddr);

impl CheckedAddress {
    /// The address; an IPv4 address within IPv6 is the IPv4 address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        self.0
    }
}

/// Why an address isn't dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressDenied {
    /// It answers with credentials or identity to whoever asks on this machine: no rule can allow it.
    #[error("it is a metadata service, which no rule can allow")]
    Metadata,
    /// It can't be a server anywhere: no rule can allow it.
    #[error("it is {0}, which no rule can allow")]
    Never(&'static str),
    /// It is this machine, or within a private network: a rule with `private` allows it.
    #[error("it is {0}, which a rule allows by `private` alone")]
    Private(&'static str),
}

impl AddressDenied {
    /// Whether the same rule with `private` would allow it.
    #[must_use]
    pub fn needs_private(self) -> bool {
        matches!(self, AddressDenied::Private(_))
    }
}

/// Judges an address before it is dialled: `rule_private` is whether the rule that permitted the host says
/// `private`, `own` are the host's own addresses.
///
/// An address that carries another (IPv4 within IPv6, NAT64, 6to4) is judged as the one that it leads to.
///
/// # Errors
///
/// [`AddressDenied`] says what it is.
pub fn judge(address: IpAddr, rule_private: bool, own: &[IpAddr]) -> Result<CheckedAddress, AddressDenied> {
    let address = address.to_canonical();
    if weaken::is_off(Control::AddressCheck) {
        return Ok(CheckedAddress(address));
    }
    let verdict = match address {
        IpAddr::V4(address) => kind_of_v4(address),
        IpAddr::V6(address) => kind_of_v6(address),
    };
    let is_own = |one: &IpAddr| one.to_canonical() == address || Some(one.to_canonical()) == carried(address);
    match verdict {
        Kind::Public if own.iter().any(is_own) && !rule_private => {
            Err(AddressDenied::Private("an address of this machine"))
        }
        Kind::Private(what) if !rule_private => Err(AddressDenied::Private(what)),
        Kind::Public | Kind::Private(_) => Ok(CheckedAddress(address)),
        Kind::Metadata => Err(AddressDenied::Metadata),
        Kind::Never(what) => Err(AddressDenied::Never(what)),
    }
}

/// What an address is, whatever a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Metadata,
    Never(&'static str),
    Private(&'static str),
    Public,
}

/// Where clouds answer with a machine's credentials.
const METADATA_V4: [Ipv4Addr; 5] = [
    Ipv4Addr::new(169, 254, 169, 254), // most of them
    Ipv4Addr::new(169, 254, 170, 2),   // AWS, for containers
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(168, 63, 129, 16),   // Azure
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
];

/// The networks of IPv4 that are not simply public, the narrower before the wider. The documentation networks
/// (RFC 5737) are left out: nothing is there to be protected.
const NETWORKS_V4: [(Ipv4Addr, u32, Kind); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, Kind::Never("an unspecified address")), // RFC 1122, 3.2.1.3
    (Ipv4Addr::new(10, 0, 0, 0), 8, Kind::Private("a private address")),   // RFC 1918
    (Ipv4Addr::new(100, 64, 0, 0), 10, Kind::Private("an address of a carrier's network")), // RFC 6598
    (Ipv4Addr::new(127, 0, 0, 0), 8, Kind::Private("a loopback address")), // RFC 1122, 3.2.1.3
    // RFC 3927. Not for `private` either: clouds hand out credentials at more places in it than can be listed.
    (Ipv4Addr::new(169, 254, 0, 0), 16, Kind::Never("a link-local address")),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Kind::Private("a private address")), // RFC 1918
    (Ipv4Addr::new(192, 0, 0, 0), 24, Kind::Never("a reserved address")),   // RFC 6890, 2.2.2
    (Ipv4Addr::new(192, 88, 99, 0), 24, Kind::Never("a reserved address")), // RFC 7526: 6to4's relays that were
    (Ipv4Addr::new(192, 168, 0, 0), 16, Kind::Private("a private address")), // RFC 1918
    // RFC 2544, for benchmarks. It is what names are answered with inside, so it is never outside.
    (Ipv4Addr::new(198, 18, 0, 0), 15, Kind::Never("an address that only a sandbox knows")),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Kind::Never("a multicast address")), // RFC 5771
    (Ipv4Addr::new(255, 255, 255, 255), 32, Kind::Never("a broadcast address")), // RFC 919, 7
    (Ipv4Addr::new(240, 0, 0, 0), 4, Kind::Never("a reserved address")),  // RFC 1112, 4
    (Ipv4Addr::new(0, 0, 0, 0), 0, Kind::Public),
];

fn kind_of_v4(address: Ipv4Addr) -> Kind {
    if METADATA_V4.contains(&address) {
        return Kind::Metadata;
    }
    let within = |network: Ipv4Addr, bits: u32| {
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        address.to_bits() & mask == network.to_bits()
    };
    let found = NETWORKS_V4.iter().find(|(network, bits, _)| within(*network, *bits));
    found.map_or(Kind::Public, |(_, _, kind)| *kind)
}

/// The networks of IPv6 that are not simply public, the narrower before the wider: what isn't in 2000::/3,
/// which is all that has been given out for use (RFC 4291, section 2.4), comes last.
const NETWORKS_V6: [(Ipv6Addr, u32, Kind); 11] = [
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0]), 32, Kind::Metadata), // AWS
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]), 128, Kind::Metadata), // Google
    (v6([0, 0, 0, 0, 0, 0, 0, 1]), 128, Kind::Private("a loopback address")), // RFC 4291, 2.5.3
    (v6([0, 0, 0, 0, 0, 0, 0, 0]), 128, Kind::Never("an unspecified address")), // RFC 4291, 2.5.2
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0]), 7, Kind::Private("a private address")), // RFC 4193
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0]), 10, Kind::Never("a link-local address")), // RFC 4291, 2.5.6
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8, Kind::Never("a multicast address")), // RFC 4291, 2.7
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0]), 32, Kind::Never("a tunnel's address")), // RFC 4380: Teredo
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0]), 23, Kind::Never("a reserved address")), // RFC 2928
    (v6([0x2000, 0, 0, 0, 0, 0, 0, 0]), 3, Kind::Public),
    (v6([0, 0, 0, 0, 0, 0, 0, 0]), 0, Kind::Never("a reserved address")),
];

const fn v6(parts: [u16; 8]) -> Ipv6Addr {
    let [a, b, c, d, e, f, g, h] = parts;
    Ipv6Addr::new(a, b, c, d, e, f, g, h)
}

fn kind_of_v6(address: Ipv6Addr) -> Kind {
    if let Some(IpAddr::V4(inner)) = carried(address.into()) {
        return kind_of_v4(inner);
    }
    let within = |network: Ipv6Addr, bits: u32| {
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        address.to_bits() & mask == network.to_bits()
    };
    let found = NETWORKS_V6.iter().find(|(network, bits, _)| within(*network, *bits));
    found.map_or(Kind::Never("a reserved address"), |(_, _, kind)| *kind)
}

/// The IPv4 address that an IPv6 address leads to, if it leads to one.
fn carried(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into());
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low), // NAT64: RFC 6052, 2.1
        [0x2002, high, low, ..] => v4(high, low),               // 6to4: RFC 3056, 2
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(text: &str, private: bool) -> Result<CheckedAddress, AddressDenied> {
        judge(text.parse().unwrap(), private, &[])
    }

    /// Every way to write an IPv4 address within IPv6.
    fn encodings(address: Ipv4Addr) -> [Ipv6Addr; 4] {
        let [a, b, c, d] = address.octets().map(u16::from);
        let (high, low) = (a << 8 | b, c << 8 | d);
        [
            address.to_ipv6_mapped(),
            v6([0x64, 0xff9b, 0, 0, 0, 0, high, low]),
            v6([0x2002, high, low, 0, 0, 0, 0, 1]),
            v6([0x2002, high, low, 0xffff, 1, 2, 3, 4]),
        ]
    }

    #[test]
    fn metadata_is_refused_in_every_encoding_and_whatever_a_rule_says() {
        for address in METADATA_V4 {
            for encoded in encodings(address).map(IpAddr::from).into_iter().chain([address.into()]) {
                assert_eq!(judge(encoded, true, &[]), Err(AddressDenied::Metadata), "{encoded}");
            }
            let [a, b, c, d] = address.octets().map(u16::from);
            let compatible = v6([0, 0, 0, 0, 0, 0, a << 8 | b, c << 8 | d]);
            let teredo = v6([0x2001, 0, a << 8 | b, c << 8 | d, 0, 0, !(a << 8 | b), !(c << 8 | d)]);
            for encoded in [compatible, teredo].map(IpAddr::from) {
                assert!(matches!(judge(encoded, true, &[]), Err(AddressDenied::Never(_))), "{encoded}");
            }
        }
        for text in ["fd00:ec2::254", "fd00:ec2::23", "fd00:ec2:ffff::1", "fd20:ce::254"] {
            assert_eq!(verdict(text, true), Err(AddressDenied::Metadata), "{text}");
        }
    }

    #[test]
    fn this_machine_and_private_networks_need_the_rule_to_say_so() {
        for text in [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fc00::1",
            "fdff::1",
            "::ffff:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "2002:a01:203::1",
        ] {
            assert!(verdict(text, false).unwrap_err().needs_private(), "{text}");
            assert!(verdict(text, true).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_no_server_has_is_never_dialled() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.1.1",
            "169.254.170.23",
            "192.0.0.8",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:10::1",
            "2001:20::1",
            "::1.2.3.4",
            "64:ff9b:1::1",
            "100::1",
            "4000::1",
            "5f00::1",
            "::ffff:0:1.2.3.4",
            "::ffff:198.18.0.1",
            "64:ff9b::169.254.1.1",
            "2002:c612:1::1",
        ] {
            for private in [false, true] {
                assert!(matches!(verdict(text, private), Err(AddressDenied::Never(_))), "{text}");
            }
        }
    }

    #[test]
    fn what_is_public_is_dialled() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.113.7",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::1",
            "2001:db8::1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            let checked = verdict(text, false).unwrap();
            assert_eq!(checked.ip(), text.parse::<IpAddr>().unwrap());
        }
        assert_eq!(verdict("::ffff:1.1.1.1", false).unwrap().ip(), IpAddr::from([1, 1, 1, 1]));
    }

    #[test]
    fn the_hosts_own_addresses_are_private_however_public_they_look() {
        let own: [IpAddr; 2] = ["203.0.113.7".parse().unwrap(), "2606:4700::7".parse().unwrap()];
        for text in
            ["203.0.113.7", "::ffff:203.0.113.7", "64:ff9b::203.0.113.7", "2002:cb00:7107::1", "2606:4700::7"]
        {
            let address = text.parse().unwrap();
            assert!(judge(address, false, &own).unwrap_err().needs_private(), "{text}");
            assert!(judge(address, true, &own).is_ok(), "{text}");
            assert!(judge(address, false, &[]).is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_judged_as_the_one_that_it_leads_to(bits: u32, private: bool) {
            let address = Ipv4Addr::from_bits(bits);
            let verdict = judge(address.into(), private, &[]);
            for encoded in encodings(address) {
                prop_assert_eq!(judge(encoded.into(), private, &[]).map(drop), verdict.map(drop));
            }
        }

        #[test]
        fn a_rule_for_private_addresses_only_allows_more(bits: u128, own: u128) {
            let (address, own) = (IpAddr::from(Ipv6Addr::from_bits(bits)), IpAddr::from(Ipv6Addr::from_bits(own)));
            let without = judge(address, false, &[own]);
            prop_assert!(without.is_err() || judge(address, true, &[own]) == without);
            prop_assert!(judge(address, false, &[address]).is_err());
        }
    }
}
