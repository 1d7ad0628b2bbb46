//! Processes: starting, signalling and waiting for them; who we are and what we may do.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::check;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Code(u8),
    /// By a signal.
    Signal(u8),
}

/// A process that has ended, with what it and all that it waited for used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// How it ended.
    pub exit: Exit,
    /// Processor time, in user and kernel mode together.
    pub cpu: Duration,
}

/// A descriptor for a process, which stays that process's even when the number is used again.
///
/// # Errors
///
/// What the kernel said: ESRCH if there is no such process.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The processor time that a process has used so far, with all its threads: `clock_getcpuclockid(3)`.
///
/// # Errors
///
/// What the kernel said: ESRCH if there is no such process.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the pointer is to a clock's number that outlives the call.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to room for what the kernel writes.
    check(libc::c_long::from(unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) }))?;
    // SAFETY: the call above succeeded, so it was written.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Gives back to the kernel what this thread has used of its stack and doesn't any more: it would be kept for good.
///
/// # Errors
///
/// What the kernel said.
pub fn give_back_stack() -> io::Result<()> {
    // For what the calls below need themselves.
    const KEPT_BYTES: usize = 64 << 10;
    const PAGE_BYTES: usize = 4 << 10;
    let here = 0_u8;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are to room for what is written; what was made is destroyed.
    let error = unsafe {
        match libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) {
            0 => {
                let error = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size);
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                error
            }
            error => error,
        }
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let unused =
        (&raw const here as usize).saturating_sub(KEPT_BYTES + lowest as usize) / PAGE_BYTES * PAGE_BYTES;
    if unused == 0 || unused > size {
        return Ok(());
    }
    // SAFETY: the range is of this thread's own stack, below every frame that is in use: stacks grow downwards.
    check(libc::c_long::from(unsafe { libc::madvise(lowest, unused, libc::MADV_DONTNEED) })).map(|_| ())
}

/// Sends a signal to the process of a pidfd. One that has ended is not an error.
///
/// # Errors
///
/// What the kernel said: EPERM for somebody else's process, EINVAL for a number that is no signal.
pub fn signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers and a null pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// Waits for a child of ours to end. Blocks; works once.
///
/// # Errors
///
/// What the kernel said: ECHILD if it isn't ours or was waited for before.
pub fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Reaped> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both structures are live. The system call, unlike the C library's function, also
        // reports the use of resources.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                libc::P_PIDFD,
                pidfd.as_raw_fd(),
                info.as_mut_ptr(),
                libc::WEXITED,
                usage.as_mut_ptr(),
            )
        };
        match check(result) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: all zeros are valid, and the kernel has filled in both.
    let (info, usage) = unsafe { (info.assume_init(), usage.assume_init()) };
    // SAFETY: for an exit this member of the union is the one that is set.
    let status = unsafe { info.si_status() } as u8;
    let exit = if info.si_code == libc::CLD_EXITED { Exit::Code(status) } else { Exit::Signal(status) };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.clamp(0, 999_999) as u32 * 1000)
    };
    Ok(Reaped { exit, cpu: time(usage.ru_utime) + time(usage.ru_stime) })
}

/// Looks for any child that has ended, without waiting. None when none has.
#[must_use]
pub fn reap_any() -> Option<(i32, Exit)> {
    let mut status = 0;
    // SAFETY: the status is live.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    if pid <= 0 {
        return None;
    }
    let exit = if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status) as u8)
    } else {
        Exit::Code(libc::WEXITSTATUS(status) as u8)
    };
    Some((pid, exit))
}

/// Signals a process and whoever is in its group, as a terminal does to what is in the foreground:
/// only for a child that leads a group and hasn't been waited for, whose number can't have been given
/// to another.
///
/// # Errors
///
/// What the kernel said.
pub fn signal_group(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    check(libc::c_long::from(unsafe { libc::kill(-pid, signal) })).map(drop)
}

/// Whether a signal is ignored: whoever started us (nohup, a shell's `&`) asked for that.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: the structure is live and filled by the kernel; nothing is changed.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Has the allocator keep so many free bytes at the heap's end instead of giving them back to the kernel, which would
/// have to clear them again for the next allocation: mallopt(3), `M_TRIM_THRESHOLD`, 128 KiB by itself.
pub fn keep_heap(bytes: i32) {
    // SAFETY: it changes a number of the allocator's; what it can't be is refused.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
}

/// Makes children waitable, though whoever started us may have ignored SIGCHLD, and a write beyond
/// the file size limit an error instead of our end.
pub fn settle_signals() {
    // SAFETY: both are valid dispositions of these signals.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Waits until a descriptor is readable, at most so long. Says whether it is.
#[must_use]
pub fn readable_within(fd: BorrowedFd<'_>, most: Duration) -> bool {
    ready_within(fd, libc::POLLIN, most)
}

/// Waits until a descriptor can be written to, at most so long. Says whether it can.
#[must_use]
pub fn writable_within(fd: BorrowedFd<'_>, most: Duration) -> bool {
    ready_within(fd, libc::POLLOUT, most)
}

fn ready_within(fd: BorrowedFd<'_>, events: libc::c_short, most: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let milliseconds = most.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one live structure, as the count says.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

/// Waits until one of these is readable, at most so long where it says so. Says of each whether it is.
///
/// # Errors
///
/// What the kernel said.
pub fn which_are_readable(fds: &[BorrowedFd<'_>], most: Option<Duration>) -> io::Result<Vec<bool>> {
    let poll = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = fds.iter().map(poll).collect();
    let milliseconds = most.map_or(-1, |most| most.as_millis().min(i32::MAX as u128) as i32);
    // SAFETY: as many live structures as the count says.
    if unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, milliseconds) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(polls.iter().map(|poll| poll.revents != 0).collect())
}

/// All signals are blocked for this thread until this is dropped.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Blocks them.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn all() -> io::Result<Self> {
        // SAFETY: both sets are live; the first is filled before it is read.
        unsafe {
            let mut all = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
            let mut before = all;
            libc::sigfillset(&raw mut all);
            result(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before))?;
            Ok(SignalsBlocked { before })
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// This thread acts as another user until this is dropped, with the capabilities that it has.
///
/// A user namespace belongs to whoever makes it, and what is counted by user inside (inotify
/// instances, queued signals) is counted against its owner outside too. Made by root, every sandbox
/// would draw on root's own allowance.
pub struct ActingAs {
    death_signal: libc::c_int,
    group_before: Option<u32>,
}

impl ActingAs {
    /// Becomes the user, for this thread alone: by raw system calls, since the C library's change
    /// all threads.
    ///
    /// # Errors
    ///
    /// EPERM for who isn't root.
    pub fn user(id: u32) -> io::Result<Self> {
        ActingAs::ids(id, None)
    }

    /// The same with a group, which the files that it makes belong to.
    ///
    /// # Errors
    ///
    /// EPERM for who isn't root.
    pub fn user_and_group(user: u32, group: u32) -> io::Result<Self> {
        ActingAs::ids(user, Some(group))
    }

    fn ids(user: u32, group: Option<u32>) -> io::Result<Self> {
        let mut acting = ActingAs { death_signal: 0, group_before: None };
        // SAFETY: the first takes a live variable; the others take numbers.
        unsafe {
            libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut acting.death_signal, 0, 0, 0);
            if let Some(group) = group {
                let before = effective_group();
                check(libc::syscall(libc::SYS_setresgid, -1, group, -1))?;
                acting.group_before = Some(before);
            }
            check(libc::syscall(libc::SYS_setresuid, -1, user, -1))?;
        }
        raise_capabilities()?;
        Ok(acting)
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        // SAFETY: takes numbers. Going back can't fail: the saved and the real id are root's still.
        unsafe {
            libc::syscall(libc::SYS_setresuid, -1, 0, -1);
            if let Some(group) = self.group_before {
                libc::syscall(libc::SYS_setresgid, -1, group, -1);
            }
            // A change of ids forgets this, and whoever started us may rely on it.
            libc::prctl(libc::PR_SET_PDEATHSIG, self.death_signal, 0, 0, 0);
        }
    }
}

/// Makes every permitted capability effective, which a change of the effective user undoes.
fn raise_capabilities() -> io::Result<()> {
    let mut sets = Capabilities::of_this_thread()?;
    (sets.words[0], sets.words[3]) = (sets.words[1], sets.words[4]);
    sets.set()
}

/// The capability sets of this thread.
struct Capabilities {
    /// Two times effective, permitted, inheritable.
    words: [u32; 6],
}

/// The header of `capget(2)` and `capset(2)`, for _LINUX_CAPABILITY_VERSION_3 of `linux/capability.h`.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

impl CapabilityHeader {
    const OF_THIS_THREAD: CapabilityHeader = CapabilityHeader { version: 0x2008_0522, pid: 0 };
}

impl Capabilities {
    fn of_this_thread() -> io::Result<Self> {
        let mut header = CapabilityHeader::OF_THIS_THREAD;
        let mut words = [0u32; 6];
        // SAFETY: both structures are live and have the sizes that this version of the call uses.
        check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
        Ok(Capabilities { words })
    }

    /// Makes these, of the first 32, the only effective ones.
    fn effective(&mut self, first: u32) {
        (self.words[0], self.words[3]) = (first, 0);
    }

    fn set(&self) -> io::Result<()> {
        let header = CapabilityHeader::OF_THIS_THREAD;
        // SAFETY: as in `of_this_thread`.
        check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, self.words.as_ptr()) }).map(drop)
    }
}

/// Acts on files as another user from now on, for this thread alone and for good: with no capability but
/// that of reading whatever there is. So [`may_write_at`] says what that user may.
///
/// # Errors
///
/// EPERM for who isn't root.
pub fn read_as(user: u32, group: u32) -> io::Result<()> {
    // CAP_DAC_READ_SEARCH of `linux/capability.h`.
    const READING: u32 = 1 << 2;
    // SAFETY: these take numbers; the calls are raw, since the C library's change all threads.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, group);
        libc::syscall(libc::SYS_setfsuid, user);
    }
    let mut sets = Capabilities::of_this_thread()?;
    sets.effective(READING);
    sets.set()
}

/// Whether the user that this thread acts on files as may write to something in a folder, a link
/// itself rather than what it leads to.
///
/// # Errors
///
/// What the kernel said, other than that it may not: ENOENT if it is gone.
pub fn may_write_at(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let flags = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the name is a live string.
    let result = check(unsafe {
        libc::syscall(libc::SYS_faccessat2, folder.as_raw_fd(), name.as_ptr(), libc::W_OK, flags)
    });
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The time since the host booted, sleep included.
#[must_use]
pub fn time_since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is live; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// A descriptor that is readable when a child has ended. Blocks the signal's usual effect, and
/// undoes that it was ignored, which would leave nothing to wait for.
///
/// # Errors
///
/// What the kernel said.
pub fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is read; the descriptor is new.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        check(libc::c_long::from(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())))?;
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(libc::c_long::from(fd)).map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Waits until one of some descriptors is readable or closed, and says which are.
///
/// # Errors
///
/// What the kernel said.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N]) -> io::Result<[bool; N]> {
    let mut polls = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: the array is live and has the stated length.
        let result = unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, -1) };
        match check(libc::c_long::from(result)) {
            Ok(_) => return Ok(polls.map(|poll| poll.revents != 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A program to start as a child.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The file; no search is made.
    pub path: &'a CStr,
    /// The arguments, the program's own name first.
    pub argv: &'a [CString],
    /// The environment, `NAME=VALUE`.
    pub envp: &'a [CString],
    /// The working directory.
    pub cwd: &'a CStr,
    /// Standard input, output and error.
    pub streams: [BorrowedFd<'a>; 3],
    /// A terminal that becomes the program's own, and all three streams instead.
    pub terminal: Option<&'a CStr>,
}

impl Spawn<'_> {
    /// Starts it in a session of its own, with default signals. Returns its number.
    ///
    /// # Errors
    ///
    /// What `execve` said, or `chdir`.
    pub fn start(&self) -> io::Result<i32> {
        let mut actions = FileActions::new()?;
        actions.change_folder(self.cwd)?;
        if let Some(terminal) = self.terminal {
            // The first terminal that the leader of a session opens becomes its own.
            actions.open(terminal, 0)?;
            actions.duplicate(0, 1)?;
            actions.duplicate(0, 2)?;
        } else {
            for (place, stream) in self.streams.iter().enumerate() {
                actions.duplicate(stream.as_raw_fd(), place as RawFd)?;
            }
        }
        let attributes = Attributes::new()?;
        let pointers = |words: &[CString]| -> Vec<*mut libc::c_char> {
            let ends = std::iter::once(std::ptr::null_mut());
            words.iter().map(|word| word.as_ptr().cast_mut()).chain(ends).collect()
        };
        let (argv, envp) = (pointers(self.argv), pointers(self.envp));
        let mut pid = 0;
        // SAFETY: all pointers are to live values; both arrays end in null.
        let code = unsafe {
            libc::posix_spawn(
                &raw mut pid,
                self.path.as_ptr(),
                &raw const actions.0,
                &raw const attributes.0,
                argv.as_ptr(),
                envp.as_ptr(),
            )
        };
        result(code).map(|()| pid)
    }
}

/// The result of a function that returns its error number.
fn result(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// What a new process does with its descriptors.
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> io::Result<Self> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: initialises the value, which is then valid.
        unsafe {
            result(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
            Ok(FileActions(actions.assume_init()))
        }
    }

    fn change_folder(&mut self, path: &CStr) -> io::Result<()> {
        // SAFETY: the value is initialised; the path is copied.
        result(unsafe { libc::posix_spawn_file_actions_addchdir_np(&raw mut self.0, path.as_ptr()) })
    }

    fn open(&mut self, path: &CStr, to: RawFd) -> io::Result<()> {
        let (path, flags) = (path.as_ptr(), libc::O_RDWR);
        // SAFETY: the value is initialised; the path is copied.
        result(unsafe { libc::posix_spawn_file_actions_addopen(&raw mut self.0, to, path, flags, 0) })
    }

    fn duplicate(&mut self, from: RawFd, to: RawFd) -> io::Result<()> {
        // SAFETY: the value is initialised.
        result(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, from, to) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used afterwards.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// Session and signals of a new process.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the value is initialised before it is used; the sets are initialised by the
        // functions that fill them.
        unsafe {
            result(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
            let mut attributes = Attributes(attributes.assume_init());
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
            libc::sigemptyset(&raw mut set);
            result(libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const set))?;
            libc::sigfillset(&raw mut set);
            result(libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, &raw const set))?;
            let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID;
            result(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags as libc::c_short))?;
            Ok(attributes)
        }
    }
}

/// POSIX_SPAWN_SETSID of glibc's `spawn.h`, which the `libc` crate lacks.
const POSIX_SPAWN_SETSID: libc::c_int = 0x80;

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used afterwards.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// Takes this process's memory out of reach of others of the same user: no ptrace, and its files
/// in `/proc` belong to root.
///
/// # Errors
///
/// What the kernel said.
pub fn become_undumpable() -> io::Result<()> {
    // SAFETY: takes numbers.
    check(libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })).map(drop)
}

/// The user that this process acts as.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::geteuid() }
}

/// The group that this process acts as.
#[must_use]
pub fn effective_group() -> u32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::getegid() }
}

/// The cores that this process may run on.
///
/// # Errors
///
/// What the kernel said.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: a set of bits for which all zeros means empty, filled by the kernel; the numbers
    // asked about are within its size.
    unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        let size = size_of::<libc::cpu_set_t>();
        check(libc::c_long::from(libc::sched_getaffinity(0, size, &raw mut set)))?;
        Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect())
    }
}

/// The core that this thread is on, which may have changed by the time of the answer.
#[must_use]
pub fn current_core() -> Option<usize> {
    // SAFETY: takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Lets a process run as soon as it can, whatever it or others did to its priority: the usual policy,
/// the best niceness, every core. For one that is about to die and has to run for that. What isn't
/// permitted (lowering niceness needs a privilege) is left undone.
pub fn hasten(pid: i32) {
    let normal = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structures are live and of the stated sizes; a set of all bits is a valid set.
    unsafe {
        let mut every = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        for core in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(core, &mut every);
        }
        libc::sched_setscheduler(pid, libc::SCHED_OTHER, &raw const normal);
        libc::setpriority(libc::PRIO_PROCESS, pid as libc::id_t, -20);
        libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), &raw const every);
    }
}

/// Whether a path can be written by this process, as the kernel sees it: permissions and read-only
/// mounts.
#[must_use]
pub fn can_write(path: &CStr) -> bool {
    // SAFETY: the path is a live string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

/// Whether a file or folder carries an extended attribute of this name with the value `1`.
#[must_use]
pub fn has_mark(path: &Path, name: &CStr) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut value = [0_u8; 2];
    // SAFETY: both strings are live, and the buffer is of the stated size.
    let length = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast::<libc::c_void>(), value.len())
    };
    length == 1 && value[0] == b'1'
}

/// Space and entries of a file system, as `statfs` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all, and bytes free.
    pub bytes: (u64, u64),
    /// Files and folders in all, and free.
    pub files: (u64, u64),
}

/// Whether nothing may be executed from where an open file is.
#[must_use]
pub fn on_noexec_mount(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the structure is live and filled by the kernel.
    unsafe {
        let mut stat = MaybeUninit::<libc::statvfs>::zeroed().assume_init();
        libc::fstatvfs(fd.as_raw_fd(), &raw mut stat) != 0 || stat.f_flag & libc::ST_NOEXEC != 0
    }
}

/// Bytes that this user may still write to the file system of an open file.
///
/// # Errors
///
/// What the kernel said.
pub fn available(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = statfs(fd)?;
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64))
}

fn statfs(fd: BorrowedFd<'_>) -> io::Result<libc::statfs> {
    // SAFETY: the structure is live and filled by the kernel.
    unsafe {
        let mut stat = MaybeUninit::<libc::statfs>::zeroed().assume_init();
        check(libc::c_long::from(libc::fstatfs(fd.as_raw_fd(), &raw mut stat)))?;
        Ok(stat)
    }
}

/// How full the file system of an open file is.
///
/// # Errors
///
/// What the kernel said.
pub fn space(fd: BorrowedFd<'_>) -> io::Result<Space> {
    let stat = statfs(fd)?;
    let size = stat.f_bsize as u64;
    Ok(Space { bytes: (stat.f_blocks * size, stat.f_bavail * size), files: (stat.f_files, stat.f_ffree) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * (4 << 10)
    }

    /// Uses so many times a kilobyte of stack.
    fn deep(times: usize) -> u8 {
        let used = std::hint::black_box([times as u8; 1024]);
        if times == 0 { used[0] } else { deep(times - 1).wrapping_add(used[1023]) }
    }

    #[test]
    fn what_a_thread_does_not_use_of_its_stack_any_more_is_given_back() {
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(|| {
            std::hint::black_box(deep(32 << 10));
            let before = resident_bytes();
            give_back_stack().unwrap();
            (before, resident_bytes(), std::hint::black_box(deep(100)))
        });
        let (before, after, _) = thread.unwrap().join().unwrap();
        assert!(before - after > 24 << 20, "{before} and then {after}");
    }
}
