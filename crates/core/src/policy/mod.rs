//! What is allowed, and the decision whether a run may happen.
//!
//! A policy comes in layers (defaults, profile, file, flags). [`Policy::resolve`] turns them and a
//! node's ceiling into one policy, [`decide`] turns that policy and a request into a [`Grant`].
//! Both are total functions of their arguments: nothing matched means no.

mod flag;
mod layer;
mod limits;
#[cfg(test)]
mod narrowing;
mod network;
mod path_glob;
mod profile;

use std::collections::BTreeSet;
use std::fmt::Write as _;

pub use flag::{AllowFlag, BadRule, Preset};
pub use layer::{Ceiling, Environment, FilesLayer, Layer, LimitsLayer, OverCeiling, Widening};
pub use limits::{Cpus, Limits};
pub use network::{BadHostPattern, CredentialRule, HostPattern, NetworkRule, OWN_HOST, Protocol};
pub use path_glob::{BadGlob, check_glob};
pub use profile::{BackendName, Profile, UnknownName};

use crate::capability::Capability;
use crate::files::Files;
use crate::grant::Grant;
use crate::request::{Request, Variable};

/// The policy that one run is judged by: every field has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How much the program is trusted, which decides the boundaries that are considered.
    pub profile: Profile,
    /// The backend that was asked for by name; none means that the profile chooses.
    pub backend: Option<BackendName>,
    /// Ceilings on the run.
    pub limits: Limits,
    /// What the program finds in its environment.
    pub environment: Environment,
    /// The files of the host that it sees.
    pub files: Files,
    /// Where it may connect. Empty means nowhere.
    pub network: Vec<NetworkRule>,
    /// Credentials that are minted for it.
    pub credentials: Vec<CredentialRule>,
    /// Capabilities that may be missing.
    pub accept_gaps: BTreeSet<Capability>,
    /// Capabilities that are demanded beyond those that the policy implies.
    pub require: BTreeSet<Capability>,
}

/// The SHA-256 of a policy's canonical text, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyHash(pub String);

/// What every run asks of its boundary, whatever the policy says.
pub const ALWAYS_ASKED: [Capability; 10] = [
    Capability::Files,
    Capability::Network,
    Capability::Memory,
    Capability::Cpu,
    Capability::Pids,
    Capability::Disk,
    Capability::Timeout,
    Capability::Output,
    Capability::Syscalls,
    Capability::Landlock,
];

impl Policy {
    /// One line for each field that changes what is enforced, in a fixed order: the text that the
    /// policy's hash is made of. Values that were passed in from the host appear by name alone.
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut text = self.canonical_for_sandbox();
        let Limits { timeout, grace, output_bytes, .. } = &self.limits;
        let _ = writeln!(text, "limits.held = {timeout:?} {grace:?} {output_bytes:?}"); // as below
        text
    }

    /// The same without what is held outside of a sandbox: the deadline, its grace and the limit of output. Two
    /// policies with the same text here can be served by the same kind of sandbox, whose way out has the budgets.
    #[must_use]
    pub fn canonical_for_sandbox(&self) -> String {
        let Policy {
            profile,
            backend,
            limits,
            environment,
            files,
            network,
            credentials,
            accept_gaps,
            require,
        } = self;
        let Limits {
            timeout: _,
            grace: _,
            memory_bytes,
            cpus,
            pids,
            disk_bytes,
            files: entries,
            output_bytes: _,
            bytes_out,
            requests,
            connections,
            hosts,
        } = limits;
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Debug| {
            let _ = writeln!(text, "{key} = {value:?}"); // writing to a String can't fail
        };
        line("profile", &profile.name());
        line("backend", &backend.map_or("auto", BackendName::name));
        line("limits", &(memory_bytes, cpus, pids, disk_bytes, entries));
        line("limits.egress", &(bytes_out, requests, connections, hosts));
        line("environment.set", &environment.set);
        let passed: Vec<_> = environment.passed.iter().map(Variable::name).collect();
        line("environment.pass", &passed);
        line("files", files);
        line("network", network);
        line("credentials", credentials);
        line("accept_gaps", accept_gaps);
        line("require", require);
        text
    }

    /// The capabilities that this policy needs in order to mean anything.
    fn asks_for(&self, request: &Request) -> BTreeSet<Capability> {
        let mut asked = BTreeSet::from(ALWAYS_ASKED);
        asked.extend(&self.require);
        for rule in &self.network {
            asked.extend([Capability::Egress, Capability::Dns]);
            match rule.protocol {
                Protocol::Tcp | Protocol::TlsPassthrough => asked.insert(Capability::EgressTcp),
                Protocol::Http | Protocol::Https => asked.insert(Capability::EgressHttp),
            };
        }
        if !self.credentials.is_empty() {
            asked.insert(Capability::Credentials);
        }
        if request.terminal.is_some() {
            asked.insert(Capability::Tty);
        }
        asked
    }
}

/// Decides whether a run may happen.
///
/// `hash` is the policy's, computed by the caller, since hashing isn't this crate's business.
///
/// # Errors
///
/// [`Denial`] names the rule that forbids it and what would have to change.
pub fn decide(policy: &Policy, hash: PolicyHash, request: &Request) -> Result<Grant, Denial> {
    if let Some(backend) = policy.backend
        && policy.profile.never().contains(&backend)
    {
        return Err(Denial::BackendForbidden { profile: policy.profile, backend });
    }
    if let Some(&capability) = policy.accept_gaps.intersection(&policy.require).next() {
        return Err(Denial::Contradiction { capability });
    }
    Ok(Grant::new(policy, hash, policy.asks_for(request)))
}

/// Why a run was refused by policy, in terms that its requester may see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The profile rules this backend out whatever the host offers.
    #[error("profile `{profile}` never runs in backend `{backend}`")]
    BackendForbidden {
        /// The profile in force.
        profile: Profile,
        /// The backend that was named.
        backend: BackendName,
    },
    /// The same capability is demanded and given up.
    #[error("`{capability}` is both required and accepted as a gap")]
    Contradiction {
        /// The capability in question.
        capability: Capability,
    },
}

impl Denial {
    /// What the requester can do about it.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Denial::BackendForbidden { profile, .. } => {
                let considered: Vec<_> = profile.considers().iter().map(|backend| backend.name()).collect();
                format!(
                    "--profile internal, if nobody outside controls the program or what it reads; profile \
                     `{profile}` runs in {}, as far as this version has them (`cofferdam doctor`)",
                    considered.join(", ")
                )
            }
            Denial::Contradiction { capability } => {
                format!("drop `{capability}` from either `require` or `accept_gaps`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Pattern, Workspace};
    use crate::request::{Argv, Program};

    fn request() -> Request {
        Request {
            program: Program::Command(Argv::new(c"true".into(), vec![])),
            files: vec![],
            labels: Default::default(),
            environment: vec![],
            terminal: None,
            collect: false,
        }
    }

    fn policy(layer: Layer) -> Policy {
        Policy::resolve(&[layer], &Ceiling::default()).unwrap()
    }

    fn hash() -> PolicyHash {
        PolicyHash("00".into())
    }

    #[test]
    fn the_default_profile_never_runs_in_a_container() {
        let policy = policy(Layer { backend: Some(Some(BackendName::Container)), ..Layer::default() });
        assert_eq!(
            decide(&policy, hash(), &request()).unwrap_err(),
            Denial::BackendForbidden { profile: Profile::Untrusted, backend: BackendName::Container }
        );
    }

    #[test]
    fn a_capability_cannot_be_required_and_given_up() {
        let both = BTreeSet::from([Capability::Memory]);
        let policy = policy(Layer { accept_gaps: both.clone(), require: both, ..Layer::default() });
        assert!(matches!(
            decide(&policy, hash(), &request()),
            Err(Denial::Contradiction { capability: Capability::Memory })
        ));
    }

    #[test]
    fn an_allow_rule_asks_for_egress_and_an_empty_list_does_not() {
        let silent = decide(&policy(Layer::default()), hash(), &request()).unwrap();
        assert!(!silent.asks().contains(&Capability::Egress));
        let rule = NetworkRule::https(HostPattern::parse("api.test").unwrap());
        let speaking = policy(Layer { network: vec![rule], ..Layer::default() });
        let granted = decide(&speaking, hash(), &request()).unwrap();
        assert!(granted.asks().contains(&Capability::Egress));
        assert!(granted.asks().contains(&Capability::EgressHttp));
    }

    #[test]
    fn the_canonical_text_holds_no_value_that_was_passed_in() {
        let mut with_secret = policy(Layer::default());
        with_secret.environment.passed = vec![Variable::new("TOKEN", "hunter2").unwrap()];
        assert!(with_secret.canonical().contains("TOKEN"));
        assert!(!with_secret.canonical().contains("hunter2"));
    }

    #[test]
    fn every_field_that_is_enforced_changes_the_canonical_text() {
        let base = policy(Layer::default());
        let mut changed = vec![];
        for change in [
            |p: &mut Policy| p.profile = Profile::Internal,
            |p: &mut Policy| p.backend = Some(BackendName::Wasm),
            |p: &mut Policy| p.limits.pids = 1,
            |p: &mut Policy| p.network = vec![NetworkRule::https(HostPattern::parse("a.test").unwrap())],
            |p: &mut Policy| p.require = BTreeSet::from([Capability::SeparateKernel]),
            |p: &mut Policy| p.accept_gaps = BTreeSet::from([Capability::Cpu]),
            |p: &mut Policy| p.limits.timeout = std::time::Duration::from_secs(1),
            |p: &mut Policy| p.limits.output_bytes = Some(1),
            |p: &mut Policy| p.limits.bytes_out = 1,
            |p: &mut Policy| p.limits.requests = 1,
            |p: &mut Policy| p.limits.connections = 1,
            |p: &mut Policy| p.limits.hosts = 1,
            |p: &mut Policy| p.files.hide = vec![Pattern::new("x").unwrap()],
            |p: &mut Policy| p.files.keep = vec![Pattern::new("x").unwrap()],
            |p: &mut Policy| p.files.workspace = Some(Workspace { host: "/x".into(), copy: false }),
        ] {
            let mut policy = base.clone();
            change(&mut policy);
            changed.push(policy.canonical());
        }
        changed.push(base.canonical());
        let distinct: BTreeSet<_> = changed.iter().collect();
        assert_eq!(distinct.len(), changed.len());
    }
}
