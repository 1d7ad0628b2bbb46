//! Reads what `cargo test` prints: cargo's own lines and libtest's pretty format, in one stream.
//!
//! ```text
//!      Running unittests src/lib.rs (target/debug/deps/sample-e6daf73c296d6df0)
//! running 3 tests
//! test tests::ignored ... ignored, slow
//! test tests::panics - should panic ... ok
//! test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.09s
//!    Doc-tests sample
//! test src/lib.rs - A (line 2) - compile fail ... ok
//! ```
//!
//! What failing tests printed comes after a line `failures:` and is not looked at. A test binary that
//! dies prints no `test result:` line; that is recorded as one more failed test.

use std::collections::HashMap;

use super::results::{End, Run};

/// Collects the results, line by line.
#[derive(Debug)]
pub(crate) struct Parser {
    /// From the file name of a test binary to the name it goes by.
    binaries: HashMap<String, String>,
    current: String,
    /// How many tests the current binary announced and how many have a result; `None` between binaries.
    open: Option<(usize, usize)>,
    /// A name whose result has not come yet: with one thread libtest prints it first.
    waiting: Option<String>,
    in_failures: bool,
    runs: Vec<Run>,
}

impl Parser {
    /// `binaries` says which test binary is whose; one that isn't in it goes by its file name.
    pub(crate) fn new(binaries: HashMap<String, String>) -> Self {
        let current = "unknown".to_owned();
        Self { binaries, current, open: None, waiting: None, in_failures: false, runs: Vec::new() }
    }

    /// Takes one line of output, without its line end.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("     Running ") {
            self.start_binary(self.binary_of(rest));
        } else if let Some(name) = line.strip_prefix("   Doc-tests ") {
            self.start_binary(format!("{name}::doc"));
        } else if let Some(count) = announced(line) {
            self.open = Some((count, 0));
            self.in_failures = false;
        } else if line.starts_with("test result: ") {
            self.open = None;
            self.waiting = None;
        } else if line == "failures:" {
            self.in_failures = true;
        } else if !self.in_failures {
            self.test_line(line);
        }
    }

    /// What was collected.
    pub(crate) fn finish(mut self) -> Vec<Run> {
        self.close();
        self.runs
    }

    fn start_binary(&mut self, name: String) {
        self.close();
        self.current = name;
    }

    fn close(&mut self) {
        if let Some((announced, seen)) = self.open.take() {
            let name = format!("(the test program died; {seen} of its {announced} tests have a result)");
            self.runs.push(Run { binary: self.current.clone(), name, end: End::Failed });
        }
        self.waiting = None;
        self.in_failures = false;
    }

    fn test_line(&mut self, line: &str) {
        if let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            match end_of(result) {
                Some(end) => self.record(name, end),
                None => self.waiting = Some(name.to_owned()),
            }
        } else if let Some(name) = self.waiting.take() {
            match end_of(line) {
                Some(end) => self.record(&name, end),
                None => self.waiting = Some(name),
            }
        }
    }

    fn record(&mut self, name: &str, end: End) {
        self.waiting = None;
        if let Some((_, seen)) = &mut self.open {
            *seen += 1;
        }
        self.runs.push(Run { binary: self.current.clone(), name: test_name(name), end });
    }

    fn binary_of(&self, running: &str) -> String {
        let path = running.rsplit_once('(').map_or(running, |(_, path)| path.trim_end_matches(')'));
        let file = path.rsplit('/').next().unwrap_or(path);
        match self.binaries.get(file) {
            Some(name) => name.clone(),
            None => file.rsplit_once('-').map_or(file, |(stem, _hash)| stem).to_owned(),
        }
    }
}

fn announced(line: &str) -> Option<usize> {
    let count = line.strip_prefix("running ")?;
    count.strip_suffix(" tests").or_else(|| count.strip_suffix(" test"))?.parse().ok()
}

fn end_of(result: &str) -> Option<End> {
    match result.trim_end() {
        "ok" => Some(End::Passed),
        "FAILED" => Some(End::Failed),
        "ignored" => Some(End::Skipped("marked #[ignore]".to_owned())),
        other => other.strip_prefix("ignored, ").map(|reason| End::Skipped(reason.to_owned())),
    }
}

/// `tests::panics - should panic` is `tests::panics`; `src/lib.rs - a::B (line 2) - compile fail`, a
/// documentation test, is `a::B (line 2)`.
fn test_name(printed: &str) -> String {
    let mut name = printed;
    for mark in [" - should panic", " - compile fail", " - compile"] {
        name = name.strip_suffix(mark).unwrap_or(name);
    }
    match name.split_once(".rs - ") {
        Some((_file, item)) => item.to_owned(),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling sample v0.1.0 (/w/sample)
     Running unittests src/lib.rs (/t/debug/deps/sample-e6daf73c296d6df0)

running 3 tests
test tests::ignored ... ignored, slow
test tests::passes ... ok
test tests::panics - should panic ... ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.09s

     Running tests/run.rs (/t/debug/deps/run-275ab411bad78933)

running 2 tests
test sub::ok ... ok
test fails ... FAILED

failures:

---- fails stdout ----
test fake ... ok

failures:
    fails

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.18s

   Doc-tests sample

running 1 test
test src/lib.rs - a::B (line 2) - compile fail ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.06s
";

    fn ends(output: &str) -> Vec<(String, End)> {
        let binaries = [("run-275ab411bad78933".to_owned(), "sample::run".to_owned())];
        let mut parser = Parser::new(binaries.into());
        output.lines().for_each(|line| parser.line(line));
        parser.finish().into_iter().map(|run| (run.id(), run.end)).collect()
    }

    fn named(expected: &[(&str, End)]) -> Vec<(String, End)> {
        expected.iter().map(|(id, end)| ((*id).to_owned(), end.clone())).collect()
    }

    #[test]
    fn every_test_is_found_once_with_its_binary_and_how_it_ended() {
        let expected = [
            ("sample tests::ignored", End::Skipped("slow".to_owned())),
            ("sample tests::passes", End::Passed),
            ("sample tests::panics", End::Passed),
            ("sample::run sub::ok", End::Passed),
            ("sample::run fails", End::Failed),
            ("sample::doc a::B (line 2)", End::Passed),
        ];
        assert_eq!(ends(OUTPUT), named(&expected));
    }

    #[test]
    fn a_test_program_that_dies_is_a_failure() {
        let output = "
     Running tests/run.rs (/t/debug/deps/run-275ab411bad78933)
running 3 tests
test sub::ok ... ok
error: test failed, to rerun pass `--test run`
   Doc-tests sample
running 0 tests
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let expected = [
            ("sample::run sub::ok", End::Passed),
            ("sample::run (the test program died; 1 of its 3 tests have a result)", End::Failed),
        ];
        assert_eq!(ends(output), named(&expected));
    }

    #[test]
    fn a_result_that_comes_lines_after_its_name_is_found() {
        let output = "
     Running tests/run.rs (/t/debug/deps/run-275ab411bad78933)
running 1 test
test noisy ... a child of the test wrote this
and this
ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(ends(output), named(&[("sample::run noisy", End::Passed)]));
    }
}
