//! `soak-wasm PROGRAM RUNS TEMPLATES`: one batch in WebAssembly that has very many lines, after which it has no
//! more memory than before, nothing is left, and no two lines drew the same.
//!
//! `cargo xtask soak --backend wasm` builds PROGRAM and starts this; TEMPLATES is a folder with the templates
//! `python` and `python:science`. Half of the lines run in either, in two batches that live all the time and
//! take turns; each line draws from every generator that there is, and asks for the seed of hashes. Some lines
//! between them end by themselves with a status, are ended, write files or flood. Sampled from `/proc` is the
//! memory of each batch's process and what of its worker's is nobody else's.
//!
//! Exit codes: 0 all of it holds, 1 it doesn't, and what was printed.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{Snapshot, eventually, is_root, pids};
use cofferdam_testkit::left::{left, names};
use cofferdam_testkit::product::Product;
use serde_json::{Value, json};

/// How much more memory a batch's process, and a worker, may have at the end than when it was warm, in KiB.
const GROWTH_KIB: u64 = 4096;

/// How many lines of each batch go first, and after how many its memory is looked at.
const WARM: usize = 50;
const SAMPLE: usize = 250;

/// After how many lines one goes wrong.
const WRONG_EVERY: usize = 50;

/// How long the kernel may take to take the remains apart.
const BOUND: Duration = Duration::from_secs(20);

/// Draws from everything; the first word is the seed of hashes, and the others are different in every run.
const DRAW: &str = "
import os, random, secrets, sqlite3, uuid
print(hash('abc'), random.random(), random.getrandbits(64), random.Random().random(), secrets.token_hex(8),
      uuid.uuid4(), uuid.uuid1(), os.urandom(8).hex(), *sqlite3.connect(':memory:').execute('select random()').fetchone(),
      *sqlite3.Connection(':memory:').execute('select random()').fetchone())
open('left', 'w').write('left'); open('/tmp/left', 'w').write('left')
";

const DRAW_WITH_NUMPY: &str = "
import numpy
print(numpy.random.default_rng().integers(2**63), numpy.random.random(), numpy.random.RandomState().random_sample())
";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (program, runs, templates) = match &args[..] {
        [program, runs, templates] => (program, runs.parse::<usize>(), Path::new(templates)),
        _ => return cannot("name the program, the number of runs and the folder of templates"),
    };
    let Ok(runs) = runs else { return cannot("the second word is no number of runs") };
    if !is_root() {
        return cannot("needs root, whose runs have everything that could be left");
    }
    let (began, empty) = (Instant::now(), Snapshot::take());
    let product = Product::alone(program).with_python(templates, &["python", "python:science"]);
    let Some(product) = product else { return cannot("there is no template of Python in that folder") };
    let mut drawn = Drawn::default();
    let mut wrong = lines(&product, runs, &mut drawn);
    wrong.extend(drawn.wrong());
    let _ = product.call(["gc"]);
    if !eventually(BOUND, || left(&product, &empty).is_empty()) {
        wrong.extend(left(&product, &empty));
    }
    let verified = product.call(["audit", "verify"]);
    if verified.code != 0 {
        wrong.push(format!("the audit log doesn't verify: {verified:?}"));
    }
    wrong.truncate(50); // one that repeats says no more
    wrong.iter().for_each(|what| println!("{what}"));
    let (seconds, drawn, findings) = (began.elapsed().as_secs(), drawn.seen.len(), wrong.len());
    println!("soak-wasm: {runs} lines in {seconds} s, {drawn} numbers drawn, {findings} findings");
    ExitCode::from(u8::from(!wrong.is_empty()))
}

fn cannot(why: &str) -> ExitCode {
    eprintln!("soak-wasm: {why}");
    ExitCode::from(2)
}

/// Has two batches run all lines, and says what is wrong with their answers and with what they grew by.
fn lines(product: &Product, runs: usize, drawn: &mut Drawn) -> Vec<String> {
    let science = format!("{DRAW_WITH_NUMPY}{DRAW}");
    let mut batches = [("python", DRAW), ("python:science", science.as_str())]
        .map(|(name, code)| Lines::begin(product, name, code));
    let mut wrong = vec![];
    let mut all = |batches: &mut [Lines<'_>; 2], count: usize| {
        for number in 0..count {
            wrong.extend(batches[number % 2].line(number / 2, drawn));
        }
        wrong.extend(calm(batches, drawn));
        (batches.each_ref().map(Lines::memory), remains(product))
    };
    let (before, kept) = all(&mut batches, 2 * WARM);
    let (after, left) = all(&mut batches, runs);
    if kept != left {
        wrong.push(format!("there was {kept:?} and is {left:?}"));
    }
    for (batch, (before, after)) in batches.into_iter().zip(before.into_iter().zip(after)) {
        wrong.extend(batch.grown(before, after));
        wrong.extend(batch.end());
    }
    wrong
}

/// Some lines that are fine, after which a worker has of an earlier one what it keeps, and no more.
fn calm(batches: &mut [Lines<'_>], drawn: &mut Drawn) -> Vec<String> {
    (0..4)
        .flat_map(|number| {
            batches.iter_mut().filter_map(|batch| batch.line(number, drawn)).collect::<Vec<_>>()
        })
        .collect()
}

/// Everything that was drawn, and the seeds of hashes by template.
#[derive(Default)]
struct Drawn {
    seen: HashSet<String>,
    twice: Vec<String>,
    hashes: [BTreeSet<String>; 2],
}

impl Drawn {
    fn take(&mut self, is_science: bool, text: &str) {
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        // NumPy's three come first.
        let hash = words.remove(if is_science { 3 } else { 0 });
        self.hashes[usize::from(is_science)].insert(hash);
        for word in words {
            if !self.seen.insert(word.clone()) {
                self.twice.push(word);
            }
        }
    }

    fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<_> = self.twice.iter().map(|word| format!("{word} was drawn twice")).collect();
        let [python, science] = &self.hashes;
        if python.len() != 1 || science.len() != 1 || python == science {
            wrong.push(format!("the seeds of hashes are {python:?} and {science:?}"));
        }
        wrong
    }
}

/// What may not grow.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    own_kib: u64,
    worker_kib: u64,
    descriptors: usize,
}

/// A batch whose lines run in one template.
struct Lines<'a> {
    name: &'static str,
    code: &'a str,
    batch: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    most: Memory,
}

impl<'a> Lines<'a> {
    fn begin(product: &Product, name: &'static str, code: &'a str) -> Self {
        let mut command = product.command(["batch", "--backend", "wasm", "--quiet"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut batch = command.spawn().unwrap();
        let (stdin, stdout) = (batch.stdin.take().unwrap(), BufReader::new(batch.stdout.take().unwrap()));
        Lines { name, code, batch, stdin, stdout, most: Memory::default() }
    }

    /// Runs one line; says what is wrong with its answer.
    fn line(&mut self, number: usize, drawn: &mut Drawn) -> Option<String> {
        let goes_wrong =
            (number % WRONG_EVERY == WRONG_EVERY - 1).then(|| &WRONG[number / WRONG_EVERY % WRONG.len()]);
        let code = goes_wrong.map_or(self.code, |(code, _)| code);
        let job = json!({"code": code, "timeout": if goes_wrong.is_some() { "5s" } else { "60s" }});
        self.stdin.write_all(format!("{job}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        let outcome: Value = serde_json::from_str(&answer).unwrap_or_default();
        if number % SAMPLE == SAMPLE / 2 {
            let now = self.memory();
            self.most.own_kib = self.most.own_kib.max(now.own_kib);
            self.most.worker_kib = self.most.worker_kib.max(now.worker_kib);
        }
        if let Some((_, end)) = goes_wrong {
            return (outcome["end"] != *end).then(|| format!("{}: {outcome} instead of {end}", self.name));
        }
        if outcome["exit_code"] != 0 {
            return Some(format!("{}: line {number}: {answer}", self.name));
        }
        drawn.take(self.name != "python", outcome["stdout"]["text"].as_str().unwrap_or_default());
        None
    }

    fn memory(&self) -> Memory {
        let pid = self.batch.id() as i32;
        Memory {
            own_kib: field(pid, "status", "VmRSS:").unwrap_or(0),
            worker_kib: workers_below(pid)
                .filter_map(|pid| field(pid, "smaps_rollup", "Private_Dirty:"))
                .sum(),
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        }
    }

    /// What it has more of than when it was warm.
    fn grown(&self, before: Memory, after: Memory) -> Vec<String> {
        let name = self.name;
        println!("{name}: {before:?} when it was warm, {after:?} at the end, at most {:?}", self.most);
        let more = |what: &str, before: u64, after: u64, least: u64| {
            (after > before + least).then(|| format!("{name}: {what}: {before}, then {after}"))
        };
        let descriptors = [before, after].map(|memory| memory.descriptors as u64);
        [
            more("KiB of its process", before.own_kib, after.own_kib, GROWTH_KIB),
            more("KiB of its workers", before.worker_kib, after.worker_kib, GROWTH_KIB),
            more("descriptors", descriptors[0], descriptors[1], 0),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Ends it.
    fn end(self) -> Option<String> {
        let Lines { name, mut batch, stdin, stdout, .. } = self;
        drop(stdin);
        let status = batch.wait().unwrap();
        drop(stdout);
        status.code().is_none().then(|| format!("{name}: the batch ended with {status}"))
    }
}

/// What goes wrong now and then, and how it ends.
const WRONG: [(&str, &str); 5] = [
    ("raise SystemExit(3)", "exited"),
    ("x = []\nwhile True: x.append(bytes(1 << 24))", "out_of_memory"),
    ("import os\nos.abort()", "signalled"),
    ("for _ in range(2000): print('y' * 999)", "exited"),
    ("open('/tmp/big', 'wb').write(bytes(50 << 20))", "exited"),
];

/// A number of a file of `/proc` about a process.
fn field(pid: i32, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The workers below a process.
fn workers_below(above: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: i32| field(pid, "status", "PPid:").map(|pid| pid as i32);
    let below = move |pid: &i32| {
        std::iter::successors(Some(*pid), |pid| parent(*pid)).take(16).any(|pid| pid == above)
    };
    let works = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0wasm-worker\0"))
    };
    pids().filter(works).filter(below)
}

/// Everything that could be left beside the log: the host's mounts and cgroups, our folder, what is prepared.
fn remains(product: &Product) -> [Vec<String>; 3] {
    let host = Snapshot::take();
    let mounts = host.mounts.into_iter().collect();
    [mounts, names(product.folder()), names(&product.folder().join("data/wasm"))]
}
