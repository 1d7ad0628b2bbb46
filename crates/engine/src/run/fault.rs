//! From typed errors to the words of an Outcome: what couldn't be done, why, what to do next.

use std::io;

use cofferdam_core::audit::AuditError;
use cofferdam_core::backend::BackendError;
use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{Fault, FaultCode};
use cofferdam_core::outlet::OutletError;
use cofferdam_core::policy::Profile;

use crate::chain;
use crate::select::NoBackend;
use crate::state::StateError;

fn fault(code: FaultCode, message: impl Into<String>, fix: impl Into<String>) -> Fault {
    Fault { code, message: message.into(), fix: Some(fix.into()) }
}

pub(super) fn of_audit(error: &AuditError) -> Fault {
    let fix = match error {
        AuditError::Cut { .. } | AuditError::Changed { .. } => {
            "see `cofferdam audit verify`; nothing starts until the log is moved away or restored"
        }
        AuditError::Refused { .. } => "this is a fault of Cofferdam's; please report it",
        AuditError::Io { .. } => "make room for the log, or make its folder writable",
    };
    fault(FaultCode::AuditUnavailable, chain(error), fix)
}

pub(super) fn of_state(error: &StateError) -> Fault {
    fault(FaultCode::HostError, chain(error), "make room there, or make the folder writable")
}

pub(super) fn of_output(error: &io::Error) -> Fault {
    let message = format!("could not write the program's output: {error}");
    fault(FaultCode::HostError, message, "make room where standard output goes")
}

/// A sandbox that was opened holds less than its backend had promised.
pub(super) fn of_weaker(lacking: &[&Capability]) -> Fault {
    let names: Vec<_> = lacking.iter().map(|capability| capability.name()).collect();
    let message = format!("the sandbox that was opened doesn't hold {}; nothing ran in it", names.join(", "));
    let fix = "this is a fault of Cofferdam's, or the host changed meanwhile: see `cofferdam doctor`, and report it";
    fault(FaultCode::Internal, message, fix)
}

/// A sandbox can't be given a way out.
pub(super) fn of_outlet(error: &OutletError) -> Fault {
    fault(FaultCode::HostError, chain(error), "see `cofferdam doctor` for what this host lacks")
}

pub(super) fn lost() -> Fault {
    let message = "the sandbox ended without its program having ended";
    fault(FaultCode::BackendLost, message, "look at the kernel's log; then try again if that is safe")
}

pub(super) fn of_backend(error: &BackendError) -> Fault {
    match error {
        BackendError::Collect { .. } => {
            fault(FaultCode::HostError, chain(error), "make room where it goes, and run it again")
        }
        BackendError::Disk { .. } => fault(
            FaultCode::BadRequest,
            chain(error),
            "ask for a smaller --disk, make room there, or set COFFERDAM_STATE to a folder that has it",
        ),
        BackendError::Files { fix, .. } => fault(FaultCode::BadRequest, chain(error), fix),
        BackendError::Exec { program, source } => of_exec(&program.to_string_lossy(), source),
        BackendError::Outlet(error) => of_outlet(error),
        BackendError::Put { source } => {
            let fix = match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "allow more --disk or --files",
                _ => "check the file's name and size",
            };
            fault(FaultCode::BadRequest, chain(error), fix)
        }
        BackendError::Gone => lost(),
        BackendError::NoRoom { .. } => {
            fault(FaultCode::BadRequest, chain(error), "allow more: a sandbox itself takes a few MiB")
        }
        BackendError::Host { .. } => {
            fault(FaultCode::HostError, chain(error), "see `cofferdam doctor` for what this host lacks")
        }
        BackendError::Silent { .. } => fault(
            FaultCode::BackendLost,
            chain(error),
            "see whether this host has time left; then try again if that is safe",
        ),
        BackendError::Spent | BackendError::Wire(_) => {
            let fix = "this is a fault of Cofferdam's, or the sandbox was attacked; please report it";
            fault(FaultCode::Internal, chain(error), fix)
        }
    }
}

/// What the program changed could not be written to where it was to go; `at` is the entry in hand.
pub(super) fn of_keeping(at: Option<&str>, error: &io::Error) -> Fault {
    let what = at.map_or("what the program changed".into(), |at| format!("{at}, which the program changed"));
    let message = format!("could not write {what}: {error}; what was written is incomplete");
    fault(FaultCode::HostError, message, "make room where it goes, and run it again")
}

/// What the program changed could not be read.
pub(super) fn of_collecting(error: &BackendError) -> Fault {
    let message = format!(
        "could not take out what the program changed: {}; what was written is incomplete",
        chain(error)
    );
    fault(FaultCode::HostError, message, "look at the kernel's log, and run it again")
}

/// A program that didn't start: the shell's own two codes, and what the kernel said.
fn of_exec(program: &str, source: &io::Error) -> Fault {
    // Numbers of `asm-generic/errno-base.h`.
    const ENOENT: i32 = 2;
    const E2BIG: i32 = 7;
    const ENOEXEC: i32 = 8;
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    let message = format!("could not start `{}`: {source}", program.escape_debug());
    match source.raw_os_error() {
        Some(ENOENT) => fault(
            FaultCode::NotFound,
            message,
            "a sandbox has the host's /usr, and of your files only what `run FILE`, --workspace and --in \
             show: check the name and its #! line, or run it as `run FILE`",
        ),
        Some(ENOEXEC) => fault(
            FaultCode::NotExecutable,
            message,
            "give a script a first line like #!/bin/sh, or name its interpreter before it",
        ),
        // Not our own limits, which leave room for the program itself.
        Some(EAGAIN | ENOMEM) => fault(
            FaultCode::HostError,
            message,
            "allow more processes or memory outside: in the cgroup or by the ulimits of who started this",
        ),
        // Said by whoever runs it instead of the kernel.
        None if source.kind() == io::ErrorKind::Other => {
            fault(FaultCode::NotExecutable, message, "the reason says what it needs that isn't there")
        }
        Some(E2BIG) => fault(FaultCode::NotExecutable, message, "pass large data through standard input"),
        _ => {
            fault(FaultCode::NotExecutable, message, "make it executable, or name its interpreter before it")
        }
    }
}

/// The refusal that names every backend that was considered, what it lacks and the way out.
#[must_use]
pub fn no_backend(none: &NoBackend, profile: Profile) -> Fault {
    let lines = none.refusals.iter().map(|refusal| format!("\n  {}: {}", refusal.name, refusal.why));
    let message = format!("no backend runs this under profile `{profile}`:{}", lines.collect::<String>());
    let mut fixes = by_fix(none);
    if profile == Profile::Untrusted {
        // The last resort: what keeps the boundary comes first.
        fixes.push(
            "--profile internal allows a container, if nobody outside controls the program or what it reads"
                .into(),
        );
    }
    fault(FaultCode::BackendRefused, message, fixes.join("\n  "))
}

/// What to do about each backend, those with the same advice together.
fn by_fix(none: &NoBackend) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = vec![];
    for refusal in &none.refusals {
        match groups.iter_mut().find(|(fix, _)| *fix == refusal.fix) {
            Some((_, names)) => names.push(refusal.name.name()),
            None => groups.push((&refusal.fix, vec![refusal.name.name()])),
        }
    }
    groups.into_iter().map(|(fix, names)| format!("{}: {fix}", names.join(", "))).collect()
}
