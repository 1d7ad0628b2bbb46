//! `doctor` on this machine as it is, and on the same machine with a part of it hidden.
//!
//! A part is hidden by a mount in a mount namespace of the program's own, so that nobody else sees
//! it. Then exactly the answers that depend on that part change.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cofferdam_testkit::product::{Product, Ran, finish};
use cofferdam_testkit::{host, skip};
use serde_json::Value;

/// Every capability, in the order in which they are printed.
const VOCABULARY: [&str; 21] = [
    "files",
    "network",
    "egress",
    "egress-http",
    "egress-tcp",
    "dns",
    "denials-unlisted-port",
    "credentials",
    "memory",
    "cpu",
    "pids",
    "disk",
    "timeout",
    "output",
    "syscalls",
    "landlock",
    "separate-kernel",
    "no-ambient-authority",
    "tty",
    "runtime-version",
    "provider-egress",
];

/// What the shell exits with if a part can't be hidden.
const NOT_HIDDEN: i32 = 77;

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_cofferdam"))
}

/// What the program finds.
fn doctor(product: &Product) -> Value {
    product.call(["doctor", "--json"]).exits(0).json()
}

/// Runs the program where `hide`, commands of a shell joined by `&&`, was done first.
fn where_hidden(product: &Product, hide: &str, args: &[&str]) -> Ran {
    let script = format!("{{ {hide}; }} || exit {NOT_HIDDEN}\nexec \"$0\" \"$@\"");
    let own = product.command(args);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    finish(command)
}

/// Why nothing can be hidden here, or profile `internal` doesn't run even so.
fn unfit(plain: &Value) -> Option<String> {
    if !host::is_root() {
        return Some("only root can hide parts of the machine".into());
    }
    if Command::new("unshare").arg("--version").output().is_err() {
        return Some("there is no unshare".into());
    }
    let internal = profile(plain, "internal");
    (internal["runs"] != true).then(|| format!("internal doesn't run here as it is: {}", internal["why"]))
}

/// The findings plain and with a part hidden; skips where that can't be.
macro_rules! compare {
    ($product:expr, $hide:expr) => {{
        let plain = doctor($product);
        if let Some(why) = unfit(&plain) {
            skip!("{why}");
        }
        let hidden = where_hidden($product, $hide, &["doctor", "--json"]);
        if hidden.code == NOT_HIDDEN {
            skip!("it can't be hidden here: {}", hidden.stderr.trim());
        }
        (plain, hidden.exits(0).json())
    }};
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|item| item["name"] == name).unwrap()
}

fn profile<'a>(found: &'a Value, name: &str) -> &'a Value {
    named(&found["profiles"], name)
}

fn container(found: &Value) -> &Value {
    named(&found["backends"], "container")
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(|item| item.as_str().or(item["name"].as_str())).collect()
}

/// Every value that holds no others, by where it is: `/host/kvm/device`. Items of lists that have a
/// name are found under that.
fn leaves(value: &Value, at: &str, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                let name = item["name"].as_str().or(item["controller"].as_str()).map(str::to_owned);
                leaves(item, &format!("{at}/{}", name.unwrap_or_else(|| number.to_string())), into);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                leaves(member, &format!("{at}/{name}"), into);
            }
        }
        leaf => {
            into.insert(at.to_owned(), leaf.clone());
        }
    }
}

/// How long trials took.
const TOOK: [&str; 2] = ["/backends/container/trial/ms", "/way_out/proxy/ms"];

/// The places at which two findings differ, but for how long a trial took.
fn differences(one: &Value, other: &Value) -> BTreeSet<String> {
    let [mut plain, mut hidden] = [BTreeMap::new(), BTreeMap::new()];
    leaves(one, "", &mut plain);
    leaves(other, "", &mut hidden);
    let places: BTreeSet<_> = plain.keys().chain(hidden.keys()).cloned().collect();
    places
        .into_iter()
        .filter(|place| plain.get(place) != hidden.get(place) && !TOOK.contains(&place.as_str()))
        .collect()
}

/// Panics unless something differs in each of these places, and nothing anywhere else. What WebAssembly is offered
/// with is its jail's, which is a container.
fn assert_only(differences: &BTreeSet<String>, places: &[&str]) {
    let within = |difference: &str, place: &str| {
        difference.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for place in places {
        assert!(differences.iter().any(|it| within(it, place)), "{place} is the same: {differences:#?}");
    }
    for difference in differences {
        let of_its_jail = [
            ("/backends/wasm/", "/backends/container/"),
            ("/profiles/compute/", "/profiles/internal/"),
            ("/profiles/untrusted/", "/profiles/internal/"),
        ];
        let jails =
            of_its_jail.iter().fold(difference.clone(), |at, (wasm, jail)| at.replacen(wasm, jail, 1));
        assert!(places.iter().any(|place| within(&jails, place)), "{difference} differs too");
    }
}

#[test]
fn without_the_cgroups_only_the_ceilings_that_need_them_go() {
    let product = product();
    let (plain, hidden) = compare!(&product, "mount -t tmpfs tmpfs /sys/fs/cgroup");
    assert_only(
        &differences(&plain, &hidden),
        &[
            "/host/cgroups/memory",
            "/host/cgroups/cpu",
            "/host/cgroups/pids",
            "/backends/container/enforced",
            "/backends/container/gaps",
            "/profiles/internal",
            "/fixes",
        ],
    );
    let mut enforced = names(&container(&plain)["enforced"]);
    enforced.retain(|name| !["memory", "cpu", "pids"].contains(name));
    assert_eq!(names(&container(&hidden)["enforced"]), enforced);
    assert_eq!(container(&hidden)["available"], true);
    assert_eq!(profile(&hidden, "internal")["runs"], false);
    assert!(hidden["host"]["cgroups"].as_array().unwrap().iter().all(|it| it["version"].is_null()));
}

#[test]
fn without_kvms_device_only_the_answer_about_kvm_changes() {
    let product = product();
    let devices = "mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 \
        && mknod -m 666 /dev/full c 1 7 && mknod -m 666 /dev/random c 1 8 \
        && mknod -m 666 /dev/urandom c 1 9 && mknod -m 666 /dev/tty c 5 0";
    let (plain, hidden) = compare!(&product, devices);
    if plain["host"]["kvm"]["device"] == "absent" {
        skip!("there is no /dev/kvm to hide");
    }
    assert_only(&differences(&plain, &hidden), &["/host/kvm"]);
    assert_eq!(hidden["host"]["kvm"]["device"], "absent");
    assert_eq!(hidden["host"]["kvm"]["usable"], false);
}

#[test]
fn a_device_that_only_has_kvms_name_is_not_taken_for_it() {
    let product = product();
    if !Path::new("/dev/kvm").exists() {
        skip!("there is no /dev/kvm to put something over");
    }
    let (plain, hidden) = compare!(&product, "mount --bind /dev/null /dev/kvm");
    assert_only(&differences(&plain, &hidden), &["/host/kvm"]);
    assert_eq!(hidden["host"]["kvm"]["device"], "not_kvm");
}

/// What depends on user namespaces.
const ON_USER_NAMESPACES: [&str; 9] = [
    "/host/user_namespaces",
    "/backends/container/available",
    "/backends/container/trouble",
    "/backends/container/trial",
    "/backends/container/enforced",
    "/backends/container/gaps",
    "/profiles/internal",
    "/way_out",
    "/fixes",
];

#[test]
fn where_user_namespaces_are_hidden_nothing_is_promised_and_nothing_is_tried() {
    let product = product();
    let file = product.file("nothing", "");
    let hide = format!("mount --bind '{}' /proc/sys/user/max_user_namespaces", file.display());
    let (plain, hidden) = compare!(&product, &hide);
    assert_only(&differences(&plain, &hidden), &ON_USER_NAMESPACES);
    assert!(hidden["host"]["user_namespaces"]["max"].is_null());
    assert!(container(&hidden)["trial"].is_null());
    assert!(names(&container(&hidden)["enforced"]).is_empty());
    assert_eq!(names(&container(&hidden)["gaps"]), VOCABULARY);
}

#[test]
fn user_namespaces_that_are_switched_off_are_told_from_hidden_ones() {
    let product = product();
    let file = product.file("zero", "0\n");
    let hide = format!("mount --bind '{}' /proc/sys/user/max_user_namespaces", file.display());
    let (plain, hidden) = compare!(&product, &hide);
    assert_only(&differences(&plain, &hidden), &ON_USER_NAMESPACES);
    assert_eq!(hidden["host"]["user_namespaces"]["max"], 0);
    assert!(container(&hidden)["trouble"]["why"].as_str().unwrap().contains("switched off"));
    assert!(hidden["fixes"][0]["fix"].as_str().unwrap().contains("sysctl -w user.max_user_namespaces"));
}

/// What a container's start stands on.
const ON_A_START: [&str; 8] = [
    "/backends/container/available",
    "/backends/container/trouble",
    "/backends/container/trial",
    "/backends/container/enforced",
    "/backends/container/gaps",
    "/profiles/internal",
    "/fixes",
    "/way_out",
];

#[test]
fn a_hidden_part_of_proc_is_named_and_nothing_is_tried() {
    let product = product();
    let (plain, hidden) = compare!(&product, "mount --bind /dev/null /proc/version");
    assert_only(&differences(&plain, &hidden), &ON_A_START);
    assert!(container(&hidden)["trial"].is_null());
    assert!(container(&hidden)["trouble"]["why"].as_str().unwrap().contains("/proc/version"));
}

/// To give a user namespace more than one user takes CAP_SETUID, and no file says that we haven't it.
#[test]
fn what_the_files_promise_and_a_start_refuses_is_not_called_available() {
    let product = product();
    let give_up = "exec setpriv --bounding-set=-setuid --inh-caps=-setuid \"$0\" \"$@\"";
    let (plain, hidden) = compare!(&product, give_up);
    assert_only(&differences(&plain, &hidden), &ON_A_START);
    assert_eq!(container(&hidden)["trial"]["passed"], false);
    let run = where_hidden(&product, give_up, &["run", "--profile", "internal", "--", "true"]);
    assert_eq!(run.code, 125, "{run:?}");
}

#[test]
fn a_state_folder_that_cannot_be_written_stops_every_profile_and_is_the_first_thing_to_mend() {
    let product = product();
    let folder = product.folder().display();
    let hide = format!("mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'");
    let (plain, hidden) = compare!(&product, &hide);
    assert_only(&differences(&plain, &hidden), &["/state", "/audit", "/profiles", "/fixes"]);
    assert_eq!(hidden["state"]["writable"], false);
    assert!(hidden["profiles"].as_array().unwrap().iter().all(|profile| profile["runs"] == false));
    assert_eq!(hidden["fixes"][0]["mends"], serde_json::json!(["state", "audit"]));
}

#[test]
fn what_is_said_of_profile_internal_is_what_a_run_gets() {
    let product = product();
    let promised = profile(&doctor(&product), "internal")["runs"] == true;
    let ran = product.run(&["--", "true"]);
    assert_eq!(ran.code == 0, promised, "{ran:?}");
}

/// What is written about a template that an earlier version made.
const OUTDATED: &str =
    r#"{"name":"mine","fingerprint":"0123","preload":["json"],"asked":["jinja2"],"more":1}"#;

#[test]
fn templates_are_listed_and_one_that_is_out_of_date_has_its_command() {
    let product = product();
    let prepared = product.folder().join("data/wasm");
    std::fs::create_dir_all(&prepared).unwrap();
    let doctor = |args: &[&str]| {
        let mut command = product.command(args);
        command.env("COFFERDAM_DATA", product.folder().join("data"));
        finish(command).exits(0)
    };
    let empty = doctor(&["doctor", "--json"]).json();
    assert_eq!(empty["pythons"]["templates"], serde_json::json!([]), "{}", empty["pythons"]);
    assert!(empty["pythons"]["trouble"]["fix"].as_str().unwrap().contains("cofferdam setup python"));
    std::fs::write(prepared.join("python-0123.json"), OUTDATED).unwrap();
    std::fs::write(prepared.join("python-0123.cwasm"), "code").unwrap();
    let found = doctor(&["doctor", "--json"]).json();
    let mine = named(&found["pythons"]["templates"], "mine");
    assert_eq!((&mine["ready"], &mine["bytes"]), (&false.into(), &4.into()), "{mine}");
    assert_eq!(mine["remake"], "cofferdam setup python --template mine --preload json --with jinja2");
    let page = doctor(&["doctor"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["no mine made just now by another version", "→ cofferdam setup python --template mine"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn the_templates_of_this_version_are_ready_with_what_they_have_loaded() {
    let product = product();
    let Some(data) = cofferdam_testkit::templates::data() else {
        skip!("{}", cofferdam_testkit::templates::NONE)
    };
    let doctor = |args: &[&str]| {
        let mut command = product.command(args);
        command.env("COFFERDAM_DATA", &data);
        finish(command).exits(0)
    };
    let found = doctor(&["doctor", "--json"]).json();
    let python = named(&found["pythons"]["templates"], "python");
    assert_eq!(python["ready"], true, "{python}");
    assert!(python["preload"].as_array().unwrap().contains(&"json".into()));
    assert!(python["bytes"].as_u64() > Some(1 << 20) && found["pythons"]["trouble"].is_null());
    let page = doctor(&["doctor"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("yes python ") && page.contains("loaded: what scripts use"), "{page}");
    for tautology in ["no sh: it has no sh", "wait for WebAssembly", " here runs scripts in python"] {
        assert!(!page.contains(tautology), "{tautology}: {page}");
    }
}

#[test]
fn every_capability_is_enforced_or_a_gap_with_a_reason_and_a_fix() {
    let found = doctor(&product());
    let container = container(&found);
    let both: BTreeSet<_> =
        names(&container["enforced"]).into_iter().chain(names(&container["gaps"])).collect();
    assert_eq!(both, BTreeSet::from(VOCABULARY));
    for gap in container["gaps"].as_array().unwrap() {
        for part in ["why", "fix"] {
            assert!(gap[part].as_str().is_some_and(|text| !text.is_empty()), "{gap}");
        }
        assert!(!gap["fix"].as_str().unwrap().contains("`cofferdam doctor`"), "that is where one is: {gap}");
    }
}

#[test]
fn the_page_names_the_whole_vocabulary_and_every_fix_and_is_not_too_wide() {
    let product = product();
    let page = product.call(["doctor"]).exits(0).stdout;
    let words: Vec<_> = page.split([' ', '\n', ',', ':']).filter(|word| !word.is_empty()).collect();
    for capability in VOCABULARY {
        assert!(words.contains(&capability), "{capability} is missing");
    }
    let flowing = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for gap in container(&doctor(&product))["gaps"].as_array().unwrap() {
        let fix = gap["fix"].as_str().unwrap();
        assert!(flowing.contains(&format!("→ {fix}")), "{fix}");
    }
    for line in page.lines() {
        assert!(line.chars().count() <= 100 || line.split_whitespace().count() == 1, "{line}");
    }
    assert!(!page.contains('\x1b'), "colours are for terminals");
}

/// The findings where a script is the first `runc` on the path, in a folder with these rights.
fn with_runc(product: &Product, script: &str, rights: &str) -> (Value, String) {
    let folder = product.folder().join("programs");
    let source = product.file("script", format!("#!/bin/sh\n{script}\n"));
    // Copied by another process: one that was started here meanwhile would hold it open for writing.
    let make = "rm -rf \"$1\" && mkdir \"$1\" && cp \"$0\" \"$1/runc\" && chmod 755 \"$1/runc\" && chmod \"$2\" \"$1\"";
    let made = Command::new("sh").args(["-c", make]).arg(&source).arg(&folder).arg(rights).status();
    assert!(made.unwrap().success());
    let run = |args: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let mut command = product.command(args);
        command.env("PATH", path).env("CANARY", "here");
        finish(command).exits(0)
    };
    let found = run(&["doctor", "--json"]).json();
    (named(&found["runtimes"], "runc").clone(), run(&["doctor"]).stdout)
}

#[test]
fn a_runtime_below_its_floor_is_flagged_with_the_floor_and_the_way_out() {
    let product = product();
    if !host::is_root() {
        skip!("only a program of root's is asked for its version");
    }
    // It would meet the floor if it were given the environment.
    let script = "if [ -n \"$CANARY\" ]; then echo runc version 9.9.9; else echo runc version 1.3.5; fi";
    let (runc, page) = with_runc(&product, script, "755");
    assert_eq!((&runc["version"], &runc["standing"]), (&"1.3.5".into(), &"below".into()), "{runc}");
    assert_eq!(runc["floor"], "1.3.6 / 1.4.3 / 1.5.0");
    let flowing = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "no runc 1.3.5 is below the floor by its number",
        "may have patched it",
        "install runc 1.3.6 or newer",
    ] {
        assert!(flowing.contains(part), "{part} is missing in {page}");
    }
    let (runc, page) = with_runc(&product, "echo runc version 1.3.6", "755");
    assert_eq!(runc["standing"], "fine", "{runc}");
    assert!(runc["trouble"].is_null());
    assert!(page.contains("yes  runc             1.3.6 meets the floor"), "{page}");
}

#[test]
fn a_version_that_cannot_be_read_is_said_so() {
    let product = product();
    if !host::is_root() {
        skip!("only a program of root's is asked for its version");
    }
    let began = std::time::Instant::now();
    for (script, why) in [
        ("echo runc version unknown", "doesn't say a number"),
        ("exec sleep 60", "didn't answer within 2 s"),
        ("while :; do echo flood; done", "doesn't say a number"),
    ] {
        let (runc, _) = with_runc(&product, script, "755");
        assert_eq!(runc["standing"], "unknown", "{runc}");
        assert!(
            runc["version"].is_null() && runc["trouble"]["why"].as_str().unwrap().contains(why),
            "{runc}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[test]
fn a_program_that_somebody_else_could_have_put_there_is_not_run() {
    let product = product();
    if !host::is_root() {
        skip!("only a program of root's is asked for its version");
    }
    let mark = product.folder().join("ran");
    let script = format!("touch '{}'; echo runc version 1.3.6", mark.display());
    let (runc, _) = with_runc(&product, &script, "777");
    assert_eq!(runc["standing"], "unknown", "{runc}");
    assert!(runc["trouble"]["why"].as_str().unwrap().contains("isn't run"), "{runc}");
    assert!(!mark.exists());
    assert_eq!(with_runc(&product, &script, "755").0["standing"], "fine");
    assert!(mark.exists(), "it is run from a folder of root's");
}

#[test]
fn what_is_captured_is_said_and_that_a_proxy_was_started() {
    let product = product();
    let found = doctor(&product);
    let (way_out, container) = (&found["way_out"], container(&found));
    let gaps = names(&container["gaps"]);
    let captured = match (gaps.contains(&"egress"), gaps.contains(&"denials-unlisted-port")) {
        (true, _) => Value::Null,
        (false, true) => "listed-ports".into(),
        (false, false) => "every-port".into(),
    };
    assert_eq!(way_out["captured"], captured, "{way_out}");
    assert_eq!(way_out["trouble"].is_null(), captured == "every-port", "{way_out}");
    assert_eq!(way_out["proxy"]["passed"], true, "{way_out}");
}

#[test]
fn settings_with_which_no_proxy_can_be_are_said_with_what_to_do() {
    let product = product();
    let root = product.file("root.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let config = product.folder().join("home/.config/cofferdam");
    std::fs::create_dir_all(&config).unwrap();
    let text = format!("extra_roots = [{root:?}]\nresolver = [\"192.0.2.53:53\"]\n");
    std::fs::write(config.join("node.toml"), text).unwrap();
    let way_out = &doctor(&product)["way_out"];
    assert_eq!(way_out["proxy"]["passed"], false, "{way_out}");
    let trouble = &way_out["proxy_trouble"];
    assert!(trouble["why"].as_str().unwrap().contains("no certificates"), "{trouble}");
    assert!(trouble["fix"].as_str().unwrap().contains("node.toml"), "{trouble}");
    assert_eq!(way_out["resolvers"], serde_json::json!(["192.0.2.53:53"]));
}

#[test]
fn looking_changes_nothing_on_the_host() {
    let product = Product::alone(env!("CARGO_BIN_EXE_cofferdam"));
    let before = host::Snapshot::take();
    let looked = product.call(["doctor"]).exits(0);
    assert!(!product.state().exists());
    // The kernel takes namespaces apart in its own time.
    let as_before = host::eventually(Duration::from_secs(5), || host::Snapshot::take() == before);
    assert!(as_before, "{:#?} was {before:#?} before {looked:?}", host::Snapshot::take());
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    for args in [&["doctor"][..], &["doctor", "--json"], &["doctor", "--exposure"]] {
        let product = product();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = product.command(args).stdout(full).status().unwrap();
        assert_eq!(status.code(), Some(125));
    }
}
