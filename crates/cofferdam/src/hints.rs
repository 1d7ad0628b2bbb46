//! What to try next, after a run that failed.
//!
//! A sandbox lacks things that are there outside, and a program says so in its own words. The last
//! lines of its standard error are read for the few that everybody meets: a module or a file that is
//! on the host and not inside, no network, a file of somebody else's, a read-only place.
//!
//! What the program wrote is hostile text. A name in it is compared with what lies beside the script,
//! in the working directory or in the workspace, and nothing else is done with it: a hint names a file
//! of the host, quoted, or no file. Absolute names aren't looked up, so that a program can't learn from
//! a hint what there is elsewhere. There are at most [`MOST`] hints, each of bounded length.

mod modules;
mod said;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use cofferdam_core::egress::{DenialCode, Host};
use cofferdam_core::files::{ALWAYS_HIDDEN, Files, Shown};
use cofferdam_core::outcome::{End, FaultCode, Outcome};
use cofferdam_core::policy::{BackendName, Policy, Preset};
use cofferdam_core::request::Program;
use cofferdam_sys::process;

use crate::cli;
use crate::places;
use crate::presets::{self, Machine};
use crate::python::{self, Surroundings};

/// More would bury the closing line.
const MOST: usize = 3;

/// The pattern of [`ALWAYS_HIDDEN`] for files that hold variables.
const SETTINGS: &str = "**/.env*";

/// The longest name that is shown or looked up: NAME_MAX in `linux/limits.h`.
const NAME_BYTES: usize = 255;

/// The most linear memory that a program of WebAssembly can have: 65,536 pages of 64 KiB.
const WASM_BYTES: u64 = 4 << 30;

/// What was asked for, as far as hints need it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The script's file on the host, as it was typed.
    file: Option<PathBuf>,
    /// The command, where it was one.
    command: Option<PathBuf>,
    files: Files,
    has_network: bool,
    memory_bytes: u64,
    /// Whether it is a job of a batch: its files come with it, and options are the batch's.
    is_job: bool,
    /// The first of the program's own arguments that is an option of `run`.
    late_option: Option<String>,
}

impl Asked {
    /// Of a request and its policy.
    pub(crate) fn new(file: Option<PathBuf>, program: &Program, policy: &Policy) -> Self {
        let command = match program {
            Program::Command(argv) if file.is_none() => {
                Some(PathBuf::from(std::ffi::OsStr::from_bytes(argv.program().to_bytes())))
            }
            _ => None,
        };
        let has_network = !policy.network.is_empty();
        let (files, memory_bytes) = (policy.files.clone(), policy.limits.memory_bytes);
        let late_option = late_option(program);
        Asked { file, command, files, has_network, memory_bytes, is_job: false, late_option }
    }

    /// Of a job of a batch and the policy that it came to.
    pub(crate) fn of_job(program: &Program, policy: &Policy) -> Self {
        Asked { is_job: true, late_option: None, ..Asked::new(None, program, policy) }
    }
}

/// The first argument of a script that is a long option of `run`. The name alone: what follows `=` may
/// be anything.
fn late_option(program: &Program) -> Option<String> {
    let Program::Script(script) = program else { return None };
    let mut words = script.args.iter().filter_map(|word| word.to_str().ok());
    words.find_map(|word| {
        let name = word.strip_prefix("--")?.split('=').next()?;
        cli::is_option_of_run(name).then(|| format!("--{name}"))
    })
}

/// The hints for a run. `tail` is the end of its standard error.
pub(crate) fn of(outcome: &Outcome, asked: &Asked, tail: &[u8]) -> Vec<String> {
    let failed = match outcome.end {
        End::Exited(code) => code != 0,
        End::OutOfMemory | End::Refused => true,
        _ => false,
    };
    if !failed && asked.files.workspace.is_none() && outcome.denials.counts().is_empty() {
        return vec![];
    }
    let around = Surroundings::ours();
    let mut hints: Vec<_> = places::warning(&asked.files, around.home.as_deref()).into_iter().collect();
    if failed {
        let host = Around { asked, around, user: process::effective_user() };
        hints.extend(host.hints(outcome, &String::from_utf8_lossy(tail)));
    } else if outcome.error.is_none() {
        // A program that takes a refusal in its stride says nothing of it.
        hints.extend(denied(outcome, asked.is_job));
    }
    hints
}

/// What was refused over UDP, of which a program sees a bare error.
fn refused_datagrams(outcome: &Outcome) -> Option<String> {
    let count = outcome.network.udp_refused;
    let what = if count == 1 { "a datagram was".to_owned() } else { format!("{count} datagrams were") };
    (count > 0).then(|| {
        format!(
            "{what} refused: over UDP only questions for names are answered, and no rule lets it out; use TCP"
        )
    })
}

/// The preset that has a host among others, where this machine's own configuration says so.
fn preset_of(host: &str) -> Option<&'static str> {
    let host = Host::parse(host.as_bytes()).ok()?;
    let nowhere = Machine { addresses: &|_| vec![], ..Machine::ours() };
    let known = [(Preset::Pypi, "--allow pypi"), (Preset::Npm, "--allow npm")];
    let has = |preset: &Preset| {
        presets::resolve(preset, &nowhere)
            .is_ok_and(|found| found.rules.iter().any(|rule| rule.host.matches(&host)))
    };
    known.into_iter().find(|(preset, _)| has(preset)).map(|(_, flag)| flag)
}

/// What was refused on its way out, and the flag that allows it. A connection says more than the question for its
/// name that came before.
fn denied(outcome: &Outcome, is_job: bool) -> Option<String> {
    let all = || outcome.denials.counts().iter().map(|counted| &counted.denial);
    let denial = all().find(|denial| denial.port.is_some()).or_else(|| all().next())?;
    let start = if is_job { "start the batch with" } else { "add" };
    let preset = denial.needs.as_ref().and_then(|_| preset_of(&denial.host)).map(str::to_owned);
    Some(match preset.as_ref().or(denial.needs.as_ref()) {
        Some(needs) => format!(
            "it was refused {denial}: if it is to reach that, {start} {needs} (`cofferdam policy suggest` has all)"
        ),
        None if matches!(denial.code, DenialCode::UpstreamTls | DenialCode::UpstreamUnreachable) => {
            format!("{denial}: {}", denial.code.sentence())
        }
        None if is_about_a_credential(denial.code) => {
            format!("it was refused {denial}: {}", denial.code.sentence())
        }
        None => format!("it was refused {denial}, which no rule allows"),
    })
}

fn is_about_a_credential(code: DenialCode) -> bool {
    matches!(
        code,
        DenialCode::CredentialExpired
            | DenialCode::CredentialWrongHost
            | DenialCode::CredentialWrongPlace
            | DenialCode::ForeignCredential
    )
}

/// What was asked for, and the host on which a name is looked up.
struct Around<'a> {
    asked: &'a Asked,
    around: Surroundings,
    user: u32,
}

/// Something of the host that has the name that a program missed.
struct Neighbour {
    folder: PathBuf,
    name: PathBuf,
}

impl Around<'_> {
    fn hints(&self, outcome: &Outcome, text: &str) -> Vec<String> {
        let code = outcome.error.as_ref().map(|fault| fault.code);
        let mut hints = vec![];
        if matches!(code, Some(FaultCode::NotFound | FaultCode::NotExecutable)) {
            hints.extend(self.no_program());
        } else if matches!(
            code,
            Some(FaultCode::PolicyDenied | FaultCode::BackendRefused | FaultCode::ProgramUnfit)
        ) {
            hints.extend(self.option_after_the_script());
        } else if matches!(outcome.end, End::Exited(_)) {
            let ran_hosts = outcome.backend != Some(BackendName::Wasm);
            hints.extend(said::missing_module(text).and_then(|module| self.no_module(module, ran_hosts)));
            hints.extend(said::missing_files(text).into_iter().filter_map(|name| self.no_file(&name)));
            hints.extend(said::denied_files(text).into_iter().filter_map(|name| self.not_yours(&name)));
            hints.extend(refused_datagrams(outcome));
            match denied(outcome, self.asked.is_job) {
                Some(denied) => hints.push(denied),
                None => hints.extend(said::no_network(text).then(|| self.no_network()).flatten()),
            }
            hints.extend(said::read_only(text).then(read_only));
        }
        hints.extend(self.more_than_32_bits(outcome, text));
        let mut seen = std::collections::BTreeSet::new();
        hints.retain(|hint| seen.insert(hint.clone()));
        hints.truncate(MOST);
        hints
    }

    /// A command that the sandbox doesn't have and the host does.
    fn no_program(&self) -> Option<String> {
        let command = self.asked.command.as_ref()?;
        if let Some(folder) = self.environment_of(command) {
            let python = self.pass(&format!("--venv {}", word(&self.typed(&folder))));
            let name = command.file_name().unwrap_or_default();
            return Some(format!(
                "{} belongs to a virtual environment, whose interpreter is not inside: {python}, and name \
                 the command {}",
                shown(command),
                word(Path::new(name))
            ));
        }
        if command.components().count() > 1 || command.starts_with(".") {
            return self.no_file(command.to_str()?);
        }
        let found = self.around.on_path(command.as_os_str())?;
        // What is in /usr is inside, and a shim only looks for a program elsewhere.
        let inside = ["/usr", "/bin", "/sbin"].iter().any(|folder| found.starts_with(folder));
        let folder = found.parent().filter(|folder| !inside && !folder.ends_with("shims"))?;
        let show = self.show(&format!("--in {folder}:{folder}", folder = word(folder)));
        Some(format!(
            "on this machine that is {}, which is not inside: {show} and name its whole path",
            shown(&found)
        ))
    }

    /// The virtual environment that a command with a path is in, as it lies on the host.
    fn environment_of(&self, command: &Path) -> Option<PathBuf> {
        if command.components().count() < 2 {
            return None; // it was looked up in PATH
        }
        let base = match &self.asked.files.workspace {
            Some(workspace) => &workspace.host,
            None => &self.around.folder,
        };
        let inside = command.strip_prefix("/workspace").unwrap_or(command);
        let path = base.join(inside);
        let folder = python::environment_of(&path)?;
        fs::symlink_metadata(&path).is_ok().then_some(folder)
    }

    fn option_after_the_script(&self) -> Option<String> {
        let option = self.asked.late_option.as_ref()?;
        Some(format!(
            "{option} stands after the script, where everything is the program's own: options of run go \
             before it"
        ))
    }

    /// Says how an option is passed. A batch has them for all its jobs.
    fn pass(&self, options: &str) -> String {
        let verb = if self.asked.is_job { "start the batch with" } else { "pass" };
        format!("{verb} {options}")
    }

    /// The same for one that shows something.
    fn show(&self, options: &str) -> String {
        let verb = if self.asked.is_job { "start the batch with" } else { "show it with" };
        format!("{verb} {options}")
    }

    /// A file that the program missed: hidden, or not inside at all.
    fn no_file(&self, name: &str) -> Option<String> {
        if let Some(hint) = self.by_its_old_name(name) {
            return Some(hint);
        }
        let path = relative(name)?;
        if let Some(workspace) = &self.asked.files.workspace
            && fs::symlink_metadata(workspace.host.join(&path)).is_ok()
        {
            return self.hidden(&path); // what isn't hidden is there, or the program removed it
        }
        if let Some(inside) = self.shown_elsewhere(&path) {
            return Some(format!("{} is inside at {}: open it there", shown(&path), shown(&inside)));
        }
        let found = self.beside(name)?;
        if self.asked.files.workspace.is_some() {
            let name = found.name.file_name().unwrap_or_default();
            let inside = Path::new("/inputs").join(name);
            let host = self.typed(&found.folder.join(&found.name));
            return Some(format!(
                "{} is not in the workspace: {}, and it is at {}",
                shown(&found.name),
                self.show(&format!("--in {}", word(&host))),
                shown(&inside)
            ));
        }
        let hidden = || self.hidden(&found.name); // a workspace wouldn't show it either
        (!self.asked.is_job).then(hidden).flatten().or_else(|| Some(self.only_one_file(&found)))
    }

    /// Where something is that is shown, by `--in` and in no folder that the program starts in. It may be a part
    /// of that.
    fn shown_elsewhere(&self, path: &Path) -> Option<PathBuf> {
        self.moved().find_map(|Shown { host, guest }| {
            let guest = guest.as_path();
            let own = path.strip_prefix(guest.file_name()?).ok().filter(|rest| is_there(host, rest));
            let rest = own.or_else(|| Some(path).filter(|rest| is_there(host, rest)))?;
            Some(if rest == Path::new("") { guest.to_owned() } else { guest.join(rest) })
        })
    }

    /// Something that is shown, and that the program looked for where it is on the host. No look at the host says
    /// so: the caller's own words do.
    fn by_its_old_name(&self, name: &str) -> Option<String> {
        let (rest, guest) = self.moved().find_map(|Shown { host, guest }| {
            Some((Path::new(name).strip_prefix(host).ok()?, guest.as_path()))
        })?;
        let inside = if rest == Path::new("") { guest.to_owned() } else { guest.join(rest) };
        Some(format!("{} is inside at {}: open it there", shown(Path::new(name)), shown(&inside)))
    }

    /// What is shown at another path than its own.
    fn moved(&self) -> impl Iterator<Item = &Shown> {
        self.asked.files.shown.iter().filter(|shown| shown.guest.as_path() != shown.host)
    }

    /// That something is hidden, by what, and what to do about it.
    fn hidden(&self, path: &Path) -> Option<String> {
        let bytes = path.as_os_str().as_bytes();
        let pattern = self.asked.files.hidden().into_iter().find(|pattern| pattern.covers(bytes))?;
        let pattern = pattern.as_str();
        let (name, is_job) = (shown(path), self.asked.is_job);
        if !ALWAYS_HIDDEN.contains(&pattern) {
            return Some(format!(
                "{name} is there, and hidden by the pattern {pattern:?}, of --hide, of the policy's `hide` or \
                 of where results go"
            ));
        }
        let always = format!("{name} is there, and hidden by the pattern {pattern:?}, as it always is");
        let advice = match pattern {
            SETTINGS if is_job => ": put single values into the job's `env`",
            SETTINGS => ": pass single values with --env or --pass-env",
            _ => "",
        };
        Some(always + advice)
    }

    /// The script is alone, or there is no script.
    fn only_one_file(&self, found: &Neighbour) -> String {
        let name = shown(&found.name);
        let folder = word(&self.typed(&found.folder));
        if self.asked.is_job {
            let lies = format!("{name} lies where the batch was started, and is not inside");
            // The `files` of a job are files; a folder takes a workspace.
            return match fs::metadata(found.folder.join(&found.name)) {
                Ok(there) if there.is_file() => format!("{lies}: put it among the job's `files`"),
                _ => format!("{lies}: start the batch with --workspace {folder}"),
            };
        }
        let file = self.asked.file.as_ref().and_then(|file| file.file_name());
        match file {
            Some(file) => format!(
                "only {} is inside, and {name} beside it is not: show the folder with --workspace {folder}",
                shown(Path::new(file))
            ),
            None => format!(
                "{name} of your working directory is not inside: show the folder with --workspace {folder}"
            ),
        }
    }

    fn not_yours(&self, name: &str) -> Option<String> {
        let workspace = self.asked.files.workspace.as_ref().filter(|workspace| !workspace.copy)?;
        let path = relative(name)?;
        let full = workspace.host.join(&path);
        // One that isn't there was to be made in its folder.
        let found =
            fs::symlink_metadata(&full).or_else(|_| fs::symlink_metadata(full.with_file_name("."))).ok();
        found.filter(|found| self.user != 0 && found.uid() != self.user).map(|_| {
            let copy = if self.asked.is_job { "start the batch with --copy" } else { "add --copy" };
            format!("{} isn't yours, and so can't be changed in place: {copy}", shown(&path))
        })
    }

    fn no_network(&self) -> Option<String> {
        let show = if self.asked.is_job {
            "put it among the job's `files`, or start the batch with --in"
        } else {
            "show it with --in"
        };
        (!self.asked.has_network).then(|| {
            format!(
                "a sandbox has no network but a loopback of its own, unless a rule allows a host: --allow HOST; or fetch \
                 what the program needs beforehand, and {show}"
            )
        })
    }

    /// A limit that WebAssembly has of itself, where more was asked for.
    fn more_than_32_bits(&self, outcome: &Outcome, text: &str) -> Option<String> {
        let short = outcome.end == End::OutOfMemory || said::no_memory(text);
        let asks = outcome.backend == Some(BackendName::Wasm) && self.asked.memory_bytes > WASM_BYTES;
        (short && asks).then(|| {
            format!(
                "WebAssembly has memory of 4 GiB at most, whatever {} allows (addresses have 32 bits): a container has \
                 what it says (--backend container --profile internal), if nobody outside controls \
                 the program or what it reads",
                if self.asked.is_job { "its policy" } else { "--memory" }
            )
        })
    }

    /// What lies by a name beside the script or in the working directory, and isn't the script.
    fn beside(&self, name: &str) -> Option<Neighbour> {
        let name = relative(name)?;
        let script = self.asked.file.as_ref().map(|file| self.around.folder.join(file));
        let is_there = |folder: &PathBuf| {
            let path = folder.join(&name);
            Some(&path) != script.as_ref() && fs::symlink_metadata(path).is_ok()
        };
        let folder = self.folders().into_iter().find(is_there)?;
        Some(Neighbour { folder, name })
    }

    /// The script's folder, and the working directory.
    fn folders(&self) -> Vec<PathBuf> {
        let working = &self.around.folder;
        let script = self.asked.file.as_ref().and_then(|file| Some(working.join(file.parent()?)));
        script.into_iter().chain([working.clone()]).collect()
    }

    /// A path as somebody in the working directory would type it.
    fn typed(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.around.folder) {
            Ok(below) if below == Path::new("") => ".".into(),
            Ok(below) => below.to_owned(),
            Err(_) => path.to_owned(),
        }
    }
}

fn is_there(folder: &Path, rest: &Path) -> bool {
    rest == Path::new("") || fs::symlink_metadata(folder.join(rest)).is_ok()
}

fn read_only() -> String {
    "only /workspace, /tmp and /home/user can be written: everything else is read-only".to_owned()
}

/// A name that a program wrote, if it can be that of something in a folder of ours: relative or in
/// `/workspace`, and leading nowhere else.
fn relative(name: &str) -> Option<PathBuf> {
    let name = name.strip_prefix("/workspace/").unwrap_or(name);
    if name.len() > NAME_BYTES || name.contains('\0') {
        return None;
    }
    let path: PathBuf = Path::new(name).components().filter(|part| *part != Component::CurDir).collect();
    let straight = path.components().all(|part| matches!(part, Component::Normal(_)));
    (straight && path != Path::new("")).then_some(path)
}

/// A path for a sentence: quoted, and of bounded length.
fn shown(path: &Path) -> String {
    let quoted = places::quoted(path);
    match quoted.char_indices().nth(NAME_BYTES) {
        Some((end, _)) => format!("{}…\"", &quoted[..end]),
        None => quoted,
    }
}

/// A path as a word of a command: bare where a shell would take it as it is.
fn word(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@%".contains(byte);
    match path.to_str() {
        Some(text) if text.bytes().all(|byte| plain(&byte)) && text.len() <= NAME_BYTES => text.to_owned(),
        _ => shown(path),
    }
}

#[cfg(test)]
mod tests;
