//! Mounts that are made ready before there is a namespace for them: a copy of a part of the host's
//! tree, with its flags and with other owners.
//!
//! They hang nowhere until a launch attaches them ([`Step::Attach`](crate::launch::Step::Attach)),
//! and are gone when their descriptor is closed. Making them needs root; whoever isn't binds by path.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::launch::MountFlags;
use crate::{check, process};

/// Copies a part of the mount tree: a file or folder that is open, without what is mounted below it.
///
/// # Errors
///
/// What the kernel said: EPERM for who isn't root.
pub fn copy_of(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // OPEN_TREE_CLONE and OPEN_TREE_CLOEXEC of `linux/mount.h`.
    let flags = 1 | libc::O_CLOEXEC | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a live string.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, place.as_raw_fd(), c"".as_ptr(), flags) })?;
    // SAFETY: the kernel just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Adds flags to a mount that was copied, and to all below it.
///
/// # Errors
///
/// What the kernel said.
pub fn restrict(mount: BorrowedFd<'_>, flags: MountFlags) -> io::Result<()> {
    set(mount, &MountAttr { attr_set: flags.for_attributes(), ..MountAttr::default() })
}

/// Shows the files of a mount that was copied under other owners, as a map says.
///
/// # Errors
///
/// EINVAL where the file system doesn't know how, or something else is mounted below it that doesn't.
pub fn show_as(mount: BorrowedFd<'_>, owners: &OwnerMap) -> io::Result<()> {
    // MOUNT_ATTR_IDMAP of `linux/mount.h`.
    const ID_MAPPED: u64 = 0x0010_0000;
    let userns_fd = owners.namespace.as_raw_fd() as u64;
    set(mount, &MountAttr { attr_set: ID_MAPPED, userns_fd, ..MountAttr::default() })
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn set(mount: BorrowedFd<'_>, attributes: &MountAttr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a live string, and the structure has the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// A user and a group of a file system, and who they are shown as.
#[derive(Debug)]
pub struct OwnerMap {
    namespace: OwnedFd,
}

impl OwnerMap {
    /// Shows one owner and one group of the file system as others; all other ids are shown as nobody.
    ///
    /// The kernel takes such a map in the form of a user namespace, so one is made: by a child that
    /// does nothing else and is ended here.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn new(user: (u32, u32), group: (u32, u32)) -> io::Result<Self> {
        let child = Sleeper::start()?;
        let file = |name: &str| format!("/proc/{}/{name}", child.pid);
        fs::write(file("uid_map"), format!("{} {} 1\n", user.0, user.1))?;
        fs::write(file("gid_map"), format!("{} {} 1\n", group.0, group.1))?;
        Ok(OwnerMap { namespace: fs::File::open(file("ns/user"))?.into() })
    }
}

/// A child in a new user namespace that waits to be ended. It shares our memory, so that making it copies
/// nothing, and does nothing there.
struct Sleeper {
    pid: libc::pid_t,
    _stack: Box<[u8]>,
}

/// Room for two system calls' frames, in bytes.
const STACK_BYTES: usize = 16 << 10;

impl Sleeper {
    fn start() -> io::Result<Self> {
        extern "C" fn sleep(_: *mut libc::c_void) -> libc::c_int {
            // SAFETY: system calls that take numbers; neither fails, so that errno, which is ours too,
            // isn't touched.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        // A handler of ours must not run in the child, where it would act on what is shared.
        let _blocked = process::SignalsBlocked::all()?;
        let mut stack = vec![0; STACK_BYTES].into_boxed_slice();
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the end of the stack is aligned to 16 bytes and within the allocation, which lives
        // until the child has ended; the child only runs `sleep`, which touches nothing of ours.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(STACK_BYTES);
            let top = top.sub(top.addr() % 16);
            libc::clone(sleep, top.cast(), flags, std::ptr::null_mut())
        };
        check(libc::c_long::from(pid)).map(|_| Sleeper { pid, _stack: stack })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the number is a child's that wasn't waited for; the status is live.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &raw mut status, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_of_the_tree_shows_its_owner_as_somebody_else_and_cannot_be_written() {
        if process::effective_user() != 0 {
            return; // the callers' own tests say by name what needs root
        }
        let folder = std::env::temp_dir().join(format!("cofferdam-mount-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("x"), "1").unwrap();
        let copy = copy_of(fs::File::open(&folder).unwrap().as_fd()).unwrap();
        restrict(copy.as_fd(), MountFlags::READ_ONLY).unwrap();
        let inside = |name: &str| format!("/proc/self/fd/{}/{name}", copy.as_raw_fd());
        assert_eq!(fs::metadata(inside("x")).unwrap().uid(), 0);
        match show_as(copy.as_fd(), &OwnerMap::new((0, 4242), (0, 4343)).unwrap()) {
            Ok(()) => {
                let found = fs::metadata(inside("x")).unwrap();
                assert_eq!((found.uid(), found.gid()), (4242, 4343));
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}"),
        }
        assert_eq!(fs::write(inside("y"), "2").unwrap_err().raw_os_error(), Some(libc::EROFS));
        drop(copy);
        fs::remove_dir_all(folder).unwrap();
    }
}
