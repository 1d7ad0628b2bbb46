//! Modules are compiled in the sandbox that runs them, with its limits: a compiler can be attacked too.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use cofferdam_testkit::product::{Product, finish};
use serde_json::Value;

use crate::{needs_root, product};

/// A module whose `_start` has this code and a local of 32 bits.
fn module(code: &[u8]) -> Vec<u8> {
    let section = |id: u8, content: &[u8]| [&[id][..], &length(content.len()), content].concat();
    let body = [&[1, 1, 0x7f][..], code, &[0x0b]].concat();
    let body = [&[1][..], &length(body.len()), &body].concat();
    let sections = [
        section(1, &[1, 0x60, 0, 0]),
        section(3, &[1, 0]),
        section(7, b"\x01\x06_start\x00\x00"),
        section(10, &body),
    ];
    [&b"\0asm\x01\0\0\0"[..], &sections.concat()].concat()
}

/// A number as WebAssembly has it: unsigned LEB128.
fn length(mut number: usize) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let digit = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(digit | if number == 0 { 0 } else { 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

/// One function of a million steps, each of which needs the one before: as long as a function may be.
fn endless() -> Vec<u8> {
    module(&b"\x20\x00\x41\x01\x6a\x21\x00".repeat(1_000_000))
}

/// A workspace with modules in it, and an empty folder of data.
fn workspace(product: &Product) -> PathBuf {
    let workspace = product.folder().join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("fine.wasm"), module(b"")).unwrap();
    fs::write(workspace.join("endless.wasm"), endless()).unwrap();
    let fine = module(b"");
    fs::write(workspace.join("cut.wasm"), &fine[..fine.len() - 4]).unwrap();
    workspace
}

#[test]
fn a_module_is_compiled_once_into_a_file_that_its_owner_alone_can_write() {
    needs_root!();
    let product = product();
    let workspace = workspace(&product);
    let data = product.folder().join("data");
    let words = ["run", "--workspace", workspace.to_str().unwrap(), "--", "./fine.wasm"];
    let run = || {
        let plain = product.command(words);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(plain.get_program()).args(plain.get_args());
        command.env("COFFERDAM_STATE", product.state()).env("COFFERDAM_DATA", &data);
        assert_eq!(finish(command).code, 0);
        let files = fs::read_dir(data.join("wasm")).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (fs::metadata(&path).unwrap().ino(), path)).collect::<Vec<_>>()
    };
    let first = run();
    let [(_, file)] = first.as_slice() else { panic!("{first:?}") };
    // A worker may be somebody without rights, who can't see the folder above.
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::metadata(data.join("wasm")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(run(), first);
}

#[test]
fn what_was_compiled_and_is_damaged_is_made_anew() {
    needs_root!();
    let product = product();
    let workspace = workspace(&product);
    let run = || product.call(["run", "--workspace", workspace.to_str().unwrap(), "--", "./fine.wasm"]);
    let _ = run().exits(0);
    let files = fs::read_dir(product.state().join("wasm")).unwrap().map(|entry| entry.unwrap().path());
    let [file] = &files.collect::<Vec<_>>()[..] else { panic!("one module was compiled") };
    let whole = fs::read(file).unwrap();
    for damaged in [&whole[..whole.len() / 2], &whole[..whole.len() - 1], b"", b"no code at all"] {
        fs::write(file, damaged).unwrap();
        let ran = run();
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{} bytes of it", damaged.len());
        assert_eq!(fs::read(file).unwrap(), whole);
    }
    // The same where a line of a batch comes upon it, and the next after it.
    fs::write(file, &whole[..100]).unwrap();
    let lines = "{\"argv\":[\"./fine.wasm\"]}\n".repeat(2);
    let mut command = product.command(["batch", "--workspace", workspace.to_str().unwrap()]);
    command.stdin(fs::File::open(product.file("jobs.jsonl", lines)).unwrap());
    let ran = finish(command);
    let ends: Vec<_> = ran.stdout.lines().filter(|line| line.contains("\"end\":\"exited\"")).collect();
    assert_eq!(ends.len(), 2, "{ran:?}");
}

#[test]
fn a_module_that_cannot_be_compiled_is_refused_with_the_reason() {
    needs_root!();
    let product = product();
    let workspace = workspace(&product);
    let run = |module: &str| {
        let words = ["run", "--memory", "64MiB", "--workspace", workspace.to_str().unwrap(), "--", module];
        product.call(words).exits(126)
    };
    let ran = run("./cut.wasm");
    assert!(
        ran.stderr.contains("could not start `./cut.wasm`") && ran.stderr.contains("unexpected end"),
        "{ran:?}"
    );
    let ran = run("./endless.wasm");
    assert!(ran.stderr.contains("compiling it takes more memory than it may have"), "{ran:?}");
    let left = fs::read_dir(product.state().join("wasm")).unwrap().count();
    assert_eq!(left, 0, "nothing of them is kept");
}

#[test]
fn the_deadline_ends_compiling_too() {
    needs_root!();
    let product = product();
    let workspace = workspace(&product);
    let words = ["run", "--timeout", "1s", "--json", "--workspace", workspace.to_str().unwrap()];
    let words = [&words[..], &["--", "./endless.wasm"]].concat();
    let outcome = product.call(words).exits(124).json();
    assert_eq!((&outcome["end"], &outcome["ran"]), (&"timed_out".into(), &"unknown".into()), "{outcome}");
}

#[test]
fn a_module_that_takes_the_compiler_too_much_spoils_no_other_line() {
    needs_root!();
    let product = product();
    let workspace = workspace(&product);
    let lines = ["fine", "endless", "cut", "fine"].map(|name| format!("{{\"argv\":[\"./{name}.wasm\"]}}\n"));
    let input = fs::File::open(product.file("jobs.jsonl", lines.concat())).unwrap();
    let mut command =
        product.command(["batch", "--memory", "64MiB", "--workspace", workspace.to_str().unwrap()]);
    command.stdin(input);
    let ran = finish(command);
    let outcomes: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends: Vec<_> = outcomes.iter().map(|outcome| outcome["end"].as_str().unwrap()).collect();
    assert_eq!(ends, ["exited", "refused", "refused", "exited"], "{ran:?}");
}
