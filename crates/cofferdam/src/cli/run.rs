//! `cofferdam run`: from what was typed to an Outcome.
//!
//! [`RunArgs`] is what was typed. [`prepare`] makes of it a request and a granted policy, reading
//! whatever has to be read; nothing has started by then. The engine does the rest.

mod program;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{Fault, FaultCode, Outcome, RunId};
use cofferdam_core::policy::{BackendName, Cpus, Environment, Layer, LimitsLayer, Policy, Profile, decide};
use cofferdam_core::request::{Request, Variable};
use cofferdam_engine::{Engine, policy_hash};

use super::Failure;
use super::words::Named;
use crate::console::{Console, Kept};
use crate::files::value::BadValue;
use crate::files::{FileError, Rest, load_policy, load_users_policy, value};
use crate::{host, report};

/// What follows `run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = FORMS)]
pub(super) struct RunArgs {
    /// How much the program is trusted: untrusted, internal, compute, managed
    #[arg(long, value_name = "NAME", value_parser = parse::<Profile>)]
    profile: Option<Profile>,
    /// The boundary: auto, container, wasm, microvm, gvisor, kata, hosted
    #[arg(long, value_name = "NAME", value_parser = backend)]
    backend: Option<Chosen>,
    /// A policy file; your own ~/.config/cofferdam/policy.toml is read too, if there is one
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Wall-clock time after which everything is killed: 500ms, 10s, 5m [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Limits", allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// Send SIGTERM at the deadline, and kill so much later
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Limits", allow_hyphen_values = true)]
    grace: Option<Duration>,
    /// Memory of everything inside together: 64MiB, 1GiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits", allow_hyphen_values = true)]
    memory: Option<u64>,
    /// Cores; fractions are possible [default: 1]
    #[arg(long, value_name = "N", value_parser = value::cpus, help_heading = "Limits", allow_hyphen_values = true)]
    cpus: Option<Cpus>,
    /// Processes and threads [default: 256]
    #[arg(long, value_name = "N", value_parser = number::<u32>, help_heading = "Limits", allow_hyphen_values = true)]
    pids: Option<u32>,
    /// Bytes in all writable places together [default: half of the memory]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits", allow_hyphen_values = true)]
    disk: Option<u64>,
    /// Files and folders in all writable places together [default: 100000]
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Limits", allow_hyphen_values = true)]
    files: Option<u64>,
    /// End the run once it has written so much to standard output and error
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits", allow_hyphen_values = true)]
    output_limit: Option<u64>,
    /// Set a variable inside; nothing of your environment gets in unless named
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Environment")]
    env: Vec<OsString>,
    /// Pass a variable of your environment on
    #[arg(long, value_name = "NAME", help_heading = "Environment")]
    pass_env: Vec<String>,
    /// Only a backend that enforces this, for example separate-kernel
    #[arg(long, value_name = "CAPABILITY", value_parser = capability, help_heading = "Boundary")]
    require: Vec<Capability>,
    /// Run although this can't be enforced; the Outcome reports it
    #[arg(long, value_name = "CAPABILITY", value_parser = capability, help_heading = "Boundary")]
    accept_gap: Vec<Capability>,
    /// Code instead of a file; what follows it is the program's
    #[arg(short, value_name = "CODE")]
    code: Option<OsString>,
    /// The language of -c and of standard input: python, sh, javascript [default: python]
    #[arg(long, value_name = "LANG", value_parser = program::lang)]
    lang: Option<cofferdam_core::request::Lang>,
    /// Give the program a private terminal
    #[arg(short)]
    tty: bool,
    /// Print one Outcome object instead of the program's output
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// With --json: pass standard input on (otherwise it is empty)
    #[arg(long, requires = "json", help_heading = "Output")]
    stdin: bool,
    /// Write the Outcome to a file, besides the live output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    outcome: Option<PathBuf>,
    /// A label for the Outcome and the audit
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, help_heading = "Output")]
    label: Vec<(String, String)>,
    /// No closing line
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    /// What to run, which clap never sees.
    #[arg(skip)]
    named: Option<Named>,
}

impl RunArgs {
    /// Takes in what to run.
    pub(super) fn take(&mut self, named: Named) {
        self.named = Some(named);
    }
}

const FORMS: &str = "\
cofferdam run [OPTIONS] FILE [ARGS]...
       cofferdam run [OPTIONS] -c CODE [ARGS]...
       cofferdam run [OPTIONS] - [ARGS]...
       cofferdam run [OPTIONS] -- COMMAND [ARGS]...";

const EXAMPLES: &str = "\
Examples:
  cofferdam run --profile internal hello.py a b          a script, with arguments
  cofferdam run --profile internal -c 'print(1+1)'       a line of Python
  generate | cofferdam run --profile internal -          code from standard input
  cofferdam run --profile internal -- sh -c 'ls /'       any command
  cofferdam run --profile internal --timeout 10s --memory 256MiB --json job.py

FILE is run by its first line or extension (.py, .sh, .js). Whatever follows FILE, CODE, - or -- is
the program's own. The sandbox has the host's /usr and, in /workspace, FILE alone: this version
shows it none of your other files. Pass data through standard input (`< /dev/null` closes it).

Exit codes: the program's own; 124 timed out; 125 refused; 126 and 127 can't be executed, not
found; 128+n ended by signal n; 130 cancelled; 137 out of memory; 141 output closed; 153 output
limit.";

/// `--backend`: a name, or `auto` said aloud.
#[derive(Clone, Copy, Debug)]
struct Chosen(Option<BackendName>);

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn backend(text: &str) -> Result<Chosen, String> {
    if text == "auto" { Ok(Chosen(None)) } else { parse(text).map(|name| Chosen(Some(name))) }
}

fn capability(text: &str) -> Result<Capability, String> {
    text.parse().map_err(|error| {
        let known: Vec<_> = Capability::ALL.iter().map(|known| known.name()).collect();
        format!("{error}; it is one of {}", known.join(", "))
    })
}

/// A time that lets something run.
fn time(text: &str) -> Result<Duration, BadValue> {
    value::nonzero(value::duration(text)?, text)
}

/// A size that lets something run.
fn size(text: &str) -> Result<u64, BadValue> {
    value::nonzero(value::size(text)?, text)
}

/// A number that lets something run.
fn number<N: TryFrom<u64> + Default + PartialEq>(text: &str) -> Result<N, BadValue> {
    value::nonzero(value::count(text)?, text)
}

/// The most bytes in a label: it goes into the Outcome and twice into the audit log.
const LABEL_BYTES: usize = 4096;

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    if name.is_empty() || text.len() > LABEL_BYTES {
        return Err(format!("a label has a name, and at most {LABEL_BYTES} bytes in all"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Why a run can't even be asked for.
#[derive(Debug, thiserror::Error)]
enum Unprepared {
    /// The request itself.
    #[error("{}", .0.message)]
    Request(Fault),
    /// A file of policy or of the node.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Unprepared {
    fn request(code: FaultCode, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Unprepared::Request(Fault { code, message: message.into(), fix: Some(fix.into()) })
    }

    /// In the words of an Outcome.
    fn into_fault(self) -> Fault {
        match self {
            Unprepared::Request(fault) => fault,
            Unprepared::File(error) => Fault {
                code: FaultCode::PolicyDenied,
                message: error.summary(),
                fix: Some(error.fix().to_owned()),
            },
        }
    }
}

/// A request with the policy that it will be judged by.
struct Prepared {
    request: Request,
    policy: Policy,
    state: PathBuf,
}

/// Runs what was typed; gives the exit code.
pub(super) fn main(args: RunArgs) -> u8 {
    let reporter = match Reporter::new(&args) {
        Ok(reporter) => reporter,
        Err(fault) => {
            report::complain(&fault.message, fault.fix.as_deref());
            return super::REFUSED;
        }
    };
    let run = match new_run() {
        Ok(run) => run,
        Err(error) => {
            report::complain(&format!("the kernel gives no random bytes: {error}"), None);
            return super::REFUSED;
        }
    };
    let passes_stdin = if args.json { args.stdin } else { true };
    let labels: BTreeMap<_, _> = args.label.iter().cloned().collect();
    let prepared = match prepare(args) {
        Ok(prepared) => prepared,
        Err(Unprepared::File(error)) if !reporter.json => {
            report::complain_about_file(error);
            return super::REFUSED;
        }
        Err(unprepared) => return reporter.refused(&run, labels, unprepared.into_fault()),
    };
    let console = if reporter.json { Console::capturing } else { Console::passing };
    match execute(&run, prepared, labels.clone(), || console(passes_stdin)) {
        Ok((outcome, kept)) => reporter.report(&outcome, &kept),
        Err(fault) => reporter.refused(&run, labels, fault),
    }
}

/// `run --json` that could not be read at all.
pub(super) fn report_wrong_usage(message: &str) {
    let Ok(run) = new_run() else { return };
    let first = message.split("\n\n").next().unwrap_or_default();
    let fault = Fault {
        code: FaultCode::BadRequest,
        message: first.trim().trim_start_matches("error: ").to_owned(),
        fix: Some("see `cofferdam run --help`".into()),
    };
    let reporter = Reporter { json: true, quiet: true, outcome: None };
    reporter.refused(&run, BTreeMap::new(), fault);
}

fn new_run() -> io::Result<RunId> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(RunId::new(now.as_millis() as u64, cofferdam_sys::fd::random_bytes()?))
}

/// Reads the program, the policies and the node's settings.
fn prepare(args: RunArgs) -> Result<Prepared, Unprepared> {
    let node = super::node()?;
    let layers = [users_layer()?, file_layer(args.policy.as_deref())?, flags_layer(&args)?];
    let policy = Policy::resolve(&layers, &node.ceiling).map_err(|over| {
        Unprepared::request(
            FaultCode::PolicyDenied,
            over.to_string(),
            "ask for less, or have the node's operator raise the ceiling in node.toml",
        )
    })?;
    let request = program::request(args)?;
    Ok(Prepared { request, policy, state: host::state_folder(&node) })
}

fn users_layer() -> Result<Layer, FileError> {
    let loaded = load_users_policy(&host::users_file("policy.toml"), &|name| std::env::var_os(name))?;
    Ok(loaded.map(|loaded| loaded.layer).unwrap_or_default())
}

fn file_layer(file: Option<&Path>) -> Result<Layer, FileError> {
    let loaded = file.map(|file| load_policy(file, &|name| std::env::var_os(name))).transpose()?;
    Ok(loaded.map(|loaded| loaded.layer).unwrap_or_default())
}

/// The policy that a run without flags would be judged by, for `policy show`.
pub(super) fn effective_policy(file: Option<&Path>) -> Result<(Policy, Rest), Failure> {
    let node = super::node()?;
    let environment = |name: &str| std::env::var_os(name);
    let users = load_users_policy(&host::users_file("policy.toml"), &environment)?;
    let file = file.map(|file| load_policy(file, &environment)).transpose()?;
    let rest = file.as_ref().or(users.as_ref()).map(|loaded| loaded.rest.clone()).unwrap_or_default();
    let layers: Vec<_> = [users, file].into_iter().flatten().map(|loaded| loaded.layer).collect();
    let policy = Policy::resolve(&layers, &node.ceiling).map_err(|over| Failure::of(&over))?;
    Ok((policy, rest))
}

/// What the flags say, which is above everything that files say.
fn flags_layer(args: &RunArgs) -> Result<Layer, Unprepared> {
    let set = args.env.iter().map(variable).collect::<Result<_, _>>()?;
    Ok(Layer {
        profile: args.profile,
        backend: args.backend.map(|chosen| chosen.0),
        limits: LimitsLayer {
            timeout: args.timeout,
            grace: args.grace,
            memory_bytes: args.memory,
            cpus: args.cpus,
            pids: args.pids,
            disk_bytes: args.disk,
            files: args.files,
            output_bytes: args.output_limit,
        },
        environment: Environment { set, passed: passed(&args.pass_env)? },
        accept_gaps: args.accept_gap.iter().copied().collect(),
        require: args.require.iter().copied().collect(),
        ..Layer::default()
    })
}

fn variable(text: &OsString) -> Result<Variable, Unprepared> {
    let bytes = text.clone().into_vec();
    let bad = |why: String| {
        // Without the text: it may be a secret.
        Unprepared::request(FaultCode::BadRequest, format!("--env: {why}"), "write it as NAME=VALUE")
    };
    let at = bytes.iter().position(|&byte| byte == b'=').ok_or_else(|| bad("there is no `=`".into()))?;
    let name = String::from_utf8(bytes[..at].to_vec()).map_err(|error| bad(error.to_string()))?;
    Variable::new(name, &bytes[at + 1..]).map_err(|error| bad(error.to_string()))
}

/// The variables that `--pass-env` names. One that isn't set is said, not skipped.
fn passed(names: &[String]) -> Result<Vec<Variable>, Unprepared> {
    names
        .iter()
        .map(|name| {
            value::passed_name(name).map_err(|_| {
                // Without the text: it may be a secret.
                let message = "--pass-env takes the name of a variable, without a value";
                Unprepared::request(FaultCode::BadRequest, message, "name it, or use --env NAME=VALUE")
            })?;
            let unset = || {
                let message = format!("--pass-env {name}: that variable is not set here");
                Unprepared::request(
                    FaultCode::BadRequest,
                    message,
                    "set it, or give it with --env NAME=VALUE",
                )
            };
            let value = std::env::var_os(name).ok_or_else(unset)?;
            Variable::new(name.as_str(), value.into_vec()).map_err(|_| unset())
        })
        .collect()
}

/// Decides, and runs what was granted.
fn execute(
    run: &RunId,
    prepared: Prepared,
    labels: BTreeMap<String, String>,
    console: impl FnOnce() -> io::Result<Console>,
) -> Result<(Outcome, [Kept; 2]), Fault> {
    let Prepared { mut request, policy, state } = prepared;
    request.labels = labels;
    let host_fault = |message: String| Fault { code: FaultCode::HostError, message, fix: None };
    let engine = Engine::open(host::candidates_for_runs(&state), &state)
        .map_err(|error| report::state_fault(&error, &state))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| host_fault(format!("could not start the event loop: {error}")))?;
    let _ = engine.sweep(); // what can't be removed now is tried again; it is no reason not to run
    let decision = decide(&policy, policy_hash(&policy), &request);
    let result = runtime.block_on(async {
        let console =
            console().map_err(|error| host_fault(format!("could not use our own streams: {error}")))?;
        let outcome = match decision {
            Ok(grant) => engine.run(run, request, grant, &console).await,
            Err(denial) => {
                let (message, fix) = (denial.to_string(), Some(denial.fix()));
                let fault = Fault { code: FaultCode::PolicyDenied, message, fix };
                engine.refuse(run, &request, Some(policy.profile), fault)
            }
        };
        Ok((outcome, console.into_kept()))
    });
    // A write to a reader that doesn't read may still wait on its thread; it is not waited for.
    runtime.shutdown_background();
    result
}

/// The exit code where nobody reads what we write: 128 and SIGPIPE.
const OUTPUT_CLOSED: u8 = 141;

/// Where the Outcome goes.
struct Reporter {
    json: bool,
    quiet: bool,
    outcome: Option<File>,
}

impl Reporter {
    /// Opens the Outcome's file, so that a name that can't be written refuses the run.
    fn new(args: &RunArgs) -> Result<Self, Fault> {
        let open = |path: &PathBuf| {
            File::create(path).map_err(|error| Fault {
                code: FaultCode::BadRequest,
                message: format!("could not create {}: {error}", path.display()),
                fix: Some("name a file that can be written with --outcome".into()),
            })
        };
        let outcome = args.outcome.as_ref().map(open).transpose()?;
        Ok(Reporter { json: args.json, quiet: args.quiet, outcome })
    }

    /// Reports a request that never became a run.
    fn refused(self, run: &RunId, labels: BTreeMap<String, String>, fault: Fault) -> u8 {
        let outcome = report::never_ran(run, labels, fault);
        let kept = [Kept::nothing(self.json), Kept::nothing(self.json)];
        self.report(&outcome, &kept)
    }

    /// Writes the Outcome where it was asked for, and what a person should read.
    fn report(self, outcome: &Outcome, kept: &[Kept; 2]) -> u8 {
        let json = report::json(outcome, kept);
        let mut written = Ok(());
        if let Some(file) = self.outcome {
            written = json.write_line(&mut io::BufWriter::new(file));
        }
        if self.json {
            let mut out = io::BufWriter::with_capacity(64 << 10, io::stdout().lock());
            written = written.and(json.write_line(&mut out).and_then(|()| out.flush()));
        } else {
            report::for_a_person(outcome, kept, self.quiet);
        }
        match written {
            Ok(()) => outcome.exit_code(),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => OUTPUT_CLOSED,
            Err(error) => {
                let fix = "make room where it goes; the audit log has the run";
                report::complain(&format!("could not write the Outcome: {error}"), Some(fix));
                super::REFUSED
            }
        }
    }
}
