//! What must survive us: a file for each run that is under way, and the sweep after a kill.
//!
//! A run's file lies in `STATE/runs/`, is locked for as long as the run lives, and says in its
//! first line which backend has it and in the others what that backend would leave behind. The
//! lock ends with the process, however that ends; so a file that can be locked is a dead run's.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cofferdam_core::audit::Event;
use cofferdam_core::outcome::{End, RunId};
use cofferdam_core::policy::BackendName;
use cofferdam_core::weaken::stop_at;

use crate::{Engine, chain};

/// The folder that holds everything that is kept.
#[derive(Debug)]
pub struct State {
    folder: PathBuf,
}

/// The state folder can't be used.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {}", path.display())]
pub struct StateError {
    /// A verb: "create".
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the host said.
    pub source: io::Error,
}

impl StateError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
        let path = path.to_owned();
        move |source| StateError { action, path, source }
    }
}

/// A run's file while it is made: the name has this in front, so that no sweep takes it for a dead
/// run's before it is locked. Whoever makes one has a shared lock on the folder meanwhile.
const UNFINISHED: &str = ".new-";

/// O_NONBLOCK and O_NOFOLLOW of `asm-generic/fcntl.h`: what isn't a file of ours is not waited for.
const NO_WAIT_NO_LINK: i32 = 0o4000 | 0o400_000;

/// The longest file of a run, in bytes: a few paths.
const MOST_BYTES: u64 = 64 << 10;

/// A run that is under way. Its file goes when this is dropped.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    _file: File,
}

impl RunLock {
    /// Lets go of the lock and leaves the file, since something of the run may be left.
    pub fn leave_to_sweep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path); // if it stays, the next sweep finds it unlocked
        }
    }
}

/// A dead run, with its lock held so that no other sweep takes it.
struct Dead {
    run: RunId,
    backend: Option<BackendName>,
    traces: Vec<String>,
    path: PathBuf,
    _file: File,
}

impl State {
    /// Makes the folder if it isn't there, for this user alone.
    ///
    /// # Errors
    ///
    /// [`StateError`] names the folder.
    pub fn open(folder: &Path) -> Result<State, StateError> {
        let state = State { folder: folder.to_owned() };
        let runs = state.runs();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&runs)
            .map_err(StateError::at("create", &runs))?;
        trust(folder, &fs::metadata(folder).map_err(StateError::at("read", folder))?)?;
        trust(&runs, &fs::symlink_metadata(&runs).map_err(StateError::at("read", &runs))?)?;
        Ok(state)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn runs(&self) -> PathBuf {
        self.folder.join("runs")
    }

    /// Notes that a run is about to start, and what it would leave.
    ///
    /// # Errors
    ///
    /// [`StateError`] names the file. Nothing may start then.
    pub fn begin(&self, run: &RunId, backend: BackendName, traces: &[String]) -> Result<RunLock, StateError> {
        let lines = std::iter::once(backend.name()).chain(traces.iter().map(String::as_str));
        self.note(run, &lines.map(|line| format!("{line}\n")).collect::<String>())
    }

    /// Notes that what a run has is another run's from now on; the first is forgotten.
    ///
    /// # Errors
    ///
    /// The lock as it was, if the file can't be renamed.
    pub fn pass_on(&self, mut lock: RunLock, run: &RunId) -> Result<RunLock, RunLock> {
        let path = self.runs().join(run.as_str());
        // What it says is the same, and it stays locked.
        match fs::rename(&lock.path, &path) {
            Ok(()) => {
                lock.path = path;
                Ok(lock)
            }
            Err(_) => Err(lock),
        }
    }

    /// Writes the file of a run.
    fn note(&self, run: &RunId, text: &str) -> Result<RunLock, StateError> {
        let unfinished = self.runs().join(format!("{UNFINISHED}{run}"));
        let path = self.runs().join(run.as_str());
        let write = || {
            let making = File::open(self.runs())?;
            making.lock_shared()?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.try_lock().map_err(io::Error::from)?;
            file.write_all(text.as_bytes())?;
            stop_at("run-unfinished");
            fs::rename(&unfinished, &path)?;
            Ok(file)
        };
        match write() {
            Ok(file) => Ok(RunLock { path, _file: file }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished); // it may not be there
                Err(StateError::at("write", &path)(error))
            }
        }
    }

    /// The runs that are dead.
    fn dead(&self) -> Result<Vec<Dead>, StateError> {
        let runs = self.runs();
        let entries = fs::read_dir(&runs).map_err(StateError::at("read", &runs))?;
        Ok(entries.flatten().filter_map(|entry| look_at(&entry.path())).collect())
    }
}

/// Refuses a folder that somebody else can write: they could have us sweep what they like.
fn trust(folder: &Path, found: &fs::Metadata) -> Result<(), StateError> {
    let own = fs::metadata("/proc/self").map_err(StateError::at("look who we are in", Path::new("/proc")))?;
    if found.is_dir() && found.uid() == own.uid() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "it has to be a folder of ours that nobody else can write; it belongs to user {}, mode {:o}",
        found.uid(),
        found.mode() & 0o7777
    );
    Err(StateError::at("trust", folder)(io::Error::new(io::ErrorKind::PermissionDenied, why)))
}

/// Whether a file of a run that isn't finished may belong to somebody who lives.
fn is_somebody_making_one(runs: &Path) -> bool {
    File::open(runs).is_ok_and(|folder| folder.try_lock().is_err())
}

/// A dead run, if that is what a file stands for.
fn look_at(path: &Path) -> Option<Dead> {
    let name = path.file_name()?.to_str()?;
    let (run, unfinished) = match name.strip_prefix(UNFINISHED) {
        Some(rest) => (RunId::parse(rest)?, true),
        None => (RunId::parse(name)?, false),
    };
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(NO_WAIT_NO_LINK).open(path).ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.len() > MOST_BYTES {
        return None; // nothing that we ever made
    }
    if unfinished && is_somebody_making_one(path.parent()?) {
        return None;
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
    }
    // Whoever had the lock may have finished and removed it meanwhile.
    if fs::metadata(path).ok()?.ino() != found.ino() {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let mut lines = text.lines().map(str::to_owned);
    let backend = lines.next().and_then(|name| name.parse().ok());
    Some(Dead { run, backend, traces: lines.collect(), path: path.to_owned(), _file: file })
}

/// What a sweep did.
#[derive(Debug, Default)]
pub struct Swept {
    /// Runs whose remains were removed.
    pub removed: Vec<RunId>,
    /// Runs whose remains could not be removed, and why.
    pub stuck: Vec<(RunId, String)>,
}

impl Engine {
    /// Removes what killed runs left. Cheap when there is nothing: one folder is read.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the folder of runs can't be read.
    pub fn sweep(&self) -> Result<Swept, StateError> {
        let mut swept = Swept::default();
        for dead in self.state.dead()? {
            match self.sweep_one(&dead) {
                Ok(()) => swept.removed.push(dead.run),
                Err(why) => swept.stuck.push((dead.run, why)),
            }
        }
        Ok(swept)
    }

    fn sweep_one(&self, dead: &Dead) -> Result<(), String> {
        let candidate = self.candidates.iter().find(|candidate| Some(candidate.name) == dead.backend);
        if let Some(candidate) = candidate {
            let backend = candidate.backend.as_ref().map_err(|absent| absent.why.clone())?;
            backend.sweep(&dead.traces).map_err(|error| chain(&error))?;
        }
        let events = [
            Event::SandboxClosed { left_processes: 0, swept: true },
            Event::TaskEnd { end: End::BackendLost, policy: None },
        ];
        self.audit.append(&dead.run, &events).map_err(|error| chain(&error))?;
        fs::remove_file(&dead.path).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(random: u8) -> RunId {
        RunId::new(1, [random; 10])
    }

    #[test]
    fn a_living_run_is_not_taken_for_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        let lock = state.begin(&run(1), BackendName::Container, &["/a".into()]).unwrap();
        assert!(state.dead().unwrap().is_empty());
        // A copy of the file without the lock is what a kill leaves.
        let left = state.runs().join(run(2).as_str());
        fs::copy(state.runs().join(run(1).as_str()), left).unwrap();
        let dead = state.dead().unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!((dead[0].run.clone(), dead[0].backend), (run(2), Some(BackendName::Container)));
        assert_eq!(dead[0].traces, ["/a"]);
        drop(lock);
        assert!(!state.runs().join(run(1).as_str()).exists());
    }

    #[test]
    fn what_a_run_had_is_noted_as_anothers_and_the_first_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        let first = state.begin(&run(1), BackendName::Wasm, &["/a".into(), "/b".into()]).unwrap();
        let path = |number| state.runs().join(run(number).as_str());
        let text = fs::read_to_string(path(1)).unwrap();
        let second = state.pass_on(first, &run(2)).unwrap();
        assert!(!path(1).exists());
        assert_eq!(fs::read_to_string(path(2)).unwrap(), text);
        assert!(state.dead().unwrap().is_empty(), "it is locked");
        // Where that can't be noted, nothing changes.
        fs::create_dir(path(3)).unwrap();
        let second = state.pass_on(second, &run(3)).unwrap_err();
        assert!(path(2).exists() && path(3).is_dir());
        drop(second);
        assert!(!path(2).exists());
    }

    #[test]
    fn a_file_that_is_being_made_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        fs::write(state.runs().join(format!("{UNFINISHED}{}", run(3))), "").unwrap();
        fs::write(state.runs().join("something else"), "").unwrap();
        let making = File::open(state.runs()).unwrap();
        making.lock_shared().unwrap();
        assert!(state.dead().unwrap().is_empty());
        // Whoever made it was killed.
        drop(making);
        assert_eq!(state.dead().unwrap().iter().map(|dead| dead.run.clone()).collect::<Vec<_>>(), [run(3)]);
    }

    #[test]
    fn a_run_is_not_begun_twice() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        fs::write(state.runs().join(format!("{UNFINISHED}{}", run(4))), "").unwrap();
        assert!(state.begin(&run(4), BackendName::Wasm, &[]).is_err());
    }
}
