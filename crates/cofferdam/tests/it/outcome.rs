//! The Outcome: the same truth in JSON as in the exit code, and output that is bounded and counted.

use std::time::Duration;

use cofferdam_testkit::host::eventually;
use cofferdam_testkit::product::{start, wait};
use serde_json::{Value, json};

use crate::{needs_root, product};

#[test]
fn an_outcome_says_what_happened_and_what_was_enforced() {
    needs_root!();
    let outcome = product().outcome(&[
        "--label",
        "ticket=7",
        "-c",
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    ]);
    assert_eq!(outcome["version"], 1);
    assert_eq!(
        (&outcome["end"], &outcome["exit_code"], &outcome["ran"]),
        (&json!("exited"), &json!(3), &json!("yes"))
    );
    assert_eq!((&outcome["profile"], &outcome["backend"]), (&json!("internal"), &json!("container")));
    assert_eq!(outcome["label"], json!({"ticket": "7"}));
    assert_eq!(outcome["stdout"], json!({"text": "out\n", "encoding": "utf-8", "bytes": 4, "dropped": 0}));
    assert_eq!(outcome["stderr"]["text"], "err\n");
    assert_eq!(
        outcome["enforced"],
        json!([
            "files", "network", "memory", "cpu", "pids", "disk", "timeout", "output", "syscalls", "landlock"
        ])
    );
    assert_eq!(outcome["gaps"], json!([]));
    assert!(outcome["time_ms"]["total"].as_f64().unwrap() >= outcome["time_ms"]["run"].as_f64().unwrap());
    assert!(outcome["usage"]["memory_peak"].as_u64().unwrap() > 1_000_000);
    assert_eq!(outcome["policy_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(outcome["audit"]["first"], 1);
}

#[test]
fn live_output_and_an_outcome_can_be_had_together() {
    needs_root!();
    let product = product();
    let path = product.folder().join("o.json");
    let ran = product.run(&["--outcome", path.to_str().unwrap(), "--", "echo", "live"]).exits(0);
    assert_eq!(ran.stdout, "live\n");
    let outcome: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(outcome["stdout"], json!({"bytes": 5, "dropped": 0}));
    let piped = product.run(&["--outcome", "/dev/fd/2", "--", "echo", "live"]).exits(0);
    let outcome: Value = serde_json::from_str(&piped.stderr).unwrap();
    assert_eq!(outcome["exit_code"], 0);
}

#[test]
fn under_json_standard_input_is_empty_unless_asked_for() {
    needs_root!();
    let product = product();
    let read = |args: &[&str]| product.run_with_input(args, b"data").json()["stdout"]["text"].clone();
    assert_eq!(read(&["--json", "--", "cat"]), "");
    assert_eq!(read(&["--json", "--stdin", "--", "cat"]), "data");
}

#[test]
fn output_that_is_no_text_arrives_as_base64() {
    needs_root!();
    let outcome = product().outcome(&["--", "printf", "\\377\\000x"]);
    assert_eq!(outcome["stdout"], json!({"text": "/wB4", "encoding": "base64", "bytes": 3, "dropped": 0}));
}

#[test]
fn text_that_would_drive_a_terminal_or_break_json_stays_data() {
    needs_root!();
    let text = "\u{1b}]52;c;eA==\u{7}\r\u{2028}\u{202e}\"}\n{\"version\":1}\n![x](https://evil.test/a.png)";
    let product = product();
    let script = product.file(
        "t.py",
        format!("print({text:?}, end='')")
            .replace("\\u{1b}", "\\x1b")
            .replace("\\u{7}", "\\x07")
            .replace("\\u{2028}", "\\u2028")
            .replace("\\u{202e}", "\\u202e"),
    );
    let ran = product.call(["run", "--profile", "internal", "--json", script.to_str().unwrap()]);
    assert_eq!(ran.stdout.lines().count(), 1, "one object, one line: {ran:?}");
    assert_eq!(ran.json()["stdout"]["text"], text);
}

/// 10 GB of output: a thousand times what is kept.
const FLOOD: u64 = 10_000_000_000;

#[test]
fn a_flood_is_counted_to_the_byte_within_20_mib() {
    needs_root!();
    let product = product();
    let script = format!("yes | head -c {FLOOD}; yes e | head -c 20000000 >&2");
    let mut command = product.command(["run", "--profile", "internal", "--json", "--", "sh", "-c", &script]);
    let child = start(&mut command);
    let status = format!("/proc/{}/status", child.id());
    let (send, receive) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        while receive.try_recv().is_err() {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let kib = text
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
            peak = peak.max(kib.unwrap_or(0u64));
            std::thread::sleep(Duration::from_millis(20));
        }
        peak
    });
    let ran = wait(child, std::time::Instant::now());
    send.send(()).unwrap();
    let peak_kib = watch.join().unwrap();
    let outcome = ran.json();
    assert_eq!(outcome["end"], "exited", "{}", &ran.stderr);
    assert_eq!(outcome["stdout"]["bytes"], FLOOD);
    let kept = outcome["stdout"]["text"].as_str().unwrap().len() as u64;
    assert_eq!(kept, 10 << 20, "the first and the last 5 MiB");
    assert_eq!(outcome["stdout"]["dropped"], FLOOD - kept);
    assert_eq!(outcome["stderr"]["bytes"], 20_000_000);
    assert_eq!(outcome["limits_hit"], json!(["output"]));
    assert!(peak_kib > 1000 && peak_kib < 20 << 10, "peak resident set {peak_kib} KiB");
}

#[test]
fn a_character_that_is_cut_between_two_writes_arrives_whole() {
    needs_root!();
    let code = "import sys, time\nfor byte in 'h\u{e9}\u{1f980}llo'.encode():\n    sys.stdout.buffer.write(bytes([byte])); sys.stdout.buffer.flush(); time.sleep(0.01)";
    assert_eq!(product().outcome(&["-c", code])["stdout"]["text"], "h\u{e9}\u{1f980}llo");
}

#[test]
fn processes_that_were_left_are_counted_and_gone() {
    needs_root!();
    let outcome =
        product().outcome(&["--", "sh", "-c", "setsid sleep 305.5 & setsid sleep 305.5 & echo done"]);
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)));
    assert_eq!(outcome["left"]["processes"], 2);
    assert!(eventually(Duration::from_secs(1), || cofferdam_testkit::host::processes_with("sleep 305.5")
        .is_empty()));
}

#[test]
fn the_processor_time_of_what_was_killed_counts_too() {
    needs_root!();
    let product = product();
    let spin = "import os\nif os.fork() == 0:\n  while True: pass\nwhile True: pass";
    let outcome = product.run(&["--json", "--timeout", "1s", "-c", spin]).json();
    assert_eq!(outcome["end"], "timed_out");
    let (cpu, run) =
        (outcome["usage"]["cpu_ms"].as_f64().unwrap(), outcome["time_ms"]["run"].as_f64().unwrap());
    // On a busy machine it gets less than its core.
    assert!(cpu >= 100.0 && cpu < run * 2.0 + 200.0, "{outcome}");
}
