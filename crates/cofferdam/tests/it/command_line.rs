//! Help, completions, schemas, policy commands: what a newcomer and a script meet first.

use cofferdam_testkit::product::finish;
use serde_json::{Value, json};

use crate::{needs_root, product};

#[test]
fn help_shows_the_four_forms_with_examples_and_the_exit_codes() {
    let ran = product().call(["run", "--help"]).exits(0);
    for word in [
        "FILE [ARGS]",
        "-c CODE",
        "run [OPTIONS] - ",
        "-- COMMAND",
        "Examples:",
        "124 timed out",
        "--profile",
    ] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    let top = product().call(["--help"]).exits(0);
    assert!(top.stdout.contains("--profile internal") && top.stdout.contains("doctor"));
    let version = product().call(["--version"]).exits(0);
    assert!(version.stdout.starts_with("cofferdam "));
}

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = product().call(["completions", shell]).exits(0);
        assert!(ran.stdout.contains("accept-gap"), "{shell}");
    }
}

#[test]
fn schemas_are_json_schemas() {
    for what in ["policy", "outcome"] {
        let schema = product().call(["schema", what]).exits(0).json();
        assert!(schema["$schema"].as_str().unwrap().contains("2020-12"), "{what}");
        assert!(schema["properties"]["version"].is_object(), "{what}");
    }
}

#[test]
fn every_key_of_an_outcome_is_in_its_schema() {
    needs_root!();
    let product = product();
    let schema = product.call(["schema", "outcome"]).exits(0).json();
    let outcome = product.outcome(&["--", "true"]);
    let known: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    let said: Vec<_> = outcome.as_object().unwrap().keys().collect();
    assert!(said.iter().all(|key| known.contains(key)), "{said:?}\n{known:?}");
}

#[test]
fn the_policy_that_is_shown_reads_back_as_the_same_policy() {
    let product = product();
    let policy = product
        .file("p.toml", "version = 1\nprofile = \"internal\"\n[limits]\nmemory = \"64MiB\"\ncpus = 0.5\n");
    let shown = product.call(["policy", "show", policy.to_str().unwrap()]).exits(0);
    assert!(shown.stdout.contains("64MiB") && shown.stdout.contains("internal"), "{shown:?}");
    let again = product.file("again.toml", &shown.stdout);
    let twice = product.call(["policy", "show", again.to_str().unwrap()]).exits(0);
    assert_eq!(shown.stdout, twice.stdout);
    let json: Value = product.call(["policy", "show", policy.to_str().unwrap(), "--json"]).exits(0).json();
    assert_eq!(json["profile"], json!("internal"));
}

#[test]
fn the_example_policies_are_right() {
    let product = product();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");
    let mut command = product.command(["policy", "check"]);
    let files: Vec<_> = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 2);
    command.args(&files).env("TZ", "UTC");
    assert_eq!(finish(command).exits(0).stdout.matches("ok: ").count(), files.len());
}

#[test]
fn a_wrong_policy_is_shown_with_its_line_and_a_caret() {
    let product = product();
    let policy = product.file("wrong.toml", "version = 1\n\n[limits]\nmemroy = \"1GiB\"\n");
    let ran = product.call(["policy", "check", policy.to_str().unwrap()]).exits(125);
    for word in ["wrong.toml:4:1", "memroy", "memory"] {
        assert!(ran.stdout.contains(word), "{word}: {ran:?}");
    }
}

#[test]
fn the_greeting_of_the_readme_runs() {
    needs_root!();
    let hello = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.py");
    assert!(product().run(&[hello]).exits(0).stdout.starts_with("Hello from Python 3."));
}

#[test]
fn cargo_run_finds_the_one_program_that_the_readme_means() {
    let cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let default = metadata["workspace_default_members"].as_array().unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let programs: Vec<_> = packages
        .iter()
        .filter(|package| default.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().unwrap())
        .filter(|target| target["kind"][0] == "bin")
        .map(|target| target["name"].as_str().unwrap())
        .collect();
    assert_eq!(programs, ["cofferdam"]);
}
