//! Outputs and artifacts: what comes out of a sandbox is data, whatever the program made of it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::processes_with;
use cofferdam_testkit::product::finish;
use cofferdam_testkit::rows::{Attempt, Attempts, Boundary, Row};
use serde_json::Value;

use crate::Ended;
use crate::row;

row!("ART-01", links_that_a_program_leaves_are_never_followed);
row!("ART-02", what_comes_out_is_one_moment_after_everything_is_dead);
row!("ART-03", what_is_no_file_keeps_nobody_waiting);
row!("ART-04", names_and_numbers_without_bounds_come_out_bounded);
row!("ART-05", what_comes_out_is_a_plain_copy);
row!("ART-08", output_drives_nothing_that_we_print);

/// What came out of one run.
pub(crate) struct Came {
    out: PathBuf,
    changes: Value,
    outcome: Value,
    events: Vec<Value>,
    attempts: Attempts,
}

impl Came {
    /// Runs Python whose changes come out into a folder of this name, beside which the Outcome and a
    /// diff lie; the oracle looks into all three.
    fn of(row: &mut Row, name: &str, options: &[&str], python: &str) -> Came {
        let folder = row.product().folder();
        let out = folder.join(name);
        let (outcome, diff) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.diff")));
        let places = [&out, &outcome, &diff].map(|path| path.to_str().unwrap().to_owned());
        let places = ["--out", &places[0], "--outcome", &places[1], "--diff", &places[2]];
        let attempts = row.inside(&[&places[..], options].concat(), python);
        let log = row.product().call(["audit", "show", "last", "--json"]).exits(0).stdout;
        Came {
            changes: json(&out.join("changes.json")),
            outcome: json(&outcome),
            events: log.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            out,
            attempts,
        }
    }

    /// Every file that came out and what it holds, no link followed.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let top = self.out.join("files");
        each_below(&top, &mut |path| {
            if fs::symlink_metadata(path).unwrap().is_file() {
                let name = path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        });
        files
    }

    /// Asserts that an entry is named as rejected, for this reason, wherever that is said.
    fn rejected(&self, path: &str, why: &str) {
        let named = |list: &Value| {
            let mut list = list.as_array().unwrap().iter();
            list.any(|entry| entry["path"] == path && entry["why"] == why)
        };
        assert!(named(&self.changes["rejected"]), "{path} {why}: {}", self.changes["rejected"]);
        assert!(named(&self.outcome["rejected"]), "{path} {why}: {}", self.outcome["rejected"]);
        let kind = if why == "host_exec" { "artifact.quarantined" } else { "artifact.rejected" };
        let told = |event: &Value| event["event"] == kind && event["path"] == path && event["why"] == why;
        assert!(self.events.iter().any(told), "{path} {why}: {:?}", self.events);
    }

    /// Asserts that the lists say exactly what lies there, whose contents they name by their hashes.
    fn lists_are_true(&self) {
        let files = self.files();
        let listed = ["added", "modified"].map(|list| self.changes[list].as_array().unwrap().clone());
        let listed: BTreeMap<_, _> = listed.iter().flatten().map(|file| (text(file, "path"), file)).collect();
        assert_eq!(listed.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>());
        for artifact in self.outcome["artifacts"].as_array().unwrap() {
            let path = text(artifact, "path");
            assert_eq!(artifact["sha256"], listed[&path]["sha256"], "{path}");
            assert_eq!(artifact["bytes"], files[&path].len(), "{path}");
        }
        assert_eq!(self.outcome["artifacts"].as_array().unwrap().len(), files.len());
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))).unwrap()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

/// Calls a function with everything below a folder, folders before what is in them; follows no link.
/// What can't be named from here, since all folders above it together are too long, is left out.
fn each_below(folder: &Path, then: &mut dyn FnMut(&Path)) {
    const PATH_MAX: usize = 4096; // `linux/limits.h`, with the final NUL
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.as_os_str().len() >= PATH_MAX {
            continue;
        }
        then(&path);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            each_below(&path, then);
        }
    }
}

/// A folder of the user's who runs the sandbox.
fn folder(row: &Row, name: &str) -> PathBuf {
    let folder = row.product().folder().join(name);
    fs::create_dir_all(&folder).unwrap();
    row.product().give(&folder);
    folder
}

/// One attempt that a test makes itself.
fn attempted(name: &str, breach: bool, detail: impl Into<String>) -> Attempts {
    Attempts::from([(name.to_owned(), Attempt { breach, detail: detail.into() })])
}

/// Everything that a person can see of the files in a folder, times of reading excepted.
fn seen(top: &Path) -> Vec<String> {
    let mut all = vec![];
    each_below(top, &mut |path| {
        let found = fs::symlink_metadata(path).unwrap();
        let content = if found.is_file() { fs::read(path).unwrap() } else { vec![] };
        let times = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        let links = if found.is_dir() { 0 } else { found.nlink() };
        all.push(format!("{path:?} {:o} {} {links} {times:?} {content:?}", found.mode(), found.uid()));
    });
    all.sort();
    all
}

/// Links, each of which leads to the canary where a collector follows it from where it lies, or is
/// put beside what it leads to.
const LINKS: &str = r#"
import os
links = {
    'absolute': canary,
    'dots': '../../canary.txt',
    'dots from a slash': '/../../../../../../../../../../../../' + canary,
    'chain': 'dots',
    'chain of chains': 'chain',
    'folder': os.path.dirname(canary),
    'folder with a slash': '../../',
    'named then up': 'real/../../../canary.txt',
    'root of a process': '/proc/self/root' + canary,
    'working directory of a process': '/proc/self/cwd/../../canary.txt',
    'gone/in the way': '../../../canary.txt',
    'data': '../..',
    'given.txt': '../../canary.txt',
}
os.makedirs('real', exist_ok=True)
os.makedirs('gone', exist_ok=True)
with open('honest.txt', 'w') as file: file.write('honest')
with open('real/honest.txt', 'w') as file: file.write('honest too')
os.symlink('real/honest.txt', 'honest link')
if os.path.isdir('data'):
    os.remove('data/row.csv'); os.rmdir('data')
for path, target in links.items():
    if os.path.lexists(path): os.remove(path)
    try: os.symlink(target, path)
    except PermissionError:
        if sys.platform != 'wasi' or not target.startswith('/'): raise
def leads(path):
    for end in ['', 'canary.txt', '/canary.txt']:
        try:
            with open(path + end) as file:
                if file.read() == secret: return True
        except OSError: pass
    return False
for path in links: attempt(path, lambda: leads(path))
"#;

pub(crate) fn links_that_a_program_leaves_are_never_followed(row: &mut Row) -> Ended {
    let (path, secret) = row.canary("canary.txt");
    // Where the control makes them is as deep as where results lie: they must lead somewhere there.
    let (head, tail) = secret.split_at(10);
    let begin = format!("secret = {head:?} + {tail:?}\ncanary = {path:?}\n");
    let control = folder(row, "control/files");
    let control = format!("import os\nos.chdir({control:?})\n{begin}{LINKS}");
    let control = row.outside(&control);

    let workspace = folder(row, "work");
    fs::create_dir(workspace.join("data")).unwrap();
    fs::write(workspace.join("data/row.csv"), "1\n").unwrap();
    fs::write(workspace.join("given.txt"), "given\n").unwrap();
    symlink(&path, workspace.join("old")).unwrap();
    row.product().give(&workspace);
    let before = seen(&workspace);
    let probe = format!("{begin}{LINKS}");
    let shown = ["--workspace", workspace.to_str().unwrap()];
    for (name, options) in [("out-empty", &[][..]), ("out-work", &shown[..])] {
        // Twice into the same place: what lies there from before is replaced and not followed.
        for _ in 0..2 {
            let came = Came::of(row, name, options, &probe);
            row.compare(&came.attempts, &control);
            led_nowhere(row, &came);
        }
    }
    assert_eq!(seen(&workspace), before);
    Ended::Tested
}

/// Asserts that of the links only those came out that lead to what came out.
fn led_nowhere(row: &Row, came: &Came) {
    for path in ["dots", "folder with a slash", "named then up", "gone/in the way", "data", "given.txt"] {
        came.rejected(path, "symlink");
    }
    let absolute =
        ["absolute", "dots from a slash", "folder", "root of a process", "working directory of a process"];
    for path in absolute {
        match row.boundary() {
            Boundary::Container => came.rejected(path, "symlink"),
            // No such link can be made there.
            Boundary::Wasm => assert!(!came.changes.to_string().contains(&format!("{path:?}")), "{path}"),
        }
    }
    let files = came.files();
    assert_eq!(
        (&files["honest.txt"][..], &files["real/honest.txt"][..]),
        (&b"honest"[..], &b"honest too"[..])
    );
    assert_eq!(files.len(), 2, "{:?}", files.keys());
    came.lists_are_true();
    let top = came.out.join("files").canonicalize().unwrap();
    assert_eq!(fs::read(top.join("honest link")).unwrap(), b"honest too");
    each_below(&top, &mut |path| {
        let leads = fs::canonicalize(path);
        assert!(leads.is_err() || leads.is_ok_and(|to| to.starts_with(&top)), "{path:?} leads out");
    });
}

/// Changes its files for ever, in processes that end only when they are killed. `aa` and `zz` get the
/// same number, one right after the other, and whoever reads what lies between takes his time.
const RESTLESS: &str = r#"
import os, signal, time
def put(path, text):
    with open('.new' + path[:2], 'w') as file: file.write(text)
    os.rename('.new' + path[:2], path)
def stamp():
    number = 0
    while True:
        number += 1
        put('aa', str(number)); put('zz', str(number))
def swap():
    while True:
        for make in [lambda: put('swap', 'a file'), lambda: os.mkdir('swap'), lambda: os.symlink(canary, 'swap'),
                     lambda: os.symlink('honest.txt', 'swap')]:
            try: make()
            except OSError: pass
            for remove in [os.remove, os.rmdir]:
                try: remove('swap')
                except OSError: pass
def parents():
    while True:
        try:
            os.makedirs('deep/er'); put('deep/er/file', 'inside')
        except OSError: pass
        for move in [lambda: os.rename('deep', 'aside'), lambda: os.symlink(os.path.dirname(canary), 'deep'),
                     lambda: os.remove('deep'), lambda: os.rename('aside', 'deep')]:
            try: move()
            except OSError: pass
with open('honest.txt', 'w') as file: file.write('honest')
for number in range(40):
    with open(f'between{number:03}', 'wb') as file: file.write(b'x' * 50_000)
put('aa', '0'); put('zz', '0')
children = []
for work in [stamp, swap, swap, parents]:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]: signal.signal(number, signal.SIG_IGN)
        try: work()
        finally: os._exit(1)
    children.append(pid)
time.sleep(0.03)
"#;

fn what_comes_out_is_one_moment_after_everything_is_dead(row: &mut Row) -> Ended {
    let (path, secret) = row.canary("canary.txt");
    let begin = format!("canary = {path:?}\n");
    let control = two_moments_outside(row, &begin);
    let mark = format!("# {}", &secret[..20]);
    let probe = format!("{begin}{mark}{RESTLESS}\nreport('two moments', False)\n");
    let workspace = folder(row, "work");
    fs::create_dir(workspace.join("deep")).unwrap();
    fs::write(workspace.join("swap"), "given\n").unwrap();
    row.product().give(&workspace);
    let before = seen(&workspace);
    let shown = ["--workspace", workspace.to_str().unwrap()];
    let mut inside = Attempts::new();
    for number in 0..20 {
        let options = if number % 2 == 0 { &[][..] } else { &shown[..] };
        let came = Came::of(row, "out", options, &probe);
        assert!(came.outcome["left"]["processes"].as_u64().unwrap() >= 4, "{}", came.outcome["left"]);
        assert_eq!(processes_with(&mark), [] as [i32; 0]);
        came.lists_are_true();
        let files = came.files();
        assert_eq!(files["honest.txt"], b"honest");
        assert!(files.get("swap").is_none_or(|swap| matches!(&swap[..], b"" | b"a file")), "{files:?}");
        assert!(!files.contains_key("deep/canary.txt"));
        let apart = moments_apart(&files["aa"], &files["zz"]);
        inside = attempted("two_moments", apart > 1, format!("{apart} rounds apart"));
        row.compare(&inside, &control);
        assert_eq!(inside.len(), came.attempts.len());
    }
    assert_eq!(inside.len(), 1);
    assert_eq!(seen(&workspace), before);
    Ended::Tested
}

/// By how many rounds two numbers differ.
fn moments_apart(first: &[u8], second: &[u8]) -> u64 {
    let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse::<u64>().unwrap();
    number(first).abs_diff(number(second))
}

/// The control: who copies the same files while the same program lives gets two moments in one copy.
fn two_moments_outside(row: &Row, begin: &str) -> Attempts {
    let place = folder(row, "control");
    let copy = r"
first = open('aa').read()
for number in range(40): open(f'between{number:03}', 'rb').read()
deadline = time.time() + 5
while int(open('zz').read()) - int(first) < 2 and time.time() < deadline: time.sleep(0.001)
apart = int(open('zz').read()) - int(first)
for pid in children:
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
report('two moments', apart > 1, apart)
";
    row.outside(&format!("import os\nos.chdir({place:?})\n{begin}{RESTLESS}{copy}"))
}

/// Everything that isn't a file, folder or link, and what only looks like one.
const NO_FILES: &str = r#"
import os, socket, stat
with open('honest.txt', 'w') as file: file.write('honest')
os.mkdir('sub')
with open('sub/honest.txt', 'w') as file: file.write('honest too')
try: os.setxattr('honest.txt', 'user.large', b'x' * 60_000)
except OSError: pass
os.mkfifo('fifo'); os.mkfifo('sub/fifo')
stream = socket.socket(socket.AF_UNIX); stream.bind('stream'); stream.listen()
datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); datagram.bind('datagram')
if os.path.exists('given.txt'):
    os.remove('given.txt'); os.mkfifo('given.txt')
def node(name, kind, major, minor):
    os.mknod(name, kind | 0o666, os.makedev(major, minor))
attempt('a disk', lambda: node('disk', stat.S_IFBLK, 7, 0))
attempt('memory', lambda: node('memory', stat.S_IFCHR, 1, 1))
attempt('a device that gives zeros for ever', lambda: node('zeros', stat.S_IFCHR, 1, 5))
# What overlays take for a name that is gone. The kernel lets anybody make one: no device is behind it.
try: node('white-out', stat.S_IFCHR, 0, 0)
except OSError: pass
"#;

fn what_is_no_file_keeps_nobody_waiting(row: &mut Row) -> Ended {
    let workspace = folder(row, "work");
    fs::write(workspace.join("given.txt"), "given\n").unwrap();
    row.product().give(&workspace);
    let before = seen(&workspace);
    let place = folder(row, "control");
    let waits = r"
import subprocess
def waits():
    try: subprocess.run(['cat', 'fifo'], timeout=0.3, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired: return True
    return False
attempt('a reader of the FIFO waits', waits)
";
    let control = row.outside(&format!("import os\nos.chdir({place:?})\n{NO_FILES}{waits}"));
    let shown = ["--workspace", workspace.to_str().unwrap()];
    for (name, options) in [("out-empty", &[][..]), ("out-work", &shown[..])] {
        let began = Instant::now();
        let mut came = Came::of(row, name, options, NO_FILES);
        let waited = began.elapsed() > Duration::from_secs(20);
        came.attempts.extend(attempted("a_reader_of_the_FIFO_waits", waited, "it was collected"));
        row.compare(&came.attempts, &control);
        for path in ["fifo", "sub/fifo", "stream", "datagram"] {
            came.rejected(path, "type");
        }
        let files = came.files();
        assert_eq!(
            (&files["honest.txt"][..], &files["sub/honest.txt"][..]),
            (&b"honest"[..], &b"honest too"[..])
        );
        assert_eq!(files.len(), 2, "{:?}", files.keys());
        came.lists_are_true();
        each_below(&came.out, &mut |path| {
            let kind = fs::symlink_metadata(path).unwrap().file_type();
            assert!(kind.is_file() || kind.is_dir(), "{path:?} is {kind:?}");
        });
        if name == "out-work" {
            came.rejected("given.txt", "type");
            assert_eq!(came.changes["deleted"], serde_json::json!(["given.txt"]));
        }
    }
    assert_eq!(seen(&workspace), before);
    let control = has_the_attribute(row, &place.join("honest.txt"));
    let out = has_the_attribute(row, &row.product().folder().join("out-work/files/honest.txt"));
    row.compare(&out, &control);
    Ended::Tested
}

/// Whether a file outside has the attribute that the probe sets, as far as the file system takes it.
fn has_the_attribute(row: &Row, file: &Path) -> Attempts {
    let has = format!("lambda: 'user.large' in os.listxattr({file:?})");
    row.outside(&format!("import os\nattempt('an attribute of 60 kB', {has})\n"))
}

pub(crate) fn names_and_numbers_without_bounds_come_out_bounded(row: &mut Row) -> Ended {
    names_are_spelled_out(row);
    large_files_stay_inside(row);
    more_files_than_may_come_out_are_counted(row);
    Ended::Tested
}

/// Makes names of all kinds; fails if the file system takes one of them not.
const NAMES: &str = r#"
import os
def put(name):
    with open(name, 'w') as file: file.write('x')
hostile = [b'bad\xff\xfeutf8', b'new\nline', b'esc\x1b[2J', 'bidi\u202etxt.exe'.encode(), b'carriage\rreturn',
           b'bell\x07', 'c1\u009b2J'.encode(), 'separator\u2028'.encode(), b'delete\x7f', b'osc\x1b]52;c;aGk=\x07']
for name in hostile:
    try: put(name)
    except OSError:
        # WASI's names are UTF-8.
        if sys.platform != 'wasi' or name != hostile[0]: raise
put('Makefile'); put('makefile'); put('\u212aelvin'); put('kelvin')
os.mkdir('Folder'); put('Folder/inside'); os.mkdir('folder'); put('folder/inside')
put('honest \u65e5\u672c.txt'); put("quote's \"and\" $(id) `id`.txt"); put('-rf'); put('back\\slash')
def dig(name, times):
    top = os.getcwd()
    for _ in range(times):
        try: os.mkdir(name); os.chdir(name)
        except OSError:
            # WASI's paths have a length at which there is no further.
            if sys.platform != 'wasi': raise
            return os.chdir(top)
    put('bottom'); os.chdir(top)
dig('d', 40)
dig('n' * 255, 18)
report('names', False)
"#;

fn names_are_spelled_out(row: &mut Row) {
    let came = Came::of(row, "out-names", &[], NAMES);
    if row.boundary() == Boundary::Container {
        came.rejected("bad\\xff\\xfeutf8", "name");
    }
    for (path, why) in [
        ("new\\u{a}line", "name"),
        ("esc\\u{1b}[2J", "name"),
        ("bidi\\u{202e}txt.exe", "name"),
        ("carriage\\u{d}return", "name"),
        ("bell\\u{7}", "name"),
        ("c1\\u{9b}2J", "name"),
        ("separator\\u{2028}", "name"),
        ("delete\\u{7f}", "name"),
        ("osc\\u{1b}]52;c;aGk=\\u{7}", "name"),
        ("makefile", "collision"),
        ("kelvin", "collision"),
        ("folder", "collision"),
        ("folder/inside", "collision"),
        (&vec!["d"; 33].join("/"), "depth"),
    ] {
        let why =
            if path == "kelvin" { collided(&came, &["kelvin", "\u{212a}elvin"]) } else { (path.into(), why) };
        came.rejected(&why.0, why.1);
    }
    let long = came.changes["rejected"].as_array().unwrap().iter();
    let long: Vec<_> = long.filter(|entry| text(entry, "path").starts_with("nnn")).collect();
    let has_end = row.boundary() == Boundary::Wasm;
    assert!(has_end || long.iter().any(|entry| entry["why"] == "name"), "{long:?}");
    let files = came.files();
    for name in [
        "honest 日本.txt",
        "quote's \"and\" $(id) `id`.txt",
        "-rf",
        "back\\slash",
        "Folder/inside",
        "Makefile",
    ] {
        assert_eq!(files.get(name).map(Vec::as_slice), Some(&b"x"[..]), "{name}");
    }
    row.proved(); // all of them were there to be taken out, and these were
    let plain = |name: &str| !name.chars().any(char::is_control) && name.len() <= 4096;
    assert!(files.keys().all(|name| plain(name) && name.split('/').count() <= 32), "{:?}", files.keys());
    came.lists_are_true();
    for file in ["out-names/changes.json", "out-names.json", "out-names.diff"] {
        let bytes = fs::read(row.product().folder().join(file)).unwrap();
        assert!(!bytes.iter().any(|byte| matches!(byte, 0x1b | 0x07 | 0x7f | b'\r')), "{file}");
    }
}

/// Of names that fall together, the one that was rejected: which comes first is its bytes' business.
fn collided(came: &Came, names: &[&str]) -> (String, &'static str) {
    let rejected = came.changes["rejected"].as_array().unwrap();
    let found = names.iter().find(|name| rejected.iter().any(|entry| entry["path"] == **name));
    ((*found.unwrap_or(&names[0])).to_owned(), "collision")
}

fn large_files_stay_inside(row: &mut Row) {
    let sparse = "
import os
for name, size in [('holes', 64 << 20), ('one more than may come out', 1 << 30), ('terabyte', 1 << 40)]:
    with open(name, 'w') as file: file.truncate(size)
with open('honest.txt', 'w') as file: file.write('honest')
report('sizes', False)
";
    let came = Came::of(row, "out-sizes", &[], sparse);
    came.rejected("terabyte", "size");
    came.rejected("one more than may come out", "size");
    let room = |name: &str| {
        fs::metadata(came.out.join("files").join(name)).map(|found| (found.len(), found.blocks()))
    };
    assert_eq!(room("holes").unwrap().0, 64 << 20);
    assert!(room("holes").unwrap().1 < 1000, "its holes are holes outside too");
    assert_eq!(fs::read(came.out.join("files/honest.txt")).unwrap(), b"honest");
    assert!(room("terabyte").is_err() && room("one more than may come out").is_err());
    fs::remove_file(came.out.join("files/holes")).unwrap(); // or the oracle reads all of it
}

fn more_files_than_may_come_out_are_counted(row: &mut Row) {
    let many = "
for number in range(10_050):
    with open(f'f{number:05}', 'w'): pass
report('number', False)
";
    let came = Came::of(row, "out-number", &[], many);
    assert_eq!(came.outcome["artifacts"].as_array().unwrap().len(), 10_000);
    assert_eq!(fs::read_dir(came.out.join("files")).unwrap().count(), 10_000);
    assert_eq!(came.outcome["rejected"].as_array().unwrap().len(), 50);
    came.rejected("f10000", "count");
    came.rejected("f10049", "count");
}

/// What a file can have beside what it holds. Makes all of it, then says what it can't be stopped from.
const BESIDE_CONTENT: &str = r#"
import array, fcntl, os, struct
def put(name, mode):
    with open(name, 'w') as file: file.write('#!/bin/sh\n')
    os.chmod(name, mode)
put('honest.txt', 0o644); put('tool', 0o755)
put('setuid', 0o6755); put('open', 0o777); put('closed', 0o000)
os.mkdir('sticky'); os.chmod('sticky', 0o7777); put('sticky/file', 0o2755)
os.link('honest.txt', 'second name')
def quietly(action):
    try: action()
    except OSError: pass
quietly(lambda: os.setxattr('honest.txt', 'user.mark', b'1'))
for name in ['opaque', 'redirect', 'metacopy', 'origin', 'whiteout']:
    quietly(lambda: os.setxattr('sticky', 'user.overlay.' + name, b'y'))
everybody = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', tag, 7, who) for tag, who in
    [(1, 2**32 - 1), (2, 65534), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1)])
quietly(lambda: os.setxattr('tool', 'system.posix_acl_access', everybody))
capabilities = struct.pack('<IIIII', 0x02000001, 0x3fffff, 0, 0, 0)
attempt('capabilities of a file', lambda: os.setxattr('tool', 'security.capability', capabilities))
def immutable():
    with open('honest.txt') as file:
        flags = array.array('L', [0x10])
        fcntl.ioctl(file, 0x40086602, flags)  # FS_IOC_SETFLAGS, FS_IMMUTABLE_FL
        flags[0] = 0
        fcntl.ioctl(file, 0x40086602, flags)
attempt('the immutable flag', immutable)
def owned(): os.chown('tool', 0, 0)
attempt('a file of root', owned)
def linked(): os.link(given, 'link to an input'); os.remove('link to an input')
attempt('a hard link to an input', linked)
def written():
    with open(given, 'a') as file: file.write('')
attempt('writing an input', written)
"#;

fn what_comes_out_is_a_plain_copy(row: &mut Row) -> Ended {
    let input = folder(row, "given").join("input.txt");
    fs::write(&input, "input\n").unwrap();
    row.product().give(&input);
    let workspace = folder(row, "work");
    for name in ["first", "second"] {
        fs::write(workspace.join(name), "given\n").unwrap();
    }
    row.product().give(&workspace);
    let place = folder(row, "control");
    let control =
        row.outside(&format!("import os\nos.chdir({place:?})\ngiven = {input:?}\n{BESIDE_CONTENT}"));
    // After the control, which links to the input.
    let before = [seen(&workspace), seen(input.parent().unwrap())];

    let also = "
if os.path.exists('first'):
    os.link('first', 'third'); os.chmod('first', 0o6777)
    with open('third', 'a') as file: file.write('more\\n')
";
    let probe = format!("given = '/inputs/input.txt'\n{BESIDE_CONTENT}{also}");
    let (input_path, shown) = (input.to_str().unwrap(), workspace.to_str().unwrap());
    for (name, options) in [
        ("out-empty", &["--in", input_path][..]),
        ("out-work", &["--in", input_path, "--workspace", shown][..]),
        ("out-copy", &["--in", input_path, "--workspace", shown, "--copy"][..]),
    ] {
        let came = Came::of(row, name, options, &probe);
        row.compare(&came.attempts, &control);
        came.lists_are_true();
        let files = came.files();
        for name in ["honest.txt", "second name", "tool", "setuid", "sticky/file", "open"] {
            assert_eq!(files.get(name).map(Vec::as_slice), Some(&b"#!/bin/sh\n"[..]), "{name}");
        }
        if name != "out-empty" {
            assert_eq!(
                (&files["first"][..], &files["third"][..]),
                (&b"given\nmore\n"[..], &b"given\nmore\n"[..])
            );
        }
        plain(row, &came);
    }
    assert_eq!([seen(&workspace), seen(input.parent().unwrap())], before);
    Ended::Tested
}

/// Asserts that nothing but content, and whether it can be executed, came along.
fn plain(row: &Row, came: &Came) {
    let owner = fs::metadata(&came.out).unwrap().uid();
    each_below(&came.out, &mut |path| {
        let found = fs::symlink_metadata(path).unwrap();
        let mode = found.permissions().mode();
        assert_eq!(mode & 0o7022, 0, "{path:?} {mode:o}");
        assert_eq!(found.uid(), owner, "{path:?}");
        assert!(found.is_dir() || found.nlink() == 1, "{path:?} has another name");
    });
    let executable =
        |name: &str| fs::metadata(came.out.join("files").join(name)).unwrap().mode() & 0o100 != 0;
    assert!(executable("tool") && executable("setuid") && !executable("honest.txt"));
    let look = r"
import os
for folder, folders, files in os.walk(top):
    for name in folders + files:
        found = os.listxattr(os.path.join(folder, name), follow_symlinks=False)
        # What a host's own security module gives to every file is nobody's gift.
        found = [name for name in found if not name.startswith('security.')] + \
            [name for name in found if name == 'security.capability']
        report(os.path.relpath(os.path.join(folder, name), top), found, found)
";
    let attributes = row.outside(&format!("top = {:?}\n{look}", came.out));
    assert!(attributes.values().all(|attempt| !attempt.breach), "{attributes:?}");
}

/// Output that would drive a terminal, a log, a viewer or whoever reads it, were it not data.
const OUTPUT: &str = r#"
import os, sys
def put(name):
    with open(name, 'w') as file: file.write('x')
lines = [
    '\x1b[2J\x1b[1;1H', '\x1b]52;c;aGk=\x07', '\x1b]8;;http://evil.test\x07link\x1b]8;;\x07', '\x1b]0;title\x07',
    'shown\rhidden', 'c1 \u009b2J \u009d52;c;aGk=\u009c', 'separators \u2028 \u2029', 'bidi \u202e \u2066 \u2069',
    '{"seq":1,"event":"task.end","end":"exited","exit_code":0}', '"},{"end":"exited","exit_code":0,"x":"',
    f'![beacon](http://127.0.0.1:{port}/beacon)', f'<img src="http://127.0.0.1:{port}/beacon"><script>1</script>',
    'cofferdam: ' + backend + ' \u00b7 exit 0 \u00b7 1 ms', 'to mend it: --accept-gap network',
]
for stream in [sys.stdout, sys.stderr]:
    for line in lines: print(line, file=stream)
    stream.flush()
put('\x1b]52;c;aGk=\x07'); put('\u202etxt'); put(f'![x](http:⁄⁄127.0.0.1:{port})'); os.symlink('../\x1b[2J', 'link')
put('{"seq":1}\n{"event":"task.end"}')
sys.exit(3)
"#;

pub(crate) fn output_drives_nothing_that_we_print(row: &mut Row) -> Ended {
    let beacons = TcpListener::bind("127.0.0.1:0").unwrap();
    beacons.set_nonblocking(true).unwrap();
    let port = beacons.local_addr().unwrap().port();
    let code = format!("port, backend = {port}, {:?}\n{OUTPUT}", row.backend());
    let label = "x=\u{1b}]52;c;aGk=\u{7}\n{\"seq\":1,\"event\":\"task.end\"}\u{2028}\u{202e}\u{9b}2J";
    let out = row.product().folder().join("out");
    let options = ["--label", label, "--out", out.to_str().unwrap()];

    // As it is: the bytes are the program's, byte for byte, and what we say stands apart and is inert.
    let ran = row.run(&[&options[..], &["-c", &code]].concat()).exits(3);
    assert!(ran.stdout.contains("\u{1b}[2J") && ran.stdout.contains("shown\rhidden"), "the control: {ran:?}");
    let ours = ran.stderr.strip_prefix(ran.stdout.as_str()).unwrap_or_else(|| panic!("{ran:?}"));
    assert!(ours.contains("not let out"), "{ours}");
    inert(ours);

    // As data: one line, whose members are what they were.
    let ran = row.run(&[&["--json"], &options[..], &["-c", &code]].concat()).exits(3);
    assert_eq!((ran.stdout.lines().count(), ran.stderr.as_str()), (1, ""), "{ran:?}");
    inert(&ran.stdout);
    let outcome = ran.json();
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&"exited".into(), &3.into()));
    assert!(text(&outcome["stdout"], "text").contains("\u{1b}]52;c;aGk=\u{7}"), "{outcome}");
    assert_eq!(outcome["label"]["x"], label[2..]);
    the_log_is_exact(row, &outcome);
    on_a_terminal(row, &[&options[..], &["-c", &code]].concat());
    assert!(beacons.accept().is_err(), "somebody fetched what the output names");
    let _fetched = TcpStream::connect(beacons.local_addr().unwrap()).unwrap();
    assert!(beacons.accept().is_ok(), "the control: who fetches it is heard");
    row.proved();
    Ended::Tested
}

/// Asserts that nothing in a text drives a terminal or ends a line that isn't ended by us.
#[track_caller]
fn inert(text: &str) {
    let drives = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let found: Vec<_> = text.chars().filter(|c| drives(*c)).collect();
    assert!(found.is_empty(), "{found:?} in {text:?}");
}

/// Asserts that a run has exactly its own events, a line each, whatever it printed.
fn the_log_is_exact(row: &Row, outcome: &Value) {
    let log = row.product().call(["audit", "show", "last", "--json"]).exits(0).stdout;
    let person = row.product().call(["audit", "show", "last"]).exits(0).stdout;
    assert!(log.is_ascii());
    inert(&person);
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (first, last) = (&outcome["audit"]["first"], &outcome["audit"]["last"]);
    let expected = last.as_u64().unwrap() - first.as_u64().unwrap() + 1;
    assert_eq!((events.len() as u64, person.lines().count() as u64), (expected, expected), "{person}");
    let names: Vec<_> = events.iter().map(|event| text(event, "event")).collect();
    let rejected = vec!["artifact.rejected".to_owned(); outcome["rejected"].as_array().unwrap().len()];
    let without: Vec<_> = names.iter().filter(|name| *name != "artifact.rejected").collect();
    assert_eq!(names.len() - without.len(), rejected.len(), "{names:?}");
    assert_eq!(without, ["task.start", "policy.loaded", "sandbox.opened", "sandbox.closed", "task.end"]);
    let whole = fs::read(row.product().state().join("audit/log.ndjson")).unwrap();
    assert!(whole.is_ascii() && whole.ends_with(b"\n"));
    let lines: Vec<_> = whole[..whole.len() - 1].split(|byte| *byte == b'\n').collect();
    assert!(lines.iter().all(|line| serde_json::from_slice::<Value>(line).is_ok()));
    assert_eq!(lines.len() as u64, last.as_u64().unwrap());
}

/// Runs a program on a terminal and prints everything that the terminal gets.
const ON_A_TERMINAL: &str = r"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
while True:
    try: data = os.read(terminal, 65536)
    except OSError: break
    if not data: break
    sys.stdout.buffer.write(data)
os.waitpid(pid, 0)
";

/// Asserts that the closing line on a terminal says nothing that the program put into its mouth.
fn on_a_terminal(row: &Row, words: &[&str]) {
    let shown = |more: &[&str]| {
        let plain = row.command(&[more, words].concat());
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", ON_A_TERMINAL]).arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let shown = {
            command.env("NO_COLOR", "1").stdin(Stdio::null());
            finish(command).exits(0).stdout
        };
        let closing = format!("cofferdam: {}", row.backend());
        let last = shown.rfind(&closing).unwrap_or_else(|| panic!("{shown:?}"));
        shown[last..].to_owned()
    };
    assert!(shown(&["--quiet"]).contains("exit 0"), "the control: the program can say the same");
    let ours = shown(&[]);
    assert!(ours.contains("exit 3") && ours.contains("not let out"), "the last such line is ours: {ours:?}");
    inert(&ours.replace("\r\n", "\n"));
}
