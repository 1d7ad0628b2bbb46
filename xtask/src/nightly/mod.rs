//! `cargo xtask nightly`: what takes too long for every change, in about an hour.
//!
//! | Module | Holds |
//! |---|---|
//! | `left` | `cargo xtask crash` and `cargo xtask soak`: what is left of runs |
//! | `told` | what came of each step, kept for the claims |
//!
//! The other steps are commands of their own. Each is a line in [`STEPS`]; one that fails doesn't keep the
//! others from running. What came of a step is kept for the claims of `SPEC.md` (`nightly:STEP`), also
//! where its command is called by itself and without an argument that makes less of it.

pub(crate) mod left;
pub(crate) mod told;

use std::time::{Duration, Instant};

use crate::problem::Problem;
use crate::workspace::Workspace;
use crate::{Verdict, bench, fuzz, mutate};

/// What all of it together should take at most.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// How long all targets together are fuzzed, in minutes, unless told otherwise.
const FUZZ_MINUTES: u64 = 20;

/// One thing that is done.
struct Step {
    name: &'static str,
    run: fn(&Workspace, u64) -> Result<Verdict, Problem>,
}

/// What is done, in this order. The number is the minutes of fuzzing.
const STEPS: &[Step] = &[
    Step {
        name: "fuzz",
        run: |workspace, minutes| fuzz::run(workspace, &words(&["--minutes", &minutes.to_string()])),
    },
    Step { name: "soak", run: |workspace, _| left::soak(workspace, &[]) },
    Step { name: "soak-wasm", run: |workspace, _| left::soak(workspace, &words(&["--backend", "wasm"])) },
    Step { name: "crash", run: |workspace, _| left::crash(workspace, &[]) },
    Step { name: "mutate", run: |workspace, _| mutate::run(workspace, &[]) },
    Step { name: "bench", run: |workspace, _| bench::run(workspace, &[]) },
];

/// Whether a claim can name this step.
pub(crate) fn is_step(name: &str) -> bool {
    STEPS.iter().any(|step| step.name == name)
}

/// Does everything, and tells what came of it.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let minutes = parse(args)?;
    let began = Instant::now();
    let mut ended = vec![];
    for step in STEPS {
        println!("nightly: {}", step.name);
        let started = Instant::now();
        let result = (step.run)(workspace, minutes);
        let verdict = match result {
            Ok(Verdict::Passed) => "passed".to_owned(),
            Ok(Verdict::Failed) => "FAILED".to_owned(),
            Err(problem) => format!("FAILED: {problem}"),
        };
        told::record(workspace, step.name, verdict == "passed")?;
        ended.push((step.name, started.elapsed(), verdict));
    }
    println!();
    for (name, took, verdict) in &ended {
        println!("{name:10} {:>6} s  {verdict}", took.as_secs());
    }
    let took = began.elapsed();
    let late = if took > HOUR { ", which is more than the hour that it may take" } else { "" };
    println!("nightly: {} min{late}", took.as_secs().div_ceil(60));
    Ok(Verdict::from(ended.iter().all(|(_, _, verdict)| verdict == "passed")))
}

fn parse(args: &[String]) -> Result<u64, Problem> {
    let wrong = || Problem::Stop("Usage: nightly [--fuzz-minutes N], a whole number above 0".to_owned());
    match args {
        [] => Ok(FUZZ_MINUTES),
        [option, value] if option == "--fuzz-minutes" => {
            value.parse().ok().filter(|minutes| *minutes > 0).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_that_are_no_number_are_refused() {
        assert_eq!(parse(&[]).unwrap(), FUZZ_MINUTES);
        assert_eq!(parse(&words(&["--fuzz-minutes", "5"])).unwrap(), 5);
        for line in [&["--fuzz-minutes"][..], &["--fuzz-minutes", "0"], &["--fuzz-minutes", "few"], &["fuzz"]]
        {
            assert!(parse(&words(line)).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_step_has_one_name() {
        for step in STEPS {
            assert_eq!(STEPS.iter().filter(|other| other.name == step.name).count(), 1);
            assert!(is_step(step.name));
        }
        assert!(!is_step("other"));
    }
}
