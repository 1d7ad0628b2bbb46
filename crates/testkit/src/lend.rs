//! A prepared Python for one test alone, or for somebody else than who prepared it.
//!
//! What is prepared is run as it lies there, so the product takes it only from a folder of its own user's that
//! nobody else can write. A test of an ordinary user's therefore needs a copy, and one that lets modules be
//! compiled shouldn't leave them in a folder that others use.

use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::host::is_root;
use crate::product::ORDINARY;

/// The variable that names a folder of templates of Python, which is called `wasm`.
pub const VARIABLE: &str = "COFFERDAM_TEST_TEMPLATES";

/// Where templates are prepared for tests: what the variable names, or else below a folder beside what cargo
/// builds (`CARGO_TARGET_TMPDIR`). None if none is.
#[must_use]
pub fn prepared(beside: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map_or_else(|| Path::new(beside).join("wasm"), Into::into);
    (!described(&folder).is_empty()).then_some(folder)
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
    for stem in &stems {
        for part in ["cwasm", "files", "json"].map(|kind| format!("{stem}.{kind}")) {
            put(&templates.join(&part), &to.join(&part), link)?;
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

/// Puts a file, or a folder with everything in it, elsewhere. Nobody writes either, so a link is as good.
fn put(from: &Path, to: &Path, link: bool) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            put(&from.join(&name), &to.join(&name), link)?;
        }
        return Ok(());
    }
    if !link || fs::hard_link(from, to).is_err() {
        fs::copy(from, to)?;
    }
    Ok(())
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
        assert_eq!(names, ["python-1.cwasm", "python-1.files", "python-1.json"]);
        assert_eq!(fs::read(to.join("python-1.files/lib/a.zip")).unwrap(), b"a");
        let theirs = scratch.path().join("theirs");
        assert_eq!(lend_to_an_ordinary_user(&from, &["python", "python:science"], &theirs).unwrap(), 2);
        assert_eq!(lend(&from, &["python:none"], &scratch.path().join("none")).unwrap(), 0);
    }
}
