//! Modules of WebAssembly that mean harm, as a user would run them: typed refusals or ends, and what comes next
//! starts clean.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_testkit::product::{Product, finish};
use serde_json::{Value, json};

use crate::{needs_root, product};

/// What the modules import, and a page of memory.
const IMPORTS: &str = r#"
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
(memory (export "memory") 2)
"#;

fn module(body: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {IMPORTS} {body})")).unwrap()
}

fn file(product: &Product, wasm: &[u8]) -> PathBuf {
    product.file("m.wasm", wasm)
}

/// The Outcome of a module under options.
fn outcome(product: &Product, wasm: &[u8], options: &[&str]) -> Value {
    let file = file(product, wasm);
    let words = [&["run", "--backend", "wasm", "--json"], options, &[file.to_str().unwrap()]].concat();
    finish(product.command(words)).json()
}

/// A line of a batch that runs a module.
fn job(wasm: &[u8]) -> Value {
    json!({"argv": ["./m.wasm"], "files": {"m.wasm": {"base64": STANDARD.encode(wasm)}}})
}

fn batch(product: &Product, jobs: &[Value]) -> Vec<Value> {
    let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    let mut command = product.command(["batch", "--backend", "wasm"]);
    command.stdin(std::fs::File::open(product.file("jobs.jsonl", lines)).unwrap());
    finish(command).stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Writes "ok" and returns.
fn honest() -> Vec<u8> {
    module(
        r#"(data (i32.const 16) "ok\n") (func (export "_start")
        (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 3))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))"#,
    )
}

#[test]
fn what_is_no_module_or_asks_for_what_nobody_grants_is_refused_and_the_next_runs() {
    needs_root!();
    let product = product();
    let whole = honest();
    let secret = r#"(module (import "env" "secret" (func)) (func (export "_start")))"#;
    let large = r#"(module (memory (export "memory") 60000) (func (export "_start")))"#;
    let foreign = r#"(component (import "host:secret/key@1.0.0" (instance (export "get" (func)))))"#;
    let startless = r#"(module (memory (export "memory") 1))"#;
    let threads = r#"(module (memory (export "memory") 1 2 shared) (func (export "_start")))"#;
    let spawns = r#"(module (import "wasi" "thread-spawn" (func)) (func (export "_start")))"#;
    let wat = |text: &str| wat::parse_str(text).unwrap();
    for (what, wasm, words, fix) in [
        ("imports", wat(secret), "secret", "wasi_snapshot_preview1"),
        ("a component's imports", wat(foreign), "host:secret/key", "WASI 0.2"),
        ("memory", wat(large), "bytes of memory", "--memory"),
        ("no start", wat(startless), "_start", "library"),
        ("cut short", whole[..whole.len() - 5].to_vec(), "unexpected end", "cut short"),
        ("threads", wat(threads), "threads", "without threads"),
        ("starts threads", wat(spawns), "thread-spawn", "without threads"),
        ("no wasm", b"\0asm\x09\0\0\0".to_vec(), "no WebAssembly", "a module"),
        ("empty", b"\0asm".to_vec(), "no WebAssembly", "a module"),
    ] {
        let got = outcome(&product, &wasm, &[]);
        assert_eq!((&got["ran"], &got["exit_code"]), (&json!("no"), &json!(126)), "{what}: {got}");
        assert_eq!(
            (&got["blame"], &got["error"]["code"]),
            (&json!("request"), &json!("not_executable")),
            "{what}: {got}"
        );
        assert!(got["error"]["message"].as_str().unwrap().contains(words), "{what}: {got}");
        assert!(got["error"]["fix"].as_str().unwrap().contains(fix), "{what}: {got}");
        let got = batch(&product, &[job(&wasm), job(&whole)]);
        assert_eq!(got[0]["exit_code"], 126, "{what}: {}", got[0]);
        assert_eq!(got[1]["stdout"]["text"], "ok\n", "{what}: {}", got[1]);
    }
}

#[test]
fn modules_that_are_ended_say_so_and_the_next_line_is_right() {
    needs_root!();
    let product = product();
    let deeper = "(func $deeper (call $deeper) (call $deeper))";
    // What it does in its start section comes before it is started, and ends no other way.
    let called = |body: &str| module(&format!("{deeper} (func (export \"_start\") {body})"));
    let first = |body: &str| {
        module(&format!("{deeper} (func $first {body}) (start $first) (func (export \"_start\"))"))
    };
    let grows = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 64)) (i32.const -1)))) unreachable";
    let loops = "(loop $for_ever (br $for_ever))";
    // More than a pipe holds.
    let floods = "(i32.store (i32.const 4) (i32.const 65536)) (loop $for_ever
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br $for_ever))";
    let (mut jobs, mut ends) = (vec![], vec![]);
    for (body, end, words) in [
        ("unreachable", "signalled", "aborted"),
        ("(call $deeper)", "signalled", "stack was full"),
        ("(drop (i32.load (i32.const -4)))", "signalled", "does not allow"),
        (grows, "out_of_memory", "more memory"),
        (loops, "timed_out", ""),
        ("(call $exit (i32.const 3))", "exited", ""),
        (floods, "timed_out", ""),
    ] {
        for wasm in [called(body), first(body)] {
            let mut harmful = job(&wasm);
            harmful["timeout"] = json!("2s");
            jobs.extend([harmful, job(&honest())]);
            ends.push((end, words));
        }
    }
    let outcomes = batch(&product, &jobs);
    assert_eq!(outcomes.len(), jobs.len());
    for (pair, (end, words)) in outcomes.chunks(2).zip(ends) {
        assert_eq!(pair[0]["end"], end, "{}", pair[0]);
        assert!(pair[0]["stderr"]["text"].as_str().unwrap().contains(words), "{}", pair[0]);
        assert_eq!(
            (&pair[1]["end"], &pair[1]["stdout"]["text"]),
            (&json!("exited"), &json!("ok\n")),
            "{}",
            pair[1]
        );
    }
}

#[test]
fn nothing_of_one_line_is_in_memory_globals_or_files_of_the_next() {
    needs_root!();
    let product = product();
    // Leaves with a number if it finds something of an earlier line: in its global, in any byte of what it
    // has and grows to, or a file in one of its folders; then it fills and makes all of it.
    let looks = module(
        r#"(global $global (mut i32) (i32.const 0))
        (data (i32.const 16) "left")
        (func $made (param $folder i32) (result i32)
            (i32.eqz (call $open (local.get $folder) (i32.const 0) (i32.const 16) (i32.const 4) (i32.const 0)
                (i64.const 2) (i64.const 2) (i32.const 0) (i32.const 8))))
        (func $make (param $folder i32) (result i32)
            (call $open (local.get $folder) (i32.const 0) (i32.const 16) (i32.const 4) (i32.const 5)
                (i64.const 66) (i64.const 66) (i32.const 0) (i32.const 8)))
        (func (export "_start") (local $at i32)
            (if (global.get $global) (then (call $exit (i32.const 2))))
            (drop (memory.grow (i32.const 510)))
            (local.set $at (i32.const 24))
            (loop $next
                (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then (call $exit (i32.const 3))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (i32.const 33554432))))
            (if (call $made (i32.const 3)) (then (call $exit (i32.const 4))))
            (if (call $made (i32.const 5)) (then (call $exit (i32.const 5))))
            (if (call $made (i32.const 6)) (then (call $exit (i32.const 6))))
            (if (call $make (i32.const 3)) (then (call $exit (i32.const 7))))
            (if (call $make (i32.const 5)) (then (call $exit (i32.const 8))))
            (if (call $make (i32.const 6)) (then (call $exit (i32.const 9))))
            (if (i32.eqz (call $made (i32.const 3))) (then (call $exit (i32.const 10))))
            (global.set $global (i32.const 1))
            (memory.fill (i32.const 24) (i32.const 255) (i32.const 33554408)))"#,
    );
    let outcomes = batch(&product, &vec![job(&looks); 6]);
    assert_eq!(outcomes.len(), 6);
    for outcome in &outcomes {
        assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)), "{outcome}");
    }
}

/// What a flood writes, in bytes: a number that 64 KiB divide.
const FLOOD_BYTES: u64 = 10 << 30;

#[test]
fn ten_gibibytes_of_output_are_counted_to_the_byte() {
    needs_root!();
    let product = product();
    let pieces = FLOOD_BYTES / 65536;
    let flood = module(&format!(
        r#"(func (export "_start") (local $left i32)
        (memory.fill (i32.const 65536) (i32.const 101) (i32.const 65536))
        (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 65536))
        (local.set $left (i32.const {pieces}))
        (loop $more
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (local.set $left (i32.sub (local.get $left) (i32.const 1)))
            (br_if $more (local.get $left))))"#
    ));
    let got = outcome(&product, &flood, &["--timeout", "4m"]);
    assert_eq!((&got["end"], &got["exit_code"]), (&json!("exited"), &json!(0)), "{}", got["end"]);
    let (of, kept) = (&got["stdout"], 10 << 20);
    assert_eq!((of["bytes"].as_u64(), of["dropped"].as_u64()), (Some(FLOOD_BYTES), Some(FLOOD_BYTES - kept)));
    assert_eq!(of["text"].as_str().unwrap().len() as u64, kept);
    assert_eq!(got["limits_hit"], json!(["output"]));
}
