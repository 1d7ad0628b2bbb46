//! What a run holds, from when it is prepared until it is dead.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::audit::Event;
use cofferdam_core::backend::Boxed;
use cofferdam_core::lease::{Held, LeaseEnd, LeaseState};
use cofferdam_core::outcome::{Fault, FaultCode};
use tokio::time::timeout;

use super::running::{Heard, Running};
use super::{ENDING, begun, of_ended};
use crate::control::{Answer, Ended, Lease, State, ToBroker};

/// The leases of a run. Dropped before their end was seen, it is said all the same: the broker may still mint for it
/// where an answer came too late, or nobody waited for it.
pub(super) struct Ending {
    /// The broker that holds them: another would know nothing of them.
    running: Arc<Running>,
    task: u64,
    heard: Arc<Heard>,
    /// The way to it, until somebody takes it.
    pub(super) way: Option<OwnedFd>,
    ended: Option<Vec<LeaseEnd>>,
}

impl Ending {
    pub(super) fn new(running: Arc<Running>, task: u64, heard: Arc<Heard>) -> Self {
        Ending { running, task, heard, way: None, ended: None }
    }

    /// Has it written down that leases live, before the program gets them.
    pub(super) async fn begin(&self, leases: Vec<Lease>) -> Result<(), Fault> {
        let begun: Vec<_> = leases.iter().map(begun).collect();
        self.heard.leases().extend(leases);
        for begun in begun {
            self.heard.sink.record(Event::LeaseMinted(Box::new(begun))).await.map_err(|error| Fault {
                code: FaultCode::AuditUnavailable,
                message: format!("the audit log can't be written: {error}"),
                fix: Some("see that there is room for it".to_owned()),
            })?;
        }
        Ok(())
    }

    async fn end_once(&self, before: Duration) -> Vec<LeaseEnd> {
        let answer = timeout(ENDING, self.running.ask(ToBroker::End { task: self.task })).await;
        self.running.forget(self.task);
        let ended: Vec<LeaseEnd> = match answer {
            Ok(Ok((Answer::Ended { leases }, _))) if self.are_all_of(&leases) => {
                leases.into_iter().map(of_ended).collect()
            }
            Ok(Ok(_)) => self.unknown("the broker gave no account of it"),
            Ok(Err(_)) => self.unknown("the broker was lost"),
            Err(_) => self.unknown("the broker gave no answer for 20 s"),
        };
        let ended: Vec<_> = ended.into_iter().map(|lease| later(lease, before)).collect();
        for lease in &ended {
            let _ = self.heard.sink.record(Event::LeaseRevoked(Box::new(lease.clone()))).await; // the Outcome has it too
        }
        ended
    }

    fn are_all_of(&self, ended: &[Ended]) -> bool {
        self.heard.leases().iter().all(|lease| ended.iter().any(|ended| ended.lease.name == lease.name))
    }

    fn unknown(&self, why: &str) -> Vec<LeaseEnd> {
        let state = |lease: &Lease| match lease.is_weak {
            // Nobody minted it, and what stood for it went with whoever knew that.
            true => State::Dead {
                after_us: Duration::ZERO.as_micros() as u64,
                verified: format!("{why}, and with it what stood for the secret"),
            },
            false => State::Unknown { why: why.to_owned() },
        };
        let ended =
            |lease: &Lease| of_ended(Ended { run: String::new(), lease: lease.clone(), state: state(lease) });
        self.heard.leases().iter().map(ended).collect()
    }
}

/// A lease's end, seen from the end of the program, which was so long before that of the lease began.
fn later(mut lease: LeaseEnd, before: Duration) -> LeaseEnd {
    if let LeaseState::Dead { after, .. } = &mut lease.state {
        *after += before;
    }
    lease
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.running.forget(self.task);
            let _ = self.running.tell(ToBroker::End { task: self.task }); // a broker that is lost has ended it by itself
        }
    }
}

impl Held for Ending {
    fn take_way(&mut self) -> Option<OwnedFd> {
        self.way.take()
    }

    fn end(&mut self, before: Duration) -> Boxed<'_, Vec<LeaseEnd>> {
        Box::pin(async move {
            if self.ended.is_none() {
                let ended = self.end_once(before).await;
                self.ended = Some(ended);
            }
            self.ended.clone().unwrap_or_default()
        })
    }
}

/// Nothing.
pub(super) struct NoneHeld;

impl Held for NoneHeld {
    fn take_way(&mut self) -> Option<OwnedFd> {
        None
    }

    fn end(&mut self, _: Duration) -> Boxed<'_, Vec<LeaseEnd>> {
        Box::pin(std::future::ready(vec![]))
    }
}
