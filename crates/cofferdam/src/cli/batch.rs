//! `cofferdam batch`: a job a line in, an Outcome a line out, each in a fresh sandbox.
//!
//! ```text
//! stdin ─ lines (a thread) ─► serve ─► engine::run_pooled ─► answers (a thread) ─ stdout
//!                               └► pool::keep: the next sandbox, while a program runs
//! ```
//!
//! One thread opens every sandbox, since they die with it; it waits for nothing but them.

mod answers;
mod job;
mod keys;
mod lines;
mod progress;
mod results;
mod streams;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use cofferdam_core::outcome::{Fault, FaultCode, Outcome, RunId};
use cofferdam_core::policy::{Ceiling, Policy, PolicyHash, decide};
use cofferdam_core::request::{Lang, Origin, Program, Request, Script};
use cofferdam_engine::pool::Pool;
use cofferdam_engine::run::Keep;
use cofferdam_engine::{Engine, policy_hash};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use super::REFUSED;
use super::options::{Judged, Options, Unprepared};
use super::run::{OUTPUT_CLOSED, absolute, is_short, new_run, slow_import};
use crate::artifacts;
use crate::console::{Kept, Signals};
use crate::files::{Loaded, narrow, value};
use crate::hints::{self, Asked};
use crate::report::job_id::JobId;
use crate::{credentials, egress, host, report};
use answers::{Answer, Answers, Written};
pub(crate) use job::JobLine;
use job::{Job, Refused};
use progress::Progress;
use results::Results;
use streams::{JobStreams, Told};

/// What follows `batch`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = "cofferdam batch [OPTIONS] < jobs.jsonl")]
pub(super) struct BatchArgs {
    #[command(flatten)]
    options: Options,
    /// How many jobs run at once; with more than one, answers come as jobs end
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = jobs)]
    jobs: usize,
    /// Put what each job changed into DIR/ID, as `run --out` does
    #[arg(long, value_name = "DIR", value_parser = absolute, help_heading = "Output")]
    out: Option<PathBuf>,
    /// No line of progress on a terminal
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

const EXAMPLES: &str = r#"A job is one line of JSON, answered by its Outcome on one line, in the same order:
  {"id":"1","code":"import sys; print(sys.argv[1:])","args":["a","b"]}
  {"id":"2","argv":["wc","-l","data.csv"],"files":{"data.csv":"a\n"},"timeout":"2s"}
`cofferdam schema job` and `cofferdam schema outcome` describe both. A job's own `policy` and
`timeout` can only narrow what these options grant. A line that is no job is answered too.

Exit codes: 0 every line was answered, however its job ended; 125 the batch itself failed; 130
cancelled; 141 nobody read the answers."#;

/// The most jobs at once: each has a few processes, pipes and cgroups of its own.
const MOST_JOBS: usize = 256;

/// The most sandboxes that are parked: more than programs can start at once on most machines.
const MOST_PARKED: usize = 8;

fn jobs(text: &str) -> Result<usize, String> {
    let number: usize = value::count::<u64>(text).map_err(|bad| bad.to_string())? as usize;
    if (1..=MOST_JOBS).contains(&number) { Ok(number) } else { Err(format!("from 1 to {MOST_JOBS}")) }
}

/// What all jobs of a batch share.
struct Batch {
    engine: Engine,
    pool: Pool,
    state: PathBuf,
    policy: Policy,
    hash: PolicyHash,
    /// The same for what jobs narrow.
    granted: Loaded,
    labels: BTreeMap<String, String>,
    told: watch::Receiver<Told>,
    answers: Answers,
    results: Option<Results>,
}

/// How a batch came to its end.
#[derive(Debug)]
enum End {
    /// Every line was answered.
    Answered,
    /// A signal ended it.
    Cancelled,
    /// It failed.
    Failed(Fault),
    /// Nobody reads the answers.
    OutputClosed,
}

fn host_fault(message: String) -> Fault {
    Fault { code: FaultCode::HostError, message, fix: None }
}

/// Serves standard input; gives the exit code.
pub(super) fn main(args: &BatchArgs) -> u8 {
    match serve(args) {
        Ok(End::Answered) => 0,
        Ok(End::Cancelled) => CANCELLED,
        Ok(End::OutputClosed) => OUTPUT_CLOSED,
        Ok(End::Failed(fault)) | Err(Unprepared::Request(fault)) => {
            report::complain(&fault.message, fault.fix.as_deref());
            REFUSED
        }
        Err(Unprepared::File(error)) => {
            report::complain_about_file(error);
            REFUSED
        }
    }
}

/// The exit code after a signal: 128 and SIGINT.
const CANCELLED: u8 = 130;

fn serve(args: &BatchArgs) -> Result<End, Unprepared> {
    let Judged { mut policy, rest, state, node, roots, leases } = args.options.judge()?;
    let outlets = egress::outlets(&node, &rest, &roots).map_err(Unprepared::Request)?;
    let results = args.out.as_deref().map(Results::prepare).transpose().map_err(Unprepared::Request)?;
    policy.files.hide.extend(args.out.as_deref().and_then(|folder| artifacts::hidden(folder, &policy.files)));
    super::run::set_up_for(&policy, &usual(), &state, args.options.setup, false)
        .map_err(Unprepared::Request)?;
    let engine = Engine::open(host::candidates_for_runs(&state), &state)
        .map_err(|error| Unprepared::Request(report::state_fault(&error, &state)))?
        .with_outlets(outlets)
        .with_leases(leases);
    let _ = engine.sweep(); // what can't be removed now is tried again; it is no reason not to run
    let swept = credentials::sweep(&state, engine.audit(), credentials::PATIENCE);
    swept.iter().for_each(|line| report::note(line));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| failed("start the event loop", &error))?;
    let end = LocalSet::new().block_on(&runtime, async {
        let (answers, written) = answers::start().map_err(|error| failed("start a thread", &error))?;
        let lines = lines::start().map_err(|error| failed("start a thread", &error))?;
        let signals = Signals::new().map_err(|error| failed("watch for signals", &error))?;
        let (tell, told) = watch::channel(Told::default());
        let batch = Batch {
            pool: Pool::new(policy.clone(), usual(), args.jobs.min(MOST_PARKED), Box::new(new_run)),
            engine,
            state,
            granted: Loaded { layer: policy.as_layer(), rest },
            hash: policy_hash(&policy),
            policy,
            labels: args.options.label.iter().cloned().collect(),
            told,
            answers,
            results,
        };
        let mut desk = Desk::new(Rc::new(batch), args, tell, signals, written);
        Ok(desk.serve(lines).await)
    });
    // A write to a reader that doesn't read may still wait on its thread; it is not waited for.
    runtime.shutdown_background();
    end
}

fn failed(action: &str, error: &io::Error) -> Unprepared {
    Unprepared::Request(host_fault(format!("could not {action}: {error}")))
}

/// A job as most are, which decides what is parked.
fn usual() -> Request {
    let script = Script { lang: Lang::Python, origin: Origin::Inline, source: vec![], args: vec![] };
    Request {
        program: Program::Script(script),
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: false,
    }
}

/// Where jobs come in and signals are heard.
struct Desk {
    batch: Option<Rc<Batch>>,
    keeper: JoinSet<()>,
    most: usize,
    running: JoinSet<bool>,
    /// Whether lines are still taken.
    open: bool,
    tell: watch::Sender<Told>,
    signals: Signals,
    written: Option<Written>,
    progress: Progress,
    end: End,
}

impl Desk {
    fn new(
        batch: Rc<Batch>,
        args: &BatchArgs,
        tell: watch::Sender<Told>,
        signals: Signals,
        written: Written,
    ) -> Self {
        let mut keeper = JoinSet::new();
        let keeps = Rc::clone(&batch);
        keeper.spawn_local(async move { keeps.pool.keep(&keeps.engine).await });
        Desk {
            batch: Some(batch),
            keeper,
            most: args.jobs,
            running: JoinSet::new(),
            open: true,
            tell,
            signals,
            written: Some(written),
            progress: Progress::new(args.quiet),
            end: End::Answered,
        }
    }

    /// Serves until every line is answered, or until it may not go on; then closes what is parked.
    async fn serve(&mut self, mut lines: mpsc::Receiver<lines::Read>) -> End {
        while self.open || !self.running.is_empty() {
            tokio::select! {
                biased;
                signal = self.signals.next() => self.hear(signal),
                result = finished(&mut self.written) => self.nothing_is_written(result),
                Some(done) = self.running.join_next() => match done {
                    Ok(failed) => self.progress.count(failed),
                    Err(error) => self.stop(End::Failed(internal(&error))),
                },
                read = lines.recv(), if self.open && self.running.len() < self.most => self.take(read),
                () = self.progress.due() => self.progress.draw(self.running.len()),
            }
        }
        self.close().await;
        self.progress.erase();
        std::mem::replace(&mut self.end, End::Answered)
    }

    /// Starts what a line asks for.
    fn take(&mut self, read: Option<lines::Read>) {
        match (read, &self.batch) {
            (Some(Ok(line)), Some(batch)) => {
                let batch = Rc::clone(batch);
                self.running.spawn_local(async move { batch.answer(line).await });
            }
            (Some(Err(error)), _) => {
                let message = format!("could not read the jobs: {error}");
                self.stop(End::Failed(host_fault(message)));
            }
            (None, _) | (_, None) => self.open = false,
        }
    }

    /// Takes no more lines. The first reason is the one that is told.
    fn stop(&mut self, end: End) {
        self.open = false;
        if matches!(self.end, End::Answered) {
            self.end = end;
        }
    }

    fn hear(&mut self, signal: i32) {
        self.tell.send_modify(|told| *told = Told { count: told.count + 1, signal });
        self.stop(End::Cancelled);
    }

    /// Our own output can't be written: what runs is killed, since nobody would learn of it.
    fn nothing_is_written(&mut self, result: io::Result<()>) {
        let end = match result {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => End::Failed(Fault {
                code: FaultCode::HostError,
                message: format!("could not write an answer: {error}"),
                fix: Some("make room where it goes; the audit log has the runs".into()),
            }),
            _ => End::OutputClosed,
        };
        self.tell.send_modify(|told| *told = Told { count: told.count + KILLS, signal: KILL });
        self.stop(end);
    }

    /// Closes what is parked, and waits for the last answer to be written.
    async fn close(&mut self) {
        if let Some(batch) = self.batch.take() {
            batch.pool.shut();
        }
        while self.keeper.join_next().await.is_some() {}
        // The last sender of answers is gone now: what is still to be written is.
        while self.written.is_some() {
            tokio::select! {
                result = finished(&mut self.written) => if result.is_err() {
                    self.nothing_is_written(result);
                },
                signal = self.signals.next() => self.hear(signal),
                () = patience(self.tell.subscribe()) => return,
            }
        }
    }
}

/// With the second signal, what runs is killed.
const KILLS: usize = 2;

/// How long a slow reader has after that to take what is answered.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Waits until a slow reader is not waited for any more.
async fn patience(mut told: watch::Receiver<Told>) {
    if told.wait_for(|told| told.count >= KILLS).await.is_err() {
        std::future::pending::<()>().await; // nobody is left who could tell
    }
    tokio::time::sleep(LAST_ANSWERS).await;
}

/// SIGKILL, for what is told to a program whose end nobody waits for.
const KILL: i32 = 9;

/// Waits until nothing more is written, which is told once.
async fn finished(written: &mut Option<Written>) -> io::Result<()> {
    let Some(waiting) = written else { return std::future::pending().await };
    let result = waiting.await;
    *written = None;
    result.unwrap_or_else(|_| Err(io::Error::other("the thread that writes answers has ended")))
}

fn internal(error: &tokio::task::JoinError) -> Fault {
    Fault {
        code: FaultCode::Internal,
        message: format!("a job was lost: {error}"),
        fix: Some("this is a fault of Cofferdam's; please report it".into()),
    }
}

impl Batch {
    /// Runs what a line asks for and answers it; says whether that failed.
    async fn answer(&self, line: Result<Job, Refused>) -> bool {
        let answer = match line {
            Ok(job) => self.run(job).await,
            Err(Refused { id, fault }) => self.refused(id, BTreeMap::new(), fault),
        };
        let failed = answer.outcome.exit_code() != 0;
        tokio::select! {
            _ = self.answers.send(answer) => {} // if nothing is written any more, that is said elsewhere
            () = patience(self.told.clone()) => {}
        }
        failed
    }

    async fn run(&self, job: Job) -> Answer {
        let Job { id, mut request, stdin, timeout, policy } = job;
        let own = std::mem::take(&mut request.labels);
        request.labels = self.labels.clone().into_iter().chain(own).collect();
        let run = match new_run() {
            Ok(run) => run,
            Err(error) => {
                let message = format!("the kernel gives no random bytes: {error}");
                return self.refused(id, request.labels, host_fault(message));
            }
        };
        let (policy, hash) = match self.narrowed(policy.as_ref(), timeout) {
            Ok(narrowed) => narrowed,
            Err(fault) => {
                let outcome = self.engine.refuse(&run, &request, Some(self.policy.profile), fault);
                return answered(id, outcome);
            }
        };
        let grant = match decide(&policy, hash, &request) {
            Ok(grant) => grant,
            Err(denial) => {
                let (message, fix) = (denial.to_string(), Some(denial.fix()));
                let fault = Fault { code: FaultCode::PolicyDenied, message, fix };
                return answered(id, self.engine.refuse(&run, &request, Some(policy.profile), fault));
            }
        };
        let keeper = self.results.as_ref().map(|results| results.of(&id, &policy.files)).transpose();
        let mut keeper = match keeper {
            Ok(keeper) => keeper.flatten(),
            Err(fault) => {
                return answered(id, self.engine.refuse(&run, &request, Some(policy.profile), fault));
            }
        };
        request.collect = keeper.is_some();
        let asked = Asked::of_job(&request.program, &policy);
        let streams = JobStreams::new(stdin, self.told.clone());
        let keep = keeper.as_mut().map(|keeper| keeper as &mut dyn Keep);
        let program = Some(&request.program).filter(|program| is_short(program)).cloned();
        let mut outcome = self.engine.run_pooled(&self.pool, &run, request, grant, &streams, keep).await;
        let slow = program.and_then(|program| slow_import(&outcome, &program, &policy, &self.state));
        outcome.hints.extend(slow);
        advised(id, outcome, streams.into_kept(), &asked)
    }

    /// The policy of a job, and its hash: the batch's, and narrower where the job says so.
    fn narrowed(
        &self,
        own: Option<&serde_json::Value>,
        timeout: Option<Duration>,
    ) -> Result<(Policy, PolicyHash), Fault> {
        if own.is_none() && timeout.is_none() {
            return Ok((self.policy.clone(), self.hash.clone()));
        }
        let denied = |message: String, fix: &str| Fault {
            code: FaultCode::PolicyDenied,
            message,
            fix: Some(fix.to_owned()),
        };
        let mut policy = match own {
            None => self.policy.clone(),
            Some(own) => {
                let layer = narrow(&self.granted, own).map_err(|error| {
                    let place = error.at().map(|at| format!("{at}: ")).unwrap_or_default();
                    denied(format!("{place}{}", error.message()), error.fix())
                })?;
                // The node's ceiling is in what the batch was granted.
                Policy::resolve(&[layer], &Ceiling::default())
                    .map_err(|over| denied(over.to_string(), "ask for less"))?
            }
        };
        if let Some(timeout) = timeout {
            let most = self.policy.limits.timeout;
            if timeout > most {
                let (asked, most) = (value::write_duration(timeout), value::write_duration(most));
                let message = format!("timeout: {asked} is more than the batch grants, which is {most}");
                return Err(denied(message, "ask for no more, or start the batch with a longer --timeout"));
            }
            policy.limits.timeout = policy.limits.timeout.min(timeout);
        }
        let hash = policy_hash(&policy);
        Ok((policy, hash))
    }

    /// The answer to what never became a run.
    fn refused(&self, id: JobId, labels: BTreeMap<String, String>, fault: Fault) -> Answer {
        let labels = self.labels.clone().into_iter().chain(labels).collect();
        let run = new_run().unwrap_or_else(|_| RunId::new(0, [0; 10])); // it names no run
        answered(id, report::never_ran(&run, labels, fault))
    }
}

/// An answer with what to try next.
fn advised(id: JobId, mut outcome: Outcome, kept: [Kept; 2], asked: &Asked) -> Answer {
    if let Some(fault) = outcome.error.as_mut().filter(|fault| fault.code == FaultCode::NotFound) {
        fault.fix = Some(NO_PROGRAM.to_owned());
    }
    outcome.hints.extend(hints::of(&outcome, asked, &kept[1].tail()));
    Answer { id, outcome, kept }
}

/// What to do about a program that isn't in a job's sandbox.
const NO_PROGRAM: &str = "a job's sandbox has the host's /usr, the job's `files` in its working directory, and \
                          what --workspace and --in of the batch show: check `argv` and the program's #! \
                          line, or give a script as `code`";

/// An answer without output.
fn answered(id: JobId, outcome: Outcome) -> Answer {
    Answer { id, outcome, kept: [Kept::nothing(true), Kept::nothing(true)] }
}
