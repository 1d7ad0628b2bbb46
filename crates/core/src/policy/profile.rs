//! The four profiles, and the backends that each considers, in order.

use std::fmt;
use std::str::FromStr;

/// A name that isn't in the vocabulary, with the names that are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a {what}; it is one of {known}")]
pub struct UnknownName {
    /// What was written.
    pub name: String,
    /// What it should have been: "profile", "backend".
    pub what: &'static str,
    /// The names that exist.
    pub known: String,
}

macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$vdoc:meta])* $variant:ident = $name:literal,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$vdoc])* $variant,)+ }

        impl $type {
            /// Every one, in the order in which they are printed.
            pub const ALL: &[$type] = &[$($type::$variant,)+];

            /// The public name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $type::ALL.iter().copied().find(|it| it.name() == name).ok_or_else(|| UnknownName {
                    name: name.to_owned(),
                    what: $what,
                    known: [$($name,)+].join(", "),
                })
            }
        }
    };
}

named! {
    /// A boundary that can run a program.
    BackendName, "backend",
    /// Namespaces, cgroups, seccomp and Landlock on the host's own kernel.
    Container = "container",
    /// A container whose system calls are served by gVisor.
    Gvisor = "gvisor",
    /// Somebody else's sandboxes behind an API.
    Hosted = "hosted",
    /// A container in a virtual machine of its own, by Kata.
    Kata = "kata",
    /// A virtual machine with a kernel of its own.
    Microvm = "microvm",
    /// WebAssembly: nothing but declared imports.
    Wasm = "wasm",
}

named! {
    /// How much a program is trusted.
    Profile, "profile",
    /// Computation over data that you hand it.
    Compute = "compute",
    /// Inputs that you control; accident-shaped risk.
    Internal = "internal",
    /// Low volume, nobody to operate it.
    Managed = "managed",
    /// Anything downstream of text that an outsider controls.
    Untrusted = "untrusted",
}

impl Profile {
    /// The backends that `auto` considers, first choice first.
    #[must_use]
    pub fn considers(self) -> &'static [BackendName] {
        match self {
            Profile::Compute => &[BackendName::Wasm],
            Profile::Internal => &[BackendName::Container, BackendName::Gvisor],
            Profile::Managed => &[BackendName::Hosted],
            Profile::Untrusted => {
                &[BackendName::Wasm, BackendName::Microvm, BackendName::Kata, BackendName::Hosted]
            }
        }
    }

    /// The backends that this profile rules out even when they are asked for by name.
    #[must_use]
    pub fn never(self) -> &'static [BackendName] {
        match self {
            Profile::Untrusted => &[BackendName::Container],
            Profile::Compute | Profile::Internal | Profile::Managed => &[],
        }
    }
}
