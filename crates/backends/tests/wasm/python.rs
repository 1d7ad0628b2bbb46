//! Scripts in a Python that was taken while it ran.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofferdam_backends::wasm::wire::{FromWorker, Trap};
use cofferdam_testkit::{skip, templates};

use crate::alone::Worker;
use crate::templates::template;
use crate::{Came, Trial, command};

/// Enough for every script here that isn't about memory.
const MEMORY_BYTES: u64 = 512 << 20;

macro_rules! worker {
    () => {
        worker!("python", MEMORY_BYTES)
    };
    ($name:expr, $memory_bytes:expr) => {
        match template($name) {
            Some(template) => Worker::python(command(), &template, $memory_bytes).unwrap(),
            None => skip!("{}", templates::NONE),
        }
    };
}

/// Runs a script as `/workspace/a.py`.
fn script(worker: &mut Worker, source: &str) -> Came {
    Trial { script: Some(("/workspace/a.py", source)), argv: &["a.py"], envp: &[], stdin: "" }.run(worker)
}

/// What a script prints that ends well.
fn printed(worker: &mut Worker, source: &str) -> String {
    let came = script(worker, source);
    assert_eq!((came.end, came.stderr.as_str()), (FromWorker::Exited(0), ""), "{}", came.stdout);
    came.stdout
}

#[test]
fn a_script_prints_and_has_its_arguments_environment_and_input() {
    let mut worker = worker!();
    let source = "import os, sys\nprint(__name__, __file__, sys.argv, os.environ['A'], sys.platform, 1 + 1)\nprint(input(), sys.stdin.read())";
    let trial = Trial {
        script: Some(("/workspace/a.py", source)),
        argv: &["a.py", "b c", "ü"],
        envp: &["A=b=c", "EMPTY="],
        stdin: "one\ntwo",
    };
    let came = trial.run(&mut worker);
    assert_eq!(came.end, FromWorker::Exited(0), "{}", came.stderr);
    assert_eq!(came.stdout, "__main__ /workspace/a.py ['a.py', 'b c', 'ü'] b=c wasi 2\none two\n");
}

#[test]
fn every_exit_status_is_told() {
    let mut worker = worker!();
    for (source, status) in [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit(125)", 125),
        ("raise SystemExit(200)", 200),
        ("raise SystemExit", 0),
        ("raise SystemExit('why')", 1),
        ("import os; os._exit(7)", 7),
        ("1/0", 1),
    ] {
        let came = script(&mut worker, source);
        assert_eq!(came.end, FromWorker::Exited(status), "{source}: {}", came.stderr);
        worker.renew().unwrap();
    }
}

#[test]
fn a_traceback_names_the_script_and_shows_its_lines_alone() {
    let mut worker = worker!();
    let came = script(&mut worker, "def f():\n    return 1 / 0\n\nf()\n");
    let lines: Vec<&str> = came.stderr.lines().collect();
    assert_eq!(lines[0], "Traceback (most recent call last):");
    assert_eq!(lines[1], "  File \"/workspace/a.py\", line 4, in <module>", "{}", came.stderr);
    assert!(lines.contains(&"    return 1 / 0"), "{}", came.stderr);
    assert_eq!(*lines.last().unwrap(), "ZeroDivisionError: division by zero");
    assert!(!came.stderr.contains("cofferdam") && !came.stderr.contains("reactor"), "{}", came.stderr);
}

#[test]
fn output_appears_while_the_script_runs() {
    let mut worker = worker!();
    let (read, write) = cofferdam_sys::fd::pipe().unwrap();
    let null = || OwnedFd::from(fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap());
    let source = b"import time\nprint('now')\ntime.sleep(1)\nprint('later')";
    let streams = [null(), write, null()];
    worker.start(Some(("a.py", source)), &["a.py"], &[], &streams).unwrap();
    drop(streams);
    let mut read = fs::File::from(read);
    let mut first = [0; 64];
    let count = std::io::Read::read(&mut read, &mut first).unwrap();
    let seen = Instant::now();
    assert_eq!(&first[..count], b"now\n");
    assert_eq!(worker.end().unwrap(), FromWorker::Exited(0));
    assert!(seen.elapsed() > Duration::from_millis(500), "it came with the end");
}

#[test]
fn two_runs_see_nothing_of_each_other() {
    let mut worker = worker!();
    let leave = "
import builtins, os, sys
builtins.left = sys.left = 1
os.environ['LEFT'] = '1'
open('/workspace/left', 'w').write('x')
os.makedirs('/tmp/a/b/c')
open('/home/user/left', 'w').write('x')
os.symlink('left', '/workspace/link')
secret = 'cofferdam-' + 'residue' * 1000
";
    assert_eq!(printed(&mut worker, leave), "");
    worker.renew().unwrap();
    let look = "
import builtins, os, sys
print(hasattr(builtins, 'left'), hasattr(sys, 'left'), 'LEFT' in os.environ)
print(os.listdir('/workspace'), os.listdir('/tmp'), os.listdir('/home/user'))
";
    assert_eq!(printed(&mut worker, look), "False False False\n[] [] []\n");
}

#[test]
fn a_program_that_wants_too_much_memory_is_ended_by_the_limit_and_the_next_runs() {
    let mut worker = worker!("python", 256 << 20);
    let came = script(&mut worker, "a = []\nwhile True: a.append(bytearray(1 << 20))");
    assert_eq!(came.end, FromWorker::Trapped(Trap::Memory), "{}", came.stderr);
    assert!(came.stderr.contains("MemoryError"), "{}", came.stderr);
    worker.renew().unwrap();
    assert_eq!(
        printed(&mut worker, "try: bytearray(1 << 30)\nexcept MemoryError: print('caught')"),
        "caught\n"
    );
}

#[test]
fn a_limit_below_what_a_template_begins_with_is_refused_in_words() {
    let Some(template) = template("python") else { skip!("{}", templates::NONE) };
    let error = Worker::python(command(), &template, 1 << 20).err().unwrap().to_string();
    assert!(error.contains("starts with"), "{error}");
}

#[test]
fn recursion_without_end_is_an_error_of_the_script() {
    let mut worker = worker!();
    let came = script(&mut worker, "def f(): return f()\nf()");
    assert_eq!(came.end, FromWorker::Exited(1));
    assert!(came.stderr.contains("RecursionError"), "{}", came.stderr);
    worker.renew().unwrap();
    let deep = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [x, repr(f([x]))]\nf(1)";
    let came = script(&mut worker, deep);
    // Whichever is used up first.
    let ends = [FromWorker::Exited(1), FromWorker::Trapped(Trap::Stack), FromWorker::Trapped(Trap::Memory)];
    assert!(ends.contains(&came.end), "{:?} {}", came.end, came.stderr);
}

const DRAWN: &str = "
import os, random, secrets, sqlite3, uuid, json
print(random.random(), secrets.token_hex(8), uuid.uuid4(), os.urandom(8).hex())
class Own(sqlite3.Connection):
    create_function = None
for database in (
    sqlite3.connect(':memory:'),
    sqlite3.connect(':memory:', factory=Own),
    sqlite3.Connection(':memory:'),
    sqlite3.dbapi2.Connection(database=':memory:'),
    __import__('_sqlite3').Connection(':memory:'),
):
    print(*database.execute('select random(), hex(randomblob(8))').fetchone())
";

#[test]
fn a_database_is_what_sqlites_module_makes() {
    let mut worker = worker!();
    let text = printed(
        &mut worker,
        "import sqlite3
a, b = sqlite3.connect(':memory:'), sqlite3.Connection(':memory:', timeout=1)
a.execute('create table t (x)')
a.execute('insert into t values (1)')
a.commit()
a.backup(b)
print(type(a), type(a) is type(b) is sqlite3.Connection, b.execute('select x from t').fetchone(), sqlite3.connect.__name__)
class Own(sqlite3.Connection): pass
print(type(sqlite3.connect(database=':memory:', factory=Own)).__name__, a.execute('select randomblob(3)').fetchone()[0].__len__())",
    );
    assert_eq!(text, "<class 'sqlite3.Connection'> True (1,) connect\nOwn 3\n");
}

#[test]
fn no_two_runs_draw_the_same() {
    let mut worker = worker!();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let text = printed(&mut worker, DRAWN);
        for word in text.split_whitespace() {
            assert!(seen.insert(word.to_owned()), "{word} was drawn twice");
        }
        worker.renew().unwrap();
    }
}

#[test]
fn the_seed_of_hashes_is_one_per_template() {
    let hash = |worker: &mut Worker| {
        let text = printed(worker, "print(hash('abc'))");
        worker.renew().unwrap();
        text
    };
    let (mut one, mut other) = (worker!(), worker!("python:science", MEMORY_BYTES));
    assert_eq!(hash(&mut one), hash(&mut one));
    assert_ne!(hash(&mut one), hash(&mut other));
}

#[test]
fn the_clock_is_right() {
    let mut worker = worker!();
    let text = printed(&mut worker, "import time\nprint(time.time(), time.monotonic())");
    let time: f64 = text.split_whitespace().next().unwrap().parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - time).abs() < 60.0, "{time} {now}");
}

#[test]
fn only_what_is_shown_is_there_and_only_some_of_it_can_be_written() {
    let mut worker = worker!();
    fs::create_dir_all(worker.scratch.join("inputs")).unwrap();
    fs::write(worker.scratch.join("inputs/a.txt"), "given").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", worker.scratch.join("inputs/link")).unwrap();
    let source = "
import os
print(open('/inputs/a.txt').read())
for path in ('/etc/passwd', '/usr/bin/env', '/proc/self/maps', '/workspace/../inputs/../../../etc/passwd', '/inputs/link'):
    try: print(path, len(open(path).read()))
    except OSError as error: print(type(error).__name__)
for path in ('/inputs/new', '/inputs/a.txt', '/new', '/usr/local/lib/new'):
    try: open(path, 'w'); print(path)
    except OSError as error: print(type(error).__name__)
for move in (os.rename, os.link):
    try: move('/inputs/a.txt', '/workspace/a.txt'); print(move)
    except OSError as error: print(type(error).__name__)
print(sorted(os.listdir('/')))
";
    let text = printed(&mut worker, source);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("given"));
    for line in lines.by_ref().take(11) {
        assert!(line.ends_with("Error"), "{text}");
    }
    assert_eq!(lines.next(), Some("['home', 'inputs', 'tmp', 'workspace']"));
    assert_eq!(fs::read_to_string(worker.scratch.join("inputs/a.txt")).unwrap(), "given");
}

#[test]
fn asking_in_vain_for_input_waits_and_a_sleep_sleeps() {
    let mut worker = worker!();
    let source = "import sys, time\nstart = time.monotonic()\ntime.sleep(0.3)\nprint(0.25 < time.monotonic() - start < 20)\nprint(len(sys.stdin.read()))";
    let input = "x".repeat(300_000);
    let trial = Trial { script: Some(("a.py", source)), argv: &["a.py"], envp: &[], stdin: &input };
    assert_eq!(trial.run(&mut worker).stdout, "True\n300000\n");
}
