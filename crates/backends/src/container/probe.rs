//! What this host lets a container enforce. Every gap has its reason and its fix.

use std::fs;
use std::path::Path;

use cofferdam_core::capability::{Capability, Offers};
use cofferdam_sys::cgroup::{Cgroups, Controller, Missing};
use cofferdam_sys::{landlock, process};

/// What was found on the host.
#[derive(Debug)]
pub struct Host {
    /// Where groups can be made.
    pub cgroups: Cgroups,
    /// The version of Landlock, or the error that asking for it gave.
    pub landlock: Result<u32, String>,
    /// Why user namespaces can't be made, if they can't.
    pub no_user_namespaces: Option<(String, String)>,
    /// Why there is no seccomp filter, if there is none.
    pub no_seccomp: Option<(String, String)>,
    /// Whether we are root here.
    pub root: bool,
}

impl Host {
    /// Looks, without changing anything.
    #[must_use]
    pub fn look() -> Self {
        Host {
            cgroups: Cgroups::discover(),
            landlock: landlock::abi().map_err(|error| error.to_string()),
            no_user_namespaces: user_namespaces(Path::new("/proc")),
            no_seccomp: seccomp(Path::new("/proc")),
            root: process::effective_user() == 0,
        }
    }

    /// What a container enforces here.
    pub(super) fn offers(&self) -> Offers {
        if let Some((why, fix)) = self.impossible() {
            return ENFORCED.iter().fold(Offers::nothing(), |offers, &capability| {
                offers.without(capability, why.clone(), fix.clone())
            });
        }
        let mut offers = Offers::nothing().with(ENFORCED);
        for (controller, capability) in [
            (Controller::Memory, Capability::Memory),
            (Controller::Cpu, Capability::Cpu),
            (Controller::Pids, Capability::Pids),
        ] {
            if let Err(missing) = self.cgroups.place(controller) {
                offers = offers.without(capability, missing.to_string(), how_to_get(missing));
            }
        }
        self.without_landlock(self.without_what_containers_never_have(offers))
    }

    /// Why there can be no container at all.
    fn impossible(&self) -> Option<(String, String)> {
        let not_root = || {
            let why = "this version starts containers as root only";
            Some((why.to_owned(), "run it as root, for example with sudo".to_owned()))
        };
        self.no_user_namespaces
            .clone()
            .or_else(|| self.no_seccomp.clone())
            .or_else(|| if self.root { None } else { not_root() })
    }

    fn without_landlock(&self, offers: Offers) -> Offers {
        let (why, fix) = match &self.landlock {
            Ok(abi) if *abi >= landlock::MINIMUM_ABI => return offers,
            Ok(abi) => (
                format!("this kernel's Landlock has version {abi}, and {} is needed", landlock::MINIMUM_ABI),
                "use Linux 5.19 or newer",
            ),
            Err(error) => (
                format!("this kernel has no Landlock: {error}"),
                "boot with `landlock` in the kernel's lsm= list",
            ),
        };
        offers.without(Capability::Landlock, why, fix)
    }

    fn without_what_containers_never_have(&self, offers: Offers) -> Offers {
        let not_yet = "this version's containers have no network but their own loopback";
        let mut offers = offers
            .without(
                Capability::SeparateKernel,
                "a container shares the host's kernel",
                "choose a microVM: --backend microvm",
            )
            .without(
                Capability::NoAmbientAuthority,
                "a Linux program can make system calls",
                "choose WebAssembly: --backend wasm",
            )
            .without(
                Capability::Tty,
                "this version gives a container no terminal",
                "run without -t",
            )
            .without(
                Capability::Credentials,
                "this version mints no credentials",
                "remove the credential from the policy",
            );
        for capability in
            [Capability::Egress, Capability::EgressHttp, Capability::EgressTcp, Capability::Dns]
        {
            offers = offers.without(capability, not_yet, "remove the network rules");
        }
        offers
    }
}

/// What every container enforces by construction.
const ENFORCED: [Capability; 10] = [
    Capability::Cpu,
    Capability::Disk,
    Capability::Files,
    Capability::Landlock,
    Capability::Memory,
    Capability::Network,
    Capability::Output,
    Capability::Pids,
    Capability::Syscalls,
    Capability::Timeout,
];

/// Why user namespaces can't be made, from what the kernel says about itself.
fn user_namespaces(proc: &Path) -> Option<(String, String)> {
    let limit = proc.join("sys/user/max_user_namespaces");
    match fs::read_to_string(&limit).ok().as_deref().map(str::trim) {
        None | Some("") => Some((
            "this kernel has no user namespaces, or /proc/sys hides them".into(),
            "use a kernel with CONFIG_USER_NS, and a /proc that shows sys/user".into(),
        )),
        Some("0") => Some((
            "user namespaces are switched off (user.max_user_namespaces is 0)".into(),
            "sysctl -w user.max_user_namespaces=15000".into(),
        )),
        Some(_) => None,
    }
}

/// Why there is no seccomp filter.
fn seccomp(proc: &Path) -> Option<(String, String)> {
    let actions = fs::read_to_string(proc.join("sys/kernel/seccomp/actions_avail")).unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "errno") {
        return None;
    }
    Some((
        "this kernel has no seccomp filter, or /proc/sys hides it".into(),
        "use a kernel with CONFIG_SECCOMP_FILTER, and a /proc that shows sys/kernel/seccomp".into(),
    ))
}

/// How to close a gap in the cgroups.
fn how_to_get(missing: &Missing) -> String {
    match missing {
        Missing::NotMounted(controller) => {
            format!("mount the cgroup file systems, with the {controller} controller enabled")
        }
        Missing::NotWritable(_) => {
            "run as root, or where /sys/fs/cgroup is mounted for writing".into()
        }
        Missing::NotDelegated { controller, .. } => {
            format!("enable it above: echo +{controller} > /sys/fs/cgroup/cgroup.subtree_control")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc_with(limit: Option<&str>) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("sys/user")).unwrap();
        if let Some(limit) = limit {
            fs::write(proc.path().join("sys/user/max_user_namespaces"), limit).unwrap();
        }
        proc
    }

    #[test]
    fn user_namespaces_that_are_off_are_told_from_those_that_are_hidden() {
        assert_eq!(user_namespaces(proc_with(Some("100\n")).path()), None);
        assert!(user_namespaces(proc_with(Some("0\n")).path()).unwrap().0.contains("switched off"));
        assert!(user_namespaces(proc_with(None).path()).unwrap().0.contains("hides"));
    }

    #[test]
    fn a_host_without_anything_offers_nothing_and_says_why() {
        let host = Host {
            cgroups: Cgroups::parse("", ""),
            landlock: Err("ENOSYS".into()),
            no_user_namespaces: Some(("off".into(), "on".into())),
            no_seccomp: None,
            root: true,
        };
        assert!(host.offers().enforced().is_empty());
        assert!(host.offers().gaps().all(|gap| gap.why == "off" && gap.fix == "on"));
    }

    #[test]
    fn each_missing_piece_is_a_gap_of_its_own() {
        let host = Host {
            cgroups: Cgroups::parse("", ""),
            landlock: Ok(1),
            no_user_namespaces: None,
            no_seccomp: None,
            root: true,
        };
        let offers = host.offers();
        for capability in
            [Capability::Memory, Capability::Cpu, Capability::Pids, Capability::Landlock]
        {
            assert!(!offers.enforced().contains(&capability), "{capability}");
        }
        assert!(offers.enforced().contains(&Capability::Syscalls));
    }
}
