//! A process that takes away from itself what it doesn't need, before it reads what a stranger sends.

use std::io;

use cofferdam_core::weaken::{self, Control};

use crate::landlock::{self, Ruleset};
use crate::seccomp::Filter;
use crate::{check, process};

/// What couldn't be taken away.
#[derive(Debug, thiserror::Error)]
#[error("could not {action}: {source}")]
pub struct JailError {
    /// A verb phrase.
    pub action: &'static str,
    /// What the kernel said.
    pub source: io::Error,
}

/// Confines this process for good: it opens as many descriptors as it may, becomes `user` if it is root, leaves no
/// core file and shows its memory to nobody, gains no privileges by whatever it executes, opens no file, and makes
/// no system call that `filter` doesn't have.
///
/// # Errors
///
/// [`JailError`]: the process must end then. `InvalidInput` if it has another thread, which would stay as it was.
pub fn enter(user: u32, filter: &Filter) -> Result<(), JailError> {
    let failed = |action| move |source| JailError { action, source };
    only_thread().map_err(failed("see that there is one thread"))?;
    raise_descriptors().map_err(failed("raise the number of descriptors"))?;
    lower_to_zero(libc::RLIMIT_CORE).map_err(failed("do without core files"))?;
    if process::effective_user() == 0 {
        become_user(user).map_err(failed("become an unprivileged user"))?;
    }
    process::become_undumpable().map_err(failed("hide the memory"))?;
    if !weaken::is_off(Control::NoNewPrivileges) {
        no_new_privileges().map_err(failed("set no_new_privs"))?;
    }
    let number = io::Error::from_raw_os_error;
    // An old kernel has none: the filter has no call that opens a file either.
    if let Ok(abi) = landlock::abi()
        && abi >= landlock::MINIMUM_ABI
        && !weaken::is_off(Control::Landlock)
    {
        let nothing = Ruleset::new(abi, vec![]);
        nothing.restrict_self(None).map_err(number).map_err(failed("apply Landlock"))?;
    }
    if !weaken::is_off(Control::Filter) {
        filter.install().map_err(number).map_err(failed("install the seccomp filter"))?;
    }
    Ok(())
}

fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// As many open descriptors as this process may have without asking anybody.
fn raise_descriptors() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live, and read after the kernel wrote it.
    unsafe {
        check(libc::c_long::from(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit)))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::c_long::from(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))).map(drop)
    }
}

fn lower_to_zero(resource: libc::__rlimit_resource_t) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live.
    check(libc::c_long::from(unsafe { libc::setrlimit(resource, &raw const limit) })).map(drop)
}

/// A user with a group of the same number and no other, and no capabilities: capabilities(7), "Effect of user ID
/// changes on capabilities". Root again is refused.
fn become_user(id: u32) -> io::Result<()> {
    if id == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: these take numbers, and an empty list.
    unsafe {
        check(libc::c_long::from(libc::setgroups(0, std::ptr::null())))?;
        check(libc::c_long::from(libc::setresgid(id, id, id)))?;
        check(libc::c_long::from(libc::setresuid(id, id, id)))?;
    }
    Ok(())
}

fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers.
    check(libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })).map(drop)
}
