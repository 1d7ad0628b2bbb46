//! Runs the fuzz targets under `fuzz/` through cargo-fuzz, for a fixed time each.
//!
//! On a stable compiler the coverage flags need `RUSTC_BOOTSTRAP=1`, and the address sanitizer, which
//! only a nightly standard library brings, is left off. Our parsers have no `unsafe`, so what fuzzing
//! finds here are panics, hangs and broken invariants, which need no sanitizer.

use std::process::{Command, Stdio};

use crate::Verdict;
use crate::problem::Problem;
use crate::workspace::Workspace;

const DEFAULT_SECONDS: u64 = 60;

/// What to fuzz and for how long.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    target: Option<String>,
    seconds: u64,
}

/// Runs one target or all of them; stops at the first that finds something.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let options = parse(args)?;
    if !workspace.has_cargo_tool("fuzz") {
        return Err(Problem::Stop(
            "cargo-fuzz is not installed; `cargo install cargo-fuzz` gets it".to_owned(),
        ));
    }
    if !workspace.root.join("fuzz/Cargo.toml").exists() {
        return Err(Problem::Stop(
            "there is no fuzz/Cargo.toml; `cargo fuzz init` makes one, and each target is a file in \
             fuzz/fuzz_targets/"
                .to_owned(),
        ));
    }
    let targets = match options.target {
        Some(target) => vec![target],
        None => list(workspace)?,
    };
    let nightly = compiler_is_nightly();
    for target in &targets {
        println!("fuzz {target}: {} s", options.seconds);
        let mut command = cargo_fuzz(workspace, nightly);
        command.arg("run").arg(target);
        if !nightly {
            command.args(["--sanitizer", "none"]);
        }
        command.args(["--", &format!("-max_total_time={}", options.seconds)]);
        let status = command.status().map_err(Problem::starting("cargo fuzz"))?;
        if !status.success() {
            eprintln!(
                "fuzz {target}: failed ({status}); the input that did it is named above, under fuzz/artifacts/{target}/"
            );
            return Ok(Verdict::Failed);
        }
    }
    println!("fuzz: {} targets, nothing found", targets.len());
    Ok(Verdict::Passed)
}

fn parse(args: &[String]) -> Result<Options, Problem> {
    let mut options = Options { target: None, seconds: DEFAULT_SECONDS };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            options.seconds = args
                .next()
                .and_then(|value| value.parse().ok())
                .filter(|seconds| *seconds > 0)
                .ok_or_else(|| Problem::Stop("--seconds needs a whole number above 0".to_owned()))?;
        } else if arg.starts_with('-') || options.target.is_some() {
            return Err(Problem::Stop(format!("what is `{arg}`? Usage: fuzz [TARGET] [--seconds N]")));
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
    command.arg("fuzz");
    if !nightly {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command
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
    fn a_second_target_is_refused() {
        assert!(parse(&args("wire dns")).is_err());
    }

    #[test]
    fn a_target_and_its_time_are_read_in_any_order() {
        let expected = Options { target: Some("wire".to_owned()), seconds: 5 };
        assert_eq!(parse(&args("--seconds 5 wire")).unwrap(), expected);
        assert_eq!(parse(&args("wire --seconds 5")).unwrap(), expected);
    }
}
