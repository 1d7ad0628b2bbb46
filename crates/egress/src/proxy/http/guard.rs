//! Stands between a connection and the library that reads HTTP/1 from it, and lets through only what
//! [`Framing`] takes.
//!
//! What it doesn't take becomes a request that only this can make ([`REFUSED`]), so that its refusal is answered
//! in its turn, after whatever was asked before it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::framing::{BadMessage, Framing};
use crate::proxy::stream::{Stream, writes_through};

/// How long a head may take from its first byte on.
const HEAD: Duration = Duration::from_secs(10);

/// How long a kept connection may be idle.
const IDLE: Duration = Duration::from_secs(120);

/// Bytes that are read at once, where they are looked at.
const READ_BYTES: usize = 8 << 10;

/// The method of the request that stands for a refused one. A client that sends it itself is refused by it too,
/// or judged like any other.
pub(crate) const REFUSED: &str = "COFFERDAM-REFUSED";

const REFUSED_REQUEST: &[u8] = b"COFFERDAM-REFUSED / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// What the guard of a connection and who answers on it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    framing: Framing,
    refused: Option<BadMessage>,
    waiting: Option<Waker>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why something on this connection was refused, if it was.
    pub(crate) fn refused(&self) -> Option<BadMessage> {
        self.lock().refused
    }

    /// Lets go on what stands behind a request to speak something else.
    pub(crate) fn release(&self, is_granted: bool) {
        let mut inner = self.lock();
        inner.framing.release(is_granted);
        if let Some(waker) = inner.waiting.take() {
            waker.wake();
        }
    }
}

/// What is waited for, as far as it has to come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Idle,
    Head,
    Unbounded,
}

/// A connection, as the library sees it.
pub(crate) struct Guard {
    stream: Stream,
    gate: Arc<Gate>,
    /// What was read and isn't passed on.
    buffer: BytesMut,
    /// How many bytes of that may be.
    passing: usize,
    is_at_end: bool,
    /// Whether the last request is the one that stands for a refused one: nothing comes after it.
    is_refused: bool,
    wait: Wait,
    until: Pin<Box<Sleep>>,
}

writes_through!(Guard, stream);

impl Guard {
    pub(crate) fn new(stream: Stream, gate: Arc<Gate>) -> Self {
        let until = Box::pin(sleep_until(Instant::now() + HEAD));
        let buffer = BytesMut::new();
        Guard {
            stream,
            gate,
            buffer,
            passing: 0,
            is_at_end: false,
            is_refused: false,
            wait: Wait::Head,
            until,
        }
    }

    /// Looks at what is there, and at the time.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let looked = {
            let mut inner = self.gate.lock();
            let looked = inner.framing.pass(&self.buffer);
            if inner.framing.is_held() && looked == Ok(0) {
                inner.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
            looked.map(|passing| (passing, inner.framing.is_in_head()))
        };
        match looked {
            Ok((0, is_in_head)) => self.is_late(is_in_head, context),
            Ok((passing, _)) => {
                self.passing = passing;
                Poll::Ready(Ok(()))
            }
            Err(bad) => Poll::Ready(self.refuse(bad)),
        }
    }

    /// Ready if what is waited for didn't come in time.
    fn is_late(&mut self, is_in_head: bool, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wait = match (is_in_head, self.buffer.is_empty()) {
            (true, true) => Wait::Idle,
            (true, false) => Wait::Head,
            (false, _) => Wait::Unbounded,
        };
        if wait != self.wait {
            let most = if wait == Wait::Idle { IDLE } else { HEAD };
            self.until.as_mut().reset(Instant::now() + most);
            self.wait = wait;
        }
        if wait == Wait::Unbounded {
            return Poll::Pending;
        }
        ready!(self.until.as_mut().poll(context));
        if wait == Wait::Idle {
            self.is_at_end = true;
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.refuse(BadMessage::Late))
    }

    /// Puts the request that stands for a refused one in place of what is there; within a body there is no place
    /// for it, and the connection fails.
    fn refuse(&mut self, bad: BadMessage) -> io::Result<()> {
        let is_in_head = {
            let mut inner = self.gate.lock();
            inner.refused = Some(bad);
            inner.framing.is_in_head()
        };
        self.buffer.clear();
        if !is_in_head {
            return Err(io::Error::new(io::ErrorKind::InvalidData, bad));
        }
        self.buffer.extend_from_slice(REFUSED_REQUEST);
        self.passing = REFUSED_REQUEST.len();
        self.is_refused = true;
        Ok(())
    }

    /// Throws away what comes after a refusal: left unread, it would have the kernel reset the connection before
    /// the answer is read. An end isn't passed on, which the library would take for a client that is gone.
    fn discard(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.buffer.clear();
            ready!(self.read_more(context))?;
            if self.is_at_end {
                return Poll::Pending;
            }
        }
    }

    fn read_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.buffer.reserve(READ_BYTES);
        let mut bytes = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.is_at_end = read.filled().is_empty();
        self.buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.passing > 0 {
                let count = this.passing.min(into.remaining());
                into.put_slice(&this.buffer[..count]);
                this.buffer.advance(count);
                this.passing -= count;
                return Poll::Ready(Ok(()));
            }
            if this.is_refused {
                return this.discard(context);
            }
            if let Poll::Ready(result) = this.look(context) {
                result?;
                if this.passing > 0 {
                    continue;
                }
            }
            if this.gate.lock().framing.is_held() {
                return Poll::Pending;
            }
            if this.is_at_end {
                return Poll::Ready(Ok(()));
            }
            ready!(this.read_more(context))?;
        }
    }
}
