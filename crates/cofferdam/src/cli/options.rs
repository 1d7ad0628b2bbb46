//! The options that say what a run may do and see: those that `run` shares with every other command
//! that runs programs.
//!
//! [`Options`] is what was typed, to be flattened into a command's own arguments. [`Options::judge`]
//! makes a policy of it, together with the policy files and the node's ceiling. Nothing has started by
//! then, and nothing that is named is executed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use cofferdam_core::capability::Capability;
use cofferdam_core::files::{Files, Pattern, Shown, Workspace};
use cofferdam_core::lease::Leases;
use cofferdam_core::outcome::{Fault, FaultCode};
use cofferdam_core::policy::{
    AllowFlag, BackendName, Cpus, Environment, FilesLayer, Layer, LimitsLayer, NetworkRule, Policy, Profile,
};
use cofferdam_core::request::Variable;

use super::Failure;
use crate::credentials::{self, CredFlag};
use crate::files::value::BadValue;
use crate::files::{FileError, Node, Rest, load_policy, load_users_policy, value};
use crate::presets::{self, Machine};
use crate::python::{self, Surroundings};
use crate::{host, places};

/// What a run may do and see, as flags.
#[derive(Args, Debug)]
pub(super) struct Options {
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
    /// Show a folder as the working directory; what the program changes there is not written back
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    workspace: Option<PathBuf>,
    /// Copy the workspace first, so that files of any owner can be changed inside
    #[arg(long, help_heading = "Files")]
    copy: bool,
    /// Show a file or folder read-only, in /inputs by its own name unless GUEST is given
    #[arg(long = "in", value_name = "HOST[:GUEST]", help_heading = "Files")]
    inputs: Vec<OsString>,
    /// Hide what matches of the workspace, besides **/.env* and **/.git/hooks
    #[arg(long, value_name = "PATTERN", value_parser = value::pattern, help_heading = "Files")]
    hide: Vec<Pattern>,
    /// Let a changed file out although a tool of the host may run it
    #[arg(long, value_name = "PATTERN", value_parser = value::pattern, help_heading = "Files")]
    keep: Vec<Pattern>,
    /// Run scripts with this Python: a path, or a name in PATH
    #[arg(long, value_name = "PATH", conflicts_with = "venv", help_heading = "Files")]
    python: Option<PathBuf>,
    /// Run scripts with the Python of a virtual environment
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    venv: Option<PathBuf>,
    /// Let the program reach this and nothing else: [METHOD,METHOD ]HOST[:PORT][/GLOB][,private] over TLS,
    /// http://HOST, tcp://HOST:PORT, tls://HOST unopened, or what pypi, npm or git:HOST are configured for
    #[arg(long, value_name = "RULE", value_parser = allow, help_heading = "Network")]
    allow: Vec<AllowFlag>,
    /// Mint a credential for this run alone, and see it dead at its end: NAME=ISSUER:KEY=VALUE,… of the
    /// operator's issuers.toml, for example db=postgres.main:template=readers,database=shop
    #[arg(long, value_name = "SPEC", value_parser = CredFlag::parse, help_heading = "Network")]
    cred: Vec<CredFlag>,
    /// Only a backend that enforces this, for example separate-kernel
    #[arg(long, value_name = "CAPABILITY", value_parser = capability, help_heading = "Boundary")]
    require: Vec<Capability>,
    /// Run although this can't be enforced; the Outcome reports it
    #[arg(long, value_name = "CAPABILITY", value_parser = capability, help_heading = "Boundary")]
    accept_gap: Vec<Capability>,
    /// Prepare what the backend needs without asking, if it isn't: once, a minute or two
    #[cfg_attr(feature = "wasm", arg(long, help_heading = "Boundary"))]
    #[cfg_attr(not(feature = "wasm"), arg(skip))]
    pub(super) setup: bool,
    /// A label for the Outcome and the audit
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, help_heading = "Output")]
    pub(super) label: Vec<(String, String)>,
}

/// A rule, or the name of a preset.
pub(super) fn allow(text: &str) -> Result<AllowFlag, String> {
    NetworkRule::parse_flag(text).map_err(|bad| format!("{bad}; {}", bad.instead()))
}

/// `--backend`: a name, or `auto` said aloud.
#[derive(Clone, Copy, Debug)]
struct Chosen(Option<BackendName>);

/// Reads a value for clap.
pub(super) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
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
    check_label(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Refuses a label without a name, and one that is too long.
pub(super) fn check_label(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || name.len() + 1 + value.len() > LABEL_BYTES {
        return Err(format!("a label has a name, and at most {LABEL_BYTES} bytes in all"));
    }
    Ok(())
}

/// Why a run can't even be asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unprepared {
    /// The request itself.
    #[error("{}", .0.message)]
    Request(Fault),
    /// A file of policy or of the node.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Unprepared {
    /// A request that can't be granted, with what to do about it.
    pub(super) fn request(code: FaultCode, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Unprepared::Request(Fault { code, message: message.into(), fix: Some(fix.into()) })
    }

    /// In the words of an Outcome.
    pub(super) fn into_fault(self) -> Fault {
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

/// What a run will be judged by, and where it is recorded.
pub(super) struct Judged {
    /// The policy.
    pub(super) policy: Policy,
    /// What it says of traffic.
    pub(super) rest: Rest,
    /// The folder of runs and of the audit log.
    pub(super) state: PathBuf,
    /// The node's settings.
    pub(super) node: Node,
    /// Files with certificates that clients of this machine trust for what they are configured to reach.
    pub(super) roots: Vec<PathBuf>,
    /// Who mints what the policy and the flags name.
    pub(super) leases: Arc<dyn Leases>,
}

impl Options {
    /// Reads the policies and the node's settings, and makes one policy of them and the flags.
    pub(super) fn judge(&self) -> Result<Judged, Unprepared> {
        let node = super::node()?;
        let environment = |name: &str| std::env::var_os(name);
        let users = load_users_policy(&host::users_file("policy.toml"), &environment)?;
        let file = self.policy.as_deref().map(|file| load_policy(file, &environment)).transpose()?;
        let rest = file.as_ref().or(users.as_ref()).map(|loaded| loaded.rest.clone()).unwrap_or_default();
        let [users, file] = [users, file].map(|loaded| loaded.map(|loaded| loaded.layer).unwrap_or_default());
        let mut reached = reached(&self.allow)?;
        let broker = credentials::broker().map_err(Unprepared::Request)?;
        // Before the others: on a host that both name, requests carry the credential.
        let of_credentials = credentials::rules(&broker, &self.cred).map_err(Unprepared::Request)?;
        reached.rules.splice(0..0, of_credentials);
        let mut layers = [users, file, flags_layer(self, &reached)?];
        if self.copy {
            copy_workspace(&mut layers)?;
        }
        let mut policy = Policy::resolve(&layers, &node.ceiling).map_err(|over| {
            Unprepared::request(
                FaultCode::PolicyDenied,
                over.to_string(),
                "ask for less, or have the node's operator raise the ceiling in node.toml",
            )
        })?;
        let leases = credentials::leases(broker, &rest, &self.cred);
        let leases = leases.map_err(Unprepared::Request)?;
        if !self.hide.is_empty() && policy.files.workspace.is_none() {
            let fix = "name the folder with --workspace DIR; what isn't shown needs no hiding";
            return Err(Unprepared::request(FaultCode::BadRequest, "--hide: there is no workspace", fix));
        }
        let state = host::state_folder(&node);
        let refused = |error: BadValue| Unprepared::request(FaultCode::BadRequest, error.why, error.help);
        places::settle(&mut policy.files).map_err(refused)?;
        places::refuse_state(&policy.files, &state).map_err(refused)?;
        refuse_workspace_as_prefix(&policy.files)?;
        Ok(Judged { policy, rest, state, node, roots: reached.roots, leases })
    }
}

/// An environment, and the interpreter that it names, are shown whole. A prefix that holds the workspace, or
/// lies in it beside the environment itself, would show what the workspace hides; the environment's settings
/// may be the work of whoever wrote what is in it.
fn refuse_workspace_as_prefix(files: &Files) -> Result<(), Unprepared> {
    let (Some(workspace), Some(python)) = (&files.workspace, &files.python) else { return Ok(()) };
    let around = |shown: &&Shown| workspace.host.starts_with(&shown.host);
    // A prefix is shown where it lies on the host.
    let inside = |shown: &&Shown| {
        let prefix = shown.guest.as_path() == shown.host && shown.host.starts_with(&workspace.host);
        prefix && python.venv.as_ref().is_some_and(|venv| *venv != shown.guest)
    };
    let (shown, how) = match (files.shown.iter().find(around), files.shown.iter().find(inside)) {
        (Some(shown), _) => (shown, "the workspace is in it"),
        (_, Some(shown)) => (shown, "it is in the workspace, which hides some of it"),
        (None, None) => return Ok(()),
    };
    let message = format!("{} would be shown whole, and {how}", shown.host.display());
    let fix = "name another interpreter or environment, or another workspace; --in shows folders as well";
    Err(Unprepared::request(FaultCode::BadRequest, message, fix))
}

/// `--copy` is about the workspace in force, whoever named it.
fn copy_workspace(layers: &mut [Layer]) -> Result<(), Unprepared> {
    let in_force = layers.iter_mut().rev().find_map(|layer| layer.files.workspace.as_mut());
    let workspace = in_force.ok_or_else(|| {
        let fix = "name the folder with --workspace DIR, or in a policy file";
        Unprepared::request(FaultCode::BadRequest, "--copy: there is no workspace to copy", fix)
    })?;
    workspace.copy = true;
    Ok(())
}

/// The policy that a run with no other flags than these would be judged by.
pub(super) fn effective_policy(file: Option<&Path>, allow: &[AllowFlag]) -> Result<(Policy, Rest), Failure> {
    let node = super::node()?;
    let environment = |name: &str| std::env::var_os(name);
    let users = load_users_policy(&host::users_file("policy.toml"), &environment)?;
    let file = file.map(|file| load_policy(file, &environment)).transpose()?;
    let rest = file.as_ref().or(users.as_ref()).map(|loaded| loaded.rest.clone()).unwrap_or_default();
    let mut layers: Vec<_> = [users, file].into_iter().flatten().map(|loaded| loaded.layer).collect();
    let reached = reached(allow).map_err(|unprepared| {
        let fault = unprepared.into_fault();
        Failure { message: fault.message, fix: fault.fix }
    })?;
    layers.push(Layer { network: reached.rules, ..Layer::default() });
    let mut policy = Policy::resolve(&layers, &node.ceiling).map_err(|over| Failure::of(&over))?;
    let wrong = |error: BadValue| Failure { message: error.why, fix: Some(error.help) };
    places::settle(&mut policy.files).map_err(wrong)?;
    Ok((policy, rest))
}

/// What `--allow` comes to on this machine, in the order in which it was typed.
fn reached(flags: &[AllowFlag]) -> Result<presets::Found, Unprepared> {
    let mut all = presets::Found::default();
    for flag in flags {
        match flag {
            AllowFlag::Rule(rule) => all.rules.push(rule.clone()),
            AllowFlag::Preset(preset) => {
                let found = presets::resolve(preset, &Machine::ours());
                let found = found.map_err(|error| wrong_file(&format!("--allow {preset}"), &error))?;
                all.rules.extend(found.rules);
                all.variables.extend(found.variables);
                all.roots.extend(found.roots);
            }
        }
    }
    Ok(all)
}

/// What the flags say, which is above everything that files say.
fn flags_layer(args: &Options, reached: &presets::Found) -> Result<Layer, Unprepared> {
    let typed = args.env.iter().map(variable).collect::<Result<Vec<_>, _>>()?;
    let set = reached.variables.iter().cloned().chain(typed).collect();
    Ok(Layer {
        files: files_layer(args)?,
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
            // What leaves is bounded by policy alone.
            bytes_out: None,
            requests: None,
            connections: None,
            hosts: None,
        },
        environment: Environment { set, passed: passed(&args.pass_env)? },
        network: reached.rules.clone(),
        credentials: args.cred.iter().map(CredFlag::rule).collect(),
        accept_gaps: args.accept_gap.iter().copied().collect(),
        require: args.require.iter().copied().collect(),
    })
}

/// Folders, files and the interpreter that flags name. A relative path begins at the working directory.
fn files_layer(args: &Options) -> Result<FilesLayer, Unprepared> {
    let around = Surroundings::ours();
    let named = |flag: &'static str| move |error: BadValue| wrong_file(flag, &error);
    let workspace = args.workspace.as_ref().map(|folder| -> Result<_, Unprepared> {
        let host = places::workspace(folder, &around.folder).map_err(named("--workspace"))?;
        Ok(Workspace { host, copy: args.copy })
    });
    let inputs = args.inputs.iter().map(|text| input(text, &around.folder).map_err(named("--in")));
    let mut shown = inputs.collect::<Result<Vec<_>, _>>()?;
    let found = match (&args.python, &args.venv) {
        (Some(path), _) => Some(python::interpreter(path, &around).map_err(named("--python"))?),
        (None, Some(folder)) => Some(python::environment(folder, &around).map_err(named("--venv"))?),
        (None, None) => None,
    };
    let (python, of_python) = found.map(|found| (found.python, found.shown)).unzip();
    shown.extend(of_python.unwrap_or_default());
    // Here as well as later: a layer keeps only the last of two things in one place.
    let mut together = Files { shown, ..Files::default() };
    places::settle(&mut together).map_err(named("--in"))?;
    Ok(FilesLayer {
        workspace: workspace.transpose()?,
        shown: together.shown,
        hide: args.hide.clone(),
        keep: args.keep.clone(),
        python,
    })
}

/// One `--in`.
fn input(text: &OsStr, folder: &Path) -> Result<Shown, BadValue> {
    let (host, guest) = places::split(text);
    let shown = places::input(&host, guest.as_deref(), folder);
    let whole = guest.is_some() && !folder.join(&host).exists() && folder.join(text).exists();
    shown.map_err(|error| match whole {
        true => {
            BadValue::new(error.why, "write HOST:GUEST in full, since this name has a colon before a slash")
        }
        false => error,
    })
}

fn wrong_file(flag: &str, error: &BadValue) -> Unprepared {
    Unprepared::request(FaultCode::BadRequest, format!("{flag}: {}", error.why), error.help.as_str())
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
