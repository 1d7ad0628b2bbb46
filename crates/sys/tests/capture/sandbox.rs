//! What holds for a captured program, whoever started it.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;

use cofferdam_sys::capture::{Capture, PROXY_PORT, Refused, Support, TCP_PORT, Why, probe};
use cofferdam_sys::fdpass;

use crate::inside::DOCUMENTS;
use crate::outside::{Canary, Sandbox, accept, accept_now, answer, launch, support, words};

/// How many tests there are here.
pub(crate) const COUNT: usize = 15;

const IPV4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

/// ECONNREFUSED, EPERM and EADDRINUSE, as the program says them.
const NOBODY_THERE: &str = "errno 111";
const NOT_PERMITTED: &str = "errno 1";
const IN_USE: &str = "errno 98";

fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

/// A capture as a kernel without nftables has it.
fn without_a_table(listed: &[u16]) -> Capture {
    let none = Why { action: "load the table".into(), errno: libc::EOPNOTSUPP };
    Capture::new(&Support { every_port: Err(none), ..support() }, listed)
}

/// What it says is there is used by the other tests, which are skipped where it says that something isn't.
#[test]
fn what_is_offered_is_found_out_by_trying() {
    let support = probe().unwrap();
    assert_eq!(support.ipv6.is_ok(), Path::new("/proc/net/if_inet6").exists(), "{:?}", support.ipv6);
    assert_eq!(probe(), Ok(support), "again");
}

#[test]
fn every_connection_ends_at_the_host_which_knows_where_it_was_to_go() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    for port in [1, 22, 53, 80, 443, 1021, 1022, 5432, 40_000, 65_535] {
        for to in [at(IPV4, port), at(DOCUMENTS, port)] {
            assert_eq!(sandbox.dial(to), to);
        }
    }
    for text in ["10.0.0.1:80", "169.254.169.254:80", "[fd00:ec2::254]:80", "255.255.255.254:1"] {
        let to = text.parse().unwrap();
        assert_eq!(sandbox.dial(to), to);
    }
}

#[test]
fn a_form_of_ipv4_within_ipv6_is_the_same_destination() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    let mapped = at(IPV4.to_ipv6_mapped(), 443);
    assert_eq!(sandbox.dial(mapped), at(IPV4, 443));
}

#[test]
fn its_own_loopback_stays_inside() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    for (own, from) in
        [("127.0.0.1:5432", "127.0.0.1"), ("127.9.9.9:8080", "127.0.0.1"), ("[::1]:8443", "::1")]
    {
        assert_eq!(sandbox.order(&format!("dial-from-here {own}")), format!("visited from {from}"));
    }
    assert_eq!(sandbox.order("dial 127.0.0.1:5433"), NOBODY_THERE);
    assert!(accept_now(&sandbox.doors.tcp).is_none(), "the host heard nothing of it");
    let to = at(IPV4, 5432);
    assert_eq!(sandbox.dial(to), to, "the positive control");
}

/// Its own address isn't that of whomever it talks to, so that what finds out about it can serve there.
#[test]
fn its_own_address_is_that_of_its_loopback() {
    let mut sandbox = Sandbox::start();
    assert_eq!(sandbox.order("own-address"), "127.0.0.1");
}

#[test]
fn dialling_the_door_itself_is_told_from_everything_else() {
    needs!(every_port);
    let mut sandbox = Sandbox::start();
    let door = at(Ipv4Addr::LOCALHOST, TCP_PORT);
    assert_eq!(sandbox.dial(door), door);
    let proxy = at(Ipv4Addr::LOCALHOST, PROXY_PORT);
    let (said, heard) = sandbox.meanwhile(&format!("dial {proxy}"), |doors| {
        let connection = accept(&[doors.proxy.try_clone().unwrap()]);
        connection.unwrap().write_all(b"proxy").unwrap();
        accept_now(&doors.tcp).is_some()
    });
    assert_eq!((said.as_str(), heard), ("proxy", false));
}

#[test]
fn dns_is_answered_from_the_address_that_was_asked() {
    needs!(ipv6);
    for capture in [Capture::new(&support(), &[]), without_a_table(&[])] {
        let mut sandbox = Sandbox::with(&capture);
        // One socket of the program asks all of them, as some resolvers do.
        for ip in ["9.9.9.9", "198.51.100.53", "127.0.0.1", "2001:db8::53", "2001:db8::54", "::1"] {
            let to = at(ip.parse::<IpAddr>().unwrap(), 53);
            let (said, asked) = sandbox.meanwhile(&format!("ask {to}"), |doors| answer(doors, to.is_ipv4()));
            assert_eq!((said, asked), (format!("{to} says who is there?"), to.ip()));
        }
        if let Some(table) = &mut sandbox.doors.table {
            assert_eq!(table.refused().unwrap(), Refused::default());
        }
    }
}

#[test]
fn other_udp_is_refused_at_once_and_counted() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    for to in [at(IPV4, 443), at(IPV4, 123), at(DOCUMENTS, 443), at([224, 0, 0, 251], 5353)] {
        let said = sandbox.order(&format!("datagram {to}"));
        // To a group nobody may answer that there is nobody (RFC 1122, 3.2.2).
        let expected = if to.ip().is_multicast() { "errno 11 late" } else { "errno 111 soon" };
        assert_eq!(said, format!("sent: errno 1, heard: {expected}"), "{to}");
    }
    assert_eq!(sandbox.table().refused().unwrap(), Refused { udp: 4, other: 0 });
    // Its own loopback is its own affair.
    assert_eq!(sandbox.order("datagram 127.0.0.1:443"), "sent: done, heard: errno 111 soon");
    sandbox.launched.kill().unwrap();
    sandbox.launched.reap().unwrap();
    assert_eq!(sandbox.table().refused().unwrap().udp, 4, "what is counted outlives the program");
}

/// The kernel's notes of connections are charged to nobody: what can be sent without anybody's doing anything
/// must not make any.
#[test]
fn only_captured_connections_are_noted_by_the_kernel() {
    needs!(every_port);
    let mut sandbox = Sandbox::start();
    for third in 0..50 {
        let said = sandbox.order(&format!("datagram-unheard 192.0.{third}.1:53"));
        assert_eq!(said, "done");
    }
    sandbox.order(&format!("datagram {}", at(IPV4, 443)));
    assert_eq!(sandbox.order("dial-from-here 127.0.0.1:5432"), "visited from 127.0.0.1");
    assert_eq!(sandbox.order("noted"), "0");
    sandbox.dial(at(IPV4, 5432));
    assert_eq!(sandbox.order("noted"), "1", "the positive control");
}

#[test]
fn with_the_hosts_doors_closed_nothing_waits() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    let to = at(IPV4, 443);
    assert_eq!(sandbox.dial(to), to);
    sandbox.doors.tcp.clear();
    sandbox.doors.dns.clear();
    assert_eq!(sandbox.order(&format!("dial {to}")), NOBODY_THERE);
    assert_eq!(sandbox.order(&format!("dial {}", at(DOCUMENTS, 443))), NOBODY_THERE);
    assert_eq!(sandbox.order("datagram 9.9.9.9:53"), "sent: done, heard: errno 111 soon");
}

#[test]
fn the_program_cannot_undo_it() {
    needs!(every_port, ipv6);
    let mut sandbox = Sandbox::start();
    assert_eq!(sandbox.order("capabilities"), "", "it has none, in no set");
    for order in ["undo netfilter", "undo route", "raw 1 203.0.113.9", "raw 58 2001:db8::5"] {
        assert_eq!(sandbox.order(order), NOT_PERMITTED, "{order}");
    }
    for door in [TCP_PORT, PROXY_PORT, 53] {
        let said = sandbox.order(&format!("bind 127.0.0.1:{door}"));
        assert!(said == "errno 13" || said == IN_USE, "{said}");
    }
    let to = at(IPV4, 443);
    assert_eq!(sandbox.dial(to), to);
    // The positive control: where it has the privileges the same requests are granted, and nothing leads out.
    assert_eq!(sandbox.order(&format!("elsewhere {to}")), "undone, and nowhere to go");
}

#[test]
fn the_hosts_own_sockets_hear_nothing() {
    needs!(every_port, ipv6);
    let canary = Canary::everywhere();
    let port = canary.port();
    // Where this host would be found from outside, if it has such an address.
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    let found = probe.connect("203.0.113.1:9").and_then(|()| probe.local_addr()).map(|found| found.ip());
    let outer = found.unwrap_or(Ipv4Addr::LOCALHOST.into());
    TcpStream::connect((outer, port)).unwrap();
    probe.connect((outer, port)).unwrap();
    probe.send(b"x").unwrap();
    assert_eq!(canary.heard(), 2, "the positive control: the same from outside a sandbox");
    let mut sandbox = Sandbox::start();
    assert_eq!(sandbox.order(&format!("dial 127.0.0.1:{port}")), NOBODY_THERE);
    assert_eq!(sandbox.order(&format!("dial [::1]:{port}")), NOBODY_THERE);
    assert_eq!(sandbox.order(&format!("dial 0.0.0.0:{port}")), "errno 111");
    sandbox.order(&format!("datagram {}", at(outer, port)));
    if !outer.is_loopback() {
        assert_eq!(sandbox.dial(at(outer, port)), at(outer, port));
    }
    assert_eq!(canary.heard(), 0);
}

#[test]
fn without_a_table_listed_ports_are_captured_and_others_refused() {
    needs!(ipv6);
    let mut sandbox = Sandbox::with(&without_a_table(&[443, 5432]));
    assert!(sandbox.doors.table.is_none());
    for to in [at(IPV4, 5432), at(IPV4, 443), at(DOCUMENTS, 443), at(DOCUMENTS, 5432)] {
        assert_eq!(sandbox.dial(to), to);
    }
    for to in [at(IPV4, 80), at(DOCUMENTS, 22)] {
        assert_eq!(sandbox.order(&format!("dial {to}")), NOBODY_THERE);
        assert_eq!(sandbox.order(&format!("datagram {to}")), "sent: done, heard: errno 111 soon");
    }
}

/// As on a kernel without IPv6, as far as one with it can show that.
#[test]
fn without_ipv6_nothing_can_be_dialled_over_it() {
    needs!(every_port, ipv6);
    let none = Why { action: "have IPv6".into(), errno: libc::EOPNOTSUPP };
    let capture = Capture::new(&Support { ipv6: Err(none), ..support() }, &[]);
    let mut sandbox = Sandbox::with(&capture);
    let to = at(IPV4, 443);
    assert_eq!(sandbox.dial(to), to);
    assert_eq!(sandbox.order(&format!("dial {}", at(DOCUMENTS, 443))), "errno 101");
}

#[test]
fn a_step_that_fails_is_named() {
    needs!(every_port);
    let steps = Capture::new(&support(), &[]).steps();
    let failed = |steps| {
        let (_ours, theirs) = fdpass::pair().unwrap();
        let mut launched = match launch(steps, theirs).spawn() {
            Ok(launched) => launched,
            Err(error) => return words(&error), // it was faster than we are
        };
        // Kept, so that what is bound stays so.
        let _kept: Vec<_> = std::iter::from_fn(|| launched.handed_over().ok()).collect();
        launched.kill().unwrap();
        words(&launched.failure().unwrap())
    };
    let twice = |count: usize| [&steps[..count], &steps[count - 1..count]].concat();
    let routes = failed(twice(1));
    assert!(routes.starts_with("could not make every address lead to the loopback interface: "), "{routes}");
    let door = failed(twice(2));
    assert!(door.starts_with("could not listen at TCP 127.0.0.1:1021: Address already in use"), "{door}");
}
