//! What the child does to its network namespace. The rules of [`super`] hold here too.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use cofferdam_core::weaken::{self, Control};

use super::{Done, Errno, call, send_descriptor};
use crate::capture::{Door, RawAddress};
use crate::netlink::{self, Bus, Request};

/// Connections that wait for the host to accept them; each holds memory of the kernel's. The next ones wait
/// longer, and are tried again by the kernel.
const WAITING_CONNECTIONS: libc::c_int = 256;

/// Has the kernel do what a request says.
pub(crate) fn configure(request: &Request) -> Done {
    namespace_is_our_own()?;
    let socket = open(libc::AF_NETLINK, libc::SOCK_RAW, request.bus.number())?;
    let bytes = &request.bytes;
    // SAFETY: the pointer and the length describe live bytes.
    call(|| unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0) } as libc::c_long)?;
    acknowledged(socket, request.last)?;
    close(socket);
    Ok(())
}

/// Hands over a socket by which the host can load a table into this namespace.
pub(super) fn hand_over_nftables(exchange: RawFd) -> Done {
    namespace_is_our_own()?;
    let socket = open(libc::AF_NETLINK, libc::SOCK_RAW, Bus::Netfilter.number())?;
    send_descriptor(socket, exchange)?;
    close(socket);
    Ok(())
}

/// Reads answers up to the acknowledgement of the message `last`, or the first error. Never waits: the kernel
/// has answered before the call returns with which it was asked.
fn acknowledged(socket: RawFd, last: u32) -> Done {
    let mut buffer = [0u8; 1024]; // an acknowledgement takes 36 bytes; an error is cut off after its number
    loop {
        let (start, room) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the pointer and the length describe a live buffer.
        let got = call(|| unsafe { libc::recv(socket, start, room, libc::MSG_DONTWAIT) } as libc::c_long)?;
        for reply in netlink::replies(buffer.get(..got as usize).unwrap_or_default()) {
            match reply.errno() {
                Some(0) if reply.number == last => return Ok(()),
                Some(0) | None => {}
                Some(errno) => return Err(Errno(errno)),
            }
        }
    }
}

/// Makes a socket through which the host will hear what the program does, and hands it over.
pub(super) fn open_door(door: Door, exchange: RawFd) -> Done {
    namespace_is_our_own()?;
    let socket = listen(door)?;
    send_descriptor(socket, exchange)?;
    close(socket);
    Ok(())
}

/// Makes such a socket.
pub(crate) fn listen(door: Door) -> Result<RawFd, Errno> {
    let (address, kind) = match door {
        Door::Tcp(address) => (address, libc::SOCK_STREAM),
        Door::Udp(address) => (address, libc::SOCK_DGRAM),
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = open(family, kind, 0)?;
    if address.is_ipv6() {
        switch_on(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)?;
    }
    if let Door::Udp(_) = door {
        answers_from_where_it_was_asked(socket, address)?;
    }
    let raw = RawAddress::new(address);
    // SAFETY: the pointer and the length describe a live address.
    call(|| libc::c_long::from(unsafe { libc::bind(socket, raw.pointer(), raw.length()) }))?;
    if let Door::Tcp(_) = door {
        without_pacing(socket);
        // SAFETY: takes numbers.
        call(|| libc::c_long::from(unsafe { libc::listen(socket, WAITING_CONNECTIONS) }))?;
    }
    Ok(socket)
}

/// Has what is accepted send as fast as it is read. It never leaves the machine, and where the host prefers a way of
/// control that paces (BBR does), its timers take a tenth of a large answer's time. Reno is in every kernel; where it
/// can't be had all the same, things go on as the host prefers: tcp(7), `TCP_CONGESTION`.
fn without_pacing(socket: RawFd) {
    const RENO: &[u8] = b"reno";
    let (value, length) = (RENO.as_ptr().cast(), RENO.len() as libc::socklen_t);
    // SAFETY: the pointer and the length describe a live name.
    unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, value, length) };
}

/// Has the kernel say with each datagram where it was sent to, and accept that as the source of an answer.
fn answers_from_where_it_was_asked(socket: RawFd, address: SocketAddr) -> Done {
    if address.is_ipv4() {
        return switch_on(socket, libc::IPPROTO_IP, libc::IP_PKTINFO);
    }
    switch_on(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
    // An address that is local by a route alone is nobody's to IPv6.
    switch_on(socket, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND)
}

/// Connects to a place, waiting a second at most.
pub(crate) fn dial(address: SocketAddr) -> Done {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = open(family, libc::SOCK_STREAM, 0)?;
    let most = libc::timeval { tv_sec: 1, tv_usec: 0 };
    let length = size_of::<libc::timeval>() as libc::socklen_t;
    let raw = RawAddress::new(address);
    // SAFETY: both pointers lead to live values of the lengths that are passed.
    unsafe {
        let value = (&raw const most).cast();
        let option = libc::SO_SNDTIMEO;
        call(|| libc::c_long::from(libc::setsockopt(socket, libc::SOL_SOCKET, option, value, length)))?;
        call(|| libc::c_long::from(libc::connect(socket, raw.pointer(), raw.length()))).map(drop)
    }
}

fn open(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> Result<RawFd, Errno> {
    // SAFETY: takes numbers.
    let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    call(|| libc::c_long::from(socket)).map(|socket| socket as RawFd)
}

fn switch_on(socket: RawFd, level: libc::c_int, option: libc::c_int) -> Done {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option takes a number, which is live and of the stated size.
    let result = unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), length) };
    call(|| libc::c_long::from(result)).map(drop)
}

fn close(socket: RawFd) {
    // SAFETY: closes a number that nothing in this process uses any more.
    unsafe { libc::close(socket) };
}

/// Never the host's network: where a test has left the namespace out, nothing is changed.
fn namespace_is_our_own() -> Done {
    if weaken::is_off(Control::NetNamespace) { Err(Errno(libc::EPERM)) } else { Ok(()) }
}
