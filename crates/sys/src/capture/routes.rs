//! Every destination made local: the request that brings up the loopback interface and sends all there.
//!
//! The numbers are those of `linux/rtnetlink.h` and `linux/if_link.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Answer, Bus, Messages, Request};

/// LOOPBACK_IFINDEX of `include/net/flow.h`: the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// `lo` up; then `local default dev lo` for IPv4, and for IPv6 unless there is none.
///
/// A program that asks for its own address gets the one of the loopback interface and not, as it would without
/// a preferred source, that of whomever it talks to.
pub(super) fn request(ipv6: bool) -> Request {
    let mut messages = Messages::default();
    loopback_up(&mut messages);
    all_is_local(&mut messages, Ipv4Addr::LOCALHOST.into());
    if ipv6 {
        all_is_local(&mut messages, Ipv6Addr::LOCALHOST.into());
    }
    messages.request(Bus::Route, "make every address lead to the loopback interface")
}

/// The same for IPv6 alone, to find out whether there is any.
pub(super) fn ipv6_alone() -> Request {
    let mut messages = Messages::default();
    all_is_local(&mut messages, Ipv6Addr::LOCALHOST.into());
    messages.request(Bus::Route, "make every IPv6 address lead to the loopback interface")
}

/// One more address of the loopback interface, which the machine then has for its own.
pub(super) fn address(ip: IpAddr) -> Request {
    /// IFA_ADDRESS, IFA_LOCAL and IFA_F_NODAD of `linux/if_addr.h`.
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const AT_ONCE: u8 = 2;
    let (family, prefix_bits, octets) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, 32, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, 128, ip.octets().to_vec()),
    };
    let mut messages = Messages::default();
    let mut fixed = vec![family as u8, prefix_bits, AT_ONCE, libc::RT_SCOPE_UNIVERSE];
    fixed.extend(LOOPBACK.to_ne_bytes());
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    messages.add(libc::RTM_NEWADDR, flags, Answer::Always, &fixed, |inside| {
        inside.bytes(LOCAL, &octets);
        inside.bytes(ADDRESS, &octets);
    });
    messages.request(Bus::Route, "give the loopback interface an address")
}

/// A `struct ifinfomsg` with IFF_UP set and nothing else changed.
fn loopback_up(messages: &mut Messages) {
    let up = libc::IFF_UP as u32;
    let mut fixed = [0; 4].to_vec(); // family, padding, type
    [LOOPBACK, up, up].iter().for_each(|number| fixed.extend(number.to_ne_bytes()));
    messages.add(libc::RTM_NEWLINK, 0, Answer::Always, &fixed, |_| {});
}

/// A `struct rtmsg` for a local route to everywhere.
fn all_is_local(messages: &mut Messages, source: IpAddr) {
    let (family, scope) = match source {
        IpAddr::V4(_) => (libc::AF_INET, libc::RT_SCOPE_HOST),
        IpAddr::V6(_) => (libc::AF_INET6, libc::RT_SCOPE_UNIVERSE), // it has no other
    };
    let [table, protocol, kind] = [libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC, libc::RTN_LOCAL];
    let prefix_bits = 0; // of the destination and, after it, of the source
    let fixed = [family as u8, prefix_bits, prefix_bits, 0, table, protocol, scope, kind, 0, 0, 0, 0];
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    messages.add(libc::RTM_NEWROUTE, flags, Answer::Always, &fixed, |inside| {
        inside.bytes(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        match source {
            IpAddr::V4(ip) => inside.bytes(libc::RTA_PREFSRC, &ip.octets()),
            IpAddr::V6(ip) => inside.bytes(libc::RTA_PREFSRC, &ip.octets()),
        }
    });
}
