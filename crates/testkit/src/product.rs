//! The program as a user has it: started as a process, with a state folder of its own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::host::is_root;
use crate::templates::{lend, lend_to_an_ordinary_user};

/// The program, with a state folder and a home that nothing else uses.
pub struct Product {
    program: PathBuf,
    folder: TempDir,
    /// Whom it is started as, if not as ourselves.
    user: Option<u32>,
    /// Where what it prepares lies, if not in its state folder.
    data: Option<PathBuf>,
    _turn: File,
}

/// A run that is over.
#[derive(Debug)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
    /// How long it took, from the start to the exit.
    pub took: Duration,
}

impl Product {
    /// The program at a path, beside others that run at the same time.
    #[must_use]
    pub fn new(program: &str) -> Self {
        Product::with_turn(program, |file| file.lock_shared().unwrap())
    }

    /// The program at a path, alone: no other test of this machine uses it meanwhile. For tests
    /// that look at the whole host.
    #[must_use]
    pub fn alone(program: &str) -> Self {
        Product::with_turn(program, |file| file.lock().unwrap())
    }

    fn with_turn(program: &str, lock: impl FnOnce(&File)) -> Self {
        let program = PathBuf::from(program);
        let turn = File::create(program.with_extension("turn")).unwrap();
        lock(&turn);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("home")).unwrap();
        Product { program, folder, user: None, data: None, _turn: turn }
    }

    /// The program as an ordinary user has it: a copy that they own, in a folder and a home of their
    /// own. If the tests don't run as root, that is who runs them.
    #[must_use]
    pub fn of_an_ordinary_user(program: &str) -> Self {
        Product::new(program).owned_by_an_ordinary_user()
    }

    /// The same, alone.
    #[must_use]
    pub fn alone_of_an_ordinary_user(program: &str) -> Self {
        Product::alone(program).owned_by_an_ordinary_user()
    }

    fn owned_by_an_ordinary_user(mut self) -> Self {
        let product = &mut self;
        let copy = product.folder.path().join("cofferdam");
        std::fs::copy(&product.program, &copy).unwrap();
        product.program = copy;
        if is_root() {
            product.user = Some(ORDINARY);
            product.give(product.folder.path());
        }
        self
    }

    /// The same with templates of Python of these names, of its own, out of a folder of templates. None if
    /// there are none.
    #[must_use]
    pub fn with_python(mut self, templates: &Path, names: &[&str]) -> Option<Self> {
        let data = self.folder.path().join("data");
        let place = data.join("wasm");
        let lent = match self.user {
            Some(_) => lend_to_an_ordinary_user(templates, names, &place),
            None => lend(templates, names, &place),
        };
        self.give(&data);
        self.data = Some(data);
        (lent.unwrap() > 0).then_some(self)
    }

    /// What this host can't hold for this user: what a refusal says could be accepted.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        gaps_in(&self.run(&["--", "true"]).stderr)
    }

    /// The words of `run` that accept these.
    #[must_use]
    pub fn accepting(&self) -> Vec<String> {
        self.gaps().into_iter().flat_map(|gap| ["--accept-gap".to_owned(), gap]).collect()
    }

    /// Gives a file or folder, with everything in it, to the user who runs the program.
    pub fn give(&self, path: &Path) {
        let Some(user) = self.user else { return };
        std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
        if std::fs::symlink_metadata(path).unwrap().is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                self.give(&entry.unwrap().path());
            }
        }
    }

    /// A folder that goes with this.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program itself.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Where it keeps runs and the audit log.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Writes a file into the folder, and gives its path.
    pub fn file(&self, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name.as_ref());
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A command, ready for more arguments. Standard input is empty.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.beside(&self.program, args);
        command
            .env("COFFERDAM_STATE", self.state())
            .env("HOME", self.folder.path().join("home"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("COFFERDAM_DATA")
            .stdin(Stdio::null());
        if let Some(data) = &self.data {
            command.env("COFFERDAM_DATA", data);
        }
        command
    }

    /// Another program, started as the same user and in no sandbox.
    #[must_use]
    pub fn beside<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={user}"), format!("--regid={user}")]);
                command.args(["--clear-groups", "--inh-caps=-all"]).arg(program);
                command
            }
        };
        command.args(args).stdin(Stdio::null());
        command
    }

    /// The same in a mount namespace of its own, after a shell script that may mount over the state
    /// folder (`$STATE`), which is there by then. Needs root.
    pub fn call_after<S: AsRef<OsStr>>(&self, script: &str, args: impl IntoIterator<Item = S>) -> Ran {
        std::fs::create_dir_all(self.state()).unwrap();
        let plain = self.command(args);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &format!("{script}\nexec \"$@\""), "sh"]);
        command.arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("STATE", self.state()).stdin(Stdio::null());
        finish(command)
    }

    /// Runs a command to its end.
    pub fn call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        finish(self.command(args))
    }

    /// `run` under profile `internal`, with more arguments.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.call(["run", "--profile", "internal"].iter().chain(args))
    }

    /// The same with `--json`: the Outcome.
    pub fn outcome(&self, args: &[&str]) -> Value {
        let ran = self.call(["run", "--profile", "internal", "--json"].iter().chain(args));
        ran.json()
    }

    /// `run` under profile `internal` with bytes on standard input.
    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(["run", "--profile", "internal"].iter().chain(args));
        let mut child = start(command.stdin(Stdio::piped()));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            let _ = stdin.write_all(&input); // the program may not want it all
        });
        let ran = wait(child, Instant::now());
        writer.join().unwrap();
        ran
    }
}

/// What a refusal says could be accepted.
pub(crate) fn gaps_in(refusal: &str) -> Vec<String> {
    let words: Vec<_> = refusal.split_whitespace().collect();
    words.windows(2).filter(|two| two[0] == "--accept-gap").map(|two| two[1].to_owned()).collect()
}

/// A user that no system gives to anybody: below those of containers, above those of people.
pub(crate) const ORDINARY: u32 = 61_234;

impl Drop for Product {
    /// Removes what a killed run left, while there is still a state folder that knows of it.
    fn drop(&mut self) {
        if self.state().join("runs").is_dir() {
            let _ = self.command(["gc"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Ran {
    /// Standard output as one JSON value.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Panics with everything that is known unless the exit code is this one.
    #[must_use]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// A process that a test started. If the test fails before it is over, it is killed.
#[derive(Debug)]
pub struct Started(Option<Child>);

impl Started {
    /// The process, which nothing kills any more.
    #[must_use]
    pub fn into_child(mut self) -> Child {
        self.0.take().unwrap()
    }
}

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

/// Starts a command with its output captured.
pub fn start(command: &mut Command) -> Started {
    Started(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
}

/// Runs a command to its end.
pub fn finish(mut command: Command) -> Ran {
    let began = Instant::now();
    wait(start(&mut command), began)
}

/// How long a process of a test may take: far more than any does on a slow machine.
const BOUND: Duration = Duration::from_secs(300);

/// Waits for a process to end, and kills it if it doesn't.
pub fn wait(child: Started, began: Instant) -> Ran {
    let (ended, told) = mpsc::channel::<()>();
    let pid = child.id().to_string();
    std::thread::spawn(move || {
        if told.recv_timeout(BOUND) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-9", &pid]).status(); // it may end just now
        }
    });
    let Output { status, stdout, stderr } = child.into_child().wait_with_output().unwrap();
    drop(ended);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: text(stdout),
        stderr: text(stderr),
        took: began.elapsed(),
    }
}
