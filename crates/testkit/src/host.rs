//! What the host looks like: processes, mounts, namespaces, cgroups, interfaces, settings.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

/// The processes whose command line holds a text, this one excepted.
#[must_use]
pub fn processes_with(text: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let holds = |line: &[u8]| String::from_utf8_lossy(line).replace('\0', " ").contains(text);
    let others = command_lines().filter(|(pid, _)| *pid != own);
    others.filter(|(_, line)| holds(line)).map(|(pid, _)| pid).collect()
}

/// Every process and its command line, a NUL after each word.
pub(crate) fn command_lines() -> impl Iterator<Item = (i32, Vec<u8>)> {
    pids().map(|pid| (pid, fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()))
}

/// Every process.
pub fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Everything that a run could leave behind, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Lines of the mount table.
    pub mounts: BTreeSet<String>,
    /// Namespaces that some process is in.
    pub namespaces: BTreeSet<String>,
    /// Cgroups of ours.
    pub cgroups: BTreeSet<PathBuf>,
    /// Files in the folders that we use outside the state folder.
    pub files: BTreeSet<PathBuf>,
    /// Network interfaces.
    pub interfaces: BTreeSet<String>,
    /// Settings of the kernel that can be changed, with their values.
    pub settings: BTreeSet<String>,
}

impl Snapshot {
    /// Looks.
    #[must_use]
    pub fn take() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut cgroups = BTreeSet::new();
        collect_cgroups(Path::new("/sys/fs/cgroup"), &mut cgroups, 8);
        Snapshot {
            mounts: mounts.lines().map(str::to_owned).collect(),
            namespaces: pids().flat_map(namespaces_of).collect(),
            cgroups,
            files: ["/run/cofferdam", "/dev/shm"].iter().flat_map(|folder| entries(folder)).collect(),
            interfaces: interfaces(),
            settings: settings(Path::new("/proc/sys")),
        }
    }
}

impl Snapshot {
    /// What is there now and wasn't at an earlier look, a line each.
    #[must_use]
    pub fn new_since(&self, earlier: &Snapshot) -> Vec<String> {
        fn new<T: Ord + std::fmt::Debug>(now: &BTreeSet<T>, then: &BTreeSet<T>) -> Vec<String> {
            now.difference(then).map(|item| format!("{item:?}")).collect()
        }
        [
            new(&self.mounts, &earlier.mounts),
            new(&self.namespaces, &earlier.namespaces),
            new(&self.cgroups, &earlier.cgroups),
            new(&self.files, &earlier.files),
            new(&self.interfaces, &earlier.interfaces),
            new(&self.settings, &earlier.settings),
        ]
        .concat()
    }
}

fn entries(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn interfaces() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap();
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    names.collect()
}

/// Every setting below a folder that somebody can read and write, but for one that the kernel itself
/// changes: the number of the last process.
fn settings(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(about) = entry.metadata() else { continue };
        if about.is_dir() {
            found.extend(settings(&path));
        } else if about.mode() & 0o600 == 0o600 && !path.ends_with("ns_last_pid") {
            let value = fs::read(&path).unwrap_or_default(); // some can only be written all the same
            found.insert(format!("{} = {}", path.display(), value.escape_ascii()));
        }
    }
    found
}

pub(crate) fn namespaces_of(pid: i32) -> Vec<String> {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let link = |kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    kinds.iter().filter_map(link).map(|link| link.to_string_lossy().into_owned()).collect()
}

fn collect_cgroups(folder: &Path, found: &mut BTreeSet<PathBuf>, depth: u32) {
    let Some(deeper) = depth.checked_sub(1) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().starts_with("cofferdam-") {
                found.insert(entry.path());
            }
            collect_cgroups(&entry.path(), found, deeper);
        }
    }
}

/// What keeps a namespace, by the name that the kernel gives it: processes in it or with a descriptor of
/// it, and mounts.
#[must_use]
pub fn holders_of(namespace: &str) -> Vec<String> {
    let holds = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        namespaces_of(*pid).iter().any(|name| name == namespace)
            || open.any(|link| link.as_os_str() == namespace)
    };
    let processes = pids().filter(holds).map(|pid| format!("process {pid}"));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(namespace)).map(str::to_owned);
    processes.chain(mounts).collect()
}

/// Waits until something holds, up to a bound. Gives whether it does.
pub fn eventually(bound: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < bound {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    holds()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_was_changed_and_an_interface_that_was_added_are_new() {
        let before = Snapshot::take();
        assert!(before.settings.len() > 100 && before.interfaces.contains("lo"), "{before:?}");
        let setting = before.settings.iter().find(|line| line.contains("/kernel/core_pattern = ")).unwrap();
        let mut after = before.clone();
        after.settings.remove(setting);
        after.settings.insert(format!("{setting}x"));
        after.interfaces.insert("tap0".to_owned());
        assert_eq!(after.new_since(&before).len(), 2);
    }
}
