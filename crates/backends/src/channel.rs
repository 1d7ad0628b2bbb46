//! A socket to a process in a sandbox, on which both sides speak in frames.
//!
//! What comes from there is hostile; what a frame means is checked by whoever takes it apart.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use cofferdam_core::backend::BackendError;
use cofferdam_sys::fdpass;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The host's end.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixStream,
    /// Who is at the other end, for messages.
    whom: &'static str,
}

impl Channel {
    /// Takes the host's end of a socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new(socket: StdUnixStream, whom: &'static str) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Channel { socket: UnixStream::from_std(socket)?, whom })
    }

    /// The next bytes from the socket; none when its other end is closed. Safe to drop while waiting.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the socket can't be read.
    pub(crate) async fn read(&self) -> Result<Option<Vec<u8>>, BackendError> {
        let failed = |action: &str| BackendError::host(format!("{action} the {}", self.whom));
        loop {
            self.socket.readable().await.map_err(failed("wait for"))?;
            let mut buffer = [0; 256];
            match self.socket.try_read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => return Ok(Some(buffer[..count].to_vec())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(failed("hear")(error)),
            }
        }
    }

    /// Writes a frame, with descriptors beside its first byte.
    ///
    /// # Errors
    ///
    /// [`BackendError::Gone`] if nobody is there.
    pub(crate) async fn write(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), BackendError> {
        let mut sent = 0;
        while sent < frame.len() {
            let fds = if sent == 0 { fds } else { &[] };
            let rest = &frame[sent..];
            sent += self
                .socket
                .async_io(Interest::WRITABLE, || fdpass::send(self.socket.as_fd(), rest, fds))
                .await
                .map_err(|error| match error.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => BackendError::Gone,
                    _ => BackendError::host(format!("speak to the {}", self.whom))(error),
                })?;
        }
        Ok(())
    }
}

/// How long somebody inside may take to listen, or to answer. The first answer comes when the sandbox is set
/// up, which takes milliseconds; the rest is for a machine that has other things to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What somebody inside does, if that is done in time.
///
/// # Errors
///
/// [`BackendError::Silent`] if it isn't.
pub(crate) async fn in_time<T>(
    doing: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let silent = |_| Err(BackendError::Silent { within: PATIENCE });
    tokio::time::timeout(PATIENCE, doing).await.unwrap_or_else(silent)
}
