//! What the operator has: keys, tokens, and helpers that hand them out.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use cofferdam_testkit::rows::{Boundary, Row, probe};

use crate::{EVERY_FOLDER, Ended, heard, row};

row!("CRED-01", no_secret_of_the_environment_gets_in);
row!("CRED-02", credential_files_of_the_home_cannot_be_read);
row!("CRED-03", helpers_that_hand_out_credentials_are_out_of_reach);

/// Variables that hold secrets, by their usual names and by unusual ones.
const VARIABLES: [&str; 25] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "DATABASE_URL",
    "SLACK_WEBHOOK",
    "NPM_TOKEN",
    "PYPI_TOKEN",
    "REDIS_URL",
    "STRIPE_KEY",
    "DOCKER_AUTH_CONFIG",
    "AZURE_CLIENT_SECRET",
    "VAULT_TOKEN",
    "SENTRY_DSN",
    "TWILIO_AUTH",
    "HF_TOKEN",
    "CARGO_REGISTRY_TOKEN",
    "MYSQL_PWD",
    "PGPASSWORD",
    "PYTHON_CANARY",
    "LD_CANARY",
    "COFFERDAM_CANARY",
    "x",
];

/// Looks for all of them; knows nothing of them but their form.
const FIND_SECRETS: &str = r"
import glob, os, re
form = re.compile(rb'canary-[0-9a-f]{8}-[0-9a-f-]{27}')
def found(paths):
    secrets = set()
    for path in paths:
        try: secrets |= set(form.findall(open(path, 'rb').read()))
        except OSError: pass
    return len(secrets) == 25 or (secrets and sorted(secrets))
own = set(form.findall('\n'.join(os.environ.values()).encode()))
report('its own variables', own, len(own))
attempt('its own first variables', lambda: bool(found(['/proc/self/environ'])))
attempt('variables of any process', lambda: bool(found(glob.glob('/proc/[0-9]*/environ'))))
attempt('variables of any thread', lambda: bool(found(glob.glob('/proc/[0-9]*/task/*/environ'))))
";

pub(crate) fn no_secret_of_the_environment_gets_in(row: &mut Row) -> Ended {
    // They look like what `Row::secret` gives, and the probe knows nothing else of them.
    let secrets: Vec<_> = VARIABLES.iter().map(|name| (*name, row.secret())).collect();
    let find = FIND_SECRETS;
    let (show, everything) = match row.boundary() {
        Boundary::Container => (
            &["--", "env"][..],
            "\nimport os\nos.system('env >&2; cat /proc/*/environ >&2; cat /proc/*/cmdline >&2')\n",
        ),
        Boundary::Wasm => {
            (&["-c", "import os\nfor name, value in os.environ.items(): print(f'{name}={value}')"][..], "")
        }
    };
    let mut command = row.command(&["-c", &row.probe(&format!("{find}{everything}"))]);
    command.envs(secrets.iter().cloned());
    let inside = row.attempts_of(command);
    let mut words = vec!["env".to_owned()];
    words.extend(secrets.iter().map(|(name, secret)| format!("{name}={secret}")));
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let outside = row.outside_after(&words, find);
    assert_eq!(outside["its_own_variables"].detail, "25");
    row.compare(&inside, &outside);
    // A name that is passed lets its own value in, and nothing else.
    let mut command = row.command(&[&["--pass-env", "TZ"], show].concat());
    command.env("TZ", "UTC").envs(secrets);
    let passed = row.finish_command(command);
    assert!(passed.stdout.contains("TZ=UTC"), "{passed:?}");
    Ended::Tested
}

/// Files of a home that hold credentials, or settings of whoever acts for a person.
const HOME_FILES: [&str; 26] = [
    ".aws/credentials",
    ".aws/config",
    ".config/gcloud/application_default_credentials.json",
    ".config/gcloud/credentials.db",
    ".azure/accessTokens.json",
    ".azure/msal_token_cache.json",
    ".kube/config",
    ".docker/config.json",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".config/git/credentials",
    ".ssh/id_ed25519",
    ".ssh/config",
    ".gnupg/private-keys-v1.d/key.key",
    ".config/gh/hosts.yml",
    ".cargo/credentials.toml",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".pgpass",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".config/agent/auth.json",
    ".vault-token",
];

/// Files of a project that hold credentials and aren't shown with it.
const PROJECT_FILES: [&str; 4] = [".env", ".env.production", "web/.env.local", "deploy.key"];

/// Files of a home by every way to them, and of a project in the working directory.
const FIND_FILES: &str = r"
import glob
roots = [''] + list(folders()) + glob.glob('/proc/[0-9]*/root') + glob.glob('/proc/[0-9]*/cwd')
roots += ['/proc/self/root/' + '../' * 40, '../' * 40]
homes = {home} if os.path.isdir(home + '/project') else {home, os.environ['HOME'], '/root'}
def read(place):
    for root in roots:
        for above in homes:
            try:
                with open(root + above + '/' + place) as file:
                    if 'canary-' in file.read(): return True
            except OSError: pass
    return False
for place in home_files:
    attempt('~/' + place, lambda: read(place))
for place in project_files:
    attempt('project/' + place, lambda: 'canary-' in open(place).read())
attempt('above the project', lambda: 'canary-' in open('../.netrc').read())
";

/// Copies everything that is there, and prints what is small and hidden.
const GRAB: &str = "cp -r . /tmp/all; find / -xdev -type f -size -9k -path '*/.*' -exec cat {} + 2>&1 | head -c 99999; cp -r /tmp/all taken";

/// The same.
const GRAB_IN_PYTHON: &str = r"
import os, shutil
shutil.copytree('.', '/tmp/all')
for folder, _, names in os.walk('/'):
    for name in names:
        path = os.path.join(folder, name)
        try:
            if '/.' in path and os.path.getsize(path) < 9000: print(open(path, errors='replace').read()[:9000])
        except OSError: pass
shutil.copytree('/tmp/all', 'taken')
";

pub(crate) fn credential_files_of_the_home_cannot_be_read(row: &mut Row) -> Ended {
    let home = row.product().folder().join("home");
    let project = home.join("project");
    let mut plant = |path: &Path| {
        let secret = row.secret();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("secret = {secret}\n")).unwrap();
    };
    HOME_FILES.iter().for_each(|place| plant(&home.join(place)));
    PROJECT_FILES.iter().for_each(|place| plant(&project.join(place)));
    std::fs::write(project.join("plain"), "plain\n").unwrap();
    row.product().give(&home);
    let find = format!(
        "{EVERY_FOLDER}\nhome = {home:?}\nhome_files = {HOME_FILES:?}\nproject_files = {PROJECT_FILES:?}\n{FIND_FILES}"
    );
    let shown = ["--workspace", project.to_str().unwrap(), "--hide", "**/*.key"];
    let inside = row.inside(&shown, &find);
    let outside = row.outside(&format!("import os\nos.chdir({project:?})\n{find}"));
    row.compare(&inside, &outside);
    // The project is there, so that its secrets aren't missing with all the rest.
    let (cat, grab): (&[&str], &[&str]) = match row.boundary() {
        Boundary::Container => (&["--", "cat", "plain"], &["--", "sh", "-c", GRAB]),
        Boundary::Wasm => (&["-c", "print(open('plain').read(), end='')"], &["-c", GRAB_IN_PYTHON]),
    };
    let plain = row.run(&[&shown[..], cat].concat());
    assert_eq!(plain.stdout, "plain\n", "{plain:?}");
    // What is printed and copied of all that is there holds none either: `Row::end` looks.
    let out = row.product().folder().join("out");
    let taken = row.run(&[&shown[..], &["--out", out.to_str().unwrap()], grab].concat());
    assert_eq!(taken.code, 0, "{taken:?}");
    assert!(out.join("files/taken/plain").exists());
    Ended::Tested
}

/// Asks everything that would hand out a credential. `sockets` are addresses by name.
const ASK_HELPERS: &str = r#"
import ctypes, os, shutil, socket, subprocess
for name, address in sockets.items():
    def ask(address=address):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(address)
            s.send(b'ask')
    attempt(name, ask)
for name in ['SSH_AUTH_SOCK', 'GPG_AGENT_INFO', 'DBUS_SESSION_BUS_ADDRESS', 'DOCKER_CONFIG', 'GIT_ASKPASS']:
    attempt('named by ' + name, lambda: os.environ.get(name, '') != '')
def answers(words, said=''):
    ran = subprocess.run(words, input=said, text=True, capture_output=True, timeout=20)
    return head + tail in ran.stdout
asked = 'protocol=https\nhost=git.test\n\n'
attempt('the git helper', lambda: answers(['git', '-c', 'credential.interactive=false', 'credential', 'fill'], asked))
attempt('the docker helper', lambda: answers(['docker-credential-canary', 'get'], 'https://docker.test'))
attempt('the docker helper by its path', lambda: answers([helper, 'get'], 'https://docker.test'))
libc = ctypes.CDLL(None, use_errno=True)
def key(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    if result < 0: raise OSError(ctypes.get_errno(), 'keyring')
    return result
user, label = b'user', key_name.encode()
SEARCH, READ, DESCRIBE = 10, 11, 6
def read_key(serial):
    buffer = ctypes.create_string_buffer(200)
    key(250, READ, serial, buffer, 200)
    return buffer.value.decode() == head + tail
attempt('the key in the session keyring', lambda: read_key(key(250, SEARCH, -3, user, label, 0)))
attempt('the key by request', lambda: read_key(key(249, user, label, None, 0)))
attempt('a new key', lambda: key(248, user, b'cofferdam-row', b'x', 1, -2) > 0) # its own process keyring
attempt('the session keyring described', lambda: key(250, DESCRIBE, -3, None, 0) > 0)
"#;

/// Puts a key into a new session keyring, and becomes what follows.
const WITH_KEY: &str = r"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
name, secret = (os.environ.pop(variable).encode() for variable in ('ROW_KEY', 'ROW_SECRET'))
assert libc.syscall(250, 1, None) > 0, 'a session keyring'
key = libc.syscall(248, b'user', name, secret, len(secret), -3)
assert key > 0, 'a key'
os.execvp(sys.argv[1], sys.argv[1:])
";

/// What an operator's session has: helpers in the home and on the path, agents that listen, a key.
struct Session {
    secret: String,
    key_name: String,
    helper: PathBuf,
    listeners: Vec<(PathBuf, UnixListener)>,
    /// Words that start something in it.
    words: Vec<String>,
}

const AGENTS: [&str; 3] = ["ssh-agent", "gpg-agent", "bus"];

impl Session {
    fn new(row: &mut Row) -> Self {
        let folder = row.product().folder().to_owned();
        let (home, bin) = (folder.join("home"), folder.join("bin"));
        let (secret, key_name) = (row.secret(), format!("cofferdam-row-{}", std::process::id()));
        std::fs::create_dir_all(home.join(".docker")).unwrap();
        std::fs::create_dir(&bin).unwrap();
        let script = |name: &str, text: String| {
            let path = bin.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let docker = format!("#!/bin/sh\necho '{{\"Secret\": \"{secret}\"}}'\n");
        let helper = script("docker-credential-canary", docker);
        let git = script("git-helper", format!("#!/bin/sh\necho username=u; echo password={secret}\n"));
        std::fs::write(home.join(".docker/config.json"), r#"{"credsStore": "canary"}"#).unwrap();
        std::fs::write(home.join(".gitconfig"), format!("[credential]\n\thelper = {}\n", git.display()))
            .unwrap();
        let listeners = AGENTS.map(|name| {
            let path = folder.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            (path, listener)
        });
        [&home, &bin].into_iter().chain(listeners.iter().map(|(path, _)| path)).for_each(|path| {
            row.product().give(path);
        });
        let words = Session::words(&folder, &key_name, &secret);
        Session { secret, key_name, helper, listeners: listeners.into(), words }
    }

    fn words(folder: &Path, key_name: &str, secret: &str) -> Vec<String> {
        let (path, at) =
            (std::env::var("PATH").unwrap(), |name: &str| folder.join(name).display().to_string());
        let variables = [
            ("HOME", at("home")),
            ("PATH", format!("{}:{path}", at("bin"))),
            ("SSH_AUTH_SOCK", at("ssh-agent")),
            ("GPG_AGENT_INFO", format!("{}:0:1", at("gpg-agent"))),
            ("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}", at("bus"))),
            ("DOCKER_CONFIG", at("home/.docker")),
            ("GIT_ASKPASS", at("bin/git-helper")),
            ("ROW_KEY", key_name.to_owned()),
            ("ROW_SECRET", secret.to_owned()),
        ];
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        let with_key = ["/usr/bin/python3", "-c", WITH_KEY].map(str::to_owned);
        [vec!["env".to_owned()], variables.into(), with_key.into()].concat()
    }

    /// The probe, which holds neither the secret nor the name of the key as one word.
    fn probe(&self) -> String {
        let sockets: Vec<_> = AGENTS
            .iter()
            .zip(&self.listeners)
            .map(|(name, (path, _))| format!("{name:?}: {path:?}"))
            .collect();
        let (head, tail) = self.secret.split_at(12);
        let (key_head, key_tail) = self.key_name.split_at(8);
        format!(
            "sockets = {{{}}}\nhead, tail = {head:?}, {tail:?}\nhelper = {:?}\nkey_name = {key_head:?} + \
             {key_tail:?}\n{ASK_HELPERS}",
            sockets.join(", "),
            self.helper
        )
    }

    /// How many agents were asked since the last time.
    fn asked(&self) -> usize {
        self.listeners.iter().map(|(_, listener)| heard(listener)).sum()
    }
}

// That `git push` works over a brokered route alone is for when there are such routes.
fn helpers_that_hand_out_credentials_are_out_of_reach(row: &mut Row) -> Ended {
    let session = Session::new(row);
    let (words, ask) = (session.words.iter().map(String::as_str).collect::<Vec<_>>(), session.probe());
    let command = row.command_after(&words, &["-c", &probe(&ask)]);
    let inside = row.attempts_of(command);
    assert_eq!(session.asked(), 0, "no agent heard anything");
    let outside = row.outside_after(&words, &ask);
    row.compare(&inside, &outside);
    assert_eq!(session.asked(), AGENTS.len(), "each agent hears whoever is outside");
    Ended::Tested
}
