//! What holds for an ordinary user, without root and without set-up.
//!
//! On a host whose cgroups are root's, two ceilings can't be held and are refused until they are
//! accepted. The tests accept what this host lacks and hold everything else to the same promises.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use cofferdam_testkit::host::{Snapshot, processes_with};
use cofferdam_testkit::product::{Product, Ran, finish};
use serde_json::{Value, json};

use crate::ordinary;

/// Runs with whatever the host lacks accepted.
fn run(product: &Product, args: &[&str]) -> Ran {
    let accepting = product.accepting();
    let words = ["run", "--profile", "internal"].into_iter().chain(accepting.iter().map(String::as_str));
    product.call(words.chain(args.iter().copied()))
}

fn outcome(product: &Product, args: &[&str]) -> Value {
    run(product, &[&["--json"], args].concat()).json()
}

#[test]
fn what_was_prepared_and_cannot_be_read_is_not_called_missing() {
    let product = ordinary();
    let data = product.folder().join("data");
    std::fs::create_dir_all(data.join("wasm")).unwrap();
    product.give(&data);
    let call = |args: &[&str]| {
        let mut command = product.command(args);
        command.env("COFFERDAM_DATA", &data);
        finish(command).exits(125)
    };
    let locked = |mode| std::fs::set_permissions(&data, std::fs::Permissions::from_mode(mode)).unwrap();
    locked(0o000);
    let all = [call(&["run", "-c", "print(1)"]), call(&["setup", "python", "--list"])];
    locked(0o700);
    for ran in all {
        let said = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("could not read") && said.contains("Permission denied"), "{said}");
        assert!(said.contains("COFFERDAM_DATA"), "{said}");
        assert!(!said.contains("nothing was prepared") && !said.contains("no Python is prepared"), "{said}");
    }
}

#[test]
fn an_ordinary_user_runs_a_script_as_an_unprivileged_user_inside() {
    let product = ordinary();
    let script = product.file("hello.py", "import os; print(os.getuid(), os.getgid(), os.getpid())");
    product.give(&script);
    let ran = run(&product, &["--quiet", script.to_str().unwrap(), "a"]).exits(0);
    assert_eq!(ran.stdout, "1000 1000 2\n");
}

#[test]
fn what_this_host_lacks_is_refused_by_name_with_its_fix_and_reported_when_accepted() {
    let product = ordinary();
    let gaps = product.gaps();
    if gaps.is_empty() {
        cofferdam_testkit::skip!("this user has cgroups of their own: nothing is missing");
    }
    let ran = product.run(&["-c", "print(1)"]).exits(125);
    assert_eq!(ran.stdout, "");
    for gap in &gaps {
        assert!(ran.stderr.contains(&format!("--accept-gap {gap}")), "{ran:?}");
    }
    let outcome = outcome(&product, &["-c", "print(1)"]);
    assert_eq!(outcome["end"], "exited");
    let told: Vec<_> = outcome["gaps"].as_array().unwrap().iter().map(|gap| gap["name"].clone()).collect();
    assert_eq!(json!(told), json!(gaps));
    let enforced = outcome["enforced"].as_array().unwrap();
    for name in ["files", "network", "pids", "disk", "timeout", "output", "syscalls", "landlock"] {
        assert!(enforced.contains(&json!(name)), "{name} in {enforced:?}");
    }
    assert!(gaps.iter().all(|gap| !enforced.contains(&json!(gap))));
}

#[test]
fn at_the_deadline_everything_is_dead() {
    let product = ordinary();
    let script = "sleep 303.7 & setsid sleep 303.7 & echo started; wait";
    let ran = run(&product, &["--timeout", "1s", "--", "sh", "-c", script]).exits(124);
    assert_eq!(ran.stdout, "started\n");
    assert!(ran.took < Duration::from_secs(3), "{ran:?}");
    assert_eq!(processes_with("sleep 303.7"), [] as [i32; 0]);
}

#[test]
fn processes_and_writable_space_are_bounded_and_what_is_left_is_counted() {
    let product = ordinary();
    let bomb = "import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError as error: print(n, error.strerror)
try: open('x', 'wb').write(b'x' * (2 << 20))
except OSError as error: print(error.strerror)
";
    let outcome = outcome(&product, &["--pids", "20", "--disk", "1MiB", "-c", bomb]);
    let expected = "19 Resource temporarily unavailable\nNo space left on device\n";
    assert_eq!(outcome["stdout"]["text"], expected, "{outcome}");
    assert_eq!(outcome["left"]["processes"], 19);
    assert!(outcome["limits_hit"].as_array().unwrap().contains(&json!("disk")));
}

#[test]
fn two_sandboxes_of_one_user_do_not_share_their_processes() {
    let product = ordinary();
    let crowd = "import os, sys, time
for _ in range(15):
    if os.fork() == 0: time.sleep(60)
print('there', flush=True); time.sleep(float(sys.argv[1]))";
    std::thread::scope(|scope| {
        let one = scope.spawn(|| run(&product, &["--pids", "20", "-c", crowd, "2"]));
        std::thread::sleep(Duration::from_millis(600));
        let other = run(&product, &["--pids", "20", "-c", crowd, "0"]);
        assert_eq!((other.code, other.stdout.as_str()), (0, "there\n"), "{other:?}");
        assert_eq!(one.join().unwrap().code, 0);
    });
}

#[test]
fn the_users_own_files_processes_and_variables_are_out_of_reach() {
    let product = ordinary();
    let secret = product.file("home/secret", "canary-7d1f");
    product.give(&secret);
    let reading = format!(
        "import os, signal
found = 0
for path in ({secret:?}, '/proc/1/root' + {secret:?}, '/proc/self/root' + {secret:?}):
    try: found += 'canary' in open(path).read()
    except OSError: pass
found += 'canary-env' in str(os.environ)
others = [p for p in os.listdir('/proc') if p.isdigit()]
print(found, len(others))"
    );
    let here = std::process::Command::new("/usr/bin/python3").args(["-c", &reading]).output().unwrap();
    assert!(String::from_utf8_lossy(&here.stdout).starts_with("2 "), "outside it is found: {here:?}");
    let mut command = product.command(["run", "--profile", "internal", "--quiet"]);
    for gap in product.gaps() {
        command.args(["--accept-gap", &gap]);
    }
    command.args(["-c", &reading]).env("TOKEN", "canary-env");
    let ran = finish(command).exits(0);
    assert_eq!(ran.stdout, "0 2\n");
}

#[test]
fn nothing_is_left_behind() {
    let product = ordinary();
    let _ = run(&product, &["--", "true"]).exits(0);
    let before = Snapshot::take();
    for _ in 0..10 {
        let _ = run(&product, &["--", "sh", "-c", "sleep 304.7 & touch /tmp/x"]).exits(0);
    }
    assert_eq!(processes_with("sleep 304.7"), [] as [i32; 0]);
    let new = Snapshot::take().new_since(&before);
    assert!(new.iter().all(|what| !what.contains("cofferdam-r_")), "{new:?}");
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
}
