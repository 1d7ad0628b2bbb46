//! `cargo xtask mutate`: every control is turned off once, and some row of the table of attacks must
//! notice.
//!
//! The product is built with the feature `weaken` (`core/src/weaken.rs`), in which a variable names the
//! control that is off. The rows run against it as root: all of them with everything on, where none may
//! fail, and then for each control first those that are expected to notice and, if none does, all others.
//! A control without which the sandbox doesn't start at all holds by that, and the table says so.
//!
//! `SPEC.md` keeps the table; it has to name every control there is.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    let mut table = String::from("| Control that is off | Noticed by |\n|---|---|\n");
    let mut unnoticed = vec![];
    let chosen: Vec<_> =
        controls.iter().filter(|control| args.is_empty() || args.contains(control)).collect();
    for control in &chosen {
        let noticed = rows.notice(control)?;
        let said = noticed.to_string();
        println!("{control}: {said}");
        let _ = writeln!(table, "| `{control}` | {said} |"); // a String takes everything
        if noticed == Noticed::ByNobody {
            unnoticed.push(control.as_str());
        }
    }
    println!("\n{table}\nmutate: {} controls turned off, {} unnoticed", chosen.len(), unnoticed.len());
    let listed = args.is_empty().then(|| unlisted(&controls, workspace)).transpose()?.unwrap_or_default();
    for control in &listed {
        println!("SPEC.md's table of controls lacks `{control}`");
    }
    let passed = unnoticed.is_empty() && listed.is_empty();
    if args.is_empty() {
        told::record(workspace, "mutate", passed)?;
    }
    Ok(Verdict::from(passed))
}

/// The controls that the table in `SPEC.md` doesn't name.
fn unlisted(controls: &[String], workspace: &Workspace) -> Result<Vec<String>, Problem> {
    let spec = workspace.read("SPEC.md")?;
    let lacks = |control: &&String| !spec.contains(&format!("| `{control}` |"));
    Ok(controls.iter().filter(lacks).cloned().collect())
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
        let mut failing = self.failing(Some(control), expected)?;
        if failing.is_empty() && !expected.is_empty() {
            failing = self.failing(Some(control), &[])?;
        }
        Ok(if failing.is_empty() { Noticed::ByNobody } else { Noticed::By(failing) })
    }

    /// Whether a plain program still runs.
    fn starts_without(&self, control: &str) -> Result<bool, Problem> {
        let state = self.program.with_file_name("mutate-state");
        let output = Command::new(&self.program)
            .args(["run", "--profile", "internal", "--", "echo", "ok"])
            .env("COFFERDAM_WEAKEN", control)
            .env("COFFERDAM_STATE", &state)
            .stdin(Stdio::null())
            .output()
            .map_err(Problem::starting("cofferdam"))?;
        let _ = std::fs::remove_dir_all(&state); // ours, and nothing else is kept there
        Ok(output.status.success() && output.stdout == b"ok\n")
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
        let failed = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(failed.map(|name| name.trim_end_matches("::root").to_owned()).collect())
    }
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
    fn the_controls_are_those_that_are_declared_and_each_is_expected_somewhere() {
        let source = include_str!("../../crates/core/src/weaken.rs");
        let declared: BTreeSet<_> = controls(source).into_iter().collect();
        let expected: BTreeSet<_> = EXPECTED.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert!(declared.contains("filter") && declared.len() > 20, "{declared:?}");
        assert_eq!(declared, expected);
    }
}
