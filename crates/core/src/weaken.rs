//! Switches that turn one control off, so that tests can show that somebody would notice.
//!
//! They exist in builds with the feature `weaken` alone, which `cargo xtask mutate` and the tests of
//! crashes ask for and nothing else does. In every other build [`is_off`] is the constant `false`, and
//! no environment variable is read.

macro_rules! controls {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// What can be turned off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Control { $($(#[$doc])* $variant,)+ }

        impl Control {
            /// Every one of them.
            pub const ALL: &[Control] = &[$(Control::$variant,)+];

            /// Its name, as the variable spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Control::$variant => $name,)+ }
            }
        }
    };
}

controls! {
    /// Every address is dialled.
    AddressCheck = "address-check",
    /// Nothing is written into the audit log.
    Audit = "audit",
    /// The capability sets and the bounding set stay as they are.
    Capabilities = "capabilities",
    /// Connections to ports that no rule names aren't captured.
    CatchAll = "catch-all",
    /// No cgroup namespace.
    CgroupNamespace = "cgroup-namespace",
    /// A control socket of the host's is shown in `/run`: a vulnerability on purpose.
    ControlSocket = "control-socket",
    /// No ceiling on processor time.
    Cpu = "cpu",
    /// No ceiling on bytes written.
    Disk = "disk",
    /// Nothing that leaves is counted.
    EgressBudget = "egress-budget",
    /// The host's whole environment is passed in.
    Environment = "environment",
    /// No ceiling on the number of files.
    Files = "files",
    /// What may be a credential that isn't the run's goes to a host that has one of the run's.
    ForeignCredential = "foreign-credential",
    /// No seccomp filter.
    Filter = "filter",
    /// A seccomp filter that was compiled from nothing: a vulnerability on purpose.
    FilterIsEmpty = "filter-is-empty",
    /// The host that a request names isn't held against its connection's.
    HostCheck = "host-check",
    /// Nothing counts as something that a tool of the host would run.
    HostExec = "host-exec",
    /// The host's root is shown at `/host`: a vulnerability on purpose.
    HostRoot = "host-root",
    /// Names that the policy hides are shown.
    Hide = "hide",
    /// No System V and POSIX message namespace.
    IpcNamespace = "ipc-namespace",
    /// No Landlock.
    Landlock = "landlock",
    /// What stands for a credential is taken after its time.
    LeaseEnd = "lease-end",
    /// Collecting follows links.
    Links = "links",
    /// Kernel surfaces in `/proc` and `/sys` aren't covered.
    Masks = "masks",
    /// No ceiling on memory.
    Memory = "memory",
    /// The host's network namespace.
    NetNamespace = "net-namespace",
    /// No `no_new_privs`.
    NoNewPrivileges = "no-new-privileges",
    /// Output isn't bounded.
    Output = "output",
    /// The host's process namespace.
    PidNamespace = "pid-namespace",
    /// No ceiling on processes.
    Pids = "pids",
    /// The system isn't read-only.
    ReadOnly = "read-only",
    /// No limits for each process.
    Rlimits = "rlimits",
    /// Every rule names every host.
    RuleMatch = "rule-match",
    /// The server name of a handshake isn't held against its connection's.
    SniCheck = "sni-check",
    /// A program gets the secret itself and nothing that stands for it.
    Surrogate = "surrogate",
    /// Nobody sees what stands for a credential where it doesn't belong.
    SurrogatePlace = "surrogate-place",
    /// The deadline comes 20 s late, so that what nothing else ends comes to an end all the same.
    Timeout = "timeout",
    /// No user namespace: the ids inside are the host's.
    UserNamespace = "user-namespace",
    /// The host's name can be changed.
    UtsNamespace = "uts-namespace",
    /// WebAssembly's engine gives as much linear memory as can be addressed.
    WasmMemory = "wasm-memory",
    /// Every run of a Python in WebAssembly gets the same seed.
    WasmSeed = "wasm-seed",
    /// A worker whose program the engine ended goes on as if it had exited.
    WasmTraps = "wasm-traps",
    /// A worker is given the next program with what the last one left.
    WasmWipe = "wasm-wipe",
}

/// Every place where a run can be stopped, in the order in which a run comes by. Each is in the sources
/// once; `cargo xtask crash` kills a run at each.
pub const PLACES: &[&str] = &[
    "result-prepared",
    "event-written",
    "granted",
    "run-unfinished",
    "run-noted",
    "opening-recorded",
    "ids-reserved",
    "cgroups-made",
    "disk-made",
    "disk-attached",
    "agent-unfinished",
    "cloned",
    "ids-mapped",
    "files-filled",
    "opened",
    "parked",
    "file-put",
    "program-started",
    "program-ended",
    "halted",
    "result-begun",
    "collecting",
    "result-named",
    "collected",
    "closed",
    "run-forgotten",
    "end-recorded",
    "outcome-printed",
];

/// The variable that names the place where a run stops.
#[cfg(feature = "weaken")]
pub const STOP_AT: &str = "COFFERDAM_STOP_AT";

/// The variable that names the control that is off.
#[cfg(feature = "weaken")]
pub const OFF: &str = "COFFERDAM_WEAKEN";

/// Whether a control is off.
///
/// May be called after a `clone` without an exec if it was called before: nothing is allocated then.
#[cfg(feature = "weaken")]
#[must_use]
pub fn is_off(control: Control) -> bool {
    static NAMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var(OFF).ok());
    named.as_deref() == Some(control.name())
}

/// Whether some control is off.
#[cfg(feature = "weaken")]
#[must_use]
pub fn is_any_off() -> bool {
    Control::ALL.iter().any(|control| is_off(*control))
}

/// Whether some control is off: none is.
#[cfg(not(feature = "weaken"))]
#[inline]
#[must_use]
pub const fn is_any_off() -> bool {
    false
}

/// Whether a control is off: it isn't.
#[cfg(not(feature = "weaken"))]
#[inline]
#[must_use]
pub const fn is_off(_: Control) -> bool {
    false
}

/// Stops here for good if the variable names this place, after saying so on standard error: whoever
/// reads that kills us.
#[cfg(feature = "weaken")]
pub fn stop_at(place: &str) {
    if std::env::var(STOP_AT).is_ok_and(|named| named == place) {
        eprintln!("stopped at {place}");
        loop {
            std::thread::park();
        }
    }
}

/// A place where a run could be stopped: it isn't.
#[cfg(not(feature = "weaken"))]
#[inline]
pub const fn stop_at(_: &str) {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The names of all calls in the sources below a folder.
    fn calls(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                calls(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split("stop_at(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }

    #[test]
    fn each_place_is_in_the_sources_once_and_no_other_is() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = vec![];
        for entry in fs::read_dir(crates).unwrap() {
            calls(&entry.unwrap().path().join("src"), &mut found);
        }
        found.sort();
        let mut places = PLACES.to_vec();
        places.sort_unstable();
        assert_eq!(found, places);
    }
}
