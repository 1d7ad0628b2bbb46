//! What is refused before anything starts, with the reason and the next step.

use cofferdam_testkit::product::{Ran, finish};
use serde_json::json;

use crate::{needs_root, ordinary, product};

/// Refused: 125, nothing on standard output, and advice.
fn refused(ran: &Ran) {
    assert_eq!(ran.code, 125, "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert!(!ran.stderr.is_empty(), "{ran:?}");
}

#[test]
fn the_default_profile_never_runs_in_a_container() {
    let product = product();
    let script = product.file("hello.py", "print('hello')");
    let script = script.to_str().unwrap();
    let ran = product.call(["run", script]);
    refused(&ran);
    for word in ["wasm", "microvm", "kata", "hosted", "--profile internal", "to mend it"] {
        assert!(ran.stderr.contains(word), "{word}: {ran:?}");
    }
    let named = product.call(["run", "--backend", "container", script]);
    refused(&named);
    assert!(named.stderr.contains("never runs in backend `container`"), "{named:?}");
    let outcome = product.call(["run", "--json", script]).json();
    assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("refused"), &json!("no")));
    assert_eq!(outcome["error"]["code"], "backend_refused");
    assert_eq!(outcome["backend"], json!(null));
}

#[test]
fn a_capability_that_no_container_has_is_a_gap_with_its_way_out() {
    needs_root!();
    let ran = product().run(&["--require", "separate-kernel", "--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("separate-kernel") && ran.stderr.contains("microVM"), "{ran:?}");
}

#[test]
fn more_disk_than_memory_is_refused_where_there_is_no_root_to_make_one() {
    let ran = ordinary().run(&["--memory", "64MiB", "--disk", "65MiB", "--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("loop device") && ran.stderr.contains("--memory as --disk"), "{ran:?}");
}

#[test]
fn a_credential_is_refused_and_not_ignored() {
    needs_root!();
    let product = product();
    let policy = "version = 1\n[[network.allow]]\nhost = \"api.example.com\"\ncredential = \"gh\"\n\
                  [[credential]]\nname = \"gh\"\nissuer = \"github-app.acme\"\n";
    let policy = product.file("p.toml", policy);
    let ran = product.run(&["--policy", policy.to_str().unwrap(), "--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("nobody mints credentials here"), "{ran:?}");
}

/// Gaps that an ordinary user has here, whatever its cgroups are like.
const ANY: [&str; 6] = ["--accept-gap", "memory", "--accept-gap", "cpu", "--accept-gap", "disk"];

#[test]
fn an_accepted_gap_runs_and_is_reported_in_the_outcome_and_in_the_log() {
    let product = ordinary();
    let outcome =
        product.outcome(&[&ANY[..], &["--memory", "64MiB", "--disk", "1GiB", "--", "true"]].concat());
    assert_eq!(outcome["end"], "exited", "{outcome}");
    let gaps: Vec<_> = outcome["gaps"].as_array().unwrap().iter().map(|gap| gap["name"].clone()).collect();
    assert!(gaps.contains(&json!("disk")), "{outcome}");
    let log = product.call(["audit", "show", "last", "--json"]).exits(0).stdout;
    let opened = log.lines().find(|line| line.contains("sandbox.opened")).unwrap();
    let opened: serde_json::Value = serde_json::from_str(opened).unwrap();
    for enforced in [&outcome["enforced"], &opened["enforced"]] {
        let enforced = enforced.as_array().unwrap();
        assert!(gaps.iter().all(|gap| !enforced.contains(gap)), "{enforced:?} with {gaps:?}");
        assert!(enforced.contains(&json!("files")) && enforced.len() == 10 - gaps.len(), "{enforced:?}");
    }
}

#[test]
fn a_capability_that_is_demanded_and_given_up_is_a_contradiction() {
    let ran = product().run(&["--require", "memory", "--accept-gap", "memory", "--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("both required and accepted"), "{ran:?}");
}

#[test]
fn wrong_usage_names_the_mistake_and_exits_as_a_refusal() {
    let product = product();
    for (args, word) in [
        (vec!["--timout", "2s", "--", "true"], "--timeout"),
        (vec!["--timeout", "-2s", "--", "true"], "-2s"),
        (vec!["--timeout", "0s", "--", "true"], "0s"),
        (vec!["--timeout", "2", "--", "true"], "2s"),
        (vec!["--memory", "1", "--", "true"], "MiB"),
        (vec!["--memory", "0MiB", "--", "true"], "0MiB"),
        (vec!["--memory", "1e9GiB", "--", "true"], "1e9GiB"),
        (vec!["--cpus", "0", "--", "true"], "cpus"),
        (vec!["--cpus", "nan", "--", "true"], "nan"),
        (vec!["--pids", "0", "--", "true"], "pids"),
        (vec!["--pids", "-1", "--", "true"], "-1"),
        (vec!["--profile", "none", "--", "true"], "untrusted"),
        (vec!["--backend", "docker", "--", "true"], "container"),
        (vec!["--accept-gap", "everything", "--", "true"], "separate-kernel"),
        (vec!["--env", "X", "--", "true"], "NAME=VALUE"),
        (vec!["--env", "=x", "--", "true"], "NAME=VALUE"),
        (vec!["--pass-env", "NOT_SET_ANYWHERE", "--", "true"], "not set"),
        (vec!["--lang", "perl", "-c", "1"], "python"),
        (vec!["--label", "x", "--", "true"], "NAME=VALUE"),
        (vec![], "nothing to run"),
        (vec!["--"], "nothing to run"),
    ] {
        let mut command = product.command(["run"]);
        command.args(&args);
        let ran = finish(command);
        refused(&ran);
        assert!(ran.stderr.contains(word), "{args:?} should say {word}: {ran:?}");
    }
}

#[test]
fn wrong_usage_under_json_is_an_outcome_too() {
    let product = product();
    let outcome = product.call(["run", "--json", "--timout", "2s", "--", "true"]).json();
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("refused"), &json!(125)));
    assert_eq!((&outcome["error"]["code"], &outcome["blame"]), (&json!("bad_request"), &json!("request")));
    assert_eq!(outcome["stdout"]["text"], "", "a driver reads this key of every Outcome");
    let message = outcome["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("unexpected argument") && !message.contains('\n'), "{message}");
}

#[test]
fn a_policy_that_cannot_be_read_says_where_it_is_wrong() {
    let product = product();
    for (text, word) in [
        ("version = 1\n[limits]\nmemroy = \"1GiB\"\n", "memory"),
        ("version = 1\n[limits]\ntimeout = \"-1s\"\n", "-1s"),
        ("version = 2\n", "version"),
        ("version = 1\nprofile = \"internal\"\nprofile = \"untrusted\"\n", "profile"),
        ("version = 1\n[[network.allow]]\nhost = \"*\"\n", "*"),
        ("version = 1\n[[network.allow]]\nhost = \"*.com\"\n", "*.com"),
        ("version = 1\n[[network.allow]]\nhost = \"https://a.test\"\n", "https"),
        ("version = 1\n[files]\nworkspace = \"none\"\n", "workspace"),
        ("nonsense", "nonsense"),
    ] {
        let policy = product.file("wrong.toml", text);
        let ran = product.run(&["--policy", policy.to_str().unwrap(), "--", "true"]);
        refused(&ran);
        assert!(ran.stderr.contains("wrong.toml:"), "the place: {ran:?}");
        assert!(ran.stderr.contains(word), "{text:?} should say {word}: {ran:?}");
    }
    let missing = product.run(&["--policy", "/no/such/file", "--", "true"]);
    refused(&missing);
    assert!(missing.stderr.contains("/no/such/file"), "{missing:?}");
}

#[test]
fn a_node_may_only_lower_what_is_asked_for() {
    needs_root!();
    let product = product();
    let config = product.folder().join("home/.config/cofferdam");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("node.toml"), "[ceiling]\nmemory = \"128MiB\"\nprofiles = [\"internal\"]\n")
        .unwrap();
    let ran = product.run(&["--memory", "256MiB", "--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("limits.memory") && ran.stderr.contains("128 MiB"), "{ran:?}");
    refused(&product.call(["run", "--", "true"])); // the default profile is not listed
    let lowered = product.outcome(&["-c", "x = bytearray(200_000_000)"]);
    assert_eq!(lowered["end"], "out_of_memory", "the default is lowered: {lowered}");
}

#[test]
fn a_node_may_lower_what_leaves() {
    needs_root!();
    let product = product();
    let config = product.folder().join("home/.config/cofferdam");
    std::fs::create_dir_all(&config).unwrap();
    let ceiling = "[ceiling]\nbytes_out = \"10KiB\"\nrequests = 9\nconnections = 8\nhosts = 7\n";
    std::fs::write(config.join("node.toml"), ceiling).unwrap();
    let run = |limit: &str| {
        let text = format!("version = 1\nprofile = \"internal\"\n[limits]\n{limit}\n");
        let policy = product.file("policy.toml", text);
        product.call(["run", "--policy", policy.to_str().unwrap(), "--", "true"])
    };
    for (key, most, more) in [
        ("bytes_out", "\"10KiB\"", "\"11KiB\""),
        ("requests", "9", "10"),
        ("connections", "8", "9"),
        ("hosts", "7", "8"),
    ] {
        let _ = run(&format!("{key} = {most}")).exits(0);
        let ran = run(&format!("{key} = {more}"));
        refused(&ran);
        assert!(ran.stderr.contains(&format!("limits.{key}")), "{ran:?}");
    }
}

#[test]
fn a_users_own_policy_holds_without_being_named_and_one_in_the_workspace_does_not() {
    needs_root!();
    let product = product();
    let config = product.folder().join("home/.config/cofferdam");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("policy.toml"), "version = 1\n[environment]\nset = { FROM = \"home\" }\n")
        .unwrap();
    product.file("policy.toml", "version = 1\n[environment]\nset = { FROM = \"workspace\" }\n");
    let mut command = product.command(["run", "--profile", "internal", "--", "sh", "-c", "echo $FROM"]);
    command.current_dir(product.folder());
    assert_eq!(finish(command).exits(0).stdout, "home\n");
}

#[test]
fn hostile_names_stay_data() {
    needs_root!();
    let product = product();
    for name in ["-rf.py", "a\nb.py", "\u{1b}[2J.py", "--json.py", "$(id).py", "a'b\".py"] {
        let script = product.file(name, "import sys; print(ascii(sys.argv[0]))");
        let ran = product.call(["run", "--profile", "internal", script.to_str().unwrap()]).exits(0);
        let shown = ran.stdout.trim().trim_matches(['\'', '"']);
        assert!(shown.ends_with(".py"), "{ran:?}");
    }
    let missing = product.call(["run", "--profile", "internal", "\u{1b}[2Jno\nsuch.py"]);
    assert_eq!(missing.code, 127);
    assert!(!missing.stderr.contains('\u{1b}'), "{missing:?}");
}

#[test]
fn a_file_that_is_no_script_says_what_would_help() {
    let product = product();
    let data = product.file("data.csv", "a,b\n");
    let ran = product.run(&[data.to_str().unwrap()]);
    assert_eq!(ran.code, 126);
    assert!(ran.stderr.contains("interpreter"), "{ran:?}");
    assert_eq!(product.run(&[product.folder().to_str().unwrap()]).code, 126);
    assert_eq!(product.run(&["/no/such.py"]).code, 127);
}

#[test]
fn nothing_starts_when_the_audit_log_cannot_be_written() {
    needs_root!();
    let product = product();
    std::fs::create_dir_all(product.state().join("audit")).unwrap();
    std::fs::create_dir(product.state().join("audit/log.ndjson")).unwrap();
    let ran = product.run(&["--", "sh", "-c", "echo ran"]);
    refused(&ran);
    assert!(ran.stderr.contains("audit"), "{ran:?}");
}

#[test]
fn a_state_folder_that_cannot_be_used_is_named() {
    let product = product();
    let file = product.file("state", "a file, where a folder should be");
    let ran = product.run(&["--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains(file.to_str().unwrap()) && ran.stderr.contains("COFFERDAM_STATE"), "{ran:?}");
}

#[test]
fn an_outcome_file_that_cannot_be_written_refuses_the_run() {
    let ran = product().run(&["--outcome", "/no/such/folder/o.json", "--", "sh", "-c", "echo ran"]);
    refused(&ran);
    assert!(ran.stderr.contains("/no/such/folder/o.json"), "{ran:?}");
}

#[test]
fn a_full_disk_under_the_state_folder_refuses_with_its_reason() {
    needs_root!();
    let product = product();
    let fill =
        "mount -t tmpfs -o size=64k,mode=700 tmpfs \"$STATE\"\nhead -c 60000 /dev/zero > \"$STATE/fill\"";
    let run = ["run", "--profile", "internal", "--", "sh", "-c", "echo ran"];
    let ran = product.call_after(fill, run);
    refused(&ran);
    assert!(ran.stderr.contains("No space left") && ran.stderr.contains("to mend it"), "{ran:?}");
}

#[test]
fn a_state_folder_from_which_nothing_can_be_executed_does() {
    needs_root!();
    let product = product();
    let noexec = "mount -t tmpfs -o noexec,mode=700 tmpfs \"$STATE\"";
    let ran = product.call_after(noexec, ["run", "--profile", "internal", "--", "echo", "ran"]);
    assert_eq!(ran.exits(0).stdout, "ran\n");
}

#[test]
fn a_state_folder_that_is_read_only_is_named() {
    needs_root!();
    let product = product();
    let read_only = "mount -t tmpfs -o ro tmpfs \"$STATE\"";
    let ran = product.call_after(read_only, ["run", "--profile", "internal", "--", "echo", "ran"]);
    refused(&ran);
    assert!(ran.stderr.contains("Read-only") && ran.stderr.contains("COFFERDAM_STATE"), "{ran:?}");
}

#[test]
fn memory_that_does_not_hold_the_sandbox_itself_is_a_request_to_mend() {
    needs_root!();
    let outcome = product().outcome(&["--memory", "64KiB", "--disk", "4KiB", "--", "true"]);
    assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("refused"), &json!("no")), "{outcome}");
    assert_eq!(outcome["error"]["code"], "bad_request", "{outcome}");
    assert!(outcome["error"]["message"].as_str().unwrap().contains("limits.memory"), "{outcome}");
}

#[test]
fn a_policy_below_the_working_directory_is_not_picked_up_through_an_empty_home() {
    let product = product();
    let config = product.folder().join(".config/cofferdam");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("policy.toml"), "version = 1\nprofile = \"internal\"\n").unwrap();
    for home in ["", ".", "relative"] {
        let mut command = product.command(["run", "--", "true"]);
        command.current_dir(product.folder()).env("HOME", home).env_remove("XDG_CONFIG_HOME");
        refused(&finish(command));
    }
}

#[test]
fn a_state_folder_that_somebody_else_can_write_is_not_trusted() {
    needs_root!();
    use std::os::unix::fs::PermissionsExt;
    let product = product();
    std::fs::create_dir_all(product.state()).unwrap();
    std::os::unix::fs::chown(product.state(), Some(65534), None).unwrap();
    let ran = product.run(&["--", "true"]);
    refused(&ran);
    assert!(ran.stderr.contains("65534"), "{ran:?}");
    std::os::unix::fs::chown(product.state(), Some(0), None).unwrap();
    std::fs::set_permissions(product.state(), std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(&product.run(&["--", "true"]));
}

#[test]
fn what_is_no_file_of_a_run_holds_nobody_up() {
    needs_root!();
    let product = product();
    let _ = product.run(&["--", "true"]).exits(0);
    let place = product.state().join("runs/r_01jd0000000000000000000000");
    let made = std::process::Command::new("mkfifo").arg(&place).status().unwrap();
    assert!(made.success());
    assert_eq!(product.run(&["--", "echo", "ran"]).exits(0).stdout, "ran\n");
    let _ = product.call(["gc"]).exits(0);
}

#[test]
fn a_secret_that_was_typed_in_the_wrong_place_is_not_echoed() {
    let product = product();
    for args in [["--env", "hunter2"], ["--pass-env", "TOKEN=hunter2"]] {
        let mut command = product.command(["run", "--profile", "internal"]);
        command.args(args).args(["--", "true"]);
        let ran = finish(command);
        refused(&ran);
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
}

/// The kernel's `mount_too_revealing`: a user namespace gets a proc only where its makers see all of one.
#[test]
fn a_hidden_part_of_proc_is_refused_with_the_runtimes_own_fixes() {
    needs_root!();
    let product = product();
    let run = ["run", "--profile", "internal", "--", "cat", "/proc/1/comm"];
    let plain = product.call_after("", run);
    assert_eq!(plain.code, 0, "{plain:?}");
    let hidden = product.call_after("mount -t tmpfs tmpfs /proc/tty", run);
    refused(&hidden);
    for word in ["/proc/tty is mounted over", "systempaths=unmasked", "procMount: Unmasked", "privileged"] {
        assert!(
            hidden.stderr.split_whitespace().collect::<Vec<_>>().join(" ").contains(word),
            "{word}: {hidden:?}"
        );
    }
}
