//! A sandbox's only way out, as those see it who open sandboxes: the engine and the backends.
//!
//! It exists before the sandbox does. The backend hands over what the sandbox's side listens on, the engine says
//! where events go, and cuts it before anything else when a run ends. Whoever implements it decides with
//! [`egress`](crate::egress) about everything that comes out.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Grant;
use crate::audit::{AuditError, Event};
use crate::backend::Boxed;
use crate::outcome::{Denials, RunId};

/// Makes the way out of each sandbox.
pub trait Outlets: Send + Sync {
    /// Makes one for a run that was granted. Nothing goes out until [`Outlet::attach`] and [`Outlet::record`].
    ///
    /// # Errors
    ///
    /// [`OutletError`] if it can't be made; the sandbox must then not be opened.
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn Outlet>, OutletError>;
}

/// The only way out of one sandbox.
pub trait Outlet: Send + Sync {
    /// What inside has to trust: the certificate of this sandbox's own authority, as PEM.
    fn authority(&self) -> &str;

    /// Takes what the sandbox's side listens on. Works once.
    ///
    /// # Errors
    ///
    /// [`OutletError`] if it can't be watched; the sandbox must then not be used.
    fn attach(&self, doors: Doors) -> Result<(), OutletError>;

    /// Sends events to `sink` from now on, for this run; its answer is awaited before anything goes out. What was
    /// counted for an earlier run of the same sandbox is forgotten, and budgets begin anew.
    fn record(&self, run: &RunId, sink: Arc<dyn Sink>);

    /// Lets nothing through any more, closes what is open, and says what there was since [`Outlet::record`].
    fn cut(&self) -> Boxed<'_, Cut>;
}

/// What a sandbox's side listens on: descriptors of sockets in its own network.
#[derive(Debug, Default)]
pub struct Doors {
    /// Listening sockets of TCP, to which connections come that were meant for somewhere else.
    pub tcp: Vec<OwnedFd>,
    /// Sockets of UDP to which DNS is asked, at whatever address.
    pub dns: Vec<OwnedFd>,
    /// A listening socket of TCP where a proxy is asked for as such.
    pub proxy: Option<OwnedFd>,
    /// What counts what was refused.
    pub table: Option<OwnedFd>,
}

/// Where the events of a run go.
pub trait Sink: Send + Sync {
    /// Records an event; what it records may happen once this says that it is done.
    ///
    /// # Errors
    ///
    /// [`AuditError`] if it can't be written. What it records must then not happen.
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>>;
}

/// What went through an outlet, and what didn't, until it was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// What was refused.
    pub denials: Denials,
    /// Bytes that left.
    pub bytes_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Datagrams that were refused, where something counts them.
    pub udp_refused: u64,
    /// When the way out was lost, if it was: nothing has left since.
    pub lost: Option<SystemTime>,
}

/// There can be no way out, or none any more.
#[derive(Debug, thiserror::Error)]
#[error("could not {action}")]
pub struct OutletError {
    /// A verb phrase.
    pub action: &'static str,
    /// What the host said.
    pub source: std::io::Error,
}
