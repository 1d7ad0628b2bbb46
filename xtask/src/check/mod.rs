//! `cargo xtask check`: everything that can be said about the sources without running the product.
//!
//! All steps run, even after one failed, so that one call shows everything. A step that can't do its
//! work has failed; one whose tool isn't installed is skipped and says so by name.

mod arrows;
mod rules;
pub(crate) mod rust;

use std::process::{ExitStatus, Stdio};

use crate::problem::Problem;
use crate::test::needs::has_program;
use crate::workspace::Workspace;
use crate::{Verdict, claims};

/// How one step ended.
enum Step {
    /// What it found, one line each.
    Found(Vec<String>),
    /// Nothing to complain about.
    Passed,
    /// It did not run, for this reason.
    Skipped(String),
}

type Rule = fn(&Workspace) -> Result<Step, Problem>;

const STEPS: &[(&str, Rule)] = &[
    ("formatting", formatting),
    ("crate arrows", crate_arrows),
    ("unsafe", unsafe_code),
    ("file headers", file_headers),
    ("claims", claims_of_the_spec),
    ("dependencies", dependencies),
    ("clippy", clippy),
    ("fuzz targets", fuzz_targets),
];

/// Runs every step and prints what each found.
pub(crate) fn run(workspace: &Workspace) -> Verdict {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, step) in STEPS {
        match step(workspace).unwrap_or_else(|problem| Step::Found(vec![problem.to_string()])) {
            Step::Passed => {
                println!("ok       {name}");
                passed += 1;
            }
            Step::Skipped(why) => {
                println!("SKIPPED  {name}: {why}");
                skipped += 1;
            }
            Step::Found(lines) => {
                println!("FAILED   {name}");
                for line in lines {
                    println!("         {line}");
                }
                failed += 1;
            }
        }
    }
    println!("check: {passed} passed, {failed} failed, {skipped} skipped");
    Verdict::from(failed == 0)
}

fn formatting(workspace: &Workspace) -> Result<Step, Problem> {
    cargo(workspace, &["fmt", "--all", "--check", "--", "-l"], "`cargo fmt` puts the files above right")
}

fn clippy(workspace: &Workspace) -> Result<Step, Problem> {
    let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo(workspace, &args, "its messages are above")
}

/// That they compile, with what they see of the crates: they are a workspace of their own, which no other step reads.
fn fuzz_targets(workspace: &Workspace) -> Result<Step, Problem> {
    if !has_program("c++") {
        return Ok(Step::Skipped("libFuzzer needs a C++ compiler; Debian's package is g++".to_owned()));
    }
    let manifest = workspace.root.join("fuzz/Cargo.toml");
    let status = workspace
        .cargo()
        .args(["check", "--quiet", "--bins", "--manifest-path"])
        .arg(manifest)
        .env("RUSTFLAGS", "--cfg fuzzing -D warnings")
        .stdin(Stdio::null())
        .status()
        .map_err(Problem::starting("cargo check"))?;
    Ok(of_status(status, "a target under fuzz/ doesn't compile; the messages are above"))
}

fn dependencies(workspace: &Workspace) -> Result<Step, Problem> {
    if !workspace.has_cargo_tool("deny") {
        return Ok(Step::Skipped(
            "cargo-deny is not installed; `cargo install cargo-deny` gets it".to_owned(),
        ));
    }
    // Not `advisories`: its database has to be fetched, and this command works without a network.
    let args = ["deny", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"];
    cargo(workspace, &args, "cargo-deny's messages are above; the rules and their reasons are in deny.toml")
}

fn crate_arrows(workspace: &Workspace) -> Result<Step, Problem> {
    Ok(found(arrows::violations(workspace)?))
}

fn unsafe_code(workspace: &Workspace) -> Result<Step, Problem> {
    Ok(found(rules::misplaced_unsafe(&workspace.sources()?)))
}

fn file_headers(workspace: &Workspace) -> Result<Step, Problem> {
    Ok(found(rules::missing_headers(&workspace.sources()?)))
}

fn claims_of_the_spec(workspace: &Workspace) -> Result<Step, Problem> {
    let report = claims::judge(workspace)?;
    println!("         claims: {}", report.basis);
    Ok(found(report.broken))
}

fn found(lines: Vec<String>) -> Step {
    if lines.is_empty() { Step::Passed } else { Step::Found(lines) }
}

fn cargo(workspace: &Workspace, args: &[&str], advice: &str) -> Result<Step, Problem> {
    let status = workspace
        .cargo()
        .args(args)
        .stdin(Stdio::null())
        .status()
        .map_err(Problem::starting(format!("cargo {}", args[0])))?;
    Ok(of_status(status, advice))
}

fn of_status(status: ExitStatus, advice: &str) -> Step {
    if status.success() { Step::Passed } else { Step::Found(vec![advice.to_owned()]) }
}
