//! `cargo xtask claims`: a promise in `SPEC.md` holds only if a test or a gate would notice it broken.
//!
//! `SPEC.md` has Markdown tables with rows of this form; a table whose second heading is `Status` has
//! no other rows:
//!
//! ```text
//! | promise | Shipped | `name::of::a_test`, `bench:name_of_a_gate` |
//! ```
//!
//! *Shipped* needs at least one name, and every name must be a test that ran and passed in the last
//! `cargo xtask test`, or `vm:` and a check that passed in the last `cargo xtask vm`, or `bench:` and a key of
//! `limits.json`, or `nightly:` and a step of `cargo xtask nightly`. A test is named by the end of its path.
//! A gate or a step that hasn't run here is no failure, since not everybody has the hour for it, but is
//! told; one that failed is. Results that are older than a source count for nothing.
//! *Unverified* and *Planned* promise nothing yet and need no name.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use crate::Verdict;
use crate::bench::LIMITS;
use crate::check::rust;
use crate::nightly::{self, told};
use crate::problem::Problem;
use crate::test::results::{End, Results};
use crate::vm;
use crate::workspace::Workspace;

const SPEC: &str = "SPEC.md";

/// One row of the specification.
#[derive(Debug, PartialEq, Eq)]
struct Promise {
    line: usize,
    text: String,
    status: String,
    names: Vec<String>,
}

/// What the promises are held against.
#[derive(Debug)]
enum Evidence {
    /// The names in the sources: whether such a test exists, not whether it passes.
    Names(HashSet<String>),
    /// The results of the last full run of the tests.
    Results(Results),
}

/// What came of holding the promises against the evidence.
#[derive(Debug)]
pub(crate) struct Report {
    /// How many promises there are and what they were held against.
    pub(crate) basis: String,
    /// One line for each promise that isn't kept.
    pub(crate) broken: Vec<String>,
}

/// Holds every promise against the last results; without any, that is an error.
pub(crate) fn run(workspace: &Workspace) -> Result<Verdict, Problem> {
    let path = workspace.results_folder()?.join("results.json");
    if !path.exists() {
        return Err(Problem::Stop("no test has run here yet; `cargo xtask test` first".to_owned()));
    }
    if workspace.has_changed_since(&path) {
        let why = "sources have changed since the tests ran; `cargo xtask test` runs them again";
        return Err(Problem::Stop(why.to_owned()));
    }
    let report = against(workspace, &Evidence::Results(with_others(workspace, &path)?))?;
    for line in &report.broken {
        println!("{line}");
    }
    println!("claims: {}, {} broken", report.basis, report.broken.len());
    Ok(Verdict::from(report.broken.is_empty()))
}

/// Holds every promise against the last results if they are newer than every source, and otherwise only
/// against the names in the sources.
pub(crate) fn judge(workspace: &Workspace) -> Result<Report, Problem> {
    let path = workspace.results_folder()?.join("results.json");
    let evidence = if path.exists() && !workspace.has_changed_since(&path) {
        Evidence::Results(with_others(workspace, &path)?)
    } else {
        let sources = workspace.sources()?;
        Evidence::Names(sources.iter().flat_map(|source| rust::item_names(&source.text)).collect())
    };
    against(workspace, &evidence)
}

/// The results of the tests, with those of the machine's checks, of the nightly steps and of the gates, as
/// far as no source has changed since.
fn with_others(workspace: &Workspace, path: &Path) -> Result<Results, Problem> {
    let mut results = Results::read(path)?;
    let others =
        [(workspace.results_folder()?.join(vm::RESULTS), "vm"), (told::results(workspace)?, "nightly")];
    for (other, command) in others {
        if !other.exists() {
            continue;
        }
        if workspace.has_changed_since(&other) {
            eprintln!("note: sources have changed since `cargo xtask {command}`, which counts no more");
        } else {
            results.runs.extend(Results::read(&other)?.runs);
        }
    }
    Ok(results)
}

fn against(workspace: &Workspace, evidence: &Evidence) -> Result<Report, Problem> {
    let limits: Value = serde_json::from_str(&workspace.read(LIMITS)?).map_err(Problem::form(LIMITS))?;
    let (promises, mut broken) = parse(&workspace.read(SPEC)?);
    for promise in promises.iter().filter(|promise| promise.status == "Shipped") {
        let reasons = reasons_against(promise, evidence, &limits);
        broken.extend(reasons.into_iter().map(|reason| {
            format!("{SPEC}:{}: \"{}\" is marked Shipped, but {reason}", promise.line, promise.text)
        }));
    }
    let count = |status| promises.iter().filter(|promise| promise.status == status).count();
    let basis = format!(
        "{} shipped, {} unverified, {} planned, held against {}",
        count("Shipped"),
        count("Unverified"),
        count("Planned"),
        match evidence {
            Evidence::Names(_) => "the names in the sources (no results as new as they are)",
            Evidence::Results(_) => "the results of the last test run",
        }
    );
    let not_run = not_run(&promises, evidence);
    let basis = if not_run > 0 {
        format!("{basis}, {not_run} by nightly steps or gates that haven't run here")
    } else {
        basis
    };
    Ok(Report { basis, broken })
}

/// How many promises name a nightly step or a gate that hasn't run here.
fn not_run(promises: &[Promise], evidence: &Evidence) -> usize {
    let ran = |name: &String| match evidence {
        Evidence::Names(_) => false,
        Evidence::Results(results) => results.runs.iter().any(|run| run.is_called(name)),
    };
    let shipped = promises.iter().filter(|promise| promise.status == "Shipped");
    shipped.filter(|promise| promise.names.iter().any(|name| takes_long(name) && !ran(name))).count()
}

/// What the names of nightly steps begin with, and those of gates.
const NIGHTLY: &str = "nightly:";
const GATE: &str = "bench:";

/// Whether it isn't held against what nobody has to have run.
fn takes_long(name: &str) -> bool {
    name.starts_with(NIGHTLY) || name.starts_with(GATE)
}

fn reasons_against(promise: &Promise, evidence: &Evidence, limits: &Value) -> Vec<String> {
    if promise.names.is_empty() {
        return vec!["it names no test; put the test's name in backticks in the third column".to_owned()];
    }
    promise.names.iter().filter_map(|name| reason_against(name, evidence, limits)).collect()
}

fn reason_against(name: &str, evidence: &Evidence, limits: &Value) -> Option<String> {
    if let Some(gate) = name.strip_prefix(GATE)
        && limits.get(gate).is_none()
    {
        return Some(format!("{LIMITS} has no gate `{gate}`"));
    }
    if let Some(check) = name.strip_prefix("vm:")
        && !vm::checks::CHECKS.iter().any(|known| known.name == check)
    {
        return Some(format!("xtask/src/vm/checks.rs has no check `{check}`"));
    }
    if let Some(step) = name.strip_prefix(NIGHTLY)
        && !nightly::is_step(step)
    {
        return Some(format!("xtask/src/nightly/mod.rs has no step `{step}`"));
    }
    match evidence {
        Evidence::Names(_) if name.starts_with("vm:") || takes_long(name) => None,
        Evidence::Names(names) => {
            let last = name.rsplit([':', ' ']).next().unwrap_or(name);
            (!names.contains(last)).then(|| format!("no source has a test or an item `{last}`"))
        }
        Evidence::Results(results) => {
            let runs: Vec<_> = results.runs.iter().filter(|run| run.is_called(name)).collect();
            if runs.is_empty() && takes_long(name) {
                return None;
            }
            if runs.is_empty() {
                let how = if name.starts_with("vm:") { "; `cargo xtask vm` runs it" } else { "" };
                return Some(format!("no test `{name}` ran{how}"));
            }
            runs.iter().find_map(|run| match &run.end {
                End::Passed => None,
                End::Failed => Some(format!("the test `{}` failed", run.id())),
                End::Skipped(reason) => Some(format!("the test `{}` was skipped here: {reason}", run.id())),
            })
        }
    }
}

/// The promises, and complaints about rows that should be one.
fn parse(spec: &str) -> (Vec<Promise>, Vec<String>) {
    let (mut promises, mut complaints) = (Vec::new(), Vec::new());
    let (mut in_code, mut in_status_table) = (false, false);
    let mut before: Vec<String> = Vec::new();
    for (index, line) in spec.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        let cells = if in_code { Vec::new() } else { cells(line) };
        let status = cells.get(1).map(|cell| cell.trim_matches('*').to_owned()).unwrap_or_default();
        if is_rule(&cells) {
            in_status_table = before.get(1).is_some_and(|heading| heading.eq_ignore_ascii_case("status"));
        } else if ["Shipped", "Unverified", "Planned"].contains(&status.as_str()) {
            let names = cells.get(2).map(|cell| in_backticks(cell)).unwrap_or_default();
            promises.push(Promise { line: index + 1, text: cells[0].clone(), status, names });
        } else if in_status_table && !cells.is_empty() {
            complaints.push(format!(
                "{SPEC}:{}: the status `{status}` is none of Shipped, Unverified, Planned",
                index + 1
            ));
        }
        in_status_table &= !cells.is_empty();
        before = cells;
    }
    (promises, complaints)
}

/// The cells of a table's row; empty if the line is none. `\|` is a bar within a cell.
fn cells(line: &str) -> Vec<String> {
    let Some(inner) = line.trim().strip_prefix('|') else { return Vec::new() };
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let protected = inner.replace("\\|", "\u{0}");
    protected.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

fn is_rule(cells: &[String]) -> bool {
    !cells.is_empty() && cells.iter().all(|cell| !cell.is_empty() && cell.trim_matches(['-', ':']).is_empty())
}

fn in_backticks(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::results::Run;

    const SAMPLE: &str = "\
# What is promised

| Promise | Status | Proof |
|---|---|---|
| Everything is killed at the deadline | Shipped | `run::timeout_kills_everything` |
| It starts fast | **Shipped** | `bench:start_vs_bwrap_p50`, `start_is_fast` |
| A \\| in a cell | Planned | |
| Not a status | shipped | `x` |

| Word | Meaning |
|---|---|
| Shipped | said of a promise |

```
| In code | Shipped | |
```
";

    fn promise(names: &[&str]) -> Promise {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Promise { line: 1, text: "p".to_owned(), status: "Shipped".to_owned(), names }
    }

    fn results(runs: &[(&str, End)]) -> Evidence {
        let runs = runs
            .iter()
            .map(|(name, end)| Run {
                binary: "cofferdam::run".to_owned(),
                name: (*name).to_owned(),
                end: end.clone(),
            })
            .collect();
        Evidence::Results(Results { runner: String::new(), runs })
    }

    fn reasons(names: &[&str], evidence: &Evidence) -> Vec<String> {
        reasons_against(&promise(names), evidence, &serde_json::json!({ "start": {} }))
    }

    #[test]
    fn a_shipped_promise_without_a_name_is_broken() {
        assert_eq!(reasons(&[], &results(&[])).len(), 1);
    }

    #[test]
    fn a_test_that_did_not_run_failed_or_was_skipped_proves_nothing() {
        let evidence = results(&[("a", End::Failed), ("b", End::Skipped("no bwrap".to_owned()))]);
        assert!(reasons(&["nobody"], &evidence)[0].contains("no test `nobody` ran"));
        assert!(reasons(&["a"], &evidence)[0].contains("failed"));
        assert!(reasons(&["b"], &evidence)[0].contains("skipped here: no bwrap"));
    }

    #[test]
    fn every_name_must_hold_not_just_one() {
        let evidence = results(&[("a", End::Passed)]);
        assert_eq!(reasons(&["a", "nobody"], &evidence).len(), 1);
    }

    #[test]
    fn a_test_that_passed_proves_it_by_any_end_of_its_path() {
        let evidence = results(&[("run::timeout_kills_everything", End::Passed)]);
        assert!(reasons(&["run::timeout_kills_everything"], &evidence).is_empty());
        assert!(reasons(&["timeout_kills_everything"], &evidence).is_empty());
        assert_eq!(reasons(&["kills_everything"], &evidence).len(), 1);
    }

    #[test]
    fn of_two_tests_with_the_name_both_must_pass() {
        let evidence = results(&[("container::quota", End::Passed), ("wasm::quota", End::Failed)]);
        assert_eq!(reasons(&["quota"], &evidence).len(), 1);
        assert!(reasons(&["container::quota"], &evidence).is_empty());
    }

    #[test]
    fn a_gate_must_be_in_the_limits() {
        assert!(reasons(&["bench:start"], &results(&[])).is_empty());
        assert_eq!(reasons(&["bench:other"], &results(&[])).len(), 1);
    }

    #[test]
    fn a_check_of_the_machine_must_be_known_and_have_passed_there() {
        let check = vm::checks::CHECKS[0].name;
        let name = format!("vm:{check}");
        let Evidence::Results(mut passed) = results(&[]) else { unreachable!("they are results") };
        passed.runs.push(Run { binary: "vm".to_owned(), name: check.to_owned(), end: End::Passed });
        assert!(reasons(&[&name], &Evidence::Results(passed)).is_empty());
        assert!(reasons(&[&name], &results(&[]))[0].contains("`cargo xtask vm` runs it"));
        assert!(reasons(&[&name], &Evidence::Names(HashSet::new())).is_empty());
        assert!(reasons(&["vm:no_such_check"], &Evidence::Names(HashSet::new()))[0].contains("no check"));
    }

    #[test]
    fn a_nightly_step_must_be_known_and_not_have_failed_and_is_told_where_it_has_not_run() {
        let names = ["nightly:crash"];
        let night = |end: End| {
            let run = Run { binary: "nightly".to_owned(), name: "crash".to_owned(), end };
            Evidence::Results(Results { runner: String::new(), runs: vec![run] })
        };
        let not_run = |evidence: &Evidence| not_run(&[promise(&names)], evidence);
        assert!(reasons(&names, &night(End::Passed)).is_empty());
        assert!(reasons(&names, &night(End::Failed))[0].contains("failed"));
        assert!(reasons(&names, &results(&[])).is_empty());
        assert_eq!((not_run(&night(End::Passed)), not_run(&results(&[]))), (0, 1));
        assert!(reasons(&["nightly:no_such_step"], &results(&[]))[0].contains("no step"));
    }

    #[test]
    fn without_results_the_test_must_at_least_exist() {
        let evidence = Evidence::Names(HashSet::from(["quota".to_owned()]));
        assert!(reasons(&["container::quota"], &evidence).is_empty());
        assert_eq!(reasons(&["container::other"], &evidence).len(), 1);
    }

    #[test]
    fn rows_are_read_and_a_misspelt_status_is_a_complaint() {
        let (promises, complaints) = parse(SAMPLE);
        let read: Vec<_> = promises
            .iter()
            .map(|promise| (promise.line, promise.status.as_str(), promise.names.len()))
            .collect();
        assert_eq!(read, [(5, "Shipped", 1), (6, "Shipped", 2), (7, "Planned", 0)]);
        assert_eq!(promises[1].names, ["bench:start_vs_bwrap_p50", "start_is_fast"]);
        assert_eq!(promises[2].text, "A | in a cell");
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].starts_with("SPEC.md:8:"), "{complaints:?}");
    }
}
