//! Where the Pythons are that tests run in WebAssembly, which `cargo xtask test` prepares, and how a test gets some of
//! them for itself or for somebody else.
//!
//! They lie outside of the clone, since making the first takes a minute: in `$XDG_CACHE_HOME/cofferdam-test/wasm`,
//! else `~/.cache/cofferdam-test/wasm`, or where a variable says. What is prepared is run as it lies there, so the
//! product takes it only from a folder of its own user's that nobody else can write: a test of an ordinary user's
//! needs a copy, and one that lets modules be compiled shouldn't leave them in a folder that others use.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::host::is_root;
use crate::product::ORDINARY;

/// The variable that names another folder, which has to be called `wasm`: the product looks for that name in its
/// folder of data.
pub const VARIABLE: &str = "COFFERDAM_TEST_TEMPLATES";

/// The folder, which need not be there.
#[must_use]
pub fn folder() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let usual = || cache().unwrap_or_else(env::temp_dir).join("cofferdam-test/wasm");
    named(VARIABLE).unwrap_or_else(usual)
}

/// The folder, if a Python is prepared in it.
#[must_use]
pub fn prepared() -> Option<PathBuf> {
    Some(folder()).filter(|folder| !described(folder).is_empty())
}

/// The folder of data for the product (`COFFERDAM_DATA`) in which a Python is prepared, if one is.
#[must_use]
pub fn data() -> Option<PathBuf> {
    let folder = prepared().filter(|folder| folder.ends_with("wasm"))?;
    folder.parent().map(Path::to_owned)
}

/// What a test says that is skipped since there is none.
pub const NONE: &str =
    "no Python is prepared for tests (`cargo xtask test` does that, with pip and an index)";

/// Puts all of it into another folder, for a test that changes it: links, where the file system has them. Files
/// must be replaced there and not written.
///
/// # Errors
///
/// What the host said.
pub fn lend_all(to: &Path) -> io::Result<()> {
    put(&folder(), to, true)
}

/// Puts the templates of these names into a folder that is made for them: linked where that can be, and copied
/// otherwise. Gives how many there are; several can have one name.
///
/// # Errors
///
/// What the host said of a file.
pub fn lend(templates: &Path, names: &[&str], to: &Path) -> io::Result<usize> {
    lend_by(templates, names, to, true)
}

/// The same for an ordinary user, whose copies they are if the tests run as root.
///
/// # Errors
///
/// What the host said of a file.
pub fn lend_to_an_ordinary_user(templates: &Path, names: &[&str], to: &Path) -> io::Result<usize> {
    let lent = lend_by(templates, names, to, !is_root())?;
    if is_root() {
        give(to)?;
    }
    Ok(lent)
}

fn lend_by(templates: &Path, names: &[&str], to: &Path, link: bool) -> io::Result<usize> {
    fs::create_dir_all(to)?;
    let wanted = described(templates).into_iter().filter(|(_, name)| names.contains(&name.as_str()));
    let stems: Vec<_> = wanted.map(|(stem, _)| stem).collect();
    for entry in fs::read_dir(templates)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        let first = name.split('.').next().unwrap_or_default();
        // The code is that of every template.
        if first.starts_with("code-") || stems.iter().any(|stem| stem == first) {
            put(&templates.join(&name), &to.join(&name), link)?;
        }
    }
    Ok(stems.len())
}

/// The templates of a folder: the first part of their files' names, and their own.
fn described(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let describe = |entry: fs::DirEntry| {
        let file = entry.file_name().into_string().ok()?;
        let stem = file.strip_suffix(".json").filter(|stem| stem.starts_with("python-"))?;
        let text: Value = serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?;
        Some((stem.to_owned(), text["name"].as_str()?.to_owned()))
    };
    entries.filter_map(describe).collect()
}

/// Puts a file, or a folder with everything in it, elsewhere.
fn put(from: &Path, to: &Path, link: bool) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if !name.as_encoded_bytes().starts_with(b".making-") {
                put(&from.join(&name), &to.join(&name), link)?;
            }
        }
        return Ok(());
    }
    // A link would share its locks, and who has one is using it.
    let has_locks = from.extension().is_some_and(|ending| ending == "json");
    let linked = link && !has_locks && fs::hard_link(from, to).is_ok();
    if linked { Ok(()) } else { fs::copy(from, to).map(drop) }
}

fn give(path: &Path) -> io::Result<()> {
    lchown(path, Some(ORDINARY), Some(ORDINARY))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(folder: &Path, stem: &str, name: &str) {
        fs::write(folder.join(format!("{stem}.json")), format!("{{\"name\":\"{name}\"}}")).unwrap();
        fs::write(folder.join(format!("{stem}.cwasm")), "code").unwrap();
        fs::create_dir_all(folder.join(format!("{stem}.files/lib"))).unwrap();
        fs::write(folder.join(format!("{stem}.files/lib/a.zip")), "a").unwrap();
        fs::write(folder.join("code-1.cwasm"), "all").unwrap();
    }

    #[test]
    fn templates_are_lent_by_name_with_all_that_is_theirs() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to/wasm"));
        fs::create_dir(&from).unwrap();
        template(&from, "python-1", "python");
        template(&from, "python-2", "python:science");
        fs::write(from.join("module-3.cwasm"), "another's").unwrap();
        assert_eq!(lend(&from, &["python"], &to).unwrap(), 1);
        let mut names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["code-1.cwasm", "python-1.cwasm", "python-1.files", "python-1.json"]);
        assert_eq!(fs::read(to.join("python-1.files/lib/a.zip")).unwrap(), b"a");
        let theirs = scratch.path().join("theirs");
        assert_eq!(lend_to_an_ordinary_user(&from, &["python", "python:science"], &theirs).unwrap(), 2);
        assert_eq!(lend(&from, &["python:none"], &scratch.path().join("none")).unwrap(), 0);
    }
}
