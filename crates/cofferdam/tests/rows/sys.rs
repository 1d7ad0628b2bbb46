//! System calls and the surface of the kernel.
//!
//! Where a probe would change the host if it got through, its control runs in namespaces that are made
//! for it, with arguments with which the call fails in another way than the filter would make it fail:
//! that shows that it reached the kernel.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use cofferdam_sys::seccomp;
use cofferdam_testkit::host::is_root;
use cofferdam_testkit::product::{Ran, finish, start, wait};
use cofferdam_testkit::rows::{Attempt, Attempts, Row, User, attempts, with_input};

use crate::Ended;
use crate::row;
use crate::waiting::waiting;

row!("SYS-01", no_call_is_reached_that_the_list_does_not_allow);
row!("SYS-02", no_ring_is_to_be_had_and_programs_that_want_one_go_on_without);
row!("SYS-03", neither_kernel_surfaces_nor_administration_are_reached);
row!("SYS-04", namespaces_and_mounts_stay_as_they_were_made);
row!("SYS-05", no_socket_of_another_kind_opens);
row!("SYS-07", nothing_is_typed_into_the_terminal_of_who_runs_it);
row!("SYS-08", no_process_is_looked_into);
row!("SYS-09", nothing_gains_privileges);
row!("SYS-11", no_device_is_made_or_found);

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;
const EPROTONOSUPPORT: u32 = 93;

/// Builds a probe in C, with the protocol before it.
fn build(row: &Row, name: &str, c: &str) -> std::path::PathBuf {
    row.build(name, &format!("{}{c}", include_str!("sys/probe.h")))
}

/// A program outside, in namespaces of its own: an ordinary user has privileges in them, root keeps its
/// own.
fn in_scratch(row: &Row, program: &Path, words: &[String]) -> Command {
    let kinds: &[&str] = match row.user() {
        User::Root => &["--mount", "--uts", "--ipc", "--net", "--pid", "--fork"],
        User::Ordinary => {
            &["--user", "--map-root-user", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork"]
        }
    };
    let words = words.iter().map(String::as_str);
    let mut command = row.product().beside("unshare", kinds.iter().copied());
    command.arg(program).args(words).current_dir(row.product().folder());
    command
}

/// As [`Row::compare`] does, but with one line for all attempts whose control doesn't get through.
fn compare(row: &mut Row, inside: &Attempts, control: &Attempts, why: &str) {
    compare_but_for(row, inside, control, &[], why);
}

/// The same, where some attempts are made inside alone.
fn compare_but_for(row: &mut Row, inside: &Attempts, control: &Attempts, inside_alone: &[&str], why: &str) {
    let unproved = row.unproved(inside, control, inside_alone);
    let (nameless, mut names): (Vec<String>, Vec<String>) =
        unproved.into_iter().partition(|name| name.parse::<u32>().is_ok());
    if !nameless.is_empty() {
        names.push(format!("{} numbers without a name", nameless.len()));
    }
    if !names.is_empty() {
        row.inconclusive(format!("{why}: {}", names.join(" ")));
    }
}

// ---- SYS-01 ----

/// A call and what the filter says to it: an error, or that it may be made.
struct Call {
    number: u32,
    name: String,
    refused: Option<u32>,
}

/// Every number that a kernel may know, as the compiled filter is listed.
fn calls() -> Vec<Call> {
    let listing = seccomp::container().listing();
    let listed: Vec<Vec<&str>> = listing
        .lines()
        .skip(2)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let call = |number: u32| {
        let words = listed.iter().find(|words| words[0] == number.to_string());
        let refused = match words.map_or("ENOSYS", |words| words[2]) {
            "allow" | "asks" => None,
            "EPERM" => Some(EPERM),
            "ENOSYS" => Some(ENOSYS),
            other => panic!("call {number} is answered {other}"),
        };
        let name = words.map_or_else(|| number.to_string(), |words| words[1].to_owned());
        Call { number, name, refused }
    };
    (0..=470).map(call).collect()
}

fn no_call_is_reached_that_the_list_does_not_allow(row: &mut Row) -> Ended {
    let sweep = build(row, "sweep", include_str!("sys/sweep.c"));
    let calls = calls();
    let allowed = calls.iter().filter(|call| call.refused.is_none()).count();
    assert!((200..300).contains(&allowed), "{allowed} calls are allowed");
    let word = |call: &Call| format!("{}:{}:{}", call.number, call.refused.unwrap_or(0), call.name);
    let words: Vec<String> = calls.iter().map(word).collect();
    let inside = row.inside_program(&[], &sweep, &words.iter().map(String::as_str).collect::<Vec<_>>());
    // Each number that isn't allowed was judged, and on x86_64 the two foreign interfaces.
    let foreign = if cfg!(target_arch = "x86_64") { 2 } else { 0 };
    assert_eq!(inside.len(), calls.len() - allowed + foreign);
    // What is allowed needs no control; `sync` would keep the host's disks busy.
    let refused = calls.iter().filter(|call| call.refused.is_some() && call.name != "sync");
    let control = attempts(&finish(in_scratch(row, &sweep, &refused.map(word).collect::<Vec<_>>())));
    compare_but_for(row, &inside, &control, &["sync"], "answered the same or not tried outside");
    Ended::Tested
}

// ---- SYS-02 ----

const RINGS: &str = r"
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def reaches(name, number, *words):
    ctypes.set_errno(0)
    answer = libc.syscall(ctypes.c_long(number), *words)
    got = ctypes.get_errno()
    report(name, answer >= 0 or got not in (errno.EPERM, errno.ENOSYS), got)
reaches('io_uring_setup', 425, ctypes.c_long(1), ctypes.create_string_buffer(256))
reaches('io_uring_enter', 426, *[ctypes.c_long(word) for word in (-1, 0, 0, 0, 0, 0)])
reaches('io_uring_register', 427, *[ctypes.c_long(word) for word in (-1, 0, 0, 0)])
";

/// Goes through libuv's thread pool or its ring for files, and its loop for timers.
const LIBUV: &str = r"
const fs = require('fs');
fs.writeFile('node.txt', 'written', () => setTimeout(() => fs.readFile('node.txt', 'utf8', (error, text) => {
    if (error || text !== 'written') process.exit(3);
    fs.unlinkSync('node.txt');
    const descriptors = fs.readdirSync('/proc/self/fd').map(number => {
        try { return fs.readlinkSync('/proc/self/fd/' + number); } catch { return ''; }
    });
    const ring = descriptors.some(name => name.includes('io_uring'));
    console.log('@ ring-of-libuv', ring ? 'breach' : 'denied', process.versions.uv);
    process.exit(ring ? 0 : 10);
}), 20));
";

fn no_ring_is_to_be_had_and_programs_that_want_one_go_on_without(row: &mut Row) -> Ended {
    row.denies(RINGS);
    // Tokio makes rings only if it was built for that, and no such program is at hand without a build.
    row.inconclusive("a tokio program: none at hand");
    let Some(node) =
        ["/usr/bin/node", "/usr/local/bin/node"].iter().map(Path::new).find(|path| path.exists())
    else {
        row.inconclusive("libuv: no node");
        return Ended::Tested;
    };
    let wants = ["--env", "UV_USE_IO_URING=1", "--"];
    let inside = row.inside_program(&wants, node, &["-e", LIBUV]);
    let mut outside = row.product().beside(node, ["-e", LIBUV]);
    outside.env("UV_USE_IO_URING", "1").current_dir(row.product().folder());
    row.compare(&inside, &attempts(&finish(outside)));
    Ended::Tested
}

// ---- SYS-03 ----

/// What those calls could have changed.
fn administered() -> Vec<String> {
    let files = ["/proc/swaps", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"];
    let mut found: Vec<String> = files.map(|path| std::fs::read_to_string(path).unwrap()).to_vec();
    found.push(format!("{:?}", std::fs::read("/sys/kernel/kexec_loaded").ok()));
    found
}

/// Seconds that the host's clock shows beyond those since its start.
fn clock_offset() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs_f64() - uptime
}

fn neither_kernel_surfaces_nor_administration_are_reached(row: &mut Row) -> Ended {
    let probe = build(row, "surface", include_str!("sys/surface.c"));
    let (before, offset) = (administered(), clock_offset());
    let inside = row.inside_program(&[], &probe, &[]);
    assert_eq!(administered(), before);
    assert!((clock_offset() - offset).abs() < 1.0, "the clock was set");
    let control = attempts(&finish(in_scratch(row, &probe, &[])));
    compare(row, &inside, &control, "refused or missing outside too");
    Ended::Tested
}

// ---- SYS-04 ----

/// Names of namespaces and of the machine: `host` holds what they are outside.
const OWN_NAMESPACES: &str = r"
import os
for kind, name in host.items():
    attempt('the host\'s ' + kind, lambda: os.readlink('/proc/self/ns/' + kind) == name)
attempt('the host\'s name', lambda: os.uname().nodename == node)
";

fn namespaces_and_mounts_stay_as_they_were_made(row: &mut Row) -> Ended {
    let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let before = host_name();
    let kinds = ["mnt", "cgroup", "uts", "ipc", "user", "pid", "net"];
    let of_host = kinds.map(|kind| {
        let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        format!("{kind:?}: {:?}", link.display().to_string())
    });
    row.denies(&format!("host, node = {{{}}}, {before:?}\n{OWN_NAMESPACES}", of_host.join(", ")));
    let probe = build(row, "namespaces", include_str!("sys/namespaces.c"));
    let inside = row.inside_program(&[], &probe, &[]);
    assert_eq!(host_name(), before);
    let control = attempts(&finish(in_scratch(row, &probe, &[])));
    compare(row, &inside, &control, "refused or missing outside too");
    cgroups_and_ids_of_the_host_cannot_be_seen(row);
    Ended::Tested
}

/// What the program says of its cgroups and ids beside what they are.
fn cgroups_and_ids_of_the_host_cannot_be_seen(row: &mut Row) {
    let gaps = row.product().gaps();
    let program = waiting(row, "cat /proc/self/cgroup; echo; cat /proc/self/uid_map");
    let of_host = |file| std::fs::read_to_string(format!("/proc/{}/{file}", program.pid)).unwrap();
    let (cgroups, map) = program.said.split_once("\n\n").unwrap();
    assert!(cgroups.lines().all(|line| line.ends_with(":/")), "{cgroups}");
    if gaps.is_empty() {
        assert!(of_host("cgroup").contains("cofferdam-"), "the control: there is a path to hide");
    } else {
        row.inconclusive(format!("the path of its cgroup: none of its own, {} is a gap", gaps.join(", ")));
    }
    // No id inside is the host's root, and there is no id but the program's and what owns the system.
    let mapped: Vec<Vec<u32>> = map
        .lines()
        .filter(|line| *line != ".")
        .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
        .collect();
    assert!(!mapped.is_empty() && mapped.iter().all(|line| line[1] != 0), "{map}");
    assert!(mapped.iter().map(|line| line[2]).sum::<u32>() <= 2, "{map}");
    program.end();
}

// ---- SYS-05 ----

fn no_socket_of_another_kind_opens(row: &mut Row) -> Ended {
    let probe = build(row, "sockets", include_str!("sys/sockets.c"));
    let mut inside = row.inside_program(&[], &probe, &[]);
    let control = attempts(&finish(in_scratch(row, &probe, &[])));
    let (control, lacking): (Attempts, Attempts) =
        control.into_iter().partition(|(_, attempt)| attempt.breach);
    let mut filter_only = vec![];
    for (name, attempt) in &lacking {
        let words: Vec<u64> = attempt.detail.split(' ').take(3).map(|word| word.parse().unwrap()).collect();
        let verdict = verdict("socket", &words);
        let refused = [EPERM, EAFNOSUPPORT, EPROTONOSUPPORT].map(|errno| ERRNO | errno);
        assert!(refused.contains(&verdict), "the filter says {verdict:#x} to {name}");
        let found = inside.remove(name).unwrap();
        assert!(!found.breach, "{name} got through");
        filter_only.push(name.as_str());
    }
    // The other way round, so that the evaluation is known to tell them apart.
    assert_eq!(verdict("socket", &[2, 1, 0]), ALLOW);
    row.compare(&inside, &control);
    if !filter_only.is_empty() {
        row.inconclusive(format!("this kernel lacks them, filter-only: {}", filter_only.join(" ")));
    }
    Ended::Tested
}

/// `SECCOMP_RET_ALLOW` and `SECCOMP_RET_ERRNO`, to which the error is added.
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// What the compiled filter answers to a call with these arguments.
fn verdict(name: &str, arguments: &[u64]) -> u32 {
    let number = calls().into_iter().find(|call| call.name == name).unwrap().number;
    let architecture = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    let load = |offset: u32| match offset {
        0 => number,
        4 => architecture,
        _ => {
            let word = arguments.get((offset as usize - 16) / 8).copied().unwrap_or(0);
            (if offset.is_multiple_of(8) { word } else { word >> 32 }) as u32
        }
    };
    let filter = seccomp::container();
    let (mut register, mut at) = (0, 0);
    loop {
        let instruction = filter.instructions()[at];
        let k = instruction.k;
        let branch = |holds| usize::from(if holds { instruction.jt } else { instruction.jf });
        at += 1;
        match instruction.code {
            0x20 => register = load(k),
            0x54 => register &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(register == k),
            0x35 => at += branch(register >= k),
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

// ---- SYS-07 ----

/// Types into every terminal that it has. The kernel reads 32 bits of a request, whatever comes above.
const TYPE: &str = r"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def reaches(name, descriptor, request, word):
    ctypes.set_errno(0)
    answer = libc.ioctl(descriptor, ctypes.c_ulong(request), word)
    got = ctypes.get_errno()
    report(name, answer >= 0 or got != errno.EPERM, got)
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541c, 0x5423
for high in (0, 1 << 32, 0xffffffff << 32):
    for where, descriptor in (('input', 0), ('output', 1), ('tty', os.open('/dev/tty', os.O_RDWR))):
        reaches(f'TIOCSTI {where} {high:x}', descriptor, TIOCSTI | high, ctypes.c_char_p(b'x'))
    reaches(f'TIOCLINUX {high:x}', 0, TIOCLINUX | high, ctypes.c_char_p(b'\3'))
    reaches(f'TIOCSETD {high:x}', 0, TIOCSETD | high, ctypes.byref(ctypes.c_int(0)))
";

/// What a program on a terminal attempted, and what was typed into that terminal.
fn on_a_terminal(row: &Row, program: &Command) -> (Attempts, String) {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", include_str!("sys/terminal.py")]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(row.product().folder());
    let ran = finish(command);
    let seen = ran.json();
    let text = |key: &str| seen[key].as_str().unwrap().replace('\r', "");
    let said = Ran { code: seen["code"].as_i64().unwrap() as i32, stdout: text("said"), ..ran };
    (attempts(&said), text("typed"))
}

fn nothing_is_typed_into_the_terminal_of_who_runs_it(row: &mut Row) -> Ended {
    let code = cofferdam_testkit::rows::probe(TYPE);
    let (inside, typed) = on_a_terminal(row, &row.command(&["-t", "--quiet", "-c", &code]));
    assert_eq!(typed, "", "what the shell would read next");
    let outside = row.product().beside("/usr/bin/python3", ["-c", &code]);
    let (control, typed) = on_a_terminal(row, &outside);
    if !typed.contains('x') {
        row.inconclusive("the kernel lets nobody type into a terminal");
    }
    row.compare(&inside, &control);
    Ended::Tested
}

// ---- SYS-08 ----

/// There is no profile for debuggers yet: a program's own child is out of its reach too.
fn no_process_is_looked_into(row: &mut Row) -> Ended {
    let probe = build(row, "debugger", include_str!("sys/debugger.c"));
    let mut sleep = row.product().beside("sleep", ["30"]);
    let mut neighbour = start(&mut sleep);
    let neighbours = format!("neighbour={}", neighbour.id());
    let words = [probe.to_str().unwrap(), "one=1", "supervisor=0", &neighbours];
    let mut command = row.command(&words);
    let mut child = start(command.stdin(Stdio::piped()));
    let supervisor = child.id();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, format!("{supervisor}\n").as_bytes()).unwrap();
    drop(stdin);
    let ran = wait(child, Instant::now());
    // Outside, everybody is that neighbour.
    let pid = neighbour.id();
    let words = [format!("one={pid}"), "supervisor=0".to_owned(), neighbours];
    let outside = with_input(row.product().beside(&probe, &words), format!("{pid}\n").as_bytes());
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    row.compare(&attempts(&ran), &attempts(&outside));
    Ended::Tested
}

// ---- SYS-09 ----

/// Looks at all threads, also at those that threads start late, and at a child after its exec.
const STATUS: &str = r"
import collections, glob, subprocess, threading
go = threading.Event()
def more(left):
    started = threading.Thread(target=go.wait if left == 0 else more, args=() if left == 0 else (left - 1,), daemon=True)
    started.start()
    go.wait()
for _ in range(3):
    threading.Thread(target=more, args=(1,), daemon=True).start()
while len(threading.enumerate()) < 10: pass
texts = [open(path).read() for path in glob.glob('/proc/self/task/*/status')]
assert len(texts) == 10, len(texts)
texts.append(subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout)
found = collections.defaultdict(set)
for text in texts:
    for line in text.splitlines():
        name, value = line.split(':', 1)
        found[name].add(' '.join(value.split()))
report('new privileges', found['NoNewPrivs'] != {'1'}, found['NoNewPrivs'])
report('no filter', found['Seccomp'] != {'2'}, found['Seccomp'])
for name in ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']:
    report(name, any(int(value, 16) for value in found[name]), found[name])
report('ids', found['Uid'] != {'1000 1000 1000 1000'} or found['Gid'] != {'1000 1000 1000 1000'}, found['Uid'])
go.set()
";

/// Puts as many layers of Landlock on itself as the kernel takes: 16 in all (`LANDLOCK_MAX_NUM_LAYERS` in
/// `security/landlock/limits.h`), of which a sandbox has one already. 444 and 446 make a ruleset and put
/// it on, on every architecture; each handles the making of block devices alone.
const LAYERS: &str = r"
import ctypes, os, struct
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
made = 0
while made < 16:
    ruleset = libc.syscall(444, struct.pack('Q', 1 << 11), 8, 0)
    if ruleset < 0 or libc.syscall(446, ruleset, 0) != 0: break
    os.close(ruleset)
    made += 1
report('all layers of Landlock', made == 16, made)
";

/// What Landlock's rules refuse and nothing else does: the filter and the limits let it through, and the file
/// system of such queues is mounted nowhere.
const LANDLOCKED: &str = r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def queue():
    name = f'/row-{os.getpid()}'.encode()
    if libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None) < 0:
        raise OSError(ctypes.get_errno(), 'mq_open')
    libc.mq_unlink(name)
attempt('a queue of messages', queue)
";

fn the_rules_of_landlock_are_in_force(row: &mut Row) {
    row.denies(LANDLOCKED);
}

fn a_layer_of_landlock_is_in_force(row: &mut Row) {
    let (inside, outside) = (row.inside(&[], LAYERS), row.outside(LAYERS));
    let made = &inside["all_layers_of_Landlock"].detail;
    assert!(made == "15" || outside["all_layers_of_Landlock"].detail != "16", "layers inside: {made}");
    row.compare(&inside, &outside);
}

fn nothing_gains_privileges(row: &mut Row) -> Ended {
    the_rules_of_landlock_are_in_force(row);
    a_layer_of_landlock_is_in_force(row);
    let inside = row.inside(&[], STATUS);
    // Outside, with every set of capabilities that a thread can have.
    let give = ["--inh-caps=+chown", "--ambient-caps=+chown", "/usr/bin/python3", "-c"];
    let words: Vec<String> =
        give.iter().map(ToString::to_string).chain([cofferdam_testkit::rows::probe(STATUS)]).collect();
    let control = attempts(&finish(in_scratch(row, Path::new("setpriv"), &words)));
    row.compare(&inside, &control);
    the_program_is_nobody_that_the_host_knows(row);
    a_setuid_program_of_the_system_stays_ordinary(row);
    if is_root() {
        privileged_files_of_an_image_stay_ordinary(row);
    } else {
        row.inconclusive("a setuid program in the workspace: only root can make one");
    }
    Ended::Tested
}

fn the_program_is_nobody_that_the_host_knows(row: &mut Row) {
    let program = waiting(row, "true");
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid)).unwrap();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let uids: Vec<u32> = uids.split_whitespace().map(|word| word.parse().unwrap()).collect();
    if row.user() == User::Root {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        let known = |uid: &u32| passwd.contains(&format!(":{uid}:"));
        assert!(uids.iter().all(|uid| *uid >= 0x7000_0000 && !known(uid)), "{uids:?}");
    } else {
        assert!(!uids.contains(&0), "{uids:?}");
    }
    program.end();
}

/// As an ordinary user has it: root would be root with it either way.
fn beside_as_ordinary(row: &Row, program: &str, words: &[&str]) -> Command {
    if row.user() == User::Ordinary {
        return row.product().beside(program, words);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=61234", "--regid=61234", "--clear-groups", "--inh-caps=-all"]);
    command.arg(program).args(words).stdin(Stdio::null());
    command
}

/// A program that has become another user's doesn't obey the variable with which the dynamic linker
/// tells whose it is.
fn a_setuid_program_of_the_system_stays_ordinary(row: &mut Row) {
    const TOLD: &str = "AT_SECURE:            0";
    let setuid = |path: &&str| {
        std::fs::metadata(path)
            .is_ok_and(|found| std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o4000 != 0)
    };
    let Some(program) = ["/usr/bin/mount", "/usr/bin/su"].into_iter().find(setuid) else {
        return row.inconclusive("a setuid program of the system: none here");
    };
    // Set by `env`, so that nothing else that is started obeys it.
    let outside = beside_as_ordinary(row, "env", &["LD_SHOW_AUXV=1", program, "--version"]);
    if finish(outside).stdout.contains(TOLD) {
        row.inconclusive(format!("{program} gains nothing outside either"));
    }
    let inside = row.run(&["--env", "LD_SHOW_AUXV=1", "--", program, "--version"]);
    assert!(inside.stdout.contains(TOLD), "{inside:?}");
    assert!(inside.stdout.contains("AT_EUID:              1000"), "{inside:?}");
}

/// A program with a setuid bit, and one with file capabilities, in a workspace of root's making.
fn privileged_files_of_an_image_stay_ordinary(row: &mut Row) {
    use std::os::unix::fs::PermissionsExt as _;
    let built = build(row, "privileged", include_str!("sys/privileged.c"));
    let workspace = row.product().folder().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    row.product().give(&workspace);
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    // So that an ordinary user gets at it outside.
    open(row.product().folder(), 0o711).unwrap();
    open(&workspace, 0o755).unwrap();
    let mut control = Attempts::new();
    for name in ["setuid", "capable"] {
        let program = workspace.join(name);
        std::fs::copy(&built, &program).unwrap();
        std::os::unix::fs::chown(&program, Some(0), Some(0)).unwrap();
        open(&program, if name == "setuid" { 0o4755 } else { 0o755 }).unwrap();
        if name == "capable" {
            let mut setcap = Command::new("setcap");
            setcap.arg("cap_net_raw,cap_dac_override+ep").arg(&program);
            let set = finish(setcap);
            assert_eq!(set.code, 0, "{set:?}");
        }
        control.extend(attempts(&finish(beside_as_ordinary(row, program.to_str().unwrap(), &[name]))));
    }
    let mut inside = Attempts::new();
    for name in ["setuid", "capable"] {
        let options = ["--workspace", workspace.to_str().unwrap(), "--"];
        inside.extend(row.inside_program(&options, &Path::new("/workspace").join(name), &[name]));
    }
    row.compare(&inside, &control);
}

// ---- SYS-11 ----

/// Devices by name, major and minor number; the last is the disk that the host's root is on.
const TABLE: &str = r"
import os, stat
devices = {'mem': (1, 1), 'port': (1, 4), 'kmsg': (1, 11), 'kvm': (10, 232), 'tun': (10, 200), 'fuse': (10, 229),
           'loop-control': (10, 237), 'vhost-net': (10, 238), 'vhost-vsock': (10, 241), 'uinput': (10, 223),
           'console': (5, 1), 'zeros': (1, 5), 'disk': disk}
kinds = {name: stat.S_IFBLK if name == 'disk' else stat.S_IFCHR for name in devices}
";

/// Makes them and opens what was made and what the host's user has `shown`; looks for those of the host's.
const DEVICES: &str = r"
def anywhere(action, folders):
    done = False
    for folder in folders:
        try:
            action(folder)
            done = True
        except OSError as error: why = error
    if not done: raise why
for name, numbers in devices.items():
    make = lambda folder: os.mknod(f'{folder}/{name}', kinds[name] | 0o666, os.makedev(*numbers))
    look = lambda folder: os.close(os.open(f'{folder}/{name}', os.O_RDONLY | os.O_NONBLOCK))
    attempt(f'make {name}', lambda: anywhere(make, folders))
    attempt(f'open {name}', lambda: anywhere(look, [*folders, shown]))
    for folder in folders:
        try: os.unlink(f'{folder}/{name}')
        except OSError: pass
harmless = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx'}
for name in host:
    attempt(f'find {name}', lambda: stat.S_IFMT(os.stat('/dev/' + name).st_mode) in (stat.S_IFCHR, stat.S_IFBLK))
found = []
for top in ['/dev', '/tmp', '/run', '/sys', '/workspace', '/home']:
    for folder, _, files in os.walk(top):
        for file in files:
            try: mode = os.lstat(folder + '/' + file).st_mode
            except OSError: continue
            if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and file not in harmless and folder != '/dev/pts':
                found.append(file)
    if found: break
report('other devices', found, found[:5])
for name in ['null', 'zero', 'full', 'random', 'urandom']:
    os.close(os.open('/dev/' + name, os.O_RDONLY))
os.openpty()
";

/// Makes a node of each in a folder.
const NODES: &str = r"
os.umask(0)
for name, numbers in devices.items(): os.mknod(f'{folder}/{name}', kinds[name] | 0o666, os.makedev(*numbers))
";

/// Makes a node of each device in a folder of the user's, if these tests may: what it is worth outside
/// depends on the device alone.
fn make_nodes(row: &mut Row, folder: &str, disk: &str) {
    std::fs::create_dir(folder).unwrap();
    if !is_root() {
        return row.inconclusive("nodes of devices that the host shows: only root can make them");
    }
    let make = format!("import os\ndisk, folder = {disk}, {folder:?}\n{TABLE}{NODES}");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &make]);
    assert_eq!(finish(command).code, 0);
    row.product().give(Path::new(folder));
}

fn no_device_is_made_or_found(row: &mut Row) -> Ended {
    let root = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata("/").unwrap());
    let disk = format!("(os.major({root}), os.minor({root}))");
    let harmless = ["null", "zero", "full", "random", "urandom", "tty", "ptmx"];
    let host: Vec<String> = std::fs::read_dir("/dev")
        .unwrap()
        .flatten()
        .filter(|entry| {
            use std::os::unix::fs::FileTypeExt as _;
            let kind = entry.file_type().unwrap();
            kind.is_char_device() || kind.is_block_device()
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            !harmless.contains(&name.as_str()) && !name.starts_with("tty") && !name.starts_with("vcs")
        })
        .collect();
    let nodes = row.product().folder().join("nodes");
    let nodes = nodes.to_str().unwrap();
    make_nodes(row, nodes, &disk);
    let probe = |folders: &str, shown: &str| {
        format!(
            "import os\ndisk, folders, shown, host = {disk}, {folders}, {shown:?}, {host:?}\n{TABLE}{DEVICES}"
        )
    };
    let writable = "['/workspace', '/tmp', '/dev/shm', '/home/user', '/var/tmp']";
    let inside = row.inside(&["--in", nodes], &probe(writable, "/inputs/nodes"));
    if is_root() {
        let missing = |(name, attempt): &(&String, &Attempt)| {
            name.starts_with("open_") && attempt.detail.contains("No such file")
        };
        assert_eq!(inside.iter().find(missing), None, "it was there to be opened");
    }
    let control = row.outside(&probe("['.']", nodes));
    let why = match row.user() {
        User::Root => "the host has no such device",
        User::Ordinary => "only root makes or opens them outside",
    };
    compare(row, &inside, &control, why);
    Ended::Tested
}
