//! The time in which a program runs: its output, its input, signals, and the deadline, at once.
//!
//! The deadline is held here, outside, and depends on nobody's reading: output is pumped beside it.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cofferdam_core::backend::{BackendError, Ending, Left, Output, Running, Session};
use cofferdam_core::policy::Limits;

use super::ends::{Cause, Ended};
use super::way_out::WayOut;
use super::{LAST_WORDS, Streams};

/// SIGTERM, which asks a program to end.
const TERM: i32 = 15;

/// Runs the streams of a program until it ends or is ended, cuts its way out, kills what is left of it, and delivers
/// what it had still said. A sandbox that somebody would have again, if it can be renewed, is settled
/// instead where that is possible.
pub(super) async fn until_the_end(
    running: &dyn Running,
    session: &mut dyn Session,
    way_out: &WayOut,
    limits: &Limits,
    deadline: Instant,
    streams: &dyn Streams,
    wanted_again: bool,
) -> Ended {
    let began = Instant::now();
    let pump = Pump::new(running, streams, limits.output_bytes);
    let mut pumping = pin!(pump.output());
    let mut feeding = pin!(feed(running, streams));
    let mut resizing = pin!(resize(running, streams));
    let mut fed = false;
    let mut pumped = false;
    let mut cause = {
        let mut ending = pin!(first_end(running, limits, deadline, streams));
        let mut misused = pin!(way_out.is_misused());
        loop {
            tokio::select! {
                cause = &mut ending => break cause,
                () = &mut misused => break Cause::Misuse,
                result = &mut pumping, if !pumped => match result {
                    Ok(()) => pumped = true,
                    Err(cause) => break cause,
                },
                () = &mut feeding, if !fed => fed = true,
                () = &mut resizing => {}
            }
        }
    };
    let ran_for = began.elapsed();
    let halting = Instant::now();
    way_out.cut().await;
    let mut settled = if wanted_again { settle(session, &cause).await } else { None };
    if settled.is_some() && !pumped {
        // Whoever holds the output open doesn't live on; a slow reader isn't waited for either.
        match tokio::time::timeout(SETTLING, &mut pumping).await {
            Ok(result) => {
                pumped = true;
                if let Err(new @ (Cause::Output(_) | Cause::OutputLimit)) = result {
                    (cause, settled) = (new, None);
                }
            }
            Err(_) => settled = None,
        }
    }
    if settled.is_none()
        && let Err(error) = session.halt().await
    {
        cause = Cause::Backend(error);
    }
    let halting = halting.elapsed();
    if !pumped && !matches!(cause, Cause::Output(_) | Cause::OutputLimit | Cause::Backend(_)) {
        cause = last_words(pumping, streams, cause).await;
    }
    Ended { cause, started: true, ran_for, first_output: pump.first(), halting, settled }
}

/// When a run has to be over whose program is about to be started: one clock for the wait for its start and for itself.
pub(super) fn deadline(limits: &Limits) -> Instant {
    // As far ahead as makes no difference, where a limit is further than a clock goes.
    const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + limits.timeout.min(FOR_EVER)
}

/// How long the last output of a program that has exited may take to arrive, if its sandbox is to be
/// settled rather than halted: it is in the pipes already.
const SETTLING: Duration = Duration::from_millis(50);

/// Settles a sandbox whose program has ended by itself. What can't be settled is halted.
async fn settle(session: &mut dyn Session, cause: &Cause) -> Option<Left> {
    match cause {
        Cause::Program(Ending::Exited(_), _) => session.settle().await.unwrap_or(None),
        _ => None,
    }
}

/// Delivers what was in the pipes when everything died. A program that ended by itself may take as
/// long as its reader does, or until somebody tells us to stop; one that was killed may not.
async fn last_words(
    pumping: impl Future<Output = Result<(), Cause>>,
    streams: &dyn Streams,
    cause: Cause,
) -> Cause {
    let most = if matches!(cause, Cause::Program(..)) { Duration::MAX } else { LAST_WORDS };
    let result = tokio::select! {
        result = pumping => result,
        () = sleep(most) => Ok(()),
        _ = streams.interrupt() => Err(Cause::User),
    };
    match (result, cause) {
        // The program's own end is the truth, unless its output could not be delivered.
        (Err(new @ (Cause::Output(_) | Cause::OutputLimit | Cause::User)), Cause::Program(..)) => new,
        (_, cause) => cause,
    }
}

/// Sleeps; for ever if that is asked for.
async fn sleep(time: Duration) {
    if time == Duration::MAX {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(time).await;
}

/// Waits for the first thing that ends a program, other than its output.
async fn first_end(
    running: &dyn Running,
    limits: &Limits,
    deadline: Instant,
    streams: &dyn Streams,
) -> Cause {
    let mut passed_on = vec![];
    let mut deadline = pin!(tokio::time::sleep_until(deadline.into()));
    loop {
        tokio::select! {
            ending = running.wait() => return of_wait(ending, passed_on),
            () = &mut deadline => return after_grace(running, limits.grace, streams).await,
            signal = streams.interrupt() => {
                // The first is the program's to deal with; the second is meant for us.
                if !passed_on.is_empty() {
                    return Cause::User;
                }
                passed_on.push(signal);
                if let Err(error) = running.signal(signal).await {
                    return Cause::Backend(error);
                }
            }
        }
    }
}

/// Waits for whatever ends the wait for a program to start, other than its start.
pub(super) async fn end_of_the_wait(deadline: Instant, streams: &dyn Streams) -> Cause {
    tokio::select! {
        () = tokio::time::sleep_until(deadline.into()) => Cause::Deadline,
        _ = streams.interrupt() => Cause::User, // there is nobody to pass it on to
    }
}

fn of_wait(ending: Result<Ending, BackendError>, passed_on: Vec<i32>) -> Cause {
    match ending {
        Ok(ending) => Cause::Program(ending, passed_on),
        Err(error) => Cause::Backend(error),
    }
}

/// The deadline has passed. With grace, the program is asked to end first, unless somebody tells us
/// not to wait.
async fn after_grace(running: &dyn Running, grace: Duration, streams: &dyn Streams) -> Cause {
    if !grace.is_zero() && running.signal(TERM).await.is_ok() {
        tokio::select! {
            _ = running.wait() => {} // whichever it is, it timed out
            () = tokio::time::sleep(grace) => {}
            _ = streams.interrupt() => {}
        }
    }
    Cause::Deadline
}

/// Passes on each size that our own terminal changes to. Never ends.
async fn resize(running: &dyn Running, streams: &dyn Streams) {
    loop {
        let size = streams.resized().await;
        let _ = running.resize(size).await; // a program that has ended shows elsewhere
    }
}

/// Passes standard input on until it ends or the program stops taking it.
async fn feed(running: &dyn Running, streams: &dyn Streams) {
    if streams.has_input() {
        while let Some(bytes) = streams.input().await {
            if running.write(&bytes).await.is_err() {
                break;
            }
        }
    }
    running.close_stdin().await;
}

/// Passes output on.
struct Pump<'a> {
    running: &'a dyn Running,
    streams: &'a dyn Streams,
    limit: Option<u64>,
    passed: AtomicU64,
    first: Mutex<Option<Instant>>,
}

impl<'a> Pump<'a> {
    fn new(running: &'a dyn Running, streams: &'a dyn Streams, limit: Option<u64>) -> Self {
        Pump { running, streams, limit, passed: AtomicU64::new(0), first: Mutex::default() }
    }

    /// When the first output came.
    fn first(&self) -> Option<Instant> {
        self.first.lock().map_or(None, |first| *first)
    }

    /// Passes output on until both streams end, the receiver fails, or the limit is reached.
    async fn output(&self) -> Result<(), Cause> {
        while let Some(output) = self.running.output().await.map_err(Cause::Backend)? {
            if let Ok(mut first) = self.first.lock() {
                first.get_or_insert_with(Instant::now);
            }
            let (output, full) = self.within_limit(output);
            self.streams.accept(output).await.map_err(Cause::Output)?;
            if full {
                return Err(Cause::OutputLimit);
            }
        }
        Ok(())
    }

    /// As much of a piece as the limit leaves room for, and whether there was more.
    fn within_limit(&self, output: Output) -> (Output, bool) {
        let Some(limit) = self.limit else { return (output, false) };
        let room = limit.saturating_sub(self.passed.load(Ordering::Relaxed));
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let cut = |mut bytes: Vec<u8>| {
            let full = bytes.len() > room;
            bytes.truncate(room);
            self.passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            (bytes, full)
        };
        match output {
            Output::Stderr(bytes) => {
                let (bytes, full) = cut(bytes);
                (Output::Stderr(bytes), full)
            }
            Output::Stdout(bytes) => {
                let (bytes, full) = cut(bytes);
                (Output::Stdout(bytes), full)
            }
        }
    }
}
