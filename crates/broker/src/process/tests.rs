//! What the broker mints for runs, with helpers as its issuers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tasks::Tasks;
use super::*;
use crate::config::{Kind, Root};
use crate::control::{Ask, Ended, State, Whose};
use crate::trial::{Seen, Tested};

/// A folder with helpers, and a broker's state in it.
struct World(tempfile::TempDir);

impl World {
    fn new() -> World {
        World(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A script of the shell's, whose folder is `$D`.
    fn script(&self, name: &str, body: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\nD='{}'\n{body}\n", self.0.path().display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path.display().to_string()
    }

    /// A helper whose tokens live while there is a file, and what it prints beside the token.
    fn helper(&self, printed: &str) -> IssuerConfig {
        self.script("revoke", "cat > $D/revoke.input; rm -f $D/alive");
        self.script("test", "cat > $D/test.input; [ -e $D/alive ]");
        let printed = printed.replace("$D", &self.0.path().display().to_string());
        let body = format!("cat > $D/mint.input; touch $D/alive; echo '{{\"token\": \"t\\\"1\"{printed}}}'");
        let kind = Kind::Exec { command: vec![self.script("mint", &body)], scope: Default::default() };
        config("exec.helper", kind)
    }

    fn tasks(&self, config: &IssuerConfig) -> Tasks {
        Tasks::new(&self.path("state"), Ok(vec![config.clone()]), nobody()).unwrap()
    }

    /// The entries of leases that may live.
    fn entries(&self) -> usize {
        fs::read_dir(self.path("state/leases")).map_or(0, Iterator::count)
    }
}

const REVOKE: &str = ", \"revoke\": [\"$D/revoke\"]";
const BOTH: &str = ", \"revoke\": [\"$D/revoke\"], \"test\": [\"$D/test\"]";

fn config(name: &str, kind: Kind) -> IssuerConfig {
    let root = Root::Command(vec!["echo".to_owned(), "root".to_owned()]);
    IssuerConfig {
        name: name.to_owned(),
        root,
        hosts: vec!["db.internal:1".to_owned()],
        max_ttl: None,
        inject: None,
        kind,
    }
}

fn ask(issuer: &str) -> Ask {
    Ask {
        name: "token".to_owned(),
        issuer: issuer.to_owned(),
        scope: Default::default(),
        ttl_ms: 60_000,
        asked_ttl_ms: None,
        deliver: vec![],
        in_requests: None,
    }
}

/// A host that hears nothing.
fn nobody() -> Rc<Host> {
    let (ours, _) = UnixStream::pair().unwrap();
    Rc::new(Host::new(Arc::new(ours)))
}

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(future));
}

async fn prepare(tasks: &Tasks, ask: Ask) -> Result<(Vec<String>, Vec<Secret>), Refused> {
    tasks.prepare(1, "r_1", vec![ask]).await.map(|(variables, secrets, _)| (variables, secrets))
}

/// What became of what a run had left, or each run.
async fn swept(tasks: &Tasks, run: Option<&str>) -> Vec<Ended> {
    let whose = Whose { run: run.map(str::to_owned), name: None, within_ms: 10_000 };
    tasks.sweep(&whose).await.unwrap_or_else(|refused| panic!("{refused:?}"))
}

async fn refused(tasks: &Tasks, ask: Ask) -> Refused {
    match prepare(tasks, ask).await {
        Ok((variables, _)) => panic!("it was given {variables:?}"),
        Err(refused) => refused,
    }
}

#[test]
fn a_helper_that_names_no_test_for_what_it_can_revoke_is_refused_and_its_token_revoked() {
    run(async {
        let world = World::new();
        let refused = refused(&world.tasks(&world.helper(REVOKE)), ask("exec.helper")).await;
        assert!(refused.message.contains("printed `revoke` and no `test`"), "{refused:?}");
        assert_eq!(refused.kind, Refusal::Upstream);
        assert!(!world.path("alive").exists() && world.text("revoke.input").contains("t\\\"1"));
        assert_eq!(world.entries(), 0, "there is nothing that the next command should look for");
    });
}

#[test]
fn a_helpers_token_is_ended_and_seen_dead_by_what_it_named() {
    run(async {
        let world = World::new();
        let tasks = world.tasks(&world.helper(BOTH));
        let (variables, secrets) =
            prepare(&tasks, ask("exec.helper")).await.unwrap_or_else(|r| panic!("{r:?}"));
        assert_eq!((variables, secrets[0].expose()), (vec!["TOKEN_TOKEN".to_owned()], &b"t\"1"[..]));
        let [ended] = &tasks.end(1).await[..] else { panic!("there is one") };
        assert!(matches!(&ended.state, State::Dead { verified, .. } if verified.contains("refused it")));
        let given: serde_json::Value = serde_json::from_str(&world.text("test.input")).unwrap();
        assert_eq!(given["token"], "t\"1");
        assert!(given["handle"].as_str().unwrap().starts_with("cofferdam_"));
    });
}

#[test]
fn what_a_killed_broker_left_of_a_helper_is_revoked_by_its_handle() {
    run(async {
        let world = World::new();
        let config = world.helper(BOTH);
        let tasks = world.tasks(&config);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok());
        drop(tasks); // as if it were killed: nothing is ended, and its locks are gone
        assert!(world.path("alive").exists() && world.entries() == 1);
        let tasks = world.tasks(&config);
        let ended = swept(&tasks, None).await;
        assert!(matches!(&ended[0].state, State::Dead { .. }), "{ended:?}");
        assert!(!world.path("alive").exists() && world.entries() == 1, "it isn't written down yet");
        tasks.forget_swept();
        assert_eq!(world.entries(), 0);
        let given: serde_json::Value = serde_json::from_str(&world.text("revoke.input")).unwrap();
        let minted: serde_json::Value = serde_json::from_str(&world.text("mint.input")).unwrap();
        assert_eq!((&given["handle"], given["token"].is_null()), (&minted["handle"], true), "{given}");
    });
}

#[test]
fn a_killed_brokers_token_that_cannot_be_revoked_expires() {
    run(async {
        let world = World::new();
        let config = world.helper(", \"expires_at\": \"2030-01-01T00:00:00Z\"");
        let tasks = world.tasks(&config);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok());
        drop(tasks);
        let tasks = world.tasks(&config);
        let ended = swept(&tasks, None).await;
        tasks.forget_swept();
        assert_eq!((&ended[0].state, world.entries()), (&State::Expires, 0));
        assert_eq!(
            ended[0].lease.expires,
            Some(1_893_456_000),
            "when its issuer said, not when it was asked to"
        );
    });
}

#[test]
fn a_part_that_is_none_is_refused_before_anything_is_minted() {
    run(async {
        let world = World::new();
        let tasks = world.tasks(&world.helper(BOTH));
        let deliver = vec![("URL".to_owned(), "http://{tokn}@{host}".to_owned())];
        let refused = refused(&tasks, Ask { deliver, ..ask("exec.helper") }).await;
        assert!(refused.message.contains("{tokn}") && refused.kind == Refusal::Request, "{refused:?}");
        assert_eq!(refused.fix, "its parts are {token}, {host}, {port}");
        assert!(!world.path("alive").exists());
    });
}

#[test]
fn what_was_never_asked_for_is_in_no_journal_and_what_may_have_been_is() {
    run(async {
        let world = World::new();
        let mut config = config(
            "postgres.main",
            Kind::Postgres { templates: vec!["t".to_owned()], databases: vec!["d".to_owned()] },
        );
        let scope = ["template", "database"].map(|field| (field.to_owned(), vec![field[..1].to_owned()]));
        let ask = Ask { scope: scope.into(), ..ask("postgres.main") };
        // Nothing listens there.
        let address = "postgresql://minter:x@127.0.0.1:9/d";
        config.root = Root::Command(vec!["echo".to_owned(), address.to_owned()]);
        let refused_for = refused(&world.tasks(&config), ask.clone()).await;
        assert!(refused_for.message.contains("could not be reached"), "{refused_for:?}");
        assert_eq!(world.entries(), 0);
        config.root = Root::File(Path::new("/nonexistent/root").to_owned());
        assert_eq!(refused(&world.tasks(&config), ask).await.kind, Refusal::Host);
        assert_eq!(world.entries(), 0);
        // A helper that fails says that it made nothing; one that prints something else may have made it.
        let mut helper = world.helper("");
        helper.kind = Kind::Exec { command: vec!["false".to_owned()], scope: Default::default() };
        assert!(prepare(&world.tasks(&helper), self::ask("exec.helper")).await.is_err());
        assert_eq!(world.entries(), 0);
        helper.kind =
            Kind::Exec { command: vec!["echo".to_owned(), "junk".to_owned()], scope: Default::default() };
        assert!(prepare(&world.tasks(&helper), self::ask("exec.helper")).await.is_err());
        assert_eq!(world.entries(), 1);
    });
}

#[test]
fn what_is_minted_after_its_run_has_ended_is_ended_at_once() {
    run(async {
        let world = World::new();
        let mut config = world.helper(BOTH);
        let slow = world.script("slow", "until [ -e $D/go ]; do sleep 0.01; done; exec $D/mint");
        config.kind = Kind::Exec { command: vec![slow], scope: Default::default() };
        let tasks = Rc::new(world.tasks(&config));
        let preparing = tasks.clone();
        let preparing =
            tokio::task::spawn_local(async move { refused(&preparing, ask("exec.helper")).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(tasks.end(1).await.is_empty(), "there is nothing yet");
        fs::write(world.path("go"), "").unwrap();
        assert!(preparing.await.unwrap().message.contains("ended before"));
        assert!(world.path("mint.input").exists() && !world.path("alive").exists());
        assert_eq!(world.entries(), 0);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok(), "its number is forgotten");
    });
}

#[test]
fn what_its_issuer_does_not_end_by_itself_is_revoked_when_its_time_is_over() {
    run(async {
        let world = World::new();
        let config = IssuerConfig { max_ttl: Some(Duration::from_millis(200)), ..world.helper(BOTH) };
        let tasks = world.tasks(&config);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok());
        assert!(world.path("alive").exists());
        for _ in 0..500 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if !world.path("alive").exists() {
                break;
            }
        }
        assert!(!world.path("alive").exists(), "its run goes on");
        let ended = tasks.end(1).await;
        assert!(matches!(&ended[0].state, State::Dead { .. }), "{ended:?}");
    });
}

#[test]
fn what_is_swept_and_not_written_down_is_swept_again_by_the_next_command() {
    run(async {
        let world = World::new();
        let config = world.helper(BOTH);
        let tasks = world.tasks(&config);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok());
        drop(tasks);
        let killed = world.tasks(&config);
        assert_eq!(swept(&killed, Some("r_2")).await, [], "another run's");
        assert!(world.path("alive").exists());
        assert_eq!(swept(&killed, Some("r_1")).await.len(), 1);
        drop(killed); // before it was told that this is written down
        let tasks = world.tasks(&config);
        assert_eq!(swept(&tasks, None).await.len(), 1, "no event of it is lost");
        tasks.forget_swept();
        assert_eq!(world.entries(), 0);
    });
}

#[test]
fn a_sweep_waits_no_longer_than_it_may_and_keeps_what_it_did_not_end() {
    run(async {
        let world = World::new();
        let config = world.helper(BOTH);
        let tasks = world.tasks(&config);
        assert!(prepare(&tasks, ask("exec.helper")).await.is_ok());
        drop(tasks);
        world.script("revoke", "sleep 600");
        let tasks = world.tasks(&config);
        let whose = Whose { run: None, name: None, within_ms: 100 };
        let ended = tasks.sweep(&whose).await.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert!(matches!(&ended[0].state, State::Unknown { .. }), "{ended:?}");
        tasks.forget_swept();
        assert_eq!(world.entries(), 1);
    });
}

/// What is seen of the one issuer.
async fn tested(world: &World, config: &IssuerConfig) -> Tested {
    let tasks = Rc::new(world.tasks(config));
    let tested = trials::all(&tasks, "r_1", None).await.unwrap_or_else(|refused| panic!("{refused:?}"));
    let [tested] = <[Tested; 1]>::try_from(tested).unwrap();
    tested
}

#[test]
fn a_trial_mints_sees_it_work_and_sees_it_dead_and_leaves_nothing() {
    run(async {
        let world = World::new();
        let mut config = world.helper(BOTH);
        let Kind::Exec { scope, .. } = &mut config.kind else { panic!("it is a helper") };
        scope.insert("path".to_owned(), vec!["narrow".to_owned(), "wide".to_owned()]);
        let tested = tested(&world, &config).await;
        assert!(
            matches!(&tested.seen, Seen::Dead { verified, .. } if verified.contains("refused it")),
            "{tested:?}"
        );
        assert!(world.path("mint.input").exists() && !world.path("alive").exists() && world.entries() == 0);
        let asked: serde_json::Value = serde_json::from_str(&world.text("mint.input")).unwrap();
        assert_eq!(
            asked["scope"],
            serde_json::json!({"path": ["narrow"]}),
            "the least that can be asked for"
        );
    });
}

#[test]
fn a_trial_of_what_cannot_be_revoked_says_when_it_expires() {
    run(async {
        let world = World::new();
        let tested = tested(&world, &world.helper(", \"expires_at\": \"2030-01-01T00:00:00Z\"")).await;
        let Seen::Expires { expires: Some(expires), .. } = tested.seen else { panic!("{tested:?}") };
        assert_eq!(expires.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(), 1_893_456_000);
    });
}

#[test]
fn a_trial_says_what_failed_and_what_may_be_alive_because_of_that() {
    run(async {
        let world = World::new();
        let failed = |tested: Tested| match tested.seen {
            Seen::Failed(finding) => finding,
            seen => panic!("{seen:?}"),
        };
        let mut config = world.helper(BOTH);
        config.root = Root::File("/nonexistent/root".into());
        assert!(failed(tested(&world, &config).await).message.contains("can't be read from"));
        assert!(!world.path("mint.input").exists());
        // What doesn't work though it was minted proves nothing when it is dead.
        let config = world.helper(BOTH);
        world.script("test", "false");
        assert!(failed(tested(&world, &config).await).message.contains("doesn't work"));
        assert_eq!(world.entries(), 0);
        // Its helper says that it revoked it, and it lives.
        let config = world.helper(BOTH);
        world.script("revoke", "true");
        assert!(failed(tested(&world, &config).await).message.contains("MAY STILL BE ALIVE"));
        assert_eq!(world.entries(), 1, "the next command tries again");
        let mut config = world.helper(BOTH);
        config.kind = Kind::Postgres { templates: vec![], databases: vec!["d".to_owned()] };
        assert!(failed(tested(&world, &config).await).message.contains("allows no `template`"));
    });
}

#[test]
fn a_trial_of_a_secret_that_nobody_mints_reads_it() {
    run(async {
        let world = World::new();
        let mut config = config("static.api", Kind::Static);
        assert_eq!(tested(&world, &config).await.seen, Seen::Weak);
        config.root = Root::Command(vec!["false".to_owned()]);
        assert!(matches!(tested(&world, &config).await.seen, Seen::Failed(_)));
    });
}

#[test]
fn a_trial_of_nobody_is_refused_and_says_who_there_is() {
    run(async {
        let world = World::new();
        let tasks = Rc::new(world.tasks(&world.helper(BOTH)));
        let refused = trials::all(&tasks, "r_1", Some("exec.other")).await.err().unwrap();
        assert!(
            refused.message.contains("`exec.other`") && refused.fix.contains("exec.helper"),
            "{refused:?}"
        );
    });
}
