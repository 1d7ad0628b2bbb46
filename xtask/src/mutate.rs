//! `cargo xtask mutate`: every control is turned off once, and some row of the table of attacks must
//! notice.
//!
//! The product is built with the feature `weaken` (`core/src/weaken.rs`), in which a variable names the
//! control that is off. The rows run against it as root: all of them with everything on, where none may
//! fail, and then for each control first those that are expected to notice and, if none does, all others.
//! A row notices if it fails with the control off and, right afterwards, passes with it on; one whose probe
//! could not be run at all has noticed nothing. A control without which the sandbox doesn't start at all
//! holds by that, and the table says so. Where a capability rests on a control, the Outcome may not name it
//! as enforced while that is off.
//!
//! `SPEC.md` keeps the table; it has to name every control there is, and no row that doesn't notice.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::nightly::told;
use crate::problem::Problem;
use crate::workspace::Workspace;
use crate::{Verdict, weakened};

/// Where the names of the controls are.
const CONTROLS: &str = "crates/core/src/weaken.rs";

/// The rows that are expected to notice each control, by a part of their tests' names. What isn't here is
/// tried against every row.
const EXPECTED: &[(&str, &[&str])] = &[
    ("audit", &["ctl::"]),
    ("capabilities", &["sys::"]),
    ("cgroup-namespace", &["sys::"]),
    ("control-socket", &["iso::"]),
    ("cpu", &["res::"]),
    ("disk", &["res::"]),
    ("environment", &["cred::"]),
    ("files", &["res::"]),
    ("filter", &["sys::"]),
    ("filter-is-empty", &["sys::"]),
    ("hide", &["iso::", "cred::", "art::"]),
    ("host-exec", &["iso::"]),
    ("host-root", &["iso::", "cred::"]),
    ("ipc-namespace", &["iso::"]),
    ("landlock", &["sys::"]),
    ("links", &["art::"]),
    ("masks", &["iso::"]),
    ("memory", &["res::"]),
    ("net-namespace", &["iso::"]),
    ("no-new-privileges", &["sys::"]),
    ("output", &["res::"]),
    ("pid-namespace", &["iso::"]),
    ("pids", &["res::"]),
    ("read-only", &["iso::"]),
    ("rlimits", &["res::"]),
    ("timeout", &["res::"]),
    ("user-namespace", &["sys::"]),
    ("uts-namespace", &["sys::"]),
];

/// Controls on which a capability rests, so that it isn't enforced without.
const RESTS_ON: &[(&str, &[&str])] = &[
    ("filter", &["syscalls"]),
    ("landlock", &["landlock"]),
    ("net-namespace", &["network"]),
    ("no-new-privileges", &["landlock", "syscalls"]),
];

/// What a row says that found nothing out.
const COULD_NOT_RUN: &str = "a probe could not run";

/// What came of turning one control off.
#[derive(Debug, PartialEq, Eq)]
enum Noticed {
    /// By these tests of rows.
    By(BTreeSet<String>),
    /// The sandbox doesn't start without it.
    AtStart,
    /// By nobody.
    ByNobody,
}

/// Turns off the controls that are named, or all of them.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let controls = controls(&workspace.read(CONTROLS)?);
    if let Some(stranger) = args.iter().find(|arg| !controls.contains(*arg)) {
        return Err(Problem::Stop(format!("no control is named `{stranger}`; {CONTROLS} has them")));
    }
    let rows = Rows { program: weakened::build(workspace)?, tests: tests(workspace)? };
    if !std::fs::read(&rows.program)
        .map_err(Problem::at("read", &rows.program))?
        .windows(16)
        .any(|part| part == b"COFFERDAM_WEAKEN")
    {
        return Err(Problem::Stop("the build for tests has no switches; look at its features".to_owned()));
    }
    let broken = rows.failing(None, &[])?;
    if !broken.is_empty() {
        println!("with every control on these rows fail, so that nothing can be learned: {broken:?}");
        return Ok(Verdict::Failed);
    }
    let spec = workspace.read("SPEC.md")?;
    let mut table = String::from("| Control that is off | Noticed by |\n|---|---|\n");
    let mut wrong = vec![];
    let chosen: Vec<_> =
        controls.iter().filter(|control| args.is_empty() || args.contains(control)).collect();
    for control in &chosen {
        let noticed = rows.notice(control)?;
        let said = noticed.to_string();
        println!("{control}: {said}");
        let _ = writeln!(table, "| `{control}` | {said} |"); // a String takes everything
        if noticed == Noticed::ByNobody {
            wrong.push(format!("no row notices that `{control}` is off"));
        }
        wrong.extend(rows.lies(control)?);
        wrong.extend(untrue(&spec, control, &noticed));
    }
    println!("\n{table}\nmutate: {} controls turned off", chosen.len());
    for line in &wrong {
        println!("{line}");
    }
    if args.is_empty() {
        told::record(workspace, "mutate", wrong.is_empty())?;
    }
    Ok(Verdict::from(wrong.is_empty()))
}

/// What the table in `SPEC.md` says of a control and isn't so.
fn untrue(spec: &str, control: &str, noticed: &Noticed) -> Vec<String> {
    let Some(row) = spec.lines().find_map(|line| line.strip_prefix(&format!("| `{control}` | "))) else {
        return vec![format!("SPEC.md's table of controls lacks `{control}`")];
    };
    let listed = row.split('`').skip(1).step_by(2);
    let stale = listed.filter(|row| !matches!(noticed, Noticed::By(rows) if rows.contains(*row)));
    stale.map(|row| format!("SPEC.md says that `{row}` notices `{control}`, which it doesn't")).collect()
}

/// The names of the controls, read from where they are declared.
fn controls(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.trim().strip_suffix("\",")?.split_once(" = \""));
    names.map(|(_, name)| name.to_owned()).collect()
}

impl std::fmt::Display for Noticed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Noticed::By(tests) => {
                let names: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
                f.write_str(&names.join(", "))
            }
            Noticed::AtStart => f.write_str("everybody: the sandbox doesn't start without it"),
            Noticed::ByNobody => f.write_str("NOBODY"),
        }
    }
}

/// The tests of the rows, and the program that they are run against.
struct Rows {
    program: PathBuf,
    tests: PathBuf,
}

impl Rows {
    fn notice(&self, control: &str) -> Result<Noticed, Problem> {
        if !self.starts_without(control)? {
            return Ok(Noticed::AtStart);
        }
        let expected = EXPECTED.iter().find(|(name, _)| *name == control).map_or(&[][..], |(_, rows)| rows);
        let mut failing = self.failing_by(control, expected)?;
        if failing.is_empty() && !expected.is_empty() {
            failing = self.failing_by(control, &[])?;
        }
        Ok(if failing.is_empty() { Noticed::ByNobody } else { Noticed::By(failing) })
    }

    /// Whether a plain program still runs.
    fn starts_without(&self, control: &str) -> Result<bool, Problem> {
        let output = self.run_without(control, &["--", "echo", "ok"])?;
        Ok(output.status.success() && output.stdout == b"ok\n")
    }

    /// The capabilities that an Outcome says are enforced although what they rest on is off.
    fn lies(&self, control: &str) -> Result<Vec<String>, Problem> {
        let Some((_, resting)) = RESTS_ON.iter().find(|(name, _)| *name == control) else {
            return Ok(vec![]);
        };
        let output = self.run_without(control, &["--json", "--", "true"])?;
        let outcome: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| Problem::Stop(format!("no Outcome without `{control}`: {error}")))?;
        let enforced = outcome["enforced"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lied = resting.iter().filter(|name| enforced.iter().any(|said| said == *name));
        Ok(lied.map(|name| format!("without `{control}` the Outcome says that {name} is enforced")).collect())
    }

    fn run_without(&self, control: &str, args: &[&str]) -> Result<Output, Problem> {
        let state = self.program.with_file_name("mutate-state");
        let output = Command::new(&self.program)
            .args(["run", "--profile", "internal"])
            .args(args)
            .env("COFFERDAM_WEAKEN", control)
            .env("COFFERDAM_STATE", &state)
            .stdin(Stdio::null())
            .output()
            .map_err(Problem::starting("cofferdam"));
        let _ = std::fs::remove_dir_all(&state); // ours, and nothing else is kept there
        output
    }

    /// The rows that fail while a control is off and pass when it is on again.
    fn failing_by(&self, control: &str, parts: &[&str]) -> Result<BTreeSet<String>, Problem> {
        let mut failing = self.failing(Some(control), parts)?;
        let again: Vec<_> = failing.iter().map(|row| format!("{row}::")).collect();
        let again: Vec<_> = again.iter().map(String::as_str).collect();
        if !again.is_empty() {
            let anyway = self.failing(None, &again)?;
            failing.retain(|row| !anyway.contains(row));
        }
        Ok(failing)
    }

    /// The rows that fail as root while a control is off: those whose names hold one of `parts`, or all.
    fn failing(&self, control: Option<&str>, parts: &[&str]) -> Result<BTreeSet<String>, Problem> {
        let mut command = Command::new(&self.tests);
        let listed =
            Command::new(&self.tests).arg("--list").output().map_err(Problem::starting("the rows"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let chosen = names
            .filter(|name| name.ends_with("::root"))
            .filter(|name| parts.is_empty() || parts.iter().any(|part| name.contains(part)));
        command.args(["--exact", "--test-threads=1"]).args(chosen);
        command.env("COFFERDAM_ROWS_PROGRAM", &self.program).env("RUST_BACKTRACE", "0");
        if let Some(control) = control {
            command.env("COFFERDAM_WEAKEN", control);
        }
        let output = command.stdin(Stdio::null()).output().map_err(Problem::starting("the rows"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !text.contains("test result: ") {
            return Err(Problem::Stop(format!("the rows didn't come to an end: {text}")));
        }
        Ok(failed(&text))
    }
}

/// The rows that failed, but for those whose probes could not be run.
fn failed(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let idle = |name: &str| {
        let said = text.split_once(&format!("---- {name} stdout ----")).map_or("", |(_, rest)| rest);
        said.split("\n---- ").next().unwrap_or_default().contains(COULD_NOT_RUN)
    };
    names.filter(|name| !idle(name)).map(|name| name.trim_end_matches("::root").to_owned()).collect()
}

/// Builds the tests of the rows, and gives their program.
fn tests(workspace: &Workspace) -> Result<PathBuf, Problem> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--package", "cofferdam", "--test", "rows"]);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().map_err(Problem::starting("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages
        .filter(|message| message["target"]["name"] == "rows")
        .filter_map(|message| message["executable"].as_str().map(|path| Path::new(path).to_owned()));
    programs.next().ok_or_else(|| Problem::Stop("the rows don't build".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_whose_probe_could_not_be_run_has_noticed_nothing() {
        let text = "test a::b::root ... FAILED\ntest c::root ... FAILED\ntest d::root ... ok\n\n\
                    ---- a::b::root stdout ----\na probe could not run: 126\n\n\
                    ---- c::root stdout ----\nC-1 got through: x\n\ntest result: FAILED.\n";
        assert_eq!(failed(text), BTreeSet::from(["c".to_owned()]));
    }

    #[test]
    fn a_row_that_the_table_names_has_to_notice() {
        let spec = "| `filter` | `sys::a`, `sys::b` |\n";
        let by = |rows: &[&str]| Noticed::By(rows.iter().map(|row| (*row).to_owned()).collect());
        assert!(untrue(spec, "filter", &by(&["sys::a", "sys::b", "sys::c"])).is_empty());
        assert!(untrue(spec, "filter", &by(&["sys::a"]))[0].contains("`sys::b`"));
        assert!(untrue(spec, "masks", &by(&["sys::a"]))[0].contains("lacks"));
    }

    #[test]
    fn the_controls_are_those_that_are_declared_and_each_is_expected_somewhere() {
        let source = include_str!("../../crates/core/src/weaken.rs");
        let declared: BTreeSet<_> = controls(source).into_iter().collect();
        let expected: BTreeSet<_> = EXPECTED.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert!(declared.contains("filter") && declared.len() > 20, "{declared:?}");
        assert_eq!(declared, expected);
    }
}
