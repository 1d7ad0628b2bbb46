//! Takes a request through policy, choice of a backend, run and record.
//!
//! - [`run`]: one run, from the request to the Outcome; the order of things is written there.
//! - [`pool`]: sandboxes that are made ahead of need.
//! - [`select`]: the backend for a grant, or a refusal that names every gap.
//! - [`state`]: what must survive us: locks of runs, and the sweep after a kill.
//! - [`record`]: the audit log.
//!
//! # What this crate must not know
//!
//! Which backend it holds, terminals, HTTP, which issuers exist, whether there are other nodes.

pub mod pool;
pub mod record;
pub mod run;
pub mod select;
pub mod state;

use std::path::Path;
use std::sync::Arc;

use cofferdam_core::audit::{AuditError, AuditSink};
use cofferdam_core::lease::{Leases, NoLeases};
use cofferdam_core::outlet::{Closed, Outlets};
use cofferdam_core::policy::{Policy, PolicyHash};
use sha2::{Digest, Sha256};

use select::Candidate;
use state::{State, StateError};

/// Everything that runs need.
pub struct Engine {
    candidates: Vec<Candidate>,
    state: State,
    audit: Arc<dyn AuditSink>,
    outlets: Arc<dyn Outlets>,
    leases: Arc<dyn Leases>,
}

/// The engine can't work here.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The audit log can't be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The state folder can't be used.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Engine {
    /// Opens the state folder and the audit log in it. Nothing leaves its sandboxes unless it is given
    /// [ways out](Engine::with_outlets).
    ///
    /// # Errors
    ///
    /// [`EngineError`] if either can't be used: then nothing may start.
    pub fn open(candidates: Vec<Candidate>, state: &Path) -> Result<Engine, EngineError> {
        let state = State::open(state)?;
        let audit = Arc::new(record::AuditLog::open(state.folder())?);
        Ok(Engine { candidates, state, audit, outlets: Arc::new(Closed), leases: Arc::new(NoLeases) })
    }

    /// The same with ways out for its sandboxes.
    #[must_use]
    pub fn with_outlets(self, outlets: Arc<dyn Outlets>) -> Engine {
        Engine { outlets, ..self }
    }

    /// The same with somebody who mints the credentials that grants name.
    #[must_use]
    pub fn with_leases(self, leases: Arc<dyn Leases>) -> Engine {
        Engine { leases, ..self }
    }

    /// The audit log, for what a sweep did that isn't the engine's own: [`Event::LeaseOrphaned`].
    ///
    /// [`Event::LeaseOrphaned`]: cofferdam_core::audit::Event::LeaseOrphaned
    #[must_use]
    pub fn audit(&self) -> &dyn AuditSink {
        self.audit.as_ref()
    }

    /// The boundaries that there are, and those that there could be.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}

/// The hash of a policy: SHA-256 of its canonical text.
#[must_use]
pub fn policy_hash(policy: &Policy) -> PolicyHash {
    let digest = Sha256::digest(policy.canonical());
    PolicyHash(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// An error with everything that caused it, in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
