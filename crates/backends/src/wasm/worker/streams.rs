//! A program's standard streams: the descriptors that came with it, with nothing kept back.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_sys::process;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wasmtime_wasi::cli::{IsTerminal as WasiIsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// The most bytes that are taken from a program at once.
const PIECE_BYTES: usize = 64 << 10;

/// One end of a stream, shared by every handle that a program has on it. Closed by [`Stream::close`],
/// whatever still holds one.
#[derive(Clone, Debug)]
pub(super) struct Stream(Arc<Mutex<Option<std::fs::File>>>);

impl Stream {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Stream(Arc::new(Mutex::new(Some(fd.into()))))
    }

    /// Lets go of the descriptor, so that whoever reads at the other end sees the end.
    pub(super) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<T>(&self, work: impl FnOnce(&mut std::fs::File) -> io::Result<T>) -> io::Result<T> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?)
    }

    /// Writes all of it, waiting for a slow reader.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.with(|file| file.write_all(bytes))
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.with(|file| file.read(bytes))
    }

    fn is_readable(&self) -> bool {
        // What is closed is readable: it is at its end.
        self.with(|file| Ok(process::readable_within(file.as_fd(), Duration::ZERO))).unwrap_or(true)
    }

    /// Returns once there is something to read, or the end.
    async fn readable(&self) {
        if self.is_readable() {
            return;
        }
        let Ok(copy) = self.with(|file| file.try_clone()) else { return };
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a file of ours has its descriptor until dropped"
        )]
        let waiting = AsyncFd::with_interest(copy, tokio::io::Interest::READABLE);
        // What can't be waited for is always ready.
        let Ok(waiting) = waiting else { return };
        while !self.is_readable() {
            match waiting.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            }
        }
    }
}

impl WasiIsTerminal for Stream {
    fn is_terminal(&self) -> bool {
        self.with(|file| Ok(IsTerminal::is_terminal(file))).unwrap_or(false)
    }
}

impl StdinStream for Stream {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }
}

impl StdoutStream for Stream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Output(self.clone()))
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stream {
    async fn ready(&mut self) {
        self.readable().await;
    }
}

impl InputStream for Stream {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 || !self.is_readable() {
            return Ok(Bytes::new());
        }
        let mut bytes = vec![0; size.min(PIECE_BYTES)];
        match Stream::read(self, &mut bytes) {
            Ok(0) => Err(StreamError::Closed),
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes.into())
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// Output doesn't wait in a buffer: where the reader is slow, the program is.
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.write(&bytes).map_err(failed)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PIECE_BYTES)
    }
}

/// A stream that a program writes to, which is always ready.
struct Output(Stream);

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

fn failed(error: io::Error) -> StreamError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => StreamError::Closed,
        _ => StreamError::LastOperationFailed(error.into()),
    }
}

// WASI's previews 1 and 2 ask for the streams above; these are there because the traits want them.

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = vec![0; buffer.remaining().min(PIECE_BYTES)];
        Poll::Ready(Stream::read(&self, &mut bytes).map(|count| buffer.put_slice(&bytes[..count])))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.write(bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
