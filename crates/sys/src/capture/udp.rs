//! Questions of DNS, and answers that come from the address that was asked.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::RawAddress;
use crate::check;

/// A socket at which DNS is asked, at whatever address. It waits unless its descriptor is told otherwise
/// ([`set_nonblocking`](crate::fd::set_nonblocking)).
#[derive(Debug)]
pub struct DnsSocket(OwnedFd);

/// Who asked, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    from: SocketAddr,
    /// Where the question arrived, which is where the answer has to come from.
    at: IpAddr,
}

impl Asker {
    /// The address that was asked.
    #[must_use]
    pub fn asked(&self) -> IpAddr {
        self.at
    }
}

impl From<OwnedFd> for DnsSocket {
    fn from(socket: OwnedFd) -> Self {
        DnsSocket(socket)
    }
}

impl From<DnsSocket> for OwnedFd {
    fn from(socket: DnsSocket) -> Self {
        socket.0
    }
}

impl AsFd for DnsSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for DnsSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Room for a header and either kind of `pktinfo` behind it, aligned as the header wants it.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Calls `f` with a message of one part, an address and room for one control message.
fn with_message<T>(
    address: &mut RawAddress,
    part: &mut libc::iovec,
    control: &mut Control,
    f: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    // SAFETY: plain data for which zeros are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_namelen = address.length();
    message.msg_name = address.room().0;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    f(&mut message)
}

impl DnsSocket {
    /// The next question: how many bytes of it there are in the buffer, and who asked.
    ///
    /// # Errors
    ///
    /// What the kernel said: `WouldBlock` on a socket that doesn't wait. `InvalidData` for one that doesn't
    /// say where it came from.
    pub fn question(&self, buffer: &mut [u8]) -> io::Result<(usize, Asker)> {
        let mut address = RawAddress::empty();
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control { bytes: [0; 64] };
        let (got, at) = with_message(&mut address, &mut part, &mut control, |message| {
            // SAFETY: the message points to live memory of the sizes that it says.
            let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), message, 0) };
            check(got as libc::c_long).map(|got| (got as usize, arrived_at(message)))
        })?;
        let asker = address.parse().zip(at).map(|(from, at)| Asker { from, at });
        Ok((got, asker.ok_or(io::ErrorKind::InvalidData)?))
    }

    /// Answers a question.
    ///
    /// # Errors
    ///
    /// What the kernel said: `WouldBlock` on a socket that doesn't wait.
    pub fn answer(&self, bytes: &[u8], to: &Asker) -> io::Result<()> {
        let mut address = RawAddress::new(to.from);
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control { bytes: [0; 64] };
        with_message(&mut address, &mut part, &mut control, |message| {
            comes_from(message, to.at);
            // SAFETY: the message points to live memory of the sizes that it says; nothing is written there.
            let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), message, libc::MSG_NOSIGNAL) };
            check(sent as libc::c_long).map(drop)
        })
    }
}

/// The address that a datagram was sent to, by its control message.
fn arrived_at(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel wrote the control messages and their length; each of these types has a value of this
    // structure behind its header, which is read as unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            let value = libc::CMSG_DATA(header);
            match (part.cmsg_level, part.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = value.cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = value.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => header = libc::CMSG_NXTHDR(message, header),
            }
        }
    }
    None
}

/// Gives a datagram its source.
fn comes_from(message: &mut libc::msghdr, source: IpAddr) {
    match source {
        IpAddr::V4(ip) => {
            let address = libc::in_addr { s_addr: u32::from(ip).to_be() };
            let none = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: none };
            put_control(message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        IpAddr::V6(ip) => {
            let address = libc::in6_addr { s6_addr: ip.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
            put_control(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
}

fn put_control<T: Copy>(message: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, value: T) {
    let length = size_of::<T>() as u32;
    // SAFETY: the room is a `Control` (64 bytes, aligned), which holds a header (16) and either structure
    // (12 or 20).
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}
