//! The benchmark of credentials: how soon one is dead after its run, and what swapping one costs a request.
//!
//! `credentials-bench` of the testkit does it, against a real PostgreSQL, a real Redis and an origin of its own. Where one
//! of the servers isn't installed, it says so and there are no figures.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::{Value, json};

use super::egress::{build, printed, samples};
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "credentials",
    gates: &[
        "credential_dead_postgres_ms",
        "credential_dead_redis_ms",
        "credential_dead_surrogate_ms",
        "credential_swap_adds_ms",
    ],
    run,
};

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    if !options.only.is_empty() {
        return Err(Problem::Stop("`credentials` compares things in turns; it has no --only".to_owned()));
    }
    let product = super::start::build(workspace)?;
    let bench =
        build(workspace, &["--package=cofferdam-testkit", "--bin=credentials-bench"], "credentials-bench")?;
    let mut command = Command::new(&bench);
    command.arg(&product).args([options.rounds, options.warmup].map(|number| number.to_string()));
    Ok(report(&printed(&mut command)?, options))
}

fn report(measured: &Value, options: &Options) -> Report {
    let p50 = |what: &Value| samples(what).map(|samples| samples.percentile(50));
    let (dead, requests) = (&measured["dead_ms"], &measured["requests_ms"]);
    let adds = || Some(p50(&requests["swapped"])? - p50(&requests["not swapped"])?);
    let all = [
        ("credential_dead_postgres_ms", p50(&dead["postgres"])),
        ("credential_dead_redis_ms", p50(&dead["redis"])),
        ("credential_dead_surrogate_ms", p50(&dead["surrogate"])),
        ("credential_swap_adds_ms", adds()),
    ];
    let figures = all.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect();
    let details = json!({
        "rounds": options.rounds,
        "warmup": options.warmup,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "measured": measured,
    });
    Report { table: table(measured, options), figures, left_out: vec![], details }
}

fn table(measured: &Value, options: &Options) -> String {
    let mut text = format!(
        "credentials: from the end of the program until each is seen dead; ms; {} rounds after {} discarded\n\n",
        options.rounds, options.warmup
    );
    let mut lines = |title: &str, all: &Value, names: &[&str]| {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{title:<34}{:>9}{:>9}{:>9}", "min", "p50", "p95");
        for (name, samples) in names.iter().filter_map(|name| Some((name, samples(&all[*name])?))) {
            let [p50, p95] = [50, 95].map(|percent| samples.percentile(percent));
            let _ = writeln!(text, "  {name:<32}{:>9.3}{p50:>9.3}{p95:>9.3}", samples.min());
        }
    };
    lines("dead, with a session open", &measured["dead_ms"], &["surrogate", "redis", "postgres"]);
    lines("a small request, kept connection", &measured["requests_ms"], &["not swapped", "swapped"]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_has_a_figure_of_medians_measured_together() {
        let measured = json!({
            "dead_ms": { "surrogate": [1.0, 2.0, 9.0], "redis": [3.0], "postgres": [12.0] },
            "requests_ms": { "swapped": [0.5, 0.6, 0.9], "not swapped": [0.4] },
        });
        let report = report(&measured, &super::super::parse(&[]).unwrap());
        let names: Vec<_> = report.figures.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, BENCHMARK.gates);
        let figures: Vec<_> =
            report.figures.iter().map(|(_, figure)| (figure * 10.0).round() / 10.0).collect();
        assert_eq!(figures, [12.0, 3.0, 2.0, 0.2]);
    }
}
