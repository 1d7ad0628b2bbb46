//! What a way out adds to a container that sends nothing, in ms: from opening it to the end of `true` and of the way.
//!
//! `cargo run --release -p cofferdam --example reach_cost ROUNDS [held]`, which `cargo xtask bench egress` calls: with
//! `held` another container with a way out is there all the while, as on a host that has a pool or a firewall. Prints
//! one JSON object. The proxy is never started, as for any run that sends nothing.

#![expect(clippy::unwrap_used, reason = "a measurement that can't go on should say where")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cofferdam_backends::container::Container;
use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::{Backend, Boxed, Exec, Running, Session};
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{Outlet, Outlets as _, Sink};
use cofferdam_core::policy::{BackendName, Ceiling, Layer, Policy, PolicyHash, Profile, decide};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_egress::outlet::{DeniedNames, Node, Outlets, ProxyProgram, Settings};

fn main() {
    let mut words = std::env::args().skip(1);
    let rounds: u64 = words.next().and_then(|word| word.parse().ok()).expect("name the number of rounds");
    let is_held = words.next().is_some_and(|word| word == "held");
    let kept = tempfile::tempdir().unwrap();
    let plain = Container::for_runs(kept.path().to_owned());
    let reaching = Container::for_runs(kept.path().to_owned()).with_outlets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = is_held.then(|| runtime.block_on(opened(&reaching, 0)));
    let [mut without, mut with] = [const { vec![] }; 2];
    for round in 0..rounds {
        let mut both = [(&plain, &mut without), (&reaching, &mut with)];
        both.rotate_left((round % 2) as usize);
        for (container, took) in both {
            took.push(runtime.block_on(once(container, round)));
        }
    }
    println!("{}", serde_json::json!({ "without_ms": without, "with_ms": with }));
    if let Some(Opened { mut session, running, .. }) = held {
        drop(running);
        runtime.block_on(async { (session.halt().await.unwrap(), session.close().await.unwrap()) });
    }
}

/// How long one container takes, in ms.
async fn once(container: &Container, round: u64) -> f64 {
    let began = Instant::now();
    let Opened { mut session, running, outlet } = opened(container, round).await;
    running.wait().await.unwrap();
    outlet.cut().await;
    let took = began.elapsed();
    session.halt().await.unwrap();
    drop(running);
    session.close().await.unwrap();
    took.as_secs_f64() * 1000.0
}

struct Opened {
    session: Box<dyn Session>,
    running: Box<dyn Running>,
    outlet: Arc<dyn Outlet>,
}

/// A container in which a program was started.
async fn opened(container: &Container, round: u64) -> Opened {
    let layer = Layer {
        profile: Some(Profile::Internal),
        backend: Some(Some(BackendName::Container)),
        ..Layer::default()
    };
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    let program = Program::Command(Argv::new(c"true".into(), vec![]));
    let request = Request {
        program: program.clone(),
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: false,
    };
    let grant = decide(&policy, PolicyHash("00".into()), &request).unwrap();
    let run = RunId::new(round, cofferdam_sys::fd::random_bytes().unwrap());
    let outlet = ways_out().open(&run, &grant).unwrap();
    let mut session = container.open(&run, grant, Arc::clone(&outlet)).await.unwrap();
    outlet.record(&run, Arc::new(Nothing), None);
    let exec =
        Exec { program, environment: vec![], delivered: Deliveries::default(), terminal: None, stdin: false };
    let running = session.exec(exec).await.unwrap();
    Opened { session, running, outlet }
}

/// Ways out as a `run` has them: made for it, and so with a thread of their own once there are doors.
fn ways_out() -> Outlets {
    Outlets::new(Settings {
        program: ProxyProgram { path: "/nonexistent".into(), args: vec![] },
        node: Node::default(),
        denied_names: DeniedNames::Explain,
        own_addresses: None,
    })
}

/// A run that sends nothing has nothing to record.
struct Nothing;

impl Sink for Nothing {
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>> {
        panic!("nothing was sent, and this is to be recorded: {event:?}")
    }
}
