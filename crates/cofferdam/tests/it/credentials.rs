//! Credentials, against a real PostgreSQL: what a run may do with its own, and that nobody can do anything with it
//! afterwards. Whether it is dead is asked of the server by somebody who kept it.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, processes_with};
use cofferdam_testkit::product::{Product, Ran, finish, start, wait};
use serde_json::{Value, json};

use crate::{ordinary, product};
use cofferdam_testkit::servers::postgres::{Server, programs};

/// The credential that is asked for.
const READERS: &str = "db=postgres.main:template=readers,database=shop";

/// The variable that has the root.
const ROOT: &str = "COFFERDAM_TEST_MINTER";

/// Prints what a run holds, and does what it may.
const USE: &str = "echo $PGUSER $PGPASSWORD; psql -Atc 'select item from orders'";

/// A product whose operator has an issuer, and the server.
struct World {
    product: Product,
    server: Server,
    root: String,
}

impl World {
    fn new(product: Product, programs: &std::path::Path) -> World {
        let server = Server::with_passwords(programs);
        let root = server.with_a_shop();
        let world = World { product, server, root };
        world.configure(0o600);
        world
    }

    fn configure(&self, mode: u32) {
        let folder = self.product.folder().join("home/.config/cofferdam");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("issuers.toml");
        let text = format!(
            "[postgres.main]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             templates = [\"readers\"]\ndatabases = [\"shop\"]\nmax_ttl = \"15m\"\n",
            self.server.port()
        );
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        self.product.give(&folder.join(".."));
        self.product.give(&folder);
        self.product.give(&file);
    }

    /// `run --json` with words before the program, a script of the shell's.
    fn command(&self, words: &[&str], script: &str) -> Command {
        let mut command = self.product.command(["run", "--json", "--profile", "internal"]);
        command.args(self.product.accepting()).args(words);
        command.args(["--", "sh", "-c", script]).env(ROOT, &self.root);
        command
    }

    fn run(&self, words: &[&str], script: &str) -> Value {
        finish(self.command(words, script)).json()
    }

    /// Whether somebody who kept what a run printed can still log in.
    fn is_alive(&self, kept: &str) -> bool {
        let (user, password) = kept.lines().next().unwrap().split_once(' ').unwrap();
        assert!(user.starts_with("cofferdam_") && password.len() == 32, "{kept}");
        self.server.log_in(user, password, "shop").code == 0
    }
}

/// Both users' worlds, or the end of the test with the reason.
macro_rules! worlds {
    () => {
        match programs() {
            Some(programs) => [product(), ordinary()].map(|product| World::new(product, &programs)),
            None => {
                cofferdam_testkit::skip!("there is no PostgreSQL with its server below /usr/lib/postgresql")
            }
        }
    };
}

#[test]
fn a_run_does_its_one_thing_and_its_credential_is_dead_when_it_ends() {
    for world in worlds!() {
        let outcome = world.run(&["--cred", READERS], &format!("{USE}; psql -Atc 'select * from secrets'"));
        let said = outcome["stdout"]["text"].as_str().unwrap();
        assert_eq!(said.lines().nth(1), Some("tea"), "{outcome}");
        assert!(!said.contains("hush"), "{outcome}");
        let refused = outcome["stderr"]["text"].as_str().unwrap();
        assert!(refused.contains("permission denied for table secrets"), "the server refuses it: {outcome}");
        assert!(!world.is_alive(said), "it is kept, and of no use");
        assert_eq!(world.server.minted(), [""; 0]);
        let lease = &outcome["leases"][0];
        assert_eq!(lease["state"], "dead", "{outcome}");
        assert_eq!(lease["scope"], json!({"database": ["shop"], "template": ["readers"]}));
        assert_eq!(lease["verified"], "the server refused its login");
        let log = finish(world.product.command(["audit", "show", "last"])).exits(0).stdout;
        let [minted, revoked] = ["lease.minted", "lease.revoked"].map(|event| log.find(event).unwrap());
        assert!(minted < revoked && revoked < log.find("sandbox.closed").unwrap(), "{log}");
        let password = said.lines().next().unwrap().split_once(' ').unwrap().1;
        assert!(!log.contains(password), "the log has a fingerprint and no value");
        assert!(!world.server.log().contains(password), "the server was told a verifier and no password");
    }
}

#[test]
fn while_it_runs_the_credential_works_and_a_session_that_is_open_at_the_end_is_closed() {
    for world in worlds!() {
        let marker = world.product.folder().join("held");
        let script = format!("{USE}; psql -Atc 'select pg_sleep(600)' & echo; sleep 600");
        let mut command = world.command(&["--cred", READERS, "--timeout", "4s"], &script);
        command.arg(&marker); // nothing reads it: a name by which the process is known
        let began = Instant::now();
        let run = start(&mut command);
        let is_there = || world.server.minted().len() == 1;
        assert!(eventually(Duration::from_secs(20), is_there), "a positive control: it is there meanwhile");
        let sleeps = "select count(*) from pg_stat_activity where query like 'select pg_sleep(600)'";
        let has_session = |count: &str| world.server.ask("postgres", sleeps).stdout.trim() == count;
        assert!(eventually(Duration::from_secs(20), || has_session("1")));
        let outcome = wait(run, began).json();
        assert_eq!(outcome["end"], "timed_out", "{outcome}");
        assert_eq!(outcome["leases"][0]["state"], "dead", "{outcome}");
        assert!(has_session("0") && world.server.minted().is_empty());
        assert!(!world.is_alive(outcome["stdout"]["text"].as_str().unwrap()));
    }
}

#[test]
fn a_killed_cofferdam_leaves_no_credential_alive() {
    for world in worlds!() {
        let run = start(&mut world.command(&["--cred", READERS], "sleep 600"));
        assert!(eventually(Duration::from_secs(20), || world.server.minted().len() == 1));
        drop(run); // which kills it
        assert!(eventually(Duration::from_secs(20), || world.server.minted().is_empty()), "by the broker");
        let entries = || std::fs::read_dir(world.product.state().join("leases")).unwrap().count();
        assert!(eventually(Duration::from_secs(5), || entries() == 0));
    }
}

#[test]
fn what_a_killed_broker_left_is_said_and_revoked_by_the_next_command() {
    for world in worlds!() {
        let run = start(&mut world.command(&["--cred", READERS], "sleep 3; echo lived"));
        assert!(eventually(Duration::from_secs(20), || world.server.minted().len() == 1));
        let broker = processes_with(&format!("{} broker", world.product.program().display()));
        assert_eq!(broker.len(), 1);
        let killed = Command::new("kill").args(["-9", &broker[0].to_string()]).status().unwrap();
        assert!(killed.success());
        let outcome = wait(run, Instant::now()).json();
        assert_eq!((&outcome["end"], &outcome["exit_code"]), (&json!("exited"), &json!(0)), "{outcome}");
        assert_eq!(outcome["leases"][0]["state"], "unknown", "{outcome}");
        assert!(outcome["hints"][0].as_str().unwrap().contains("may still be alive"), "{outcome}");
        assert_eq!(world.server.minted().len(), 1, "nobody has revoked it yet");
        let next = finish(world.command(&[], "true"));
        assert!(next.code == 0 && next.stderr.contains("revoked the credential `db`"), "{next:?}");
        assert_eq!(world.server.minted(), [""; 0]);
    }
}

#[test]
fn what_is_beyond_the_ceiling_or_wrong_is_refused_and_nothing_is_minted() {
    for world in worlds!() {
        let refused = |cred: &str, code: &str, says: &str| {
            let outcome = world.run(&["--cred", cred], "true");
            let error = &outcome["error"];
            assert_eq!((&outcome["end"], &error["code"]), (&json!("refused"), &json!(code)), "{outcome}");
            assert!(error["message"].as_str().unwrap().contains(says), "{outcome}");
            assert_eq!(world.server.minted(), [""; 0], "{outcome}");
        };
        refused("db=postgres.main:template=readers", "credential_denied", "doesn't say its `database`");
        refused("db=postgres.main:template=postgres,database=shop", "credential_denied", "may not give");
        refused("db=postgres.other", "credential_denied", "no issuer is called `postgres.other`");
        world.configure(0o644);
        refused(READERS, "issuers_unusable", "can be read or written by others");
        world.configure(0o600);
    }
}

#[test]
fn an_issuer_that_is_not_there_refuses_the_run_and_is_to_blame() {
    for mut world in worlds!() {
        world.root = "postgresql://minter:x@127.0.0.1:9/shop".to_owned();
        let outcome = world.run(&["--cred", READERS], "true");
        assert_eq!(outcome["error"]["code"], "issuer_failed", "{outcome}");
        assert_eq!((&outcome["blame"], &outcome["ran"]), (&json!("upstream"), &json!("no")), "{outcome}");
    }
}

#[test]
fn a_run_without_credentials_starts_no_broker() {
    for world in worlds!() {
        let ran: Ran = finish(world.command(&[], "sleep 1"));
        assert_eq!(ran.json()["leases"], json!([]));
        let run = start(&mut world.command(&[], "sleep 2"));
        std::thread::sleep(Duration::from_secs(1));
        assert!(processes_with(&format!("{} broker", world.product.program().display())).is_empty());
        assert_eq!(wait(run, Instant::now()).code, 0);
        assert!(!world.product.state().join("leases").exists());
    }
}

#[test]
fn a_policy_delivers_a_credential_in_the_variables_that_it_names() {
    for world in worlds!() {
        let policy = format!(
            "version = 1\n[[network.allow]]\nhost = \"host.cofferdam.internal\"\nports = [{port}]\nprotocol = \"tcp\"\n\
             private = true\n[[credential]]\nname = \"orders\"\nissuer = \"postgres.main\"\n\
             scope = {{ template = \"readers\", database = \"shop\" }}\n\
             deliver = {{ DATABASE_URL = \"postgresql://{{user}}:{{password}}@{{host}}:{{port}}/{{database}}\" }}\n",
            port = world.server.port()
        );
        let policy = world.product.file("policy.toml", policy);
        world.product.give(&policy);
        let script = "psql -Atc 'select item from orders' \"$DATABASE_URL\"";
        let outcome = world.run(&["--policy", policy.to_str().unwrap()], script);
        assert_eq!(outcome["stdout"]["text"], "tea\n", "{outcome}");
        assert_eq!(outcome["leases"][0]["state"], "dead", "{outcome}");
    }
}
