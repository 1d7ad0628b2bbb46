//! The start benchmark: how long until a fresh Python in a sandbox has printed a line and is gone.
//!
//! The contenders take turns, and each round begins with another one, so that a slow moment of the
//! machine and what one leaves behind for the next fall on all alike. Then one program sleeps in
//! Cofferdam's sandbox and the memory of Cofferdam's own processes is read.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use super::contender::{Contender, Scratch, check_outcome};
use super::memory::{self, Snapshot};
use super::stats::Samples;
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "start",
    gates: &["binary_mib", "own_pss_mib", "start_p95_vs_p50", "start_vs_bwrap_p50", "start_vs_runc_p50"],
    run,
};

const NAMES: &[&str] = &["bare", "bwrap", "runc", "cofferdam"];

const SLEEP: &[&str] = &["/bin/sleep", "0.5"];

/// How often the memory is read through; the largest reading counts.
const MEMORY_RUNS: usize = 3;

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    let contenders = choose(workspace, options)?;
    let scratch = Scratch::new()?;
    for contender in &contenders {
        contender.prepare(&scratch)?;
    }
    let times = take_turns(&contenders, options, &scratch)?;
    let product = contenders.iter().find_map(|contender| match contender {
        Contender::Cofferdam(binary) => Some((contender, binary)),
        _ => None,
    });
    let memory = match product {
        Some((contender, _)) => own_memory(contender, &scratch)?,
        None => Snapshot::new(),
    };
    let mut figures = ratios(&times);
    if let Some((_, binary)) = product {
        figures.push(("own_pss_mib", memory::total_mib(&memory)));
        figures.push(("binary_mib", size_mib(binary)?));
    }
    let table = table(&times, &memory, &figures, options);
    let details = details(&times, &memory, &figures, options);
    Ok(Report { table, figures, left_out: vec![], details })
}

fn choose(workspace: &Workspace, options: &Options) -> Result<Vec<Contender>, Problem> {
    if let Some(stranger) = options.only.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(Problem::Stop(format!("`{stranger}` is no contender; there are: {}", NAMES.join(", "))));
    }
    let mut contenders = Vec::new();
    for name in
        NAMES.iter().filter(|name| options.only.is_empty() || options.only.iter().any(|only| only == *name))
    {
        contenders.push(match *name {
            "bare" => Contender::Bare,
            "bwrap" => Contender::Bwrap,
            "runc" => Contender::Runc,
            _ => Contender::Cofferdam(build(workspace)?),
        });
    }
    Ok(contenders)
}

/// Builds the product for release and gives back where cargo put it.
pub(super) fn build(workspace: &Workspace) -> Result<PathBuf, Problem> {
    let args = ["build", "--release", "--package=cofferdam", "--message-format=json-render-diagnostics"];
    let output = workspace
        .cargo()
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(Problem::starting("cargo build"))?;
    if !output.status.success() {
        return Err(Problem::Stop("the product doesn't build; the compiler's messages are above".to_owned()));
    }
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let ours = message["target"]["name"] == "cofferdam" && message["target"]["kind"][0] == "bin";
        message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(executable)
        .ok_or_else(|| Problem::Stop("the crate `cofferdam` has no program of that name".to_owned()))
}

/// The times of one contender, in milliseconds.
struct Times {
    name: &'static str,
    samples: Samples,
}

fn take_turns(contenders: &[Contender], options: &Options, scratch: &Scratch) -> Result<Vec<Times>, Problem> {
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    for round in 0..options.warmup + options.rounds {
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            let took = contenders[index].run(scratch, round)?;
            if round >= options.warmup {
                values[index].push(took.as_secs_f64() * 1000.0);
            }
        }
    }
    let named = contenders.iter().zip(values);
    Ok(named.map(|(each, values)| Times { name: each.name(), samples: Samples::new(values) }).collect())
}

fn own_memory(product: &Contender, scratch: &Scratch) -> Result<Snapshot, Problem> {
    let mut largest = Snapshot::new();
    for number in 0..MEMORY_RUNS {
        let (snapshot, status) = memory::peak(&mut product.command(scratch, number, SLEEP))?;
        if !status.success() {
            return Err(Problem::Stop(format!("the run whose memory was measured ended with {status}")));
        }
        check_outcome(&scratch.outcome())?;
        if memory::total_mib(&snapshot) > memory::total_mib(&largest) {
            largest = snapshot;
        }
    }
    Ok(largest)
}

fn ratios(times: &[Times]) -> Vec<(&'static str, f64)> {
    let of = |name: &str| times.iter().find(|times| times.name == name).map(|times| &times.samples);
    let mut figures = Vec::new();
    let Some(product) = of("cofferdam") else { return figures };
    figures.push(("start_p95_vs_p50", product.percentile(95) / product.percentile(50)));
    for (figure, other) in [("start_vs_bwrap_p50", "bwrap"), ("start_vs_runc_p50", "runc")] {
        if let Some(other) = of(other) {
            figures.push((figure, product.percentile(50) / other.percentile(50)));
        }
    }
    figures
}

fn size_mib(path: &Path) -> Result<f64, Problem> {
    let bytes = fs::metadata(path).map_err(Problem::at("look at", path))?.len();
    Ok(bytes as f64 / 1_048_576.0)
}

fn table(times: &[Times], memory: &Snapshot, figures: &[(&str, f64)], options: &Options) -> String {
    let mut text = format!(
        "start: a fresh Python prints one line; ms from spawn to reaped; {} rounds after {} discarded\n\n",
        options.rounds, options.warmup
    );
    let bare = times.iter().find(|times| times.name == "bare").map(|times| times.samples.percentile(50));
    // Writing to a String can't fail.
    let _ = writeln!(text, "{:<12}{:>9}{:>9}{:>9}{:>14}", "", "min", "p50", "p95", "p50 - bare");
    for Times { name, samples } in times {
        let (p50, p95) = (samples.percentile(50), samples.percentile(95));
        let _ = write!(text, "{name:<12}{:>9.2}{p50:>9.2}{p95:>9.2}", samples.min());
        let _ = match bare {
            Some(bare) => writeln!(text, "{:>14.2}", p50 - bare),
            None => writeln!(text, "{:>14}", "-"),
        };
    }
    if !memory.is_empty() {
        let _ = writeln!(text, "\nown processes while a program sleeps, PSS:");
        for process in memory {
            let _ = writeln!(text, "{:<16}{:>9} KiB", process.name, process.pss_kib);
        }
    }
    if let Some((_, mib)) = figures.iter().find(|(name, _)| *name == "binary_mib") {
        let _ = writeln!(text, "\nrelease binary: {mib:.2} MiB");
    }
    text
}

fn details(times: &[Times], memory: &Snapshot, figures: &[(&str, f64)], options: &Options) -> Value {
    let contenders: serde_json::Map<String, Value> = times
        .iter()
        .map(|Times { name, samples }| {
            let summary = json!({
                "min_ms": samples.min(),
                "p50_ms": samples.percentile(50),
                "p95_ms": samples.percentile(95),
                "samples_ms": samples.values(),
            });
            ((*name).to_owned(), summary)
        })
        .collect();
    let processes: Vec<Value> =
        memory.iter().map(|process| json!({ "name": process.name, "pss_kib": process.pss_kib })).collect();
    let figures: serde_json::Map<String, Value> =
        figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect();
    json!({
        "rounds": options.rounds,
        "warmup": options.warmup,
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "contenders": contenders,
        "own_processes": processes,
        "figures": figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(name: &'static str, values: &[f64]) -> Times {
        Times { name, samples: Samples::new(values.to_vec()) }
    }

    #[test]
    fn ratios_are_of_medians_measured_together() {
        let all = [
            times("bwrap", &[4.0, 4.0, 4.0]),
            times("runc", &[16.0, 16.0, 16.0]),
            times("cofferdam", &[4.0, 5.0, 10.0]),
        ];
        let figures = ratios(&all);
        let figure = |name| figures.iter().find(|(key, _)| *key == name).unwrap().1;
        assert_eq!(figure("start_vs_bwrap_p50"), 1.25);
        assert_eq!(figure("start_vs_runc_p50"), 0.3125);
        assert_eq!(figure("start_p95_vs_p50"), 2.0);
    }

    #[test]
    fn without_the_product_there_is_no_ratio() {
        assert!(ratios(&[times("bwrap", &[4.0])]).is_empty());
    }
}
