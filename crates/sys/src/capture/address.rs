//! Addresses of sockets as the kernel has them, on the stack: the child of a launch uses these too.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

/// A `struct sockaddr_in` or `sockaddr_in6`.
pub(crate) struct RawAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl RawAddress {
    /// Room for one that the kernel will fill in.
    pub(crate) fn empty() -> Self {
        // SAFETY: plain data for which zeros are valid.
        let storage = unsafe { MaybeUninit::zeroed().assume_init() };
        RawAddress { storage, length: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(address) => {
                let part = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: a `sockaddr_storage` has room and alignment for every kind of address.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(part) };
                raw.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(address) => {
                let part = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(part) };
                raw.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    /// For calls that read it: `bind`, `connect`.
    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// Its length in bytes.
    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length
    }

    /// For calls that fill it in: where, and room for the length.
    pub(crate) fn room(&mut self) -> (*mut libc::c_void, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.length)
    }

    /// What it says, if it is of one of the two internet families.
    pub(crate) fn parse(&self) -> Option<SocketAddr> {
        match libc::c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: of this family, and all of the storage is initialized.
                let part = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(part.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(part.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let part = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(part.sin6_addr.s6_addr);
                let port = u16::from_be(part.sin6_port);
                Some(SocketAddrV6::new(ip, port, part.sin6_flowinfo, part.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// SO_ORIGINAL_DST of `linux/netfilter_ipv4.h` and IP6T_SO_ORIGINAL_DST of
/// `linux/netfilter_ipv6/ip6_tables.h`.
const ORIGINAL_DESTINATION: libc::c_int = 80;

/// Where a connection was going before it was redirected, from the kernel's table of connections.
pub(super) fn before_redirect(socket: BorrowedFd<'_>, level: libc::c_int) -> io::Result<SocketAddr> {
    let mut raw = RawAddress::empty();
    let (value, length) = raw.room();
    // SAFETY: the kernel writes at most `length` bytes to a live structure, and then the new length.
    check(libc::c_long::from(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, ORIGINAL_DESTINATION, value, length)
    }))?;
    raw.parse().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        for text in ["203.0.113.9:5432", "[2001:db8::5]:443", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).parse(), Some(address));
        }
        assert_eq!(RawAddress::empty().parse(), None);
    }
}
