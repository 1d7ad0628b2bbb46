//! A program that runs in a container: its streams, and how it ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_core::backend::{BackendError, Boxed, Ending, Output, Running};
use cofferdam_core::request::WindowSize;
use cofferdam_guest::wire::FromGuest;
use cofferdam_sys::cgroup::Group;
use cofferdam_sys::fd;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

use super::terminal::Terminal;
use crate::agent::Agent;

/// A program that runs in a container.
#[derive(Debug)]
pub(super) struct ContainerRunning {
    pub(super) inside: Arc<Inside>,
    /// Which of those that the agent has started.
    pub(super) number: usize,
    pub(super) streams: Streams,
    pub(super) ending: Mutex<Option<Ending>>,
}

/// What connects a program with us.
#[derive(Debug)]
pub(crate) enum Streams {
    Pipes(Box<Pipes>),
    Terminal(Terminal),
}

impl Streams {
    /// The next piece of output; none when all of it has come. Safe to drop while waiting.
    pub(crate) async fn output(&self) -> Result<Option<Output>, BackendError> {
        let output = match self {
            Streams::Pipes(pipes) => pipes.output().await,
            Streams::Terminal(terminal) => terminal.read().await.map(|bytes| bytes.map(Output::Stdout)),
        };
        output.map_err(BackendError::host("read the program's output"))
    }

    /// Writes to standard input.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<(), BackendError> {
        let written = match self {
            Streams::Pipes(pipes) => pipes.write(bytes).await,
            Streams::Terminal(terminal) => terminal.write(bytes).await,
        };
        written.map_err(BackendError::host("write to the program's standard input"))
    }

    /// Ends standard input.
    pub(crate) async fn close_stdin(&self) {
        match self {
            Streams::Pipes(pipes) => *pipes.stdin.lock().await = None,
            Streams::Terminal(terminal) => terminal.end_input().await,
        }
    }

    fn resize(&self, size: WindowSize) -> Result<(), BackendError> {
        match self {
            Streams::Pipes(_) => Ok(()),
            Streams::Terminal(terminal) => {
                terminal.resize(size).map_err(BackendError::host("resize the program's terminal"))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pipes {
    stdin: Mutex<Option<pipe::Sender>>,
    stdout: Stream,
    stderr: Stream,
}

impl Pipes {
    /// Makes the pipes of a program, whose standard input is empty unless it will be written. Gives
    /// the program's ends too.
    pub(crate) fn make(stdin: bool) -> io::Result<(Self, [OwnedFd; 3])> {
        let (stdout, stdout_inside) = fd::pipe()?;
        let (stderr, stderr_inside) = fd::pipe()?;
        // An input that nobody writes is a pipe too, whose end is closed: the host's null device would come
        // with the host's own mount, on which its times can be changed.
        let (stdin_inside, outside) = fd::pipe()?;
        let stdin = stdin.then_some(outside);
        let pipes = Pipes {
            stdin: Mutex::new(stdin.map(pipe::Sender::from_owned_fd).transpose()?),
            stdout: Stream::new(stdout)?,
            stderr: Stream::new(stderr)?,
        };
        Ok((pipes, [stdin_inside, stdout_inside, stderr_inside]))
    }

    async fn output(&self) -> io::Result<Option<Output>> {
        // When one stream has ended, the other decides.
        tokio::select! {
            Some(bytes) = async { self.stdout.read().await.transpose() } => {
                bytes.map(|bytes| Some(Output::Stdout(bytes)))
            }
            Some(bytes) = async { self.stderr.read().await.transpose() } => {
                bytes.map(|bytes| Some(Output::Stderr(bytes)))
            }
            else => Ok(None),
        }
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdin = self.stdin.lock().await;
        let Some(pipe) = stdin.as_mut() else { return Ok(()) };
        match pipe.write_all(bytes).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                *stdin = None;
                Ok(())
            }
            result => result,
        }
    }
}

impl Running for ContainerRunning {
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>> {
        Box::pin(self.streams.output())
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(self.streams.write(bytes))
    }

    fn close_stdin(&self) -> Boxed<'_, ()> {
        Box::pin(self.streams.close_stdin())
    }

    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(self.inside.agent.signal(signal))
    }

    fn resize(&self, size: WindowSize) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async move { self.streams.resize(size) })
    }

    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>> {
        Box::pin(async move {
            let mut ending = self.ending.lock().await;
            if let Some(ending) = *ending {
                return Ok(ending);
            }
            let found = self.inside.until_the_end(self.number).await?;
            *ending = Some(found);
            Ok(found)
        })
    }
}

impl Inside {
    /// Waits for the first thing that ends a program.
    async fn until_the_end(&self, number: usize) -> Result<Ending, BackendError> {
        let ending = self.first_end(number).await;
        if matches!(ending, Ok(Ending::Lost) | Err(_)) {
            self.lose();
        }
        ending
    }

    async fn first_end(&self, number: usize) -> Result<Ending, BackendError> {
        let ending = tokio::select! {
            biased;
            () = self.out_of_memory() => return Ok(Ending::OutOfMemory),
            said = self.agent.end_of(number) => match said? {
                Some(FromGuest::Exited(code)) => Ending::Exited(code),
                Some(FromGuest::Signalled(signal)) => Ending::Signalled(signal),
                Some(other) => return Err(BackendError::Wire(format!("{other:?}"))),
                None => Ending::Lost,
            },
            _ = self.ended.readable() => Ending::Lost,
        };
        // What the kernel counted wins over what the agent saw.
        Ok(if self.group.oom_kills() > 0 { Ending::OutOfMemory } else { ending })
    }

    /// Notes that whoever is inside isn't there any more, or isn't to be believed.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Waits until the kernel has killed something inside for lack of memory; for ever where it sees
    /// to the whole group itself.
    ///
    /// The event says that memory ran out in this group or in one above it, and comes before the
    /// kill, which may be of somebody else's process: only the group's own count is the fact.
    pub(crate) async fn out_of_memory(&self) {
        let Some(event) = &self.oom else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = event.readable().await else { return std::future::pending().await };
            ready.clear_ready();
            fd::drain_counter(event.get_ref().as_fd());
            for _ in 0..KILL_LOOKS {
                if self.group.oom_kills() > 0 {
                    return;
                }
                tokio::time::sleep(KILL_LOOK_PAUSE).await;
            }
        }
    }
}

/// One of a program's output streams.
#[derive(Debug)]
struct Stream(Mutex<Option<pipe::Receiver>>);

impl Stream {
    fn new(end: OwnedFd) -> io::Result<Self> {
        Ok(Stream(Mutex::new(Some(pipe::Receiver::from_owned_fd(end)?))))
    }

    /// The next bytes; none at its end, again and again.
    async fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut end = self.0.lock().await;
        let Some(receiver) = end.as_ref() else { return Ok(None) };
        loop {
            receiver.readable().await?;
            let mut bytes = Vec::with_capacity(PIPE_BYTES as usize / 4);
            match receiver.try_read_buf(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    // Only for who says much: most say a line.
                    if count >= MUCH_BYTES {
                        fd::widen_pipe(receiver.as_fd(), PIPE_BYTES);
                    }
                    return Ok(Some(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        *end = None;
        Ok(None)
    }
}

/// What a running program shares with its session.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) agent: Agent,
    pub(crate) group: Group,
    /// Readable when process 1 has ended.
    pub(crate) ended: AsyncFd<OwnedFd>,
    /// Readable when memory ran out, where the kernel doesn't kill the whole group itself.
    pub(super) oom: Option<AsyncFd<OwnedFd>>,
    /// Whether its agent is gone, or is not to be believed any more.
    pub(super) lost: AtomicBool,
}

/// Watches a descriptor that only ever becomes readable.
pub(super) fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, BackendError> {
    #[expect(deprecated, reason = "unsound only where the descriptor can change; an OwnedFd's can't")]
    let watched = AsyncFd::with_interest(fd, Interest::READABLE);
    watched.map_err(BackendError::host("watch a descriptor"))
}

/// The size of a pipe's buffer that is asked for, in bytes: fewer wake-ups for long output.
const PIPE_BYTES: i32 = 256 << 10;

/// How much at once is long output, in bytes: half of what a pipe holds by itself.
const MUCH_BYTES: usize = 32 << 10;

/// How often, and how long apart, the kernel's count is looked at after memory ran out: the kill
/// follows within milliseconds, if it is of something inside.
const KILL_LOOKS: u32 = 100;
const KILL_LOOK_PAUSE: Duration = Duration::from_millis(2);
