//! What is put over a workspace before the program's own layer, or in place of it.
//!
//! It is written through a folder that the sandbox handed over, by this process acting as the
//! program's user: the sandbox's file system knows no other.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam_core::backend::BackendError;
use cofferdam_sys::launch::Ids;
use cofferdam_sys::process;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::survey::{Foreign, Kind, Survey, open_beneath};

/// Fills the folder that goes over a workspace, or the working directory itself if there are no
/// layers. `path` is the workspace's, for messages.
///
/// # Errors
///
/// [`BackendError::Files`] names what could not be copied.
pub(in super::super) fn fill(
    target: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    path: &Path,
    layered: bool,
    survey: &Survey,
    ids: &Ids,
) -> Result<(), BackendError> {
    if survey.foreign.is_empty() && (survey.hidden.is_empty() || !layered) {
        return Ok(());
    }
    let _acting = ids
        .root_outside
        .map(|_| process::ActingAs::user_and_group(ids.outside, ids.group_outside))
        .transpose()
        .map_err(BackendError::host("act as the sandbox's user"))?;
    let mut cover = Cover { target, source, made: BTreeMap::new() };
    if layered {
        for hidden in &survey.hidden {
            cover.white_out(hidden).map_err(|error| failed(path, hidden, &error))?;
        }
    }
    for entry in &survey.foreign {
        cover.copy(entry).map_err(|error| failed(path, &entry.path, &error))?;
    }
    cover.finish().map_err(|error| failed(path, b"", &error))
}

fn failed(workspace: &Path, path: &[u8], error: &io::Error) -> BackendError {
    let fix = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "copies count as the program's own disk: allow more --disk (and --memory), or --files"
        }
        _ => "make it readable, or hide it with `hide` in a policy",
    };
    BackendError::Files {
        path: workspace.join(OsStr::from_bytes(path)),
        why: format!("it could not be copied: {error}"),
        fix: fix.to_owned(),
    }
}

struct Cover<'a> {
    target: BorrowedFd<'a>,
    source: BorrowedFd<'a>,
    /// Folders that are there already, with the permissions that they get at the end.
    made: BTreeMap<Vec<u8>, Mode>,
}

impl Cover<'_> {
    /// Makes something invisible below: a character device 0:0, `Documentation/filesystems/overlayfs`.
    fn white_out(&mut self, path: &[u8]) -> io::Result<()> {
        self.folders_above(path)?;
        Ok(rustix::fs::mknodat(self.target, path, FileType::CharacterDevice, Mode::empty(), 0)?)
    }

    fn copy(&mut self, entry: &Foreign) -> io::Result<()> {
        let path = entry.path.as_slice();
        let result = match entry.kind {
            Kind::Folder => self.folder(path),
            Kind::File => self.folders_above(path).and_then(|()| self.file(path)),
            Kind::Link => self.folders_above(path).and_then(|()| self.link(path)),
        };
        match result {
            // Removed while we looked: then it isn't there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn folders_above(&mut self, path: &[u8]) -> io::Result<()> {
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(end) => self.folder(&path[..end]),
            None => Ok(()),
        }
    }

    /// Makes a folder like the workspace's, and those above it, once.
    fn folder(&mut self, path: &[u8]) -> io::Result<()> {
        if self.made.contains_key(path) {
            return Ok(());
        }
        self.folders_above(path)?;
        let folder = open_beneath(self.source, path, OFlags::PATH | OFlags::DIRECTORY)?;
        let mode = Mode::from_raw_mode(rustix::fs::fstat(folder)?.st_mode & 0o777);
        rustix::fs::mkdirat(self.target, path, Mode::RWXU)?;
        self.made.insert(path.to_vec(), mode);
        Ok(())
    }

    /// Gives folders the permissions that they have in the workspace, once all is in them.
    fn finish(&self) -> io::Result<()> {
        for (path, mode) in self.made.iter().rev() {
            rustix::fs::chmodat(self.target, path, *mode, AtFlags::empty())?;
        }
        Ok(())
    }

    fn file(&self, path: &[u8]) -> io::Result<()> {
        // Without waiting: what was a file may be a FIFO by now.
        let source = open_beneath(self.source, path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let found = rustix::fs::fstat(&source)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(found.st_mode & 0o777);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let target = rustix::fs::openat(self.target, path, flags, mode)?;
        rustix::fs::fchmod(&target, mode)?;
        let (mut source, mut target) = (File::from(source), File::from(target));
        io::copy(&mut source, &mut target)?; // by copy_file_range, which shares blocks where it can
        let time = |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = rustix::fs::Timestamps {
            last_access: time(found.st_atime, found.st_atime_nsec as _),
            last_modification: time(found.st_mtime, found.st_mtime_nsec as _),
        };
        Ok(rustix::fs::futimens(&target, &times)?)
    }

    fn link(&self, path: &[u8]) -> io::Result<()> {
        let link = open_beneath(self.source, path, OFlags::PATH)?;
        let says = rustix::fs::readlinkat(link, "", vec![])?;
        Ok(rustix::fs::symlinkat(says, self.target, path)?)
    }
}
