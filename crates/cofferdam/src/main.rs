//! `cofferdam`: runs code that an agent wrote, inside the boundary that its risk calls for.
//!
//! This crate is the edge. What people type, write in files and read is here and nowhere else:
//!
//! - [`cli`]: the commands, each in a file of its own.
//! - [`files`]: the policy file and the operator's files.
//! - [`console`]: a run's streams, as a terminal or a pipe has them.
//! - [`artifacts`]: where what a program changed goes: a folder, a diff.
//! - [`report`]: an Outcome as JSON, as a closing line, as an exit code.
//! - [`host`]: what this machine offers: the backends, the state folder.

mod artifacts;
mod cli;
mod console;
mod files;
mod host;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
