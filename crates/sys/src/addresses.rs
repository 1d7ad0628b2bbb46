//! The addresses that this machine has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Every address of every interface in this process's network namespace: getifaddrs(3).
///
/// # Errors
///
/// What the C library said.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: stores the head of a list, which is read below and freed once.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = vec![];
    let mut entry = first;
    // SAFETY: each entry is live until the list is freed, and its `ifa_next` is the next one or null.
    while let Some(one) = unsafe { entry.as_ref() } {
        found.extend(address(one.ifa_addr));
        entry = one.ifa_next;
    }
    // SAFETY: the list is the library's, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address in a structure of one of the two internet families.
fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a live structure whose family says how long it is and what it is.
    unsafe {
        match libc::c_int::from(raw.as_ref()?.sa_family) {
            libc::AF_INET => {
                let part = raw.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(part.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let part = raw.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(part.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loopback_address_is_among_them_where_there_is_an_interface() {
        let found = super::own().unwrap();
        let is_loopback = |ip: &std::net::IpAddr| ip.is_loopback();
        assert!(found.is_empty() || found.iter().any(is_loopback), "{found:?}");
    }
}
