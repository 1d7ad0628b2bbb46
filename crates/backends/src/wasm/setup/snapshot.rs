//! Makes a Python that has started, and has imported what a list says, into a module that begins there.
//!
//! It starts from `python.wasm` and never from the wheel's own snapshot, in which the seed of `hash()` is the
//! same for everybody: here the first turn draws one, once per template.

use std::fs;
use std::path::{Path, PathBuf};

use wasmtime::{Engine, Instance, Linker, Module, Store, Val};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use super::{SetupError, Step, at, of_engine};
use crate::wasm::engine::{self, HOST_STACK_BYTES, STACK_BYTES};
use crate::wasm::wire::PYTHON_PREOPENS;
use crate::wasm::worker::python;

/// What a template has of ours: how a script is run, and what the build lacks.
pub(super) const PRELUDE: &str = include_str!("../prelude/cofferdam_prelude.py");

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

/// The largest piece of free memory that is looked for, in bytes; larger ones are used like the end.
const LARGEST_HOLE_BYTES: usize = 64 << 10;

/// Below that, in bytes, every size that an allocator of 32 bits has is looked for.
const SMALL_HOLE_BYTES: usize = 512;

/// What was made.
pub(super) struct Snapshot {
    /// The module.
    pub(super) wasm: Vec<u8>,
    /// The modules that can be imported.
    pub(super) modules: Vec<String>,
    /// The linear memory that it begins with, in bytes.
    pub(super) memory_bytes: u64,
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
    python: &[u8],
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
    python: &[u8],
    folders: &Folders,
    preload: &[String],
    progress: &mut (dyn FnMut(Step) + Send),
) -> Result<Snapshot, SetupError> {
    progress(Step::Compile);
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument(python).map_err(of_engine)?;
    let compiler = engine::for_one_start().map_err(of_engine)?;
    let module = Module::new(&compiler, &instrumented).map_err(of_engine)?;
    drop(instrumented);
    progress(Step::Start);
    let mut guest = Guest::start(&compiler, &module, folders)?;
    guest.turn("pass", "start")?;
    guest.turn(
        &format!(
            "import os, sys\nos.chdir('/workspace')\nif os.path.isdir({SITE:?}): sys.path.append({SITE:?})"
        ),
        "find its packages",
    )?;
    guest.turn(PRELUDE, "load the prelude")?;
    guest.turn(START, "load the prelude")?;
    for name in preload {
        progress(Step::Preload(name.clone()));
        guest.turn(&format!("__import__('importlib').import_module('{name}')"), &format!("import {name}"))?;
    }
    let modules = guest.turn(MODULES, "list its modules")?;
    // The last: everything that is alive then stays shared between clones.
    let failed = guest.turn("print(_cofferdam_prepare([]), end='')", "settle")?;
    if failed != "[]" {
        return Err(SetupError::Python { what: "use what it has imported".to_owned(), said: failed });
    }
    guest.make_immortal()?;
    // What types keep of freed objects of theirs goes, and with it the last of what nobody has.
    guest.turn("gc.collect()", "settle")?;
    guest.fill_holes()?;
    progress(Step::Snapshot);
    let memory_bytes = guest.memory_bytes();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| SetupError::Engine(error.to_string()))?;
    let wasm = runtime.block_on(wizer.snapshot(&context, &mut guest)).map_err(of_engine)?;
    let modules = modules.lines().map(str::to_owned).collect();
    Ok(Snapshot { wasm, modules, memory_bytes })
}

/// A Python that has started.
struct Guest {
    store: Store<State>,
    instance: Instance,
    stdout: MemoryOutputPipe,
    stderr: MemoryOutputPipe,
}

impl Guest {
    fn start(compiler: &Engine, module: &Module, folders: &Folders) -> Result<Self, SetupError> {
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
        let mut linker = Linker::new(compiler);
        p1::add_to_linker_sync(&mut linker, |state: &mut State| &mut state.wasi).map_err(of_engine)?;
        python::add_to_linker(&mut linker).map_err(of_engine)?;
        let mut store = Store::new(compiler, State { wasi: wasi.build_p1() });
        let instance = linker.instantiate(&mut store, module).map_err(of_engine)?;
        let initialize = instance.get_typed_func::<(), ()>(&mut store, "_initialize").map_err(of_engine)?;
        initialize.call(&mut store, ()).map_err(of_engine)?;
        Ok(Guest { store, instance, stdout, stderr })
    }

    /// Runs some source, and gives what it printed.
    fn turn(&mut self, source: &str, what: &str) -> Result<String, SetupError> {
        let before = self.stdout.contents().len();
        let ready =
            python::Ready::new(&mut self.store, &self.instance, source.as_bytes()).map_err(of_engine)?;
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
            let memory = self.instance.get_memory(&mut self.store, "memory");
            let memory = memory.map(|memory| memory.data_mut(&mut self.store)).unwrap_or_default();
            python::make_immortal(memory, place, count)
                .ok_or_else(|| SetupError::Python { what: what.to_owned(), said })?;
        }
    }

    /// Takes every piece of memory that is free between what the template holds, so that what a clone makes
    /// lies together behind all of that, on few pages. Nothing may run in it afterwards.
    fn fill_holes(&mut self) -> Result<(), SetupError> {
        let instance = &self.instance;
        let allocate =
            instance.get_typed_func::<i32, i32>(&mut self.store, "host_alloc").map_err(of_engine)?;
        let take = |guest: &mut Self, bytes: usize| match allocate.call(&mut guest.store, bytes as i32) {
            Ok(0) => Err(SetupError::Engine("there is no memory left for a template".to_owned())),
            Ok(place) => Ok(place as u32),
            Err(error) => Err(of_engine(error)),
        };
        // Where memory had to grow, it is taken from the end.
        let before = self.memory_bytes();
        let mut end = take(self, LARGEST_HOLE_BYTES)?;
        while self.memory_bytes() == before {
            end = take(self, LARGEST_HOLE_BYTES)?;
        }
        let large = std::iter::successors(Some(LARGEST_HOLE_BYTES), |bytes| Some(bytes / 2));
        let small = (1..=SMALL_HOLE_BYTES / 8).rev().map(|words| words * 8);
        for bytes in large.take_while(|bytes| *bytes > SMALL_HOLE_BYTES).chain(small) {
            while take(self, bytes)? < end {}
        }
        Ok(())
    }

    fn memory_bytes(&mut self) -> u64 {
        let memory = self.instance.get_memory(&mut self.store, "memory");
        memory.map_or(0, |memory| memory.data_size(&self.store) as u64)
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

impl InstanceState for Guest {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        let global = self.instance.get_global(&mut self.store, name);
        let value = global.map(|global| global.get(&mut self.store));
        match value {
            Some(Val::I32(value)) => SnapshotVal::I32(value),
            Some(Val::I64(value)) => SnapshotVal::I64(value),
            Some(Val::F32(bits)) => SnapshotVal::F32(bits),
            Some(Val::F64(bits)) => SnapshotVal::F64(bits),
            Some(Val::V128(value)) => SnapshotVal::V128(value.as_u128()),
            other => unreachable!("Wizer asks for globals that it exported itself, of numbers: {other:?}"),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.instance.get_memory(&mut self.store, name) {
            Some(memory) => contents(memory.data(&self.store)),
            None => unreachable!("Wizer asks for memories that it exported itself"),
        }
    }
}
