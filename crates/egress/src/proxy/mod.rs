//! The process that accepts, decides, dials and streams.
//!
//! Read the modules in the order in which a connection meets them:
//!
//! 1. [`doors`]: where connections are accepted, and where each was meant to go; [`dns`] for names.
//! 2. [`connection`]: the decision about host and port, and what its first bytes ([`opening`], [`client_hello`])
//!    say is spoken.
//! 3. [`http`]: requests, each with its own decision; [`tunnel`]: what nobody opens.
//! 4. [`upstream`] and [`dial`]: the lookup, the judgement of addresses, and the connection outwards, which
//!    [`brokered`] hands to the broker where its requests carry a credential of the run's.
//!
//! [`sandbox`] is what holds all of it together for one run. Everything runs on one thread: nothing here is a
//! thread's work but TLS, and a second thread would share every lock with it.

pub mod client_hello;
pub mod dns;
pub mod http;
pub mod opening;
pub mod socks;

mod brokered;
mod certificates;
mod connection;
mod dial;
mod doors;
mod node;
mod postgres;
mod report;
mod sandbox;
mod stream;
mod tunnel;
mod upstream;

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cofferdam_sys::{fd, jail, process, seccomp};
use tokio::sync::mpsc;

use crate::control::{DoorKind, Frame, Frames, FromProxy, Link, Node, Terms, ToProxy, VERSION, send_frame};
use brokered::Broker;
use node::Outside;
pub use node::{NodeError, roots};
use report::Host;
use sandbox::Sandbox;

/// Why the proxy ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("could not read what the host says: {0}")]
    Control(#[from] io::Error),
    #[error("the host says something that makes no sense")]
    Nonsense,
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Jail(#[from] jail::JailError),
    #[error(transparent)]
    Authority(#[from] crate::authority::AuthorityError),
}

/// How many free bytes the proxy's heap keeps: what a few connections at full speed take and give back all the time.
const KEPT_HEAP: i32 = 2 << 20;

/// How much rather it is killed than others: proc_pid_oom_score_adj(5), half of the scale.
const OOM_SCORE: &str = "500";

/// What the process is for: serves the sandboxes of the host at the other end of standard input until that is
/// closed. Returns the exit status.
///
/// To be called by a process with one thread, as the first thing that it does.
#[must_use]
pub fn main() -> u8 {
    let Ok(control) = fd::inherited(0).map(UnixStream::from) else { return 1 };
    match serve(&control) {
        Ok(()) => 0,
        Err(failure) => {
            let why = FromProxy::Failed(failure.to_string());
            let _ = send_frame(&control, &why.encode()); // the host may be gone, and sees that this is
            1
        }
    }
}

fn serve(control: &UnixStream) -> Result<(), Failure> {
    let node = first_message(control)?;
    let user = node.user;
    let outside = Arc::new(Outside::new(node)?);
    // Before it is confined: where somebody else in the program uses signals, the runtime makes sockets for them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    process::keep_heap(KEPT_HEAP);
    // Where the host runs out of memory, it is better that nothing leaves than that something else ends.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE); // a hint: nothing depends on it
    jail::enter(user, &seccomp::proxy())?;
    send_frame(control, &FromProxy::Ready(VERSION).encode())?;
    runtime.block_on(async { obey(Link::new(control.try_clone()?)?, outside).await })
}

/// What holds for all sandboxes, before anything else. The host says nothing more until it is answered.
fn first_message(mut control: &UnixStream) -> Result<Node, Failure> {
    let mut frames = Frames::default();
    let mut buffer = [0; 4096];
    loop {
        match frames.take().map_err(|_| Failure::Nonsense)? {
            Some(ToProxy::Node(node)) => return Ok(node),
            Some(_) => return Err(Failure::Nonsense),
            None => match control.read(&mut buffer)? {
                0 => return Err(Failure::Nonsense),
                count => frames.push(&buffer[..count]),
            },
        }
    }
}

/// Does what the host says until it says nothing more.
async fn obey(link: Link, outside: Arc<Outside>) -> Result<(), Failure> {
    let link = Arc::new(link);
    let (frames, mut to_send) = mpsc::unbounded_channel::<Vec<u8>>();
    let sending = link.clone();
    tokio::spawn(async move {
        while let Some(frame) = to_send.recv().await {
            if sending.send(&frame, None).await.is_err() {
                break; // the host is gone, as the other half sees
            }
        }
    });
    let mut obeying =
        Obeying { outside, host: Arc::new(Host::new(frames)), sandboxes: HashMap::new(), doors: vec![] };
    let mut incoming = link.incoming();
    while let Some(message) = incoming.next().await? {
        obeying.obey(message, || incoming.descriptor())?;
    }
    Ok(())
}

/// What the host said so far.
struct Obeying {
    outside: Arc<Outside>,
    host: Arc<Host>,
    sandboxes: HashMap<u32, Arc<Sandbox>>,
    /// For the next run.
    doors: Vec<(DoorKind, OwnedFd)>,
}

impl Obeying {
    fn obey(
        &mut self,
        message: ToProxy,
        descriptor: impl FnOnce() -> Option<Option<OwnedFd>>,
    ) -> Result<(), Failure> {
        match message {
            ToProxy::Node(_) => return Err(Failure::Nonsense),
            ToProxy::Door(kind) => {
                // What comes to one that was lost waits until the doors are closed, and goes nowhere.
                let door = descriptor().ok_or(Failure::Nonsense)?;
                self.doors.extend(door.map(|door| (kind, door)));
            }
            ToProxy::Open(terms) => self.open(&terms)?,
            ToProxy::Written { event, is_written } => self.host.written(event, is_written),
            ToProxy::Connection { session, dial } => {
                let stream = descriptor().ok_or(Failure::Nonsense)?;
                if let Some(sandbox) = self.sandboxes.get(&session) {
                    doors::asked_of_the_host(sandbox, dial, stream);
                }
            }
            ToProxy::Cut { session } => {
                if let Some(sandbox) = self.sandboxes.remove(&session) {
                    tokio::spawn(async move { sandbox.cut().await });
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, terms: &Terms) -> Result<(), Failure> {
        let mut doors = std::mem::take(&mut self.doors);
        let broker = doors.iter().position(|(kind, _)| *kind == DoorKind::Broker);
        let broker = broker.map(|at| Broker::new(doors.swap_remove(at).1)).transpose()?;
        let of_tcp = doors.iter().filter(|(kind, _)| *kind == DoorKind::Dns).count();
        let sandbox = Sandbox::new(terms, of_tcp > 1, self.outside.clone(), self.host.clone(), broker)?;
        for (kind, socket) in doors {
            doors::open(&sandbox, kind, socket);
        }
        self.sandboxes.insert(terms.session, sandbox);
        Ok(())
    }
}
