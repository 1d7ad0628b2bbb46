//! Backends with one vice each, to show that the suite catches it.
//!
//! A toy is a real backend in a wrapper. It claims everything that the real one claims, and ignores one
//! field of the policy, lies about ends, loses output, leaves processes. A field is ignored by opening
//! the real sandbox for a grant that is wider in that field alone: see [`loosen`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_core::artifact::{Collect, Found};
use cofferdam_core::backend::{
    Backend, BackendError, Boxed, Ending, Exec, Fit, Left, Output, Running, Session,
};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::{Files, GuestPath, Shown};
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::{RunId, Usage};
use cofferdam_core::outlet::{Cut, Dial, Doors, Outlet, OutletError, Sink};
use cofferdam_core::policy::{ALWAYS_ASKED, Cpus, Environment, Policy, decide};
use cofferdam_core::request::{Argv, File, Program, Request, Variable, WindowSize};

use super::Needs;
use super::handed_in::List;

macro_rules! vices {
    ($($(#[$doc:meta])* $vice:ident,)+) => {
        /// What is wrong with a toy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Vice { $($(#[$doc])* $vice,)+ }

        impl Vice {
            /// Every one.
            pub const ALL: &[Vice] = &[$(Vice::$vice,)+];
        }
    };
}

vices! {
    /// Every program that ends exits with 0.
    AlwaysExitsWithZero,
    /// What isn't enforced is said to be.
    CallsGapsEnforced,
    /// A kill for lack of memory is a kill.
    CallsMemoryAKill,
    /// A death by signal is an exit, as a shell tells it.
    CallsSignalsExits,
    /// A sandbox that died under its program is an exit.
    CallsTheLostEnded,
    /// A program that isn't there started, and exited with 127.
    CallsTheMissingStarted,
    /// It says that it has a kernel of its own.
    ClaimsAKernel,
    /// It says that it has credentials.
    ClaimsCredentials,
    /// What leads out is closed, and said to be judged.
    ClosesDoors,
    /// Closing does nothing.
    ClosesNothing,
    /// No memory is said to have been used.
    CountsNoMemory,
    /// No process is said to have been there.
    CountsNoProcesses,
    /// No processor time is said to have been used.
    CountsNoTime,
    /// What was left and used is never counted.
    CountsNothing,
    /// Nothing has changed in the working directory.
    ForgetsChanges,
    /// Limits that were reached aren't told.
    HidesLimits,
    /// Output comes when the program has ended.
    HoldsOutput,
    /// A workspace that was to be copied is shown through a layer.
    IgnoresCopy,
    /// `limits.cpus` is ignored.
    IgnoresCpus,
    /// `limits.disk` is ignored.
    IgnoresDisk,
    /// `limits.files` is ignored.
    IgnoresFiles,
    /// `limits.grace` is ignored: nobody is asked to end.
    IgnoresGrace,
    /// `files.hide` is ignored.
    IgnoresHide,
    /// `files.in` is ignored.
    IgnoresInputs,
    /// `files.keep` is ignored: what a tool would run isn't even handed over.
    IgnoresKeep,
    /// `limits.memory` is ignored.
    IgnoresMemory,
    /// `environment.pass` is ignored.
    IgnoresPass,
    /// `limits.pids` is ignored.
    IgnoresPids,
    /// The interpreter that was named is ignored.
    IgnoresPython,
    /// Another size of the terminal is ignored.
    IgnoresResize,
    /// `environment.set` is ignored.
    IgnoresSet,
    /// The terminal is ignored.
    IgnoresTerminal,
    /// `limits.timeout` is ignored: what is halted and closed runs on.
    IgnoresTimeout,
    /// The environment that the interpreter belongs to is ignored.
    IgnoresVenv,
    /// The workspace is ignored.
    IgnoresWorkspace,
    /// What a program left is put into the next sandbox.
    KeepsState,
    /// A halt kills nothing.
    LeavesProcesses,
    /// A program's connections are made for it, outside.
    LetsOut,
    /// A sandbox that was halted says that it is alive.
    LivesForEver,
    /// Files that are put are lost.
    LosesFiles,
    /// Input is lost.
    LosesInput,
    /// Output after the end is lost.
    LosesLastWords,
    /// Every second piece of output is lost.
    LosesOutput,
    /// Signals are lost.
    LosesSignals,
    /// Standard error is standard output.
    MixesStreams,
    /// The end of the input is lost.
    NeverEndsInput,
    /// A session that is dropped lives on.
    OutlivesItsDrop,
    /// The host's whole environment is passed in.
    PassesTheHostsEnvironment,
    /// A program's signals reach processes of the host.
    ReachesProcesses,
    /// It says that it can run no program.
    RunsNothing,
    /// It shows folders of the host that no policy names.
    ShowsTheHost,
    /// A sweep does nothing.
    SweepsNothing,
    /// It says that nothing of a run's could be left.
    TracesNothing,
    /// A program changes the workspace itself.
    WritesThrough,
    /// A program writes to folders of the host that no policy names.
    WritesToTheHost,
}

impl Vice {
    /// What it makes of a policy.
    fn loosen(self, policy: &mut Policy) {
        let (limits, files) = (&mut policy.limits, &mut policy.files);
        match self {
            Vice::IgnoresMemory => limits.memory_bytes = 1 << 30,
            Vice::IgnoresCpus => limits.cpus = Cpus::from_cores(64.0).unwrap(),
            Vice::IgnoresPids => limits.pids = 4096,
            Vice::IgnoresDisk => limits.disk_bytes = None,
            Vice::IgnoresFiles => limits.files = 1_000_000,
            Vice::IgnoresHide => files.hide.clear(),
            Vice::IgnoresInputs => files.shown.clear(),
            Vice::IgnoresPython => files.python = None,
            Vice::IgnoresCopy => files.workspace.iter_mut().for_each(|workspace| workspace.copy = false),
            Vice::IgnoresVenv => files.python.iter_mut().for_each(|python| python.venv = None),
            Vice::IgnoresWorkspace => files.workspace = None,
            // A grant has both kinds of variables in one list.
            Vice::IgnoresPass => policy.environment.set.retain(|it| !it.name().starts_with("PASSED")),
            Vice::IgnoresSet => policy.environment.set.retain(|it| !it.name().starts_with("SET")),
            Vice::PassesTheHostsEnvironment => {
                let host = std::env::vars().filter_map(|(name, value)| Variable::new(name, value).ok());
                policy.environment.passed.extend(host);
            }
            Vice::ShowsTheHost => {
                let folder = named(&policy.environment.set, "HOST_FOLDER").map(PathBuf::from);
                files.shown.extend(folder.map(|host| Shown { guest: GuestPath::new(&host).unwrap(), host }));
            }
            _ => {}
        }
    }

    /// What the programs of a backend must be able to do, or nothing is seen of it.
    pub(super) fn needs(self) -> Option<Needs> {
        (self == Vice::CountsNothing).then_some(Needs::Processes)
    }

    /// What it says that it has.
    pub(super) fn claims(self) -> &'static [Capability] {
        match self {
            Vice::ClaimsAKernel => &[Capability::SeparateKernel],
            Vice::ClaimsCredentials => &[Capability::Credentials],
            Vice::ClosesDoors => &[Capability::Egress, Capability::EgressTcp, Capability::Dns],
            _ => &[],
        }
    }
}

/// A grant that differs from another in what `change` does to its policy: a grant has one maker, so
/// the way is back to a policy, by what the grant says, and through the decision again.
///
/// # Panics
///
/// If the changed policy denies the run.
#[must_use]
pub fn loosen(grant: &Grant, change: impl FnOnce(&mut Policy)) -> Grant {
    let implied: BTreeSet<_> = ALWAYS_ASKED.into_iter().chain([Capability::Tty]).collect();
    let mut policy = Policy {
        profile: grant.profile(),
        backend: grant.backend(),
        limits: grant.limits().clone(),
        environment: Environment { set: grant.environment().to_vec(), passed: vec![] },
        files: grant.files().clone(),
        network: grant.network().to_vec(),
        credentials: grant.credentials().to_vec(),
        accept_gaps: grant.accepted().clone(),
        require: grant.asks().difference(&implied).copied().collect(),
    };
    change(&mut policy);
    let size = WindowSize { columns: 80, rows: 24 };
    let request = Request {
        program: Program::Command(Argv::new(c"true".into(), vec![])),
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: grant.asks().contains(&Capability::Tty).then_some(size),
        collect: false,
    };
    decide(&policy, grant.policy().clone(), &request).unwrap()
}

/// The value of a variable.
fn named(variables: &[Variable], name: &str) -> Option<String> {
    let found = variables.iter().find(|variable| variable.name() == name)?;
    Some(found.to_c_string().to_str().ok()?.split_once('=')?.1.to_owned())
}

/// Sandboxes that should be gone; they go with their toy.
type Kept = Arc<Mutex<Vec<Box<dyn Session>>>>;

/// A backend with a vice.
pub struct Toy {
    inner: Arc<dyn Backend>,
    vice: Vice,
    offers: Offers,
    kept: Kept,
    /// What programs left in their working directories, for a later one to find.
    state: Arc<Mutex<Vec<File>>>,
}

impl Toy {
    /// Gives a backend a vice.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, vice: Vice) -> Self {
        let offers = inner.offers().clone().with(vice.claims().iter().copied());
        Toy { inner, vice, offers, kept: Kept::default(), state: Arc::default() }
    }
}

impl Backend for Toy {
    fn offers(&self) -> &Offers {
        &self.offers
    }

    fn gaps(&self, grant: &Grant) -> Vec<Gap> {
        let gaps = self.inner.gaps(grant).into_iter();
        gaps.filter(|gap| !self.offers.enforced().contains(&gap.capability)).collect()
    }

    fn traces(&self, run: &RunId) -> Vec<String> {
        if self.vice == Vice::TracesNothing { vec![] } else { self.inner.traces(run) }
    }

    fn sweep(&self, traces: &[String]) -> Result<(), BackendError> {
        if self.vice == Vice::SweepsNothing { Ok(()) } else { self.inner.sweep(traces) }
    }

    fn fit(&self, request: &Request, files: &Files) -> Fit {
        if self.vice == Vice::RunsNothing {
            return Fit::No { why: "there is nothing that it runs".into(), fix: None };
        }
        self.inner.fit(request, files)
    }

    fn open<'a>(
        &'a self,
        run: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>> {
        Box::pin(async move {
            let vice = self.vice;
            let workspace = grant.files().workspace.as_ref().map(|workspace| workspace.host.clone());
            let environment = grant.environment().to_vec();
            let outlet = if vice == Vice::ClosesDoors { Arc::new(Shut(outlet)) } else { outlet };
            let mut inner =
                self.inner.open(run, loosen(&grant, |policy| vice.loosen(policy)), outlet).await?;
            let mut enforced = inner.enforced().clone();
            enforced.extend(vice.claims());
            if vice == Vice::CallsGapsEnforced {
                enforced.extend(Capability::ALL);
            }
            let left: Vec<File> = std::mem::take(&mut *self.state.lock().unwrap());
            for file in left {
                inner.put(file).await?;
            }
            let (kept, state) = (Arc::clone(&self.kept), Arc::clone(&self.state));
            let inner = Some(inner);
            Ok(Box::new(ToySession { inner, vice, enforced, workspace, environment, kept, state }) as _)
        })
    }
}

/// A way out to which nothing leads.
struct Shut(Arc<dyn Outlet>);

impl Outlet for Shut {
    fn prepare(&self) {
        self.0.prepare();
    }

    fn authority(&self) -> &str {
        self.0.authority()
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        drop(doors);
        Ok(())
    }

    fn connect(&self, _: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>> {
        drop(stream);
        Box::pin(async { Ok(()) })
    }

    fn record(&self, run: &RunId, sink: Arc<dyn Sink>, broker: Option<OwnedFd>) {
        self.0.record(run, sink, broker);
    }

    fn cut(&self) -> Boxed<'_, Cut> {
        self.0.cut()
    }
}

struct ToySession {
    /// The real one, until it is closed.
    inner: Option<Box<dyn Session>>,
    vice: Vice,
    enforced: BTreeSet<Capability>,
    workspace: Option<PathBuf>,
    environment: Vec<Variable>,
    kept: Kept,
    state: Arc<Mutex<Vec<File>>>,
}

impl Drop for ToySession {
    fn drop(&mut self) {
        if self.vice == Vice::OutlivesItsDrop {
            self.kept.lock().unwrap().extend(self.inner.take());
        }
    }
}

impl ToySession {
    fn inner(&mut self) -> &mut dyn Session {
        self.inner.as_deref_mut().unwrap()
    }

    /// What it does to a program before it starts.
    fn spoil(&self, exec: &mut Exec) {
        match self.vice {
            Vice::IgnoresTerminal => exec.terminal = None,
            Vice::LetsOut => connect_for(&exec.program),
            Vice::ReachesProcesses => {
                let pid = named(&self.environment, "HOST_PID").unwrap();
                assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
            }
            Vice::WritesToTheHost => {
                let folder = named(&self.environment, "HOST_FOLDER").unwrap();
                std::fs::write(PathBuf::from(folder).join("written"), "").unwrap();
            }
            Vice::WritesThrough => {
                if let Some(workspace) = &self.workspace {
                    std::fs::write(workspace.join("src/a.txt"), "through").unwrap();
                }
            }
            _ => {}
        }
    }
}

/// Connects from outside to where a program says that it will.
fn connect_for(program: &Program) {
    let Program::Script(script) = program else { return };
    let source = String::from_utf8_lossy(&script.source).into_owned();
    let port =
        source.split("connect((host, ").nth(1).and_then(|rest| rest.split(')').next()?.parse::<u16>().ok());
    if let Some(port) = port {
        TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"out").unwrap();
    }
}

impl Session for ToySession {
    fn enforced(&self) -> &BTreeSet<Capability> {
        &self.enforced
    }

    fn is_alive(&self) -> bool {
        self.vice == Vice::LivesForEver || self.inner.as_ref().is_some_and(|inner| inner.is_alive())
    }

    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>> {
        if self.vice == Vice::LosesFiles {
            return Box::pin(async { Ok(()) });
        }
        self.inner().put(file)
    }

    fn exec(&mut self, mut exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        Box::pin(async move {
            self.spoil(&mut exec);
            let vice = self.vice;
            let (environment, terminal, stdin) = (exec.environment.clone(), exec.terminal, exec.stdin);
            let inner = match self.inner().exec(exec).await {
                Err(BackendError::Exec { .. }) if vice == Vice::CallsTheMissingStarted => {
                    let argv = Argv::new(c"sh".into(), vec![c"-c".into(), c"exit 127".into()]);
                    let (program, delivered) = (Program::Command(argv), Deliveries::default());
                    self.inner().exec(Exec { program, environment, delivered, terminal, stdin }).await?
                }
                result => result?,
            };
            Ok(
                Box::new(ToyRunning {
                    inner,
                    vice,
                    odd: AtomicBool::new(false),
                    over: AtomicBool::new(false),
                }) as _,
            )
        })
    }

    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>> {
        Box::pin(async move {
            let vice = self.vice;
            if matches!(vice, Vice::LeavesProcesses | Vice::IgnoresTimeout) {
                return Ok(Left::default());
            }
            let left = self.inner().halt().await?;
            if vice == Vice::KeepsState {
                let mut list = List::default();
                self.inner().get(&mut list).await?;
                let files = list
                    .0
                    .iter()
                    .filter_map(|(key, bytes)| Some(super::trial::file(key.strip_prefix("added ")?, bytes)));
                self.state.lock().unwrap().extend(files);
            }
            Ok(match vice {
                Vice::CountsNothing => Left::default(),
                Vice::CountsNoMemory => used(left, |usage| usage.memory_peak_bytes = Some(0)),
                Vice::CountsNoProcesses => used(left, |usage| usage.processes_peak = Some(0)),
                Vice::CountsNoTime => used(left, |usage| usage.cpu = Duration::ZERO),
                Vice::HidesLimits => Left { limits_hit: BTreeSet::new(), ..left },
                Vice::CallsMemoryAKill => Left { out_of_memory: false, ..left },
                _ => left,
            })
        })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(async move {
            match self.vice {
                Vice::ForgetsChanges => self.inner().get(&mut Without { receiver: None }).await,
                Vice::IgnoresKeep => self.inner().get(&mut Without { receiver: Some(receiver) }).await,
                _ => self.inner().get(receiver).await,
            }
        })
    }

    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>> {
        self.inner().settle()
    }

    fn renew(
        mut self: Box<Self>,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>> {
        Box::pin(async move {
            let renewed = self.inner.take().unwrap().renew(outlet).await?;
            Ok(renewed.map(|inner| {
                self.inner = Some(inner);
                self as Box<dyn Session>
            }))
        })
    }

    fn close(mut self: Box<Self>) -> Boxed<'static, Result<(), BackendError>> {
        Box::pin(async move {
            let inner = self.inner.take().unwrap();
            if matches!(self.vice, Vice::ClosesNothing | Vice::IgnoresTimeout) {
                self.kept.lock().unwrap().push(inner);
                return Ok(());
            }
            inner.close().await
        })
    }
}

/// What was there, with something else about what was used.
fn used(mut left: Left, change: impl FnOnce(&mut Usage)) -> Left {
    change(&mut left.usage);
    left
}

/// Hands on what no tool would run, or nothing.
struct Without<'a> {
    receiver: Option<&'a mut dyn Collect>,
}

impl Collect for Without<'_> {
    fn take(&mut self, found: Found<'_>) -> std::io::Result<()> {
        match &mut self.receiver {
            Some(receiver) if !found.path.starts_with(b".vscode") => receiver.take(found),
            _ => Ok(()),
        }
    }
}

struct ToyRunning {
    inner: Box<dyn Running>,
    vice: Vice,
    /// Whether an odd number of pieces has come.
    odd: AtomicBool,
    /// Whether somebody was told that the program has ended.
    over: AtomicBool,
}

impl ToyRunning {
    /// What it makes of a piece of output; none if that is lost.
    fn spoil(&self, piece: Output) -> Option<Output> {
        let odd = !self.odd.fetch_xor(true, Ordering::Relaxed);
        match (self.vice, piece) {
            (Vice::LosesOutput, _) if !odd => None,
            (Vice::LosesLastWords, _) if self.over.load(Ordering::Relaxed) => None,
            (Vice::MixesStreams, Output::Stderr(bytes)) => Some(Output::Stdout(bytes)),
            (_, piece) => Some(piece),
        }
    }
}

impl Running for ToyRunning {
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>> {
        Box::pin(async move {
            if self.vice == Vice::HoldsOutput {
                self.inner.wait().await?;
            }
            loop {
                let Some(piece) = self.inner.output().await? else { return Ok(None) };
                if let Some(piece) = self.spoil(piece) {
                    return Ok(Some(piece));
                }
            }
        })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>> {
        if self.vice == Vice::LosesInput {
            return Box::pin(async { Ok(()) });
        }
        self.inner.write(bytes)
    }

    fn close_stdin(&self) -> Boxed<'_, ()> {
        if self.vice == Vice::NeverEndsInput {
            return Box::pin(async {});
        }
        self.inner.close_stdin()
    }

    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>> {
        if matches!(self.vice, Vice::IgnoresGrace | Vice::LosesSignals) {
            return Box::pin(async { Ok(()) });
        }
        self.inner.signal(signal)
    }

    fn resize(&self, size: WindowSize) -> Boxed<'_, Result<(), BackendError>> {
        if self.vice == Vice::IgnoresResize {
            return Box::pin(async { Ok(()) });
        }
        self.inner.resize(size)
    }

    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>> {
        Box::pin(async move {
            let ending = match self.inner.wait().await {
                Err(_) if self.vice == Vice::CallsTheLostEnded => Ending::Exited(0),
                ending => ending?,
            };
            self.over.store(true, Ordering::Relaxed);
            Ok(match (self.vice, ending) {
                (Vice::AlwaysExitsWithZero, _) | (Vice::CallsTheLostEnded, Ending::Lost) => Ending::Exited(0),
                (Vice::CallsSignalsExits, Ending::Signalled(signal)) => Ending::Exited(128 + signal),
                (Vice::CallsMemoryAKill, Ending::OutOfMemory) => Ending::Signalled(9),
                (_, ending) => ending,
            })
        })
    }
}
