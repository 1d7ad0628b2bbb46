//! Builds the product whose controls can be turned off and whose runs can be stopped at a place:
//! `core/src/weaken.rs` says by which variables. Its folder is its own, so that no other command takes
//! it for the product.

use std::path::PathBuf;

use crate::problem::Problem;
use crate::workspace::Workspace;

/// Builds it, and gives the program's path.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, Problem> {
    let folder = workspace.target.join("weaken");
    let status = workspace
        .cargo()
        .args(["build", "--quiet", "--package", "cofferdam", "--features", "weaken"])
        .arg("--target-dir")
        .arg(&folder)
        .status()
        .map_err(Problem::starting("cargo build"))?;
    if !status.success() {
        let why = "the weakened product doesn't build; the compiler's messages are above";
        return Err(Problem::Stop(why.to_owned()));
    }
    Ok(folder.join("debug/cofferdam"))
}
