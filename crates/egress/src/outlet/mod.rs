//! The host's side: sandboxes' sockets are watched, the proxy is started by the first packet, what it says is
//! judged again and written down.
//!
//! - [`Outlets`] makes an [`Outlet`] for each sandbox; both are what `core::outlet` says of them.
//! - `host` is the thread on which all of it happens, whatever runtime the callers have.
//! - `doors` has the host's ends of a sandbox's sockets, `way` is where a sandbox is on its way.
//! - `process` starts the proxy, `trial` to see whether one can be; `ledger` judges what it says.
//!
//! A sandbox that sends nothing costs a few descriptors that are waited for. When the proxy is lost, the doors of
//! the sandboxes that it served are closed: what they dial is refused by the kernel. It isn't started again for
//! them.

mod doors;
mod host;
mod ledger;
mod process;
mod trial;
mod way;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_core::Grant;
use cofferdam_core::backend::Boxed;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{self, Cut, Dial, Doors, OutletError, Sink};
use cofferdam_core::policy::{Limits, NetworkRule};
use tokio::sync::{mpsc, oneshot};

use crate::authority::Authority;
pub use crate::control::{DeniedNames, Node};
use doors::DoorSet;
use host::Command;
pub use trial::{NoProxy, trial};
use way::{Asked, Way};

/// The program that is the proxy: it calls [`proxy::main`](crate::proxy::main).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProgram {
    /// Its file.
    pub path: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
}

/// What holds for all outlets of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is started.
    pub program: ProxyProgram,
    /// What the operator configured, and who the proxy is where root starts it.
    pub node: Node,
    /// What a name that no rule has is answered with.
    pub denied_names: DeniedNames,
    /// The addresses of this machine; none means that the kernel is asked each time.
    pub own_addresses: Option<Vec<IpAddr>>,
}

/// Makes outlets. All share one proxy, which is started by the first packet of any of them.
#[derive(Debug)]
pub struct Outlets(Arc<Hosts>);

/// The thread that serves all outlets, once there is one that can send something.
#[derive(Debug)]
struct Hosts {
    settings: Arc<Settings>,
    running: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl Outlets {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(settings: Settings) -> Outlets {
        Outlets(Arc::new(Hosts { settings: Arc::new(settings), running: Mutex::new(None) }))
    }

    /// Makes an outlet for rules and ceilings that were granted. It costs nothing before somebody asks for its
    /// authority or gives it doors, which a sandbox without sockets never does.
    #[must_use]
    pub fn open_for(&self, run: &RunId, rules: &[NetworkRule], limits: &Limits) -> Arc<Outlet> {
        let unattached = Unattached { rules: rules.to_vec(), limits: limits.clone(), record: None };
        Arc::new(Outlet {
            number: host::next_number(),
            name: format!("Cofferdam {run}"),
            authority: Arc::default(),
            hosts: self.0.clone(),
            host: OnceLock::new(),
            doors: Arc::default(),
            was_recorded: AtomicBool::new(false),
            unattached: Mutex::new(Some(unattached)),
        })
    }
}

impl Hosts {
    /// The thread, started once.
    fn running(&self) -> Result<mpsc::UnboundedSender<Command>, OutletError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(running) => Ok(running.clone()),
            None => {
                let started = host::start(self.settings.clone());
                let started = started
                    .map_err(|source| OutletError { action: "start the thread of outlets", source })?;
                Ok(running.insert(started).clone())
            }
        }
    }
}

impl outlet::Outlets for Outlets {
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn outlet::Outlet>, OutletError> {
        Ok(self.open_for(run, grant.network(), grant.limits()))
    }
}

/// The way out of one sandbox. Dropped, it is cut.
#[derive(Debug)]
pub struct Outlet {
    number: u64,
    name: String,
    authority: Arc<Made>,
    hosts: Arc<Hosts>,
    host: OnceLock<mpsc::UnboundedSender<Command>>,
    doors: Arc<DoorSet>,
    was_recorded: AtomicBool,
    unattached: Mutex<Option<Unattached>>,
}

/// What an outlet is made of that has no doors yet. Nothing can happen, and nobody is told of it.
struct Unattached {
    rules: Vec<NetworkRule>,
    limits: Limits,
    record: Option<Recorded>,
}

/// A run that has the sandbox, where its events go, and the way to its broker.
type Recorded = (RunId, Arc<dyn Sink>, Option<OwnedFd>);

impl fmt::Debug for Unattached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unattached").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Outlet {
    /// The thread lives as long as anybody can tell it something.
    fn tell(&self, command: Command) {
        if let Some(host) = self.host.get() {
            let _ = host.send(command);
        }
    }

    /// Has the thread know of it, the first time.
    fn begin(&self) -> Result<(), OutletError> {
        let no_authority = || OutletError {
            action: "make an authority for the sandbox",
            source: io::Error::other("there is no randomness"),
        };
        let authority = self.authority.get(&self.name).ok_or_else(no_authority)?.clone();
        let host = self.hosts.running()?;
        let mut unattached = self.unattached();
        let Some(Unattached { rules, limits, record }) = unattached.take() else { return Ok(()) };
        let _ = self.host.set(host); // this is the only place
        let way = Box::new(Way::new(rules, limits, authority, self.doors.clone()));
        self.tell(Command::Open { number: self.number, way });
        if let Some((run, sink, broker)) = record {
            self.tell(Command::Record { number: self.number, run, sink, broker });
        }
        Ok(())
    }

    fn unattached(&self) -> MutexGuard<'_, Option<Unattached>> {
        self.unattached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An authority, made by whoever needs it first; none where it couldn't be.
#[derive(Debug, Default)]
struct Made(OnceLock<Option<Arc<Authority>>>);

impl Made {
    /// It, under this name. Waits for whoever is making it.
    fn get(&self, name: &str) -> Option<&Arc<Authority>> {
        self.0.get_or_init(|| Authority::new(name).ok().map(Arc::new)).as_ref()
    }
}

impl outlet::Outlet for Outlet {
    fn prepare(&self) {
        if let Ok(host) = self.hosts.running() {
            let _ =
                host.send(Command::Prepare { authority: self.authority.clone(), name: self.name.clone() });
        }
    }

    fn authority(&self) -> &str {
        self.authority.get(&self.name).map_or("", |authority| authority.certificate())
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        self.begin()?;
        let table = self.doors.attach(doors);
        self.tell(Command::Attach { number: self.number, table });
        Ok(())
    }

    fn connect(&self, dial: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>> {
        let (taken, is_taken) = oneshot::channel();
        let begun = self.begin();
        if begun.is_ok() {
            let asked = Asked { dial, stream, taken };
            self.tell(Command::Connect { number: self.number, asked });
        }
        Box::pin(async move {
            begun?;
            let over = |_| OutletError::of("let a connection out")(io::ErrorKind::ConnectionRefused.into());
            is_taken.await.map_err(over)
        })
    }

    fn record(&self, run: &RunId, sink: Arc<dyn Sink>, broker: Option<OwnedFd>) {
        // Here and now: what comes from now on is the new run's.
        if self.was_recorded.swap(true, Ordering::Relaxed) {
            self.doors.drain();
        }
        if let Some(unattached) = &mut *self.unattached() {
            unattached.record = Some((run.clone(), sink, broker));
            return;
        }
        self.tell(Command::Record { number: self.number, run: run.clone(), sink, broker });
    }

    fn cut(&self) -> Boxed<'_, Cut> {
        if let Some(unattached) = &mut *self.unattached() {
            unattached.record = None;
            return Box::pin(async { Cut::default() });
        }
        let (answer, answered) = oneshot::channel();
        self.tell(Command::Cut { number: self.number, answer });
        Box::pin(async move { answered.await.unwrap_or_else(|_| Cut::unknown()) })
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.tell(Command::Drop { number: self.number });
    }
}
