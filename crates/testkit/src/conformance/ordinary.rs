//! The suite again as an ordinary user: the same test binary, started as somebody else.
//!
//! The binary may lie where that user can't go, so it is handed over as a descriptor. Whatever they
//! make lies in a folder of theirs that goes with this.

use std::fs::File;
use std::process::Command;

use crate::host::is_root;
use crate::product::ORDINARY;

/// Runs the tests of this binary whose names hold `filter`, but for the toys, as an ordinary user.
/// `test` is the name of the test that does so.
///
/// # Panics
///
/// With everything that they say, if one fails or fewer than `least` pass.
pub fn again(filter: &str, least: usize, test: &str) {
    if !is_root() {
        return crate::record_skip(test, "the tests run as an ordinary user already");
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
    let binary = File::open("/proc/self/exe").unwrap();
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}")]);
    command.args(["--clear-groups", "--inh-caps=-all", "/proc/self/fd/0"]);
    command.args([filter, "--skip", "::toys::", "--show-output", "--test-threads", "2"]);
    command.current_dir(folder.path()).env("TMPDIR", folder.path()).env("HOME", folder.path());
    command.env_remove("COFFERDAM_SKIPS").stdin(binary);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "as an ordinary user:\n{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let passed = said
        .lines()
        .find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok());
    assert!(passed.is_some_and(|passed| passed >= least), "{passed:?} of {least} passed:\n{said}");
    for line in said.lines() {
        if let Some((name, why)) = line.strip_prefix("SKIPPED ").and_then(|line| line.split_once(": ")) {
            crate::record_skip(&format!("{name} as an ordinary user"), why);
        } else if line.starts_with("REFUSED ") {
            println!("{line}");
        }
    }
}
