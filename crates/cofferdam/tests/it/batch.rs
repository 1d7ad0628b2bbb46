//! `batch`: every line is answered by its Outcome, in a sandbox of its own, and nothing is left.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{Snapshot, eventually, processes_with};
use cofferdam_testkit::product::{Product, Ran, Started, finish, start, wait};
use serde_json::{Value, json};

use crate::{alone, needs_root, product};

/// A batch with all its lines at once.
fn batch(product: &Product, args: &[&str], lines: &str) -> (Ran, Vec<Value>) {
    let input = std::fs::File::open(product.file("jobs.jsonl", lines)).unwrap();
    let mut command = product.command(["batch", "--profile", "internal"].iter().chain(args));
    command.stdin(input);
    let ran = finish(command);
    let outcomes = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (ran, outcomes)
}

fn jobs(jobs: &[Value]) -> String {
    jobs.iter().map(|job| format!("{job}\n")).collect()
}

/// A batch that is talked to.
struct Conversation {
    child: Started,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Conversation {
    fn start(product: &Product, args: &[&str]) -> Self {
        let mut command = product.command(["batch", "--profile", "internal"].iter().chain(args));
        let mut child = start(command.stdin(Stdio::piped()));
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Conversation { child, stdin, stdout }
    }

    fn send(&mut self, job: &Value) {
        self.stdin.write_all(format!("{job}\n").as_bytes()).unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    fn ask(&mut self, job: &Value) -> Value {
        self.send(job);
        self.answer()
    }

    fn end(self) -> Ran {
        let Conversation { child, stdin, stdout } = self;
        drop(stdin);
        let ran = wait(child, Instant::now());
        drop(stdout);
        ran
    }
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn ids(outcomes: &[Value]) -> Vec<&Value> {
    outcomes.iter().map(|outcome| &outcome["id"]).collect()
}

#[test]
fn forty_jobs_are_answered_by_forty_outcomes_in_order() {
    needs_root!();
    let product = product();
    let lines = example("forty.jsonl");
    let (ran, outcomes) = batch(&product, &[], &lines);
    let _ = ran.exits(0);
    let asked: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(asked.len(), 40);
    assert_eq!(ids(&outcomes), ids(&asked));
    let said: BTreeSet<_> = outcomes.iter().map(|outcome| outcome["stdout"]["text"].to_string()).collect();
    assert_eq!(said.len(), 40, "each prints something else");
    let runs: BTreeSet<_> = outcomes.iter().map(|outcome| outcome["run"].to_string()).collect();
    assert_eq!(runs.len(), 40, "each is a run of its own");
    for outcome in &outcomes {
        assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)), "{outcome}");
        assert_eq!(outcome["enforced"].as_array().unwrap().len(), 10, "{outcome}");
    }
    assert!(ran_first_member_is_the_id(&batch(&product, &[], "{\"id\":\"x\",\"code\":\"1\"}\n").0));
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
    let _ = product.call(["audit", "verify"]).exits(0);
}

fn ran_first_member_is_the_id(ran: &Ran) -> bool {
    ran.stdout.starts_with("{\"id\":\"x\",\"version\":1,")
}

#[test]
fn two_at_once_give_the_same_answers() {
    needs_root!();
    let product = product();
    let told = |outcomes: Vec<Value>| -> BTreeSet<String> {
        outcomes.iter().map(|it| format!("{} {} {}", it["id"], it["exit_code"], it["stdout"])).collect()
    };
    let lines = example("forty.jsonl");
    let (one, two) = (batch(&product, &[], &lines), batch(&product, &["--jobs", "2"], &lines));
    let (_, _) = (one.0.exits(0), two.0.exits(0));
    assert_eq!(two.1.len(), 40);
    assert_eq!(told(one.1), told(two.1));
}

#[test]
fn a_job_is_given_everything_that_its_line_says() {
    needs_root!();
    let lines = jobs(&[
        json!({"code": "import sys; print(sys.argv[1:], sys.stdin.read())", "args": ["a", "b"], "stdin": "in"}),
        json!({"argv": ["sh", "-c", "cat data; od -An -tx1 raw; ./go; echo $K $L"], "env": {"K": "own"},
               "files": {"data": "d\n", "raw": {"base64": "AP8="}, "go": "#!/bin/sh\necho went\n"}}),
        json!({"argv": ["sh", "-c", "exit 3"], "label": {"ticket": "7"}}),
    ]);
    let (ran, outcomes) =
        batch(&product(), &["--env", "K=batch", "--env", "L=batch", "--label", "a=b"], &lines);
    let _ = ran.exits(0);
    assert_eq!(outcomes[0]["stdout"]["text"], "['a', 'b'] in\n");
    assert_eq!(outcomes[1]["stdout"]["text"], "d\n 00 ff\nwent\nown batch\n", "{}", outcomes[1]);
    assert_eq!((&outcomes[2]["exit_code"], &outcomes[2]["id"]), (&json!(3), &json!(3)));
    assert_eq!(outcomes[2]["label"], json!({"a": "b", "ticket": "7"}));
}

#[test]
fn a_job_that_failed_is_advised_as_a_run_is() {
    needs_root!();
    let network = "import urllib.request as r; r.urlopen('http://example.test', timeout=9)";
    let lines =
        jobs(&[json!({"code": network}), json!({"code": "print(1)"}), json!({"argv": ["no-such-program"]})]);
    let (ran, outcomes) = batch(&product(), &[], &lines);
    let _ = ran.exits(0);
    let hints = outcomes[0]["hints"].as_array().unwrap();
    assert!(
        hints.len() == 1 && hints[0].as_str().unwrap().contains("start the batch with --allow"),
        "{}",
        outcomes[0]
    );
    assert_eq!(outcomes[1]["hints"], json!([]));
    let fix = outcomes[2]["error"]["fix"].as_str().unwrap();
    assert_eq!(outcomes[2]["exit_code"], 127);
    assert!(fix.contains("`argv`") && fix.contains("`files`") && !fix.contains("run FILE"), "{fix}");
}

#[test]
fn an_agent_has_each_answer_before_it_sends_the_next_line() {
    needs_root!();
    let product = product();
    let mut batch = Conversation::start(&product, &[]);
    for turn in 0..5 {
        // Nothing but this line was sent when its answer comes, and standard input stays open.
        let outcome = batch.ask(&json!({"code": format!("print({turn} + 1)")}));
        assert_eq!(outcome["stdout"]["text"], format!("{}\n", turn + 1), "{outcome}");
    }
    let _ = batch.end().exits(0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agent.py");
    let mut command = Command::new("python3");
    command.arg(script).env("COFFERDAM", env!("CARGO_BIN_EXE_cofferdam"));
    command.env("COFFERDAM_STATE", product.state()).env("HOME", product.folder().join("home"));
    let ran = finish(command).exits(0);
    // Each guess depends on the answer before it.
    assert!(ran.stdout.starts_with("turn-1: 49 is ") && ran.stdout.contains("is right ("), "{ran:?}");
    assert!(ran.stdout.lines().count() > 3, "{ran:?}");
}

#[test]
fn a_bad_line_is_answered_and_spoils_only_itself() {
    needs_root!();
    let lines = "{\"id\":\"a\",\"code\":\"print(1)\"}\n\nnonsense\n{\"id\":\"b\",\"cod\":1}\n\
                 {\"id\":\"c\",\"code\":\"print(2)\"}";
    let (ran, outcomes) = batch(&product(), &[], lines);
    let _ = ran.exits(0);
    assert_eq!(ids(&outcomes), [&json!("a"), &json!(3), &json!("b"), &json!("c")]);
    for bad in [&outcomes[1], &outcomes[2]] {
        assert_eq!(
            (&bad["end"], &bad["ran"], &bad["blame"]),
            (&json!("refused"), &json!("no"), &json!("request"))
        );
        assert!(bad["error"]["message"].as_str().unwrap().starts_with("column "), "{bad}");
        assert!(!bad["error"]["fix"].as_str().unwrap().is_empty(), "{bad}");
    }
    assert_eq!(outcomes[3]["stdout"]["text"], "2\n");
}

#[test]
fn a_job_is_held_to_its_own_narrower_policy() {
    needs_root!();
    let greedy = "x = b'x' * (100 << 20); print(len(x))";
    let lines = jobs(&[
        json!({"id": "wide", "code": greedy}),
        json!({"id": "narrow", "code": greedy, "policy": {"limits": {"memory": "40MiB"}}}),
        json!({"id": "wide again", "code": greedy}),
        json!({"id": "slow", "argv": ["sleep", "9"], "timeout": "100ms"}),
        json!({"id": "forks", "argv": ["sh", "-c", "sleep 1 & sleep 1 & sleep 1 & wait"],
               "policy": {"limits": {"pids": 2}}}),
        json!({"id": "more", "code": "1", "policy": {"limits": {"memory": "2GiB"}}}),
        json!({"id": "longer", "code": "1", "timeout": "10m"}),
        json!({"id": "kernel", "code": "1", "policy": {"require": ["separate-kernel"]}}),
    ]);
    let (ran, outcomes) = batch(&product(), &[], &lines);
    let _ = ran.exits(0);
    let end = |at: usize| outcomes[at]["end"].as_str().unwrap();
    assert_eq!((end(0), end(1), end(2)), ("exited", "out_of_memory", "exited"));
    assert!(outcomes[1]["usage"]["memory_peak"].as_u64().unwrap() <= 40 << 20, "{}", outcomes[1]);
    assert_ne!(outcomes[0]["policy_sha256"], outcomes[1]["policy_sha256"]);
    assert_eq!(outcomes[0]["policy_sha256"], outcomes[2]["policy_sha256"]);
    assert_eq!(end(3), "timed_out");
    assert_eq!(outcomes[4]["limits_hit"], json!(["pids"]), "{}", outcomes[4]);
    for (at, key) in [(5, "policy.limits.memory"), (6, "timeout"), (7, "separate-kernel")] {
        assert_eq!(end(at), "refused");
        assert!(outcomes[at]["error"]["message"].as_str().unwrap().contains(key), "{}", outcomes[at]);
    }
    assert_eq!(outcomes[5]["blame"], "request");
}

#[test]
fn a_later_job_finds_nothing_of_an_earlier_one() {
    needs_root!();
    let look = "import os\n\
        for place in ['/tmp', '/dev/shm', '/workspace', '/home/user', '/var/tmp']:\n    \
            print(place, sorted(os.listdir(place)) if os.path.isdir(place) else [])\n\
        print(len([pid for pid in os.listdir('/proc') if pid.isdigit()]), 'processes')\n";
    let leave = "import os, subprocess\n\
        for place in ['/tmp', '/dev/shm', '/workspace', '/home/user']:\n    open(place + '/left', 'w').write('x')\n\
        subprocess.Popen(['setsid', 'sleep', '309.9'])\n";
    let lines =
        jobs(&[json!({"code": look}), json!({"code": format!("{leave}{look}")}), json!({"code": look})]);
    let (ran, outcomes) = batch(&product(), &[], &lines);
    let _ = ran.exits(0);
    let seen = |at: usize| outcomes[at]["stdout"]["text"].as_str().unwrap();
    assert!(seen(1).matches("left").count() >= 4, "the control: it is there while its job runs");
    assert_eq!(seen(2), seen(0));
    assert_eq!(outcomes[1]["left"]["processes"], 1);
    assert_eq!(processes_with("sleep 309.9"), [] as [i32; 0]);
}

/// The sandboxes that a process has open.
fn sandboxes_of(pid: u32) -> Vec<i32> {
    let ours = |child: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{pid}"))
    };
    processes_with("cofferdam-guest").into_iter().filter(ours).collect()
}

/// Whether a process has ended, in the kernel's eyes and not only in its own.
fn has_ended(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:\t"));
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

#[test]
fn a_parked_sandbox_that_was_killed_is_replaced() {
    needs_root!();
    let product = product();
    let mut batch = Conversation::start(&product, &[]);
    let pid = batch.child.id();
    assert!(eventually(Duration::from_secs(10), || !sandboxes_of(pid).is_empty()), "one is parked");
    let parked = sandboxes_of(pid);
    for parked in &parked {
        let killed = Command::new("kill").args(["-9", &parked.to_string()]).status().unwrap();
        assert!(killed.success());
    }
    assert!(eventually(Duration::from_secs(10), || parked.iter().all(|pid| has_ended(*pid))), "it is dead");
    let outcome = batch.ask(&json!({"code": "print(1)"}));
    assert_eq!((&outcome["end"], &outcome["stdout"]["text"]), (&json!("exited"), &json!("1\n")), "{outcome}");
    let _ = batch.end().exits(0);
}

#[test]
fn a_batch_that_was_killed_leaves_nothing_after_a_sweep() {
    needs_root!();
    let product = alone();
    let _ = product.run(&["--", "true"]).exits(0);
    let before = Snapshot::take();
    let mut batch = Conversation::start(&product, &["--jobs", "2"]);
    let _ = batch.ask(&json!({"code": "print(1)"}));
    let sleeper = json!({"argv": ["sh", "-c", "setsid sleep 310.1 & sleep 310.1"]});
    batch.send(&sleeper);
    batch.send(&sleeper);
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 310.1").len() >= 4));
    batch.child.kill().unwrap();
    batch.child.wait().unwrap();
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 310.1").is_empty()));
    let left = Snapshot::take().new_since(&before);
    assert!(
        left.iter().any(|what| what.contains("cofferdam-r_")),
        "a kill leaves something to sweep: {left:?}"
    );
    let _ = product.call(["gc"]).exits(0);
    let clean = eventually(Duration::from_secs(5), || Snapshot::take().new_since(&before).is_empty());
    assert!(clean, "{:#?}", Snapshot::take().new_since(&before));
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
    let _ = product.call(["audit", "verify"]).exits(0);
}

#[test]
fn a_closed_standard_output_ends_a_batch() {
    needs_root!();
    let product = product();
    let mut batch = Conversation::start(&product, &["--jobs", "2"]);
    let _ = batch.ask(&json!({"code": "print(1)"}));
    let Conversation { child, mut stdin, stdout } = batch;
    drop(stdout);
    let lines = jobs(&[json!({"argv": ["sleep", "311.2"]}), json!({"code": "print(2)"})]);
    stdin.write_all(lines.as_bytes()).unwrap();
    let ran = wait(child, Instant::now()).exits(141);
    assert!(ran.took < Duration::from_secs(20), "{ran:?}");
    drop(stdin); // only now: it wasn't its end that ended the batch
    assert_eq!(processes_with("sleep 311.2"), [] as [i32; 0]);
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn the_first_signal_cancels_what_runs_and_the_second_kills() {
    needs_root!();
    let product = product();
    let mut batch = Conversation::start(&product, &[]);
    batch.send(&json!({"id": "polite", "argv": ["sleep", "312.3"]}));
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 312.3").len() == 1));
    signal(batch.child.id(), "-INT");
    let outcome = batch.answer();
    assert_eq!((&outcome["id"], &outcome["end"]), (&json!("polite"), &json!("cancelled")));
    let _ = batch.end().exits(130);

    let mut batch = Conversation::start(&product, &[]);
    let deaf = "trap '' INT; echo up > up; while :; do sleep 313.4; done";
    batch.send(&json!({"id": "deaf", "argv": ["sh", "-c", deaf]}));
    assert!(eventually(Duration::from_secs(10), || processes_with("sleep 313.4").len() >= 2));
    signal(batch.child.id(), "-INT");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!processes_with("sleep 313.4").is_empty(), "it ignores the first");
    signal(batch.child.id(), "-INT");
    let outcome = batch.answer();
    assert_eq!((&outcome["id"], &outcome["end"]), (&json!("deaf"), &json!("cancelled")));
    let _ = batch.end().exits(130);
    assert_eq!(processes_with("sleep 313.4"), [] as [i32; 0]);
    assert_eq!(std::fs::read_dir(product.state().join("runs")).unwrap().count(), 0);
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn memory_stays_flat_over_two_hundred_jobs() {
    needs_root!();
    let product = product();
    let mut batch = Conversation::start(&product, &[]);
    let pid = batch.child.id();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut early = (0, 0);
    for number in 0..200 {
        let outcome = batch.ask(&json!({"argv": ["sh", "-c", "head -c 100000 /dev/zero"]}));
        assert_eq!(outcome["stdout"]["bytes"], 100_000, "{outcome}");
        if number == 50 {
            early = (resident_kib(pid), descriptors());
        }
    }
    let late = (resident_kib(pid), descriptors());
    assert!(late.0 <= early.0 + 2048, "KiB resident after 50 and 200 jobs: {early:?} {late:?}");
    assert!(late.1 <= early.1 + 8, "descriptors after 50 and 200 jobs: {early:?} {late:?}");
    let _ = batch.end().exits(0);
}

#[test]
fn results_go_to_a_folder_by_the_jobs_id() {
    needs_root!();
    let product = product();
    let out = product.folder().join("results");
    let lines = jobs(&[
        json!({"id": "one", "code": "open('x', 'w').write('1')"}),
        json!({"id": 2, "argv": ["sh", "-c", "cat data; mv data moved"], "files": {"data": "d"}}),
        json!({"id": "one", "code": "print('again')"}),
        json!({"id": "../up", "code": "print('up')"}),
    ]);
    let (ran, outcomes) = batch(&product, &["--out", out.to_str().unwrap()], &lines);
    let _ = ran.exits(0);
    assert_eq!(outcomes[0]["artifacts"][0]["path"], "x", "{}", outcomes[0]);
    assert_eq!(std::fs::read_to_string(out.join("one/files/x")).unwrap(), "1");
    assert_eq!(std::fs::read_to_string(out.join("2/files/moved")).unwrap(), "d");
    for refused in &outcomes[2..] {
        assert_eq!((&refused["end"], &refused["blame"]), (&json!("refused"), &json!("request")), "{refused}");
    }
    assert!(!product.folder().join("up").exists());
}

#[test]
fn a_number_of_jobs_that_is_none_is_refused() {
    let ran = product().call(["batch", "--jobs", "0"]).exits(125);
    assert!(ran.stderr.contains("from 1 to 256"), "{ran:?}");
}
