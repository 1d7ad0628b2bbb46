//! Runs of a backend that is put to the test: through an engine in which it is alone, so that the
//! Outcome's truth is held, or over its traits.
//!
//! Whatever a check is about, the Outcome of each of its runs is held to what is true of every run:
//! [`Trial::run`] looks at its end, its times, its counts and at what is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::backend::{Backend, BackendError, Boxed, Ending, Exec, Fit, Output, Running, Session};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::Files;
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::{End, FaultCode, LimitName, Outcome, Ran as HasRun, RunId};
use cofferdam_core::outlet::{Closed, Outlet, Outlets};
use cofferdam_core::policy::{ALWAYS_ASKED, Ceiling, Layer, LimitsLayer, Policy, Profile, decide};
use cofferdam_core::request::{
    Argv, File, FileName, Lang, Origin, Program, Request, Script, Variable, WindowSize,
};
use cofferdam_engine::select::Candidate;
use cofferdam_engine::{Engine, policy_hash};
use tempfile::TempDir;

use super::wired::{Cue, Input, Reader, Wired, of};
use super::{Broken, Needs, Subject, Verdict};
use crate::host::{eventually, processes_with};
use crate::outlets::ScriptedOutlets;

/// How long a run may take before it counts as hung. A program of the suite takes a second at most;
/// the rest is for a machine that has other things to do.
const HUNG: Duration = Duration::from_secs(45);

/// How long what was killed may take to be gone.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(3);

/// The deadline of runs that aren't about it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A backend with an engine of its own.
pub(super) struct Trial<'a> {
    pub(super) subject: &'a Subject,
    pub(super) backend: Arc<dyn Backend>,
    engine: Engine,
    state: TempDir,
    /// What every run asks for and this backend hasn't got here.
    lacks: BTreeSet<Capability>,
}

/// The same backend for an engine and for a check.
struct Shared(Arc<dyn Backend>);

/// What is run, and how.
pub(super) struct Try {
    pub(super) program: Program,
    pub(super) layer: Layer,
    pub(super) files: Vec<File>,
    pub(super) environment: Vec<Variable>,
    pub(super) input: Input,
    pub(super) reader: Reader,
    pub(super) cues: Vec<(Cue, i32)>,
    pub(super) terminal: Option<WindowSize>,
    pub(super) sizes: Vec<(Cue, WindowSize)>,
    pub(super) collect: bool,
}

/// A run that is over.
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    pub(super) pieces: Vec<Output>,
}

/// What a program said, and how it ended.
pub(super) struct Heard {
    pub(super) stdout: Vec<u8>,
    pub(super) ending: Ending,
}

impl<'a> Trial<'a> {
    pub(super) fn of(subject: &'a Subject) -> Result<Self, Broken> {
        let state = tempfile::tempdir().unwrap();
        let made = subject.make(state.path());
        let backend = made.map_err(|absent| Broken(format!("it can't be made: {}", absent.why)))?;
        let shared = Box::new(Shared(Arc::clone(&backend)));
        let candidate = Candidate { name: subject.name, backend: Ok(shared) };
        let silent = || Arc::new(ScriptedOutlets::default()) as Arc<dyn Outlets>;
        let outlets = subject.outlets.clone().unwrap_or_else(silent);
        let engine = Engine::open(vec![candidate], state.path()).unwrap().with_outlets(outlets);
        let lacks = backend.offers().missing(&ALWAYS_ASKED.into());
        let lacks = lacks.into_iter().map(|gap| gap.capability).collect();
        Ok(Trial { subject, backend, engine, state, lacks })
    }

    /// A policy that asks for this backend, accepts what it lacks here, and nothing else.
    pub(super) fn layer(&self) -> Layer {
        Layer {
            profile: Some(Profile::Internal),
            backend: Some(Some(self.subject.name)),
            limits: LimitsLayer { timeout: Some(DEADLINE), ..LimitsLayer::default() },
            accept_gaps: self.lacks.clone(),
            ..Layer::default()
        }
    }

    /// The same with limits.
    pub(super) fn limited(&self, limits: &LimitsLayer) -> Layer {
        let limits = LimitsLayer { timeout: limits.timeout.or(Some(DEADLINE)), ..limits.clone() };
        Layer { limits, ..self.layer() }
    }

    fn ask(&self, program: Program) -> Try {
        Try {
            program,
            layer: self.layer(),
            files: vec![],
            environment: vec![],
            input: Input::None,
            reader: Reader::All,
            cues: vec![],
            terminal: None,
            sizes: vec![],
            collect: false,
        }
    }

    /// A command of `sh`.
    pub(super) fn sh(&self, code: &str) -> Try {
        self.ask(sh(code))
    }

    /// A command of `sh` where the backend runs that, and otherwise Python that does what matters of it.
    pub(super) fn either(&self, code: &str, without_sh: &str) -> Try {
        self.ask(self.program(code, without_sh))
    }

    /// The same, to be executed over the traits.
    pub(super) fn program(&self, code: &str, without_sh: &str) -> Program {
        if self.has_sh() { sh(code) } else { python(without_sh) }
    }

    /// Whether its programs can start others.
    pub(super) fn has_sh(&self) -> bool {
        self.subject.runs.contains(&Needs::Sh)
    }

    /// What tells the processes of a program: a number of seconds, about five minutes, that no other command
    /// line of this machine holds and that the program sleeps for; or what all of this backend's bear.
    pub(super) fn marker(&self) -> String {
        self.subject.mark.clone().unwrap_or_else(marker)
    }

    /// Code in Python.
    pub(super) fn python(&self, code: &str) -> Try {
        self.ask(python(code))
    }

    /// Runs something through the engine, and looks at whether what it says can be true.
    pub(super) fn run(&self, what: Try) -> Result<Ran, Broken> {
        let Try { program, layer, files, environment, input, reader, cues, terminal, sizes, collect } = what;
        let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
        let labels = BTreeMap::from([("suite".to_owned(), "conformance".to_owned())]);
        let request = Request { program, files, environment, labels, terminal, collect };
        let grant = decide(&policy, policy_hash(&policy), &request)
            .map_err(|denial| Broken(format!("the policy denies it: {denial}")))?;
        let asked = grant.asks().clone();
        let run = new_run();
        let streams = Wired::new(&input, reader, &cues, &sizes);
        let outcome =
            self.until_hung(async { Ok(self.engine.run(&run, request, grant, &streams, None).await) })?;
        let ran = Ran { outcome, pieces: streams.pieces() };
        self.is_true(&ran, &policy, &asked)?;
        self.left_nothing(&run)?;
        Ok(ran)
    }

    /// Runs a future on this thread; one that takes for ever is a failure.
    pub(super) fn until_hung<T>(&self, work: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let hung = || Err(Broken(format!("nothing came of it within {HUNG:?}")));
            tokio::time::timeout(HUNG, work).await.unwrap_or_else(|_| hung())
        })
    }

    /// A sandbox that is opened over the traits.
    pub(super) async fn open(&self, run: &RunId, layer: Layer) -> Result<Box<dyn Session>, Broken> {
        let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
        let grant = decide(&policy, policy_hash(&policy), &request(sh("true"))).unwrap();
        self.backend.open(run, grant, Arc::new(Closed)).await.map_err(said("open"))
    }

    /// What a run would leave and is there.
    pub(super) fn left_nothing(&self, run: &RunId) -> Result<(), Broken> {
        let traces = self.backend.traces(run);
        let left: Vec<_> = traces.iter().filter(|trace| Path::new(trace).is_absolute()).collect();
        let there = || left.iter().find(|trace| Path::new(trace).exists());
        must!(eventually(GONE_WITHIN, || there().is_none()), "it left {:?}", there());
        for folder in ["runs", "disks"] {
            let entries = std::fs::read_dir(self.state.path().join(folder)).into_iter().flatten();
            let entries: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            must!(entries.is_empty(), "it left {entries:?} in {folder}/ of the state folder");
        }
        Ok(())
    }

    /// What is true of every run.
    fn is_true(&self, ran: &Ran, policy: &Policy, asked: &BTreeSet<Capability>) -> Result<(), Broken> {
        let outcome = &ran.outcome;
        let (end, has_run) = (outcome.end, outcome.ran);
        let said = ran.said();
        let fits = match end {
            End::Refused => has_run == HasRun::No,
            End::BackendLost => has_run == HasRun::Unknown,
            End::SandboxError => true,
            // Nobody waited for it to start any longer.
            End::Cancelled(_) | End::TimedOut if outcome.times.run.is_zero() => has_run == HasRun::Unknown,
            _ => has_run == HasRun::Yes,
        };
        must!(fits, "it ended {end:?} and says that it ran: {has_run:?}");
        let failed = matches!(end, End::Refused | End::BackendLost | End::SandboxError);
        must!(outcome.error.is_some() == failed, "it ended {end:?} with the error {:?}", outcome.error);
        let fix =
            outcome.error.as_ref().is_none_or(|fault| fault.fix.as_ref().is_some_and(|fix| !fix.is_empty()));
        must!(fix, "an error says what to do: {:?}", outcome.error);
        must!(has_run != HasRun::No || said.is_empty(), "nothing ran and it said {said:?}");
        must!(outcome.backend.is_none_or(|name| name == self.subject.name), "{:?} ran it", outcome.backend);
        must!(outcome.labels.contains_key("suite"), "labels travel unchanged: {:?}", outcome.labels);
        let audited = outcome.audit.as_ref().is_some_and(|span| span.first <= span.last);
        must!(audited, "the audit log has it: {:?}", outcome.audit);
        if has_run != HasRun::No {
            holds_what_was_asked(outcome, asked)?;
        }
        counts_are_plausible(outcome, policy)?;
        times_are_plausible(outcome, !ran.pieces.is_empty())
    }

    /// The verdict on a run that was refused for want of a capability; none if it wasn't refused.
    pub(super) fn refused(&self, ran: &Ran, capability: Capability) -> Result<Option<Verdict>, Broken> {
        let outcome = &ran.outcome;
        if outcome.end != End::Refused {
            return Ok(None);
        }
        let Some(fault) = &outcome.error else { return Err(Broken("refused without a word".into())) };
        must!(fault.code == FaultCode::BackendRefused, "it was refused for another reason: {fault:?}");
        must!(outcome.exit_code() == 125, "a refusal's exit code is {}", outcome.exit_code());
        let gap = self.gap(capability);
        let Some(gap) = gap else {
            return Err(Broken(format!("it offers {capability} and is refused: {}", fault.message)));
        };
        must!(fault.message.contains(capability.name()), "the gap isn't named: {}", fault.message);
        let fix = fault.fix.as_deref().unwrap_or_default();
        must!(fix.contains(&gap.fix), "the refusal doesn't say how to close the gap: {fix}");
        Ok(Some(Verdict::Refused(gap)))
    }

    /// The verdict on a run that was refused since the backend has nothing that it asks for; none if it wasn't
    /// refused. The refusal has to name it.
    pub(super) fn unfit(&self, ran: &Ran, named: &str) -> Result<Option<Verdict>, Broken> {
        let outcome = &ran.outcome;
        if outcome.end != End::Refused {
            return Ok(None);
        }
        let Some(fault) = &outcome.error else { return Err(Broken("refused without a word".into())) };
        must!(fault.code == FaultCode::ProgramUnfit, "it was refused for another reason: {fault:?}");
        must!(fault.message.contains(named), "what it lacks isn't named: {}", fault.message);
        // On one line, as a reason to skip is.
        let why = fault.message.split_whitespace().collect::<Vec<_>>().join(" ");
        let fix = fault.fix.clone().unwrap_or_default();
        Ok(Some(Verdict::Refused(Gap { capability: Capability::Files, why, fix })))
    }

    /// The gap of a capability, if it isn't offered.
    pub(super) fn gap(&self, capability: Capability) -> Option<Gap> {
        self.backend.offers().missing(&BTreeSet::from([capability])).pop()
    }

    /// The gap that must be there if a capability isn't enforced: a policy that accepts everything
    /// else that is lacking.
    pub(super) fn without_accepting(&self, capability: Capability, limits: &LimitsLayer) -> Layer {
        let mut layer = self.limited(limits);
        layer.accept_gaps.remove(&capability);
        layer
    }
}

/// What was asked for is in force or an accepted gap, and not both.
fn holds_what_was_asked(outcome: &Outcome, asked: &BTreeSet<Capability>) -> Result<(), Broken> {
    let gaps: BTreeSet<_> = outcome.gaps.iter().map(|gap| gap.capability).collect();
    let both: Vec<_> = outcome.enforced.intersection(&gaps).collect();
    must!(both.is_empty(), "{both:?} is said to be in force and to be missing");
    let neither: Vec<_> =
        asked.iter().filter(|it| !outcome.enforced.contains(it) && !gaps.contains(it)).collect();
    must!(neither.is_empty(), "{neither:?} was asked for, isn't in force and isn't told as a gap");
    Ok(())
}

fn counts_are_plausible(outcome: &Outcome, policy: &Policy) -> Result<(), Broken> {
    let (usage, limits) = (&outcome.usage, &policy.limits);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
    must!(
        usage.cpu <= outcome.times.total * cores.max(1) + Duration::from_millis(50),
        "it used {:?} of processor time in {:?}",
        usage.cpu,
        outcome.times.total
    );
    if outcome.enforced.contains(&Capability::Memory) {
        let peak = usage.memory_peak_bytes.unwrap_or(0);
        must!(peak <= limits.memory_bytes, "it used {peak} bytes of memory");
    }
    if outcome.enforced.contains(&Capability::Pids) {
        let peak = usage.processes_peak.unwrap_or(0);
        must!(peak <= limits.pids + 1, "it had {peak} processes");
    }
    let hit = |limit| outcome.limits_hit.contains(&limit);
    must!(
        hit(LimitName::Timeout) == (outcome.end == End::TimedOut),
        "ended {:?} with {:?}",
        outcome.end,
        outcome.limits_hit
    );
    must!(outcome.end != End::OutOfMemory || hit(LimitName::Memory), "out of memory without the limit");
    Ok(())
}

fn times_are_plausible(outcome: &Outcome, spoke: bool) -> Result<(), Broken> {
    let times = &outcome.times;
    let sum = times.select + times.open + times.run + times.close;
    must!(sum <= times.total + Duration::from_millis(5), "the parts take longer than the whole: {times:?}");
    // The first piece of a run whose reader fails came too, though it wasn't kept.
    must!(!spoke || times.first_output.is_some(), "it spoke and never began to: {times:?}");
    let first = times.first_output.unwrap_or_default();
    must!(first <= times.total, "its first output came after its end: {times:?}");
    let ahead = outcome.started.duration_since(SystemTime::now()).unwrap_or_default();
    must!(ahead <= Duration::from_secs(1), "it starts in {ahead:?}");
    Ok(())
}

impl Ran {
    /// Standard output.
    pub(super) fn stdout(&self) -> Vec<u8> {
        of(&self.pieces, false)
    }

    /// Standard error.
    pub(super) fn stderr(&self) -> Vec<u8> {
        of(&self.pieces, true)
    }

    /// Standard output as text.
    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&self.stdout()).into_owned()
    }

    /// It ended like this.
    pub(super) fn ends(&self, end: End) -> Result<(), Broken> {
        must!(self.outcome.end == end, "it should have ended {end:?}: {}", self.story());
        Ok(())
    }

    /// It exited with 0 and said exactly this.
    pub(super) fn says(&self, text: &str) -> Result<(), Broken> {
        self.ends(End::Exited(0))?;
        must!(self.said() == text, "it should have said {text:?}: {}", self.story());
        Ok(())
    }

    /// Everything that is known, for a person.
    pub(super) fn story(&self) -> String {
        let cut = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned();
        let Outcome { end, ran, error, times, limits_hit, .. } = &self.outcome;
        let (out, err) = (cut(self.stdout()), cut(self.stderr()));
        format!("{end:?}, ran {ran:?}, {error:?}, {limits_hit:?}, {times:?}, stdout {out:?}, stderr {err:?}")
    }
}

/// Python that says "on" and then does nothing for minutes.
pub(super) const IDLE: &str = "import time\nprint('on')\ntime.sleep(300)\nprint('over')";

/// A command of `sh`.
pub(super) fn sh(code: &str) -> Program {
    command(&["sh", "-c", code])
}

/// A command.
pub(super) fn command(words: &[&str]) -> Program {
    let mut words = words.iter().map(|word| CString::new(*word).unwrap());
    Program::Command(Argv::new(words.next().unwrap(), words.collect()))
}

/// Code in Python.
pub(super) fn python(code: &str) -> Program {
    let source = code.as_bytes().to_vec();
    Program::Script(Script { lang: Lang::Python, origin: Origin::Inline, source, args: vec![] })
}

/// What starts a program without more ado.
pub(super) fn exec(program: Program) -> Exec {
    Exec { program, environment: vec![], delivered: Deliveries::default(), terminal: None, stdin: false }
}

/// A file that is put.
pub(super) fn file(name: &str, bytes: &[u8]) -> File {
    File { name: FileName::new(name).unwrap(), bytes: bytes.to_vec(), executable: false }
}

pub(super) fn request(program: Program) -> Request {
    Request {
        program,
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: true,
    }
}

/// An identity that no other run of this machine has.
pub(super) fn new_run() -> RunId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 10];
    random[..4].copy_from_slice(&std::process::id().to_le_bytes());
    random[4..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes()[..6]);
    RunId::new(now.as_millis() as u64, random)
}

pub(super) fn marker() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("300.{}{:04}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Everything whose command line holds a marker is gone, or soon will be.
pub(super) fn is_gone(marker: &str) -> Result<(), Broken> {
    let gone = eventually(GONE_WITHIN, || processes_with(marker).is_empty());
    must!(gone, "it left what still runs: {:?}", processes_with(marker));
    Ok(())
}

/// A backend that failed, as a broken claim.
pub(super) fn said(doing: &str) -> impl FnOnce(BackendError) -> Broken {
    move |error| Broken(format!("{doing}: {}", cofferdam_engine::chain(&error)))
}

/// Listens to a program until both of its streams have ended and it has.
pub(super) async fn listen(running: &dyn Running) -> Result<Heard, Broken> {
    let mut pieces = vec![];
    while let Some(piece) = running.output().await.map_err(said("output"))? {
        pieces.push(piece);
    }
    let ending = running.wait().await.map_err(said("wait"))?;
    Ok(Heard { stdout: of(&pieces, false), ending })
}

/// Listens until a program has said something.
pub(super) async fn until_it_says(running: &dyn Running, text: &str) -> Result<(), Broken> {
    let mut pieces = vec![];
    loop {
        let piece = running.output().await.map_err(said("output"))?;
        let Some(piece) = piece else { return Err(Broken(format!("it never said {text:?}"))) };
        pieces.push(piece);
        if String::from_utf8_lossy(&of(&pieces, false)).contains(text) {
            return Ok(());
        }
    }
}

impl Backend for Shared {
    fn offers(&self) -> &Offers {
        self.0.offers()
    }

    fn gaps(&self, grant: &Grant) -> Vec<Gap> {
        self.0.gaps(grant)
    }

    fn traces(&self, run: &RunId) -> Vec<String> {
        self.0.traces(run)
    }

    fn sweep(&self, traces: &[String]) -> Result<(), BackendError> {
        self.0.sweep(traces)
    }

    fn fit(&self, request: &Request, files: &Files) -> Fit {
        self.0.fit(request, files)
    }

    fn open<'a>(
        &'a self,
        run: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>> {
        self.0.open(run, grant, outlet)
    }
}
