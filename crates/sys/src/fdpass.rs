//! A pair of connected sockets that carry bytes and descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::check;

/// Most descriptors in one message: what a program's three streams need.
pub const MOST: usize = 3;

/// Room for the header and the descriptors, aligned as the header wants it.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Two connected sockets, closed at an exec.
///
/// # Errors
///
/// What the kernel said.
pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
    UnixStream::pair()
}

/// Sends bytes, with descriptors attached to the first of them. Says how many bytes went.
///
/// # Errors
///
/// What the kernel said; `WouldBlock` on a socket that doesn't wait.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    assert!(fds.len() <= MOST, "at most {MOST} descriptors go in one message");
    let mut control = Control { bytes: [0; 64] };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `message` points to `part` and `control`, which outlive the call. The macros stay
    // within `control`: 64 bytes hold a header (16) and three descriptors (12), aligned.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let payload =
                size_of_val(fds) as u32 / size_of::<BorrowedFd<'_>>() as u32 * size_of::<RawFd>() as u32;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            for (at, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<RawFd>().add(at).write_unaligned(fd.as_raw_fd());
            }
        }
        let sent = libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
        check(sent as libc::c_long).map(|sent| sent as usize)
    }
}

/// Receives bytes, and the descriptors that came with them. No bytes mean that the other end is
/// closed. A descriptor for which this process has no room is lost; [`receive_all`] tells.
///
/// # Errors
///
/// What the kernel said; `WouldBlock` on a socket that doesn't wait.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_all(socket, buffer).map(|Received { count, fds, .. }| (count, fds))
}

/// What came.
#[derive(Debug)]
pub struct Received {
    /// How many bytes; none mean that the other end is closed.
    pub count: usize,
    /// The descriptors that came with the first of them. The kernel gives those of one message at a time.
    pub fds: Vec<OwnedFd>,
    /// Whether there were more, for which this process had no room.
    pub is_cut_short: bool,
}

/// [`receive`], which tells whether a descriptor was lost.
///
/// # Errors
///
/// As there.
pub fn receive_all(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control { bytes: [0; 64] };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `message` points to `part` and `control`, which outlive the call, with their sizes.
    // Each descriptor that the kernel stored is new and is owned exactly once.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let got = check(got as libc::c_long)? as usize;
        let mut fds = vec![];
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(part) = header.as_ref() {
            if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                let bytes = part.cmsg_len - libc::CMSG_LEN(0) as usize;
                for at in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(at).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        let is_cut_short = message.msg_flags & libc::MSG_CTRUNC != 0;
        Ok(Received { count: got, fds, is_cut_short })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_arrive_with_the_bytes_they_were_sent_with() {
        let (here, there) = pair().unwrap();
        let (read, write) = crate::fd::pipe().unwrap();
        send(here.as_fd(), b"one", &[]).unwrap();
        send(here.as_fd(), b"two", &[write.as_fd(), read.as_fd()]).unwrap();
        drop(write);
        let mut buffer = [0; 64];
        let mut fds = vec![];
        let mut bytes = vec![];
        while bytes.len() < 6 {
            let (count, new) = receive(there.as_fd(), &mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..count]);
            fds.extend(new);
        }
        assert_eq!((bytes.as_slice(), fds.len()), (b"onetwo".as_slice(), 2));
        File::from(fds.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }
}
