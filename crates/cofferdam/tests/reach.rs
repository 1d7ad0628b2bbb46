//! What the suite of every backend says of what leaves, with the product's own ways out.

use std::sync::Arc;

use cofferdam_backends::container::Container;
use cofferdam_core::policy::BackendName;
use cofferdam_egress::outlet::{DeniedNames, Node, Outlets, ProxyProgram, Settings};
use cofferdam_testkit::conformance::toys::Vice;
use cofferdam_testkit::conformance::{self, Needs, Subject};

/// A user that no system gives to anybody.
const PROXY: u32 = 61_235;

fn outlets() -> Arc<Outlets> {
    let program = ProxyProgram { path: env!("CARGO_BIN_EXE_cofferdam").into(), args: vec!["egress".into()] };
    let node = Node { user: PROXY, ..Node::default() };
    let settings = Settings { program, node, denied_names: DeniedNames::Explain, own_addresses: None };
    Arc::new(Outlets::new(settings))
}

fn container() -> Subject {
    let runs = [Needs::Processes, Needs::Python, Needs::Sh];
    Subject::new(BackendName::Container, &runs, |state| {
        Ok(Box::new(Container::for_runs(state.to_owned()).with_outlets()))
    })
    .with_outlets(outlets())
}

#[cfg(feature = "wasm")]
fn wasm() -> Subject {
    use cofferdam_backends::wasm::{Wasm, WorkerProgram};
    use cofferdam_testkit::conformance::Absent;
    let make = |state: &std::path::Path| {
        let own =
            WorkerProgram { path: env!("CARGO_BIN_EXE_cofferdam").into(), args: vec![c"wasm-worker".into()] };
        let jails = Container::for_runs(state.to_owned());
        let wasm = Wasm::new(jails, own, cofferdam_testkit::templates::folder()).with_outlets();
        match wasm.no_python() {
            None => Ok(Box::new(wasm) as _),
            Some((why, fix)) => Err(Absent { why, fix, later: false }),
        }
    };
    Subject::new(BackendName::Wasm, &[Needs::Python], make).with_outlets(outlets())
}

#[cfg(feature = "wasm")]
#[test]
fn what_leaves_webassembly_ends_at_its_limits() {
    let claim = "what_leaves_ends_at_its_limits_or_the_rule_is_refused";
    conformance::hold(&wasm(), claim, "reach::what_leaves_webassembly_ends_at_its_limits");
}

#[cfg(feature = "wasm")]
#[test]
fn nothing_leaves_webassembly_without_a_rule() {
    conformance::hold(
        &wasm(),
        "nothing_leaves_without_a_rule",
        "reach::nothing_leaves_webassembly_without_a_rule",
    );
}

#[test]
fn nothing_leaves_without_a_rule() {
    conformance::hold(&container(), "nothing_leaves_without_a_rule", "reach::nothing_leaves_without_a_rule");
}

#[test]
fn a_rule_lets_through_what_it_names_and_nothing_else() {
    let claim = "a_rule_lets_through_what_it_names_or_is_refused";
    conformance::hold(&container(), claim, "reach::a_rule_lets_through_what_it_names_and_nothing_else");
}

#[test]
fn what_leaves_ends_at_its_limits() {
    let claim = "what_leaves_ends_at_its_limits_or_the_rule_is_refused";
    conformance::hold(&container(), claim, "reach::what_leaves_ends_at_its_limits");
}

#[test]
fn backends_that_let_out_more_or_less_are_caught() {
    let says = |vice: Vice| conformance::CAUGHT.iter().find(|(known, ..)| *known == vice).unwrap();
    for vice in [Vice::LetsOut, Vice::ClosesDoors] {
        let (_, claim, says) = says(vice);
        let test = "reach::backends_that_let_out_more_or_less_are_caught";
        conformance::caught(container(), vice, claim, says, test);
    }
}
