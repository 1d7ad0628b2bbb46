//! What is looked at: the files of a machine and of a home, and an environment. Tests hand in planted
//! ones.
//!
//! Looking is bounded and asks nobody: only regular files are opened, only their first bytes are read,
//! a folder is listed up to a number of entries, and no socket is connected to. A file system that
//! doesn't answer, such as a dead network mount, is waited for as every program waits for it.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cofferdam_sys::{fd, process};

use super::findings::shown;
use super::table::{Base, Place};
use crate::places;

/// How much of a file is looked at to see what it is, in bytes.
const HEAD: u64 = 64 << 10;

/// How much is read of a file that has to be read whole, in bytes: settings that an agent keeps its
/// history in.
const WHOLE: u64 = 4 << 20;

/// How many entries of one folder are looked at.
const ENTRIES: usize = 1000;

/// What is looked at. It holds secrets and so has no `Debug`.
pub(super) struct Surroundings {
    /// What stands for `/` in the paths of the machine's own files.
    pub(super) root: PathBuf,
    /// The person's home; nothing where it isn't known.
    pub(super) home: Option<PathBuf>,
    /// The environment, by name.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// The working directory.
    pub(super) folder: PathBuf,
    /// The user that code would run as.
    pub(super) user: u32,
}

impl Surroundings {
    /// Those of this process.
    pub(super) fn own() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Surroundings {
            root: PathBuf::from("/"),
            home: home.filter(|home| home.is_absolute()),
            environment: std::env::vars_os().collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            user: process::effective_user(),
        }
    }

    /// A variable that isn't empty.
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        let mut all = self.environment.iter();
        let (_, value) = all.find(|(known, value)| known == name && !value.is_empty())?;
        Some(value)
    }

    /// A file of the machine's: `/etc/shadow`.
    pub(super) fn machine(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A path as it is shown to a person.
    pub(super) fn shown(&self, path: &Path) -> String {
        shown(path, self.home.as_deref(), &self.root)
    }

    /// Whether a path is below the person's home.
    pub(super) fn is_in_home(&self, path: &Path) -> bool {
        self.home.as_ref().is_some_and(|home| path.starts_with(home))
    }

    /// The current folder as `--workspace .` would show it, with its links resolved; nothing where it
    /// can't be shown.
    pub(super) fn workspace(&self) -> Option<PathBuf> {
        places::workspace(&self.folder, Path::new("/")).ok()
    }

    /// Everything that is at a place.
    pub(super) fn at(&self, place: &Place) -> Vec<PathBuf> {
        self.bases(place.base).iter().flat_map(|base| expand(base, place.pattern)).collect()
    }

    /// The folders (or with a variable that names one, files) that a place starts from.
    fn bases(&self, base: Base) -> Vec<PathBuf> {
        let xdg = |variable, default| {
            let named = self.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            named.or_else(|| Some(self.home.as_ref()?.join(default))).into_iter().collect()
        };
        match base {
            Base::Cache => xdg("XDG_CACHE_HOME", ".cache"),
            Base::Config => xdg("XDG_CONFIG_HOME", ".config"),
            Base::Data => xdg("XDG_DATA_HOME", ".local/share"),
            Base::Folder => vec![self.folder.clone()],
            Base::Home => self.home.iter().cloned().collect(),
            Base::Machine => vec![self.root.clone()],
            Base::Repository => self.repository().into_iter().collect(),
            Base::Runtime => {
                let named = self.variable("XDG_RUNTIME_DIR").map(PathBuf::from);
                let usual = || self.machine(&format!("/run/user/{}", self.user));
                vec![named.filter(|path| path.is_absolute()).unwrap_or_else(usual)]
            }
            Base::Tmux => {
                let named = self.variable("TMUX_TMPDIR").map(PathBuf::from);
                let folder = named.unwrap_or_else(|| self.machine("/tmp"));
                vec![folder.join(format!("tmux-{}", self.user))]
            }
            Base::Variable(name) => self.variable(name).map(paths_in).unwrap_or_default(),
        }
    }

    /// The `.git` folder of the repository that the working directory is in.
    fn repository(&self) -> Option<PathBuf> {
        self.folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.is_dir())
    }
}

/// The absolute paths in a variable: the whole value, or the parts of `unix:path=/a,guid=b` and of
/// `/a:/b`.
fn paths_in(value: &OsStr) -> Vec<PathBuf> {
    let bytes = value.as_bytes();
    if bytes.starts_with(b"/") && Path::new(value).symlink_metadata().is_ok() {
        return vec![PathBuf::from(value)];
    }
    let parts = bytes.split(|byte| b":;,=".contains(byte)).filter(|part| part.starts_with(b"/"));
    parts.map(|part| PathBuf::from(OsString::from_vec(part.to_vec()))).collect()
}

/// What is there of a pattern, in which `*` stands for any part of one name.
fn expand(base: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![base.to_path_buf()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = if part.contains('*') {
            found.iter().flat_map(|folder| entries(folder, part)).take(ENTRIES).collect()
        } else {
            found.into_iter().map(|folder| folder.join(part)).collect()
        };
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    found
}

/// The entries of a folder whose name fits a pattern, by name.
fn entries(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES);
    let fits = |name: &OsStr| fits(name.as_bytes(), pattern.as_bytes());
    let mut found: Vec<_> = all.filter(|entry| fits(&entry.file_name())).map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Whether a name fits a pattern. A leading `*` doesn't stand for a dot.
fn fits(name: &[u8], pattern: &[u8]) -> bool {
    fn rest(name: &[u8], pattern: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', after)) => (0..=name.len()).any(|at| rest(&name[at..], after)),
            Some((letter, after)) => name.first() == Some(letter) && rest(&name[1..], after),
        }
    }
    !(pattern.starts_with(b"*") && name.starts_with(b".")) && rest(name, pattern)
}

/// The first bytes of a regular file that this user can read and that isn't empty, in lower case. They
/// are looked at and dropped.
pub(super) fn head(path: &Path) -> Option<String> {
    text(path).filter(|text| !text.is_empty()).map(|text| text.to_ascii_lowercase())
}

/// The first bytes of a regular file that this user can read.
pub(super) fn text(path: &Path) -> Option<String> {
    beginning(path, HEAD)
}

/// A regular file that this user can read, if it isn't too large to be read whole.
pub(super) fn whole_text(path: &Path) -> Option<String> {
    let size = path.metadata().ok()?.len();
    (size <= WHOLE).then(|| beginning(path, WHOLE)).flatten()
}

fn beginning(path: &Path, most: u64) -> Option<String> {
    let mut bytes = vec![];
    fd::open_regular(path).ok()??.take(most).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a folder can be listed and has an entry whose name fits.
pub(super) fn has_entry(folder: &Path, pattern: &str) -> bool {
    !entries(folder, pattern).is_empty()
}

/// Whether there is a regular file that can be opened for reading.
pub(super) fn is_readable_file(path: &Path) -> bool {
    fd::open_regular(path).is_ok_and(|file| file.is_some())
}

/// Whether there is a socket that this user may connect to, which takes the right to write it. It is
/// not connected to.
pub(super) fn is_open_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()) && is_writable(path)
}

/// Whether this user can write a file or folder.
pub(super) fn is_writable(path: &Path) -> bool {
    CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| process::can_write(&path))
}

/// What makes two names the same file: device and number.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_part_of_one_name_and_not_for_a_leading_dot() {
        for (name, pattern, expected) in [
            ("id_rsa", "id_*", true),
            ("id_rsa.pub", "id_*.pub", true),
            ("key", "*", true),
            (".key", "*", false),
            (".env.local", ".env*", true),
            ("abc", "a*d", false),
        ] {
            assert_eq!(fits(name.as_bytes(), pattern.as_bytes()), expected, "{name} {pattern}");
        }
    }

    #[test]
    fn paths_are_found_in_the_ways_in_which_variables_name_sockets() {
        for (value, expected) in [
            ("unix:path=/nonexistent/bus,guid=12", "/nonexistent/bus"),
            ("unix:///nonexistent/docker.sock", "/nonexistent/docker.sock"),
            ("/nonexistent/tmux,12,0", "/nonexistent/tmux"),
        ] {
            let found = paths_in(OsStr::new(value));
            assert_eq!(found.len(), 1, "{value}");
            assert_eq!(found[0].components().collect::<PathBuf>(), Path::new(expected), "{value}");
        }
        assert!(paths_in(OsStr::new("tcp:host=localhost")).is_empty());
    }

    #[test]
    fn a_file_without_end_is_read_no_further_than_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge");
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(head(&path).unwrap().len() as u64, HEAD);
    }
}
