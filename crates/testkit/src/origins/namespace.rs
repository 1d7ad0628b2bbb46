//! The namespace, with sockets in it.
//!
//! What makes every address local in a sandbox does it here too. Here it is the world.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use cofferdam_sys::capture::{self, Capture, DNS_PORT, DnsSocket, Door, Support, Why, own_address};
use cofferdam_sys::launch::{Ids, Launch, Launched, Program, Step};
use cofferdam_sys::process::{effective_group, effective_user};

use super::place::{ECHO_PORTS, OWN, SPOKEN_PORTS, UDP_PORTS};
use crate::host::is_root;

/// A namespace that lives as long as this, with a socket for each port and family.
pub(super) struct Namespace {
    pub(super) holder: Launched,
    pub(super) tcp: Vec<TcpListener>,
    /// Each with its port.
    pub(super) udp: Vec<(u16, DnsSocket)>,
}

impl Namespace {
    /// Makes it. It ends with the thread that calls this.
    pub(super) fn new() -> Result<Namespace, String> {
        let support = capture::probe().map_err(|error| format!("no network of a test's own: {error}"))?;
        let ipv6 = support.ipv6.is_ok();
        // Without a table, there is a socket for each port that is listed.
        let none = Why { action: "load a table".to_owned(), errno: 0 };
        let listed = [&SPOKEN_PORTS[..], &ECHO_PORTS].concat();
        let capture = Capture::new(&Support { every_port: Err(none), ..support }, &listed);
        let udp: Vec<_> = UDP_PORTS.iter().flat_map(|port| everywhere(*port, ipv6)).collect();
        let mut steps = capture.steps();
        steps.extend(OWN.into_iter().filter(|ip| ip.is_ipv4() || ipv6).map(own_address));
        steps.extend(udp.iter().map(|address| Step::Door(Door::Udp(*address))));
        let mut holder = holder(steps).map_err(|error| format!("no network of a test's own: {error}"))?;
        match sockets(&holder, &capture, &udp) {
            Ok((tcp, udp)) => Ok(Namespace { holder, tcp, udp }),
            Err(error) => {
                let _ = holder.kill(); // it has ended by itself
                Err(format!("no network of a test's own: {error}: {:?}", holder.failure()))
            }
        }
    }
}

/// A port at all addresses.
fn everywhere(port: u16, ipv6: bool) -> impl Iterator<Item = SocketAddr> {
    let both: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    both.into_iter().filter(move |ip| ip.is_ipv4() || ipv6).map(move |ip| (ip, port).into())
}

type Sockets = (Vec<TcpListener>, Vec<(u16, DnsSocket)>);

fn sockets(holder: &Launched, capture: &Capture, udp: &[SocketAddr]) -> io::Result<Sockets> {
    let doors = capture.doors(holder, None)?;
    let mut sockets: Vec<_> = doors.dns.into_iter().map(|socket| (DNS_PORT, socket)).collect();
    for address in udp {
        let socket: OwnedFd = holder.handed_over()?;
        sockets.push((address.port(), socket.into()));
    }
    Ok((doors.tcp, sockets))
}

/// A process that does nothing, in namespaces of its own over the host's files.
fn holder(steps: Vec<Step>) -> io::Result<Launched> {
    let words = ["sleep", "infinity"].map(|word| CString::new(word).unwrap());
    let launch = Launch {
        joins: vec![],
        born_in: None,
        ids: ids(),
        mounts: vec![],
        steps,
        cores: vec![],
        rlimits: vec![],
        landlock: None,
        seccomp: None,
        program: Program::Open(File::open("/bin/sleep")?.into()),
        argv: words.into(),
        envp: vec![],
        fds: vec![],
    };
    launch.spawn().map_err(|error| io::Error::other(format!("{error}: {}", error.source)))
}

/// Ids that nobody else has, as root; our own otherwise, so that a command which joins is who it was.
fn ids() -> Ids {
    let (user, group) = (effective_user(), effective_group());
    if is_root() {
        let nobodys = 1_950_000_000;
        return Ids {
            inside: 1000,
            outside: nobodys,
            group_outside: nobodys,
            root_outside: Some(nobodys + 1),
        };
    }
    Ids { inside: user, outside: user, group_outside: group, root_outside: None }
}
