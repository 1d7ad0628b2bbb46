//! The command line: what can be typed, and which file does it.

mod audit;
mod batch;
mod credential;
mod doctor;
mod gc;
mod options;
mod policy;
mod run;
mod schema;
#[cfg(feature = "wasm")]
mod setup;
mod words;

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use crate::files::{FileError, Node, load_issuers, load_node};
use crate::{host, report};

/// The exit code of whatever is refused, wrongly used or our own fault.
pub(crate) const REFUSED: u8 = 125;

/// The most columns of help, where the terminal has more. What is broken into lines here has no more.
const WIDTH: usize = 100;

/// Runs code that an agent wrote, inside the boundary that its risk calls for.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, max_term_width = WIDTH, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[cfg(feature = "wasm")]
const EXAMPLES: &str = "\
Examples:
  cofferdam setup python                              once, a minute or two
  cofferdam run script.py                             run a script in WebAssembly
  cofferdam run -c 'print(1+1)'                       run a line of Python
  cofferdam batch < jobs.jsonl                        run a job a line
  cofferdam run --profile internal -- make test       run any command, in a container
  cofferdam doctor                                    what this machine can enforce
  cofferdam doctor --exposure                         what code would inherit here without Cofferdam

The default profile is `untrusted`: it never runs in a container, and in WebAssembly what fits that.
Say `--profile internal` if nobody outside controls the program or what it reads.";

#[cfg(not(feature = "wasm"))]
const EXAMPLES: &str = "\
Examples:
  cofferdam run --profile internal script.py          run a script in a container
  cofferdam run --profile internal -c 'print(1+1)'    run a line of Python
  cofferdam run --profile internal -- make test       run any command
  cofferdam batch --profile internal < jobs.jsonl     run a job a line
  cofferdam doctor                                    what this machine can enforce
  cofferdam doctor --exposure                         what code would inherit here without Cofferdam

The default profile is `untrusted`: it never runs in a container. Say `--profile internal` if
nobody outside controls the program or what it reads.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program in a sandbox
    Run(Box<run::RunArgs>),
    /// Run many programs, each in a fresh sandbox: a job a line in, an Outcome a line out
    Batch(Box<batch::BatchArgs>),
    /// Show what this machine can enforce, why not, and how to mend it
    Doctor(doctor::DoctorArgs),
    /// Check a policy file, or show the policy that a run would be judged by
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the JSON Schema of a file or an output
    Schema {
        /// Which
        what: Schema,
    },
    /// Show the audit log, or verify that nobody changed it
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Show the credentials that may live, try those who mint them, revoke what a run left
    Credential {
        #[command(subcommand)]
        command: credential::CredentialCommand,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Remove what killed runs left (every other command does so too)
    Gc,
    /// Prepare what has to be prepared once: the Python that runs in WebAssembly
    #[cfg(feature = "wasm")]
    Setup {
        #[command(subcommand)]
        what: SetupCommand,
    },
    /// Mint, revoke and try credentials, for the process that started this
    #[command(hide = true)]
    Broker,
    /// Let out what sandboxes send, for the process that started this
    #[command(hide = true)]
    Egress,
    /// Run programs of WebAssembly for the host, inside a jail
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    WasmWorker,
}

#[cfg(feature = "wasm")]
#[derive(Debug, Subcommand)]
enum SetupCommand {
    /// Make a template of Python: a minute or two, once
    Python(setup::PythonArgs),
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Read policy files and say what is wrong with them, and where
    Check {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Show the policy that a run would be judged by: defaults, your own, this file, the node's ceiling
    Show {
        /// A policy file
        file: Option<PathBuf>,
        /// Print JSON instead of TOML
        #[arg(long)]
        json: bool,
    },
    /// Say whether a connection or a request would be let out, by which rule, and what else that lets out
    ///
    /// The exit code is 0 if it would, and 1 if it wouldn't.
    Explain {
        /// A host, and maybe a port: api.example.com, db.internal:5432; or a URL
        host: String,
        /// A method
        method: Option<String>,
        /// A path, `/` unless it is said
        path: Option<String>,
        /// A policy file, besides your own
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// A rule, as `run` takes it
        #[arg(long, value_name = "RULE", value_parser = options::allow)]
        allow: Vec<cofferdam_core::policy::AllowFlag>,
    },
    /// Print the rules that would have let out what a run was denied, to be read and added by a person
    Suggest {
        /// A run's id, or `last`
        #[arg(default_value = "last")]
        run: String,
        /// Print a unified diff of this policy file instead of flags
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Show the events of a run
    Show {
        /// A run's id, `last`, or `all`
        #[arg(default_value = "last")]
        run: String,
        /// Print the log's own lines
        #[arg(long)]
        json: bool,
    },
    /// Look for edits, gaps, reordering and a cut tail
    Verify,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Schema {
    /// A line that `batch` reads
    Job,
    /// What `run --json` prints
    Outcome,
    /// The policy file
    Policy,
}

/// Does what was typed, and gives the exit code.
pub(crate) fn main() -> ExitCode {
    cofferdam_sys::process::settle_signals();
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == PROXY) {
        return ExitCode::from(cofferdam_egress::proxy::main()); // before there is a second thread, or a file open
    }
    if words.get(1).is_some_and(|word| word == BROKER) {
        return ExitCode::from(broker());
    }
    #[cfg(feature = "wasm")]
    if words.get(1).is_some_and(|word| word == WORKER) {
        return worker(); // before anything is looked at that a jail doesn't have
    }
    let cli = match parse(&words) {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error, &words),
    };
    set_up_reports();
    let code = match cli.command {
        Command::Run(args) => run::main(*args),
        Command::Batch(args) => batch::main(&args),
        Command::Doctor(args) => with_output(|out| doctor::main(&args, out)),
        Command::Policy { command } => with_output(|out| policy_command(command, out)),
        Command::Schema { what } => with_output(|out| schema_command(what, out)),
        Command::Audit { command } => with_output(|out| audit_command(command, out)),
        Command::Credential { command } => with_output(|out| credential::main(&command, out)),
        Command::Completions { shell } => with_output(|out| {
            // It panics where it can't write.
            let mut script = vec![];
            clap_complete::generate(shell, &mut Cli::command(), "cofferdam", &mut script);
            out.write_all(&script)?;
            Ok(0)
        }),
        Command::Gc => with_output(gc::main),
        #[cfg(feature = "wasm")]
        Command::Setup { what: SetupCommand::Python(args) } => setup::python(&args),
        Command::Egress => cofferdam_egress::proxy::main(),
        Command::Broker => broker(),
        #[cfg(feature = "wasm")]
        Command::WasmWorker => return worker(),
    };
    ExitCode::from(code)
}

/// The subcommand of the proxy: `clap`'s name of [`Command::Egress`].
pub(crate) const PROXY: &str = "egress";

/// The subcommand of the broker: `clap`'s name of [`Command::Broker`].
pub(crate) const BROKER: &str = "broker";

/// An identity for a run that begins now.
pub(crate) use run::new_run;

/// Serves whoever started us: it alone reads the operator's issuers.
fn broker() -> u8 {
    let state =
        || node().map_or_else(|_| host::state_folder(&Node::default()), |node| host::state_folder(&node));
    let issuers = || load_issuers(&host::operator_files("issuers.toml"));
    cofferdam_broker::process::main(state, issuers, || crate::egress::trusted(&node().unwrap_or_default()))
}

/// The subcommand of a worker: `clap`'s name of [`Command::WasmWorker`].
#[cfg(feature = "wasm")]
pub(crate) const WORKER: &str = "wasm-worker";

/// Serves whoever started us in a jail, over standard input.
#[cfg(feature = "wasm")]
fn worker() -> ExitCode {
    match cofferdam_backends::wasm::worker::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // who started us sees that we are gone
    }
}

/// Reads the command line. Of `run`, clap sees the options alone; the program is [`words`]' business.
fn parse(all: &[OsString]) -> Result<Cli, clap::Error> {
    let (options, named) = own_options(all);
    let mut cli = Cli::try_parse_from(options)?;
    if let (Command::Run(args), Some(named)) = (&mut cli.command, named) {
        args.take(named);
    }
    Ok(cli)
}

/// The words that are ours, and what `run` is to run.
fn own_options(all: &[OsString]) -> (Vec<OsString>, Option<words::Named>) {
    let [program, command, rest @ ..] = all else { return (all.to_vec(), None) };
    let cli = Cli::command();
    let Some(run) = cli.find_subcommand("run").filter(|_| command == "run") else {
        return (all.to_vec(), None);
    };
    let (options, named) = words::split(run, rest);
    ([vec![program.clone(), command.clone()], options].concat(), named)
}

/// Whether `run` has a long option of this name.
pub(crate) fn is_option_of_run(name: &str) -> bool {
    let cli = Cli::command();
    let run = cli.find_subcommand("run");
    run.is_some_and(|run| run.get_arguments().any(|argument| argument.get_long() == Some(name)))
}

/// Help and version are what was asked for; everything else is wrong usage, which `run --json`
/// reports as an Outcome too.
fn wrong_usage(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print(); // the reader may have gone
        return ExitCode::SUCCESS;
    }
    let (options, _) = own_options(words);
    let mut typed = options.iter().skip(1).filter_map(|word| word.to_str());
    if typed.next() == Some("run") && typed.any(|word| word == "--json") {
        run::report_wrong_usage(&error.render().to_string());
    } else {
        let _ = error.print();
    }
    ExitCode::from(REFUSED)
}

/// How `miette` draws the place of an error in a file: with colours and lines where a person sees
/// them, plainly elsewhere.
fn set_up_reports() {
    let plain = !report::colours(&io::stderr());
    let _ = miette::set_hook(Box::new(move |_| {
        let theme =
            if plain { miette::GraphicalTheme::unicode_nocolor() } else { miette::GraphicalTheme::unicode() };
        Box::new(miette::GraphicalReportHandler::new_themed(theme).with_width(100))
    }));
}

/// What a command that isn't a run can end with.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What couldn't be done and why.
    pub(crate) message: String,
    /// What to do next.
    pub(crate) fix: Option<String>,
}

impl Failure {
    /// A failure without advice of its own.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        Failure { message: report::chain(error), fix: None }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure { message: format!("could not write the output: {error}"), fix: None }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure { message: format!("{:?}", miette::Report::new(error)), fix: None }
    }
}

/// Standard output, and whether its reader has gone.
struct Output {
    out: io::StdoutLock<'static>,
    closed: Rc<Cell<bool>>,
}

impl Output {
    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.closed.set(true);
            }
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.noted(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.noted(result)
    }
}

/// Runs a command with buffered output, and says on standard error what went wrong. A reader that has
/// seen enough is nothing to talk about.
fn with_output(command: impl FnOnce(&mut dyn Write) -> Result<u8, Failure>) -> u8 {
    let closed = Rc::new(Cell::new(false));
    let mut out = io::BufWriter::new(Output { out: io::stdout().lock(), closed: Rc::clone(&closed) });
    let result = command(&mut out).and_then(|code| out.flush().map(|()| code).map_err(Failure::from));
    match result {
        _ if closed.get() => run::OUTPUT_CLOSED,
        Ok(code) => code,
        Err(failure) => {
            report::complain(&failure.message, failure.fix.as_deref());
            REFUSED
        }
    }
}

fn policy_command(command: PolicyCommand, out: &mut dyn Write) -> Result<u8, Failure> {
    match command {
        PolicyCommand::Check { files } => {
            let right =
                policy::check(&files, &|name| std::env::var_os(name), report::colours(&io::stdout()), out)?;
            Ok(if right { 0 } else { REFUSED })
        }
        PolicyCommand::Show { file, json } => {
            let (policy, rest) = options::effective_policy(file.as_deref(), &[])?;
            let form = if json { policy::Form::Json } else { policy::Form::Toml };
            policy::show(&policy, &rest, form, out).map_err(|error| Failure::of(&error))?;
            Ok(0)
        }
        PolicyCommand::Explain { host, method, path, policy, allow } => {
            let (policy, _) = options::effective_policy(policy.as_deref(), &allow)?;
            let asked = policy::Asked::new(&host, method.as_deref(), path.as_deref());
            let yes = policy::explain(&policy, &asked, out).map_err(|error| Failure::of(&error))?;
            Ok(u8::from(!yes))
        }
        PolicyCommand::Suggest { run, policy } => {
            let state = host::state_folder(&node()?);
            policy::suggest(&state, &run, policy.as_deref(), out).map_err(|error| Failure::of(&error))?;
            Ok(0)
        }
    }
}

fn schema_command(what: Schema, out: &mut dyn Write) -> Result<u8, Failure> {
    let schema = match what {
        Schema::Job => schema::schema_job(),
        Schema::Outcome => schema::schema_outcome(),
        Schema::Policy => schema::schema_policy(),
    };
    serde_json::to_writer_pretty(&mut *out, &schema).map_err(|error| Failure::of(&error))?;
    writeln!(out)?;
    Ok(0)
}

fn audit_command(command: AuditCommand, out: &mut dyn Write) -> Result<u8, Failure> {
    let state = host::state_folder(&node()?);
    match command {
        AuditCommand::Show { run, json } => {
            audit::show(&state, &run, json, out).map_err(|error| Failure::of(&error))?;
            Ok(0)
        }
        AuditCommand::Verify => {
            let whole = audit::verify(&state, out).map_err(|error| Failure::of(&error))?;
            Ok(if whole { 0 } else { REFUSED })
        }
    }
}

/// The operator's settings for this node.
fn node() -> Result<Node, FileError> {
    load_node(&host::operator_files("node.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_help_that_is_broken_here_is_broken_again() {
        fn look(command: &clap::Command, all: &mut usize) {
            for help in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= WIDTH, "{}: {line}", command.get_name());
                    *all += 1;
                }
            }
            command.get_subcommands().for_each(|command| look(command, all));
        }
        let mut all = 0;
        look(&Cli::command(), &mut all);
        assert!(all > 30, "{all}");
    }
}
