//! A new process in new namespaces.
//!
//! A [`Launch`] is an ordered list of things to do, prepared by the parent down to the last byte:
//! the child allocates nothing, so it may be cloned from a process with threads, and it runs no
//! program before the one that it is for. [`Launch::spawn`] clones, and the child in [`child`]
//! walks the list:
//!
//! 1. join the cgroups;
//! 2. wait until the parent has mapped the ids, become root of the new user namespace;
//! 3. do the [`Step`]s (mounts, files, the change of root);
//! 4. lower the limits, drop every capability, become the unprivileged user;
//! 5. no new privileges, Landlock, close every other descriptor;
//! 6. wait until the parent has written the program, then seccomp, execute.
//!
//! Signals stay blocked all the way, and in the program until it says otherwise.
//!
//! The first thing that fails is reported with its place in the list, and the child exits.

pub(crate) mod child;

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use cofferdam_core::weaken::{self, Control, stop_at};

use crate::capture::Door;
use crate::landlock::Ruleset;
use crate::netlink::Request;
use crate::seccomp::Filter;
use crate::{check, fd, fdpass, process};

/// Everything that the child does, in the order in which it does it.
#[derive(Debug)]
pub struct Launch {
    /// Version 1 `tasks` files, opened for writing, through which the child joins its cgroups.
    pub joins: Vec<OwnedFd>,
    /// The version 2 cgroup to be born in.
    pub born_in: Option<OwnedFd>,
    /// Users of the new namespace.
    pub ids: Ids,
    /// Mounts that were made ready outside, for [`Step::Attach`].
    pub mounts: Vec<OwnedFd>,
    /// What to do as root of the new user namespace.
    pub steps: Vec<Step>,
    /// Cores to run on; empty leaves them alone.
    pub cores: Vec<usize>,
    /// Ceilings for each process, soft and hard alike.
    pub rlimits: Vec<(Resource, u64)>,
    /// The second layer over the file system.
    pub landlock: Option<Ruleset>,
    /// The system calls that remain.
    pub seccomp: Option<Filter>,
    /// The program itself.
    pub program: Program,
    /// Its arguments.
    pub argv: Vec<CString>,
    /// Its environment, `NAME=VALUE`.
    pub envp: Vec<CString>,
    /// Descriptors that it gets, each under its position counted from 3. Standard input, output
    /// and error are `/dev/null` of the new root.
    pub fds: Vec<OwnedFd>,
}

/// What is executed at the end.
#[derive(Debug)]
pub enum Program {
    /// Bytes, which become a sealed file in memory while the child sets up.
    InMemory(&'static [u8]),
    /// An open file.
    Open(OwnedFd),
}

/// The identity of the processes inside, and what it is outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User and group that the program runs as, inside.
    pub inside: u32,
    /// The user, outside.
    pub outside: u32,
    /// The group, outside.
    pub group_outside: u32,
    /// What root of the namespace is outside; it owns the made files. None where the caller may
    /// map no second id.
    pub root_outside: Option<u32>,
}

/// One thing to do during set-up. Paths are relative to the new root, which is the working
/// directory until [`Step::Pivot`] makes it `/`. Until then `..` is the file system that the new root
/// is a folder of; afterwards nothing leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put a mount that was made ready outside in its place.
    Attach {
        /// Its position among [`Launch::mounts`].
        mount: usize,
        /// Where it goes; it must exist.
        target: CString,
    },
    /// Wait until the parent has done its part ([`Launched::go_on`]).
    Await,
    /// Put something over a file or folder that may not be there, read-only if `read_only`.
    Cover {
        /// What is shown instead.
        source: CString,
        /// What is hidden.
        target: CString,
        /// Whether the new mount can't be written.
        read_only: bool,
    },
    /// Show a file or folder of the host, with everything mounted below it.
    Bind {
        /// Where it is, before the change of root.
        source: CString,
        /// Where it goes; it must exist.
        target: CString,
    },
    /// Change the flags of a mount, and of everything below it if `recursive`.
    Attributes {
        /// The mount.
        target: CString,
        /// The flags that are added.
        set: MountFlags,
        /// Whether mounts below it change too.
        recursive: bool,
    },
    /// Make a socket in the network namespace and give it to the parent ([`Launched::handed_over`]), which
    /// hears through it what the program does. Part of [`Capture::steps`](crate::capture::Capture::steps).
    Door(Door),
    /// Write a small file.
    File {
        /// Where.
        path: CString,
        /// What it holds.
        bytes: Vec<u8>,
    },
    /// Write a small file that begins as one of the host's that everybody can read.
    Extended {
        /// The host's file.
        beginning: CString,
        /// How much of it is taken, in bytes.
        length: usize,
        /// What follows it.
        bytes: Vec<u8>,
        /// Where.
        path: CString,
    },
    /// Make a folder.
    Folder {
        /// Where.
        path: CString,
        /// Its permissions.
        mode: u32,
        /// Whether it belongs to the program's user rather than to root.
        owned: bool,
    },
    /// Give the parent a descriptor of a folder ([`Launched::handed_over`]), which it can use when
    /// the namespace is gone.
    HandOver {
        /// The folder.
        path: CString,
    },
    /// Set the host name.
    Hostname(CString),
    /// Make a symbolic link.
    Link {
        /// What it says.
        target: CString,
        /// Where it is.
        path: CString,
    },
    /// Bring up the loopback interface.
    Loopback,
    /// Mount a new file system.
    Mount {
        /// Its type: `tmpfs`, `proc`, `devpts`.
        kind: CString,
        /// Where; it must exist.
        target: CString,
        /// Its flags.
        flags: MountFlags,
        /// Its options.
        options: CString,
    },
    /// Set up the network namespace. Part of [`Capture::steps`](crate::capture::Capture::steps).
    Network(Request),
    /// Make a socket to the nftables of the network namespace and give it to the parent
    /// ([`Launched::handed_over`]), which loads a table through it. Part of
    /// [`Capture::first_steps`](crate::capture::Capture::first_steps).
    Nftables,
    /// Mount a tmpfs over a folder of the host, make the new root in it and enter that.
    NewRoot {
        /// The folder, which is hidden in the new namespace alone.
        over: CString,
        /// Options of the tmpfs.
        options: CString,
    },
    /// Make the working directory the root, and let go of the host's.
    Pivot,
}

/// Flags of a mount, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Nothing can be written.
    pub read_only: bool,
    /// Set-user-id bits mean nothing.
    pub no_suid: bool,
    /// Device files can't be opened.
    pub no_dev: bool,
    /// Nothing can be executed.
    pub no_exec: bool,
}

impl MountFlags {
    /// No set-user-id, no devices: every mount of a sandbox has at least these.
    pub const PLAIN: MountFlags =
        MountFlags { read_only: false, no_suid: true, no_dev: true, no_exec: false };
    /// [`MountFlags::PLAIN`], read-only.
    pub const READ_ONLY: MountFlags = MountFlags { read_only: true, ..MountFlags::PLAIN };
    /// [`MountFlags::PLAIN`], nothing executable.
    pub const NO_EXEC: MountFlags = MountFlags { no_exec: true, ..MountFlags::PLAIN };

    /// As `mount(2)` takes them.
    fn for_mount(self) -> libc::c_ulong {
        let mut flags = 0;
        for (on, flag) in [
            (self.read_only, libc::MS_RDONLY),
            (self.no_suid, libc::MS_NOSUID),
            (self.no_dev, libc::MS_NODEV),
            (self.no_exec, libc::MS_NOEXEC),
        ] {
            flags |= if on { flag } else { 0 };
        }
        flags
    }

    /// As `mount_setattr(2)` takes them; the values of `linux/mount.h`.
    pub(crate) fn for_attributes(self) -> u64 {
        let mut flags = 0;
        for (on, flag) in
            [(self.read_only, 0x1), (self.no_suid, 0x2), (self.no_dev, 0x4), (self.no_exec, 0x8)]
        {
            flags |= if on { flag } else { 0 };
        }
        flags
    }
}

/// A ceiling that each process has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of a core file.
    Core,
    /// Bytes of locked memory.
    LockedMemory,
    /// Bytes in POSIX message queues of the user.
    MessageQueues,
    /// Open descriptors.
    OpenFiles,
    /// Real-time priority.
    RealTimePriority,
    /// Queued signals of the user.
    PendingSignals,
    /// Processes and threads of the user in this user namespace: since Linux 5.14 they are counted by
    /// namespace (`kernel/ucount.c`), so this is a ceiling on the sandbox.
    Processes,
}

impl Resource {
    /// The kernel's number.
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::Core => libc::RLIMIT_CORE,
            Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
            Resource::MessageQueues => libc::RLIMIT_MSGQUEUE,
            Resource::OpenFiles => libc::RLIMIT_NOFILE,
            Resource::PendingSignals => libc::RLIMIT_SIGPENDING,
            Resource::Processes => libc::RLIMIT_NPROC,
            Resource::RealTimePriority => libc::RLIMIT_RTPRIO,
        }
    }
}

/// Where the child was when something failed. The numbers of the steps start at [`Stage::STEPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Stage {
    JoinCgroup = 1,
    BecomeRoot,
    CgroupNamespace,
    PrivateMounts,
    Cores,
    Limits,
    Capabilities,
    BecomeUser,
    ParentDeath,
    NoNewPrivileges,
    Landlock,
    Descriptors,
    Program,
    Seccomp,
    Execute,
}

impl Stage {
    /// The number of the first step.
    const STEPS: u32 = 1000;

    /// What couldn't be done, as a verb phrase.
    fn describe(number: u32, steps: &[Step]) -> String {
        const NAMES: [&str; 15] = [
            "join the cgroup",
            "become root of the user namespace",
            "create the cgroup namespace",
            "make the mounts private",
            "choose the cores",
            "lower the resource limits",
            "drop the capabilities",
            "become the unprivileged user",
            "tie the sandbox to its parent",
            "set no_new_privs",
            "apply Landlock",
            "arrange the descriptors",
            "wait for the program",
            "install the seccomp filter",
            "execute the guest agent",
        ];
        if let Some(step) = number.checked_sub(Stage::STEPS).and_then(|at| steps.get(at as usize)) {
            return step.to_string();
        }
        let at = (number as usize).wrapping_sub(1);
        NAMES.get(at).map_or_else(|| format!("do set-up stage {number}"), |name| (*name).to_owned())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |path: &CStr| path.to_string_lossy().into_owned();
        match self {
            Step::Attach { target, .. } => write!(f, "attach /{}", show(target)),
            Step::Await => write!(f, "wait for the host's part"),
            Step::Attributes { target, .. } => write!(f, "set the mount flags of /{}", show(target)),
            Step::Bind { source, target } => {
                write!(f, "show {} as /{}", show(source), show(target))
            }
            Step::Cover { target, .. } => write!(f, "hide /{}", show(target)),
            Step::Door(door) => write!(f, "listen at {door}"),
            Step::Extended { path, .. } | Step::File { path, .. } => write!(f, "write /{}", show(path)),
            Step::Folder { path, .. } => write!(f, "make the folder /{}", show(path)),
            Step::HandOver { path } => write!(f, "hand over /{}", show(path)),
            Step::Hostname(_) => write!(f, "set the host name"),
            Step::Link { path, .. } => write!(f, "make the link /{}", show(path)),
            Step::Loopback => write!(f, "bring up the loopback interface"),
            Step::Mount { kind, target, .. } => {
                write!(f, "mount {} on /{}", show(kind), show(target))
            }
            Step::Network(request) => write!(f, "{request}"),
            Step::Nftables => f.write_str("open nftables for the host"),
            Step::NewRoot { over, .. } => write!(f, "mount the new root over {}", show(over)),
            Step::Pivot => write!(f, "change the root"),
        }
    }
}

/// The first thing that failed, and what the kernel said.
#[derive(Debug, thiserror::Error)]
#[error("could not {action}")]
pub struct LaunchError {
    /// A verb phrase.
    pub action: String,
    /// The kernel's answer.
    pub source: io::Error,
}

/// A process that was launched. It is killed, with everything in its namespace, when this is
/// dropped.
#[derive(Debug)]
pub struct Launched {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    failure: fs::File,
    /// Held open so that the child sees whether its parent lives.
    gate: fs::File,
    /// Through which folders and sockets are handed over, and the parent says to go on.
    exchange: UnixStream,
    steps: Vec<Step>,
    layers: Layers,
    reaped: Option<process::Reaped>,
}

/// What a launch puts around its program: as it was handed to the child, which ends unless all of it
/// could be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// A filter of system calls.
    pub filter: bool,
    /// A ruleset of Landlock.
    pub landlock: bool,
    /// A network namespace of its own.
    pub network: bool,
}

impl Launch {
    /// Clones the child and lets it go once its ids are mapped.
    ///
    /// Blocks for as long as the kernel takes to make the namespaces (about half a millisecond).
    /// The sandbox dies with the *thread* that calls this, as PR_SET_PDEATHSIG has it.
    /// Whether the set-up succeeded is known when the program speaks, or when it ends and
    /// [`Launched::failure`] has the reason.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the child can't be cloned or its ids can't be mapped, or if a step has failed
    /// already; it is gone then.
    pub fn spawn(self) -> Result<Launched, LaunchError> {
        let failed = |action: &str| {
            let action = action.to_owned();
            move |source| LaunchError { action, source }
        };
        let (gate_read, gate_write) = fd::pipe().map_err(failed("make a pipe"))?;
        let (failure_read, failure_write) = fd::pipe().map_err(failed("make a pipe"))?;
        let (exchange, child_exchange) = fdpass::pair().map_err(failed("make a socket"))?;
        let (program, bytes) = match self.program {
            Program::InMemory(bytes) => (fd::executable(c"program"), Some(bytes)),
            Program::Open(ref file) => (file.try_clone(), None),
        };
        let program = program.map_err(failed("make the program's file"))?;
        let image = child::Image::new(&self, program.as_fd());
        // A handler of ours must not run in the child, where it would act on what is shared.
        let blocked = process::SignalsBlocked::all().map_err(failed("block signals"))?;
        let apart = !weaken::is_off(Control::UserNamespace);
        let owner =
            self.ids.root_outside.filter(|_| apart).map(|_| process::ActingAs::user(self.ids.outside));
        let owner = owner.transpose().map_err(failed("act as the sandbox's user"))?;
        let namespaces = namespaces();
        let (pid, pidfd) = clone_into(namespaces, self.born_in.as_ref().map(AsFd::as_fd), || {
            let ends = child::Ends {
                gate: gate_read.as_fd(),
                failure: failure_write.as_fd(),
                exchange: child_exchange.as_fd(),
                parents: [gate_write.as_raw_fd(), exchange.as_raw_fd()],
            };
            child::run(&image, &ends)
        })
        .map_err(failed("create the namespaces"))?;
        drop((blocked, owner, gate_read, failure_write, child_exchange));
        // From here on, dropping `launched` kills and reaps the child.
        let mut launched = Launched {
            pid,
            pidfd,
            failure: fs::File::from(failure_read),
            gate: fs::File::from(gate_write),
            exchange,
            steps: self.steps,
            layers: Layers {
                filter: self.seccomp.is_some(),
                landlock: self.landlock.is_some(),
                network: namespaces & libc::CLONE_NEWNET != 0,
            },
            reaped: None,
        };
        stop_at("cloned");
        if apart {
            self.ids.map(pid).map_err(failed("map the user namespace's ids"))?;
        }
        stop_at("ids-mapped");
        launched.tell(IDS_ARE_MAPPED)?;
        if let Some(bytes) = bytes {
            // While the child mounts, on another core if there is one: a megabyte takes a while.
            fd::fill_and_seal(program, bytes).map_err(failed("write the program's file"))?;
        }
        launched.tell(PROGRAM_IS_THERE)?;
        Ok(launched)
    }
}

/// What the parent says through the gate, a byte each time; the child only counts them.
const IDS_ARE_MAPPED: &[u8] = b"1";
const PROGRAM_IS_THERE: &[u8] = b"2";

impl Ids {
    /// Writes the maps of a process that has a new user namespace.
    fn map(&self, pid: libc::pid_t) -> io::Result<()> {
        let line = |outside| format!("{} {outside} 1\n", self.inside);
        let (users, groups) = (line(self.outside), line(self.group_outside));
        let root = self.root_outside.map_or_else(String::new, |root| format!("0 {root} 1\n"));
        if self.root_outside.is_none() {
            // An unprivileged caller may map its own group only if nobody can drop groups.
            fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
        }
        fs::write(format!("/proc/{pid}/uid_map"), root.clone() + &users)?;
        fs::write(format!("/proc/{pid}/gid_map"), root + &groups)
    }
}

/// `struct clone_args` of `linux/sched.h`, as far as the kernel knows it since 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// CLONE_INTO_CGROUP of `linux/sched.h`, which `libc` has as a negative `c_int`.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The namespaces that a sandbox has of its own, but for the cgroup namespace, which it makes when it is in
/// its cgroups.
fn namespaces() -> libc::c_int {
    let namespaces = [
        (Control::UserNamespace, libc::CLONE_NEWUSER),
        (Control::PidNamespace, libc::CLONE_NEWPID),
        (Control::UtsNamespace, libc::CLONE_NEWUTS),
        (Control::IpcNamespace, libc::CLONE_NEWIPC),
        (Control::NetNamespace, libc::CLONE_NEWNET),
    ];
    let wanted = namespaces.iter().filter(|(control, _)| !weaken::is_off(*control));
    wanted.fold(libc::CLONE_NEWNS, |all, (_, flag)| all | flag)
}

/// Clones a child into new namespaces and runs `body` in it, which never returns.
pub(crate) fn clone_into(
    namespaces: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
    body: impl FnOnce() -> std::convert::Infallible,
) -> io::Result<(libc::pid_t, OwnedFd)> {
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: namespaces as u64 | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of the address space, and `args` points
    // to live memory of the stated size. The child's only code is `body`, which neither allocates
    // nor takes locks (it may have been cloned while another thread held one) and never returns.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        body();
    }
    // SAFETY: the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok((pid as libc::pid_t, pidfd))
}

impl Launched {
    /// The process, as the host numbers it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// What is around the program.
    #[must_use]
    pub fn layers(&self) -> Layers {
        self.layers
    }

    /// A descriptor that becomes readable when the process has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The next folder or socket that the set-up hands over, in the order of the steps. Blocks until it
    /// comes.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the set-up ended before that: [`Launched::failure`] has the reason.
    pub fn handed_over(&self) -> io::Result<OwnedFd> {
        let (_, fds) = fdpass::receive(self.exchange.as_fd(), &mut [0; 1])?;
        fds.into_iter().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Lets the set-up go on from its [`Step::Await`].
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if it has ended.
    pub fn go_on(&self) -> io::Result<()> {
        fdpass::send(self.exchange.as_fd(), b"g", &[]).map(drop)
    }

    /// Says something through the gate; to a child that has ended already, whose own report is the reason then.
    fn tell(&mut self, what: &[u8]) -> Result<(), LaunchError> {
        self.gate.write_all(what).map_err(|source| {
            self.failure().unwrap_or_else(|| LaunchError { action: "start the sandbox".to_owned(), source })
        })
    }

    /// Why the set-up failed, once the process has ended. None if it reached its program.
    pub fn failure(&mut self) -> Option<LaunchError> {
        let mut report = [0; 8];
        self.failure.read_exact(&mut report).ok()?;
        let [stage, errno] =
            [&report[..4], &report[4..]].map(|half| i32::from_ne_bytes([half[0], half[1], half[2], half[3]]));
        Some(LaunchError {
            action: Stage::describe(stage as u32, &self.steps),
            source: io::Error::from_raw_os_error(errno),
        })
    }

    /// Kills the process and with it, since it is process 1 of its namespace, everything in there.
    ///
    /// # Errors
    ///
    /// What the kernel said. A process that has ended is not an error.
    pub fn kill(&self) -> io::Result<()> {
        if self.reaped.is_some() {
            return Ok(());
        }
        // It has to run in order to die, and those inside may have seen to it that it hardly does.
        // The number is still its own: it hasn't been waited for.
        process::hasten(self.pid);
        process::signal(self.pidfd(), libc::SIGKILL)
    }

    /// Waits for the end of the process and says what it and everything below it used. The kernel
    /// lets process 1 end only when its whole namespace is empty. Blocks; may be called again.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn reap(&mut self) -> io::Result<process::Reaped> {
        if let Some(reaped) = self.reaped {
            return Ok(reaped);
        }
        let reaped = process::reap(self.pidfd.as_fd())?;
        self.reaped = Some(reaped);
        Ok(reaped)
    }
}

/// How long a drop waits for what it killed.
const PARTING: std::time::Duration = std::time::Duration::from_secs(2);

impl Drop for Launched {
    fn drop(&mut self) {
        if self.kill().is_ok() && process::readable_within(self.pidfd(), PARTING) {
            let _ = self.reap(); // nothing is left to tell it to; the sweep looks again
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_its_own_words() {
        assert_eq!(Stage::describe(Stage::JoinCgroup as u32, &[]), "join the cgroup");
        assert_eq!(Stage::describe(Stage::Execute as u32, &[]), "execute the guest agent");
        let steps = [Step::Pivot, Step::Hostname(c"x".into())];
        assert_eq!(Stage::describe(Stage::STEPS + 1, &steps), "set the host name");
        assert_eq!(Stage::describe(77, &steps), "do set-up stage 77");
    }
}
