//! The pool over a scripted backend: no fast path drops the policy, and nothing stays open.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use cofferdam_core::backend::{Boxed, Ending, Left, Output};
use cofferdam_core::capability::Capability;
use cofferdam_core::files::{Pattern, Workspace};
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::{End, FaultCode, Outcome, RunId};
use cofferdam_core::policy::{
    BackendName, Ceiling, Cpus, HostPattern, Layer, NetworkRule, Policy, Profile, decide,
};
use cofferdam_core::request::{Argv, Program, Request, Variable, WindowSize};
use cofferdam_engine::pool::Pool;
use cofferdam_engine::run::Streams;
use cofferdam_engine::select::Candidate;
use cofferdam_engine::{Engine, policy_hash, record};
use cofferdam_testkit::outlets::{OutletScript, ScriptedOutlets};
use cofferdam_testkit::scripted::{Script, Scripted, Silent};

fn script() -> Script {
    let offers = [Capability::Egress, Capability::EgressHttp, Capability::Dns, Capability::SeparateKernel];
    Script::offering(&offers)
}

fn request() -> Request {
    Request {
        program: Program::Command(Argv::new(c"prog".into(), vec![])),
        files: vec![],
        environment: vec![],
        labels: Default::default(),
        terminal: None,
        collect: false,
    }
}

/// A policy with something in every field that can be narrowed.
fn wide() -> Policy {
    let rule = |host| NetworkRule::https(HostPattern::parse(host).unwrap());
    let layer = Layer {
        profile: Some(Profile::Internal),
        network: vec![rule("a.test"), rule("b.test")],
        accept_gaps: [Capability::Tty].into(),
        ..Layer::default()
    };
    let mut policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    policy.limits.disk_bytes = Some(1 << 29);
    policy.environment.set = vec![Variable::new("A", "1").unwrap()];
    policy.environment.passed = vec![Variable::new("B", "2").unwrap()];
    policy.files.keep = vec![Pattern::new("kept").unwrap()];
    policy
}

fn with_workspace(mut policy: Policy) -> Policy {
    policy.files.workspace = Some(Workspace { host: PathBuf::from("/w"), copy: false });
    policy
}

fn grant(policy: &Policy) -> Grant {
    decide(policy, policy_hash(policy), &request()).unwrap()
}

fn run_id() -> RunId {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    RunId::new(1, [NEXT.fetch_add(1, Ordering::SeqCst); 10])
}

/// What became of a few runs over one pool.
struct Told {
    backend: Scripted,
    outlets: ScriptedOutlets,
    outcomes: Vec<Outcome>,
    state: tempfile::TempDir,
}

/// Runs jobs, each under its policy, in a row, with a pool for the wide policy.
fn batch(script: Script, size: usize, jobs: &[Policy]) -> Told {
    batch_in(tempfile::tempdir().unwrap(), script, wide(), size, jobs, |_| {})
}

fn batch_in(
    state: tempfile::TempDir,
    script: Script,
    usual: Policy,
    size: usize,
    jobs: &[Policy],
    before_each: impl Fn(&tempfile::TempDir),
) -> Told {
    with_pool(state, script, usual, size, async |engine, pool, state| {
        let mut outcomes = vec![];
        for policy in jobs {
            before_each(state);
            let run = run_id();
            outcomes.push(engine.run_pooled(pool, &run, request(), grant(policy), &Silent, None).await);
            tokio::task::yield_now().await; // so that the pool is full again
        }
        outcomes
    })
}

/// What becomes of work over a pool that is kept meanwhile.
fn with_pool(
    state: tempfile::TempDir,
    script: Script,
    usual: Policy,
    size: usize,
    work: impl AsyncFnOnce(&Engine, &Pool, &tempfile::TempDir) -> Vec<Outcome>,
) -> Told {
    let backend = Scripted::new(script);
    let candidates = vec![Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) }];
    let outlets = ScriptedOutlets::new(OutletScript::default(), backend.list());
    let engine = Engine::open(candidates, state.path()).unwrap().with_outlets(Arc::new(outlets.clone()));
    let pool = Pool::new(usual, request(), size, Box::new(|| Ok(run_id())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ((), outcomes) = runtime.block_on(async {
        let work = async {
            let outcomes = work(&engine, &pool, &state).await;
            pool.shut();
            outcomes
        };
        tokio::join!(pool.keep(&engine), work)
    });
    Told { backend, outcomes, outlets, state }
}

/// Each way in which a job can narrow its policy, by name.
#[expect(clippy::type_complexity, reason = "a table of names and changes reads best as one")]
const NARROWER: &[(&str, fn(&mut Policy))] = &[
    ("memory", |p| p.limits.memory_bytes = 64 << 20),
    ("cpus", |p| p.limits.cpus = Cpus::from_thousandths(500).unwrap()),
    ("pids", |p| p.limits.pids = 8),
    ("disk", |p| p.limits.disk_bytes = Some(1 << 20)),
    ("files", |p| p.limits.files = 10),
    ("a variable's value", |p| p.environment.set = vec![Variable::new("A", "2").unwrap()]),
    ("a variable that was passed", |p| p.environment.passed = vec![]),
    ("the value of one that was passed", |p| {
        p.environment.passed = vec![Variable::new("B", "3").unwrap()];
    }),
    ("network", |p| p.network.truncate(1)),
    ("no network", |p| p.network.clear()),
    ("methods", |p| p.network[0].methods = Some(vec!["GET".into()])),
    ("hide", |p| p.files.hide = vec![Pattern::new("secret").unwrap()]),
    ("keep", |p| p.files.keep.clear()),
    ("workspace", |p| *p = with_workspace(p.clone())),
    ("require", |p| p.require = [Capability::SeparateKernel].into()),
    ("accepted gaps", |p| p.accept_gaps.clear()),
    ("bytes that leave", |p| p.limits.bytes_out = 1),
    ("requests", |p| p.limits.requests = 1),
    ("connections", |p| p.limits.connections = 1),
    ("hosts", |p| p.limits.hosts = 1),
    ("backend", |p| p.backend = Some(BackendName::Container)),
];

#[test]
fn no_fast_path_drops_the_policy() {
    for (name, narrow) in NARROWER {
        let mut policy = wide();
        narrow(&mut policy);
        let Told { backend, outcomes, .. } = batch(script(), 1, &[policy.clone()]);
        assert_eq!(outcomes[0].end, End::Exited(0), "{name}");
        assert!(backend.opened()[0] == grant(&wide()).sandbox_key(), "{name}: nothing was parked");
        let ran_in = &backend.opened()[backend.executed_in()[0]];
        assert!(*ran_in == grant(&policy).sandbox_key(), "{name}: run in a sandbox of another grant");
        assert!(*ran_in != grant(&wide()).sandbox_key(), "{name}: the key doesn't tell it");
        assert_eq!(outcomes[0].policy, Some(policy_hash(&policy)), "{name}");
        assert_eq!(backend.closed(), backend.opened().len(), "{name}");
    }
}

#[test]
fn what_is_held_outside_of_a_sandbox_is_served_from_the_pool() {
    let held_outside: [fn(&mut Policy); 3] = [
        |p| p.limits.timeout = Duration::from_secs(1),
        |p| p.limits.grace = Duration::from_millis(1),
        |p| p.limits.output_bytes = Some(10),
    ];
    for narrow in held_outside {
        let mut policy = wide();
        narrow(&mut policy);
        let Told { backend, outcomes, .. } = batch(script(), 1, &[policy.clone()]);
        assert_eq!(backend.executed_in(), [0], "the one that was parked before");
        assert_eq!(outcomes[0].policy, Some(policy_hash(&policy)), "the hash is the job's own");
    }
}

#[test]
fn a_deadline_of_a_job_holds_in_a_parked_sandbox() {
    let mut policy = wide();
    policy.limits.timeout = Duration::from_millis(20);
    let Told { backend, outcomes, .. } = batch(Script { ending: None, ..script() }, 1, &[policy]);
    assert_eq!((outcomes[0].end, backend.executed_in()), (End::TimedOut, vec![0]));
}

#[test]
fn a_parked_sandbox_serves_one_job_and_all_are_closed_at_the_end() {
    for size in [1, 3] {
        let jobs = vec![wide(); 7];
        let Told { backend, outcomes, state, .. } = batch(script(), size, &jobs);
        let executed = backend.executed_in();
        assert_eq!(executed, (0..7).collect::<Vec<_>>(), "each in a sandbox of its own");
        assert!(backend.opened().len() <= 7 + size);
        assert_eq!(backend.closed(), backend.opened().len());
        assert_eq!(std::fs::read_dir(state.path().join("runs")).unwrap().count(), 0);
        let runs: BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.run).collect();
        assert_eq!(runs.len(), 7);
    }
}

#[test]
fn a_run_in_a_parked_sandbox_is_recorded_before_its_program_starts() {
    let Told { state, outcomes, .. } = batch(script(), 1, &[wide()]);
    let entries = record::events(state.path(), record::RunFilter::One(outcomes[0].run.clone())).unwrap();
    let events: Vec<_> = entries.map(|entry| entry.unwrap().line.unwrap().event).collect();
    assert_eq!(events, ["task.start", "policy.loaded", "sandbox.opened", "sandbox.closed", "task.end"]);
}

#[test]
fn a_parked_sandbox_is_not_used_when_the_log_was_cut() {
    let first = batch(script(), 1, &[wide()]);
    let cut = |state: &tempfile::TempDir| std::fs::write(state.path().join("audit/log.ndjson"), "").unwrap();
    let Told { backend, outcomes, .. } = batch_in(first.state, script(), wide(), 1, &[wide()], cut);
    assert_eq!(outcomes[0].error.as_ref().unwrap().code, FaultCode::AuditUnavailable);
    assert_eq!(backend.executed_in(), [] as [usize; 0]);
    assert_eq!(backend.closed(), backend.opened().len());
}

#[test]
fn a_parked_sandbox_that_died_is_closed_and_the_job_gets_another() {
    // Whatever is parked first is dead, and so is one more.
    let Told { backend, outcomes, .. } = batch(Script { stillborn: 2, ..script() }, 2, &[wide(), wide()]);
    assert!(outcomes.iter().all(|outcome| outcome.end == End::Exited(0)));
    assert!(backend.executed_in().iter().all(|number| *number >= 2), "{:?}", backend.executed_in());
    assert_eq!(backend.closed(), backend.opened().len());
}

#[test]
fn nothing_that_shows_a_workspace_is_parked() {
    let policy = with_workspace(wide());
    let state = tempfile::tempdir().unwrap();
    let Told { backend, .. } =
        batch_in(state, Script { stillborn: 2, ..script() }, policy.clone(), 2, &[policy], |_| {});
    assert_eq!(
        (backend.executed_in(), backend.opened().len()),
        (vec![0], 1),
        "what it shows is looked up then"
    );
}

#[test]
fn where_nothing_can_be_parked_each_job_says_why() {
    let Told { backend, outcomes, .. } = batch(Script { open_fails: true, ..script() }, 2, &[wide()]);
    assert_eq!(outcomes[0].error.as_ref().unwrap().code, FaultCode::HostError);
    assert_eq!(backend.executed_in(), [] as [usize; 0]);
}

/// A backend whose sandboxes can be renewed for ever.
fn renewable() -> Script {
    Script { renewals: Some(usize::MAX), ..script() }
}

#[test]
fn a_sandbox_that_can_be_renewed_serves_the_next_job_of_the_same_grant() {
    for size in [1, 3] {
        let jobs = vec![wide(); 9];
        let Told { backend, outcomes, state, .. } = batch(renewable(), size, &jobs);
        assert!(outcomes.iter().all(|outcome| outcome.end == End::Exited(0)));
        assert_eq!(backend.executed_in().len(), 9);
        assert!(backend.opened().len() <= size + 1, "{size}: {} opened", backend.opened().len());
        assert!(backend.renewed() >= 9 - 1 - size, "{size}: {} renewed", backend.renewed());
        assert_eq!(backend.closed(), backend.opened().len());
        assert_eq!(std::fs::read_dir(state.path().join("runs")).unwrap().count(), 0);
        let runs: BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.run).collect();
        assert_eq!(runs.len(), 9, "each has an identity of its own");
    }
}

/// Streams of runs that wait for each other before any of them ends.
struct Together(tokio::sync::Barrier);

impl Streams for Together {
    fn accept(&self, _: Output) -> Boxed<'_, std::io::Result<()>> {
        Box::pin(async {
            self.0.wait().await;
            for _ in 0..10 {
                tokio::task::yield_now().await; // so that the pool is full while they run
            }
            Ok(())
        })
    }

    fn has_input(&self) -> bool {
        false
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        Box::pin(async { None })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        Box::pin(std::future::pending())
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(std::future::pending())
    }

    fn dropped(&self) -> [u64; 2] {
        [0, 0]
    }
}

#[test]
fn sandboxes_of_programs_that_end_at_once_are_renewed_and_none_is_closed_to_open_another() {
    const ROUNDS: usize = 10;
    let speaking = Script { output: vec![Output::Stdout(b"on".to_vec())], ..renewable() };
    let state = tempfile::tempdir().unwrap();
    let Told { backend, outcomes, .. } = with_pool(state, speaking, wide(), 2, async |engine, pool, _| {
        let mut outcomes = vec![];
        for _ in 0..ROUNDS {
            let (streams, runs) = (Together(tokio::sync::Barrier::new(2)), [run_id(), run_id()]);
            let [one, other] = runs
                .each_ref()
                .map(|run| engine.run_pooled(pool, run, request(), grant(&wide()), &streams, None));
            outcomes.extend(<[Outcome; 2]>::from(tokio::join!(one, other)));
            tokio::task::yield_now().await;
        }
        outcomes
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.end == End::Exited(0)).count(), 2 * ROUNDS);
    assert!(backend.opened().len() <= 4, "{} opened", backend.opened().len());
    assert_eq!(backend.closed(), backend.opened().len());
}

#[test]
fn a_job_in_a_renewed_sandbox_is_recorded_as_every_other() {
    let Told { state, outcomes, backend, .. } = batch(renewable(), 1, &vec![wide(); 4]);
    assert!(backend.renewed() > 0);
    for outcome in outcomes {
        let entries = record::events(state.path(), record::RunFilter::One(outcome.run)).unwrap();
        let events: Vec<_> = entries.map(|entry| entry.unwrap().line.unwrap().event).collect();
        assert_eq!(events, ["task.start", "policy.loaded", "sandbox.opened", "sandbox.closed", "task.end"]);
    }
}

#[test]
fn no_job_of_another_grant_gets_a_renewed_sandbox() {
    for (name, narrow) in NARROWER {
        let mut narrower = wide();
        narrow(&mut narrower);
        let jobs = [wide(), narrower.clone(), wide()];
        let Told { backend, outcomes, .. } = batch(renewable(), 1, &jobs);
        let ran_in: Vec<_> = backend.executed_in().iter().map(|at| backend.opened()[*at].clone()).collect();
        for (job, ran_in) in jobs.iter().zip(ran_in) {
            assert!(ran_in == grant(job).sandbox_key(), "{name}");
        }
        assert!(outcomes.iter().all(|outcome| outcome.end == End::Exited(0)), "{name}");
        assert_eq!(backend.closed(), backend.opened().len(), "{name}");
    }
}

#[test]
fn a_sandbox_that_cannot_be_renewed_is_closed_and_the_next_job_gets_another() {
    for most in [0, 1] {
        let once = Script { renewals: Some(most), ..script() };
        let Told { backend, outcomes, state, .. } = batch(once, 1, &vec![wide(); 6]);
        assert!(outcomes.iter().all(|outcome| outcome.end == End::Exited(0)));
        let mut served = std::collections::BTreeMap::new();
        for number in backend.executed_in() {
            *served.entry(number).or_insert(0) += 1;
        }
        assert!(served.values().all(|jobs| *jobs <= most + 1), "{served:?}");
        assert_eq!(backend.closed(), backend.opened().len());
        assert_eq!(std::fs::read_dir(state.path().join("runs")).unwrap().count(), 0);
    }
}

#[test]
fn what_did_not_exit_by_itself_is_never_renewed() {
    let mut timed = wide();
    timed.limits.timeout = Duration::from_millis(20);
    for ending in [None, Some(Ending::Signalled(6)), Some(Ending::OutOfMemory), Some(Ending::Lost)] {
        let Told { backend, .. } = batch(Script { ending, ..renewable() }, 1, &vec![timed.clone(); 3]);
        assert_eq!(backend.renewed(), 0, "{ending:?}");
        let executed = backend.executed_in();
        assert_eq!(executed.iter().collect::<BTreeSet<_>>().len(), 3, "{ending:?}");
    }
}

#[test]
fn a_sandbox_whose_files_are_taken_out_is_halted_first() {
    let backend = Scripted::new(renewable());
    let state = tempfile::tempdir().unwrap();
    let candidates = vec![Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) }];
    let outlets = ScriptedOutlets::new(OutletScript::default(), backend.list());
    let engine = Engine::open(candidates, state.path()).unwrap().with_outlets(Arc::new(outlets));
    let pool = Pool::new(wide(), request(), 1, Box::new(|| Ok(run_id())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let work = async {
            let request = Request { collect: true, ..request() };
            engine.run_pooled(&pool, &run_id(), request, grant(&wide()), &Silent, None).await;
            pool.shut();
        };
        tokio::join!(pool.keep(&engine), work)
    });
    let told = backend.told();
    let at = |what: &str| told.iter().position(|line| line == what);
    assert!(at("halt") < at("get") && at("get").is_some(), "{told:?}");
    assert_eq!(at("settle"), None);
}

#[test]
fn what_a_settled_sandbox_counted_is_the_outcomes() {
    let usage = cofferdam_core::outcome::Usage {
        cpu: Duration::from_millis(7),
        memory_peak_bytes: Some(4096),
        processes_peak: Some(2),
    };
    let left = Left { usage, ..Left::default() };
    let Told { outcomes, .. } = batch(Script { left, ..renewable() }, 1, &vec![wide(); 3]);
    assert!(outcomes.iter().all(|outcome| outcome.usage == usage));
}

#[test]
fn a_run_without_a_pool_is_never_settled() {
    let backend = Scripted::new(renewable());
    let state = tempfile::tempdir().unwrap();
    let candidates = vec![Candidate { name: BackendName::Container, backend: Ok(Box::new(backend.clone())) }];
    let outlets = ScriptedOutlets::new(OutletScript::default(), backend.list());
    let engine = Engine::open(candidates, state.path()).unwrap().with_outlets(Arc::new(outlets));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(engine.run(&run_id(), request(), grant(&wide()), &Silent, None));
    let told = ["open outlet", "open", "attach", "record", "exec prog", "cut", "halt", "close"];
    assert_eq!(backend.told()[..told.len()], told);
}

#[test]
fn a_parked_sandbox_has_its_way_out_from_when_it_was_opened_and_records_for_the_run_that_takes_it() {
    let Told { outcomes, outlets, .. } = batch(script(), 1, &vec![wide(); 3]);
    let opened = outlets.opened();
    for outcome in outcomes {
        let of_run = opened.iter().filter(|outlet| outlet.run() == Some(outcome.run.clone()));
        assert_eq!(of_run.map(|outlet| outlet.opened_for.clone()).collect::<Vec<_>>(), [outcome.run]);
    }
}

#[test]
fn a_renewed_sandbox_has_a_way_out_of_its_own_for_each_run() {
    let jobs = vec![wide(); 5];
    let Told { backend, outcomes, outlets, .. } = batch(renewable(), 1, &jobs);
    assert!(backend.renewed() > 0);
    let had: Vec<_> = outlets.opened().iter().filter_map(|outlet| outlet.run()).collect();
    assert_eq!(had.len(), jobs.len(), "none serves two");
    let ran: BTreeSet<_> = outcomes.into_iter().map(|outcome| outcome.run).collect();
    assert_eq!(had.into_iter().collect::<BTreeSet<_>>(), ran);
    let told = backend.told();
    let cuts = told.iter().filter(|line| *line == "cut").count();
    assert!(cuts >= outlets.opened().len(), "each is cut, also one that nobody had: {told:?}");
}

#[test]
fn a_budget_that_a_job_narrows_is_that_of_its_way_out() {
    let mut narrow = wide();
    narrow.limits.requests = 1;
    for jobs in [[wide(), narrow.clone(), wide()], [narrow.clone(), narrow.clone(), narrow]] {
        let Told { outcomes, outlets, .. } = batch(renewable(), 1, &jobs);
        for (outcome, policy) in outcomes.iter().zip(&jobs) {
            let opened = outlets.opened();
            let outlet = opened.iter().find(|outlet| outlet.run().as_ref() == Some(&outcome.run));
            assert_eq!(outlet.unwrap().limits.requests, policy.limits.requests);
        }
    }
}
