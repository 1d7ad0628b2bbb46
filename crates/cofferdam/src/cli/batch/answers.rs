//! The answers of a batch: one Outcome a line, flushed at once, on a thread of its own, since whoever
//! reads them may be slow and the deadlines of other jobs are not to wait for that.

use std::io;

use cofferdam_core::outcome::Outcome;
use tokio::sync::{mpsc, oneshot};

use crate::console::Kept;
use crate::report;
use crate::report::job_id::JobId;

/// The answer to one line.
pub(super) struct Answer {
    /// The job's name.
    pub(super) id: JobId,
    /// What happened.
    pub(super) outcome: Outcome,
    /// What the program wrote.
    pub(super) kept: [Kept; 2],
}

/// Where answers go; there is room for one that is still to be written.
pub(super) type Answers = mpsc::Sender<Answer>;

/// Tells when nothing is written any more: an error, or all is written after the last sender is gone.
pub(super) type Written = oneshot::Receiver<io::Result<()>>;

/// Starts to write to standard output.
///
/// # Errors
///
/// What the kernel said: EAGAIN where no further thread may be started.
pub(super) fn start() -> io::Result<(Answers, Written)> {
    let (send, mut answers) = mpsc::channel::<Answer>(1);
    let (done, written) = oneshot::channel();
    std::thread::Builder::new().spawn(move || {
        let mut out = io::stdout().lock();
        let mut result = Ok(());
        while result.is_ok()
            && let Some(Answer { id, outcome, kept }) = answers.blocking_recv()
        {
            result = report::json(&outcome, &kept).with_id(&id).write_line(&mut out);
        }
        let _ = done.send(result); // whoever asked may have stopped waiting
    })?;
    Ok((send, written))
}
