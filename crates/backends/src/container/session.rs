//! A container that is open.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_core::artifact::Collect;
use cofferdam_core::backend::{BackendError, Boxed, Exec, Left, Running, Session, as_command};
use cofferdam_core::capability::Capability;
use cofferdam_core::files::Python;
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::{LimitName, Usage};
use cofferdam_core::outlet::Outlet;
use cofferdam_core::request::{File, Lang, Variable, WindowSize};
use cofferdam_core::weaken::stop_at;
use cofferdam_sys::cgroup::Group;
use cofferdam_sys::launch::Launched;
use cofferdam_sys::process::{self, Space};
use tokio::sync::Mutex;

use super::cpu::Cores;
use super::files::{Base, Changes, Put};
use super::ids::RunIds;
use super::reach::Reach;
use super::running::{ContainerRunning, Inside, Pipes, Streams};
use super::terminal::Terminal;
use super::{interpreter, of_cgroup, of_launch, root, weakened};

/// Where programs are looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// How long everything inside may take to die of SIGKILL before that is an error. Teardown is
/// bounded by 30 s as a whole.
const DYING: Duration = Duration::from_secs(20);

/// How long process 1 may take to take the others along, before they are helped.
const IMPATIENCE: Duration = Duration::from_millis(200);

/// A container that is open.
#[derive(Debug)]
pub(crate) struct ContainerSession {
    pub(super) enforced: BTreeSet<Capability>,
    pub(super) environment: Vec<Variable>,
    /// The Python that scripts run with, if it isn't the sandbox's own.
    pub(super) python: Option<Python>,
    /// The processes, until they are dead. Before their cgroups, which are dropped next: a group can
    /// be removed only when it is empty.
    pub(super) launched: Launched,
    pub(super) inside: Arc<Inside>,
    pub(super) memory_bytes: u64,
    pub(super) halted: Option<Left>,
    /// What leads out, until it is handed over.
    pub(super) reach: Reach,
    /// What the program changed, once it was taken from the set-up.
    pub(super) changed: Option<OwnedFd>,
    /// The one file system in which anything can be written, once somebody has asked for its state. It goes
    /// before everything inside does.
    pub(super) writable: Option<[std::fs::File; 3]>,
    /// The folder of terminals, if there are to be any.
    pub(super) terminals: Option<OwnedFd>,
    pub(super) base: Base,
    pub(super) put: Put,
    /// Kept until everything is dead: others are given other cores meanwhile.
    pub(super) cores: Cores,
    pub(super) ids: RunIds,
}

impl Session for ContainerSession {
    fn enforced(&self) -> &BTreeSet<Capability> {
        &self.enforced
    }

    fn is_alive(&self) -> bool {
        let ended = self.inside.ended.get_ref().as_fd();
        !self.is_spent() && !process::readable_within(ended, Duration::ZERO)
    }

    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async move {
            if self.is_spent() {
                return Err(BackendError::Spent);
            }
            self.put.note(file.name.as_c_str().to_bytes(), &file.bytes);
            let put = self.inside.agent.put(&file).await;
            put.map_err(|error| self.explained(error))
        })
    }

    fn exec(&mut self, exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        Box::pin(async move {
            if self.is_spent() {
                return Err(BackendError::Spent);
            }
            match self.start(exec).await {
                Ok(running) => Ok(Box::new(running) as Box<dyn Running>),
                Err(error) => Err(self.explained(error)),
            }
        })
    }

    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>> {
        Box::pin(async move {
            if let Some(left) = &self.halted {
                return Ok(left.clone());
            }
            let left = self.kill_and_count().await?;
            self.cores.free();
            self.halted = Some(left.clone());
            Ok(left)
        })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(async move {
            if self.halted.is_none() {
                return Err(BackendError::Spent);
            }
            let folder = match self.changed.take() {
                Some(folder) => folder,
                None => self.take_changed()?,
            };
            let base = std::mem::replace(&mut self.base, Base::Empty);
            Changes { folder, base, put: std::mem::take(&mut self.put) }.collect(receiver).await
        })
    }

    /// Never: a program leaves processes, and marks in the kernel that only a new namespace is without.
    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>> {
        Box::pin(async { Ok(None) })
    }

    fn renew(
        self: Box<Self>,
        _: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>> {
        Box::pin(async move { self.close().await.map(|()| None) })
    }

    fn close(mut self: Box<Self>) -> Boxed<'static, Result<(), BackendError>> {
        Box::pin(async move {
            self.halt().await?;
            match Arc::try_unwrap(self.inside) {
                Ok(inside) => inside.group.remove().map_err(of_cgroup),
                // A program's handle is still held: the group goes when that is dropped.
                Err(_) => Ok(()),
            }
        })
    }
}

impl ContainerSession {
    /// Whether it takes nothing more.
    pub(crate) fn is_spent(&self) -> bool {
        self.halted.is_some() || self.inside.lost.load(Ordering::Relaxed)
    }

    /// What an error of the agent's means: the sandbox is spent, but for what a program or a file made
    /// impossible. Why it is gone says its set-up's own report, or what the kernel counted, or neither.
    pub(crate) fn explained(&mut self, error: BackendError) -> BackendError {
        if matches!(error, BackendError::Gone | BackendError::Silent { .. } | BackendError::Wire(_)) {
            self.inside.lost.store(true, Ordering::Relaxed);
        }
        if !matches!(error, BackendError::Gone) {
            return error;
        }
        // It has closed its socket, so it is ending; a kill makes sure that the wait is short.
        let _ = self.launched.kill();
        let failure = self.launched.failure();
        if self.inside.group.oom_kills() > 0 {
            return BackendError::NoRoom { limit: format!("limits.memory of {} bytes", self.memory_bytes) };
        }
        failure.map_or(error, of_launch)
    }

    /// What holds for everything inside, for a backend that says the rest.
    pub(crate) fn enforced_mut(&mut self) -> &mut BTreeSet<Capability> {
        &mut self.enforced
    }

    /// Takes the folder that holds what the program changes.
    fn take_changed(&self) -> Result<OwnedFd, BackendError> {
        self.launched.handed_over().map_err(BackendError::host("open the working directory"))
    }

    /// Hands over what leads out, before the first program starts.
    async fn reach_out(&mut self) -> Result<(), BackendError> {
        if !self.reach.is_pending() {
            return Ok(());
        }
        self.inside.agent.greeted().await?; // everything that the set-up hands over is there then
        self.changed = Some(self.take_changed()?);
        self.reach.hand_over(&self.launched)
    }

    async fn start(&mut self, exec: Exec) -> Result<ContainerRunning, BackendError> {
        self.reach_out().await?;
        let (file, argv) = as_command(exec.program, |lang| self.interpreter(lang));
        if let Some(file) = file {
            self.put.note(file.name.as_c_str().to_bytes(), &file.bytes);
            self.inside.agent.put(&file).await?;
            stop_at("file-put");
        }
        let argv = argv.words().map(CString::from).collect();
        let envp = variables(self.python.as_ref(), &self.environment, exec.environment, &exec.delivered);
        let (number, streams) = match exec.terminal {
            Some(size) => self.start_on_terminal(argv, envp, size).await?,
            None => self.start_on_pipes(argv, envp, exec.stdin).await?,
        };
        let inside = Arc::clone(&self.inside);
        Ok(ContainerRunning { inside, number, streams, ending: Mutex::default() })
    }

    async fn start_on_terminal(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        size: WindowSize,
    ) -> Result<(usize, Streams), BackendError> {
        let failed = || BackendError::host("make the program's terminal");
        let missing = || failed()(io::ErrorKind::Unsupported.into());
        let folder = self.terminals.as_ref().ok_or_else(missing)?;
        let (terminal, theirs) = Terminal::make(folder, self.ids.ids(), size).map_err(failed())?;
        let streams = [theirs.as_fd(); 3];
        let number = self.inside.agent.exec(argv, envp, root::WORKSPACE.into(), streams, true).await?;
        Ok((number, Streams::Terminal(terminal)))
    }

    async fn start_on_pipes(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        stdin: bool,
    ) -> Result<(usize, Streams), BackendError> {
        let failed = || BackendError::host("make the program's pipes");
        let (pipes, inside) = Pipes::make(stdin).map_err(failed())?;
        let streams = inside.each_ref().map(AsFd::as_fd);
        let number = self.inside.agent.exec(argv, envp, root::WORKSPACE.into(), streams, false).await?;
        Ok((number, Streams::Pipes(Box::new(pipes))))
    }

    /// The interpreter of a language.
    fn interpreter(&self, lang: Lang) -> CString {
        match &self.python {
            Some(python) if lang == Lang::Python => python.executable.as_c_str().into(),
            _ => interpreter(lang),
        }
    }

    /// Waits until process 1 has ended, and with it everything inside. It takes the others along,
    /// but has to run for that; if it takes long, each is killed by itself.
    async fn wait_for_death(&self) -> Result<(), BackendError> {
        let deadline = tokio::time::Instant::now() + DYING;
        loop {
            let ended = tokio::time::timeout(IMPATIENCE, self.inside.ended.readable()).await;
            match ended {
                Ok(ready) => {
                    ready.map_err(BackendError::host("see the sandbox die"))?.retain_ready();
                    return Ok(());
                }
                Err(_) if tokio::time::Instant::now() > deadline => {
                    let late = io::ErrorKind::TimedOut.into();
                    return Err(BackendError::host("see the sandbox die")(late));
                }
                Err(_) => self.inside.group.kill_all(),
            }
        }
    }

    async fn kill_and_count(&mut self) -> Result<Left, BackendError> {
        let inside = &self.inside;
        let first = self.launched.pid();
        // Of one that isn't set up yet, the host's own would be seen.
        let is_set_up = inside.agent.has_greeted();
        let living = if is_set_up { living(&inside.group, first) } else { vec![] };
        let processes = living.len().saturating_sub(1);
        let at_work: Duration = living.iter().skip(1).filter_map(|process| cpu_so_far(process)).sum();
        let full = if is_set_up { fullness(first) } else { BTreeSet::new() };
        inside.group.unthrottle();
        self.writable = None;
        self.launched.kill().map_err(BackendError::host("kill the sandbox"))?;
        self.wait_for_death().await?;
        let reaped = self.launched.reap().map_err(BackendError::host("reap the sandbox"))?;
        let inside = &self.inside;
        let counts = inside.group.counts();
        let mut limits_hit = full;
        if counts.pids_refused > 0 {
            limits_hit.insert(LimitName::Pids);
        }
        if counts.oom_kills > 0 {
            limits_hit.insert(LimitName::Memory);
        }
        Ok(Left {
            processes: processes as u32,
            usage: Usage {
                cpu: inside.group.cpu().unwrap_or(Duration::ZERO).max(reaped.cpu + at_work),
                memory_peak_bytes: counts.memory_peak_bytes,
                processes_peak: counts.pids_peak,
            },
            limits_hit,
            out_of_memory: counts.oom_kills > 0,
        })
    }
}

/// Variables by which programs find the Python that was chosen: the first in `PATH`, and the
/// virtual environment that it belongs to.
fn python_variables(python: Option<&Python>) -> Vec<Variable> {
    let Some(python) = python else { return vec![] };
    let executable = python.executable.as_c_str().to_bytes();
    let folder = executable.iter().rposition(|&byte| byte == b'/').map_or(&b"/"[..], |at| &executable[..at]);
    let path = [folder, b":", PATH.as_bytes()].concat();
    let venv = python.venv.as_ref().map(|venv| Variable::new("VIRTUAL_ENV", venv.as_c_str().to_bytes()));
    [Some(Variable::new("PATH", path)), venv].into_iter().flatten().filter_map(Result::ok).collect()
}

/// A program's environment: ours, on top of it what was granted, and on top of that its own.
pub(super) fn variables(
    python: Option<&Python>,
    granted: &[Variable],
    own: Vec<Variable>,
    delivered: &Deliveries,
) -> Vec<CString> {
    let ours = [
        ("HOME", "/home/user"),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "user"),
        ("PATH", PATH),
        // What a program has printed isn't lost when it is killed, and nothing compiled lies among
        // what it changed.
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONUNBUFFERED", "1"),
        ("SHELL", "/bin/sh"),
        ("USER", "user"),
    ];
    let mut lines: BTreeMap<String, CString> = BTreeMap::new();
    let ours = ours.into_iter().filter_map(|(name, value)| Variable::new(name, value).ok());
    let ours = weakened::environment().chain(ours).chain(python_variables(python));
    for variable in ours.chain(granted.iter().cloned()).chain(own) {
        lines.insert(variable.name().to_owned(), variable.to_c_string());
    }
    lines.extend(delivered.variables.iter().map(|secret| (secret.name().to_owned(), secret.to_c_string())));
    lines.into_values().collect()
}

/// The folders in `/proc` of a sandbox's processes, process 1 first: by its cgroup, or by its own `/proc` where
/// there is none to count them.
pub(super) fn living(group: &Group, first: i32) -> Vec<PathBuf> {
    if let Some(pids) = group.processes() {
        let others = pids.into_iter().filter(|pid| *pid != first);
        return std::iter::once(first)
            .chain(others)
            .map(|pid| PathBuf::from(format!("/proc/{pid}")))
            .collect();
    }
    let Ok(entries) = std::fs::read_dir(format!("/proc/{first}/root/proc")) else { return vec![] };
    let numbered = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let mut found: Vec<_> = entries.flatten().filter(|entry| numbered(&entry.file_name())).collect();
    found.sort_by_key(|entry| entry.file_name() != "1");
    found.iter().map(std::fs::DirEntry::path).collect()
}

/// The processor time of a process that lives, with that of its children for which it has waited. What died
/// with nobody waiting is counted by nobody but a cgroup.
fn cpu_so_far(process: &Path) -> Option<Duration> {
    // `USER_HZ` of `asm-generic/param.h`, which no architecture of ours changes.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // After the name, which may hold anything: fields 14 to 17 of proc_pid_stat(5).
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u32 = fields.map(|field| field.parse().unwrap_or(0)).fold(0, u32::saturating_add);
    Some(TICK.saturating_mul(ticks))
}

/// Which quotas of the sandbox's writable space are at least 99 % used. Its `/tmp` is on that and can't
/// be anything else: the program can neither change its root nor mount.
fn fullness(pid: i32) -> BTreeSet<LimitName> {
    let space =
        std::fs::File::open(format!("/proc/{pid}/root/tmp")).and_then(|root| process::space(root.as_fd()));
    space.map_or_else(|_| BTreeSet::new(), |space| full(&space))
}

/// Which quotas of it are at least 99 % used.
pub(super) fn full(space: &Space) -> BTreeSet<LimitName> {
    let full = |(all, free): (u64, u64)| all > 0 && free < all.div_ceil(100);
    let quotas = [(LimitName::Disk, space.bytes), (LimitName::Files, space.files)];
    quotas.into_iter().filter(|(_, quota)| full(*quota)).map(|(name, _)| name).collect()
}
