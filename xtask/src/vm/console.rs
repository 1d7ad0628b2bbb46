//! What the machine says over its serial console.
//!
//! ```text
//! @check pass NAME SECONDS
//! @check fail NAME REASON…
//! @check skip NAME REASON…
//! @log NAME A LINE THAT IT WROTE…
//! @end
//! ```
//!
//! Anything else is the kernel's or systemd's, and is shown only where the machine stops too early.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver};

use super::checks::Check;
use crate::test::results::{End, Run};

/// How many lines of the rest are kept.
const LAST_WORDS: usize = 40;

/// Everything that was heard.
#[derive(Debug, Default)]
pub(super) struct Console {
    ends: BTreeMap<String, End>,
    ended: bool,
    rest: VecDeque<String>,
}

impl Console {
    /// Takes in a line. Gives what a person should see of it.
    pub(super) fn hear(&mut self, line: &str) -> Option<String> {
        let line = line.trim_end();
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("@end"), ..) => {
                self.ended = true;
                None
            }
            (Some("@check"), Some(end), Some(name)) => {
                let rest = words.next().unwrap_or("");
                let (end, shown) = match end {
                    "pass" => (End::Passed, format!("passed  {name} ({rest} s)")),
                    "skip" => (End::Skipped(rest.to_owned()), format!("skipped {name}: {rest}")),
                    _ => (End::Failed, format!("failed  {name}: {rest}")),
                };
                self.ends.insert(name.to_owned(), end);
                Some(shown)
            }
            (Some("@log"), Some(name), _) => Some(format!("        {}", line[5..].trim_start_matches(name))),
            _ => {
                self.rest.push_back(line.to_owned());
                if self.rest.len() > LAST_WORDS {
                    self.rest.pop_front();
                }
                None
            }
        }
    }

    /// Whether the machine has said that it is done.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// The last lines that were no part of a check.
    pub(super) fn last_words(&self) -> String {
        self.rest.iter().map(|line| format!("        {line}\n")).collect()
    }

    /// What came of each check. One that nothing was heard of has failed.
    pub(super) fn judge(&self, checks: &[&Check]) -> Vec<Run> {
        let end = |check: &&Check| self.ends.get(check.name).cloned().unwrap_or(End::Failed);
        checks.iter().map(|check| check.run(end(check))).collect()
    }
}

/// Reads lines on a thread, so that they can be waited for with a bound. Bytes that are no text don't
/// end it.
pub(super) fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::checks::CHECKS;

    #[test]
    fn what_was_not_heard_of_has_failed() {
        let mut console = Console::default();
        let (first, second) = (&CHECKS[0], &CHECKS[1]);
        console.hear("[    1.0] something of the kernel's\r");
        console.hear(&format!("@check pass {} 0.5\r", first.name));
        assert!(!console.ended());
        let ends: Vec<_> = console.judge(&[first, second]).into_iter().map(|run| run.end).collect();
        assert_eq!(ends, [End::Passed, End::Failed]);
        console.hear("@end\r");
        assert!(console.ended());
        assert!(console.last_words().contains("of the kernel's"));
    }

    #[test]
    fn a_skip_has_its_reason_and_any_other_word_is_a_failure() {
        let mut console = Console::default();
        console.hear(&format!("@check skip {} there is no systemd", CHECKS[0].name));
        console.hear(&format!("@check odd {} x", CHECKS[1].name));
        let ends: Vec<_> = console.judge(&[&CHECKS[0], &CHECKS[1]]).into_iter().map(|run| run.end).collect();
        assert_eq!(ends, [End::Skipped("there is no systemd".to_owned()), End::Failed]);
    }
}
