//! Nothing is left behind: not by runs in a row, not by runs that were killed.

use std::time::{Duration, Instant};

use cofferdam_testkit::host::{Snapshot, eventually, processes_with};
use cofferdam_testkit::product::{start, wait};

use crate::{alone, needs_root};

#[test]
fn two_hundred_runs_leave_the_host_as_it_was() {
    needs_root!();
    let product = alone();
    let _ = product.run(&["--", "true"]).exits(0); // what is made once and kept: the locks' folder
    let before = Snapshot::take();
    for number in 0..200 {
        let (args, code): (&[&str], i32) = match number % 4 {
            0 => (&["--", "true"], 0),
            1 => (&["--", "sh", "-c", "setsid sleep 306.6 & exit 3"], 3),
            2 => (&["--timeout", "50ms", "--", "sleep", "306.6"], 124),
            _ => (&["--", "no-such-program"], 127),
        };
        let _ = product.run(args).exits(code);
    }
    nothing_new_since(&before);
    assert_eq!(processes_with("sleep 306.6"), [] as [i32; 0]);
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
}

#[test]
fn after_a_kill_amid_twenty_runs_one_more_command_leaves_nothing() {
    needs_root!();
    let product = alone();
    let _ = product.run(&["--", "true"]).exits(0);
    let before = Snapshot::take();
    let mut children = vec![];
    for number in 0..20 {
        // Some are killed while they start, some while they run.
        if number == 15 {
            assert!(eventually(Duration::from_secs(20), || processes_with("sleep 307.7").len() >= 20));
        }
        let args = ["run", "--profile", "internal", "--", "sh", "-c", "setsid sleep 307.7 & sleep 307.7"];
        children.push(start(&mut product.command(args)));
    }
    for child in &mut children {
        child.kill().unwrap();
    }
    for child in children {
        wait(child, Instant::now());
    }
    let gone = eventually(Duration::from_secs(10), || processes_with("sleep 307.7").is_empty());
    assert!(gone, "the kernel kills what was inside: {:?}", processes_with("sleep 307.7"));
    assert!(Snapshot::take().cgroups.len() > before.cgroups.len(), "a kill leaves something to sweep");
    let swept = product.call(["gc"]).exits(0);
    assert!(swept.stdout.contains("removed what r_"), "{swept:?}");
    nothing_new_since(&before);
    assert_eq!(names_in(&product.state().join("runs")), [] as [String; 0]);
    assert_eq!(product.call(["gc"]).exits(0).stdout, "nothing was left\n");
    let _ = product.call(["audit", "verify"]).exits(0);
}

#[test]
fn any_next_run_sweeps_and_living_runs_are_left_alone() {
    needs_root!();
    let product = alone();
    let before = Snapshot::take();
    let script = "echo ready; read line; echo alive";
    let mut command = product.command(["run", "--profile", "internal", "--", "sh", "-c", script]);
    let mut living = start(command.stdin(std::process::Stdio::piped()));
    let mut dying = start(&mut product.command(["run", "--profile", "internal", "--", "sleep", "308.8"]));
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 308.8").len() >= 2));
    dying.kill().unwrap();
    wait(dying, Instant::now());
    let _ = product.run(&["--", "true"]).exits(0);
    assert_eq!(Snapshot::take().cgroups.len(), before.cgroups.len() + 3, "the living run's own");
    use std::io::Write;
    living.stdin.take().unwrap().write_all(b"x\n").unwrap();
    let ran = wait(living, Instant::now());
    assert_eq!((ran.stdout.as_str(), ran.code), ("ready\nalive\n", 0), "{ran:?}");
}

fn names_in(folder: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Waits a little, since the kernel takes a net namespace apart after its last process.
fn nothing_new_since(before: &Snapshot) {
    let clean = eventually(Duration::from_secs(5), || Snapshot::take().new_since(before).is_empty());
    assert!(clean, "{:#?}", Snapshot::take().new_since(before));
}
