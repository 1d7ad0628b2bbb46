//! What goes wrong with credentials: a helper that fails, a journal without room, a root that has expired, a broker that
//! is killed while a request is under way. The run is refused or goes on without, with the reason, and nothing lives on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::eventually;
use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{finish, start, wait};
use cofferdam_testkit::servers::postgres::{Server, programs};

use crate::operator::Operator;
use crate::{needs_root, product};

/// Asks with what stands for a token.
const USE: &str = "curl -sS --max-time 20 -H \"Authorization: Bearer $T_TOKEN\" https://api.test";

/// A helper of the operator's whose tokens live while a file is there, and a network in which they would be used.
struct World {
    operator: Operator,
    net: Net,
    folder: PathBuf,
}

impl World {
    /// With what the helper does before it prints, in the words of a shell.
    fn new(mint: &str) -> Option<World> {
        let product = product();
        let net = Net::start().ok()?;
        net.settle(&product);
        let folder = product.folder().join("helper");
        std::fs::create_dir(&folder).unwrap();
        let script = |name: &str, body: &str| {
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\nD='{}'\n{body}\n", folder.display())).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            path.display().to_string()
        };
        let revoke = script("revoke", "cat >/dev/null; rm -f $D/alive");
        let test = script("test", "cat >/dev/null; [ -e $D/alive ]");
        let print = format!(
            "echo '{{\"token\": \"minted-for-one-run-0123\", \"revoke\": [\"{revoke}\"], \"test\": [\"{test}\"]}}'"
        );
        let mint = script("mint", &format!("cat >$D/asked; {mint}\ntouch $D/alive; {print}"));
        let issuers = format!(
            "[exec.api]\nroot = {{ env = \"COFFERDAM_TEST_ROOT\" }}\nhosts = [\"api.test:443\"]\n\
             command = [\"{mint}\"]\ninject = \"bearer\"\n"
        );
        Some(World { operator: Operator::new(product, "root", &issuers), net, folder })
    }

    fn run(&self, script: &str) -> serde_json::Value {
        self.net.run(&self.operator.command("t=exec.api", script)).json()
    }

    fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }
}

macro_rules! world {
    ($mint:expr) => {
        match World::new($mint) {
            Some(world) => world,
            None => cofferdam_testkit::skip!("this host gives a test no network of its own"),
        }
    };
}

#[test]
fn a_helpers_token_is_minted_by_the_first_request_and_dead_at_the_end() {
    needs_root!();
    let world = world!("");
    let outcome = world.run("echo no request");
    assert!(!world.has("asked"), "nothing is minted that nobody needs");
    let verified = outcome["leases"][0]["verified"].as_str().unwrap();
    assert!(verified.contains("never minted") && outcome["leases"][0]["uses"] == 0, "{outcome}");
    let outcome = world.run(&format!("{USE}/head; {USE}/ok"));
    assert!(world.net.seen().requests.iter().all(|request| {
        request.headers.contains(&("authorization".to_owned(), "Bearer minted-for-one-run-0123".to_owned()))
    }));
    let said = outcome["stdout"]["text"].as_str().unwrap();
    assert!(said.contains("Bearer ****") && said.ends_with("ok\n"), "{outcome}");
    let lease = &outcome["leases"][0];
    assert_eq!(
        (&lease["state"], &lease["uses"], &lease["weak"]),
        (&"dead".into(), &2.into(), &false.into()),
        "{outcome}"
    );
    assert!(!world.has("alive"), "the helper's own program revoked it");
}

#[test]
fn a_helper_that_fails_denies_the_request_and_the_outcome_says_why() {
    needs_root!();
    let world = world!("exit 3");
    let outcome = world.run(&format!("{USE}/ok"));
    assert_eq!(outcome["denials"][0]["code"], "upstream_unreachable", "{outcome}");
    assert!(world.net.seen().requests.is_empty());
    let verified = outcome["leases"][0]["verified"].as_str().unwrap();
    assert!(verified.contains("could not be minted") && verified.contains("exit status: 3"), "{outcome}");
}

#[test]
fn a_broker_that_is_killed_takes_the_credential_with_it_and_the_next_command_revokes_it() {
    needs_root!();
    let world = world!("");
    let script = format!("{USE}/ok; {USE}/slow?ms=2000; {USE}/ok");
    let began = Instant::now();
    let run = start(&mut world.net.command(&world.operator.command("t=exec.api", &script)));
    let is_slow = || world.net.seen().requests.iter().any(|request| request.path.starts_with("/slow"));
    assert!(eventually(Duration::from_secs(20), is_slow));
    assert!(world.has("alive"), "a positive control: it lives meanwhile");
    let pid = run.id().to_string();
    let broker = cofferdam_testkit::host::processes_with(" broker").into_iter().find(|broker| {
        let stat = std::fs::read_to_string(format!("/proc/{broker}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&pid))
    });
    let mut kill = Command::new("kill");
    kill.args(["-KILL", &broker.unwrap().to_string()]);
    assert_eq!(finish(kill).code, 0);
    let _ = world.net.seen();
    let outcome = wait(run, began).json();
    let seen = world.net.seen();
    assert!(seen.requests.iter().all(|request| !request.path.starts_with("/ok")), "{:?}", seen.asked());
    assert_eq!(outcome["leases"][0]["state"], "unknown", "{outcome}");
    let next = finish(world.operator.product.command(["gc"])).exits(0);
    assert!(!world.has("alive"), "{next:?}");
}

#[test]
fn a_journal_without_room_refuses_the_run_and_nothing_is_minted() {
    needs_root!();
    let Some(programs) = programs() else {
        cofferdam_testkit::skip!("there is no PostgreSQL with its server")
    };
    let server = Server::with_passwords(&programs);
    let issuers = format!(
        "[postgres.main]\nroot = {{ env = \"COFFERDAM_TEST_ROOT\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
         templates = [\"readers\"]\ndatabases = [\"shop\"]\n",
        server.port()
    );
    let operator = Operator::new(product(), &server.with_a_shop(), &issuers);
    let cred = "db=postgres.main:template=readers,database=shop";
    let leases = operator.product.state().join("leases");
    std::fs::create_dir_all(&leases).unwrap();
    // A file system of the command's own with room for nothing but its root, which ends with it.
    let full = format!("mount -t tmpfs -o nr_inodes=1 none {} && exec \"$@\"", leases.display());
    let plain = operator.command(cred, "true");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &full, "sh"]).arg(plain.get_program()).args(plain.get_args());
    plain.get_envs().for_each(|(name, value)| {
        command.env(name, value.unwrap_or_default());
    });
    let outcome = finish(command).json();
    assert_eq!(
        (&outcome["end"], &outcome["error"]["code"]),
        (&"refused".into(), &"issuers_unusable".into()),
        "{outcome}"
    );
    assert!(outcome["error"]["message"].as_str().unwrap().contains("journal"), "{outcome}");
    assert!(server.minted().is_empty() && !server.log().contains("CREATE ROLE"), "nobody was asked");
    // A root whose own time is over mints nothing either.
    assert_eq!(server.ask("postgres", "alter role minter valid until '2020-01-01'").code, 0);
    operator.refuses(cred, "issuers_unusable", "password authentication failed");
    assert!(server.minted().is_empty());
    assert_eq!(server.ask("postgres", "alter role minter valid until 'infinity'").code, 0);
    assert_eq!(operator.run(cred, "true")["leases"][0]["state"], "dead", "a positive control");
}

#[test]
fn a_mint_that_is_under_way_when_the_run_ends_is_waited_for_and_revoked() {
    needs_root!();
    let world = world!("sleep 1");
    let outcome =
        world.run("curl -sS --max-time 0.3 -H \"Authorization: Bearer $T_TOKEN\" https://api.test/ok; true");
    assert_eq!(outcome["leases"].as_array().unwrap().len(), 1, "{outcome}");
    assert_eq!(
        (&outcome["leases"][0]["state"], &outcome["leases"][0]["weak"]),
        (&"dead".into(), &false.into()),
        "{outcome}"
    );
    assert!(!outcome["leases"][0]["verified"].as_str().unwrap().contains("never minted"), "{outcome}");
    assert!(world.has("asked") && !world.has("alive"), "what was minted late was revoked: {outcome}");
}

#[test]
fn a_helper_that_may_have_minted_is_asked_once_and_said_to_be_unknown() {
    needs_root!();
    let world = world!("echo x >>$D/times; echo junk; exit 0");
    let outcome = world.run(&format!("{USE}/ok; {USE}/ok; {USE}/ok"));
    let times = std::fs::read_to_string(world.folder.join("times")).unwrap();
    assert_eq!(times, "x\n", "it isn't asked again");
    let states: Vec<_> =
        outcome["leases"].as_array().unwrap().iter().map(|lease| lease["state"].clone()).collect();
    assert_eq!(states, ["unknown"], "{outcome}");
}

#[test]
fn requests_that_wait_for_one_secret_are_counted_one_by_one() {
    needs_root!();
    let world = world!("sleep 0.5");
    let policy = "version = 1\nprofile = \"internal\"\n[[network.allow]]\nhost = \"api.test\"\ncredential = \"t\"\n\
                  [[credential]]\nname = \"t\"\nissuer = \"exec.api\"\ninject = \"bearer\"\nmax_uses = 3\n";
    let policy = world.operator.product.file("p.toml", policy);
    let script = format!("for i in 1 2 3 4 5 6 7 8; do {USE}/ok & done; wait");
    let mut command = world.operator.command("", &script);
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|word| word == "--").unwrap();
    let mut with = world.operator.product.command(&words[..at]);
    with.arg("--policy").arg(&policy).args(&words[at..]);
    command.get_envs().for_each(|(name, value)| {
        with.env(name, value.unwrap_or_default());
    });
    command = with;
    let outcome = world.net.run(&command).json();
    assert_eq!(outcome["leases"][0]["uses"], 3, "{outcome}");
    assert_eq!(world.net.seen().requests.len(), 3);
    assert_eq!(outcome["denials"][0]["code"], "credential_expired", "{outcome}");
    // Where an issuer's credentials stay outside, no policy has one delivered.
    let text = "version = 1\nprofile = \"internal\"\n[[network.allow]]\nhost = \"other.test\"\n\
                [[credential]]\nname = \"t\"\nissuer = \"exec.api\"\ndeliver = { T = \"{token}\" }\n";
    std::fs::write(&policy, text).unwrap();
    let outcome = world.net.run(&command).json();
    assert!(outcome["error"]["message"].as_str().unwrap().contains("stay outside"), "{outcome}");
}
