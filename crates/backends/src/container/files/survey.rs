//! One walk through a workspace, by name: what isn't shown, and what can't be changed in place.
//!
//! Names alone are read, which is quick; as root it is also asked of each entry whether the program could
//! write it, since only one owner can be shown as the program's user. No link is followed and no other
//! file system is entered. The walk has threads of its own, beside which the sandbox is set up.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cofferdam_core::files::Pattern;
use cofferdam_sys::process;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, StatxFlags};

/// A user and a group of the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Owner {
    pub(in crate::container) user: u32,
    pub(in crate::container) group: u32,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(in super::super) struct Survey {
    /// What isn't shown, relative to the folder. What is below it isn't listed.
    pub(in super::super) hidden: Vec<Vec<u8>>,
    /// What has to be copied: another's, or everything.
    pub(super) foreign: Vec<Foreign>,
    /// Whose most of it is, if that is somebody else than was thought.
    pub(in super::super) most: Option<Owner>,
}

/// An entry that has to be copied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Foreign {
    /// Where it is, relative to the folder.
    pub(super) path: Vec<u8>,
    /// What it is. What is none of these is left out.
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    File,
    Folder,
    Link,
}

impl Kind {
    pub(super) fn of(kind: FileType) -> Option<Self> {
        match kind {
            FileType::Directory => Some(Kind::Folder),
            FileType::RegularFile => Some(Kind::File),
            FileType::Symlink => Some(Kind::Link),
            _ => None,
        }
    }
}

/// Opens a file or folder of the host by its path, in which no link may be left: whoever could swap a
/// part of it for a link since it was resolved gets an error.
pub(in crate::container) fn open_as_resolved(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens something below a folder. Nothing leads out: no link, no `..`, no other file system.
pub(super) fn open_beneath(folder: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let path = if path.is_empty() { b"." } else { path };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)?)
}

/// What a walk looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Everything that is shown, to be copied.
    All,
    /// Hidden names, and what a user and a group of the host's, shown as others, may not write although
    /// it isn't theirs. The walk acts as those others, and sees the folder as they will.
    Foreign {
        /// Whose entries are shown as the program's.
        owner: Owner,
        /// As whom they are shown.
        shown_as: Owner,
    },
    /// Hidden names alone.
    Names,
}

/// A walk that is under way, on threads of its own.
#[derive(Debug)]
pub(in super::super) struct Surveying {
    threads: Vec<JoinHandle<Found>>,
    walk: Arc<Walk>,
}

/// Threads for a walk: it is bound by the processor, and larger trees are seldom.
const MOST_THREADS: usize = 4;

impl Surveying {
    /// Starts a walk through a folder.
    ///
    /// # Errors
    ///
    /// EAGAIN where no further thread may be started.
    pub(super) fn start(folder: OwnedFd, hide: Vec<Pattern>, wanted: Wanted) -> io::Result<Self> {
        let hide = hide.into_iter().map(Hidden::new).collect();
        let queue = Queue { folders: vec![vec![]], busy: 0, failure: None };
        let walk = Walk { folder, hide, wanted, queue: Mutex::new(queue), changed: Condvar::new() };
        let mut surveying = Surveying { threads: vec![], walk: Arc::new(walk) };
        let most = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        for _ in 0..most {
            let walk = Arc::clone(&surveying.walk);
            match std::thread::Builder::new().spawn(move || walk.help()) {
                Ok(thread) => surveying.threads.push(thread),
                Err(error) if surveying.threads.is_empty() => return Err(error),
                Err(_) => break, // those that run can do it all
            }
        }
        Ok(surveying)
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// What the kernel said about a folder.
    pub(in super::super) fn finish(self) -> io::Result<Survey> {
        let mut found = Found::default();
        for thread in self.threads {
            found.add(thread.join().map_err(|_| io::Error::other("a walk through the workspace panicked"))?);
        }
        if let Some(error) = lock(&self.walk.queue).failure.take() {
            return Err(error);
        }
        let mut survey = found.survey;
        survey.hidden.sort();
        // A folder that turned out not to be shown when it was entered isn't copied either.
        survey.foreign.retain(|foreign| survey.hidden.binary_search(&foreign.path).is_err());
        survey.foreign.sort(); // folders before what is in them
        survey.most = match self.walk.wanted {
            Wanted::Foreign { owner, .. } => found.counts.most(owner),
            _ => None,
        };
        Ok(survey)
    }
}

/// Whose entries there are.
#[derive(Debug, Default)]
struct Counts {
    /// What belongs to whom was asked about, or can be written all the same.
    same: usize,
    /// What belongs to others.
    others: BTreeMap<Owner, usize>,
}

impl Counts {
    /// Whose most of it is, if that is somebody else's.
    fn most(&self, asked: Owner) -> Option<Owner> {
        let (owner, count) = self.others.iter().max_by_key(|(_, count)| **count)?;
        (*count > self.same && *owner != asked).then_some(*owner)
    }
}

/// What a walk, or a part of it, found.
#[derive(Debug, Default)]
struct Found {
    survey: Survey,
    counts: Counts,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.survey.hidden.extend(other.survey.hidden);
        self.survey.foreign.extend(other.survey.foreign);
        self.counts.same += other.counts.same;
        for (owner, count) in other.counts.others {
            *self.counts.others.entry(owner).or_default() += count;
        }
    }
}

/// Folders that are still to be read, for as many threads as help.
#[derive(Debug)]
struct Queue {
    folders: Vec<Vec<u8>>,
    /// Threads that are reading one, and may add more.
    busy: usize,
    failure: Option<io::Error>,
}

#[derive(Debug)]
struct Walk {
    folder: OwnedFd,
    hide: Vec<Hidden>,
    wanted: Wanted,
    queue: Mutex<Queue>,
    changed: Condvar,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pattern with what a name must look like for it to match at all, which is quick to see.
#[derive(Debug)]
struct Hidden {
    pattern: Pattern,
    /// What the name begins with.
    start: Vec<u8>,
    /// Whether that is the whole name.
    whole: bool,
}

impl Hidden {
    fn new(pattern: Pattern) -> Self {
        let text = pattern.as_str();
        let last = text.rsplit('/').next().unwrap_or(text);
        let special = text.contains('{').then_some(0).or_else(|| last.find(['*', '?', '[', '\\']));
        let start = last.as_bytes()[..special.unwrap_or(last.len())].to_vec();
        Hidden { pattern, start, whole: special.is_none() }
    }

    fn matches(&self, name: &[u8], path: &[u8]) -> bool {
        let looks = if self.whole { name == self.start } else { name.starts_with(&self.start) };
        looks && self.pattern.matches(path)
    }
}

impl Walk {
    /// Reads folders until none is left.
    fn help(&self) -> Found {
        let mut found = Found::default();
        if let Wanted::Foreign { shown_as, .. } = self.wanted
            && let Err(error) = process::read_as(shown_as.user, shown_as.group)
        {
            self.fail(error);
        }
        while let Some(path) = self.next() {
            let mut folders = vec![];
            let result = self.entries(&path, &mut folders, &mut found);
            {
                let mut queue = lock(&self.queue);
                queue.busy -= 1;
                queue.folders.append(&mut folders);
            }
            self.changed.notify_all();
            if let Err(error) = result {
                self.fail(error);
            }
        }
        found
    }

    /// The next folder to read; none when all are read, or one couldn't be.
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.failure.is_some() {
                return None;
            }
            if let Some(path) = queue.folders.pop() {
                queue.busy += 1;
                return Some(path);
            }
            if queue.busy == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fail(&self, error: io::Error) {
        lock(&self.queue).failure.get_or_insert(error);
        self.changed.notify_all();
    }

    fn entries(&self, path: &[u8], folders: &mut Vec<Vec<u8>>, found: &mut Found) -> io::Result<()> {
        let opened = open_beneath(self.folder.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY);
        let folder = match opened {
            Ok(folder) => folder,
            // What can't be looked through isn't shown: its owner inside could open it.
            Err(error) if !path.is_empty() && error.kind() == io::ErrorKind::PermissionDenied => {
                found.survey.hidden.push(path.to_vec());
                return Ok(());
            }
            Err(error) if !path.is_empty() && is_nothing_to_see(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(&folder, &mut buffer);
        let mut whole = path.to_vec();
        if !path.is_empty() {
            whole.push(b'/');
        }
        let stem = whole.len();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            whole.truncate(stem);
            whole.extend_from_slice(name.to_bytes());
            if self.hide.iter().any(|hidden| hidden.matches(name.to_bytes(), &whole)) {
                found.survey.hidden.push(whole.clone());
                continue;
            }
            let seen = Seen { folder: folder.as_fd(), name, path: &whole };
            if self.look(&seen, entry.file_type(), found)? == Some(Kind::Folder) {
                folders.push(whole.clone());
            }
        }
        Ok(())
    }

    /// Looks at one entry that is shown; gives what it is, unless it is gone meanwhile.
    fn look(&self, seen: &Seen<'_>, kind: FileType, found: &mut Found) -> io::Result<Option<Kind>> {
        let kind = if kind == FileType::Unknown {
            let Some((kind, _)) = seen.stat()? else { return Ok(None) };
            kind
        } else {
            kind
        };
        let kind = Kind::of(kind);
        match (self.wanted, kind) {
            (Wanted::All, Some(kind)) => found.survey.foreign.push(seen.foreign(kind)),
            (Wanted::Foreign { owner, .. }, Some(kind)) => seen.weigh(kind, owner, found)?,
            _ => {}
        }
        Ok(kind)
    }
}

/// An entry that a walk has come to.
struct Seen<'a> {
    folder: BorrowedFd<'a>,
    name: &'a CStr,
    /// Its path from the workspace on.
    path: &'a [u8],
}

impl Seen<'_> {
    fn foreign(&self, kind: Kind) -> Foreign {
        Foreign { path: self.path.to_vec(), kind }
    }

    /// What it is and whose; none if it is gone.
    fn stat(&self) -> io::Result<Option<(FileType, Owner)>> {
        let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::GID;
        match rustix::fs::statx(self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
            Ok(stat) => {
                let owner = Owner { user: stat.stx_uid, group: stat.stx_gid };
                Ok(Some((FileType::from_raw_mode(stat.stx_mode.into()), owner)))
            }
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes it if the program couldn't make it writable: what can be written is nobody's business.
    fn weigh(&self, kind: Kind, owner: Owner, found: &mut Found) -> io::Result<()> {
        match process::may_write_at(self.folder, self.name) {
            Ok(true) => found.counts.same += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(false) => match self.stat()? {
                Some((_, whose)) if whose != owner => {
                    *found.counts.others.entry(whose).or_default() += 1;
                    found.survey.foreign.push(self.foreign(kind));
                }
                _ => found.counts.same += 1,
            },
        }
        Ok(())
    }
}

/// A folder that the program won't see anything in either: gone, or another file system, which an
/// overlay doesn't show.
fn is_nothing_to_see(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::CrossesDevices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(text).unwrap()).collect()
    }

    fn survey(folder: &Path, hide: &[Pattern], wanted: Wanted) -> Survey {
        let folder = open_as_resolved(&folder.canonicalize().unwrap(), OFlags::RDONLY).unwrap();
        Surveying::start(folder, hide.to_vec(), wanted).unwrap().finish().unwrap()
    }

    /// Whoever a folder belongs to, shown as who they are.
    fn ours(folder: &Path) -> Wanted {
        use std::os::unix::fs::MetadataExt;
        let found = fs::metadata(folder).unwrap();
        let owner = Owner { user: found.uid(), group: found.gid() };
        Wanted::Foreign { owner, shown_as: owner }
    }

    fn strings(paths: &[Vec<u8>]) -> Vec<String> {
        paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
    }

    #[test]
    fn hidden_names_are_found_at_every_depth_and_nothing_below_them_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in ["a/b/c", ".git/hooks/sub", "x"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        for path in ["a/b/.env.local", ".env", ".git/hooks/pre-commit", ".git/config", "x/env"] {
            fs::write(at(path), "").unwrap();
        }
        std::os::unix::fs::symlink("/", at("x/root")).unwrap();
        let hide = patterns(&["**/.env*", "**/.git/hooks"]);
        for wanted in [Wanted::Names, ours(folder.path())] {
            if wanted != Wanted::Names && process::effective_user() != 0 {
                continue; // only root asks whose files are
            }
            let survey = survey(folder.path(), &hide, wanted);
            assert_eq!(strings(&survey.hidden), [".env", ".git/hooks", "a/b/.env.local"]);
            assert_eq!(survey.foreign, []);
        }
    }

    #[test]
    fn a_quick_look_at_a_name_never_changes_what_a_pattern_says() {
        for text in [
            "**/.env*",
            "**/.git/hooks",
            "a/*",
            "**",
            "x/**",
            "*.txt",
            "{a,b}/c",
            "a{b,c}",
            "[ab]c",
            "\\*x",
            "?",
        ] {
            let pattern = Pattern::new(text).unwrap();
            let hidden = Hidden::new(pattern.clone());
            for path in [
                "a",
                "b",
                ".env",
                "d/.envrc",
                ".git/hooks",
                "x/.git/hooks",
                "hooks",
                "a/b",
                "b/c",
                "ab",
                "bc",
                "*x",
                "q.txt",
            ] {
                let name = path.rsplit('/').next().unwrap();
                let quick = hidden.matches(name.as_bytes(), path.as_bytes());
                assert_eq!(quick, pattern.matches(path.as_bytes()), "{text} and {path}");
            }
        }
    }

    #[test]
    fn everything_is_listed_once_folders_first_and_without_what_cannot_be_copied() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..300 {
            fs::create_dir_all(folder.path().join(format!("d{n}/e"))).unwrap();
            fs::write(folder.path().join(format!("d{n}/e/f")), "").unwrap();
        }
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        std::os::unix::fs::symlink("d1", folder.path().join("link")).unwrap();
        let survey = survey(folder.path(), &[], Wanted::All);
        assert_eq!(survey.foreign.len(), 901);
        assert!(survey.foreign.windows(2).all(|two| two[0].path < two[1].path));
        assert!(survey.foreign.iter().all(|entry| entry.path != b"socket"));
    }

    #[test]
    fn what_belongs_to_somebody_else_than_most_is_told_apart() {
        if process::effective_user() != 0 {
            cofferdam_testkit::skip!("giving files away is for root");
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "mine"] {
            fs::write(folder.path().join(name), "").unwrap();
            if name != "mine" {
                std::os::unix::fs::chown(folder.path().join(name), Some(4242), Some(4243)).unwrap();
            }
        }
        let survey = survey(folder.path(), &[], ours(folder.path()));
        assert_eq!(survey.most, Some(Owner { user: 4242, group: 4243 }));
        let theirs = Owner { user: 4242, group: 4243 };
        let survey = self::survey(folder.path(), &[], Wanted::Foreign { owner: theirs, shown_as: theirs });
        assert_eq!(survey.most, None);
        assert_eq!(survey.foreign, [Foreign { path: b"mine".to_vec(), kind: Kind::File }]);
    }
}
