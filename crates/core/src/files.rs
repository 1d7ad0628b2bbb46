//! Files of the host that a run sees.
//!
//! Everything here is a value: who checks that a path is there, and who shows it, is further out.
//! Nothing of the host is ever written: the workspace is shown through a layer that takes what the
//! program writes, or as a copy.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The files of the host that a policy lets a run see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The folder that is the working directory.
    pub workspace: Option<Workspace>,
    /// What is shown read-only besides.
    pub shown: Vec<Shown>,
    /// What of the workspace is not shown, besides [`ALWAYS_HIDDEN`].
    pub hide: Vec<Pattern>,
    /// What is let out although a tool of the host may run it.
    pub keep: Vec<Pattern>,
    /// The Python that scripts run with; none means the sandbox's own.
    pub python: Option<Python>,
}

/// A folder that is shown as the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Its path on the host, absolute and with its links resolved.
    pub host: PathBuf,
    /// Whether its files are copied first, rather than shown through a layer.
    pub copy: bool,
}

/// A file or folder of the host that is shown read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its path on the host, absolute and with its links resolved.
    pub host: PathBuf,
    /// Its path inside.
    pub guest: GuestPath,
}

/// An interpreter of Python, and how programs that it starts find it again. What it consists of is
/// among [`Files::shown`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// The interpreter.
    pub executable: GuestPath,
    /// The virtual environment that it belongs to, if it does.
    pub venv: Option<GuestPath>,
}

/// What a workspace never shows: secrets of development set-ups, and what git would run.
pub const ALWAYS_HIDDEN: [&str; 2] = ["**/.env*", "**/.git/hooks"];

/// A path inside, absolute, without `.`, `..` or empty components, and not at a place that the
/// sandbox needs for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestPath(CString);

/// Why something can't be shown at a path inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGuestPath {
    /// It isn't absolute, or has components that lead elsewhere.
    #[error("a path inside is absolute and has no `.` or `..`")]
    Form,
    /// It holds a NUL byte.
    #[error("a path can't hold a NUL byte")]
    Nul,
    /// It would hide something that the sandbox itself is made of.
    #[error("{0} belongs to the sandbox itself")]
    Reserved(String),
}

/// Folders that are the sandbox's own, with everything below them.
const RESERVED: [&str; 14] = [
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
    "/workspace",
];

/// Places that are the sandbox's own, though not what may be shown below them.
const RESERVED_ITSELF: [&str; 5] = ["/", "/home", "/home/user", "/inputs", "/tmp"];

impl GuestPath {
    /// Takes a path if something can be shown there.
    ///
    /// # Errors
    ///
    /// [`BadGuestPath`] says what is in the way.
    pub fn new(path: &Path) -> Result<Self, BadGuestPath> {
        let mut components = path.components();
        let absolute = components.next() == Some(Component::RootDir);
        if !absolute || !components.all(|part| matches!(part, Component::Normal(_))) {
            return Err(BadGuestPath::Form);
        }
        let straight: PathBuf = path.components().collect(); // without doubled or trailing slashes
        if let Some(folder) = RESERVED.iter().find(|folder| straight.starts_with(folder)) {
            return Err(BadGuestPath::Reserved((*folder).to_owned()));
        }
        if let Some(place) = RESERVED_ITSELF.iter().find(|place| straight == Path::new(place)) {
            return Err(BadGuestPath::Reserved((*place).to_owned()));
        }
        let bytes = straight.into_os_string().into_encoded_bytes();
        CString::new(bytes).map(GuestPath).map_err(|_| BadGuestPath::Nul)
    }

    /// Takes the path of a program in `/usr`, which every sandbox with a file system has: it is named,
    /// and nothing is shown there.
    ///
    /// # Errors
    ///
    /// [`BadGuestPath::Form`] for any other path.
    pub fn in_system(path: &Path) -> Result<Self, BadGuestPath> {
        let straight = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
        if !straight || !path.starts_with("/usr") || path == Path::new("/usr") {
            return Err(BadGuestPath::Form);
        }
        let bytes = path.as_os_str().to_owned().into_encoded_bytes();
        CString::new(bytes).map(GuestPath).map_err(|_| BadGuestPath::Nul)
    }

    /// The path as the kernel takes it.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        &self.0
    }

    /// The path as paths are joined and compared.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_bytes()))
    }
}

/// A pattern for paths below a folder, in the manner of `.gitignore`: `*` and `?` stay within a
/// component, `**` crosses them, `[…]` and `{…}` are sets; `\\` takes away what a letter stands for. One
/// without a slash matches at every depth. One that matches a folder covers what is below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// Why something is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Nothing at all.
    #[error("a pattern can't be empty")]
    Empty,
    /// It would match outside of the folder, or nothing.
    #[error("a pattern is relative to the workspace: no leading `/`, no `..`")]
    Outside,
    /// A bracket without its other half, which would match nothing.
    #[error("a pattern's brackets come in pairs; a `\\` before one takes it as a letter")]
    Bracket,
    /// A leading `!` means something else elsewhere.
    #[error("a pattern can't be turned round with `!`")]
    Negated,
    /// A byte that no path has, so that it would match nothing.
    #[error("a pattern can't hold a NUL byte, since no path does")]
    Nul,
}

impl Pattern {
    /// Takes a pattern if it can match something below a folder.
    ///
    /// # Errors
    ///
    /// [`BadPattern`] says why not.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let text = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        if text.is_empty() {
            return Err(BadPattern::Empty);
        }
        if text.starts_with('!') {
            return Err(BadPattern::Negated);
        }
        if text.contains('\0') {
            return Err(BadPattern::Nul);
        }
        if !brackets_are_paired(text) {
            return Err(BadPattern::Bracket);
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(BadPattern::Outside);
        }
        Ok(Pattern(text.to_owned()))
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches a path, given relative to the folder. What lies below something that
    /// matches isn't asked for.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let path = if self.0.contains('/') {
            path
        } else {
            path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
        };
        fast_glob::glob_match(&self.0, path)
    }

    /// Whether it matches a path or a folder above it.
    #[must_use]
    pub fn covers(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| self.matches(&path[..end]))
    }
}

/// Whether every `[` and `{` that isn't a letter has its end, and no end stands alone.
fn brackets_are_paired(text: &str) -> bool {
    let mut open = vec![];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '[' | '{' => open.push(letter),
            ']' if open.pop() != Some('[') => return false,
            '}' if open.pop() != Some('{') => return false,
            _ => {}
        }
    }
    open.is_empty()
}

impl Files {
    /// Every pattern of what isn't shown.
    #[must_use]
    pub fn hidden(&self) -> Vec<Pattern> {
        ALWAYS_HIDDEN
            .iter()
            .map(|text| Pattern((*text).to_owned()))
            .chain(self.hide.iter().cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_shown_over_what_the_sandbox_is_made_of() {
        for path in ["/", "/usr", "/usr/lib/x", "/proc/1", "/tmp", "/workspace/x", "/lib64/x", "/home/user"] {
            assert!(matches!(GuestPath::new(Path::new(path)), Err(BadGuestPath::Reserved(_))), "{path}");
        }
        for path in ["a", "/a/../b", "", "./a"] {
            assert_eq!(GuestPath::new(Path::new(path)), Err(BadGuestPath::Form), "{path}");
        }
        assert_eq!(GuestPath::new(Path::new("/data//x/")).unwrap().as_c_str(), c"/data/x");
        for path in ["/inputs/data", "/home/user/x", "/tmp/x", "/opt/y", "/root/.pyenv/versions/3"] {
            assert!(GuestPath::new(Path::new(path)).is_ok(), "{path}");
        }
    }

    #[test]
    fn only_a_program_of_the_system_can_be_named_without_being_shown() {
        let path = GuestPath::in_system(Path::new("/usr/bin/python3")).unwrap();
        assert_eq!(path.as_path(), Path::new("/usr/bin/python3"));
        for path in ["/usr", "/usr/../etc/x", "usr/bin/x", "/opt/bin/python3", "/usrx"] {
            assert_eq!(GuestPath::in_system(Path::new(path)), Err(BadGuestPath::Form), "{path}");
        }
    }

    #[test]
    fn a_pattern_matches_below_the_folder_only() {
        for text in ["", "/etc", "../x", "a/../b", "!a", "./", "[", "a]", "{a,b", "{a]}", "a\0b"] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
        let dotenv = Pattern::new("**/.env*").unwrap();
        for path in [".env", "a/b/.env.local"] {
            assert!(dotenv.matches(path.as_bytes()), "{path}");
        }
        assert!(!dotenv.matches(b"a/env"));
        let hooks = Pattern::new("**/.git/hooks/").unwrap();
        assert!(hooks.matches(b".git/hooks") && hooks.matches(b"sub/.git/hooks"));
        assert!(hooks.covers(b".git/hooks/pre-commit") && !hooks.matches(b".git/hooks/pre-commit"));
    }

    #[test]
    fn a_pattern_without_a_slash_matches_at_every_depth() {
        let keys = Pattern::new("*.key").unwrap();
        assert!(keys.matches(b"a.key") && keys.matches(b"sub/deep/b.key") && keys.covers(b"x.key/inside"));
        assert!(!Pattern::new("sub/*.key").unwrap().matches(b"sub/deep/b.key"));
        assert!(Pattern::new("s\\[1\\].txt").unwrap().matches(b"s[1].txt"));
    }

    #[test]
    fn a_name_that_is_no_text_is_matched_all_the_same() {
        assert!(Pattern::new("*.bin").unwrap().matches(b"\xff\xfe.bin"));
    }
}
