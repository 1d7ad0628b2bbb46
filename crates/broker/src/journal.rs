//! The journal: a file for each lease that may live, which is on disk before an issuer is asked for it.
//!
//! A file is locked for as long as the process lives that is responsible for its lease. One that nobody holds is an
//! orphan: whoever finds it revokes what it says. Nothing secret is in it: an issuer can revoke by the handle, and by
//! what it has kept.
//!
//! A file has a line of JSON for the lease as it is asked for, and one more when its issuer has something to keep: the
//! last that is whole counts. Lines are added and none is overwritten, so a crash in between loses no earlier one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use crate::issuer::Kept;

/// What is known of a lease from before it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The run that it is for.
    pub(crate) run: String,
    /// The credential's name.
    pub(crate) name: String,
    /// Its issuer's.
    pub(crate) issuer: String,
    /// What it may do.
    pub(crate) scope: BTreeMap<String, Vec<String>>,
    /// By what its issuer knows it.
    pub(crate) handle: String,
    /// When it was asked for, in seconds of Unix time.
    pub(crate) minted: u64,
    /// When it ends by itself, in the same.
    pub(crate) expires: Option<u64>,
    /// What its issuer needs to end it after a crash, from when it was minted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<Kept>,
}

impl Entry {
    fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The folder of entries.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
}

/// An entry that is this process's. Dropped, it is an orphan, unless it was closed.
#[derive(Debug)]
pub(crate) struct Open {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens it below a folder for state, and makes it if it isn't there.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("leases");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Journal { folder })
    }

    /// Writes an entry, which is on disk afterwards.
    ///
    /// # Errors
    ///
    /// What the kernel said: then nothing may be minted.
    pub(crate) fn begin(&self, entry: &Entry) -> io::Result<Open> {
        let path = self.folder.join(format!("{}.json", entry.handle));
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = (|| {
            // Before there is anything to read: who finds it unlocked takes it for an orphan.
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            if file.metadata()?.nlink() == 0 {
                // Somebody looked for orphans just before, and took it for one.
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all(&entry.line()?)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()
        })();
        if matches!(&written, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            return self.begin(entry);
        }
        if let Err(error) = written {
            let _ = fs::remove_file(&path); // it says nothing that could be revoked
            return Err(error);
        }
        Ok(Open { path, file })
    }

    /// The entries that no living process is responsible for; this one is from now on for those that are `wanted`.
    ///
    /// # Errors
    ///
    /// What the kernel said of the folder. An entry that can't be read is left out.
    pub(crate) fn orphans(&self, wanted: impl Fn(&Entry) -> bool) -> io::Result<Vec<(Entry, Open)>> {
        let mut found = vec![];
        for path in entries(&self.folder)? {
            found.extend(take(path).ok().flatten().filter(|(entry, _)| wanted(entry)));
        }
        Ok(found)
    }
}

impl Open {
    /// Adds what is known now, which is on disk afterwards.
    ///
    /// # Errors
    ///
    /// What the kernel said: then what is known must not be handed out.
    pub(crate) fn amend(&self, entry: &Entry) -> io::Result<()> {
        (&self.file).write_all(&entry.line()?)?;
        self.file.sync_all()
    }

    /// Forgets a lease that is dead.
    ///
    /// # Errors
    ///
    /// What the kernel said: then it is revoked once more by the next command, which does no harm.
    pub(crate) fn close(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

fn take(path: PathBuf) -> io::Result<Option<(Entry, Open)>> {
    // What isn't a file is none of ours, and opening it must not wait.
    let mut file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // Somebody else may have closed it between the two calls.
    if !path.exists() {
        return Ok(None);
    }
    let mut text = vec![];
    file.read_to_end(&mut text)?;
    match last(&text) {
        Some(entry) => Ok(Some((entry, Open { path, file }))),
        // It was being written when its process died, so nothing was asked for.
        None => fs::remove_file(&path).map(|()| None),
    }
}

/// The last line of an entry that is whole.
fn last(text: &[u8]) -> Option<Entry> {
    serde_json::Deserializer::from_slice(text).into_iter::<Entry>().map_while(Result::ok).last()
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let is_one = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    Ok(paths.collect::<io::Result<Vec<_>>>()?.into_iter().filter(is_one).collect())
}

/// Leases that nobody is responsible for, as far as that is seen without the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphans;

impl Orphans {
    /// Whether there are any. A run without credentials asks this, and starts no broker if there are none.
    #[must_use]
    pub fn are_there(state: &Path) -> bool {
        let is_free = |path: &PathBuf| {
            File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
        };
        entries(&state.join("leases")).is_ok_and(|paths| paths.iter().any(is_free))
    }
}

/// A lease that may live, as the journal has it: it was asked for, and nobody has seen it dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayLive {
    /// The run that it is for.
    pub run: String,
    /// The credential's name.
    pub name: String,
    /// Who mints it.
    pub issuer: String,
    /// What it may do.
    pub scope: BTreeMap<String, Vec<String>>,
    /// When it was asked for.
    pub minted: SystemTime,
    /// When it ends by itself; none where its issuer has no such thing.
    pub expires: Option<SystemTime>,
    /// Whether a living process is responsible for it. If none is, the next command revokes it.
    pub is_held: bool,
}

impl MayLive {
    /// All of them, the oldest first. No broker is started.
    ///
    /// # Errors
    ///
    /// What the kernel said of the folder. One that was closed meanwhile is left out.
    pub fn all(state: &Path) -> io::Result<Vec<MayLive>> {
        let paths = match entries(&state.join("leases")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]), // nothing was ever minted
            paths => paths?,
        };
        let mut all: Vec<_> = paths.iter().filter_map(|path| MayLive::read(path).ok().flatten()).collect();
        all.sort_by(|one, other| {
            (one.minted, &one.run, &one.name).cmp(&(other.minted, &other.run, &other.name))
        });
        Ok(all)
    }

    fn read(path: &Path) -> io::Result<Option<MayLive>> {
        let mut file = File::open(path)?;
        let mut text = vec![];
        file.read_to_end(&mut text)?;
        let is_held = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let time = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(last(&text).map(|entry| MayLive {
            run: entry.run,
            name: entry.name,
            issuer: entry.issuer,
            scope: entry.scope,
            minted: time(entry.minted),
            expires: entry.expires.map(time),
            is_held,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(handle: &str) -> Entry {
        Entry {
            run: "r_1".into(),
            name: "orders".into(),
            issuer: "postgres.main".into(),
            scope: BTreeMap::from([("database".into(), vec!["shop".into()])]),
            handle: handle.into(),
            minted: 7,
            expires: Some(8),
            kept: None,
        }
    }

    #[test]
    fn what_nobody_is_responsible_for_is_found_once() {
        let state = tempfile::tempdir().unwrap();
        assert!(!Orphans::are_there(state.path()), "there is no folder yet");
        let journal = Journal::open(state.path()).unwrap();
        let open = journal.begin(&entry("one")).unwrap();
        assert!(!Orphans::are_there(state.path()) && journal.orphans(|_| true).unwrap().is_empty());
        drop(open);
        assert!(Orphans::are_there(state.path()));
        let orphans = journal.orphans(|_| true).unwrap();
        assert_eq!(orphans.iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>(), [entry("one")]);
        assert!(journal.orphans(|_| true).unwrap().is_empty(), "it is somebody's now");
        for (_, open) in orphans {
            open.close().unwrap();
        }
        assert!(!Orphans::are_there(state.path()));
    }

    #[test]
    fn who_looks_sees_whose_it_is_and_takes_nothing() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(MayLive::all(state.path()).unwrap(), []);
        assert!(!state.path().join("leases").exists(), "looking makes no folder");
        let journal = Journal::open(state.path()).unwrap();
        let held = journal.begin(&entry("one")).unwrap();
        drop(journal.begin(&Entry { name: "older".into(), minted: 1, ..entry("two") }).unwrap());
        fs::write(journal.folder.join("half.json"), b"{\"run\":").unwrap();
        let seen = || -> Vec<_> {
            let all = MayLive::all(state.path()).unwrap();
            all.into_iter().map(|lease| (lease.name, lease.is_held)).collect()
        };
        assert_eq!(seen(), [("older".to_owned(), false), ("orders".to_owned(), true)]);
        assert_eq!(MayLive::all(state.path()).unwrap()[1].expires, Some(UNIX_EPOCH + Duration::from_secs(8)));
        assert!(journal.orphans(|entry| entry.name == "orders").unwrap().is_empty(), "it is somebody's");
        let orphans = journal.orphans(|entry| entry.name == "older").unwrap();
        assert_eq!(orphans.len(), 1, "what wasn't wanted before is nobody's still");
        held.close().unwrap();
        assert_eq!(seen(), [("older".to_owned(), true)]);
    }

    #[test]
    fn what_was_cut_short_was_asked_of_nobody() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::open(state.path()).unwrap();
        let path = journal.folder.join("half.json");
        fs::write(&path, b"{\"run\":").unwrap();
        assert!(journal.orphans(|_| true).unwrap().is_empty() && !path.exists());
    }

    #[test]
    fn what_is_kept_is_found_and_a_line_that_was_cut_short_takes_none_before_it_away() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::open(state.path()).unwrap();
        let amended = Entry { kept: Some(Kept(serde_json::json!({"revoke": ["r"]}))), ..entry("one") };
        let open = journal.begin(&entry("one")).unwrap();
        open.amend(&amended).unwrap();
        drop(open);
        let path = journal.folder.join("one.json");
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for (length, expected) in
            [(whole.len(), &amended), (whole.len() - 9, &entry("one")), (first, &entry("one"))]
        {
            fs::write(&path, &whole[..length]).unwrap();
            let orphans = journal.orphans(|_| true).unwrap();
            assert_eq!(orphans.iter().map(|(entry, _)| entry).collect::<Vec<_>>(), [expected], "{length}");
        }
    }

    #[test]
    fn a_handle_is_used_once() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::open(state.path()).unwrap();
        let _open = journal.begin(&entry("one")).unwrap();
        assert!(journal.begin(&entry("one")).is_err());
    }
}
