//! Files below one folder, reached without following any link: for writing what somebody else named.
//!
//! Every path is relative to an open folder and resolved by the kernel within it (`openat2`), so a
//! link that somebody puts in the way meanwhile is an error and never a way out.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::check;

/// An open folder, and what is below it.
#[derive(Debug)]
pub struct Folder(File);

impl Folder {
    /// Opens a folder by its own path, whose last component is no link.
    ///
    /// # Errors
    ///
    /// What the kernel said: ENOTDIR or ELOOP where it is a link or a file.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let path = c_string(path.as_os_str().as_bytes())?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the path is a live string.
        let fd = check(libc::c_long::from(unsafe { libc::open(path.as_ptr(), flags) }))?;
        // SAFETY: the kernel just made it, and nobody else knows it.
        Ok(Folder(File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) })))
    }

    /// The folder's own file, to lock it or to ask about it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Makes a folder. One that is there already is as good.
    ///
    /// # Errors
    ///
    /// What the kernel said; ELOOP where a link is in the way.
    pub fn create_folder(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        // SAFETY: the descriptor is open and the name a live string.
        let made =
            check(libc::c_long::from(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o755) }));
        match made {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.open_at(path, libc::O_PATH | libc::O_DIRECTORY, 0).map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Makes a file that isn't there yet, to be written. Its mode is 0644 or 0755, less what the
    /// umask takes.
    ///
    /// # Errors
    ///
    /// What the kernel said; EEXIST where there is something of this name.
    pub fn create_file(&self, path: &str, executable: bool) -> io::Result<File> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        self.open_at(path, flags, if executable { 0o755 } else { 0o644 }).map(File::from)
    }

    /// Makes a file without a name, to be written: it is gone unless it gets one ([`Folder::name`]).
    /// Its mode is 0644, less what the umask takes.
    ///
    /// # Errors
    ///
    /// What the kernel said; EOPNOTSUPP or EISDIR where the file system has no such files.
    pub fn create_unnamed(&self) -> io::Result<File> {
        self.open_at(".", libc::O_WRONLY | libc::O_TMPFILE, 0o644).map(File::from)
    }

    /// Gives a file that was made without a name one in this folder itself.
    ///
    /// # Errors
    ///
    /// What the kernel said; EEXIST where there is something of this name.
    pub fn name(&self, file: &File, name: &str) -> io::Result<()> {
        let from = c_string(format!("/proc/self/fd/{}", file.as_raw_fd()).as_bytes())?;
        let name = c_string(name.as_bytes())?;
        // SAFETY: both strings are live and the descriptors are open.
        let named = unsafe {
            let folder = self.0.as_raw_fd();
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), folder, name.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        };
        check(libc::c_long::from(named)).map(drop)
    }

    /// Opens a regular file to be read. Doesn't wait for a FIFO's writer.
    ///
    /// # Errors
    ///
    /// What the kernel said; ELOOP where it is a link.
    pub fn open_file(&self, path: &str) -> io::Result<File> {
        let file = File::from(self.open_at(path, libc::O_RDONLY | libc::O_NONBLOCK, 0)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// What a symbolic link says.
    ///
    /// # Errors
    ///
    /// What the kernel said; EINVAL where it is no link.
    pub fn read_link(&self, path: &str) -> io::Result<Vec<u8>> {
        let (parent, name) = self.parent(path)?;
        let mut target = vec![0; libc::PATH_MAX as usize];
        // SAFETY: the buffer is live and of the stated size.
        let got = unsafe {
            libc::readlinkat(parent.as_raw_fd(), name.as_ptr(), target.as_mut_ptr().cast(), target.len())
        };
        target.truncate(check(got as libc::c_long)? as usize);
        Ok(target)
    }

    /// Makes a symbolic link that isn't there yet.
    ///
    /// # Errors
    ///
    /// What the kernel said; EEXIST where there is something of this name.
    pub fn create_link(&self, path: &str, target: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let target = c_string(target.as_bytes())?;
        // SAFETY: both strings are live and the descriptor is open.
        let made = unsafe { libc::symlinkat(target.as_ptr(), parent.as_raw_fd(), name.as_ptr()) };
        check(libc::c_long::from(made)).map(drop)
    }

    /// Removes a file or a link.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn remove_file(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        // SAFETY: the descriptor is open and the name a live string.
        check(libc::c_long::from(unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), 0) })).map(drop)
    }

    /// Gives a file another name, in the place of whatever had it. Both lie in this folder itself.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (c_string(from.as_bytes())?, c_string(to.as_bytes())?);
        let fd = self.0.as_raw_fd();
        // SAFETY: both strings are live and the descriptor is open.
        check(libc::c_long::from(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) })).map(drop)
    }

    /// The folder that a path lies in, opened, and its last component.
    fn parent(&self, path: &str) -> io::Result<(OwnedFd, CString)> {
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        Ok((self.open_at(above, libc::O_PATH | libc::O_DIRECTORY, 0)?, c_string(name.as_bytes())?))
    }

    fn open_at(&self, path: &str, flags: libc::c_int, mode: u64) -> io::Result<OwnedFd> {
        open_beneath(self.0.as_fd(), &c_string(path.as_bytes())?, flags, mode)
    }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// `openat2` that stays within a folder and follows no link, not the magic ones of `/proc` either.
fn open_beneath(folder: BorrowedFd<'_>, path: &CStr, flags: libc::c_int, mode: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain data for which zeros are valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    how.mode = mode;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    let size = size_of::<libc::open_how>();
    loop {
        // SAFETY: the string and the structure are live, and the size is the structure's.
        let opened = unsafe {
            libc::syscall(libc::SYS_openat2, folder.as_raw_fd(), path.as_ptr(), &raw const how, size)
        };
        match check(opened) {
            // SAFETY: the kernel just made it, and nobody else knows it.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            // EAGAIN: something was renamed meanwhile, and the kernel can't be sure that it stayed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_is_named_is_made_below_the_folder() {
        let top = tempfile::tempdir().unwrap();
        let folder = Folder::open(top.path()).unwrap();
        folder.create_folder("a").unwrap();
        folder.create_folder("a").unwrap();
        folder.create_file("a/x", true).unwrap().write_all(b"hello").unwrap();
        folder.create_link("a/l", "x").unwrap();
        assert_eq!(folder.read_link("a/l").unwrap(), b"x");
        let mode = std::fs::metadata(top.path().join("a/x")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7700, 0o700);
        let mut text = String::new();
        folder.open_file("a/x").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        folder.remove_file("a/x").unwrap();
        assert!(!top.path().join("a/x").exists());
    }

    #[test]
    fn a_file_without_a_name_is_seen_by_nobody_until_it_gets_one() {
        let top = tempfile::tempdir().unwrap();
        let folder = Folder::open(top.path()).unwrap();
        let Ok(mut file) = folder.create_unnamed() else { return }; // not every file system has those
        file.write_all(b"hello").unwrap();
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
        folder.name(&file, "x").unwrap();
        assert_eq!(std::fs::read(top.path().join("x")).unwrap(), b"hello");
        assert_eq!(folder.name(&file, "x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn no_link_leads_out_and_nothing_is_written_over() {
        let (top, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder::open(top.path()).unwrap();
        symlink(outside.path(), top.path().join("out")).unwrap();
        symlink(outside.path().join("new"), top.path().join("file")).unwrap();
        assert!(folder.create_file("out/x", false).is_err());
        assert!(folder.create_folder("out/d").is_err());
        assert!(folder.create_folder("out").is_err());
        assert!(folder.create_link("out/l", "x").is_err());
        assert!(folder.create_file("file", false).is_err());
        assert!(folder.create_file("../x", false).is_err());
        assert!(folder.open_file("/etc/passwd").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        folder.create_folder("in").unwrap();
        assert!(folder.create_file("in/x", false).is_ok(), "the same without a link gets through");
        assert!(folder.create_file("in/x", false).is_err());
    }
}
