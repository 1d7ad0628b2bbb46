//! The audit log: every run is in it, and nobody can change it unseen.

use serde_json::Value;

use crate::{needs_root, product};

#[test]
fn a_run_can_be_read_back_event_by_event() {
    needs_root!();
    let product = product();
    let outcome = product.outcome(&["--label", "a=b", "--", "true"]);
    let shown = product.call(["audit", "show", "last", "--json"]).exits(0);
    let events: Vec<Value> = shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["task.start", "policy.loaded", "sandbox.opened", "sandbox.closed", "task.end"]);
    assert!(events.iter().all(|event| event["run"] == outcome["run"]));
    assert_eq!(outcome["audit"]["first"], events[0]["seq"]);
    assert_eq!(outcome["audit"]["last"], events[4]["seq"]);
    assert_eq!(outcome["audit"]["head"], events[4]["hash"]);
    assert!(
        events
            .iter()
            .all(|event| event["policy_sha256"].is_null()
                || event["policy_sha256"] == outcome["policy_sha256"])
    );
    let person = product.call(["audit", "show", outcome["run"].as_str().unwrap()]).exits(0);
    assert!(person.stdout.contains("task.start") && person.stdout.contains("container"), "{person:?}");
}

#[test]
fn a_refused_run_is_in_the_log_with_every_backend_that_refused() {
    let product = product();
    let _ = product.call(["run", "--", "true"]).exits(125);
    let shown = product.call(["audit", "show", "last"]).exits(0);
    assert_eq!(shown.stdout.matches("backend.refused").count(), 4, "{shown:?}");
    assert!(shown.stdout.contains("task.end"), "{shown:?}");
}

#[test]
fn arguments_are_not_in_the_log() {
    needs_root!();
    let product = product();
    let _ = product.run(&["--", "echo", "hunter2"]).exits(0);
    let log = std::fs::read_to_string(product.state().join("audit/log.ndjson")).unwrap();
    assert!(log.contains("echo") && !log.contains("hunter2"));
}

#[test]
fn edits_reordering_and_a_cut_tail_are_found() {
    let product = product();
    for _ in 0..3 {
        let _ = product.call(["run", "--", "true"]).exits(125);
    }
    let path = product.state().join("audit/log.ndjson");
    let whole = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = whole.lines().collect();
    let verify = || product.call(["audit", "verify"]);
    assert_eq!(verify().exits(0).stdout.lines().count(), 1);
    let swapped: Vec<_> = [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat();
    for (what, text) in [
        ("an edit", whole.replacen("\"wasm\"", "\"kata\"", 1)),
        ("reordering", swapped.join("\n") + "\n"),
        ("a missing line", [&lines[..2], &lines[3..]].concat().join("\n") + "\n"),
        ("a cut tail", lines[..lines.len() - 2].join("\n") + "\n"),
        ("a foreign line", whole.clone() + "{}\n"),
    ] {
        std::fs::write(&path, text).unwrap();
        let ran = verify();
        assert_eq!(ran.code, 125, "{what}: {ran:?}");
        assert!(!ran.stdout.is_empty(), "{what}: {ran:?}");
    }
    std::fs::write(&path, lines[..lines.len() - 2].join("\n") + "\n").unwrap();
    let refused = product.call(["run", "--", "true"]).exits(125);
    assert!(refused.stderr.contains("cut"), "nothing starts on a log that was cut: {refused:?}");
    std::fs::write(&path, whole).unwrap();
    assert_eq!(verify().code, 0);
}

#[test]
fn hostile_labels_stay_one_line_and_inert() {
    let product = product();
    let label = "x=\u{1b}[2J\n{\"seq\":1}\u{2028}\u{202e}";
    let _ = product.call(["run", "--label", label, "--", "true"]).exits(125);
    let log = std::fs::read_to_string(product.state().join("audit/log.ndjson")).unwrap();
    assert!(log.is_ascii());
    assert_eq!(log.lines().filter(|line| line.contains("task.start")).count(), 1);
    let shown = product.call(["audit", "show", "last"]).exits(0);
    assert!(!shown.stdout.contains('\u{1b}') && !shown.stdout.contains('\u{202e}'), "{shown:?}");
}
