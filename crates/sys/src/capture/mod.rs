//! Everything that a sandbox sends anywhere ends at the host.
//!
//! A sandbox's network namespace has no interface but its own loopback. What is made here, from within and
//! before the program starts, turns that from a dead end into a wire to the host:
//!
//! 1. a route makes every address of IPv4 and IPv6 local, so that nothing fails for want of a way;
//! 2. a table of nftables sends each TCP connection to one socket, but for those to the sandbox's own
//!    127.0.0.0/8 and ::1; it counts and refuses all UDP but that to port 53, and everything else;
//! 3. that socket, and one to which DNS comes at whatever address, are [`Doors`]: made inside, and handed to
//!    the host before the program runs.
//!
//! The host accepts there, asks [`original_destination`] where the connection was meant to go, and decides.
//! Nobody inside can undo it: it takes a privilege in the user namespace that owns the network namespace, and
//! a program has none there. Nothing of it stays: it ends with the namespace, which ends with the last process
//! in it and the last of the host's descriptors of [`Doors`] and of what was accepted there.
//!
//! Where the kernel has no nftables, there is one TCP socket for each port that a policy names, and any other
//! port is refused by the kernel without a trace ([`Support::every_port`]).
//!
//! A sandbox whose network stack isn't the host's (a virtual machine) needs the same at the other end of its
//! interface: routes by interface and transparent sockets. [`Doors`] and [`original_destination`] are made so
//! that they serve that too.

mod address;
mod probe;
mod routes;
mod table;
mod udp;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

pub(crate) use address::RawAddress;
pub use probe::{Support, Why, probe};
pub use table::{Refused, Table};
pub use udp::{Asker, DnsSocket};

use crate::launch::{Launched, Step};

/// Where redirected connections arrive. Below 1024, so that no program inside can take it or misses it: RFC
/// 4727 keeps 1021 and 1022 for experiments.
pub const TCP_PORT: u16 = 1021;

/// Where tools that want a proxy are told to find one, at 127.0.0.1.
pub const PROXY_PORT: u16 = 1022;

/// Where DNS is asked, at any address.
pub const DNS_PORT: u16 = 53;

/// A socket that is made inside, for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// One that accepts connections.
    Tcp(SocketAddr),
    /// One that takes datagrams, and is told the address that each was sent to.
    Udp(SocketAddr),
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Door::Tcp(address) => write!(f, "TCP {address}"),
            Door::Udp(address) => write!(f, "UDP {address}"),
        }
    }
}

/// The capture of one sandbox, as a launch will set it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    ipv6: bool,
    /// Ports that have a socket each; None where one takes all.
    listed: Option<BTreeSet<u16>>,
}

impl Capture {
    /// As this kernel has it. `listed` are the ports that the policy names, which count only where
    /// [`Support::every_port`] is an error. [`PROXY_PORT`] can't be among them then, and is left out.
    #[must_use]
    pub fn new(support: &Support, listed: &[u16]) -> Self {
        let listed = || listed.iter().copied().filter(|port| *port != PROXY_PORT).collect();
        Capture { ipv6: support.ipv6.is_ok(), listed: support.every_port.is_err().then(listed) }
    }

    /// What the child of a launch does before anything that hands something over: it lets the parent begin.
    #[must_use]
    pub fn first_steps(&self) -> Vec<Step> {
        if self.listed.is_none() { vec![Step::Nftables] } else { vec![] }
    }

    /// Does the parent's part, beside which the child goes on: loading the table takes the kernel as long as a fifth
    /// of a start. To be called once, when nothing was taken from [`Launched::handed_over`].
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the set-up failed before: [`Launched::failure`] says which step. Else what the kernel said.
    pub fn load(&self, launched: &Launched) -> io::Result<Option<Table>> {
        if self.listed.is_some() {
            return Ok(None);
        }
        Table::load(launched.handed_over()?).map(Some)
    }

    /// What the child of a launch does then, to go in one piece among [`Launch::steps`](crate::launch::Launch);
    /// it brings up the loopback interface too.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let doors = self.tcp_doors().chain(self.dns_doors()).chain([PROXY_DOOR]).map(Step::Door);
        [Step::Network(routes::request(self.ipv6))].into_iter().chain(doors).collect()
    }

    /// Takes what [`steps`](Capture::steps) hand over. To be called once, when everything before them was taken from
    /// [`Launched::handed_over`] and nothing after them. Blocks until they are done.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the set-up failed before: [`Launched::failure`] says which step.
    pub fn doors(&self, launched: &Launched, table: Option<Table>) -> io::Result<Doors> {
        Ok(Doors {
            table,
            tcp: self.tcp_doors().map(|_| Ok(launched.handed_over()?.into())).collect::<io::Result<_>>()?,
            dns: self.dns_doors().map(|_| Ok(launched.handed_over()?.into())).collect::<io::Result<_>>()?,
            proxy: launched.handed_over()?.into(),
        })
    }

    fn tcp_doors(&self) -> impl Iterator<Item = Door> {
        let ports = self.listed.iter().flatten().copied();
        let at_each = ports.flat_map(|port| self.everywhere().map(move |ip| (ip, port)));
        let at_one = self.loopback().map(|ip| (ip, TCP_PORT)).filter(|_| self.listed.is_none());
        at_each.chain(at_one).map(|address| Door::Tcp(address.into()))
    }

    fn dns_doors(&self) -> impl Iterator<Item = Door> {
        self.everywhere().map(|ip| Door::Udp((ip, DNS_PORT).into()))
    }

    fn everywhere(&self) -> impl Iterator<Item = IpAddr> {
        self.families([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()])
    }

    fn loopback(&self) -> impl Iterator<Item = IpAddr> {
        self.families([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
    }

    fn families(&self, both: [IpAddr; 2]) -> impl Iterator<Item = IpAddr> {
        both.into_iter().filter(|ip| ip.is_ipv4() || self.ipv6)
    }
}

const PROXY_DOOR: Door =
    Door::Tcp(SocketAddr::V4(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROXY_PORT)));

/// The host's ends: everything that comes out of a sandbox comes out here. They block until they are told
/// otherwise. Closed, everything that the program dials is refused at once.
#[derive(Debug)]
pub struct Doors {
    /// Accept what was meant for somewhere else: ask [`original_destination`].
    pub tcp: Vec<TcpListener>,
    /// Where DNS is asked, a socket for each family.
    pub dns: Vec<DnsSocket>,
    /// Where the program dials a proxy as such: HTTP or SOCKS.
    pub proxy: TcpListener,
    /// What was refused; None where nothing is counted.
    pub table: Option<Table>,
}

/// Gives the loopback interface one more address, after [`Capture::steps`]: for a network that stands for a
/// machine's, which has addresses of its own.
#[must_use]
pub fn own_address(ip: IpAddr) -> Step {
    Step::Network(routes::address(ip))
}

/// Where a connection was meant to go that one of [`Doors::tcp`] accepted.
///
/// An address of 127.0.0.0/8 or ::1 means that the program dialled the door itself; it leads nowhere.
///
/// # Errors
///
/// ENOTCONN where the connection is gone already; whatever else the kernel said.
pub fn original_destination(connection: &TcpStream) -> io::Result<SocketAddr> {
    let arrived = connection.local_addr()?;
    let level = if arrived.is_ipv4() { libc::SOL_IP } else { libc::SOL_IPV6 };
    match address::before_redirect(connection.as_fd(), level) {
        // It wasn't redirected: nobody tracks connections there, or not this one.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT)) => Ok(arrived),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn support(ipv6: bool, every_port: bool) -> Support {
        let answer = |yes: bool| if yes { Ok(()) } else { Err(Why { action: "try".into(), errno: 95 }) };
        Support { ipv6: answer(ipv6), every_port: answer(every_port) }
    }

    fn words(capture: &Capture) -> Vec<String> {
        let steps = [capture.first_steps(), capture.steps()].concat();
        steps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_step_has_words_of_its_own() {
        let expected = [
            "open nftables for the host",
            "make every address lead to the loopback interface",
            "listen at TCP 127.0.0.1:1021",
            "listen at TCP [::1]:1021",
            "listen at UDP 0.0.0.0:53",
            "listen at UDP [::]:53",
            "listen at TCP 127.0.0.1:1022",
        ];
        assert_eq!(words(&Capture::new(&support(true, true), &[443])), expected);
    }

    #[test]
    fn without_a_table_each_listed_port_has_a_socket() {
        let expected = [
            "make every address lead to the loopback interface",
            "listen at TCP 0.0.0.0:443",
            "listen at UDP 0.0.0.0:53",
            "listen at TCP 127.0.0.1:1022",
        ];
        assert_eq!(words(&Capture::new(&support(false, false), &[443, PROXY_PORT, 443])), expected);
    }
}
