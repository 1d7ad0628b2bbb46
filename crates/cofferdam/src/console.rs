//! The streams of a run: passed through byte for byte, or captured head and tail.
//!
//! Nothing here may wait on the runtime's own thread, which holds the deadline: what could wait
//! (a full pipe, a terminal, standard input) is done on another.

mod input;
mod spool;
mod writer;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cofferdam_core::backend::{Boxed, Output};
use cofferdam_engine::run::Streams;
use cofferdam_sys::fd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, OnceCell};

use input::Input;
pub(crate) use spool::Spool;
use writer::Writer;

/// A run's streams.
pub(crate) struct Console {
    sink: Sink,
    input: Input,
    signals: Mutex<Signals>,
}

/// Where output goes.
enum Sink {
    /// To our own standard output and error.
    Passed([Passed; 2]),
    /// Into memory, bounded.
    Captured([std::sync::Mutex<Spool>; 2]),
}

/// One of our own output streams, and how much went there.
struct Passed {
    file: File,
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
    },
    /// It was captured.
    Captured(Spool),
}

impl Kept {
    /// What is kept of nothing: an empty capture where captures are what is reported.
    pub(crate) fn nothing(captured: bool) -> Self {
        match captured.then(Spool::new) {
            Some(Ok(spool)) => Kept::Captured(spool),
            _ => Kept::Passed { bytes: 0, within_line: false },
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
        let stdout = Passed::new(io::stdout().as_fd().try_clone_to_owned()?.into());
        let stderr = Passed::new(io::stderr().as_fd().try_clone_to_owned()?.into());
        Console::new(Sink::Passed([stdout, stderr]), stdin)
    }

    /// Streams that are captured.
    ///
    /// # Errors
    ///
    /// As [`Console::passing`].
    pub(crate) fn capturing(stdin: bool) -> io::Result<Self> {
        let spool = || Spool::new().map(std::sync::Mutex::new);
        Console::new(Sink::Captured([spool()?, spool()?]), stdin)
    }

    fn new(sink: Sink, stdin: bool) -> io::Result<Self> {
        let input = if stdin { Input::standard()? } else { Input::empty() };
        Ok(Console { sink, input, signals: Mutex::new(Signals::new()?) })
    }

    /// What became of standard output and standard error.
    pub(crate) fn into_kept(self) -> [Kept; 2] {
        match self.sink {
            Sink::Passed(streams) => streams.map(|stream| {
                let within_line = stream.within_line.load(Ordering::Relaxed);
                Kept::Passed { bytes: stream.bytes.load(Ordering::Relaxed), within_line }
            }),
            Sink::Captured(spools) => spools.map(|spool| {
                Kept::Captured(spool.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
            }),
        }
    }
}

impl Passed {
    fn new(file: File) -> Self {
        Passed { file, bytes: 0.into(), within_line: false.into(), writer: OnceCell::new() }
    }

    /// Writes bytes, on another thread if that could wait.
    async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.within_line.store(bytes.last() != Some(&b'\n'), Ordering::Relaxed);
        if fd::takes_at_once(self.file.as_fd(), bytes.len()) {
            return (&self.file).write_all(&bytes);
        }
        let writer = self.writer.get_or_try_init(async || Writer::start(self.file.try_clone()?)).await?;
        writer.write(bytes).await
    }
}

impl Streams for Console {
    fn accept(&self, output: Output) -> Boxed<'_, io::Result<()>> {
        let (which, bytes) = match output {
            Output::Stdout(bytes) => (0, bytes),
            Output::Stderr(bytes) => (1, bytes),
        };
        Box::pin(async move {
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
        Box::pin(self.input.next())
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        Box::pin(async move { self.signals.lock().await.next().await })
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
