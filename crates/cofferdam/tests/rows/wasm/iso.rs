//! Isolation of files and of instances.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use cofferdam_testkit::host::pids;
use cofferdam_testkit::product::{Started, start, wait};
use cofferdam_testkit::rows::{Attempts, Row, attempts_of_job};
use serde_json::{Value, json};

use super::{CREATE, Calls, DIRECTORY, INPUTS, READ, TMP, TRUNCATE, WORKSPACE, WRITE};
use crate::iso::{CHANGE, looks};
use crate::{Ended, in_wasm};

in_wasm!("ISO-01", files_of_the_host_cannot_be_read);
in_wasm!("ISO-02", what_is_shown_read_only_cannot_be_changed);
in_wasm!("ISO-09", nothing_of_one_job_is_found_by_the_next);
in_wasm!("ISO-11", what_a_tool_of_the_host_would_run_stays_inside);
in_wasm!("ISO-15", no_name_and_no_number_leads_out_of_what_is_open);

fn files_of_the_host_cannot_be_read(row: &mut Row) -> Ended {
    crate::iso::files_of_the_host_cannot_be_read(row)
}

fn what_a_tool_of_the_host_would_run_stays_inside(row: &mut Row) -> Ended {
    crate::iso::what_a_tool_of_the_host_would_run_stays_inside(row)
}

/// A folder of the user's with files in it, to be shown.
fn data(row: &Row) -> PathBuf {
    let folder = row.product().folder().join("shown/data");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    for name in ["file", "deep/file"] {
        std::fs::write(folder.join(name), "input\n").unwrap();
    }
    row.product().give(folder.parent().unwrap());
    folder
}

/// The library of the template: the folder on the host.
fn library(row: &Row) -> PathBuf {
    let prepared = row.product().folder().join("data/wasm");
    let mut entries = std::fs::read_dir(prepared).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|kind| kind == "files")).unwrap().join("lib")
}

fn what_is_shown_read_only_cannot_be_changed(row: &mut Row) -> Ended {
    let (folder, library) = (data(row), library(row));
    let packed = std::fs::read_dir(&library).unwrap().map(|entry| entry.unwrap().path());
    let packed = packed.into_iter().find(|path| path.is_file()).unwrap();
    let host: Vec<PathBuf> = ["file", "deep/file", "deep", ""]
        .map(|name| folder.join(name))
        .into_iter()
        .chain([library, packed.clone()])
        .collect();
    let before = looks(&host);
    let in_library = format!("/usr/local/lib/{}", packed.file_name().unwrap().to_str().unwrap());
    let files = ["/inputs/data/file", "/inputs/data/deep/file", "/inputs/one", &in_library];
    let folders = ["/", "/home", "/inputs", "/inputs/data", "/inputs/data/deep", "/usr", "/usr/local/lib"];
    row.inconclusive("chmod: there it does nothing and says nothing of that; the host's modes are as before");
    let change = format!("modes = False\nfiles, folders, devices = {files:?}, {folders:?}, []\n{CHANGE}");
    let one = format!("{}:/inputs/one", folder.join("file").display());
    let shown = ["--in", folder.to_str().unwrap(), "--in", &one];
    let inside = row.inside(&shown, &format!("root = ''\n{change}"));
    let outside = row.outside(&format!("root = {:?}\n{change}", row.product().folder().join("scratch")));
    row.compare(&inside, &outside);
    assert_eq!(looks(&host), before, "the host's files are as they were");
    Ended::Tested
}

/// Leaves something of each kind, in files and in memory. `unit` are eight bytes.
const LEAVE: &str = r"
import builtins, json, os, random, secrets, sys, uuid
for place in places:
    if not os.path.isdir(place): os.makedirs(place)
    with open(f'{place}/{name}', 'w') as file: file.write(name)
os.symlink('x', f'/tmp/{name}-link')
builtins.left = json.left = sys.left = name
sys.modules['left_by_' + name] = json
os.environ['LEFT'] = name
json.dumps = lambda value: name
left_in_memory = [bytes(unit) * 4096 for _ in range(600)]
print('DRAWN', random.random(), secrets.token_hex(8), uuid.uuid4(), os.urandom(8).hex())
";

/// Looks for it; in memory, in what is given to it without being zeroed.
const LOOK: &str = r"
import builtins, json, numpy, os, random, secrets, sys, uuid
for place in places:
    attempt('a file in ' + place, lambda: name in os.listdir(place))
attempt('a link', lambda: os.path.lexists(f'/tmp/{name}-link'))
attempt('a builtin', lambda: getattr(builtins, 'left', '') == name)
attempt('a name in a module', lambda: getattr(json, 'left', '') == name)
attempt('a name in sys', lambda: getattr(sys, 'left', '') == name)
attempt('a module', lambda: 'left_by_' + name in sys.modules)
attempt('a function that was replaced', lambda: json.dumps(1) != '1')
attempt('a variable', lambda: os.environ.get('LEFT') == name)
def memory():
    globals().pop('left_in_memory', None)
    needle, found, blocks = bytes(unit) * 8, 0, []
    for _ in range(40):
        blocks.append(numpy.empty(1 << 20, 'u1'))
        found += blocks[-1].tobytes().count(needle)
    return found > 1000 and found
attempt('bytes in memory', memory)
print('DRAWN', random.random(), secrets.token_hex(8), uuid.uuid4(), os.urandom(8).hex())
";

/// Where a job may write.
const PLACES: [&str; 6] = [
    "/workspace",
    "/workspace/deep/er",
    "/tmp",
    "/home/user",
    "/home/user/.cache/pip",
    "/home/user/.local/lib",
];

fn nothing_of_one_job_is_found_by_the_next(row: &mut Row) -> Ended {
    let with = |code: &str| {
        // The bytes that are looked for stand in no source.
        let unit = "[byte ^ 0x5a for byte in (12, 200, 33, 97, 250, 7, 181, 68)]";
        format!("places, name, unit = {PLACES:?}, 'left-by-a-row', {unit}\n{code}")
    };
    let (leave, look) = (with(LEAVE), with(LOOK));
    // Who looks in the same instance finds all of it: the control.
    let same = row.inside(&[], &format!("{leave}\n{look}"));
    let missed: Vec<_> = same.iter().filter(|(_, attempt)| !attempt.breach).collect();
    assert!(missed.is_empty(), "{missed:?}");

    let _ = row.run(&["-c", &leave]).exits(0);
    let mut found = vec![row.inside(&[], &look)];
    // One line of a batch after another, in one worker; and beside one another.
    let leave = json!({"code": leave});
    let look = json!({"code": row.probe(&look)});
    let jobs: Vec<_> = [&leave, &look].into_iter().cycle().take(8).cloned().collect();
    let one_by_one = row.outcomes(&[], &jobs);
    let beside = row.outcomes(&["--jobs", "2"], &jobs);
    let all: Vec<_> = one_by_one.iter().chain(&beside).collect();
    let (lookers, leavers): (Vec<_>, Vec<_>) = all.iter().partition(|outcome| outcome["exit_code"] != 0);
    assert_eq!((leavers.len(), lookers.len()), (8, 8), "{one_by_one:?} {beside:?}");
    nothing_is_drawn_twice(&all);
    found.extend(lookers.into_iter().map(attempts_of_job));
    found.iter().for_each(|found| row.compare(found, &same));
    who_was_ended_by_the_engine_serves_no_other(row);
    Ended::Tested
}

/// Asserts that no two of these runs drew the same.
fn nothing_is_drawn_twice(outcomes: &[&Value]) {
    let mut seen = BTreeSet::new();
    for outcome in outcomes {
        let text = outcome["stdout"]["text"].as_str().unwrap();
        let drawn = text.lines().find_map(|line| line.strip_prefix("DRAWN ")).unwrap();
        for word in drawn.split(' ') {
            assert!(seen.insert(word.to_owned()), "{word} was drawn twice");
        }
    }
    assert_eq!(seen.len(), 4 * outcomes.len());
}

/// A worker serves the next line of a batch where a program has exited, and none after one that the engine
/// ended.
fn who_was_ended_by_the_engine_serves_no_other(row: &mut Row) {
    let mut batch = Batch::begin(row);
    assert_eq!(batch.answer(&json!({"code": "print(1)"}))["exit_code"], 0);
    let first = batch.workers();
    assert_eq!(batch.answer(&json!({"code": "print(2)"}))["exit_code"], 0);
    assert!(first.is_subset(&batch.workers()), "the control: one that exited goes on");
    let deep = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [x, repr(f([x]))]\nf(1)";
    let grows = json!({"code": "x = []\nwhile True: x.append(bytes(1 << 24))"});
    let before = batch.workers();
    let _ = batch.answer(&grows); // how it ends is another row's
    assert_eq!(batch.answer(&json!({"code": "print(3)"}))["stdout"]["text"], "3\n");
    assert!(!before.is_subset(&batch.workers()), "one that was ended goes on: {before:?}");
    // Whether this ends in Python or in the engine, the next line's answer is right.
    let _ = batch.answer(&json!({"code": deep}));
    assert_eq!(batch.answer(&json!({"code": "print(4)"}))["stdout"]["text"], "4\n");
    batch.end(row);
    row.proved();
}

/// A batch that is talked with.
struct Batch {
    child: Started,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Batch {
    fn begin(row: &Row) -> Batch {
        let mut command = row.batch(&["--quiet"]);
        let mut child = start(command.stdin(Stdio::piped()));
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Batch { child, stdin, stdout }
    }

    fn answer(&mut self, job: &Value) -> Value {
        self.stdin.write_all(format!("{job}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The processes below it that are workers.
    fn workers(&self) -> BTreeSet<i32> {
        let field = |pid: i32, name: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<i32>().ok()
        };
        let own = self.child.id() as i32;
        let below = |pid: &i32| {
            std::iter::successors(Some(*pid), |pid| field(*pid, "PPid:")).take(16).any(|pid| pid == own)
        };
        let works = |pid: &i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0wasm-worker\0"))
        };
        pids().filter(works).filter(below).collect()
    }

    fn end(self, row: &mut Row) {
        let Batch { child, stdin, stdout } = self;
        drop(stdin);
        drop(stdout);
        let ran = wait(child, Instant::now());
        row.heard(&ran);
    }
}

/// The same attempts outside, in folders of a copy: `work`, `tmp` and `inputs` are descriptors of them.
const OUTSIDE: &str = r"
import os
work, tmp, inputs = (os.open(f'{top}/{name}', os.O_RDONLY) for name in ('workspace', 'tmp', 'inputs'))
def opens(path, flags=os.O_RDONLY, folder=work):
    return lambda: os.close(os.open(path, flags, 0o600, dir_fd=folder))
attempt('dots', opens('../canary.txt'))
attempt('dots below', opens('sub/../../canary.txt'))
attempt('dots and a slash', opens('.././canary.txt'))
attempt('an absolute path', opens(canary))
os.symlink('../canary.txt', 'link', dir_fd=work); os.symlink('..', 'up', dir_fd=work)
attempt('a link that was made', opens('link'))
attempt('a link to a folder', opens('up/canary.txt'))
attempt('a link with a slash', opens('up/'))
attempt('a link as a folder', opens('up', os.O_RDONLY | os.O_DIRECTORY))
attempt('a link of the hosts', opens('data/link', folder=inputs))
attempt('a link of the hosts to a folder', opens('data/folder/canary.txt', folder=inputs))
attempt('a link of the hosts with a slash', opens('data/folder/', folder=inputs))
attempt('a link of the hosts in a link', lambda: (os.symlink('../inputs/data/link', 'chain', dir_fd=work), opens('chain')()))
attempt('opened for writing', opens('data/file', os.O_WRONLY, inputs))
attempt('emptied as it is opened', opens('data/file', os.O_RDWR | os.O_TRUNC, inputs))
attempt('emptied as it is opened for reading', opens('data/file', os.O_RDONLY | os.O_TRUNC, inputs))
attempt('made', opens('data/new', os.O_WRONLY | os.O_CREAT, inputs))
attempt('a folder made', lambda: os.mkdir('data/newer', dir_fd=inputs))
attempt('a link made', lambda: os.symlink('x', 'data/newest', dir_fd=inputs))
attempt('dated', lambda: os.utime('data/file', (1, 1), dir_fd=inputs))
os.close(os.open('own', os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=work))
attempt('linked in', lambda: os.link('own', 'data/own', src_dir_fd=work, dst_dir_fd=inputs))
attempt('linked out', lambda: os.link('data/file', 'hard', src_dir_fd=inputs, dst_dir_fd=work))
attempt('renamed in', lambda: os.rename('own', 'data/owned', src_dir_fd=work, dst_dir_fd=inputs))
attempt('renamed out', lambda: os.rename('data/deep/file', 'stolen', src_dir_fd=inputs, dst_dir_fd=tmp))
attempt('removed', lambda: os.unlink('data/file', dir_fd=inputs))
attempt('a folder removed', lambda: os.rmdir('data/deep', dir_fd=inputs))
def made_longer():
    file = os.open('data/other', os.O_RDWR, dir_fd=inputs)
    os.ftruncate(file, 100)
attempt('opened to be made longer', made_longer)
";

fn no_name_and_no_number_leads_out_of_what_is_open(row: &mut Row) -> Ended {
    let (canary, _) = row.canary("canary.txt");
    let shown = data(row);
    std::fs::write(shown.join("other"), "input\n").unwrap();
    std::os::unix::fs::symlink(&canary, shown.join("link")).unwrap();
    std::os::unix::fs::symlink(canary.parent().unwrap(), shown.join("folder")).unwrap();
    row.product().give(&shown);
    let control = outside(row, &canary, &shown);
    let mut host: Vec<_> = ["file", "deep/file", "other", "deep", ""].map(|name| shown.join(name)).into();
    host.push(canary.clone());
    let before = looks(&host);
    let options = ["--in", shown.to_str().unwrap()];
    let mut inside = escapes(canary.to_str().unwrap()).run(row, &options);
    for made in [
        "what_is_its_own_opens",
        "what_is_shown_opens",
        "a_link_made_first",
        "a_folder_made_first",
        "a_file_made_first",
        "a_link_up_made_first",
        "a_chain_made_first",
    ] {
        let made = (made, inside.remove(made).unwrap());
        assert!(made.1.breach, "the control: {made:?}");
    }
    row.compare(&inside, &control);
    assert_eq!(looks(&host), before, "the host's files are as they were");
    descriptors_that_were_not_given_are_none(row, &options);
    Ended::Tested
}

/// Attempts outside, in a copy of what is shown beside folders to work in.
fn outside(row: &mut Row, canary: &Path, shown: &Path) -> Attempts {
    let top = row.product().folder().join("beside");
    for name in ["workspace/sub", "tmp", "inputs"] {
        std::fs::create_dir_all(top.join(name)).unwrap();
    }
    std::fs::copy(canary, top.join("canary.txt")).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(shown).arg(top.join("inputs")).status();
    assert!(copied.unwrap().success());
    row.product().give(&top);
    row.outside(&format!("top, canary = {top:?}, {canary:?}\n{OUTSIDE}"))
}

/// The attempts of [`OUTSIDE`] as calls of WASI, with what has to be made for them.
fn escapes(canary: &str) -> Calls {
    let mut calls = Calls::default();
    calls.at("a folder made first", "mkdir", WORKSPACE, "sub");
    calls.open("dots", WORKSPACE, "../canary.txt", 0, READ);
    calls.open("dots below", WORKSPACE, "sub/../../canary.txt", 0, READ);
    calls.open("dots and a slash", WORKSPACE, ".././canary.txt", 0, READ);
    calls.open("an absolute path", WORKSPACE, canary, 0, READ);
    calls.symlink("a link made first", "../canary.txt", WORKSPACE, "link");
    calls.symlink("a link up made first", "..", WORKSPACE, "up");
    calls.open("a link that was made", WORKSPACE, "link", 0, READ);
    calls.open("a link to a folder", WORKSPACE, "up/etc/passwd", 0, READ);
    calls.open("a link with a slash", WORKSPACE, "up/", 0, READ);
    calls.open("a link as a folder", WORKSPACE, "up", DIRECTORY, READ);
    calls.open("a link of the hosts", INPUTS, "data/link", 0, READ);
    calls.open("a link of the hosts to a folder", INPUTS, "data/folder/canary.txt", 0, READ);
    calls.open("a link of the hosts with a slash", INPUTS, "data/folder/", 0, READ);
    calls.symlink("a chain made first", "../cofferdam/shown/inputs/data/file", WORKSPACE, "chain");
    calls.open("a link of the hosts in a link", WORKSPACE, "chain", 0, READ);
    calls.open("what is shown opens", INPUTS, "data/file", 0, READ);
    calls.open("opened for writing", INPUTS, "data/file", 0, WRITE);
    calls.open("emptied as it is opened", INPUTS, "data/file", TRUNCATE, READ | WRITE);
    calls.open("emptied as it is opened for reading", INPUTS, "data/file", TRUNCATE, READ);
    calls.open("made", INPUTS, "data/new", CREATE, WRITE);
    calls.at("a folder made", "mkdir", INPUTS, "data/newer");
    calls.symlink("a link made", "x", INPUTS, "data/newest");
    let path = calls.text("data/file");
    calls.call(
        "dated",
        // Both times, as they are told.
        &format!(
            "(call $set_times (i32.const {INPUTS}) (i32.const 0) {path} (i64.const 1) (i64.const 1) (i32.const 5))"
        ),
    );
    calls.open("a file made first", WORKSPACE, "own", CREATE, WRITE);
    calls.open("what is its own opens", WORKSPACE, "own", 0, READ | WRITE);
    calls.between("linked in", "link", (WORKSPACE, "own"), (INPUTS, "data/own"));
    calls.between("linked out", "link", (INPUTS, "data/file"), (WORKSPACE, "hard"));
    calls.between("renamed in", "rename", (WORKSPACE, "own"), (INPUTS, "data/owned"));
    calls.between("renamed out", "rename", (INPUTS, "data/deep/file"), (TMP, "stolen"));
    calls.at("removed", "unlink", INPUTS, "data/file");
    calls.at("a folder removed", "rmdir", INPUTS, "data/deep");
    let path = calls.text("data/other");
    calls.call(
        "opened to be made longer",
        &format!(
            "(if (result i32) (call $open (i32.const {INPUTS}) (i32.const 1) {path} (i32.const 0) \
             (i64.const {READ}) (i64.const {READ}) (i32.const 0) (i32.const 0)) (then (i32.const 1)) \
             (else (call $set_size (i32.load (i32.const 0)) (i64.const 100))))"
        ),
    );
    calls
}

/// Every number that a module wasn't given is no descriptor, however large.
fn descriptors_that_were_not_given_are_none(row: &mut Row, options: &[&str]) {
    // Counts the numbers at which there is something, and writes how many as a letter: the three streams, the
    // four folders of its own and what is shown.
    let body = r#"
        (local $fd i32) (local $found i32)
        (loop $next
            (if (i32.eqz (call $stat (local.get $fd) (i32.const 64)))
                (then (local.set $found (i32.add (local.get $found) (i32.const 1)))))
            (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $fd) (i32.const 70000))))
        (local.set $fd (i32.const -1000))
        (loop $last
            (if (i32.eqz (call $stat (local.get $fd) (i32.const 64)))
                (then (local.set $found (i32.add (local.get $found) (i32.const 100)))))
            (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
            (br_if $last (local.get $fd)))
        (call $exit (local.get $found))"#;
    let stat =
        r#"(import "wasi_snapshot_preview1" "fd_fdstat_get" (func $stat (param i32 i32) (result i32)))"#;
    let wasm =
        wat::parse_str(format!("(module {stat} {} (func (export \"_start\") {body}))", super::IMPORTS));
    let file = super::module(row, "numbers.wasm", &wasm.unwrap());
    let ran = row.run(&[options, &[file.to_str().unwrap()]].concat());
    assert_eq!(ran.code, 3 + 4 + 1, "{ran:?}");
    row.proved();
}
