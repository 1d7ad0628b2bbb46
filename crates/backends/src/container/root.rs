//! The root file system of a sandbox, as the list of steps that makes it.
//!
//! One tmpfs is the root and, through binds of its folders onto themselves, everything that can be
//! written; it carries the quota. The host's `/usr` is shown read-only; `/etc`, `/dev`, `/sys` and
//! parts of `/proc` are made. At the end the root itself becomes read-only.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_core::policy::Limits;
use cofferdam_sys::capture::Capture;
use cofferdam_sys::landlock::Access;
use cofferdam_sys::launch::{MountFlags, Step};

use super::cpu::View;
use super::etc::{self, Entry};
use super::files::{HostFiles, Place, Source, c_path};
use super::ids::USER;
use super::reach::{AUTHORITY, BUNDLE, NAME_SERVER, Trust};

/// Where programs find their files; the working directory.
pub(super) const WORKSPACE: &CStr = c"/workspace";

/// Folders that programs may write: name, permissions, whether it belongs to the user.
const WRITABLE: [(&CStr, u32, bool); 4] = [
    (c"workspace", 0o755, true),
    (c"home/user", 0o755, true),
    (c"tmp", 0o1777, false),
    (c"dev/shm", 0o1777, false),
];

/// Devices that are shown: they give and take bytes and nothing else.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// Files of `/proc` that are hidden: they tell of the host's hardware, its other processes or its
/// kernel's addresses, or are ways to act on it.
const HIDDEN_FILES: [&str; 11] = [
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "sched_debug",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
];

/// Folders of `/proc` that are hidden. In `pressure` anybody can make the kernel watch something, and each
/// of such watches takes a program milliseconds to end that nothing can interrupt.
const HIDDEN_FOLDERS: [&str; 4] = ["acpi", "asound", "pressure", "scsi"];

/// Folders of `/proc` that can't be written, whatever their files' permissions say.
const FROZEN: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// Places over which the new root can be mounted; hidden in the sandbox's namespace alone, so that it is
/// one from which nothing is shown by its path.
const MOUNT_POINTS: [&str; 7] = ["/tmp", "/run", "/mnt", "/srv", "/media", "/opt", "/boot"];

/// Collects steps.
struct Steps(Vec<Step>);

/// Folders that overlays need, where nothing leads to once the sandbox runs: what goes over the
/// workspace, the program's own layer and the kernel's scratch folder for that, and an empty one.
const FOR_OVERLAYS: [(&str, bool); 4] =
    [("cover", true), ("upper", true), ("scratch", true), ("empty", false)];

/// What decides how a sandbox's root looks.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) limits: &'a Limits,
    pub(super) cpu: View,
    pub(super) files: &'a HostFiles,
    /// Whether there will be terminals.
    pub(super) terminal: bool,
    /// The file system that holds what is written, if that isn't the root's own memory: its position
    /// among the launch's mounts.
    pub(super) disk: Option<usize>,
    /// What captures everything that it sends.
    pub(super) captured: Option<&'a Capture>,
    /// What is trusted beyond the host's certificates.
    pub(super) trust: Option<&'a Trust>,
}

impl<'a> Plan<'a> {
    /// Nothing but the host's `/usr`.
    pub(super) fn plain(limits: &'a Limits, cpu: View, files: &'a HostFiles) -> Self {
        Plan { limits, cpu, files, terminal: false, disk: None, captured: None, trust: None }
    }

    /// Where folders lie that hold what is written and aren't shown by themselves.
    fn hidden_place(&self) -> &'static str {
        if self.disk.is_some() { "../disk/" } else { "../" }
    }
}

/// All steps for a sandbox. The folders that are handed over
/// are, behind what the capture needs first, in this order and if they are needed: that of terminals, the one that the host fills, the one
/// that holds what the program changed. Behind them comes what the capture hands over.
pub(super) fn steps(plan: &Plan<'_>) -> Vec<Step> {
    let Plan { limits, cpu, files, terminal, disk, captured, trust } = *plan;
    let mut steps = Steps(Vec::with_capacity(160));
    steps.0.extend(captured.iter().flat_map(|capture| capture.first_steps()));
    steps.host_usr();
    steps.etc(etc::entries(USER, captured.map(|_| NAME_SERVER)));
    steps.dev();
    if terminal {
        steps.push(Step::HandOver { path: c"dev/pts".into() });
    }
    if let Some(mount) = disk {
        steps.folder("../disk");
        steps.push(Step::Attach { mount, target: c"../disk".into() });
    }
    steps.for_overlays(plan);
    steps.writable(plan);
    let mut made = BTreeSet::from(["home", "home/user", "tmp"].map(str::to_owned));
    steps.fittings(plan, &mut made);
    steps.shown(plan, &mut made);
    steps.sys(cpu);
    steps.proc(cpu);
    if let Some(trust) = trust {
        steps.trust(trust);
    }
    steps.push(Step::Pivot);
    steps.attributes(c"/", MountFlags::READ_ONLY, false);
    steps.push(Step::Hostname(c"cofferdam".into()));
    match captured {
        Some(capture) => steps.0.extend(capture.steps()), // which brings up the loopback interface too
        None => steps.push(Step::Loopback),
    }
    let made = Made::by(&steps.0);
    let on_disk = Limits { disk_bytes: Some(0), files: 0, ..limits.clone() };
    let mut all = vec![new_root(if disk.is_some() { &on_disk } else { limits }, &made, files)];
    all.append(&mut steps.0);
    all
}

/// What we put into the tmpfs ourselves. The quota is larger by that, so that what a program may
/// write is exactly what was granted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Made {
    bytes: u64,
    entries: u64,
}

impl Made {
    fn file(&mut self, bytes: usize) {
        const PAGE_BYTES: u64 = 4096;
        self.entries += 1;
        self.bytes += (bytes as u64).next_multiple_of(PAGE_BYTES);
    }

    fn by(steps: &[Step]) -> Self {
        let mut made = Made { bytes: 0, entries: 2 }; // the file system's own folder, and the root in it
        for step in steps {
            match step {
                Step::File { bytes, .. } => made.file(bytes.len()),
                Step::Extended { length, bytes, .. } => made.file(length + bytes.len()),
                Step::Folder { .. } | Step::Link { .. } => made.entries += 1,
                _ => {}
            }
        }
        made
    }
}

/// The tmpfs that becomes the root, with its quota.
fn new_root(limits: &Limits, made: &Made, files: &HostFiles) -> Step {
    let options = format!(
        "mode=755,size={},nr_inodes={}",
        limits.disk_bytes().saturating_add(made.bytes),
        limits.files.saturating_add(made.entries)
    );
    let over = MOUNT_POINTS
        .iter()
        .find(|path| {
            fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) && !files.are_below(Path::new(path))
        })
        .unwrap_or(&"/tmp");
    Step::NewRoot { over: path(&[over]), options: path(&[&options]) }
}

/// What Landlock allows on top of what is mounted.
pub(super) fn landlock_rules() -> Vec<(CString, Access)> {
    let mut rules = vec![
        (CString::from(c"/"), Access::Read),
        (CString::from(c"/dev"), Access::Devices),
        (CString::from(c"/proc"), Access::WriteExisting),
    ];
    rules.extend(WRITABLE.iter().map(|(name, ..)| (path(&["/", &name.to_string_lossy()]), Access::Write)));
    rules
}

/// A path from parts that hold no NUL.
pub(super) fn path(parts: &[&str]) -> CString {
    CString::new(parts.concat()).unwrap_or_default()
}

impl Steps {
    fn push(&mut self, step: Step) {
        self.0.push(step);
    }

    fn folder(&mut self, name: &str) {
        self.push(Step::Folder { path: path(&[name]), mode: 0o755, owned: false });
    }

    fn file(&mut self, name: &str, text: &str) {
        self.push(Step::File { path: path(&[name]), bytes: text.as_bytes().to_vec() });
    }

    fn link(&mut self, target: &str, name: &str) {
        self.push(Step::Link { target: path(&[target]), path: path(&[name]) });
    }

    fn attributes(&mut self, target: &CStr, set: MountFlags, recursive: bool) {
        self.push(Step::Attributes { target: target.into(), set, recursive });
    }

    fn mount(&mut self, kind: &CStr, target: &CStr, flags: MountFlags, options: &CStr) {
        let (kind, target, options) = (kind.into(), target.into(), options.into());
        self.push(Step::Mount { kind, target, flags, options });
    }

    fn bind(&mut self, source: &CStr, target: &CStr) {
        self.push(Step::Bind { source: source.into(), target: target.into() });
    }

    /// Shows something of the host's, read-only.
    fn show(&mut self, source: &Path, target: &str) {
        let target = path(&[target]);
        self.bind(&c_path(source), &target);
        self.attributes(&target, MountFlags::READ_ONLY, true);
    }

    /// `/usr`, and what Debian and others link into it.
    fn host_usr(&mut self) {
        self.folder("usr");
        self.show(Path::new("/usr"), "usr");
        for name in ["bin", "lib", "lib32", "lib64", "libx32", "sbin"] {
            let host = Path::new("/").join(name);
            match fs::read_link(&host) {
                Ok(target) => self.push(Step::Link { target: c_path(&target), path: path(&[name]) }),
                Err(_) if host.is_dir() => {
                    self.folder(name);
                    self.show(&host, name);
                }
                Err(_) => {}
            }
        }
    }

    fn etc(&mut self, entries: Vec<Entry>) {
        self.folder("etc");
        // A mount of its own, so that one change of flags reaches everything shown below it.
        self.bind(c"etc", c"etc");
        let mut folders: Vec<PathBuf> = vec![];
        for entry in entries {
            match entry {
                Entry::Text(name, text) => self.file(&format!("etc/{name}"), &text),
                Entry::Link(target, place) => {
                    let place = inside(&place);
                    self.push(Step::Link { target: c_path(&target), path: path(&[&place]) });
                }
                Entry::Host { path: host, folder } => {
                    self.parents(&host, &mut folders);
                    let name = inside(&host);
                    if folder {
                        self.folder(&name);
                    } else {
                        self.file(&name, "");
                    }
                    self.bind(&c_path(&host), &path(&[&name]));
                }
            }
        }
        self.attributes(c"etc", MountFlags::READ_ONLY, true);
    }

    /// Makes the folders between `/etc` and something in it, once each.
    fn parents(&mut self, host: &Path, made: &mut Vec<PathBuf>) {
        let between: Vec<_> =
            host.ancestors().skip(1).take_while(|folder| *folder != Path::new("/etc")).collect();
        for folder in between.into_iter().rev() {
            if !made.iter().any(|known| known == folder) {
                made.push(folder.to_owned());
                self.folder(&inside(folder));
            }
        }
    }

    fn dev(&mut self) {
        self.folder("dev");
        for name in DEVICES {
            let place = path(&["dev/", name]);
            self.file(&format!("dev/{name}"), "");
            self.bind(&path(&["/dev/", name]), &place);
            // The device can be written all the same, but not the times of the host's file.
            self.attributes(&place, MountFlags { read_only: true, ..MountFlags::default() }, false);
        }
        self.folder("dev/pts");
        let terminals = MountFlags { no_suid: true, no_exec: true, ..MountFlags::default() };
        self.mount(c"devpts", c"dev/pts", terminals, c"newinstance,ptmxmode=0666,mode=620,max=64");
        self.link("pts/ptmx", "dev/ptmx");
        self.link("/proc/self/fd", "dev/fd");
        for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
            self.link(&format!("/proc/self/fd/{number}"), &format!("dev/{name}"));
        }
    }

    fn for_overlays(&mut self, plan: &Plan<'_>) {
        let layered = plan.files.workspace.as_ref().is_some_and(|workspace| workspace.lower.is_some());
        if layered || !plan.files.shown.is_empty() {
            for (name, owned) in FOR_OVERLAYS {
                self.push(Step::Folder { path: path(&[plan.hidden_place(), name]), mode: 0o755, owned });
            }
        }
    }

    /// The folders that can be written, each a mount of its own so that the root need not be.
    fn writable(&mut self, plan: &Plan<'_>) {
        let workspace = plan.files.workspace.as_ref();
        self.folder("home");
        for (number, (name, mode, owned)) in WRITABLE.into_iter().enumerate() {
            self.push(Step::Folder { path: name.into(), mode, owned });
            match workspace.and_then(|workspace| workspace.lower.as_ref()) {
                Some(lower) if name == c"workspace" => self.layered(plan.hidden_place(), lower),
                _ if plan.disk.is_some() => {
                    let on_disk = path(&[&format!("../disk/writable{number}")]);
                    self.push(Step::Folder { path: on_disk.clone(), mode, owned });
                    self.bind(&on_disk, name);
                }
                _ => self.bind(name, name),
            }
        }
        if workspace.is_some_and(|workspace| workspace.lower.is_none()) {
            self.wait_for_filling(c"workspace");
        }
        if workspace.is_none_or(|plan| plan.lower.is_none()) {
            self.push(Step::HandOver { path: c"workspace".into() });
        }
        self.folder("run");
        self.folder("var");
        self.link("../run", "var/run");
        self.link("../tmp", "var/tmp");
    }

    /// The workspace: the host's folder, a cover over it, and the program's own layer on top.
    fn layered(&mut self, place: &str, lower: &Source) {
        self.bring("../lower", lower);
        self.wait_for_filling(&path(&[place, "cover"]));
        self.attributes(c"../lower", MountFlags::READ_ONLY, false);
        self.push(Step::HandOver { path: path(&[place, "upper"]) });
        let options =
            format!("lowerdir={place}cover:../lower,upperdir={place}upper,workdir={place}scratch,userxattr");
        self.mount(c"overlay", c"workspace", MountFlags::PLAIN, &path(&[&options]));
    }

    /// Lets the host put files into a folder.
    fn wait_for_filling(&mut self, folder: &CStr) {
        self.push(Step::HandOver { path: folder.into() });
        self.push(Step::Await);
    }

    /// Brings a folder of the host's to a place that is made for it.
    fn bring(&mut self, place: &str, source: &Source) {
        self.folder(place);
        match source {
            Source::Mount(mount) => self.push(Step::Attach { mount: *mount, target: path(&[place]) }),
            Source::Path(source) => self.bind(source, &path(&[place])),
        }
    }

    /// What is shown read-only, through overlays, which have inodes of their own.
    fn shown(&mut self, plan: &Plan<'_>, made: &mut BTreeSet<String>) {
        let empty = format!("{}empty", plan.hidden_place());
        for (number, Place { source, guest, file }) in plan.files.shown.iter().enumerate() {
            self.folders_above(guest, made);
            made.insert(guest.clone());
            let lower = format!("../shown{number}");
            self.bring(&lower, source);
            let view = if file.is_some() { format!("../view{number}") } else { guest.clone() };
            self.folder(&view);
            let options = format!("lowerdir={empty}:{lower},userxattr");
            self.mount(c"overlay", &path(&[&view]), MountFlags::READ_ONLY, &path(&[&options]));
            if let Some(name) = file {
                self.file(guest, "");
                let inside = [path(&[&view, "/"]).to_bytes(), name.to_bytes()].concat();
                self.bind(&CString::new(inside).unwrap_or_default(), &path(&[guest]));
            }
        }
    }

    /// Makes the folders above a place, once each.
    fn folders_above(&mut self, place: &str, made: &mut BTreeSet<String>) {
        for (end, _) in place.match_indices('/') {
            if made.insert(place[..end].to_owned()) {
                self.folder(&place[..end]);
            }
        }
    }

    /// What is ours, as it is on the host: nobody writes it but us. And the folder below which the rest is
    /// shown, with the one in it where inputs are by default, and those above which something of its own is
    /// opened for a program: who looks for `/home` should find it.
    fn fittings(&mut self, plan: &Plan<'_>, made: &mut BTreeSet<String>) {
        if let Some(below) = plan.files.below {
            for folder in ["home/user", "inputs", "tmp", "usr/local/lib", "workspace"] {
                self.folders_above(&format!("{below}/{folder}/"), made);
            }
        }
        for fitting in &plan.files.fittings {
            let place = &fitting.place;
            self.folders_above(place, made);
            if fitting.folder {
                self.folder(place);
            } else {
                self.file(place, "");
            }
            let target = path(&[place]);
            match &fitting.source {
                Source::Mount(mount) => self.push(Step::Attach { mount: *mount, target }),
                Source::Path(source) => {
                    self.bind(source, &target);
                    self.attributes(&target, MountFlags::READ_ONLY, true);
                }
            }
        }
    }

    /// A `/sys` that holds the number of processors and nothing else.
    fn sys(&mut self, cpu: View) {
        for folder in ["sys", "sys/devices", "sys/devices/system", "sys/devices/system/cpu"] {
            self.folder(folder);
        }
        for name in ["online", "possible", "present"] {
            self.file(&format!("sys/devices/system/cpu/{name}"), &cpu.range());
        }
    }

    fn proc(&mut self, cpu: View) {
        self.folder("proc");
        self.mount(c"proc", c"proc", MountFlags::NO_EXEC, c"");
        self.folder("run/empty");
        for name in HIDDEN_FOLDERS {
            self.cover("run/empty", name, true);
        }
        for name in HIDDEN_FILES {
            // The null device reads as empty and takes everything; it is read-only as in `/dev`.
            self.cover("dev/null", name, false);
        }
        for name in FROZEN {
            self.cover(&format!("proc/{name}"), name, true);
        }
        for (name, text) in [("cpuinfo", cpu.cpuinfo()), ("stat", cpu.stat())] {
            let made = format!("run/{name}");
            self.file(&made, &text);
            self.cover(&made, name, true);
        }
    }

    /// Shows what is trusted, and that over what the system has in its place.
    fn trust(&mut self, trust: &Trust) {
        let [bundle, authority] = [BUNDLE, AUTHORITY].map(|path| path.trim_start_matches('/'));
        self.folder("run/trust");
        match &trust.system {
            Some((system, length)) => self.push(Step::Extended {
                beginning: path(&[&system.to_string_lossy()]),
                length: *length,
                // The host's file may end without one.
                bytes: [b"\n", trust.authority.as_bytes()].concat(),
                path: path(&[bundle]),
            }),
            None => self.file(bundle, &trust.authority),
        }
        self.file(authority, &trust.authority);
        if let Some((place, store)) = &trust.java {
            let made = "run/trust/java";
            self.push(Step::File { path: path(&[made]), bytes: store.clone() });
            self.push(Step::Cover {
                source: path(&[made]),
                target: path(&[&inside(place)]),
                read_only: true,
            });
        }
        for place in &trust.over {
            let target = path(&[&inside(place)]);
            self.push(Step::Cover { source: path(&[bundle]), target, read_only: true });
        }
    }

    /// Puts something of the sandbox's own over something in `/proc`.
    fn cover(&mut self, source: &str, name: &str, read_only: bool) {
        let (source, target) = (path(&[source]), path(&["proc/", name]));
        self.push(Step::Cover { source, target, read_only });
    }
}

/// A place of the host's, as a path inside.
fn inside(host: &Path) -> String {
    host.to_string_lossy().trim_start_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_is_what_was_granted_and_what_we_made() {
        let steps = [
            Step::Folder { path: c"a".into(), mode: 0o755, owned: false },
            Step::File { path: c"a/b".into(), bytes: vec![0; 4097] },
            Step::File { path: c"a/c".into(), bytes: vec![] },
            Step::Link { target: c"b".into(), path: c"a/d".into() },
            Step::Pivot,
        ];
        assert_eq!(Made::by(&steps), Made { bytes: 8192, entries: 6 });
    }

    #[test]
    fn a_limit_that_nothing_can_reach_does_not_overflow() {
        let limits = Limits { files: u64::MAX, disk_bytes: Some(u64::MAX), ..Limits::DEFAULT };
        let Step::NewRoot { options, .. } =
            new_root(&limits, &Made { bytes: 1, entries: 1 }, &HostFiles::default())
        else {
            panic!("the first step is the root");
        };
        assert!(options.to_string_lossy().contains("18446744073709551615"));
    }
}
