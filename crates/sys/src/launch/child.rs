//! What the child does between its birth and its program.
//!
//! Everything here runs after `clone3` in a copy of a process whose other threads are gone. So:
//! no allocation, no locks, no panics, nothing but system calls on memory that the parent
//! prepared. Failures are numbers that the parent turns into words.

pub(crate) mod network;

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use cofferdam_core::weaken::{self, Control};

use super::{Ids, Launch, MountFlags, Program, Stage, Step};

/// The parent's plan, with the pointer arrays that `execve` needs.
pub(super) struct Image<'a> {
    launch: &'a Launch,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    cores: libc::cpu_set_t,
    program: BorrowedFd<'a>,
}

/// Permissions that files and folders are made without.
const UMASK: libc::mode_t = 0o022;

/// A system call failed with this number.
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Done = Result<(), Errno>;

impl<'a> Image<'a> {
    /// Prepares everything that would need memory later.
    pub(super) fn new(launch: &'a Launch, program: BorrowedFd<'a>) -> Self {
        let pointers =
            |words: &[CString]| words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
        // SAFETY: a set of bits for which all zeros means empty.
        let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &core in launch.cores.iter().filter(|core| **core < libc::CPU_SETSIZE as usize) {
            // SAFETY: the core is within the set's size.
            unsafe { libc::CPU_SET(core, &mut cores) };
        }
        Image { launch, argv: pointers(&launch.argv), envp: pointers(&launch.envp), cores, program }
    }
}

/// Descriptors that the child itself needs until its program runs, out of the way of the places
/// that the program's own will take.
struct Tools {
    failure: RawFd,
    gate: RawFd,
    program: RawFd,
}

/// The child's ends of what connects it to its parent.
pub(super) struct Ends<'a> {
    /// Says when to go on; its end is the parent's death.
    pub(super) gate: BorrowedFd<'a>,
    /// Takes the report of a failure.
    pub(super) failure: BorrowedFd<'a>,
    /// Takes folders and sockets that are handed over, and says when the parent has done its part.
    pub(super) exchange: BorrowedFd<'a>,
    /// This process's copies of the parent's ends. They have to go first: with them open, the
    /// parent's death would never show.
    pub(super) parents: [RawFd; 2],
}

/// Walks through the plan; ends in the program, or reports what failed and exits.
pub(super) fn run(image: &Image<'_>, ends: &Ends<'_>) -> Infallible {
    for fd in ends.parents {
        // SAFETY: closes a number that nothing in this process uses.
        unsafe { libc::close(fd) };
    }
    let Err((stage, Errno(errno), failure)) = set_up_and_execute(image, ends);
    let mut report = [0; 8];
    report[..4].copy_from_slice(&stage.to_ne_bytes());
    report[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: writes from a live buffer of the stated size, then ends the process. `_exit` runs no
    // handlers of the process that this one was copied from.
    unsafe {
        libc::write(failure, report.as_ptr().cast(), report.len());
        libc::_exit(125)
    }
}

/// Gives back where to report a failure, since the pipe moves on the way.
fn set_up_and_execute(image: &Image<'_>, ends: &Ends<'_>) -> Result<Infallible, (u32, Errno, RawFd)> {
    let tools = lift_tools(image.program, ends.gate, ends.failure)
        .map_err(|errno| (Stage::Descriptors as u32, errno, ends.failure.as_raw_fd()))?;
    set_up(image, &tools, ends.exchange.as_raw_fd())
        .and_then(|()| execute(tools.program, image).map_err(|errno| (Stage::Execute as u32, errno)))
        .map_err(|(stage, errno)| (stage, errno, tools.failure))
}

fn set_up(image: &Image<'_>, tools: &Tools, exchange: RawFd) -> Result<(), (u32, Errno)> {
    let launch = image.launch;
    let at = |stage: Stage| move |errno| (stage as u32, errno);
    // The change of ids below forgets this; it covers the wait for the parent's go.
    die_with_parent(tools.gate).map_err(at(Stage::ParentDeath))?;
    choose_cores(image).map_err(at(Stage::Cores))?;
    join_cgroups(launch).map_err(at(Stage::JoinCgroup))?;
    become_root(tools.gate, &launch.ids).map_err(at(Stage::BecomeRoot))?;
    // After joining, so that the namespace's root is the sandbox's own cgroup.
    if !weaken::is_off(Control::CgroupNamespace) {
        cgroup_namespace().map_err(at(Stage::CgroupNamespace))?;
    }
    private_mounts().map_err(at(Stage::PrivateMounts))?;
    for (number, step) in launch.steps.iter().enumerate() {
        take(step, launch, exchange).map_err(|errno| (Stage::STEPS + number as u32, errno))?;
    }
    lower_limits(launch).map_err(at(Stage::Limits))?;
    if !weaken::is_off(Control::Capabilities) {
        drop_bounding_set().map_err(at(Stage::Capabilities))?;
    }
    become_user(&launch.ids).map_err(at(Stage::BecomeUser))?;
    // Again, since the changes of ids have cleared it.
    die_with_parent(tools.gate).map_err(at(Stage::ParentDeath))?;
    if !weaken::is_off(Control::NoNewPrivileges) {
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(at(Stage::NoNewPrivileges))?;
    }
    if let Some(ruleset) = &launch.landlock {
        // A file in memory is nowhere, and Landlock has no say over it.
        let file = matches!(launch.program, Program::Open(_)).then_some(tools.program);
        ruleset.restrict_self(file).map_err(|errno| (Stage::Landlock as u32, Errno(errno)))?;
    }
    arrange_descriptors(launch, tools).map_err(at(Stage::Descriptors))?;
    wait_for_go(tools.gate).map_err(at(Stage::Program))?;
    if let Some(filter) = &launch.seccomp {
        filter.install().map_err(|errno| (Stage::Seccomp as u32, Errno(errno)))?;
    }
    Ok(())
}

/// The last system call's error.
fn errno() -> Errno {
    // SAFETY: the address of this thread's errno is always valid.
    Errno(unsafe { *libc::__errno_location() })
}

/// Makes a call that returns a negative number on failure.
fn call(f: impl FnOnce() -> libc::c_long) -> Result<libc::c_long, Errno> {
    let result = f();
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Gives the process a view of cgroups in which its own is the root.
fn cgroup_namespace() -> Done {
    // SAFETY: changes this process's namespaces and touches no memory.
    call(|| libc::c_long::from(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) })).map(drop)
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Done {
    // SAFETY: the options used here take numbers, not pointers.
    call(|| libc::c_long::from(unsafe { libc::prctl(option, value, 0, 0, 0) })).map(drop)
}

/// Joins version 1 cgroups through their `tasks` files.
///
/// Writing `0` there moves the writing thread alone, which the kernel does without the lock that
/// `cgroup.procs` takes over all forks and exits; waiting for that one costs 12 to 20 ms now and
/// then (`cgroup_attach_lock` in `kernel/cgroup/cgroup.c`). This process has one thread.
fn join_cgroups(launch: &Launch) -> Done {
    for tasks in &launch.joins {
        // SAFETY: writes one byte from a constant.
        call(|| unsafe { libc::write(tasks.as_raw_fd(), c"0".as_ptr().cast(), 1) } as libc::c_long)?;
    }
    Ok(())
}

/// Waits until the parent has mapped the ids, then becomes the namespace's root. Where only one id
/// is mapped, the capabilities are there all the same and the id stays what it is.
fn become_root(gate: RawFd, ids: &Ids) -> Done {
    wait_for_go(gate)?;
    if ids.root_outside.is_some() {
        change_ids(0)?;
    }
    // SAFETY: sets a number.
    unsafe { libc::umask(UMASK) };
    Ok(())
}

/// Waits for a byte through the gate.
fn wait_for_go(gate: RawFd) -> Done {
    let mut byte = 0u8;
    // SAFETY: reads at most one byte into a live variable.
    match call(|| unsafe { libc::read(gate, (&raw mut byte).cast(), 1) } as libc::c_long)? {
        0 => Err(Errno(libc::EPIPE)), // the parent is gone
        _ => Ok(()),
    }
}

/// Changes all three user and group ids, and drops the supplementary groups where that is allowed.
///
/// By raw system calls: the C library's versions tell other threads, and there are none here.
fn change_ids(id: u32) -> Done {
    // SAFETY: these take numbers; an empty group list needs no memory.
    unsafe {
        call(|| libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        call(|| libc::syscall(libc::SYS_setresgid, id, id, id))?;
        call(|| libc::syscall(libc::SYS_setresuid, id, id, id))?;
    }
    Ok(())
}

/// Cuts the new mount namespace off from the host's: nothing mounted here is seen there.
fn private_mounts() -> Done {
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> Done {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let (source, kind, options) = (pointer(source), pointer(kind), pointer(options).cast());
    // SAFETY: every pointer is null or a string that outlives the call.
    let result = unsafe { libc::mount(source, target.as_ptr(), kind, flags, options) };
    call(|| libc::c_long::from(result)).map(drop)
}

/// Does one step.
fn take(step: &Step, launch: &Launch, exchange: RawFd) -> Done {
    match step {
        Step::Attach { mount, target } => match launch.mounts.get(*mount) {
            Some(mount) => attach(mount.as_raw_fd(), target),
            None => Err(Errno(libc::EBADF)),
        },
        Step::Await => wait_for_go(exchange),
        Step::Attributes { target, set, recursive } => set_attributes(target, *set, *recursive),
        Step::Bind { source, target } => {
            mount(Some(source), target, None, libc::MS_BIND | libc::MS_REC, None)
        }
        Step::Cover { source, target, read_only } => cover(source, target, *read_only),
        Step::Door(door) => network::open_door(*door, exchange),
        Step::Extended { beginning, length, bytes, path } => {
            write_file(path, bytes, |file| copy(beginning, *length, file))
        }
        Step::File { path, bytes } => write_file(path, bytes, |_| Ok(())),
        Step::Folder { path, mode, owned } => make_folder(path, *mode, owned.then_some(launch.ids.inside)),
        Step::HandOver { path } => hand_over(path, exchange),
        Step::Hostname(name) => {
            let bytes = name.to_bytes();
            // SAFETY: the pointer and the length describe a live string.
            call(|| libc::c_long::from(unsafe { libc::sethostname(bytes.as_ptr().cast(), bytes.len()) }))
                .map(drop)
        }
        Step::Link { target, path } => {
            // SAFETY: both are strings that outlive the call.
            call(|| libc::c_long::from(unsafe { libc::symlink(target.as_ptr(), path.as_ptr()) })).map(drop)
        }
        Step::Loopback => loopback_up(),
        Step::Mount { kind, target, flags, options } => {
            mount(Some(kind), target, Some(kind), flags.for_mount(), Some(options))
        }
        Step::Network(request) => network::configure(request),
        Step::Nftables => network::hand_over_nftables(exchange),
        Step::NewRoot { over, options } => {
            let flags = MountFlags::PLAIN.for_mount();
            mount(Some(c"sandbox"), over, Some(c"tmpfs"), flags, Some(options))?;
            change_folder(over)?;
            make_folder(c"root", 0o755, None)?;
            mount(Some(c"root"), c"root", None, libc::MS_BIND, None)?;
            change_folder(c"root")
        }
        Step::Pivot => pivot(),
    }
}

/// Puts a mount that hangs nowhere yet into its place.
fn attach(mount: RawFd, target: &CStr) -> Done {
    // MOVE_MOUNT_F_EMPTY_PATH of `linux/mount.h`: the descriptor itself is what is moved.
    const FROM_DESCRIPTOR: libc::c_uint = 0x4;
    // SAFETY: both paths are live strings.
    call(|| unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            FROM_DESCRIPTOR,
        )
    })
    .map(drop)
}

/// Sends the parent a descriptor of a folder.
fn hand_over(path: &CStr, exchange: RawFd) -> Done {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the path is a live string; the descriptor is closed once and used by nobody else.
    unsafe {
        let fd = call(|| libc::c_long::from(libc::open(path.as_ptr(), flags)))? as RawFd;
        let sent = send_descriptor(fd, exchange);
        libc::close(fd);
        sent
    }
}

/// Sends the parent a descriptor, beside one byte.
pub(crate) fn send_descriptor(fd: RawFd, exchange: RawFd) -> Done {
    #[repr(C)]
    struct Rights {
        header: libc::cmsghdr,
        fd: RawFd,
        _end: RawFd, // a message is a multiple of eight bytes long
    }
    // SAFETY: `message` points to live values of the stated sizes.
    unsafe {
        let mut rights: Rights = std::mem::zeroed();
        rights.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<RawFd>()) as _;
        rights.header.cmsg_level = libc::SOL_SOCKET;
        rights.header.cmsg_type = libc::SCM_RIGHTS;
        rights.fd = fd;
        let mut byte = 0u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of::<Rights>() as _;
        call(|| libc::sendmsg(exchange, &raw const message, libc::MSG_NOSIGNAL) as libc::c_long).map(drop)
    }
}

/// Hides something, if it is there: not every kernel has every file of `/proc`.
fn cover(source: &CStr, target: &CStr, read_only: bool) -> Done {
    match mount(Some(source), target, None, libc::MS_BIND | libc::MS_REC, None) {
        Err(Errno(libc::ENOENT)) => Ok(()),
        Ok(()) if read_only => {
            set_attributes(target, MountFlags { no_exec: true, ..MountFlags::READ_ONLY }, true)
        }
        result => result,
    }
}

fn change_folder(path: &CStr) -> Done {
    // SAFETY: a string that outlives the call.
    call(|| libc::c_long::from(unsafe { libc::chdir(path.as_ptr()) })).map(drop)
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn set_attributes(target: &CStr, set: MountFlags, recursive: bool) -> Done {
    let attr = MountAttr { attr_set: set.for_attributes(), attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a live string, and `attr` has the size that is passed.
    call(|| unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Makes a file that holds what `begin` writes, and then `bytes`.
fn write_file(path: &CStr, bytes: &[u8], begin: impl FnOnce(RawFd) -> Done) -> Done {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: the path is a live string; the buffer has the stated length; the descriptor is closed
    // once and used by nobody else.
    unsafe {
        let fd = call(|| libc::c_long::from(libc::open(path.as_ptr(), flags, 0o644)))? as RawFd;
        begin(fd)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let wrote = call(|| libc::write(fd, rest.as_ptr().cast(), rest.len()) as libc::c_long)?;
            rest = rest.get(wrote as usize..).unwrap_or_default();
        }
        libc::close(fd);
    }
    Ok(())
}

/// Copies the first bytes of a file, or all where it has fewer.
fn copy(from: &CStr, length: usize, to: RawFd) -> Done {
    // SAFETY: the path is a live string; the descriptor is closed once and used by nobody else; where to begin is
    // the descriptor's own.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = call(|| libc::c_long::from(libc::open(from.as_ptr(), flags)))? as RawFd;
        let mut left = length;
        while left > 0 {
            match call(|| libc::sendfile(to, fd, std::ptr::null_mut(), left) as libc::c_long)? as usize {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        libc::close(fd);
    }
    Ok(())
}

fn make_folder(path: &CStr, mode: u32, owner: Option<u32>) -> Done {
    // SAFETY: the path is a live string.
    unsafe {
        call(|| libc::c_long::from(libc::mkdir(path.as_ptr(), mode)))?;
        if mode & UMASK != 0 || mode & 0o7000 != 0 {
            // What mkdir leaves out.
            call(|| libc::c_long::from(libc::chmod(path.as_ptr(), mode)))?;
        }
        if let Some(owner) = owner {
            call(|| libc::c_long::from(libc::chown(path.as_ptr(), owner, owner)))?;
        }
    }
    Ok(())
}

/// Makes the working directory the root. The old root ends up below the new one, at the same
/// place, and is let go at once: `pivot_root(".", ".")`, described in its manual page.
fn pivot() -> Done {
    // SAFETY: constant strings.
    unsafe {
        call(|| libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        call(|| libc::c_long::from(libc::umount2(c".".as_ptr(), libc::MNT_DETACH)))?;
    }
    change_folder(c"/")
}

/// Brings up `lo`, which has the addresses 127.0.0.1 and ::1 by itself then.
fn loopback_up() -> Done {
    // SAFETY: `ifreq` is plain data for which zeros are valid; the socket is ours and is closed.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        let socket = call(|| libc::c_long::from(libc::socket(libc::AF_INET, kind, 0)))? as RawFd;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let done = call(|| libc::c_long::from(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request)));
        libc::close(socket);
        done.map(drop)
    }
}

fn choose_cores(image: &Image<'_>) -> Done {
    if image.launch.cores.is_empty() {
        return Ok(());
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is live and of the stated size.
    let result = unsafe { libc::sched_setaffinity(0, size, &raw const image.cores) };
    call(|| libc::c_long::from(result)).map(drop)
}

/// Lowers each limit, but never raises one: that would need a privilege, and was not asked for.
fn lower_limits(launch: &Launch) -> Done {
    for &(resource, most) in &launch.rlimits {
        // SAFETY: the structures are live; the resource is one of the kernel's.
        unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            call(|| libc::c_long::from(libc::getrlimit(resource.number(), &raw mut limit)))?;
            limit.rlim_max = limit.rlim_max.min(most);
            limit.rlim_cur = limit.rlim_max;
            call(|| libc::c_long::from(libc::setrlimit(resource.number(), &raw const limit)))?;
        }
    }
    Ok(())
}

/// Empties the capability bounding set, so that no program can bring one back.
fn drop_bounding_set() -> Done {
    for capability in 0.. {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => {}
            Err(Errno(libc::EINVAL)) if capability > 0 => break, // past the kernel's last one
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Becomes the program's user. Leaving root's id empties the capability sets; where the id was
/// never root's they are emptied by hand.
fn become_user(ids: &Ids) -> Done {
    if ids.root_outside.is_some() {
        change_ids(ids.inside)?;
    }
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // _LINUX_CAPABILITY_VERSION_3 of `linux/capability.h`; two sets of three 32-bit words.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: both structures are live and have the sizes that this version of the call reads.
    call(|| unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) })?;
    const PR_CAP_AMBIENT_CLEAR_ALL: libc::c_ulong = 4;
    prctl(libc::PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
}

/// Asks to be killed when the parent dies. If it died before, the gate has no other end any more.
fn die_with_parent(gate: RawFd) -> Done {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)?;
    let mut poll = libc::pollfd { fd: gate, events: 0, revents: 0 };
    // SAFETY: one live structure, as the count says; returns at once.
    call(|| libc::c_long::from(unsafe { libc::poll(&raw mut poll, 1, 0) }))?;
    if poll.revents & libc::POLLHUP == 0 { Ok(()) } else { Err(Errno(libc::EPIPE)) }
}

/// Moves a descriptor above all places that the program's own will take.
fn lift(fd: RawFd) -> Result<RawFd, Errno> {
    const ABOVE_ALL_PLACES: libc::c_int = 100;
    // SAFETY: makes a new number for an open file.
    call(|| libc::c_long::from(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, ABOVE_ALL_PLACES) }))
        .map(|fd| fd as RawFd)
}

fn lift_tools(
    program: BorrowedFd<'_>,
    gate: BorrowedFd<'_>,
    failure: BorrowedFd<'_>,
) -> Result<Tools, Errno> {
    // In the order of their numbers, which `arrange_descriptors` relies on.
    let failure = lift(failure.as_raw_fd())?;
    let gate = lift(gate.as_raw_fd())?;
    let program = lift(program.as_raw_fd())?;
    Ok(Tools { failure, gate, program })
}

/// Puts every descriptor of the program in its place and closes all others but the tools, which
/// close themselves at the exec.
fn arrange_descriptors(launch: &Launch, tools: &Tools) -> Done {
    let mut place = 3;
    // SAFETY: duplicates numbers; after this only the arranged ones are used.
    unsafe {
        let null = call(|| libc::c_long::from(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR)))?;
        let null = lift(null as RawFd)?;
        for standard in 0..3 {
            call(|| libc::c_long::from(libc::dup2(null, standard)))?;
        }
        for fd in &launch.fds {
            // By way of a high number, so that no place is taken before its turn. dup2 leaves the
            // new descriptor open across the exec, which is what is wanted.
            let high = lift(fd.as_raw_fd())?;
            call(|| libc::c_long::from(libc::dup2(high, place)))?;
            place += 1;
        }
    }
    close_range(place, tools.failure - 1)?;
    close_range(tools.failure + 1, tools.gate - 1)?;
    close_range(tools.gate + 1, tools.program - 1)?;
    close_range(tools.program + 1, libc::c_int::MAX)
}

/// Closes every descriptor from `first` to `last`; an empty range is nothing to do.
fn close_range(first: libc::c_int, last: libc::c_int) -> Done {
    if first > last {
        return Ok(());
    }
    // SAFETY: closes numbers that nothing in this process uses any more.
    call(|| unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// How often a program is tried again that somebody has open for writing, a millisecond apart.
const BUSY_TRIES: u32 = 500;

/// Becomes a program.
///
/// One that was written a moment ago may still be open for writing in another sandbox that is being
/// set up: it was started meanwhile from another thread, and has a copy of each of our descriptors
/// until it closes them.
fn execute(program: RawFd, image: &Image<'_>) -> Result<Infallible, Errno> {
    for _ in 0..BUSY_TRIES {
        // SAFETY: both arrays end in null and point to strings that live until the exec.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                program,
                c"".as_ptr(),
                image.argv.as_ptr(),
                image.envp.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
        if errno().0 != libc::ETXTBSY {
            break;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: reads a value of ours; nothing is wanted back.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
    }
    Err(errno())
}
