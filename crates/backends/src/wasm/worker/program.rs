//! A prepared program that is open, and one run of it in a fresh instance.

use std::ffi::{CStr, CString, OsStr};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use wasmtime::component::ResourceTable;
use wasmtime::{Engine, Instance, InstancePre, Linker, Module, Store};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::bindings::sync::CommandPre;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use super::limits::Limits;
use super::network::Network;
use super::python;
use super::streams::Stream;
use crate::wasm::engine::words;
use crate::wasm::prepared;
use crate::wasm::whole::Whole;
use crate::wasm::wire::{Kind, PYTHON_PREOPENS, Preopen, Script, Trap, UNREADABLE};

/// A program that is open, and what each run of it may have.
pub(super) struct Program {
    engine: Engine,
    code: Code,
    memory_bytes: u64,
    preopens: Vec<Preopen>,
}

/// Code with everything resolved that every run has in common.
enum Code {
    Component(CommandPre<Component>),
    Core(InstancePre<Core>),
    Python(Whole<Core>),
}

/// What a run of a core module has.
pub(super) struct Core {
    wasi: WasiP1Ctx,
    limits: Limits,
    network: Network,
}

/// What a run of a component has.
struct Component {
    wasi: WasiCtx,
    table: ResourceTable,
    limits: Limits,
}

impl WasiView for Component {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// One run, as the host asked for it.
pub(super) struct Run {
    pub(super) script: Option<Script>,
    pub(super) argv: Vec<CString>,
    pub(super) envp: Vec<CString>,
    pub(super) seed: [u8; 32],
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Exited(i32),
    Trapped(Trap),
}

/// A run that has ended. Dropping it wipes the instance, which nobody has to wait for.
pub(super) struct Ended {
    pub(super) end: End,
    left: Left,
}

enum Left {
    Component(#[expect(dead_code, reason = "it is kept to be dropped")] Store<Component>),
    Core(Store<Core>, Option<Instance>),
}

impl Ended {
    /// What the program has left in its memory, where there is one.
    pub(super) fn memory(&mut self) -> Option<&mut [u8]> {
        match &mut self.left {
            Left::Component(_) => None,
            Left::Core(store, instance) => {
                Some((*instance)?.get_memory(&mut *store, "memory")?.data_mut(store))
            }
        }
    }
}

/// A program called its way out, with this status. WASI's own takes none above 125.
#[derive(Debug, thiserror::Error)]
#[error("the program exited with {0}")]
pub(super) struct ProcExit(i32);

/// A program that runs could not be started, or there is none. Said in words, for the host's log.
pub(super) type Refusal = String;

fn refused<E: Display>(what: &'static str) -> impl Fn(E) -> Refusal {
    move |error| format!("{what}: {error}")
}

impl Program {
    /// Opens a prepared file.
    pub(super) fn open(
        engine: &Engine,
        path: &CStr,
        image: Option<&CStr>,
        kind: Kind,
        memory_bytes: u64,
        preopens: Vec<Preopen>,
    ) -> Result<Self, Refusal> {
        let path = path_of(path);
        let code = match kind {
            Kind::Component => Code::Component(component(engine, path)?),
            Kind::Core => Code::Core(core(engine, path, memory_bytes)?),
            Kind::Python => {
                let told = preopens.iter().map(|preopen| (preopen.guest.as_c_str(), preopen.writable));
                if !told.eq(PYTHON_PREOPENS) {
                    return Err("a Python has the folders that its template was made with".to_owned());
                }
                let image = image.ok_or("a Python comes with an image")?;
                Code::Python(python(engine, path, path_of(image), memory_bytes)?)
            }
        };
        Ok(Program { engine: engine.clone(), code, memory_bytes, preopens })
    }

    /// Runs it once, from instance to end. `started` is called before the first of its code runs, which can be
    /// while it is instantiated: from then on whatever happens is its own doing.
    pub(super) fn run(
        &self,
        run: &Run,
        streams: &[Stream; 3],
        network: Network,
        started: &mut dyn FnMut(),
    ) -> Result<Ended, Refusal> {
        let mut wasi = self.wasi(run, streams)?;
        let limits = Limits::new(self.memory_bytes);
        match &self.code {
            Code::Component(pre) => {
                let state = Component { wasi: wasi.build(), table: ResourceTable::new(), limits };
                let mut store = Store::new(&self.engine, state);
                store.limiter(|state| &mut state.limits);
                started();
                let command = pre.instantiate(&mut store);
                let result = command.and_then(|command| command.wasi_cli_run().call_run(&mut store));
                let result = result.map(|result| i32::from(result.is_err()));
                let end = ended(result, &store.data().limits);
                Ok(Ended { end, left: Left::Component(store) })
            }
            Code::Core(pre) => {
                let mut store = self.store(Core { wasi: wasi.build_p1(), limits, network });
                started();
                let mut instance = None;
                let result = pre.instantiate(&mut store).and_then(|made| {
                    instance = Some(made);
                    made.get_typed_func::<(), ()>(&mut store, START)?.call(&mut store, ())
                });
                let end = ended(result.map(|()| 0), &store.data().limits);
                Ok(Ended { end, left: Left::Core(store, instance) })
            }
            Code::Python(whole) => {
                let script = run.script.as_ref().ok_or("a Python runs a script, and there is none")?;
                let turn = python::turn(script, &run.argv, &run.envp, &run.seed);
                let mut store = self.store(Core { wasi: wasi.build_p1(), limits, network });
                let instance = whole.instantiate(&mut store).map_err(unstarted)?;
                let ready = python::Ready::new(&mut store, &instance.code, &turn).map_err(unstarted)?;
                started();
                let result = ready.go(&mut store);
                let limits = &store.data().limits;
                let end = match ended(result, limits) {
                    End::Exited(code) => python::status(code, limits).map_or_else(End::Trapped, End::Exited),
                    trapped @ End::Trapped(_) => trapped,
                };
                Ok(Ended { end, left: Left::Core(store, Some(instance.image)) })
            }
        }
    }

    /// The folders that the program may write, as we see them.
    pub(super) fn writable(&self) -> impl Iterator<Item = &Path> {
        let writable = self.preopens.iter().filter(|preopen| preopen.writable);
        writable.map(|preopen| Path::new(OsStr::from_bytes(preopen.jail.as_bytes())))
    }

    fn store(&self, core: Core) -> Store<Core> {
        let mut store = Store::new(&self.engine, core);
        store.limiter(|state| &mut state.limits);
        store
    }

    fn wasi(&self, run: &Run, [stdin, stdout, stderr]: &[Stream; 3]) -> Result<WasiCtxBuilder, Refusal> {
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdin(stdin.clone()).stdout(stdout.clone()).stderr(stderr.clone());
        wasi.allow_blocking_current_thread(true);
        if !matches!(self.code, Code::Python(_)) {
            for argument in &run.argv {
                wasi.arg(argument.to_string_lossy());
            }
            for line in &run.envp {
                let line = line.to_string_lossy();
                let (name, value) = line.split_once('=').unwrap_or((&line, ""));
                wasi.env(name, value);
            }
        }
        for Preopen { guest, jail, writable } in &self.preopens {
            let perms = if *writable { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            let jail = OsStr::from_bytes(jail.as_bytes());
            let guest = guest.to_str().map_err(refused("a folder's name"))?;
            let opened = wasi.preopened_dir(jail, guest, perms);
            opened.map_err(|error| format!("open the folder for {guest}: {}", words(&error)))?;
        }
        Ok(wasi)
    }
}

/// A path of the jail's, where we are.
fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

fn unstarted(error: impl Into<wasmtime::Error>) -> Refusal {
    format!("it can't be started: {}", words(&error.into()))
}

fn component(engine: &Engine, path: &Path) -> Result<CommandPre<Component>, Refusal> {
    let component = prepared::load_component(engine, path).map_err(refused(UNREADABLE))?;
    let mut linker = wasmtime::component::Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker).map_err(unlinked)?;
    let pre = linker.instantiate_pre(&component).map_err(unlinked)?;
    CommandPre::new(pre).map_err(unlinked)
}

fn module(engine: &Engine, path: &Path) -> Result<Module, Refusal> {
    prepared::load_module(engine, path).map_err(refused(UNREADABLE))
}

fn python(engine: &Engine, code: &Path, image: &Path, memory_bytes: u64) -> Result<Whole<Core>, Refusal> {
    let (code, image) = (module(engine, code)?, module(engine, image)?);
    fits(&image, memory_bytes)?;
    let mut linker = linker(engine).map_err(unlinked)?;
    python::add_network(&mut linker, |state: &mut Core| &mut state.network).map_err(unlinked)?;
    Whole::new(engine, linker, code, &image).map_err(unlinked)
}

fn core(engine: &Engine, path: &Path, memory_bytes: u64) -> Result<InstancePre<Core>, Refusal> {
    let module = module(engine, path)?;
    fits(&module, memory_bytes)?;
    let start = module.get_export(START).and_then(|export| export.func().cloned());
    if start.is_none_or(|start| start.params().len() + start.results().len() > 0) {
        return Err(format!("it has no function `{START}` that takes nothing and gives nothing"));
    }
    linker(engine).and_then(|linker| linker.instantiate_pre(&module)).map_err(unlinked)
}

/// Everything that a core module can be given.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<Core>> {
    let mut linker = Linker::new(engine);
    linker.allow_shadowing(true);
    wasmtime_wasi::p1::add_to_linker_sync(&mut linker, |state: &mut Core| &mut state.wasi)?;
    let exit = |status: i32| -> wasmtime::Result<()> { Err(ProcExit(status).into()) };
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", exit)?;
    Ok(linker)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn unlinked(error: wasmtime::Error) -> Refusal {
    format!("it imports what nobody has here: {}", words(&error))
}

/// Where a command begins: "Application ABI" of WASI.
const START: &str = "_start";

/// A page of linear memory: "Memory Instances" of the specification.
const PAGE_BYTES: u64 = 64 << 10;

/// Whether a module starts within its limit of memory.
fn fits(module: &Module, memory_bytes: u64) -> Result<(), Refusal> {
    let pages = module.resources_required().max_initial_memory_size.unwrap_or(0);
    let needed = pages.saturating_mul(PAGE_BYTES);
    if needed > memory_bytes {
        return Err(format!("the program starts with {needed} bytes of memory, and may have {memory_bytes}"));
    }
    Ok(())
}

/// What the end of a call means.
fn ended(result: wasmtime::Result<i32>, limits: &Limits) -> End {
    let error = match result {
        Ok(code) => return End::Exited(code),
        Err(error) => error,
    };
    if let Some(ProcExit(code)) = error.downcast_ref() {
        return End::Exited(*code);
    }
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return End::Exited(*code);
    }
    End::Trapped(match error.downcast_ref() {
        // A language's runtime that can't go on without memory ends in one of many ways.
        _ if limits.refused() => Trap::Memory,
        Some(wasmtime::Trap::StackOverflow) => Trap::Stack,
        Some(wasmtime::Trap::UnreachableCodeReached) => Trap::Unreachable,
        _ => Trap::Other,
    })
}
