//! What this kernel offers, by trying it in a namespace that goes at once.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::{Door, TCP_PORT, original_destination, routes, table};
use crate::launch::child::network;
use crate::launch::{child, clone_into};
use crate::netlink::Request;
use crate::{fd, fdpass, process};

/// What a capture can be on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// Whether there is IPv6. Where there isn't, nothing can be dialled over it.
    pub ipv6: Result<(), Why>,
    /// Whether a connection to any port can be captured. Where not, only listed ports are, and the kernel
    /// refuses others without a trace: the gap `denials-unlisted-port`.
    pub every_port: Result<(), Why>,
}

/// What couldn't be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not {action}: {}", io::Error::from_raw_os_error(*.errno))]
pub struct Why {
    /// A verb phrase.
    pub action: String,
    /// The kernel's error number.
    pub errno: i32,
}

impl Why {
    fn new(action: &str, errno: i32) -> Self {
        Why { action: action.to_owned(), errno }
    }
}

/// Tries all of it: makes a network namespace, sets it up, dials out of it and looks at what arrives.
///
/// Takes a few milliseconds, now and then tens of them, for the namespace: once for a process, and never when
/// somebody waits for a run.
///
/// # Errors
///
/// Nothing can be captured at all: there can't be a namespace, or not every address can be made local in it.
pub fn probe() -> Result<Support, Why> {
    let failed = |error: &io::Error| Why::new("try a network namespace", error.raw_os_error().unwrap_or(0));
    let trial = Trial::run().map_err(|error| failed(&error))?;
    let [ipv4, ipv6, loaded] = trial.errnos;
    let answer = |errno, request: &Request| match errno {
        0 => Ok(()),
        errno => Err(Why::new(request.purpose, errno)),
    };
    answer(ipv4, &routes::request(false))?;
    let ipv6 = answer(ipv6, &routes::ipv6_alone());
    let every_port = answer(loaded, &table::request()).and_then(|()| {
        trial.arrives_from(IPV4_DIAL)?;
        if ipv6.is_ok() { trial.arrives_from(IPV6_DIAL) } else { Ok(()) }
    });
    Ok(Support { ipv6, every_port })
}

/// What is dialled: a door, and an address of those that RFC 5737 and RFC 3849 keep for documents.
#[derive(Clone, Copy)]
struct Dial {
    at: SocketAddr,
    to: SocketAddr,
}

const IPV4_DIAL: Dial = Dial {
    at: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, TCP_PORT)),
    to: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 9)),
};

const IPV6_DIAL: Dial = Dial {
    at: SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, TCP_PORT, 0, 0)),
    to: SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9), 9, 0, 0)),
};

/// What became of a trial.
struct Trial {
    /// Of the routes for IPv4, those for IPv6, and the table; zero for what could be done.
    errnos: [i32; 3],
    /// Sockets of the namespace, in each of which a connection waits.
    dialled: Vec<TcpListener>,
}

impl Trial {
    fn run() -> io::Result<Trial> {
        let requests = [routes::request(false), routes::ipv6_alone(), table::request()];
        let (report, child_report) = fd::pipe()?;
        let (exchange, child_exchange) = fdpass::pair()?;
        // A handler of ours must not run in the child, where it would act on what is shared.
        let blocked = process::SignalsBlocked::all()?;
        let (_, pidfd) = clone_into(libc::CLONE_NEWUSER | libc::CLONE_NEWNET, None, || {
            attempt(&requests, child_report.as_raw_fd(), child_exchange.as_raw_fd())
        })?;
        drop((blocked, child_report, child_exchange));
        let reported = read_report(File::from(report));
        process::reap(pidfd.as_fd())?;
        let errnos = reported?;
        let mut dialled = vec![];
        while let Ok((1.., fds)) = fdpass::receive(exchange.as_fd(), &mut [0; 1]) {
            dialled.extend(fds.into_iter().map(TcpListener::from));
        }
        Ok(Trial { errnos, dialled })
    }

    /// Whether the connection is there that was dialled, and knows where it was meant to go.
    fn arrives_from(&self, dial: Dial) -> Result<(), Why> {
        let arrived = |listener: &TcpListener| {
            listener.set_nonblocking(true)?;
            original_destination(&listener.accept()?.0)
        };
        let door = self.dialled.iter().find(|door| door.local_addr().is_ok_and(|at| at == dial.at));
        let errno = match door.map(arrived) {
            Some(Ok(address)) if address == dial.to => return Ok(()),
            Some(Err(error)) => error.raw_os_error().unwrap_or(libc::EIO),
            Some(Ok(_)) => libc::EADDRNOTAVAIL,
            None => libc::ECONNREFUSED,
        };
        Err(Why::new("see where a captured connection was meant to go", errno))
    }
}

fn read_report(mut report: File) -> io::Result<[i32; 3]> {
    let mut bytes = [0; 12];
    report.read_exact(&mut bytes)?;
    let number = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok([number(0), number(4), number(8)])
}

/// What the child does. As in a launch: no allocation, no locks, no panics.
fn attempt(requests: &[Request; 3], report: RawFd, exchange: RawFd) -> std::convert::Infallible {
    let mut bytes = [0u8; 12];
    for (request, errno) in requests.iter().zip(bytes.chunks_exact_mut(4)) {
        if let Err(child::Errno(number)) = network::configure(request) {
            errno.copy_from_slice(&number.to_ne_bytes());
        }
    }
    for dial in [IPV4_DIAL, IPV6_DIAL] {
        // What doesn't come through is seen by its not being there.
        let _ = dial_through(dial, exchange);
    }
    // SAFETY: writes from a live buffer of the stated size, then ends the process without running any handler
    // of the one that it was copied from.
    unsafe {
        libc::write(report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(0)
    }
}

/// Dials out and hands over the socket at which that should have arrived.
fn dial_through(dial: Dial, exchange: RawFd) -> child::Done {
    let door = network::listen(Door::Tcp(dial.at))?;
    network::dial(dial.to)?;
    child::send_descriptor(door, exchange)
}
