//! The batch benchmark: forty snippets of Python, each in a fresh sandbox.
//!
//! Cofferdam gets them as the lines of one `batch`; bubblewrap is started forty times, with the same
//! code. The two take turns. A time counts only if every snippet printed what it prints without a
//! sandbox, and if every Outcome says that everything was enforced.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::contender::{self, Contender, Scratch, complaint};
use super::stats::Samples;
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark { name: "batch", gates: &["batch_vs_bwrap"], run };

const NAMES: [&str; 2] = ["bwrap", "cofferdam"];

/// The jobs, below the workspace's root.
const JOBS: &str = "examples/forty.jsonl";

/// One job, and what it prints.
struct Snippet {
    code: String,
    printed: String,
}

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    if !options.only.is_empty() {
        return Err(Problem::Stop("`batch` compares two things; it has no --only".to_owned()));
    }
    let jobs = workspace.root.join(JOBS);
    let snippets = snippets(&jobs)?;
    let binary = super::start::build(workspace)?;
    let scratch = Scratch::new()?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..options.warmup + options.rounds {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let took = match which {
                0 => forty_of_bwrap(&scratch, &snippets)?,
                _ => one_batch(&binary, &scratch, &jobs, &snippets)?,
            };
            if round >= options.warmup {
                times[which].push(took);
            }
        }
    }
    Ok(report(&times.map(Samples::new), options))
}

/// The jobs of the file, with what each prints without a sandbox.
fn snippets(path: &Path) -> Result<Vec<Snippet>, Problem> {
    let text = std::fs::read_to_string(path).map_err(Problem::at("read", path))?;
    let snippet = |line: &str| {
        let job: Value = serde_json::from_str(line).map_err(Problem::form(path.display()))?;
        let code = job["code"].as_str().unwrap_or_default().to_owned();
        let printed = printed(Command::new("/usr/bin/python3").args(["-c", &code]), "python3")?;
        Ok(Snippet { code, printed })
    };
    text.lines().map(snippet).collect()
}

/// What a command prints; an end other than success is a problem.
fn printed(command: &mut Command, name: &str) -> Result<String, Problem> {
    let output = command.stdin(Stdio::null()).output().map_err(Problem::starting(name))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Problem::Stop(format!("{name} ended with {}: {}", output.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The time of forty runs of bubblewrap, in milliseconds.
fn forty_of_bwrap(scratch: &Scratch, snippets: &[Snippet]) -> Result<f64, Problem> {
    let start = Instant::now();
    for Snippet { code, printed: expected } in snippets {
        let program = ["/usr/bin/python3", "-c", code];
        let said = printed(&mut Contender::Bwrap.command(scratch, 0, &program), "bwrap")?;
        if said != *expected {
            return Err(Problem::Stop(format!("bwrap printed {said:?} instead of {expected:?}")));
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}

/// The time of one batch, in milliseconds.
fn one_batch(binary: &Path, scratch: &Scratch, jobs: &Path, snippets: &[Snippet]) -> Result<f64, Problem> {
    let input = File::open(jobs).map_err(Problem::at("open", jobs))?;
    let mut command = contender::batch(binary, scratch);
    let start = Instant::now();
    let output = command.stdin(input).output().map_err(Problem::starting("cofferdam"))?;
    let took = start.elapsed().as_secs_f64() * 1000.0;
    let answers = String::from_utf8_lossy(&output.stdout);
    let mut left = snippets.iter();
    for line in answers.lines() {
        let outcome: Value = serde_json::from_str(line).map_err(Problem::form("an answer"))?;
        let expected = left.next().map(|snippet| snippet.printed.as_str());
        let wrong = outcome["stdout"]["text"].as_str() != expected;
        if let Some(complaint) = complaint(&outcome).or(wrong.then(|| "it printed something else".to_owned()))
        {
            return Err(Problem::Stop(format!("a batch does not count: {complaint}; an Outcome: {outcome}")));
        }
    }
    if !output.status.success() || left.next().is_some() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Problem::Stop(format!(
            "the batch ended with {} before every job was answered: {}",
            output.status,
            said.trim()
        )));
    }
    Ok(took)
}

fn report(times: &[Samples; 2], options: &Options) -> Report {
    let [bwrap, product] = times;
    let ratio = product.percentile(50) / bwrap.percentile(50);
    let mut table = format!(
        "batch: forty snippets of Python, each in a fresh sandbox; ms for all; {} rounds after {} discarded\n\n",
        options.rounds, options.warmup
    );
    // Writing to a String can't fail.
    let _ = writeln!(table, "{:<12}{:>9}{:>9}{:>9}{:>14}", "", "min", "p50", "p95", "p50 for one");
    for (name, samples) in NAMES.iter().zip(times) {
        let (p50, p95) = (samples.percentile(50), samples.percentile(95));
        let _ = writeln!(table, "{name:<12}{:>9.1}{p50:>9.1}{p95:>9.1}{:>14.2}", samples.min(), p50 / 40.0);
    }
    let contenders: serde_json::Map<String, Value> = NAMES
        .iter()
        .zip(times)
        .map(|(name, samples)| ((*name).to_owned(), json!({ "samples_ms": samples.values() })))
        .collect();
    let details = json!({
        "rounds": options.rounds,
        "warmup": options.warmup,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "contenders": contenders,
        "figures": { "batch_vs_bwrap": ratio },
    });
    Report { table, figures: vec![("batch_vs_bwrap", ratio)], left_out: vec![], details }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_medians_measured_together() {
        let options = super::super::parse(&[]).unwrap();
        let times = [Samples::new(vec![400.0, 500.0, 900.0]), Samples::new(vec![250.0, 250.0, 900.0])];
        assert_eq!(report(&times, &options).figures, [("batch_vs_bwrap", 0.5)]);
    }

    #[test]
    fn there_are_forty_jobs() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(JOBS);
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 40);
    }
}
