//! The credentials of a run, as the engine holds them: prepared before its program starts, dead when it has ended.
//!
//! 1. The engine asks [`Leases`] for what a grant names. What comes back is what the program gets
//!    ([`Deliveries`]) and what has to be ended ([`Held`]).
//! 2. The run's end revokes every lease and says of each how it is known to be dead ([`LeaseEnd`]).
//!
//! # Invariants
//!
//! 1. A lease is journalled, and the journal is on disk, before anybody gets its value: whoever is killed in between
//!    leaves something that the next command finds and revokes.
//! 2. Nothing is called dead that wasn't tried: [`LeaseState::Dead`] says how its death was seen, by another way than
//!    the answer of who revoked it.
//!
//! # Deliberately absent
//!
//! Which issuers there are, and every secret but what is delivered on purpose.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::Boxed;
use crate::grant::Grant;
use crate::outcome::{Fault, RunId};
use crate::outlet::Sink;
use crate::secret::SecretVariable;

/// What the program gets, and what has to be ended.
pub type Prepared = (Deliveries, Box<dyn Held>);

/// Prepares what grants name.
pub trait Leases: Send + Sync {
    /// Mints what the program is to hold itself, and makes surrogates for the rest. `sink` takes the events of these leases, for as long as they live.
    ///
    /// # Errors
    ///
    /// A [`Fault`] that says who is to blame; whatever was minted until then is dead or said to be unknown in it.
    fn prepare<'a>(
        &'a self,
        run: &'a RunId,
        grant: &'a Grant,
        sink: Arc<dyn Sink>,
    ) -> Boxed<'a, Result<Prepared, Fault>>;
}

/// What a program gets. Not `Debug` or `Clone`: some of it is secret.
#[derive(Default)]
pub struct Deliveries {
    /// Variables, on top of all others.
    pub variables: Vec<SecretVariable>,
}

/// A lease that lives, as it is recorded before its value is handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseBegin {
    /// The credential's name in the policy.
    pub name: String,
    /// Who minted it.
    pub issuer: String,
    /// What it can do, in the issuer's words.
    pub scope: BTreeMap<String, Vec<String>>,
    /// When it ends by itself.
    pub expires: Option<SystemTime>,
    /// What tells its value from others without saying it: the first bytes of a hash.
    pub fingerprint: String,
}

/// Leases of a run that lives. Dropped without an end, they are revoked by the next command at the latest.
pub trait Held: Send + Sync {
    /// The end of a socket over which connections are handed to whoever has these credentials, for the way out of the
    /// run's sandbox ([`handover`](crate::handover)). Once; none where no request carries one.
    fn take_way(&mut self) -> Option<OwnedFd>;

    /// Revokes all of them and sees whether they are dead. The program ended so long `before`. The second time it says
    /// the same as the first.
    fn end(&mut self, before: Duration) -> Boxed<'_, Vec<LeaseEnd>>;
}

/// A lease, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEnd {
    /// The credential's name in the policy.
    pub name: String,
    /// Who minted it.
    pub issuer: String,
    /// What it could do, in the issuer's words.
    pub scope: BTreeMap<String, Vec<String>>,
    /// When it was minted.
    pub minted: SystemTime,
    /// When it ends by itself; none where its issuer has no such thing.
    pub expires: Option<SystemTime>,
    /// Whether its issuer can end it before.
    pub can_revoke: bool,
    /// Whether it is a long-lived secret that was only kept away from the program, not one made for this task.
    pub is_weak: bool,
    /// How often it was used, where that is seen.
    pub uses: Option<u64>,
    /// What became of it.
    pub state: LeaseState,
}

/// What became of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It was tried, and is dead.
    Dead {
        /// From the end of the program until that was known.
        after: Duration,
        /// How it is known, as a clause.
        verified: String,
    },
    /// It can't be revoked, and lives until it expires.
    Expires,
    /// Nobody knows: the next command tries again.
    Unknown {
        /// Why, as a clause.
        why: String,
    },
}

impl LeaseState {
    /// The name in the Outcome.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            LeaseState::Dead { .. } => "dead",
            LeaseState::Expires => "expires",
            LeaseState::Unknown { .. } => "unknown",
        }
    }
}

/// Where there is no broker: nothing is leased, and a grant that names a credential isn't given.
#[derive(Clone, Copy, Debug)]
pub struct NoLeases;

impl Leases for NoLeases {
    fn prepare<'a>(
        &'a self,
        _: &'a RunId,
        grant: &'a Grant,
        _: Arc<dyn Sink>,
    ) -> Boxed<'a, Result<Prepared, Fault>> {
        let result: Result<Prepared, Fault> = if grant.credentials().is_empty() {
            Ok((Deliveries::default(), Box::new(NoneHeld)))
        } else {
            Err(Fault {
                code: crate::outcome::FaultCode::HostError,
                message: "credentials were granted, and there is no broker here to mint them".to_owned(),
                fix: Some("take them out of the policy".to_owned()),
            })
        };
        Box::pin(std::future::ready(result))
    }
}

struct NoneHeld;

impl Held for NoneHeld {
    fn take_way(&mut self) -> Option<OwnedFd> {
        None
    }

    fn end(&mut self, _: Duration) -> Boxed<'_, Vec<LeaseEnd>> {
        Box::pin(std::future::ready(vec![]))
    }
}
