//! File system, process and instance isolation.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_testkit::product::finish;
use cofferdam_testkit::rows::{Boundary, Row, User};

use crate::{EVERY_FOLDER, Ended, row};

mod instances;
mod processes;

row!("ISO-01", files_of_the_host_cannot_be_read);
row!("ISO-02", what_is_shown_read_only_cannot_be_changed);
row!("ISO-03", surfaces_of_the_kernel_are_masked);
row!("ISO-11", what_a_tool_of_the_host_would_run_stays_inside);

pub(crate) fn files_of_the_host_cannot_be_read(row: &mut Row) -> Ended {
    let (path, secret) = row.canary("canary.txt");
    let before = looks(std::slice::from_ref(&path));
    let relative = path.strip_prefix("/").unwrap().display().to_string();
    // The secret itself must not be on the command line, or everybody's /proc would hold it.
    let (head, tail) = secret.split_at(10);
    let probe = format!(
        r#"
import glob, os
{EVERY_FOLDER}
secret = {head:?} + {tail:?}
places = {{'by its path': ['/' + {relative:?}], 'by dots': ['/usr/' + '../' * 40 + {relative:?}]}}
places['through its own root'] = ['/proc/self/root/' + {relative:?}]
places['through its own folder'] = ['/proc/self/cwd/' + '../' * 40 + {relative:?}]
places['through the root of process 1'] = [f'/proc/{{first}}/root/' + {relative:?}]
places['through any root'] = [root + '/' + {relative:?} for root in glob.glob('/proc/[0-9]*/root')]
places['from any folder'] = [cwd + '/' + '../' * 40 + {relative:?} for cwd in glob.glob('/proc/[0-9]*/cwd')]
places['below any folder'] = [above + '/' + {relative:?} for above in ['', *folders()]]
def roots():
    for above in ['/', *folders()]:
        try:
            if {{'etc', 'root', 'usr', 'var'}} <= set(os.listdir(above)): return above
        except OSError: pass
    return False
attempt('a root that is not ours', roots)
def read(paths):
    for path in paths:
        try:
            with open(path) as file:
                if file.read() == secret: return True
        except OSError: pass
    return False
for name, paths in places.items():
    attempt(name, lambda: read(paths))
"#
    );
    let inside = row.inside(&[], &format!("first = 1\n{probe}"));
    // Process 1 of the host may live elsewhere: a process of our own stands for it.
    let outside = row.outside(&format!("import os\nfirst = os.getpid()\n{probe}"));
    row.compare(&inside, &outside);
    assert_eq!(looks(&[path]), before, "the host's file is as it was");
    Ended::Tested
}

/// What files look like from outside: content, size, mode, owner and times.
pub(crate) fn looks(paths: &[PathBuf]) -> Vec<String> {
    let look = |path: &PathBuf| {
        let found = std::fs::symlink_metadata(path).unwrap();
        let content = if found.is_file() { std::fs::read(path).unwrap() } else { vec![] };
        let sum = content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let times = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        format!("{path:?} {sum:x} {} {:o} {} {times:?}", found.len(), found.mode(), found.uid())
    };
    paths.iter().map(look).collect()
}

/// Files and folders that are shown read-only, each of its own kind. What exists outside, in a scratch
/// copy below `root`, is made and owned by whoever tries. `modes` says whether there are any.
pub(crate) const CHANGE: &str = r"
import os
def make(path):
    if root:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, 'w').close()
def changes_file(name, change):
    def act():
        make(root + name)
        change(root + name)
    return act
def opens(flags):
    return lambda path: os.close(os.open(path, flags))
everything = {
    'opened for writing': opens(os.O_WRONLY), 'opened to append': opens(os.O_WRONLY | os.O_APPEND),
    'emptied as it is opened': opens(os.O_RDWR | os.O_TRUNC), 'truncated': lambda path: os.truncate(path, 0),
    'renamed': lambda path: os.rename(path, path + '.new'), 'removed': os.unlink,
    'replaced': lambda path: os.rename(other(path), path), 'linked': lambda path: os.link(path, other(path) + '.link'),
}
of_its_inode = {
    'touched': os.utime,
    'dated': lambda path: os.utime(path, (1, 1)), 'owned': lambda path: os.chown(path, os.getuid(), os.getgid()),
    'chown that changes nothing': lambda path: os.chown(path, -1, -1),
    'labelled': lambda path: os.setxattr(path, 'user.row', b'x'),
}
if modes: of_its_inode['chmod'] = lambda path: os.chmod(path, 0o777)
def other(path):
    make(path + '.other')
    return path + '.other'
for name in files:
    for what, change in {**everything, **of_its_inode}.items():
        attempt(f'{name} {what}', changes_file(name, change))
for name in devices:
    for what, change in of_its_inode.items():
        attempt(f'{name} {what}', changes_file(name, change))
for name in folders:
    def inside(change, entry):
        def act():
            if root: os.makedirs(root + name, exist_ok=True)
            change(root + name + entry)
        return act
    for what, change, entry in [
        ('gets a file', lambda path: open(path, 'x').close(), '/row-file'),
        ('gets a folder', os.mkdir, '/row-folder'), ('gets a link', lambda path: os.symlink('x', path), '/row-link'),
        ('gets a pipe', lambda path: os.mkfifo(path), '/row-pipe'), ('touched', os.utime, ''),
    ] + ([('chmod', lambda path: os.chmod(path, 0o777), '')] if modes else []):
        attempt(f'{name} {what}', inside(change, entry))
";

fn what_is_shown_read_only_cannot_be_changed(row: &mut Row) -> Ended {
    let folder = row.product().folder().join("data");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    let mut host: Vec<PathBuf> =
        ["/usr/bin/env", "/etc/passwd", "/etc/protocols", "/usr", "/usr/bin", "/usr/lib", "/etc"]
            .map(PathBuf::from)
            .into();
    for name in ["file", "deep/file"] {
        let path = folder.join(name);
        std::fs::write(&path, "input\n").unwrap();
        host.push(path);
    }
    row.product().give(&folder);
    host.extend([folder.join("deep"), folder.clone()]);
    host.retain(|path| path.exists());
    let before = looks(&host);
    let files: Vec<_> = ["/usr/bin/env", "/etc/passwd", "/etc/protocols", "/inputs/data/file"]
        .into_iter()
        .chain(["/inputs/data/deep/file", "/inputs/one", "/proc/cpuinfo", "/sys/devices/system/cpu/online"])
        .filter(|path| path.starts_with("/inputs") || path.starts_with("/sys") || Path::new(path).exists())
        .collect();
    let folders = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/etc",
        "/run",
        "/var",
        "/home",
        "/dev",
        "/sys",
        "/inputs",
        "/inputs/data",
        "/inputs/data/deep",
        "/proc/sys",
    ];
    let change = format!(
        "modes = True\nfiles, folders, devices = {files:?}, {folders:?}, ['/dev/null', '/dev/zero', '/dev/tty', '/proc/keys']\n{CHANGE}"
    );
    let one = format!("{}:/inputs/one", folder.join("file").display());
    let shown = ["--in", folder.to_str().unwrap(), "--in", &one];
    let inside = row.inside(&shown, &format!("root = ''\n{change}"));
    let outside = row.outside(&format!("root = {:?}\n{change}", row.product().folder().join("scratch")));
    row.compare(&inside, &outside);
    assert_eq!(looks(&host), before, "the host's files are as they were");
    only_what_belongs_to_the_program_is_mounted_for_writing(row, &shown);
    Ended::Tested
}

/// A program without rights is refused much that the mount alone would allow: the mounts are asked too.
fn only_what_belongs_to_the_program_is_mounted_for_writing(row: &mut Row, shown: &[&str]) {
    let mounts = row.run(&[shown, &["--", "cat", "/proc/self/mountinfo"]].concat());
    let writable: Vec<_> = mounts
        .stdout
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            fields[5].split(',').any(|option| option == "rw").then(|| fields[4])
        })
        .collect();
    let expected = ["/dev/pts", "/dev/shm", "/home/user", "/proc", "/tmp", "/workspace"];
    let more: Vec<_> = writable.iter().filter(|place| !expected.contains(place)).collect();
    assert!(more.is_empty() && writable.len() == expected.len(), "{writable:?}");
}

/// Opens and lists what tells of the kernel or acts on it; writes nothing, and reads no byte of what is
/// used up by reading.
const MASKED: &str = r"
import os
def null(fd):
    return os.fstat(fd).st_rdev == os.makedev(1, 3)
def opens(path, flags):
    fd = os.open(path, flags | os.O_NONBLOCK)
    try: return not null(fd)
    finally: os.close(fd)
def reads(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return not null(fd) and len(os.read(fd, 1)) > 0
    finally: os.close(fd)
for name in ['kcore', 'kallsyms', 'keys', 'key-users', 'timer_list', 'timer_stats', 'sched_debug', 'interrupts', 'latency_stats']:
    attempt(f'{name} read', lambda: reads('/proc/' + name))
attempt('kmsg opened', lambda: opens('/proc/kmsg', os.O_RDONLY))
attempt('sysrq-trigger opened', lambda: opens('/proc/sysrq-trigger', os.O_WRONLY))
for name in ['/proc/acpi', '/proc/scsi', '/proc/asound', '/proc/pressure', '/sys/firmware', '/sys/kernel', '/sys/class', '/sys/module', '/sys/bus', '/sys/fs/cgroup', '/sys/block', '/sys/power']:
    attempt(f'{name} listed', lambda: os.listdir(name) != [])
def any_opens(top):
    tried = 0
    for folder, _, names in os.walk(top):
        for name in names:
            tried += 1
            try:
                if opens(os.path.join(folder, name), os.O_WRONLY): return True
            except OSError: pass
    if not tried: raise OSError('there is nothing')
    return False
for name in ['kernel', 'vm', 'fs', 'net', 'user']:
    attempt(f'a setting of {name} opened for writing', lambda: any_opens('/proc/sys/' + name))
for name in ['/proc/irq', '/proc/bus', '/proc/fs']:
    attempt(f'{name} opened for writing', lambda: any_opens(name))
attempt('kernel messages', lambda: opens('/dev/kmsg', os.O_RDONLY))
attempt('memory', lambda: opens('/dev/mem', os.O_RDONLY))
";

fn surfaces_of_the_kernel_are_masked(row: &mut Row) -> Ended {
    let before = settings();
    let inside = row.inside(&[], MASKED);
    // An ordinary user may change settings of namespaces of their own, which shows that the probe finds
    // them; what only root may do outside stays inconclusive for them.
    let outside = match row.user() {
        User::Root => row.outside(MASKED),
        User::Ordinary => {
            row.outside_after(&["unshare", "--map-root-user", "--net", "--ipc", "--uts"], MASKED)
        }
    };
    row.compare(&inside, &outside);
    let frozen = r"
import os
for name in ['bus', 'fs', 'irq', 'sys']:
    if os.path.exists('/proc/' + name):
        print(name, bool(os.statvfs('/proc/' + name).f_flag & os.ST_RDONLY))
";
    let frozen = row.run(&["-c", frozen]);
    assert!(frozen.stdout.contains("sys True") && !frozen.stdout.contains("False"), "{frozen:?}");
    assert_eq!(settings(), before, "the host's settings are as they were");
    Ended::Tested
}

/// Settings of the kernel that somebody who may write them would go for.
fn settings() -> Vec<Option<String>> {
    let names = [
        "fs/protected_hardlinks",
        "fs/protected_symlinks",
        "fs/suid_dumpable",
        "kernel/core_pattern",
        "kernel/dmesg_restrict",
        "kernel/hostname",
        "kernel/kptr_restrict",
        "kernel/modprobe",
        "kernel/shmmax",
        "kernel/sysrq",
        "net/ipv4/ip_forward",
        "user/max_user_namespaces",
        "vm/overcommit_memory",
        "vm/swappiness",
    ];
    names.iter().map(|name| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()).collect()
}

/// Files that a tool of the host would run or obey, and two that nobody would.
const PLANTED: [&str; 16] = [
    ".git/hooks/pre-commit",
    ".git/hooks/post-checkout",
    ".git/config",
    ".git/info/attributes",
    ".gitmodules",
    ".githooks/pre-commit",
    ".husky/pre-commit",
    ".vscode/tasks.json",
    ".idea/workspace.xml",
    ".devcontainer/devcontainer.json",
    ".claude/settings.json",
    ".cursor/mcp.json",
    ".mcp.json",
    ".envrc",
    ".bashrc",
    "sub/.git/hooks/pre-commit",
];

/// Plants them. `$1` is the file that whatever runs would make, `$2` a file of the host's.
const PLANT: &str = r#"set -e
for place in $PLANTED; do
    mkdir -p "$(dirname "$place")"
    printf '#!/bin/sh\ntouch %s\n' "$1" > "$place"
    chmod +x "$place"
done
printf '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch %s; false"\n' "$1" > .git/config
ln -s "$2" link
ln -s "$(dirname "$2")" folder-link
mkdir -p plain
echo plain > plain/file
echo changed > tracked
"#;

pub(crate) fn what_a_tool_of_the_host_would_run_stays_inside(row: &mut Row) -> Ended {
    let folder = row.product().folder().to_owned();
    let (_, secret) = row.canary("canary.txt");
    let (mark, canary) = (folder.join("mark"), folder.join("canary.txt"));
    // In one repository some of it is there before and is changed; in the other nothing is.
    for (name, existed) in [("old", true), ("new", false)] {
        let (repo, out) = (folder.join(name), folder.join(format!("out-{name}")));
        make_repository(row, &repo, existed);
        let before = files_below(&repo);
        let (words, plant) = planting(row, mark.to_str().unwrap(), canary.to_str().unwrap());
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let plant: Vec<_> = plant.iter().map(String::as_str).collect();
        let options = ["--workspace", repo.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"];
        let outcome = row.run(&[&options[..], &plant].concat());
        assert_eq!(outcome.code, 0, "{outcome:?}");
        only_plain_files_came_out(&outcome.json(), &out);
        let log = row.product().call(["audit", "show", "last"]).stdout;
        assert!(log.contains("artifact.quarantined"), "{log}");
        assert_eq!(files_below(&repo), before, "the workspace is as it was");
        // Who takes over what came out and goes on working runs nothing of it.
        let taken = row.product().beside("cp", ["-rT"]).arg(out.join("files")).arg(&repo).status();
        assert!(taken.unwrap().success());
        commit(row, &repo);
        assert!(!mark.exists(), "{name}: something of the program's ran on the host");
        // The control: the same without a sandbox.
        let mut outside = row.product().beside(words[0], &words[1..]);
        outside.current_dir(&repo);
        assert_eq!(finish(outside).code, 0);
        commit(row, &repo);
        assert!(mark.exists(), "{name}: git runs what was planted without a sandbox");
        row.proved();
        std::fs::remove_file(&mark).unwrap();
    }
    assert_eq!(std::fs::read_to_string(canary).unwrap(), secret);
    Ended::Tested
}

/// The same in Python. Its arguments are those of the shell's script.
const PLANT_IN_PYTHON: &str = r#"
import os, sys
mark, canary = sys.argv[1:]
def put(path, text):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'w') as file: file.write(text)
    if hasattr(os, 'chmod'): os.chmod(path, 0o755)
for place in planted: put(place, f'#!/bin/sh\ntouch {mark}\n')
put('.git/config', f'[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch {mark}; false"\n')
os.symlink('../' + os.path.basename(canary), 'link')
os.symlink('..', 'folder-link')
put('plain/file', 'plain\n')
put('tracked', 'changed\n')
"#;

/// Words that plant everything outside, and the words of `run` that do so inside.
fn planting(row: &Row, mark: &str, canary: &str) -> (Vec<String>, Vec<String>) {
    let (words, inside) = match row.boundary() {
        Boundary::Container => {
            let script = format!("PLANTED={:?}\n{PLANT}", PLANTED.join(" "));
            let words = ["sh", "-c", &script, "sh", mark, canary].map(str::to_owned).to_vec();
            (words.clone(), [vec!["--".to_owned()], words].concat())
        }
        Boundary::Wasm => {
            let code = format!("planted = {PLANTED:?}\n{PLANT_IN_PYTHON}");
            let words = ["/usr/bin/python3", "-c", &code, mark, canary].map(str::to_owned).to_vec();
            (words.clone(), words[1..].to_vec())
        }
    };
    (words, inside)
}

/// What was rejected is what would run, with links that lead out; what came out is the rest.
fn only_plain_files_came_out(outcome: &serde_json::Value, out: &Path) {
    let rejected = |path: &str, why: &str| {
        let all = outcome["rejected"].as_array().unwrap();
        all.iter().any(|it| it["path"] == path && it["why"] == why)
    };
    for path in PLANTED {
        assert!(rejected(path, "host_exec"), "{path}: {}", outcome["rejected"]);
    }
    assert!(rejected("link", "symlink") && rejected("folder-link", "symlink"), "{}", outcome["rejected"]);
    let came: Vec<_> = files_below(&out.join("files")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(came, ["plain/file", "tracked"]);
}

fn make_repository(row: &Row, repo: &Path, with_tools: bool) {
    std::fs::create_dir(repo).unwrap();
    row.product().give(repo);
    git(row, repo, &["init", "-q", "--template="]);
    std::fs::write(repo.join("tracked"), "text\n").unwrap();
    if with_tools {
        for place in [".git/hooks/pre-commit", ".vscode/tasks.json", ".claude/settings.json", ".envrc"] {
            std::fs::create_dir_all(repo.join(place).parent().unwrap()).unwrap();
            std::fs::write(repo.join(place), "").unwrap();
        }
    }
    row.product().give(repo);
}

fn commit(row: &Row, repo: &Path) {
    git(row, repo, &["status", "--porcelain"]);
    git(row, repo, &["add", "tracked"]);
    git(row, repo, &["commit", "-q", "--allow-empty", "-m", "one"]);
}

/// Git as whoever runs the sandbox has it. A hook may fail.
fn git(row: &Row, repo: &Path, args: &[&str]) {
    let mut command = row.product().beside("git", ["-c", "user.name=t", "-c", "user.email=t@row.test"]);
    command.args(args).current_dir(repo).env("HOME", row.product().folder().join("home"));
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let ran = finish(command);
    assert!(ran.code == 0 || ran.code == 1, "{args:?}: {ran:?}");
}

/// The files below a folder by name, with what they hold.
fn files_below(top: &Path) -> Vec<(String, Vec<u8>)> {
    fn walk(top: &Path, folder: &Path, into: &mut Vec<(String, Vec<u8>)>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                walk(top, &path, into);
            } else {
                let name = path.strip_prefix(top).unwrap().display().to_string();
                into.push((name, std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    let mut all = vec![];
    walk(top, top, &mut all);
    all.sort();
    all
}
