//! What the kernel lets this process do, read from `/proc`: rights that it has, filters that it
//! doesn't have, and surfaces that are open to it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use cofferdam_core::capability::Capability;

use super::findings::{Finding, Group, Kind, Scope};
use super::surroundings::{Surroundings, text};

/// Calls that aren't on the list don't reach the kernel.
const BY_SYSCALLS: &[Capability] = &[Capability::Syscalls];

/// Inside there is a `/proc` of the run's own processes only.
const BY_FILES: &[Capability] = &[Capability::Files];

/// Root's rights are over files and over the kernel.
const BY_BOTH: &[Capability] = &[Capability::Files, Capability::Syscalls];

/// Only another kernel helps.
const BY_SEPARATE_KERNEL: &[Capability] = &[Capability::SeparateKernel];

const ROOT: Kind = Kind::new("root", "this process is root", "nothing on this machine is refused to it");
const CAPABILITIES: Kind = Kind::new("capabilities", "capabilities of root", "parts of root's rights");
const UNFILTERED: Kind =
    Kind::new("no-seccomp", "no filter of system calls", "every call of the kernel can be tried");
const PRIVILEGES: Kind =
    Kind::new("new-privileges", "new privileges allowed", "programs such as sudo raise its rights");
const SHARED: Kind =
    Kind::new("shared-kernel", "the machine's own kernel", "a hole in it opens the whole machine");
const PROCESSES: Kind =
    Kind::new("process-environments", "environments of other processes", "can be read, secrets among them");

/// A setting by which a surface is open.
struct Setting {
    /// Below `/proc/sys`.
    name: &'static str,
    kind: Kind,
    /// Whether this value leaves it open.
    open: fn(i64) -> bool,
}

/// Settings of the kernel. Source: `Documentation/admin-guide/sysctl/kernel.rst` and
/// `Documentation/admin-guide/LSM/Yama.rst`.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "kernel/unprivileged_bpf_disabled",
        kind: Kind::new("bpf", "BPF for everybody", "loads programs into the kernel"),
        open: |value| value == 0,
    },
    Setting {
        name: "kernel/perf_event_paranoid",
        kind: Kind::new("perf", "performance counters for everybody", "a large surface with many past holes"),
        open: |value| value <= 2,
    },
    Setting {
        name: "kernel/io_uring_disabled",
        kind: Kind::new("io-uring", "io_uring for everybody", "a large surface with many past holes"),
        open: |value| value == 0,
    },
    Setting {
        name: "kernel/dmesg_restrict",
        kind: Kind::new("dmesg", "the kernel's log for everybody", "shows addresses and what others do"),
        open: |value| value == 0,
    },
];

const TRACING: Kind =
    Kind::new("ptrace", "tracing of your other processes", "reads their memory, keys in it too");
const USER_NAMESPACES: Kind =
    Kind::new("user-namespaces", "user namespaces for everybody", "root's part of the kernel, to try");

/// Everything that is open.
pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let mut found = vec![];
    if let Some(status) = text(&around.machine("/proc/self/status")) {
        found.extend(process(&status));
    }
    for setting in SETTINGS {
        if number(around, setting.name).is_some_and(setting.open) {
            found.push(finding(setting.kind, &sysctl(setting.name), BY_SYSCALLS));
        }
    }
    if number(around, "user/max_user_namespaces").is_some_and(|most| most > 0)
        && number(around, "kernel/unprivileged_userns_clone") != Some(0)
        && number(around, "kernel/apparmor_restrict_unprivileged_userns").is_none_or(|value| value == 0)
    {
        found.push(finding(USER_NAMESPACES, &sysctl("user/max_user_namespaces"), BY_SYSCALLS));
    }
    found.extend(processes(around));
    if let Some(release) = text(&around.machine("/proc/sys/kernel/osrelease")) {
        // Without Yama there is no such setting, and whoever has the same user may trace.
        if number(around, "kernel/yama/ptrace_scope").is_none_or(|scope| scope == 0) {
            found.push(finding(TRACING, &sysctl("kernel/yama/ptrace_scope"), BY_SYSCALLS));
        }
        found.push(finding(SHARED, &format!("Linux {}", release.trim()), BY_SEPARATE_KERNEL));
    }
    found
}

fn finding(kind: Kind, place: &str, hidden_by: &'static [Capability]) -> Finding {
    Finding::new(Group::Kernel, Scope::Machine, kind, place, hidden_by)
}

/// A setting as `sysctl` writes it.
fn sysctl(path: &str) -> String {
    path.replace('/', ".")
}

fn number(around: &Surroundings, name: &str) -> Option<i64> {
    text(&around.machine(&format!("/proc/sys/{name}")))?.trim().parse().ok()
}

/// What this process may do, from its `/proc/self/status`. A field that isn't there says nothing.
fn process(status: &str) -> Vec<Finding> {
    let place = "/proc/self/status";
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    let is = |name, value| field(name) == Some(value);
    let mut found = vec![];
    // Real, effective, saved, of files: the second is what counts.
    if field("Uid").and_then(|ids| ids.split_whitespace().nth(1)) == Some("0") {
        found.push(finding(ROOT, place, BY_BOTH));
    }
    let effective = field("CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
    if let Some(set) = effective.filter(|set| *set != 0) {
        let mut some = finding(CAPABILITIES, place, BY_BOTH);
        some.what = format!("{} {}", set.count_ones(), CAPABILITIES.what);
        found.push(some);
    }
    if is("Seccomp", "0") {
        found.push(finding(UNFILTERED, place, BY_SYSCALLS));
    }
    if is("NoNewPrivs", "0") {
        found.push(finding(PRIVILEGES, place, BY_SYSCALLS));
    }
    found
}

/// The other processes of this user whose environment can be opened. It is not read.
fn processes(around: &Surroundings) -> Option<Finding> {
    let own = std::process::id().to_string();
    let open = fs::read_dir(around.machine("/proc")).ok()?.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name != own.as_str()
            && name.bytes().all(|byte| byte.is_ascii_digit())
            && entry.metadata().is_ok_and(|found| found.uid() == around.user)
            && fs::File::open(entry.path().join("environ")).is_ok()
    });
    let count = open.count();
    let mut some = finding(PROCESSES, "/proc/*/environ", BY_FILES);
    some.what = match count {
        1 => "environment of 1 other process of yours".to_owned(),
        _ => format!("environments of {count} other processes of yours"),
    };
    (count > 0).then_some(some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(status: &str) -> Vec<&'static str> {
        process(status).into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn an_unconfined_root_is_told_from_a_confined_nobody() {
        let root = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\n";
        assert_eq!(kinds(root), ["root", "capabilities", "no-seccomp", "new-privileges"]);
        let nobody =
            "Uid:\t65534\t65534\t65534\t65534\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        assert!(kinds(nobody).is_empty());
    }

    #[test]
    fn what_is_not_shown_is_not_claimed() {
        assert!(kinds("").is_empty());
    }
}
