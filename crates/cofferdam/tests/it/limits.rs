//! Each limit is reached by a program that would go on, and named in the Outcome.

use std::time::Duration;

use cofferdam_testkit::host::{eventually, processes_with};
use serde_json::json;

use crate::{needs_root, product};

/// Skips a test that needs a disk larger than memory.
macro_rules! needs_loop_devices {
    () => {
        let has_tool = || std::process::Command::new("mkfs.ext4").arg("-V").output().is_ok();
        if !std::path::Path::new("/dev/loop-control").exists() || !has_tool() {
            cofferdam_testkit::skip!("no loop devices, or no mkfs.ext4");
        }
    };
}

#[test]
fn at_the_deadline_everything_is_killed_and_what_was_said_is_kept() {
    needs_root!();
    let product = product();
    let script = "sleep 301.7 & setsid sleep 301.7 & echo started; wait";
    let ran = product.run(&["--timeout", "2s", "--", "sh", "-c", script]).exits(124);
    assert_eq!(ran.stdout, "started\n");
    assert!(ran.took < Duration::from_secs(3), "{ran:?}");
    assert_eq!(processes_with("sleep 301.7"), [] as [i32; 0]);
    assert!(ran.stderr.contains("timed out"), "an exit code alone doesn't say it: {ran:?}");
}

#[test]
fn a_program_that_ignores_every_signal_dies_at_the_deadline() {
    needs_root!();
    let product = product();
    for script in
        ["trap '' TERM INT HUP; while :; do :; done", "kill -STOP $$", "exec >&- 2>&- <&-; sleep 302.1"]
    {
        let outcome = product.outcome(&["--timeout", "500ms", "--", "sh", "-c", script]);
        assert_eq!(outcome["end"], "timed_out", "{script}");
        assert_eq!(outcome["exit_code"], 124);
        assert_eq!(outcome["ran"], "yes");
        assert!(outcome["limits_hit"].as_array().unwrap().contains(&json!("timeout")));
    }
    assert_eq!(processes_with("sleep 302.1"), [] as [i32; 0]);
}

#[test]
fn a_program_that_starves_process_one_dies_at_the_deadline_too() {
    needs_root!();
    let starve = "import os, ctypes, time
libc = ctypes.CDLL(None)
libc.sched_setscheduler(1, 5, ctypes.byref(ctypes.c_int(0)))  # SCHED_IDLE
libc.setpriority(2, os.getuid(), 19)
for _ in range(200):
    if os.fork() == 0:
        while True: pass
while True: pass
";
    let ran = product().run(&["--timeout", "1s", "--cpus", "0.5", "-c", starve]).exits(124);
    assert!(ran.took < Duration::from_secs(3), "{ran:?}");
}

#[test]
fn with_grace_a_program_is_asked_to_end_before_it_is_killed() {
    needs_root!();
    let script = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.02; done";
    let ran = product().run(&["--timeout", "500ms", "--grace", "5s", "--", "sh", "-c", script]).exits(124);
    assert_eq!(ran.stdout, "asked\n");
    assert!(ran.took < Duration::from_secs(4), "it doesn't wait for the grace to pass: {ran:?}");
}

#[test]
fn memory_beyond_the_limit_ends_the_whole_sandbox() {
    needs_root!();
    let product = product();
    for command in [
        vec!["python3", "-c", "x = bytearray(10**9)"],
        vec!["sh", "-c", "python3 -c 'x = bytearray(10**9)'; sleep 5; echo survived"],
        vec!["sh", "-c", "head -c 200000000 /dev/zero > /dev/shm/x; sleep 5; echo survived"],
    ] {
        let mut args = vec!["--memory", "64MiB", "--disk", "64MiB", "--"];
        args.extend(&command);
        let outcome = product.outcome(&args);
        assert_eq!(outcome["end"], "out_of_memory", "{command:?}: {outcome}");
        assert_eq!(outcome["exit_code"], 137);
        assert!(outcome["limits_hit"].as_array().unwrap().contains(&json!("memory")));
        assert_eq!(outcome["stdout"]["text"], "", "{command:?}");
        assert!(outcome["usage"]["memory_peak"].as_u64().unwrap() <= 64 << 20);
    }
}

#[test]
fn a_kill_is_not_called_a_lack_of_memory() {
    needs_root!();
    let outcome = product().outcome(&["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!((&outcome["end"], &outcome["signal"]), (&json!("signalled"), &json!(9)));
    assert_eq!(outcome["exit_code"], 137);
    assert_eq!(outcome["limits_hit"], json!([]));
}

#[test]
fn a_fork_bomb_stays_within_its_processes() {
    needs_root!();
    let product = product();
    let bomb = "import os\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            os.read(os.pipe()[0], 1)\n        n += 1\nexcept OSError as error:\n    print(n, error.errno)\n";
    let outcome = product.outcome(&["--pids", "20", "-c", bomb]);
    assert_eq!(outcome["stdout"]["text"], "19 11\n", "{outcome}"); // the program itself is one; EAGAIN is 11
    assert_eq!(outcome["limits_hit"], json!(["pids"]));
    assert_eq!(outcome["left"]["processes"], 19);
    assert_eq!(outcome["usage"]["processes_peak"], 21);
}

#[test]
fn threads_count_as_processes() {
    needs_root!();
    let code = "import threading, time\nn = 0\ntry:\n    while n < 100:\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n        n += 1\nexcept RuntimeError:\n    print(n)\n";
    let outcome = product().outcome(&["--pids", "10", "-c", code]);
    assert_eq!(outcome["stdout"]["text"], "9\n", "{outcome}");
}

#[test]
fn the_disk_quota_holds_for_all_writable_places_together() {
    needs_root!();
    let script = "for place in /workspace /tmp /home/user /dev/shm /var/tmp; do head -c 4500000 /dev/zero > $place/x || exit 9; done";
    let outcome = product().outcome(&["--disk", "16MiB", "--", "sh", "-c", script]);
    assert_eq!(outcome["exit_code"], 9, "{outcome}");
    assert!(outcome["stderr"]["text"].as_str().unwrap().contains("No space left"));
    assert_eq!(outcome["limits_hit"], json!(["disk"]));
    let told = product().run(&["--disk", "1MiB", "--", "sh", "-c", "head -c 2000000 /dev/zero > x"]);
    assert!(told.stderr.contains("--disk"), "a full disk is said without a terminal too: {told:?}");
    let fits = product().outcome(&["--disk", "16MiB", "--", "sh", "-c", "head -c 16000000 /dev/zero > x"]);
    assert_eq!(fits["exit_code"], 0, "{fits}");
}

#[test]
fn a_disk_beyond_memory_holds_what_was_granted_and_leaves_nothing() {
    needs_root!();
    needs_loop_devices!();
    let product = product();
    let fill = "import os
wrote = 0
try:
    with open('/tmp/a', 'wb', buffering=0) as file:
        while wrote < 400 << 20: wrote += file.write(bytes(1 << 20))
except OSError as error: print(error.strerror)
print(80 << 20 <= wrote <= 84 << 20 or wrote, os.statvfs('/workspace').f_bavail < 256)
os.unlink('/tmp/a'); open('/dev/shm/x', 'wb').write(bytes(1 << 20)); os.makedirs('a/b')";
    let outcome = product.outcome(&["--memory", "64MiB", "--disk", "80MiB", "--files", "1000", "-c", fill]);
    assert_eq!(outcome["stdout"]["text"], "No space left on device\nTrue True\n", "{outcome}");
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)), "{outcome}");
    let many = "n = 0\ntry:\n    while True: open(f'f{n}', 'w').close(); n += 1\nexcept OSError as e: print(1000 <= n < 1200, e.errno)";
    let outcome = product.outcome(&["--memory", "64MiB", "--disk", "80MiB", "--files", "1000", "-c", many]);
    assert_eq!(outcome["stdout"]["text"], "True 28\n", "{outcome}");
    let full =
        product.outcome(&["--memory", "64MiB", "--disk", "80MiB", "--", "sh", "-c", "cat /dev/zero > x"]);
    assert_eq!(full["limits_hit"], json!(["disk"]), "{full}");
    let mut child = cofferdam_testkit::product::start(&mut product.command([
        "run",
        "--profile",
        "internal",
        "--memory",
        "64MiB",
        "--disk",
        "80MiB",
        "--",
        "sleep",
        "306.1",
    ]));
    assert!(eventually(Duration::from_secs(10), || !processes_with("sleep 306.1").is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
    let devices = || {
        std::fs::read_dir("/sys/block")
            .unwrap()
            .flatten()
            .filter(|device| {
                let file =
                    std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
                file.contains(product.state().to_str().unwrap())
            })
            .count()
    };
    assert!(eventually(Duration::from_secs(10), || devices() == 0), "a device is left");
    assert_eq!(std::fs::read_dir(product.state().join("disks")).unwrap().count(), 0);
}

#[test]
fn a_disk_that_the_host_has_no_room_for_is_refused() {
    needs_root!();
    needs_loop_devices!();
    let ran = product().run(&["--disk", "900TiB", "--", "true"]).exits(125);
    assert!(ran.stderr.contains("bytes free"), "{ran:?}");
}

#[test]
fn a_file_that_was_deleted_and_is_open_still_counts() {
    needs_root!();
    let code = "import os\nf = open('x', 'wb'); os.unlink('x')\ntry:\n    os.posix_fallocate(f.fileno(), 0, 32 << 20)\nexcept OSError as e:\n    print(e.errno)";
    let outcome = product().outcome(&["--disk", "16MiB", "-c", code]);
    assert_eq!(outcome["stdout"]["text"], "28\n", "{outcome}"); // ENOSPC
}

#[test]
fn the_number_of_files_is_bounded() {
    needs_root!();
    let code = "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'w').close(); n += 1\nexcept OSError as e:\n    print(n, e.errno)";
    let outcome = product().outcome(&["--files", "500", "-c", code]);
    let text = outcome["stdout"]["text"].as_str().unwrap();
    let (count, errno) = text.trim().split_once(' ').unwrap();
    let count: u32 = count.parse().unwrap();
    assert_eq!(count, 500);
    assert_eq!(errno, "28");
    assert_eq!(outcome["limits_hit"], json!(["files"]));
}

#[test]
fn the_output_limit_ends_the_run_after_exactly_so_many_bytes() {
    needs_root!();
    let ran = product().run(&["--output-limit", "1MiB", "--", "yes"]).exits(153);
    assert_eq!(ran.stdout.len(), 1 << 20);
}

#[test]
fn every_way_to_count_the_cores_agrees_with_the_limit() {
    needs_root!();
    let product = product();
    let host = std::thread::available_parallelism().unwrap().get();
    for (cpus, seen) in [("1", 1), ("0.5", 1), ("1.5", 2.min(host)), ("2", 2.min(host))] {
        let mut script =
            "nproc; python3 -c 'import os; print(os.cpu_count()); print(len(os.sched_getaffinity(0)))'"
                .to_owned();
        script +=
            "; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat; getconf _NPROCESSORS_ONLN";
        if std::path::Path::new("/usr/local/bin/node").exists()
            || std::path::Path::new("/usr/bin/node").exists()
        {
            script +=
                "; node -p 'require(\"os\").cpus().length'; node -p 'require(\"os\").availableParallelism()'";
        }
        let ran = product.run(&["--cpus", cpus, "--", "sh", "-c", &script]).exits(0);
        assert!(ran.stdout.lines().all(|line| line == seen.to_string()), "--cpus {cpus}: {ran:?}");
    }
}

#[test]
fn processor_time_is_throttled_to_the_share() {
    needs_root!();
    let busy = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass";
    let outcome = product().outcome(&["--cpus", "0.2", "-c", busy]);
    let used = outcome["usage"]["cpu_ms"].as_u64().unwrap();
    // A fifth of a second, one period of 20 ms over, and Python's own start.
    assert!((100..450).contains(&used), "{outcome}");
}

#[test]
fn one_descriptor_too_many_is_refused_inside() {
    needs_root!();
    let code = "import os\nn = 0\ntry:\n    while True:\n        os.dup(0); n += 1\nexcept OSError as e:\n    print(n < 1024, e.errno)";
    assert_eq!(product().run(&["-c", code]).exits(0).stdout, "True 24\n");
}

#[test]
fn what_lies_in_the_buffers_of_sockets_is_bounded() {
    needs_root!();
    let fill = "import socket
server = socket.create_server(('127.0.0.1', 0), backlog=200)
kept, queued = [], 0
for _ in range(200):
    client = socket.create_connection(server.getsockname())
    kept += [client, server.accept()[0]]
    client.setblocking(False)
    try:
        while True:
            queued += client.send(bytes(1 << 20))
    except BlockingIOError:
        pass
print(queued >> 20)
";
    let outcome = product().outcome(&["--memory", "64MiB", "-c", fill]);
    if outcome["end"] == "exited" {
        let queued: u64 = outcome["stdout"]["text"].as_str().unwrap().trim().parse().unwrap();
        assert!(queued < 64, "{outcome}");
    } else {
        assert_eq!(outcome["end"], "out_of_memory", "{outcome}");
    }
}
