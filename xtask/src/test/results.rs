//! What came of each test: kept in `results.json`, matched by name.
//!
//! ```json
//! {"version":1,"runner":"cargo test","tests":[
//!   {"binary":"cofferdam::run","test":"files::a_link_stays_inside","end":"passed","reason":null}]}
//! ```
//!
//! `binary` is `PACKAGE` for the unit tests of a library, `PACKAGE::TARGET` for an integration test,
//! `PACKAGE::bin/TARGET` for the unit tests of a program, `PACKAGE::doc` for documentation tests.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::problem::Problem;

const VERSION: u64 = 1;

/// The results of one run of the tests.
#[derive(Debug)]
pub(crate) struct Results {
    /// What ran them.
    pub(crate) runner: String,
    /// One entry a test.
    pub(crate) runs: Vec<Run>,
}

/// One test that ran, or was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Which test program it is in.
    pub(crate) binary: String,
    /// Its path there.
    pub(crate) name: String,
    /// What came of it.
    pub(crate) end: End,
}

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It failed, or was killed.
    Failed,
    /// It ran to its end.
    Passed,
    /// It could not run here, for this reason.
    Skipped(String),
}

impl Run {
    /// Both names, as a person reads them.
    pub(crate) fn id(&self) -> String {
        format!("{} {}", self.binary, self.name)
    }

    /// Whether `name` is the end of this test's full path: `run::a` names the test `a` in the binary
    /// `cofferdam::run`, and the test `run::a` in any binary.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let (full, wanted) = (segments(&self.id()), segments(name));
        !wanted.is_empty() && full.ends_with(&wanted)
    }
}

impl Results {
    /// Marks tests as skipped that passed only because they gave up early; `lines` is what they wrote
    /// (`NAME<TAB>REASON`). Gives back the lines that fit no test.
    pub(crate) fn mark_skipped(&mut self, lines: &str) -> Vec<String> {
        let mut strangers = Vec::new();
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            let (name, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
            let mut found = false;
            for run in self.runs.iter_mut().filter(|run| run.is_called(name)) {
                found = true;
                if run.end == End::Passed {
                    run.end = End::Skipped(reason.trim().to_owned());
                }
            }
            if !found {
                strangers.push(line.replace('\t', ": "));
            }
        }
        strangers
    }

    /// Writes them for `claims` and for other programs.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Problem> {
        let tests: Vec<Value> = self.runs.iter().map(to_json).collect();
        let text = json!({ "version": VERSION, "runner": self.runner, "tests": tests });
        fs::write(path, format!("{text:#}\n")).map_err(Problem::at("write", path))
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let text = fs::read_to_string(path).map_err(Problem::at("read", path))?;
        Self::parse(&text).map_err(|why| Problem::Form {
            what: path.display().to_string(),
            why: format!("{why}; delete it and run `cargo xtask test`"),
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if value["version"] != VERSION {
            return Err(format!("its version is not {VERSION}"));
        }
        let tests = value["tests"].as_array().ok_or("it has no list `tests`")?;
        let runs =
            tests.iter().map(from_json).collect::<Option<_>>().ok_or("one of its tests lacks a field")?;
        Ok(Self { runner: value["runner"].as_str().unwrap_or_default().to_owned(), runs })
    }
}

fn to_json(run: &Run) -> Value {
    let (end, reason) = match &run.end {
        End::Failed => ("failed", None),
        End::Passed => ("passed", None),
        End::Skipped(reason) => ("skipped", Some(reason)),
    };
    json!({ "binary": run.binary, "test": run.name, "end": end, "reason": reason })
}

fn from_json(value: &Value) -> Option<Run> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let end = match value["end"].as_str()? {
        "failed" => End::Failed,
        "passed" => End::Passed,
        "skipped" => End::Skipped(text("reason").unwrap_or_default()),
        _ => return None,
    };
    Some(Run { binary: text("binary")?, name: text("test")?, end })
}

/// The parts of a test's name. A crate is `a-b` to cargo and `a_b` to Rust; a documentation test's line
/// number is no part of its name.
fn segments(name: &str) -> Vec<String> {
    let name = name.split_once(" (line ").map_or(name, |(name, _)| name);
    name.split([' ', ':', '/']).filter(|part| !part.is_empty()).map(|part| part.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(binary: &str, name: &str, end: End) -> Run {
        Run { binary: binary.to_owned(), name: name.to_owned(), end }
    }

    #[test]
    fn part_of_a_word_is_not_a_name() {
        let run = run("cofferdam::run", "timeout_kills_everything", End::Passed);
        assert!(!run.is_called("kills_everything"));
        assert!(!run.is_called(""));
        assert!(!run.is_called("other::timeout_kills_everything"));
    }

    #[test]
    fn a_test_is_called_by_any_end_of_its_path() {
        let run = run("cofferdam-core::run", "run::timeout_kills", End::Passed);
        for name in ["timeout_kills", "run::timeout_kills", "run::run::timeout_kills"] {
            assert!(run.is_called(name), "{name}");
        }
        assert!(run.is_called("cofferdam_core::run::run::timeout_kills"));
        assert!(run.is_called("cofferdam-core::run run::timeout_kills"));
    }

    #[test]
    fn a_documentation_test_is_called_by_its_item() {
        assert!(run("core::doc", "policy::Grant (line 12)", End::Passed).is_called("policy::Grant"));
    }

    #[test]
    fn a_test_that_gave_up_is_skipped_and_one_that_failed_stays_failed() {
        let runs =
            vec![run("a", "x::y", End::Passed), run("b", "z", End::Failed), run("b", "w", End::Passed)];
        let mut results = Results { runner: String::new(), runs };
        let strangers = results.mark_skipped("x::y\tno bwrap here\nz\tlate\nnobody\twhy\n");
        assert_eq!(results.runs[0].end, End::Skipped("no bwrap here".to_owned()));
        assert_eq!(results.runs[1].end, End::Failed);
        assert_eq!(results.runs[2].end, End::Passed);
        assert_eq!(strangers, ["nobody: why"]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let path = std::env::temp_dir().join(format!("xtask-results-{}.json", std::process::id()));
        let runs = vec![run("a", "x", End::Passed), run("b", "y", End::Skipped("why".to_owned()))];
        Results { runner: "cargo test".to_owned(), runs: runs.clone() }.write(&path).unwrap();
        let read = Results::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(read.runs, runs);
        assert_eq!(read.runner, "cargo test");
    }

    #[test]
    fn results_of_another_version_are_refused() {
        assert!(Results::parse(r#"{"version":2,"tests":[]}"#).is_err());
        assert!(Results::parse(r#"{"version":1,"tests":[{"binary":"a"}]}"#).is_err());
    }
}
