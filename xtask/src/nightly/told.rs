//! What came of each step of a night, kept for the claims of `SPEC.md`.

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
    let path = results(workspace)?;
    let runner = "cargo xtask nightly".to_owned();
    let mut results = if path.exists() { Results::read(&path)? } else { Results { runner, runs: vec![] } };
    results.runs.retain(|run| run.name != step);
    let end = if passed { End::Passed } else { End::Failed };
    results.runs.push(Run { binary: "nightly".to_owned(), name: step.to_owned(), end });
    results.write(&path)
}
