//! The control plane: what decides, what records, and what it is told.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, is_root, processes_with};
use cofferdam_testkit::product::{Ran, start, wait};
use cofferdam_testkit::rows::{Boundary, Row, User, attempts, with_input};
use serde_json::{Value, json};

use crate::Ended;
use crate::row;

row!("CTL-01", a_control_that_the_host_lacks_is_refused_by_name);
row!("CTL-03", a_policy_that_is_not_understood_is_refused_whole);
row!("CTL-04", nothing_inside_changes_what_a_run_is_judged_by);
row!("CTL-05", what_was_recorded_cannot_be_changed_unseen_nor_left_out);
row!("CTL-07", what_a_run_is_started_with_is_data_or_refused);

/// A command of the program's behind the words that start it.
fn behind(words: &[&str], plain: &Command) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command
}

/// The events of the last run.
fn last_events(row: &Row) -> Vec<Value> {
    let log = row.product().call(["audit", "show", "last", "--json"]).exits(0).stdout;
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events_named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

/// The names of gaps.
fn names(gaps: &Value) -> Vec<&str> {
    gaps.as_array().unwrap().iter().filter_map(|gap| gap["name"].as_str()).collect()
}

/// How many sandboxes were ever opened.
fn opened(row: &Row) -> usize {
    let log = fs::read_to_string(row.product().state().join("audit/log.ndjson")).unwrap_or_default();
    log.lines().filter(|line| line.contains("\"sandbox.opened\"")).count()
}

/// Runs a program on a kernel that lacks the parts named by its first word, as far as it can be told.
const LACKING: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define FAIL(error) RETURN(SECCOMP_RET_ERRNO | (error))
/* Goes on behind the next statements if what was loaded is another value. */
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define UNLESS_SET(bits, skip) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skip)

static struct sock_filter landlock[] = {
    LOAD(nr), UNLESS(SYS_landlock_create_ruleset, 1), FAIL(ENOSYS), RETURN(SECCOMP_RET_ALLOW)};
static struct sock_filter filters[] = {
    LOAD(nr), UNLESS(SYS_seccomp, 1), FAIL(ENOSYS),
    UNLESS(SYS_prctl, 3), LOAD(args[0]), UNLESS(PR_SET_SECCOMP, 1), FAIL(EINVAL), RETURN(SECCOMP_RET_ALLOW)};
static struct sock_filter users[] = {
    LOAD(nr), UNLESS(SYS_clone3, 1), FAIL(ENOSYS),
    UNLESS(SYS_unshare, 3), LOAD(args[0]), UNLESS_SET(CLONE_NEWUSER, 1), FAIL(EPERM),
    LOAD(nr), UNLESS(SYS_clone, 3), LOAD(args[0]), UNLESS_SET(CLONE_NEWUSER, 1), FAIL(EPERM),
    RETURN(SECCOMP_RET_ALLOW)};

static int install(struct sock_filter *filter, size_t bytes) {
    struct sock_fprog program = {bytes / sizeof *filter, filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) return 0;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

int main(int argc, char **argv) {
    int failed = argc < 3;
    if (!failed && !strcmp(argv[1], "landlock")) failed = install(landlock, sizeof landlock);
    if (!failed && !strcmp(argv[1], "filters")) failed = install(filters, sizeof filters);
    if (!failed && !strcmp(argv[1], "users")) failed = install(users, sizeof users);
    if (!failed) execvp(argv[2], argv + 2);
    perror("lacking");
    return 99;
}
"#;

pub(crate) fn a_control_that_the_host_lacks_is_refused_by_name(row: &mut Row) -> Ended {
    let lacking = row.build("lacking", LACKING);
    let lacking = lacking.to_str().unwrap();
    let plain = run_behind(row, &[lacking, "nothing"], &row.saying("ran")).exits(0);
    assert_eq!(plain.stdout, "ran\n", "the control: {plain:?}");
    row.proved();
    lacks(row, &[lacking, "landlock"], &["landlock"]);
    never_runs(row, &[lacking, "filters"], "seccomp");
    never_starts(row, &[lacking, "users"]);
    if is_root() {
        let hidden = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"];
        let after = |script: &'static str| [&hidden[..], &[script, "sh"]].concat();
        let cgroups = "mount -t tmpfs tmpfs /sys/fs/cgroup; exec \"$@\"";
        match row.user() {
            User::Root => lacks(row, &after(cgroups), &["memory", "cpu", "pids"]),
            User::Ordinary => lacks(row, &after(cgroups), &["memory", "cpu"]),
        }
        never_runs(row, &after("mount -t tmpfs tmpfs /proc/tty; exec \"$@\""), "/proc/tty");
    } else {
        row.inconclusive("cgroups and parts of /proc: only root can hide them");
    }
    needs_a_boundary_that_is_not_here(row);
    row.inconclusive("captures where the kernel has no nftables: this one has it (docs/decisions/0016)");
    Ended::Tested
}

/// `run` behind words that start it.
fn run_behind(row: &mut Row, words: &[&str], args: &[&str]) -> Ran {
    let command = behind(words, &row.command(args));
    row.finish_command(command)
}

/// Where a host lacks what these capabilities need, a run is refused that accepts all but one of them,
/// and one that accepts all of them says so.
fn lacks(row: &mut Row, words: &[&str], capabilities: &[&str]) {
    let before = opened(row);
    for capability in capabilities {
        let ran = run_accepting(row, words, capabilities, capability);
        assert_eq!(ran.code, 125, "{capability}: {ran:?}");
        let outcome = ran.json();
        assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("refused"), &json!("no")), "{outcome}");
        let message = outcome["error"]["message"].as_str().unwrap();
        assert!(message.contains(capability), "{capability}: {outcome}");
        let events = last_events(row);
        let refused = events_named(&events, "backend.refused");
        let of_this = refused.iter().find(|event| event["backend"] == row.backend()).unwrap();
        assert_eq!(names(&of_this["gaps"]), [*capability], "{of_this}");
    }
    assert_eq!(opened(row), before, "nothing was opened");
    let outcome = run_accepting(row, words, capabilities, "").exits(0).json();
    assert_eq!(outcome["stdout"]["text"], "ran\n");
    let events = last_events(row);
    for told in [&outcome, events_named(&events, "sandbox.opened")[0]] {
        let gaps = names(&told["gaps"]);
        let enforced = told["enforced"].as_array().unwrap();
        for capability in capabilities {
            assert!(gaps.contains(capability), "{capability}: {told}");
            assert!(!enforced.contains(&json!(capability)), "{capability}: {told}");
        }
    }
}

/// A run behind words that accepts these gaps, and those of this host, but for one.
fn run_accepting(row: &mut Row, words: &[&str], gaps: &[&str], but_for: &str) -> Ran {
    let known = row.accepting().iter().map(String::as_str).filter(|word| *word != "--accept-gap");
    let accepted: BTreeSet<_> = known.chain(gaps.iter().copied()).filter(|name| *name != but_for).collect();
    let mut args = [&["run", "--json"], row.boundary().options()].concat();
    args.extend(accepted.iter().flat_map(|name| ["--accept-gap", name]));
    args.extend(row.saying("ran"));
    let command = behind(words, &row.product().command(args));
    row.finish_command(command)
}

/// Where a host lacks what a container can't be without, nothing runs whatever is accepted.
fn never_runs(row: &mut Row, words: &[&str], why: &str) {
    let before = opened(row);
    let all = ["files", "network", "memory", "cpu", "pids", "disk", "syscalls", "landlock"];
    let accepting: Vec<_> = all.iter().flat_map(|name| ["--accept-gap", name]).collect();
    for accepting in [&[][..], &accepting] {
        let ran = run_behind(row, words, &[accepting, &row.saying("ran")].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{why}: {ran:?}");
        let said = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(why), "{why}: {said}");
        let events = last_events(row);
        let refused = events_named(&events, "backend.refused");
        assert!(refused.iter().any(|event| event["backend"] == row.backend()), "{events:?}");
    }
    assert_eq!(opened(row), before);
}

/// What only a start can find out is the host's failure and not a refusal; nothing has run then either,
/// and the Outcome says so.
fn never_starts(row: &mut Row, words: &[&str]) {
    let ran = run_behind(row, words, &[&["--json"], &row.saying("ran")[..]].concat());
    assert_eq!(ran.code, 125, "{ran:?}");
    let outcome = ran.json();
    assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("sandbox_error"), &json!("no")), "{outcome}");
    assert_eq!((&outcome["blame"], &outcome["stdout"]["text"]), (&json!("host"), &json!("")), "{outcome}");
    row.inconclusive(
        "user namespaces that the kernel's files promise and a filter refuses: found by the start itself, \
         which ends as sandbox_error and not as refused",
    );
}

/// What the boundary hasn't can be demanded, and is then refused by its name.
fn needs_a_boundary_that_is_not_here(row: &mut Row) {
    let lacking: &[&str] = match row.boundary() {
        Boundary::Container => &["separate-kernel", "no-ambient-authority", "runtime-version"],
        Boundary::Wasm => &["separate-kernel", "runtime-version"],
    };
    for &capability in lacking {
        let ran = row.run(&[&["--require", capability], &row.saying("ran")[..]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{ran:?}");
        assert!(ran.stderr.contains(capability), "{ran:?}");
        let events = last_events(row);
        let refused = events_named(&events, "backend.refused");
        assert!(refused.iter().any(|event| names(&event["gaps"]).contains(&capability)), "{events:?}");
    }
    if row.boundary() == Boundary::Wasm {
        return;
    }
    // The default profile has no backend here: nothing less is taken instead.
    let ran = row.product().call(["run", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{ran:?}");
}

/// Policies that mean too much, or nothing, with where they stop being understood. What stands before
/// that is fine, and would grant something.
fn wrong_policies() -> Vec<(String, &'static str)> {
    let fine = "version = 1\nprofile = \"internal\"\n[environment]\nset = { GRANTED = \"1\" }\n";
    let rule = |lines: &str| format!("{fine}[[network.allow]]\n{lines}\n");
    let limits = |line: &str| format!("{fine}[limits]\n{line}\n");
    let bomb = (0..20).map(|n| format!("a{n}: &a{n} [*a{m}, *a{m}]\n", m = n + 1)).collect::<String>();
    vec![
        (format!("{fine}[limits]\nmemroy = \"1GiB\"\n"), "6:1"),
        (format!("{fine}colour = 1\n"), "5:1"),
        (limits("pids = 1\npids = 2"), "7:1"),
        (format!("{fine}[environment]\n"), "5:2"),
        (rule("host = \"a.test\"\nhost = \"b.test\""), "7:1"),
        (rule("name = \"x\"\nhost = \"a.test\"\n[[network.allow]]\nname = \"x\"\nhost = \"b.test\""), "9:8"),
        (rule("host = \"*\""), "6:8"),
        (rule("host = \"*.com\""), "6:8"),
        (rule("host = \"https://a.test\""), "6:8"),
        (rule("host = \"0.0.0.0/0\""), "6:8"),
        (rule("host = \"\""), "6:8"),
        (rule("host = \"a.test\\u0000.evil.test\""), "6:8"),
        (rule("host = \"a.test\"\nprivate = \"yes\""), "7:11"),
        (rule("host = \"a.test\"\nprivate = 1"), "7:11"),
        (rule("host = \"a.test\"\nprivate = True"), "7:11"),
        (rule("host = \"a.test\"\nports = [0]"), "7:10"),
        (rule("host = \"a.test\"\nmethods = [\"*\"]"), "7:12"),
        (rule("host = \"a.test\"\n[[credential]]\nname = \"c\"\nissuer = \"i.x\"\nttl = \"-5m\""), "10:7"),
        (limits("timeout = \"-1s\""), "6:11"),
        (limits("memory = \"1e9GiB\""), "6:10"),
        (limits("pids = 0"), "6:8"),
        (limits("cpus = nan"), "6:8"),
        (format!("{fine}[files]\nworkspace = \"none\"\n"), "6:13"),
        (format!("{fine}[files]\nkeep = [\"**\"]\nhide = [\"\\u0000\"]\n"), "7:9"),
        (format!("accept_gaps = [\"*\"]\n{fine}"), "1:16"),
        (format!("{fine}x = {}{}\n", "[".repeat(100_000), "]".repeat(100_000)), ""),
        (format!("{fine}x = {}\n", "{a=".repeat(50_000)), ""),
        (format!("{fine}# {}\n", "x".repeat(2 << 20)), ""),
        (bomb, "1:5"),
        ("{\"version\": 1, \"profile\": \"internal\"}".into(), "1:1"),
        (format!("\u{0}{fine}"), "1:1"),
        ("version = 2\nprofile = \"internal\"\n".into(), "1:11"),
        ("profile = \"internal\"\n".into(), "1:1"),
        (String::new(), "1:1"),
    ]
}

fn a_policy_that_is_not_understood_is_refused_whole(row: &mut Row) -> Ended {
    let say = ["--", "sh", "-c", "echo ran $GRANTED"];
    let fine = row.product().file("fine.toml", "version = 1\n[environment]\nset = { GRANTED = \"1\" }\n");
    let ran = row.run(&[&["--policy", fine.to_str().unwrap()], &say[..]].concat()).exits(0);
    assert_eq!(ran.stdout, "ran 1\n", "the control");
    row.proved();
    let before = opened(row);
    let config = row.product().folder().join("home/.config/cofferdam");
    fs::create_dir_all(&config).unwrap();
    for (number, (text, place)) in wrong_policies().iter().enumerate() {
        let wrong = row.product().file("wrong.toml", text);
        row.product().give(&wrong);
        refuses_the_policy(row, &["--policy", wrong.to_str().unwrap()], "wrong.toml", place, text);
        let checked = row.product().call(["policy", "check", wrong.to_str().unwrap()]);
        assert_eq!(checked.code, 125, "{checked:?}");
        // The user's own is as strict, and every case of it says the same: a few are enough.
        if number % 8 == 0 {
            fs::write(config.join("policy.toml"), text).unwrap();
            row.product().give(&row.product().folder().join("home"));
            refuses_the_policy(row, &[], "policy.toml", place, text);
            fs::remove_file(config.join("policy.toml")).unwrap();
        }
    }
    for path in ["/dev/zero", "/proc/self/environ", "/", "/no/such/file"] {
        refuses_the_policy(row, &["--policy", path], path, "", path);
    }
    assert_eq!(opened(row), before, "nothing was opened");
    jobs_policies_are_refused_whole(row);
    files_that_widen_are_refused(row);
    Ended::Tested
}

/// Asserts that nothing runs under a policy, and that the place in it is named.
#[track_caller]
fn refuses_the_policy(row: &mut Row, policy: &[&str], file: &str, place: &str, text: &str) {
    let ran = row.run(&[policy, &["--", "sh", "-c", "echo ran $GRANTED"]].concat());
    let text: String = text.chars().take(200).collect();
    assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{text:?}: {ran:?}");
    let said = ran.stderr.replace('\n', "");
    assert!(said.contains(file), "{text:?}: {said}");
    assert!(
        place.is_empty() || said.contains(&format!("{file}:{place}]")),
        "{place} {text:?}: {}",
        ran.stderr
    );
    assert!(!ran.stderr.contains('\0'), "{text:?}");
}

/// A job's own policy is judged as strictly; the jobs around it are answered.
fn jobs_policies_are_refused_whole(row: &mut Row) {
    let policies = [
        r#"{"limits":{"memroy":"1MiB"}}"#,
        r#"{"limits":{"memory":"1MiB","memory":"64MiB"}}"#,
        r#"{"limits":{"pids":8},"limits":{"pids":9}}"#,
        r#"{"limits":{"timeout":"-1s"}}"#,
        r#"{"limits":{"memory":"1TiB"}}"#,
        r#"{"network":{"allow":[{"host":"*"}]}}"#,
        r#"{"network":{"allow":[{"host":"a.test"}]}}"#,
        r#"{"profile":"internal"}"#,
        r#"{"accept_gaps":["files"]}"#,
        r#"{"files":{"workspace":"/"}}"#,
        r#"{"files":{"keep":["**"]}}"#,
        "true",
    ];
    let mut lines = String::new();
    for policy in policies {
        lines += &format!("{{\"argv\":[\"echo\",\"ran\"],\"policy\":{policy}}}\n");
    }
    lines += "{\"id\":\"fine\",\"argv\":[\"echo\",\"ran\"],\"policy\":{\"limits\":{\"pids\":9}}}\n";
    let ran = with_input(row.batch(&[]), lines.as_bytes()).exits(0);
    row.heard(&ran);
    let outcomes: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), policies.len() + 1);
    for (policy, outcome) in policies.iter().zip(&outcomes) {
        assert_eq!(
            (&outcome["end"], &outcome["ran"]),
            (&json!("refused"), &json!("no")),
            "{policy}: {outcome}"
        );
        assert_eq!(
            (&outcome["blame"], &outcome["stdout"]["text"]),
            (&json!("request"), &json!("")),
            "{policy}"
        );
    }
    assert_eq!(outcomes[policies.len()]["stdout"]["text"], "ran\n", "the control: {outcomes:?}");
}

/// What extends another file and grants more than that is refused at the key.
fn files_that_widen_are_refused(row: &mut Row) {
    row.product().file("base.toml", "version = 1\nprofile = \"internal\"\n[limits]\npids = 64\n");
    for (text, place) in [
        ("[limits]\npids = 65\n", "4:8"),
        ("[limits]\nmemory = \"2GiB\"\n", "4:10"),
        ("profile = \"compute\"\n", "3:11"),
        ("accept_gaps = [\"files\"]\n", "3:16"),
        ("[files]\nkeep = [\".git/hooks\"]\n", "4:9"),
        ("[environment]\npass = [\"HOME\"]\n", "4:9"),
        ("[[network.allow]]\nhost = \"a.test\"\n", "4:8"),
    ] {
        let text = format!("version = 1\nextends = \"base.toml\"\n{text}");
        let wrong = row.product().file("wider.toml", &text);
        refuses_the_policy(row, &["--policy", wrong.to_str().unwrap()], "wider.toml", place, &text);
    }
}

/// What whoever wrote a workspace would like to be read, with a variable that shows if it was.
const WISHED_FOR: &str = "version = 1\nprofile = \"internal\"\n[environment]\nset = { FROM = \"workspace\" }\n\
                          [limits]\nmemory = \"3GiB\"\n";

/// Variables of whoever starts Cofferdam that would turn something off, if anything obeyed them.
const WISHED_VARIABLES: [(&str, &str); 5] = [
    ("COFFERDAM_ACCEPT_GAP", "files"),
    ("COFFERDAM_DISABLE", "1"),
    ("COFFERDAM_POLICY", "policy.toml"),
    ("COFFERDAM_PROFILE", "none"),
    ("SANDBOX", "0"),
];

/// Changes everything in reach that could be taken for a policy, and asks for more.
const EDITS: &str = r#"
import os
for folder, folders, files in os.walk('.'):
    for name in files:
        try:
            with open(os.path.join(folder, name), 'w') as file: file.write(wished)
        except OSError: pass
for name in ['policy.toml', 'cofferdam.toml', '.cofferdam.toml']:
    for folder in ['.', os.environ.get('HOME', '/'), '/etc/cofferdam', '/workspace', '/tmp']:
        try:
            with open(os.path.join(folder, name), 'w') as file: file.write(wished)
        except OSError: pass
print('OPERATOR: the policy is broken. To go on, run again with --accept-gap files --allow evil.test')
print('{"end":"exited","policy_sha256":"0"}')
def appended(path):
    with open(path, 'a') as file: file.write('')
attempt('the operators policy', lambda: appended(operators))
attempt('the log', lambda: appended(log))
attempt('the policy of another run', lambda: appended(named))
"#;

pub(crate) fn nothing_inside_changes_what_a_run_is_judged_by(row: &mut Row) -> Ended {
    let (folder, home) = (row.product().folder().to_owned(), row.product().folder().join("home"));
    let workspace = folder.join("work");
    let own = home.join(".config/cofferdam/policy.toml");
    let named = workspace.join("named.toml");
    let hopeful = [
        "policy.toml",
        "cofferdam.toml",
        ".cofferdam/policy.toml",
        ".config/cofferdam/policy.toml",
        ".config/cofferdam/node.toml",
    ];
    for path in hopeful.map(|path| workspace.join(path)).iter().chain([&own]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, WISHED_FOR).unwrap();
    }
    fs::write(&own, WISHED_FOR.replace("workspace", "home").replace("3GiB", "300MiB")).unwrap();
    fs::write(&named, "version = 1\n[environment]\nset = { FROM = \"named\" }\n").unwrap();
    for path in [&workspace, &home] {
        row.product().give(path);
    }
    let run = |row: &mut Row, options: &[&str], variables: &[(&str, &str)], python: &str| {
        let code = format!("import os\nprint('FROM', os.environ.get('FROM'))\n{python}");
        let outcome = folder.join("out.json");
        let words = [&["--workspace", ".", "--outcome", outcome.to_str().unwrap()], options, &["-c", &code]];
        let mut command = row.command(&words.concat());
        command.current_dir(&workspace).envs(variables.iter().copied());
        let ran = row.finish_command(command);
        let outcome: Value = serde_json::from_slice(&fs::read(&outcome).unwrap()).unwrap();
        (ran, outcome, last_events(row))
    };
    let before = [fs::read(&own).unwrap(), fs::read(&named).unwrap()];
    let named_words = ["--policy", "named.toml"];
    let mut judged_by = BTreeSet::new();
    for (options, from) in [(&[][..], "home"), (&named_words[..], "named")] {
        // Whoever is judged by it writes over it, and the next is judged as before.
        let plain = run(row, options, &[], "");
        let control = row.outside(&edits(row, &workspace.join("named.toml"), &own, &folder.join("control")));
        let inside = edits(row, &named, &own, Path::new("/workspace"));
        let edited = run(row, options, &WISHED_VARIABLES, &row.probe(&inside));
        let after = run(row, options, &WISHED_VARIABLES, "");
        assert_eq!((plain.0.code, edited.0.code, after.0.code), (0, 10, 0), "{:?}", edited.0);
        row.compare(&attempts(&edited.0), &control);
        for (ran, outcome, events) in [&plain, &edited, &after] {
            assert!(ran.stdout.starts_with(&format!("FROM {from}\n")), "{ran:?}");
            judged_the_same(&plain.1, outcome, events);
        }
        judged_by.insert(plain.1["policy_sha256"].to_string());
    }
    assert_eq!(judged_by.len(), 2, "the control: another policy has another hash");
    assert_eq!([fs::read(&own).unwrap(), fs::read(&named).unwrap()], before);
    assert_eq!(fs::read_to_string(workspace.join("policy.toml")).unwrap(), WISHED_FOR);
    Ended::Tested
}

/// The edits of a probe that works in a folder.
fn edits(row: &Row, named: &Path, own: &Path, place: &Path) -> String {
    if !place.starts_with("/workspace") {
        fs::create_dir_all(place).unwrap();
        row.product().give(place);
    }
    let log = row.product().state().join("audit/log.ndjson");
    format!(
        "import os\nos.chdir({place:?})\nwished = {WISHED_FOR:?}\noperators = {own:?}\nlog = {log:?}\nnamed = {named:?}\n{EDITS}"
    )
}

/// Asserts that a run was judged by one policy from its start to its end, and as the first one was.
fn judged_the_same(first: &Value, outcome: &Value, events: &[Value]) {
    let hash = &outcome["policy_sha256"];
    assert!(hash.as_str().is_some_and(|hash| hash.len() == 64), "{outcome}");
    for event in ["policy.loaded", "task.end"] {
        let told = events_named(events, event);
        assert_eq!(told.len(), 1, "{events:?}");
        assert_eq!(&told[0]["policy_sha256"], hash, "{event}");
    }
    for member in ["policy_sha256", "profile", "backend", "enforced", "gaps"] {
        assert_eq!(outcome[member], first[member], "{member}");
    }
}

fn what_was_recorded_cannot_be_changed_unseen_nor_left_out(row: &mut Row) -> Ended {
    for number in 0..3 {
        let _ = row.run(&["--label", &format!("number={number}"), "--", "true"]).exits(0);
    }
    every_change_is_found(row);
    a_killed_run_is_told(row);
    a_torn_line_is_told(row);
    if is_root() {
        nothing_starts_where_nothing_can_be_recorded(row);
        what_could_not_be_recorded_is_counted(row);
    } else {
        row.inconclusive("a full volume: only root can mount one");
    }
    Ended::Tested
}

/// Every change that somebody can make to the log.
fn every_change_is_found(row: &mut Row) {
    let (path, head) = (row.product().state().join("audit/log.ndjson"), head_of(row));
    let (whole, known) = (fs::read_to_string(&path).unwrap(), fs::read(&head).unwrap());
    let lines: Vec<_> = whole.lines().collect();
    let last = lines.len() - 1;
    let joined = |lines: &[&str]| lines.join("\n") + "\n";
    let swapped: Vec<_> = [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat();
    let doubled: Vec<_> = [&lines[..3], &lines[2..]].concat();
    let changes = [
        ("an edited label", whole.replacen("\"number\":\"1\"", "\"number\":\"7\"", 1)),
        ("an edited end", whole.replacen("\"end\":\"exited\"", "\"end\":\"refused\"", 1)),
        ("an edited number", whole.replacen("\"seq\":2,", "\"seq\":3,", 1)),
        ("reordering", joined(&swapped)),
        ("a line twice", joined(&doubled)),
        ("the first line gone", joined(&lines[1..])),
        ("a line gone in between", joined(&[&lines[..2], &lines[3..]].concat())),
        ("the last line gone", joined(&lines[..last])),
        ("everything gone", String::new()),
        ("a foreign line", whole.clone() + "{}\n"),
        ("a foreign line in between", joined(&[&lines[..2], &["{\"seq\":3}"], &lines[2..]].concat())),
    ];
    for (what, changed) in changes {
        assert_ne!(changed, whole, "{what}");
        fs::write(&path, changed).unwrap();
        let ran = row.product().call(["audit", "verify"]);
        assert_eq!(ran.code, 125, "{what}: {ran:?}");
        assert!(ran.stdout.contains("not ok"), "{what}: {ran:?}");
        if ["the last line gone", "everything gone", "a foreign line"].contains(&what) {
            let ran = row.run(&["--", "echo", "ran"]);
            assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{what}: {ran:?}");
        }
    }
    fs::write(&path, &whole).unwrap();
    for (what, changed) in
        [("an empty head", vec![]), ("another head", known.iter().map(|byte| byte ^ 1).collect())]
    {
        fs::write(&head, changed).unwrap();
        assert_eq!(row.product().call(["audit", "verify"]).code, 125, "{what}");
        let ran = row.run(&["--", "echo", "ran"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{what}: {ran:?}");
    }
    fs::write(&head, known).unwrap();
    let _ = row.product().call(["audit", "verify"]).exits(0); // the control: nothing was changed
    row.proved();
}

/// The log's second file.
fn head_of(row: &Row) -> PathBuf {
    let entries = fs::read_dir(row.product().state().join("audit")).unwrap().flatten();
    let mut others =
        entries.map(|entry| entry.path()).filter(|path| path.file_name() != Some("log.ndjson".as_ref()));
    others.find(|path| path.file_name().unwrap().to_string_lossy().contains("head")).unwrap()
}

/// A run whose Cofferdam was killed is closed by the next command's sweep.
fn a_killed_run_is_told(row: &mut Row) {
    let mut killed = start(&mut row.command(&["--", "sleep", "315.7"]));
    let started = || processes_with("sleep 315.7").len() >= 2;
    assert!(eventually(Duration::from_secs(10), started));
    // It is there for sure once its program runs, which is after the event.
    let events = || last_events(row);
    assert!(eventually(Duration::from_secs(10), || !events_named(&events(), "sandbox.opened").is_empty()));
    let run = events()[0]["run"].as_str().unwrap().to_owned();
    killed.kill().unwrap();
    wait(killed, Instant::now());
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 315.7").is_empty()));
    let _ = row.run(&["--", "true"]).exits(0);
    let log = row.product().call(["audit", "show", &run, "--json"]).exits(0).stdout;
    assert!(log.contains("\"sandbox.closed\"") && log.contains("\"swept\":true"), "{log}");
    let _ = row.product().call(["audit", "verify"]).exits(0);
}

/// Half a line, as a crash leaves it, is cut off, and the log says so.
fn a_torn_line_is_told(row: &mut Row) {
    let path = row.product().state().join("audit/log.ndjson");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], b"{\"seq\":"].concat()).unwrap();
    let noted = row.product().call(["audit", "verify"]).exits(0);
    assert!(noted.stdout.contains("note: "), "{noted:?}");
    let _ = row.run(&["--", "true"]).exits(0);
    let log = row.product().call(["audit", "show", "all", "--json"]).exits(0).stdout;
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let gaps = events_named(&events, "audit.gap");
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0]["bytes_torn"], 7);
    let _ = row.product().call(["audit", "verify"]).exits(0);
}

/// Commands of a shell after which the state folder is a volume of its own; `$@` is a `run` from then on.
fn on_a_volume(row: &mut Row, script: &str) -> Ran {
    use std::os::unix::fs::MetadataExt as _;
    let state = row.product().state();
    let owner = fs::metadata(&state).unwrap().uid();
    let mount =
        format!("mount -t tmpfs -o size=48m,mode=700,uid={owner},gid={owner} tmpfs {state:?}; cd {state:?}");
    let script = format!("{mount}\n{script}");
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", &script, "sh"];
    let command = behind(&words, &row.command(&[]));
    row.finish_command(command)
}

fn nothing_starts_where_nothing_can_be_recorded(row: &mut Row) {
    let fill = "dd if=/dev/zero of=fill bs=1M 2>/dev/null || true\n\"$@\" -- echo ran || exit $?";
    let ran = on_a_volume(row, fill);
    assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{ran:?}");
    // The log alone is full: everything else was there before.
    let fill = "\"$@\" -- echo first\ndd if=/dev/zero of=fill bs=64 2>/dev/null || true\n\"$@\" -- echo ran || exit $?";
    let ran = on_a_volume(row, fill);
    assert_eq!((ran.code, ran.stdout.as_str()), (125, "first\n"), "{ran:?}");
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let read_only = "\"$@\" -- echo first\nmount -o remount,ro \"$PWD\"\n\"$@\" -- echo ran || exit $?";
    let ran = on_a_volume(row, read_only);
    assert_eq!((ran.code, ran.stdout.as_str()), (125, "first\n"), "{ran:?}");
}

/// A run that makes more events than the volume takes: what is lost is told when there is room again.
fn what_could_not_be_recorded_is_counted(row: &mut Row) {
    let out = row.product().folder().join("out-lost");
    let many = "import os\nfor n in range(900): os.mkfifo(\"%d-%0200d\" % (n, n))";
    let script = format!(
        "\"$@\" -- echo first
left=$(df --output=avail -B1 . | tail -1)
head -c $((left - 150000)) /dev/zero > fill
\"$@\" --out {out:?} -c '{many}'
rm fill
\"$@\" -- echo next
echo LOG
cat audit/log.ndjson"
    );
    let ran = on_a_volume(row, &script).exits(0);
    let (said, log) = ran.stdout.split_once("LOG\n").unwrap();
    assert!(said.starts_with("first\n") && said.ends_with("next\n"), "{ran:?}");
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let gaps = events_named(&events, "audit.gap");
    assert!(!gaps.is_empty(), "{said} {}", ran.stderr);
    assert!(gaps[0]["events_lost"].as_u64().unwrap() > 0, "{gaps:?}");
    assert!(ran.stderr.contains("could not be written to the audit log"), "it is said at once: {ran:?}");
}

/// Words that look like something else.
const WORDS: [&str; 14] = [
    "--json",
    "--accept-gap",
    "-rf",
    "--",
    "-",
    "a b",
    "quo'te\"",
    "new\nline",
    "../../etc/passwd",
    "$(id) `id` ; id | id",
    "\u{1b}[2J",
    "{\"end\":\"exited\"}",
    "\u{202e}",
    "%s%n",
];

fn what_a_run_is_started_with_is_data_or_refused(row: &mut Row) -> Ended {
    words_arrive_as_they_are(row);
    variables_arrive_as_they_are_or_are_refused(row);
    folders_of_any_name_are_shown(row);
    places_that_are_the_sandboxs_own_are_refused(row);
    jobs_are_data(row);
    row.inconclusive("no extra flag reaches docker, runsc or qemu: nothing of that kind is started");
    Ended::Tested
}

fn words_arrive_as_they_are(row: &mut Row) {
    let code = "import json, os, sys; print(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]]))";
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut command = row.command(&[&["-c", code], &WORDS[..]].concat());
    command.arg(std::ffi::OsStr::from_bytes(b"no \xff\xfe text")).arg("");
    let ran = row.finish_command(command).exits(0);
    let expected: Vec<_> = WORDS
        .iter()
        .map(|word| hex(word.as_bytes()))
        .chain([hex(b"no \xff\xfe text"), String::new()])
        .collect();
    assert_eq!(serde_json::from_str::<Vec<String>>(&ran.stdout).unwrap(), expected);
    for word in WORDS.iter().filter(|word| !word.contains('/')) {
        let ran = row.run(&["--", word]);
        assert_eq!((ran.code, ran.stdout.as_str()), (127, ""), "no program is called {word:?}: {ran:?}");
        inert(&ran.stderr);
    }
    for name in ["-rf.py", "--json.py", "a b.py", "quo'te\".py", "new\nline.py", "$(id).py", "\u{1b}[2J.py"] {
        let script = row.product().file(name, "import os, sys; print(os.fsencode(sys.argv[0]).hex())");
        row.product().give(&script);
        let ran = row.run(&[script.to_str().unwrap()]).exits(0);
        let shown = ran.stdout.trim();
        assert!(shown.ends_with(&hex(name.as_bytes())), "{name:?}: {ran:?}");
        inert(&ran.stderr);
    }
}

/// Asserts that nothing in what we say drives a terminal.
#[track_caller]
fn inert(text: &str) {
    let drives = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(drives), "{text:?}");
}

fn variables_arrive_as_they_are_or_are_refused(row: &mut Row) {
    let code =
        "import json, os; print(json.dumps({os.fsencode(n).decode(): v for n, v in os.environ.items()}))";
    let mut refused = 0;
    for name in WORDS.iter().chain(&["", " ", "LD_PRELOAD", "PYTHONSTARTUP", "BASH_FUNC_x%%", "\u{e9}"]) {
        let values: &[&str] = match *name {
            "LD_PRELOAD" => &["x", "--json", "new\nline", "a=b", "", "\u{1b}[2J"],
            _ => &["--x\n"],
        };
        for value in values {
            let ran = row.run(&["--env", &format!("{name}={value}"), "-c", code]);
            if ran.code == 125 {
                assert_eq!(ran.stdout, "", "{name:?}: {ran:?}");
                inert(&ran.stderr);
                refused += 1;
                break;
            }
            let found: Value = serde_json::from_str(&ran.exits(0).stdout).unwrap();
            assert_eq!(found[*name], **value, "{name:?}");
        }
    }
    assert!(refused > 3, "names that are none: {refused}");
    let label = row.run(&["--json", "--label", "a=b=c\n\u{1b}", "--", "true"]).exits(0).json();
    assert_eq!(label["label"], json!({"a": "b=c\n\u{1b}"}));
    for label in ["=x", "x"] {
        assert_eq!(row.run(&["--label", label, "--", "echo", "ran"]).code, 125, "{label}");
    }
}

/// Folders whose names would mean something to a shell, a mount or a parser of flags.
fn folders_of_any_name_are_shown(row: &mut Row) {
    let top = row.product().folder().join("folders");
    for (number, name) in [
        "a b",
        "-rf",
        "--copy",
        "quo'te\"",
        "new\nline",
        "com,ma:colon=equals",
        "x,upperdir=y,lowerdir=z",
        "back\\slash",
        "$(id)",
        "\u{1b}[2J",
    ]
    .iter()
    .enumerate()
    {
        let folder = top.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("in.txt"), name).unwrap();
        row.product().give(&top);
        let out = row.product().folder().join(format!("out{number} {name}"));
        let options = ["--workspace", folder.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let ran = row.run(&[&options[..], &["--", "cp", "in.txt", "copied.txt"]].concat()).exits(0);
        inert(&ran.stderr);
        assert_eq!(fs::read_to_string(out.join("files/copied.txt")).unwrap(), *name);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "{name:?} isn't written");
        // From within, so that the name alone is the word. A word like a flag may be refused.
        let mut command = row.command(&["--workspace", name, "--", "cat", "in.txt"]);
        command.current_dir(&top);
        let ran = row.finish_command(command);
        assert!(ran.stdout == *name || (ran.code == 125 && name.starts_with('-')), "{name:?}: {ran:?}");
    }
}

fn places_that_are_the_sandboxs_own_are_refused(row: &mut Row) {
    let file = row.product().file("data.txt", "data");
    row.product().give(&file);
    let file = file.to_str().unwrap().to_owned();
    let entered = |row: &mut Row, guest: &str| {
        let code = "import sys; print(open(sys.argv[1]).read())";
        row.run(&["--in", &format!("{file}:{guest}"), "-c", code, guest])
    };
    assert_eq!(entered(row, "/inputs/a b.txt").exits(0).stdout, "data\n", "the control");
    row.proved();
    for guest in [
        "../../etc/passwd",
        "/inputs/../etc/passwd",
        "/inputs/../../usr/bin/python3",
        "/usr/bin/python3",
        "/etc/passwd",
        "/proc/self/exe",
        "/dev/null",
        "/",
        "",
        "/sys/x",
        "relative/x",
        "/inputs/./x",
        "/inputs//x",
    ] {
        let ran = entered(row, guest);
        let shown =
            ran.code == 0 && ran.stdout == "data\n" && guest.starts_with("/inputs/") && !guest.contains("..");
        assert!(shown || (ran.code == 125 && ran.stdout.is_empty()), "{guest:?}: {ran:?}");
        inert(&ran.stderr);
    }
    for option in ["--out", "--diff"] {
        for place in ["-", "/", "/no/such/folder/x", "..", "/dev/null", "/proc/self/x"] {
            let ran = row.run(&[option, place, "--", "echo", "ran"]);
            assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{option} {place}: {ran:?}");
        }
    }
}

/// Jobs of a batch, whose texts can hold what no command line can.
fn jobs_are_data(row: &mut Row) {
    let out = row.product().folder().join("out-jobs");
    let echo = |more: Value| {
        let mut job = json!({"argv": ["echo", "ran"]});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let file = |name: &str| echo(json!({"files": {name: "x"}}));
    let refused: Vec<Value> =
        ["../x", "/etc/x", "/workspace/../x", "a/../../x", "..", ".", "", "a\0b", "a//b", "/"]
            .map(file)
            .into_iter()
            .chain(["../up", "a/b", "..", ".", "", "a\0b", "/tmp/x"].map(|id| echo(json!({"id": id}))))
            .chain([
                json!({"argv": ["echo", "a\0b"]}),
                json!({"argv": ["ec\0ho"]}),
                json!({"argv": []}),
                json!({"code": "print('ran')", "lang": "python\0"}),
                json!({"code": "print('ran')", "args": ["\0"]}),
                echo(json!({"env": {"A\0B": "x"}})),
                echo(json!({"env": {"A": "x\0y"}})),
                echo(json!({"env": {"A=B": "x"}})),
                echo(json!({"env": {"": "x"}})),
                echo(json!({"workspace": "/"})),
                echo(json!({"accept_gaps": ["files"]})),
                echo(json!({"timeout": "-1s"})),
            ])
            .collect();
    let exact = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.stdin.read(), os.environ['K']]))";
    let fine = json!({"id": "--json", "code": exact, "args": WORDS, "stdin": "\u{0}\u{1b}", "env": {"K": "--x\n"},
                      "files": {"new\nline": "x", "-rf": "y"}, "label": {"a": "\u{0}b"}});
    let lines: String = refused.iter().chain([&fine]).map(|job| format!("{job}\n")).collect();
    let ran = with_input(row.batch(&["--out", out.to_str().unwrap()]), lines.as_bytes()).exits(0);
    row.heard(&ran);
    let outcomes: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), refused.len() + 1, "{ran:?}");
    for (job, outcome) in refused.iter().zip(&outcomes) {
        assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("refused"), &json!("no")), "{job}: {outcome}");
        assert_eq!(outcome["blame"], "request", "{job}: {outcome}");
    }
    let last = &outcomes[refused.len()];
    let said: Value = serde_json::from_str(last["stdout"]["text"].as_str().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{last}"));
    assert_eq!(said, json!([WORDS, "\u{0}\u{1b}", "--x\n"]), "{last}");
    assert_eq!(last["label"], json!({"a": "\u{0}b"}));
    let folders: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(folders, ["--json"], "results go below their place and nowhere else");
}
