//! The streams of one job: its input is there from the start, its output is captured.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cofferdam_core::backend::{Boxed, Output};
use cofferdam_core::request::WindowSize;
use cofferdam_engine::run::Streams;
use tokio::sync::watch;

use crate::console::{Kept, Spool};

/// How much input is handed over at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// The signals that the whole batch was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// How many. The first is passed on, the second kills.
    pub(super) count: usize,
    /// The last one.
    pub(super) signal: i32,
}

/// A job's streams.
pub(super) struct JobStreams {
    captured: [Mutex<Spool>; 2],
    input: Vec<u8>,
    given: AtomicUsize,
    told: watch::Receiver<Told>,
    heard: AtomicUsize,
}

impl JobStreams {
    /// Streams with this input.
    pub(super) fn new(input: Vec<u8>, told: watch::Receiver<Told>) -> Self {
        JobStreams { captured: Default::default(), input, given: 0.into(), told, heard: 0.into() }
    }

    /// What the program wrote.
    pub(super) fn into_kept(self) -> [Kept; 2] {
        self.captured.map(|spool| Kept::Captured(spool.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Streams for JobStreams {
    fn accept(&self, output: Output) -> Boxed<'_, io::Result<()>> {
        let (which, bytes) = match output {
            Output::Stdout(bytes) => (0, bytes),
            Output::Stderr(bytes) => (1, bytes),
        };
        Box::pin(async move {
            match self.captured[which].lock() {
                Ok(mut spool) => spool.push(&bytes),
                Err(_) => Err(io::Error::other("a capture was left half-written")),
            }
        })
    }

    fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        Box::pin(async {
            let from = self.given.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            let rest = self.input.get(from..).unwrap_or_default();
            let piece = &rest[..rest.len().min(PIECE_BYTES)];
            (!piece.is_empty()).then(|| piece.to_vec())
        })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        let mut told = self.told.clone();
        Box::pin(async move {
            loop {
                let now = *told.borrow_and_update();
                let heard = self.heard.load(Ordering::Relaxed);
                if now.count > heard {
                    self.heard.store(heard + 1, Ordering::Relaxed);
                    return now.signal;
                }
                if told.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(std::future::pending())
    }

    fn dropped(&self) -> [u64; 2] {
        self.captured.each_ref().map(|spool| spool.lock().map_or(0, |spool| spool.dropped()))
    }
}
