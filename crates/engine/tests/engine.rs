//! The engine over a scripted backend: the order of things, and every way in which a run can end.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

#[path = "engine/artifacts.rs"]
mod artifacts;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use cofferdam_core::backend::{Boxed, Ending, Output};
use cofferdam_core::capability::{Capability, Offers};
use cofferdam_core::outcome::{Cancel, End, FaultCode, LimitName, Outcome, Ran, RunId};
use cofferdam_core::policy::{
    ALWAYS_ASKED, BackendName, Ceiling, Layer, LimitsLayer, Policy, Profile, decide,
};
use cofferdam_core::request::{Argv, Program, Request, WindowSize};
use cofferdam_engine::run::{Keep, Streams};
use cofferdam_engine::select::{Absent, Candidate};
use cofferdam_engine::{Engine, policy_hash, record};
use cofferdam_testkit::scripted::{Script, Scripted};

/// Streams that collect, and send signals on cue.
#[derive(Default)]
struct Collected {
    out: Mutex<Vec<u8>>,
    signals: Mutex<Vec<i32>>,
    closed: bool,
}

impl Streams for Collected {
    fn accept(&self, output: Output) -> Boxed<'_, io::Result<()>> {
        let (Output::Stdout(bytes) | Output::Stderr(bytes)) = output;
        if self.closed {
            return Box::pin(async { Err(io::ErrorKind::BrokenPipe.into()) });
        }
        self.out.lock().unwrap().extend(bytes);
        Box::pin(async { Ok(()) })
    }

    fn has_input(&self) -> bool {
        false
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        Box::pin(async { None })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        let next = self.signals.lock().unwrap().pop();
        Box::pin(async move {
            match next {
                Some(signal) => signal,
                None => std::future::pending().await,
            }
        })
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(std::future::pending())
    }

    fn dropped(&self) -> [u64; 2] {
        [0, 0]
    }
}

fn script() -> Script {
    Script::offering(&[])
}

fn internal() -> Layer {
    Layer { profile: Some(Profile::Internal), ..Layer::default() }
}

/// An engine's candidates: this backend under the container's name.
fn only(backend: &Scripted) -> Vec<Candidate> {
    vec![Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) }]
}

/// Runs a program under a policy.
fn run_in(engine: &Engine, layer: Layer, streams: &Collected) -> Outcome {
    run_and_collect(engine, layer, streams, false, None)
}

/// Runs a program under a policy; takes out what it changed if that is asked for.
fn run_and_collect(
    engine: &Engine,
    layer: Layer,
    streams: &Collected,
    collect: bool,
    keep: Option<&mut dyn Keep>,
) -> Outcome {
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    let program = Program::Command(Argv::new(c"prog".into(), vec![]));
    let request = Request {
        program,
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect,
    };
    let grant = decide(&policy, policy_hash(&policy), &request).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(engine.run(&RunId::new(1, [7; 10]), request, grant, streams, keep))
}

/// Runs over a script; gives the Outcome and what the backend was told.
fn run_with(state: &Path, script: Script, layer: Layer, streams: &Collected) -> (Outcome, Vec<String>) {
    let backend = Scripted::new(script);
    let engine = Engine::open(only(&backend), state).unwrap();
    (run_in(&engine, layer, streams), backend.told())
}

fn run(script: Script) -> (Outcome, Vec<String>) {
    let state = tempfile::tempdir().unwrap();
    run_with(state.path(), script, internal(), &Collected::default())
}

/// The names of the events in a log.
fn events(state: &Path) -> Vec<String> {
    let entries = record::events(state, record::RunFilter::All).unwrap();
    entries.map(|entry| entry.unwrap().line.unwrap().event).collect()
}

#[test]
fn a_run_is_opened_executed_halted_and_closed_in_this_order_and_recorded_before() {
    let state = tempfile::tempdir().unwrap();
    let (outcome, told) = run_with(state.path(), script(), internal(), &Collected::default());
    assert_eq!(told, ["open", "exec prog", "halt", "close"]);
    assert_eq!((outcome.end, outcome.ran), (End::Exited(0), Ran::Yes));
    assert_eq!(
        events(state.path()),
        ["task.start", "policy.loaded", "sandbox.opened", "sandbox.closed", "task.end"]
    );
    assert_eq!(std::fs::read_dir(state.path().join("runs")).unwrap().count(), 0);
}

#[test]
fn the_deadline_and_a_signal_end_the_wait_for_a_program_to_start() {
    let state = tempfile::tempdir().unwrap();
    let limits = LimitsLayer { timeout: Some(Duration::from_millis(30)), ..LimitsLayer::default() };
    let layer = Layer { limits, ..internal() };
    for (signals, end) in [(vec![], End::TimedOut), (vec![2], End::Cancelled(Cancel::User))] {
        let hangs = Script { start_hangs: true, ..script() };
        let streams = Collected { signals: signals.into(), ..Collected::default() };
        let (outcome, told) = run_with(state.path(), hangs, layer.clone(), &streams);
        assert_eq!((outcome.end, outcome.ran), (end, Ran::Unknown));
        assert_eq!(outcome.limits_hit.contains(&LimitName::Timeout), end == End::TimedOut);
        assert_eq!(told, ["open", "exec prog", "halt", "close"]);
    }
}

#[test]
fn a_program_that_never_ends_is_timed_out() {
    let layer = Layer {
        limits: LimitsLayer { timeout: Some(Duration::from_millis(20)), ..Default::default() },
        ..internal()
    };
    let state = tempfile::tempdir().unwrap();
    let never = Script { ending: None, ..script() };
    let (outcome, told) = run_with(state.path(), never, layer, &Collected::default());
    assert_eq!((outcome.end, outcome.exit_code()), (End::TimedOut, 124));
    assert!(outcome.limits_hit.contains(&LimitName::Timeout));
    assert_eq!(told, ["open", "exec prog", "halt", "close"], "without grace no signal is sent");
    assert!(events(state.path()).contains(&"limit.hit".to_owned()));
}

#[test]
fn grace_asks_with_sigterm_first() {
    let limits = LimitsLayer {
        timeout: Some(Duration::from_millis(10)),
        grace: Some(Duration::from_millis(10)),
        ..Default::default()
    };
    let state = tempfile::tempdir().unwrap();
    let never = Script { ending: None, ..script() };
    let layer = Layer { limits, ..internal() };
    let (outcome, told) = run_with(state.path(), never, layer, &Collected::default());
    assert_eq!(outcome.end, End::TimedOut);
    assert_eq!(told, ["open", "exec prog", "signal 15", "halt", "close"]);
}

#[test]
fn the_first_signal_is_passed_on_and_the_second_ends_the_run() {
    let streams = Collected { signals: Mutex::new(vec![2, 15]), ..Collected::default() };
    let state = tempfile::tempdir().unwrap();
    let never = Script { ending: None, ..script() };
    let (outcome, told) = run_with(state.path(), never, internal(), &streams);
    assert_eq!((outcome.end, outcome.exit_code()), (End::Cancelled(Cancel::User), 130));
    assert_eq!(told, ["open", "exec prog", "signal 15", "halt", "close"]);
}

#[test]
fn what_was_still_in_the_pipes_is_delivered_after_the_end() {
    let output = (0..50).map(|at| Output::Stdout(vec![at])).collect();
    let streams = Collected::default();
    let state = tempfile::tempdir().unwrap();
    run_with(state.path(), Script { output, ..script() }, internal(), &streams);
    assert_eq!(*streams.out.lock().unwrap(), (0..50).collect::<Vec<u8>>());
}

#[test]
fn the_output_limit_passes_exactly_so_much() {
    let output = vec![Output::Stdout(vec![1; 600]), Output::Stderr(vec![2; 600])];
    let layer =
        Layer { limits: LimitsLayer { output_bytes: Some(1000), ..Default::default() }, ..internal() };
    let streams = Collected::default();
    let state = tempfile::tempdir().unwrap();
    let (outcome, _) = run_with(state.path(), Script { output, ending: None, ..script() }, layer, &streams);
    assert_eq!((outcome.end, outcome.exit_code()), (End::OutputLimit, 153));
    assert_eq!(streams.out.lock().unwrap().len(), 1000);
}

#[test]
fn a_reader_that_is_gone_ends_the_run() {
    let streams = Collected { closed: true, ..Collected::default() };
    let output = vec![Output::Stdout(vec![1])];
    let state = tempfile::tempdir().unwrap();
    let (outcome, told) =
        run_with(state.path(), Script { output, ending: None, ..script() }, internal(), &streams);
    assert_eq!(outcome.exit_code(), 141);
    assert_eq!(told.last().unwrap(), "close");
}

#[test]
fn a_sandbox_that_cannot_be_opened_is_our_failure_and_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let broken = Script { open_fails: true, ..script() };
    let (outcome, told) = run_with(state.path(), broken, internal(), &Collected::default());
    assert_eq!((outcome.end, outcome.ran), (End::SandboxError, Ran::No));
    assert_eq!(outcome.error.unwrap().code, FaultCode::HostError);
    assert_eq!(told, ["open"]);
    assert_eq!(std::fs::read_dir(state.path().join("runs")).unwrap().count(), 0);
    assert_eq!(events(state.path()).last().unwrap(), "task.end");
}

#[test]
fn a_lost_sandbox_is_not_safe_to_try_again() {
    let (outcome, _) = run(Script { ending: Some(Ending::Lost), ..script() });
    assert_eq!((outcome.end, outcome.ran, outcome.exit_code()), (End::BackendLost, Ran::Unknown, 125));
}

#[test]
fn a_missing_capability_refuses_before_anything_starts() {
    let mut offers = Offers::nothing().with(ALWAYS_ASKED);
    offers = offers.without(Capability::Memory, "no controller", "mount it");
    let (outcome, told) = run(Script { offers, ..script() });
    assert_eq!((outcome.end, outcome.ran), (End::Refused, Ran::No));
    assert_eq!(told, [] as [&str; 0]);
    let fault = outcome.error.unwrap();
    assert!(fault.message.contains("memory (no controller)"), "{fault:?}");
    let fix = fault.fix.unwrap();
    assert!(fix.contains("mount it") && fix.contains("--accept-gap memory"), "{fix}");
}

#[test]
fn each_capability_that_is_always_asked_for_is_refused_when_it_is_missing() {
    for missing in ALWAYS_ASKED {
        let offers = Offers::nothing().with(ALWAYS_ASKED.into_iter().filter(|it| *it != missing));
        let (outcome, told) = run(Script { offers: offers.clone(), ..script() });
        assert_eq!(outcome.end, End::Refused, "{missing}");
        assert_eq!(told, [] as [&str; 0], "{missing}");
        let accepted = Layer { accept_gaps: [missing].into(), ..internal() };
        let state = tempfile::tempdir().unwrap();
        let (outcome, _) =
            run_with(state.path(), Script { offers, ..script() }, accepted, &Collected::default());
        assert_eq!(outcome.end, End::Exited(0), "{missing}");
        assert_eq!(outcome.gaps.len(), 1, "{missing}");
        assert!(!outcome.enforced.contains(&missing), "{missing}");
    }
}

#[test]
fn a_backend_that_enforces_nothing_is_not_run_whatever_is_accepted() {
    let layer = Layer { accept_gaps: Capability::ALL.iter().copied().collect(), ..internal() };
    let state = tempfile::tempdir().unwrap();
    let offers = Offers::nothing();
    let (outcome, told) = run_with(state.path(), Script { offers, ..script() }, layer, &Collected::default());
    assert_eq!(outcome.end, End::Refused);
    assert_eq!(told, [] as [&str; 0]);
    assert!(!outcome.error.unwrap().fix.unwrap().contains("--accept-gap"));
}

#[test]
fn a_sandbox_that_holds_less_than_was_promised_is_closed_and_nothing_runs_in_it() {
    let state = tempfile::tempdir().unwrap();
    let lacks = BTreeSet::from([Capability::Syscalls]);
    let (outcome, told) =
        run_with(state.path(), Script { lacks, ..script() }, internal(), &Collected::default());
    assert_eq!((outcome.end, outcome.ran), (End::SandboxError, Ran::No));
    assert!(!outcome.enforced.contains(&Capability::Syscalls));
    assert!(outcome.error.unwrap().message.contains("syscalls"));
    assert_eq!(told, ["open", "halt", "close"]);
}

#[test]
fn nothing_is_opened_when_the_log_was_cut() {
    let state = tempfile::tempdir().unwrap();
    let (first, _) = run_with(state.path(), script(), internal(), &Collected::default());
    assert_eq!(first.end, End::Exited(0));
    let backend = Scripted::new(script());
    let engine = Engine::open(only(&backend), state.path()).unwrap();
    std::fs::write(state.path().join("audit/log.ndjson"), "").unwrap();
    let outcome = run_in(&engine, internal(), &Collected::default());
    assert_eq!(outcome.end, End::Refused);
    assert_eq!(outcome.error.unwrap().code, FaultCode::AuditUnavailable);
    assert_eq!(backend.told(), [] as [String; 0]);
}

#[test]
fn a_dead_run_is_swept_by_the_backend_that_had_it() {
    let state = tempfile::tempdir().unwrap();
    let backend = Scripted::new(script());
    let candidates = vec![
        Candidate {
            name: BackendName::Wasm,
            backend: Err(Absent { why: "not here".into(), fix: "elsewhere".into(), later: false }),
        },
        Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) },
    ];
    let engine = Engine::open(candidates, state.path()).unwrap();
    let dead = RunId::new(3, [1; 10]);
    std::fs::write(state.path().join("runs").join(dead.as_str()), "container\none\ntwo\n").unwrap();
    let absent = RunId::new(4, [1; 10]);
    std::fs::write(state.path().join("runs").join(absent.as_str()), "wasm\nx\n").unwrap();
    let swept = engine.sweep().unwrap();
    assert_eq!(swept.removed, std::slice::from_ref(&dead));
    assert_eq!(backend.told(), ["sweep one two"]);
    assert_eq!(swept.stuck, [(absent, "not here".to_owned())], "what can't be removed stays, and is said");
    assert_eq!(events(state.path()), ["sandbox.closed", "task.end"]);
}
