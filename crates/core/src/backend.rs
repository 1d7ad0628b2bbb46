//! The contract between the engine and anything that can run untrusted code.
//!
//! The engine turns a request into a [`Grant`], hands it to a [`Backend`], gets a [`Session`], and
//! executes programs in it. A backend never sees the policy; it sees what was granted.
//!
//! # Invariants
//!
//! 1. No sandbox opens without a [`Grant`], which only `policy::decide` makes.
//! 2. What a backend can't enforce, it says: [`Session::enforced`] is read from what was set up,
//!    not copied from the request.
//! 3. A session that failed is spent: later calls return [`BackendError::Spent`].
//! 4. Dropping a session destroys it.
//!
//! # Deliberately absent
//!
//! Which backend it is. Whatever differs is a value: [`Offers`], [`Fit`], an [`Ending`].

use std::collections::BTreeSet;
use std::ffi::{CString, NulError};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::artifact::Collect;
use crate::capability::{Capability, Gap, Offers};
use crate::files::Files;
use crate::grant::Grant;
use crate::lease::Deliveries;
use crate::outcome::{LimitName, RunId, Usage};
use crate::outlet::{Outlet, OutletError};
use crate::request::{Argv, File, FileName, Lang, Origin, Program, Request, Script, Variable, WindowSize};

/// A standard future on the heap, so that these traits can be used as objects.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that can run untrusted code under limits.
///
/// Every implementation must pass the conformance suite of `testkit`; that suite, not this
/// comment, is the whole contract.
pub trait Backend: Send + Sync {
    /// What this host lets it enforce, probed once, with the reason for each gap.
    fn offers(&self) -> &Offers;

    /// Everything that a grant asks for and that a sandbox of this grant would not enforce.
    fn gaps(&self, grant: &Grant) -> Vec<Gap>;

    /// What a sandbox of this run would leave on the host if we were killed: lines that
    /// [`Backend::sweep`] of the same backend understands. Written down before `open`.
    fn traces(&self, run: &RunId) -> Vec<String>;

    /// Removes what a run left that was killed. What isn't there any more is not an error.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] names what could not be removed.
    fn sweep(&self, traces: &[String]) -> Result<(), BackendError>;

    /// Whether it can run a request's program at all, with these files of the host. It is a look: nothing is
    /// run, and what only shows while the program runs isn't seen.
    fn fit(&self, request: &Request, files: &Files) -> Fit;

    /// Starts a sandbox that holds no more than `grant` allows.
    ///
    /// Returns as soon as a program can be handed over; the rest of the set-up may still be under
    /// way, and what goes wrong there is the error of the first [`Session::put`] or
    /// [`Session::exec`]. Dropping the future removes whatever had been started.
    ///
    /// `outlet` is the sandbox's only way out. What the sandbox listens on is attached to it before a program
    /// starts; a backend whose sandboxes send nothing anywhere attaches nothing.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the host refused an operation midway; whatever had been started
    /// has been removed.
    fn open<'a>(
        &'a self,
        run: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>>;
}

/// Whether a backend can run a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It can't, and why.
    No {
        /// What the program needs that isn't there.
        why: String,
        /// What to do about it; none if only another backend helps.
        fix: Option<String>,
    },
    /// It could, if something were there that this host lacks.
    NotYet {
        /// What is missing here.
        why: String,
        /// What brings it.
        fix: String,
    },
    /// It can be started, and will hardly do what it is for. Nobody is given such a backend who didn't ask
    /// for it by name.
    Unlikely {
        /// What the program seems to need that isn't there.
        why: String,
        /// What to do about it; none if only another backend helps.
        fix: Option<String>,
    },
    /// It can, and why that is known.
    Yes {
        /// In a clause: "it runs any Linux program".
        why: String,
    },
}

/// One sandbox, from `open` until it is dropped.
pub trait Session: Send {
    /// What holds right now, as set up.
    fn enforced(&self) -> &BTreeSet<Capability>;

    /// Whether it can still take a program, as far as that is known without waiting. A sandbox that
    /// was opened ahead may have died meanwhile.
    fn is_alive(&self) -> bool;

    /// Puts a file into the working directory, replacing one of the same name.
    ///
    /// # Errors
    ///
    /// [`BackendError::Put`] if it doesn't fit; the session can go on.
    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>>;

    /// Starts a program. One runs at a time.
    ///
    /// # Errors
    ///
    /// [`BackendError::Exec`] if the program can't be started, for example while another runs, and
    /// [`BackendError::Unfit`] if it is none that could be: nothing of it ran, and the session can take
    /// another. After [`BackendError::Gone`], [`BackendError::Silent`] and [`BackendError::Wire`] it may have
    /// run.
    fn exec(&mut self, exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>>;

    /// Kills every process of the program and reports what the kernel counted. Files can still be
    /// read afterwards.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if something may still be alive.
    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>>;

    /// Hands over whatever differs in the working directory from what was shown there. Only after
    /// [`Session::halt`], since nothing may change meanwhile, and once. Dropping the future ends it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Collect`] is the receiver's own failure; [`BackendError::Host`] is ours.
    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>>;

    /// Says what was used since the sandbox was opened or renewed, if its program has exited, nothing of
    /// it is left and the sandbox can be renewed. None otherwise: then only [`Session::halt`] ends it. Where
    /// there was something, [`Session::renew`] or a halt comes next.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if what was used can't be read.
    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>>;

    /// Makes a fresh sandbox of the same grant out of one that is settled, where that is cheaper than a new
    /// one: no file, no process and no memory of the program is in it, and its way out is `outlet`. None where it
    /// can't be had; the sandbox is closed then.
    ///
    /// # Errors
    ///
    /// As [`Session::close`]: there is no fresh sandbox, and something may be left of this one.
    fn renew(
        self: Box<Self>,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>>;

    /// Destroys the sandbox and whatever the host kept for it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] names what could not be removed; the next sweep tries again.
    fn close(self: Box<Self>) -> Boxed<'static, Result<(), BackendError>>;
}

/// What to start in a session. Not `Debug` or `Clone`: what is delivered may be secret.
pub struct Exec {
    /// The program.
    pub program: Program,
    /// Variables for it alone, on top of those that were granted.
    pub environment: Vec<Variable>,
    /// Credentials that it holds itself, on top of all variables.
    pub delivered: Deliveries,
    /// A private terminal of this size, which is then all three streams.
    pub terminal: Option<WindowSize>,
    /// Whether standard input will be written. Otherwise it is empty from the start.
    pub stdin: bool,
}

/// A program that runs. Its methods take `&self`, since its streams are used at the same time.
pub trait Running: Send + Sync {
    /// The next piece of output; none when both streams have ended. Safe to drop while waiting.
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>>;

    /// Writes to standard input; waits while the program doesn't read. An ended program is not
    /// an error: the bytes are gone, as they would be in a pipe.
    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>>;

    /// Ends standard input.
    fn close_stdin(&self) -> Boxed<'_, ()>;

    /// Sends a signal to the program and to what it started in its own group, as a terminal would. One
    /// that has ended is not an error.
    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>>;

    /// Tells the program that its terminal has another size. Without a terminal, or once it has
    /// ended, there is nobody to tell, which is not an error.
    fn resize(&self, size: WindowSize) -> Boxed<'_, Result<(), BackendError>>;

    /// Waits until the program, or the sandbox under it, has ended. Safe to drop while waiting and
    /// to call again.
    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>>;
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// From standard error.
    Stderr(Vec<u8>),
    /// From standard output.
    Stdout(Vec<u8>),
}

/// How a program ended, as the backend saw it. The deadline is the engine's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(u8),
    /// The sandbox ended under it.
    Lost,
    /// The kernel ran out of the memory that was granted; everything inside is being killed.
    OutOfMemory,
    /// A signal ended it.
    Signalled(u8),
}

/// What was there when a sandbox was halted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Processes besides the agent that were alive and were killed.
    pub processes: u32,
    /// What was used from `open` to now.
    pub usage: Usage,
    /// Limits that were reached.
    pub limits_hit: BTreeSet<LimitName>,
    /// Whether the kernel killed something inside for lack of memory.
    pub out_of_memory: bool,
}

/// The backend failed; the program's own failures are an [`Ending`].
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// What a program changed could not be taken out.
    #[error("could not write what the program changed")]
    Collect {
        /// What the receiver's file system said.
        source: io::Error,
    },
    /// The disk that was granted can't be made.
    #[error("could not make a disk of {bytes} bytes: {why}")]
    Disk {
        /// What was granted.
        bytes: u64,
        /// What is in the way.
        why: String,
    },
    /// The program could not be started.
    #[error("could not start `{}`: {source}", program.to_string_lossy())]
    Exec {
        /// The program as it was named.
        program: CString,
        /// What the kernel said.
        source: io::Error,
    },
    /// The sandbox ended before its program did.
    #[error("the sandbox ended before its program did")]
    Gone,
    /// The host refused one operation.
    #[error("could not {action}")]
    Host {
        /// The operation, as a verb phrase: "create the memory cgroup".
        action: String,
        /// What the host said.
        source: io::Error,
    },
    /// Files of the host can't be shown.
    #[error("could not show {}: {why}", path.display())]
    Files {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        fix: String,
    },
    /// What leads out of a sandbox can't be used.
    #[error(transparent)]
    Outlet(#[from] OutletError),
    /// A limit leaves no room for the sandbox itself.
    #[error("{limit} is too little for the sandbox itself")]
    NoRoom {
        /// The limit, as the policy spells it, and its value: "limits.memory of 4096 bytes".
        limit: String,
    },
    /// A file could not be put into the sandbox.
    #[error("could not put a file into the sandbox: {source}")]
    Put {
        /// What the kernel said.
        source: io::Error,
    },
    /// The agent inside neither answers nor listens. Whether it did what it was asked is unknown.
    #[error("the agent inside the sandbox was silent for {} s", within.as_secs())]
    Silent {
        /// How long it had.
        within: Duration,
    },
    /// The session failed earlier or has been halted.
    #[error("this sandbox has ended; open a new one")]
    Spent,
    /// The program is none that this backend can start. Nothing of it ran, and the session can take another.
    #[error("could not start `{}`: {why}", program.to_string_lossy())]
    Unfit {
        /// The program as it was named.
        program: CString,
        /// What is wrong with it, or what it needs that isn't there.
        why: String,
        /// What to do about it.
        fix: String,
    },
    /// The agent inside said something that it can't say. It is hostile or broken.
    #[error("the agent inside the sandbox spoke out of turn: {0}")]
    Wire(String),
}

impl BackendError {
    /// Turns an operation that failed into an error: `map_err(BackendError::host("read x"))`.
    pub fn host(action: impl Into<String>) -> impl FnOnce(io::Error) -> BackendError {
        move |source| BackendError::Host { action: action.into(), source }
    }
}

impl Program {
    /// The program's own name, for the audit and for messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Program::Command(argv) => argv.program().to_string_lossy().into_owned(),
            Program::Script(Script { lang, origin: Origin::File(name), .. }) => {
                format!("{} {}", lang.name(), name.as_c_str().to_string_lossy())
            }
            Program::Script(Script { lang, origin: Origin::Workspace(path), .. }) => {
                format!("{} {}", lang.name(), path.as_c_str().to_string_lossy())
            }
            Program::Script(Script { lang, .. }) => format!("{} code", lang.name()),
        }
    }
}

/// The longest argument that the kernel passes: MAX_ARG_STRLEN in `linux/binfmts.h`, 32 pages,
/// with the NUL byte at its end.
const ARGUMENT_BYTES: usize = 32 * 4096 - 1;

/// Turns a program into a command, for a backend that has a file system with interpreters in it.
///
/// Gives the file to put into the working directory first, if there is one: a script from a file,
/// or code that is too long for an argument.
#[must_use]
pub fn as_command(program: Program, interpreter: impl Fn(Lang) -> CString) -> (Option<File>, Argv) {
    let script = match program {
        Program::Command(argv) => return (None, argv),
        Program::Script(script) => script,
    };
    let Script { lang, origin, source, args: script_args } = script;
    let (file, mut args) = match (origin, CString::new(source)) {
        (Origin::Workspace(path), _) => (None, vec![path.as_argument()]),
        (Origin::Inline | Origin::Stdin, Ok(code)) if code.as_bytes().len() <= ARGUMENT_BYTES => {
            (None, inline(lang, code))
        }
        (Origin::File(name), source) => from_file(name, source),
        (Origin::Inline | Origin::Stdin, source) => from_file(FileName::of_long_code(lang), source),
    };
    args.extend(script_args);
    (file, Argv::new(interpreter(lang), args))
}

/// The file of a script, and the argument by which an interpreter takes it.
fn from_file(name: FileName, source: Result<CString, NulError>) -> (Option<File>, Vec<CString>) {
    let bytes = source.map_or_else(NulError::into_vec, CString::into_bytes);
    let args = vec![name.as_argument()];
    (Some(File { name, bytes, executable: false }), args)
}

/// The arguments by which an interpreter takes code on its command line.
fn inline(lang: Lang, code: CString) -> Vec<CString> {
    match lang {
        Lang::JavaScript => vec![c"-e".into(), code],
        Lang::Python => vec![c"-c".into(), code],
        // `sh -c CODE NAME ARGS…`: the first word after the code is $0.
        Lang::Shell => vec![c"-c".into(), code, c"sh".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(lang: Lang, origin: Origin, source: &[u8]) -> Program {
        Program::Script(Script { lang, origin, source: source.into(), args: vec![c"x".into()] })
    }

    fn words(argv: &Argv) -> Vec<String> {
        argv.words().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_script_from_a_file_lies_beside_its_arguments() {
        let name = FileName::new("a b.py").unwrap();
        let (file, argv) = as_command(script(Lang::Python, Origin::File(name), b"1"), |_| c"py".into());
        assert_eq!(file.unwrap().bytes, b"1");
        assert_eq!(words(&argv), ["py", "a b.py", "x"]);
    }

    #[test]
    fn a_name_that_looks_like_a_flag_is_passed_as_a_path() {
        let name = FileName::new("-c").unwrap();
        let (_, argv) = as_command(script(Lang::Python, Origin::File(name), b"1"), |_| c"py".into());
        assert_eq!(words(&argv), ["py", "./-c", "x"]);
    }

    #[test]
    fn a_script_of_the_workspace_is_run_where_it_lies() {
        let origin = Origin::Workspace(crate::request::WorkspacePath::new("tools/a.py").unwrap());
        assert_eq!(script(Lang::Python, origin.clone(), b"").name(), "python tools/a.py");
        let (file, argv) = as_command(script(Lang::Python, origin, b""), |_| c"py".into());
        assert_eq!(file, None);
        assert_eq!(words(&argv), ["py", "tools/a.py", "x"]);
    }

    #[test]
    fn code_on_the_command_line_needs_no_file() {
        let (file, argv) = as_command(script(Lang::Shell, Origin::Inline, b"echo $1"), |_| c"sh".into());
        assert_eq!(file, None);
        assert_eq!(words(&argv), ["sh", "-c", "echo $1", "sh", "x"]);
    }

    #[test]
    fn code_that_no_argument_can_hold_becomes_a_file_and_loses_nothing() {
        for source in [vec![b'#'; ARGUMENT_BYTES + 1], b"print(1)\0".to_vec()] {
            let program = script(Lang::Python, Origin::Stdin, &source);
            let (file, argv) = as_command(program, |_| c"py".into());
            assert_eq!(file.unwrap().bytes, source);
            assert_eq!(words(&argv), ["py", "script.py", "x"]);
        }
    }
}
