//! The host's side of the guest agent: its program, and the conversation with it.
//!
//! Everything that the agent says is hostile. It can say how its own program ended and nothing
//! else that matters: ends by deadline or lack of memory and all counts come from the kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;

use cofferdam_core::backend::BackendError;
use cofferdam_core::request::File;
use cofferdam_guest::wire::{Frame, FromGuest, Inbox, PIECE_BYTES, ToGuest, VERSION};
use cofferdam_sys::fdpass;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// The agent's program, compiled by the build script.
pub(crate) static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-guest"));

/// A conversation with an agent. Speaking and listening are independent of each other.
#[derive(Debug)]
pub(crate) struct Agent {
    socket: UnixStream,
    inbox: Mutex<Inbox>,
}

impl Agent {
    /// Takes the host's end of the control socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new(socket: StdUnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Agent { socket: UnixStream::from_std(socket)?, inbox: Mutex::default() })
    }

    /// Waits until the agent is there.
    ///
    /// # Errors
    ///
    /// [`BackendError::Wire`] if it says anything else; none of its frames if it ended first.
    pub(crate) async fn greet(&self) -> Result<bool, BackendError> {
        match self.hear().await? {
            Some(FromGuest::Ready(VERSION)) => Ok(true),
            Some(other) => Err(out_of_turn(other)),
            None => Ok(false),
        }
    }

    /// Puts a file into the working directory.
    ///
    /// # Errors
    ///
    /// [`BackendError::Put`] with what the kernel said inside.
    pub(crate) async fn put(&self, file: &File) -> Result<(), BackendError> {
        let mut pieces = file.bytes.chunks(PIECE_BYTES).peekable();
        let mut offset = 0;
        loop {
            let bytes = pieces.next().unwrap_or_default().to_vec();
            let (length, last) = (bytes.len() as u64, pieces.peek().is_none());
            let name = file.name.as_c_str().to_owned();
            let piece = ToGuest::Put { name, executable: file.executable, offset, last, bytes };
            self.say(&piece, &[]).await?;
            offset += length;
            if last {
                break;
            }
        }
        match self.hear().await? {
            Some(FromGuest::Put(Ok(()))) => Ok(()),
            Some(FromGuest::Put(Err(errno))) => {
                Err(BackendError::Put { source: io::Error::from_raw_os_error(errno) })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Starts a program on three streams.
    ///
    /// # Errors
    ///
    /// [`BackendError::Exec`] with what the kernel said inside.
    pub(crate) async fn exec(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        cwd: CString,
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<(), BackendError> {
        let program = argv.first().cloned().unwrap_or_default();
        let exec = ToGuest::Exec { argv, envp, cwd };
        let refused = |source| BackendError::Exec { program: program.clone(), source };
        if exec.encode().len() > cofferdam_guest::wire::TO_GUEST_BYTES {
            const E2BIG: i32 = 7;
            return Err(refused(io::Error::from_raw_os_error(E2BIG)));
        }
        self.say(&exec, &streams).await?;
        match self.hear().await? {
            Some(FromGuest::Started) => Ok(()),
            Some(FromGuest::NotStarted(errno)) => Err(refused(io::Error::from_raw_os_error(errno))),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the socket can't be written.
    pub(crate) async fn signal(&self, signal: i32) -> Result<(), BackendError> {
        self.say(&ToGuest::Signal(signal), &[]).await
    }

    /// The next thing that the agent says; none if it is gone. Safe to drop while waiting.
    ///
    /// # Errors
    ///
    /// [`BackendError::Wire`] if it is no message.
    pub(crate) async fn hear(&self) -> Result<Option<FromGuest>, BackendError> {
        let mut inbox = self.inbox.lock().await;
        loop {
            if let Some(message) = inbox.next().map_err(|bad| BackendError::Wire(bad.to_string()))? {
                return Ok(Some(message));
            }
            self.socket.readable().await.map_err(BackendError::host("wait for the guest agent"))?;
            let mut buffer = [0; 256];
            match self.socket.try_read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => inbox.push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(BackendError::host("hear the guest agent")(error)),
            }
        }
    }

    /// Says something, with descriptors beside its first byte.
    async fn say(&self, message: &ToGuest, fds: &[BorrowedFd<'_>]) -> Result<(), BackendError> {
        let frame = message.encode();
        let mut sent = 0;
        while sent < frame.len() {
            let fds = if sent == 0 { fds } else { &[] };
            let rest = &frame[sent..];
            sent += self
                .socket
                .async_io(Interest::WRITABLE, || fdpass::send(self.socket.as_fd(), rest, fds))
                .await
                .map_err(BackendError::host("speak to the guest agent"))?;
        }
        Ok(())
    }
}

fn unexpected(answer: Option<FromGuest>) -> BackendError {
    answer.map_or_else(|| BackendError::Wire("it ended".into()), out_of_turn)
}

fn out_of_turn(answer: FromGuest) -> BackendError {
    BackendError::Wire(format!("{answer:?}"))
}
