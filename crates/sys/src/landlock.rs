//! Landlock: rules over the file system that a process puts on itself and can't take off.
//!
//! A second layer: the mounts already show only what may be seen. The rules are applied by raw
//! system calls in the child of a launch, which may not allocate; the `landlock` crate does.
//!
//! Source of the numbers: `linux/landlock.h`.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;

/// The oldest version that is accepted: it knows links and renames between folders, without which
/// such renames would fail (Linux 5.19).
pub const MINIMUM_ABI: u32 = 2;

/// The newest version whose rights are asked for. A newer kernel may know more rights, with which
/// no sandbox was ever tested.
const NEWEST_ABI: u32 = 7;

/// The version of Landlock that this kernel has.
///
/// # Errors
///
/// ENOSYS where it isn't built in, EOPNOTSUPP where it was switched off at boot.
pub fn abi() -> io::Result<u32> {
    const CREATE_RULESET_VERSION: libc::c_long = 1;
    // SAFETY: with this flag the call takes no structure, only null and zero.
    let version = crate::check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    })?;
    Ok(version as u32)
}

/// What may be done below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Use device files: read, write, truncate (a shell's `>`), control.
    Devices,
    /// Read and execute.
    Read,
    /// Everything but making device files.
    Write,
    /// Read, and write to files that exist: `/proc`.
    WriteExisting,
}

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// The names of the rights over the file system, in the order of their bits.
const RIGHTS: [&str; 16] = [
    "execute",
    "write_file",
    "read_file",
    "read_dir",
    "remove_dir",
    "remove_file",
    "make_char",
    "make_dir",
    "make_reg",
    "make_sock",
    "make_fifo",
    "make_block",
    "make_sym",
    "refer",
    "truncate",
    "ioctl_dev",
];

/// The names of the scopes, in the order of their bits.
const SCOPES: [&str; 2] = ["abstract_unix_socket", "signal"];

/// What is used of the Landlock of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The version whose rights are asked for.
    pub abi: u32,
    /// The rights over the file system, by the kernel's names.
    pub rights: &'static [&'static str],
    /// What is kept in, by the kernel's names.
    pub scopes: &'static [&'static str],
}

/// What is used where the kernel has this version; nothing if that is too old.
#[must_use]
pub fn used(found: u32) -> Used {
    let abi = if found < MINIMUM_ABI { 0 } else { found.min(NEWEST_ABI) };
    Used { abi, rights: &RIGHTS[..count(abi)], scopes: &SCOPES[..scopes(abi).count_ones() as usize] }
}

/// How many rights over the file system a version knows.
fn count(abi: u32) -> usize {
    match abi {
        0 => 0,
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => RIGHTS.len(),
    }
}

/// All rights over the file system that a version knows.
fn known(abi: u32) -> u64 {
    (1 << count(abi)) - 1
}

/// What a version can keep in: abstract sockets and signals, from version 6 on.
fn scopes(abi: u32) -> u64 {
    if abi >= 6 { 0b11 } else { 0 }
}

impl Access {
    fn rights(self, abi: u32) -> u64 {
        let rights = match self {
            Access::Devices => READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE | IOCTL_DEV,
            Access::Read => EXECUTE | READ_FILE | READ_DIR,
            Access::Write => !(MAKE_CHAR | MAKE_BLOCK),
            Access::WriteExisting => READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE,
        };
        rights & known(abi)
    }
}

/// A set of rules, prepared for a kernel's version.
#[derive(Clone, Debug)]
pub struct Ruleset {
    abi: u32,
    rules: Vec<(CString, Access)>,
}

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

impl Ruleset {
    /// Rules for a kernel with a version; paths as the confined process will see them.
    #[must_use]
    pub fn new(abi: u32, rules: Vec<(CString, Access)>) -> Self {
        Ruleset { abi: abi.min(NEWEST_ABI), rules }
    }

    /// Puts the rules on this process. Needs no_new_privs. Allocates nothing.
    ///
    /// `program` is a file that may be executed wherever it lies: the one that comes next.
    ///
    /// # Errors
    ///
    /// The kernel's error number.
    pub fn restrict_self(&self, program: Option<RawFd>) -> Result<(), i32> {
        let attr = RulesetAttr {
            handled_access_fs: known(self.abi),
            handled_access_net: 0,
            scoped: scopes(self.abi),
        };
        // Before version 4 and 6 the structure had one and two members.
        let size = match self.abi {
            0..=3 => 8,
            4 | 5 => 16,
            _ => size_of::<RulesetAttr>(),
        };
        // SAFETY: the structure is live and at least as long as the size says.
        let ruleset =
            number(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size, 0) })?;
        for (path, access) in &self.rules {
            add_path(ruleset, path, access.rights(self.abi))?;
        }
        if let Some(program) = program {
            add_rule(ruleset, program, EXECUTE | READ_FILE)?;
        }
        // SAFETY: takes a descriptor and a number.
        number(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) })?;
        // SAFETY: the descriptor is this function's own.
        unsafe { libc::close(ruleset as libc::c_int) };
        Ok(())
    }
}

fn add_path(ruleset: libc::c_long, path: &CStr, allowed_access: u64) -> Result<(), i32> {
    // SAFETY: the path is a live string; the descriptor is this function's own.
    unsafe {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let parent = number(libc::c_long::from(libc::open(path.as_ptr(), flags)))? as RawFd;
        let added = add_rule(ruleset, parent, allowed_access);
        libc::close(parent);
        added
    }
}

fn add_rule(ruleset: libc::c_long, parent_fd: RawFd, allowed_access: u64) -> Result<(), i32> {
    const RULE_PATH_BENEATH: libc::c_int = 1;
    let rule = PathBeneathAttr { allowed_access, parent_fd };
    // SAFETY: the structure is live and packed as the kernel's is.
    number(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &raw const rule, 0)
    })
    .map(drop)
}

/// The result of a call, or its error number.
fn number(result: libc::c_long) -> Result<libc::c_long, i32> {
    if result < 0 {
        // SAFETY: the address of this thread's errno is always valid.
        Err(unsafe { *libc::__errno_location() })
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_is_not_asked_for_rights_it_does_not_know() {
        assert_eq!(known(1), (1 << 13) - 1);
        assert_eq!(Access::Devices.rights(2) & (TRUNCATE | IOCTL_DEV), 0);
        assert_ne!(Access::Devices.rights(7) & IOCTL_DEV, 0);
    }

    #[test]
    fn what_is_said_to_be_used_is_what_is_asked_for() {
        assert_eq!(used(1), Used { abi: 0, rights: &[], scopes: &[] });
        assert_eq!((used(2).rights.last(), used(5).scopes.len()), (Some(&"refer"), 0));
        let newest = used(99);
        assert_eq!(newest.abi, NEWEST_ABI);
        assert_eq!(newest.rights[MAKE_CHAR.trailing_zeros() as usize], "make_char");
        assert_eq!(newest.rights[IOCTL_DEV.trailing_zeros() as usize], "ioctl_dev");
        assert_eq!(newest.scopes, SCOPES);
    }

    #[test]
    fn nothing_may_make_device_files() {
        assert_eq!(Access::Write.rights(7) & (MAKE_CHAR | MAKE_BLOCK), 0);
    }

    #[test]
    fn rights_of_a_future_version_are_left_alone() {
        assert_eq!(Ruleset::new(99, vec![]).abi, NEWEST_ABI);
    }
}
