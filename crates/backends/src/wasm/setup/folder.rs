//! The folder of what is prepared. What lies there is run as it is, so nobody but its user may write it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cofferdam_sys::{fd, process};
use serde::{Deserialize, Serialize};

use super::{SetupError, at};

/// Permissions of anybody but the owner to write.
const OTHERS_WRITE: u32 = 0o022;

/// The longest description, in bytes: names of some thousand modules.
const MOST_DESCRIPTION_BYTES: u64 = 4 << 20;

/// A folder that was checked when it was opened: its owner is who runs us, and nobody else can write it.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A Python template that is ready.
#[derive(Clone, Debug)]
pub struct Template {
    /// Its name: `python`, `python:science`.
    pub name: String,
    /// The prepared file, for `Open`.
    pub module: PathBuf,
    /// The folder for `/usr/local/lib`.
    pub library: PathBuf,
    /// The folder of Matplotlib's data.
    pub data: PathBuf,
    /// The modules that can be imported.
    pub importable: BTreeSet<String>,
    /// The modules that are imported already.
    pub preload: Vec<String>,
    /// The linear memory that it begins with, in bytes: less than that can't be the limit.
    pub memory_bytes: u64,
}

/// What is written about a template beside it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) fingerprint: String,
    /// The hash of the prepared file, when it was made.
    pub(super) module_sha256: String,
    pub(super) preload: Vec<String>,
    /// The hashes of the packages that were added.
    pub(super) packages: Vec<String>,
    pub(super) importable: BTreeSet<String>,
    pub(super) memory_bytes: u64,
}

impl Folder {
    /// Opens the folder, making it for this user alone if it isn't there.
    ///
    /// # Errors
    ///
    /// [`SetupError::Files`] if it can't be made, [`SetupError::Untrusted`] if others could write in it.
    pub fn open(path: &Path) -> Result<Folder, SetupError> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at("make", path))?;
        let found = fs::symlink_metadata(path).map_err(at("read", path))?;
        if !found.is_dir() || !is_ours(&found) {
            return Err(SetupError::Untrusted { path: path.to_owned() });
        }
        Ok(Folder { path: path.to_owned() })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it that only its user can have written, if it is there.
    pub(super) fn file(&self, name: &str) -> Result<Option<PathBuf>, SetupError> {
        let path = self.path.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() && is_ours(&found) => Ok(Some(path)),
            Ok(_) => Err(SetupError::Untrusted { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at("read", &path)(error)),
        }
    }

    /// What is written about each template. What can't be read is none.
    pub(super) fn descriptions(&self) -> Result<Vec<Description>, SetupError> {
        let mut found = vec![];
        for entry in fs::read_dir(&self.path).map_err(at("read", &self.path))? {
            let name = entry.map_err(at("read", &self.path))?.file_name();
            let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) else { continue };
            let Some(path) = self.file(name)? else { continue };
            found.extend(describe(&path));
        }
        Ok(found)
    }

    /// The template that a description is about, if all of it is there.
    pub(super) fn template(&self, description: Description) -> Result<Option<Template>, SetupError> {
        let stem = stem(&description.fingerprint);
        let Some(module) = self.file(&format!("{stem}.cwasm"))? else { return Ok(None) };
        let (library, data) = self.library(&description.fingerprint);
        if !library.is_dir() || !data.is_dir() {
            return Ok(None);
        }
        let Description { name, importable, preload, memory_bytes, .. } = description;
        Ok(Some(Template { name, module, library, data, importable, preload, memory_bytes }))
    }

    /// The folders of a template, for its library and Matplotlib's data.
    pub(super) fn library(&self, fingerprint: &str) -> (PathBuf, PathBuf) {
        let folder = self.path.join(format!("{}.files", stem(fingerprint)));
        (folder.join("lib"), folder.join("mpl-data"))
    }

    /// A folder of its own, for something that is being made.
    pub(super) fn making(&self) -> Result<Making, SetupError> {
        let random = fd::random_bytes::<8>().map_err(at("make a folder in", &self.path))?;
        let path = self.path.join(format!(".making-{:016x}", u64::from_le_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path).map_err(at("make", &path))?;
        Ok(Making { path })
    }
}

/// Something that is being made, which goes if it isn't finished.
#[derive(Debug)]
pub(super) struct Making {
    path: PathBuf,
}

impl Making {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file and puts it in its place, whole.
    pub(super) fn put(&self, bytes: &[u8], place: &Path) -> Result<(), SetupError> {
        let unfinished = self.path.join("unfinished");
        let write = || {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&unfinished, place)
        };
        write().map_err(at("write", place))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // what stays is no more than a used folder
    }
}

/// The name of a Python template's files.
pub(super) fn stem(fingerprint: &str) -> String {
    format!("python-{fingerprint}")
}

fn is_ours(found: &Metadata) -> bool {
    found.uid() == process::effective_user() && found.mode() & OTHERS_WRITE == 0
}

fn describe(path: &Path) -> Option<Description> {
    let mut text = vec![];
    fs::File::open(path).ok()?.take(MOST_DESCRIPTION_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_others_can_write_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wasm");
        Folder::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(Folder::open(&path), Err(SetupError::Untrusted { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Folder::open(&link), Err(SetupError::Untrusted { .. })));
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(&folder.path().join("wasm")).unwrap();
        let path = wasm.path().join("a.cwasm");
        assert!(wasm.file("a.cwasm").unwrap().is_none());
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(wasm.file("a.cwasm"), Err(SetupError::Untrusted { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(wasm.file("a.cwasm").unwrap(), Some(path));
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(folder.path()).unwrap();
        let making = wasm.making().unwrap();
        making.put(b"whole", &wasm.path().join("done")).unwrap();
        fs::write(making.path().join("half"), "x").unwrap();
        drop(making);
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["done"]);
    }
}
