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
#[cfg(feature = "wasm")]
use cofferdam_testkit::templates;

conformance!(container, container_for_test());

fn container_for_test() -> Subject {
    let runs = [Needs::Processes, Needs::Python, Needs::Sh];
    Subject::new(BackendName::Container, &runs, |state| Ok(Box::new(Container::for_runs(state.to_owned()))))
        .that_can_be_lost(kill_process_one)
}

#[cfg(feature = "wasm")]
conformance!(wasm, in_wasm::wasm_for_test());

/// The Wasm backend, whose worker is this very program.
#[cfg(feature = "wasm")]
mod in_wasm {
    use std::sync::atomic::{AtomicU64, Ordering};

    use cofferdam_backends::wasm::{Wasm, WorkerProgram, worker};
    use cofferdam_testkit::conformance::Absent;

    use super::*;

    /// What makes a worker of this program: the test below alone, and a word that no test has in its name.
    const AS_WORKER: &str = "as-a-worker";

    pub(super) fn wasm_for_test() -> Subject {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("of-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let on_each = mark.clone();
        let subject = Subject::new(BackendName::Wasm, &[Needs::Python], move |state| {
            // Words that are no option are the names of tests, and one is enough.
            let args = ["--exact", "in_wasm::the_worker_itself", AS_WORKER, &mark, "--nocapture"];
            let args = args.map(|word| std::ffi::CString::new(word).unwrap()).to_vec();
            let own = WorkerProgram { path: std::env::current_exe().unwrap(), args };
            let wasm = Wasm::new(Container::for_runs(state.to_owned()), own, templates::folder());
            match wasm.no_python() {
                None => Ok(Box::new(wasm)),
                Some((why, fix)) => Err(Absent { why, fix, later: false }),
            }
        });
        subject.whose_processes_bear(on_each).that_can_be_lost(kill_process_one)
    }

    /// The worker, where this program was started as one; a test of nothing otherwise.
    #[test]
    fn the_worker_itself() {
        if std::env::args().any(|word| word == AS_WORKER) {
            let ended = worker::main();
            std::process::exit(i32::from(ended.is_err()));
        }
    }
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

#[cfg(feature = "wasm")]
#[test]
fn wasm_passes_as_an_ordinary_user_too() {
    let test = concat!(module_path!(), "::wasm_passes_as_an_ordinary_user_too");
    let Some(templates) = templates::prepared() else {
        return cofferdam_testkit::record_skip(
            test,
            "no template of Python is prepared that they could copy",
        );
    };
    ordinary::again_with("wasm::", BEHAVIOURS.len() + FIELDS.len(), test, Some(&templates));
}
