//! Files and interpreters of the host, as flags and policies name them, and what a failed run advises.

use std::fs;
use std::os::unix::fs::symlink;

use cofferdam_testkit::product::{Product, Ran, finish};
use serde_json::Value;

use crate::{needs_root, product};

/// A product with a folder `w` that may be shown, since the product's own folder holds its state.
fn with_workspace() -> (Product, String) {
    let product = product();
    let workspace = product.folder().join("w");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("a.py"), "print(1)").unwrap();
    fs::write(workspace.join(".env.py"), "print(1)").unwrap();
    let path = workspace.to_str().unwrap().to_owned();
    (product, path)
}

/// Asserts that a run is refused with words, and with what to do.
#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{ran:?}");
    for words in words.iter().chain(&["to mend it"]) {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
}

#[test]
fn files_that_cannot_be_shown_are_refused_with_what_to_do() {
    let (product, workspace) = with_workspace();
    let file = product.file("data.csv", "1");
    let file = file.to_str().unwrap();
    for (args, words) in [
        (vec!["--workspace", "/nonexistent"], ["--workspace", "there is no"]),
        (vec!["--workspace", file], ["--workspace", "not a folder"]),
        (vec!["--workspace", "/"], ["--workspace", "machine itself"]),
        (vec!["--in", "/proc"], ["--in", "machine itself"]),
        (vec!["--in", &format!("{file}:/etc/passwd")], ["--in", "/etc belongs to the sandbox"]),
        (vec!["--in", file, "--in", &format!("{workspace}:/inputs/data.csv")], ["--in", "both be at"]),
        (vec!["--copy"], ["--copy", "no workspace"]),
        (vec!["--python", "python0"], ["--python", "in PATH"]),
        (vec!["--venv", &workspace], ["--venv", "no virtual environment"]),
    ] {
        let ran = product.run(&[args.as_slice(), &["--", "true"]].concat());
        refused(&ran, &words);
    }
    let both = product.run(&["--python", "python3", "--venv", &workspace, "--", "true"]);
    assert_eq!(both.code, 125, "{both:?}");
    assert!(both.stderr.contains("cannot be used with"), "{both:?}");
}

#[test]
fn our_own_records_are_not_shown_to_a_program() {
    let product = product();
    let folder = product.folder().to_str().unwrap().to_owned();
    refused(&product.run(&["--workspace", &folder, "--", "true"]), &["audit log", "COFFERDAM_STATE"]);
    fs::create_dir_all(product.state()).unwrap();
    symlink(product.state(), product.folder().join("sly")).unwrap();
    refused(&product.run(&["--in", &format!("{folder}/sly"), "--", "true"]), &["audit log"]);
}

#[test]
fn a_script_that_a_workspace_hides_or_has_already_is_refused() {
    let (product, workspace) = with_workspace();
    let outside = product.file("a.py", "print(2)");
    let hidden = format!("{workspace}/.env.py");
    let shown = ["--workspace", &workspace];
    refused(&product.run(&[&shown[..], &[&hidden]].concat()), &["hidden by the pattern"]);
    refused(&product.run(&[&shown[..], &[outside.to_str().unwrap()]].concat()), &["is there already"]);
    let policy = product.file("p.toml", "version = 1\n[files]\nworkspace = \"w\"\nhide = [\"a.py\"]\n");
    let ran = product.run(&["--policy", policy.to_str().unwrap(), &format!("{workspace}/a.py")]);
    refused(&ran, &["hidden by the pattern \"a.py\""]);
}

#[test]
fn a_policy_names_files_relative_to_itself_and_is_shown_with_them() {
    let (product, workspace) = with_workspace();
    let policy = product.file("p.toml", "version = 1\n[files]\nworkspace = \"w\"\nkeep = [\"x\"]\n");
    let shown = product.call(["policy", "show", policy.to_str().unwrap()]).exits(0).stdout;
    let real = fs::canonicalize(&workspace).unwrap();
    assert!(shown.contains(&format!("workspace = {:?}", real)), "{shown}");
    assert!(shown.contains("keep = [\"x\"]") && shown.contains("# never shown"), "{shown}");
    let wrong = product.file("q.toml", "version = 1\n[files]\nworkspace = \"none\"\n");
    let ran = product.call(["policy", "check", wrong.to_str().unwrap()]);
    assert!(ran.code == 125 && ran.stdout.contains("q.toml:3:13"), "{ran:?}");
}

/// The hints of a run of code, which are the same with `--json` and on standard error.
#[track_caller]
fn hints(product: &Product, args: &[&str]) -> Vec<String> {
    let outcome = product.outcome(args);
    let hints: Vec<String> =
        outcome["hints"].as_array().unwrap().iter().map(|hint| Value::as_str(hint).unwrap().into()).collect();
    let said = product.run(args).stderr;
    for hint in &hints {
        assert!(said.contains(&format!("hint: {hint}")), "{hint}: {said}");
    }
    hints
}

#[test]
fn a_script_that_misses_its_neighbours_is_told_of_the_workspace() {
    needs_root!();
    let product = product();
    product.file("helper.py", "");
    product.file("data.csv", "");
    let folder = product.folder().to_str().unwrap().to_owned();
    for code in ["import helper", "open('data.csv')"] {
        let job = product.file("job.py", code);
        let found = hints(&product, &[job.to_str().unwrap()]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("only \"job.py\" is inside"), "{found:?}");
        assert!(found[0].ends_with(&format!("--workspace {folder}")), "{found:?}");
    }
    let job = product.file("job.py", "open('data.json')");
    assert_eq!(hints(&product, &[job.to_str().unwrap()]), [""; 0], "nothing of that name is there");
}

#[test]
fn what_may_not_be_reached_and_a_read_only_place_are_explained() {
    needs_root!();
    let product = product();
    let network = "import urllib.request as r; r.urlopen('http://example.test', timeout=9)";
    let found = hints(&product, &["-c", network]);
    assert!(found.len() == 1 && found[0].contains("--allow http://example.test"), "{found:?}");
    let found = hints(&product, &["-c", "open('/usr/x', 'w')"]);
    assert!(found.len() == 1 && found[0].contains("read-only"), "{found:?}");
}

#[test]
fn a_module_of_ones_own_python_is_told_from_the_sandboxs() {
    needs_root!();
    let product = product();
    let venv = product.folder().join("venv");
    fs::create_dir(&venv).unwrap();
    fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    fs::create_dir_all(venv.join("lib/python3.12/site-packages/no_such_module")).unwrap();
    let mut command = product.command(["run", "--profile", "internal", "-c", "import no_such_module"]);
    command.env("VIRTUAL_ENV", &venv);
    let ran = finish(command).exits(1);
    assert!(ran.stderr.contains("this ran /usr/bin/python3") && ran.stderr.contains("--venv"), "{ran:?}");
}

#[test]
fn an_option_after_the_script_is_explained_where_the_run_is_refused() {
    let product = product();
    let script = product.file("x.py", "");
    let ran = finish(product.command(["run", script.to_str().unwrap(), "--profile", "internal"]));
    if ran.code != 125 {
        cofferdam_testkit::skip!("untrusted runs here");
    }
    assert!(ran.stderr.contains("hint: --profile stands after the script"), "{ran:?}");
    let ran = finish(product.command(["run", script.to_str().unwrap(), "--own"]));
    assert!(!ran.stderr.contains("hint: "), "{ran:?}");
}

#[test]
fn a_command_of_an_environment_that_is_not_inside_asks_for_it() {
    needs_root!();
    let (product, workspace) = with_workspace();
    let venv = std::path::Path::new(&workspace).join(".venv");
    fs::create_dir_all(venv.join("bin")).unwrap();
    fs::write(venv.join("pyvenv.cfg"), "home = /opt/none/bin\n").unwrap();
    symlink("/opt/none/bin/python3", venv.join("bin/python")).unwrap();
    let ran = product.run(&["--workspace", &workspace, "--", ".venv/bin/python", "a.py"]).exits(127);
    assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("--venv"), "{ran:?}");
}

#[test]
fn a_program_that_succeeds_or_is_to_be_quiet_gets_no_advice() {
    needs_root!();
    let product = product();
    let text = "import sys; print('Network is unreachable', file=sys.stderr); sys.exit(int(sys.argv[1]))";
    let line = "Network is unreachable\n";
    assert_eq!(product.run(&["-c", text, "0"]).exits(0).stderr, line);
    assert_eq!(product.run(&["--quiet", "-c", text, "3"]).exits(3).stderr, line);
    let ran = product.run(&["-c", text, "3"]).exits(3);
    assert!(ran.stderr.contains("exit 3") && ran.stderr.contains("hint: "), "the same with advice: {ran:?}");
}

#[test]
fn a_command_that_only_the_host_has_is_named() {
    needs_root!();
    let product = product();
    let tool = product.file("only-here", "#!/bin/sh\n");
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = product.command(["run", "--profile", "internal", "--", "only-here"]);
    command.env("PATH", product.folder());
    let ran = finish(command).exits(127);
    assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("only-here"), "{ran:?}");
}
