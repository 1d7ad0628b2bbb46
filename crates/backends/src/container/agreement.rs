//! What a grant allows and what the kernel is told to hold are the same: a container's plan is read
//! back into what it would let through, and held against the grant for random policies.
//!
//! The plan is an ordinary user's. As root the same steps are given mounts that were made ready, of which
//! nothing can be read back, and a disk beyond memory is formatted; what comes of both is looked at by the
//! conformance suite and by the tests of the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use cofferdam_core::capability::Capability;
use cofferdam_core::files::{ALWAYS_HIDDEN, GuestPath, Pattern, Python, Shown, Workspace};
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::Deliveries;
use cofferdam_core::policy::{
    Ceiling, Cpus, Layer, Limits, LimitsLayer, Policy, PolicyHash, Profile, decide,
};
use cofferdam_core::request::{Argv, Program, Request, Variable, WindowSize};
use cofferdam_sys::landlock::Access;
use cofferdam_sys::launch::{Ids, Resource, Step};
use proptest::prelude::*;

use super::cpu::{Cores, View};
use super::disk;
use super::files::HostFiles;
use super::fittings::Fittings;
use super::open::{ceilings, rlimits};
use super::root::{self, Plan};
use super::session::variables;

/// A host's folder with a folder and a file that may be shown, and a workspace.
struct HostFolder(tempfile::TempDir);

impl HostFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("data/deep")).unwrap();
        std::fs::write(folder.path().join("file.txt"), "x").unwrap();
        for (name, _) in IN_WORKSPACE {
            let path = folder.path().join("work").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        HostFolder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }
}

/// Files of the workspace, and which pattern hides them.
const IN_WORKSPACE: [(&str, Option<&str>); 6] = [
    (".env", Some(ALWAYS_HIDDEN[0])),
    (".git/hooks/x", Some(ALWAYS_HIDDEN[1])),
    ("sub/a.key", Some("*.key")),
    ("sub/deep/.env.local", Some(ALWAYS_HIDDEN[0])),
    ("private/x", Some("private")),
    ("seen.txt", None),
];

fn grant(layer: Layer, terminal: bool) -> Grant {
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    let request = Request {
        program: Program::Command(Argv::new(c"true".into(), vec![])),
        files: vec![],
        labels: BTreeMap::new(),
        environment: vec![],
        terminal: terminal.then_some(WindowSize { columns: 80, rows: 24 }),
        collect: false,
    };
    decide(&policy, PolicyHash(String::new()), &request).unwrap()
}

/// The steps for a grant of an ordinary user's, for whom nothing has to be mounted first, and what of the
/// workspace is hidden.
fn steps(grant: &Grant) -> (Vec<Step>, BTreeSet<String>) {
    let ids = Ids { inside: 1000, outside: 1000, group_outside: 1000, root_outside: None };
    let mut files = HostFiles::prepare(grant.files(), &ids, None, &Fittings::default()).unwrap();
    let cpu = View::of(&Cores::choose(grant.limits().cpus));
    let disk = disk::is_needed(grant.limits()).then_some(0);
    let terminal = grant.asks().contains(&Capability::Tty);
    let steps = root::steps(&Plan {
        limits: grant.limits(),
        cpu,
        files: &files,
        terminal,
        disk,
        captured: None,
        trust: None,
    });
    let survey = files.workspace.take().map(|plan| plan.surveying.finish().unwrap());
    let hidden = survey.into_iter().flat_map(|survey| survey.hidden);
    (steps, hidden.map(|path| String::from_utf8(path).unwrap()).collect())
}

/// A mount of a sandbox, as its steps leave it.
#[derive(Clone, Debug)]
struct Mount {
    /// Below the new root, or beside it if it begins with `..`.
    target: String,
    read_only: bool,
    /// What of the host it shows, or none.
    host: Option<PathBuf>,
    /// Whether what is written goes to a layer of the sandbox's own.
    layer: bool,
}

/// The mounts that the steps make, in their order: of those that cover a path the last counts.
fn mounts(steps: &[Step]) -> Vec<Mount> {
    let text = |path: &CStr| path.to_str().unwrap().trim_matches('/').to_owned();
    let mut mounts: Vec<Mount> = vec![];
    for step in steps {
        match step {
            Step::NewRoot { .. } => {
                mounts.push(Mount { target: String::new(), read_only: false, host: None, layer: false });
            }
            Step::Bind { source, target } if source.to_bytes().starts_with(b"/") => {
                let host = Some(PathBuf::from(source.to_str().unwrap()));
                mounts.push(Mount { target: text(target), read_only: false, host, layer: false });
            }
            Step::Bind { source, target } => {
                let (read_only, host) = covering(&mounts, &text(source)).unwrap_or((false, None));
                mounts.push(Mount { target: text(target), read_only, host, layer: false });
            }
            Step::Mount { kind, target, flags, options } => {
                let options = options.to_str().unwrap();
                let theirs = |part: &&str| part.starts_with("../shown") || *part == "../lower";
                let lower = options.split([':', ',']).find(theirs);
                let shown = lower.filter(|_| kind.as_c_str() == c"overlay");
                let host = shown.and_then(|lower| covering(&mounts, lower)).and_then(|(_, host)| host);
                // The layer that takes what is written is no place of the host's.
                let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="));
                let layer =
                    upper.is_some_and(|upper| covering(&mounts, upper).is_none_or(|(_, it)| it.is_none()));
                mounts.push(Mount { target: text(target), read_only: flags.read_only, host, layer });
            }
            Step::Attach { target, .. } => {
                mounts.push(Mount { target: text(target), read_only: false, host: None, layer: false });
            }
            Step::Attributes { target, set, recursive } => {
                let target = text(target);
                let last = mounts.iter().rposition(|mount| mount.target == target).unwrap();
                let below = |mount: &Mount| *recursive && is_within(&mount.target, &target);
                for (at, mount) in mounts.iter_mut().enumerate() {
                    mount.read_only |= set.read_only && (at == last || below(mount));
                }
            }
            _ => {}
        }
    }
    mounts
}

fn is_within(path: &str, folder: &str) -> bool {
    // What lies beside the root isn't in it.
    folder.is_empty() && !path.starts_with("..")
        || path
            .strip_prefix(folder)
            .is_some_and(|rest| !folder.is_empty() && (rest.is_empty() || rest.starts_with('/')))
}

/// Whether a path can't be written, and what of the host it is.
fn covering(mounts: &[Mount], path: &str) -> Option<(bool, Option<PathBuf>)> {
    let mount = mounts.iter().rev().find(|mount| is_within(path, &mount.target))?;
    let rest = path[mount.target.len()..].trim_start_matches('/');
    let host = mount.host.as_ref().map(|host| if rest.is_empty() { host.clone() } else { host.join(rest) });
    Some((mount.read_only, host))
}

/// Whether the rules of Landlock let somebody write below a path.
fn landlock_lets_write(path: &str) -> bool {
    let rules = root::landlock_rules();
    let mut writing = rules.iter().filter(|(_, access)| *access == Access::Write);
    writing.any(|(folder, _)| is_within(path, folder.to_str().unwrap().trim_matches('/')))
}

/// The quota that the steps give: bytes and files, less what they put there themselves.
fn quota(steps: &[Step]) -> (u64, u64) {
    let mut made = (0, 2);
    let mut given = None;
    for step in steps {
        match step {
            Step::NewRoot { options, .. } => {
                let option = |name: &str| {
                    let text = options.to_str().unwrap();
                    let value = text.split(',').find_map(|option| option.strip_prefix(name)).unwrap();
                    value.parse::<u64>().unwrap()
                };
                given = Some((option("size="), option("nr_inodes=")));
            }
            Step::File { bytes, .. } => {
                made = (made.0 + (bytes.len() as u64).div_ceil(4096) * 4096, made.1 + 1);
            }
            Step::Folder { .. } | Step::Link { .. } => made.1 += 1,
            _ => {}
        }
    }
    let (bytes, files) = given.unwrap();
    (bytes - made.0, files - made.1)
}

fn limits() -> impl Strategy<Value = LimitsLayer> {
    let bytes = || prop_oneof![Just(1u64 << 20), 1u64..1 << 40, Just(1u64 << 30)];
    let disk = prop::option::of(bytes());
    (bytes(), 10u32..64_000, 1u32..1 << 22, disk, 1u64..1 << 40).prop_map(
        |(memory, cpus, pids, disk, files)| LimitsLayer {
            memory_bytes: Some(memory),
            cpus: Cpus::from_thousandths(cpus),
            pids: Some(pids),
            disk_bytes: disk,
            files: Some(files),
            ..LimitsLayer::default()
        },
    )
}

fn some_variables() -> impl Strategy<Value = Vec<Variable>> {
    let name = prop_oneof![Just("A"), Just("B"), Just("PATH"), Just("HOME"), Just("LD_PRELOAD")];
    let variable = (name, "[a-z=\n-]{0,6}").prop_map(|(name, value)| Variable::new(name, value).unwrap());
    prop::collection::vec(variable, 0..4)
}

/// Places for what is shown; some lie within others or where a program can write.
const GUESTS: [&str; 6] =
    ["/inputs/data", "/inputs/file.txt", "/tmp/x", "/home/user/deep/er", "/opt/tool", "/srv/a b:c,d"];

fn some_shown() -> impl Strategy<Value = BTreeSet<(usize, bool)>> {
    prop::collection::btree_set((0..GUESTS.len(), any::<bool>()), 0..4)
}

/// Numbers at and around a bound.
fn around(bound: u64) -> [u64; 5] {
    [0, bound.saturating_sub(1), bound, bound.saturating_add(1), u64::MAX]
}

/// Places whose rights are the same in every sandbox: which of them can be written.
const PLACES: [(&str, bool); 14] = [
    ("", false),
    ("x", false),
    ("usr/bin/x", false),
    ("etc/passwd", false),
    ("home/x", false),
    ("home/user/x", true),
    ("workspace/x", true),
    ("tmp/y", true),
    ("dev/shm/x", true),
    ("dev/x", false),
    ("inputs/x", false),
    ("run/x", false),
    ("sys/devices/x", false),
    ("var/x", false),
];

fn numbers_agree(grant: &Grant) {
    let (granted, told) = (grant.limits(), ceilings(grant.limits(), &Fittings::default()));
    for n in around(granted.memory_bytes) {
        assert_eq!(n <= told.memory_bytes, n <= granted.memory_bytes, "{n} bytes of memory");
    }
    for n in around(u64::from(granted.pids)) {
        // The agent is a process too.
        let by_cgroup = n.saturating_add(1) <= u64::from(told.pids);
        assert_eq!(by_cgroup, n <= u64::from(granted.pids), "{n} processes");
        let by_rlimit = rlimits(told.pids, false).into_iter().find(|(what, _)| *what == Resource::Processes);
        assert_eq!(n.saturating_add(1) <= by_rlimit.unwrap().1, by_cgroup, "{n} processes of a user");
    }
    assert_eq!(told.cpu_thousandths, granted.cpus.thousandths());
}

fn disk_agrees(limits: &Limits, steps: &[Step]) {
    let (bytes, files) = quota(steps);
    if disk::is_needed(limits) {
        // It is on a file system of its own, which is made for these limits; here nothing is left.
        assert_eq!((bytes, files), (0, 0));
        let attached = steps.iter().any(|step| matches!(step, Step::Attach { mount: 0, .. }));
        assert!(attached && limits.disk_bytes() > limits.memory_bytes);
        return;
    }
    for n in around(limits.disk_bytes()) {
        assert_eq!(n <= bytes, n <= limits.disk_bytes(), "{n} bytes of disk");
    }
    for n in around(limits.files) {
        assert_eq!(n <= files, n <= limits.files, "{n} files");
    }
}

fn files_agree(grant: &Grant, mounts: &[Mount]) {
    let shown = &grant.files().shown;
    // A copy is filled by the host, and shows nothing of it by itself.
    let workspace = grant.files().workspace.as_ref();
    let layered = workspace.filter(|workspace| !workspace.copy).map(|workspace| workspace.host.as_path());
    let guest = |shown: &Shown| shown.guest.as_path().to_str().unwrap()[1..].to_owned();
    for (place, writable) in PLACES {
        let (read_only, host) = covering(mounts, place).unwrap();
        assert_eq!(!read_only && landlock_lets_write(place), writable, "{place:?} in {mounts:#?}");
        let system = ["usr", "etc"].iter().any(|folder| is_within(place, folder));
        let workspace = layered.is_some_and(|folder| host.as_deref() == Some(&folder.join("x")));
        let expected = if place == "workspace/x" { layered.is_some() == workspace } else { host.is_none() };
        assert!(expected || system, "{place:?} is {host:?}");
    }
    for one in shown {
        let (read_only, host) = covering(mounts, &guest(one)).unwrap();
        assert_eq!(host.as_deref(), Some(one.host.as_path()), "{:?} in {mounts:#?}", one.guest);
        assert!(read_only, "{:?}", one.guest);
    }
    let below = mounts.iter().find(|mount| mount.target == "../lower");
    assert!(below.is_none_or(|mount| mount.read_only && mount.host.as_deref() == layered), "{below:?}");
    // And nothing else of the host's, but for the system.
    for mount in mounts.iter().filter(|mount| !mount.target.starts_with("..")) {
        let Some(host) = &mount.host else { continue };
        let granted = shown.iter().any(|one| guest(one) == mount.target && one.host == *host);
        let granted = granted || mount.target == "workspace" && layered == Some(host);
        let system = ["/usr", "/etc", "/dev", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
        assert!(granted || system.iter().any(|folder| host.starts_with(folder)), "{mount:?}");
        assert!(mount.read_only || mount.layer || host.starts_with("/dev"), "{mount:?}");
    }
}

fn hidden_agrees(grant: &Grant, hidden: &BTreeSet<String>) {
    let files = grant.files();
    let patterns = files.hide.iter().cloned();
    let patterns: Vec<_> = patterns.chain(ALWAYS_HIDDEN.map(|text| Pattern::new(text).unwrap())).collect();
    for (name, by) in IN_WORKSPACE {
        let told = hidden.iter().any(|path| is_within(name, path));
        let granted =
            files.workspace.is_some() && by.is_some_and(|by| patterns.contains(&Pattern::new(by).unwrap()));
        assert_eq!(told, granted, "{name}: {hidden:?}");
    }
}

/// Terminals are handed over where one was asked for, and nowhere else.
fn terminal_agrees(grant: &Grant, steps: &[Step]) {
    let handed = |step: &Step| matches!(step, Step::HandOver { path } if path.as_c_str() == c"dev/pts");
    assert_eq!(steps.iter().any(handed), grant.asks().contains(&Capability::Tty));
}

fn environment_agrees(grant: &Grant, own: &[Variable]) {
    let python = grant.files().python.as_ref();
    let told = variables(python, grant.environment(), own.to_vec(), &Deliveries::default());
    let told: BTreeMap<String, CString> = told
        .into_iter()
        .map(|line| (line.to_str().unwrap().split('=').next().unwrap().to_owned(), line))
        .collect();
    let mut expected: BTreeMap<&str, CString> = BTreeMap::new();
    if let Some(Python { executable, venv }) = python {
        let folder = executable.as_path().parent().unwrap().to_str().unwrap();
        let path = told["PATH"].to_str().unwrap();
        let named = grant.environment().iter().chain(own).any(|variable| variable.name() == "PATH");
        assert!(named || path.starts_with(&format!("PATH={folder}:/")), "{path}");
        let venv =
            venv.as_ref().map(|venv| Variable::new("VIRTUAL_ENV", venv.as_c_str().to_bytes()).unwrap());
        assert_eq!(told.get("VIRTUAL_ENV"), venv.map(|venv| venv.to_c_string()).as_ref());
    }
    for variable in grant.environment().iter().chain(own) {
        expected.insert(variable.name(), variable.to_c_string());
    }
    for (name, line) in &expected {
        assert_eq!(told.get(*name), Some(line));
    }
    let ours = variables(python, &[], vec![], &Deliveries::default()).len();
    let known = ["PATH", "HOME"].iter().filter(|name| expected.contains_key(**name)).count();
    assert_eq!(told.len(), ours + expected.len() - known, "a name that nobody granted: {told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_container_is_told_to_hold_exactly_what_was_granted(
        limits in limits(),
        set in some_variables(),
        passed in some_variables(),
        own in some_variables(),
        shown in some_shown(),
        copy in prop::option::of(any::<bool>()),
        hide in prop::sample::subsequence(vec!["*.key", "private", "nothing"], 0..=3),
        python in prop::option::of(any::<bool>()),
        terminal in any::<bool>(),
    ) {
        let host = HostFolder::new();
        let mut layer = Layer { profile: Some(Profile::Internal), limits, ..Layer::default() };
        layer.environment.set = set;
        layer.environment.passed = passed;
        for (guest, folder) in shown {
            let host = host.path(if folder { "data" } else { "file.txt" });
            let shown = Shown { host, guest: GuestPath::new(Path::new(GUESTS[guest])).unwrap() };
            // Two things at one place are refused before there is a policy.
            layer.files.shown.retain(|old| old.guest != shown.guest);
            layer.files.shown.push(shown);
        }
        layer.files.workspace = copy.map(|copy| Workspace { host: host.path("work"), copy });
        layer.files.hide = hide.into_iter().map(|pattern| Pattern::new(pattern).unwrap()).collect();
        let at = |path: &str| GuestPath::new(Path::new(path)).unwrap();
        layer.files.python =
            python.map(|venv| Python { executable: at("/opt/tool/bin/python"), venv: venv.then(|| at("/opt/venv")) });
        let grant = grant(layer, terminal);
        let (steps, hidden) = steps(&grant);
        numbers_agree(&grant);
        disk_agrees(grant.limits(), &steps);
        files_agree(&grant, &mounts(&steps));
        hidden_agrees(&grant, &hidden);
        terminal_agrees(&grant, &steps);
        environment_agrees(&grant, &own);
    }
}
