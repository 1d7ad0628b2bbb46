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

mod said;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use cofferdam_core::files::Files;
use cofferdam_core::outcome::{End, FaultCode, Outcome};
use cofferdam_core::policy::Policy;
use cofferdam_core::request::Program;
use cofferdam_sys::process;

use crate::places;
use crate::python::{self, Own, SYSTEM, Surroundings};

/// More would bury the closing line.
const MOST: usize = 3;

/// The longest name that is shown or looked up: NAME_MAX in `linux/limits.h`.
const NAME_BYTES: usize = 255;

/// What was asked for, as far as hints need it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The script's file on the host, as it was typed.
    file: Option<PathBuf>,
    /// The command, where it was one.
    command: Option<PathBuf>,
    files: Files,
    has_network: bool,
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
        Asked { file, command, files: policy.files.clone(), has_network }
    }
}

/// The hints for a run. `tail` is the end of its standard error.
pub(crate) fn of(outcome: &Outcome, asked: &Asked, tail: &[u8]) -> Vec<String> {
    let failed = match outcome.end {
        End::Exited(code) => code != 0,
        End::Refused => true,
        _ => false,
    };
    if !failed && asked.files.workspace.is_none() {
        return vec![];
    }
    let around = Surroundings::ours();
    let mut hints: Vec<_> = places::warning(&asked.files, around.home.as_deref()).into_iter().collect();
    if failed {
        let host = Host { asked, around, user: process::effective_user() };
        hints.extend(host.hints(outcome, &String::from_utf8_lossy(tail)));
    }
    hints
}

/// What was asked for, and the host on which a name is looked up.
struct Host<'a> {
    asked: &'a Asked,
    around: Surroundings,
    user: u32,
}

/// Something of the host that has the name that a program missed.
struct Neighbour {
    folder: PathBuf,
    name: PathBuf,
}

impl Host<'_> {
    fn hints(&self, outcome: &Outcome, text: &str) -> Vec<String> {
        let code = outcome.error.as_ref().map(|fault| fault.code);
        let mut hints = vec![];
        if matches!(code, Some(FaultCode::NotFound | FaultCode::NotExecutable)) {
            hints.extend(self.no_program());
        } else if matches!(outcome.end, End::Exited(_)) {
            hints.extend(said::missing_module(text).and_then(|module| self.no_module(module)));
            hints.extend(said::missing_files(text).into_iter().filter_map(|name| self.no_file(&name)));
            hints.extend(said::denied_files(text).into_iter().filter_map(|name| self.not_yours(&name)));
            hints.extend(said::no_network(text).then(|| self.no_network()).flatten());
            hints.extend(said::read_only(text).then(read_only));
        }
        let mut seen = std::collections::BTreeSet::new();
        hints.retain(|hint| seen.insert(hint.clone()));
        hints.truncate(MOST);
        hints
    }

    /// A command that the sandbox doesn't have and the host does.
    fn no_program(&self) -> Option<String> {
        let command = self.asked.command.as_ref()?;
        if command.components().count() > 1 || command.starts_with(".") {
            return self.no_file(command.to_str()?);
        }
        let found = self.around.on_path(command.as_os_str())?;
        // What is in /usr is inside, and a shim only looks for a program elsewhere.
        let inside = ["/usr", "/bin", "/sbin"].iter().any(|folder| found.starts_with(folder));
        let folder = found.parent().filter(|folder| !inside && !folder.ends_with("shims"))?;
        Some(format!(
            "on this machine that is {}, which is not inside: show it with --in {folder}:{folder} and name \
             its whole path",
            shown(&found),
            folder = word(folder)
        ))
    }

    fn no_module(&self, module: &str) -> Option<String> {
        if self.asked.files.workspace.is_none()
            && let Some(found) = self.beside(&format!("{module}.py")).or_else(|| self.beside(module))
        {
            return Some(self.only_one_file(&found));
        }
        let python = self.asked.files.python.as_ref();
        if let Some(venv) = python.and_then(|python| python.venv.as_ref()) {
            let folder = shown(venv.as_path());
            return Some(format!(
                "{module} isn't installed in {folder}: install it there, and run this again"
            ));
        }
        if python.is_some() {
            return None; // it was chosen by name: there is nothing better to propose
        }
        let near = || self.near_environment();
        Some(match python::own(&self.around) {
            Some(Own { path, venv: Some(folder) }) => other_python(&path, "--venv", &folder),
            _ if near().is_some() => {
                let folder = near().unwrap_or_default();
                format!("this ran {SYSTEM}; for the environment beside it pass --venv {}", word(&folder))
            }
            Some(Own { path, .. }) => other_python(&path, "--python", &path),
            None => format!(
                "{SYSTEM} doesn't have {module}, and there is no network to install it from: install it on \
                 this machine into a virtual environment, and pass --venv DIR"
            ),
        })
    }

    /// A virtual environment beside the script or in the working directory, by its usual names.
    fn near_environment(&self) -> Option<PathBuf> {
        let folders =
            self.folders().into_iter().flat_map(|folder| [folder.join(".venv"), folder.join("venv")]);
        folders
            .into_iter()
            .find(|folder| folder.join("pyvenv.cfg").is_file())
            .map(|folder| self.typed(&folder))
    }

    /// A file that the program missed: hidden, or not inside at all.
    fn no_file(&self, name: &str) -> Option<String> {
        let path = relative(name)?;
        if let Some(workspace) = &self.asked.files.workspace
            && fs::symlink_metadata(workspace.host.join(&path)).is_ok()
        {
            return self.hidden(&path); // what isn't hidden is there, or the program removed it
        }
        let found = self.beside(name)?;
        if self.asked.files.workspace.is_some() {
            let name = found.name.file_name().unwrap_or_default();
            let inside = Path::new("/inputs").join(name);
            let host = self.typed(&found.folder.join(&found.name));
            return Some(format!(
                "{} is not in the workspace: show it at {} with --in {}",
                shown(&found.name),
                shown(&inside),
                word(&host)
            ));
        }
        self.hidden(&found.name).or_else(|| Some(self.only_one_file(&found)))
    }

    fn hidden(&self, path: &Path) -> Option<String> {
        let bytes = path.as_os_str().as_bytes();
        let pattern = self.asked.files.hidden().into_iter().find(|pattern| pattern.covers(bytes))?;
        Some(format!(
            "{} is there, and hidden by the pattern {:?}: pass single values with --env or --pass-env",
            shown(path),
            pattern.as_str()
        ))
    }

    /// The script is alone, or there is no script.
    fn only_one_file(&self, found: &Neighbour) -> String {
        let name = shown(&found.name);
        let folder = word(&self.typed(&found.folder));
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
        found
            .filter(|found| self.user != 0 && found.uid() != self.user)
            .map(|_| format!("{} isn't yours, and so can't be changed in place: add --copy", shown(&path)))
    }

    fn no_network(&self) -> Option<String> {
        (!self.asked.has_network).then(|| {
            "there is no network inside unless a rule of the policy allows it: fetch what the program needs \
             beforehand, and show it with --in"
                .to_owned()
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

fn other_python(own: &Path, flag: &str, value: &Path) -> String {
    format!("your own python3 is {}, and this ran {SYSTEM}: pass {flag} {}", shown(own), word(value))
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
