//! The kernel's side of Cofferdam: safe functions over system calls.
//!
//! All of the project's `unsafe` is here. Each module is one thing that the kernel offers:
//!
//! - [`launch`]: a new process in new namespaces, set up by a list of steps without an exec.
//! - [`capture`]: every connection out of a network namespace ends at the host.
//! - [`cgroup`]: ceilings on memory, processor time and processes, versions 1 and 2.
//! - [`seccomp`]: the list of system calls that a sandbox may make, each with its reason.
//! - [`landlock`]: the second layer over the file system.
//! - [`loop_device`]: a file as a block device.
//! - [`mount`]: parts of the host's tree, made ready for a sandbox.
//! - [`process`]: waiting for, signalling and starting processes; limits and identity.
//! - [`jail`]: a process that confines itself.
//! - [`addresses`]: those that this machine has.
//! - [`fd`]: pipes, sealed memory, events, locks.
//! - [`fdpass`]: sockets that carry file descriptors.
//! - [`beneath`]: files below one folder, reached without following a link.
//!
//! # What this crate must not know
//!
//! Policies and requests. It does what it is told, and says what the kernel said.

pub mod addresses;
pub mod beneath;
pub mod capture;
pub mod cgroup;
pub mod fd;
pub mod fdpass;
pub mod jail;
pub mod landlock;
pub mod launch;
pub mod loop_device;
pub mod mount;
mod netlink;
pub mod process;
pub mod seccomp;

/// Error numbers that both sides of the wire use.
pub mod errno {
    /// EBUSY: something else has it.
    pub const BUSY: i32 = libc::EBUSY;
    /// EIO: something failed in a way that has no number of its own.
    pub const INPUT_OUTPUT: i32 = libc::EIO;
    /// EINVAL: what was asked makes no sense.
    pub const INVALID: i32 = libc::EINVAL;
    /// ENOENT: there is no such file.
    pub const NOT_FOUND: i32 = libc::ENOENT;
    /// EACCES: it is there and may not be executed.
    pub const NOT_PERMITTED: i32 = libc::EACCES;
}

/// The result of a system call that returns -1 on failure.
fn check(result: libc::c_long) -> std::io::Result<libc::c_long> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
