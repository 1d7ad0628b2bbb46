//! The broker as a process: started, spoken to, listened to.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_core::audit::Event;
use cofferdam_core::outlet::Sink;
use cofferdam_core::secret::Secret;
use cofferdam_sys::fdpass;
use cofferdam_sys::process::{self, Spawn};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use tokio::sync::oneshot;

use super::{BrokerProgram, begun};
use crate::control::{self, Answer, Lease, Numbered, ToBroker, What};

/// A broker that runs. Dropped, it ends by itself when it has revoked what lives.
#[derive(Debug)]
pub(super) struct Running {
    control: Arc<Mutex<UnixStream>>,
    /// Where it gets its ends of the ways to it.
    ways: UnixStream,
    waiting: Arc<Waiting>,
    tasks: Arc<Tasks>,
    numbers: AtomicU64,
}

/// What is heard of each task that lives.
#[derive(Default)]
struct Tasks(Mutex<HashMap<u64, Arc<Heard>>>);

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tasks")
    }
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Heard>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is heard of one task: where it is written down, and what was minted.
pub(super) struct Heard {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) leases: Mutex<Vec<Lease>>,
}

impl Heard {
    pub(super) fn new(sink: Arc<dyn Sink>) -> Self {
        Heard { sink, leases: Mutex::default() }
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, Vec<Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what happened; whether it is written.
    async fn record(&self, what: What) -> bool {
        let event = match what {
            What::Minted(lease) => {
                let begun = begun(&lease);
                self.leases().push(lease);
                Event::LeaseMinted(Box::new(begun))
            }
            What::Reflected { name, host } => Event::CredentialReflected { name, host },
        };
        self.sink.record(event).await.is_ok()
    }
}

/// Who waits for which answer; none when nothing comes any more.
#[derive(Default)]
struct Waiting(Mutex<Option<Waiters>>);

/// By the numbers of their messages.
type Waiters = HashMap<u64, oneshot::Sender<(Answer, Vec<Secret>)>>;

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Waiters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    pub(super) fn start(program: &BrokerProgram) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (ways, accepts) = UnixStream::pair()?;
        let pidfd = spawn(program, &theirs, &accepts)?;
        drop((theirs, accepts));
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let control = Arc::new(Mutex::new(ours.try_clone()?));
        let reading = Reading { control: control.clone(), waiting: waiting.clone(), tasks: Arc::default() };
        let tasks = reading.tasks.clone();
        // What is heard is written down at once: nothing in that waits for input.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        std::thread::Builder::new().name("broker".to_owned()).spawn(move || {
            runtime.block_on(reading.read(ours));
            let _ = process::reap(pidfd.as_fd()); // it has closed its end, so it is ending
        })?;
        Ok(Running { control, ways, waiting, tasks, numbers: AtomicU64::new(1) })
    }

    /// Has what happens in a task written down.
    pub(super) fn listen(&self, task: u64, heard: Arc<Heard>) {
        self.tasks.lock().insert(task, heard);
    }

    /// Hears nothing of a task any more.
    pub(super) fn forget(&self, task: u64) {
        self.tasks.lock().remove(&task);
    }

    /// The other end of a new way to the broker, for the proxy that serves a task.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn way(&self, task: u64) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let bytes = task.to_le_bytes();
        match fdpass::send(self.ways.as_fd(), &bytes, &[theirs.as_fd()])? {
            sent if sent == bytes.len() => Ok(ours),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.waiting.lock().is_none()
    }

    /// Says something whose answer nobody waits for.
    ///
    /// # Errors
    ///
    /// It is lost.
    pub(super) fn tell(&self, message: ToBroker) -> io::Result<()> {
        say(&self.control, self.numbers.fetch_add(1, Ordering::Relaxed), message)
    }

    /// Asks something, and waits for the answer.
    ///
    /// # Errors
    ///
    /// It is lost.
    pub(super) async fn ask(&self, message: ToBroker) -> io::Result<(Answer, Vec<Secret>)> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (waiter, answered) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.waiting.lock().as_mut().ok_or_else(gone)?.insert(number, waiter);
        say(&self.control, number, message)?;
        answered.await.map_err(|_| gone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(std::net::Shutdown::Both); // the thread holds another descriptor of it
    }
}

fn say(control: &Mutex<UnixStream>, number: u64, message: ToBroker) -> io::Result<()> {
    let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
    control::write(&mut *control, &Numbered { number, message }, &[])
}

/// What the thread has that reads what the broker says.
struct Reading {
    control: Arc<Mutex<UnixStream>>,
    waiting: Arc<Waiting>,
    tasks: Arc<Tasks>,
}

impl Reading {
    /// Reads until it says nothing any more: its end, an error and nonsense are one, it can't be spoken with.
    async fn read(self, mut from: UnixStream) {
        while let Ok(Some((Numbered { number, message }, secrets))) = control::read::<Answer>(&mut from) {
            if let Answer::Happened { task, event, what } = message {
                let heard = self.tasks.lock().get(&task).cloned();
                let is_written = match heard {
                    Some(heard) => heard.record(what).await,
                    None => false,
                };
                let _ = say(&self.control, 0, ToBroker::Written { event, is_written }); // it may be gone
                continue;
            }
            let waiter = self.waiting.lock().as_mut().and_then(|waiters| waiters.remove(&number));
            if let Some(waiter) = waiter {
                let _ = waiter.send((message, secrets)); // who asked may be gone
            }
        }
        self.waiting.lock().take();
    }
}

/// Starts it. Its standard input is what is said, its standard output where the ways come.
fn spawn(program: &BrokerProgram, control: &UnixStream, ways: &UnixStream) -> io::Result<OwnedFd> {
    let word = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let path = word(program.path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| word(arg.as_bytes()));
    let argv: Vec<CString> = std::iter::once(Ok(path.clone())).chain(args).collect::<io::Result<_>>()?;
    // All of it: roots may be in variables, and helpers need theirs.
    let variables = std::env::vars_os().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let envp: Vec<CString> = variables.filter_map(|variable| CString::new(variable).ok()).collect();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let spawn = Spawn {
        path: &path,
        argv: &argv,
        envp: &envp,
        cwd: c"/",
        streams: [control.as_fd(), ways.as_fd(), null.as_fd()],
        terminal: None,
    };
    process::pidfd(spawn.start()?)
}
