//! Everything that `doctor` reports. Written as JSON it is version 1 of a format that people script
//! against: names stay, and what is not known is null.

use cofferdam_broker::Finding;
use serde::Serialize;

/// What was found on this machine.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// The version of this format.
    pub(super) version: u32,
    /// The version of the program that wrote it.
    pub(super) cofferdam: &'static str,
    /// What each profile would run in, by name.
    pub(super) profiles: Vec<ProfileFound>,
    /// Every backend that there is a name for, by name.
    pub(super) backends: Vec<BackendFound>,
    /// The Pythons that are prepared for WebAssembly; null in a build without it.
    pub(super) pythons: Option<PythonsFound>,
    /// Other runtimes on the path that have, or could have, a security floor.
    pub(super) runtimes: Vec<RuntimeFound>,
    /// What leads out of a container.
    pub(super) way_out: WayOutFound,
    /// Who mints credentials for runs.
    pub(super) credentials: CredentialsFound,
    /// The kernel and what it has.
    pub(super) host: HostFound,
    /// Where runs are noted.
    pub(super) state: FolderFound,
    /// Where the audit log is.
    pub(super) audit: FolderFound,
    /// The operator's settings.
    pub(super) node: Node,
    /// What to do so that profile `internal` runs with everything enforced, in this order.
    pub(super) fixes: Vec<Fix>,
}

/// Something that isn't as it should be, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trouble {
    /// Why.
    pub(super) why: String,
    /// What to do.
    pub(super) fix: String,
}

impl Trouble {
    pub(super) fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Trouble { why: why.into(), fix: fix.into() }
    }
}

impl From<(String, String)> for Trouble {
    fn from((why, fix): (String, String)) -> Self {
        Trouble { why, fix }
    }
}

impl From<Finding> for Trouble {
    fn from(Finding { message, fix }: Finding) -> Self {
        Trouble { why: message, fix }
    }
}

/// What a profile would run in.
#[derive(Debug, Serialize)]
pub(super) struct ProfileFound {
    /// The profile.
    pub(super) name: &'static str,
    /// Whether a plain run of this profile would start here: default limits, no network.
    pub(super) runs: bool,
    /// The backend that it would get; null where it doesn't run.
    pub(super) backend: Option<&'static str>,
    /// The backends that it considers, first choice first.
    pub(super) considers: Vec<&'static str>,
    /// Why that backend, or why none.
    pub(super) why: String,
    /// What would make it run; null where it does, or where nothing on this machine would.
    pub(super) fix: Option<String>,
    /// The same in a few words, where it doesn't run.
    #[serde(skip)]
    pub(super) briefly: String,
}

/// A backend, and what it enforces here.
#[derive(Debug, Serialize)]
pub(super) struct BackendFound {
    /// The backend.
    pub(super) name: &'static str,
    /// Whether it can run anything here.
    pub(super) available: bool,
    /// Why it can't.
    pub(super) trouble: Option<Trouble>,
    /// A sandbox that was started to see whether one can be; null where what the host says of
    /// itself rules that out, or where the backend isn't part of this version.
    pub(super) trial: Option<Trial>,
    /// What it enforces, in the vocabulary's order.
    pub(super) enforced: Vec<&'static str>,
    /// What it doesn't enforce, in the vocabulary's order. With `enforced` the whole vocabulary, or
    /// empty where the backend isn't part of this version.
    pub(super) gaps: Vec<GapFound>,
    /// The languages that `run` knows by name.
    pub(super) languages: Vec<LanguageFound>,
}

/// A sandbox that was started and ended at once.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Trial {
    /// Whether it came up.
    pub(super) passed: bool,
    /// How long that took, in milliseconds; null where it didn't.
    pub(super) ms: Option<f64>,
}

/// What leads out of a container, for whoever has a rule for it.
#[derive(Debug, Serialize)]
pub(super) struct WayOutFound {
    /// Which connections come to the proxy; null where none does.
    pub(super) captured: Option<Captured>,
    /// Whether those of IPv6 do too; where not, nothing can be dialled over it.
    pub(super) ipv6: bool,
    /// Why not all of them do.
    pub(super) trouble: Option<Trouble>,
    /// A proxy that was started to see whether one can be.
    pub(super) proxy: Trial,
    /// Why none can be.
    pub(super) proxy_trouble: Option<Trouble>,
    /// Who is asked for names; empty means whoever the system asks.
    pub(super) resolvers: Vec<String>,
    /// The operator's own proxy, through which everything goes.
    pub(super) upstream_proxy: Option<String>,
}

/// Which connections out of a container are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Captured {
    /// All, by a table of nftables.
    EveryPort,
    /// Those to ports that a rule names, by a socket each; others are refused without a trace.
    ListedPorts,
}

/// A capability that is not enforced.
#[derive(Debug, Serialize)]
pub(super) struct GapFound {
    /// The capability.
    pub(super) name: &'static str,
    /// Why it isn't enforced.
    pub(super) why: String,
    /// What closes the gap.
    pub(super) fix: String,
}

/// Whether scripts of a language run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LanguageFound {
    /// The language, as `--lang` takes it.
    pub(super) name: &'static str,
    /// Whether a backend can run it.
    pub(super) runs: bool,
    /// Why.
    pub(super) why: String,
}

/// What is prepared for Python in WebAssembly.
#[derive(Debug, Serialize)]
pub(super) struct PythonsFound {
    /// Where.
    pub(super) folder: String,
    /// What Python's code takes, for all templates; null where it isn't ready.
    pub(super) code_bytes: Option<u64>,
    /// The templates that lie there, by name.
    pub(super) templates: Vec<TemplateFound>,
    /// What is wrong with the folder, or that no template is ready.
    pub(super) trouble: Option<Trouble>,
}

/// A template.
#[derive(Debug, Serialize)]
pub(super) struct TemplateFound {
    /// Its name.
    pub(super) name: String,
    /// Whether programs run in it. Otherwise it was made by another version or for another processor, or is
    /// damaged.
    pub(super) ready: bool,
    /// What it takes besides the code.
    pub(super) bytes: u64,
    /// When it was made: RFC 3339, UTC.
    pub(super) made: String,
    /// The modules that it was to import.
    pub(super) preload: Vec<String>,
    /// The packages that were added, as they were named.
    pub(super) packages: Vec<String>,
    /// What makes it anew.
    pub(super) remake: String,
    /// How long ago it was made, in words.
    #[serde(skip)]
    pub(super) age: String,
    /// What it has loaded, in words.
    #[serde(skip)]
    pub(super) loaded: String,
}

/// A runtime on the path.
#[derive(Debug, Serialize)]
pub(super) struct RuntimeFound {
    /// The runtime.
    pub(super) name: &'static str,
    /// The program that was found.
    pub(super) program: String,
    /// Its version; null where that isn't known.
    pub(super) version: Option<String>,
    /// The floor of each series; null where no floor is known.
    pub(super) floor: Option<String>,
    /// Where it stands.
    pub(super) standing: Standing,
    /// What is wrong, where it is below its floor or its version isn't known.
    pub(super) trouble: Option<Trouble>,
}

/// Where a runtime stands to its security floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Standing {
    /// Below, by its number; its distribution may have patched it.
    Below,
    /// At or above it.
    Fine,
    /// No floor is known for this runtime.
    NoFloor,
    /// Its version isn't known.
    Unknown,
}

/// Who mints credentials for runs, as the operator's `issuers.toml` says.
#[derive(Debug, Serialize)]
pub(super) struct CredentialsFound {
    /// The file that counts; null where there is none, so that no run gets a credential.
    pub(super) file: Option<String>,
    /// Where it is looked for; the first that is there counts.
    pub(super) places: Vec<String>,
    /// Why it can't be used.
    pub(super) trouble: Option<Trouble>,
    /// The issuers that it names.
    pub(super) issuers: Vec<IssuerFound>,
}

/// An issuer.
#[derive(Debug, Serialize)]
pub(super) struct IssuerFound {
    /// Its name.
    pub(super) name: String,
    /// The hosts that its credentials are for.
    pub(super) hosts: Vec<String>,
    /// Where its root is; never what it is.
    pub(super) root: String,
    /// Why its root can't be had, as far as that is seen without reading it.
    pub(super) trouble: Option<Trouble>,
    /// What came of trying it; null unless that was asked for.
    pub(super) tried: Option<IssuerTried>,
}

/// An issuer that was tried.
#[derive(Debug, Serialize)]
pub(super) struct IssuerTried {
    /// Whether it did what it should.
    pub(super) passed: bool,
    /// What was seen, in words.
    pub(super) seen: String,
    /// Why it didn't.
    pub(super) trouble: Option<Trouble>,
    /// What its server lets in besides.
    pub(super) findings: Vec<Trouble>,
}

/// The kernel and what it has.
#[derive(Debug, Serialize)]
pub(super) struct HostFound {
    /// The kernel's release; null where `/proc` doesn't show it.
    pub(super) kernel: Option<String>,
    /// The architecture that this program was built for.
    pub(super) architecture: &'static str,
    /// Whether this process is root.
    pub(super) root: bool,
    /// What suggests that this process is in a container itself. It may be more than these, or none.
    pub(super) container_signs: Vec<String>,
    /// The controllers that ceilings need: memory, cpu, pids.
    pub(super) cgroups: Vec<CgroupFound>,
    /// The second layer over the file system.
    pub(super) landlock: LandlockFound,
    /// What containers are made of.
    pub(super) user_namespaces: UserNamespacesFound,
    /// The filter of system calls.
    pub(super) seccomp: SeccompFound,
    /// Virtual machines in hardware.
    pub(super) kvm: KvmFound,
}

/// A cgroup controller.
#[derive(Debug, Serialize)]
pub(super) struct CgroupFound {
    /// The controller.
    pub(super) controller: &'static str,
    /// The version of cgroups that has it, 1 or 2; null where none can be used.
    pub(super) version: Option<u8>,
    /// The folder in which groups are made; null where a run has to get one first.
    pub(super) folder: Option<String>,
    /// What a run does first to get a group of its own, where it isn't root's and isn't there yet.
    pub(super) a_run_first: Option<String>,
    /// Why no group can be made; null where one can, or where a run gets one first.
    pub(super) missing: Option<String>,
    /// Why what it is for can't be enforced; null where that is done another way.
    pub(super) trouble: Option<Trouble>,
}

/// Landlock.
#[derive(Debug, Serialize)]
pub(super) struct LandlockFound {
    /// The version that the kernel has; null where it has none.
    pub(super) version: Option<u32>,
    /// The oldest version that is accepted.
    pub(super) minimum: u32,
    /// The version whose rights are used; null where it isn't used.
    pub(super) used: Option<u32>,
    /// The rights over the file system that are used, by the kernel's names.
    pub(super) rights: Vec<&'static str>,
    /// The scopes that are used, by the kernel's names.
    pub(super) scopes: Vec<&'static str>,
    /// Why it isn't used.
    pub(super) trouble: Option<Trouble>,
}

/// User namespaces.
#[derive(Debug, Serialize)]
pub(super) struct UserNamespacesFound {
    /// How many there may be (`user.max_user_namespaces`); null where that can't be read.
    pub(super) max: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, which some distributions have: 0 means root only.
    pub(super) unprivileged_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, which some distributions have: 1 means that
    /// AppArmor leaves an unprivileged one without capabilities.
    pub(super) apparmor_restricts_unprivileged: Option<u64>,
    /// Why there are none.
    pub(super) trouble: Option<Trouble>,
}

/// The filter of system calls.
#[derive(Debug, Serialize)]
pub(super) struct SeccompFound {
    /// What a filter can do with a call, by the kernel's names.
    pub(super) actions: Vec<String>,
    /// Whether this process is under a filter itself, which sandboxes inherit; null if not known.
    pub(super) filtered: Option<bool>,
    /// Why there is no filter.
    pub(super) trouble: Option<Trouble>,
}

/// KVM.
#[derive(Debug, Serialize)]
pub(super) struct KvmFound {
    /// What `/dev/kvm` is.
    pub(super) device: KvmDevice,
    /// Whether the module `kvm_pvm` is loaded, which runs a guest's kernel by emulation.
    pub(super) pvm: bool,
    /// Whether a guest's own kernel runs at a usable speed: false, or null where it wasn't measured.
    pub(super) usable: Option<bool>,
    /// Why.
    pub(super) why: String,
}

/// What `/dev/kvm` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KvmDevice {
    /// It isn't there.
    Absent,
    /// Something of that name is there that is not KVM.
    NotKvm,
    /// It can be opened.
    Opens,
    /// It is there and can't be opened.
    Refused,
}

/// A folder that runs need.
#[derive(Debug, Serialize)]
pub(super) struct FolderFound {
    /// Where.
    pub(super) folder: String,
    /// Whether it is there. If not, the first run makes it.
    pub(super) exists: bool,
    /// Whether it can be written, or made.
    pub(super) writable: bool,
    /// Why not.
    pub(super) trouble: Option<Trouble>,
}

/// The operator's settings.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    /// The file that counts; null where there is none, so that the defaults hold.
    pub(super) file: Option<String>,
    /// Where it is looked for; the first that is there counts.
    pub(super) places: Vec<String>,
    /// Why they can't be used.
    pub(super) trouble: Option<Trouble>,
}

/// Something to do.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    /// What.
    pub(super) fix: String,
    /// What it mends: capabilities, backends, `state`, `audit`, `node`, `policy`.
    pub(super) mends: Vec<&'static str>,
}
