//! Cofferdam's developer commands, run as `cargo xtask COMMAND`.
//!
//! | Module | Holds |
//! |---|---|
//! | `test` | runs every test, counts the skipped ones, records who passed |
//! | `check` | formatting, lints, dependencies, and the rules of this workspace |
//! | `claims` | that each promise of `SPEC.md` names a test that passed |
//! | `bench` | measurements with gates (`limits.json`) |
//! | `fuzz` | the targets under `fuzz/` |
//! | `mutate` | that some row of the table of attacks notices each control that is off |
//! | `vm` | checks under another kernel, with cgroup version 2 alone |
//! | `nightly` | what takes too long for every change, and what is left of runs: `crash`, `soak` |
//! | `weakened` | builds the product whose controls can be turned off |
//!
//! What CI runs are these commands and nothing else, so a green run here is a green run there.
//! Exit codes: 0 all is well, 1 something was found, 2 the command itself could not do its work.

mod bench;
mod check;
mod claims;
mod fuzz;
mod mutate;
mod nightly;
mod problem;
mod test;
mod vm;
mod weakened;
mod workspace;

use std::process::ExitCode;

use problem::Problem;
use workspace::Workspace;

const HELP: &str = "\
Cofferdam's developer commands

Usage: cargo xtask COMMAND [ARGS…]

  test [ARGS…]      Run every test; ARGS (a name, -p CRATE, -- FLAGS) go to the test runner.
                    Uses cargo-nextest if it is installed, else cargo test.
                    Results: target/xtask/results.json (results.partial.json with ARGS).
  check             Formatting, clippy, cargo-deny, unsafe only where it may be, which crate
                    may use which, file headers, and the claims of SPEC.md.
  claims            Each promise marked Shipped in SPEC.md must name a test that passed in the
                    last `cargo xtask test`, or a gate in limits.json (bench:NAME), or a check that passed in
                    the last `cargo xtask vm` (vm:NAME), or a step of `cargo xtask nightly` that
                    didn't fail if it ran (nightly:STEP).
  bench [NAME]      Build for release, measure, compare with the gates in limits.json.
      --rounds N      timed rounds (default 60)
      --warmup N      discarded rounds before them (default 5)
      --only A,B      measure only these contenders; no gate is judged
  fuzz [TARGET]     Run the fuzz targets, or one of them.
      --seconds N     for each target (default 60)
      --minutes N     for all of them together
  mutate [NAME…]    Turn each control of a container and of WebAssembly off in turn, or those that are named, in
                    a build for tests: at least one row of the table of attacks must notice.
  crash [PLACE]     Kill a run at each place where it can be stopped, or at one, and look at what is left.
  soak              Make many mixed runs, after which the host is as it was.
      --runs N        how many (default 1000)
      --backend wasm  lines of two batches in WebAssembly instead (default 10000); needs a prepared Python
  nightly           All of these and the benchmarks, in about an hour; a table at the end.
                    Results: target/xtask/nightly.json.
      --fuzz-minutes N  for all fuzz targets together (default 20)
  vm [NAME…]        Boot a Debian kernel in QEMU and run the checks whose names hold NAME, or all.
                    Results: target/xtask/vm.json (vm.partial.json with NAME).
      --seconds N     for everything inside (default 420)
  help              This text.

Exit codes: 0 all is well, 1 something was found, 2 the command could not do its work.
";

/// How a command ended, apart from errors: it did its work and found nothing, or found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing to complain about.
    Passed,
    /// The findings have been printed.
    Failed,
}

impl From<bool> for Verdict {
    fn from(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_else(|| "help".to_owned());
    match run(&command, &args.collect::<Vec<_>>()) {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(1),
        Err(problem) => {
            eprintln!("xtask {command}: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &str, args: &[String]) -> Result<Verdict, Problem> {
    if args.first().is_some_and(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(Verdict::Passed);
    }
    match command {
        "test" => test::run(&Workspace::open()?, args),
        "check" => no_args(args).and_then(|()| Ok(check::run(&Workspace::open()?))),
        "claims" => no_args(args).and_then(|()| claims::run(&Workspace::open()?)),
        "bench" => bench::run(&Workspace::open()?, args),
        "mutate" => mutate::run(&Workspace::open()?, args),
        "fuzz" => fuzz::run(&Workspace::open()?, args),
        "crash" => nightly::left::crash(&Workspace::open()?, args),
        "soak" => nightly::left::soak(&Workspace::open()?, args),
        "nightly" => nightly::run(&Workspace::open()?, args),
        "vm" => vm::run(&Workspace::open()?, args),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(Verdict::Passed)
        }
        _ => Err(Problem::Stop("there is no such command; `cargo xtask help` lists them".to_owned())),
    }
}

fn no_args(args: &[String]) -> Result<(), Problem> {
    match args.first() {
        None => Ok(()),
        Some(arg) => Err(Problem::Stop(format!("takes no arguments, but got `{arg}`; leave it out"))),
    }
}
