//! Scripts of the kind that agents write (`tests/scripts`): WebAssembly's Python prints what the host's does,
//! or what differs is explained there.
//!
//! Three lists: whole scripts with what they print and leave, small programs that begin or end in an unusual
//! way, and what WebAssembly refuses with the words that say why. What is expected is what CPython 3.11 on the
//! host does, which is tried as well, where there is that one. With `COFFERDAM_BLESS=1` what scripts print in
//! WebAssembly is written down where it differs, for somebody to read and explain.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_testkit::product::Product;
use cofferdam_testkit::{skip, templates};
use serde_json::{Value, json};

use crate::{needs_root, product};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");

/// The interpreter whose words are expected.
const HOST: &str = "/usr/bin/python3";

/// A neighbour that some of the small programs import.
const HELPER: &str = "V=1\ndef boom():\n    raise LookupError('b')\n";

/// One of the lists.
fn list(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(Path::new(SCRIPTS).join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_default()
}

fn words<'a>(entry: &'a Value, key: &str) -> Vec<&'a str> {
    entry[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What came of a program.
#[derive(Debug, PartialEq, Eq)]
struct Came {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a command with this input.
fn came(mut command: Command, input: &str) -> Came {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()); // it may want none
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|error| format!("{error:?}"));
    Came { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Whether the host's Python is the one whose words are expected.
fn host_is_as_expected() -> bool {
    let version = Command::new(HOST).args(["-c", "import sys; print(*sys.version_info[:2])"]).output();
    version.is_ok_and(|output| output.stdout == b"3 11\n")
}

macro_rules! needs_host {
    () => {
        if !host_is_as_expected() {
            skip!("{HOST} is not CPython 3.11, whose words are expected");
        }
    };
}

/// Runs a file of a folder on the host; where it lies is called as inside.
fn on_host(folder: &Path, script: &str, args: &[&str], input: &str) -> Came {
    let mut command = Command::new(HOST);
    command.args(["-X", "utf8", script]).args(args).current_dir(folder);
    command.env("MPLBACKEND", "agg").env("PYTHONDONTWRITEBYTECODE", "1");
    let Came { status, stdout, stderr } = came(command, input);
    let inside = |text: String| text.replace(folder.to_str().unwrap(), "/workspace");
    Came { status, stdout: inside(stdout), stderr: inside(stderr) }
}

/// The product with a Python of its own.
fn with_python() -> Option<Product> {
    product().with_python(&templates::prepared()?, &["python", "python:science"])
}

macro_rules! needs_python {
    () => {
        match with_python() {
            Some(product) => product,
            None => skip!("{}", templates::NONE),
        }
    };
}

/// Runs a file in WebAssembly.
fn in_wasm(product: &Product, options: &[&str], file: &Path, args: &[&str], input: &str) -> Came {
    let run = ["run", "--backend", "wasm", "--quiet", "--timeout", "5m"];
    let file = [file.to_str().unwrap()];
    came(product.command([&run[..], options, &file, args].concat()), input)
}

/// The files below a folder, by their names relative to it.
fn files(top: &Path) -> Vec<String> {
    fn walk(top: &Path, folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                walk(top, &path, into);
            } else {
                into.push(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut all = vec![];
    walk(top, top, &mut all);
    all.sort();
    all
}

/// What a script is expected to do: its output comes out of the first of these files that there is.
fn expected(entry: &Value, outputs: &[&str]) -> (Came, Vec<String>, PathBuf) {
    let stem = Path::new(SCRIPTS).join(text(entry, "script")).with_extension("");
    let beside = |kind: &str| PathBuf::from(format!("{}{kind}", stem.display()));
    let output = outputs.iter().map(|kind| beside(kind)).find(|path| path.exists());
    let output = output.unwrap_or_else(|| beside(outputs[outputs.len() - 1]));
    let came = Came {
        status: Some(entry["status"].as_i64().unwrap_or(0) as i32),
        stdout: fs::read_to_string(&output).unwrap_or_default(),
        stderr: fs::read_to_string(beside(".err")).unwrap_or_default(),
    };
    let mut writes: Vec<_> = words(entry, "writes").into_iter().map(str::to_owned).collect();
    writes.sort();
    (came, writes, output)
}

/// Compares; gives what is wrong.
fn wrong(name: &str, came: &Came, expected: &Came) -> Option<String> {
    (came != expected).then(|| format!("{name}: {came:#?}\nexpected {expected:#?}"))
}

fn nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Runs a script on the host; gives what is wrong with it.
fn script_on_host(entry: &Value) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let script = text(entry, "script");
    fs::copy(Path::new(SCRIPTS).join(script), folder.path().join(script)).unwrap();
    let came = on_host(folder.path(), script, &words(entry, "args"), text(entry, "stdin"));
    let (expected, writes, _) = expected(entry, &[".out"]);
    let mut differ: Vec<_> = wrong(script, &came, &expected).into_iter().collect();
    let wrote: Vec<_> = files(folder.path()).into_iter().filter(|name| name != script).collect();
    if wrote != writes {
        differ.push(format!("{script} wrote {wrote:?}, expected {writes:?}"));
    }
    differ
}

/// Runs scripts on the host; gives what is wrong with them.
fn scripts_on_host(chosen: impl Fn(&Value) -> bool) -> Vec<String> {
    let all: Vec<_> = list("scripts.json").into_iter().filter(chosen).collect();
    assert!(!all.is_empty());
    all.iter().flat_map(script_on_host).collect()
}

fn needs_packages(entry: &Value) -> bool {
    !words(entry, "needs").is_empty()
}

#[test]
fn what_is_expected_of_scripts_is_what_the_hosts_python_prints() {
    needs_host!();
    nothing(&scripts_on_host(|entry| !needs_packages(entry)));
}

#[test]
fn what_is_expected_of_scripts_with_packages_is_what_the_hosts_python_prints() {
    needs_host!();
    let there = Command::new(HOST).args(["-c", "import matplotlib, numpy, pandas"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        skip!("{HOST} has no NumPy, pandas and Matplotlib");
    }
    nothing(&scripts_on_host(needs_packages));
}

#[test]
fn scripts_print_and_leave_in_webassembly_what_they_do_on_the_host() {
    needs_root!();
    let product = needs_python!();
    let bless = std::env::var_os("COFFERDAM_BLESS").is_some();
    let mut differ = vec![];
    let all = list("scripts.json");
    assert!(all.len() >= 20);
    for entry in &all {
        let script = text(entry, "script");
        let out = product.folder().join(format!("out-{script}"));
        let options = ["--out", out.to_str().unwrap()];
        let file = Path::new(SCRIPTS).join(script);
        let came = in_wasm(&product, &options, &file, &words(entry, "args"), text(entry, "stdin"));
        let (expected, writes, place) = expected(entry, &[".wasm.out", ".out"]);
        if bless && came.stdout != expected.stdout {
            let own = file.with_extension("wasm.out");
            fs::write(if place == own { place } else { own }, &came.stdout).unwrap();
        }
        differ.extend(wrong(script, &came, &expected));
        let left = files(&out.join("files"));
        if left != writes {
            differ.push(format!("{script} left {left:?}, expected {writes:?}"));
        }
    }
    nothing(&differ);
}

/// A folder with a small program in it.
fn small_program(entry: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // Each character is a byte of the source.
    let source: Vec<u8> = text(entry, "code").chars().map(|letter| letter as u8).collect();
    fs::write(folder.path().join("t.py"), source).unwrap();
    fs::write(folder.path().join("helper.py"), HELPER).unwrap();
    folder
}

fn expected_of_small(entry: &Value) -> Came {
    Came {
        status: entry["status"].as_i64().map(|status| status as i32),
        stdout: text(entry, "stdout").to_owned(),
        stderr: text(entry, "stderr").to_owned(),
    }
}

#[test]
fn what_is_said_to_be_as_on_the_host_is_what_the_hosts_python_does() {
    needs_host!();
    let mut differ = vec![];
    let all: Vec<_> =
        list("edges.json").into_iter().filter(|entry| entry["as_host"] == json!(true)).collect();
    assert!(all.len() > 40);
    for entry in &all {
        let folder = small_program(entry);
        let came = on_host(folder.path(), "t.py", &[], "");
        differ.extend(wrong(text(entry, "name"), &came, &expected_of_small(entry)));
    }
    nothing(&differ);
}

/// How many frames below a program's are not its own isn't promised: a count of the last few hundred is told
/// as one.
fn without_our_frames(came: Came) -> Came {
    let (before, after) = ("[Previous line repeated ", " more times]");
    let lines = came.stderr.split_inclusive('\n').map(|line| {
        let count = line.trim().strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let count = count.and_then(|count| count.parse::<u32>().ok());
        if count.is_some_and(|count| (970..1000).contains(&count)) { "  [repeated]\n" } else { line }
    });
    let stderr = lines.collect();
    Came { stderr, ..came }
}

#[test]
fn programs_begin_and_end_in_webassembly_as_on_the_host() {
    needs_root!();
    let product = needs_python!();
    let mut differ = vec![];
    let all = list("edges.json");
    assert!(all.len() > 50);
    for entry in &all {
        let folder = small_program(entry);
        let options = ["--workspace", folder.path().to_str().unwrap()];
        let came = in_wasm(&product, &options, &folder.path().join("t.py"), &[], "");
        let expected = without_our_frames(expected_of_small(entry));
        differ.extend(wrong(text(entry, "name"), &without_our_frames(came), &expected));
    }
    nothing(&differ);
}

#[test]
fn what_webassembly_lacks_is_refused_in_words_and_with_the_usual_exception() {
    needs_root!();
    let product = needs_python!();
    let all = list("refused.json");
    assert!(all.len() > 20);
    let jobs: String = all.iter().map(|entry| format!("{}\n", json!({"code": entry["code"]}))).collect();
    let mut command = product.command(["batch", "--backend", "wasm"]);
    command.stdin(fs::File::open(product.file("jobs.jsonl", jobs)).unwrap());
    let output = command.output().unwrap();
    let outcomes: Vec<Value> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(outcomes.len(), all.len(), "{output:?}");
    for (entry, outcome) in all.iter().zip(&outcomes) {
        let said = outcome["stderr"]["text"].as_str().unwrap_or_default();
        let raised = said.contains(&format!("\n{}: ", text(entry, "raises")));
        assert!(outcome["exit_code"] == 1 && raised && said.contains(text(entry, "says")), "{outcome}");
    }
}

/// What tries every module, and writes the page about them.
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../backends/src/wasm/prelude/modules.py");

/// The page.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/python-modules.md");

#[test]
fn the_page_about_modules_says_which_can_be_imported() {
    needs_root!();
    let product = needs_python!();
    let tried = in_wasm(&product, &["--memory", "2GiB", "--disk", "64MiB"], Path::new(MODULES), &[], "");
    assert_eq!(tried.status, Some(0), "{}", tried.stderr);
    let report = product.file("modules.json", tried.stdout);
    let written =
        Command::new(HOST).args([MODULES, "--markdown", report.to_str().unwrap()]).output().unwrap();
    assert!(written.status.success(), "{written:?}");
    let page = String::from_utf8(written.stdout).unwrap();
    if std::env::var_os("COFFERDAM_BLESS").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let kept = fs::read_to_string(PAGE).unwrap();
    let gone: Vec<_> = kept.lines().filter(|line| !page.contains(line)).collect();
    let new: Vec<_> = page.lines().filter(|line| !kept.contains(line)).collect();
    assert!(page == kept, "COFFERDAM_BLESS=1 writes it anew: gone {gone:#?}, new {new:#?}");
}
