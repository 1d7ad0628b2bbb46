//! Where the Pythons are that tests run in WebAssembly, which `cargo xtask test` prepares.
//!
//! They lie outside of the clone, since making the first takes a minute: in `$XDG_CACHE_HOME/cofferdam-test/wasm`,
//! else `~/.cache/cofferdam-test/wasm`, or where a variable says.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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

/// The folder of data for the product (`COFFERDAM_DATA`) in which a Python is prepared, if one is.
#[must_use]
pub fn data() -> Option<PathBuf> {
    let folder = folder();
    let described = |name: &str| name.starts_with("python-") && name.ends_with(".json");
    let mut names =
        fs::read_dir(&folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let there = names.any(|name| described(&name)) && folder.file_name()? == "wasm";
    there.then(|| folder.parent().map(Path::to_owned))?
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
pub fn lend(to: &Path) -> io::Result<()> {
    put(&folder(), to)
}

fn put(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if !name.as_encoded_bytes().starts_with(b".making-") {
                put(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    // A link would share its locks, and who has one is using it.
    let has_locks = from.extension().is_some_and(|ending| ending == "json");
    let linked = !has_locks && fs::hard_link(from, to).is_ok();
    if linked { Ok(()) } else { fs::copy(from, to).map(drop) }
}
