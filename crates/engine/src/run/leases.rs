//! The credentials of a run: prepared when it is granted, ended when everything of its program is dead.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::audit::{AuditError, AuditSink, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::{Deliveries, Held, LeaseEnd, LeaseState};
use cofferdam_core::outcome::{Fault, RunId};
use cofferdam_core::outlet::Sink;

use crate::Engine;

/// What a run holds, and what its program gets of it.
pub(super) struct Leased {
    held: Box<dyn Held>,
    deliveries: Deliveries,
}

impl Leased {
    /// Mints what a grant names. Nothing is started where it names none.
    pub(super) async fn prepare(engine: &Engine, run: &RunId, grant: &Grant) -> Result<Self, Fault> {
        let sink = Arc::new(Recorder { audit: Arc::clone(&engine.audit), run: run.clone() });
        let (deliveries, held) = engine.leases.prepare(run, grant, sink).await?;
        Ok(Leased { held, deliveries })
    }

    /// What the program gets, once.
    pub(super) fn take(&mut self) -> Deliveries {
        std::mem::take(&mut self.deliveries)
    }

    /// The way to whoever has the credentials of requests, once.
    pub(super) fn take_way(&mut self) -> Option<OwnedFd> {
        self.held.take_way()
    }

    /// Ends all of it, the first time; says each time what came of it. The program ended so long `before`.
    pub(super) async fn end(&mut self, before: Duration) -> Vec<LeaseEnd> {
        self.held.end(before).await
    }
}

/// What a person has to be told of a lease: that nobody knows whether it is dead.
pub(super) fn warning(lease: &LeaseEnd) -> Option<String> {
    let LeaseState::Unknown { why } = &lease.state else { return None };
    Some(format!(
        "the credential `{}` may still be alive ({why}): every next command tries to revoke it; \
         `cofferdam credential list` shows it",
        lease.name
    ))
}

/// Writes the events of leases into a run's part of the log.
struct Recorder {
    audit: Arc<dyn AuditSink>,
    run: RunId,
}

impl Sink for Recorder {
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>> {
        let is_a_leases = matches!(
            event,
            Event::CredentialReflected { .. }
                | Event::LeaseMinted(_)
                | Event::LeaseOrphaned(_)
                | Event::LeaseRevoked(_)
        );
        let recorded = if is_a_leases {
            self.audit.append(&self.run, &[event]).map(drop)
        } else {
            Err(AuditError::Refused { event: event.name(), why: "it isn't a lease's to record" })
        };
        Box::pin(std::future::ready(recorded))
    }
}
