//! `credential list`, `test` and `revoke`, and what `doctor` says of issuers, against a real PostgreSQL and a real Redis.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, processes_with};
use cofferdam_testkit::product::{Product, Ran, start, wait};
use cofferdam_testkit::servers::postgres::{Server, programs};
use cofferdam_testkit::servers::redis::Redis;
use serde_json::{Value, json};

use crate::operator::Operator;
use crate::{ordinary, product};

/// The credential that is asked for.
const READERS: &str = "db=postgres.main:template=readers,database=shop";

/// A product whose operator has two issuers, and their servers.
struct World {
    operator: Operator,
    postgres: Server,
    redis: Redis,
}

impl World {
    /// One whose roots are as the servers have them, after `change` was done to each.
    fn new(product: Product, change: impl Fn(String) -> String) -> Option<World> {
        let (postgres, redis) = (Server::with_passwords(&programs()?), Redis::start()?);
        let root = change(postgres.with_a_shop());
        let issuers = format!(
            "[postgres.main]\nroot = {{ env = \"{}\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             templates = [\"readers\"]\ndatabases = [\"shop\"]\nmax_ttl = \"15m\"\n\
             [redis.main]\nroot = {{ command = [\"echo\", \"{}\"] }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             keys = [\"orders:*\"]\ncommands = [\"get\"]\nmax_ttl = \"15m\"\n",
            crate::operator::ROOT,
            postgres.port(),
            change(redis.root()),
            redis.port()
        );
        Some(World { operator: Operator::new(product, &root, &issuers), postgres, redis })
    }

    /// The leases that may live, as a program reads them.
    fn listed(&self) -> Vec<Value> {
        self.credential(&["list", "--json"]).exits(0).json()["leases"].as_array().unwrap().clone()
    }

    /// Has a run and its broker killed, so that its credential is left. Gives the run's id.
    fn leave_one(&self) -> String {
        let run = start(&mut self.operator.command(READERS, "sleep 600"));
        assert!(eventually(Duration::from_secs(20), || self.listed().len() == 1 && self.minted() == 1));
        kill_the_broker_of(run.id());
        drop(run); // which kills it
        let left = || self.listed().iter().all(|lease| lease["held"] == false);
        assert!(eventually(Duration::from_secs(10), left));
        assert_eq!(self.minted(), 1, "nobody has revoked it yet");
        self.listed()[0]["run"].as_str().unwrap().to_owned()
    }

    /// How many roles there are that were minted.
    fn minted(&self) -> usize {
        self.postgres.minted().len()
    }

    /// The file of issuers.
    fn issuers(&self) -> PathBuf {
        self.operator.product.folder().join("home/.config/cofferdam/issuers.toml")
    }

    fn call(&self, words: &[&str]) -> Ran {
        self.operator.call(words)
    }

    fn credential(&self, words: &[&str]) -> Ran {
        self.call(&[&["credential"], words].concat())
    }
}

/// Kills the broker that a run has started, and no other.
fn kill_the_broker_of(run: u32) {
    let parent = run.to_string();
    let is_its = |broker: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{broker}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&parent))
    };
    let brokers = || -> Vec<i32> { processes_with(" broker").into_iter().filter(is_its).collect() };
    let [broker] = brokers()[..] else { panic!("a run has one broker") };
    assert!(Command::new("kill").args(["-KILL", &broker.to_string()]).status().unwrap().success());
    assert!(eventually(Duration::from_secs(10), || brokers().is_empty()));
}

/// Both users' worlds, or the end of the test with the reason.
macro_rules! worlds {
    ($change:expr) => {{
        let worlds = [product(), ordinary()].map(|product| World::new(product, $change));
        match worlds {
            [Some(one), Some(other)] => [one, other],
            _ => cofferdam_testkit::skip!("there is no PostgreSQL with its server, or no redis-server"),
        }
    }};
    () => {
        worlds!(|root| root)
    };
}

#[test]
fn what_a_killed_broker_left_is_listed_until_the_next_command_has_revoked_it() {
    for world in worlds!() {
        let none = world.credential(&["list"]).exits(0).stdout;
        assert!(none.starts_with("no credential may live"), "{none}");
        let run = world.leave_one();
        let lease = &world.listed()[0];
        assert_eq!((&lease["name"], &lease["issuer"]), (&json!("db"), &json!("postgres.main")), "{lease}");
        assert_eq!(lease["scope"], json!({"database": ["shop"], "template": ["readers"]}));
        assert!(lease["minted"].as_str() < lease["expires"].as_str(), "{lease}");
        let said = world.credential(&["list"]).exits(0).stdout;
        assert!(
            said.contains(&run) && said.contains("left by a killed run: the next command revokes it"),
            "{said}"
        );
        let next = world.call(&["gc"]).exits(0).stdout;
        assert!(next.contains("revoked the credential `db`") && next.contains("refused its login"), "{next}");
        assert!(world.minted() == 0 && world.listed().is_empty());
        let log = world.call(&["audit", "show", &run]).exits(0).stdout;
        assert!(log.contains("lease.orphaned") && log.contains("state=dead"), "{log}");
        let _ = world.call(&["audit", "verify"]).exits(0);
    }
}

#[test]
fn what_is_revoked_of_a_run_that_lives_on_without_its_broker_is_in_its_part_of_the_log() {
    for world in worlds!() {
        let began = Instant::now();
        let run = start(&mut world.operator.command(READERS, "sleep 5"));
        assert!(eventually(Duration::from_secs(20), || world.minted() == 1));
        kill_the_broker_of(run.id());
        let swept = world.call(&["gc"]).exits(0).stdout;
        assert!(swept.contains("revoked the credential `db`") && world.minted() == 0, "{swept}");
        let outcome = wait(run, began).json();
        assert_eq!(outcome["end"], "exited", "{outcome}");
        let log = world.call(&["audit", "show", outcome["run"].as_str().unwrap()]).exits(0).stdout;
        assert!(log.contains("lease.orphaned") && log.contains("task.end"), "{log}");
        let _ = world.call(&["audit", "verify"]).exits(0);
    }
}

#[test]
fn what_a_run_left_is_revoked_at_once_and_seen_dead() {
    for world in worlds!() {
        let run = world.leave_one();
        let other = world.credential(&["revoke", &run, "cache"]);
        assert!(other.code == 125 && other.stderr.contains("it has `db`"), "{other:?}");
        assert_eq!(world.minted(), 1);
        let revoked = world.credential(&["revoke", &run, "db"]).exits(0).stdout;
        assert!(revoked.contains("revoked the credential `db`"), "{revoked}");
        assert!(revoked.contains("the server refused its login"), "{revoked}");
        assert!(world.minted() == 0 && world.listed().is_empty());
        let log = world.call(&["audit", "show", &run]).exits(0).stdout;
        assert!(log.contains("lease.orphaned"), "{log}");
        let again = world.credential(&["revoke", "last"]).exits(0).stdout;
        assert!(again.contains(&run) && again.contains("holds nothing that may live"), "{again}");
    }
}

#[test]
fn what_a_run_holds_that_lives_is_not_revoked_under_it() {
    for world in worlds!() {
        let run = start(&mut world.operator.command(READERS, "sleep 600"));
        assert!(eventually(Duration::from_secs(20), || world.minted() == 1));
        let lease = &world.listed()[0];
        assert_eq!(lease["held"], true, "{lease}");
        let said = world.credential(&["list"]).exits(0).stdout;
        assert!(said.contains("held by a run that lives"), "{said}");
        for named in [lease["run"].as_str().unwrap(), "last"] {
            let refused = world.credential(&["revoke", named]).exits(1).stdout;
            assert!(refused.contains("which lives: end that run, which revokes it"), "{refused}");
        }
        assert_eq!(world.minted(), 1, "a positive control: it is there");
        drop(run);
        assert!(eventually(Duration::from_secs(20), || world.minted() == 0), "by its broker");
    }
}

#[test]
fn each_issuer_is_seen_to_mint_what_works_and_dies_and_what_public_may_is_said() {
    for world in worlds!() {
        let said = world.credential(&["test"]).exits(0).stdout;
        for issuer in ["postgres.main", "redis.main"] {
            let line = said.lines().find(|line| line.starts_with(issuer)).unwrap_or_else(|| panic!("{said}"));
            assert!(line.contains("minted in") && line.contains("works, revoked and dead after"), "{line}");
            assert!(line.ends_with("the server refused its login"), "{line}");
        }
        assert!(said.contains("can connect to postgres, template1 too, since PUBLIC may"), "{said}");
        assert!(said.contains("temporary tables in shop, since PUBLIC may"), "{said}");
        assert!(world.minted() == 0 && world.redis.minted().is_empty() && world.listed().is_empty());
        let minted = world.postgres.log();
        assert!(minted.contains("CREATE ROLE") && minted.contains("DROP ROLE"), "it was there meanwhile");
        // What it says ends it.
        for statement in said.lines().filter_map(|line| Some(&line[line.find("REVOKE ")?..])) {
            let statement = statement.split(';').next().unwrap();
            assert_eq!(world.postgres.ask("postgres", statement).code, 0, "{statement}");
        }
        let said = world.credential(&["test", "postgres.main"]).exits(0).stdout;
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn an_issuer_that_fails_says_why_and_what_to_do_and_the_others_are_tried_all_the_same() {
    for world in worlds!(|root: String| root.replace("the-roots-own@127.0.0.1", "hush-hush@127.0.0.1")) {
        let failed = world.credential(&["test"]).exits(1).stdout;
        assert_eq!(failed.matches("FAILED").count(), 2, "{failed}");
        assert_eq!(failed.matches("to mend it: ").count(), 2, "{failed}");
        assert!(
            failed.contains("password authentication failed") && failed.contains("WRONGPASS"),
            "{failed}"
        );
        assert!(!failed.contains("hush-hush"), "{failed}");
        assert!(world.listed().is_empty());
        let unknown = world.credential(&["test", "redis.other"]);
        assert!(
            unknown.code == 125 && unknown.stderr.contains("no issuer is called `redis.other`"),
            "{unknown:?}"
        );
        assert!(unknown.stderr.contains("postgres.main, redis.main"), "{unknown:?}");
    }
}

#[test]
fn doctor_names_issuers_and_a_file_of_them_that_others_can_read_and_tries_them_where_it_is_asked_to() {
    for world in worlds!() {
        let found = |words: &[&str]| world.call(words).exits(0).json()["credentials"].clone();
        let plain = found(&["doctor", "--json"]);
        assert_eq!(plain["trouble"], Value::Null, "{plain}");
        let names: Vec<_> =
            plain["issuers"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["postgres.main", "redis.main"]);
        for issuer in plain["issuers"].as_array().unwrap() {
            assert_eq!((&issuer["trouble"], &issuer["tried"]), (&Value::Null, &Value::Null), "{issuer}");
        }
        assert!(!world.operator.product.state().join("leases").exists(), "no broker was started");
        let tried = found(&["doctor", "--json", "--issuers"]);
        for issuer in tried["issuers"].as_array().unwrap() {
            assert_eq!(issuer["tried"]["passed"], true, "{issuer}");
        }
        assert!(world.minted() == 0 && world.listed().is_empty());
        std::fs::set_permissions(world.issuers(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let readable = found(&["doctor", "--json"]);
        let why = readable["trouble"]["why"].as_str().unwrap();
        assert!(why.contains("can be read or written by others"), "{readable}");
        assert!(readable["trouble"]["fix"].as_str().unwrap().contains("chmod 600"), "{readable}");
        let page = world.call(&["doctor"]).exits(0).stdout;
        assert!(page.contains("Credentials, and who mints them") && page.contains("chmod 600"), "{page}");
    }
}
