//! `soak PROGRAM RUNS`: many mixed runs, after which the host is as it was.
//!
//! `cargo xtask soak` builds PROGRAM and starts this. Every kind of run goes first once, so that what is
//! made once and kept is there; then come so many more in turns, beside a `batch` that lives all the time.
//! Then must be as before: the host's mounts, namespaces, cgroups, loop devices and files, our folder, the
//! state folder but for the log; and of the batch's process its descriptors and, up to [`GROWTH_KIB`], its
//! memory. The log must verify, with an end for every run.
//!
//! Exit codes: 0 all of it holds, 1 it doesn't, and what was printed.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{Snapshot, eventually, is_root, processes_with};
use cofferdam_testkit::left::{left, names};
use cofferdam_testkit::product::{Product, start, wait};
use serde_json::{Value, json};

/// How much more memory the batch's process may have resident afterwards, in KiB.
const GROWTH_KIB: u64 = 2048;

/// What is on the command line of every program that would go on for long.
const SLEEP: &str = "sleep 313.9";

/// How long a run may take to be in the middle of itself, and the kernel to take its remains apart.
const BOUND: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(program), Some(Ok(runs))) = (args.next(), args.next().map(|runs| runs.parse::<usize>())) else {
        eprintln!("soak: name the program and the number of runs");
        return ExitCode::from(2);
    };
    if !is_root() {
        eprintln!("soak: needs root, whose runs have everything that could be left");
        return ExitCode::from(2);
    }
    let (began, empty) = (Instant::now(), Snapshot::take());
    let mut soak = Soak::begin(&program);
    let mut wrong = vec![];
    for kind in KINDS.iter().chain(KINDS) {
        wrong.extend(soak.run(kind));
    }
    let before = soak.look();
    for number in 0..runs {
        let kind = &KINDS[number % KINDS.len()];
        wrong.extend(soak.run(kind).map(|what| format!("run {number}: {what}")));
    }
    let late = soak.look();
    wrong.extend(differences(&before, &late));
    let counts: Vec<_> = soak.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    wrong.extend(soak.end(&empty));
    for what in &wrong {
        println!("{what}");
    }
    let seconds = began.elapsed().as_secs();
    println!("{}", counts.join(", "));
    println!(
        "soak: {runs} runs in {seconds} s, {} findings; the batch: {} then {} KiB, {} then {} descriptors",
        wrong.len(),
        before.resident_kib,
        late.resident_kib,
        before.descriptors,
        late.descriptors
    );
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// One kind of run.
struct Kind {
    name: &'static str,
    /// How it ends: the exit code of `run`, unless it isn't one.
    code: i32,
    how: How,
}

enum How {
    /// A run with these words.
    Run(&'static [&'static str]),
    /// The same, killed when its program is there.
    Killed,
    /// The same, with an interrupt.
    Interrupted,
    /// A folder that is shown and changed, with what came out.
    Workspace,
    /// A job of the batch that lives all the time.
    Job(&'static str),
    /// A batch of its own.
    Batch,
}

const KINDS: &[Kind] = &[
    Kind { name: "command", code: 0, how: How::Run(&["--", "true"]) },
    Kind { name: "script", code: 0, how: How::Run(&["-c", "print(sum(range(9)))"]) },
    Kind { name: "job", code: 0, how: How::Job(r#"{"argv":["sh","-c","head -c 100000 /dev/zero"]}"#) },
    Kind { name: "survivor", code: 3, how: How::Run(&["--", "sh", "-c", "setsid sleep 313.9 & exit 3"]) },
    Kind { name: "timeout", code: 124, how: How::Run(&["--timeout", "60ms", "--", "sleep", "313.9"]) },
    Kind { name: "killed", code: -1, how: How::Killed },
    Kind { name: "workspace", code: 0, how: How::Workspace },
    Kind {
        name: "out of memory",
        code: 137,
        how: How::Run(&["--memory", "32MiB", "-c", "x = bytearray(b'1') * (1 << 28)"]),
    },
    Kind { name: "job with files", code: 0, how: How::Job(r#"{"code":"open('d')","files":{"d":"1"}}"#) },
    Kind { name: "refused", code: 125, how: How::Run(&["--require", "egress", "--", "true"]) },
    Kind { name: "not found", code: 127, how: How::Run(&["--", "no-such-program"]) },
    Kind { name: "interrupted", code: 130, how: How::Interrupted },
    Kind { name: "job that is none", code: 125, how: How::Job(r#"{"argv":[]}"#) },
    Kind { name: "flood", code: 153, how: How::Run(&["--output-limit", "64KiB", "--", "yes"]) },
    Kind { name: "terminal", code: 0, how: How::Run(&["-t", "--", "tty"]) },
    Kind {
        name: "large disk",
        code: 0,
        how: How::Run(&["--memory", "32MiB", "--disk", "64MiB", "--", "true"]),
    },
    Kind { name: "batch", code: 0, how: How::Batch },
];

/// What must be the same before and after.
struct Look {
    host: Snapshot,
    folder: Vec<String>,
    descriptors: usize,
    resident_kib: u64,
}

struct Soak {
    product: Product,
    batch: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    counts: BTreeMap<&'static str, usize>,
}

impl Soak {
    fn begin(program: &str) -> Soak {
        let product = Product::alone(program);
        fs::create_dir(product.folder().join("work")).unwrap();
        product.file("work/kept", "as it was\n");
        product.file("jobs", "{\"argv\":[\"true\"]}\n{\"code\":\"print(1)\"}\nno job\n");
        // Nothing that either says fills a pipe that nobody reads.
        let mut command = product.command(["batch", "--profile", "internal", "--quiet"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut batch = command.spawn().unwrap();
        let (stdin, stdout) = (batch.stdin.take().unwrap(), BufReader::new(batch.stdout.take().unwrap()));
        Soak { product, batch, stdin, stdout, counts: BTreeMap::new() }
    }

    /// Makes one run; says what is wrong with how it ended.
    fn run(&mut self, kind: &Kind) -> Option<String> {
        *self.counts.entry(kind.name).or_default() += 1;
        let code = match kind.how {
            How::Run(words) => self.product.run(words).code,
            How::Killed => self.amid(|child| child.kill().unwrap()),
            How::Interrupted => self.amid(|child| {
                Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
            }),
            How::Workspace => self.workspace(),
            How::Job(job) => self.job(job),
            How::Batch => {
                let mut command = self.product.command(["batch", "--profile", "internal", "--quiet"]);
                command.stdin(fs::File::open(self.product.folder().join("jobs")).unwrap());
                wait(start(&mut command), Instant::now()).code
            }
        };
        (code != kind.code).then(|| format!("{}: ended with {code} instead of {}", kind.name, kind.code))
    }

    /// Does something to a run whose program is there, and gives how it ends.
    fn amid(&self, act: impl FnOnce(&mut Child)) -> i32 {
        let script = format!("echo on; {SLEEP}");
        let mut child =
            start(&mut self.product.command(["run", "--profile", "internal", "--", "sh", "-c", &script]));
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "on\n");
        act(&mut child);
        let code = wait(child, Instant::now()).code;
        eventually(BOUND, || processes_with(SLEEP).is_empty());
        code
    }

    fn workspace(&self) -> i32 {
        let folder = self.product.folder();
        let place = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let (work, out, diff, input) = (place("work"), place("out"), place("diff"), place("jobs"));
        let script = "cat /inputs/jobs > new; echo more >> kept; mkdir d; ln -s ../kept d/l";
        let words = ["--workspace", &work, "--in", &input, "--out", &out, "--diff", &diff];
        let ran = self.product.run(&[&words[..], &["--", "sh", "-c", script]].concat());
        let whole = folder.join("out/changes.json").exists() && folder.join("out/files/new").exists();
        if whole { ran.code } else { -1 }
    }

    fn job(&mut self, job: &str) -> i32 {
        self.stdin.write_all(format!("{job}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let outcome: Value = serde_json::from_str(&line).unwrap_or_default();
        if outcome["end"] == "refused" { 125 } else { outcome["exit_code"].as_i64().unwrap_or(-1) as i32 }
    }

    /// Looks when nothing is under way but the batch, whose parked sandbox is there.
    fn look(&mut self) -> Look {
        let _ = self.product.call(["gc"]);
        std::thread::sleep(Duration::from_secs(1)); // the batch makes a sandbox ahead meanwhile
        let process = format!("/proc/{}", self.batch.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Look {
            host: Snapshot::take(),
            folder: names(self.product.folder()),
            descriptors: fs::read_dir(format!("{process}/fd")).unwrap().count(),
            resident_kib: resident.split_whitespace().next().unwrap().parse().unwrap(),
        }
    }

    /// Ends the batch; nothing at all is left then.
    fn end(self, empty: &Snapshot) -> Vec<String> {
        let Soak { product, mut batch, stdin, stdout, .. } = self;
        drop(stdin);
        let mut wrong = vec![];
        let status = batch.wait().unwrap();
        drop(stdout);
        // A line that is none is answered, and the batch goes on.
        if status.code().is_none() {
            wrong.push(format!("the batch ended with {status}"));
        }
        let _ = product.call(["gc"]);
        if !eventually(BOUND, || left(&product, empty).is_empty()) {
            wrong.extend(left(&product, empty));
        }
        let verified = product.call(["audit", "verify"]);
        if verified.code != 0 {
            wrong.push(format!("the audit log doesn't verify: {verified:?}"));
        }
        let log = fs::read_to_string(product.state().join("audit/log.ndjson")).unwrap();
        let count = |name: &str| log.matches(&format!("\"event\":{}", json!(name))).count();
        if count("task.start") != count("task.end") {
            let (starts, ends) = (count("task.start"), count("task.end"));
            wrong.push(format!("the log has {starts} starts of runs and {ends} ends"));
        }
        wrong
    }
}

/// What differs from an earlier look.
fn differences(before: &Look, now: &Look) -> Vec<String> {
    let mut wrong = vec![];
    let namespaces = [&before.host, &now.host].map(|host| host.namespaces.len());
    if namespaces[1] > namespaces[0] {
        wrong.push(format!("namespaces before and after: {namespaces:?}"));
    }
    if now.host.mounts != before.host.mounts {
        wrong.push(format!("mounts: {:?}", now.host.mounts.symmetric_difference(&before.host.mounts)));
    }
    if now.folder != before.folder {
        wrong.push(format!("beside the results there was {:?} and is {:?}", before.folder, now.folder));
    }
    if now.descriptors > before.descriptors {
        wrong.push(format!("the batch has {} descriptors, {} before", now.descriptors, before.descriptors));
    }
    if now.resident_kib > before.resident_kib + GROWTH_KIB {
        wrong.push(format!("the batch has {} KiB, {} before", now.resident_kib, before.resident_kib));
    }
    wrong
}
