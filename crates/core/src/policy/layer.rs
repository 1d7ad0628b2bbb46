//! Layers of a policy, and how they become one.
//!
//! Later layers replace earlier ones field by field (they are all the operator's, and may widen).
//! Two things only narrow: a node's [`Ceiling`], and a file that extends another
//! ([`Layer::narrows`]).

use std::collections::BTreeSet;
use std::time::Duration;

use super::network::first_wider;
use super::{BackendName, Cpus, CredentialRule, Limits, NetworkRule, Policy, Profile};
use crate::capability::Capability;
use crate::files::{Files, Pattern, Python, Shown, Workspace};
use crate::request::Variable;

/// What the program finds in its environment, beyond what the sandbox itself sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables with values from the policy.
    pub set: Vec<Variable>,
    /// Variables that were named, with the values that the host had for them.
    pub passed: Vec<Variable>,
}

/// One source of policy. A field that it leaves out is left to the layers below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// See [`Policy::profile`].
    pub profile: Option<Profile>,
    /// See [`Policy::backend`]. `Some(None)` is `auto`, said aloud.
    pub backend: Option<Option<BackendName>>,
    /// See [`Policy::limits`].
    pub limits: LimitsLayer,
    /// Added to the environment of the layers below; a later value for a name wins.
    pub environment: Environment,
    /// Files of the host.
    pub files: FilesLayer,
    /// Added to the rules of the layers below.
    pub network: Vec<NetworkRule>,
    /// Added to the credentials of the layers below.
    pub credentials: Vec<CredentialRule>,
    /// Added to the gaps that the layers below accept.
    pub accept_gaps: BTreeSet<Capability>,
    /// Added to what the layers below demand.
    pub require: BTreeSet<Capability>,
}

/// Files of the host, as far as a layer names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesLayer {
    /// See [`Files::workspace`].
    pub workspace: Option<Workspace>,
    /// Added to what the layers below show.
    pub shown: Vec<Shown>,
    /// Added to what the layers below hide.
    pub hide: Vec<Pattern>,
    /// Added to what the layers below let out.
    pub keep: Vec<Pattern>,
    /// See [`Files::python`].
    pub python: Option<Python>,
}

/// Limits, as far as a layer sets them. Units as in [`Limits`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsLayer {
    /// See [`Limits::timeout`].
    pub timeout: Option<Duration>,
    /// See [`Limits::grace`].
    pub grace: Option<Duration>,
    /// See [`Limits::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// See [`Limits::cpus`].
    pub cpus: Option<Cpus>,
    /// See [`Limits::pids`].
    pub pids: Option<u32>,
    /// See [`Limits::disk_bytes`].
    pub disk_bytes: Option<u64>,
    /// See [`Limits::files`].
    pub files: Option<u64>,
    /// See [`Limits::output_bytes`].
    pub output_bytes: Option<u64>,
    /// See [`Limits::bytes_out`].
    pub bytes_out: Option<u64>,
    /// See [`Limits::requests`].
    pub requests: Option<u64>,
    /// See [`Limits::connections`].
    pub connections: Option<u64>,
    /// See [`Limits::hosts`].
    pub hosts: Option<u64>,
}

/// What a node allows at most, whatever a policy or a flag says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// The most that each limit may be.
    pub limits: LimitsLayer,
    /// The profiles that may be used; none means any.
    pub profiles: Option<BTreeSet<Profile>>,
}

/// Something was asked for by name that the node doesn't allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {asked} is above this node's ceiling of {ceiling}")]
pub struct OverCeiling {
    /// The policy's key: `limits.memory`.
    pub key: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What the node allows.
    pub ceiling: String,
}

/// A layer asks for more than the one that it extends grants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is wider than the policy that this one extends: {why}")]
pub struct Widening {
    /// The policy's key: `limits.memory`.
    pub key: &'static str,
    /// Position in the list, where the key is one.
    pub index: Option<usize>,
    /// How it is wider.
    pub why: String,
}

/// Applies a macro to each limit: its key, its field, and how its value is shown.
macro_rules! each_limit {
    ($apply:ident) => {
        $apply!("limits.timeout", timeout, |value: &Duration| format!("{value:?}"));
        $apply!("limits.grace", grace, |value: &Duration| format!("{value:?}"));
        $apply!("limits.memory", memory_bytes, |value: &u64| size(*value));
        $apply!("limits.cpus", cpus, |value: &Cpus| value.to_string());
        $apply!("limits.pids", pids, |value: &u32| value.to_string());
        $apply!("limits.disk", disk_bytes, |value: &u64| size(*value));
        $apply!("limits.files", files, |value: &u64| value.to_string());
        $apply!("limits.output", output_bytes, |value: &u64| size(*value));
        $apply!("limits.bytes_out", bytes_out, |value: &u64| size(*value));
        $apply!("limits.requests", requests, |value: &u64| value.to_string());
        $apply!("limits.connections", connections, |value: &u64| value.to_string());
        $apply!("limits.hosts", hosts, |value: &u64| value.to_string());
    };
}

/// A size as a person writes it, exactly.
fn size(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let exact = units.into_iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    exact.map_or_else(|| format!("{bytes} bytes"), |(name, unit)| format!("{} {name}", bytes / unit))
}

impl Policy {
    /// Turns layers, weakest first, into one policy within a ceiling.
    ///
    /// A default above the ceiling is lowered to it; what somebody asked for by name is not
    /// lowered in silence but refused.
    ///
    /// # Errors
    ///
    /// [`OverCeiling`] names the first key that asks for more than the node allows.
    pub fn resolve(layers: &[Layer], ceiling: &Ceiling) -> Result<Policy, OverCeiling> {
        let mut sum = Layer::default();
        for layer in layers {
            sum.overlay(layer);
        }
        ceiling.check(&sum)?;
        Ok(Policy {
            profile: sum.profile.unwrap_or(Profile::Untrusted),
            backend: sum.backend.flatten(),
            limits: sum.limits.within(&ceiling.limits),
            environment: sum.environment,
            files: sum.files.into_files(),
            network: sum.network,
            credentials: sum.credentials,
            accept_gaps: sum.accept_gaps,
            require: sum.require,
        })
    }
}

impl Policy {
    /// This policy as one layer that leaves nothing out but a disk that is half of the memory.
    #[must_use]
    pub fn as_layer(&self) -> Layer {
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
        } = self.clone();
        let Limits { timeout, grace, memory_bytes, cpus, pids, disk_bytes, files: entries, .. } = limits;
        let Limits { output_bytes, bytes_out, requests, connections, hosts, .. } = limits;
        let Files { workspace, shown, hide, keep, python } = files;
        Layer {
            profile: Some(profile),
            backend: Some(backend),
            limits: LimitsLayer {
                timeout: Some(timeout),
                grace: Some(grace),
                memory_bytes: Some(memory_bytes),
                cpus: Some(cpus),
                pids: Some(pids),
                disk_bytes,
                files: Some(entries),
                output_bytes,
                bytes_out: Some(bytes_out),
                requests: Some(requests),
                connections: Some(connections),
                hosts: Some(hosts),
            },
            environment,
            files: FilesLayer { workspace, shown, hide, keep, python },
            network,
            credentials,
            accept_gaps,
            require,
        }
    }
}

impl Layer {
    /// Puts a stronger layer on top of this one.
    pub fn overlay(&mut self, above: &Layer) {
        self.profile = above.profile.or(self.profile);
        self.backend = above.backend.or(self.backend);
        self.limits.overlay(&above.limits);
        replace_by_name(&mut self.environment.set, &above.environment.set);
        replace_by_name(&mut self.environment.passed, &above.environment.passed);
        self.files.overlay(&above.files);
        self.network.extend_from_slice(&above.network);
        self.credentials.extend_from_slice(&above.credentials);
        self.accept_gaps.extend(&above.accept_gaps);
        self.require.extend(&above.require);
    }

    /// Checks that this layer grants nothing that `base` doesn't, and gives the two as one layer:
    /// what this one says, and of the base what this one left out.
    ///
    /// # Errors
    ///
    /// [`Widening`] names the first key that would grant more.
    pub fn narrows(&self, base: &Layer) -> Result<Layer, Widening> {
        let wider = |key, index, why: String| Err(Widening { key, index, why });
        if let (Some(mine), Some(theirs)) = (self.profile, base.profile)
            && mine != theirs
        {
            return wider("profile", None, format!("it is `{theirs}` there"));
        }
        if let (Some(mine), Some(Some(theirs))) = (self.backend, base.backend)
            && mine != Some(theirs)
        {
            return wider("backend", None, format!("it is `{theirs}` there"));
        }
        self.limits.narrows(&base.limits)?;
        self.files.narrows(&base.files)?;
        if let Some(gap) = self.accept_gaps.difference(&base.accept_gaps).next() {
            return wider("accept_gaps", None, format!("`{gap}` is not accepted there"));
        }
        if let Some(index) = first_wider(&self.network, &base.network) {
            let rule = &self.network[index];
            let is_allowed = base.network.iter().any(|outer| rule.within(outer));
            let why = if is_allowed { "an earlier rule there decides about" } else { "no rule there allows" };
            return wider("network.allow", Some(index), format!("{why} {}", rule.host));
        }
        for (index, credential) in self.credentials.iter().enumerate() {
            if !base.credentials.iter().any(|outer| credential.within(outer)) {
                return wider(
                    "credential",
                    Some(index),
                    format!("`{}` is not granted there", credential.name),
                );
            }
        }
        for (index, variable) in self.environment.passed.iter().enumerate() {
            if !base.environment.passed.iter().any(|outer| outer.name() == variable.name()) {
                return wider(
                    "environment.pass",
                    Some(index),
                    format!("`{}` is not passed there", variable.name()),
                );
            }
        }
        Ok(self.over(base))
    }

    /// This layer on top of a base that it narrows: lists are this layer's own where it has any.
    fn over(&self, base: &Layer) -> Layer {
        let own_or = |mine: &[NetworkRule], theirs: &[NetworkRule]| {
            if mine.is_empty() { theirs.to_vec() } else { mine.to_vec() }
        };
        let mut limits = base.limits.clone();
        limits.overlay(&self.limits);
        let mut set = base.environment.set.clone();
        replace_by_name(&mut set, &self.environment.set);
        let passed = if self.environment.passed.is_empty() {
            base.environment.passed.clone()
        } else {
            self.environment.passed.clone()
        };
        Layer {
            profile: self.profile.or(base.profile),
            backend: self.backend.or(base.backend),
            limits,
            environment: Environment { set, passed },
            files: self.files.over(&base.files),
            network: own_or(&self.network, &base.network),
            credentials: if self.credentials.is_empty() {
                base.credentials.clone()
            } else {
                self.credentials.clone()
            },
            accept_gaps: self.accept_gaps.clone(),
            require: base.require.union(&self.require).copied().collect(),
        }
    }
}

impl FilesLayer {
    /// Puts what a stronger layer names on top of this.
    fn overlay(&mut self, above: &FilesLayer) {
        self.workspace = above.workspace.clone().or(self.workspace.take());
        for shown in &above.shown {
            self.shown.retain(|old| old.guest != shown.guest);
            self.shown.push(shown.clone());
        }
        add_new(&mut self.hide, &above.hide);
        add_new(&mut self.keep, &above.keep);
        self.python = above.python.clone().or(self.python.take());
    }

    /// Checks that this layer shows and lets out nothing that `base` doesn't.
    fn narrows(&self, base: &FilesLayer) -> Result<(), Widening> {
        let wider = |key, index, why: &str| Err(Widening { key, index, why: why.to_owned() });
        if self.workspace.is_some() && self.workspace != base.workspace {
            return wider("files.workspace", None, "another folder is shown there, or none");
        }
        if let Some(index) = self.shown.iter().position(|shown| !base.shown.contains(shown)) {
            return wider("files.inputs", Some(index), "it is not shown there");
        }
        if let Some(index) = self.keep.iter().position(|pattern| !base.keep.contains(pattern)) {
            return wider("files.keep", Some(index), "it is not let out there");
        }
        Ok(())
    }

    /// This on top of a base that it narrows: what is hidden there stays hidden.
    fn over(&self, base: &FilesLayer) -> FilesLayer {
        let mut hide = base.hide.clone();
        add_new(&mut hide, &self.hide);
        FilesLayer {
            workspace: self.workspace.clone().or(base.workspace.clone()),
            shown: if self.shown.is_empty() { base.shown.clone() } else { self.shown.clone() },
            hide,
            keep: self.keep.clone(),
            python: self.python.clone().or(base.python.clone()),
        }
    }

    fn into_files(self) -> Files {
        let FilesLayer { workspace, shown, hide, keep, python } = self;
        Files { workspace, shown, hide, keep, python }
    }
}

/// Adds patterns that aren't there yet, in their own order, so that policies that say the same have the
/// same canonical text.
fn add_new(below: &mut Vec<Pattern>, above: &[Pattern]) {
    below.extend_from_slice(above);
    below.sort();
    below.dedup();
}

impl CredentialRule {
    /// Whether this credential is no more than `other`.
    fn within(&self, other: &CredentialRule) -> bool {
        let lives_no_longer = match (self.ttl, other.ttl) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(mine), Some(theirs)) => mine <= theirs,
        };
        let ends_as_soon = self.ends_on_misuse || !other.ends_on_misuse;
        self.name == other.name && self.issuer == other.issuer && lives_no_longer && ends_as_soon
    }
}

impl LimitsLayer {
    /// Puts stronger limits on top of these.
    fn overlay(&mut self, above: &LimitsLayer) {
        macro_rules! take {
            ($key:literal, $field:ident, $show:expr) => {
                self.$field = above.$field.or(self.$field);
            };
        }
        each_limit!(take);
    }

    /// Checks that each limit that is set is at most the base's.
    fn narrows(&self, base: &LimitsLayer) -> Result<(), Widening> {
        macro_rules! check {
            ($key:literal, $field:ident, $show:expr) => {
                if let (Some(mine), Some(theirs)) = (&self.$field, &base.$field)
                    && mine > theirs
                {
                    let show = $show;
                    let why = format!("{} against {}", show(mine), show(theirs));
                    return Err(Widening { key: $key, index: None, why });
                }
            };
        }
        each_limit!(check);
        Ok(())
    }

    /// These limits where they are set, else the defaults, lowered to a ceiling.
    fn within(&self, ceiling: &LimitsLayer) -> Limits {
        let d = Limits::DEFAULT;
        let mut limits = d;
        macro_rules! pick {
            ($field:ident) => {
                limits.$field = match (self.$field, ceiling.$field) {
                    (Some(asked), _) => asked,
                    (None, Some(most)) => limits.$field.min(most),
                    (None, None) => limits.$field,
                };
            };
        }
        pick!(timeout);
        pick!(grace);
        pick!(memory_bytes);
        pick!(cpus);
        pick!(pids);
        pick!(files);
        pick!(bytes_out);
        pick!(requests);
        pick!(connections);
        pick!(hosts);
        // Half of the memory unless asked, which a ceiling may lower.
        limits.disk_bytes = match (self.disk_bytes, ceiling.disk_bytes) {
            (Some(asked), _) => Some(asked),
            (None, Some(most)) => Some(most.min(limits.memory_bytes / 2)),
            (None, None) => None,
        };
        limits.output_bytes = self.output_bytes.or(ceiling.output_bytes);
        limits
    }
}

impl Ceiling {
    /// Refuses what was asked for by name and isn't allowed.
    fn check(&self, asked: &Layer) -> Result<(), OverCeiling> {
        if let Some(profiles) = &self.profiles {
            let profile = asked.profile.unwrap_or(Profile::Untrusted);
            if !profiles.contains(&profile) {
                let known: Vec<_> = profiles.iter().map(|profile| profile.name()).collect();
                return Err(OverCeiling {
                    key: "profile",
                    asked: profile.to_string(),
                    ceiling: known.join(", "),
                });
            }
        }
        self.check_grace(&asked.limits)?;
        macro_rules! check {
            ($key:literal, $field:ident, $show:expr) => {
                if let (Some(asked), Some(most)) = (&asked.limits.$field, &self.limits.$field)
                    && asked > most
                {
                    let show = $show;
                    return Err(OverCeiling { key: $key, asked: show(asked), ceiling: show(most) });
                }
            };
        }
        each_limit!(check);
        Ok(())
    }

    /// What a program gets altogether is its deadline and its grace.
    fn check_grace(&self, asked: &LimitsLayer) -> Result<(), OverCeiling> {
        let (Some(grace), Some(most)) = (asked.grace, self.limits.timeout) else { return Ok(()) };
        let timeout = asked.timeout.unwrap_or(Limits::DEFAULT.timeout.min(most));
        if timeout > most || timeout.saturating_add(grace) <= most {
            return Ok(()); // a timeout above the ceiling is refused by its own name
        }
        Err(OverCeiling {
            key: "limits.grace",
            asked: format!("{grace:?} after {timeout:?}"),
            ceiling: format!("{most:?} together"),
        })
    }
}

/// Adds variables; one of a name that is already there replaces it. They are kept in the order of
/// their names, so that policies that say the same have the same canonical text.
fn replace_by_name(below: &mut Vec<Variable>, above: &[Variable]) {
    for variable in above {
        below.retain(|old| old.name() != variable.name());
        below.push(variable.clone());
    }
    below.sort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::HostPattern;

    fn memory(bytes: u64) -> Layer {
        let limits = LimitsLayer { memory_bytes: Some(bytes), ..Default::default() };
        Layer { limits, ..Default::default() }
    }

    #[test]
    fn a_later_layer_wins_and_an_absent_field_is_left_alone() {
        let top = Layer { profile: Some(Profile::Internal), ..Default::default() };
        let policy = Policy::resolve(&[memory(1 << 20), top], &Ceiling::default()).unwrap();
        assert_eq!(policy.limits.memory_bytes, 1 << 20);
        assert_eq!(policy.limits.disk_bytes(), 1 << 19);
        assert_eq!(policy.profile, Profile::Internal);
    }

    #[test]
    fn what_is_asked_for_above_the_ceiling_is_refused_and_a_default_is_lowered() {
        let ceiling = Ceiling { limits: memory(1 << 20).limits, profiles: None };
        let error = Policy::resolve(&[memory(1 << 21)], &ceiling).unwrap_err();
        assert_eq!(error.key, "limits.memory");
        let lowered = Policy::resolve(&[Layer::default()], &ceiling).unwrap();
        assert_eq!(lowered.limits.memory_bytes, 1 << 20);
    }

    #[test]
    fn grace_does_not_lengthen_what_the_ceiling_allows() {
        let seconds = |n| Some(Duration::from_secs(n));
        let ceiling =
            Ceiling { limits: LimitsLayer { timeout: seconds(10), ..Default::default() }, profiles: None };
        let asked = |timeout, grace| Layer {
            limits: LimitsLayer { timeout, grace, ..Default::default() },
            ..Default::default()
        };
        assert!(Policy::resolve(&[asked(seconds(6), seconds(4))], &ceiling).is_ok());
        let error = Policy::resolve(&[asked(seconds(6), seconds(5))], &ceiling).unwrap_err();
        assert_eq!(error.key, "limits.grace");
        assert_eq!(Policy::resolve(&[asked(None, seconds(1))], &ceiling).unwrap_err().key, "limits.grace");
    }

    #[test]
    fn a_profile_that_the_node_does_not_list_is_refused_even_as_the_default() {
        let ceiling = Ceiling { profiles: Some(BTreeSet::from([Profile::Internal])), ..Default::default() };
        assert_eq!(Policy::resolve(&[Layer::default()], &ceiling).unwrap_err().key, "profile");
    }

    #[test]
    fn extending_a_policy_can_only_narrow_it() {
        let base = memory(1 << 20);
        assert_eq!(memory(1 << 21).narrows(&base).unwrap_err().key, "limits.memory");
        assert_eq!(memory(1 << 10).narrows(&base).unwrap().limits.memory_bytes, Some(1 << 10));

        let gaps = Layer { accept_gaps: BTreeSet::from([Capability::Cpu]), ..Default::default() };
        assert_eq!(gaps.narrows(&base).unwrap_err().key, "accept_gaps");

        let rule = NetworkRule::https(HostPattern::parse("a.test").unwrap());
        let open = Layer { network: vec![rule], ..Default::default() };
        assert_eq!(open.narrows(&base).unwrap_err().key, "network.allow");
        assert!(open.narrows(&open).is_ok());
        assert_eq!(Layer::default().narrows(&open).unwrap().network, open.network);
    }

    #[test]
    fn extending_shows_and_lets_out_no_more_and_hides_no_less() {
        let pattern = |text: &str| Pattern::new(text).unwrap();
        let files = |files: FilesLayer| Layer { files, ..Default::default() };
        let base = files(FilesLayer { hide: vec![pattern("secret")], ..Default::default() });
        let workspace = Some(Workspace { host: "/w".into(), copy: false });
        let more = files(FilesLayer { workspace, ..Default::default() });
        assert_eq!(more.narrows(&base).unwrap_err().key, "files.workspace");
        let out = files(FilesLayer { keep: vec![pattern(".envrc")], ..Default::default() });
        assert_eq!(out.narrows(&base).unwrap_err().key, "files.keep");
        let less = files(FilesLayer { hide: vec![pattern("other")], ..Default::default() });
        assert_eq!(less.narrows(&base).unwrap().files.hide, [pattern("other"), pattern("secret")]);
        assert_eq!(Layer::default().narrows(&more).unwrap().files, more.files);
    }

    #[test]
    fn a_policy_as_a_layer_resolves_to_itself() {
        let layer = Layer {
            profile: Some(Profile::Internal),
            backend: Some(Some(BackendName::Container)),
            limits: LimitsLayer { pids: Some(3), output_bytes: Some(4), ..Default::default() },
            environment: Environment {
                set: vec![Variable::new("A", "1").unwrap()],
                passed: vec![Variable::new("B", "2").unwrap()],
            },
            files: FilesLayer { hide: vec![Pattern::new("x").unwrap()], ..Default::default() },
            network: vec![NetworkRule::https(HostPattern::parse("a.test").unwrap())],
            accept_gaps: BTreeSet::from([Capability::Cpu]),
            require: BTreeSet::from([Capability::Landlock]),
            ..Default::default()
        };
        for layer in [layer, Layer::default()] {
            let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
            assert_eq!(Policy::resolve(&[policy.as_layer()], &Ceiling::default()), Ok(policy));
        }
    }

    #[test]
    fn a_gap_that_the_base_accepts_is_not_inherited_unasked() {
        let base = Layer { accept_gaps: BTreeSet::from([Capability::Cpu]), ..Default::default() };
        assert!(Layer::default().narrows(&base).unwrap().accept_gaps.is_empty());
    }
}
