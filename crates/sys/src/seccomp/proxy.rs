//! The profile of the proxy: what a program of ours calls that opens no file, starts nothing, and speaks TCP and
//! UDP over sockets that it has or makes.
//!
//! In a table of its own rather than what is left of the container's: it is short enough to be read whole.

use super::numbers::*;
use super::rule::Line;
use super::rule::Rule::{self, Allow, Ask, Deny};
use super::rule::{Question, Word::Low};
use super::table::calls;

/// The calls, by subject.
pub(super) const PROXY: &[&[Line]] = &[SOCKETS, WAITING, MEMORY, PROCESS, OLD_NAMES];

const _: () = assert!(!super::rule::repeats(PROXY), "two lines name the same call");

const SOCKETS: &[Line] = calls! {
    SYS_socket      => INTERNET, "to dial and to ask for names";
    SYS_socketpair  => Allow, "a way between two ends of ours, one of which the broker gets";
    SYS_connect     => Allow, "to dial";
    SYS_bind        => Allow, "a port of its own for each question for a name";
    SYS_accept4     => Allow, "the doors of a sandbox";
    SYS_read        => Allow, "connections";
    SYS_readv       => Allow, "connections";
    SYS_write       => Allow, "connections";
    SYS_writev      => Allow, "connections";
    SYS_recvfrom    => Allow, "connections and answers";
    SYS_recvmsg     => Allow, "descriptors from the host, questions of a sandbox";
    SYS_sendto      => Allow, "connections and questions";
    SYS_sendmsg     => Allow, "the host, answers to a sandbox";
    SYS_shutdown    => Allow, "connections that are half over";
    SYS_close       => Allow, "connections that are over";
    SYS_getsockname => Allow, "the address that a connection came to";
    SYS_getpeername => Allow, "connections";
    SYS_getsockopt  => Allow, "where a connection was meant to go; whether one is there";
    SYS_setsockopt  => NO_FILTERS, "to send small pieces at once";
    SYS_fcntl       => Allow, "not to wait; to see whether a descriptor is open";
    SYS_ioctl       => NOT_WAITING, "not to wait";
};

const WAITING: &[Line] = calls! {
    SYS_epoll_create1 => Allow, "tokio";
    SYS_epoll_ctl     => Allow, "tokio";
    SYS_epoll_pwait   => Allow, "tokio, on aarch64";
    SYS_eventfd2      => Allow, "tokio";
    SYS_futex         => Allow, "locks";
    SYS_sched_yield   => Allow, "locks";
    SYS_clock_gettime => Allow, "where the vDSO has no fast clock";
    SYS_restart_syscall => Allow, "the kernel's own, after a stop";
};

const MEMORY: &[Line] = calls! {
    SYS_brk      => Allow, "the allocator";
    SYS_mmap     => NOT_EXECUTABLE, "the allocator";
    SYS_munmap   => Allow, "the allocator";
    SYS_mremap   => Allow, "the allocator";
    SYS_mprotect => NOT_EXECUTABLE, "the allocator";
    SYS_madvise  => Allow, "the allocator";
};

const PROCESS: &[Line] = calls! {
    SYS_getrandom      => Allow, "keys";
    SYS_exit           => Allow, "the end";
    SYS_exit_group     => Allow, "the end";
    SYS_getpid         => Allow, "abort";
    SYS_gettid         => Allow, "abort, panics";
    SYS_tgkill         => Allow, "abort";
    SYS_rt_sigaction   => Allow, "abort";
    SYS_rt_sigprocmask => Allow, "abort";
    SYS_rt_sigreturn   => Allow, "signal handlers";
    SYS_sigaltstack    => Allow, "the end of a thread";
};

#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[Line] = calls! {
    SYS_epoll_wait => Allow, "tokio";
    SYS_poll       => Allow, "the standard library";
};

#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[Line] = calls! {
    SYS_ppoll => Allow, "the standard library";
};

/// `socket(family, type, protocol)`: TCP and UDP over IPv4 and IPv6. `SOCK_NONBLOCK` and `SOCK_CLOEXEC` are
/// flags of the type.
const INTERNET: Rule = Ask(&Question {
    word: Low(0),
    mask: u32::MAX,
    cases: &[(
        &[AF_INET as u32, AF_INET6 as u32],
        Ask(&Question {
            word: Low(1),
            mask: 0xf,
            cases: &[(&[SOCK_STREAM as u32, SOCK_DGRAM as u32], Allow)],
            otherwise: Deny(EPERM),
        }),
    )],
    otherwise: Deny(EAFNOSUPPORT),
});

/// `setsockopt(socket, level, name, …)`: of sockets and of TCP, and no programs for the kernel.
const NO_FILTERS: Rule = Ask(&Question {
    word: Low(1),
    mask: u32::MAX,
    cases: &[
        (
            &[SOL_SOCKET as u32],
            Ask(&Question {
                word: Low(2),
                mask: u32::MAX,
                cases: &[(&[SO_REUSEADDR as u32, SO_KEEPALIVE as u32, SO_LINGER as u32], Allow)],
                otherwise: Deny(EPERM),
            }),
        ),
        (&[IPPROTO_TCP as u32], Allow),
    ],
    otherwise: Deny(EPERM),
});

/// `ioctl(descriptor, request, …)`.
const NOT_WAITING: Rule = Ask(&Question {
    word: Low(1),
    mask: u32::MAX,
    cases: &[(&[FIONBIO as u32], Allow)],
    otherwise: Deny(EPERM),
});

/// `mmap(address, length, protection, …)` and `mprotect(address, length, protection)`.
const NOT_EXECUTABLE: Rule =
    Ask(&Question { word: Low(2), mask: PROT_EXEC as u32, cases: &[(&[0], Allow)], otherwise: Deny(EPERM) });
