//! Hands a dialled connection to the broker, where a rule says that its requests carry a credential of the run's. This
//! process never has that credential: it sees the surrogate that the program sends, and what the broker sends back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use cofferdam_core::egress::{DenialCode, Destination};
use cofferdam_core::handover::{Handover, Taken};
use cofferdam_sys::fdpass;
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::dial::DialError;
use super::stream::Metered;
use crate::control::watched;

/// How long the broker may take: it speaks TLS with a host that is slow, and may have to have a credential minted first.
const PATIENCE: Duration = Duration::from_secs(30);

/// The way to a run's broker: who has this end is this run, whatever is said over it.
#[derive(Debug)]
pub(crate) struct Broker(AsyncFd<StdUnixStream>);

impl Broker {
    /// Takes the end of a socket that keeps messages apart.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = StdUnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Broker(watched(socket)?))
    }

    /// Hands a connection over. What comes back is where its requests go instead, and whether in HTTP/2; what goes
    /// over it counts as it would have.
    ///
    /// # Errors
    ///
    /// [`DialError`]: nothing goes over it.
    pub(crate) async fn hand_over(
        &self,
        stream: Metered<TcpStream>,
        to: &Destination,
        credential: &str,
        offers_http2: bool,
    ) -> Result<(Metered<UnixStream>, bool), DialError> {
        let (ours, theirs) = UnixStream::pair().map_err(DialError::Unreachable)?;
        let (dialled, mut stream) = stream.over(ours);
        let (credential, host) = (credential.to_owned(), to.host().clone());
        let message = Handover { credential, host, port: to.port(), offers_http2 }.encode();
        // What ends here is the broker: the program can only be told that its credential is of no use any more.
        let lost = |_| DialError::Broker(DenialCode::CredentialExpired);
        self.send(&message, &[dialled.as_fd(), theirs.as_fd()]).await.map_err(lost)?;
        drop((dialled, theirs));
        let answer = timeout(PATIENCE, stream.get_mut().read_u8()).await;
        let answer = answer.map_err(|_| DialError::Unreachable(io::ErrorKind::TimedOut.into()))?;
        match Taken::decode(answer.map_err(lost)?) {
            Some(Taken::Http1) => Ok((stream, false)),
            Some(Taken::Http2) => Ok((stream, true)),
            Some(Taken::OtherProtocol) => Err(DialError::OtherProtocol),
            Some(Taken::Denied(code)) => Err(DialError::Broker(code)),
            None => Err(DialError::Broker(DenialCode::CredentialExpired)),
        }
    }

    async fn send(&self, message: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.0.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| fdpass::send(socket.get_ref().as_fd(), message, fds)) {
                return sent.map(drop);
            }
        }
    }
}
