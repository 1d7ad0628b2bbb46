//! How each contender starts a fresh Python that prints one line, and the proof that it did.
//!
//! All of them get the same program, the same few environment variables and the same empty standard
//! input. A time counts only if the output is right; for Cofferdam also only if the Outcome says that
//! everything it promises was enforced, so that speed can't be bought by leaving something out.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::problem::Problem;

const PYTHON: &[&str] = &["/usr/bin/python3", "-c", "print(1)"];
const PRINTED: &[u8] = b"1\n";

const BWRAP: &str = "--unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
    --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp";

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a container run of Cofferdam must have enforced, by its own report.
const ENFORCED: &[&str] =
    &["files", "network", "memory", "cpu", "pids", "disk", "timeout", "output", "syscalls", "landlock"];

/// One way to start the program.
#[derive(Debug)]
pub(crate) enum Contender {
    /// No sandbox at all.
    Bare,
    /// Bubblewrap, with every namespace it has.
    Bwrap,
    /// The product, as built for release.
    Cofferdam(PathBuf),
    /// runc, with its own default configuration.
    Runc,
}

/// A folder for everything that a benchmark leaves behind; removed with its content when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder, for its owner only. Its path is short because Unix sockets may be below it.
    pub(crate) fn new() -> Result<Self, Problem> {
        let path = std::env::temp_dir().join(format!("cofferdam-bench-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).map_err(Problem::at("create", &path))?;
        let scratch = Self(path);
        for name in ["home", "state"] {
            fs::create_dir(scratch.0.join(name)).map_err(Problem::at("create", &scratch.0.join(name)))?;
        }
        Ok(scratch)
    }

    /// Where Cofferdam has its state.
    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Where Cofferdam writes the Outcome.
    pub(crate) fn outcome(&self) -> PathBuf {
        self.0.join("outcome.json")
    }

    fn bundle(&self) -> PathBuf {
        self.0.join("bundle")
    }

    fn errors(&self) -> PathBuf {
        self.0.join("stderr")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("note: {} is left behind: {error}", self.0.display());
        }
    }
}

/// The command of the product that reads jobs.
pub(crate) fn batch(binary: &Path, scratch: &Scratch) -> Command {
    let mut command = Command::new(binary);
    command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").env("HOME", scratch.0.join("home"));
    command.env("COFFERDAM_STATE", scratch.0.join("state")).args(["batch", "--profile", "internal"]);
    command
}

impl Contender {
    /// The name in tables and after `--only`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Bwrap => "bwrap",
            Self::Cofferdam(_) => "cofferdam",
            Self::Runc => "runc",
        }
    }

    /// What has to be made once, before the first run.
    pub(crate) fn prepare(&self, scratch: &Scratch) -> Result<(), Problem> {
        match self {
            Self::Bare | Self::Bwrap | Self::Cofferdam(_) => Ok(()),
            Self::Runc => make_bundle(&scratch.bundle()),
        }
    }

    /// Runs it once: the time from just before the start until it has been reaped.
    pub(crate) fn run(&self, scratch: &Scratch, number: usize) -> Result<Duration, Problem> {
        if matches!(self, Self::Cofferdam(_)) {
            // The Outcome of the run before must not speak for this one.
            remove_if_there(&scratch.outcome())?;
        }
        let mut command = self.command(scratch, number, PYTHON);
        let errors = File::create(scratch.errors()).map_err(Problem::at("create", &scratch.errors()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let start = Instant::now();
        let child = command.spawn().map_err(|source| self.not_started(source))?;
        let output = child.wait_with_output().map_err(Problem::starting(self.name()))?;
        let took = start.elapsed();
        if !output.status.success() || output.stdout != PRINTED {
            let errors = fs::read_to_string(scratch.errors()).unwrap_or_default();
            return Err(Problem::Stop(format!(
                "{} ended with {} and printed {:?} instead of \"1\\n\"; it said: {}",
                self.name(),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                errors.trim()
            )));
        }
        if matches!(self, Self::Cofferdam(_)) {
            check_outcome(&scratch.outcome())?;
        }
        Ok(took)
    }

    /// The command that runs `program`; `number` is different each time.
    pub(crate) fn command(&self, scratch: &Scratch, number: usize, program: &[&str]) -> Command {
        let mut command = match self {
            Self::Bare => Command::new(program[0]),
            Self::Bwrap => Command::new("bwrap"),
            Self::Cofferdam(binary) => Command::new(binary),
            Self::Runc => Command::new("runc"),
        };
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").env("HOME", scratch.0.join("home"));
        // Without root, the user's service manager is asked for a cgroup, and these say where it is.
        for name in ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        match self {
            Self::Bare => command.args(&program[1..]),
            Self::Bwrap => command.args(BWRAP.split_whitespace()).args(program),
            Self::Cofferdam(_) => command
                .env("COFFERDAM_STATE", scratch.0.join("state"))
                .args(["run", "--profile", "internal", "--quiet", "--outcome"])
                .arg(scratch.outcome())
                .arg("--")
                .args(program),
            // The program is in the bundle.
            Self::Runc => command
                .arg("--root")
                .arg(scratch.0.join("runc"))
                .args(["run", "--bundle"])
                .arg(scratch.bundle())
                .arg(format!("cofferdam-bench-{}-{number}", std::process::id())),
        };
        command
    }

    fn not_started(&self, source: std::io::Error) -> Problem {
        let hint = match self {
            Self::Bare => "; `apt-get install -y python3` brings it",
            Self::Bwrap => "; `apt-get install -y bubblewrap` brings it",
            Self::Cofferdam(_) => "",
            Self::Runc => "; `apt-get install -y runc` brings it",
        };
        Problem::Io { action: format!("start {}{hint}", self.name()), source }
    }
}

/// Fails unless the Outcome says that the run exited with 0 and that everything was enforced.
pub(crate) fn check_outcome(path: &Path) -> Result<(), Problem> {
    let text = fs::read_to_string(path).map_err(Problem::at("read", path))?;
    let outcome: Value = serde_json::from_str(&text).map_err(Problem::form("the Outcome"))?;
    match complaint(&outcome) {
        None => Ok(()),
        Some(complaint) => {
            Err(Problem::Stop(format!("a run does not count: {complaint}; its Outcome: {outcome}")))
        }
    }
}

/// What an Outcome lacks that a run must have to count.
pub(crate) fn complaint(outcome: &Value) -> Option<String> {
    if outcome["end"] != "exited" || outcome["exit_code"] != 0 {
        return Some("it did not exit with 0".to_owned());
    }
    if outcome["gaps"].as_array().is_none_or(|gaps| !gaps.is_empty()) {
        return Some("`gaps` is not an empty list".to_owned());
    }
    let enforced: Vec<&str> =
        outcome["enforced"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let missing: Vec<&str> = ENFORCED.iter().filter(|name| !enforced.contains(name)).copied().collect();
    (!missing.is_empty()).then(|| format!("`enforced` lacks {}", missing.join(", ")))
}

fn remove_if_there(path: &Path) -> Result<(), Problem> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Problem::at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// A bundle whose root file system is the host's `/usr`, read-only, as the others show it.
fn make_bundle(bundle: &Path) -> Result<(), Problem> {
    let root = bundle.join("rootfs");
    for folder in ["usr", "proc", "dev", "sys", "tmp"] {
        let path = root.join(folder);
        fs::create_dir_all(&path).map_err(Problem::at("create", &path))?;
    }
    for (link, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        symlink(target, root.join(link)).map_err(Problem::at("link", &root.join(link)))?;
    }
    let mut command = Command::new("runc");
    command.env("PATH", PATH).arg("spec").arg("--bundle").arg(bundle);
    if !is_root()? {
        command.arg("--rootless");
    }
    let output = command.output().map_err(|source| Contender::Runc.not_started(source))?;
    if !output.status.success() {
        return Err(Problem::Stop(format!(
            "`runc spec` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    let path = bundle.join("config.json");
    let text = fs::read_to_string(&path).map_err(Problem::at("read", &path))?;
    let mut config: Value = serde_json::from_str(&text).map_err(Problem::form("what `runc spec` wrote"))?;
    edit_config(&mut config);
    fs::write(&path, config.to_string()).map_err(Problem::at("write", &path))
}

/// Changes only what the program needs; what runc enforces by default stays as it is.
fn edit_config(config: &mut Value) {
    config["process"]["terminal"] = Value::Bool(false);
    config["process"]["args"] = json!(PYTHON);
    config["root"]["readonly"] = Value::Bool(true);
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.push(
            json!({ "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] }),
        );
        mounts.push(json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" }));
    }
}

fn is_root() -> Result<bool, Problem> {
    let path = Path::new("/proc/self");
    Ok(fs::metadata(path).map_err(Problem::at("look at", path))?.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        json!({ "end": "exited", "exit_code": 0, "gaps": [], "enforced": ENFORCED })
    }

    #[test]
    fn a_run_with_less_enforced_does_not_count() {
        let mut outcome = good();
        outcome["enforced"] = json!(["files", "network"]);
        assert!(complaint(&outcome).unwrap().contains("memory, cpu, pids"));
        outcome["enforced"] = Value::Null;
        assert!(complaint(&outcome).is_some());
    }

    #[test]
    fn a_run_with_a_gap_or_another_end_does_not_count() {
        for (key, value) in [
            ("gaps", json!([{ "name": "disk" }])),
            ("gaps", Value::Null),
            ("end", json!("timed_out")),
            ("exit_code", json!(1)),
            ("exit_code", Value::Null),
        ] {
            let mut outcome = good();
            outcome[key] = value;
            assert!(complaint(&outcome).is_some(), "{outcome}");
        }
    }

    #[test]
    fn a_run_with_everything_enforced_counts() {
        assert_eq!(complaint(&good()), None);
    }

    #[test]
    fn the_bundle_keeps_what_runc_enforces_by_default() {
        let mut config = json!({
            "process": { "terminal": true, "args": ["sh"], "noNewPrivileges": true },
            "root": { "path": "rootfs" },
            "mounts": [{ "destination": "/proc" }],
            "linux": { "namespaces": [{ "type": "pid" }] }
        });
        edit_config(&mut config);
        assert_eq!(config["process"]["terminal"], false);
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["root"]["readonly"], true);
        assert_eq!(config["mounts"].as_array().unwrap().len(), 3);
        assert_eq!(config["linux"]["namespaces"].as_array().unwrap().len(), 1);
    }
}
