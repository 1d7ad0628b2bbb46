//! The Pythons that tests run in WebAssembly. The product prepares them itself before the tests, with pip and the
//! package index that it is set up for.
//!
//! They are kept outside of the clone, since the first takes a minute: in `$XDG_CACHE_HOME/cofferdam-test/wasm`,
//! else `~/.cache/cofferdam-test/wasm` (`testkit::templates` looks there too), or where [`VARIABLE`] says. Their
//! names hold a fingerprint of all that they depend on, so what is there is ready or is made anew; what was made of
//! other sources the product removes, unless the tests of another clone are using it.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::problem::Problem;

/// The variable by which tests find them.
pub(super) const VARIABLE: &str = "COFFERDAM_TEST_TEMPLATES";

/// Those that tests use.
const NAMES: [&str; 2] = ["python", "python:science"];

/// What is prepared. Nobody removes it as long as this is there.
#[derive(Debug)]
pub(super) struct Templates {
    pub(super) folder: PathBuf,
    _held: Vec<File>,
}

/// Sees that they are there. Where the wheel can't be had, it says so, once and loudly: the tests that need one are
/// skipped by name.
///
/// # Errors
///
/// Whatever else went wrong: what makes templates is ours too.
pub(super) fn prepare(product: Option<&Path>) -> Result<Templates, Problem> {
    let folder = folder();
    if let Some(product) = product {
        for name in NAMES {
            if !prepared(product, name, &folder)? {
                eprintln!(
                    "\n*** {name} could not be prepared for WebAssembly: the reason is above. Every test that needs it is \
                     skipped.\n"
                );
            }
        }
    }
    Ok(Templates { _held: held(&folder), folder })
}

/// What the product says where it gets no wheel: `cli/setup/fetch.rs`.
const NO_WHEEL: [&str; 2] = ["pip could not fetch", "there is no pip"];

fn prepared(product: &Path, name: &str, folder: &Path) -> Result<bool, Problem> {
    let Some(data) = folder.parent().filter(|_| folder.ends_with("wasm")) else {
        let folder = folder.display();
        return Err(Problem::Stop(format!("{VARIABLE}: {folder} has to be a folder that is called `wasm`")));
    };
    let mut command = Command::new(product);
    command.args(["setup", "python", "--if-missing", "--template", name]).env("COFFERDAM_DATA", data);
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Problem::starting("cofferdam setup python"))?;
    let mut has_no_wheel = false;
    for line in
        child.stderr.take().into_iter().flat_map(|said| BufReader::new(said).lines()).map_while(Result::ok)
    {
        eprintln!("{line}");
        has_no_wheel |= NO_WHEEL.iter().any(|words| line.contains(words));
    }
    let status = child.wait().map_err(Problem::starting("cofferdam setup python"))?;
    if status.success() || has_no_wheel {
        return Ok(status.success());
    }
    Err(Problem::Stop(format!(
        "{name} could not be prepared for WebAssembly, though not for lack of its wheel: see above"
    )))
}

fn folder() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    named(VARIABLE).unwrap_or_else(|| cache().unwrap_or_else(env::temp_dir).join("cofferdam-test/wasm"))
}

/// Locks on what is described there: with them it is in use, for the product.
fn held(folder: &Path) -> Vec<File> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let descriptions = entries.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let files = descriptions.filter_map(|path| File::open(path).ok());
    files.filter(|file| file.try_lock_shared().is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_described_is_held() {
        let folder = env::temp_dir().join(format!("cofferdam-xtask-held-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for name in ["python-1.json", "python-1.cwasm"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let held = held(&folder);
        let taken = |name: &str| File::open(folder.join(name)).unwrap().try_lock().is_err();
        assert_eq!((held.len(), taken("python-1.json"), taken("python-1.cwasm")), (1, true, false));
        drop(held);
        assert!(!taken("python-1.json"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_of_another_name_is_not_prepared() {
        assert!(prepared(Path::new("/bin/true"), "python", Path::new("/no/such/folder")).is_err());
        assert!(matches!(prepared(Path::new("/bin/true"), "python", Path::new("/no/such/wasm")), Ok(true)));
        assert!(prepared(Path::new("/bin/false"), "python", Path::new("/no/such/wasm")).is_err());
    }
}
