//! What this host lets a container enforce. Every gap has its reason and its fix.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use cofferdam_core::capability::{Capability, Offers};
use cofferdam_core::policy::Limits;
use cofferdam_sys::capture::Support;
use cofferdam_sys::cgroup::{Cgroups, Controller, Missing};
use cofferdam_sys::launch::{Launch, LaunchError};
use cofferdam_sys::{fdpass, landlock, process, seccomp as filter};

use super::cpu::{Cores, View};
use super::files::HostFiles;
use super::ids::RunIds;
use super::root::Plan;
use super::{hindrances, open, reach, root};
use crate::agent;

/// What was found on the host.
#[derive(Debug)]
pub struct Host {
    /// Where groups can be made.
    pub cgroups: Cgroups,
    /// The version of Landlock, or the error that asking for it gave.
    pub landlock: Result<u32, String>,
    /// Why user namespaces can't be made, if they can't.
    pub no_user_namespaces: Option<(String, String)>,
    /// Why a container gets no `/proc` of its own, if it gets none.
    pub no_proc: Option<(String, String)>,
    /// Why there is no seccomp filter, if there is none.
    pub no_seccomp: Option<(String, String)>,
    /// Whether we are root here.
    pub root: bool,
    /// What of its network can be captured, or why nothing can and what to do.
    pub captures: Result<Support, (String, String)>,
}

impl Host {
    /// Looks, without changing anything.
    #[must_use]
    pub fn look() -> Self {
        let (proc, root) = (Path::new("/proc"), process::effective_user() == 0);
        let program = std::env::current_exe().unwrap_or_else(|_| "cofferdam".into());
        let hindered = || if root { None } else { hindrances::for_ordinary_users(proc, &program) };
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Host {
            cgroups: Cgroups::discover(),
            landlock: landlock::abi().map_err(|error| error.to_string()),
            no_user_namespaces: user_namespaces(proc).or_else(hindered),
            no_proc: hindrances::masked_proc(&mounts),
            no_seccomp: seccomp(proc),
            root,
            captures: Err(no_way_out()),
        }
    }

    /// The same for a command that starts sandboxes: gets a cgroup of our own where an ordinary user
    /// needs one ([`Cgroups::prepare`]).
    #[must_use]
    pub fn look_for_runs() -> Self {
        let mut host = Host::look();
        if host.impossible().is_none() {
            host.cgroups.prepare();
        }
        host
    }

    /// Looks at what of a sandbox's network can be captured, for ways out that are there. What was found is kept in
    /// a folder of ours, if that is there.
    pub fn look_at_captures(&mut self, folder: &Path) {
        if self.impossible().is_none() {
            self.captures =
                reach::support(folder).map_err(|why| (why.to_string(), HOW_TO_CAPTURE.to_owned()));
        }
    }

    /// Starts a sandbox as a run would, without cgroups and without a program, and ends it. Gives
    /// the time until it was ready, or why it never was and what to do.
    ///
    /// Files can promise what an outer container refuses; this can't. Nothing of it stays. It takes
    /// about as long as opening a sandbox, so it is for `doctor` and not for every run.
    ///
    /// # Errors
    ///
    /// The first step that failed with what the kernel said, and a fix.
    pub fn try_start(&self) -> Result<Duration, (String, String)> {
        let start = Instant::now();
        self.start_once().map(|()| start.elapsed()).map_err(|LaunchError { action, source }| {
            (format!("a trial start could not {action}: {source}"), how_to_start(&source).to_owned())
        })
    }

    fn start_once(&self) -> Result<(), LaunchError> {
        let failed = |action: &str| {
            let action = action.to_owned();
            move |source| LaunchError { action, source }
        };
        let (mut ours, theirs) = fdpass::pair().map_err(failed("make the control socket"))?;
        ours.set_read_timeout(Some(PATIENCE)).map_err(failed("set a deadline"))?;
        let cores = Cores::choose(Limits::DEFAULT.cpus);
        let launch = Launch {
            joins: vec![],
            born_in: None,
            ids: RunIds::unreserved(),
            mounts: vec![],
            steps: root::steps(&Plan::plain(&Limits::DEFAULT, View::of(&cores), &HostFiles::default())),
            cores: cores.as_slice().to_vec(),
            rlimits: open::rlimits(1, true),
            landlock: open::landlock(self),
            seccomp: Some(filter::container()),
            program: agent::in_memory(),
            argv: vec![c"cofferdam-guest".into()],
            envp: vec![],
            fds: vec![theirs.into()],
        };
        let mut launched = launch.spawn()?;
        let silent = match ours.read(&mut [0; 1]) {
            Ok(1..) => return Ok(()), // dropping `launched` ends it
            Ok(0) => io::ErrorKind::UnexpectedEof.into(),
            Err(error) => error,
        };
        // Whatever it is doing, it should have ended for its report to be complete.
        let _ = launched.kill();
        Err(launched.failure().unwrap_or_else(|| failed("hear from the guest agent")(silent)))
    }

    /// What a container enforces here.
    pub(super) fn offers(&self) -> Offers {
        let impossible = self.impossible();
        let mut offers = self.without_what_containers_never_have(Offers::nothing().with(ENFORCED));
        for capability in ENFORCED {
            if let Some((why, fix)) = impossible.clone().or_else(|| self.lacks(capability)) {
                offers = offers.without(capability, why, fix);
            }
        }
        offers
    }

    /// Why there can be no container at all.
    fn impossible(&self) -> Option<(String, String)> {
        self.no_user_namespaces.clone().or_else(|| self.no_seccomp.clone()).or_else(|| self.no_proc.clone())
    }

    /// Why the part of the host that a capability stands on isn't there, whatever else is missing.
    #[must_use]
    pub fn lacks(&self, capability: Capability) -> Option<(String, String)> {
        let controller = match capability {
            Capability::Cpu => Controller::Cpu,
            Capability::Landlock => return self.no_landlock(),
            Capability::Memory => Controller::Memory,
            // Without root the kernel counts processes by the sandbox's own user namespace.
            Capability::Pids if !self.root => return None,
            Capability::Pids => Controller::Pids,
            capability if REACHING_OUT.contains(&capability) => return self.no_capture(capability),
            _ => return None,
        };
        let missing = self.cgroups.place(controller).err()?;
        // Nothing is missing yet: a run asks first, and is refused if it isn't given.
        if let Missing::Pending { .. } = missing {
            return None;
        }
        Some((missing.to_string(), how_to_get(missing)))
    }

    /// Why what leaves can't be judged, or not at every port.
    fn no_capture(&self, capability: Capability) -> Option<(String, String)> {
        let support = match &self.captures {
            Ok(support) => support,
            Err(trouble) => return Some(trouble.clone()),
        };
        let every_port = support.every_port.as_ref().err()?;
        let unlisted = capability == Capability::DenialsUnlistedPort;
        unlisted.then(|| (every_port.to_string(), HOW_TO_CAPTURE_EVERY_PORT.to_owned()))
    }

    fn no_landlock(&self) -> Option<(String, String)> {
        let minimum = landlock::MINIMUM_ABI;
        match &self.landlock {
            Ok(abi) if *abi >= minimum => None,
            Ok(abi) => Some((
                format!("this kernel's Landlock has version {abi}, and {minimum} is needed"),
                "use Linux 5.19 or newer".into(),
            )),
            Err(error) => Some((
                format!("this kernel has no Landlock: {error}"),
                "boot with `landlock` in the kernel's lsm= list".into(),
            )),
        }
    }

    fn without_what_containers_never_have(&self, offers: Offers) -> Offers {
        offers
            .without(
                Capability::SeparateKernel,
                "a container shares the host's kernel",
                "no backend of this version has a kernel of its own: don't require it, or wait for microVMs",
            )
            .without(
                Capability::NoAmbientAuthority,
                "a Linux program can make system calls",
                "choose what has none, for Python and .wasm files: --backend wasm",
            )
            .without(
                Capability::Credentials,
                "this version mints no credentials",
                "remove the credential from the policy",
            )
            .without(
                Capability::RuntimeVersion,
                "there is no separate runtime here whose version could be judged",
                "don't require it; keep Cofferdam and the kernel up to date",
            )
            .without(
                Capability::ProviderEgress,
                "there is no provider: the program runs on this host",
                "no backend of this version is a provider's: don't require it",
            )
    }
}

/// What a container enforces where nothing stands in the way.
const ENFORCED: [Capability; 16] = [
    Capability::Cpu,
    Capability::DenialsUnlistedPort,
    Capability::Disk,
    Capability::Dns,
    Capability::Egress,
    Capability::EgressHttp,
    Capability::EgressTcp,
    Capability::Files,
    Capability::Landlock,
    Capability::Memory,
    Capability::Network,
    Capability::Output,
    Capability::Pids,
    Capability::Syscalls,
    Capability::Timeout,
    Capability::Tty,
];

/// What of that needs a capture of the network, and somebody who judges what is captured.
pub(super) const REACHING_OUT: [Capability; 5] = [
    Capability::DenialsUnlistedPort,
    Capability::Dns,
    Capability::Egress,
    Capability::EgressHttp,
    Capability::EgressTcp,
];

/// Why a container reaches nobody where nothing was said about ways out.
fn no_way_out() -> (String, String) {
    let why = "nothing here lets anything out of a container but to its own loopback";
    (why.to_owned(), "remove the network rules, or use a build with an egress proxy".to_owned())
}

/// What to do where nothing can be captured.
const HOW_TO_CAPTURE: &str = "run it on the host itself, outside of containers, with CONFIG_NET_NS";

/// What to do where nftables is missing.
const HOW_TO_CAPTURE_EVERY_PORT: &str = "load the kernel's modules nf_tables, nft_redir and nft_reject_inet                                          (modprobe), or use a kernel with CONFIG_NF_TABLES_INET";

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
        let refused = |error: io::Error| {
            (
                format!("seccomp filters can't be had here: {error}"),
                "run it outside of what refuses seccomp(2): an outer container's own filter, say".into(),
            )
        };
        return filter::ask().err().map(refused);
    }
    Some((
        "this kernel has no seccomp filter, or /proc/sys hides it".into(),
        "use a kernel with CONFIG_SECCOMP_FILTER, and a /proc that shows sys/kernel/seccomp".into(),
    ))
}

/// How long a trial start may take: hundreds of times what it needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do about a start that the kernel refused although its files promised it.
fn how_to_start(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run it on the host itself, or give the outer container CAP_SYS_ADMIN, a /proc of which nothing \
             is hidden, and a seccomp profile that allows namespaces and mounts"
        }
        io::ErrorKind::StorageFull => {
            "a limit on namespaces or mounts is used up: raise user.max_*_namespaces or fs.mount-max by sysctl"
        }
        _ => "run it on the host itself, outside of containers, with Linux 5.19 or newer",
    }
}

/// How to close a gap in the cgroups.
fn how_to_get(missing: &Missing) -> String {
    match missing {
        Missing::NotMounted(controller) => {
            format!("mount the cgroup file systems, with the {controller} controller enabled")
        }
        Missing::Hidden(_) => {
            "run where the cgroup file systems can be seen, outside of what hides them".into()
        }
        Missing::NotWritable(_) => "run as root, or where /sys/fs/cgroup is mounted for writing".into(),
        Missing::NotDelegated { controller, .. } => {
            format!("enable it above: echo +{controller} > /sys/fs/cgroup/cgroup.subtree_control")
        }
        Missing::Pending { .. } => "start a run: it gets the cgroup first".into(),
        Missing::NoScope { .. } => {
            "log in through PAM with systemd (ssh, a console, `machinectl shell`), or have root call \
             `loginctl enable-linger USER` and set XDG_RUNTIME_DIR=/run/user/UID; or start it in a cgroup \
             that is yours alone: systemd-run --user --scope -p Delegate=yes cofferdam …"
                .into()
        }
        Missing::Withheld { .. } => "as root: printf '[Service]\\nDelegate=cpu memory pids\\n' > \
             /etc/systemd/system/user@.service.d/delegate.conf (make that folder first), then systemctl \
             daemon-reload, and log in anew"
            .into(),
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
            no_proc: None,
            no_seccomp: None,
            root: true,
            captures: Err(no_way_out()),
        };
        let offers = host.offers();
        assert!(offers.enforced().is_empty());
        for gap in offers.missing(&ENFORCED.into()) {
            assert_eq!((gap.why.as_str(), gap.fix.as_str()), ("off", "on"), "{}", gap.capability);
        }
    }

    #[test]
    fn every_word_of_the_vocabulary_is_enforced_or_explained() {
        let host = Host {
            cgroups: Cgroups::parse("", ""),
            landlock: Ok(7),
            no_user_namespaces: None,
            no_proc: None,
            no_seccomp: None,
            root: true,
            captures: Err(no_way_out()),
        };
        let offers = host.offers();
        let explained: Vec<_> = offers.gaps().map(|gap| gap.capability).collect();
        for capability in Capability::ALL {
            assert!(offers.enforced().contains(capability) || explained.contains(capability), "{capability}");
        }
    }

    #[test]
    fn each_missing_piece_is_a_gap_of_its_own() {
        let host = Host {
            cgroups: Cgroups::parse("", ""),
            landlock: Ok(1),
            no_user_namespaces: None,
            no_proc: None,
            no_seccomp: None,
            root: true,
            captures: Err(no_way_out()),
        };
        let offers = host.offers();
        for capability in [Capability::Memory, Capability::Cpu, Capability::Pids, Capability::Landlock] {
            assert!(!offers.enforced().contains(&capability), "{capability}");
        }
        assert!(offers.enforced().contains(&Capability::Syscalls));
    }
}
