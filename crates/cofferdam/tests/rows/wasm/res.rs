//! Resources of programs of WebAssembly.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::eventually;
use cofferdam_testkit::product::{start, wait};
use cofferdam_testkit::rows::Row;
use serde_json::{Value, json};

use super::{assembled, module};
use crate::res::{FLOOD, finish_beside, hit, is_counted, lacks, outcome, peak, size, was_logged};
use crate::{Ended, in_wasm};

in_wasm!("RES-02", memory_beyond_the_ceiling_ends_the_program_and_nothing_else);
in_wasm!("RES-03", all_cores_are_not_to_be_had);
in_wasm!("RES-04", bytes_beyond_the_quota_are_refused_and_come_back);
in_wasm!("RES-06", a_flood_of_output_is_counted_and_bounded);
in_wasm!("RES-07", nothing_outlives_its_deadline);

// ---- RES-02 ----

/// Each takes more than 64 MiB in another way.
const MEMORY: [(&str, &str); 5] = [
    ("many small", "x = []\nwhile len(x) < 2000: x.append(bytes(1 << 16) + b'1')"),
    ("one large", "x = bytes(100 << 20)"),
    ("one very large", "x = bytearray(1 << 30)"),
    ("text", "x = 'x' * 1000\nwhile len(x) < 100 << 20: x += x"),
    ("a graph", "x = {}\nfor n in range(3_000_000): x[n] = [(n,)]"),
];

/// Grows by a MiB until it is refused or has a GiB, and writes to each page of it if it is told to.
fn grows(writes: bool) -> Vec<u8> {
    let write = if writes { "(i32.store8 (local.get $at) (i32.const 1))" } else { "" };
    let body = format!(
        r#"(local $at i32) (local $end i32)
        (local.set $at (i32.const 262144))
        (loop $more
            (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
            (local.set $end (i32.add (local.get $at) (i32.const 1048576)))
            (loop $page
                {write}
                (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                (br_if $page (i32.lt_u (local.get $at) (local.get $end))))
            (br_if $more (i32.lt_u (local.get $at) (i32.const 1073741824))))"#
    );
    assembled("", &body)
}

fn memory_beyond_the_ceiling_ends_the_program_and_nothing_else(row: &mut Row) -> Ended {
    let limits = ["--memory", "64MiB", "--disk", "64MiB", "--timeout", "60s"];
    let (aborted, _) = outcome(row, &["-c", "import os; os.abort()"]);
    assert_ne!(aborted["end"], "out_of_memory", "{aborted}");
    assert_eq!(aborted["limits_hit"], json!([]), "{aborted}");
    let waits = ["-c", "import sys; sys.stdin.readline(); print('alive')"];
    let mut neighbour = start(row.command(&waits).stdin(Stdio::piped()));
    for (name, code) in MEMORY {
        let (got, _) = outcome(row, &[&limits[..], &["-c", &format!("{code}\nprint('lived')")]].concat());
        ended_for_lack_of_memory(name, &got);
        // More than that is to be had outside.
        let control = finish_beside(row, &["/usr/bin/python3", "-c", &format!("{code}\nprint('lived')")]);
        if control.stdout == "lived\n" {
            row.proved();
        } else {
            row.inconclusive(format!("{name}: outside too"));
        }
    }
    for (name, wasm) in [("growth alone", grows(false)), ("growth that is written", grows(true))] {
        let file = module(row, "grows.wasm", &wasm);
        let (got, _) = outcome(row, &[&limits[..], &[file.to_str().unwrap()]].concat());
        ended_for_lack_of_memory(name, &got);
        let enough = ["--memory", "1100MiB", file.to_str().unwrap()];
        let lived = (!lacking(row)).then(|| outcome(row, &enough).0);
        assert!(lived.is_none_or(|lived| lived["exit_code"] == 0), "the control: {name}");
    }
    // One that asks before it takes goes on without.
    let asks = "try: bytes(100 << 20)\nexcept MemoryError: print('refused')";
    let (asked, _) = outcome(row, &[&limits[..], &["-c", asks]].concat());
    assert_eq!((&asked["end"], &asked["stdout"]["text"]), (&json!("exited"), &json!("refused\n")), "{asked}");
    files_count_too(row);
    neighbour.stdin.take().unwrap().write_all(b"\n").unwrap();
    let lived = wait(neighbour, Instant::now());
    assert_eq!((lived.code, lived.stdout.as_str()), (0, "alive\n"), "{lived:?}");
    Ended::Tested
}

fn lacking(row: &Row) -> bool {
    lacks(row, "memory").is_some()
}

fn ended_for_lack_of_memory(name: &str, got: &Value) {
    assert_eq!((&got["end"], &got["exit_code"]), (&json!("out_of_memory"), &json!(137)), "{name}: {got}");
    assert!(hit(got, "memory") && got["stdout"]["text"] == "", "{name}: {got}");
    let peak = got["usage"]["memory_peak"].as_u64();
    assert!(peak.is_none_or(|peak| peak <= 64 << 20), "{name}: {got}");
}

/// What is written to files is counted with the rest, where there is a cgroup that counts.
fn files_count_too(row: &mut Row) {
    if lacking(row) {
        return row.inconclusive("files: this user has no cgroup that counts them as memory");
    }
    let file = module(row, "both.wasm", &writes_and_grows());
    let file = file.to_str().unwrap();
    let (got, _) = outcome(row, &["--memory", "64MiB", "--disk", "64MiB", file]);
    assert_eq!((&got["end"], hit(&got, "memory")), (&json!("out_of_memory"), true), "{got}");
    let (got, _) = outcome(row, &["--memory", "256MiB", "--disk", "64MiB", file]);
    assert_eq!(got["exit_code"], 0, "the control: {got}");
    row.proved();
}

/// Writes a file of 60 MiB and has 56 MiB of memory besides: each is less than may be had, and both aren't.
fn writes_and_grows() -> Vec<u8> {
    let body = r#"(local $at i32)
        (drop (memory.grow (i32.const 16)))
        (if (call $open (i32.const 5) (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 1) (i64.const 64)
                (i64.const 64) (i32.const 0) (i32.const 0))
            (then unreachable))
        (i32.store (i32.const 16) (i32.const 262144)) (i32.store (i32.const 20) (i32.const 1048576))
        (local.set $at (i32.const 60))
        (loop $more
            (if (call $write (i32.load (i32.const 0)) (i32.const 16) (i32.const 1) (i32.const 24))
                (then unreachable))
            (local.set $at (i32.sub (local.get $at) (i32.const 1)))
            (br_if $more (local.get $at)))
        (if (i32.eq (memory.grow (i32.const 880)) (i32.const -1)) (then unreachable))
        (memory.fill (i32.const 262144) (i32.const 1) (i32.const 58720256))"#;
    assembled("(data (i32.const 64) \"f\")", body)
}

// ---- RES-03 ----

const PRIORITIES: &str = r"
import os
attempt('first in first out', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt('nice', lambda: (os.setpriority(os.PRIO_PROCESS, 0, -20), os.setpriority(os.PRIO_PROCESS, 0, 0)))
attempt('cores', lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
";

fn all_cores_are_not_to_be_had(row: &mut Row) -> Ended {
    row.denies(PRIORITIES);
    let (ended, _) = outcome(row, &["--timeout", "500ms", "-c", "while True: pass"]);
    assert_eq!(ended["end"], "timed_out", "{ended}");
    let run = ended["time_ms"]["run"].as_f64().unwrap();
    assert!(run < 500.0 + 1000.0, "a second late: {run}");
    if let Some(skipped) = lacks(row, "cpu") {
        return skipped;
    }
    let share = |row: &mut Row, cpus: &str| {
        let spins = "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 1.5: pass";
        let (spun, _) = outcome(row, &["--cpus", cpus, "-c", spins]);
        assert_eq!(spun["exit_code"], 0, "{spun}");
        (spun["usage"]["cpu_ms"].as_f64().unwrap(), spun["time_ms"]["run"].as_f64().unwrap())
    };
    let (used, run) = share(row, "0.2");
    assert!(used <= run * 0.2 + 100.0, "{used} ms of {run}");
    let (used, run) = share(row, "1");
    if used > run * 0.33 {
        row.proved();
    } else {
        row.inconclusive(format!("without the ceiling it got {used} ms of {run}: others have the machine"));
    }
    Ended::Tested
}

// ---- RES-04 ----

/// Writes 20 MiB in each place and in each way, and keeps nothing but the last.
const FILL: &str = r"
import os
def write(file):
    for _ in range(20): os.write(file, bytes(1 << 20))
def far(file):
    for at in range(0, 20 << 20, 4096): os.pwrite(file, b'x', at)
for name, act in {'write': write, 'far apart': far}.items():
    for place in places:
        path = places[place] + '/filler'
        for way in ('plain', 'deleted'):
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if way == 'deleted': os.unlink(path)
            attempt(f'{name} {place} {way}', lambda: act(file))
            os.close(file)
            if way != 'deleted': os.unlink(path)
def together():
    for place in places.values():
        with open(place + f'/part{len(place)}', 'wb') as file: file.write(bytes(7 << 20))
attempt('7 MiB in each', together)
";

fn bytes_beyond_the_quota_are_refused_and_come_back(row: &mut Row) -> Ended {
    let places = ["/workspace", "/tmp", "/home/user"];
    let named = |folder: Option<&str>| {
        let pairs = places.map(|place| format!("{place:?}: {:?}", folder.unwrap_or(place)));
        format!("places = {{{}}}\n{FILL}", pairs.join(", "))
    };
    let state = row.product().state();
    let _ = row.run(&row.saying("")).exits(0); // what is made once and kept
    let before = size(&state);
    let probe = named(None);
    let (grown, (inside, outcome)) =
        peak(|| size(&state), || row.inside_with_outcome(&["--disk", "16MiB"], &probe));
    assert!(hit(&outcome, "disk"), "{outcome}");
    assert!(was_logged(row, "limit.hit", "limit=disk"));
    for (name, attempt) in &inside {
        assert!(attempt.detail.contains("51"), "{name}: WASI's ENOSPC: {attempt:?}");
    }
    assert!(grown.saturating_sub(before) <= 16 << 20, "the state folder grew by {}", grown - before);
    assert!(eventually(Duration::from_secs(2), || size(&state) < before + (1 << 20)), "{}", size(&state));
    let again = "open('x', 'wb').write(bytes(16_000_000))";
    let _ = row.run(&["--disk", "16MiB", "-c", again]).exits(0);
    let control = row.outside(&named(Some(".")));
    row.compare(&inside, &control);
    // One line of a batch that fills it leaves the next all of it.
    let fills = json!({"code": "try:\n    open('/tmp/x', 'wb').write(bytes(40 << 20))\nexcept OSError as error: print(error.errno)"});
    let next = json!({"code": again});
    for outcome in row.outcomes(&["--disk", "16MiB"], &[fills.clone(), next.clone(), fills, next]) {
        let said = &outcome["stdout"]["text"];
        assert_eq!(outcome["exit_code"], 0, "{outcome}");
        assert!(said == "" || said == "51\n", "{outcome}");
    }
    Ended::Tested
}

// ---- RES-06 ----

/// Writes bytes of a kind to a stream, 64 KiB at once. All of them come to a number that 64 KiB divide, and the
/// rest in one.
fn writes(stream: u32, bytes: u64) -> String {
    let (pieces, rest) = (bytes / 65536, bytes % 65536);
    format!(
        "(i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 65536))
        (local.set $left (i32.const {pieces}))
        (loop $more
            (drop (call $write (i32.const {stream}) (i32.const 0) (i32.const 1) (i32.const 8)))
            (local.set $left (i32.sub (local.get $left) (i32.const 1)))
            (br_if $more (local.get $left)))
        (i32.store (i32.const 4) (i32.const {rest}))
        (drop (call $write (i32.const {stream}) (i32.const 0) (i32.const 1) (i32.const 8)))"
    )
}

/// Letters, in the page that is written from.
const LETTERS: &str = "(data (i32.const 65536) \"@\")";

fn a_flood_of_output_is_counted_and_bounded(row: &mut Row) -> Ended {
    let fill = "(memory.fill (i32.const 65536) (i32.const 101) (i32.const 65536))";
    let (out, err) = (writes(1, FLOOD.0), writes(2, FLOOD.1));
    let after = "(drop (call $close (i32.const 1))) (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) \
                 (i32.const 8))) (call $exit (i32.const 7))";
    let flood = assembled(LETTERS, &format!("(local $left i32) {fill} {out} {err} {after}"));
    let flood = module(row, "flood.wasm", &flood);
    let _ = row.run(&["--output-limit", "1KiB", flood.to_str().unwrap()]).exits(153); // it is compiled once
    let command = row.command(&["--json", flood.to_str().unwrap()]);
    is_counted(row, command);
    let endless = "(i32.store (i32.const 4) (i32.const 65536))
        (loop $more (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br $more))";
    let endless = module(row, "endless.wasm", &assembled(LETTERS, endless));
    let limited = ["--output-limit", "1MiB", "--timeout", "20s", endless.to_str().unwrap()];
    let ran = row.run(&limited).exits(153);
    assert_eq!(ran.stdout.len(), 1 << 20);
    let ran = row.run(&["--output-limit", "1MiB", "--timeout", "20s", "-c", "while True: print('y' * 99)"]);
    assert_eq!((ran.code, ran.stdout.len()), (153, 1 << 20));
    // The control: a program that says more, and nobody who bounds it.
    let said = finish_beside(row, &["head", "-c", "3000000", "/dev/zero"]);
    assert_eq!(said.stdout.len(), 3_000_000);
    row.proved();
    Ended::Tested
}

// ---- RES-07 ----

/// Each says something and goes on for longer than it may.
const STAYS: [&str; 4] = [
    "print('on', flush=True); import time; time.sleep(3.0702)",
    "print('on', flush=True)\nwhile True: pass",
    "print('on', flush=True); import sys; sys.stdin.read()",
    "print('on', flush=True); import re; re.match('(a*)*b', 'a' * 64)",
];

/// A loop without calls.
const LOOP: &str = "(i32.store (i32.const 4) (i32.const 3)) (i32.store (i32.const 0) (i32.const 64))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (loop $for_ever (br $for_ever))";

fn nothing_outlives_its_deadline(row: &mut Row) -> Ended {
    let loops = module(row, "loop.wasm", &assembled("(data (i32.const 64) \"on\\0a\")", LOOP));
    let scripts = STAYS.iter().map(|code| vec!["-c", code]);
    let all: Vec<_> = scripts.chain([vec![loops.to_str().unwrap()]]).collect();
    for words in all {
        let mut command = row.command(&[&["--json", "--stdin", "--timeout", "1s"], &words[..]].concat());
        let mut child = start(command.stdin(Stdio::piped()));
        let held = child.stdin.take(); // nothing comes, and no end
        let ran = wait(child, Instant::now());
        drop(held);
        row.heard(&ran);
        let ended = ran.json();
        assert_eq!((&ended["end"], &ended["exit_code"]), (&json!("timed_out"), &json!(124)), "{words:?}");
        assert!(hit(&ended, "timeout") && was_logged(row, "limit.hit", "limit=timeout"), "{words:?}");
        assert_eq!(ended["stdout"]["text"], "on\n", "{words:?}");
        let time = |part: &str| ended["time_ms"][part].as_f64().unwrap();
        let run = time("open") + time("run"); // the deadline is one for both
        assert!((900.0..2000.0).contains(&run), "{words:?} ran for {run} ms");
    }
    // The controls are still there when they have had longer than any of them.
    let mut outside: Vec<_> = STAYS
        .iter()
        .map(|code| start(row.product().beside("/usr/bin/python3", ["-c", code]).stdin(Stdio::piped())))
        .collect();
    std::thread::sleep(Duration::from_millis(2100));
    let over = outside.iter_mut().filter_map(|child| child.try_wait().unwrap()).count();
    if over == 0 {
        row.proved();
    } else {
        row.inconclusive(format!("{over} of those outside came to their end"));
    }
    Ended::Tested
}
