//! Users of Redis, against a real one: what a run may do with its own, and that nobody can do anything with it
//! afterwards.

use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, processes_with};
use cofferdam_testkit::product::{Product, finish, start, wait};
use cofferdam_testkit::servers::redis::Redis;
use serde_json::json;

use crate::operator::{Operator, ROOT, stdout};
use crate::{ordinary, product};

/// The credential that is asked for.
const READER: &str = "cache=redis.main:keys=orders:*,commands=get";

/// Prints what a run holds, and does what it may.
const USE: &str =
    "echo $REDIS_URL; r() { redis-cli --no-auth-warning -u $REDIS_URL \"$@\"; }; r get orders:1";

/// Both users' products, each with a server.
fn worlds() -> Option<[(Operator, Redis); 2]> {
    let world = |product: Product| {
        let server = Redis::start()?;
        let issuers = format!(
            "[redis.main]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             keys = [\"orders:*\", \"prices:*\"]\ncommands = [\"get\", \"set\"]\nmax_ttl = \"15m\"\n",
            server.port()
        );
        Some((Operator::new(product, &server.root(), &issuers), server))
    };
    Some([world(product())?, world(ordinary())?])
}

macro_rules! worlds {
    () => {
        match worlds() {
            Some(worlds) => worlds,
            None => cofferdam_testkit::skip!("there is no redis-server with its redis-cli"),
        }
    };
}

/// The user and the password in what a run printed.
fn kept(said: &str) -> (&str, &str) {
    let url = said.lines().next().unwrap().strip_prefix("redis://").unwrap();
    let (user, password) = url.split_once('@').unwrap().0.split_once(':').unwrap();
    assert!(user.starts_with("cofferdam_") && password.len() == 32, "{said}");
    (user, password)
}

#[test]
fn a_run_reads_its_keys_and_its_user_is_dead_when_it_ends() {
    for (operator, server) in worlds!() {
        let script = format!("{USE}; r get secrets:1; r set orders:1 x; r keys '*'; true");
        let outcome = operator.run(READER, &script);
        let said = stdout(&outcome);
        let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.get(1), Some(&"tea"), "{outcome}");
        assert!(
            !said.contains("hush") && said.matches("NOPERM").count() == 3,
            "the server refuses: {outcome}"
        );
        assert_eq!(server.ask(&["get", "orders:1"]).stdout, "tea\n");
        let (user, password) = kept(said);
        assert!(!server.lets_in(user, password), "it is kept, and of no use");
        assert!(server.minted().is_empty());
        let lease = &outcome["leases"][0];
        assert_eq!(
            (&lease["state"], &lease["verified"]),
            (&json!("dead"), &json!("the server refused its login"))
        );
        assert_eq!(lease["scope"], json!({"commands": ["get"], "keys": ["orders:*"]}));
        let log = operator.audit();
        assert!(log.contains("lease.minted") && log.contains("lease.revoked"), "{log}");
        assert!(!log.contains(password), "the log has a fingerprint and no value");
    }
}

#[test]
fn a_killed_cofferdam_leaves_no_user_alive() {
    for (operator, server) in worlds!() {
        let run = start(&mut operator.command(READER, "sleep 600"));
        assert!(eventually(Duration::from_secs(20), || server.minted().len() == 1));
        drop(run); // which kills it
        assert!(eventually(Duration::from_secs(20), || server.minted().is_empty()), "by the broker");
    }
}

#[test]
fn what_a_killed_broker_left_is_revoked_by_the_next_command() {
    for (operator, server) in worlds!() {
        let run = start(&mut operator.command(READER, "sleep 3"));
        assert!(eventually(Duration::from_secs(20), || server.minted().len() == 1));
        let broker = processes_with(&format!("{} broker", operator.product.program().display()));
        assert_eq!(broker.len(), 1);
        assert!(Command::new("kill").args(["-9", &broker[0].to_string()]).status().unwrap().success());
        let outcome = wait(run, Instant::now()).json();
        assert_eq!(outcome["leases"][0]["state"], "unknown", "{outcome}");
        let next = finish(operator.command("", "true"));
        assert!(next.stderr.contains("revoked the credential `cache`"), "{next:?}");
        assert!(server.minted().is_empty());
    }
}

#[test]
fn a_key_or_a_command_beyond_the_ceiling_is_refused_and_nothing_is_minted() {
    for (operator, server) in worlds!() {
        for (cred, says) in [
            ("cache=redis.main:keys=orders:*", "doesn't say its `commands`"),
            ("cache=redis.main:keys=secrets:*,commands=get", "may not give `keys` of `secrets:*`"),
            ("cache=redis.main:keys=orders:*,commands=get,flushall", "may not give `commands` of `flushall`"),
        ] {
            operator.refuses(cred, "credential_denied", says);
            assert!(server.minted().is_empty());
        }
    }
}
