//! What a backend can enforce, and what it says when it can't.
//!
//! A capability is asked for by a grant and offered by a backend. One that is asked for and not
//! offered is a [`Gap`] of that name: refused before the start, or accepted by name and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// One thing that a boundary may enforce. Names are public: people script against them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Capability { $($(#[$doc])* $variant,)+ }

        impl Capability {
            /// Every capability, in the order in which they are printed.
            pub const ALL: &[Capability] = &[$(Capability::$variant,)+];

            /// The public name, as in `--accept-gap NAME`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Capability::$variant => $name,)+ }
            }
        }
    };
}

capabilities! {
    /// The host's files are out of reach but for what was handed in.
    Files = "files",
    /// No network unless a rule grants it.
    Network = "network",
    /// Outbound connections are judged by host and port.
    Egress = "egress",
    /// Outbound HTTP is judged by method and path.
    EgressHttp = "egress-http",
    /// Any TCP protocol is attributed to a name and judged.
    EgressTcp = "egress-tcp",
    /// Names are resolved by us, after the policy allowed them.
    Dns = "dns",
    /// A connection to a port that no rule names is refused and recorded.
    DenialsUnlistedPort = "denials-unlisted-port",
    /// A credential is used without entering the sandbox.
    Credentials = "credentials",
    /// A ceiling on memory; reaching it ends the whole run.
    Memory = "memory",
    /// A ceiling on processor time per second.
    Cpu = "cpu",
    /// A ceiling on processes and threads.
    Pids = "pids",
    /// A ceiling on bytes and files written.
    Disk = "disk",
    /// A deadline, held from outside.
    Timeout = "timeout",
    /// Output is bounded while it is read.
    Output = "output",
    /// Only listed system calls reach the kernel.
    Syscalls = "syscalls",
    /// Landlock as a second layer over the file system.
    Landlock = "landlock",
    /// The program has a kernel of its own.
    SeparateKernel = "separate-kernel",
    /// The program can name nothing that it wasn't handed.
    NoAmbientAuthority = "no-ambient-authority",
    /// A private terminal.
    Tty = "tty",
    /// The runtime is not below a known security floor.
    RuntimeVersion = "runtime-version",
    /// A provider's own egress filter, which is not ours.
    ProviderEgress = "provider-egress",
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a capability")]
pub struct UnknownCapability(pub String);

impl FromStr for Capability {
    type Err = UnknownCapability;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Capability::ALL
            .iter()
            .copied()
            .find(|capability| capability.name() == name)
            .ok_or_else(|| UnknownCapability(name.to_owned()))
    }
}

/// A capability that is not in force, with the reason and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What is not enforced.
    pub capability: Capability,
    /// Why not, on this host.
    pub why: String,
    /// What closes the gap: a flag, a backend, a package, a setting.
    pub fix: String,
}

/// What one backend enforces on this host.
///
/// A capability in neither part is a gap all the same: a backend that says nothing enforces
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    enforced: BTreeSet<Capability>,
    gaps: BTreeMap<Capability, Gap>,
}

impl Offers {
    /// Offers nothing at all.
    #[must_use]
    pub fn nothing() -> Self {
        Offers::default()
    }

    /// Adds what is enforced.
    #[must_use]
    pub fn with(mut self, enforced: impl IntoIterator<Item = Capability>) -> Self {
        for capability in enforced {
            self.gaps.remove(&capability);
            self.enforced.insert(capability);
        }
        self
    }

    /// Adds a gap, with its reason and its fix. A gap wins over an earlier offer.
    #[must_use]
    pub fn without(mut self, capability: Capability, why: impl Into<String>, fix: impl Into<String>) -> Self {
        self.enforced.remove(&capability);
        self.gaps.insert(capability, Gap { capability, why: why.into(), fix: fix.into() });
        self
    }

    /// What is enforced.
    #[must_use]
    pub fn enforced(&self) -> &BTreeSet<Capability> {
        &self.enforced
    }

    /// The gaps that the backend explained.
    pub fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.values()
    }

    /// The gaps among what is asked for, in the vocabulary's order.
    #[must_use]
    pub fn missing(&self, asked: &BTreeSet<Capability>) -> Vec<Gap> {
        asked.difference(&self.enforced).map(|&capability| self.gap(capability)).collect()
    }

    /// Why a capability is not enforced.
    fn gap(&self, capability: Capability) -> Gap {
        self.gaps.get(&capability).cloned().unwrap_or_else(|| Gap {
            capability,
            why: "this backend doesn't offer it".into(),
            fix: "choose another backend: `cofferdam doctor` lists who offers it".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        for &capability in Capability::ALL {
            assert_eq!(capability.name().parse(), Ok(capability));
        }
        assert_eq!("nonsense".parse::<Capability>(), Err(UnknownCapability("nonsense".into())));
    }

    #[test]
    fn a_backend_that_says_nothing_enforces_nothing() {
        let asked = BTreeSet::from([Capability::Memory, Capability::Files]);
        let missing: Vec<_> =
            Offers::nothing().missing(&asked).into_iter().map(|gap| gap.capability).collect();
        assert_eq!(missing, [Capability::Files, Capability::Memory]);
    }

    #[test]
    fn a_gap_wins_over_an_earlier_offer() {
        let offers = Offers::nothing().with([Capability::Memory]).without(
            Capability::Memory,
            "no controller",
            "mount it",
        );
        let missing = offers.missing(&BTreeSet::from([Capability::Memory]));
        assert_eq!(missing[0].why, "no controller");
    }
}
