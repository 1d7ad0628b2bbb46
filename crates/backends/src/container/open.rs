//! Starts a container: everything that a sandbox is made of comes together here.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::backend::BackendError;
use cofferdam_core::capability::{Capability, Gap};
use cofferdam_core::grant::Grant;
use cofferdam_core::outlet::Outlet;
use cofferdam_core::policy::Limits;
use cofferdam_core::request::Variable;
use cofferdam_core::weaken::stop_at;
use cofferdam_sys::capture::{Capture, Table};
use cofferdam_sys::cgroup::{Ceilings, Controller, Group};
use cofferdam_sys::landlock::Ruleset;
use cofferdam_sys::launch::{Ids, Launch, Launched, Layers, Resource};
use cofferdam_sys::{fdpass, seccomp};

use super::cpu::{Cores, View};
use super::files::{self, Base, HostFiles, Owner, Put};
use super::fittings::Fittings;
use super::ids::RunIds;
use super::probe::REACHING_OUT;
use super::reach::{Reach, Trust};
use super::root::Plan;
use super::running::{Inside, watch};
use super::session::ContainerSession;
use super::{Host, disk, of_cgroup, of_launch, root, weakened};
use crate::agent::{self, Agent};

/// Ceilings that each process has for itself: descriptors (1,024: the usual soft limit), no
/// core files, no real-time priority, and small bounds on what the kernel keeps for a user.
const RLIMITS: [(Resource, u64); 5] = [
    (Resource::Core, 1), // with which no core goes to the host's handler; 0 would give it one: sys::seccomp
    (Resource::LockedMemory, 8 << 20),
    (Resource::MessageQueues, 800 << 10),
    (Resource::PendingSignals, 4096),
    (Resource::RealTimePriority, 0),
];

/// What the cgroups hold.
pub(super) fn ceilings(limits: &Limits, fittings: &Fittings) -> Ceilings {
    Ceilings {
        memory_bytes: limits.memory_bytes.saturating_add(fittings.memory_bytes),
        cpu_thousandths: limits.cpus.thousandths(),
        pids: limits.pids.saturating_add(1).saturating_add(fittings.pids), // the agent is one of them
    }
}

/// The ceilings for each process, of which there may be so many; with one on their number where no cgroup holds
/// that.
pub(super) fn rlimits(most: u32, by_cgroup: bool) -> Vec<(Resource, u64)> {
    let others = [(Resource::OpenFiles, open_files(most, host_files()))];
    let processes = (!by_cgroup).then_some((Resource::Processes, u64::from(most)));
    RLIMITS.into_iter().chain(others).chain(processes).collect()
}

/// How many files a process may have open: as many as is usual, but all of them together no more than half of
/// what the whole host has.
fn open_files(processes: u32, host: Option<u64>) -> u64 {
    const USUAL: u64 = 1024; // the soft limit that Linux starts with (`INR_OPEN_CUR` of `linux/fs.h`)
    const LEAST: u64 = 64; // for a program that starts others and has its libraries open meanwhile
    host.map_or(USUAL, |files| (files / 2 / u64::from(processes.max(1))).clamp(LEAST, USUAL))
}

/// `fs.file-max`.
fn host_files() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/fs/file-max").ok()?.trim().parse().ok()
}

/// Starts a container. Its agent may still be on its way: what goes wrong there shows at the first
/// thing that is asked of it.
pub(super) async fn open(
    host: &Host,
    folder: &Path,
    group: &str,
    grant: &Grant,
    gaps: &[Gap],
    fittings: &Fittings,
    outlet: Option<Arc<dyn Outlet>>,
) -> Result<ContainerSession, BackendError> {
    let reach = reach(host, grant, outlet);
    reach.prepare();
    let ids = RunIds::take().map_err(BackendError::host("reserve user ids in /run/cofferdam"))?;
    stop_at("ids-reserved");
    let limits = grant.limits();
    let ceilings = weakened::ceilings(ceilings(limits, fittings));
    let group = host.cgroups.create(group, &ceilings).map_err(of_cgroup)?;
    stop_at("cgroups-made");
    let oom = group.oom_event().map_err(of_cgroup)?.map(watch).transpose()?;
    let (ids_of_run, pids) = (ids.ids(), ceilings.pids);
    let trust = reach.trust(grant.network());
    let start = Start {
        host,
        folder,
        ids: ids_of_run,
        grant,
        group: &group,
        pids,
        fittings,
        captured: reach.capture(),
        trust: trust.as_ref(),
    };
    let started = match start.with_owner(None) {
        Err(Failed::MostlyOf(owner)) => start.with_owner(Some(owner)),
        result => result,
    };
    let Started { launched, control, table, terminals, base, cores } =
        started.map_err(|failed| match failed {
            Failed::Backend(error) => error,
            Failed::MostlyOf(_) => {
                BackendError::host("see whose the workspace is")(io::ErrorKind::ResourceBusy.into())
            }
        })?;
    let ended = launched.pidfd().try_clone_to_owned().map_err(BackendError::host("watch the sandbox"))?;
    let agent = Agent::new(control).map_err(BackendError::host("open the control socket"))?;
    Ok(ContainerSession {
        enforced: enforced(host, grant, &group, launched.layers(), gaps, reach.capture().is_some()),
        environment: environment(trust.is_some(), grant),
        python: grant.files().python.clone(),
        inside: Arc::new(Inside { agent, group, ended: watch(ended)?, oom, lost: AtomicBool::new(false) }),
        launched,
        memory_bytes: limits.memory_bytes,
        halted: None,
        reach: reach.with_table(table),
        changed: None,
        writable: None,
        terminals,
        base,
        put: Put::default(),
        cores,
        ids,
    })
}

/// What leads out of a sandbox: nothing, where nothing is captured or nobody takes it.
fn reach(host: &Host, grant: &Grant, outlet: Option<Arc<dyn Outlet>>) -> Reach {
    match (&host.captures, outlet) {
        (Ok(support), Some(outlet)) if weakened::has_its_own_network() => {
            Reach::new(&weakened::captured(support), grant.network(), outlet)
        }
        _ => Reach::nowhere(),
    }
}

/// The variables that were granted, and before them those by which programs find what they should trust.
fn environment(trusts: bool, grant: &Grant) -> Vec<Variable> {
    let trust = trusts.then(Trust::variables).into_iter().flatten();
    trust.chain(grant.environment().iter().cloned()).collect()
}

/// What a start is made of.
struct Start<'a> {
    host: &'a Host,
    folder: &'a Path,
    ids: &'a Ids,
    grant: &'a Grant,
    group: &'a Group,
    /// The ceiling on processes, the agent included.
    pids: u32,
    fittings: &'a Fittings,
    captured: Option<&'a Capture>,
    trust: Option<&'a Trust>,
}

/// What has been started.
struct Started {
    launched: Launched,
    control: UnixStream,
    table: Option<Table>,
    terminals: Option<OwnedFd>,
    base: Base,
    cores: Cores,
}

/// Why a start came to nothing.
enum Failed {
    Backend(BackendError),
    /// Most of the workspace is somebody else's than whose it was shown as: it has to be done again.
    MostlyOf(Owner),
}

impl From<BackendError> for Failed {
    fn from(error: BackendError) -> Self {
        Failed::Backend(error)
    }
}

impl Start<'_> {
    /// Launches the sandbox and does the host's part of its files. `owner` is whose most of the
    /// workspace is, where that is known.
    fn with_owner(&self, owner: Option<Owner>) -> Result<Started, Failed> {
        let limits = self.grant.limits();
        let mut files = HostFiles::prepare(self.grant.files(), self.ids, owner, self.fittings)?;
        let disk = if disk::is_needed(limits) && disk::hindrance(self.host.root).is_none() {
            Some(files.attach(disk::make(&self.folder.join("disks"), limits, self.ids)?))
        } else {
            None
        };
        let terminal = self.grant.asks().contains(&Capability::Tty);
        let cores = Cores::choose(limits.cpus);
        let (control, theirs) = fdpass::pair().map_err(BackendError::host("make the control socket"))?;
        let launch = Launch {
            joins: self.group.joins().map_err(of_cgroup)?,
            born_in: self.group.born_in().map_err(of_cgroup)?,
            ids: self.ids.clone(),
            mounts: std::mem::take(&mut files.mounts),
            steps: root::steps(&Plan {
                limits,
                cpu: View::of(&cores),
                files: &files,
                terminal,
                disk,
                captured: self.captured,
                trust: self.trust,
            }),
            cores: cores.as_slice().to_vec(),
            rlimits: rlimits(self.pids, self.group.limits(Controller::Pids)),
            landlock: landlock(self.host),
            seccomp: Some(seccomp::container()),
            program: agent::kept_in(&self.folder.join("agent")),
            argv: vec![c"cofferdam-guest".into()],
            envp: vec![],
            fds: vec![theirs.into()],
        };
        let mut launched = weakened::launch(launch).spawn().map_err(of_launch)?;
        let table = match self.captured.map(|capture| capture.load(&launched)).transpose() {
            Ok(table) => table.flatten(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(explained(&mut launched, error).into());
            }
            Err(error) => {
                let _ = launched.kill(); // dropped, it would be too; nothing of its own has begun
                return Err(BackendError::host("load the table that captures connections")(error).into());
            }
        };
        let terminals = if terminal {
            Some(launched.handed_over().map_err(|error| explained(&mut launched, error))?)
        } else {
            None
        };
        let base = base(&mut launched, files, self.ids)?;
        Ok(Started { launched, control, table, terminals, base, cores })
    }
}

/// Does the host's part of a workspace, and gives what the program is shown.
fn base(launched: &mut Launched, files: HostFiles, ids: &Ids) -> Result<Base, Failed> {
    let Some(plan) = files.workspace else { return Ok(Base::Empty) };
    let unreadable = |error: io::Error| BackendError::Files {
        path: plan.path.clone(),
        why: error.to_string(),
        fix: "name a folder that you can read with --workspace".to_owned(),
    };
    let survey = plan.surveying.finish().map_err(unreadable)?;
    if let Some(owner) = survey.most {
        return Err(Failed::MostlyOf(owner));
    }
    let cover = launched.handed_over().map_err(|error| explained(launched, error))?;
    let layered = plan.lower.is_some();
    files::fill(cover.as_fd(), plan.folder.as_fd(), &plan.path, layered, &survey, ids)?;
    stop_at("files-filled");
    launched.go_on().map_err(|error| explained(launched, error))?;
    Ok(if layered {
        Base::Layer { lower: plan.folder, cover, hidden: survey.hidden }
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A clock tick earlier: inodes are stamped with the last tick, up to 10 ms old.
        let since = now.saturating_sub(Duration::from_millis(10));
        let since = (since.as_secs() as i64, i64::from(since.subsec_nanos()));
        Base::Copy { source: plan.folder, hidden: survey.hidden, since }
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

/// What holds, read from what was set up, without what this grant's own limits rule out.
fn enforced(
    host: &Host,
    grant: &Grant,
    group: &Group,
    layers: Layers,
    gaps: &[Gap],
    captured: bool,
) -> BTreeSet<Capability> {
    let offers = host.offers();
    let holds = |capability| match capability {
        Capability::Syscalls => layers.filter,
        Capability::Landlock => layers.landlock,
        Capability::Network => layers.network,
        Capability::Cpu => group.limits(Controller::Cpu),
        Capability::Memory => group.limits(Controller::Memory),
        Capability::Pids => group.limits(Controller::Pids) || !host.root, // by namespace then
        Capability::Tty => grant.asks().contains(&capability),
        // Without a rule there is nothing to judge: that nothing leaves is another promise.
        capability if REACHING_OUT.contains(&capability) => captured && grant.asks().contains(&capability),
        _ => true,
    };
    let missing = |capability| gaps.iter().any(|gap| gap.capability == capability);
    let enforced = offers.enforced().iter().copied();
    enforced.filter(|&capability| holds(capability) && !missing(capability)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_leaves_the_host_half_of_its_files() {
        assert_eq!(open_files(257, None), 1024);
        assert_eq!(open_files(257, Some(u64::MAX)), 1024);
        // What a machine of 2 GiB has.
        assert_eq!(open_files(257, Some(196_463)), 382);
        assert_eq!(open_files(1 << 22, Some(196_463)), 64);
        assert_eq!(open_files(0, Some(10)), 64);
    }
}
