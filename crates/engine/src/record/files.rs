//! The log's folder and its three files: opened so that nobody else's file is taken for ours.
//!
//! `STATE/audit` is the owner's alone (0700, files 0600). A link, a file with a second name, a
//! folder that others can write to and a file of another user are refused: whoever could place one
//! could decide what the log says. Nothing here guards against the owner, or against root.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_core::audit::AuditError;

use super::head::HEAD_BYTES;

const HEAD: &str = "head";
const LOCK: &str = "lock";
const LOG: &str = "log.ndjson";

/// Where the log's files are.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn of(state: &Path) -> Folder {
        Folder(state.join("audit"))
    }

    /// The folder, made if need be and looked at.
    pub(super) fn prepare(state: &Path) -> Result<Folder, AuditError> {
        let folder = Folder::of(state);
        let path = folder.0.as_path();
        match DirBuilder::new().mode(0o700).create(path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create the folder of", path, source));
            }
            Ok(()) | Err(_) => {}
        }
        let look = || {
            let owner = state.metadata()?.uid();
            let found = path.symlink_metadata()?;
            if !found.is_dir() {
                return Err(refused("it is not a folder"));
            }
            only_ours(&found, owner)
        };
        look().map_err(|source| failed("use the folder of", path, source))?;
        Ok(folder)
    }

    pub(super) fn head(&self) -> PathBuf {
        self.0.join(HEAD)
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.0.join(LOCK)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// Opens one file for reading; none if it isn't there.
    pub(super) fn read(path: &Path) -> Result<Option<File>, AuditError> {
        match open(path, OpenOptions::new().read(true)) {
            Ok(file) => Ok(Some(file)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed("open", path, source)),
        }
    }

    /// Opens one file for reading and writing, and creates it if it isn't there.
    pub(super) fn write(&self, path: &Path, appends: bool) -> Result<File, AuditError> {
        self.open_or_create(path, appends).map_err(|source| failed("open", path, source))
    }

    fn open_or_create(&self, path: &Path, appends: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!appends).append(appends).mode(0o600);
        loop {
            match open(path, &options) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let found = file.metadata()?;
                    only_ours(&found, self.0.metadata()?.uid())?;
                    if found.nlink() != 1 {
                        return Err(refused("it has a second name"));
                    }
                    return Ok(file);
                }
            }
            match options.clone().create_new(true).open(path) {
                // Another process was faster: its file is opened like any that was there before.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }
}

/// Opens a file that exists, if it is a regular one.
///
/// The name is looked at before, so that opening neither follows a link nor waits for a pipe, and
/// after, so that what was opened is what was looked at.
fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    if !path.symlink_metadata()?.is_file() {
        return Err(refused("it is not a regular file"));
    }
    let file = options.open(path)?;
    let (named, opened) = (path.symlink_metadata()?, file.metadata()?);
    if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) {
        return Err(refused("it was replaced while it was opened"));
    }
    Ok(file)
}

/// Refuses what another user owns or can write to. Root's is as good as the owner's.
fn only_ours(found: &Metadata, owner: u32) -> io::Result<()> {
    if found.uid() != owner && found.uid() != 0 {
        return Err(refused("it belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(refused("other users can write to it"));
    }
    Ok(())
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The error for one file.
pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> AuditError {
    AuditError::Io { action, path: path.display().to_string(), source }
}

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a>(&'a File);

impl<'a> Held<'a> {
    /// Waits for the lock. A signal that is handled meanwhile doesn't end the wait.
    pub(super) fn take(lock: &'a File, alone: bool) -> io::Result<Held<'a>> {
        loop {
            match if alone { lock.lock() } else { lock.lock_shared() } {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|()| Held(lock)),
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // It can only fail for a file that can't be locked, which `take` has refused.
        let _ = self.0.unlock();
    }
}

/// What a writer does to the two files. A trait so that a test can make each of these fail.
pub(super) trait Storage {
    /// The log, for reading.
    fn log(&self) -> &File;
    /// Puts bytes at the log's end: all of them, or an error after some of them.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Shortens the log.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
    /// The head file, or the first [`HEAD_BYTES`] and one of it.
    fn read_head(&self) -> io::Result<Vec<u8>>;
    /// Replaces the head file.
    fn write_head(&mut self, head: &[u8; HEAD_BYTES]) -> io::Result<()>;
}

/// The two files.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) log: File,
    pub(super) head: File,
}

impl Storage for Disk {
    fn log(&self) -> &File {
        &self.log
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.log.write_all(bytes)
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.log.set_len(bytes)
    }

    fn read_head(&self) -> io::Result<Vec<u8>> {
        read_head(&self.head)
    }

    fn write_head(&mut self, head: &[u8; HEAD_BYTES]) -> io::Result<()> {
        self.head.write_all_at(head, 0)
    }
}

/// Reads a head file, and one byte more than it should have, so that a longer one shows.
pub(super) fn read_head(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = [0; HEAD_BYTES + 1];
    loop {
        match file.read_at(&mut bytes, 0) {
            // A regular file, which is all that is opened here, gives less than was asked for at its end alone.
            Ok(read) => return Ok(bytes[..read].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn refusal(prepare: impl Fn(&Path)) -> String {
        let state = tempfile::tempdir().unwrap();
        prepare(state.path());
        let opened =
            Folder::prepare(state.path()).and_then(|folder| folder.write(&folder.log(), true).map(|_| ()));
        match opened {
            Err(AuditError::Io { path, source, .. }) => {
                assert!(path.starts_with(&state.path().display().to_string()), "{path}");
                source.to_string()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_somebody_else_could_have_placed_is_refused() {
        let folder = |state: &Path| {
            DirBuilder::new().mode(0o700).create(state.join("audit")).unwrap();
            state.join("audit/log.ndjson")
        };
        assert_eq!(refusal(|state| symlink("/tmp", state.join("audit")).unwrap()), "it is not a folder");
        assert_eq!(refusal(|state| fs::write(state.join("audit"), "").unwrap()), "it is not a folder");
        assert_eq!(
            refusal(|state| {
                folder(state);
                fs::set_permissions(state.join("audit"), fs::Permissions::from_mode(0o770)).unwrap();
            }),
            "other users can write to it"
        );
        assert_eq!(refusal(|state| symlink("/nowhere", folder(state)).unwrap()), "it is not a regular file");
        assert_eq!(refusal(|state| fs::create_dir(folder(state)).unwrap()), "it is not a regular file");
        assert_eq!(
            refusal(|state| {
                fs::write(folder(state), "").unwrap();
                fs::hard_link(state.join("audit/log.ndjson"), state.join("second")).unwrap();
            }),
            "it has a second name"
        );
        assert_eq!(
            refusal(|state| {
                let log = folder(state);
                fs::write(&log, "").unwrap();
                fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
            }),
            "other users can write to it"
        );
    }

    #[test]
    fn the_folder_and_its_files_are_the_owners_alone() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::prepare(state.path()).unwrap();
        folder.write(&folder.log(), true).unwrap();
        let mode = |path: PathBuf| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(state.path().join("audit")), 0o700);
        assert_eq!(mode(folder.log()), 0o600);
    }
}
