//! Any WebAssembly, core modules and components.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cofferdam_backends::wasm::setup::{self, Folder, SetupError};
use cofferdam_backends::wasm::wire::{FromWorker, Kind, Trap};

use crate::alone::{Worker, preopen};
use crate::{Came, Trial, command};

const MEMORY_BYTES: u64 = 16 << 20;

/// What the modules below import, and some memory.
const IMPORTS: &str = r#"
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
    (memory (export "memory") 1)
"#;

/// A worker with a module that was compiled just now.
pub(crate) fn worker(text: &str) -> (Worker, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let prepared =
        setup::module(&wat::parse_str(text).unwrap(), &Folder::open(folder.path()).unwrap()).unwrap();
    let here = |scratch: &Path| vec![preopen(".", scratch, true)];
    (Worker::open(command(), (&prepared.module, None), prepared.kind, MEMORY_BYTES, here).unwrap(), folder)
}

/// Why a worker doesn't open a module, which it must not.
pub(crate) fn refusal(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let prepared =
        setup::module(&wat::parse_str(text).unwrap(), &Folder::open(folder.path()).unwrap()).unwrap();
    let opened = Worker::open(command(), (&prepared.module, None), prepared.kind, MEMORY_BYTES, |_| vec![]);
    opened.err().unwrap().to_string()
}

pub(crate) fn run(text: &str, argv: &[&str]) -> Came {
    let (mut worker, _folder) = worker(text);
    Trial { script: None, argv, envp: &["A=b"], stdin: "" }.run(&mut worker)
}

pub(crate) fn module(body: &str) -> String {
    format!("(module {IMPORTS} {body})")
}

#[test]
fn a_module_writes_has_its_arguments_and_leaves_with_its_status() {
    let text = module(
        r#"(data (i32.const 16) "hello\n")
        (func (export "_start")
            (i32.store (i32.const 0) (i32.const 16))
            (i32.store (i32.const 4) (i32.const 6))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (drop (call $sizes (i32.const 32) (i32.const 36)))
            (call $exit (i32.add (i32.const 200) (i32.load (i32.const 32)))))"#,
    );
    let came = run(&text, &["m", "a", "b"]);
    assert_eq!((came.end, came.stdout.as_str()), (FromWorker::Exited(203), "hello\n"));
}

#[test]
fn a_module_that_returns_has_exited_well() {
    assert_eq!(run(&module(r#"(func (export "_start"))"#), &["m"]).end, FromWorker::Exited(0));
}

#[test]
fn each_way_to_be_ended_is_told_apart() {
    let unreachable = r#"(func (export "_start") unreachable)"#;
    let stack = r#"(func $f (export "_start") (call $f) (call $f))"#;
    let memory = r#"(func (export "_start")
        (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable)"#;
    let beyond = r#"(func (export "_start") (drop (i32.load (i32.const -8))))"#;
    for (body, trap) in [
        (unreachable, Trap::Unreachable),
        (stack, Trap::Stack),
        (memory, Trap::Memory),
        (beyond, Trap::Other),
    ] {
        let came = run(&module(body), &["m"]);
        assert_eq!(came.end, FromWorker::Trapped(trap));
        assert!(came.stderr.ends_with(".\n"), "it says nothing");
    }
}

#[test]
fn memory_that_a_run_wrote_is_zero_for_the_next() {
    // Leaves with 7 if it finds what an earlier run wrote, in its first page or in one that it grew to.
    let text = module(
        r#"(func (export "_start")
            (drop (memory.grow (i32.const 8)))
            (if (i32.load (i32.const 1024)) (then (call $exit (i32.const 7))))
            (if (i32.load (i32.const 500000)) (then (call $exit (i32.const 7))))
            (i32.store (i32.const 1024) (i32.const -1))
            (i32.store (i32.const 500000) (i32.const -1)))"#,
    );
    let (mut worker, _folder) = worker(&text);
    for _ in 0..3 {
        let came = Trial { script: None, argv: &["m"], envp: &[], stdin: "" }.run(&mut worker);
        assert_eq!(came.end, FromWorker::Exited(0));
        worker.renew().unwrap();
    }
}

#[test]
fn a_component_runs_and_its_result_is_its_status() {
    for (result, status) in [(0, 0), (1, 1)] {
        let text = format!(
            r#"(component
                (core module $m (func (export "run") (result i32) i32.const {result}))
                (core instance $i (instantiate $m))
                (func $run (result (result)) (canon lift (core func $i "run")))
                (component $c
                    (import "import-func-run" (func $f (result (result))))
                    (export "run" (func $f)))
                (instance $r (instantiate $c (with "import-func-run" (func $run))))
                (export "wasi:cli/run@0.2.0" (instance $r)))"#
        );
        assert_eq!(run(&text, &["m"]).end, FromWorker::Exited(status));
    }
}

#[test]
fn a_module_is_compiled_once_and_bad_bytes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Folder::open(folder.path()).unwrap();
    let wasm = wat::parse_str(module(r#"(func (export "_start"))"#)).unwrap();
    let first = setup::module(&wasm, &folder).unwrap();
    let made = fs::metadata(&first.module).unwrap().ino();
    let second = setup::module(&wasm, &folder).unwrap();
    assert_eq!((first.kind, &first.module), (Kind::Core, &second.module));
    assert_eq!(fs::metadata(&second.module).unwrap().ino(), made);
    assert!(matches!(setup::module(b"#!/bin/sh\n", &folder), Err(SetupError::NotWasm)));
    assert!(matches!(setup::module(&wasm[..wasm.len() - 3], &folder), Err(SetupError::Invalid(_))));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something is left");
}

#[test]
fn what_nobody_grants_and_what_is_no_prepared_file_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let own = Folder::open(folder.path()).unwrap();
    let foreign =
        wat::parse_str(r#"(module (import "env" "secret" (func)) (func (export "_start")))"#).unwrap();
    let prepared = setup::module(&foreign, &own).unwrap();
    let open = |path: &Path| {
        Worker::open(command(), (path, None), Kind::Core, MEMORY_BYTES, |_| vec![]).err().unwrap().to_string()
    };
    assert!(open(&prepared.module).contains("secret"));
    let code = fs::read(&prepared.module).unwrap();
    let cut = folder.path().join("cut.cwasm");
    // Native code of an engine with other settings than ours.
    let other = wasmtime::Engine::new(wasmtime::Config::new().consume_fuel(true)).unwrap();
    let other = other.precompile_module(&foreign).unwrap();
    for bytes in [&code[..code.len() / 2], b"", b"\0asm\x01\0\0\0", &other] {
        fs::write(&cut, bytes).unwrap();
        assert!(open(&cut).contains("open the prepared file"));
    }
    assert!(open(folder.path()).contains("open the prepared file"));
}
