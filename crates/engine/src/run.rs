//! One run, from the request to the Outcome.
//!
//! The order is the guarantee, so it is written in one place, [`Engine::run`]:
//!
//! 1. audit that the run was granted, before anything starts; if that can't be written, nothing
//!    does;
//! 2. choose the backend, or refuse with every gap;
//! 3. note what the run would leave, open a way out and the sandbox (or take one that is parked, see
//!    [`pool`](crate::pool)), start the program;
//! 4. stream until the first thing that ends it;
//! 5. cut the way out, halt (everything of the program is dead), collect what it still had said, take out what it
//!    changed if that was asked for, close, audit. Where a pool would have the sandbox again, it is
//!    settled instead, and the pool renews or closes it.

mod collect;
mod ends;
mod fault;
mod keep;
mod leases;
mod stream;
pub(crate) mod way_out;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::{BackendError, Boxed, Ending, Exec, Left, Output, Session};
use cofferdam_core::capability::Capability;
use cofferdam_core::files::Pattern;
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::{Deliveries, LeaseEnd};
use cofferdam_core::outcome::{
    AuditSpan, Blame, Cancel, Denials, End, Fault, LimitName, NetworkUsage, Outcome, Ran, RunId, Times, Usage,
};
use cofferdam_core::outlet::Outlet;
use cofferdam_core::policy::{Limits, PolicyHash, Profile};
use cofferdam_core::request::{Origin, Program, Request, WindowSize};
use cofferdam_core::weaken::{self, Control, stop_at};

use crate::Engine;
use crate::pool::{Parked, Pool};
use crate::select::{self, NoBackend, Refusal, Selected};
use crate::state::RunLock;
use collect::Collected;
#[cfg(fuzzing)]
pub use collect::collect_for_fuzzing;
use ends::{Cause, Ended};
pub use fault::no_backend;
pub use keep::{Content, FileKept, Former, Gone, Keep};
use leases::Leased;
use way_out::WayOut;

/// What a run is connected to.
pub trait Streams: Send + Sync {
    /// Takes a piece of output; returns when there is room for more.
    ///
    /// # Errors
    ///
    /// What the receiver said. A closed receiver ends the run.
    fn accept(&self, output: Output) -> Boxed<'_, std::io::Result<()>>;

    /// Whether there is standard input at all.
    fn has_input(&self) -> bool;

    /// The next piece of standard input; none at its end. Safe to drop while waiting.
    fn input(&self) -> Boxed<'_, Option<Vec<u8>>>;

    /// The next signal that somebody sent us; for ever if none comes. Safe to drop while waiting.
    fn interrupt(&self) -> Boxed<'_, i32>;

    /// The next size that our own terminal changes to; for ever if it doesn't, or there is none. Safe to
    /// drop while waiting.
    fn resized(&self) -> Boxed<'_, WindowSize>;

    /// Bytes of output that had to be dropped so far: standard output, standard error.
    fn dropped(&self) -> [u64; 2];
}

/// A run that is under way, for whoever reports it.
struct Story<'a> {
    engine: &'a Engine,
    run: &'a RunId,
    /// Where its sandbox may have come from.
    pool: Option<&'a Pool>,
    /// The sandbox that it got from there.
    parked: Option<Parked>,
    began: Instant,
    started: SystemTime,
    times: Times,
    span: Option<AuditSpan>,
    /// Events that could not be written.
    unrecorded: u64,
    /// What happened when the sandbox was closed, to be recorded together with the end.
    closing: Vec<Event>,
    outcome: Draft,
}

/// The parts of the Outcome that are known by and by.
#[derive(Default)]
struct Draft {
    profile: Option<Profile>,
    policy: Option<PolicyHash>,
    backend: Option<(cofferdam_core::policy::BackendName, String)>,
    enforced: BTreeSet<Capability>,
    gaps: Vec<cofferdam_core::Gap>,
    usage: Usage,
    network: NetworkUsage,
    denials: Denials,
    leases: Vec<LeaseEnd>,
    limits_hit: BTreeSet<LimitName>,
    left_processes: u32,
    collected: Collected,
}

/// What was asked for and not accepted as missing, as far as the backend says that it enforces it: a sandbox
/// that holds less isn't used.
fn promised(grant: &Grant, selected: &Selected<'_>) -> BTreeSet<Capability> {
    let Selected { backend, gaps, .. } = selected;
    let missing = |capability| gaps.iter().any(|gap| gap.capability == capability);
    let mut promised = backend.offers().enforced().clone();
    promised.retain(|capability| grant.asks().contains(capability) && !missing(*capability));
    promised
}

/// The limits that the engine holds, but for what is turned off for a test.
fn weakened(mut limits: Limits) -> Limits {
    if weaken::is_off(Control::Timeout) {
        limits.timeout += Duration::from_secs(20);
    }
    if weaken::is_off(Control::Output) {
        limits.output_bytes = None;
    }
    limits
}

/// What a grant says that is held outside of the sandbox.
struct Held {
    limits: Limits,
    /// What of the changes is let out although a tool of the host may run it.
    patterns: Vec<Pattern>,
    /// What the program isn't shown.
    hidden: Vec<Pattern>,
    /// Whether changes are taken out at all.
    collect: bool,
    /// Whether somebody would have the sandbox again.
    wanted_again: bool,
    /// When the sandbox was asked for.
    opening: Instant,
    /// Whether a credential that is misused ends the run.
    ends_on_misuse: bool,
}

/// What a run has once its sandbox is open.
struct Opened {
    session: Box<dyn Session>,
    leased: Leased,
}

/// What became of a sandbox when its run ended.
enum Fate {
    /// It is closed, and nothing of it is left; or something may be.
    Closed { clean: bool },
    /// It can be renewed.
    Settled(Box<dyn Session>),
}

impl Engine {
    /// Runs a granted request. Always gives an Outcome, whatever happens. What the program changed
    /// goes to `keep`, if the request has it collected; without a `keep` it is only listed.
    ///
    /// Must be called on a thread that lives as long as the run: the sandbox dies with it.
    pub async fn run(
        &self,
        run: &RunId,
        request: Request,
        grant: Grant,
        streams: &dyn Streams,
        keep: Option<&mut dyn Keep>,
    ) -> Outcome {
        let (story, choice) = (Story::begin(self, run), Choice::of(self, &grant, &request));
        self.tell(story, choice, request, grant, streams, keep).await
    }

    /// The same in a sandbox from a pool, if there is one that is exactly what the grant asks for. The
    /// run then has the identity of that sandbox; `run` is its identity otherwise.
    pub async fn run_pooled(
        &self,
        pool: &Pool,
        run: &RunId,
        request: Request,
        grant: Grant,
        streams: &dyn Streams,
        keep: Option<&mut dyn Keep>,
    ) -> Outcome {
        let began = Instant::now();
        let choice = Choice::of(self, &grant, &request);
        let parked = match &choice.selected {
            Ok(selected) => pool.take(self, selected.name, &grant.sandbox_key()).await,
            Err(_) => None,
        };
        let run = parked.as_ref().map_or_else(|| run.clone(), |parked| parked.run.clone());
        let story = Story { pool: Some(pool), parked, began, ..Story::begin(self, &run) };
        let outcome = self.tell(story, choice, request, grant, streams, keep).await;
        pool.refill(); // it may have lost one without a program having started
        outcome
    }

    async fn tell<'a>(
        &'a self,
        mut story: Story<'a>,
        choice: Choice<'a>,
        request: Request,
        grant: Grant,
        streams: &dyn Streams,
        keep: Option<&mut dyn Keep>,
    ) -> Outcome {
        let labels = request.labels.clone();
        story.outcome.profile = Some(grant.profile());
        story.outcome.policy = Some(grant.policy().clone());
        story.times.select = choice.took;
        let granted = choice.events(&request, &grant);
        let told = match choice.selected {
            Ok(selected) => story.in_backend(granted, request, grant, selected, streams, keep).await,
            Err(none) => match story.append(&granted) {
                Ok(()) => story.refused(no_backend(&none, grant.profile())),
                Err(error) => story.refused(fault::of_audit(&error)),
            },
        };
        told.end(labels)
    }

    /// Reports a request that policy refused, and records that.
    #[must_use]
    pub fn refuse(&self, run: &RunId, request: &Request, profile: Option<Profile>, fault: Fault) -> Outcome {
        let mut story = Story::begin(self, run);
        story.outcome.profile = profile;
        let start = Event::TaskStart { program: request.program.name(), labels: request.labels.clone() };
        story.note(&[start]);
        story.refused(fault).end(request.labels.clone())
    }
}

/// The backend that was chosen for a run.
struct Choice<'a> {
    /// Those that were passed over.
    refusals: Vec<Refusal>,
    selected: Result<Selected<'a>, NoBackend>,
    took: Duration,
}

impl<'a> Choice<'a> {
    fn of(engine: &'a Engine, grant: &Grant, request: &Request) -> Self {
        let began = Instant::now();
        let (refusals, selected) = select::select(&engine.candidates, grant, request);
        Choice { refusals, selected, took: began.elapsed() }
    }

    /// What is recorded before anything starts.
    fn events(&self, request: &Request, grant: &Grant) -> Vec<Event> {
        let (program, labels) = (request.program.name(), request.labels.clone());
        let start = Event::TaskStart { program, labels };
        let policy = Event::PolicyLoaded { policy: grant.policy().clone(), profile: grant.profile() };
        let refused = self.refusals.iter().map(|refusal| Event::BackendRefused {
            backend: refusal.name,
            gaps: refusal.gaps.clone(),
            why: refusal.why.clone(),
        });
        [start, policy].into_iter().chain(refused).collect()
    }
}

/// A sandbox that a run has.
struct Obtained {
    session: Box<dyn Session>,
    lock: RunLock,
    outlet: Arc<dyn Outlet>,
    leased: Leased,
}

/// Why there is no sandbox.
enum Unopened {
    /// It could not be opened.
    Failed(Fault),
    /// It may not be opened.
    Refused(Fault),
}

/// Why no program runs.
enum Unstarted {
    /// The sandbox was lost while it was started: it may have run.
    Lost(Fault),
    /// It never started.
    Never(Fault),
}

/// How the story ended.
struct Told<'a> {
    story: Story<'a>,
    end: End,
    ran: Ran,
    error: Option<Fault>,
    hints: Vec<String>,
}

impl<'a> Story<'a> {
    fn begin(engine: &'a Engine, run: &'a RunId) -> Self {
        Story {
            engine,
            run,
            pool: None,
            parked: None,
            began: Instant::now(),
            started: SystemTime::now(),
            times: Times::default(),
            span: None,
            unrecorded: 0,
            closing: vec![],
            outcome: Draft::default(),
        }
    }

    fn append(&mut self, events: &[Event]) -> Result<(), AuditError> {
        if weaken::is_off(Control::Audit) {
            return Ok(());
        }
        self.span = Some(self.engine.audit.append(self.run, events)?);
        Ok(())
    }

    /// Records what has happened already, so that a failure can stop nothing. It is said, and
    /// the log's next writer tells it too.
    fn note(&mut self, events: &[Event]) {
        if self.append(events).is_err() {
            self.unrecorded += events.len() as u64;
        }
    }

    fn refused(self, fault: Fault) -> Told<'a> {
        Told { story: self, end: End::Refused, ran: Ran::No, error: Some(fault), hints: vec![] }
    }

    fn failed(self, ran: Ran, fault: Fault) -> Told<'a> {
        Told { story: self, end: End::SandboxError, ran, error: Some(fault), hints: vec![] }
    }

    fn lost(self, fault: Fault) -> Told<'a> {
        Told { story: self, end: End::BackendLost, ran: Ran::Unknown, error: Some(fault), hints: vec![] }
    }

    /// Opens the sandbox, runs the program in it, and closes it whatever happened.
    async fn in_backend(
        mut self,
        granted: Vec<Event>,
        request: Request,
        grant: Grant,
        selected: Selected<'_>,
        streams: &dyn Streams,
        keep: Option<&mut dyn Keep>,
    ) -> Told<'a> {
        let (key, name) = (self.pool.map(|_| grant.sandbox_key()), selected.name);
        let wanted_again = self.pool.zip(key.as_ref()).is_some_and(|(pool, key)| pool.would_have(key));
        let held = Held {
            limits: weakened(grant.limits().clone()),
            patterns: grant.files().keep.clone(),
            hidden: grant.files().hidden(),
            collect: request.collect,
            wanted_again: wanted_again && !request.collect,
            ends_on_misuse: grant.credentials().iter().any(|rule| rule.ends_on_misuse),
            opening: Instant::now(),
        };
        let (engine, pool) = (self.engine, self.pool);
        let promised = promised(&grant, &selected);
        let Obtained { mut session, lock, outlet, mut leased } =
            match self.obtain(granted, grant, selected).await {
                Ok(obtained) => obtained,
                Err(Unopened::Failed(fault)) => return self.failed(Ran::No, fault),
                Err(Unopened::Refused(fault)) => return self.refused(fault),
            };
        self.outcome.enforced = session.enforced().clone();
        let lacking: Vec<_> = promised.difference(session.enforced()).collect();
        if !lacking.is_empty() && !weaken::is_any_off() {
            let fault = fault::of_weaker(&lacking);
            way_out::close_unused(outlet.as_ref()).await;
            self.outcome.leases = leased.end(Duration::ZERO).await;
            let halted = session.halt().await;
            if session.close().await.is_err() || halted.is_err() {
                lock.leave_to_sweep();
            }
            return self.failed(Ran::No, fault);
        }
        let broker = leased.take_way();
        let way_out = WayOut::of(self.run, outlet, Arc::clone(&engine.audit), broker, held.ends_on_misuse);
        let opened = Opened { session, leased };
        let (told, fate) = self.in_session(request, opened, &way_out, held, streams, keep).await;
        match (fate, pool, key) {
            (Fate::Settled(session), Some(pool), Some(key)) => {
                pool.take_back(engine, name, key, session, lock).await;
            }
            (Fate::Closed { clean: true }, ..) => drop(lock),
            _ => lock.leave_to_sweep(),
        }
        stop_at("run-forgotten");
        told
    }

    /// A sandbox for the run, recorded before a program can start in it: the one that is parked, or a
    /// new one.
    async fn obtain(
        &mut self,
        mut granted: Vec<Event>,
        grant: Grant,
        selected: Selected<'_>,
    ) -> Result<Obtained, Unopened> {
        let enforced = promised(&grant, &selected);
        let Selected { name, backend, why, gaps } = selected;
        let opened = Event::SandboxOpened { backend: name, enforced, gaps: gaps.clone() };
        let refused = |fault| Err(Unopened::Refused(fault));
        if let Some(parked) = self.parked.take() {
            granted.push(opened);
            if let Err(error) = self.append(&granted) {
                parked.discard().await;
                return refused(fault::of_audit(&error));
            }
            (self.outcome.backend, self.outcome.gaps) = (Some((name, why)), gaps);
            let leased = match Leased::prepare(self.engine, self.run, &grant).await {
                Ok(leased) => leased,
                Err(fault) => {
                    parked.discard().await;
                    return refused(fault);
                }
            };
            let Parked { session, lock, outlet, .. } = parked;
            return Ok(Obtained { session, lock, outlet, leased });
        }
        if let Err(error) = self.append(&granted) {
            return refused(fault::of_audit(&error));
        }
        stop_at("granted");
        (self.outcome.backend, self.outcome.gaps) = (Some((name, why)), gaps);
        let lock = match self.engine.state.begin(self.run, name, &backend.traces(self.run)) {
            Ok(lock) => lock,
            Err(error) => return refused(fault::of_state(&error)),
        };
        stop_at("run-noted");
        if let Err(error) = self.append(&[opened]) {
            return refused(fault::of_audit(&error));
        }
        stop_at("opening-recorded");
        let outlet = self.engine.outlets.open(self.run, &grant);
        let outlet = outlet.map_err(|error| Unopened::Failed(fault::of_outlet(&error)))?;
        let leased = Leased::prepare(self.engine, self.run, &grant).await;
        let mut leased = leased.map_err(Unopened::Refused)?;
        match backend.open(self.run, grant, Arc::clone(&outlet)).await {
            Ok(session) => Ok(Obtained { session, lock, outlet, leased }),
            Err(error) => {
                self.outcome.leases = leased.end(Duration::ZERO).await;
                Err(match fault::of_backend(&error) {
                    // What the requester can mend, and nothing of it ran.
                    fault if fault.code.blame() == Blame::Request => Unopened::Refused(fault),
                    fault => Unopened::Failed(fault),
                })
            }
        }
    }

    async fn in_session(
        mut self,
        request: Request,
        opened: Opened,
        way_out: &WayOut,
        held: Held,
        streams: &dyn Streams,
        keep: Option<&mut dyn Keep>,
    ) -> (Told<'a>, Fate) {
        stop_at("opened");
        let Opened { mut session, mut leased } = opened;
        let delivered = leased.take();
        let ended = self.while_it_runs(request, delivered, session.as_mut(), way_out, &held, streams).await;
        let closing = Instant::now();
        self.take_in(way_out.cut().await);
        stop_at("program-ended");
        let settled = ended.as_ref().ok().and_then(|ended| ended.settled.clone());
        let is_settled = settled.is_some();
        let left = match settled {
            Some(left) => Ok(left),
            None => session.halt().await,
        };
        let halted = left.is_ok();
        stop_at("halted");
        let halting = ended.as_ref().map_or(Duration::ZERO, |ended| ended.halting);
        self.outcome.leases = leased.end(closing.elapsed() + halting).await;
        if let (true, Ok(ended)) = (halted && held.collect, &ended)
            && !matches!(ended.cause, Cause::Backend(_) | Cause::Program(Ending::Lost, _))
        {
            let Held { patterns, hidden, .. } = held;
            self.outcome.collected = tokio::select! {
                collected = collect::collect(session.as_mut(), patterns, hidden, self.run, keep) => collected,
                _ = streams.interrupt() => Collected::interrupted(),
            };
        }
        stop_at("collected");
        let (fate, closed) = if is_settled {
            (Fate::Settled(session), Ok(()))
        } else {
            let closed = session.close().await;
            (Fate::Closed { clean: halted && closed.is_ok() }, closed)
        };
        stop_at("closed");
        self.times.close = match &ended {
            Ok(ended) => closing.elapsed() + ended.halting,
            Err(_) => closing.elapsed(),
        };
        let left = self.take_stock(left.unwrap_or_default(), streams);
        let told = self.tell_of_either(ended, &left);
        let told = match closed {
            Ok(()) => told,
            Err(error) => told.with_hint(format!("{}; the next command sweeps again", crate::chain(&error))),
        };
        (told, fate)
    }

    /// Starts the program, and stays with it to its end. Until it runs, the deadline and a signal end the wait
    /// for it: what has to be prepared first can take long.
    async fn while_it_runs(
        &mut self,
        request: Request,
        delivered: Deliveries,
        session: &mut dyn Session,
        way_out: &WayOut,
        held: &Held,
        streams: &dyn Streams,
    ) -> Result<Ended, Unstarted> {
        let (limits, deadline) = (&held.limits, stream::deadline(&held.limits));
        let started = tokio::select! {
            biased; // who has started has
            started = self.start(request, delivered, session, streams) => Ok(started?),
            cause = stream::end_of_the_wait(deadline, streams) => Err(cause),
        };
        stop_at("program-started");
        if let Some(pool) = self.pool {
            pool.refill(); // beside the program, whose start it doesn't hold up
        }
        // Not before the program runs: a backend may still be setting up when `open` returns.
        self.times.open = held.opening.elapsed();
        let running = match started {
            Ok(running) => running,
            Err(cause) => return Ok(Ended::before_the_start(cause)),
        };
        let again = held.wanted_again;
        let ended =
            stream::until_the_end(running.as_ref(), session, way_out, limits, deadline, streams, again).await;
        self.times.run = ended.ran_for;
        self.times.first_output = ended.first_output.map(|at| at.duration_since(self.began));
        Ok(ended)
    }

    /// How the program ended, or why there was none.
    fn tell_of_either(self, ended: Result<Ended, Unstarted>, left: &Left) -> Told<'a> {
        match ended {
            Ok(ended) => self.tell(ended, left),
            // What the requester can mend was refused; the rest is a failure of the host's or ours.
            Err(Unstarted::Never(fault)) if fault.code.blame() == Blame::Request => self.refused(fault),
            Err(Unstarted::Never(fault)) => self.failed(Ran::No, fault),
            Err(Unstarted::Lost(fault)) => self.lost(fault),
        }
    }

    /// Puts the request's files in place and starts its program.
    async fn start(
        &mut self,
        request: Request,
        delivered: Deliveries,
        session: &mut dyn Session,
        streams: &dyn Streams,
    ) -> Result<Box<dyn cofferdam_core::backend::Running>, Unstarted> {
        let source_came_from_stdin =
            matches!(&request.program, Program::Script(script) if script.origin == Origin::Stdin);
        let stdin = streams.has_input() && !source_came_from_stdin;
        for file in request.files {
            session.put(file).await.map_err(|error| Unstarted::Never(fault::of_backend(&error)))?;
        }
        let exec = Exec {
            program: request.program,
            environment: request.environment,
            delivered,
            terminal: request.terminal,
            stdin,
        };
        session.exec(exec).await.map_err(|error| match &error {
            // It was told to start the program, and nobody knows whether it did.
            BackendError::Gone | BackendError::Silent { .. } | BackendError::Wire(_) => {
                Unstarted::Lost(fault::of_backend(&error))
            }
            _ => Unstarted::Never(fault::of_backend(&error)),
        })
    }

    /// Takes in what went over the network.
    fn take_in(&mut self, end: &way_out::End) {
        let way_out::End { cut, gap, unrecorded } = end;
        self.outcome.network = NetworkUsage { traffic: cut.traffic, udp_refused: cut.udp_refused };
        self.outcome.denials = cut.denials.clone();
        self.outcome.limits_hit.extend(end.limits_hit());
        self.unrecorded += unrecorded;
        if let Some(gap) = gap {
            self.outcome.enforced.remove(&gap.capability);
            self.outcome.gaps.push(gap.clone());
        }
    }

    /// Takes in what the kernel counted, and what is to be recorded of the sandbox's end.
    fn take_stock(&mut self, left: Left, streams: &dyn Streams) -> Left {
        self.outcome.usage = left.usage;
        self.outcome.left_processes = left.processes;
        self.outcome.limits_hit.extend(&left.limits_hit);
        let events = &mut self.closing;
        for (stream, dropped) in ["stdout", "stderr"].into_iter().zip(streams.dropped()) {
            if dropped > 0 {
                self.outcome.limits_hit.insert(LimitName::Output);
                events.push(Event::OutputTruncated { stream, dropped });
            }
        }
        events.extend(self.outcome.collected.events());
        events.push(Event::SandboxClosed { left_processes: left.processes, swept: false });
        left
    }

    fn tell(mut self, ended: Ended, left: &Left) -> Told<'a> {
        let (end, ran, error) = ended.verdict(left);
        self.outcome.limits_hit.extend(match end {
            End::OutOfMemory => Some(LimitName::Memory),
            End::TimedOut => Some(LimitName::Timeout),
            _ => None,
        });
        let collected = &mut self.outcome.collected;
        let hints = collected.hint().into_iter().collect();
        match collected.fault.take() {
            // What the program said and did is told; that its files are missing must not be missed.
            Some(fault) => Told { story: self, end: End::SandboxError, ran, error: Some(fault), hints },
            None => Told { story: self, end, ran, error, hints },
        }
    }
}

impl Told<'_> {
    fn with_hint(mut self, hint: String) -> Self {
        self.hints.push(hint);
        self
    }

    /// Records the end and makes the Outcome.
    fn end(mut self, labels: std::collections::BTreeMap<String, String>) -> Outcome {
        let policy = self.story.outcome.policy.clone();
        let limits = self.story.outcome.limits_hit.iter().map(|limit| Event::LimitHit(*limit));
        let end = limits.chain([Event::TaskEnd { end: self.end, policy }]);
        let events: Vec<_> = std::mem::take(&mut self.story.closing).into_iter().chain(end).collect();
        self.story.note(&events);
        stop_at("end-recorded");
        self.hints.extend(self.story.outcome.leases.iter().filter_map(leases::warning));
        if self.end == End::Cancelled(Cancel::Misuse) {
            self.error = Some(fault::of_misuse(&self.story.outcome.denials));
        }
        let Story { run, started, times, span, outcome, began, unrecorded, .. } = self.story;
        // Where that is why it was refused, the refusal says it.
        if unrecorded > 0 && self.end != End::Refused {
            self.hints.push(format!(
                "{unrecorded} events of this run could not be written to the audit log: see that there is \
                 room for it. The log will tell that they are missing"
            ));
        }
        let (backend, why_backend) = outcome.backend.unzip();
        Outcome {
            run: run.clone(),
            labels,
            started,
            profile: outcome.profile,
            backend,
            why_backend,
            end: self.end,
            ran: self.ran,
            error: self.error,
            hints: self.hints,
            times: Times { total: began.elapsed(), ..times },
            usage: outcome.usage,
            network: outcome.network,
            limits_hit: outcome.limits_hit,
            left_processes: outcome.left_processes,
            enforced: outcome.enforced,
            gaps: outcome.gaps,
            denials: outcome.denials,
            leases: outcome.leases,
            artifacts: outcome.collected.artifacts,
            rejected: outcome.collected.rejected,
            policy: outcome.policy,
            audit: span,
        }
    }
}

/// How long what a killed program still had to say may take to be delivered.
const LAST_WORDS: Duration = Duration::from_secs(5);
