//! Control groups: ceilings that hold for everything inside together.
//!
//! Both versions are spoken: version 2, and version 1 where only that has the controllers. Each
//! controller is found by itself, since a host may have some of them in one and some in the other.
//!
//! A sandbox's groups are children of the group that this process is in, so that whatever bounds
//! us bounds the sandbox too. What an ordinary user has to do for that on version 2 is in [`own`]; by
//! looking alone ([`Cgroups::discover`]) nothing is changed. Sources: `Documentation/admin-guide/cgroup-v1` and `cgroup-v2.rst`.

pub mod own;
pub mod user_manager;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::fd;
use own::{User, Way};

/// A controller that a sandbox needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Bandwidth of processor time.
    Cpu,
    /// Memory, swap and out-of-memory kills.
    Memory,
    /// Processes and threads.
    Pids,
}

impl Controller {
    /// All three.
    pub const ALL: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
        }
    }
}

/// Which of the two interfaces a controller is found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// Where a controller can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The interface.
    pub version: Version,
    /// The folder in which groups are made.
    pub folder: PathBuf,
}

/// Why a controller can't be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The kernel has it in no hierarchy that is mounted.
    #[error("no cgroup hierarchy with the {0} controller is mounted")]
    NotMounted(&'static str),
    /// It is mounted, and our place in it can't be seen: something else is mounted over it.
    #[error("the cgroup folder {} can't be seen: something else is mounted over it", .0.display())]
    Hidden(PathBuf),
    /// It is mounted, and groups can't be made in our place.
    #[error("the cgroup folder {} can't be written by this user", .0.display())]
    NotWritable(PathBuf),
    /// Version 2 has it, and it isn't enabled for children of our group.
    #[error("the {controller} controller is not enabled for children of {}", group.display())]
    NotDelegated {
        /// The controller.
        controller: &'static str,
        /// Our group.
        group: PathBuf,
    },
    /// An ordinary user on version 2: a run gets a group of its own first, and nobody has tried yet.
    #[error("a run gets a cgroup with the {controller} controller for itself first, and this looks only")]
    Pending {
        /// The controller.
        controller: &'static str,
        /// What a run does.
        way: Way,
    },
    /// An ordinary user on version 2: there is no group of our own.
    #[error(
        "the {controller} controller needs a cgroup of our own, and systemd's user manager gave none: {why}"
    )]
    NoScope {
        /// The controller.
        controller: &'static str,
        /// What went wrong, or was answered.
        why: String,
    },
    /// systemd's user manager doesn't have the controller itself.
    #[error("systemd doesn't pass the {controller} controller on to its user manager in {}", group.display())]
    Withheld {
        /// The controller.
        controller: &'static str,
        /// The user manager's group.
        group: PathBuf,
    },
}

/// What this host has of each controller.
#[derive(Clone, Debug)]
pub struct Cgroups {
    places: Vec<(Controller, Result<Place, Missing>)>,
}

impl Cgroups {
    /// Looks at what is mounted and where we are. Changes nothing: for an ordinary user on version 2
    /// it may end with [`Missing::Pending`].
    #[must_use]
    pub fn discover() -> Self {
        Cgroups::parse_for(&User::ourselves(), &read(MOUNTS), &read(MEMBERSHIP))
    }

    /// The same for root from the text of `/proc/self/mountinfo` and `/proc/self/cgroup`.
    #[must_use]
    pub fn parse(mountinfo: &str, membership: &str) -> Self {
        Cgroups::parse_for(&User::Root, mountinfo, membership)
    }

    /// The same for somebody.
    #[must_use]
    pub fn parse_for(user: &User, mountinfo: &str, membership: &str) -> Self {
        let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
        let place = |controller: Controller| {
            let name = controller.name();
            version_1(name, &mounts, membership)
                .or_else(|| version_2(name, &mounts, membership, user))
                .unwrap_or(Err(Missing::NotMounted(name)))
                .and_then(|place| {
                    if !place.folder.join("cgroup.procs").exists() {
                        return Err(Missing::Hidden(place.folder));
                    }
                    if writable(&place.folder) { Ok(place) } else { Err(Missing::NotWritable(place.folder)) }
                })
        };
        Cgroups { places: Controller::ALL.map(|controller| (controller, place(controller))).into() }
    }

    /// Gets a group of our own where one is pending, and looks again. This process may be in another
    /// cgroup afterwards; nobody else is moved. For commands that start sandboxes, before what can be
    /// enforced is judged. Takes some milliseconds where systemd is asked, and some seconds where it
    /// doesn't answer.
    pub fn prepare(&mut self) {
        let Some(way) = self.places.iter().find_map(|(_, place)| match place {
            Err(Missing::Pending { way, .. }) => Some(way.clone()),
            _ => None,
        }) else {
            return;
        };
        let got = own::get(&way, where_we_are);
        *self = Cgroups::discover();
        for (controller, place) in &mut self.places {
            if let Err(Missing::Pending { .. }) = place {
                let why = got.as_ref().map_or_else(ToString::to_string, |()| "it can't be seen".to_owned());
                *place = Err(Missing::NoScope { controller: controller.name(), why });
            }
        }
    }

    /// Where a controller can be used, or why it can't.
    ///
    /// # Errors
    ///
    /// [`Missing`] says what isn't there.
    pub fn place(&self, controller: Controller) -> Result<&Place, &Missing> {
        self.places
            .iter()
            .find(|(known, _)| *known == controller)
            .map_or(Err(&Missing::NotMounted("unknown")), |(_, place)| place.as_ref())
    }

    /// The folders that a sandbox of this name will have, before they exist: what a sweep needs to
    /// know about a run that was killed.
    #[must_use]
    pub fn folders(&self, name: &str) -> Vec<PathBuf> {
        let mut folders: Vec<_> = self
            .places
            .iter()
            .filter_map(|(_, place)| Some(place.as_ref().ok()?.folder.join(name)))
            .collect();
        folders.sort();
        folders.dedup();
        folders
    }

    /// Makes the groups of a sandbox with their ceilings, as far as there are controllers.
    ///
    /// # Errors
    ///
    /// [`CgroupError`] names the file; what had been made is removed. Where a group of our own is
    /// pending, that is an error too: what was promised for a run would otherwise not hold for it.
    pub fn create(&self, name: &str, ceilings: &Ceilings) -> Result<Group, CgroupError> {
        if self.places.iter().any(|(_, place)| matches!(place, Err(Missing::Pending { .. }))) {
            return Err(CgroupError::at("prepare", Path::new(name))(io::ErrorKind::NotFound.into()));
        }
        let mut group = Group { folders: self.folders(name), parts: vec![] };
        for folder in &group.folders {
            fs::create_dir(folder).map_err(CgroupError::at("create", folder))?;
        }
        for (controller, place) in &self.places {
            let Ok(place) = place else { continue };
            let (version, folder) = (place.version, place.folder.join(name));
            let part = Part { controller: *controller, version, folder, open: Mutex::default() };
            part.limit(ceilings)?;
            group.parts.push(part);
        }
        Ok(group)
    }
}

const MOUNTS: &str = "/proc/self/mountinfo";
const MEMBERSHIP: &str = "/proc/self/cgroup";

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The group of version 2 that we are in now, as it is mounted here.
fn where_we_are() -> Option<PathBuf> {
    let (mounts, membership) = (read(MOUNTS), read(MEMBERSHIP));
    let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.unified)?;
    Some(mount.folder(unified_group(&membership)?))
}

/// Our group in the version 2 hierarchy, from `/proc/self/cgroup`.
fn unified_group(membership: &str) -> Option<&str> {
    membership.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Whether groups can be made in a folder.
fn writable(folder: &Path) -> bool {
    CString::new(folder.as_os_str().as_bytes()).is_ok_and(|path| crate::process::can_write(&path))
}

/// One line of mountinfo that is a cgroup file system.
struct Mount<'a> {
    root: &'a str,
    target: &'a str,
    unified: bool,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, target) = (fields.next()?, fields.next()?);
        let mut system = system.split(' ');
        let unified = match system.next()? {
            "cgroup" => false,
            "cgroup2" => true,
            _ => return None,
        };
        Some(Mount { root, target, unified, options: system.nth(1)? })
    }

    /// The folder of a group in this mount, which may show only a part of the hierarchy.
    fn folder(&self, group: &str) -> PathBuf {
        let below = group.strip_prefix(self.root).unwrap_or("");
        let below = if self.root == "/" { group } else { below };
        match below.trim_start_matches('/') {
            "" => self.target.into(),
            below => Path::new(self.target).join(below),
        }
    }
}

/// Our group in the hierarchy of a version 1 controller.
fn version_1(name: &str, mounts: &[Mount<'_>], membership: &str) -> Option<Result<Place, Missing>> {
    let has = |list: &str| list.split(',').any(|item| item == name);
    let mount = mounts.iter().find(|mount| !mount.unified && has(mount.options))?;
    let group = membership.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        has(controllers).then_some(group)
    })?;
    Some(Ok(Place { version: Version::V1, folder: mount.folder(group) }))
}

/// Our group in the version 2 hierarchy, or the nearest place above in which children may have the
/// controller: a group that holds processes can't have it for its children, unless it is the root.
///
/// An ordinary user's groups are made only where [`own`] says that this is safe: what is above may be
/// the user's to write and is systemd's to manage all the same.
fn version_2(
    name: &'static str,
    mounts: &[Mount<'_>],
    membership: &str,
    user: &User,
) -> Option<Result<Place, Missing>> {
    let mount = mounts.iter().find(|mount| mount.unified)?;
    let group = unified_group(membership)?;
    let has = |file: PathBuf| {
        fs::read_to_string(file).unwrap_or_default().split_whitespace().any(|item| item == name)
    };
    let top = Path::new(mount.target);
    if !has(top.join("cgroup.controllers")) {
        return None;
    }
    let own = mount.folder(group);
    if let User::Ordinary { id, bus } = user {
        let manager = mount.folder(&format!("/user.slice/user-{id}.slice/user@{id}.service"));
        let folder = own::place(name, &own, &manager, *id, bus.as_ref());
        return Some(folder.map(|folder| Place { version: Version::V2, folder }));
    }
    let folder = own
        .ancestors()
        .take_while(|folder| folder.starts_with(top))
        .find(|folder| has(folder.join("cgroup.subtree_control")));
    Some(match folder {
        Some(folder) => Ok(Place { version: Version::V2, folder: folder.to_owned() }),
        None => Err(Missing::NotDelegated { controller: name, group: own }),
    })
}

/// Ceilings on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    /// Bytes of memory; there is no swap.
    pub memory_bytes: u64,
    /// Processor time per second, in thousandths.
    pub cpu_thousandths: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// A file of a group could not be used.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {}", path.display())]
pub struct CgroupError {
    /// "create", "write", "read", "remove".
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl CgroupError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
        let path = path.to_owned();
        move |source| CgroupError { action, path, source }
    }
}

/// The groups of one sandbox. They are removed when this is dropped.
#[derive(Debug)]
pub struct Group {
    folders: Vec<PathBuf>,
    parts: Vec<Part>,
}

/// The group of one controller.
#[derive(Debug)]
struct Part {
    controller: Controller,
    version: Version,
    folder: PathBuf,
    /// Files that were looked at, and stay open for the next look.
    open: Mutex<BTreeMap<(&'static str, Use), File>>,
}

/// What a file of a group is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Read,
    Write,
}

/// What the kernel counted in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The most memory at once, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// The most processes and threads at once.
    pub pids_peak: Option<u32>,
    /// How often a new process or thread was refused.
    pub pids_refused: u64,
    /// How often the kernel killed for lack of memory.
    pub oom_kills: u64,
}

/// What a sandbox may keep in the buffers of its sockets, in bytes, beside its memory; half of the
/// memory if that is less. Enough for a few thousand idle connections or a few that are full.
const SOCKET_BYTES: u64 = 16 << 20;

/// How much of a file is read at once, in bytes: the least that the kernel gives of a longer one, a page.
const PIECE_BYTES: usize = 4 << 10;

/// The period of the bandwidth control, in microseconds: the kernel's own default.
const CPU_PERIOD_US: u64 = 100_000;

impl Part {
    fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(CgroupError::at("write", &path))
    }

    /// Uses a file, which stays open: what is counted of many runs in one group is read for each of them.
    fn with<T>(
        &self,
        name: &'static str,
        to: Use,
        work: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.entry((name, to)) {
            Entry::Occupied(entry) => work(entry.get()),
            Entry::Vacant(entry) => {
                let path = self.folder.join(name);
                let file = File::options().read(to == Use::Read).write(to == Use::Write).open(path)?;
                work(entry.insert(file))
            }
        }
    }

    fn read(&self, name: &'static str) -> Option<String> {
        String::from_utf8(self.with(name, Use::Read, read_again).ok()?).ok()
    }

    /// A file that holds one number.
    fn number(&self, file: &'static str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// A number of a file of keys and values.
    fn keyed(&self, file: &'static str, key: &str) -> Option<u64> {
        let text = self.read(file)?;
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    }

    fn limit(&self, ceilings: &Ceilings) -> Result<(), CgroupError> {
        let quota = u64::from(ceilings.cpu_thousandths) * CPU_PERIOD_US / 1000;
        match (self.controller, self.version) {
            (Controller::Cpu, Version::V1) => self.write("cpu.cfs_quota_us", &quota.to_string()),
            (Controller::Cpu, Version::V2) => self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}")),
            (Controller::Memory, Version::V1) => self.limit_memory_v1(ceilings.memory_bytes),
            (Controller::Memory, Version::V2) => {
                self.write("memory.max", &ceilings.memory_bytes.to_string())?;
                self.write("memory.oom.group", "1")?;
                self.without_swap("memory.swap.max", "0")
            }
            (Controller::Pids, _) => self.write("pids.max", &ceilings.pids.to_string()),
        }
    }

    fn limit_memory_v1(&self, limit: u64) -> Result<(), CgroupError> {
        let bytes = limit.to_string();
        self.write("memory.limit_in_bytes", &bytes)?;
        // Buffers of sockets are counted apart in version 1, and not at all unless there is a limit.
        self.write("memory.kmem.tcp.limit_in_bytes", &SOCKET_BYTES.min(limit / 2).to_string())?;
        // Memory and swap together at the same figure: no swap.
        self.without_swap("memory.memsw.limit_in_bytes", &bytes)
    }

    /// Writes a file that a kernel without accounting of swap doesn't have.
    fn without_swap(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        match self.write(file, value) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound && !host_has_swap() => Ok(()),
            result => result,
        }
    }
}

/// Reads a file of the kernel's from its beginning, which makes it anew.
fn read_again(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![];
    let mut piece = [0; PIECE_BYTES];
    loop {
        let count = file.read_at(&mut piece, text.len() as u64)?;
        text.extend_from_slice(&piece[..count]);
        // The kernel fills what it is given, but for an entry that doesn't fit.
        if count < PIECE_BYTES / 2 {
            return Ok(text);
        }
    }
}

/// Whether the host swaps at all.
fn host_has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

impl Group {
    fn part(&self, controller: Controller) -> Option<&Part> {
        self.parts.iter().find(|part| part.controller == controller)
    }

    /// Whether a controller's ceiling is set.
    #[must_use]
    pub fn limits(&self, controller: Controller) -> bool {
        self.part(controller).is_some()
    }

    /// Version 1: the files through which a process joins by writing `0`.
    ///
    /// # Errors
    ///
    /// [`CgroupError`] names the file.
    pub fn joins(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let v1 = |folder: &&PathBuf| {
            self.parts.iter().any(|part| part.version == Version::V1 && part.folder == **folder)
        };
        self.folders
            .iter()
            .filter(v1)
            .map(|folder| {
                let path = folder.join("tasks");
                let file = File::options().write(true).open(&path);
                file.map(OwnedFd::from).map_err(CgroupError::at("open", &path))
            })
            .collect()
    }

    /// Version 2: the folder in which a process can be born.
    ///
    /// # Errors
    ///
    /// [`CgroupError`] names the folder.
    pub fn born_in(&self) -> Result<Option<OwnedFd>, CgroupError> {
        let Some(part) = self.parts.iter().find(|part| part.version == Version::V2) else {
            return Ok(None);
        };
        let file = File::open(&part.folder).map_err(CgroupError::at("open", &part.folder))?;
        Ok(Some(file.into()))
    }

    /// Version 1: a counter that the kernel raises when memory runs out, before it kills. Version 2
    /// needs none: there the kernel kills the whole group itself.
    ///
    /// # Errors
    ///
    /// [`CgroupError`] names the file.
    pub fn oom_event(&self) -> Result<Option<OwnedFd>, CgroupError> {
        let Some(part) = self.part(Controller::Memory).filter(|part| part.version == Version::V1) else {
            return Ok(None);
        };
        let path = part.folder.join("memory.oom_control");
        let control = File::open(&path).map_err(CgroupError::at("open", &path))?;
        let event = fd::event_counter().map_err(CgroupError::at("watch", &path))?;
        let line = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        part.write("cgroup.event_control", &line)?;
        Ok(Some(event))
    }

    /// Processes in the sandbox now, where a controller shows them.
    #[must_use]
    pub fn processes(&self) -> Option<Vec<i32>> {
        let part = self.part(Controller::Pids).or(self.parts.first())?;
        // Opened anew each time: version 1 shows who has the file open already the list of up to a second ago
        // (`CGROUP_PIDLIST_DESTROY_DELAY` of `kernel/cgroup/cgroup-v1.c`).
        let text = File::open(part.folder.join("cgroup.procs")).and_then(|file| read_again(&file)).ok()?;
        Some(String::from_utf8(text).ok()?.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// The processor time of everything that was ever in the group, where the kernel counts that beside the
    /// ceiling: always on version 2, on version 1 where `cpuacct` is mounted together with `cpu`.
    #[must_use]
    pub fn cpu(&self) -> Option<Duration> {
        let part = self.part(Controller::Cpu)?;
        match part.version {
            Version::V1 => part.number("cpuacct.usage").map(Duration::from_nanos),
            Version::V2 => part.keyed("cpu.stat", "usage_usec ").map(Duration::from_micros),
        }
    }

    /// Kills every process in the groups by itself, for when process 1 of their namespace takes too
    /// long to take them along.
    pub fn kill_all(&self) {
        for folder in &self.folders {
            kill_members(folder);
        }
    }

    /// Lifts the ceiling on processor time: what is about to die shouldn't have to wait for its turn.
    pub fn unthrottle(&self) {
        if let Some(part) = self.part(Controller::Cpu) {
            let (file, value) = match part.version {
                Version::V1 => ("cpu.cfs_quota_us", "-1"),
                Version::V2 => ("cpu.max", "max"),
            };
            let _ = part.write(file, value); // dying takes longer then, and is waited for all the same
        }
    }

    /// How often the kernel killed for lack of memory. Never inferred from anything else.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let Some(part) = self.part(Controller::Memory) else { return 0 };
        let file = match part.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        part.keyed(file, "oom_kill ").unwrap_or(0)
    }

    /// What the kernel counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let pids = self.part(Controller::Pids);
        Counts {
            memory_peak_bytes: self.memory_peak_bytes(),
            pids_peak: pids.and_then(|part| part.number("pids.peak")).and_then(|n| n.try_into().ok()),
            pids_refused: pids.and_then(|part| part.keyed("pids.events", "max ")).unwrap_or(0),
            oom_kills: self.oom_kills(),
        }
    }

    /// The most memory that was used at once, in bytes, where that is counted.
    #[must_use]
    pub fn memory_peak_bytes(&self) -> Option<u64> {
        let part = self.part(Controller::Memory)?;
        part.number(match part.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })
    }

    /// The memory that is used now, in bytes, where that is counted.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        let part = self.part(Controller::Memory)?;
        part.number(match part.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        })
    }

    /// Lets the peak of memory begin anew, where the kernel has that: version 1. False where it doesn't, and
    /// [`Group::counts`] goes on telling the peak of everything.
    #[must_use]
    pub fn forget_memory_peak(&self) -> bool {
        let part = self.part(Controller::Memory).filter(|part| part.version == Version::V1);
        part.is_some_and(|part| {
            part.with("memory.max_usage_in_bytes", Use::Write, |file| file.write_at(b"0", 0)).is_ok()
        })
    }

    /// Removes the groups, which must be empty.
    ///
    /// # Errors
    ///
    /// [`CgroupError`] names the first folder that could not be removed; all are tried.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.parts.clear();
        std::mem::take(&mut self.folders).iter().map(|folder| remove(folder)).fold(Ok(()), Result::and)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = remove(folder); // the sweep finds what is left
        }
    }
}

/// Removes one group. A group that isn't there is not an error.
///
/// # Errors
///
/// [`CgroupError`], with EBUSY while a process is in it.
pub fn remove(folder: &Path) -> Result<(), CgroupError> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CgroupError { action: "remove", path: folder.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// The processes of a group, as the host numbers them.
fn members(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Sends SIGKILL to every process that is in a group now, and lets it run.
fn kill_members(folder: &Path) {
    // Version 2 has a file for it, which misses nothing that is being born meanwhile, nor anything
    // frozen.
    if let Ok(mut kill) = File::options().write(true).open(folder.join("cgroup.kill"))
        && kill.write_all(b"1").is_ok()
    {
        return;
    }
    let pidfds: Vec<_> =
        members(folder).into_iter().filter_map(|pid| Some((pid, crate::process::pidfd(pid).ok()?))).collect();
    // A second look once the descriptors are there: a number alone may be somebody else's by now.
    let still = members(folder);
    for (pid, pidfd) in pidfds {
        if still.contains(&pid) {
            crate::process::hasten(pid);
            let _ = crate::process::signal(pidfd.as_fd(), libc::SIGKILL); // looked at again by callers
        }
    }
}

/// Kills whatever is in a group, and waits up to a second until it is empty.
///
/// # Errors
///
/// [`CgroupError`] if something stays alive.
pub fn empty(folder: &Path) -> Result<(), CgroupError> {
    for _ in 0..100 {
        if members(folder).is_empty() {
            return Ok(());
        }
        kill_members(folder);
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(CgroupError { action: "empty", path: folder.to_owned(), source: io::ErrorKind::TimedOut.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
11 31 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
12 31 0:29 / /c/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
14 31 0:32 /outer /c/memory rw,relatime - cgroup cgroup rw,memory
20 31 0:36 / /c/unified rw,relatime - cgroup2 cgroup2 rw
";
    const MEMBER: &str = "4:memory:/outer/job/7\n1:cpu,cpuacct:/\n0::/\n";

    fn missing(cgroups: &Cgroups, controller: Controller) -> String {
        cgroups.place(controller).unwrap_err().to_string()
    }

    #[test]
    fn a_group_is_found_through_a_mount_that_shows_a_part() {
        let cgroups = Cgroups::parse(HYBRID, MEMBER);
        // The folders don't exist here, so what was found is in the refusal.
        assert!(missing(&cgroups, Controller::Memory).contains("/c/memory/job/7 "));
        assert!(missing(&cgroups, Controller::Cpu).contains("/c/cpu "));
        assert!(missing(&cgroups, Controller::Pids).starts_with("no cgroup hierarchy with the pids"));
    }

    /// A version 2 hierarchy of plain files, in which our group is `/a/b`.
    fn unified(enabled_in: &str) -> (tempfile::TempDir, Cgroups) {
        let top = tempfile::tempdir().unwrap();
        for folder in ["", "a", "a/b"] {
            let folder = top.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), "").unwrap();
            fs::write(folder.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
            fs::write(folder.join("cgroup.subtree_control"), "").unwrap();
        }
        let control = top.path().join(enabled_in).join("cgroup.subtree_control");
        fs::write(control, "cpu memory pids\n").unwrap();
        let mounts = format!("20 31 0:36 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let cgroups = Cgroups::parse(&mounts, "0::/a/b\n");
        (top, cgroups)
    }

    #[test]
    fn version_2_is_used_where_children_have_the_controllers() {
        let (top, cgroups) = unified("a");
        let place = cgroups.place(Controller::Memory).unwrap();
        assert_eq!((place.version, place.folder.clone()), (Version::V2, top.path().join("a")));
    }

    #[test]
    fn version_2_gets_the_same_ceilings_in_its_own_words() {
        let (top, cgroups) = unified("a/b");
        let ceilings = Ceilings { memory_bytes: 1 << 20, cpu_thousandths: 1500, pids: 7 };
        let group = cgroups.create("s", &ceilings).unwrap();
        let read = |file: &str| fs::read_to_string(top.path().join("a/b/s").join(file)).unwrap();
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("memory.oom.group"), "1");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "7");
        assert!(group.joins().unwrap().is_empty() && group.born_in().unwrap().is_some());
        assert!(group.oom_event().unwrap().is_none());
        fs::write(top.path().join("a/b/s/memory.events"), "low 0\noom 1\noom_kill 2\n").unwrap();
        assert_eq!(group.oom_kills(), 2);
    }

    #[test]
    fn a_version_2_controller_that_is_not_passed_on_says_how_to_enable_it() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("cgroup.controllers"), "memory\n").unwrap();
        let mounts = format!("20 31 0:36 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let cgroups = Cgroups::parse(&mounts, "0::/\n");
        assert!(missing(&cgroups, Controller::Memory).contains("not enabled for children"));
    }

    #[test]
    fn a_sandbox_is_not_opened_while_its_group_is_only_promised() {
        let (top, _) = unified("a");
        let own = top.path().join("a/b");
        fs::write(own.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        let mounts = format!("20 31 0:36 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let user = User::Ordinary { id: 1001, bus: None };
        let cgroups = Cgroups::parse_for(&user, &mounts, "0::/a/b\n");
        let pending = cgroups.place(Controller::Memory).unwrap_err();
        assert!(matches!(pending, Missing::Pending { way: Way::Own(group), .. } if *group == own));
        let ceilings = Ceilings { memory_bytes: 1 << 20, cpu_thousandths: 1000, pids: 7 };
        assert_eq!(cgroups.create("s", &ceilings).unwrap_err().action, "prepare");
    }

    #[test]
    fn a_group_that_can_be_killed_at_once_is() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("cgroup.kill"), "").unwrap();
        kill_members(group.path());
        assert_eq!(fs::read_to_string(group.path().join("cgroup.kill")).unwrap(), "1");
    }

    #[test]
    fn nothing_mounted_means_nothing_offered() {
        let cgroups = Cgroups::parse("", "");
        for controller in Controller::ALL {
            assert_eq!(cgroups.place(controller), Err(&Missing::NotMounted(controller.name())));
        }
        assert!(cgroups.folders("x").is_empty());
    }
}
