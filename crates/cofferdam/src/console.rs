//! The streams of a run: passed through byte for byte, or captured head and tail.
//!
//! Nothing here may wait on the runtime's own thread, which holds the deadline: what could wait
//! (a full pipe, a terminal, standard input) is done on another.

mod input;
mod spool;
mod terminal;
mod writer;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use cofferdam_core::backend::{Boxed, Output};
use cofferdam_core::request::WindowSize;
use cofferdam_engine::run::Streams;
use cofferdam_sys::fd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, OnceCell};

use input::Input;
pub(crate) use spool::Spool;
pub(crate) use terminal::window_size;
use terminal::{Presses, RawMode};
use writer::Writer;

/// A run's streams.
pub(crate) struct Console {
    sink: Sink,
    input: Input,
    signals: Mutex<Signals>,
    terminal: Option<OwnTerminal>,
}

/// Our own terminal, where the program has one inside.
struct OwnTerminal {
    _raw: Option<RawMode>,
    presses: std::sync::Mutex<Presses>,
    /// Told when presses of control-C end the run: once for the program, once for us.
    leave: tokio::sync::Semaphore,
    resized: Mutex<Signal>,
}

impl OwnTerminal {
    fn new() -> io::Result<Self> {
        Ok(OwnTerminal {
            _raw: RawMode::set()?,
            presses: std::sync::Mutex::default(),
            leave: tokio::sync::Semaphore::new(0),
            resized: Mutex::new(signal(SignalKind::window_change())?),
        })
    }

    fn typed(&self, keys: &[u8]) {
        let ends = self.presses.lock().is_ok_and(|mut presses| presses.typed(keys, Instant::now()));
        if ends {
            self.leave.add_permits(2);
        }
    }

    fn written(&self, bytes: &[u8]) {
        if let Ok(mut presses) = self.presses.lock() {
            presses.written(bytes);
        }
    }

    /// Waits until somebody wants to leave.
    async fn left(&self) {
        match self.leave.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => std::future::pending().await, // it is never closed
        }
    }
}

/// Where output goes.
enum Sink {
    /// To our own standard output and error.
    Passed([Passed; 2]),
    /// Into memory, bounded.
    Captured([std::sync::Mutex<Spool>; 2]),
}

/// How much of the end of standard error is kept where it is passed through, in bytes: enough for a
/// traceback's last lines.
const TAIL_BYTES: usize = 4096;

/// One of our own output streams, and how much went there.
struct Passed {
    file: File,
    /// The last bytes, of a stream that somebody asks for them.
    tail: Option<std::sync::Mutex<Vec<u8>>>,
    bytes: AtomicU64,
    within_line: AtomicBool,
    /// Started with the first write that may wait.
    writer: OnceCell<Writer>,
}

/// What became of one stream, for the report.
pub(crate) enum Kept {
    /// It was passed through.
    Passed {
        /// So many bytes.
        bytes: u64,
        /// Whether the last of them left a terminal's cursor within a line.
        within_line: bool,
        /// The last of them, of standard error: at most 4 KiB.
        tail: Vec<u8>,
    },
    /// It was captured.
    Captured(Spool),
}

impl Kept {
    /// What is kept of nothing: an empty capture where captures are what is reported.
    pub(crate) fn nothing(captured: bool) -> Self {
        if captured {
            Kept::Captured(Spool::default())
        } else {
            Kept::Passed { bytes: 0, within_line: false, tail: vec![] }
        }
    }

    /// The last bytes, at most 4 KiB: nothing of a stream that was passed through and isn't standard
    /// error.
    pub(crate) fn tail(&self) -> Vec<u8> {
        match self {
            Kept::Passed { tail, .. } => tail.clone(),
            // What can't be read back is missing in the report too, which says so.
            Kept::Captured(spool) => spool.tail(TAIL_BYTES as u64).unwrap_or_default(),
        }
    }
}

impl Console {
    /// Streams that are passed through; standard input too if `stdin`.
    ///
    /// # Errors
    ///
    /// What the kernel said about duplicating a descriptor or watching for signals.
    pub(crate) fn passing(stdin: bool) -> io::Result<Self> {
        let stdout = Passed::new(io::stdout().as_fd().try_clone_to_owned()?.into(), None);
        let tail = Some(std::sync::Mutex::default());
        let stderr = Passed::new(io::stderr().as_fd().try_clone_to_owned()?.into(), tail);
        Console::new(Sink::Passed([stdout, stderr]), stdin)
    }

    /// Streams that are captured.
    ///
    /// # Errors
    ///
    /// As [`Console::passing`].
    pub(crate) fn capturing(stdin: bool) -> io::Result<Self> {
        Console::new(Sink::Captured(Default::default()), stdin)
    }

    fn new(sink: Sink, stdin: bool) -> io::Result<Self> {
        let input = if stdin { Input::standard()? } else { Input::empty() };
        Ok(Console { sink, input, signals: Mutex::new(Signals::new()?), terminal: None })
    }

    /// The same for a program on a terminal: ours, if it is one, passes on every key and its size.
    ///
    /// # Errors
    ///
    /// What the kernel said about our terminal.
    pub(crate) fn for_a_terminal(mut self) -> io::Result<Self> {
        self.terminal = Some(OwnTerminal::new()?);
        Ok(self)
    }

    /// What became of standard output and standard error.
    pub(crate) fn into_kept(self) -> [Kept; 2] {
        match self.sink {
            Sink::Passed(streams) => streams.map(|stream| {
                let within_line = stream.within_line.load(Ordering::Relaxed);
                let tail = stream.tail.and_then(|tail| tail.into_inner().ok()).unwrap_or_default();
                Kept::Passed { bytes: stream.bytes.load(Ordering::Relaxed), within_line, tail }
            }),
            Sink::Captured(spools) => spools.map(|spool| {
                Kept::Captured(spool.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
            }),
        }
    }
}

impl Passed {
    fn new(file: File, tail: Option<std::sync::Mutex<Vec<u8>>>) -> Self {
        Passed { file, tail, bytes: 0.into(), within_line: false.into(), writer: OnceCell::new() }
    }

    /// Writes bytes, on another thread if that could wait.
    async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.within_line.store(bytes.last() != Some(&b'\n'), Ordering::Relaxed);
        if let Some(Ok(mut tail)) = self.tail.as_ref().map(std::sync::Mutex::lock) {
            keep_last(&mut tail, &bytes);
        }
        if fd::takes_at_once(self.file.as_fd(), bytes.len()) {
            return (&self.file).write_all(&bytes);
        }
        let writer = self.writer.get_or_try_init(async || Writer::start(self.file.try_clone()?)).await?;
        writer.write(bytes).await
    }
}

/// Adds bytes, and keeps the last of all.
fn keep_last(tail: &mut Vec<u8>, bytes: &[u8]) {
    let new = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
    let beyond = (tail.len() + new.len()).saturating_sub(TAIL_BYTES);
    tail.drain(..beyond);
    tail.extend_from_slice(new);
}

impl Streams for Console {
    fn accept(&self, output: Output) -> Boxed<'_, io::Result<()>> {
        let (which, bytes) = match output {
            Output::Stdout(bytes) => (0, bytes),
            Output::Stderr(bytes) => (1, bytes),
        };
        Box::pin(async move {
            if let Some(terminal) = &self.terminal {
                terminal.written(&bytes);
            }
            match &self.sink {
                Sink::Passed(streams) => streams[which].write(bytes).await,
                Sink::Captured(spools) => match spools[which].lock() {
                    Ok(mut spool) => spool.push(&bytes),
                    Err(_) => Err(io::Error::other("a capture was left half-written")),
                },
            }
        })
    }

    fn has_input(&self) -> bool {
        self.input.is_there()
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let keys = self.input.next().await;
            if let (Some(terminal), Some(keys)) = (&self.terminal, &keys) {
                terminal.typed(keys);
            }
            keys
        })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        Box::pin(async move {
            let mut signals = self.signals.lock().await;
            match &self.terminal {
                None => signals.next().await,
                Some(terminal) => tokio::select! {
                    signal = signals.next() => signal,
                    () = terminal.left() => SignalKind::interrupt().as_raw_value(),
                },
            }
        })
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(async move {
            let Some(terminal) = &self.terminal else { return std::future::pending().await };
            terminal.resized.lock().await.recv().await;
            window_size()
        })
    }

    fn dropped(&self) -> [u64; 2] {
        match &self.sink {
            Sink::Passed(_) => [0, 0],
            Sink::Captured(spools) => {
                spools.each_ref().map(|spool| spool.lock().map_or(0, |spool| spool.dropped()))
            }
        }
    }
}

/// The signals by which somebody asks a program in the foreground to end. One that whoever started us
/// had ignored (nohup) stays ignored, and is none here.
pub(crate) struct Signals {
    hangup: Option<Signal>,
    interrupt: Option<Signal>,
    quit: Option<Signal>,
    terminate: Option<Signal>,
}

impl Signals {
    /// Watches for them.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new() -> io::Result<Self> {
        let watch = |kind: SignalKind| {
            let ignored = cofferdam_sys::process::is_ignored(kind.as_raw_value());
            (!ignored).then(|| signal(kind)).transpose()
        };
        Ok(Signals {
            hangup: watch(SignalKind::hangup())?,
            interrupt: watch(SignalKind::interrupt())?,
            quit: watch(SignalKind::quit())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    /// The next one; for ever if none comes. Safe to drop while waiting.
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            () = arrives(&mut self.hangup) => SignalKind::hangup(),
            () = arrives(&mut self.interrupt) => SignalKind::interrupt(),
            () = arrives(&mut self.quit) => SignalKind::quit(),
            () = arrives(&mut self.terminate) => SignalKind::terminate(),
        };
        kind.as_raw_value()
    }
}

/// Waits for a signal; for ever for one that is ignored.
async fn arrives(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_bytes_however_they_come() {
        let all: Vec<u8> = (0..3 * TAIL_BYTES).map(|at| (at % 251) as u8).collect();
        for piece in [1, 7, 1000, TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1, all.len()] {
            let mut tail = vec![];
            all.chunks(piece).for_each(|bytes| keep_last(&mut tail, bytes));
            assert!(tail == all[all.len() - TAIL_BYTES..], "in pieces of {piece}");
        }
        let mut short = vec![];
        keep_last(&mut short, b"ab");
        keep_last(&mut short, b"c");
        assert_eq!(short, b"abc");
    }
}
