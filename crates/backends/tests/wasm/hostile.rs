//! Modules that mean harm, in a worker without a jail: they are refused or ended, and the next run is clean.

use cofferdam_backends::wasm::wire::{FromWorker, Trap};

use crate::modules::{module, run, worker};
use crate::{Came, Trial};

/// Runs in the same worker again.
fn again(worker: &mut crate::alone::Worker) -> Came {
    let came = Trial { script: None, argv: &["m"], envp: &[], stdin: "" }.run(worker);
    worker.renew().unwrap();
    came
}

#[test]
fn nothing_of_one_run_is_in_memory_globals_or_tables_of_the_next() {
    // Looks at every byte of what it may have, and leaves with the number of the first thing that isn't as
    // it was made; then fills all of it. What it has at the start is a page, a global and a table of two.
    let text = module(
        r#"(global $global (mut i64) (i64.const 5))
        (table $table 2 100000 funcref) (elem (i32.const 0) $exit)
        (data (i32.const 100) "given")
        (func $is_zero (param $at i32) (param $end i32) (result i32)
            (loop $next
                (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then (return (i32.const 0))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (local.get $end))))
            (i32.const 1))
        (func (export "_start")
            (if (i64.ne (global.get $global) (i64.const 5)) (then (call $exit (i32.const 2))))
            (if (i32.ne (memory.size) (i32.const 1)) (then (call $exit (i32.const 3))))
            (if (i32.ne (table.size $table) (i32.const 2)) (then (call $exit (i32.const 4))))
            (if (ref.is_null (table.get $table (i32.const 0))) (then (call $exit (i32.const 5))))
            (if (i32.eqz (ref.is_null (table.get $table (i32.const 1)))) (then (call $exit (i32.const 6))))
            (drop (memory.grow (i32.const 200)))
            (drop (table.grow $table (ref.null func) (i32.const 90000)))
            (if (i32.ne (i32.load8_u (i32.const 100)) (i32.const 103)) (then (call $exit (i32.const 7))))
            (if (i32.eqz (call $is_zero (i32.const 0) (i32.const 96))) (then (call $exit (i32.const 8))))
            (if (i32.eqz (call $is_zero (i32.const 112) (i32.const 13172736))) (then (call $exit (i32.const 9))))
            (if (i32.eqz (ref.is_null (table.get $table (i32.const 89999)))) (then (call $exit (i32.const 10))))
            (global.set $global (i64.const -1))
            (table.fill $table (i32.const 0) (ref.func $exit) (i32.const 90002))
            (memory.fill (i32.const 0) (i32.const 255) (i32.const 13172736)))"#,
    );
    let (mut worker, _folder) = worker(&text);
    for number in 0..4 {
        assert_eq!(again(&mut worker).end, FromWorker::Exited(0), "run {number}");
    }
}

#[test]
fn a_run_that_was_ended_leaves_the_next_one_clean() {
    // The first word of its memory says whether somebody was there.
    for (harm, trap) in [
        ("unreachable", Trap::Unreachable),
        ("(call $deeper)", Trap::Stack),
        ("(drop (i32.load (i32.const -4)))", Trap::Other),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", Trap::Other),
        (
            "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable",
            Trap::Memory,
        ),
    ] {
        let text = module(&format!(
            r#"(func $deeper (call $deeper) (call $deeper))
            (func (export "_start")
                (if (i32.load (i32.const 0)) (then (call $exit (i32.const 7))))
                (i32.store (i32.const 0) (i32.const 1))
                {harm})"#
        ));
        let (mut worker, _folder) = worker(&text);
        for _ in 0..3 {
            assert_eq!(again(&mut worker).end, FromWorker::Trapped(trap), "{harm}");
        }
    }
}

#[test]
fn tables_and_instances_without_end_are_refused() {
    // A table that grows until it can't, and a memory that is declared larger than anybody may have.
    let table = module(
        r#"(table $table 1 funcref)
        (func (export "_start")
            (loop $more (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 65536)) (i32.const -1))))
            (if (i32.gt_u (table.size $table) (i32.const 1048576)) (then (call $exit (i32.const 9)))))"#,
    );
    assert_eq!(run(&table, &["m"]).end, FromWorker::Exited(0));
}

/// A component whose `run` is the body of this core module's, given two ways to drop a handle: as an error and
/// as a stream of output, of which it gets one.
fn component(body: &str) -> String {
    format!(
        r#"(component
            (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
            (alias export $error "error" (type $err))
            (import "wasi:io/streams@0.2.0" (instance $streams
                (export "output-stream" (type (sub resource)))))
            (alias export $streams "output-stream" (type $out))
            (import "wasi:cli/stdout@0.2.0" (instance $stdout
                (alias outer 1 $out (type $o)) (export "output-stream" (type (eq $o)))
                (export "get-stdout" (func (result (own 1))))))
            (core func $drop_error (canon resource.drop $err))
            (core func $drop_stream (canon resource.drop $out))
            (core func $get (canon lower (func $stdout "get-stdout")))
            (core module $m
                (import "" "error" (func $drop_error (param i32)))
                (import "" "stream" (func $drop_stream (param i32)))
                (import "" "get" (func $get (result i32)))
                (func (export "run") (result i32) (local $handle i32) {body} (i32.const 0)))
            (core instance $i (instantiate $m (with "" (instance
                (export "error" (func $drop_error))
                (export "stream" (func $drop_stream))
                (export "get" (func $get))))))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (component $c
                (import "import-func-run" (func $f (result (result))))
                (export "run" (func $f)))
            (instance $r (instantiate $c (with "import-func-run" (func $run))))
            (export "wasi:cli/run@0.2.0" (instance $r)))"#
    )
}

#[test]
fn a_handle_that_a_component_makes_up_is_none() {
    let honest = "(local.set $handle (call $get)) (call $drop_stream (local.get $handle))";
    assert_eq!(run(&component(honest), &["m"]).end, FromWorker::Exited(0), "the control");
    for forged in [
        "(call $drop_stream (i32.const 0))",
        "(call $drop_stream (i32.const 7))",
        "(call $drop_stream (i32.const -1))",
        "(call $drop_error (i32.const 1))",
        "(local.set $handle (call $get)) (call $drop_stream (i32.add (local.get $handle) (i32.const 1)))",
        "(local.set $handle (call $get)) (call $drop_error (local.get $handle))",
        "(local.set $handle (call $get)) (call $drop_stream (local.get $handle)) \
         (call $drop_stream (local.get $handle))",
    ] {
        let (mut worker, _folder) = worker(&component(forged));
        for _ in 0..2 {
            assert_eq!(again(&mut worker).end, FromWorker::Trapped(Trap::Other), "{forged}");
        }
    }
}

#[test]
fn a_component_gets_only_what_is_wasi() {
    let text =
        r#"(component (import "host:secret/key@1.0.0" (instance (export "get" (func (result string))))))"#;
    let refusal = crate::modules::refusal(text);
    assert!(refusal.contains("host:secret/key"), "{refusal}");
}
