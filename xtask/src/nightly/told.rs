//! What came of each step of a night, and of each gate of the benchmarks, kept for the claims of `SPEC.md`.

use std::path::PathBuf;

use crate::problem::Problem;
use crate::test::results::{End, Results, Run};
use crate::workspace::Workspace;

/// Where the results are, in the folder for our own.
const RESULTS: &str = "nightly.json";

/// Where what came of the steps is kept; nothing may be there.
pub(crate) fn results(workspace: &Workspace) -> Result<PathBuf, Problem> {
    Ok(workspace.results_folder()?.join(RESULTS))
}

/// Keeps what came of one step, in the place of what came of it before.
pub(crate) fn record(workspace: &Workspace, step: &str, passed: bool) -> Result<(), Problem> {
    keep(workspace, "nightly", step, passed)
}

/// Keeps what came of one gate.
pub(crate) fn record_gate(workspace: &Workspace, gate: &str, passed: bool) -> Result<(), Problem> {
    keep(workspace, "bench", gate, passed)
}

fn keep(workspace: &Workspace, binary: &str, name: &str, passed: bool) -> Result<(), Problem> {
    let path = results(workspace)?;
    let runner = "cargo xtask nightly".to_owned();
    // What was before a source changed counts for nothing.
    let fresh = path.exists() && !workspace.has_changed_since(&path);
    let mut results = if fresh { Results::read(&path)? } else { Results { runner, runs: vec![] } };
    results.runs.retain(|run| run.binary != binary || run.name != name);
    let end = if passed { End::Passed } else { End::Failed };
    results.runs.push(Run { binary: binary.to_owned(), name: name.to_owned(), end });
    results.write(&path)
}
