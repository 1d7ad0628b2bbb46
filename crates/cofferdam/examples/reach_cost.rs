//! What a way out adds to a container that sends nothing, in microseconds: from opening it to the end of `true`.
//!
//! `cargo run --release -p cofferdam-backends --no-default-features --features container --example reach_cost [held]`:
//! with `held` another container with a capture is there all the while, as on a host that has a pool or a firewall.

#![expect(clippy::unwrap_used, reason = "a measurement that can't go on should say where")]

use std::collections::BTreeMap;
use std::time::Instant;

use cofferdam_backends::container::Container;
use cofferdam_core::backend::{Backend, Exec, Running, Session};
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Outlets as _;
use cofferdam_core::policy::{BackendName, Ceiling, Layer, Policy, PolicyHash, Profile, decide};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_testkit::outlets::ScriptedOutlets;

const ROUNDS: usize = 100;

fn main() {
    let kept = tempfile::tempdir().unwrap();
    let plain = Container::for_runs(kept.path().to_owned());
    let reaching = Container::for_runs(kept.path().to_owned()).with_outlets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = std::env::args().nth(1).is_some_and(|word| word == "held");
    let held = held.then(|| runtime.block_on(opened(&reaching, 0)));
    let [mut without, mut with] = [const { vec![] }; 2];
    for round in 0..ROUNDS {
        for (container, took) in [(&plain, &mut without), (&reaching, &mut with)] {
            took.push(runtime.block_on(once(container, round as u64)));
        }
    }
    for (name, mut took) in [("without", without), ("with", with)] {
        took.sort_unstable();
        println!("{name:<8} p50 {:>6}  p10 {:>6} us", took[ROUNDS / 2], took[ROUNDS / 10]);
    }
    if let Some((mut session, running)) = held {
        drop(running);
        runtime.block_on(async { (session.halt().await.unwrap(), session.close().await.unwrap()) });
    }
}

async fn once(container: &Container, round: u64) -> u128 {
    let began = Instant::now();
    let (mut session, running) = opened(container, round).await;
    running.wait().await.unwrap();
    let took = began.elapsed().as_micros();
    session.halt().await.unwrap();
    drop(running);
    session.close().await.unwrap();
    took
}

/// A container in which a program was started.
async fn opened(container: &Container, round: u64) -> (Box<dyn Session>, Box<dyn Running>) {
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
    let outlets = ScriptedOutlets::default();
    let outlet = outlets.open(&run, &grant).unwrap();
    let mut session = container.open(&run, grant, outlet).await.unwrap();
    let exec = Exec { program, environment: vec![], terminal: None, stdin: false };
    let running = session.exec(exec).await.unwrap();
    (session, running)
}
