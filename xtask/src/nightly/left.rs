//! `cargo xtask crash` and `cargo xtask soak`: what is left of runs that are killed at each of their steps,
//! and of very many.
//!
//! The programs that look are `crash`, `soak` and, for batches in WebAssembly, `soak-wasm` of the testkit, which
//! this builds with the product that they are about. As root they get process and mount namespaces of their own, so that what they see of the
//! host is theirs and not of others who use it meanwhile.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::told::record;
use crate::problem::Problem;
use crate::workspace::Workspace;
use crate::{Verdict, weakened};

/// How many runs a soak has, unless told otherwise, and how many lines one of WebAssembly.
const RUNS: u32 = 1000;
const LINES: u32 = 10_000;

/// Kills runs at every place, or at the one that is named.
pub(crate) fn crash(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    if args.len() > 1 || args.iter().any(|arg| arg.starts_with('-')) {
        return Err(Problem::Stop("Usage: crash [PLACE], one of crates/core/src/weaken.rs".to_owned()));
    }
    let mut words = vec![weakened::build(workspace)?.into_os_string()];
    words.extend(args.iter().map(OsString::from));
    let verdict =
        call(&build(workspace, &["--package", "cofferdam-testkit", "--bin", "crash"], "crash")?, &words)?;
    if args.is_empty() {
        record(workspace, "crash", verdict == Verdict::Passed)?;
    }
    Ok(verdict)
}

/// Makes many mixed runs.
pub(crate) fn soak(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let (in_wasm, runs) = parse(args)?;
    if in_wasm {
        return soak_in_wasm(workspace, runs);
    }
    let soak = build(workspace, &["--package", "cofferdam-testkit", "--bin", "soak"], "soak")?;
    let product = build(workspace, &["--package", "cofferdam"], "cofferdam")?;
    let verdict = call(&soak, &[product.into_os_string(), runs.to_string().into()])?;
    if runs >= RUNS {
        record(workspace, "soak", verdict == Verdict::Passed)?;
    }
    Ok(verdict)
}

/// Has one batch in WebAssembly for each template run very many lines.
fn soak_in_wasm(workspace: &Workspace, runs: u32) -> Result<Verdict, Problem> {
    let templates = workspace.templates().ok_or_else(|| Problem::Stop(NO_PYTHON.to_owned()))?;
    let soak = build(workspace, &["--package", "cofferdam-testkit", "--bin", "soak-wasm"], "soak-wasm")?;
    let product = build(workspace, &["--package", "cofferdam"], "cofferdam")?;
    let words = [product.into_os_string(), runs.to_string().into(), templates.into_os_string()];
    let verdict = call(&soak, &words)?;
    if runs >= LINES {
        record(workspace, "soak-wasm", verdict == Verdict::Passed)?;
    }
    Ok(verdict)
}

/// Said where nothing can be run in WebAssembly.
const NO_PYTHON: &str = "no Python is prepared: `cofferdam setup python` prepares one, and COFFERDAM_TEST_TEMPLATES \
                         names the folder `wasm` in which it lies";

/// Whether it is about WebAssembly, and how many runs there are.
fn parse(args: &[String]) -> Result<(bool, u32), Problem> {
    let wrong =
        || Problem::Stop("Usage: soak [--backend wasm] [--runs N], a whole number above 0".to_owned());
    let (in_wasm, rest) = match args {
        [option, name, rest @ ..] if option == "--backend" && name == "wasm" => (true, rest),
        rest => (false, rest),
    };
    let runs = match rest {
        [] => Some(if in_wasm { LINES } else { RUNS }),
        [option, value] if option == "--runs" => value.parse().ok().filter(|runs| *runs > 0),
        _ => None,
    };
    runs.map(|runs| (in_wasm, runs)).ok_or_else(wrong)
}

/// Builds a program, and gives its path.
fn build(workspace: &Workspace, what: &[&str], name: &str) -> Result<PathBuf, Problem> {
    let mut command = workspace.cargo();
    command.args(["build", "--quiet"]).args(what);
    let status = command.status().map_err(Problem::starting("cargo build"))?;
    if !status.success() {
        return Err(Problem::Stop(format!("{name} doesn't build; the compiler's messages are above")));
    }
    Ok(workspace.target.join("debug").join(name))
}

fn call(program: &Path, words: &[OsString]) -> Result<Verdict, Problem> {
    let root = fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0);
    let mut command = if root {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]);
        // The shell reaps what loses its parent; a sandbox's cgroup can't be removed before.
        command.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    let status = command.args(words).status().map_err(Problem::starting(program.display()))?;
    match status.code() {
        Some(0) => Ok(Verdict::Passed),
        Some(1) => Ok(Verdict::Failed),
        _ => Err(Problem::Stop(format!("{} ended with {status}", program.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_runs_that_is_none_is_refused() {
        let args = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&[]).unwrap(), (false, RUNS));
        assert_eq!(parse(&args("--runs 5")).unwrap(), (false, 5));
        assert_eq!(parse(&args("--backend wasm")).unwrap(), (true, LINES));
        assert_eq!(parse(&args("--backend wasm --runs 7")).unwrap(), (true, 7));
        for line in ["--runs", "--runs 0", "--runs many", "5", "--backend", "--backend other"] {
            assert!(parse(&args(line)).is_err(), "{line}");
        }
    }
}
