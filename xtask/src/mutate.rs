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
//! WebAssembly has rows of its own, which are run for the controls that a program there could meet, where a
//! Python is prepared for them. What its worker's jail has besides, no program in it meets before it has broken
//! out of the engine: the rows of the container hold that.
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
    ("address-check", &["net::"]),
    ("audit", &["ctl::"]),
    ("capabilities", &["sys::"]),
    ("catch-all", &["net::"]),
    ("cgroup-namespace", &["sys::"]),
    ("control-socket", &["iso::"]),
    ("cpu", &["res::"]),
    ("disk", &["res::"]),
    ("egress-budget", &["net::"]),
    ("environment", &["cred::"]),
    ("files", &["res::"]),
    ("filter", &["sys::"]),
    ("filter-is-empty", &["sys::"]),
    ("foreign-credential", &["url::"]),
    ("hide", &["iso::", "cred::", "art::"]),
    ("host-check", &["url::"]),
    ("host-exec", &["iso::"]),
    ("host-root", &["iso::", "cred::"]),
    ("ipc-namespace", &["iso::"]),
    ("landlock", &["sys::"]),
    ("lease-end", &["brokered::"]),
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
    ("rule-match", &["net::", "url::"]),
    ("sni-check", &["url::"]),
    ("surrogate", &["brokered::"]),
    ("surrogate-place", &["brokered::"]),
    ("timeout", &["res::"]),
    ("user-namespace", &["sys::"]),
    ("uts-namespace", &["sys::"]),
];

/// The same of the rows of WebAssembly: the controls that they have to notice.
const EXPECTED_IN_WASM: &[(&str, &[&str])] = &[
    ("address-check", &["wasm::net::"]),
    ("audit", &["wasm::ctl::"]),
    ("cpu", &["wasm::res::"]),
    ("disk", &["wasm::res::"]),
    ("egress-budget", &["wasm::net::"]),
    ("environment", &["wasm::cred::"]),
    ("foreign-credential", &["wasm::url::"]),
    ("hide", &["wasm::cred::"]),
    ("host-check", &["wasm::url::"]),
    ("host-exec", &["wasm::iso::"]),
    ("links", &["wasm::art::"]),
    ("memory", &["wasm::res::"]),
    ("output", &["wasm::res::"]),
    ("rule-match", &["wasm::net::", "wasm::url::"]),
    ("sni-check", &["wasm::url::"]),
    ("timeout", &["wasm::res::"]),
    ("wasm-memory", &["wasm::res::"]),
    ("wasm-seed", &["wasm::iso::"]),
    ("wasm-traps", &["wasm::iso::"]),
    ("wasm-wipe", &["wasm::iso::"]),
];

/// What the names of controls that a container hasn't begin with.
const WASMS_OWN: &str = "wasm-";

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
    let prepared = workspace.templates();
    let rows = Rows { program: weakened::build(workspace)?, tests: tests(workspace)?, prepared };
    if !std::fs::read(&rows.program)
        .map_err(Problem::at("read", &rows.program))?
        .windows(16)
        .any(|part| part == b"COFFERDAM_WEAKEN")
    {
        return Err(Problem::Stop("the build for tests has no switches; look at its features".to_owned()));
    }
    let mut broken = rows.failing(None, Boundary::Container, &[])?;
    if rows.prepared.is_some() {
        broken.extend(rows.failing(None, Boundary::Wasm, &[])?);
    }
    if !broken.is_empty() {
        println!("with every control on these rows fail, so that nothing can be learned: {broken:?}");
        return Ok(Verdict::Failed);
    }
    let spec = workspace.read("SPEC.md")?;
    let mut table = String::from("| Control that is off | Noticed by |\n|---|---|\n");
    let mut wrong = vec![];
    if rows.prepared.is_none() {
        let why =
            "no Python is prepared (COFFERDAM_TEST_TEMPLATES), so the rows of WebAssembly were left out";
        wrong.push(why.to_owned());
    }
    let chosen: Vec<_> =
        controls.iter().filter(|control| args.is_empty() || args.contains(control)).collect();
    for control in &chosen {
        let noticed = rows.noticed(control)?;
        if noticed.is_empty() {
            println!("{control}: not tried");
            continue;
        }
        for (boundary, noticed) in &noticed {
            if *noticed == Noticed::ByNobody {
                wrong.push(format!("no row of {boundary:?} notices that `{control}` is off"));
            }
        }
        let all = together(noticed);
        println!("{control}: {all}");
        let _ = writeln!(table, "| `{control}` | {all} |"); // a String takes everything
        wrong.extend(rows.lies(control)?);
        wrong.extend(untrue(&spec, control, &all, rows.prepared.is_some()));
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

/// What noticed by either boundary.
fn together(noticed: Vec<(Boundary, Noticed)>) -> Noticed {
    let names = |noticed: &(Boundary, Noticed)| match &noticed.1 {
        Noticed::By(rows) => rows.clone(),
        Noticed::AtStart | Noticed::ByNobody => BTreeSet::new(),
    };
    let all: BTreeSet<_> = noticed.iter().flat_map(names).collect();
    let first = noticed.into_iter().map(|(_, noticed)| noticed).next();
    if all.is_empty() { first.unwrap_or(Noticed::ByNobody) } else { Noticed::By(all) }
}

/// What the table in `SPEC.md` says of a control and isn't so.
fn untrue(spec: &str, control: &str, noticed: &Noticed, in_wasm: bool) -> Vec<String> {
    let Some(row) = spec.lines().find_map(|line| line.strip_prefix(&format!("| `{control}` | "))) else {
        return vec![format!("SPEC.md's table of controls lacks `{control}`")];
    };
    let listed = row.split('`').skip(1).step_by(2);
    let listed = listed.filter(|row| in_wasm || !is_in_wasm(row));
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

/// Whose rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boundary {
    Container,
    Wasm,
}

/// Whether a row is one of WebAssembly's.
fn is_in_wasm(row: &str) -> bool {
    row.starts_with("wasm::")
}

/// The tests of the rows, and the program that they are run against.
struct Rows {
    program: PathBuf,
    tests: PathBuf,
    /// Where a Python is prepared, if one is.
    prepared: Option<PathBuf>,
}

impl Rows {
    /// What noticed, of each boundary that has the control and can be tried here.
    fn noticed(&self, control: &str) -> Result<Vec<(Boundary, Noticed)>, Problem> {
        let mut noticed = vec![];
        if !control.starts_with(WASMS_OWN) {
            noticed.push((Boundary::Container, self.notice(control, Boundary::Container, EXPECTED)?));
        }
        let concerned = EXPECTED_IN_WASM.iter().any(|(name, _)| *name == control);
        if concerned && self.prepared.is_some() {
            noticed.push((Boundary::Wasm, self.notice(control, Boundary::Wasm, EXPECTED_IN_WASM)?));
        }
        Ok(noticed)
    }

    fn notice(
        &self,
        control: &str,
        boundary: Boundary,
        expected: &[(&str, &[&str])],
    ) -> Result<Noticed, Problem> {
        if !self.starts_without(control, boundary)? {
            return Ok(Noticed::AtStart);
        }
        let expected = expected.iter().find(|(name, _)| *name == control).map_or(&[][..], |(_, rows)| rows);
        let mut failing = self.failing_by(control, boundary, expected)?;
        if failing.is_empty() && !expected.is_empty() {
            failing = self.failing_by(control, boundary, &[])?;
        }
        Ok(if failing.is_empty() { Noticed::ByNobody } else { Noticed::By(failing) })
    }

    /// Whether a plain program still runs.
    fn starts_without(&self, control: &str, boundary: Boundary) -> Result<bool, Problem> {
        let says: &[&str] = match boundary {
            Boundary::Container => &["--", "echo", "ok"],
            Boundary::Wasm => &["--backend", "wasm", "-c", "print('ok')"],
        };
        let output = self.run_without(control, says)?;
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
            .envs(self.prepared.as_ref().and_then(|folder| Some(("COFFERDAM_DATA", folder.parent()?))))
            .stdin(Stdio::null())
            .output()
            .map_err(Problem::starting("cofferdam"));
        let _ = std::fs::remove_dir_all(&state); // ours, and nothing else is kept there
        output
    }

    /// The rows that fail while a control is off and pass when it is on again.
    fn failing_by(
        &self,
        control: &str,
        boundary: Boundary,
        parts: &[&str],
    ) -> Result<BTreeSet<String>, Problem> {
        let mut failing = self.failing(Some(control), boundary, parts)?;
        let again: Vec<_> = failing.iter().map(|row| format!("{row}::")).collect();
        let again: Vec<_> = again.iter().map(String::as_str).collect();
        if !again.is_empty() {
            let anyway = self.failing(None, boundary, &again)?;
            failing.retain(|row| !anyway.contains(row));
        }
        Ok(failing)
    }

    /// The rows of a boundary that fail as root while a control is off: those whose names hold one of `parts`,
    /// or all.
    fn failing(
        &self,
        control: Option<&str>,
        boundary: Boundary,
        parts: &[&str],
    ) -> Result<BTreeSet<String>, Problem> {
        let mut command = Command::new(&self.tests);
        let listed =
            Command::new(&self.tests).arg("--list").output().map_err(Problem::starting("the rows"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let chosen = names
            .filter(|name| name.ends_with("::root"))
            .filter(|name| is_in_wasm(name) == (boundary == Boundary::Wasm))
            .filter(|name| parts.is_empty() || parts.iter().any(|part| name.contains(part)));
        command.args(["--exact", "--test-threads=1"]).args(chosen);
        command.env("COFFERDAM_ROWS_PROGRAM", &self.program).env("RUST_BACKTRACE", "0");
        command.envs(self.prepared.as_ref().map(|folder| ("COFFERDAM_TEST_TEMPLATES", folder)));
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
        assert!(untrue(spec, "filter", &by(&["sys::a", "sys::b", "sys::c"]), true).is_empty());
        assert!(untrue(spec, "filter", &by(&["sys::a"]), true)[0].contains("`sys::b`"));
        assert!(untrue(spec, "masks", &by(&["sys::a"]), true)[0].contains("lacks"));
        let spec = "| `disk` | `res::a`, `wasm::res::b` |\n";
        assert!(untrue(spec, "disk", &by(&["res::a"]), true)[0].contains("`wasm::res::b`"));
        assert!(untrue(spec, "disk", &by(&["res::a"]), false).is_empty(), "it was not tried");
    }

    #[test]
    fn rows_of_either_boundary_are_told_together() {
        let by = |row: &str| Noticed::By(BTreeSet::from([row.to_owned()]));
        let both = vec![(Boundary::Container, by("a")), (Boundary::Wasm, by("wasm::b"))];
        assert_eq!(together(both).to_string(), "`a`, `wasm::b`");
        let neither = vec![(Boundary::Wasm, Noticed::ByNobody)];
        assert_eq!(together(neither), Noticed::ByNobody);
    }

    #[test]
    fn the_controls_are_those_that_are_declared_and_each_is_expected_somewhere() {
        let source = include_str!("../../crates/core/src/weaken.rs");
        let declared: BTreeSet<_> = controls(source).into_iter().collect();
        let names = |list: &[(&str, &[&str])]| -> BTreeSet<String> {
            list.iter().map(|(name, _)| (*name).to_owned()).collect()
        };
        let (container, wasm) = (names(EXPECTED), names(EXPECTED_IN_WASM));
        assert!(declared.contains("filter") && declared.len() > 20, "{declared:?}");
        assert_eq!(declared, &container | &wasm);
        let own: BTreeSet<_> = declared.iter().filter(|name| name.starts_with(WASMS_OWN)).cloned().collect();
        assert!(own.len() > 3 && own.is_subset(&wasm) && own.is_disjoint(&container), "{own:?}");
    }
}
