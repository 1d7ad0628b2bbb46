//! The addresses that names have inside a sandbox.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cofferdam_core::egress::Host;

/// The most names of each kind that have an address: those of rules, which a wildcard makes many, and others.
const MOST_NAMES: u32 = 4096;

/// Where addresses are taken from: 198.18.0.0/15 (RFC 2544, for benchmarks of networks, never routed)...
const FIRST_V4: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// ...and a network of the kind that everybody makes up for themselves (RFC 4193).
const FIRST_V6: u128 = 0xfd63_6f66_6665_7264 << 64;

/// Names and their addresses, which never change.
#[derive(Debug, Default)]
pub struct Names {
    places: HashMap<Host, u32>,
    hosts: HashMap<u32, Host>,
    counts: [u32; 2],
}

/// The addresses of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Whether they were given out for the first time.
    pub are_new: bool,
    /// That of IPv4.
    pub v4: Ipv4Addr,
    /// That of IPv6.
    pub v6: Ipv6Addr,
}

impl Names {
    /// The addresses of a name; none where as many names of its kind have some already. `is_allowed` says whether
    /// some rule has it, so that those that none has can't take the place of others.
    pub fn addresses(&mut self, host: &Host, is_allowed: bool) -> Option<Addresses> {
        let known = self.places.get(host).copied();
        let place = match known {
            Some(place) => place,
            None => self.place(host, is_allowed)?,
        };
        Some(Addresses {
            are_new: known.is_none(),
            v4: Ipv4Addr::from(FIRST_V4 + place),
            v6: Ipv6Addr::from(FIRST_V6 + u128::from(place)),
        })
    }

    fn place(&mut self, host: &Host, is_allowed: bool) -> Option<u32> {
        let count = &mut self.counts[usize::from(is_allowed)];
        if *count == MOST_NAMES {
            return None;
        }
        *count += 1;
        let place = *count + if is_allowed { 0 } else { MOST_NAMES };
        self.places.insert(host.clone(), place);
        self.hosts.insert(place, host.clone());
        Some(place)
    }

    /// Whom a connection to an address is for: a name, or the address itself.
    #[must_use]
    pub fn host(&self, ip: IpAddr) -> Host {
        let place = match ip.to_canonical() {
            IpAddr::V4(ip) => ip.to_bits().checked_sub(FIRST_V4),
            IpAddr::V6(ip) => ip.to_bits().checked_sub(FIRST_V6).and_then(|place| place.try_into().ok()),
        };
        place.and_then(|place| self.hosts.get(&place)).cloned().unwrap_or_else(|| Host::from(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn an_address_leads_back_to_its_name_and_others_to_themselves() {
        let mut names = Names::default();
        for (text, is_allowed) in [("a.test", true), ("b.test", false), ("c.test", true)] {
            let Addresses { v4, v6, are_new } = names.addresses(&host(text), is_allowed).unwrap();
            assert!(are_new && !names.addresses(&host(text), is_allowed).unwrap().are_new);
            for ip in [IpAddr::from(v4), v6.into(), v4.to_ipv6_mapped().into()] {
                assert_eq!(names.host(ip), host(text));
            }
        }
        for text in ["203.0.113.9", "198.18.0.0", "198.19.0.77", "2001:db8::1", "fd63:6f66:6665:7264::"] {
            assert_eq!(names.host(text.parse().unwrap()), host(text));
        }
    }

    #[test]
    fn names_that_no_rule_has_take_no_place_of_others() {
        let mut names = Names::default();
        let fill = (0..=MOST_NAMES).map(|number| names.addresses(&host(&format!("x{number}.test")), false));
        assert_eq!(fill.filter(Option::is_some).count() as u32, MOST_NAMES);
        assert!(names.addresses(&host("a.test"), true).is_some());
    }

    #[test]
    fn no_address_of_a_sandbox_is_ever_dialled() {
        use cofferdam_core::egress::judge;
        let Addresses { v4, v6, .. } = Names::default().addresses(&host("a.test"), true).unwrap();
        assert!(judge(v4.into(), true, &[]).is_err());
        assert!(judge(v6.into(), false, &[]).is_err());
    }
}
