//! The system-call filter that every process in a sandbox runs under.
//!
//! A [`Filter`] is a small program that the kernel runs before each system call. It is compiled on the
//! host, before the sandbox's first process exists, and [installed](Filter::install) in that process as the
//! last step before the program starts. From then on it holds for all that descends from it.
//!
//! - `table`: the policy, one line for each system call, with its reason.
//! - `proxy`: that of a process of ours.
//! - `arguments`: the rules that depend on an argument.
//! - `rule`: the words both are written in.
//! - `compile`: from a table to a program.
//! - `listing`: a program in words, which the golden file under `tests/golden` pins.
//!
//! # Invariants
//!
//! 1. What is not in the table does not run. That includes calls which today's kernels do not have yet.
//! 2. Only a foreign interface (32-bit x86, x32) kills. Everything else is an error that a program can
//!    handle, because runtimes find out by trying what a kernel offers.
//! 3. Where the kernel reads 32 bits of an argument, so does the filter.
//!
//! # Deliberately absent
//!
//! A way to loosen a profile. A program that needs other calls needs another profile, with its own table.

use std::io;

use cofferdam_core::weaken::{self, Control};
use libc::{c_ulong, sock_filter, sock_fprog};

use rule::Line;

mod arguments;
mod compile;
mod listing;
mod numbers;
mod proxy;
mod rule;
mod table;
#[cfg(test)]
mod tests;

/// A compiled profile, ready to be installed.
#[derive(Clone, Debug)]
pub struct Filter {
    program: Vec<sock_filter>,
    table: &'static [&'static [Line]],
}

/// The filter of the container profile. It allows what ordinary programs and compilers use, and denies
///
/// - new namespaces, mounts, and every other way to change what the sandbox sees;
/// - looking into other processes;
/// - `io_uring`, `bpf`, `perf`, `userfaultfd`, keyrings and other large surfaces of the kernel;
/// - administration of the host: modules, clocks, swap, reboot;
/// - sockets other than local ones, TCP and UDP;
/// - pushing input into a terminal.
#[must_use]
pub fn container() -> Filter {
    if weaken::is_off(Control::FilterIsEmpty) {
        let allow = sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }; // BPF_RET | BPF_K
        return Filter { program: vec![allow], table: &[] };
    }
    Filter { program: compile::compile(table::CONTAINER), table: table::CONTAINER }
}

/// The filter of the proxy, which parses what strangers send and holds connections to others: TCP, UDP, memory
/// and time, and nothing that opens a file, starts a process or makes memory executable.
#[must_use]
pub fn proxy() -> Filter {
    Filter { program: compile::compile(proxy::PROXY), table: proxy::PROXY }
}

/// Asks whether filters are to be had, without installing one: the kernel may have none, and a filter that
/// we run under ourselves may refuse to have another.
///
/// # Errors
///
/// The error of seccomp(2).
pub fn ask() -> io::Result<()> {
    let (operation, action) = (c_ulong::from(libc::SECCOMP_GET_ACTION_AVAIL), libc::SECCOMP_RET_ERRNO);
    let flags: c_ulong = 0;
    // SAFETY: the kernel reads the four bytes of `action`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const action) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Filter {
    /// Puts the calling thread under this filter, and all threads and processes that it will start.
    ///
    /// There is no way back. The thread must have set `no_new_privs`, and be the only one of its process:
    /// its siblings stay as they were.
    ///
    /// Safe to call between `clone` and `execve`: it makes one system call, and neither allocates nor locks.
    ///
    /// # Errors
    ///
    /// The `errno` of seccomp(2). `EACCES` means that `no_new_privs` is not set, `EINVAL` or `ENOSYS` that
    /// this kernel has no filters. Nothing was installed then, and the program must not be started.
    pub fn install(&self) -> Result<(), i32> {
        let program = sock_fprog {
            len: self.program.len() as u16, // At most BPF_MAXINSNS, 4096; a test sees to it.
            filter: self.program.as_ptr().cast_mut(),
        };
        let mode = c_ulong::from(libc::SECCOMP_SET_MODE_FILTER);
        let flags: c_ulong = 0;
        // SAFETY: `program` points to `len` instructions that outlive the call; the kernel copies them and
        // does not write.
        let result = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    }

    /// The program, as the kernel gets it.
    #[must_use]
    pub fn instructions(&self) -> &[sock_filter] {
        &self.program
    }

    /// The program in words: first what it answers to each call we know, then its instructions.
    #[must_use]
    pub fn listing(&self) -> String {
        listing::listing(&self.program, self.table)
    }
}
