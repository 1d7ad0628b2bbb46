//! Streams of bytes: ones whose beginning was read already, and ones that count.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use cofferdam_core::egress::Exhausted;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::sandbox::Opened;

/// Bytes both ways, wherever they go.
pub(crate) trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for T {}

/// Any of them.
pub(crate) type Stream = Box<dyn Bytestream>;

/// A stream whose first bytes were read already and are read again.
struct Replayed {
    first: Bytes,
    stream: Stream,
}

/// A stream, with these bytes before it.
pub(crate) fn replay(first: Vec<u8>, stream: Stream) -> Stream {
    if first.is_empty() { stream } else { Box::new(Replayed { first: first.into(), stream }) }
}

impl AsyncRead for Replayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

macro_rules! writes_through {
    ($type:ty, $field:ident) => {
        impl AsyncWrite for $type {
            fn poll_write(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.$field).poll_write(context, bytes)
            }

            fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$field).poll_flush(context)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$field).poll_shutdown(context)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                parts: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.$field).poll_write_vectored(context, parts)
            }

            fn is_write_vectored(&self) -> bool {
                self.$field.is_write_vectored()
            }
        }
    };
}
pub(crate) use writes_through;

writes_through!(Replayed, stream);

/// A connection outwards, which counts what goes over it and sends nothing beyond the run's budget.
pub(crate) struct Metered<S> {
    stream: S,
    opened: Opened,
    /// Bytes that are counted and not sent yet: the kernel didn't take them.
    counted: u64,
    ended_by: EndedBy,
}

/// The budget that ended a connection, if one did. The library that sends over it can't always say.
pub(crate) type EndedBy = Arc<OnceLock<Exhausted>>;

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, opened: Opened) -> Self {
        Metered { stream, opened, counted: 0, ended_by: EndedBy::default() }
    }

    /// Counts on, over another stream.
    pub(crate) fn over<T>(self, stream: T) -> (S, Metered<T>) {
        let Metered { stream: before, opened, counted, ended_by } = self;
        (before, Metered { stream, opened, counted, ended_by })
    }

    /// The stream itself, for what isn't the program's and isn't counted.
    pub(crate) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Where it is said which budget ended it.
    pub(crate) fn ended_by(&self) -> EndedBy {
        self.ended_by.clone()
    }

    /// Counts bytes before they leave.
    fn count(&mut self, bytes: usize) -> io::Result<()> {
        let more = (bytes as u64).saturating_sub(self.counted);
        let counted = self.opened.sandbox().budget().bytes_out(more);
        counted.map_err(|why| io::Error::other(*self.ended_by.get_or_init(|| why)))?;
        self.counted += more;
        Ok(())
    }

    fn sent(&mut self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(bytes) = result {
            self.counted = self.counted.saturating_sub(bytes as u64);
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.opened.sandbox().count_in((buffer.filled().len() - before) as u64);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.count(bytes.len())?;
        let result = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.sent(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.count(parts.iter().map(|part| part.len()).sum())?;
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts));
        self.sent(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
