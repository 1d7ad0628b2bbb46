//! Where the workspace is, its files, and how cargo is called in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;

use crate::problem::Problem;

/// The workspace this program was built from.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder that holds the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where cargo builds; our own results are in `xtask/` below it.
    pub(crate) target: PathBuf,
}

/// One Rust source file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path below the workspace's root, with `/` between its parts.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

impl Workspace {
    /// Whether a source is newer than some results. A time that can't be read counts as newer.
    pub(crate) fn has_changed_since(&self, results: &Path) -> bool {
        let Ok(ran) = modified(results) else { return true };
        let Ok(sources) = self.sources() else { return true };
        let newer = |source: &Source| modified(&self.root.join(&source.path)).map_or(true, |time| time > ran);
        sources.iter().any(newer)
    }

    /// Asks cargo where things are.
    pub(crate) fn open() -> Result<Self, Problem> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or_else(|| Problem::Stop("xtask must be in a folder below the workspace".to_owned()))?;
        let mut workspace = Self { root: root.to_owned(), target: root.join("target") };
        let output = workspace
            .cargo()
            .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(Problem::starting("cargo metadata"))?;
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .map_err(Problem::form("the answer of `cargo metadata` (its own message is above)"))?;
        if let Some(target) = metadata["target_directory"].as_str() {
            workspace.target = PathBuf::from(target);
        }
        Ok(workspace)
    }

    /// Where templates of Python are prepared for tests, if they are: as the tests look for them.
    pub(crate) fn templates(&self) -> Option<PathBuf> {
        let named = std::env::var_os("COFFERDAM_TEST_TEMPLATES").map(PathBuf::from);
        let folder = named.unwrap_or_else(|| self.target.join("tmp/wasm"));
        let described = |name: &str| name.starts_with("python-") && name.ends_with(".json");
        let mut entries = fs::read_dir(&folder).ok()?.flatten();
        entries.any(|entry| entry.file_name().to_str().is_some_and(described)).then_some(folder)
    }

    /// Cargo, in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }

    /// Whether `cargo NAME` is there, for the tools that are installed separately.
    pub(crate) fn has_cargo_tool(&self, name: &str) -> bool {
        self.cargo()
            .args([name, "--version"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// The folder for our own results; it exists afterwards.
    pub(crate) fn results_folder(&self) -> Result<PathBuf, Problem> {
        let folder = self.target.join("xtask");
        fs::create_dir_all(&folder).map_err(Problem::at("create", &folder))?;
        Ok(folder)
    }

    /// Reads a file of the workspace.
    pub(crate) fn read(&self, path: &str) -> Result<String, Problem> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(Problem::at("read", &path))
    }

    /// Every Rust source file, whether git knows it or not, but for build folders.
    pub(crate) fn sources(&self) -> Result<Vec<Source>, Problem> {
        let mut paths = Vec::new();
        walk(&self.root, &self.target, &mut paths)?;
        paths.sort();
        let mut sources = Vec::new();
        for path in paths {
            let text = fs::read_to_string(&path).map_err(Problem::at("read", &path))?;
            let below = path.strip_prefix(&self.root).unwrap_or(&path);
            sources.push(Source { path: below.to_string_lossy().into_owned(), text });
        }
        Ok(sources)
    }
}

fn walk(folder: &Path, target: &Path, found: &mut Vec<PathBuf>) -> Result<(), Problem> {
    for entry in fs::read_dir(folder).map_err(Problem::at("list", folder))? {
        let entry = entry.map_err(Problem::at("list", folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Problem::at("look at", &path))?;
        if kind.is_dir() {
            let name = entry.file_name();
            let build = name == "target" || path == target;
            if !build && !name.to_string_lossy().starts_with('.') {
                walk(&path, target, found)?;
            }
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
