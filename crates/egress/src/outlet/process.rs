//! The proxy as a process: started, spoken to, and killed when nobody needs it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cofferdam_sys::process::{self, Spawn};
use tokio::sync::{mpsc, oneshot};

use super::ProxyProgram;
use crate::control::{FromProxy, Link};

/// A proxy that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    pidfd: OwnedFd,
    frames: mpsc::UnboundedSender<Outgoing>,
}

/// Something that is said, with what is to be told when it is.
struct Outgoing {
    frame: Vec<u8>,
    fd: Option<OwnedFd>,
    said: Option<oneshot::Sender<()>>,
}

/// It has this number on every Linux: signal(7).
const SIGKILL: i32 = 9;

/// How many messages may wait for the host.
const WAITING: usize = 256;

impl Proxy {
    /// Starts it, with nothing but its end of a socket. What it says comes through the channel, which ends with it.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn start(program: &ProxyProgram) -> io::Result<(Proxy, mpsc::Receiver<FromProxy>)> {
        let (ours, theirs) = UnixStream::pair()?;
        let pidfd = spawn(program, &theirs)?;
        drop(theirs);
        let link = Arc::new(Link::new(ours)?);
        let (frames, to_send) = mpsc::unbounded_channel();
        let (said, hears) = mpsc::channel(WAITING);
        tokio::spawn(write(link.clone(), to_send));
        tokio::spawn(read(link, said));
        Ok((Proxy { pidfd, frames }, hears))
    }

    /// Says something, maybe with a descriptor. What can't be said is seen by whoever listens.
    pub(super) fn say(&self, frame: Vec<u8>, fd: Option<OwnedFd>) {
        let _ = self.frames.send(Outgoing { frame, fd, said: None });
    }

    /// Says something with a descriptor, and tells when it is said.
    pub(super) fn say_and_tell(&self, frame: Vec<u8>, fd: OwnedFd, said: oneshot::Sender<()>) {
        let _ = self.frames.send(Outgoing { frame, fd: Some(fd), said: Some(said) }); // as in `say`
    }

    /// What says something later, from wherever.
    pub(super) fn sayer(&self) -> impl FnOnce(Vec<u8>) + Send + 'static {
        let frames = self.frames.clone();
        move |frame| {
            let _ = frames.send(Outgoing { frame, fd: None, said: None }); // as in `say`
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It is our child and wasn't waited for, so the number is its own.
        let _ = process::signal(self.pidfd.as_fd(), SIGKILL);
        let _ = process::reap(self.pidfd.as_fd());
    }
}

fn spawn(program: &ProxyProgram, control: &UnixStream) -> io::Result<OwnedFd> {
    let word = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let path = word(program.path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| word(arg.as_bytes()));
    let argv: Vec<CString> = std::iter::once(Ok(path.clone())).chain(args).collect::<io::Result<_>>()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let spawn = Spawn {
        path: &path,
        argv: &argv,
        envp: &environment(),
        cwd: c"/",
        streams: [control.as_fd(), null.as_fd(), null.as_fd()],
        terminal: None,
    };
    process::pidfd(spawn.start()?)
}

/// None. In builds for tests, the control that is off there too.
fn environment() -> Vec<CString> {
    #[cfg(feature = "weaken")]
    if let Ok(name) = std::env::var(cofferdam_core::weaken::OFF) {
        return CString::new(format!("{}={name}", cofferdam_core::weaken::OFF)).into_iter().collect();
    }
    vec![]
}

async fn write(link: Arc<Link>, mut frames: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(Outgoing { frame, fd, said }) = frames.recv().await {
        if link.send(&frame, fd.as_ref().map(AsFd::as_fd)).await.is_err() {
            break; // it is gone, as who reads from it sees
        }
        if let Some(said) = said {
            let _ = said.send(()); // who waited may be gone
        }
    }
}

async fn read(link: Arc<Link>, said: mpsc::Sender<FromProxy>) {
    let mut incoming = link.incoming();
    // Its end, an error and nonsense are one: it can't be spoken with.
    while let Ok(Some(message)) = incoming.next().await {
        if said.send(message).await.is_err() {
            break;
        }
    }
}
