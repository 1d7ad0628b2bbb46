//! The socket between the two, for whoever waits with tokio.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use cofferdam_sys::fdpass::{self, Received};
use tokio::io::unix::AsyncFd;

use super::codec::{Frame, Frames};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// Descriptors that may wait for the frames they belong to. A host sends one with each `Door`; who sends more
/// than all doors of a sandbox and no frame is up to something.
const WAITING_DESCRIPTORS: usize = 4096;

/// Has a runtime wait for a descriptor.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn watched<T: AsRawFd>(inner: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "unsound only where the descriptor can change; those given here own theirs"
    )]
    AsyncFd::new(inner)
}

/// One end. Reading is one task's business and writing another's.
#[derive(Debug)]
pub(crate) struct Link {
    socket: AsyncFd<UnixStream>,
}

impl Link {
    /// Takes a socket. Needs a runtime with input and output.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Link { socket: watched(socket)? })
    }

    /// What is read from it.
    pub(crate) fn incoming(&self) -> Incoming<'_> {
        Incoming { link: self, frames: Frames::default(), fds: VecDeque::new() }
    }

    /// Sends a whole frame, with at most one descriptor beside it.
    ///
    /// # Errors
    ///
    /// What the kernel said: `BrokenPipe` if the other end is gone.
    pub(crate) async fn send(&self, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let mut sent = 0;
        while sent < frame.len() {
            let mut ready = self.socket.writable().await?;
            if let Ok(result) =
                ready.try_io(|socket| fdpass::send(socket.get_ref().as_fd(), &frame[sent..], &fds))
            {
                sent += result?;
                fds.clear();
            }
        }
        Ok(())
    }
}

/// What comes over a link, in its order.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    link: &'a Link,
    frames: Frames,
    /// In the order of the frames that they came with; none where this process had no room for one.
    fds: VecDeque<Option<OwnedFd>>,
}

impl Incoming<'_> {
    /// The next message; none at the end.
    ///
    /// # Errors
    ///
    /// What the kernel said; `InvalidData` for what makes no sense.
    pub(crate) async fn next<T: Frame>(&mut self) -> io::Result<Option<T>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            if let Some(message) = self.frames.take().map_err(invalid)? {
                return Ok(Some(message));
            }
            let mut buffer = [0; READ_BYTES];
            let mut ready = self.link.socket.readable().await?;
            let read = ready.try_io(|socket| fdpass::receive_all(socket.get_ref().as_fd(), &mut buffer));
            let Ok(read) = read else { continue };
            let Received { count, fds, is_cut_short } = read?;
            self.fds.extend(fds.into_iter().map(Some));
            if is_cut_short {
                self.fds.push_back(None);
            }
            if count == 0 {
                return Ok(None);
            }
            if self.fds.len() > WAITING_DESCRIPTORS {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.frames.push(&buffer[..count]);
        }
    }

    /// What came with the first message that has a descriptor and wasn't asked for it: none within where it was lost.
    pub(crate) fn descriptor(&mut self) -> Option<Option<OwnedFd>> {
        self.fds.pop_front()
    }
}

/// Sends a frame over a socket that waits.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn send_frame(socket: &UnixStream, frame: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < frame.len() {
        sent += fdpass::send(socket.as_fd(), &frame[sent..], &[])?;
    }
    Ok(())
}
