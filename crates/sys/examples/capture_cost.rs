//! What a capture adds to the start of a sandbox, and which part of it how much, in microseconds.
//!
//! `cargo run --release -p cofferdam-sys --example capture_cost [held]`: with `held` another sandbox with a
//! capture is there all the while, as on a host that has a pool or a firewall of its own.

#![expect(clippy::unwrap_used, reason = "a measurement that can't go on should say where")]

use std::fs::File;
use std::time::{Duration, Instant};

use cofferdam_sys::capture::{self, Capture};
use cofferdam_sys::launch::{Ids, Launch, Launched, Program, Step};
use cofferdam_sys::process::{effective_group, effective_user};

const ROUNDS: usize = 200;

/// Between two sandboxes: the kernel takes a network namespace down in the background, and holds locks.
const PAUSE: Duration = Duration::from_millis(100);

fn main() {
    let capture = Capture::new(&capture::probe().unwrap(), &[]);
    let held = std::env::args().nth(1).is_some_and(|word| word == "held").then(|| {
        let launched = launch(all_steps(&capture)).spawn().unwrap();
        let table = capture.load(&launched).unwrap();
        let doors = capture.doors(&launched, table).unwrap();
        (launched, doors)
    });
    let [mut without, mut with, mut cpu_without, mut cpu_with] = [const { vec![] }; 4];
    let mut parts = vec![vec![]; PARTS.len()];
    for _ in 0..ROUNDS {
        let (took, cpu) = start(None);
        without.push(took.as_micros());
        cpu_without.push(cpu.as_micros());
        let (took, cpu) = start(Some(&capture));
        with.push(took.as_micros());
        cpu_with.push(cpu.as_micros());
        for (all, part) in parts.iter_mut().zip(start_in_parts(&capture)) {
            all.push(part.as_micros());
        }
    }
    println!("{} sandboxes of each kind, {}", ROUNDS, if held.is_some() { "one held" } else { "none held" });
    show("start without", without);
    show("start with", with);
    show("cpu without", cpu_without);
    show("cpu with", cpu_with);
    PARTS.iter().zip(parts).for_each(|(name, part)| show(name, part));
}

/// As [`start_in_parts`] has them. Each is told to begin and says when it is done; the first does nothing, which
/// is what telling and saying cost, and is in each of the others too.
const PARTS: [&str; 5] = ["(nothing)", "loopback up", "routes", "table", "sockets"];

fn show(name: &str, mut all: Vec<u128>) {
    all.sort_unstable();
    let [half, most] = [50, 95].map(|percent| all[all.len() * percent / 100]);
    println!("{name:<14} p50 {half:>5}  p95 {most:>5}  max {:>6} us", all[all.len() - 1]);
}

/// From the clone to the end of the steps, and the processor time of the child till then, which tells more where
/// others are at work.
fn start(capture: Option<&Capture>) -> (Duration, Duration) {
    let mut steps = capture.map_or(vec![Step::Loopback], all_steps);
    steps.extend([MARK(), Step::Await]);
    let began = Instant::now();
    let mut launched = launch(steps).spawn().unwrap();
    let kept = capture.map(|capture| {
        let table = capture.load(&launched).unwrap();
        capture.doors(&launched, table).unwrap()
    });
    at_the_mark(&launched);
    let took = began.elapsed();
    launched.kill().unwrap();
    let cpu = launched.reap().unwrap().cpu;
    drop((launched, kept));
    std::thread::sleep(PAUSE);
    (took, cpu)
}

fn all_steps(capture: &Capture) -> Vec<Step> {
    [capture.first_steps(), capture.steps()].concat()
}

/// How long each part takes from its being told to begin; the table, beside which a launch goes on, by itself.
fn start_in_parts(capture: &Capture) -> [Duration; PARTS.len()] {
    let mut routes = capture.steps();
    let sockets = routes.split_off(1);
    let parts = [vec![], vec![Step::Loopback], routes, sockets];
    let handed_over = parts.each_ref().map(|part| part.iter().filter(|step| hands_over(step)).count());
    let steps = parts.into_iter().flat_map(|part| [vec![Step::Await], part, vec![MARK()]].concat());
    let first = capture.first_steps().into_iter().chain([MARK()]);
    let launched = launch(first.chain(steps).collect()).spawn().unwrap();
    let began = Instant::now();
    let table = capture.load(&launched).unwrap();
    let loading = began.elapsed();
    at_the_mark(&launched);
    let mut kept = vec![];
    let [nothing, loopback, routes, sockets] = handed_over.map(|count| {
        let began = Instant::now();
        launched.go_on().unwrap();
        kept.extend((0..count).map(|_| launched.handed_over().unwrap()));
        at_the_mark(&launched);
        began.elapsed()
    });
    drop((launched, kept, table));
    std::thread::sleep(PAUSE);
    [nothing, loopback, routes, loading, sockets]
}

fn hands_over(step: &Step) -> bool {
    matches!(step, Step::Door(_))
}

/// Hands something over, so that it is seen when the steps come by.
const MARK: fn() -> Step = || Step::HandOver { path: c".".into() };

fn at_the_mark(launched: &Launched) {
    launched.handed_over().unwrap();
}

fn launch(steps: Vec<Step>) -> Launch {
    let (user, group) = (effective_user(), effective_group());
    Launch {
        joins: vec![],
        born_in: None,
        ids: Ids { inside: 1000, outside: user, group_outside: group, root_outside: None },
        mounts: vec![],
        steps,
        cores: vec![],
        rlimits: vec![],
        landlock: None,
        seccomp: None,
        program: Program::Open(File::open("/bin/sleep").unwrap().into()),
        argv: vec![c"sleep".into(), c"3600".into()],
        envp: vec![],
        fds: vec![],
    }
}
