//! The capture of a sandbox's network, for real: a launched program dials, and the host hears it.
//!
//! The program is this very binary: [`payload`] does, inside, what a test outside tells it over a socket, a
//! line each way. The tests in [`sandbox`] run as whoever runs them and, if that is root, again as an
//! ordinary user.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

/// Ends a test where the kernel has no IPv6, or no table of nftables for every port.
macro_rules! needs {
    ($($what:ident),+) => {
        $(if let Err(why) = crate::outside::support().$what {
            cofferdam_testkit::skip!("{why}");
        })+
    };
}

#[path = "capture/inside.rs"]
mod inside;
#[path = "capture/outside.rs"]
mod outside;
#[path = "capture/sandbox.rs"]
mod sandbox;

use std::io::ErrorKind;
use std::net::UdpSocket;

use cofferdam_sys::capture::Refused;
use cofferdam_testkit::host::is_root;
use cofferdam_testkit::skip;
use outside::Sandbox;

/// Not a test but the program inside a sandbox of the others; anywhere else it has nothing to do.
#[test]
fn payload() {
    if std::env::var_os(inside::MARK).is_some() {
        inside::obey();
    }
}

#[test]
fn all_of_it_holds_for_an_ordinary_user_too() {
    let test = concat!(module_path!(), "::all_of_it_holds_for_an_ordinary_user_too");
    cofferdam_testkit::conformance::ordinary::again("sandbox::", sandbox::COUNT, test);
}

/// Only a program with privileges can send these, so the host sends them in its place, from inside.
#[test]
fn what_is_neither_tcp_nor_udp_leads_nowhere_and_is_counted() {
    if !is_root() {
        skip!("only root can send packets of other protocols from inside a sandbox");
    }
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    let pid = sandbox.launched.pid();
    let sent = std::thread::spawn(move || {
        outside::enter_network_of(pid);
        let own = inside::raw_packet(libc::IPPROTO_ICMP, "127.0.0.1".parse().unwrap());
        let away = [
            libc::IPPROTO_ICMP,
            libc::IPPROTO_IPIP,
            libc::IPPROTO_IPV6,
            libc::IPPROTO_GRE,
            libc::IPPROTO_SCTP,
        ]
        .map(|protocol| inside::raw_packet(protocol, "203.0.113.9".parse().unwrap()));
        let away_ipv6 = inside::raw_packet(libc::IPPROTO_ICMPV6, "2001:db8::5".parse().unwrap());
        (own, away, away_ipv6)
    });
    let (own, away, away_ipv6) = sent.join().unwrap();
    assert_eq!(own.as_deref(), Ok("answered"), "the positive control: a packet to its own address");
    let refused = Err(libc::EPERM);
    assert_eq!(away.map(|result| result.map(drop)), [refused; 5]);
    assert_eq!(away_ipv6.map(drop), refused);
    assert_eq!(sandbox.table().refused().unwrap(), Refused { udp: 0, other: 6 });
}

/// With the sandbox still there.
#[test]
fn the_hosts_own_network_is_as_it_was() {
    let mut sandbox = Sandbox::start();
    let own = UdpSocket::bind("203.0.113.9:0").map_err(|error| error.kind());
    assert_eq!(own.map(drop), Err(ErrorKind::AddrNotAvailable), "it isn't the host's own address");
    assert_eq!(sandbox.order("bind 203.0.113.9:5432"), "bound", "the positive control: inside it is");
    let inside = outside::network_namespace(sandbox.launched.pid());
    assert_ne!(inside, outside::network_namespace(std::process::id() as i32));
}
