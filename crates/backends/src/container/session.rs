//! A container that is open, and a program that runs in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::artifact::Collect;
use cofferdam_core::backend::{
    BackendError, Boxed, Ending, Exec, Left, Output, Running, Session, as_command,
};
use cofferdam_core::capability::{Capability, Gap};
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::{LimitName, Usage};
use cofferdam_core::request::{File, Variable, WindowSize};
use cofferdam_guest::wire::FromGuest;
use cofferdam_sys::cgroup::{Ceilings, CgroupError, Controller, Group};
use cofferdam_sys::landlock::Ruleset;
use cofferdam_sys::launch::{Launch, LaunchError, Launched, Resource};
use cofferdam_sys::{fd, fdpass, process, seccomp};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

use super::cpu::View;
use super::ids::IdBlock;
use super::{Host, interpreter, root};
use crate::agent::{self, Agent};

/// Ceilings that each process has for itself: descriptors (1,024: the usual soft limit), no
/// core files, no real-time priority, and small bounds on what the kernel keeps for a user.
pub(super) const RLIMITS: [(Resource, u64); 6] = [
    (Resource::Core, 0),
    (Resource::LockedMemory, 8 << 20),
    (Resource::MessageQueues, 800 << 10),
    (Resource::OpenFiles, 1024),
    (Resource::PendingSignals, 4096),
    (Resource::RealTimePriority, 0),
];

/// How long everything inside may take to die of SIGKILL before that is an error. Teardown is
/// bounded by 30 s as a whole.
const DYING: Duration = Duration::from_secs(20);

/// How long process 1 may take to take the others along, before they are helped.
const IMPATIENCE: Duration = Duration::from_millis(200);

/// The size of a pipe's buffer that is asked for, in bytes: fewer wake-ups for long output.
const PIPE_BYTES: i32 = 256 << 10;

/// A container that is open.
#[derive(Debug)]
pub(super) struct ContainerSession {
    enforced: BTreeSet<Capability>,
    environment: Vec<Variable>,
    /// The processes, until they are dead. Before their cgroups, which are dropped next: a group can
    /// be removed only when it is empty.
    launched: Launched,
    inside: Arc<Inside>,
    memory_bytes: u64,
    halted: Option<Left>,
    _ids: IdBlock,
}

/// What a running program shares with its session.
#[derive(Debug)]
struct Inside {
    agent: Agent,
    group: Group,
    /// Readable when process 1 has ended.
    ended: AsyncFd<OwnedFd>,
    /// Readable when memory ran out, where the kernel doesn't kill the whole group itself.
    oom: Option<AsyncFd<OwnedFd>>,
}

fn of_cgroup(error: CgroupError) -> BackendError {
    BackendError::host(format!("{} {}", error.action, error.path.display()))(error.source)
}

fn of_launch(error: LaunchError) -> BackendError {
    BackendError::Host { action: error.action, source: error.source }
}

/// Starts a container. Its agent may still be on its way: what goes wrong there shows at the first
/// thing that is asked of it.
pub(super) async fn open(
    host: &Host,
    kept: &Path,
    group: &str,
    grant: &Grant,
    gaps: &[Gap],
) -> Result<ContainerSession, BackendError> {
    let ids = IdBlock::reserve().map_err(BackendError::host("reserve user ids in /run/cofferdam"))?;
    let limits = grant.limits();
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
        steps: root::steps(limits, &cpu),
        cores: cpu.cores,
        rlimits: RLIMITS.into(),
        landlock: landlock(host),
        seccomp: Some(seccomp::container()),
        program: agent::kept_in(kept),
        argv: vec![c"cofferdam-guest".into()],
        envp: vec![],
        fds: vec![theirs.into()],
    };
    let oom = group.oom_event().map_err(of_cgroup)?.map(watch).transpose()?;
    let launched = launch.spawn().map_err(of_launch)?;
    let ended = launched.pidfd().try_clone_to_owned().map_err(BackendError::host("watch the sandbox"))?;
    let agent = Agent::new(ours).map_err(BackendError::host("open the control socket"))?;
    Ok(ContainerSession {
        enforced: enforced(host, &group, gaps),
        environment: grant.environment().to_vec(),
        inside: Arc::new(Inside { agent, group, ended: watch(ended)?, oom }),
        launched,
        memory_bytes: limits.memory_bytes,
        halted: None,
        _ids: ids,
    })
}

/// The rules for this host's Landlock, if it can be used.
pub(super) fn landlock(host: &Host) -> Option<Ruleset> {
    let abi = *host.landlock.as_ref().ok()?;
    let known = abi >= cofferdam_sys::landlock::MINIMUM_ABI;
    known.then(|| Ruleset::new(abi, root::landlock_rules()))
}

fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, BackendError> {
    #[expect(deprecated, reason = "unsound only where the descriptor can change; an OwnedFd's can't")]
    let watched = AsyncFd::with_interest(fd, Interest::READABLE);
    watched.map_err(BackendError::host("watch a descriptor"))
}

/// What was set up, read from what was set up, without what this grant's own limits rule out.
fn enforced(host: &Host, group: &Group, gaps: &[Gap]) -> BTreeSet<Capability> {
    let offers = host.offers();
    let limited = |capability| match capability {
        Capability::Cpu => group.limits(Controller::Cpu),
        Capability::Memory => group.limits(Controller::Memory),
        Capability::Pids => group.limits(Controller::Pids),
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

    fn get<'a>(&'a mut self, _receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
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

    async fn start(&self, exec: Exec) -> Result<ContainerRunning, BackendError> {
        let (file, argv) = as_command(exec.program, interpreter);
        if let Some(file) = file {
            self.inside.agent.put(&file).await?;
        }
        let failed = || BackendError::host("make the program's pipes");
        let (stdout, stdout_inside) = fd::pipe().map_err(failed())?;
        let (stderr, stderr_inside) = fd::pipe().map_err(failed())?;
        let (stdin_inside, stdin) = if exec.stdin {
            let (inside, outside) = fd::pipe().map_err(failed())?;
            (inside, Some(outside))
        } else {
            let null = std::fs::File::open("/dev/null").map_err(failed())?;
            (OwnedFd::from(null), None)
        };
        let streams = [stdin_inside.as_fd(), stdout_inside.as_fd(), stderr_inside.as_fd()];
        let argv = argv.words().map(CString::from).collect();
        let environment = self.environment(exec.environment);
        self.inside.agent.exec(argv, environment, root::WORKSPACE.into(), streams).await?;
        Ok(ContainerRunning {
            inside: Arc::clone(&self.inside),
            stdout: Stream::new(stdout).map_err(failed())?,
            stderr: Stream::new(stderr).map_err(failed())?,
            stdin: Mutex::new(stdin.map(writer).transpose().map_err(failed())?),
            ending: Mutex::default(),
        })
    }

    /// The program's environment: ours, on top of it what was granted, and then what is its own.
    fn environment(&self, own: Vec<Variable>) -> Vec<CString> {
        let ours = [
            ("HOME", "/home/user"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "user"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("SHELL", "/bin/sh"),
            ("USER", "user"),
        ];
        let mut lines: BTreeMap<String, CString> = BTreeMap::new();
        let ours = ours.into_iter().filter_map(|(name, value)| Variable::new(name, value).ok());
        for variable in ours.chain(self.environment.iter().cloned()).chain(own) {
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
        let processes = inside.group.processes().unwrap_or(0).saturating_sub(1);
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

/// Which quotas of the sandbox's tmpfs are at least 99 % used. Its root can't be anything else:
/// the program can neither change its root nor mount.
fn fullness(pid: i32) -> BTreeSet<LimitName> {
    let space =
        std::fs::File::open(format!("/proc/{pid}/root")).and_then(|root| process::space(root.as_fd()));
    let Ok(space) = space else { return BTreeSet::new() };
    let full = |(all, free): (u64, u64)| all > 0 && free < all.div_ceil(100);
    let quotas = [(LimitName::Disk, space.bytes), (LimitName::Files, space.files)];
    quotas.into_iter().filter(|(_, quota)| full(*quota)).map(|(name, _)| name).collect()
}

/// One of a program's output streams.
#[derive(Debug)]
struct Stream(Mutex<Option<pipe::Receiver>>);

impl Stream {
    fn new(end: OwnedFd) -> io::Result<Self> {
        fd::widen_pipe(end.as_fd(), PIPE_BYTES);
        fd::set_nonblocking(end.as_fd())?;
        Ok(Stream(Mutex::new(Some(pipe::Receiver::from_owned_fd(end)?))))
    }

    /// The next bytes; none at its end, again and again.
    async fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut end = self.0.lock().await;
        let Some(receiver) = end.as_ref() else { return Ok(None) };
        loop {
            receiver.readable().await?;
            let mut bytes = Vec::with_capacity(PIPE_BYTES as usize / 4);
            match receiver.try_read_buf(&mut bytes) {
                Ok(0) => break,
                Ok(_) => return Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        *end = None;
        Ok(None)
    }
}

fn writer(end: OwnedFd) -> io::Result<pipe::Sender> {
    fd::set_nonblocking(end.as_fd())?;
    pipe::Sender::from_owned_fd(end)
}

/// A program that runs in a container.
#[derive(Debug)]
struct ContainerRunning {
    inside: Arc<Inside>,
    stdin: Mutex<Option<pipe::Sender>>,
    stdout: Stream,
    stderr: Stream,
    ending: Mutex<Option<Ending>>,
}

impl Running for ContainerRunning {
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>> {
        Box::pin(async move {
            let failed = || BackendError::host("read the program's output");
            // When one stream has ended, the other decides.
            tokio::select! {
                Some(bytes) = async { self.stdout.read().await.transpose() } => {
                    bytes.map(|bytes| Some(Output::Stdout(bytes))).map_err(failed())
                }
                Some(bytes) = async { self.stderr.read().await.transpose() } => {
                    bytes.map(|bytes| Some(Output::Stderr(bytes))).map_err(failed())
                }
                else => Ok(None),
            }
        })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>> {
        Box::pin(async move {
            let mut stdin = self.stdin.lock().await;
            let Some(pipe) = stdin.as_mut() else { return Ok(()) };
            match pipe.write_all(bytes).await {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    *stdin = None;
                    Ok(())
                }
                result => result.map_err(BackendError::host("write to the program's standard input")),
            }
        })
    }

    fn close_stdin(&self) -> Boxed<'_, ()> {
        Box::pin(async move { *self.stdin.lock().await = None })
    }

    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(self.inside.agent.signal(signal))
    }

    fn resize(&self, _size: WindowSize) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
    }

    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>> {
        Box::pin(async move {
            let mut ending = self.ending.lock().await;
            if let Some(ending) = *ending {
                return Ok(ending);
            }
            let found = self.inside.until_the_end().await?;
            *ending = Some(found);
            Ok(found)
        })
    }
}

impl Inside {
    /// Waits for the first thing that ends a program.
    async fn until_the_end(&self) -> Result<Ending, BackendError> {
        let ending = tokio::select! {
            biased;
            () = self.out_of_memory() => return Ok(Ending::OutOfMemory),
            said = self.agent.hear() => match said? {
                Some(FromGuest::Exited(code)) => Ending::Exited(code),
                Some(FromGuest::Signalled(signal)) => Ending::Signalled(signal),
                Some(other) => return Err(BackendError::Wire(format!("{other:?}"))),
                None => Ending::Lost,
            },
            _ = self.ended.readable() => Ending::Lost,
        };
        // What the kernel counted wins over what the agent saw.
        Ok(if self.group.oom_kills() > 0 { Ending::OutOfMemory } else { ending })
    }

    /// Waits until the kernel has killed something inside for lack of memory; for ever where it sees
    /// to the whole group itself.
    ///
    /// The event says that memory ran out in this group or in one above it, and comes before the
    /// kill, which may be of somebody else's process: only the group's own count is the fact.
    async fn out_of_memory(&self) {
        let Some(event) = &self.oom else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = event.readable().await else { return std::future::pending().await };
            ready.clear_ready();
            fd::drain_counter(event.get_ref().as_fd());
            for _ in 0..KILL_LOOKS {
                if self.group.oom_kills() > 0 {
                    return;
                }
                tokio::time::sleep(KILL_LOOK_PAUSE).await;
            }
        }
    }
}

/// How often, and how long apart, the kernel's count is looked at after memory ran out: the kill
/// follows within milliseconds, if it is of something inside.
const KILL_LOOKS: u32 = 100;
const KILL_LOOK_PAUSE: Duration = Duration::from_millis(2);
