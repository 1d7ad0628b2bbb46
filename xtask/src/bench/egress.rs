//! The egress benchmark: what a way out costs whoever uses it, and whoever doesn't.
//!
//! `egress-bench` of the testkit has curl ask one origin directly, out of a sandbox and through mitmproxy, in turns;
//! `reach_cost`, an example of the product's, opens containers with and without a way out, in turns. Where mitmproxy
//! isn't there, the gates that compare with it are left out by name.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::stats::Samples;
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "egress",
    gates: &[
        "capture_adds_ms",
        "egress_200_connections_vs_one",
        "egress_download_vs_mitmproxy",
        "egress_idle_proxy_mib",
        "egress_pass_through_vs_direct",
        "egress_request_adds_ms",
        "egress_request_vs_mitmproxy",
        "egress_terminated_vs_direct",
    ],
    run,
};

/// Gates that need the other proxy.
const WITH_MITMPROXY: [&str; 2] = ["egress_download_vs_mitmproxy", "egress_request_vs_mitmproxy"];

const NAMES: [&str; 4] = ["direct", "passed through", "terminated", "mitmproxy"];

/// Containers with and without a way out for each round: those take 10 ms, a round of requests a second.
const CONTAINERS_EACH_ROUND: usize = 5;

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    if !options.only.is_empty() {
        return Err(Problem::Stop("`egress` compares things in turns; it has no --only".to_owned()));
    }
    let product = super::start::build(workspace)?;
    let ways = build(workspace, &["--package=cofferdam-testkit", "--bin=egress-bench"], "egress-bench")?;
    let containers =
        build(workspace, &["--package=cofferdam", "--example=reach_cost"], "examples/reach_cost")?;
    let other = mitmproxy();
    let mut command = Command::new(&ways);
    command
        .arg(&product)
        .args([options.rounds, options.warmup].map(|number| number.to_string()))
        .args(&other);
    let measured = printed(&mut command)?;
    let containers =
        printed(Command::new(&containers).arg((options.rounds * CONTAINERS_EACH_ROUND).to_string()))?;
    Ok(report(&measured, &containers, options))
}

/// Where mitmproxy is, if it is anywhere.
fn mitmproxy() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("mitmdump")).find(|path| path.is_file())
}

/// Builds a program for release, and gives its path.
pub(super) fn build(workspace: &Workspace, what: &[&str], name: &str) -> Result<PathBuf, Problem> {
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--quiet"]).args(what);
    let status = command.status().map_err(Problem::starting("cargo build"))?;
    if !status.success() {
        return Err(Problem::Stop(format!("{name} doesn't build; the compiler's messages are above")));
    }
    Ok(workspace.target.join("release").join(name))
}

/// The JSON that a program of ours prints.
pub(super) fn printed(command: &mut Command) -> Result<Value, Problem> {
    let name = Path::new(command.get_program()).display().to_string();
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(Problem::starting(&name))?;
    if !output.status.success() {
        return Err(Problem::Stop(format!("{name} ended with {}; what it said is above", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(Problem::form(name))
}

/// The samples of a list of numbers; none if there aren't any.
pub(super) fn samples(value: &Value) -> Option<Samples> {
    let numbers: Option<Vec<f64>> = value.as_array()?.iter().map(Value::as_f64).collect();
    numbers.filter(|numbers| !numbers.is_empty()).map(Samples::new)
}

fn report(ways: &Value, containers: &Value, options: &Options) -> Report {
    let p50 = |what: &Value| samples(what).map(|samples| samples.percentile(50));
    let (requests, downloads) = (&ways["requests_ms"], &ways["downloads_ms"]);
    let ratio = |what: &Value, than: &str| Some(p50(&what["terminated"])? / p50(&what[than])?);
    let adds = |what: &Value, with: &str, without: &str| Some(p50(&what[with])? - p50(&what[without])?);
    let through = || Some(p50(&downloads["passed through"])? / p50(&downloads["direct"])?);
    let at_once = || Some(ways["all_answered_ms"].as_f64()? / ways["held_for_ms"].as_f64()?);
    let all = [
        ("capture_adds_ms", adds(containers, "with_ms", "without_ms")),
        ("egress_200_connections_vs_one", at_once()),
        ("egress_download_vs_mitmproxy", ratio(downloads, "mitmproxy")),
        ("egress_idle_proxy_mib", ways["idle_proxy_kib"].as_f64().map(|kib| kib / 1024.0)),
        ("egress_pass_through_vs_direct", through()),
        ("egress_request_adds_ms", adds(requests, "terminated", "direct")),
        ("egress_request_vs_mitmproxy", ratio(requests, "mitmproxy")),
        ("egress_terminated_vs_direct", ratio(downloads, "direct")),
    ];
    let figures: Vec<_> = all.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect();
    let is_there = requests.get("mitmproxy").is_some();
    let why = "mitmproxy isn't installed; `apt-get install -y mitmproxy` brings it";
    let left_out = WITH_MITMPROXY.iter().filter(|_| !is_there).map(|gate| (*gate, why.to_owned())).collect();
    let details = json!({
        "rounds": options.rounds,
        "warmup": options.warmup,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "ways": ways,
        "containers": containers,
    });
    Report { table: table(ways, containers, options), figures, left_out, details }
}

fn table(ways: &Value, containers: &Value, options: &Options) -> String {
    let mut text = format!(
        "egress: one origin on this machine, asked by curl over TLS; ms; {} rounds after {} discarded\n\n",
        options.rounds, options.warmup
    );
    let mut lines = |title: &str, all: &Value, names: &[&str]| {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{title:<34}{:>9}{:>9}{:>9}", "min", "p50", "p95");
        for (name, samples) in names.iter().filter_map(|name| Some((name, samples(&all[*name])?))) {
            let [p50, p95] = [50, 95].map(|percent| samples.percentile(percent));
            let name = name.strip_suffix("_ms").unwrap_or(name);
            let _ = writeln!(text, "  {name:<32}{:>9.3}{p50:>9.3}{p95:>9.3}", samples.min());
        }
    };
    lines("a small request, kept connection", &ways["requests_ms"], &NAMES);
    lines("a download of 256 MiB", &ways["downloads_ms"], &NAMES);
    lines("a container whose program is `true`", containers, &["without_ms", "with_ms"]);
    let _ = writeln!(
        text,
        "\n{} connections at once, held for {} ms each: all answered after {:.0} ms\nan idle proxy: {} KiB resident",
        ways["at_once"],
        ways["held_for_ms"],
        ways["all_answered_ms"].as_f64().unwrap_or(f64::NAN),
        ways["idle_proxy_kib"]
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> (Value, Value) {
        let ways = json!({
            "requests_ms": { "direct": [0.1, 0.2, 0.9], "terminated": [0.3, 0.5, 0.9], "passed through": [0.2] },
            "downloads_ms": { "direct": [200.0], "terminated": [500.0], "passed through": [300.0] },
            "at_once": 200, "held_for_ms": 3000, "all_answered_ms": 4500.0, "idle_proxy_kib": 10240,
        });
        (ways, json!({ "without_ms": [5.0, 6.0, 9.0], "with_ms": [6.0, 6.5, 9.0] }))
    }

    fn figures(report: &Report) -> Vec<(&'static str, f64)> {
        report.figures.iter().map(|(name, figure)| (*name, (figure * 1000.0).round() / 1000.0)).collect()
    }

    #[test]
    fn figures_are_of_medians_measured_together_and_without_the_other_proxy_two_are_left_out() {
        let (ways, containers) = measured();
        let report = report(&ways, &containers, &super::super::parse(&[]).unwrap());
        let expected = [
            ("capture_adds_ms", 0.5),
            ("egress_200_connections_vs_one", 1.5),
            ("egress_idle_proxy_mib", 10.0),
            ("egress_pass_through_vs_direct", 1.5),
            ("egress_request_adds_ms", 0.3),
            ("egress_terminated_vs_direct", 2.5),
        ];
        assert_eq!(figures(&report), expected);
        let left_out: Vec<_> = report.left_out.iter().map(|(gate, _)| *gate).collect();
        assert_eq!(left_out, WITH_MITMPROXY);
    }

    #[test]
    fn with_the_other_proxy_every_gate_has_a_figure() {
        let (mut ways, containers) = measured();
        ways["requests_ms"]["mitmproxy"] = json!([5.0]);
        ways["downloads_ms"]["mitmproxy"] = json!([2000.0]);
        let report = report(&ways, &containers, &super::super::parse(&[]).unwrap());
        let names: Vec<_> = report.figures.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, BENCHMARK.gates);
        assert!(report.left_out.is_empty());
        assert!(figures(&report).contains(&("egress_request_vs_mitmproxy", 0.1)));
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let (mut ways, containers) = measured();
        ways["downloads_ms"]["terminated"] = json!([]);
        let report = report(&ways, &containers, &super::super::parse(&[]).unwrap());
        assert!(!figures(&report).iter().any(|(name, _)| *name == "egress_terminated_vs_direct"));
    }
}
