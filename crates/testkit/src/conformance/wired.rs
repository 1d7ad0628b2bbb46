//! What a run of the suite is connected to: input that is scripted, output that is kept in the order in
//! which it came, and signals on cue.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_core::backend::{Boxed, Output};
use cofferdam_core::request::WindowSize;
use cofferdam_engine::run::Streams;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Standard input.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// There is none.
    None,
    /// These bytes, and then its end.
    Bytes(Vec<u8>),
    /// These bytes, and then neither more nor an end.
    Unending(Vec<u8>),
}

/// Who reads the output.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    /// Takes everything.
    All,
    /// Takes everything, and says that something came.
    Tells(Arc<AtomicBool>),
    /// Takes everything, this late each time.
    Slow(Duration),
    /// Says this to the first piece.
    Refuses(io::ErrorKind),
}

/// When a signal or another size of the terminal comes.
#[derive(Clone, Debug)]
pub(super) enum Cue {
    /// This long after the start of the run.
    After(Duration),
    /// When standard output has held this.
    Said(&'static str),
}

/// The streams of one run.
pub(super) struct Wired {
    has_input: bool,
    ends: bool,
    input: Mutex<VecDeque<Vec<u8>>>,
    reader: Reader,
    cues: Mutex<VecDeque<(Cue, i32)>>,
    sizes: Mutex<VecDeque<(Cue, WindowSize)>>,
    pieces: Mutex<Vec<Output>>,
    heard: Notify,
    began: Instant,
}

/// How much of the input is passed on at once.
const PIECE: usize = 64 << 10;

impl Wired {
    pub(super) fn new(
        input: &Input,
        reader: Reader,
        cues: &[(Cue, i32)],
        sizes: &[(Cue, WindowSize)],
    ) -> Self {
        let (has_input, ends, bytes) = match input {
            Input::None => (false, true, &[][..]),
            Input::Bytes(bytes) => (true, true, bytes.as_slice()),
            Input::Unending(bytes) => (true, false, bytes.as_slice()),
        };
        Wired {
            has_input,
            ends,
            input: Mutex::new(bytes.chunks(PIECE).map(<[u8]>::to_vec).collect()),
            reader,
            cues: Mutex::new(cues.iter().cloned().collect()),
            sizes: Mutex::new(sizes.iter().cloned().collect()),
            pieces: Mutex::default(),
            heard: Notify::new(),
            began: Instant::now(),
        }
    }

    /// Everything that came, in order.
    pub(super) fn pieces(self) -> Vec<Output> {
        self.pieces.into_inner().unwrap()
    }

    /// Waits until it is time for the first of what comes on cue, and gives it. Never where there is no more.
    async fn next<T: Clone>(&self, cues: &Mutex<VecDeque<(Cue, T)>>) -> T {
        let next = cues.lock().unwrap().front().cloned();
        let Some((cue, what)) = next else { return std::future::pending().await };
        match cue {
            Cue::After(time) => tokio::time::sleep_until(self.began + time).await,
            Cue::Said(text) => loop {
                let heard = self.heard.notified();
                if self.has_said(text) {
                    break;
                }
                heard.await;
            },
        }
        cues.lock().unwrap().pop_front();
        what
    }

    /// Whether standard output has held a text.
    fn has_said(&self, text: &str) -> bool {
        let pieces = self.pieces.lock().unwrap();
        contains(&of(&pieces, false), text.as_bytes())
    }
}

/// Whether bytes hold others.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// One stream of what came.
pub(super) fn of(pieces: &[Output], stderr: bool) -> Vec<u8> {
    let mut all = vec![];
    for piece in pieces {
        match piece {
            Output::Stderr(bytes) if stderr => all.extend_from_slice(bytes),
            Output::Stdout(bytes) if !stderr => all.extend_from_slice(bytes),
            _ => {}
        }
    }
    all
}

impl Streams for Wired {
    fn accept(&self, output: Output) -> Boxed<'_, io::Result<()>> {
        Box::pin(async move {
            match &self.reader {
                Reader::All => {}
                Reader::Tells(told) => told.store(true, Ordering::Relaxed),
                Reader::Slow(late) => tokio::time::sleep(*late).await,
                Reader::Refuses(kind) => return Err((*kind).into()),
            }
            self.pieces.lock().unwrap().push(output);
            self.heard.notify_waiters();
            Ok(())
        })
    }

    fn has_input(&self) -> bool {
        self.has_input
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        let next = self.input.lock().unwrap().pop_front();
        let ends = self.ends;
        Box::pin(async move {
            if next.is_none() && !ends {
                std::future::pending::<()>().await;
            }
            next
        })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        Box::pin(self.next(&self.cues))
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(self.next(&self.sizes))
    }

    fn dropped(&self) -> [u64; 2] {
        [0, 0]
    }
}
