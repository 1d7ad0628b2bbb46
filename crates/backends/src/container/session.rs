//! A container that is open.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::artifact::Collect;
use cofferdam_core::backend::{BackendError, Boxed, Exec, Left, Running, Session, as_command};
use cofferdam_core::capability::{Capability, Gap};
use cofferdam_core::files::Python;
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::{LimitName, Usage};
use cofferdam_core::request::{File, Lang, Variable, WindowSize};
use cofferdam_sys::cgroup::{Ceilings, CgroupError, Controller, Group};
use cofferdam_sys::landlock::Ruleset;
use cofferdam_sys::launch::{Ids, Launch, LaunchError, Launched, Resource};
use cofferdam_sys::{fdpass, process, seccomp};
use tokio::sync::Mutex;

use super::cpu::View;
use super::files::{self, Base, Changes, HostFiles, Put};
use super::ids::RunIds;
use super::root::Plan;
use super::running::{ContainerRunning, Inside, Pipes, Streams, watch};
use super::terminal::Terminal;
use super::{Host, disk, interpreter, root};
use crate::agent::{self, Agent};

/// Ceilings that each process has for itself: descriptors (1,024: the usual soft limit), no
/// core files, no real-time priority, and small bounds on what the kernel keeps for a user.
const RLIMITS: [(Resource, u64); 6] = [
    (Resource::Core, 0),
    (Resource::LockedMemory, 8 << 20),
    (Resource::MessageQueues, 800 << 10),
    (Resource::OpenFiles, 1024),
    (Resource::PendingSignals, 4096),
    (Resource::RealTimePriority, 0),
];

/// The ceilings, with one on processes where no cgroup holds that.
pub(super) fn rlimits(processes: Option<u32>) -> Vec<(Resource, u64)> {
    let processes = processes.map(|most| (Resource::Processes, u64::from(most)));
    RLIMITS.into_iter().chain(processes).collect()
}

/// Where programs are looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// How long everything inside may take to die of SIGKILL before that is an error. Teardown is
/// bounded by 30 s as a whole.
const DYING: Duration = Duration::from_secs(20);

/// How long process 1 may take to take the others along, before they are helped.
const IMPATIENCE: Duration = Duration::from_millis(200);

/// A container that is open.
#[derive(Debug)]
pub(super) struct ContainerSession {
    enforced: BTreeSet<Capability>,
    environment: Vec<Variable>,
    /// The Python that scripts run with, if it isn't the sandbox's own.
    python: Option<Python>,
    /// The processes, until they are dead. Before their cgroups, which are dropped next: a group can
    /// be removed only when it is empty.
    launched: Launched,
    inside: Arc<Inside>,
    memory_bytes: u64,
    halted: Option<Left>,
    /// The folder of terminals, if there are to be any.
    terminals: Option<OwnedFd>,
    base: Base,
    put: Put,
    ids: RunIds,
}

fn of_cgroup(error: CgroupError) -> BackendError {
    BackendError::host(format!("{} {}", error.action, error.path.display()))(error.source)
}

fn of_launch(error: LaunchError) -> BackendError {
    let LaunchError { action, source } = error;
    match action.strip_prefix("mount overlay on ") {
        Some(place) => BackendError::Files {
            path: place.into(),
            why: format!("the kernel mounts no overlay there: {source}"),
            fix: "have it copied instead: --workspace DIR --copy".to_owned(),
        },
        None => BackendError::Host { action, source },
    }
}

/// Starts a container. Its agent may still be on its way: what goes wrong there shows at the first
/// thing that is asked of it.
pub(super) async fn open(
    host: &Host,
    folder: &Path,
    group: &str,
    grant: &Grant,
    gaps: &[Gap],
) -> Result<ContainerSession, BackendError> {
    let ids = RunIds::take().map_err(BackendError::host("reserve user ids in /run/cofferdam"))?;
    let mut files = HostFiles::prepare(grant.files(), ids.ids())?;
    let limits = grant.limits();
    let disk = if disk::is_needed(limits) && disk::hindrance(host.root).is_none() {
        Some(files.attach(disk::make(&folder.join("disks"), limits, ids.ids())?))
    } else {
        None
    };
    let terminal = grant.asks().contains(&Capability::Tty);
    let ceilings = Ceilings {
        memory_bytes: limits.memory_bytes,
        cpu_thousandths: limits.cpus.thousandths(),
        pids: limits.pids.saturating_add(1), // the agent is one of them
    };
    let group = host.cgroups.create(group, &ceilings).map_err(of_cgroup)?;
    let cpu = View::choose(limits.cpus);
    let (ours, theirs) = fdpass::pair().map_err(BackendError::host("make the control socket"))?;
    let launch = Launch {
        joins: group.joins().map_err(of_cgroup)?,
        born_in: group.born_in().map_err(of_cgroup)?,
        ids: ids.ids().clone(),
        mounts: std::mem::take(&mut files.mounts),
        steps: root::steps(&Plan { limits, cpu: &cpu, files: &files, terminal, disk }),
        cores: cpu.cores,
        rlimits: rlimits((!group.limits(Controller::Pids)).then_some(ceilings.pids)),
        landlock: landlock(host),
        seccomp: Some(seccomp::container()),
        program: agent::kept_in(&folder.join("agent")),
        argv: vec![c"cofferdam-guest".into()],
        envp: vec![],
        fds: vec![theirs.into()],
    };
    let oom = group.oom_event().map_err(of_cgroup)?.map(watch).transpose()?;
    let mut launched = launch.spawn().map_err(of_launch)?;
    let terminals = if terminal {
        Some(launched.handed_over().map_err(|error| explained(&mut launched, error))?)
    } else {
        None
    };
    let base = base(&mut launched, files, ids.ids())?;
    let ended = launched.pidfd().try_clone_to_owned().map_err(BackendError::host("watch the sandbox"))?;
    let agent = Agent::new(ours).map_err(BackendError::host("open the control socket"))?;
    Ok(ContainerSession {
        enforced: enforced(host, &group, gaps, terminal),
        environment: grant.environment().to_vec(),
        python: grant.files().python.clone(),
        inside: Arc::new(Inside { agent, group, ended: watch(ended)?, oom }),
        launched,
        memory_bytes: limits.memory_bytes,
        halted: None,
        terminals,
        base,
        put: Put::default(),
        ids,
    })
}

/// Does the host's part of a workspace, and gives what the program is shown.
fn base(launched: &mut Launched, files: HostFiles, ids: &Ids) -> Result<Base, BackendError> {
    let Some(plan) = files.workspace else { return Ok(Base::Empty) };
    let cover = if plan.needs_filling() {
        let folder = launched.handed_over().map_err(|error| explained(launched, error))?;
        files::fill(folder.as_fd(), &plan, ids)?;
        launched.go_on().map_err(|error| explained(launched, error))?;
        Some(folder)
    } else {
        None
    };
    Ok(if plan.lower.is_some() {
        Base::Layer { lower: plan.folder, cover }
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A clock tick earlier: inodes are stamped with the last tick, up to 10 ms old.
        let since = now.saturating_sub(Duration::from_millis(10));
        let since = (since.as_secs() as i64, i64::from(since.subsec_nanos()));
        Base::Copy { source: plan.folder, hidden: plan.survey.hidden, since }
    })
}

/// Why a set-up didn't hand over a folder: its own report, if it made one.
fn explained(launched: &mut Launched, error: io::Error) -> BackendError {
    let _ = launched.kill(); // it has closed its socket, so it is ending
    launched.failure().map_or_else(|| BackendError::host("prepare the workspace")(error), of_launch)
}

/// The rules for this host's Landlock, if it can be used.
pub(super) fn landlock(host: &Host) -> Option<Ruleset> {
    let abi = *host.landlock.as_ref().ok()?;
    let known = abi >= cofferdam_sys::landlock::MINIMUM_ABI;
    known.then(|| Ruleset::new(abi, root::landlock_rules()))
}

/// What was set up, read from what was set up, without what this grant's own limits rule out.
fn enforced(host: &Host, group: &Group, gaps: &[Gap], terminal: bool) -> BTreeSet<Capability> {
    let offers = host.offers();
    let limited = |capability| match capability {
        Capability::Cpu => group.limits(Controller::Cpu),
        Capability::Memory => group.limits(Controller::Memory),
        Capability::Pids => group.limits(Controller::Pids) || !host.root, // by namespace then
        Capability::Tty => terminal,
        _ => true,
    };
    let missing = |capability| gaps.iter().any(|gap| gap.capability == capability);
    let enforced = offers.enforced().iter().copied();
    enforced.filter(|&capability| limited(capability) && !missing(capability)).collect()
}

impl Session for ContainerSession {
    fn enforced(&self) -> &BTreeSet<Capability> {
        &self.enforced
    }

    fn is_alive(&self) -> bool {
        let ended = self.inside.ended.get_ref().as_fd();
        self.halted.is_none() && !process::readable_within(ended, Duration::ZERO)
    }

    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async move {
            self.put.note(file.name.as_c_str().to_bytes(), &file.bytes);
            let put = self.inside.agent.put(&file).await;
            put.map_err(|error| self.explained(error))
        })
    }

    fn exec(&mut self, exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        Box::pin(async move {
            if self.halted.is_some() {
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
            self.halted = Some(left.clone());
            Ok(left)
        })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(async move {
            if self.halted.is_none() {
                return Err(BackendError::Spent);
            }
            let folder = self.launched.handed_over();
            let folder = folder.map_err(BackendError::host("open the working directory"))?;
            Changes { folder, base: &self.base, put: &self.put }.collect(receiver)
        })
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
    /// Why a sandbox is gone: its set-up's own report, or what the kernel counted, or neither.
    fn explained(&mut self, error: BackendError) -> BackendError {
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

    async fn start(&mut self, exec: Exec) -> Result<ContainerRunning, BackendError> {
        let (file, argv) = as_command(exec.program, |lang| self.interpreter(lang));
        if let Some(file) = file {
            self.put.note(file.name.as_c_str().to_bytes(), &file.bytes);
            self.inside.agent.put(&file).await?;
        }
        let argv = argv.words().map(CString::from).collect();
        let envp = self.environment(exec.environment);
        let streams = match exec.terminal {
            Some(size) => self.start_on_terminal(argv, envp, size).await?,
            None => self.start_on_pipes(argv, envp, exec.stdin).await?,
        };
        Ok(ContainerRunning { inside: Arc::clone(&self.inside), streams, ending: Mutex::default() })
    }

    async fn start_on_terminal(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        size: WindowSize,
    ) -> Result<Streams, BackendError> {
        let failed = || BackendError::host("make the program's terminal");
        let missing = || failed()(io::ErrorKind::Unsupported.into());
        let folder = self.terminals.as_ref().ok_or_else(missing)?;
        let (terminal, theirs) = Terminal::make(folder, self.ids.ids(), size).map_err(failed())?;
        let streams = [theirs.as_fd(); 3];
        self.inside.agent.exec(argv, envp, root::WORKSPACE.into(), streams, true).await?;
        Ok(Streams::Terminal(terminal))
    }

    async fn start_on_pipes(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        stdin: bool,
    ) -> Result<Streams, BackendError> {
        let failed = || BackendError::host("make the program's pipes");
        let (pipes, inside) = Pipes::make(stdin).map_err(failed())?;
        let streams = inside.each_ref().map(AsFd::as_fd);
        self.inside.agent.exec(argv, envp, root::WORKSPACE.into(), streams, false).await?;
        Ok(Streams::Pipes(pipes))
    }

    /// The interpreter of a language.
    fn interpreter(&self, lang: Lang) -> CString {
        match &self.python {
            Some(python) if lang == Lang::Python => python.executable.as_c_str().into(),
            _ => interpreter(lang),
        }
    }

    /// Variables by which programs find the Python that was chosen: the first in `PATH`, and the
    /// virtual environment that it belongs to.
    fn python_variables(&self) -> Vec<Variable> {
        let Some(python) = &self.python else { return vec![] };
        let executable = python.executable.as_c_str().to_bytes();
        let folder =
            executable.iter().rposition(|&byte| byte == b'/').map_or(&b"/"[..], |at| &executable[..at]);
        let path = [folder, b":", PATH.as_bytes()].concat();
        let venv = python.venv.as_ref().map(|venv| Variable::new("VIRTUAL_ENV", venv.as_c_str().to_bytes()));
        [Some(Variable::new("PATH", path)), venv].into_iter().flatten().filter_map(Result::ok).collect()
    }

    /// The program's environment: ours, and on top of it what was granted.
    fn environment(&self, own: Vec<Variable>) -> Vec<CString> {
        let ours = [
            ("HOME", "/home/user"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "user"),
            ("PATH", PATH),
            ("SHELL", "/bin/sh"),
            ("USER", "user"),
        ];
        let mut lines: BTreeMap<String, CString> = BTreeMap::new();
        let ours = ours.into_iter().filter_map(|(name, value)| Variable::new(name, value).ok());
        for variable in ours.chain(self.python_variables()).chain(self.environment.iter().cloned()).chain(own)
        {
            lines.insert(variable.name().to_owned(), variable.to_c_string());
        }
        lines.into_values().collect()
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
        let processes = inside.group.processes().unwrap_or_else(|| shown_in_proc(self.launched.pid()));
        let processes = processes.saturating_sub(1);
        let full = fullness(self.launched.pid());
        inside.group.unthrottle();
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
                cpu: reaped.cpu,
                memory_peak_bytes: counts.memory_peak_bytes,
                processes_peak: counts.pids_peak,
            },
            limits_hit,
            out_of_memory: counts.oom_kills > 0,
        })
    }
}

/// Processes that a sandbox's own `/proc` shows, for where there is no cgroup to count them.
fn shown_in_proc(pid: i32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/root/proc")) else { return 0 };
    let numbered = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    entries.flatten().filter(|entry| numbered(&entry.file_name())).count()
}

/// Which quotas of the sandbox's writable space are at least 99 % used. Its `/tmp` is on that and can't
/// be anything else: the program can neither change its root nor mount.
fn fullness(pid: i32) -> BTreeSet<LimitName> {
    let space =
        std::fs::File::open(format!("/proc/{pid}/root/tmp")).and_then(|root| process::space(root.as_fd()));
    let Ok(space) = space else { return BTreeSet::new() };
    let full = |(all, free): (u64, u64)| all > 0 && free < all.div_ceil(100);
    let quotas = [(LimitName::Disk, space.bytes), (LimitName::Files, space.files)];
    quotas.into_iter().filter(|(_, quota)| full(*quota)).map(|(name, _)| name).collect()
}
