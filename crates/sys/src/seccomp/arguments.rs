//! The rules that depend on an argument, one constant for each, with the values they look for.
//!
//! Every constant here is part of the kernel's binary interface. Where `libc` names one it is used; the
//! others are given with the header they come from.

use libc::{
    AF_INET, AF_INET6, AF_UNIX, EAFNOSUPPORT, EINVAL, EPERM, EPROTONOSUPPORT, IPPROTO_TCP, IPPROTO_UDP,
    S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, SOCK_SEQPACKET,
    SOCK_STREAM,
};

use super::rule::Question;
use super::rule::Rule::{self, Allow, Ask, Deny};
use super::rule::Word::{High, Low};

/// `clone(flags, …)`: threads and processes, but no namespaces.
///
/// The kernel reads the low 32 bits of the flags. The eighth kind, `CLONE_NEWTIME`, cannot be said here:
/// its bit is part of this call's exit signal, and only `clone3` and `unshare` know it.
pub(super) const CLONE: Rule =
    Ask(&Question { word: Low(0), mask: NEW_NAMESPACES, cases: &[(&[0], Allow)], otherwise: Deny(EPERM) });

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// `socket(domain, type, protocol)` and `socketpair`: local sockets, TCP and UDP.
///
/// Families other than these three are attack surface without a use: nothing in the sandbox's network
/// namespace would answer. `EAFNOSUPPORT` is what a kernel built without the family says.
pub(super) const SOCKET: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(&[AF_UNIX as u32], UNIX_TYPE), (&[AF_INET as u32, AF_INET6 as u32], INET_TYPE)],
    otherwise: Deny(EAFNOSUPPORT),
});

/// All three types of local socket, not only streams: syslog(3) needs datagrams, and process pools talk
/// over sequenced-packet pairs. The sandbox's own network and mount namespaces bound all of them alike.
const UNIX_TYPE: Rule = Ask(&Question {
    word: Low(1),
    mask: SOCKET_TYPE,
    cases: &[
        (&[SOCK_STREAM as u32, SOCK_DGRAM as u32, SOCK_SEQPACKET as u32], Allow),
        (&[SOCK_RAW as u32], Deny(EPERM)),
    ],
    otherwise: Deny(EAFNOSUPPORT),
});

const INET_TYPE: Rule = Ask(&Question {
    word: Low(1),
    mask: SOCKET_TYPE,
    cases: &[
        (&[SOCK_STREAM as u32], TCP_ONLY),
        (&[SOCK_DGRAM as u32], UDP_ONLY),
        (&[SOCK_RAW as u32], Deny(EPERM)),
    ],
    otherwise: Deny(EAFNOSUPPORT),
});

/// Types without the two flags that come in the same argument.
const SOCKET_TYPE: u32 = !(SOCK_NONBLOCK | SOCK_CLOEXEC) as u32;

/// A stream can also be SCTP, MPTCP or SMC, but egress is captured for TCP alone. Go asks for MPTCP first
/// whenever it listens, and falls back to TCP.
const TCP_ONLY: Rule = Ask(&Question {
    word: Low(2),
    mask: u32::MAX,
    cases: &[(&[0, IPPROTO_TCP as u32], Allow)],
    otherwise: Deny(EPROTONOSUPPORT),
});

/// A datagram can also be ICMP, UDP-Lite or L2TP, but only UDP is answered.
const UDP_ONLY: Rule = Ask(&Question {
    word: Low(2),
    mask: u32::MAX,
    cases: &[(&[0, IPPROTO_UDP as u32], Allow)],
    otherwise: Deny(EPROTONOSUPPORT),
});

/// `ioctl(fd, request, …)`: everything except what reaches past the program's own files.
///
/// The kernel compares `request` as an `unsigned int`, so only the low word may be looked at: with
/// `TIOCSTI | 1 << 32` a program would pass a check of all 64 bits (CVE-2019-10063).
pub(super) const IOCTL: Rule = Ask(&Question {
    word: Low(1),
    mask: u32::MAX,
    cases: &[(&[TIOCSTI, TIOCLINUX, TIOCSETD], Deny(EPERM))],
    otherwise: IOCTL_OF_TUN,
});

/// Types a byte of input into a terminal, for its owner's shell to run.
///
/// Source of this and the next two: Linux, `include/uapi/asm-generic/ioctls.h`.
const TIOCSTI: u32 = 0x5412;
/// Pastes into a virtual console, among other things.
const TIOCLINUX: u32 = 0x541c;
/// Attaches a line discipline, which may load a seldom tested kernel module.
const TIOCSETD: u32 = 0x5423;

/// Network tunnels share the type byte `'T'` with terminals, but number their requests from 200
/// (`include/uapi/linux/if_tun.h`); those of terminals all lie below 128.
const IOCTL_OF_TUN: Rule = Ask(&Question {
    word: Low(1),
    mask: 0xff80,
    cases: &[(&[0x5480], Deny(EPERM))],
    otherwise: IOCTL_OF_DEVICE,
});

/// Devices that mean control of the host, by the type byte of their requests. None of them should exist in
/// a sandbox; this holds also when one was left open by mistake.
///
/// Source: Linux, `Documentation/userspace-api/ioctl/ioctl-number.rst`.
const IOCTL_OF_DEVICE: Rule = Ask(&Question {
    word: Low(1),
    mask: 0xff00,
    cases: &[(
        &[
            0x0900, // md: software RAID
            0x1200, // BLK*: block devices
            0x2200, // SG_*: raw SCSI commands
            0x3b00, // VFIO: devices handed to user space
            0x4b00, // KD*: console keyboard; KDSKBSENT makes a key type any string
            0x4c00, // LOOP_*: files as block devices
            0xab00, // NBD_*: network block devices
            0xae00, // KVM_*
            0xaf00, // VHOST_*: virtio in the host kernel
            0xfd00, // DM_*: device mapper
        ],
        Deny(EPERM),
    )],
    otherwise: Allow,
});

/// `mknod(path, mode, …)`: as [`MKNODAT`].
#[cfg(target_arch = "x86_64")]
pub(super) const MKNOD: Rule =
    Ask(&Question { word: Low(1), mask: S_IFMT, cases: PLAIN_FILES, otherwise: Deny(EPERM) });

/// `mknodat(dir, path, mode, …)`: files without a device behind them. No type means a regular file.
///
/// The kernel reads 16 bits of the mode, of which `S_IFMT` is the upper four.
pub(super) const MKNODAT: Rule =
    Ask(&Question { word: Low(2), mask: S_IFMT, cases: PLAIN_FILES, otherwise: Deny(EPERM) });

const PLAIN_FILES: &[(&[u32], Rule)] = &[(&[0, S_IFREG, S_IFIFO, S_IFSOCK], Allow)];

/// `personality(persona)`: asking for it, and setting the plain one. Others weaken address layout
/// randomisation or reach code for old binaries.
///
/// Source: Linux, `kernel/exec_domain.c`: all ones only asks.
pub(super) const PERSONALITY: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(&[0, u32::MAX], Allow)],
    otherwise: Deny(EPERM),
});

/// `prctl(option, …)`: the options programs use on themselves, from [`PRCTL_OPTIONS`].
///
/// `EINVAL` is what a kernel without the option says.
pub(super) const PRCTL: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(PRCTL_OPTIONS, Allow)],
    otherwise: Deny(EINVAL),
});

/// Absent on purpose: `PR_SET_MM` (lets a process forge its own `/proc` entry), `PR_SCHED_CORE` (a cookie of
/// one's own idles the sibling hyperthread for everybody), `PR_SET_MEMORY_MERGE` (merged pages can be timed
/// across sandboxes), `PR_SET_SECCOMP` (see [`SECCOMP`]), `PR_SET_SYSCALL_USER_DISPATCH` and `PR_SET_SECUREBITS` (no known caller gains).
///
/// Source: Linux, `include/uapi/linux/prctl.h`.
const PRCTL_OPTIONS: &[u32] = &[
    1,           // PR_SET_PDEATHSIG: helpers that end with their parent
    2,           // PR_GET_PDEATHSIG
    3,           // PR_GET_DUMPABLE
    4,           // PR_SET_DUMPABLE: agents that hold keys
    7,           // PR_GET_KEEPCAPS
    8,           // PR_SET_KEEPCAPS: daemons that change user
    15,          // PR_SET_NAME: thread names
    16,          // PR_GET_NAME
    21,          // PR_GET_SECCOMP: probes
    23,          // PR_CAPBSET_READ: capability libraries
    24,          // PR_CAPBSET_DROP
    27,          // PR_GET_SECUREBITS
    29,          // PR_SET_TIMERSLACK: schedulers of media and databases
    30,          // PR_GET_TIMERSLACK
    36,          // PR_SET_CHILD_SUBREAPER: test runners, small inits
    37,          // PR_GET_CHILD_SUBREAPER
    38,          // PR_SET_NO_NEW_PRIVS
    39,          // PR_GET_NO_NEW_PRIVS
    41,          // PR_SET_THP_DISABLE: databases, Go
    42,          // PR_GET_THP_DISABLE
    47,          // PR_CAP_AMBIENT: capability libraries
    50,          // PR_SVE_SET_VL: aarch64 vector length
    51,          // PR_SVE_GET_VL
    52,          // PR_GET_SPECULATION_CTRL
    53,          // PR_SET_SPECULATION_CTRL: browsers, Java
    54,          // PR_PAC_RESET_KEYS: aarch64 pointer authentication
    55,          // PR_SET_TAGGED_ADDR_CTRL: aarch64 memory tagging
    56,          // PR_GET_TAGGED_ADDR_CTRL
    60,          // PR_PAC_SET_ENABLED_KEYS
    61,          // PR_PAC_GET_ENABLED_KEYS
    63,          // PR_SME_SET_VL: aarch64 matrix extension
    64,          // PR_SME_GET_VL
    65,          // PR_SET_MDWE: programs that give up writable code
    66,          // PR_GET_MDWE
    74,          // PR_GET_SHADOW_STACK_STATUS: control-flow protection of the C library
    75,          // PR_SET_SHADOW_STACK_STATUS
    76,          // PR_LOCK_SHADOW_STACK_STATUS
    0x4155_5856, // PR_GET_AUXV: Go
    0x5356_4d41, // PR_SET_VMA: names for memory areas; glibc, Go, Node
    0x5961_6d61, // PR_SET_PTRACER: crash handlers; harmless, for nobody may trace
];

/// `sched_setscheduler(pid, …)` and its like: any process but process 1, whose priority a program could
/// take away so that it can neither reap nor die in time. `pidfd_open` too: nobody waits for process 1, and
/// a handle on it is where other calls begin. The kernel reads an `int`.
pub(super) const NOT_PROCESS_ONE: Rule =
    Ask(&Question { word: Low(0), mask: u32::MAX, cases: &[(&[1], Deny(EPERM))], otherwise: Allow });

/// `setpriority(which, who, …)`: a process or a group of processes, but not process 1 and not everything
/// of a user, which process 1 is too. The values of `linux/resource.h`.
pub(super) const PRIORITY: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(&[libc::PRIO_PROCESS], SECOND_NOT_PROCESS_ONE), (&[libc::PRIO_PGRP], Allow)],
    otherwise: Deny(EPERM),
});

/// `ioprio_set(which, who, …)`: the same, with the values of `linux/ioprio.h`.
pub(super) const IO_PRIORITY: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(&[IOPRIO_WHO_PROCESS], SECOND_NOT_PROCESS_ONE), (&[IOPRIO_WHO_PGRP], Allow)],
    otherwise: Deny(EPERM),
});

const IOPRIO_WHO_PROCESS: u32 = 1;
const IOPRIO_WHO_PGRP: u32 = 2;

const SECOND_NOT_PROCESS_ONE: Rule =
    Ask(&Question { word: Low(1), mask: u32::MAX, cases: &[(&[1], Deny(EPERM))], otherwise: Allow });

/// `prlimit64(pid, resource, new, old)`: a process sets its own limits but for [`CORE`], and reads those of
/// others.
///
/// Without this, a program running as the same user could lower the limits of the sandbox's process 1.
/// `pid` is an `int`; `new` is a pointer, null only if both halves are.
pub(super) const PRLIMIT: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(
        &[0],
        Ask(&Question {
            word: Low(1),
            mask: u32::MAX,
            cases: &[(&[CORE], READ_LIMIT_OR_BE_CALM)],
            otherwise: Allow,
        }),
    )],
    otherwise: Ask(&Question {
        word: Low(2),
        mask: u32::MAX,
        cases: &[(
            &[0],
            Ask(&Question { word: High(2), mask: u32::MAX, cases: &[(&[0], Allow)], otherwise: Deny(EPERM) }),
        )],
        otherwise: Deny(EPERM),
    }),
});

/// `setrlimit(resource, new)`: any but [`CORE`].
pub(super) const SETRLIMIT: Rule =
    Ask(&Question { word: Low(0), mask: u32::MAX, cases: &[(&[CORE], Deny(NOTHING))], otherwise: Allow });

/// `RLIMIT_CORE`. A sandbox sets it to 1, with which the kernel hands no core to the host's handler; with
/// 0 it does, as root and outside of every limit, if `kernel.core_pattern` is a pipe (`fs/coredump.c`).
/// Nobody may change it, and who tries is told that all is well: no core is written whatever they ask for.
const CORE: u32 = libc::RLIMIT_CORE;

/// No error: the call isn't made, and its caller is told that it succeeded.
const NOTHING: libc::c_int = 0;

const READ_LIMIT_OR_BE_CALM: Rule = Ask(&Question {
    word: Low(2),
    mask: u32::MAX,
    cases: &[(
        &[0],
        Ask(&Question { word: High(2), mask: u32::MAX, cases: &[(&[0], Allow)], otherwise: Deny(NOTHING) }),
    )],
    otherwise: Deny(NOTHING),
});

/// `seccomp(operation, …)`: questions, but no filters: their code draws on one allowance for the whole host
/// (`net.core.bpf_jit_limit`), without which no sandbox starts, and what they log goes to the host's audit
/// stream. `EINVAL` is what a kernel without filters says; programs go on without.
pub(super) const SECCOMP: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(&[SECCOMP_GET_ACTION_AVAIL], Allow)],
    otherwise: Deny(EINVAL),
});

/// Source: Linux, `include/uapi/linux/seccomp.h`.
const SECCOMP_GET_ACTION_AVAIL: u32 = 2;

/// `setsockopt(fd, level, name, …)`: everything but filters of packets, whose code draws on the same
/// allowance.
pub(super) const SETSOCKOPT: Rule = Ask(&Question {
    word: Low(1),
    mask: u32::MAX,
    cases: &[(
        &[libc::SOL_SOCKET as u32],
        Ask(&Question {
            word: Low(2),
            mask: u32::MAX,
            cases: &[(
                &[
                    libc::SO_ATTACH_FILTER as u32,
                    libc::SO_ATTACH_BPF as u32,
                    libc::SO_ATTACH_REUSEPORT_CBPF as u32,
                    libc::SO_ATTACH_REUSEPORT_EBPF as u32,
                ],
                Deny(EPERM),
            )],
            otherwise: Allow,
        }),
    )],
    otherwise: Allow,
});

/// `mmap(addr, length, protection, flags, …)`: not of huge pages, which no ceiling on memory counts. `ENOMEM`
/// is what a host says that has none set aside.
pub(super) const MMAP: Rule = Ask(&Question {
    word: Low(3),
    mask: libc::MAP_HUGETLB as u32,
    cases: &[(&[0], Allow)],
    otherwise: Deny(libc::ENOMEM),
});

/// `memfd_create(name, flags)`: the same.
pub(super) const MEMFD_CREATE: Rule = Ask(&Question {
    word: Low(1),
    mask: libc::MFD_HUGETLB,
    cases: &[(&[0], Allow)],
    otherwise: Deny(libc::ENOMEM),
});

/// `shmget(key, size, flags)`: the same.
pub(super) const SHMGET: Rule = Ask(&Question {
    word: Low(2),
    mask: libc::SHM_HUGETLB as u32,
    cases: &[(&[0], Allow)],
    otherwise: Deny(libc::ENOMEM),
});
