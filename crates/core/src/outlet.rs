//! A sandbox's only way out, as the engine and the backends hold it.
//!
//! Whoever makes outlets decides with [`egress`](crate::egress) what goes through them; this is what passes
//! between that and the others:
//!
//! 1. The engine opens an [`Outlet`] for a grant ([`Outlets::open`]) and gives it to the backend, which has it
//!    get ready ([`Outlet::prepare`]), the sandbox trust its [`authority`](Outlet::authority) and hands over its [`Doors`].
//!    A sandbox without sockets has no doors: its backend hands in each connection that a program asks for
//!    ([`Outlet::connect`]).
//! 2. When a run gets the sandbox, [`Outlet::record`] says where its events go. Until then nothing goes through.
//! 3. The run's end begins with [`Outlet::cut`], before anything inside is killed.
//!
//! # Invariants
//!
//! 1. Nothing goes out that isn't in the audit log: what is let out waits for the answer of [`Sink::record`].
//! 2. An outlet lets nothing through before `record`, and after `cut`. One that is dropped is cut.
//! 3. An outlet serves one run. A sandbox that is renewed gets another.
//!
//! # Deliberately absent
//!
//! How anything is captured, dialled or decided; which process does it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use crate::audit::{AuditError, Event};
use crate::backend::Boxed;
use crate::grant::Grant;
use crate::outcome::{Denials, RunId, Traffic};

/// Makes the way out of each sandbox.
pub trait Outlets: Send + Sync {
    /// A way out for a sandbox of this grant, with its rules, and with budgets of which nothing is used. `run` is
    /// whose sandbox it will be, as far as that is known: [`Outlet::record`] has the last word.
    ///
    /// # Errors
    ///
    /// [`OutletError`] if there can't be one. No sandbox is opened without.
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn Outlet>, OutletError>;
}

/// A sandbox's only way out.
pub trait Outlet: Send + Sync {
    /// Says that its authority will be asked for and doors be handed over: what takes time can begin, beside whatever
    /// the caller does. Nothing depends on it.
    fn prepare(&self);

    /// The certificate of this sandbox's own authority, in PEM, which everything inside has to trust. Empty where
    /// there is none, and so nothing to trust.
    fn authority(&self) -> &str;

    /// Takes what the sandbox's side listens on. Once, and before a program starts.
    ///
    /// # Errors
    ///
    /// [`OutletError`] if they can't be used, or were handed over before. The doors are closed then.
    fn attach(&self, doors: Doors) -> Result<(), OutletError>;

    /// Takes a connection that was made for a program without sockets: what it sends comes out of `stream`, a
    /// stream socket that is connected to the sandbox's side. Where it leads is decided as for any other, so a
    /// refusal is read from it, or it is closed. Done when whoever decides has it.
    ///
    /// # Errors
    ///
    /// [`OutletError`] if nothing goes through, or not any more.
    fn connect(&self, dial: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>>;

    /// Sends the events of this outlet to `sink` from now on, for the run that has the sandbox. `broker` is the end of a
    /// socket over which connections are handed to whoever has the run's credentials
    /// ([`handover`](crate::handover)); none where no request carries one.
    fn record(&self, run: &RunId, sink: Arc<dyn Sink>, broker: Option<OwnedFd>);

    /// Lets nothing through any more and closes what is open. The second time it says the same as the first.
    fn cut(&self) -> Boxed<'_, Cut>;
}

/// What the sandbox's side listens on. Whoever closes them has everything that a program dials refused at once.
#[derive(Debug, Default)]
pub struct Doors {
    /// Accept what was meant for somewhere else.
    pub tcp: Vec<OwnedFd>,
    /// Where DNS is asked, a socket for each family.
    pub dns: Vec<OwnedFd>,
    /// Where a program dials a proxy as such.
    pub proxy: Option<OwnedFd>,
    /// What counts refused datagrams; none where nobody does.
    pub table: Option<OwnedFd>,
}

/// A connection that a program asks its sandbox's side for. Everything here is what the program says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// The host, which may be none.
    pub host: Vec<u8>,
    /// The port.
    pub port: u16,
    /// Whether TLS is to be spoken with the server, by us: the program sends and reads what is inside. The name is
    /// the one by which the program wants to know the server, which has to be the host's.
    pub tls: Option<Vec<u8>>,
}

/// Where the events of an outlet go.
pub trait Sink: Send + Sync {
    /// Records what is about to be let out, or was refused. `egress.allowed`, `egress.denied` and `dns.denied`
    /// alone are an outlet's to record.
    ///
    /// # Errors
    ///
    /// [`AuditError`] if it isn't in the log. What it records must then not happen.
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>>;
}

/// What went through an outlet until it was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What was refused.
    pub denials: Denials,
    /// What went through. None where whoever counted it was lost.
    pub traffic: Option<Traffic>,
    /// Datagrams that were refused.
    pub udp_refused: u64,
    /// When whoever let things through was lost, if that was before the cut. Nothing left afterwards, and what
    /// was counted may be less than what was.
    pub lost: Option<SystemTime>,
}

impl Default for Cut {
    /// Nothing went through.
    fn default() -> Self {
        let traffic = Some(Traffic::default());
        Cut { denials: Denials::default(), traffic, udp_refused: 0, lost: None }
    }
}

impl Cut {
    /// Of an outlet that gives no account of itself.
    #[must_use]
    pub fn unknown() -> Self {
        Cut { traffic: None, ..Cut::default() }
    }
}

/// There is no way out.
#[derive(Debug, thiserror::Error)]
#[error("could not {action}")]
pub struct OutletError {
    /// A verb phrase: "start the egress proxy".
    pub action: &'static str,
    /// What the host said.
    pub source: io::Error,
}

impl OutletError {
    /// Turns an operation that failed into an error: `map_err(OutletError::of("start the egress proxy"))`.
    pub fn of(action: &'static str) -> impl FnOnce(io::Error) -> OutletError {
        move |source| OutletError { action, source }
    }
}

/// Ways out that lead nowhere, for a build or a test in which nothing lets anything out. A grant with rules is
/// refused one.
#[derive(Clone, Copy, Debug)]
pub struct Closed;

impl Outlets for Closed {
    fn open(&self, _: &RunId, grant: &Grant) -> Result<Arc<dyn Outlet>, OutletError> {
        match grant.network() {
            [] => Ok(Arc::new(Closed)),
            _ => Err(OutletError::of("let anything out")(io::ErrorKind::Unsupported.into())),
        }
    }
}

impl Outlet for Closed {
    fn prepare(&self) {}

    fn authority(&self) -> &str {
        ""
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        drop(doors);
        Ok(())
    }

    fn connect(&self, _: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>> {
        drop(stream);
        Box::pin(async { Err(OutletError::of("let anything out")(io::ErrorKind::Unsupported.into())) })
    }

    fn record(&self, _: &RunId, _: Arc<dyn Sink>, _: Option<OwnedFd>) {}

    fn cut(&self) -> Boxed<'_, Cut> {
        Box::pin(async { Cut::default() })
    }
}
