//! The host's ends of a sandbox's sockets, for as long as the sandbox may send anything.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_core::outlet::Doors;
use cofferdam_sys::capture::DnsSocket;
use cofferdam_sys::fd;

use crate::control::DoorKind;

/// The doors of one sandbox. Closed, what it dials is refused by the kernel.
#[derive(Debug, Default)]
pub(super) struct DoorSet(Mutex<Vec<(DoorKind, OwnedFd)>>);

impl DoorSet {
    fn lock(&self) -> MutexGuard<'_, Vec<(DoorKind, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes them, and gives back what counts refusals.
    pub(super) fn attach(&self, doors: Doors) -> Option<OwnedFd> {
        let of = |kind: DoorKind| move |fd| (kind, fd);
        let listening = doors.tcp.into_iter().map(of(DoorKind::Tcp));
        let asked = doors.dns.into_iter().map(of(DoorKind::Dns));
        *self.lock() = listening.chain(asked).chain(doors.proxy.map(of(DoorKind::Proxy))).collect();
        doors.table
    }

    /// A copy of each.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn copies(&self) -> io::Result<Vec<(DoorKind, OwnedFd)>> {
        self.lock().iter().map(|(kind, fd)| Ok((*kind, fd.try_clone()?))).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn close(&self) {
        self.lock().clear();
    }

    /// Throws away what an earlier program left at them. To be called before another one runs.
    pub(super) fn drain(&self) {
        for (kind, fd) in &*self.lock() {
            let copy = fd::set_nonblocking(fd.as_fd()).and_then(|()| fd.try_clone());
            let Ok(copy) = copy else { continue }; // then it can't be served either
            match kind {
                DoorKind::Tcp | DoorKind::Proxy => {
                    let listener = TcpListener::from(copy);
                    while listener.accept().is_ok() {}
                }
                DoorKind::Broker => {} // not one that a program has
                DoorKind::Dns => {
                    let socket = DnsSocket::from(copy);
                    while socket.question(&mut [0; 1]).is_ok() {}
                }
            }
        }
    }
}
