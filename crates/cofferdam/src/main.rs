//! `cofferdam`: runs code that an agent wrote, inside the boundary that its risk calls for.
//!
//! This crate is the edge. What people type, write in files and read is here and nowhere else:
//!
//! - [`cli`]: the commands, each in a file of its own.
//! - [`files`]: the policy file and the operator's files.
//! - [`console`]: a run's streams, as a terminal or a pipe has them.
//! - [`artifacts`]: where what a program changed goes: a folder, a diff.
//! - [`hints`]: what to try next, after a run that failed.
//! - [`report`]: an Outcome as JSON, as a closing line, as an exit code.
//! - [`places`]: folders and files of the host that a person names for a run.
//! - [`presets`]: what pip, npm and git are configured to talk to.
//! - [`python`]: the interpreter that `--python` and `--venv` name, without starting it.
//! - [`egress`]: ways out for sandboxes, as the node and a policy have it.
//! - [`host`]: what this machine offers: the backends, the state folder.

mod artifacts;
mod cli;
mod console;
mod credentials;
mod egress;
mod files;
mod hints;
mod host;
mod places;
mod presets;
mod python;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
