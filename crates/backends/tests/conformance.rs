//! The suite that every backend must pass, for each backend of this crate: a line each.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

#[path = "conformance/hostile_agent.rs"]
mod hostile_agent;

use std::io;

use cofferdam_backends::container::Container;
use cofferdam_core::policy::BackendName;
use cofferdam_sys::process;
use cofferdam_testkit::conformance;
use cofferdam_testkit::conformance::{BEHAVIOURS, FIELDS, Needs, Subject, ordinary};
use cofferdam_testkit::host::processes_with;

conformance!(container, container_for_test());

fn container_for_test() -> Subject {
    let runs = [Needs::Python, Needs::Sh];
    Subject::new(BackendName::Container, &runs, |state| Ok(Box::new(Container::for_runs(state.to_owned()))))
        .that_can_be_lost(kill_process_one)
}

/// Kills process 1 of the sandbox in which a program with a text in its command line runs.
fn kill_process_one(text: &str) -> io::Result<()> {
    let mut pid = *processes_with(text).first().ok_or(io::ErrorKind::NotFound)?;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().last());
        if field("NSpid:") == Some("1") {
            const KILL: i32 = 9;
            return process::signal(std::os::fd::AsFd::as_fd(&process::pidfd(pid)?), KILL);
        }
        pid = field("PPid:").and_then(|pid| pid.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    }
}

#[test]
fn every_backend_passes_as_an_ordinary_user_too() {
    let entries = BEHAVIOURS.len() + FIELDS.len();
    let test = concat!(module_path!(), "::every_backend_passes_as_an_ordinary_user_too");
    ordinary::again("container::", entries, test);
}
