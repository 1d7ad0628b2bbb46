//! What leaves a sandbox, seen from the far end: a network of the test's own in which every address answers.

use std::io::{BufRead as _, BufReader};

use cofferdam_testkit::host::processes_with;
use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, Ran, start};
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

/// A policy that names `api.test`, with more lines.
fn policy(product: &Product, more: &str) -> String {
    let rule = "version = 1\nprofile = \"internal\"\n[[network.allow]]\nhost = \"api.test\"\n";
    product.file("policy.toml", format!("{rule}{more}")).to_str().unwrap().to_owned()
}

#[test]
fn a_name_that_no_rule_has_does_not_exist_where_the_policy_says_so() {
    needs_root!();
    let (product, net) = world!(product());
    let asks = "import socket\nfor name in ['api.test', 'other.test']:\n\
                \x20   try: socket.getaddrinfo(name, 80); print(name, 'is')\n\
                \x20   except socket.gaierror as error: print(name, error.errno == socket.EAI_NONAME)\n";
    // Whoever answers for a name tells of the refusal when it is dialled.
    for (says, of_other, denials) in [("nxdomain", "True", 1), ("explain", "is", 0)] {
        let policy = policy(&product, &format!("[dns]\ndenied = \"{says}\"\n"));
        let outcome = outcome(&product, &net, &["--policy", &policy, "-c", asks]);
        let expected = format!("api.test is\nother.test {of_other}\n");
        assert_eq!(outcome["stdout"]["text"], expected, "{says}: {outcome:#}");
        let denied = outcome["denials"].as_array().unwrap();
        assert_eq!(denied.len(), denials, "{says}: {outcome:#}");
        assert!(denied.iter().all(|it| it["host"] == "other.test"), "{says}: {outcome:#}");
        assert!(!net.seen().names().contains(&"other.test"), "{says}: nobody outside was asked");
    }
}

#[test]
fn requests_are_not_in_the_log_where_the_policy_says_so_and_denials_are() {
    needs_root!();
    let (product, net) = world!(product());
    let asks = "curl -sS https://api.test/ok; curl -sS https://other.test/secret; true";
    for (records, lines) in [("true", 1), ("false", 0)] {
        let policy = policy(&product, &format!("[audit]\nrequests = {records}\n"));
        let ran = run(&product, &net, &["--policy", &policy, "--", "sh", "-c", asks]).exits(0);
        assert!(ran.stdout.contains("ok") && ran.stdout.contains("host_not_allowed"), "{ran:?}");
        let log = product.call(["audit", "show", "last"]).exits(0).stdout;
        let of = |event: &str| log.lines().filter(|line| line.contains(event)).count();
        assert_eq!(of("egress.allowed"), lines, "{log}");
        assert!(of("egress.denied") + of("dns.denied") >= 1, "{log}");
        let verified = product.call(["audit", "verify"]).exits(0).stdout;
        assert!(verified.starts_with("ok: "), "{verified}");
    }
}

#[test]
fn a_suggestion_is_a_diff_of_the_policy_with_which_the_run_succeeds() {
    needs_root!();
    let (product, net) = world!(product());
    let file = policy(&product, "");
    let again = || run(&product, &net, &curl(&["--policy", &file], "https://other.test/ok"));
    let _refused = again().exits(22);
    let diff = product.call(["policy", "suggest", "last", "--policy", &file]).exits(0).stdout;
    assert!(diff.starts_with(&format!("--- {file}\n+++ {file}\n@@ ")), "{diff}");
    let added: String = diff
        .lines()
        .skip(3)
        .filter_map(|line| line.strip_prefix('+'))
        .fold(String::new(), |text, line| text + line + "\n");
    let before = std::fs::read_to_string(&file).unwrap();
    assert!(!before.contains("other.test"), "nothing applies it");
    std::fs::write(&file, before + &added).unwrap();
    assert_eq!(again().exits(0).stdout.trim_end(), "ok");
}

/// Sends one request after another, each over a connection of its own, until five in a row have failed.
const SENDS: &str = "
import http.client, socket, time
address = socket.getaddrinfo('api.test', 80, socket.AF_INET)[0][4][0]
failed = 0
while failed < 5:
    connection = http.client.HTTPConnection(address, 80, timeout=5)
    try:
        connection.request('GET', '/ok', headers={'Host': 'api.test'})
        connection.getresponse().read()
        failed = 0
        print('sent', flush=True)
    except (OSError, http.client.HTTPException):
        failed += 1
        print('failed', flush=True)
    connection.close()
    time.sleep(.02)
raise SystemExit(7)";

#[test]
fn a_proxy_that_is_killed_while_a_program_sends_stops_it_and_the_outcome_says_when() {
    for product in [product(), ordinary()] {
        let (product, net) = world!(product);
        let outcome = product.folder().join("outcome.json");
        let accepted = product.accepting();
        let accepted: Vec<_> = accepted.iter().map(String::as_str).collect();
        let told = ["--outcome", outcome.to_str().unwrap(), "--allow", "http://api.test", "-c", SENDS];
        let args = [&["run", "--profile", "internal", "--quiet"], &accepted[..], &told].concat();
        let mut child = start(&mut net.command(&product.command(args)));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.by_ref().take(3).all(|line| line == "sent"), "the positive control");
        assert!(net.seen().requests.len() >= 3);
        let proxy = child_with(child.id(), "egress");
        make_die(proxy);
        assert!(lines.any(|line| line == "failed"));
        let _ = net.seen(); // what arrived before it was killed
        let rest: Vec<_> = lines.collect();
        assert!(rest.len() >= 4 && rest.iter().all(|line| line == "failed"), "{rest:?}");
        let after = net.seen();
        assert!(after.is_nothing(), "{:?} {:?}", after.asked(), after.places());
        assert_eq!(child.wait().unwrap().code(), Some(7), "the run goes on without a way out");
        let outcome: Value = serde_json::from_slice(&std::fs::read(&outcome).unwrap()).unwrap();
        let gaps = outcome["gaps"].as_array().unwrap();
        let gap = gaps.iter().find(|gap| gap["name"] == "egress").unwrap();
        let (_, when) = gap["why"].as_str().unwrap().split_once("was lost at ").unwrap();
        assert!(when > outcome["started"].as_str().unwrap(), "{gap}"); // both are of RFC 3339, in UTC
        let log = product.call(["audit", "verify"]).exits(0).stdout;
        assert!(log.starts_with("ok: "), "{log}");
    }
}

/// The one child of a process with a word among its arguments.
fn child_with(parent: u32, word: &str) -> i32 {
    let is_it = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let its_parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        its_parent == Some(parent) && words.split(|byte| *byte == 0).any(|its| its == word.as_bytes())
    };
    let found: Vec<_> = processes_with(word).into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

fn make_die(pid: i32) {
    let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
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
