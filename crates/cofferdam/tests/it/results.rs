//! `--out` and `--diff`: places that can be used and those that refuse before anything starts.

use std::fs;
use std::io::Read;
use std::time::Instant;

use cofferdam_testkit::product::{start, wait};
use serde_json::Value;

use crate::{needs_root, ordinary, product};

#[test]
fn a_run_leaves_a_result_where_it_was_asked_for() {
    needs_root!();
    let product = product();
    let (out, diff) = (product.folder().join("out"), product.folder().join("x.diff"));
    let places = ["--out", out.to_str().unwrap(), "--diff", diff.to_str().unwrap()];
    for code in ["exit 0", "exit 3"] {
        let ran = product.run(&[&places[..], &["--", "sh", "-c", code]].concat());
        assert_eq!(ran.code.to_string(), code.replace("exit ", ""), "{ran:?}");
        let changes: Value = serde_json::from_slice(&fs::read(out.join("changes.json")).unwrap()).unwrap();
        assert_eq!(changes["version"], 1);
        assert!(out.join("files").is_dir() && diff.is_file());
    }
}

#[test]
fn a_place_that_cannot_be_used_refuses_before_anything_starts() {
    needs_root!();
    let product = product();
    let out = product.folder().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("precious"), "1").unwrap();
    let ran = product.run(&["--out", out.to_str().unwrap(), "--", "true"]).exits(125);
    assert!(ran.stderr.contains("earlier result"), "{ran:?}");
    assert!(out.join("precious").exists());
    let missing = product.folder().join("missing/x.diff");
    let ran = product.run(&["--diff", missing.to_str().unwrap(), "--", "true"]).exits(125);
    assert!(ran.stderr.contains("mkdir"), "{ran:?}");
    assert!(!product.state().join("audit/log.ndjson").exists(), "nothing was recorded, since nothing began");
}

#[test]
fn a_run_that_is_refused_leaves_no_folder() {
    let product = product();
    let out = product.folder().join("out");
    let ran = product.call(["run", "--out", out.to_str().unwrap(), "--", "true"]).exits(125);
    assert!(!out.exists(), "{ran:?}");
}

#[test]
fn a_killed_run_leaves_no_file_beside_its_diff() {
    let product = ordinary();
    let folder = product.folder().join("results");
    fs::create_dir(&folder).unwrap();
    product.give(&folder);
    let diff = folder.join("x.diff");
    let mut command = product.command(["run", "--profile", "internal", "--diff"]);
    command.arg(&diff).args(product.accepting()).args(["--", "sh", "-c", "echo ready; sleep 312.4"]);
    let mut child = start(&mut command);
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    child.kill().unwrap();
    wait(child, Instant::now());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}
