//! What leaves a sandbox, seen from the far end: a network of the test's own in which every address answers.

use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, Ran};
use serde_json::{Value, json};

use crate::{needs_root, ordinary, product};

/// A product in such a network; none where this host can't have one.
fn in_the_world(product: Product) -> Option<(Product, Net)> {
    let net = Net::start().ok()?;
    net.settle(&product);
    Some((product, net))
}

/// The product in such a network, or the end of the test with the reason.
macro_rules! world {
    ($product:expr) => {
        match in_the_world($product) {
            Some(both) => both,
            None => cofferdam_testkit::skip!("this host gives a test no network of its own"),
        }
    };
}

/// `run` under profile `internal` in the network.
fn run(product: &Product, net: &Net, args: &[&str]) -> Ran {
    net.run(&product.command(["run", "--profile", "internal"].iter().chain(args)))
}

/// The same with `--json`.
fn outcome(product: &Product, net: &Net, args: &[&str]) -> Value {
    run(product, net, &[&["--json"], args].concat()).json()
}

const CURL: [&str; 4] = ["curl", "-sS", "--fail-with-body", "--max-time"];

/// A command of curl's with its address.
fn curl<'a>(options: &[&'a str], url: &'a str) -> Vec<&'a str> {
    [options, &["--"], &CURL, &["20", url]].concat()
}

#[test]
fn a_rule_lets_out_what_it_names_and_the_rest_is_refused_with_the_reason() {
    needs_root!();
    let (product, net) = world!(product());
    for (rule, url) in [("http://api.test", "http://api.test/ok"), ("api.test", "https://api.test/ok")] {
        let ran = run(&product, &net, &curl(&["--allow", rule], url)).exits(0);
        assert_eq!(ran.stdout.trim_end(), "ok", "{ran:?}");
        assert_eq!(net.seen().asked(), ["GET api.test /ok"], "{url}");
        let other = url.replace("api", "other");
        let ran = run(&product, &net, &curl(&["--allow", rule], &other)).exits(22);
        let problem: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(problem["code"], "host_not_allowed", "{ran:?}");
        assert!(net.seen().is_nothing(), "{other}: not one packet, and no question");
    }
}

#[test]
fn denials_are_in_the_outcome_in_the_log_and_among_the_suggestions() {
    needs_root!();
    let (product, net) = world!(product());
    let outcome = outcome(&product, &net, &curl(&["--allow", "api.test"], "https://other.test/ok"));
    assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(22)));
    let denials = outcome["denials"].as_array().unwrap();
    assert!(
        denials.iter().any(|it| it["code"] == "host_not_allowed" && it["host"] == "other.test"),
        "{outcome}"
    );
    let log = product.call(["audit", "show", "last"]).exits(0).stdout;
    assert!(log.contains("egress.denied") || log.contains("dns.denied"), "{log}");
    let suggested = product.call(["policy", "suggest", "last"]).exits(0).stdout;
    assert!(suggested.contains("+--allow ") && suggested.contains("other.test"), "{suggested}");
    let verified = product.call(["audit", "verify"]).exits(0).stdout;
    assert!(verified.starts_with("ok: "), "{verified}");
}

#[test]
fn without_a_rule_nothing_leaves_and_the_reason_can_be_read() {
    needs_root!();
    let (product, net) = world!(product());
    let ran = run(&product, &net, &curl(&[], "http://api.test/ok")).exits(22);
    assert!(ran.stdout.contains("host_not_allowed"), "{ran:?}");
    assert!(net.seen().is_nothing());
}

#[test]
fn what_went_out_and_came_in_is_counted_and_recorded_before_it_goes() {
    needs_root!();
    let (product, net) = world!(product());
    let outcome = outcome(&product, &net, &curl(&["--allow", "http://api.test"], "http://api.test/ok"));
    assert!(
        outcome["usage"]["bytes_out"].as_u64() > Some(0) && outcome["usage"]["bytes_in"].as_u64() > Some(0)
    );
    assert!(outcome["enforced"].as_array().unwrap().contains(&json!("egress-http")), "{outcome}");
    let log = product.call(["audit", "show", "last"]).exits(0).stdout;
    assert!(log.contains("egress.allowed") && log.contains("host=api.test"), "{log}");
}

#[test]
fn refused_datagrams_are_counted() {
    needs_root!();
    let (product, net) = world!(product());
    let code = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(3):
    try: s.sendto(b'x', ('203.0.113.10', 123))
    except OSError: pass
try: socket.create_connection(('203.0.113.10', 9), 5).recv(1)
except OSError: pass";
    let outcome = outcome(&product, &net, &["-c", code]);
    assert_eq!(outcome["usage"]["udp_refused"], 3, "{outcome}");
    assert!(net.seen().is_nothing());
}

#[test]
fn an_ordinary_user_has_the_same_ways_out() {
    let (product, net) = world!(ordinary());
    let accepted = product.accepting();
    let accepted: Vec<_> = accepted.iter().map(String::as_str).collect();
    let rule = [&accepted[..], &["--allow", "api.test"]].concat();
    let ran = run(&product, &net, &curl(&rule, "https://api.test/ok")).exits(0);
    assert_eq!(ran.stdout.trim_end(), "ok", "{ran:?}");
    let ran = run(&product, &net, &curl(&rule, "https://evil.test/ok")).exits(22);
    assert!(ran.stdout.contains("host_not_allowed"), "{ran:?}");
    assert_eq!(net.seen().names(), ["api.test"]);
}

#[test]
fn policies_are_explained_by_the_rules_that_runs_are_judged_by() {
    let product = product();
    let file =
        product.file("p.toml", "version = 1\n[[network.allow]]\nhost = \"api.test\"\nmethods = [\"GET\"]\n");
    let explain = |args: &[&str]| {
        let named = ["policy", "explain", "--policy", file.to_str().unwrap()];
        product.call(named.iter().chain(args))
    };
    let yes = explain(&["api.test", "GET", "/x"]).exits(0);
    assert!(yes.stdout.contains("allowed by `GET api.test`") && yes.stdout.contains("any path"), "{yes:?}");
    let no = explain(&["api.test", "POST", "/x"]).exits(1);
    assert!(no.stdout.contains("method_not_allowed"), "{no:?}");
    let no = explain(&["evil.test", "--allow", "tcp://db.test:5432"]).exits(1);
    assert!(no.stdout.contains("--allow evil.test") && no.stdout.contains("`tcp://db.test:5432`"), "{no:?}");
    let bad = product.call(["run", "--allow", "*", "--", "true"]).exits(125);
    assert!(bad.stderr.contains("*.example.com"), "{bad:?}");
}
