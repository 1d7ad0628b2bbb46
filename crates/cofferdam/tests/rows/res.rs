//! Resources: what a program can use up, and what is left of it.
//!
//! The limits are small, so that each row is quick; the controls go beyond them outside, within bounds of
//! their own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, holders_of, pids, processes_with};
use cofferdam_testkit::product::{Ran, Started, finish, start, wait};
use cofferdam_testkit::rows::{Row, User, attempts, probe};
use serde_json::{Value, json};

use crate::Ended;
use crate::row;
use crate::waiting::waiting;

row!("RES-01", a_fork_bomb_stays_within_its_ceiling);
row!("RES-02", memory_beyond_the_ceiling_ends_the_whole_sandbox_and_nothing_else);
row!("RES-03", all_cores_are_not_to_be_had);
row!("RES-04", bytes_beyond_the_quota_are_refused_and_come_back);
row!("RES-05", files_beyond_the_quota_are_refused_and_go_away_quickly);
row!("RES-06", a_flood_of_output_is_counted_and_bounded);
row!("RES-07", nothing_outlives_its_deadline);
row!("RES-08", nothing_outlives_its_run);
row!("RES-10", what_each_process_can_take_from_the_kernel_is_bounded);

/// Why a row, or the rest of it, can't be tested by this user, if a capability is a gap here.
pub(crate) fn lacks(row: &Row, capability: &str) -> Option<Ended> {
    let lacking = row.gaps().iter().any(|gap| gap == capability);
    lacking.then(|| Ended::Skipped(format!("{capability}: this user has no cgroup that could hold it")))
}

/// The Outcome of a run, whatever came of it.
pub(crate) fn outcome(row: &mut Row, args: &[&str]) -> (Value, Duration) {
    let ran = row.run(&[&["--json"], args].concat());
    (ran.json(), ran.took)
}

pub(crate) fn hit(outcome: &Value, limit: &str) -> bool {
    outcome["limits_hit"].as_array().unwrap().contains(&json!(limit))
}

/// Whether the audit log has an event of the last run that says something.
pub(crate) fn was_logged(row: &Row, event: &str, saying: &str) -> bool {
    let log = row.product().call(["audit", "show", "last"]).exits(0).stdout;
    log.lines().any(|line| line.contains(event) && line.contains(saying))
}

/// Looks again and again while something goes on; gives the greatest number that was seen.
pub(crate) fn peak<T>(mut look: impl FnMut() -> u64 + Send, meanwhile: impl FnOnce() -> T) -> (u64, T) {
    std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel();
        let watch = scope.spawn(move || {
            let mut peak = 0;
            while stopped.recv_timeout(Duration::from_millis(15)) == Err(mpsc::RecvTimeoutError::Timeout) {
                peak = peak.max(look());
            }
            peak
        });
        let done = meanwhile();
        stop.send(()).unwrap();
        (watch.join().unwrap(), done)
    })
}

// ---- RES-01 ----

/// First threads, which end; then processes, which stay if `keep` says so. 64 of each are enough.
const BOMB: &str = r"
import os, threading, time
go, threads = threading.Event(), []
try:
    while len(threads) < 64:
        one = threading.Thread(target=go.wait, daemon=True)
        one.start()
        threads.append(one)
    why = ''
except RuntimeError as error: why = error
go.set()
for one in threads: one.join()
report('threads', len(threads) >= 64, f'{len(threads)} {why}')
children, why = [], 0
try:
    while len(children) < 64:
        pid = os.fork()
        if pid == 0:
            time.sleep(3)
            os._exit(0)
        children.append(pid)
except OSError as error: why = error.errno
report('processes', len(children) >= 64, f'{len(children)} errno {why}')
if keep: time.sleep(0.2)
else:
    for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)
";

fn a_fork_bomb_stays_within_its_ceiling(row: &mut Row) -> Ended {
    let mark = format!("# bomb-{}-{:?}", std::process::id(), row.user());
    let bomb = |keep: &str| format!("{mark}\nkeep = {keep}\n{BOMB}");
    let seen = || processes_with(&mark).len() as u64;
    let inside = bomb("True");
    let (most, (inside, outcome)) = peak(seen, || row.inside_with_outcome(&["--pids", "32"], &inside));
    assert!(inside["processes"].detail.contains("errno 11"), "EAGAIN: {inside:?}");
    // Its own, and a few of ours that have the code on their command line.
    assert!((16..=32 + 4).contains(&most), "{most} processes on the host");
    assert_eq!(seen(), 0);
    if outcome["usage"]["processes_peak"].is_null() {
        row.inconclusive("that it was hit isn't told: without a cgroup nobody counts what is refused");
    } else {
        assert_eq!(outcome["limits_hit"], json!(["pids"]), "{outcome}");
        assert!(was_logged(row, "limit.hit", "limit=pids"));
    }
    assert_eq!(outcome["left"]["processes"], 31, "{outcome}");
    let next = row.run(&["--", "true"]).exits(0);
    assert!(next.took < Duration::from_secs(5), "{next:?}");
    let control = row.outside(&bomb("False"));
    row.compare(&inside, &control);
    Ended::Tested
}

// ---- RES-02 ----

/// Each takes 100 MiB in another way; `folder` and `shared` are where it may write.
const MEMORY: [(&str, &str); 6] = [
    ("anonymous", "b = b'x' * SIZE"),
    (
        "a file",
        "with open(folder + '/x', 'wb') as file:\n    for _ in range(100): file.write(b'x' * (1 << 20))",
    ),
    (
        "shared memory",
        "with open(shared + '/row-x', 'wb') as file:\n    os.unlink(shared + '/row-x')\n    for _ in range(100): file.write(b'x' * (1 << 20))",
    ),
    (
        "system v",
        "libc.shmat.restype = ctypes.c_void_p\nid = libc.shmget(0, ctypes.c_size_t(SIZE), 0o1600)\nat = libc.shmat(id, None, 0)\nlibc.shmctl(id, 0, None)\nctypes.memset(at, 1, SIZE)",
    ),
    (
        "locked",
        "libc.mmap.restype = ctypes.c_void_p\nat = libc.mmap(None, ctypes.c_size_t(SIZE), 3, 0x22, -1, 0)\nif libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(SIZE)): raise OSError(ctypes.get_errno(), 'mlock')",
    ),
    (
        "a child",
        "if os.fork() == 0:\n    b = b'x' * SIZE\n    os._exit(7)\nif os.wait()[1] >> 8 != 7: time.sleep(5)",
    ),
];

fn bomb_of_memory(name: &str, code: &str, places: &str) -> String {
    let indented = code.replace('\n', "\n    ");
    format!(
        "import ctypes, os, time\nlibc, SIZE = ctypes.CDLL(None, use_errno=True), 100 << 20\n{places}\n\
         def take():\n    {indented}\nattempt({name:?}, take)\n"
    )
}

fn memory_beyond_the_ceiling_ends_the_whole_sandbox_and_nothing_else(row: &mut Row) -> Ended {
    let (killed, _) = outcome(row, &["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((&killed["end"], &killed["limits_hit"]), (&json!("signalled"), &json!([])), "{killed}");
    if let Some(skipped) = lacks(row, "memory") {
        return skipped;
    }
    let mut command = row.command(&["--", "sh", "-c", "read line; echo alive"]);
    let mut neighbour = start(command.stdin(Stdio::piped()));
    for (name, code) in MEMORY {
        let limits = ["--memory", "64MiB", "--disk", "64MiB", "--timeout", "10s"];
        let inside = bomb_of_memory(name, code, "folder, shared = '/tmp', '/dev/shm'");
        let inside = probe(&inside);
        let (got, _) = outcome(row, &[&limits[..], &["-c", &inside]].concat());
        let text = got["stdout"]["text"].as_str().unwrap();
        if got["end"] == "out_of_memory" {
            assert!(!text.contains('@'), "it lived on: {got}");
            assert_eq!((&got["exit_code"], hit(&got, "memory")), (&json!(137), true), "{got}");
            assert!(got["usage"]["memory_peak"].as_u64().unwrap() <= 64 << 20, "{got}");
        } else {
            assert_eq!(name, "locked", "{got}");
            assert!(text.contains(" denied "), "{got}");
        }
        let control = row.outside(&bomb_of_memory(name, code, "folder, shared = '.', '.'"));
        if control.values().all(|attempt| attempt.breach) {
            row.proved();
        } else {
            row.inconclusive(format!("{name}: {control:?}"));
        }
    }
    neighbour.stdin.take().unwrap().write_all(b"\n").unwrap();
    let lived = wait(neighbour, Instant::now());
    assert_eq!((lived.code, lived.stdout.as_str()), (0, "alive\n"), "{lived:?}");
    Ended::Tested
}

// ---- RES-03 ----

/// Asks for more than its share, and gives back what it got.
const PRIORITIES: &str = r"
import os, struct, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def schedule(policy):
    os.sched_setscheduler(0, policy, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
attempt('first in first out', lambda: schedule(os.SCHED_FIFO))
attempt('round robin', lambda: schedule(os.SCHED_RR))
attempt('nice', lambda: (os.setpriority(os.PRIO_PROCESS, 0, -20), os.setpriority(os.PRIO_PROCESS, 0, 0)))
";

/// As many as there are cores and more, on every core, for a second: do they get a third of one?
const SPIN: &str = r"
import os, resource, time
try: os.sched_setaffinity(0, range(1024))
except OSError: pass
began = time.monotonic()
for _ in range(4):
    if os.fork() == 0:
        while time.monotonic() < began + 1: pass
        os._exit(0)
for _ in range(4): os.wait()
used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
share = used / (time.monotonic() - began)
report('a third of a core', share > 0.33, f'{share:.2f}')
";

fn all_cores_are_not_to_be_had(row: &mut Row) -> Ended {
    row.denies(PRIORITIES);
    let forever = "import os\nfor _ in range(3): os.fork()\nwhile True: pass";
    let (ended, took) = outcome(row, &["--timeout", "500ms", "-c", forever]);
    assert_eq!(ended["end"], "timed_out");
    assert!(took < Duration::from_millis(500 + 1000 + 1000), "{took:?}: a second late, and one to start");
    if let Some(skipped) = lacks(row, "cpu") {
        return skipped;
    }
    let (inside, outcome) = row.inside_with_outcome(&["--cpus", "0.2"], SPIN);
    let (used, run) = (&outcome["usage"]["cpu_ms"], &outcome["time_ms"]["run"]);
    let most = run.as_f64().unwrap() * 0.2 + 100.0;
    assert!(used.as_f64().unwrap() <= most, "{used} ms of {run}");
    let control = row.outside(SPIN);
    row.compare(&inside, &control);
    Ended::Tested
}

// ---- RES-04 ----

/// Writes 20 MiB in each place and in each way, and keeps nothing but the last, if `keep` says so.
const FILL: &str = r"
import os
def write(file):
    for _ in range(20): os.write(file, bytes(1 << 20))
def fill(name, ways, keep=False):
    for place in places:
        path = places[place] + '/filler'
        for way, act in ways.items():
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if way == 'deleted': os.unlink(path)
            attempt(f'{name} {place} {way}', lambda: act(file))
            os.close(file)
            if way != 'deleted' and not keep: os.unlink(path)
fill('write', {'plain': write, 'deleted': write})
fill('allocate', {'plain': lambda file: os.posix_fallocate(file, 0, 20 << 20), 'deleted': lambda file: os.posix_fallocate(file, 0, 20 << 20)})
def together():
    for place in places.values():
        with open(place + f'/part{place.count(chr(47))}{len(place)}', 'wb') as file: file.write(bytes(5 << 20))
attempt('5 MiB in each', together)
";

/// Bytes below a folder.
pub(crate) fn size(folder: &Path) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else { continue };
        total += std::os::unix::fs::MetadataExt::blocks(&found) * 512;
        if found.is_dir() {
            total += size(&entry.path());
        }
    }
    total
}

fn bytes_beyond_the_quota_are_refused_and_come_back(row: &mut Row) -> Ended {
    let places = ["/workspace", "/tmp", "/home/user", "/dev/shm", "/var/tmp"];
    let named = |folder: Option<&str>| {
        let pairs = places.map(|place| format!("{place:?}: {:?}", folder.unwrap_or(place)));
        format!("places = {{{}}}\n{FILL}", pairs.join(", "))
    };
    let state = row.product().state();
    let _ = row.run(&["--", "true"]).exits(0); // what is made once and kept
    let before = size(&state);
    let probe = named(None);
    let (grown, (inside, outcome)) =
        peak(|| size(&state), || row.inside_with_outcome(&["--disk", "16MiB"], &probe));
    assert!(hit(&outcome, "disk"), "{outcome}");
    assert!(was_logged(row, "limit.hit", "limit=disk"));
    for (name, attempt) in &inside {
        assert!(attempt.detail.contains("28"), "{name}: ENOSPC: {attempt:?}");
    }
    assert!(grown.saturating_sub(before) <= 16 << 20, "the state folder grew by {}", grown - before);
    assert!(eventually(Duration::from_secs(2), || size(&state) < before + (1 << 20)), "{}", size(&state));
    let again = row.run(&["--disk", "16MiB", "--", "sh", "-c", "head -c 16000000 /dev/zero > x"]);
    assert_eq!(again.code, 0, "{again:?}");
    let control = row.outside(&named(Some(".")));
    row.compare(&inside, &control);
    Ended::Tested
}

// ---- RES-05 ----

/// Makes 1,500 of each, and removes them again.
const MANY: &str = r"
import os
home = os.getcwd()
os.mkdir('many'); os.chdir('many'); many = os.getcwd()
def flat(name):
    made = 0
    try:
        while made < 1500:
            os.close(os.open(name(made), os.O_CREAT | os.O_WRONLY)); made += 1
    finally:
        for at in range(made): os.unlink(name(at))
def deep():
    made = 0
    try:
        while made < 1500: os.mkdir('d'); os.chdir('d'); made += 1
    finally:
        for _ in range(made): os.chdir('..'); os.rmdir('d')
def kinds():
    made = 0
    try:
        while made < 1500: (os.mkfifo if made % 2 else lambda name: os.symlink('x' * 200, name))(str(made)); made += 1
    finally:
        for at in range(made): os.unlink(str(at))
attempt('empty files', lambda: flat(str))
attempt('long names', lambda: flat(lambda at: str(at).rjust(255, 'x')))
attempt('a deep tree', deep)
attempt('links and pipes', kinds)
os.chdir(home); os.rmdir('many')
";

/// A tree of 4,000 levels, and names of 255 bytes at its end, left where they are.
const DEEP: &str = r"
import os
for _ in range(4000): os.mkdir('d' * 200); os.chdir('d' * 200)
try:
    at = 0
    while True: os.close(os.open(str(at).rjust(255, 'x'), os.O_CREAT | os.O_WRONLY)); at += 1
except OSError as error: print(error.errno, at > 20)
";

fn files_beyond_the_quota_are_refused_and_go_away_quickly(row: &mut Row) -> Ended {
    let (inside, _) = row.inside_with_outcome(&["--files", "500"], MANY);
    for (name, attempt) in &inside {
        assert!(attempt.detail.contains("28"), "{name}: ENOSPC: {attempt:?}");
    }
    let (left, _) = outcome(row, &["--files", "4100", "-c", DEEP]);
    assert_eq!(left["stdout"]["text"], "28 True\n", "{left}");
    assert!(hit(&left, "files"), "{left}");
    assert!(left["time_ms"]["close"].as_f64().unwrap() < 2000.0, "{left}");
    let control = row.outside(MANY);
    row.compare(&inside, &control);
    Ended::Tested
}

// ---- RES-06 ----

/// 200 MB on one stream, and a line without an end on the other.
pub(crate) const FLOOD: (u64, u64) = (200_000_000, 30_000_000);

fn a_flood_of_output_is_counted_and_bounded(row: &mut Row) -> Ended {
    let script = format!(
        "yes | head -c {}; head -c {} /dev/zero | tr '\\0' e >&2; exec >&-; echo lost; exit 7",
        FLOOD.0, FLOOD.1
    );
    let command = row.command(&["--json", "--", "sh", "-c", &script]);
    is_counted(row, command);
    output_ends_runs_where_that_is_asked_for(row);
    Ended::Tested
}

/// Runs a flood of these sizes that ends with 7, and sees that it is counted in little memory.
pub(crate) fn is_counted(row: &Row, mut command: Command) {
    let child = start(&mut command);
    let status = format!("/proc/{}/status", child.id());
    let resident = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let (kib, ran) = peak(resident, || wait(child, Instant::now()));
    let outcome = ran.json();
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(7)), "{}", ran.stderr);
    for (stream, said) in [("stdout", FLOOD.0), ("stderr", FLOOD.1)] {
        let of = &outcome[stream];
        // Standard error has what the shell says of a closed stream, too.
        let more = of["bytes"].as_u64().unwrap() - said;
        assert!(if stream == "stdout" { more == 0 } else { more < 100 }, "{stream}: {more} more");
        let kept = of["text"].as_str().unwrap().len() as u64;
        assert_eq!((kept, of["dropped"].as_u64().unwrap()), (10 << 20, said + more - (10 << 20)));
    }
    assert!(hit(&outcome, "output"));
    assert!(was_logged(row, "output.truncated", ""));
    // What is kept of both streams, and the program itself.
    assert!((1000..24 << 10).contains(&kib), "{kib} KiB resident");
}

fn output_ends_runs_where_that_is_asked_for(row: &mut Row) {
    let ran = row.run(&["--output-limit", "1MiB", "--timeout", "5s", "--", "yes"]).exits(153);
    assert_eq!(ran.stdout.len(), 1 << 20);
    // The control: a program that says more, and nobody who bounds it.
    let said = finish_beside(row, &["head", "-c", "3000000", "/dev/zero"]);
    assert_eq!(said.stdout.len(), 3_000_000);
    row.proved();
    // Whoever goes on writing after its end holds nothing up.
    let (outcome, took) =
        outcome(row, &["--timeout", "5s", "--", "sh", "-c", "setsid yes & sleep 0.1; echo done"]);
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)));
    assert!(took < Duration::from_secs(3), "{took:?}");
}

pub(crate) fn finish_beside(row: &Row, words: &[&str]) -> Ran {
    finish(row.product().beside(words[0], &words[1..]))
}

// ---- RES-07 ----

/// Each says something and goes on for longer than it may.
const STAYS: [&str; 4] = [
    "echo on; exec sleep 3.0701",
    "trap '' TERM INT HUP; echo on; while :; do :; done",
    "echo on; kill -STOP $$",
    "echo on; exec >&- 2>&-; exec sleep 3.0701",
];

fn nothing_outlives_its_deadline(row: &mut Row) -> Ended {
    let started = Instant::now();
    let mut outside: Vec<_> =
        STAYS.iter().map(|script| start(&mut row.product().beside("sh", ["-c", script]))).collect();
    for script in STAYS {
        let (ended, took) = outcome(row, &["--timeout", "300ms", "--", "sh", "-c", script]);
        assert_eq!((&ended["end"], &ended["exit_code"]), (&json!("timed_out"), &json!(124)), "{script}");
        assert!(hit(&ended, "timeout") && was_logged(row, "limit.hit", "limit=timeout"), "{script}");
        assert_eq!(ended["stdout"]["text"], "on\n", "{script}");
        let time = |part: &str| ended["time_ms"][part].as_f64().unwrap();
        let run = time("open") + time("run"); // the deadline is one for both
        assert!((250.0..1300.0).contains(&run), "{script} ran for {run} ms");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    // The controls have had longer than any of them, and are all still there.
    std::thread::sleep(Duration::from_millis(1300).saturating_sub(started.elapsed()));
    let over = outside.iter_mut().filter_map(|child| child.try_wait().unwrap()).count();
    let late = started.elapsed() > Duration::from_secs(3); // the machine was so slow that two have ended
    for mut child in outside {
        let _ = child.kill(); // it may have ended
        child.wait().unwrap();
    }
    assert!(over == 0 || late, "{over} ended by themselves");
    if over == 0 {
        row.proved();
    } else {
        row.inconclusive("the machine is so slow that those outside came to their end");
    }
    assert_eq!(processes_with("sleep 3.0701"), [] as [i32; 0]);
    Ended::Tested
}

// ---- RES-08 ----

/// Leaves five processes in five ways, which sleep for as long as they are told, and succeeds.
const LEAVE: &str = r"
import os, socket, subprocess
def leave(*ways):
    pid = os.fork()
    if pid: return os.waitpid(pid, 0)
    for way in ways: way()
    if os.fork(): os._exit(0)
    for way in ways: way()
    null = os.open('/dev/null', os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(null, stream)
    os.execvp('sleep', ['sleep', nap])
leave()
leave(os.setsid)
leave(os.setpgrp)
leave(lambda: os.chdir('/'), os.setsid, lambda: os.umask(0))
subprocess.Popen(['nohup', 'sleep', nap], stdout=-3, stderr=-3, stdin=-3)
os.kill(os.getpid(), 0)
";

/// Asks others to start something later.
const LATER: &str = r"
import os
for path in folders:
    attempt('write to ' + path, lambda: os.access(path, os.W_OK))
";

fn nothing_outlives_its_run(row: &mut Row) -> Ended {
    let nap = if row.user() == User::Root { "2.0801" } else { "2.0802" };
    let sleeping = || processes_with(&format!("sleep {nap}"));
    let leave = format!("nap = {nap:?}\n{LEAVE}");
    let (outcome, _) = outcome(row, &["-c", &leave]);
    assert_eq!(sleeping(), [] as [i32; 0], "as soon as there is an Outcome");
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)), "{outcome}");
    assert_eq!(outcome["left"]["processes"], 5, "{outcome}");
    assert!(was_logged(row, "sandbox.closed", "left_processes=5"));
    // Outside they stay, and end by themselves.
    let control = finish_beside(row, &["/usr/bin/python3", "-c", &leave]);
    assert_eq!((control.code, sleeping().len()), (0, 5), "{control:?}");
    row.proved();
    let folders: Vec<&str> =
        ["/etc/cron.d", "/var/spool/cron/crontabs", "/var/spool/at", "/etc/systemd/system"]
            .into_iter()
            .filter(|folder| Path::new(folder).is_dir())
            .collect();
    if !folders.is_empty() {
        row.denies(&format!("folders = {folders:?}\n{LATER}"));
    }
    a_socket_that_is_left_is_not_served(row);
    assert!(eventually(Duration::from_secs(5), || sleeping().is_empty()));
    Ended::Tested
}

/// A server that is left goes with its run, and so does the namespace in which its socket has a name.
fn a_socket_that_is_left_is_not_served(row: &mut Row) {
    let name = format!("row-{}-{:?}", std::process::id(), row.user());
    let listens = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/net/unix")).is_ok_and(|list| list.contains(&name))
    };
    let serve = format!(
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(\"\\0{name}\")\ns.listen()\n\
         if os.fork() == 0:\n    os.setsid()\n    for stream in (0, 1, 2): os.close(stream)\n    time.sleep(3)\n"
    );
    let program = waiting(row, &format!("/usr/bin/python3 -c '{serve}'"));
    let namespace = std::fs::read_link(format!("/proc/{}/ns/net", program.pid)).unwrap();
    let namespace = namespace.to_str().unwrap().to_owned();
    assert!(listens(&program.pid), "the control: it is there while its run lives");
    assert!(!holders_of(&namespace).is_empty());
    program.end();
    assert_eq!(pids().filter(listens).collect::<Vec<_>>(), [] as [i32; 0]);
    assert_eq!(holders_of(&namespace), [] as [String; 0]);
    let _ = finish_beside(row, &["/usr/bin/python3", "-c", &serve]).exits(0);
    let own = std::process::id() as i32;
    assert!(listens(&own), "outside it outlives who started it");
    assert!(eventually(Duration::from_secs(6), || !listens(&own)));
}

// ---- RES-10 ----

/// Takes as much of each as it gets, after it raised its own limits as far as it may.
const TAKE: &str = r"
import ctypes, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
MSGQUEUE, SIGPENDING = 12, 11
for name, which, most in [('core', resource.RLIMIT_CORE, 1 << 20), ('locked memory', resource.RLIMIT_MEMLOCK, 64 << 20),
                          ('message queues', MSGQUEUE, 64 << 20), ('open files', resource.RLIMIT_NOFILE, 3000),
                          ('pending signals', SIGPENDING, 8000)]:
    soft, hard = resource.getrlimit(which)
    enough = hard == resource.RLIM_INFINITY or hard >= most
    def more():
        resource.setrlimit(which, (most, hard if enough else most))
        return resource.getrlimit(which)[0] == most  # a limit of cores is said to be set and isn't
    attempt('a limit of ' + name, more)
def count(most, take):
    taken = 0
    try:
        while taken < most and take() is not False: taken += 1
    except OSError: pass
    return taken
def close(taken):
    for descriptor in taken: os.close(descriptor)
for name, take in [('descriptors', lambda: [os.dup(0)]), ('pipes', lambda: os.pipe()), ('epolls', lambda: [nest()])]:
    taken = []
    def nest():
        import select
        one = select.epoll()
        number = os.dup(one.fileno())
        one.close()
        if taken: libc.epoll_ctl(number, 1, taken[-1], ctypes.create_string_buffer(12))
        return number
    count(2500, lambda: taken.extend(take()))
    close(taken)
    report(name, len(taken) >= 2000, len(taken))
def flying():
    ends, taken = [], 0
    for _ in range(10):
        here, there = socket.socketpair()
        here.setblocking(False)
        ends += [here, there]
        taken += 200 * count(1, lambda: [socket.send_fds(here, [b'x'], [0] * 200), None][1])
    return taken
taken = flying()
report('descriptors in flight', taken >= 2000, taken)
event = ctypes.create_string_buffer(64)
timer = ctypes.c_int()
taken = count(6000, lambda: libc.timer_create(1, None, ctypes.byref(timer)) == 0)
report('timers', taken >= 6000, taken)
queues = []
def queue():
    name = f'/row-{os.getpid()}-{len(queues)}'.encode()
    made = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
    if made < 0: return False
    libc.mq_unlink(name)
    queues.append(made)
taken = count(20, queue)
close(queues)
report('queues of messages', taken >= 20, taken)
";

/// Keeps what other processes could lack then, or find, until it is told; says how many it has of each
/// kind. `key` is the first key of what has a number for a name, `name` begins every other name, and `most`
/// says how many are wanted of which kind.
const KEEP: &str = r"
import ctypes, itertools, json, os, resource
libc = ctypes.CDLL(None)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept, instances, names = {}, [], []
def instance(number):
    instances.append(libc.inotify_init1(0))
    return instances[-1] >= 0
def names_of_files():
    for folder, _, files in os.walk('/usr'):
        for file in files:
            path = os.path.join(folder, file)
            if not os.path.islink(path): yield path.encode()
def watch(number):
    if number == 0: names.extend(itertools.islice(names_of_files(), 3000))
    if number % len(names) == 0: instance(number)
    return libc.inotify_add_watch(instances[-1], names[number % len(names)], 2) >= 0
def shared_file(number):
    with open(f'/dev/shm/{name}-{number}', 'wb') as file: file.write(bytes(4096))
ways = {
    'shm': lambda number: libc.shmget(key + number, 4096, 0o1600) >= 0,
    'sem': lambda number: libc.semget(key + number, 4, 0o1600) >= 0,
    'msg': lambda number: libc.msgget(key + number, 0o1600) >= 0,
    'shared files': shared_file,
    'watches': watch,
    'instances': instance,
    'open files': lambda number: os.open('/dev/null', os.O_RDONLY) >= 0,
}
for kind, wanted in most.items():
    kept[kind] = 0
    try:
        while kept[kind] < wanted and ways[kind](kept[kind]) is not False: kept[kind] += 1
    except OSError: pass
print(json.dumps(kept), flush=True)
os.read(0, 1)
for number in range(kept.get('shm', 0)): libc.shmctl(libc.shmget(key + number, 0, 0), 0, None)
for number in range(kept.get('sem', 0)): libc.semctl(libc.semget(key + number, 0, 0), 0, 0)
for number in range(kept.get('msg', 0)): libc.msgctl(libc.msgget(key + number, 0), 0, None)
for number in range(kept.get('shared files', 0)): os.unlink(f'/dev/shm/{name}-{number}')
";

/// What is counted for the host, and how many of it are asked for: none of what has a name, so far.
const NAMED: [(&str, u64); 4] = [("shm", 20), ("sem", 20), ("msg", 20), ("shared files", 20)];

/// More open files than a process of a sandbox may have.
const OPEN_FILES: u64 = 4000;

/// How many open files others may open meanwhile.
const OF_OTHERS: u64 = 1000;

/// How many of each kind of [`NAMED`] the host has that have such a key or name.
fn found_on_the_host(key: u32, name: &str) -> BTreeMap<&'static str, u64> {
    let keyed = |kind: &str| {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap();
        let keys = table.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u32>().ok());
        keys.filter(|found| (key..key + 100).contains(found)).count() as u64
    };
    let files = cofferdam_testkit::left::names(Path::new("/dev/shm"));
    let files = files.iter().filter(|file| file.starts_with(name)).count() as u64;
    NAMED.map(|(kind, _)| (kind, if kind == "shared files" { files } else { keyed(kind) })).into()
}

/// Fails where somebody else of the same user has taken all of what is counted by user.
const NO_MORE: &str = r"
import ctypes, os
libc = ctypes.CDLL(None)
made = libc.inotify_init1(0)
report('no more ' + kind, made < 0 if kind == 'instances' else libc.inotify_add_watch(made, b'/', 2) < 0)
";

/// Starts something that keeps what it got until it is told; gives what it said.
fn keeping(mut command: Command) -> (Started, BTreeMap<String, u64>) {
    let mut child = start(command.stdin(Stdio::piped()));
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
}

fn let_go(mut child: Started) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(wait(child, Instant::now()).code, 0);
}

fn open_files() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/fs/file-nr").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn what_each_process_can_take_from_the_kernel_is_bounded(row: &mut Row) -> Ended {
    row.denies(TAKE);
    what_has_a_name_is_its_own(row);
    open_files_of_the_host_are_hardly_more(row);
    for kind in ["instances", "watches"] {
        what_is_counted_by_user_is_not_taken_from_others(row, kind);
    }
    Ended::Tested
}

/// The program that keeps things, and the key and the name that it is given.
fn keeper(row: &Row, most: &[(&str, u64)]) -> (String, u32, String) {
    let key = 0x0c0f_0000 + (std::process::id() & 0xffff) * 0x100;
    let name = format!("row-{}-{:?}", std::process::id(), row.user());
    let most: BTreeMap<_, _> = most.iter().copied().collect();
    (format!("key, name, most = {key}, {name:?}, {}\n{KEEP}", json!(most)), key, name)
}

/// What keeps things outside, in a folder where it may write.
fn keeper_outside(row: &Row, keep: &str) -> Command {
    let mut command = row.product().beside("/usr/bin/python3", ["-c", keep]);
    command.current_dir(row.product().folder());
    command
}

/// While a program has as many as it wants, the host has none with such a key or name.
fn what_has_a_name_is_its_own(row: &mut Row) {
    let (keep, key, name) = keeper(row, &NAMED);
    let none = NAMED.map(|(kind, _)| (kind, 0)).into();
    let all = NAMED.into();
    for (command, found) in
        [(row.command(&["--quiet", "-c", &keep]), none), (keeper_outside(row, &keep), all)]
    {
        let (child, kept) = keeping(command);
        assert_eq!(kept, NAMED.map(|(kind, most)| (kind.to_owned(), most)).into(), "it has them all");
        assert_eq!(found_on_the_host(key, &name), found);
        let_go(child);
        assert!(found_on_the_host(key, &name).values().all(|number| *number == 0));
    }
    row.proved();
}

/// While a program has all that it gets, the host's table of open files has those and few more.
fn open_files_of_the_host_are_hardly_more(row: &mut Row) {
    let (keep, ..) = keeper(row, &[("open files", OPEN_FILES)]);
    let before = open_files();
    let (child, kept) = keeping(row.command(&["--quiet", "-c", &keep]));
    let kept = kept["open files"];
    assert!((500..1024).contains(&kept), "{kept}");
    let few = || open_files() < before + kept + OF_OTHERS;
    assert!(eventually(Duration::from_secs(5), few), "{before} before, {} with {kept}", open_files());
    let_go(child);
    let before = open_files();
    let (child, kept) = keeping(keeper_outside(row, &keep));
    if kept["open files"] == OPEN_FILES {
        let many = || open_files() > before + OPEN_FILES - OF_OTHERS;
        assert!(eventually(Duration::from_secs(5), many), "the control: {before}, {}", open_files());
        row.proved();
    } else {
        row.inconclusive(format!("open files: outside too: {kept:?}"));
    }
    let_go(child);
}

/// While a program has all that the kernel gives its user, root and another sandbox get more.
fn what_is_counted_by_user_is_not_taken_from_others(row: &mut Row, kind: &str) {
    if row.user() == User::Ordinary {
        return row.inconclusive(format!("{kind} of inotify: they are the user's own allowance"));
    }
    let (keep, ..) = keeper(row, &[(kind, 1 << 20)]);
    let one = format!("kind = {kind:?}\n{NO_MORE}");
    let (child, kept) = keeping(row.command(&["--quiet", "-c", &keep]));
    assert!(kept[kind] > 10, "{kept:?}");
    let (root, inside) = (row.outside(&one), row.inside(&[], &one));
    let_go(child);
    let (child, kept) = keeping(as_ordinary(&keep));
    let control = attempts(&finish(as_ordinary(&probe(&one))));
    assert!(kept[kind] > 10, "{kept:?}");
    let_go(child);
    row.compare(&root, &control);
    row.compare(&inside, &control);
}

/// Python outside, as a user that takes nothing from root.
fn as_ordinary(code: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=61234", "--regid=61234", "--clear-groups", "--inh-caps=-all"]);
    command.args(["/usr/bin/python3", "-c", code]).stdin(Stdio::null());
    command
}
