//! The container profile: every system call we know, what happens to it, and why.
//!
//! Each line gives a call its [`Rule`](super::rule::Rule) and a reason: for an allowed call, who needs it;
//! for a denied one, what that prevents or who would miss it. A call without a line gets
//! [`UNLISTED`](super::rule::UNLISTED), so a kernel that grows a new call does not widen the sandbox.
//!
//! # Which error
//!
//! `EPERM` where a program should learn that it may not; `ENOSYS` where it should believe that this kernel
//! has no such call, because that is what makes it use an older one. Nothing here kills: runtimes probe.
//!
//! # Where it comes from
//!
//! The policy is section 4 of our security reference. Reasons of allowed calls were checked against traces of
//! programs under this filter: CPython 3.11 and 3.13 with NumPy, Node 20, Go 1.26, Java 17, tokio, gcc with
//! its sanitizers, cmake, make, cargo, git, bash, coreutils, SQLite, gpg, dpkg and smaller ones. Where none
//! of them made a call, its reason is what we know and no trace has shown.

#[cfg(target_arch = "x86_64")]
use super::arguments::MKNOD;
use super::arguments::{
    CLONE, IO_PRIORITY, IOCTL, MEMFD_CREATE, MKNODAT, MMAP, NOT_PROCESS_ONE, PERSONALITY, PRCTL, PRIORITY,
    PRLIMIT, SECCOMP, SETRLIMIT, SETSOCKOPT, SHMGET, SOCKET,
};
use super::numbers::*;
use super::rule::Line;
use super::rule::Rule::{Allow, Deny};

/// The container profile, by subject: first what is allowed, then what is denied.
pub(super) const CONTAINER: &[&[Line]] = &[
    FILE_CONTENTS,
    FILE_NAMES,
    WAITING,
    MEMORY,
    PROCESSES,
    SIGNALS,
    TIME,
    IDENTITY,
    SOCKETS,
    IPC,
    SYSTEM,
    OLD_NAMES,
    NO_NAMESPACES,
    NO_OTHER_PROCESSES,
    NO_KERNEL_SURFACE,
    NO_HOST_ADMINISTRATION,
    NO_OLD_SURFACE,
];

const _: () = assert!(!super::rule::repeats(CONTAINER), "two lines name the same call");

/// Makes lines: `constant => rule, reason;`.
macro_rules! calls {
    ($($constant:ident => $rule:expr, $reason:literal;)*) => {
        &[$(Line {
            constant: stringify!($constant),
            number: $constant as u32,
            rule: $rule,
            reason: $reason,
        }),*]
    };
}
pub(super) use calls;

/// Reading and writing files that are already open.
const FILE_CONTENTS: &[Line] = calls! {
    SYS_read            => Allow, "everything";
    SYS_write           => Allow, "everything";
    SYS_readv           => Allow, "tmux, Java, web servers";
    SYS_writev          => Allow, "Java, Node, web servers";
    SYS_pread64         => Allow, "linkers, databases, Go, Java";
    SYS_pwrite64        => Allow, "linkers, databases, Go, Java";
    SYS_preadv          => Allow, "vectored reads: databases, Java";
    SYS_pwritev         => Allow, "vectored writes: databases, Java";
    SYS_preadv2         => Allow, "as preadv, with flags for one call";
    SYS_pwritev2        => Allow, "as pwritev, with flags for one call";
    SYS_lseek           => Allow, "everything";
    SYS_truncate        => Allow, "Python, truncate(1)";
    SYS_ftruncate       => Allow, "databases, gpg, Node, shared memory";
    SYS_fsync           => Allow, "git, dpkg, editors, databases";
    SYS_fdatasync       => Allow, "SQLite, PostgreSQL";
    SYS_sync_file_range => Allow, "dpkg, databases";
    SYS_fallocate       => Allow, "databases, linkers, torrent and download tools";
    SYS_fadvise64       => Allow, "coreutils, tar, databases";
    SYS_readahead       => Allow, "databases";
    SYS_copy_file_range => Allow, "coreutils, Go, Python, Rust";
    SYS_sendfile        => Allow, "web servers, Go, Java, Python shutil";
    SYS_splice          => Allow, "Go, Rust, GNU cat";
    SYS_tee             => Allow, "coreutils";
    SYS_flock           => Allow, "git, package managers, build tools";
    SYS_fcntl           => Allow, "everything";
    SYS_ioctl           => IOCTL, "terminals, non-blocking sockets, reflinks";
};

/// Opening files, and changing names and attributes. The mount namespace bounds what can be named.
const FILE_NAMES: &[Line] = calls! {
    SYS_openat            => Allow,   "everything";
    SYS_openat2           => Allow,   "Go os.Root, libraries that unpack archives";
    SYS_close             => Allow,   "everything";
    SYS_close_range       => Allow,   "Python subprocess, Rust, glib, sshd";
    SYS_dup               => Allow,   "shells, Python";
    SYS_dup3              => Allow,   "shells, Go";
    SYS_pipe2             => Allow,   "shells, Python, Go";
    SYS_faccessat         => Allow,   "C libraries without faccessat2, musl";
    SYS_faccessat2        => Allow,   "glibc from 2.33, Node, Go";
    SYS_newfstatat        => Allow,   "everything";
    SYS_fstat             => Allow,   "everything";
    SYS_statx             => Allow,   "glibc, coreutils, Node, Rust";
    SYS_statfs            => Allow,   "coreutils df, Java, git";
    SYS_fstatfs           => Allow,   "Java, sqlite, Go";
    SYS_readlinkat        => Allow,   "coreutils, Go";
    SYS_getdents64        => Allow,   "everything that lists a directory";
    SYS_mkdirat           => Allow,   "coreutils, tar, Go";
    SYS_mknodat           => MKNODAT, "mkfifo, tar, local sockets";
    SYS_unlinkat          => Allow,   "rm, git, Go";
    SYS_renameat          => Allow,   "mv, Go";
    SYS_renameat2         => Allow,   "coreutils mv, git, systemd tools";
    SYS_linkat            => Allow,   "ln, git, dpkg";
    SYS_symlinkat         => Allow,   "ln, tar, npm";
    SYS_fchmod            => Allow,   "git, tar, dpkg";
    SYS_fchmodat          => Allow,   "chmod, tar, Go";
    SYS_fchmodat2         => Allow,   "glibc from 2.39 for chmod without following links";
    SYS_fchown            => Allow,   "tar, dpkg, databases";
    SYS_fchownat          => Allow,   "chown, tar, dpkg";
    SYS_utimensat         => Allow,   "touch, tar, make";
    SYS_umask             => Allow,   "shells, git, make";
    SYS_getcwd            => Allow,   "everything";
    SYS_chdir             => Allow,   "shells, git, make";
    SYS_fchdir            => Allow,   "find, tar, bash";
    SYS_setxattr          => Allow,   "cp -a, tar --xattrs, Java";
    SYS_lsetxattr         => Allow,   "cp -a, tar --xattrs";
    SYS_fsetxattr         => Allow,   "cp -a, tar --xattrs";
    SYS_getxattr          => Allow,   "ls, cp -a, Java";
    SYS_lgetxattr         => Allow,   "ls, cp -a";
    SYS_fgetxattr         => Allow,   "cp -a, tar --xattrs";
    SYS_listxattr         => Allow,   "cp -a, rsync, Java";
    SYS_llistxattr        => Allow,   "cp -a, rsync";
    SYS_flistxattr        => Allow,   "cp -a, tar --xattrs";
    SYS_removexattr       => Allow,   "setfattr, tar";
    SYS_lremovexattr      => Allow,   "setfattr, tar";
    SYS_fremovexattr      => Allow,   "setfattr, tar";
    SYS_setxattrat        => Allow,   "as setxattr, for C libraries that prefer the newer call";
    SYS_getxattrat        => Allow,   "as getxattr, for C libraries that prefer the newer call";
    SYS_listxattrat       => Allow,   "as listxattr, for C libraries that prefer the newer call";
    SYS_removexattrat     => Allow,   "as removexattr, for C libraries that prefer the newer call";
    SYS_memfd_create      => MEMFD_CREATE, "Java, Python, just-in-time compilers";
    SYS_inotify_init1     => Allow,   "Node fs.watch, tail -f, build watchers";
    SYS_inotify_add_watch => Allow,   "Node fs.watch, tail -f, build watchers";
    SYS_inotify_rm_watch  => Allow,   "Node fs.watch, tail -f, build watchers";
};

/// Waiting for files, timers and signals.
const WAITING: &[Line] = calls! {
    SYS_epoll_create1   => Allow, "libuv, tokio, Go, Java, asyncio";
    SYS_epoll_ctl       => Allow, "libuv, tokio, Go, Java, asyncio";
    SYS_epoll_pwait     => Allow, "libuv, Go";
    SYS_epoll_pwait2    => Allow, "event loops that sleep less than a millisecond: libevent, Rust";
    SYS_ppoll           => Allow, "Rust, cmake; poll in glibc on aarch64";
    SYS_pselect6        => Allow, "make, gpg, Python; select in glibc";
    SYS_eventfd2        => Allow, "libuv, tokio, Go, Java";
    SYS_timerfd_create  => Allow, "systemd tools, glib, Python from 3.13";
    SYS_timerfd_settime => Allow, "as timerfd_create";
    SYS_timerfd_gettime => Allow, "as timerfd_create";
    SYS_signalfd4       => Allow, "script, event loops, init programs";
};

/// A program's own memory.
const MEMORY: &[Line] = calls! {
    SYS_brk              => Allow, "glibc malloc";
    SYS_mmap             => MMAP,  "everything";
    SYS_munmap           => Allow, "everything";
    SYS_mprotect         => Allow, "linkers, just-in-time compilers";
    SYS_mremap           => Allow, "glibc realloc, databases";
    SYS_madvise          => Allow, "every allocator and garbage collector";
    SYS_msync            => Allow, "Java, LMDB, PostgreSQL";
    SYS_mincore          => Allow, "crash handlers, databases";
    SYS_mlock            => Allow, "gpg, databases; RLIMIT_MEMLOCK bounds it";
    SYS_mlock2           => Allow, "Go and C libraries for keys; RLIMIT_MEMLOCK bounds it";
    SYS_mlockall         => Allow, "Elasticsearch, Cassandra; RLIMIT_MEMLOCK bounds it";
    SYS_munlock          => Allow, "as mlock";
    SYS_munlockall       => Allow, "as mlockall";
    SYS_membarrier       => Allow, ".NET, liburcu, Java";
    SYS_pkey_alloc       => Allow, "Node: V8 guards its machine code";
    SYS_pkey_free        => Allow, "as pkey_alloc";
    SYS_pkey_mprotect    => Allow, "as pkey_alloc";
    SYS_map_shadow_stack => Allow, "glibc with hardware shadow stacks";
    SYS_mseal            => Allow, "glibc from 2.41 at start, Chromium";
};

/// Processes, threads and how they are scheduled. The PID namespace bounds whom they can reach.
const PROCESSES: &[Line] = calls! {
    SYS_clone                  => CLONE,       "every new thread and process";
    SYS_execve                 => Allow,       "everything";
    SYS_execveat               => Allow,       "fexecve in glibc, systemd tools";
    SYS_exit                   => Allow,       "every thread";
    SYS_exit_group             => Allow,       "everything";
    SYS_wait4                  => Allow,       "shells, make, Go, Python";
    SYS_waitid                 => Allow,       "Go, Python, Rust, Node";
    SYS_getpid                 => Allow,       "everything";
    SYS_getppid                => Allow,       "shells, test runners";
    SYS_gettid                 => Allow,       "thread libraries";
    SYS_getpgid                => Allow,       "shells";
    SYS_setpgid                => Allow,       "shells, job runners";
    SYS_getsid                 => Allow,       "shells";
    SYS_setsid                 => Allow,       "daemons, terminal tools, Python subprocess";
    SYS_set_tid_address        => Allow,       "every program at start";
    SYS_set_robust_list        => Allow,       "every thread at start";
    SYS_get_robust_list        => Allow,       "as set_robust_list; of others only with leave to trace them";
    SYS_rseq                   => Allow,       "every thread at start, since glibc 2.35";
    SYS_futex                  => Allow,       "every lock";
    SYS_futex_waitv            => Allow,       "Wine, newer lock libraries";
    SYS_futex_wake             => Allow,       "as futex, for lock libraries that prefer the newer call";
    SYS_futex_wait             => Allow,       "as futex, for lock libraries that prefer the newer call";
    SYS_futex_requeue          => Allow,       "as futex, for lock libraries that prefer the newer call";
    SYS_restart_syscall        => Allow,       "the kernel itself, after a stop signal interrupts a sleep";
    SYS_prctl                  => PRCTL,       "thread names, no_new_privs, parent-death signals";
    SYS_personality            => PERSONALITY, "debuggers and runtimes that ask for the current one";
    SYS_prlimit64              => PRLIMIT,     "ulimit, Go, Java, Node at start";
    SYS_getrlimit              => Allow,       "older C libraries, musl";
    SYS_setrlimit              => SETRLIMIT,   "older C libraries, musl";
    SYS_getrusage              => Allow,       "Python resource, time, Go, make";
    SYS_times                  => Allow,       "bash, openssl";
    SYS_pidfd_open             => NOT_PROCESS_ONE, "Python asyncio, Go, Rust, libuv";
    SYS_pidfd_send_signal      => Allow,       "Go, Rust, Python";
    SYS_getpriority            => Allow,       "nice, Node os.getPriority";
    SYS_setpriority            => PRIORITY, "nice, Node os.setPriority, Java; raising needs a capability";
    SYS_sched_yield            => Allow,       "spin locks, Go, Java";
    SYS_sched_getaffinity      => Allow,       "counts processors: Go, Python, OpenMP, nproc";
    SYS_sched_setaffinity      => NOT_PROCESS_ONE, "OpenMP, taskset; the cpuset bounds it";
    SYS_sched_getparam         => Allow,       "Python, Java, pthread attributes";
    SYS_sched_setparam         => NOT_PROCESS_ONE, "as sched_setscheduler";
    SYS_sched_getscheduler     => Allow,       "Python, Java, pthread attributes";
    SYS_sched_setscheduler     => NOT_PROCESS_ONE, "chrt, media; real time needs a limit nobody has";
    SYS_sched_getattr          => Allow,       "chrt, media";
    SYS_sched_setattr          => NOT_PROCESS_ONE, "chrt, media; deadlines need a capability";
    SYS_sched_get_priority_max => Allow,       "Python, pthread attributes";
    SYS_sched_get_priority_min => Allow,       "Python, pthread attributes";
    SYS_sched_rr_get_interval  => Allow,       "Python, POSIX test programs";
    SYS_ioprio_get             => Allow,       "ionice, package managers";
    SYS_ioprio_set             => IO_PRIORITY, "ionice, build tools; real time needs a capability";
    SYS_getcpu                 => Allow,       "allocators with a cache for each processor";
};

/// Signals. The PID namespace bounds their targets; process 1 gets only those it handles.
const SIGNALS: &[Line] = calls! {
    SYS_rt_sigaction      => Allow, "everything";
    SYS_rt_sigprocmask    => Allow, "everything";
    SYS_rt_sigreturn      => Allow, "every signal handler";
    SYS_rt_sigpending     => Allow, "cmake, Python";
    SYS_rt_sigsuspend     => Allow, "bash, make";
    SYS_rt_sigtimedwait   => Allow, "Python, Java, init programs";
    SYS_rt_sigqueueinfo   => Allow, "sigqueue in glibc";
    SYS_rt_tgsigqueueinfo => Allow, "pthread_sigqueue in glibc";
    SYS_sigaltstack       => Allow, "Go, Rust, Java, Python faulthandler";
    SYS_kill              => Allow, "shells, test runners";
    SYS_tkill             => Allow, "older thread libraries";
    SYS_tgkill            => Allow, "abort and pthread_kill in glibc, Go preemption";
};

/// Reading clocks and setting timers.
const TIME: &[Line] = calls! {
    SYS_clock_gettime    => Allow, "everything, where the vDSO has no fast clock";
    SYS_clock_getres     => Allow, "Python, Java";
    SYS_clock_nanosleep  => Allow, "glibc nanosleep, Python, Rust";
    SYS_gettimeofday     => Allow, "older programs, where the vDSO has no fast clock";
    SYS_nanosleep        => Allow, "Go, musl";
    SYS_timer_create     => Allow, "timeout(1), Go profiler, Erlang";
    SYS_timer_settime    => Allow, "as timer_create";
    SYS_timer_gettime    => Allow, "as timer_create";
    SYS_timer_getoverrun => Allow, "as timer_create";
    SYS_timer_delete     => Allow, "as timer_create";
    SYS_getitimer        => Allow, "Python signal";
    SYS_setitimer        => Allow, "Python signal, profilers, Go";
};

/// User and group ids and capabilities. There is nothing to gain by them: no_new_privs is set.
const IDENTITY: &[Line] = calls! {
    SYS_getuid    => Allow, "everything";
    SYS_geteuid   => Allow, "everything";
    SYS_getgid    => Allow, "everything";
    SYS_getegid   => Allow, "everything";
    SYS_getresuid => Allow, "bash, OpenSSH";
    SYS_getresgid => Allow, "bash, OpenSSH";
    SYS_getgroups => Allow, "id, Python, OpenSSH";
    SYS_setuid    => Allow, "daemons and build tools that change to an ordinary user";
    SYS_setgid    => Allow, "as setuid";
    SYS_setreuid  => Allow, "perl, git-daemon";
    SYS_setregid  => Allow, "as setreuid";
    SYS_setresuid => Allow, "make, apt, OpenSSH";
    SYS_setresgid => Allow, "make, apt, OpenSSH";
    SYS_setgroups => Allow, "apt, OpenSSH; the user namespace bounds it";
    SYS_setfsuid  => Allow, "file servers";
    SYS_setfsgid  => Allow, "file servers";
    SYS_capget    => Allow, "Node, capability libraries";
    SYS_capset    => Allow, "capability libraries; it can only give up";
};

/// Sockets. The network namespace bounds where they lead; `socket` bounds what kinds there are.
const SOCKETS: &[Line] = calls! {
    SYS_socket      => SOCKET, "every network client";
    SYS_socketpair  => SOCKET, "Node, Python multiprocessing, asyncio";
    SYS_bind        => Allow,  "servers";
    SYS_listen      => Allow,  "servers";
    SYS_accept      => Allow,  "servers";
    SYS_accept4     => Allow,  "servers: libuv, tokio, Go";
    SYS_connect     => Allow,  "every network client";
    SYS_getsockname => Allow,  "every network program";
    SYS_getpeername => Allow,  "every network program";
    SYS_sendto      => Allow,  "DNS, syslog, Node, Go";
    SYS_recvfrom    => Allow,  "DNS, Python socket";
    SYS_sendmsg     => Allow,  "libuv, passing descriptors";
    SYS_recvmsg     => Allow,  "libuv, passing descriptors";
    SYS_sendmmsg    => Allow,  "glibc getaddrinfo, QUIC";
    SYS_recvmmsg    => Allow,  "QUIC, DNS servers";
    SYS_setsockopt  => SETSOCKOPT, "every network program";
    SYS_getsockopt  => Allow,  "every network program";
    SYS_shutdown    => Allow,  "every network program";
};

/// System V and POSIX message queues, semaphores and shared memory, bounded by the IPC namespace.
const IPC: &[Line] = calls! {
    SYS_shmget          => SHMGET, "PostgreSQL, X clients";
    SYS_shmat           => Allow, "PostgreSQL, X clients";
    SYS_shmdt           => Allow, "PostgreSQL, X clients";
    SYS_shmctl          => Allow, "PostgreSQL, X clients, ipcs";
    SYS_semget          => Allow, "PostgreSQL, fakeroot, PHP";
    SYS_semop           => Allow, "PostgreSQL, fakeroot, PHP";
    SYS_semtimedop      => Allow, "PostgreSQL, PHP";
    SYS_semctl          => Allow, "PostgreSQL, fakeroot, PHP, ipcs";
    SYS_msgget          => Allow, "fakeroot, PHP";
    SYS_msgsnd          => Allow, "fakeroot, PHP";
    SYS_msgrcv          => Allow, "fakeroot, PHP";
    SYS_msgctl          => Allow, "fakeroot, PHP, ipcs";
    SYS_mq_open         => Allow, "programs with POSIX message queues";
    SYS_mq_unlink       => Allow, "as mq_open";
    SYS_mq_timedsend    => Allow, "as mq_open";
    SYS_mq_timedreceive => Allow, "as mq_open";
    SYS_mq_notify       => Allow, "as mq_open";
    SYS_mq_getsetattr   => Allow, "as mq_open";
};

/// Facts about the system, and ways to confine oneself further.
const SYSTEM: &[Line] = calls! {
    SYS_uname                   => Allow, "everything";
    SYS_sysinfo                 => Allow, "glibc processor and memory counts, Node, Java";
    SYS_getrandom               => Allow, "everything";
    SYS_seccomp                 => SECCOMP, "programs that ask what there is";
    SYS_landlock_create_ruleset => Allow, "programs that confine themselves; it can only narrow";
    SYS_landlock_add_rule       => Allow, "as landlock_create_ruleset";
    SYS_landlock_restrict_self  => Allow, "as landlock_create_ruleset";
};

/// Calls that only x86_64 still has, because newer ones replaced them before aarch64 came.
#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[Line] = calls! {
    SYS_open         => Allow, "sanitizers, valgrind, musl";
    SYS_creat        => Allow, "tar, dpkg";
    SYS_stat         => Allow, "static programs, older C libraries, musl";
    SYS_lstat        => Allow, "static programs, older C libraries, musl";
    SYS_access       => Allow, "glibc, every dynamic linker";
    SYS_pipe         => Allow, "valgrind, musl";
    SYS_dup2         => Allow, "shells, Python";
    SYS_poll         => Allow, "glibc, curl, Python";
    SYS_select       => Allow, "older programs";
    SYS_epoll_create => Allow, "older event loops";
    SYS_epoll_wait   => Allow, "glibc, tokio, Java";
    SYS_eventfd      => Allow, "older event loops";
    SYS_signalfd     => Allow, "older event loops";
    SYS_inotify_init => Allow, "Java, gpg, tail";
    SYS_getdents     => Allow, "older programs";
    SYS_readlink     => Allow, "glibc, Java, Python";
    SYS_chmod        => Allow, "tar, Python, linkers";
    SYS_chown        => Allow, "glibc, tar";
    SYS_lchown       => Allow, "tar, dpkg";
    SYS_link         => Allow, "glibc, git";
    SYS_symlink      => Allow, "glibc, npm";
    SYS_mkdir        => Allow, "glibc, Python";
    SYS_rmdir        => Allow, "glibc, Python";
    SYS_unlink       => Allow, "glibc, git, gcc";
    SYS_rename       => Allow, "glibc, git";
    SYS_mknod        => MKNOD, "valgrind, mkfifo in older C libraries";
    SYS_utime        => Allow, "older programs";
    SYS_utimes       => Allow, "glibc, tar";
    SYS_futimesat    => Allow, "older programs";
    SYS_alarm        => Allow, "openssl, perl, test runners";
    SYS_pause        => Allow, "test programs, init programs";
    SYS_time         => Allow, "older programs, where the vDSO has no fast clock";
    SYS_getpgrp      => Allow, "shells, make";
    SYS_fork         => Allow, "musl, older programs";
    SYS_vfork        => Allow, "gcc, make, cargo; posix_spawn in older C libraries";
    SYS_arch_prctl   => Allow, "every program at start, for thread-local storage";
    SYS_uretprobe    => Allow, "the kernel's own trampoline, when the host traces with uprobes";
    SYS_uprobe       => Allow, "the kernel's own trampoline, when the host traces with uprobes";
};

#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[Line] = &[];

/// The namespaces and the mount table stay as they were set up.
const NO_NAMESPACES: &[Line] = calls! {
    SYS_unshare           => Deny(EPERM),  "would open a namespace, with all capabilities inside";
    SYS_setns             => Deny(EPERM),  "would enter a namespace, whose handle may have leaked";
    SYS_clone3            => Deny(ENOSYS), "its flags lie behind a pointer; glibc falls back to clone";
    SYS_mount             => Deny(EPERM),  "would change the mount table";
    SYS_umount2           => Deny(EPERM),  "could uncover masked files";
    SYS_pivot_root        => Deny(EPERM),  "would change the root";
    SYS_chroot            => Deny(EPERM),  "a way out of a root, for a process that is root in it";
    SYS_open_tree         => Deny(EPERM),  "clones a mount";
    SYS_open_tree_attr    => Deny(EPERM),  "clones a mount";
    SYS_move_mount        => Deny(EPERM),  "would change the mount table";
    SYS_mount_setattr     => Deny(EPERM),  "could make a read-only mount writable";
    SYS_fsopen            => Deny(EPERM),  "parses attacker-made file systems in the kernel";
    SYS_fsconfig          => Deny(EPERM),  "as fsopen";
    SYS_fsmount           => Deny(EPERM),  "as fsopen";
    SYS_fspick            => Deny(EPERM),  "as fsopen";
    SYS_statmount         => Deny(ENOSYS), "shows mounts; callers read /proc/self/mountinfo instead";
    SYS_listmount         => Deny(ENOSYS), "as statmount";
    SYS_listns            => Deny(EPERM),  "names namespaces of the host";
    SYS_open_by_handle_at => Deny(EPERM),  "opens files outside the root, by guessed handles (Shocker, 2014)";
    SYS_name_to_handle_at => Deny(EPERM),  "makes such handles";
};

/// No process looks into another one.
const NO_OTHER_PROCESSES: &[Line] = calls! {
    SYS_ptrace            => Deny(EPERM),  "reads and rewrites another process";
    SYS_process_vm_readv  => Deny(EPERM),  "reads the memory of another process";
    SYS_process_vm_writev => Deny(EPERM),  "writes the memory of another process";
    SYS_process_madvise   => Deny(EPERM),  "changes the memory of another process";
    SYS_process_mrelease  => Deny(ENOSYS), "for out-of-memory daemons";
    SYS_pidfd_getfd       => Deny(EPERM),  "takes descriptors out of another process";
    SYS_kcmp              => Deny(EPERM),  "tells which kernel objects two processes share";
    SYS_migrate_pages     => Deny(ENOSYS), "as set_mempolicy";
    SYS_move_pages        => Deny(ENOSYS), "as set_mempolicy";
};

/// Large parts of the kernel that untrusted code has often broken, and that programs do without.
const NO_KERNEL_SURFACE: &[Line] = calls! {
    SYS_io_uring_setup          => Deny(EPERM),  "hides operations from seccomp; libuv and tokio fall back";
    SYS_io_uring_enter          => Deny(EPERM),  "as io_uring_setup";
    SYS_io_uring_register       => Deny(EPERM),  "as io_uring_setup";
    SYS_bpf                     => Deny(EPERM),  "loads code into the kernel";
    SYS_perf_event_open         => Deny(EPERM),  "large surface, and counts what neighbours do";
    SYS_userfaultfd             => Deny(EPERM),  "stops a kernel copy midway, which makes races winnable";
    SYS_keyctl                  => Deny(EPERM),  "keyrings have no namespace of their own";
    SYS_add_key                 => Deny(EPERM),  "as keyctl";
    SYS_request_key             => Deny(EPERM),  "as keyctl, and starts a program on the host";
    SYS_vmsplice                => Deny(EPERM),  "gives pages away by reference (CVE-2020-29374)";
    SYS_memfd_secret            => Deny(EPERM),  "memory that the host cannot inspect";
    SYS_fanotify_init           => Deny(EPERM),  "watches whole file systems, before permission is decided";
    SYS_fanotify_mark           => Deny(EPERM),  "as fanotify_init";
    SYS_io_setup                => Deny(ENOSYS), "fs.aio-max-nr is one count for the host; InnoDB falls back";
    SYS_io_destroy              => Deny(ENOSYS), "as io_setup";
    SYS_io_submit               => Deny(ENOSYS), "as io_setup";
    SYS_io_cancel               => Deny(ENOSYS), "as io_setup";
    SYS_io_getevents            => Deny(ENOSYS), "as io_setup";
    SYS_io_pgetevents           => Deny(ENOSYS), "as io_setup";
    SYS_remap_file_pages        => Deny(ENOSYS), "deprecated since Linux 3.16; no current caller";
    SYS_cachestat               => Deny(ENOSYS), "shows which files neighbours use";
    SYS_set_mempolicy           => Deny(ENOSYS), "placement is the host's; libnuma says not available";
    SYS_get_mempolicy           => Deny(ENOSYS), "as set_mempolicy";
    SYS_mbind                   => Deny(ENOSYS), "as set_mempolicy; OpenBLAS ignores the answer";
    SYS_set_mempolicy_home_node => Deny(ENOSYS), "as set_mempolicy";
    SYS_file_getattr            => Deny(ENOSYS), "new in Linux 6.17; callers fall back to ioctl";
    SYS_file_setattr            => Deny(ENOSYS), "as file_getattr";
    SYS_lsm_get_self_attr       => Deny(ENOSYS), "callers fall back to /proc/self/attr";
    SYS_lsm_set_self_attr       => Deny(ENOSYS), "as lsm_get_self_attr";
    SYS_lsm_list_modules        => Deny(ENOSYS), "tells how the host is protected";
    SYS_rseq_slice_yield        => Deny(ENOSYS), "useless without a prctl option that is not allowed";
};

/// What belongs to the administrator of the host.
const NO_HOST_ADMINISTRATION: &[Line] = calls! {
    SYS_init_module     => Deny(EPERM), "loads code into the kernel";
    SYS_finit_module    => Deny(EPERM), "loads code into the kernel";
    SYS_delete_module   => Deny(EPERM), "unloads code from the kernel";
    SYS_kexec_load      => Deny(EPERM), "replaces the kernel";
    SYS_kexec_file_load => Deny(EPERM), "replaces the kernel";
    SYS_reboot          => Deny(EPERM), "stops the host";
    SYS_swapon          => Deny(EPERM), "changes the memory of the host";
    SYS_swapoff         => Deny(EPERM), "changes the memory of the host";
    SYS_sync            => Deny(EPERM), "flushes all disks of the host; callers see no error";
    SYS_syncfs          => Deny(EPERM), "through a file of /usr it flushes a disk of the host; fsync remains";
    SYS_acct            => Deny(EPERM), "writes a log of every process";
    SYS_quotactl        => Deny(EPERM), "changes disk quotas";
    SYS_quotactl_fd     => Deny(EPERM), "changes disk quotas";
    SYS_syslog          => Deny(EPERM), "reads the kernel's log, with addresses";
    SYS_settimeofday    => Deny(EPERM), "sets the host's clock";
    SYS_clock_settime   => Deny(EPERM), "sets the host's clock";
    SYS_clock_adjtime   => Deny(EPERM), "sets the host's clock";
    SYS_adjtimex        => Deny(EPERM), "sets the host's clock";
    SYS_sethostname     => Deny(EPERM), "names the machine; the sandbox's name is given";
    SYS_setdomainname   => Deny(EPERM), "names the machine";
    SYS_vhangup         => Deny(EPERM), "hangs up terminals";
    SYS_nfsservctl      => Deny(EPERM), "ran an NFS server; removed in Linux 3.1";
    SYS_lookup_dcookie  => Deny(EPERM), "served a profiler; removed in Linux 6.7";
};

/// Denied calls that only x86_64 has.
#[cfg(target_arch = "x86_64")]
const NO_OLD_SURFACE: &[Line] = calls! {
    SYS_modify_ldt      => Deny(EPERM),  "segments for 16-bit code, a source of entry bugs";
    SYS_iopl            => Deny(EPERM),  "reaches hardware ports";
    SYS_ioperm          => Deny(EPERM),  "reaches hardware ports";
    SYS_create_module   => Deny(EPERM),  "loaded code into the kernel; removed in Linux 2.6";
    SYS_get_kernel_syms => Deny(ENOSYS), "removed in Linux 2.6";
    SYS_query_module    => Deny(ENOSYS), "removed in Linux 2.6";
    SYS_uselib          => Deny(ENOSYS), "loaded a.out libraries; obsolete";
    SYS_ustat           => Deny(ENOSYS), "obsolete; callers use statfs";
    SYS_sysfs           => Deny(ENOSYS), "lists file system types; obsolete";
    SYS__sysctl         => Deny(ENOSYS), "removed in Linux 5.5; callers use /proc/sys";
    SYS_set_thread_area => Deny(ENOSYS), "only 32-bit programs have it";
    SYS_get_thread_area => Deny(ENOSYS), "only 32-bit programs have it";
    SYS_epoll_ctl_old   => Deny(ENOSYS), "never implemented";
    SYS_epoll_wait_old  => Deny(ENOSYS), "never implemented";
    SYS_getpmsg         => Deny(ENOSYS), "never implemented";
    SYS_putpmsg         => Deny(ENOSYS), "never implemented";
    SYS_afs_syscall     => Deny(ENOSYS), "never implemented";
    SYS_tuxcall         => Deny(ENOSYS), "never implemented";
    SYS_security        => Deny(ENOSYS), "never implemented";
    SYS_vserver         => Deny(ENOSYS), "never implemented";
};

#[cfg(not(target_arch = "x86_64"))]
const NO_OLD_SURFACE: &[Line] = &[];
