//! The suite again as an ordinary user: the same test binary, started as somebody else.
//!
//! The binary may lie where that user can't go, so it is handed over as a descriptor. Whatever they
//! make lies in a folder of theirs that goes with this.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use super::NOT_FOR_THIS;
use crate::host::is_root;
use crate::product::ORDINARY;
use crate::templates::{self, lend_to_an_ordinary_user};

/// Runs the tests of this binary whose names hold `filter`, but for the toys, as an ordinary user.
/// `test` is the name of the test that does so. It is skipped if one of them was, but for those that
/// are about something that the backend hasn't got for anybody.
///
/// # Panics
///
/// With everything that they say, if one fails or fewer than `least` ran to their end.
pub fn again(filter: &str, least: usize, test: &str) {
    again_with(filter, least, test, None);
}

/// The same for tests that need a template of Python: they get a copy of theirs of those of the plain name.
///
/// # Panics
///
/// As [`again`].
pub fn again_with(filter: &str, least: usize, test: &str, templates: Option<&Path>) {
    if !is_root() {
        return crate::record_skip(test, "the tests run as an ordinary user already");
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}")]);
    command.args(["--clear-groups", "--inh-caps=-all"]);
    if let Some(templates) = templates {
        // Workers are started by its path.
        let binary = folder.path().join("tests");
        std::fs::copy("/proc/self/exe", &binary).unwrap();
        let own = folder.path().join("wasm");
        lend_to_an_ordinary_user(templates, &["python"], &own).unwrap();
        command.arg(binary).stdin(Stdio::null()).env(templates::VARIABLE, own);
    } else {
        command.arg("/proc/self/fd/0").stdin(File::open("/proc/self/exe").unwrap());
    }
    command.args([filter, "--skip", "::toys::", "--show-output", "--test-threads", "2"]);
    command.current_dir(folder.path()).env("TMPDIR", folder.path()).env("HOME", folder.path());
    command.env_remove("COFFERDAM_SKIPS");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "as an ordinary user:\n{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said.lines().filter(|line| line.starts_with("REFUSED ")).for_each(|line| println!("{line}"));
    match told(&said, least) {
        Told::Held => {}
        Told::Skipped(why) => crate::record_skip(test, &why),
        Told::TooFew(passed) => panic!("{passed} of {least} passed:\n{said}"),
    }
}

/// What came of all tests of a binary together.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// So many ran as there have to be.
    Held,
    /// Some could not run, and why the first couldn't.
    Skipped(String),
    /// So many passed, of more that have to be there.
    TooFew(usize),
}

/// Reads what a binary of tests wrote, none of which failed.
fn told(said: &str, least: usize) -> Told {
    let passed = said
        .lines()
        .find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok())
        .unwrap_or_default();
    if passed < least {
        return Told::TooFew(passed);
    }
    let skipped = said.lines().filter_map(|line| line.strip_prefix("SKIPPED ")?.split_once(": "));
    let skipped: Vec<_> = skipped.filter(|(_, why)| !why.starts_with(NOT_FOR_THIS)).collect();
    match skipped.first() {
        Some((name, why)) => {
            let count = skipped.len();
            Told::Skipped(format!("{count} of {passed} can't run as an ordinary user: {name}: {why}"))
        }
        None => Told::Held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = "test result: ok. 2 passed; 0 failed; 0 ignored\n";

    #[test]
    fn a_test_that_gave_up_early_is_not_called_passed() {
        let said = format!("SKIPPED x::a: no namespaces\nSKIPPED x::b: none\n{RESULT}");
        let why = "2 of 2 can't run as an ordinary user: x::a: no namespaces";
        assert_eq!(told(&said, 2), Told::Skipped(why.to_owned()));
    }

    #[test]
    fn what_a_backend_has_for_nobody_is_no_skip_of_the_ordinary_users() {
        let said = format!("SKIPPED x::a: {NOT_FOR_THIS}wasm runs no Sh\nREFUSED x::b: memory (why)\n");
        assert_eq!(told(&format!("{said}{RESULT}"), 2), Told::Held);
    }

    #[test]
    fn fewer_tests_than_there_are_entries_are_too_few() {
        assert_eq!(told(RESULT, 3), Told::TooFew(2));
        assert_eq!(told("", 1), Told::TooFew(0));
    }
}
