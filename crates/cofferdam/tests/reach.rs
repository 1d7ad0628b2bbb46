//! What the suite of every backend says of what leaves, for containers with the product's own ways out.

use std::sync::Arc;

use cofferdam_backends::container::Container;
use cofferdam_core::policy::BackendName;
use cofferdam_egress::outlet::{DeniedNames, Node, Outlets, ProxyProgram, Settings};
use cofferdam_testkit::conformance::toys::Vice;
use cofferdam_testkit::conformance::{self, Needs, Subject};

/// A user that no system gives to anybody.
const PROXY: u32 = 61_235;

fn container() -> Subject {
    let program = ProxyProgram { path: env!("CARGO_BIN_EXE_cofferdam").into(), args: vec!["egress".into()] };
    let node = Node { user: PROXY, ..Node::default() };
    let settings = Settings { program, node, denied_names: DeniedNames::Explain, own_addresses: None };
    let runs = [Needs::Processes, Needs::Python, Needs::Sh];
    Subject::new(BackendName::Container, &runs, |state| {
        Ok(Box::new(Container::for_runs(state.to_owned()).with_outlets()))
    })
    .with_outlets(Arc::new(Outlets::new(settings)))
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
