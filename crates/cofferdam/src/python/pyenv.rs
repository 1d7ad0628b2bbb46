//! Shims of pyenv: shell scripts that look for the interpreter each time they are started.
//!
//! They are resolved as pyenv does it, without starting anything: `PYENV_VERSION`, else the nearest
//! `.python-version` above the working directory, else the file `version` of pyenv's own folder.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::Surroundings;
use crate::files::value::BadValue;
use crate::places::quoted;

/// The folder of the pyenv whose shim a file is, if it is one.
pub(super) fn shim(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    let text = short_text(path)?;
    let is_shim = folder.ends_with("shims") && text.starts_with("#!") && text.contains("pyenv");
    is_shim.then(|| folder.parent().map(Path::to_owned))?
}

/// The interpreter that a shim would start.
pub(super) fn resolve(shim: &Path, root: &Path, around: &Surroundings) -> Result<PathBuf, BadValue> {
    let root = around.pyenv_root.as_deref().unwrap_or(root);
    let name = shim.file_name().unwrap_or_default();
    let chosen = chosen(root, around);
    for version in &chosen {
        if version == "system" {
            let others = around.all_on_path(name).find(|path| self::shim(path).is_none());
            if let Some(path) = others {
                return Ok(path);
            }
        }
        let folder = installed(root, version).map(|folder| folder.join("bin").join(name));
        if let Some(path) = folder.filter(|path| super::is_executable(path)) {
            return Ok(path);
        }
    }
    let why = format!(
        "{} is a shim of pyenv, and none of the versions that it would choose ({:?}) has it",
        quoted(shim),
        chosen.join(":")
    );
    let there = versions(root).into_iter().map(|version| root.join("versions").join(version).join("bin"));
    let there = there.map(|bin| bin.join(name)).find(|path| super::is_executable(path));
    let help = there.map_or_else(
        || "install that version, or name an interpreter by its path".to_owned(),
        |path| format!("name the interpreter by its path, such as {}", quoted(&path)),
    );
    Err(BadValue::new(why, help))
}

/// The versions that pyenv would look into, in order.
fn chosen(root: &Path, around: &Surroundings) -> Vec<String> {
    if let Some(named) = &around.pyenv_version {
        return named.split(':').map(str::to_owned).collect();
    }
    let near = around.folder.ancestors().find_map(|folder| named_in(&folder.join(".python-version")));
    let named = near.or_else(|| named_in(&root.join("version")));
    named.unwrap_or_else(|| vec!["system".to_owned()])
}

/// The versions that a file names: words, of which `#` begins a comment.
fn named_in(path: &Path) -> Option<Vec<String>> {
    let text = short_text(path)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words: Vec<_> = lines.flat_map(str::split_whitespace).take(16).map(str::to_owned).collect();
    (!words.is_empty()).then_some(words)
}

/// The folder of a version: of that very name, or the latest whose name begins with it (`3.12`).
fn installed(root: &Path, version: &str) -> Option<PathBuf> {
    let version = version.strip_prefix("python-").unwrap_or(version);
    if version.is_empty() || version.starts_with('.') || version.contains('/') {
        return None; // a file of the working directory may say anything
    }
    let folder = root.join("versions");
    if folder.join(version).is_dir() {
        return Some(folder.join(version));
    }
    let begins = format!("{version}.");
    let numbers = |name: &str| name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    let fitting = versions(root).into_iter().filter(|name| name.starts_with(&begins));
    fitting.max_by_key(|name| numbers(name)).map(|name| folder.join(name))
}

/// The names of what is installed, in order.
fn versions(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("versions")) else { return vec![] };
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The text of a regular file, if it is short and text.
fn short_text(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > 64 << 10 {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path).ok()?.take(64 << 10).read_to_string(&mut text).ok()?;
    Some(text)
}
