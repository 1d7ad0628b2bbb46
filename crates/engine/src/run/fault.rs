//! From typed errors to the words of an Outcome: what couldn't be done, why, what to do next.

use std::io;

use cofferdam_core::audit::AuditError;
use cofferdam_core::backend::BackendError;
use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{Denials, Fault, FaultCode};
use cofferdam_core::outlet::OutletError;
use cofferdam_core::policy::Profile;

use crate::chain;
use crate::select::{NoBackend, Obstacle, Refusal};
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

/// The program sent a credential where it may not be.
pub(super) fn of_misuse(denials: &Denials) -> Fault {
    let all = denials.counts().iter().map(|count| &count.denial);
    let misuse = all.into_iter().find(|denial| super::way_out::is_misuse(denial.code));
    let which = misuse.map(|denial| format!(" ({denial})")).unwrap_or_default();
    Fault {
        code: FaultCode::CredentialMisused,
        message: format!(
            "the program sent a credential where it may not be{which}, and its policy ends a run for that"
        ),
        fix: misuse.map(|denial| denial.code.sentence()),
    }
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
        BackendError::Unfit { fix, .. } => fault(FaultCode::NotExecutable, chain(error), fix),
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
    let (later, here): (Vec<_>, Vec<_>) =
        none.refusals.iter().partition(|refusal| refusal.fault == Obstacle::Later);
    let mut message = format!("no backend runs this under profile `{profile}`:");
    for Refusal { name, why, .. } in &here {
        message += &format!("\n  {name}: {why}");
    }
    if !later.is_empty() {
        let names: Vec<_> = later.iter().map(|refusal| refusal.name.name()).collect();
        message += &format!("\n  not in this version: {}", names.join(", "));
    }
    // Where others can be done something about, nobody has to read that there is nothing to be done about these.
    let mut fixes = by_fix(if here.is_empty() { &later } else { &here });
    // The last resort: what keeps the boundary comes first. A container lacks what WebAssembly in one can't enforce.
    let helps = here.iter().all(|refusal| refusal.gaps.is_empty() && !refusal.fix.contains(INTERNAL));
    if profile == Profile::Untrusted && helps {
        let words = "allows a container, if nobody outside controls the program or what it reads";
        fixes.push(format!("{INTERNAL} {words}"));
    }
    // Whoever sends another program, or says what else may run it, gets on.
    let unfit = !here.is_empty() && here.iter().all(|refusal| refusal.fault == Obstacle::Program);
    let code = if unfit { FaultCode::ProgramUnfit } else { FaultCode::BackendRefused };
    fault(code, message, fixes.join("\n  "))
}

/// What lets a container be chosen.
const INTERNAL: &str = "--profile internal";

/// What to do about each backend, those with the same advice together. Where there is one advice, whose it is goes
/// without saying.
fn by_fix(refusals: &[&Refusal]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = vec![];
    for refusal in refusals {
        match groups.iter_mut().find(|(fix, _)| *fix == refusal.fix) {
            Some((_, names)) => names.push(refusal.name.name()),
            None => groups.push((&refusal.fix, vec![refusal.name.name()])),
        }
    }
    match groups.as_slice() {
        [(fix, _)] => vec![(*fix).to_owned()],
        _ => groups.iter().map(|(fix, names)| format!("{}: {fix}", names.join(", "))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_core::capability::Gap;
    use cofferdam_core::policy::BackendName;

    use super::*;

    fn refusal(name: BackendName, fix: &str, fault: Obstacle) -> Refusal {
        Refusal { name, why: "it can't".to_owned(), gaps: vec![], fix: fix.to_owned(), fault }
    }

    fn later() -> Vec<Refusal> {
        [BackendName::Microvm, BackendName::Kata].map(|name| refusal(name, "wait", Obstacle::Later)).into()
    }

    fn words(refusals: Vec<Refusal>, profile: Profile) -> (String, String) {
        let fault = no_backend(&NoBackend { refusals }, profile);
        (fault.message, fault.fix.unwrap())
    }

    #[test]
    fn backends_of_a_later_version_share_a_short_line_and_their_advice_is_not_in_the_way() {
        let wasm = refusal(BackendName::Wasm, "set it up", Obstacle::Here);
        let all = [vec![wasm], later()].concat();
        let (message, fix) = words(all, Profile::Untrusted);
        assert!(message.ends_with(":\n  wasm: it can't\n  not in this version: microvm, kata"), "{message}");
        assert!(fix.starts_with("set it up\n  --profile internal allows a container"), "{fix}");
        let (message, fix) = words(later(), Profile::Managed);
        assert!(message.ends_with(":\n  not in this version: microvm, kata"), "{message}");
        assert_eq!(fix, "wait");
    }

    #[test]
    fn a_container_is_named_once_and_only_where_it_can_help() {
        let wasm = |fix: &str, gaps| {
            let refusal = Refusal { gaps, ..refusal(BackendName::Wasm, fix, Obstacle::Here) };
            words(vec![refusal], Profile::Untrusted)
        };
        let said = "a container runs it: --profile internal";
        assert_eq!(wasm(said, vec![]).1, said);
        let gap = Gap { capability: Capability::Egress, why: String::new(), fix: String::new() };
        assert_eq!(wasm("remove the rules", vec![gap]).1, "remove the rules");
    }

    #[test]
    fn a_program_that_fits_nothing_is_no_fault_of_the_host() {
        let code = |fault| {
            let refusals = [vec![refusal(BackendName::Wasm, "fix", fault)], later()].concat();
            no_backend(&NoBackend { refusals }, Profile::Untrusted).code
        };
        assert_eq!(code(Obstacle::Program), FaultCode::ProgramUnfit);
        assert_eq!(code(Obstacle::Program).blame().name(), "request");
        assert_eq!(code(Obstacle::Here), FaultCode::BackendRefused);
        assert_eq!(
            no_backend(&NoBackend { refusals: later() }, Profile::Managed).code,
            FaultCode::BackendRefused
        );
    }
}
