//! Reads what `cargo nextest run --color=never` prints with `--status-level` at least `pass`.
//!
//! A line about a test is its status, right-aligned in 12 columns, then the time, a counter (newer
//! versions), the binary and the test:
//!
//! ```text
//!         PASS [   0.005s] (1/6) sample tests::passes
//!      SIGABRT [   0.008s] (2/6) sample::run aborts
//!   TRY 2 FAIL [   0.100s] (3/6) sample::run fails
//!         SKIP [         ] (───) sample tests::ignored
//! ```
//!
//! The last line about a test counts, so a retry that passed is a pass. The output of failing tests is
//! indented, so it can't be taken for such a line unless it is built to be; the run has failed by then.

use super::results::{End, Run};

const STATUS_COLUMNS: usize = 12;

/// Collects the results, line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    runs: Vec<Run>,
}

impl Parser {
    /// Takes one line of output, without its line end.
    pub(crate) fn line(&mut self, line: &str) {
        let Some(run) = parse(line) else { return };
        match self.runs.iter_mut().find(|known| known.binary == run.binary && known.name == run.name) {
            Some(known) => known.end = run.end,
            None => self.runs.push(run),
        }
    }

    /// What was collected.
    pub(crate) fn finish(self) -> Vec<Run> {
        self.runs
    }
}

fn parse(line: &str) -> Option<Run> {
    let (status, rest) = line.split_at_checked(STATUS_COLUMNS)?;
    let (_time, rest) = rest.strip_prefix(" [")?.split_once("] ")?;
    let rest = match rest.strip_prefix('(') {
        Some(counted) => counted.split_once(") ")?.1,
        None => rest,
    };
    let (binary, name) = rest.split_once(' ')?;
    // `Summary` stands in the same columns; set-up scripts have a status, and are no tests.
    if status.contains(char::is_lowercase) || status.contains("SETUP") {
        return None;
    }
    let end = end_of(status)?;
    Some(Run { binary: binary.to_owned(), name: name.trim().to_owned(), end })
}

/// `None` if the status says that the test goes on.
fn end_of(status: &str) -> Option<End> {
    let words: Vec<&str> = status.split_whitespace().collect();
    let words = match words.as_slice() {
        ["TRY", _number, rest @ ..] => rest,
        all => all,
    };
    match words {
        // `LEAK`: something that the test started still holds its output. That alone fails nothing.
        ["PASS" | "LEAK"] | ["PASS", "+", "LEAK"] => Some(End::Passed),
        ["SKIP"] => Some(End::Skipped("marked #[ignore]".to_owned())),
        [] | ["SLOW" | "START" | "TERMINATING" | "TRMNTG"] => None,
        // FAIL, TIMEOUT, a signal's name, each also with `+ LEAK`: whatever it is, it isn't a pass.
        _ => Some(End::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.01s
────────────
 Nextest run ID 3efef9b9-4518-4b57-8724-a70e48189ef0 with nextest profile: default
    Starting 6 tests across 3 binaries (1 test skipped)
        SKIP [         ] (───) sample tests::ignored
        PASS [   0.009s] ( 1/16) sample tests::passes
     SIGABRT [   0.008s] (2/6) sample::run aborts
        SLOW [> 60.000s] sample tests::panics
        PASS [  61.129s] sample tests::panics
        FAIL [   0.156s] (6/6) sample::run fails
  stdout ───

    running 1 test
        PASS [ not a status line
    test fails ... FAILED

────────────
     Summary [   0.176s] 6 tests run: 4 passed, 2 failed, 1 skipped
     SIGABRT [   0.008s] (2/6) sample::run aborts
        FAIL [   0.156s] (6/6) sample::run fails
error: test run failed";

    fn ends(output: &str) -> Vec<(String, End)> {
        let mut parser = Parser::default();
        output.lines().for_each(|line| parser.line(line));
        parser.finish().into_iter().map(|run| (run.id(), run.end)).collect()
    }

    #[test]
    fn every_test_is_found_once_with_how_it_ended() {
        let expected = [
            ("sample tests::ignored", End::Skipped("marked #[ignore]".to_owned())),
            ("sample tests::passes", End::Passed),
            ("sample::run aborts", End::Failed),
            ("sample tests::panics", End::Passed),
            ("sample::run fails", End::Failed),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(id, end)| (id.to_owned(), end)).collect();
        assert_eq!(ends(OUTPUT), expected);
    }

    #[test]
    fn a_retry_that_passed_is_a_pass() {
        let output = "  TRY 1 FAIL [   0.148s] (───) a::b c\n  TRY 2 PASS [   0.148s] (1/1) a::b c";
        assert_eq!(ends(output), [("a::b c".to_owned(), End::Passed)]);
    }

    #[test]
    fn whatever_is_not_a_pass_is_a_failure() {
        for status in
            ["     TIMEOUT", " FAIL + LEAK", "  TRY 1 ABRT", "SIGABRT+LEAK", "      SIG 99", "   LEAK-FAIL"]
        {
            let output = format!("{status} [  60.001s] (1/1) a c");
            assert_eq!(ends(&output), [("a c".to_owned(), End::Failed)], "{status}");
        }
    }

    #[test]
    fn a_pass_that_left_a_process_behind_is_a_pass() {
        assert_eq!(ends("        LEAK [   0.201s] (1/1) a c"), [("a c".to_owned(), End::Passed)]);
    }
}
