//! The host's side: sandboxes' sockets are watched, the proxy is started by the first packet, what it says is
//! judged again and written down.
//!
//! - [`Outlets`] makes an [`Outlet`] for each sandbox; both are what `core::outlet` says of them.
//! - `host` is the thread on which all of it happens, whatever runtime the callers have.
//! - `doors` has the host's ends of a sandbox's sockets, `way` is where a sandbox is on its way.
//! - `process` starts the proxy; `ledger` judges what it says.
//!
//! A sandbox that sends nothing costs a few descriptors that are waited for. When the proxy is lost, the doors of
//! the sandboxes that it served are closed: what they dial is refused by the kernel. It isn't started again for
//! them.

mod doors;
mod host;
mod ledger;
mod process;
mod way;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_core::Grant;
use cofferdam_core::backend::Boxed;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{self, Cut, Doors, OutletError, Sink};
use cofferdam_core::policy::{Limits, NetworkRule};
use tokio::sync::{mpsc, oneshot};

use crate::authority::Authority;
pub use crate::control::{DeniedNames, Node};
use doors::DoorSet;
use host::Command;
use way::Way;

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
pub struct Outlets {
    settings: Arc<Settings>,
    host: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl Outlets {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(settings: Settings) -> Outlets {
        Outlets { settings: Arc::new(settings), host: Mutex::new(None) }
    }

    /// Makes an outlet for rules and ceilings that were granted.
    ///
    /// # Errors
    ///
    /// [`OutletError`] if there is no authority or no thread for it.
    pub fn open_for(
        &self,
        run: &RunId,
        rules: &[NetworkRule],
        limits: &Limits,
    ) -> Result<Arc<Outlet>, OutletError> {
        let made = Authority::new(&format!("Cofferdam {run}"));
        let authority = made.map_err(|error| OutletError {
            action: "make an authority for the sandbox",
            source: io::Error::other(error),
        })?;
        let certificate = authority.certificate().to_owned();
        let (rules, limits) = (rules.to_vec(), limits.clone());
        let (host, number) = (self.host()?, host::next_number());
        let doors: Arc<DoorSet> = Arc::default();
        let way = Way::new(rules, limits, authority, doors.clone());
        let outlet = Outlet { number, certificate, host, doors, was_recorded: AtomicBool::new(false) };
        outlet.tell(Command::Open { number, way: Box::new(way) });
        Ok(Arc::new(outlet))
    }

    /// The thread that serves all outlets, started once.
    fn host(&self) -> Result<mpsc::UnboundedSender<Command>, OutletError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        match &*host {
            Some(running) => Ok(running.clone()),
            None => {
                let started = host::start(self.settings.clone());
                let started = started
                    .map_err(|source| OutletError { action: "start the thread of outlets", source })?;
                Ok(host.insert(started).clone())
            }
        }
    }
}

impl outlet::Outlets for Outlets {
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn outlet::Outlet>, OutletError> {
        Ok(self.open_for(run, grant.network(), grant.limits())?)
    }
}

/// The way out of one sandbox. Dropped, it is cut.
#[derive(Debug)]
pub struct Outlet {
    number: u64,
    certificate: String,
    host: mpsc::UnboundedSender<Command>,
    doors: Arc<DoorSet>,
    was_recorded: AtomicBool,
}

impl Outlet {
    /// The thread lives as long as anybody can tell it something.
    fn tell(&self, command: Command) {
        let _ = self.host.send(command);
    }
}

impl outlet::Outlet for Outlet {
    fn authority(&self) -> &str {
        &self.certificate
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        let table = self.doors.attach(doors);
        self.tell(Command::Attach { number: self.number, table });
        Ok(())
    }

    fn record(&self, run: &RunId, sink: Arc<dyn Sink>) {
        // Here and now: what comes from now on is the new run's.
        if self.was_recorded.swap(true, Ordering::Relaxed) {
            self.doors.drain();
        }
        self.tell(Command::Record { number: self.number, run: run.clone(), sink });
    }

    fn cut(&self) -> Boxed<'_, Cut> {
        let (answer, answered) = oneshot::channel();
        self.tell(Command::Cut { number: self.number, answer });
        Box::pin(async move { answered.await.unwrap_or_default() })
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.tell(Command::Drop { number: self.number });
    }
}
