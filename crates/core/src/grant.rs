//! The evaluated permission of one run.

use std::collections::BTreeSet;

use crate::capability::Capability;
use crate::files::Files;
use crate::policy::{BackendName, CredentialRule, Limits, NetworkRule, Policy, PolicyHash, Profile};
use crate::request::Variable;

/// Proof that policy permitted a run, and what it permitted.
///
/// Only [`decide`](crate::policy::decide) makes one, so holding a `Grant` *is* having been
/// checked. It is not `Clone` and has no `Default`: one decision starts one sandbox.
///
/// ```compile_fail,E0451
/// let forged = cofferdam_core::Grant { limits: cofferdam_core::policy::Limits::DEFAULT, ..todo!() };
/// ```
#[derive(Debug)]
pub struct Grant {
    profile: Profile,
    backend: Option<BackendName>,
    limits: Limits,
    environment: Vec<Variable>,
    files: Files,
    network: Vec<NetworkRule>,
    credentials: Vec<CredentialRule>,
    asks: BTreeSet<Capability>,
    accepted: BTreeSet<Capability>,
    policy: PolicyHash,
    sandbox: String,
}

impl Grant {
    /// Takes from a policy what a backend has to know.
    pub(crate) fn new(policy: &Policy, hash: PolicyHash, asks: BTreeSet<Capability>) -> Grant {
        let environment = &policy.environment;
        Grant {
            profile: policy.profile,
            backend: policy.backend,
            limits: policy.limits.clone(),
            files: policy.files.clone(),
            environment: environment.passed.iter().chain(&environment.set).cloned().collect(),
            network: policy.network.clone(),
            credentials: policy.credentials.clone(),
            asks,
            accepted: policy.accept_gaps.clone(),
            policy: hash,
            sandbox: policy.canonical_for_sandbox(),
        }
    }

    /// How much the program is trusted.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The backend that was asked for by name.
    #[must_use]
    pub fn backend(&self) -> Option<BackendName> {
        self.backend
    }

    /// The ceilings that the backend must enforce.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The variables that the program gets beyond the sandbox's own; a later one of a name wins.
    #[must_use]
    pub fn environment(&self) -> &[Variable] {
        &self.environment
    }

    /// The files of the host that the program sees.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Where the program may connect.
    #[must_use]
    pub fn network(&self) -> &[NetworkRule] {
        &self.network
    }

    /// The credentials to mint.
    #[must_use]
    pub fn credentials(&self) -> &[CredentialRule] {
        &self.credentials
    }

    /// Every capability that must be enforced or accepted as a gap.
    #[must_use]
    pub fn asks(&self) -> &BTreeSet<Capability> {
        &self.asks
    }

    /// The capabilities that may be missing.
    #[must_use]
    pub fn accepted(&self) -> &BTreeSet<Capability> {
        &self.accepted
    }

    /// Whether a sandbox that was opened for `other` is exactly what this grant asks for.
    #[must_use]
    pub fn same_sandbox(&self, other: &Grant) -> bool {
        self.sandbox_key() == other.sandbox_key()
    }

    /// What tells the sandbox of this grant from that of another.
    #[must_use]
    pub fn sandbox_key(&self) -> SandboxKey {
        SandboxKey {
            sandbox: self.sandbox.clone(),
            asks: self.asks.clone(),
            environment: self.environment.clone(),
        }
    }

    /// The hash of the policy that permitted the run.
    #[must_use]
    pub fn policy(&self) -> &PolicyHash {
        &self.policy
    }
}

/// What tells the sandbox of one grant from that of another: everything that a sandbox enforces, and
/// the variables with their values. Two grants with equal keys differ at most in what is held outside
/// of a sandbox: the deadline and the output limit.
///
/// Only a [`Grant`] makes one. It isn't `Debug`, since values may be secrets.
///
/// ```compile_fail,E0451
/// let forged = cofferdam_core::grant::SandboxKey { sandbox: String::new(), ..todo!() };
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SandboxKey {
    sandbox: String,
    asks: BTreeSet<Capability>,
    environment: Vec<Variable>,
}
