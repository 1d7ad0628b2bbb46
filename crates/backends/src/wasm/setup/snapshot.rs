//! Starts a Python, has it import what a list says, and takes the image of its memory then.
//!
//! It starts from `python.wasm` and never from the wheel's own snapshot, in which the seed of `hash()` is the
//! same for everybody: here the first turn draws one, once per template.

use std::fs;
use std::path::{Path, PathBuf};

use wasmtime::{Engine, Linker, Memory, Module, Mutability, Store};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::split::{Global, Image};
use super::{SetupError, Step, at, of_engine};
use crate::wasm::engine::{self, HOST_STACK_BYTES, STACK_BYTES};
use crate::wasm::whole::{Both, MEMORY, Whole};
use crate::wasm::wire::PYTHON_PREOPENS;
use crate::wasm::worker::python;

/// What a template has of ours, in this order: how a script is run, and the network.
pub(super) const PRELUDE: [&str; 2] =
    [include_str!("../prelude/cofferdam_prelude.py"), include_str!("../prelude/network.py")];

/// What stands for a module that the build lacks.
pub(super) const TLS: &str = include_str!("../prelude/ssl.py");

/// How a turn comes into the prelude.
pub(super) const START: &str = python::START;

/// The environment that Python starts in. A run has its own; this is what it reads once, at its start.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("HOME", "/home/user"),
    ("MPLCONFIGDIR", "/tmp/.matplotlib"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONTZPATH", ""),
    ("TMPDIR", "/tmp"),
];

/// Said about each package that was added: where it lies.
const SITE: &str = "/usr/local/lib/site";

/// Most bytes that are kept of what Python says while a template is made.
const SAID_BYTES: usize = 1 << 20;

/// Prints everything that can be imported, a line each.
const MODULES: &str = "print('\\n'.join(_cofferdam_importable()))";

/// Prints everything that is imported, a line each.
const LOADED: &str = "print('\\n'.join(sorted(sys.modules)))";

/// The largest piece of free memory that is looked for, in bytes; larger ones are used like the end.
const LARGEST_HOLE_BYTES: usize = 64 << 10;

/// Below that, in bytes, every size that an allocator of 32 bits has is looked for.
const SMALL_HOLE_BYTES: usize = 512;

/// What was made.
pub(super) struct Snapshot {
    /// The memory and the globals.
    pub(super) image: Image,
    /// The modules that can be imported.
    pub(super) modules: Vec<String>,
    /// Those that are: what a list says, and what each of these imports itself.
    pub(super) loaded: Vec<String>,
}

/// A Python that can be started.
pub(super) struct Python {
    pub(super) engine: Engine,
    pub(super) code: Module,
    /// The image that it came with.
    pub(super) start: Module,
}

/// Where a template finds its folders while it is made.
pub(super) struct Folders {
    /// Shown as `/usr/local/lib`.
    pub(super) library: PathBuf,
    /// Matplotlib's.
    pub(super) data: PathBuf,
    /// An empty folder, for all others.
    pub(super) scratch: PathBuf,
}

struct State {
    wasi: WasiP1Ctx,
}

/// Takes the snapshot. Needs a stack of its own, so it runs on another thread.
pub(super) fn take(
    python: &Python,
    folders: &Folders,
    preload: &[String],
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Snapshot, SetupError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES + 2 * HOST_STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || take_here(python, folders, preload, progress));
        let thread = thread.map_err(|error| SetupError::Engine(error.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(SetupError::Engine("it broke down".to_owned())))
    })
}

fn take_here(
    python: &Python,
    folders: &Folders,
    preload: &[String],
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Snapshot, SetupError> {
    progress(Step::Start);
    let mut guest = Guest::start(python, folders)?;
    guest.turn("pass", "start")?;
    guest.turn(
        &format!(
            "import os, sys\nos.chdir('/workspace')\nif os.path.isdir({SITE:?}): sys.path.append({SITE:?})"
        ),
        "find its packages",
    )?;
    // It is ASCII: what stands in quotes here does so there.
    let tls = format!("_cofferdam_module('ssl', {TLS:?})");
    for part in PRELUDE.into_iter().chain([tls.as_str(), START]) {
        guest.turn(part, "load the prelude")?;
    }
    for name in preload {
        progress(Step::Preload(name.clone()));
        guest.turn(&format!("__import__('importlib').import_module('{name}')"), &format!("import {name}"))?;
    }
    progress(Step::Snapshot);
    let modules = guest.turn(MODULES, "list its modules")?;
    let loaded = guest.turn(LOADED, "list what it has imported")?;
    // The last: everything that is alive then stays shared between clones.
    let failed = guest.turn("print(_cofferdam_prepare([]), end='')", "settle")?;
    if failed != "[]" {
        return Err(SetupError::Python { what: "use what it has imported".to_owned(), said: failed });
    }
    guest.make_immortal()?;
    // What the first turn does so with comes from the end of memory in the second.
    for _ in 0..2 {
        guest.turn("_cofferdam_hold()", "settle")?;
        guest.fill_holes()?;
    }
    let [modules, loaded] = [modules, loaded].map(|names| names.lines().map(str::to_owned).collect());
    Ok(Snapshot { image: guest.image()?, modules, loaded })
}

/// A Python that has started.
struct Guest {
    store: Store<State>,
    instance: Both,
    stdout: MemoryOutputPipe,
    stderr: MemoryOutputPipe,
}

impl Guest {
    fn start(python: &Python, folders: &Folders) -> Result<Self, SetupError> {
        let Python { engine, code, start } = python;
        let (stdout, stderr) = (MemoryOutputPipe::new(SAID_BYTES), MemoryOutputPipe::new(SAID_BYTES));
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdout(stdout.clone()).stderr(stderr.clone()).allow_blocking_current_thread(true);
        wasi.arg("python").envs(&ENVIRONMENT);
        for (number, (guest, writable)) in PYTHON_PREOPENS.iter().enumerate() {
            let guest = guest.to_string_lossy();
            let host = folders.shown_as(&guest, number)?;
            let perms = if *writable { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            wasi.preopened_dir(host, guest, perms).map_err(of_engine)?;
        }
        let mut linker = Linker::new(engine);
        p1::add_to_linker_sync(&mut linker, |state: &mut State| &mut state.wasi).map_err(of_engine)?;
        python::add_to_linker(&mut linker).map_err(of_engine)?;
        let whole = Whole::new(engine, linker, code.clone(), start).map_err(of_engine)?;
        let mut store = Store::new(engine, State { wasi: wasi.build_p1() });
        let instance = whole.instantiate(&mut store).map_err(of_engine)?;
        let initialize = instance.code.get_typed_func::<(), ()>(&mut store, "_initialize");
        let initialize = initialize.map_err(of_engine)?;
        initialize.call(&mut store, ()).map_err(of_engine)?;
        Ok(Guest { store, instance, stdout, stderr })
    }

    /// Runs some source, and gives what it printed.
    fn turn(&mut self, source: &str, what: &str) -> Result<String, SetupError> {
        let before = self.stdout.contents().len();
        let ready =
            python::Ready::new(&mut self.store, &self.instance.code, source.as_bytes()).map_err(of_engine)?;
        let status = ready.go(&mut self.store);
        let said = |pipe: &MemoryOutputPipe| String::from_utf8_lossy(&pipe.contents()).into_owned();
        let failed =
            |why: String| SetupError::Python { what: what.to_owned(), said: why + &said(&self.stderr) };
        match status {
            Ok(0) => Ok(said(&self.stdout).split_off(before)),
            Ok(_) => Err(failed(String::new())),
            Err(error) => Err(failed(format!("{}\n", engine::words(&error)))),
        }
    }

    /// Makes everything immortal that the template holds, so that no clone counts who uses it.
    fn make_immortal(&mut self) -> Result<(), SetupError> {
        let what = "say what it holds";
        loop {
            let said = self.turn("_cofferdam_mortal()", what)?;
            let mut numbers = said.split_whitespace().map(str::parse::<usize>);
            let (Some(Ok(place)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
                return Err(SetupError::Python { what: what.to_owned(), said });
            };
            if count == 0 {
                return Ok(());
            }
            let memory = self.memory()?.data_mut(&mut self.store);
            python::make_immortal(memory, place, count)
                .ok_or_else(|| SetupError::Python { what: what.to_owned(), said })?;
        }
    }

    /// Takes every piece of memory that is free between what the template holds, so that what a clone makes
    /// lies together behind all of that, on few pages.
    fn fill_holes(&mut self) -> Result<(), SetupError> {
        let allocate = self.instance.code.get_typed_func::<i32, i32>(&mut self.store, "host_alloc");
        let allocate = allocate.map_err(of_engine)?;
        let take = |guest: &mut Self, bytes: usize| match allocate.call(&mut guest.store, bytes as i32) {
            Ok(0) => Err(SetupError::Engine("there is no memory left for a template".to_owned())),
            Ok(place) => Ok(place as u32),
            Err(error) => Err(of_engine(error)),
        };
        // Where memory had to grow, it is taken from the end.
        let memory = self.memory()?;
        let before = memory.size(&self.store);
        let mut end = take(self, LARGEST_HOLE_BYTES)?;
        while memory.size(&self.store) == before {
            end = take(self, LARGEST_HOLE_BYTES)?;
        }
        let large = std::iter::successors(Some(LARGEST_HOLE_BYTES), |bytes| Some(bytes / 2));
        let small = (1..=SMALL_HOLE_BYTES / 8).rev().map(|words| words * 8);
        for bytes in large.take_while(|bytes| *bytes > SMALL_HOLE_BYTES).chain(small) {
            while take(self, bytes)? < end {}
        }
        Ok(())
    }

    fn memory(&mut self) -> Result<Memory, SetupError> {
        let memory = self.instance.image.get_memory(&mut self.store, MEMORY);
        memory.ok_or_else(|| SetupError::Engine("an image lacks its memory".to_owned()))
    }

    /// What its memory and its globals are now.
    fn image(&mut self) -> Result<Image, SetupError> {
        let missing = || SetupError::Engine("an image lacks what it exports".to_owned());
        let Both { image: instance, .. } = self.instance;
        let memory = self.memory()?;
        let mut globals = vec![];
        while let Some(global) = instance.get_global(&mut self.store, &globals.len().to_string()) {
            let changes = global.ty(&self.store).mutability() == Mutability::Var;
            globals.push(Global { changes, value: global.get(&mut self.store).i32().ok_or_else(missing)? });
        }
        let bytes = memory.data(&self.store);
        let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(0);
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(first, |last| last + 1);
        let contents = vec![(first as u32, bytes[first..end].to_vec())]; // a memory of 32 bits
        Ok(Image { pages: memory.size(&self.store), contents, globals })
    }
}

impl Folders {
    /// The folder that is shown at a place of [`PYTHON_PREOPENS`].
    fn shown_as(&self, guest: &str, number: usize) -> Result<PathBuf, SetupError> {
        let empty = |number: usize| {
            let path: PathBuf = Path::new(&self.scratch).join(number.to_string());
            fs::create_dir(&path).map_err(at("make", &path))?;
            Ok(path)
        };
        match guest {
            "/usr/local/lib" => Ok(self.library.clone()),
            _ if guest.ends_with("/mpl-data") => Ok(self.data.clone()),
            _ => empty(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_into_a_literal_is_ascii() {
        assert!(TLS.is_ascii());
    }
}
