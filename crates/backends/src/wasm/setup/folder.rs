//! The folder of what is prepared. What lies there is run as it is, so nobody but its user may write it.
//!
//! ```text
//! code-FINGERPRINT.json      what is written about the code; and it is in use as long as somebody holds a lock
//!                 .cwasm     Python's code, for every template
//!                 .start.cwasm  the image that it came with
//!                 .files/    its library, and Matplotlib's data
//! python-FINGERPRINT.json    what is written about a template, with a lock like that
//!                   .cwasm   its image
//!                   .files/  a library with packages in it, if it has any
//! module-HASH-ENGINE.cwasm   a module of somebody's that was compiled
//! .making-…                  what isn't finished
//! ```
//!
//! What is described is whole: descriptions are written last and removed first. A template is in use while the
//! process that found it lives, by a shared lock on its description, and then nobody removes it. Whoever makes
//! templates has a lock on the folder, one at a time, so whatever else is unfinished was left by a kill.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_sys::{fd, process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::digest::sha256;
use super::{SetupError, at};

/// Permissions of anybody but the owner to write.
const OTHERS_WRITE: u32 = 0o022;

/// The longest description, in bytes: names of some thousand modules.
const MOST_DESCRIPTION_BYTES: u64 = 4 << 20;

/// What is unfinished begins with this.
const MAKING: &str = ".making-";

/// The same, of modules, which many make at once.
const MAKING_MODULE: &str = ".making-module-";

/// After so long, nobody is still writing a module.
const LONG: Duration = Duration::from_secs(3600);

/// How much of compiled modules is kept, in bytes. Those that weren't run for longest go first.
const MODULES_BYTES: u64 = 1 << 30;

/// A folder that was checked when it was opened: its owner is who runs us, and nobody else can write it.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A Python template that is ready. It isn't removed as long as this is there.
#[derive(Clone, Debug)]
pub struct Template {
    /// Its name: `python`, `python:science`.
    pub name: String,
    /// The prepared file of its code, for `Open`.
    pub module: PathBuf,
    /// The prepared file of its image.
    pub image: PathBuf,
    /// The folder for `/usr/local/lib`.
    pub library: PathBuf,
    /// The folder of Matplotlib's data.
    pub data: PathBuf,
    /// The modules that can be imported.
    pub importable: BTreeSet<String>,
    /// The modules that it was to import.
    pub preload: Vec<String>,
    /// All that are imported already, by their whole names: those, and what they import themselves.
    pub loaded: BTreeSet<String>,
    /// The linear memory that it begins with, in bytes: less than that can't be the limit.
    pub memory_bytes: u64,
    #[expect(dead_code, reason = "it is kept to be dropped")]
    pub(in crate::wasm) held: Vec<Held>,
}

/// Something that is described and stays as long as this does.
#[derive(Clone, Debug)]
pub(in crate::wasm) struct Held {
    _lock: Arc<File>,
}

/// What is written about a template beside it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) fingerprint: String,
    pub(super) image: Sum,
    pub(super) preload: Vec<String>,
    /// The packages that were asked for, as they were named.
    pub(super) asked: Vec<String>,
    /// The hashes of the packages that were added.
    pub(super) packages: Vec<String>,
    pub(super) importable: BTreeSet<String>,
    /// The modules that it had imported.
    pub(super) loaded: BTreeSet<String>,
    pub(super) memory_bytes: u64,
}

/// What any version writes about a template.
#[derive(Debug, Deserialize)]
pub(super) struct Outline {
    pub(super) name: String,
    #[serde(default)]
    pub(super) preload: Vec<String>,
    #[serde(default)]
    pub(super) asked: Vec<String>,
}

/// What is written about Python's code.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CodeDescription {
    pub(super) fingerprint: String,
    pub(super) code: Sum,
    pub(super) start: Sum,
}

/// A prepared file, as it was when it was made.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// Python's code that is there.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) code: PathBuf,
    pub(super) start: PathBuf,
    pub(super) library: PathBuf,
    pub(super) data: PathBuf,
    held: Held,
}

/// A description that was read, and holds what it is about.
pub(super) struct Described<T> {
    pub(super) says: T,
    made: SystemTime,
    held: Held,
}

impl Sum {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Sum { bytes: bytes.len() as u64, sha256: sha256(bytes) }
    }
}

impl Folder {
    /// Opens the folder, making it for this user alone if it isn't there.
    ///
    /// # Errors
    ///
    /// [`SetupError::Files`] if it can't be made, [`SetupError::Untrusted`] if others could write in it.
    pub fn open(path: &Path) -> Result<Folder, SetupError> {
        let found = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at("make", path))?;
                fs::symlink_metadata(path)
            }
            found => found, // one that can't be seen can't be made either
        };
        let found = found.map_err(at("read", path))?;
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
        let found = self.ours(name)?.filter(|(_, found)| found.is_file());
        Ok(found.map(|(path, _)| path))
    }

    /// The same of a prepared file that was described. One of another length was cut short, or is another.
    fn prepared(&self, name: &str, sum: &Sum) -> Result<Option<PathBuf>, SetupError> {
        let found = self.ours(name)?.filter(|(_, found)| found.is_file() && found.len() == sum.bytes);
        Ok(found.map(|(path, _)| path))
    }

    fn folder(&self, name: &str) -> Result<Option<PathBuf>, SetupError> {
        let found = self.ours(name)?.filter(|(_, found)| found.is_dir());
        Ok(found.map(|(path, _)| path))
    }

    fn ours(&self, name: &str) -> Result<Option<(PathBuf, Metadata)>, SetupError> {
        let path = self.path.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if (found.is_file() || found.is_dir()) && is_ours(&found) => Ok(Some((path, found))),
            Ok(_) => Err(SetupError::Untrusted { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at("read", &path)(error)),
        }
    }

    /// The names in it.
    fn names(&self) -> Result<Vec<String>, SetupError> {
        let read = || {
            let entries = fs::read_dir(&self.path)?;
            let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
            names.filter_map(Result::transpose).collect::<io::Result<Vec<_>>>()
        };
        read().map_err(at("read", &self.path))
    }

    /// What is written about each template, that of the latest first. What another version wrote, and can't be
    /// understood, is none.
    pub(super) fn descriptions(&self) -> Result<Vec<Described<Description>>, SetupError> {
        let mut found = vec![];
        for name in self.names()? {
            if name.starts_with(PYTHON) && name.ends_with(".json") {
                found.extend(self.description::<Description>(&name)?);
            }
        }
        found.sort_by_key(|described| std::cmp::Reverse(described.made));
        Ok(found)
    }

    /// What is written about each template, by whatever version, and where its image would be; that of the latest
    /// first.
    pub(super) fn outlines(&self) -> Result<Vec<(Outline, PathBuf, SystemTime)>, SetupError> {
        let mut found = vec![];
        for name in self.names()? {
            let Some(stem) = name.strip_suffix(".json").filter(|stem| stem.starts_with(PYTHON)) else {
                continue;
            };
            if let Some(Described { says, made, .. }) = self.description::<Outline>(&name)? {
                found.push((says, self.path.join(format!("{stem}.cwasm")), made));
            }
        }
        found.sort_by_key(|(_, _, made)| std::cmp::Reverse(*made));
        Ok(found)
    }

    fn description<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Described<T>>, SetupError> {
        let Some(path) = self.file(name)? else { return Ok(None) };
        let described = describe(&path).map_err(at("read", &path))?;
        Ok(described.and_then(|Described { says, made, held }| {
            Some(Described { says: serde_json::from_slice(&says).ok()?, made, held })
        }))
    }

    /// The template that a description is about, if all of it is there.
    pub(super) fn template(
        &self,
        described: Described<Description>,
        code: &Code,
    ) -> Result<Option<Template>, SetupError> {
        let Described { says: description, held, .. } = described;
        let stem = python_stem(&description.fingerprint);
        let Some(image) = self.prepared(&format!("{stem}.cwasm"), &description.image)? else {
            return Ok(None);
        };
        let library = match description.packages.is_empty() {
            true => Some(code.library.clone()),
            false => self.folder(&format!("{stem}.files"))?,
        };
        let Some(library) = library else { return Ok(None) };
        let (module, data) = (code.code.clone(), code.data.clone());
        let held = vec![held, code.held.clone()];
        let Description { name, importable, preload, loaded, memory_bytes, .. } = description;
        Ok(Some(Template {
            name,
            module,
            image,
            library,
            data,
            importable,
            preload,
            loaded,
            memory_bytes,
            held,
        }))
    }

    /// Python's code with a fingerprint, if all of it is there.
    pub(super) fn code(&self, fingerprint: &str) -> Result<Option<Code>, SetupError> {
        let stem = code_stem(fingerprint);
        let described = self.description::<CodeDescription>(&format!("{stem}.json"))?;
        let Some(Described { says, held, .. }) = described else { return Ok(None) };
        let code = self.prepared(&format!("{stem}.cwasm"), &says.code)?;
        let start = self.prepared(&format!("{stem}.start.cwasm"), &says.start)?;
        let (Some(code), Some(start), Some(files)) = (code, start, self.folder(&format!("{stem}.files"))?)
        else {
            return Ok(None);
        };
        let (library, data) = (files.join("lib"), files.join("mpl-data"));
        Ok(Some(Code { code, start, library, data, held }))
    }

    /// The files of Python's code with the hashes that they had when they were made.
    pub(super) fn sums(&self, fingerprint: &str) -> Result<Vec<(PathBuf, String)>, SetupError> {
        let stem = code_stem(fingerprint);
        let described = self.description::<CodeDescription>(&format!("{stem}.json"))?;
        let Some(Described { says: CodeDescription { code, start, .. }, .. }) = described else {
            return Ok(vec![]);
        };
        let place = |ending: &str| self.path.join(format!("{stem}{ending}"));
        Ok(vec![(place(".cwasm"), code.sha256), (place(".start.cwasm"), start.sha256)])
    }

    /// Waits until nobody else makes templates here. `waiting` is called if somebody does.
    pub(super) fn alone(&self, waiting: impl FnOnce()) -> Result<Alone<'_>, SetupError> {
        let lock = || {
            let lock = File::open(&self.path)?;
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    lock.lock()?;
                }
                Err(TryLockError::Error(error)) => return Err(error),
                Ok(()) => {}
            }
            Ok(lock)
        };
        let lock = lock().map_err(at("lock", &self.path))?;
        self.show().map_err(at("show", &self.path))?;
        Ok(Alone { folder: self, _lock: lock })
    }

    /// Puts a module in its place, whole, and makes room if there are too many. Whoever has run one lately keeps
    /// it.
    pub(super) fn put_module(&self, bytes: &[u8], name: &str) -> Result<PathBuf, SetupError> {
        self.show().map_err(at("show", &self.path))?;
        let unfinished =
            self.path.join(format!("{MAKING_MODULE}{}", random().map_err(at("name", &self.path))?));
        let place = self.path.join(name);
        let written = write_new(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &place));
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished); // it may not be there
            return Err(at("write", &place)(error));
        }
        self.forget_modules(name)?;
        Ok(place)
    }

    /// A module that was put there.
    pub(super) fn module(&self, name: &str) -> Result<Option<PathBuf>, SetupError> {
        let found = self.file(name)?;
        if let Some(file) = found.as_ref().and_then(|path| File::open(path).ok()) {
            let _ = file.set_modified(SystemTime::now()); // it is what is thrown out late
        }
        Ok(found)
    }

    /// Removes the modules that weren't run for longest, until there is room. What a worker has open stays with
    /// it.
    fn forget_modules(&self, but: &str) -> Result<(), SetupError> {
        let mut modules = vec![];
        for name in self.names()?.into_iter().filter(|name| name.starts_with(MODULE) && name != but) {
            let path = self.path.join(name);
            if let Ok(found) = fs::symlink_metadata(&path) {
                modules.push((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len(), path));
            }
        }
        modules.sort();
        let mut bytes: u64 = modules.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, its, path) in modules {
            if bytes <= MODULES_BYTES {
                break;
            }
            let _ = fs::remove_file(&path); // another may have done so
            bytes -= its;
        }
        Ok(())
    }

    /// Lets workers of root's read what is in the folder: where a file system can't be shown under other owners,
    /// theirs is a user of no rights. A folder above keeps everybody else out.
    fn show(&self) -> io::Result<()> {
        if process::effective_user() != 0 {
            return Ok(()); // they are this very user
        }
        let found = fs::symlink_metadata(&self.path)?;
        if found.mode() & 0o055 != 0o055 {
            fs::set_permissions(&self.path, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

/// The folder, for whoever alone makes templates in it.
pub(super) struct Alone<'a> {
    folder: &'a Folder,
    _lock: File,
}

impl Alone<'_> {
    /// A folder of its own, for something that is being made.
    pub(super) fn making(&self) -> Result<Making, SetupError> {
        let folder = &self.folder.path;
        let path = folder.join(format!("{MAKING}{}", random().map_err(at("make a folder in", folder))?));
        DirBuilder::new().mode(0o700).create(&path).map_err(at("make", &path))?;
        Ok(Making { path })
    }

    /// Removes what nobody can use: what a kill has left, and what is described as something that isn't kept,
    /// unless it is in use.
    pub(super) fn sweep(&self, keep: &BTreeSet<String>, engine: &str) -> Result<(), SetupError> {
        let mut stems = BTreeSet::new();
        for name in self.folder.names()? {
            let path = self.folder.path.join(&name);
            let old_module = name.starts_with(MODULE) && !name.ends_with(&format!("-{engine}.cwasm"));
            let left = if name.starts_with(MAKING_MODULE) { is_old(&path) } else { name.starts_with(MAKING) };
            if left || old_module {
                remove(&path)?;
            } else if name.starts_with(PYTHON) || name.starts_with(CODE) {
                stems.insert(name.split('.').next().unwrap_or_default().to_owned());
            }
        }
        // Templates before their code, which they hold.
        for stem in stems.iter().rev().filter(|stem| !keep.contains(*stem)) {
            self.remove(stem)?;
        }
        Ok(())
    }

    /// Removes everything with a stem, unless it is in use; says whether it did.
    pub(super) fn remove(&self, stem: &str) -> Result<bool, SetupError> {
        let place = |ending: &str| self.folder.path.join(format!("{stem}{ending}"));
        let description = place(".json");
        if let Ok(file) = File::open(&description) {
            if file.try_lock().is_err() {
                return Ok(false);
            }
            remove(&description)?; // while it is locked: who finds it then finds it gone
        }
        for ending in [".cwasm", ".start.cwasm", ".files"] {
            remove(&place(ending))?;
        }
        Ok(true)
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
        let written = write_new(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, place));
        written.map_err(at("write", place))
    }

    /// Puts a folder in its place instead of what is there, readable for all and writable for nobody else.
    pub(super) fn put_folder(&self, made: &Path, place: &Path) -> Result<(), SetupError> {
        remove(place)?;
        show_all(made).and_then(|()| fs::rename(made, place)).map_err(at("write", place))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // the next to make something sweeps it
    }
}

const CODE: &str = "code-";
const PYTHON: &str = "python-";
const MODULE: &str = "module-";

/// The name of a Python template's files.
pub(super) fn python_stem(fingerprint: &str) -> String {
    format!("{PYTHON}{fingerprint}")
}

/// The name of the files of Python's code.
pub(super) fn code_stem(fingerprint: &str) -> String {
    format!("{CODE}{fingerprint}")
}

/// A module's file.
pub(super) fn module_name(fingerprint: &str) -> String {
    format!("{MODULE}{fingerprint}.cwasm")
}

fn is_ours(found: &Metadata) -> bool {
    found.uid() == process::effective_user() && found.mode() & OTHERS_WRITE == 0
}

/// What a description says, which holds what it is about from now on. None if it is just being removed.
fn describe(path: &Path) -> io::Result<Option<Described<Vec<u8>>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return Ok(None);
    }
    let found = file.metadata()?;
    if found.nlink() == 0 {
        return Ok(None);
    }
    let mut says = vec![];
    (&file).take(MOST_DESCRIPTION_BYTES).read_to_end(&mut says)?;
    Ok(Some(Described { says, made: found.modified()?, held: Held { _lock: Arc::new(file) } }))
}

fn is_old(path: &Path) -> bool {
    let age = fs::symlink_metadata(path).and_then(|found| Ok(found.modified()?.elapsed()));
    age.is_ok_and(|age| age.is_ok_and(|age| age > LONG))
}

/// Removes a file or folder, if it is there.
fn remove(path: &Path) -> Result<(), SetupError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Writes a file that isn't there yet, to the disk. Whoever may see its folder may read it.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))?; // whatever the umask is
    file.sync_data()
}

/// Lets everybody read what is in a folder of ours and nobody else write it, whatever the umask was.
fn show_all(path: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_symlink() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(if kind.is_dir() { 0o755 } else { 0o644 }))?;
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            show_all(&entry?.path())?;
        }
    }
    Ok(())
}

fn random() -> io::Result<String> {
    Ok(format!("{:016x}", u64::from_le_bytes(fd::random_bytes::<8>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn keep(stems: &[&str]) -> BTreeSet<String> {
        stems.iter().map(|&stem| stem.to_owned()).collect()
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wasm");
        Folder::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(Folder::open(&path), Err(SetupError::Untrusted { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
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
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(wasm.file("a.cwasm"), Err(SetupError::Untrusted { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(wasm.file("a.cwasm").unwrap(), Some(path));
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(folder.path()).unwrap();
        let alone = wasm.alone(|| unreachable!("nobody else is here")).unwrap();
        let making = alone.making().unwrap();
        making.put(b"whole", &wasm.path().join("done")).unwrap();
        fs::write(making.path().join("half"), "x").unwrap();
        drop(making);
        assert_eq!(names(folder.path()), ["done"]);
    }

    #[test]
    fn what_a_kill_left_is_swept_and_what_is_being_made_or_used_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(folder.path()).unwrap();
        fs::create_dir(folder.path().join(".making-0123")).unwrap();
        for name in
            [".making-module-1", "code-a.cwasm", "code-b.cwasm", "module-1-old.cwasm", "module-1-new.cwasm"]
        {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        for name in [
            "python-kept.json",
            "python-used.json",
            "python-used.cwasm",
            "python-old.json",
            "python-old.cwasm",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let held = describe(&folder.path().join("python-used.json")).unwrap().unwrap();
        let sweep = || {
            let alone = wasm.alone(|| ()).unwrap();
            alone.sweep(&keep(&["python-kept", "code-a"]), "new").unwrap();
            names(folder.path())
        };
        let left = [
            ".making-module-1",
            "code-a.cwasm",
            "module-1-new.cwasm",
            "python-kept.json",
            "python-used.cwasm",
            "python-used.json",
        ];
        assert_eq!(sweep(), left);
        drop(held);
        File::open(folder.path().join(".making-module-1"))
            .unwrap()
            .set_modified(SystemTime::now() - 2 * LONG)
            .unwrap();
        assert_eq!(sweep(), ["code-a.cwasm", "module-1-new.cwasm", "python-kept.json"]);
    }

    #[test]
    fn a_description_that_goes_describes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(&path, "x").unwrap();
        let going = File::open(&path).unwrap();
        going.lock().unwrap();
        assert!(describe(&path).unwrap().is_none());
        drop(going);
        assert_eq!(describe(&path).unwrap().unwrap().says, b"x");
        fs::remove_file(&path).unwrap();
        assert!(describe(&path).unwrap().is_none());
        fs::create_dir(&path).unwrap();
        assert!(describe(&path).is_err(), "what can't be read isn't called missing");
    }

    #[test]
    fn what_is_put_can_be_read_by_a_worker_of_no_rights() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(folder.path()).unwrap();
        let alone = wasm.alone(|| ()).unwrap();
        let making = alone.making().unwrap();
        let made = making.path().join("made");
        fs::create_dir(&made).unwrap();
        fs::write(made.join("file"), "x").unwrap();
        fs::set_permissions(made.join("file"), Permissions::from_mode(0o660)).unwrap();
        fs::set_permissions(&made, Permissions::from_mode(0o770)).unwrap();
        let place = folder.path().join("place");
        making.put_folder(&made, &place).unwrap();
        let module = wasm.put_module(b"code", "module-1").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("file")), mode(&module)), (0o755, 0o644, 0o644));
        let open = if process::effective_user() == 0 { 0o755 } else { 0o700 };
        assert_eq!(mode(folder.path()), open);
    }

    #[test]
    fn modules_that_were_not_run_for_longest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = Folder::open(folder.path()).unwrap();
        for (name, hours) in [("module-old", 3), ("module-run", 2), ("module-new", 1)] {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(MODULES_BYTES / 2).unwrap(); // it takes no room: nothing is written
            file.set_modified(SystemTime::now() - hours * LONG).unwrap();
        }
        fs::set_permissions(folder.path().join("module-old"), Permissions::from_mode(0o644)).unwrap();
        assert!(wasm.module("module-old").unwrap().is_some());
        wasm.put_module(b"code", "module-put").unwrap();
        assert_eq!(names(folder.path()), ["module-new", "module-old", "module-put"]);
    }
}
