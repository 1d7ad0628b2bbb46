//! Which Python a person means by `--python` and `--venv`, and what of the host it consists of.
//!
//! Everything is read from names, links and headers. Nothing that is named is ever started: a program
//! may have written it.
//!
//! - A *virtual environment* is a folder with a `pyvenv.cfg`. Its `bin/python` is a chain of links to
//!   the interpreter that it was made from, or a copy of that; `home` in `pyvenv.cfg` is that one's folder.
//! - An interpreter's *prefix* is the folder above the `bin` in which its real file lies. It finds its
//!   library there, by its own path; so each prefix is shown at its own path, and once more at every
//!   other name by which a link or `home` refers to it.
//! - A *shim* of pyenv is a shell script in a folder `shims` that looks for the interpreter each time.
//!
//! What lies in `/usr` is inside anyway.
//!
//! The links of an environment decide what is shown, and the code that is to be confined may have made
//! them: so a prefix counts only where Python's library is in it, and a folder of links only where one
//! of them leads to that interpreter.

mod elf;
mod pyenv;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use cofferdam_core::files::{GuestPath, Python, Shown};

use crate::files::value::BadValue;
use crate::places::{self, quoted};

/// An interpreter and what of the host it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The interpreter.
    pub(crate) python: Python,
    /// What it consists of.
    pub(crate) shown: Vec<Shown>,
}

/// Where a name is looked up. The process has one; tests make their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// The working directory.
    pub(crate) folder: PathBuf,
    /// The home folder.
    pub(crate) home: Option<PathBuf>,
    /// The folders of `PATH`.
    pub(crate) path: Vec<PathBuf>,
    /// `PYENV_ROOT`.
    pub(crate) pyenv_root: Option<PathBuf>,
    /// `PYENV_VERSION`.
    pub(crate) pyenv_version: Option<String>,
    /// `VIRTUAL_ENV`.
    pub(crate) virtual_env: Option<PathBuf>,
}

impl Surroundings {
    /// This process's own.
    pub(crate) fn ours() -> Self {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Surroundings {
            folder: std::env::current_dir().unwrap_or_default(),
            home: folder("HOME"),
            path: std::env::var_os("PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
            pyenv_root: folder("PYENV_ROOT"),
            pyenv_version: std::env::var("PYENV_VERSION").ok().filter(|version| !version.is_empty()),
            virtual_env: folder("VIRTUAL_ENV"),
        }
    }

    /// The first program of a name in `PATH`. Relative folders of it are passed over: what is in the
    /// working directory may have been written by the code that is to be confined.
    pub(crate) fn on_path(&self, name: &OsStr) -> Option<PathBuf> {
        self.all_on_path(name).next()
    }

    fn all_on_path<'a>(&'a self, name: &'a OsStr) -> impl Iterator<Item = PathBuf> + 'a {
        let folders = self.path.iter().filter(|folder| folder.is_absolute());
        folders.map(move |folder| folder.join(name)).filter(|path| is_executable(path))
    }
}

/// The most links that are followed, as the kernel has it: MAXSYMLINKS in `linux/namei.h`.
const MOST_LINKS: usize = 40;

/// Where the sandbox's own Python is, on the host and inside.
pub(crate) const SYSTEM: &str = "/usr/bin/python3";

/// The interpreter that `--python` names: a path, or a name to look up in `PATH`.
pub(crate) fn interpreter(named: &Path, around: &Surroundings) -> Result<Found, BadValue> {
    let bare = named.components().count() == 1 && named.file_name() == Some(named.as_os_str());
    let typed = if bare {
        around.on_path(named.as_os_str()).ok_or_else(|| {
            let why = format!("there is no {} in PATH", quoted(named));
            BadValue::new(
                why,
                "name the interpreter's path, or the folder of a virtual environment with --venv",
            )
        })?
    } else {
        around.folder.join(named)
    };
    let typed = match pyenv::shim(&typed) {
        Some(root) => pyenv::resolve(&typed, &root, around)?,
        None => typed,
    };
    if let Some(folder) = environment_of(&typed) {
        return environment(&folder, around);
    }
    let real = real_file(named, &typed)?;
    elf::runs_here(&real)?;
    let prefix = prefix_of(&real)?;
    refuse_no_python(&prefix)?;
    let mut shown = vec![];
    show_prefix(&prefix, &prefix, around, &mut shown)?;
    Ok(Found { python: Python { executable: named_inside(&real)?, venv: None }, shown })
}

/// The virtual environment that `--venv` names.
pub(crate) fn environment(named: &Path, around: &Surroundings) -> Result<Found, BadValue> {
    let help = "name the folder that `python3 -m venv FOLDER` made; an interpreter is named with --python";
    let folder = places::folder(named, &around.folder, help)?;
    let settings = settings(&folder).map_err(|error| no_environment(named, &folder, &error))?;
    let python = folder.join("bin/python");
    if fs::symlink_metadata(&python).is_err() {
        let why = format!("{} has no bin/python", quoted(named));
        return Err(BadValue::new(why, "make it anew with `python3 -m venv`, or name another folder"));
    }
    let lost = |error: io::Error| no_base(named, &error);
    let real = python.canonicalize().map_err(lost)?;
    elf::runs_here(&real)?;
    let home = home(&settings).ok_or_else(|| lost(io::ErrorKind::NotFound.into()))?;
    if !fs::metadata(&home).map_err(lost)?.is_dir() {
        return Err(lost(io::ErrorKind::NotADirectory.into()));
    }
    // A copy of the interpreter lies in the environment itself.
    let base = if real.starts_with(&folder) { home.join(real.file_name().unwrap_or_default()) } else { real };
    let prefix = match base.canonicalize() {
        Ok(base) => prefix_of(&base)?,
        Err(_) => prefix_of(&home.canonicalize().map_err(lost)?.join("python3"))?,
    };
    refuse_no_python(&prefix)?;
    let mut shown = vec![Shown { guest: place(&folder, "the virtual environment")?, host: folder.clone() }];
    show_prefix(&prefix, &prefix, around, &mut shown)?;
    for names in [names_of(&python), BTreeSet::from([home])] {
        for bin in names {
            show_folder(&bin, &folder, &prefix, around, &mut shown)?;
        }
    }
    also_as_typed(named, &folder, around, &mut shown);
    let venv = Some(place(&folder, "the virtual environment")?);
    let executable = GuestPath::new(&python).map_err(|error| cannot_be_shown(&python, "it", &error))?;
    Ok(Found { python: Python { executable, venv }, shown })
}

/// The virtual environment that a path to an interpreter is in. Nothing but the name of the file's own
/// folder counts, since its links lead out.
pub(crate) fn environment_of(python: &Path) -> Option<PathBuf> {
    let bin = python.parent()?;
    let folder = bin.parent()?;
    (bin.file_name() == Some(OsStr::new("bin")) && folder.join("pyvenv.cfg").is_file())
        .then(|| folder.to_owned())
}

/// The Python that a person's own `python3` is, if it isn't the sandbox's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The virtual environment that it is in.
    pub(crate) venv: Option<PathBuf>,
}

/// See [`Own`].
pub(crate) fn own(around: &Surroundings) -> Option<Own> {
    let is_environment = |folder: &&PathBuf| folder.join("pyvenv.cfg").is_file();
    if let Some(folder) = around.virtual_env.as_ref().filter(is_environment) {
        return Some(Own { path: folder.join("bin/python3"), venv: Some(folder.clone()) });
    }
    let found = around.on_path(OsStr::new("python3"))?;
    let path = match pyenv::shim(&found) {
        Some(root) => pyenv::resolve(&found, &root, around).ok()?,
        None => found,
    };
    let venv = environment_of(&path);
    let system = Path::new(SYSTEM).canonicalize().ok();
    let another = venv.is_some() || path.canonicalize().ok() != system;
    another.then_some(Own { path, venv })
}

/// The most entries of one folder that are looked at for a module: environments have a few hundred.
const MOST_ENTRIES: usize = 20_000;

/// Whether a module is installed below a prefix or in a virtual environment: among its packages, or in
/// Python's own library. Told from names alone.
pub(crate) fn has_module(prefix: &Path, module: &str) -> bool {
    let of_its_own = libraries(prefix).into_iter().flat_map(|lib| [lib.join("lib-dynload"), lib]);
    packages(prefix).into_iter().chain(of_its_own).any(|folder| holds_module(&folder, module))
}

/// The folders of packages below a prefix.
pub(crate) fn packages(prefix: &Path) -> Vec<PathBuf> {
    let folders = |lib: PathBuf| ["site-packages", "dist-packages"].map(|name| lib.join(name));
    libraries(prefix).into_iter().flat_map(folders).collect()
}

/// Whether a folder of packages has a module: `MODULE.py`, a folder, a compiled one, or what an
/// installer noted of it.
pub(crate) fn holds_module(folder: &Path, module: &str) -> bool {
    if folder.join(format!("{module}.py")).is_file() || folder.join(module).is_dir() {
        return true;
    }
    let compiled = format!("{module}.");
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '.'], "_");
    let noted = plain(module);
    let is_it = |name: &str| {
        let release = || name.strip_suffix(".dist-info").and_then(|name| name.rsplit_once('-'));
        (name.starts_with(&compiled) && name.ends_with(".so"))
            || release().is_some_and(|(name, _)| plain(name) == noted)
    };
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let names = entries.take(MOST_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().any(|name| is_it(&name))
}

/// Python's libraries below a prefix: `lib/python3.12`, and those of PyPy.
fn libraries(prefix: &Path) -> Vec<PathBuf> {
    let folders = ["lib", "lib64"].iter().filter_map(|lib| fs::read_dir(prefix.join(lib)).ok()).flatten();
    let is_library = |entry: &fs::DirEntry| {
        let name = entry.file_name().into_encoded_bytes();
        name.starts_with(b"python3") || name.starts_with(b"pypy3")
    };
    let found = folders.take(MOST_ENTRIES).filter_map(Result::ok).filter(is_library);
    found.map(|entry| entry.path()).collect()
}

/// The text of an environment's settings.
fn settings(folder: &Path) -> io::Result<String> {
    let path = folder.join("pyvenv.cfg");
    if !fs::metadata(&path)?.is_file() {
        return Err(io::Error::other("it is not a regular file")); // opening a pipe would wait
    }
    let mut text = String::new();
    fs::File::open(path)?.take(64 << 10).read_to_string(&mut text)?;
    Ok(text)
}

/// The interpreter that an environment was made from can't be used, because it is gone or for another
/// reason.
fn no_base(named: &Path, error: &io::Error) -> BadValue {
    let base = format!("the interpreter that {} was made from", quoted(named));
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            BadValue::new(format!("{base} is gone"), "make it anew with `python3 -m venv`")
        }
        io::ErrorKind::PermissionDenied => BadValue::new(
            format!("{base} is in a place that this user may not read"),
            "make the environment anew from an interpreter that you can read, or have its folder opened to you",
        ),
        _ => BadValue::new(
            format!("{base} could not be read: {error}"),
            "make it anew with `python3 -m venv`, or name another folder",
        ),
    }
}

fn no_environment(named: &Path, folder: &Path, error: &io::Error) -> BadValue {
    if folder.join("conda-meta").is_dir() {
        let why = format!("{} is an environment of conda, not of venv", quoted(named));
        let help = format!("pass --python {}", quoted(&folder.join("bin/python")));
        return BadValue::new(why, help);
    }
    let why = format!("{} is no virtual environment: pyvenv.cfg: {error}", quoted(named));
    BadValue::new(why, "name the folder that `python3 -m venv FOLDER` made")
}

/// The folder that the base interpreter is in: `home = /usr/bin`, as `site` reads it.
fn home(settings: &str) -> Option<PathBuf> {
    let mut pairs = settings.lines().filter_map(|line| line.split_once('='));
    let (_, home) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case("home"))?;
    Some(PathBuf::from(home.trim())).filter(|home| home.is_absolute())
}

/// The real file of an interpreter that was named.
fn real_file(named: &Path, typed: &Path) -> Result<PathBuf, BadValue> {
    let real = typed.canonicalize().map_err(|error| {
        let why = format!("could not find {}: {error}", quoted(named));
        BadValue::new(why, "name an interpreter that is there, such as `python3` or /usr/bin/python3")
    })?;
    if real.is_dir() {
        let why = format!("{} is a folder", quoted(named));
        return Err(BadValue::new(why, "name the interpreter in it, or a virtual environment with --venv"));
    }
    Ok(real)
}

/// The folder above the `bin` that a real file lies in.
fn prefix_of(real: &Path) -> Result<PathBuf, BadValue> {
    let bin = real.parent().filter(|bin| bin.file_name() == Some(OsStr::new("bin")));
    bin.and_then(Path::parent).map(Path::to_owned).ok_or_else(|| {
        let why = format!("{} is not in a folder `bin`, so that its library can't be told", quoted(real));
        BadValue::new(why, "name an interpreter that is installed")
    })
}

/// Every folder through which the links of a file lead, by the names that they use.
fn names_of(file: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![file.to_owned()];
    while let Some(name) = waiting.pop() {
        let Some(folder) = name.parent() else { continue };
        if seen.len() > MOST_LINKS || !seen.insert(name.clone()) {
            continue;
        }
        folders.insert(folder.to_owned());
        let Ok(target) = fs::read_link(&name) else { continue };
        // A relative link is followed from the folder's name inside, and on the host from its real place.
        let from = [Some(folder.to_owned()), folder.canonicalize().ok()];
        for next in from.into_iter().flatten().map(|folder| straight(&folder.join(&target))) {
            if next.exists() {
                waiting.push(next);
            }
        }
    }
    folders
}

/// A path without `.` and `..`, taken by its letters alone.
fn straight(path: &Path) -> PathBuf {
    let mut taken = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(taken.pop()),
            Component::CurDir => {}
            other => taken.push(other),
        }
    }
    taken
}

/// Shows what a folder on the way to an interpreter is a name of.
fn show_folder(
    bin: &Path,
    environment: &Path,
    prefix: &Path,
    around: &Surroundings,
    shown: &mut Vec<Shown>,
) -> Result<(), BadValue> {
    if bin.starts_with(environment) || is_inside_anyway(bin) {
        return Ok(());
    }
    let Ok(real) = bin.canonicalize() else { return Ok(()) };
    if is_inside_anyway(&real) {
        // A name outside /usr of a folder in it: only the folder with the interpreter has to be there.
        shown.push(Shown { guest: place(bin, "a folder on the way to the interpreter")?, host: real });
        return Ok(());
    }
    if real.starts_with(environment) {
        return Ok(());
    }
    if real == prefix.join("bin")
        && let Some(name) = bin.parent()
    {
        return show_prefix(prefix, name, around, shown);
    }
    if bin.file_name() != Some(OsStr::new("bin")) || !leads_to(bin, prefix) {
        let why =
            format!("a link to the interpreter leads through {}, which holds other things", quoted(bin));
        let help = "make the environment anew from the interpreter's own path, or name that with --python";
        return Err(BadValue::new(why, help));
    }
    shown.push(Shown { guest: place(bin, "a folder on the way to the interpreter")?, host: real });
    Ok(())
}

/// Whether a folder has a link to an interpreter of a prefix.
fn leads_to(folder: &Path, prefix: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let pythons = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().into_encoded_bytes().starts_with(b"python"));
    let mut targets = pythons.filter_map(|entry| entry.path().canonicalize().ok());
    targets.any(|target| target.parent() == Some(&prefix.join("bin")))
}

/// Refuses a prefix that hasn't Python's library, which is `lib/python3.12/os.py` or that of PyPy.
fn refuse_no_python(prefix: &Path) -> Result<(), BadValue> {
    let is_library = |entry: &fs::DirEntry| {
        let name = entry.file_name().into_encoded_bytes();
        (name.starts_with(b"python") || name.starts_with(b"pypy")) && entry.path().join("os.py").is_file()
    };
    let libraries = ["lib", "lib64"].iter().filter_map(|lib| fs::read_dir(prefix.join(lib)).ok()).flatten();
    if libraries.filter_map(Result::ok).any(|entry| is_library(&entry)) {
        return Ok(());
    }
    let why = format!("there is no Python in {}: no lib/python3…/os.py", quoted(prefix));
    Err(BadValue::new(why, "name an interpreter of Python, or an environment that was made from one"))
}

/// Shows a prefix by a name, unless it is there anyway.
fn show_prefix(
    prefix: &Path,
    name: &Path,
    around: &Surroundings,
    shown: &mut Vec<Shown>,
) -> Result<(), BadValue> {
    if is_inside_anyway(name) {
        return Ok(());
    }
    refuse_home(prefix, around)?;
    shown.push(Shown { guest: place(name, "the interpreter's prefix")?, host: prefix.to_owned() });
    Ok(())
}

/// A prefix that is somebody's home holds much that isn't Python.
fn refuse_home(prefix: &Path, around: &Surroundings) -> Result<(), BadValue> {
    let home = around.home.as_ref().and_then(|home| home.canonicalize().ok());
    let whole = home.is_some_and(|home| home.starts_with(prefix) || prefix == home.join(".local"));
    if !whole && prefix != Path::new("/") {
        return Ok(());
    }
    let why = format!("the interpreter's prefix is {}, which holds more than Python", quoted(prefix));
    Err(BadValue::new(why, "use an interpreter with a folder of its own, such as one of pyenv, uv or conda"))
}

/// Whether a path is in `/usr`, or in one of the links to it that a sandbox has too.
fn is_inside_anyway(path: &Path) -> bool {
    ["/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc/alternatives"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

/// Scripts in an environment name it by the path at which it was made, which may be the one that was
/// typed. Where that can't be shown, the real one is enough for Python itself.
fn also_as_typed(named: &Path, folder: &Path, around: &Surroundings, shown: &mut Vec<Shown>) {
    let typed = straight(&around.folder.join(named));
    let same = typed.canonicalize().is_ok_and(|real| real == folder);
    if let Some(guest) = GuestPath::new(&typed).ok().filter(|_| typed != folder && same) {
        shown.push(Shown { host: folder.to_owned(), guest });
    }
}

/// The interpreter's own path inside.
fn named_inside(real: &Path) -> Result<GuestPath, BadValue> {
    let path = if is_inside_anyway(real) { GuestPath::in_system(real) } else { GuestPath::new(real) };
    path.map_err(|error| cannot_be_shown(real, "the interpreter", &error))
}

fn place(path: &Path, what: &str) -> Result<GuestPath, BadValue> {
    GuestPath::new(path).map_err(|error| cannot_be_shown(path, what, &error))
}

fn cannot_be_shown(path: &Path, what: &str, error: &dyn std::error::Error) -> BadValue {
    let why = format!("{what} {} can't be shown at its own path: {error}", quoted(path));
    BadValue::new(
        why,
        "make or install it elsewhere, such as in your home or /opt: Python finds itself by its path",
    )
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
