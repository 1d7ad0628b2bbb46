//! How a run ended: the first thing that happened, and what the kernel says about it.

use std::time::{Duration, Instant};

use cofferdam_core::backend::{BackendError, Ending, Left};
use cofferdam_core::outcome::{Cancel, End, Fault, Ran};

use super::fault;

/// What ended the stream.
#[derive(Debug)]
pub(super) enum Cause {
    /// The backend failed.
    Backend(BackendError),
    /// The deadline passed.
    Deadline,
    /// A credential was sent where it may not be, and the policy ends a run for that.
    Misuse,
    /// Our own output could not be written.
    Output(std::io::Error),
    /// The output limit was reached.
    OutputLimit,
    /// The program, or the sandbox under it, ended. With it, the signals that were passed on.
    Program(Ending, Vec<i32>),
    /// Somebody told us to stop, and meant it.
    User,
}

/// A program that doesn't run any more.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) cause: Cause,
    /// Whether it was seen to start.
    pub(super) started: bool,
    pub(super) ran_for: Duration,
    pub(super) first_output: Option<Instant>,
    /// How long it took to kill what was left.
    pub(super) halting: Duration,
    /// What was used, if the sandbox was settled rather than halted.
    pub(super) settled: Option<Left>,
}

impl Ended {
    /// The end of a program that nobody waits for any more. It may have been told to start.
    pub(super) fn before_the_start(cause: Cause) -> Self {
        let (ran_for, halting) = (Duration::ZERO, Duration::ZERO);
        Ended { cause, started: false, ran_for, first_output: None, halting, settled: None }
    }

    /// The end's name, whether the program ran, and the error if there is one.
    pub(super) fn verdict(self, left: &Left) -> (End, Ran, Option<Fault>) {
        let ran = if self.started { Ran::Yes } else { Ran::Unknown };
        let fine = |end| (end, ran, None);
        match self.cause {
            // A kill for lack of memory explains every other end that it may have caused.
            Cause::Program(Ending::OutOfMemory, _) => fine(End::OutOfMemory),
            Cause::Program(..) | Cause::Deadline if left.out_of_memory => fine(End::OutOfMemory),
            Cause::Program(Ending::Exited(code), _) => fine(End::Exited(code)),
            Cause::Program(Ending::Signalled(signal), passed_on) => {
                if passed_on.contains(&i32::from(signal)) {
                    fine(End::Cancelled(Cancel::User))
                } else {
                    fine(End::Signalled(signal))
                }
            }
            Cause::Program(Ending::Lost, _) => (End::BackendLost, Ran::Unknown, Some(fault::lost())),
            Cause::Deadline => fine(End::TimedOut),
            Cause::Misuse => fine(End::Cancelled(Cancel::Misuse)), // why is in the denials, which come later
            Cause::User => fine(End::Cancelled(Cancel::User)),
            Cause::OutputLimit => fine(End::OutputLimit),
            Cause::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                fine(End::Cancelled(Cancel::OutputClosed))
            }
            Cause::Output(error) => (End::SandboxError, Ran::Yes, Some(fault::of_output(&error))),
            Cause::Backend(error) => (End::BackendLost, Ran::Unknown, Some(fault::of_backend(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(cause: Cause, out_of_memory: bool) -> End {
        let ended = Ended { started: true, ..Ended::before_the_start(cause) };
        ended.verdict(&Left { out_of_memory, ..Left::default() }).0
    }

    #[test]
    fn a_kill_for_lack_of_memory_is_told_from_a_kill() {
        let killed = || Cause::Program(Ending::Signalled(9), vec![]);
        assert_eq!(verdict(killed(), false), End::Signalled(9));
        assert_eq!(verdict(killed(), true), End::OutOfMemory);
    }

    #[test]
    fn a_parent_that_outlives_the_killed_child_does_not_hide_it() {
        assert_eq!(verdict(Cause::Program(Ending::Exited(0), vec![]), true), End::OutOfMemory);
    }

    #[test]
    fn a_program_that_dies_of_the_signal_we_passed_on_was_cancelled() {
        let died = Cause::Program(Ending::Signalled(2), vec![2]);
        assert_eq!(verdict(died, false), End::Cancelled(Cancel::User));
        let handled = Cause::Program(Ending::Exited(0), vec![2]);
        assert_eq!(verdict(handled, false), End::Exited(0));
    }

    #[test]
    fn who_was_not_seen_to_start_may_have_run() {
        let told = |cause| Ended::before_the_start(cause).verdict(&Left::default());
        assert!(matches!(told(Cause::Deadline), (End::TimedOut, Ran::Unknown, None)));
        assert!(matches!(told(Cause::User), (End::Cancelled(Cancel::User), Ran::Unknown, None)));
    }

    #[test]
    fn a_reader_that_went_away_is_not_our_fault() {
        let closed = Cause::Output(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(verdict(closed, false), End::Cancelled(Cancel::OutputClosed));
        let full = Cause::Output(std::io::ErrorKind::StorageFull.into());
        assert_eq!(verdict(full, false), End::SandboxError);
    }
}
