//! A batch in WebAssembly in which everything goes wrong that can, among lines that are fine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_testkit::product::finish;
use cofferdam_testkit::{skip, templates};
use serde_json::{Value, json};

use crate::{needs_root, product};

/// How many lines there are, and one in how many goes wrong.
const LINES: u64 = 1000;
const WRONG_EVERY: u64 = 8;

/// A module that leaves with 42, and one whose stack is full.
fn modules() -> [String; 2] {
    let exit = r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1) (func (export "_start") (call $exit (i32.const 42))))"#;
    let deep = r#"(module (memory (export "memory") 1) (func $f (export "_start") (call $f) (call $f)))"#;
    [exit, deep].map(|text| STANDARD.encode(wat::parse_str(text).unwrap()))
}

/// A line that is right only if nothing of any other is in it.
fn fine(number: u64) -> Value {
    let code = "import json, os, random, sys
before = sorted(os.listdir('.')) + sorted(os.listdir('/tmp')) + sorted(os.listdir('/home/user'))
number = int(sys.argv[1]) + int(sys.stdin.read()) + int(os.environ['N'])
open('mine', 'w').write(str(number)); open('/tmp/mine', 'w').write('x')
print(json.dumps([before, hasattr(sys, 'left'), sum(range(number)), open('mine').read()]))
sys.left = number";
    json!({"id": number, "code": code, "args": [number.to_string()], "stdin": "1", "env": {"N": "2"}})
}

fn is_fine(number: u64, outcome: &Value) -> bool {
    let sum = number + 3;
    let expected = format!("[[], false, {}, \"{sum}\"]\n", sum * (sum - 1) / 2);
    outcome["end"] == "exited" && outcome["exit_code"] == 0 && outcome["stdout"]["text"] == expected.as_str()
}

/// One way to go wrong: what is run, and what has to come of it.
struct Wrong {
    job: Value,
    end: &'static str,
    code: i64,
    said: &'static str,
}

fn wrongs() -> Vec<Wrong> {
    let [exit, deep] = modules();
    let code = |code: &str, end, exit, said| Wrong { job: json!({"code": code}), end, code: exit, said };
    let module = |base64: &str, end, code, said| Wrong {
        job: json!({"argv": ["./m.wasm"], "files": {"m.wasm": {"base64": base64}}}),
        end,
        code,
        said,
    };
    let mut all = vec![
        code("1/0", "exited", 1, "ZeroDivisionError"),
        code("x = []\nwhile True: x.append(bytes(1 << 24))", "out_of_memory", 137, ""),
        code("for _ in range(3000): print('y' * 999)", "exited", 0, ""),
        code("f = lambda: f()\nf()", "exited", 1, "RecursionError"),
        code("import os\nos.abort()", "signalled", 134, ""),
        code("import sys\nsys.exit(7)", "exited", 7, ""),
        code("import os\nopen('/tmp/x', 'w').write('x')\nos._exit(9)", "exited", 9, ""),
        code(
            "with open('/tmp/x', 'wb') as f:\n    while True: f.write(bytes(1 << 20))",
            "exited",
            1,
            "No space left",
        ),
        code("def (", "exited", 1, "SyntaxError"),
        code("import not_there", "exited", 1, "ModuleNotFoundError"),
        module(&exit, "exited", 42, ""),
        module(&deep, "signalled", 134, "stack was full"),
    ];
    let mut loops = code("while True: pass", "timed_out", 124, "");
    loops.job["timeout"] = json!("300ms");
    all.push(loops);
    all.push(Wrong { job: json!({"argv": []}), end: "refused", code: 125, said: "" });
    all
}

#[test]
fn of_a_thousand_mixed_lines_each_that_is_fine_is_right() {
    needs_root!();
    let templates = templates::prepared();
    let product = templates.and_then(|templates| product().with_python(&templates, &["python"]));
    let Some(product) = product else {
        skip!("{}", templates::NONE);
    };
    let wrongs = wrongs();
    let wrong = |number: u64| {
        let which = (number / WRONG_EVERY) as usize % wrongs.len();
        number.is_multiple_of(WRONG_EVERY).then(|| &wrongs[which])
    };
    let line = |number: u64| match wrong(number) {
        Some(wrong) => {
            let mut job = wrong.job.clone();
            job["id"] = json!(number);
            job
        }
        None => fine(number),
    };
    let lines: String = (0..LINES).map(|number| format!("{}\n", line(number))).collect();
    let mut command =
        product.command(["batch", "--backend", "wasm", "--memory", "128MiB", "--disk", "48MiB"]);
    command.stdin(std::fs::File::open(product.file("jobs.jsonl", lines)).unwrap());
    let ran = finish(command);
    let outcomes: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len() as u64, LINES, "{}", ran.stderr);
    for (number, outcome) in (0..LINES).zip(&outcomes) {
        assert_eq!(outcome["id"], number);
        let Some(Wrong { end, code, said, .. }) = wrong(number) else {
            assert!(is_fine(number, outcome), "{outcome}");
            continue;
        };
        assert_eq!(outcome["end"], *end, "{outcome}");
        assert_eq!(outcome["exit_code"].as_i64().unwrap_or(125), *code, "{outcome}");
        assert!(said.is_empty() || outcome["stderr"]["text"].as_str().unwrap().contains(said), "{outcome}");
    }
}
