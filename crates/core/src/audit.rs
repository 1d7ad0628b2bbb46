//! The events of a run, written before the things they record.
//!
//! Events come from decisions that our own processes make. A system call that a filter refuses
//! inside leaves no event, and nothing claims that it does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::artifact::Rejection;
use crate::capability::{Capability, Gap};
use crate::egress::{CheckedAddress, Denial, Destination, Door, RequestPermit, Terms, TunnelPermit};
use crate::lease::{LeaseBegin, LeaseEnd};
use crate::outcome::{AuditSpan, End, LimitName, RunId};
use crate::policy::{BackendName, PolicyHash, Profile};

/// Something that a run's history must hold.
#[derive(Clone, Debug)]
pub enum Event {
    /// Something that a tool of the host may run or obey stayed inside.
    ArtifactQuarantined {
        /// Where it was, as text that drives no terminal.
        path: String,
        /// How many more entries did not come out that have no event of their own.
        more: u64,
    },
    /// Something that a program made did not come out.
    ArtifactRejected {
        /// Where it was, as text that drives no terminal.
        path: String,
        /// Why.
        why: Rejection,
        /// How many more entries did not come out that have no event of their own.
        more: u64,
    },
    /// A backend was considered and refused.
    BackendRefused {
        /// Which.
        backend: BackendName,
        /// What it lacks; empty where it isn't there at all.
        gaps: Vec<Gap>,
        /// Why, in a sentence.
        why: String,
    },
    /// A credential, or what stands for one, was in a request where it may not be: the refusal says how.
    CredentialMisused {
        /// What was refused, and why.
        denial: Denial,
    },
    /// A host sent a credential back, and it was taken out of the answer.
    CredentialReflected {
        /// Its name in the policy.
        name: String,
        /// The host.
        host: String,
    },
    /// A name that no rule has was asked for. Nobody outside was asked.
    DnsDenied {
        /// What was refused: the name and why.
        denial: Denial,
        /// How many more such questions there were that have no event of their own.
        more: u64,
    },
    /// A request or a tunnel was let out.
    EgressAllowed(Box<Passage>),
    /// A connection or a request was refused.
    EgressDenied {
        /// What was refused, and why.
        denial: Denial,
        /// The way by which it came; none where it was refused before one was known.
        door: Option<Door>,
        /// The address that it would have been dialled at, where it came to that.
        ip: Option<IpAddr>,
        /// How many more refusals there were that have no event of their own.
        more: u64,
    },
    /// A credential was minted; its value is about to be handed out.
    LeaseMinted(Box<LeaseBegin>),
    /// What nobody was responsible for any more was ended: whoever held it was killed.
    LeaseOrphaned(Box<LeaseEnd>),
    /// A credential ended, or nobody knows: the state says.
    LeaseRevoked(Box<LeaseEnd>),
    /// A limit was reached.
    LimitHit(LimitName),
    /// Captured output was dropped.
    OutputTruncated {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// How many bytes.
        dropped: u64,
    },
    /// A policy was resolved.
    PolicyLoaded {
        /// Its hash.
        policy: PolicyHash,
        /// How much the program is trusted.
        profile: Profile,
    },
    /// A sandbox is gone.
    SandboxClosed {
        /// Processes that were alive when the program had ended.
        left_processes: u32,
        /// Whether a later command removed it, since the one that started it was killed.
        swept: bool,
    },
    /// A sandbox is about to be opened.
    SandboxOpened {
        /// Where.
        backend: BackendName,
        /// What will be in force.
        enforced: BTreeSet<Capability>,
        /// What was accepted as missing.
        gaps: Vec<Gap>,
    },
    /// A run is over.
    TaskEnd {
        /// How it ended.
        end: End,
        /// The policy's hash, again: it can't have changed on the way.
        policy: Option<PolicyHash>,
    },
    /// A run was granted or is about to be refused. Nothing has started yet.
    TaskStart {
        /// The program's own name: never its arguments, which may hold secrets.
        program: String,
        /// Labels, as they were given.
        labels: BTreeMap<String, String>,
    },
}

impl Event {
    /// The public name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Event::ArtifactQuarantined { .. } => "artifact.quarantined",
            Event::ArtifactRejected { .. } => "artifact.rejected",
            Event::BackendRefused { .. } => "backend.refused",
            Event::CredentialMisused { .. } => "credential.misused",
            Event::CredentialReflected { .. } => "credential.reflected",
            Event::DnsDenied { .. } => "dns.denied",
            Event::EgressAllowed(_) => "egress.allowed",
            Event::EgressDenied { .. } => "egress.denied",
            Event::LeaseMinted(_) => "lease.minted",
            Event::LeaseOrphaned(_) => "lease.orphaned",
            Event::LeaseRevoked(_) => "lease.revoked",
            Event::LimitHit(_) => "limit.hit",
            Event::OutputTruncated { .. } => "output.truncated",
            Event::PolicyLoaded { .. } => "policy.loaded",
            Event::SandboxClosed { .. } => "sandbox.closed",
            Event::SandboxOpened { .. } => "sandbox.opened",
            Event::TaskEnd { .. } => "task.end",
            Event::TaskStart { .. } => "task.start",
        }
    }
}

/// Something that is let out. It is recorded before it goes, so how much it was is in the Outcome alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Where it leads, and by which door it came.
    pub to: Destination,
    /// What the rule said that let it out.
    pub terms: Terms,
    /// The address that was dialled.
    pub ip: IpAddr,
    /// The method and the path without its query, where requests are read.
    pub request: Option<(String, String)>,
}

impl Passage {
    /// A request that goes to an address.
    #[must_use]
    pub fn of_request(permit: &RequestPermit, address: CheckedAddress) -> Passage {
        let request = Some((permit.method().to_owned(), permit.path().to_owned()));
        Passage { to: permit.to().clone(), terms: permit.terms().clone(), ip: address.ip(), request }
    }

    /// A tunnel to an address.
    #[must_use]
    pub fn of_tunnel(permit: &TunnelPermit, address: CheckedAddress) -> Passage {
        let (to, terms) = (permit.to().clone(), permit.terms().clone());
        Passage { to, terms, ip: address.ip(), request: None }
    }
}

/// Where events go.
pub trait AuditSink: Send + Sync {
    /// Appends events of a run, at least one, and gives the span of that run so far. Either all of them are
    /// in the log afterwards, or none.
    ///
    /// Returns when they are in the log's file. It is not synced: a power cut can lose them, a
    /// killed process can't.
    ///
    /// # Errors
    ///
    /// [`AuditError`] if they can't be written. What they record must then not happen.
    fn append(&self, run: &RunId, events: &[Event]) -> Result<AuditSpan, AuditError>;
}

/// The log can't take an event.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The log has fewer events than its head file says: somebody cut it.
    #[error("the audit log was cut: its head file knows event {head}, its last event is {last}")]
    Cut {
        /// The last event, as the head file has it.
        head: u64,
        /// The last event in the log.
        last: u64,
    },
    /// The last event doesn't have the hash that the head file has.
    #[error("the audit log was changed: event {seq} is not the one that was written")]
    Changed {
        /// The event in question.
        seq: u64,
    },
    /// The event isn't one that whoever sent it may record, now or ever.
    #[error("`{event}` can't be recorded: {why}")]
    Refused {
        /// The event's public name.
        event: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The log can't be read or written.
    #[error("could not {action} the audit log {path}")]
    Io {
        /// A verb: "open".
        action: &'static str,
        /// The file.
        path: String,
        /// What the host said.
        source: std::io::Error,
    },
}
