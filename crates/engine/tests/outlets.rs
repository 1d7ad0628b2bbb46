//! What a run makes of its way out: the order of things, what is recorded, and what the Outcome says.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::Ending;
use cofferdam_core::capability::Capability;
use cofferdam_core::egress::{Denial, DenialCode};
use cofferdam_core::outcome::{Denials, End, FaultCode, LimitName, Outcome, Ran, RunId, Traffic};
use cofferdam_core::outlet::Cut;
use cofferdam_core::policy::{
    BackendName, Ceiling, HostPattern, Layer, LimitsLayer, NetworkRule, Policy, Profile, decide,
};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_engine::select::Candidate;
use cofferdam_engine::{Engine, policy_hash, record};
use cofferdam_testkit::outlets::{OutletScript, ScriptedOutlet, ScriptedOutlets, a_moment};
use cofferdam_testkit::scripted::{Script, Scripted, Silent};

/// A program that never ends, in a backend that judges what leaves.
fn script() -> Script {
    let egress = [Capability::Egress, Capability::EgressHttp, Capability::Dns];
    Script { ending: None, ..Script::offering(&egress) }
}

/// An engine with a scripted backend and scripted ways out.
struct Bench {
    backend: Scripted,
    outlets: ScriptedOutlets,
    engine: Engine,
    state: tempfile::TempDir,
}

impl Bench {
    fn new(script: Script, outlets: OutletScript) -> Bench {
        let state = tempfile::tempdir().unwrap();
        let backend = Scripted::new(script);
        let outlets = ScriptedOutlets::new(outlets, backend.list());
        let candidate = Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) };
        let engine = Engine::open(vec![candidate], state.path()).unwrap();
        let engine = engine.with_outlets(Arc::new(outlets.clone()));
        Bench { backend, outlets, engine, state }
    }

    /// Runs a program that has 50 ms, and meanwhile what a proxy does for it.
    fn run_while<T>(&self, proxy: impl AsyncFnOnce(Arc<ScriptedOutlet>) -> T) -> (Outcome, T) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::join!(self.run(), async { proxy(self.bound().await).await }) })
    }

    async fn run(&self) -> Outcome {
        let request = Request {
            program: Program::Command(Argv::new(c"prog".into(), vec![])),
            files: vec![],
            environment: vec![],
            labels: Default::default(),
            terminal: None,
            collect: false,
        };
        let limits = LimitsLayer { timeout: Some(Duration::from_millis(50)), ..LimitsLayer::default() };
        let network = vec![NetworkRule::https(HostPattern::parse("a.test").unwrap())];
        let layer = Layer { profile: Some(Profile::Internal), limits, network, ..Layer::default() };
        let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
        let grant = decide(&policy, policy_hash(&policy), &request).unwrap();
        self.engine.run(&RunId::new(1, [0; 10]), request, grant, &Silent, None).await
    }

    /// The way out, once the run has it.
    async fn bound(&self) -> Arc<ScriptedOutlet> {
        loop {
            let opened = self.outlets.opened();
            if let Some(outlet) = opened.into_iter().find(|outlet| outlet.run().is_some()) {
                return outlet;
            }
            tokio::task::yield_now().await;
        }
    }

    fn events(&self) -> Vec<String> {
        events(self.state.path())
    }
}

/// The names of the events in a log.
fn events(state: &Path) -> Vec<String> {
    let entries = record::events(state, record::RunFilter::All).unwrap();
    entries.map(|entry| entry.unwrap().line.unwrap().event).collect()
}

#[test]
fn a_way_out_is_there_before_the_sandbox_and_is_cut_before_anything_is_killed() {
    let bench = Bench::new(script(), OutletScript::default());
    let (outcome, ()) = bench.run_while(async |_| ());
    assert_eq!(outcome.end, End::TimedOut);
    // Asked twice, it says the same: the deadline's way and the end's both come by.
    let told = ["open outlet", "open", "attach", "record", "exec prog", "cut", "halt", "close"];
    assert_eq!(bench.backend.told(), told);
}

#[test]
fn a_program_that_is_never_seen_to_start_has_its_way_out_cut_too() {
    let hangs = Script { start_hangs: true, ..script() };
    let bench = Bench::new(hangs, OutletScript::default());
    let (outcome, ()) = bench.run_while(async |_| ());
    assert_eq!((outcome.end, outcome.ran), (End::TimedOut, Ran::Unknown));
    let told = bench.backend.told();
    assert_eq!(told[4..], ["exec prog", "cut", "halt", "close"], "{told:?}");
}

#[test]
fn what_a_way_out_refuses_is_in_the_log_when_it_is_told_so() {
    let bench = Bench::new(script(), OutletScript::default());
    let (outcome, before) = bench.run_while(async |outlet| {
        outlet.refuse("evil.test").await.unwrap();
        bench.events()
    });
    assert_eq!(before, ["task.start", "policy.loaded", "sandbox.opened", "egress.denied"]);
    let end = ["sandbox.closed", "limit.hit", "task.end"];
    assert_eq!(bench.events()[4..], end);
    let span = outcome.audit.unwrap();
    assert_eq!((span.first, span.last), (1, 7), "what went out is in the run's own chain");
}

#[test]
fn an_event_that_cannot_be_written_is_an_error_to_whoever_would_let_something_out() {
    let bench = Bench::new(script(), OutletScript::default());
    let (outcome, refused) = bench.run_while(async |outlet| {
        std::fs::write(bench.state.path().join("audit/log.ndjson"), "").unwrap();
        outlet.refuse("evil.test").await
    });
    assert!(matches!(refused, Err(AuditError::Cut { .. })), "{refused:?}");
    assert!(outcome.hints.iter().any(|hint| hint.contains("could not be written")), "{:?}", outcome.hints);
}

#[test]
fn nothing_is_recorded_for_a_run_that_is_over_nor_what_is_not_a_way_outs() {
    let bench = Bench::new(script(), OutletScript::default());
    let (_, (outlet, foreign)) = bench.run_while(async |outlet| {
        let end = Event::TaskEnd { end: End::Exited(0), policy: None };
        let foreign = outlet.record_event(end).await;
        (outlet, foreign)
    });
    assert!(matches!(foreign, Err(AuditError::Refused { event: "task.end", .. })), "{foreign:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let late = runtime.block_on(outlet.refuse("evil.test"));
    assert!(matches!(late, Err(AuditError::Refused { event: "egress.denied", .. })), "{late:?}");
    assert_eq!(bench.events().last().unwrap(), "task.end");
    assert_eq!(bench.events().iter().filter(|event| *event == "task.end").count(), 1);
}

/// A refusal for want of a budget.
fn over_budget() -> Denial {
    Denial { rule: Some("limits.requests".into()), ..Denial::of_bytes(DenialCode::LimitExceeded, b"a.test") }
}

#[test]
fn what_went_through_and_what_did_not_is_the_outcomes() {
    let mut denials = Denials::default();
    denials.add(over_budget());
    denials.add(Denial::of_bytes(DenialCode::HostNotAllowed, b"evil.test"));
    let traffic = Traffic { bytes_out: 7, bytes_in: 9 };
    let cut = Cut { denials: denials.clone(), traffic: Some(traffic), udp_refused: 3, lost: None };
    let bench = Bench::new(script(), OutletScript { cut, ..OutletScript::default() });
    let (outcome, ()) = bench.run_while(async |_| ());
    let network = outcome.network;
    assert_eq!((network.traffic, network.udp_refused), (Some(traffic), 3));
    assert_eq!(outcome.denials, denials);
    assert_eq!(outcome.limits_hit, [LimitName::Requests, LimitName::Timeout].into());
    assert!(outcome.enforced.contains(&Capability::Egress) && outcome.gaps.is_empty());
}

#[test]
fn a_proxy_that_was_lost_is_a_gap_that_says_when_and_the_run_goes_on() {
    let cut = Cut { lost: Some(a_moment()), ..Cut::unknown() };
    let bench = Bench::new(
        Script { ending: Some(Ending::Exited(0)), ..script() },
        OutletScript { cut, ..OutletScript::default() },
    );
    let (outcome, ()) = bench.run_while(async |_| ());
    assert_eq!(outcome.end, End::Exited(0));
    let [gap] = &outcome.gaps[..] else { panic!("{:?}", outcome.gaps) };
    assert_eq!(gap.capability, Capability::Egress);
    assert!(gap.why.contains("lost at 2026-11-29T20:15:04.120Z"), "{}", gap.why);
    assert_eq!(outcome.network.traffic, None, "not nothing, but not known");
    assert!(!outcome.enforced.contains(&Capability::Egress));
}

#[test]
fn a_way_out_that_cannot_be_cut_holds_nobody_up_and_is_said_to_be_lost() {
    let bench = Bench::new(script(), OutletScript { cut_hangs: true, ..OutletScript::default() });
    let (outcome, ()) = bench.run_while(async |_| ());
    assert_eq!(outcome.end, End::TimedOut);
    assert!(outcome.times.total < Duration::from_secs(10), "{:?}", outcome.times);
    assert_eq!(outcome.gaps[0].capability, Capability::Egress);
    assert_eq!(bench.backend.told().last().unwrap(), "close");
}

#[test]
fn without_a_way_out_no_sandbox_is_opened() {
    let bench = Bench::new(script(), OutletScript { open_fails: true, ..OutletScript::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outcome = runtime.block_on(bench.run());
    assert_eq!((outcome.end, outcome.ran), (End::SandboxError, Ran::No));
    assert_eq!(outcome.error.unwrap().code, FaultCode::HostError);
    assert_eq!(bench.backend.told(), [] as [&str; 0]);
    assert_eq!(bench.events().last().unwrap(), "task.end");
}

#[test]
fn an_engine_that_was_given_none_lets_no_run_with_rules_begin() {
    let state = tempfile::tempdir().unwrap();
    let backend = Scripted::new(script());
    let candidate = Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) };
    let engine = Engine::open(vec![candidate], state.path()).unwrap();
    let outlets = ScriptedOutlets::new(OutletScript::default(), backend.list());
    let bench = Bench { backend, outlets, engine, state };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outcome = runtime.block_on(bench.run());
    assert_eq!((outcome.end, outcome.ran), (End::SandboxError, Ran::No));
    assert!(outcome.error.unwrap().message.contains("let anything out"));
    assert_eq!(bench.backend.told(), [] as [&str; 0]);
}
