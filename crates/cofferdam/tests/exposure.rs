//! `doctor --exposure` in planted homes: every canary is named, and no value of one is shown.
//!
//! What belongs to the machine is told apart from what belongs to the person, so that a clean home is
//! clean on any machine.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use cofferdam_testkit::product::{Product, Ran, finish};
use cofferdam_testkit::{host, skip};
use serde_json::Value;

/// How many letters in a row of a secret count as shown.
const FRAGMENT: usize = 8;

/// A home, a working directory and an environment with nothing in them but what a test plants.
struct Person {
    product: Product,
    environment: Vec<(OsString, OsString)>,
    sockets: Vec<UnixListener>,
}

impl Person {
    fn new() -> Self {
        let product = Product::new(env!("CARGO_BIN_EXE_cofferdam"));
        for name in ["work", "run", "tmux"] {
            fs::create_dir(product.folder().join(name)).unwrap();
        }
        Person { product, environment: vec![], sockets: vec![] }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.product.folder().join(path)
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn variable(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
    }

    /// A live socket, in the place of a control socket or an agent.
    fn socket(&mut self, path: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.sockets.push(listener);
        path
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = self.product.command(["doctor", "--exposure"].iter().chain(more));
        command
            .env_clear()
            .env("COFFERDAM_STATE", self.product.state())
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("TMUX_TMPDIR", self.path("tmux"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.path("work"));
        command
    }

    fn look(&self, more: &[&str]) -> Ran {
        finish(self.command(more)).exits(0)
    }

    fn json(&self) -> Value {
        self.look(&["--json"]).json()
    }
}

/// What is listed and belongs to the person, as `kind place`.
fn own(report: &Value) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter().filter(|it| it["scope"] == "person");
    all.map(|it| format!("{} {}", it["kind"].as_str().unwrap(), it["place"].as_str().unwrap())).collect()
}

fn is_listed(report: &Value, kind: &str, place: &str) -> bool {
    own(report).contains(&format!("{kind} {place}"))
}

/// Secrets without a pattern: 32 letters and digits each, no two alike.
struct Secrets {
    state: u64,
    made: Vec<String>,
}

impl Secrets {
    fn new() -> Self {
        Secrets { state: 0x9e37_79b9_7f4a_7c15, made: vec![] }
    }

    fn next(&mut self) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let letter = |_| {
            // The multiplier and the increment are Knuth's, of MMIX.
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(LETTERS[(self.state >> 33) as usize % LETTERS.len()])
        };
        let secret = (0..31).map(letter).collect::<String>() + "7";
        self.made.push(secret.clone());
        secret
    }
}

/// Panics if a fragment of a secret, as it is or in an encoding, is in a text.
fn assert_hidden(secrets: &[String], text: &str) {
    for secret in secrets {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut forms = vec![secret.clone(), secret.chars().rev().collect(), hex.to_uppercase(), hex];
        // A part of a longer text is encoded in one of three ways, by where it begins.
        for skip in 0..3 {
            forms.push(STANDARD.encode(&secret[skip..]));
            forms.push(URL_SAFE.encode(&secret[skip..]));
        }
        for form in forms {
            for fragment in form.as_bytes().windows(FRAGMENT) {
                let fragment = std::str::from_utf8(fragment).unwrap();
                assert!(!text.contains(fragment), "{fragment} of {secret} is shown in {text}");
            }
        }
    }
}

/// Plants canaries of every group; gives what must be listed, as kind and place.
fn plant(person: &mut Person, secrets: &mut Secrets) -> Vec<(&'static str, String)> {
    let mut planted = plant_variables(person, secrets);
    planted.extend(plant_files(person, secrets));
    planted.extend(plant_sockets(person, secrets));
    planted
}

fn plant_variables(person: &mut Person, secrets: &mut Secrets) -> Vec<(&'static str, String)> {
    let mut planted = vec![];
    for (kind, name, before, after) in [
        ("github-token", "ONE", "ghp_", ""),
        ("github-token", "TWO", "github_pat_", ""),
        ("gitlab-token", "THREE", "glpat-", ""),
        ("slack-token", "FOUR", "xoxb-", ""),
        ("openai-key", "FIVE", "sk-", ""),
        ("web-token", "SIX", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.", ""),
        ("private-key", "SEVEN", "-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n"),
        ("url-with-password", "EIGHT", "https://someone:", "@example.com/"),
        ("aws-variable", "AWS_SECRET_ACCESS_KEY", "", ""),
        ("named-like-a-secret", "DEPLOY_PASSWORD", "", ""),
        ("database-address", "DSN", "", ""),
        ("error-tracker-address", "SENTRY_DSN", "", ""),
        ("stripe-key", "NINE", "sk_live_", ""),
        ("webhook", "CI_WEBHOOK_URL", "https://example.com/", ""),
        ("container-credentials", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.2/", ""),
    ] {
        person.variable(name, format!("{before}{}{after}", secrets.next()));
        planted.push((kind, name.to_owned()));
    }
    planted
}

fn plant_files(person: &Person, secrets: &mut Secrets) -> Vec<(&'static str, String)> {
    let mut planted = vec![];
    for (kind, path, before, after) in [
        ("ssh-private-key", ".ssh/id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n", ""),
        ("ssh-private-key", ".ssh/work", "-----BEGIN RSA PRIVATE KEY-----\n", ""),
        ("ssh-access", ".ssh/authorized_keys", "ssh-ed25519 AAAA ", ""),
        ("aws-credentials", ".aws/credentials", "[default]\naws_secret_access_key = ", "\n"),
        (
            "gcloud-default",
            ".config/gcloud/application_default_credentials.json",
            "{\"refresh_token\":\"",
            "\"}",
        ),
        ("gcloud-credentials", ".config/gcloud/credentials.db", "SQLite", ""),
        ("azure-credentials", ".azure/msal_token_cache.json", "{\"x\":\"", "\"}"),
        ("kubernetes-config", ".kube/config", "users:\n- user: {token: ", "}\n"),
        ("docker-config", ".docker/config.json", "{\"auths\":{\"x\":{\"auth\":\"", "\"}}}"),
        ("netrc", ".netrc", "machine example.com login x password ", "\n"),
        ("npm-token", ".npmrc", "//example.com/:_authToken=", "\n"),
        ("pypi-token", ".pypirc", "[x]\npassword = ", "\n"),
        ("pip-password", ".config/pip/pip.conf", "index-url = https://x:", "@example.com/\n"),
        ("git-credentials", ".git-credentials", "https://x:", "@example.com\n"),
        ("github-cli", ".config/gh/hosts.yml", "example.com:\n  oauth_token: ", "\n"),
        ("cargo-token", ".cargo/credentials.toml", "[registry]\ntoken = \"", "\"\n"),
        ("terraform-token", ".terraform.d/credentials.tfrc.json", "{\"token\":\"", "\"}"),
        ("vault-token", ".vault-token", "", ""),
        ("huggingface-token", ".cache/huggingface/token", "", ""),
        ("claude-login", ".claude/.credentials.json", "{\"accessToken\":\"", "\"}"),
        ("opencode-login", ".local/share/opencode/auth.json", "{\"x\":{\"key\":\"", "\"}}"),
        (
            "agent-server-key",
            ".cursor/mcp.json",
            "{\"mcpServers\":{\"x\":{\"env\":{\"X_API_KEY\":\"",
            "\"}}}}",
        ),
        (
            "agent-server-key",
            ".claude.json",
            "{\"projects\":{\"/w\":{\"mcpServers\":{\"x\":{\"env\":{\"X_API_KEY\":\"",
            "\"}}}}}}",
        ),
        ("databricks-token", ".databrickscfg", "[DEFAULT]\ntoken = ", "\n"),
        ("shell-secret", ".zshrc", "alias a=b\nexport X_API_KEY=", "\n"),
        ("codex-login", ".codex/auth.json", "{\"api_key\":\"", "\"}"),
        ("postgres-password", ".pgpass", "h:1:d:u:", "\n"),
        ("mysql-password", ".my.cnf", "[client]\npassword=", "\n"),
        ("rclone-secret", ".config/rclone/rclone.conf", "[x]\npass = ", "\n"),
        ("age-key", ".config/sops/age/keys.txt", "AGE-SECRET-KEY-1", "\n"),
        ("shell-history", ".bash_history", "login --password ", "\n"),
        ("shell-start", ".bashrc", "# ", "\n"),
    ] {
        person.file(&format!("home/{path}"), format!("{before}{}{after}", secrets.next()));
        planted.push((kind, format!("~/{path}")));
    }
    person.file("home/.gnupg/private-keys-v1.d/A.key", secrets.next());
    planted.push(("gpg-private-key", "~/.gnupg/private-keys-v1.d".to_owned()));
    person.file("work/.git/hooks/pre-commit", secrets.next());
    planted.push(("git-hook", person.path("work/.git/hooks").display().to_string()));
    let env = person.file("work/.env", format!("API_TOKEN={}\n", secrets.next()));
    planted.push(("env-file", env.display().to_string()));
    planted
}

fn plant_sockets(person: &mut Person, secrets: &mut Secrets) -> Vec<(&'static str, String)> {
    let mut planted = vec![];
    for (kind, variable, before, path, after) in [
        ("ssh-agent", "SSH_AUTH_SOCK", "", "agent/ssh", ""),
        ("session-bus", "DBUS_SESSION_BUS_ADDRESS", "unix:path=", "run/dbus", ",guid="),
        ("docker", "DOCKER_HOST", "unix://", "docker.sock", ""),
        ("tmux", "TMUX", "", "tmux/s", ","),
        ("vscode", "VSCODE_IPC_HOOK_CLI", "", "code.sock", ""),
    ] {
        let path = person.socket(path);
        let after = if after.is_empty() { String::new() } else { format!("{after}{}", secrets.next()) };
        person.variable(variable, format!("{before}{}{after}", path.display()));
        planted.push((kind, path.display().to_string()));
    }
    let agent = person.socket("run/gnupg/S.gpg-agent");
    planted.push(("gpg-agent", agent.display().to_string()));
    planted
}

#[test]
fn each_canary_is_named_by_kind_and_place_and_no_part_of_its_value_is_shown() {
    let (mut person, mut secrets) = (Person::new(), Secrets::new());
    let planted = plant(&mut person, &mut secrets);
    assert!(planted.len() >= 40 && secrets.made.len() >= 40, "{} {}", planted.len(), secrets.made.len());
    let (text, json) = (person.look(&[]), person.look(&["--json"]));
    let report = json.json();
    let flowing = text.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for (kind, place) in &planted {
        assert!(is_listed(&report, kind, place), "{kind} {place} is missing in {:#?}", own(&report));
        assert!(flowing.contains(place.as_str()), "{place} is missing in {}", text.stdout);
    }
    for output in [&text.stdout, &text.stderr, &json.stdout, &json.stderr] {
        assert_hidden(&secrets.made, output);
    }
    assert_eq!(report["clean"], false);
    for listener in &person.sockets {
        let refused = listener.accept().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock, "somebody connected");
    }
}

#[test]
fn a_value_that_is_shown_would_be_noticed() {
    let mut secrets = Secrets::new();
    let secret = secrets.next();
    let encoded = STANDARD.encode(format!("x{secret}"));
    for text in [secret[3..11].to_owned(), secret.chars().rev().collect(), encoded] {
        let noticed = std::panic::catch_unwind(|| assert_hidden(std::slice::from_ref(&secret), &text));
        assert!(noticed.is_err(), "{text}");
    }
    assert_hidden(&secrets.made, "nothing of it");
}

#[test]
fn the_page_begins_with_a_sentence_that_counts() {
    let mut person = Person::new();
    person.variable("MY_TOKEN", "x9");
    person.file("home/.netrc", "machine a password b");
    person.file("home/.vault-token", "x");
    let page = person.look(&[]).stdout;
    let first: String = page.split("\n\n").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence =
        "Code that runs here as you today could read 1 secret in the environment and 2 credential files";
    assert!(first.starts_with(sentence), "{first}");
    assert_eq!(person.json()["summary"], first);
    for line in page.lines() {
        assert!(line.chars().count() <= 100 || line.split_whitespace().count() == 1, "{line}");
    }
}

#[test]
fn a_clean_home_is_called_clean_and_one_file_changes_that() {
    let person = Person::new();
    let report = person.json();
    if own(&report) == ["kernel-keyring /proc/keys"] {
        skip!("this user has keys in the kernel's keyring");
    }
    assert_eq!(own(&report), Vec::<String>::new());
    assert_eq!(report["clean"], true);
    assert!(report["summary"].as_str().unwrap().contains("Nothing of yours was found"), "{report}");
    person.file("home/.vault-token", "x");
    let report = person.json();
    assert_eq!(own(&report), ["vault-token ~/.vault-token"]);
    assert_eq!(report["clean"], false);
}

#[test]
fn what_a_run_would_not_see_is_told_and_what_it_would_still_have_too() {
    let person = Person::new();
    person.file("home/.vault-token", "x");
    let report = person.json();
    let finding = |kind: &str| {
        let all = report["findings"].as_array().unwrap();
        all.iter().find(|it| it["kind"] == kind).cloned().unwrap_or_else(|| panic!("no {kind}"))
    };
    let (token, kernel) = (finding("vault-token"), finding("shared-kernel"));
    assert_eq!(token["hidden_by"], serde_json::json!(["files"]));
    assert_eq!(kernel["hidden_by"], serde_json::json!(["separate-kernel"]));
    if report["profile"]["backend"] != "container" {
        skip!("internal runs in no container here: {}", report["profile"]["why"]);
    }
    assert_eq!((&token["hidden"], &kernel["hidden"]), (&Value::Bool(true), &Value::Bool(false)));
    let page = person.look(&[]).stdout;
    assert!(page.contains("yes  out of reach for a run of profile internal, by files"), "{page}");
    assert!(
        page.contains("no   within reach of a run of profile internal too: it lacks separate-kernel"),
        "{page}"
    );
}

#[test]
fn what_lies_below_the_current_folder_is_said_to_be_shown_by_a_workspace() {
    let person = Person::new();
    person.file("home/.vault-token", "x");
    person.file("work/.env.local", "API_TOKEN=x9\n");
    person.file("work/prod.env", "API_TOKEN=x9\n");
    person.file("work/service-account-1.json", "{\"private_key\": \"-----BEGIN PRIVATE KEY-----\\nx\"}");
    person.file("work/.git/config", "[remote \"o\"]\nurl = https://me:pw@example.com/x\n");
    let report = person.json();
    if report["profile"]["backend"] != "container" {
        skip!("internal runs in no container here: {}", report["profile"]["why"]);
    }
    let all = report["findings"].as_array().unwrap();
    for (kind, name, hidden) in [
        ("vault-token", ".vault-token", true),
        ("env-file", ".env.local", true),
        ("env-file", "prod.env", false),
        ("service-account-key", "service-account-1.json", false),
        ("git-config-password", ".git/config", false),
    ] {
        let found = all.iter().find(|it| it["kind"] == kind && it["place"].as_str().unwrap().ends_with(name));
        let found = found.unwrap_or_else(|| panic!("no {kind} {name}: {all:#?}"));
        assert_eq!(found["hidden"], hidden, "{found}");
        assert_eq!(found["shown_by"], if hidden { Value::Null } else { "workspace".into() }, "{found}");
    }
    let page = person.look(&[]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("shown by --workspace, if you name this folder"), "{page}");
}

#[test]
fn a_reader_that_has_gone_is_nothing_to_talk_about() {
    let person = Person::new();
    for args in [
        &["doctor", "--json"][..],
        &["doctor", "--exposure"],
        &["schema", "outcome"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = person.product.command(args).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(141), ""), "{args:?}");
        assert_eq!(person.product.call(args).code, 0, "{args:?} with a reader");
    }
}

#[test]
fn of_a_profile_that_runs_nothing_here_nothing_is_promised() {
    let person = Person::new();
    person.file("home/.vault-token", "x");
    let report = person.look(&["--json", "--profile", "untrusted"]).json();
    if !report["profile"]["backend"].is_null() {
        skip!("untrusted runs here");
    }
    assert!(report["findings"].as_array().unwrap().iter().all(|it| it["hidden"].is_null()));
    let page = person.look(&["--profile", "untrusted"]).stdout;
    assert!(page.contains("nothing is promised") && !page.contains("yes  out of reach"), "{page}");
}

#[test]
fn a_profile_without_the_exposure_is_wrong_usage() {
    let person = Person::new();
    for args in [&["doctor", "--profile", "internal"][..], &["doctor", "--exposure", "--profile", "nonsense"]]
    {
        assert_eq!(person.product.call(args).code, 125, "{args:?}");
    }
}

#[test]
fn what_this_user_cannot_read_is_not_listed() {
    let person = Person::new();
    if !host::is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        skip!("only root, with setpriv, can look as somebody else");
    }
    let program = person.path("cofferdam");
    fs::copy(env!("CARGO_BIN_EXE_cofferdam"), &program).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for folder in ["", "home", "work", "run", "tmux"] {
        mode(&person.path(folder), 0o755);
    }
    mode(&person.file("home/.vault-token", "x"), 0o644);
    mode(&person.file("home/.pgpass", "x"), 0o600);
    mode(&person.file("home/.bashrc", "x"), 0o644);
    assert!(is_listed(&person.json(), "postgres-password", "~/.pgpass"), "root can read it");
    let plain = person.command(&["--json"]);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(plain.get_args());
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let report = finish(command).exits(0).json();
    assert_eq!(own(&report), ["vault-token ~/.vault-token"]);
    let machines = report["findings"].to_string();
    assert!(!machines.contains("/etc/shadow") && !machines.contains("\"root\""), "{machines}");
}

#[test]
fn nothing_in_the_place_of_a_credential_holds_the_look_up() {
    let person = Person::new();
    let huge = person.file("home/.git-credentials", "https://a:b@example.com\n");
    fs::File::options().write(true).open(&huge).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(person.path("home/.pgpass")).unwrap();
    symlink(".npmrc", person.path("home/.npmrc")).unwrap();
    symlink("/dev/zero", person.path("home/.my.cnf")).unwrap();
    symlink(".", person.path("home/.ssh")).unwrap();
    symlink("/no/such/file", person.path("home/.vault-token")).unwrap();
    let fifos = ["home/.netrc", "home/.bash_history", "home/.gitconfig", "work/.env"];
    let paths = fifos.map(|path| person.path(path));
    assert!(Command::new("mkfifo").args(&paths).status().unwrap().success());
    let ran = person.look(&["--json"]);
    assert!(ran.took < Duration::from_secs(20), "{:?}", ran.took);
    assert_eq!(own(&ran.json()), ["git-credentials ~/.git-credentials"]);
}

#[test]
fn names_that_would_drive_a_terminal_come_out_inert() {
    let mut person = Person::new();
    let evil = "\u{1b}[2J\u{202e}\u{7}";
    person.variable(format!("EVIL{evil}_TOKEN"), "x9");
    person.variable(OsStr::from_bytes(b"BROKEN\xff\x1b_TOKEN"), "x9");
    let name = format!("home/.ssh/key{evil}\n  yes  all is well");
    person.file(&name, "-----BEGIN OPENSSH PRIVATE KEY-----\n");
    let page = person.look(&[]).stdout;
    let drives = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!page.contains(drives), "{page}");
    assert!(page.contains("EVIL\\u{1b}[2J\\u{202e}\\u{7}_TOKEN"), "{page}");
    assert!(!page.lines().any(|line| line == "  yes  all is well"), "{page}");
    let own = own(&person.json());
    assert_eq!(own.len(), 3, "{own:?}");
    assert!(!own.iter().any(|place| place.contains(|letter| letter == '\n' || drives(letter))), "{own:?}");
}

#[test]
fn looking_changes_nothing_in_the_home() {
    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut all = vec![];
        for entry in fs::read_dir(folder).unwrap().flatten() {
            all.push(entry.path());
            if entry.file_type().unwrap().is_dir() {
                all.extend(names(&entry.path()));
            }
        }
        all.sort();
        all
    }
    let (mut person, mut secrets) = (Person::new(), Secrets::new());
    plant(&mut person, &mut secrets);
    let before = names(person.product.folder());
    person.look(&[]);
    assert_eq!(names(person.product.folder()), before);
}
