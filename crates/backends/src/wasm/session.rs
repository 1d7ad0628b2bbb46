//! A Wasm sandbox that is open: a container as the jail, and in it a worker that has a program open.
//!
//! Files, quotas, collection, the end of everything and the counts are the container's. A program runs in the
//! worker, in an instance of its own. Where it has exited, the same worker serves the next run once what is
//! left of the last is gone, which is looked at from outside; one whose program the engine ended, or that was
//! sent a signal, is replaced.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_core::artifact::Collect;
use cofferdam_core::backend::{BackendError, Boxed, Ending, Exec, Left, Output, Running, Session};
use cofferdam_core::capability::Capability;
use cofferdam_core::files::Workspace;
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::Usage;
use cofferdam_core::outlet::Outlet;
use cofferdam_core::request::{File, Lang, Origin, Program, Script, Variable, WindowSize};
use cofferdam_sys::beneath::Folder as Beneath;
use cofferdam_sys::process;
use cofferdam_sys::{fd, fdpass};
use tokio::sync::{Mutex, watch};

use super::jail;
use super::setup::{self, Prepared, SetupError};
use super::talk::{Answer, End, Talk};
use super::templates::Templates;
use super::weakened;
use super::wire::{self, Kind, Preopen, ToWorker, Trap, UNREADABLE};
use crate::container::{ContainerSession, Inside, Pipes, Streams, TracesOfWriting};

/// The longest source that is read out of a workspace, in bytes: what `run` takes of a file elsewhere.
const SOURCE_BYTES: u64 = 64 << 20;

/// How long a worker may take to wipe what a program left, before a new one is cheaper.
const RENEWING: Duration = Duration::from_secs(2);

/// How long compiling a module may take: one of 30 MB takes half of it.
const COMPILING: Duration = Duration::from_secs(60);

/// The most that is taken of what was compiled, in bytes.
const MOST_COMPILED_BYTES: u64 = 512 << 20;

/// A Wasm sandbox that is open.
pub(super) struct WasmSession {
    pub(super) jail: Box<ContainerSession>,
    pub(super) templates: Arc<Templates>,
    /// What makes a worker of the product's own program.
    pub(super) worker_args: Vec<CString>,
    pub(super) workspace: Option<Workspace>,
    /// The most linear memory of a program.
    pub(super) memory_bytes: u64,
    /// The folders of the host's that are shown, by the first name of their paths inside.
    pub(super) shown: Vec<String>,
    /// The process that runs programs, if one does.
    pub(super) worker: Option<Worker>,
    /// Modules that were put, by name.
    pub(super) modules: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) before: Before,
    /// The only way out of the run that has the sandbox.
    pub(super) outlet: Arc<dyn Outlet>,
    /// What the worker had used when it was halted.
    pub(super) cpu_at_the_end: Option<Duration>,
}

/// What there was when the sandbox was opened or renewed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// The state of what can be written, once it is set up.
    written: Option<TracesOfWriting>,
    cpu: Duration,
    /// The memory that the worker took for itself.
    memory_bytes: u64,
    /// Whether the kernel's peak of memory may be an earlier run's.
    peak_is_old: bool,
    /// Whether what an earlier program used has still to be told from what the next will.
    is_of_another: bool,
}

/// A process that runs programs.
pub(super) struct Worker {
    talk: Arc<Talk>,
    /// Its number among those that the agent has started.
    number: usize,
    code: Code,
    opened: bool,
    /// The last program that it was given.
    last: Option<usize>,
    /// Its number on the host, once that was looked up: it is nobody else's as long as the worker lives.
    process: Option<i32>,
}

/// What a worker has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// Nothing: it compiles.
    Compiler,
    /// A template, by its place in the list.
    Python(usize),
    /// A module.
    Module(PathBuf),
}

/// A program, taken apart for a worker.
struct Wanted {
    name: CString,
    open: (Code, Kind),
    script: Option<wire::Script>,
    argv: Vec<CString>,
}

impl Session for WasmSession {
    fn enforced(&self) -> &std::collections::BTreeSet<Capability> {
        self.jail.enforced()
    }

    fn is_alive(&self) -> bool {
        // The agent and the worker, and nobody whom a program has left there.
        let works = |worker: &Worker| !worker.talk.is_spoiled() && !self.is_more_inside();
        self.jail.is_alive() && self.worker.as_ref().is_none_or(works)
    }

    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async move {
            self.settle_in().await?;
            if is_module(file.name.as_c_str()) {
                self.modules.insert(file.name.as_c_str().to_bytes().to_vec(), file.bytes.clone());
            }
            self.jail.put(file).await
        })
    }

    fn exec(&mut self, exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        Box::pin(async move {
            if self.jail.is_spent() {
                return Err(BackendError::Spent);
            }
            match self.start(exec).await {
                Ok(running) => Ok(Box::new(running) as Box<dyn Running>),
                Err(error) => Err(self.jail.explained(error)),
            }
        })
    }

    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>> {
        Box::pin(async move {
            if self.cpu_at_the_end.is_none() {
                // What a process used that is killed with its namespace is told to nobody.
                self.cpu_at_the_end = self.cpu().ok();
            }
            let mut left = self.jail.halt().await?;
            left.usage.cpu = left.usage.cpu.max(self.cpu_at_the_end.unwrap_or_default());
            // The worker is ours; a program has no processes.
            left.processes = left.processes.saturating_sub(u32::from(self.worker.is_some()));
            left.usage = self.of_the_program(left.usage);
            Ok(left)
        })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        self.jail.get(receiver)
    }

    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>> {
        Box::pin(async move {
            if !self.has_exited().await || !self.jail.began_empty() || self.is_more_inside() {
                return Ok(None);
            }
            let group = &self.jail.inside().group;
            if group.oom_kills() > 0 {
                return Ok(None);
            }
            let memory_peak_bytes = group.memory_peak_bytes();
            let usage = Usage { cpu: self.cpu()?, memory_peak_bytes, processes_peak: None };
            let (usage, limits_hit) = (self.of_the_program(usage), self.jail.fullness()?);
            Ok(Some(Left { processes: 0, usage, limits_hit, out_of_memory: false }))
        })
    }

    fn renew(
        mut self: Box<Self>,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>> {
        self.outlet = outlet;
        Box::pin(async move {
            match self.wipe().await {
                Ok(true) => Ok(Some(self as Box<dyn Session>)),
                // Something is left, or the worker is gone: neither is worth more than a new one.
                Ok(false) | Err(_) => self.close().await.map(|()| None),
            }
        })
    }

    fn close(self: Box<Self>) -> Boxed<'static, Result<(), BackendError>> {
        let WasmSession { jail, worker, .. } = *self;
        drop(worker);
        jail.close()
    }
}

impl WasmSession {
    /// Has a worker open what runs in most cases, before anybody asks. What goes wrong shows when something
    /// is run.
    pub(super) async fn employ_ahead(&mut self) {
        if let Some(usual) = self.templates.usual(self.memory_bytes) {
            let _ = self.hire(Code::Python(usual), Kind::Python).await;
        }
    }

    /// Starts a program.
    async fn start(&mut self, exec: Exec) -> Result<WasmRunning, BackendError> {
        let Exec { program, environment, delivered, terminal, stdin } = exec;
        if terminal.is_some() {
            return Err(BackendError::host("make the program's terminal")(io::ErrorKind::Unsupported.into()));
        }
        if self.is_busy().await {
            let program = CString::new(program.name()).unwrap_or_default();
            return Err(BackendError::Exec { program, source: io::ErrorKind::ResourceBusy.into() });
        }
        let mut wanted = self.wanted(program).await?;
        self.employ(&mut wanted).await?;
        let is_module = matches!(wanted.open.0, Code::Module(_));
        let Wanted { name, script, argv, .. } = wanted;
        let envp = variables(self.jail.environment(), environment, &delivered);
        let seed = fd::random_bytes().map(weakened::seed).map_err(BackendError::host("read random bytes"))?;
        let run = ToWorker::Run { script, argv, envp, seed };
        let (pipes, inside) = Pipes::make(stdin).map_err(BackendError::host("make the program's pipes"))?;
        let worker = self.worker.as_mut().ok_or(BackendError::Gone)?;
        let (streams, outlet) = (inside.each_ref().map(AsFd::as_fd), Arc::clone(&self.outlet));
        let number = match worker.talk.run(&run, streams, outlet).await? {
            Answer::Done(number) => number,
            Answer::Refused(why) if is_module => return Err(unfit(&name, why)),
            Answer::Refused(why) => {
                return Err(BackendError::Exec { program: name, source: io::Error::other(why) });
            }
        };
        worker.last = Some(number);
        self.count_anew();
        let worker = self.worker.as_ref().ok_or(BackendError::Gone)?;
        let (talk, process) = (Arc::clone(&worker.talk), worker.number);
        let inside = Arc::clone(self.jail.inside());
        let streams = Streams::Pipes(Box::new(pipes));
        let (killed, ending) = (watch::Sender::new(None), Mutex::default());
        Ok(WasmRunning { inside, talk, process, number, streams, killed, ending })
    }

    /// Whether a program runs. Its end may be there and not heard yet.
    async fn is_busy(&self) -> bool {
        let Some(Worker { talk, last: Some(last), .. }) = &self.worker else { return false };
        if talk.is_spoiled() {
            return false; // it is replaced
        }
        tokio::time::timeout(Duration::ZERO, talk.end_of(*last)).await.is_err()
    }

    /// Whether a program has run and exited, and the worker can go on.
    async fn has_exited(&self) -> bool {
        let Some(Worker { talk, last: Some(last), .. }) = &self.worker else { return false };
        let end = tokio::time::timeout(Duration::ZERO, talk.end_of(*last)).await;
        matches!(end, Ok(Ok(Some(End::Exited(_))))) && !talk.is_spoiled() && !self.jail.is_spent()
    }

    /// Whether there is a process that isn't the agent or the worker.
    fn is_more_inside(&self) -> bool {
        self.jail.processes() != 2
    }

    /// Waits until the worker, if there is one, has its program open, and looks at the sandbox as it is new.
    async fn settle_in(&mut self) -> Result<(), BackendError> {
        if let Some(worker) = self.worker.as_mut().filter(|worker| !worker.opened) {
            match worker.talk.opened().await {
                Ok(Answer::Done(())) => worker.opened = true,
                Ok(Answer::Refused(why)) => {
                    let action = "open what was prepared (`cofferdam setup python` makes it anew)";
                    return Err(BackendError::host(action)(io::Error::other(why)));
                }
                Err(error) => return Err(self.jail.explained(error)),
            }
        }
        if self.before.written.is_none() {
            // Until it is set up, what is seen of it can be the host's own.
            let greeted = self.jail.inside().agent.greeted().await;
            greeted.map_err(|error| self.jail.explained(error))?;
            self.before.written = Some(self.jail.traces_of_writing()?);
            self.before.memory_bytes = self.jail.inside().group.memory_bytes().unwrap_or(0);
        }
        Ok(())
    }

    /// Sees that a worker has this open and can be given a program. What was compiled of a module once may have been
    /// damaged since: then it is made anew.
    async fn employ(&mut self, wanted: &mut Wanted) -> Result<(), BackendError> {
        let mut opened = self.open(wanted).await;
        let Code::Module(path) = &wanted.open.0 else { return opened };
        if matches!(&opened, Err(BackendError::Host { source, .. }) if source.to_string().starts_with(UNREADABLE))
        {
            let _ = std::fs::remove_file(path); // somebody else may have come upon it too
            let Prepared { module, kind } = self.prepared(&wanted.name).await?;
            wanted.open = (Code::Module(module), kind);
            opened = self.open(wanted).await;
        }
        match opened {
            // A module can be wrong in itself; a template is ours.
            Err(BackendError::Host { source, .. }) => Err(unfit(&wanted.name, source.to_string())),
            other => other,
        }
    }

    /// Has a worker open what is wanted.
    async fn open(&mut self, wanted: &Wanted) -> Result<(), BackendError> {
        let fits = |worker: &Worker| worker.code == wanted.open.0 && !worker.talk.is_spoiled();
        if !self.worker.as_ref().is_some_and(fits) {
            self.dismiss().await?;
            let (code, kind) = wanted.open.clone();
            self.hire(code, kind).await?;
        }
        self.settle_in().await
    }

    /// Starts a worker and tells it what to open.
    async fn hire(&mut self, code: Code, kind: Kind) -> Result<(), BackendError> {
        let open = ToWorker::Open {
            module: self.module_inside(&code),
            image: self.image_inside(&code),
            kind,
            memory_bytes: weakened::memory_bytes(self.memory_bytes),
            preopens: self.preopens(&code),
        };
        self.start_worker(code).await?.open(&open).await
    }

    /// Starts a worker.
    async fn start_worker(&mut self, code: Code) -> Result<Arc<Talk>, BackendError> {
        let failed = |action: &str| BackendError::host(action.to_owned());
        let (ours, theirs) = fdpass::pair().map_err(failed("make the worker's socket"))?;
        let null = std::fs::File::options().read(true).write(true).open("/dev/null");
        let null = OwnedFd::from(null.map_err(failed("open /dev/null"))?);
        let streams = [theirs.as_fd(), null.as_fd(), null.as_fd()];
        let argv = jail::worker_argv(&self.worker_args);
        let number = self.jail.start_ours(argv, streams).await?;
        let talk = Arc::new(Talk::new(ours).map_err(failed("open the worker's socket"))?);
        let opened = code == Code::Compiler;
        let worker = Worker { talk: Arc::clone(&talk), number, code, opened, last: None, process: None };
        self.worker = Some(worker);
        Ok(talk)
    }

    /// Ends the worker, if there is one, and waits until it is gone.
    async fn dismiss(&mut self) -> Result<(), BackendError> {
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let inside = self.jail.inside();
        inside.agent.signal(KILL).await?;
        crate::channel::in_time(inside.agent.end_of(worker.number)).await?.ok_or(BackendError::Gone)?;
        Ok(())
    }

    /// Has everything of the last run removed, and sees that it is.
    async fn wipe(&mut self) -> Result<bool, BackendError> {
        let (Some(worker), Some(before)) = (&mut self.worker, self.before.written) else { return Ok(false) };
        worker.last = None;
        self.jail.forget_put();
        self.modules.clear();
        // Most programs leave no file. What else they left went with their instance.
        let mut written = self.jail.traces_of_writing()?;
        if !weakened::leaves_everything() && written != before {
            let at = SystemTime::now();
            let renewed = tokio::time::timeout(RENEWING, worker.talk.renew()).await;
            if !matches!(renewed, Ok(Ok(()))) {
                worker.talk.spoil();
                return Ok(false);
            }
            written = self.jail.traces_of_writing()?;
            if !written.is_renewed(&before, at) {
                return Ok(false);
            }
        }
        // Whether somebody else is inside is looked at when it is given a program.
        if !self.jail.is_alive() {
            return Ok(false);
        }
        self.before = Before { written: Some(written), is_of_another: true, ..self.before };
        Ok(self.jail.inside().group.oom_kills() == 0)
    }

    /// Counts from here what a program uses, where the worker has run another. Not before it has started: only then
    /// has the worker wiped what that left. It runs already, so what can't be read is no reason to say that it doesn't.
    fn count_anew(&mut self) {
        if !self.before.is_of_another {
            return;
        }
        let cpu = self.cpu().unwrap_or(self.before.cpu);
        let group = &self.jail.inside().group;
        let (memory_bytes, peak_is_old) = (group.memory_bytes().unwrap_or(0), !group.forget_memory_peak());
        self.before = Before { cpu, memory_bytes, peak_is_old, is_of_another: false, ..self.before };
    }

    /// Processor time that the worker has used.
    fn cpu(&mut self) -> Result<Duration, BackendError> {
        let failed = BackendError::host("see what the sandbox has used");
        let Some(worker) = &mut self.worker else { return Err(failed(io::ErrorKind::NotFound.into())) };
        let process = match worker.process {
            Some(process) => process,
            None => *worker.process.insert(self.jail.the_other()?),
        };
        process::cpu_time(process).map_err(failed)
    }

    /// What the program used, of what was counted of it and its worker together. It is a single thread.
    fn of_the_program(&self, all: Usage) -> Usage {
        let Before { cpu, memory_bytes, peak_is_old, .. } = &self.before;
        let peak = all.memory_peak_bytes.filter(|_| !peak_is_old);
        Usage {
            cpu: all.cpu.saturating_sub(*cpu),
            // What the worker gave back meanwhile isn't known: it can't be more than was allowed.
            memory_peak_bytes: peak.map(|peak| peak.saturating_sub(*memory_bytes).min(self.memory_bytes)),
            processes_peak: Some(1),
        }
    }

    /// Takes a program apart, and puts the file in place that it comes with.
    async fn wanted(&mut self, program: Program) -> Result<Wanted, BackendError> {
        match program {
            Program::Script(script) if script.lang == Lang::Python => self.wanted_python(script).await,
            Program::Command(argv) if is_module(argv.program()) => {
                let name = argv.program().to_owned();
                let prepared = self.prepared(&name).await?;
                let Prepared { module, kind } = prepared;
                let argv = argv.words().map(CString::from).collect();
                Ok(Wanted { name, open: (Code::Module(module), kind), script: None, argv })
            }
            other => {
                let program = CString::new(other.name()).unwrap_or_default();
                let why = "WebAssembly runs Python and `.wasm` files, and nothing else";
                Err(BackendError::Exec { program, source: io::Error::other(why) })
            }
        }
    }

    async fn wanted_python(&mut self, script: Script) -> Result<Wanted, BackendError> {
        let Script { origin, source, args, .. } = script;
        let in_workspace = |path: &CStr| [b"/workspace/", path.to_bytes()].concat();
        let (name, first, source) = match origin {
            // The names by which the prelude knows them, and which `sys.argv` has.
            Origin::Inline => (b"-c".to_vec(), c"-c".to_owned(), source),
            Origin::Stdin => (b"-".to_vec(), c"-".to_owned(), source),
            Origin::File(name) => {
                let (path, first) = (in_workspace(name.as_c_str()), name.as_argument());
                let file = File { name, bytes: source, executable: false };
                self.settle_in().await?;
                self.jail.put(file.clone()).await?;
                (path, first, file.bytes)
            }
            Origin::Workspace(path) => {
                let source = self.in_workspace(path.as_c_str())?;
                (in_workspace(path.as_c_str()), path.as_argument(), source)
            }
        };
        let current = match &self.worker {
            Some(Worker { code: Code::Python(current), .. }) => Some(*current),
            _ => None,
        };
        let template = self.templates.best(&source, current, self.memory_bytes);
        let template = template.ok_or_else(|| BackendError::NoRoom {
            limit: format!("limits.memory of {} bytes", self.memory_bytes),
        })?;
        let name = CString::new(name).unwrap_or_default();
        let argv = std::iter::once(first).chain(args).collect();
        let script = wire::Script { name: name.clone(), source };
        Ok(Wanted { name, open: (Code::Python(template), Kind::Python), script: Some(script), argv })
    }

    /// A module by the name that a program has, ready to be opened.
    async fn prepared(&mut self, name: &CStr) -> Result<Prepared, BackendError> {
        let refused = |source: io::Error| BackendError::Exec { program: name.to_owned(), source };
        let path = name.to_bytes();
        let path = path.strip_prefix(b"/workspace/").or(path.strip_prefix(b"./")).unwrap_or(path);
        let bytes = match self.modules.get(path) {
            Some(bytes) => bytes.clone(),
            None => {
                self.in_workspace(&CString::new(path).unwrap_or_default()).map_err(|error| match error {
                    BackendError::Files { .. } => refused(io::Error::from_raw_os_error(ENOENT)),
                    other => other,
                })?
            }
        };
        let bytes = Arc::new(bytes);
        let (templates, wasm) = (Arc::clone(&self.templates), Arc::clone(&bytes));
        let sought = aside(move || setup::seek(&wasm, templates.folder())).await;
        let sought =
            sought.map_err(|error| of_module(name, "look for what was compiled of it before", error))?;
        if let Some(found) = sought.found {
            return Ok(found);
        }
        let code = self.compile(name, sought.kind, bytes).await?;
        let templates = Arc::clone(&self.templates);
        let kept = aside(move || setup::keep(&sought, &code, templates.folder())).await;
        kept.map_err(|error| of_module(name, "keep what was compiled of it", error))
    }

    /// Compiles a module, in a worker of its own: a compiler can have faults too, and some modules take it more
    /// time and memory than there is. No program may have had a hand in it, since what comes of it is kept for
    /// others who bring the same module. What it takes is the sandbox's own memory and time.
    async fn compile(
        &mut self,
        name: &CStr,
        kind: Kind,
        wasm: Arc<Vec<u8>>,
    ) -> Result<Vec<u8>, BackendError> {
        let refused = |why: String| unfit(name, why);
        self.dismiss().await?;
        if self.jail.processes() != 1 {
            return Err(refused("it isn't alone in its sandbox, and has to be compiled first".to_owned()));
        }
        let failed = |action: &str| BackendError::host(action.to_owned());
        let (module, to_module) = fd::pipe().map_err(failed("make a pipe for the module"))?;
        let (from_code, code) = fd::pipe().map_err(failed("make a pipe for what is compiled"))?;
        let talk = self.start_worker(Code::Compiler).await?;
        // Whoever doesn't read it is ended, and then this ends too.
        let fed = tokio::task::spawn_blocking(move || std::fs::File::from(to_module).write_all(&wasm));
        let taken = tokio::task::spawn_blocking(move || {
            let mut code = vec![];
            std::fs::File::from(from_code).take(MOST_COMPILED_BYTES + 1).read_to_end(&mut code).map(|_| code)
        });
        let compile = ToWorker::Compile { kind };
        let answer = talk.compile(&compile, [module.as_fd(), code.as_fd()], COMPILING).await;
        drop((module, code));
        let killed = self.jail.inside().group.oom_kills() > 0;
        if !killed {
            self.dismiss().await?; // and with it both pipes
        }
        let why = match answer? {
            Some(Answer::Done(())) => None,
            Some(Answer::Refused(why)) => Some(why),
            None if killed => {
                Some("compiling it takes more memory than it may have (limits.memory)".to_owned())
            }
            None => Some(format!("compiling it takes more than {} s", COMPILING.as_secs())),
        };
        if let Some(why) = why {
            return Err(refused(why));
        }
        let _ = fed.await; // a module that was compiled was read
        let code = taken.await.map_err(io::Error::other).and_then(|taken| taken);
        let code = code.map_err(failed("take what was compiled"))?;
        if code.len() as u64 > MOST_COMPILED_BYTES {
            return Err(refused("what is compiled of it is too large".to_owned()));
        }
        let group = &self.jail.inside().group;
        self.before.peak_is_old = !group.forget_memory_peak();
        Ok(code)
    }

    /// What a file of the host's workspace holds. It is read here, as it is shown inside.
    fn in_workspace(&self, path: &CStr) -> Result<Vec<u8>, BackendError> {
        let read = |workspace: &Workspace| {
            let path = path.to_str().map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
            let file = Beneath::open(&workspace.host)?.open_file(path)?;
            let mut source = vec![];
            file.take(SOURCE_BYTES).read_to_end(&mut source)?;
            Ok::<_, io::Error>(source)
        };
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let found = self.workspace.as_ref().ok_or_else(missing).and_then(read);
        found.map_err(|error| BackendError::Files {
            path: Path::new(&*path.to_string_lossy()).to_owned(),
            why: error.to_string(),
            fix: "name a file of the workspace that you can read".to_owned(),
        })
    }

    /// Where a worker finds what it is to open.
    fn module_inside(&self, code: &Code) -> CString {
        jail::inside(
            self.templates.folder().path(),
            match code {
                Code::Python(template) => &self.templates.of(*template).module,
                Code::Module(path) => path,
                Code::Compiler => return CString::default(), // it opens nothing
            },
        )
    }

    fn image_inside(&self, code: &Code) -> Option<CString> {
        let Code::Python(template) = code else { return None };
        Some(jail::inside(self.templates.folder().path(), &self.templates.of(*template).image))
    }

    /// The folders that a program sees.
    fn preopens(&self, code: &Code) -> Vec<Preopen> {
        match code {
            Code::Python(template) => {
                jail::python_preopens(self.templates.folder().path(), self.templates.of(*template))
            }
            Code::Compiler | Code::Module(_) => jail::module_preopens(&self.shown),
        }
    }
}

/// Does something that takes a while where it holds nobody up.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SetupError> + Send + 'static,
) -> Result<T, SetupError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(SetupError::Engine(error.to_string())))
}

/// What goes wrong with a module before it is opened: it is none, or the host is lacking.
fn of_module(name: &CStr, action: &str, error: SetupError) -> BackendError {
    match error {
        SetupError::NotWasm => unfit(name, error.to_string()),
        SetupError::Files { ref source, .. } => {
            let why = format!("{error}: {source}");
            BackendError::host(action)(io::Error::new(source.kind(), why))
        }
        other => BackendError::host(action)(io::Error::other(other.to_string())),
    }
}

/// A module that isn't as it has to be. What is to be done about it is told from the reason's words, which are
/// the engine's and ours.
fn unfit(name: &CStr, why: String) -> BackendError {
    let fix = ADVICE.iter().find(|(words, _)| words.iter().any(|word| why.contains(word)));
    let fix = fix.map_or("build it for wasm32-wasip1, or as a component for wasm32-wasip2", |(_, fix)| fix);
    BackendError::Unfit { program: name.to_owned(), why, fix: fix.to_owned() }
}

/// What to do about a module, by words of which its refusal has one.
const ADVICE: [(&[&str], &str); 6] = [
    (
        &["thread", "shared memor"],
        "build it without threads, which no program of WebAssembly has here: Rust for wasm32-wasip1, C without \
         -pthread",
    ),
    (
        &["it imports what"],
        "a module can import WASI 0.1 (`wasi_snapshot_preview1`), a component WASI 0.2: build it for \
         wasm32-wasip1 or wasm32-wasip2, with what else it needs linked in",
    ),
    (&["`_start`"], "build it as a program, with a `main`, and not as a library"),
    (&["unexpected end", "out of bounds"], "it was cut short: copy it again, or build it anew"),
    (&["of memory", "limits.memory"], "allow more with --memory"),
    (
        &["it is no WebAssembly"],
        "name a module (.wasm) of version 1 or a component; text (.wat) has to be made into one first",
    ),
];

/// SIGKILL, as it is sent and as it is told.
const KILL: i32 = 9;
const KILLED: u8 = 9;

/// SIGABRT, which is how a program ends that gives up.
const ABORT: u8 = 6;

/// ENOENT of `asm-generic/errno-base.h`.
const ENOENT: i32 = 2;

/// Whether a program's name is that of a module.
pub(super) fn is_module(name: &CStr) -> bool {
    name.to_bytes().ends_with(b".wasm")
}

/// A program's environment: ours, on top of it what was granted, and on top of that its own. Nothing of the
/// host's.
fn variables(granted: &[Variable], own: Vec<Variable>, delivered: &Deliveries) -> Vec<CString> {
    let ours = [
        ("HOME", "/home/user"),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "user"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("USER", "user"),
    ];
    let ours = ours.into_iter().filter_map(|(name, value)| Variable::new(name, value).ok());
    let mut lines = BTreeMap::new();
    for variable in weakened::environment().chain(ours).chain(granted.iter().cloned()).chain(own) {
        lines.insert(variable.name().to_owned(), variable.to_c_string());
    }
    lines.extend(delivered.variables.iter().map(|secret| (secret.name().to_owned(), secret.to_c_string())));
    lines.into_values().collect()
}

/// A program that runs in a worker.
struct WasmRunning {
    inside: Arc<Inside>,
    talk: Arc<Talk>,
    /// The worker's number among those that the agent has started.
    process: usize,
    /// The program's number among those that the worker has started.
    number: usize,
    streams: Streams,
    /// The signal that ended it, if one did.
    killed: watch::Sender<Option<u8>>,
    ending: Mutex<Option<Ending>>,
}

/// Signals that end no program by themselves: SIGCHLD, SIGCONT, the stops, SIGURG and SIGWINCH of
/// `asm-generic/signal.h`, as signal(7) has their dispositions. A module can't stop.
const HARMLESS: [i32; 8] = [17, 18, 19, 20, 21, 22, 23, 28];

impl Running for WasmRunning {
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>> {
        Box::pin(self.streams.output())
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(self.streams.write(bytes))
    }

    fn close_stdin(&self) -> Boxed<'_, ()> {
        Box::pin(self.streams.close_stdin())
    }

    /// WebAssembly has no signals, so that a program can't handle one: it ends of each that ends whoever
    /// doesn't.
    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let ended = self.ending.try_lock().is_ok_and(|ending| ending.is_some());
            if ended || HARMLESS.contains(&signal) {
                return Ok(());
            }
            let told = tokio::time::timeout(Duration::ZERO, self.talk.end_of(self.number)).await;
            if matches!(told, Ok(Ok(Some(_)))) {
                return Ok(());
            }
            self.talk.spoil();
            self.killed.send_replace(u8::try_from(signal).ok());
            self.inside.agent.signal(KILL).await
        })
    }

    fn resize(&self, _: WindowSize) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async { Ok(()) }) // there is no terminal
    }

    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>> {
        Box::pin(async move {
            let mut ending = self.ending.lock().await;
            if let Some(ending) = *ending {
                return Ok(ending);
            }
            let found = self.first_end().await;
            if matches!(found, Ok(Ending::Lost) | Err(_)) {
                self.inside.lose();
            }
            let found = found?;
            *ending = Some(found);
            Ok(found)
        })
    }
}

impl WasmRunning {
    /// Waits for the first thing that ends the program.
    async fn first_end(&self) -> Result<Ending, BackendError> {
        let mut killed = self.killed.subscribe();
        let killed = async {
            let found = killed.wait_for(Option::is_some).await;
            found.map_or(None, |signal| *signal)
        };
        let ending = tokio::select! {
            biased;
            () = self.inside.out_of_memory() => return Ok(Ending::OutOfMemory),
            signal = killed => Ending::Signalled(signal.unwrap_or(KILLED)),
            said = self.talk.end_of(self.number) => match said? {
                Some(End::Exited(code)) => Ending::Exited(code),
                // The engine refused what it asked for, which the kernel need not have noticed.
                Some(End::Trapped(Trap::Memory)) => Ending::OutOfMemory,
                Some(End::Trapped(Trap::Other | Trap::Stack | Trap::Unreachable)) => Ending::Signalled(ABORT),
                None => Ending::Lost,
            },
            _ = self.inside.ended.readable() => Ending::Lost,
        };
        let ending = if ending == Ending::Lost { self.worker_gone().await } else { ending };
        // What the kernel counted wins over what the worker said.
        Ok(if self.inside.group.oom_kills() > 0 { Ending::OutOfMemory } else { ending })
    }

    /// The worker ended under its program: killed by the kernel for lack of memory, or broken.
    async fn worker_gone(&self) -> Ending {
        let killed = *self.killed.borrow();
        if let Some(signal) = killed {
            return Ending::Signalled(signal);
        }
        // The agent hears of it once the kernel has counted it.
        let end = self.inside.agent.end_of(self.process);
        let _ = tokio::time::timeout(Duration::from_secs(1), end).await;
        Ending::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_the_programs_own_wins_and_nothing_is_the_hosts() {
        let variable = |name: &str, value: &str| Variable::new(name, value).unwrap();
        let granted = [variable("A", "granted"), variable("LANG", "de")];
        let lines = variables(&granted, vec![variable("A", "own")], &Deliveries::default());
        let lines: Vec<_> = lines.iter().map(|line| line.to_str().unwrap()).collect();
        assert_eq!(
            lines,
            ["A=own", "HOME=/home/user", "LANG=de", "LOGNAME=user", "PYTHONDONTWRITEBYTECODE=1", "USER=user"]
        );
    }

    #[test]
    fn what_is_wrong_with_a_module_has_its_own_advice() {
        let fix = |why: &str| match unfit(c"m", why.to_owned()) {
            BackendError::Unfit { fix, .. } => fix,
            other => panic!("{other:?}"),
        };
        for (why, advice) in [
            ("threads must be enabled for shared memories (at offset 0x15)", "without threads"),
            ("it imports what nobody has here: unknown import: `wasi::thread-spawn`", "without threads"),
            ("it imports what nobody has here: unknown import: `env::x`", "wasi_snapshot_preview1"),
            ("it can't be started: failed to find function export `_start`", "as a library"),
            ("failed to parse WebAssembly module: unexpected end-of-file (at offset 0xa)", "cut short"),
            ("the program starts with 9 bytes of memory, and may have 8", "--memory"),
            ("compiling it takes more memory than it may have (limits.memory)", "--memory"),
            ("type mismatch", "wasm32-wasip1"),
        ] {
            assert!(fix(why).contains(advice), "{why}: {}", fix(why));
        }
    }

    #[test]
    fn a_module_is_told_by_its_name() {
        assert!(is_module(c"./a.wasm") && is_module(c"/workspace/b/c.wasm"));
        assert!(!is_module(c"a.wasm.py") && !is_module(c"wasm"));
    }
}
