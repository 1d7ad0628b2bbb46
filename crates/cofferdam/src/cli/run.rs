//! `cofferdam run`: from what was typed to an Outcome.
//!
//! [`RunArgs`] is what was typed. [`prepare`] makes of it a request and a granted policy, reading
//! whatever has to be read; nothing has started by then. The engine does the rest.

mod program;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
#[cfg(not(feature = "wasm"))]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use cofferdam_core::lease::Leases;
use cofferdam_core::outcome::{Fault, FaultCode, Outcome, RunId};
use cofferdam_core::outlet::Outlets;
use cofferdam_core::policy::{Policy, decide};
use cofferdam_core::request::{Program, Request};
use cofferdam_core::weaken::stop_at;
use cofferdam_engine::run::Keep;
use cofferdam_engine::{Engine, policy_hash};

use super::options::{Judged, Options, Unprepared};
use super::words::Named;
use crate::artifacts::{self, Keeper};
use crate::console::{Console, Kept};
use crate::hints::{self, Asked};
use crate::{credentials, egress, host, report};
pub(super) use program::lang;

/// What `run` and `batch` are both told: the policy, and what is said of a run.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = FORMS)]
pub(super) struct RunArgs {
    #[command(flatten)]
    options: Options,
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
    /// Put the files that the program changed into DIR/files, with DIR/changes.json; DIR is new, empty
    /// or has an earlier result
    #[arg(long, value_name = "DIR", value_parser = absolute, help_heading = "Output")]
    out: Option<PathBuf>,
    /// Write what the program changed as a unified diff, which `git apply` takes
    #[arg(long, value_name = "FILE", value_parser = absolute, help_heading = "Output")]
    diff: Option<PathBuf>,
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
  cofferdam run hello.py a b                             a script, with arguments
  cofferdam run -c 'print(1+1)'                          a line of Python
  generate | cofferdam run -                             code from standard input
  cofferdam run --profile internal -- sh -c 'ls /'       any command
  cofferdam run --profile internal --workspace . --venv .venv app.py
  cofferdam run --profile internal --timeout 10s --memory 256MiB --json job.py

FILE is run by its first line or extension (.py, .sh, .js). Whatever follows FILE, CODE, - or -- is
the program's own. Python that needs no processes or threads runs in WebAssembly, by
default; anything else in a container, with the host's /usr, for profile `internal`. In /workspace
is FILE alone; --workspace DIR shows a folder there instead, and --in HOST a file or folder in
/inputs. Nothing of yours is ever written in place. Standard input is the program's (`< /dev/null`
closes it).

Exit codes: the program's own; 124 timed out; 125 refused; 126 and 127 can't be executed, not
found; 128+n ended by signal n; 130 cancelled; 137 out of memory; 141 output closed; 153 output
limit.";

/// A path from the root on, so that it means the same wherever we are by then.
pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

/// A request with the policy that it will be judged by.
struct Prepared {
    request: Request,
    policy: Policy,
    state: PathBuf,
    asked: Asked,
    /// Where what the program changes goes.
    keeper: Option<Keeper>,
    /// Ways out.
    outlets: Arc<dyn Outlets>,
    /// Who mints credentials.
    leases: Arc<dyn Leases>,
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
    let on_terminal = args.tty;
    let passes_stdin = if args.json { args.stdin } else { true };
    let (set_up, may_ask) = (args.options.setup, !args.json && !args.quiet);
    let labels: BTreeMap<_, _> = args.options.label.iter().cloned().collect();
    let prepared = match prepare(args) {
        Ok(prepared) => prepared,
        Err(Unprepared::File(error)) if !reporter.json => {
            report::complain_about_file(error);
            return super::REFUSED;
        }
        Err(unprepared) => return reporter.refused(&run, labels, unprepared.into_fault()),
    };
    let Prepared { policy, request, state, .. } = &prepared;
    if let Err(fault) = set_up_for(policy, request, state, set_up, may_ask) {
        return reporter.refused(&run, labels, fault);
    }
    let console = || {
        let new = if reporter.json { Console::capturing } else { Console::passing };
        let console = new(passes_stdin)?;
        if on_terminal && passes_stdin { console.for_a_terminal() } else { Ok(console) }
    };
    match execute(&run, prepared, labels.clone(), console) {
        Ok((outcome, kept)) => reporter.report(&outcome, &kept),
        Err(fault) => reporter.refused(&run, labels, fault),
    }
}

/// Sees that what a request needs is prepared, where that is wanted.
#[cfg(feature = "wasm")]
pub(super) use super::setup::see_to as set_up_for;

/// What would have made a run quicker.
#[cfg(feature = "wasm")]
pub(super) use super::setup::slow_import;

/// There is nothing that would.
#[cfg(not(feature = "wasm"))]
pub(super) fn slow_import(_: &Outcome, _: &Program, _: &Policy, _: &Path) -> Option<String> {
    None
}

/// Whether a program is kept to be looked at after its run.
pub(super) fn is_short(program: &Program) -> bool {
    const BYTES: usize = 1 << 20;
    matches!(program, Program::Script(script) if script.source.len() <= BYTES)
}

/// There is nothing to prepare.
#[cfg(not(feature = "wasm"))]
pub(super) fn set_up_for(_: &Policy, _: &Request, _: &Path, _: bool, _: bool) -> Result<(), Fault> {
    Ok(())
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

pub(crate) fn new_run() -> io::Result<RunId> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(RunId::new(now.as_millis() as u64, cofferdam_sys::fd::random_bytes()?))
}

/// Reads the program, the policies and the node's settings.
fn prepare(args: RunArgs) -> Result<Prepared, Unprepared> {
    let Judged { mut policy, rest, state, node, roots, leases } = args.options.judge()?;
    let outlets = egress::outlets(&node, &rest, &roots).map_err(Unprepared::Request)?;
    let keeper = Keeper::prepare(args.out.as_deref(), args.diff.as_deref(), &policy.files)
        .map_err(Unprepared::Request)?;
    stop_at("result-prepared");
    let places = [&args.out, &args.diff];
    let hidden = places.into_iter().flatten().filter_map(|place| artifacts::hidden(place, &policy.files));
    let hidden: Vec<_> = hidden.collect();
    policy.files.hide.extend(hidden);
    let file = match &args.named {
        Some(Named::File(file, _)) if file != "-" => Some(PathBuf::from(file)),
        _ => None,
    };
    let request = program::request(args, &policy.files)?;
    let asked = Asked::new(file, &request.program, &policy);
    Ok(Prepared { request, policy, state, asked, keeper, outlets, leases })
}

/// Decides, and runs what was granted.
fn execute(
    run: &RunId,
    prepared: Prepared,
    labels: BTreeMap<String, String>,
    console: impl FnOnce() -> io::Result<Console>,
) -> Result<(Outcome, [Kept; 2]), Fault> {
    let Prepared { mut request, policy, state, asked, mut keeper, outlets, leases } = prepared;
    request.labels = labels;
    let host_fault = |message: String| Fault { code: FaultCode::HostError, message, fix: None };
    let engine = Engine::open(host::candidates_for_runs(&state), &state)
        .map_err(|error| report::state_fault(&error, &state))?
        .with_outlets(outlets)
        .with_leases(leases);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| host_fault(format!("could not start the event loop: {error}")))?;
    let _ = engine.sweep(); // what can't be removed now is tried again; it is no reason not to run
    let swept = credentials::sweep(&state, engine.audit(), credentials::PATIENCE);
    swept.iter().for_each(|line| report::note(line));
    let decision = decide(&policy, policy_hash(&policy), &request);
    let program = Some(&request.program).filter(|program| is_short(program)).cloned();
    let result = runtime.block_on(async {
        let console =
            console().map_err(|error| host_fault(format!("could not use our own streams: {error}")))?;
        let outcome = match decision {
            Ok(grant) => {
                let keep = keeper.as_mut().map(|keeper| keeper as &mut dyn Keep);
                engine.run(run, request, grant, &console, keep).await
            }
            Err(denial) => {
                let (message, fix) = (denial.to_string(), Some(denial.fix()));
                let fault = Fault { code: FaultCode::PolicyDenied, message, fix };
                engine.refuse(run, &request, Some(policy.profile), fault)
            }
        };
        let kept = console.into_kept();
        let mut outcome = outcome;
        outcome.hints.extend(hints::of(&outcome, &asked, &kept[1].tail()));
        let slow = program.and_then(|program| slow_import(&outcome, &program, &policy, &state));
        outcome.hints.extend(slow);
        outcome.hints.extend(keeper.as_ref().and_then(Keeper::note));
        Ok((outcome, kept))
    });
    // A write to a reader that doesn't read may still wait on its thread; it is not waited for.
    runtime.shutdown_background();
    result
}

/// The exit code where nobody reads what we write: 128 and SIGPIPE.
pub(super) const OUTPUT_CLOSED: u8 = 141;

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
            // The kernel's own links to open files are meant; any other may be somebody's trap.
            let own = path.starts_with("/dev") || path.starts_with("/proc");
            if !own && std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
                return Err(Fault {
                    code: FaultCode::BadRequest,
                    message: format!("--outcome: {} is a symbolic link", path.display()),
                    fix: Some("name what it leads to, or remove the link".into()),
                });
            }
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
        stop_at("outcome-printed");
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
