//! One walk through a workspace, by name: what isn't shown, and what can't be changed in place.
//!
//! Names alone are read, which is quick; as root each entry's owner too, since only one owner can be
//! shown as the program's user. No link is followed and no other file system is entered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

use cofferdam_core::files::Pattern;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, StatxFlags};

/// A user and a group of the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(in super::super) struct Survey {
    /// What isn't shown, relative to the folder. What is below it isn't listed.
    pub(in super::super) hidden: Vec<Vec<u8>>,
    /// What has to be copied: another's, or everything.
    pub(super) foreign: Vec<Foreign>,
    /// The owner of most of it.
    pub(super) owner: Owner,
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

/// Opens the folder that a walk begins at.
pub(super) fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Everything.
    All,
    /// What belongs to somebody else.
    OtherThan(Owner),
    /// Hidden names alone.
    Nothing,
}

impl Survey {
    /// Everything that is shown, to be copied.
    pub(super) fn of_everything(folder: BorrowedFd<'_>, hide: &[Pattern]) -> io::Result<Self> {
        let mut survey = Walk::new(folder, hide, Wanted::All).run()?.survey;
        survey.foreign.sort(); // folders before what is in them
        Ok(survey)
    }

    /// Hidden names and, if `owners` matter, what doesn't belong to whom most of it belongs to.
    pub(super) fn of_what_needs_care(
        folder: BorrowedFd<'_>,
        hide: &[Pattern],
        owners: bool,
    ) -> io::Result<Self> {
        if !owners {
            return Ok(Walk::new(folder, hide, Wanted::Nothing).run()?.survey);
        }
        let top = rustix::fs::fstat(folder)?;
        let guess = Owner { user: top.st_uid, group: top.st_gid };
        let first = Walk::new(folder, hide, Wanted::OtherThan(guess)).run()?;
        let most =
            first.others.iter().max_by_key(|(_, count)| **count).map(|(owner, count)| (*owner, *count));
        let mut found = match most {
            Some((owner, count)) if count > first.same => {
                Survey { owner, ..Walk::new(folder, hide, Wanted::OtherThan(owner)).run()?.survey }
            }
            _ => Survey { owner: guess, ..first.survey },
        };
        found.foreign.sort();
        Ok(found)
    }
}

/// What one walk, or a part of it, found.
#[derive(Default)]
struct Found {
    survey: Survey,
    /// Entries of the owner that was asked about.
    same: usize,
    /// Entries of others.
    others: BTreeMap<Owner, usize>,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.survey.hidden.extend(other.survey.hidden);
        self.survey.foreign.extend(other.survey.foreign);
        self.same += other.same;
        for (owner, count) in other.others {
            *self.others.entry(owner).or_default() += count;
        }
    }
}

/// Folders that are still to be read, for as many threads as help.
struct Queue {
    folders: Vec<Vec<u8>>,
    /// Threads that are reading one, and may add more.
    busy: usize,
    failure: Option<io::Error>,
}

struct Walk<'a> {
    folder: BorrowedFd<'a>,
    hide: Vec<Hidden<'a>>,
    wanted: Wanted,
}

impl<'a> Walk<'a> {
    fn new(folder: BorrowedFd<'a>, hide: &'a [Pattern], wanted: Wanted) -> Self {
        Walk { folder, hide: hide.iter().map(Hidden::new).collect(), wanted }
    }
}

/// Waiting folders from which on another thread pays: each holds some dozens of entries.
const WORTH_A_THREAD: usize = 3;

/// A pattern with what a name must look like for it to match at all, which is quick to see.
struct Hidden<'a> {
    pattern: &'a Pattern,
    /// What the name begins with.
    start: &'a [u8],
    /// Whether that is the whole name.
    whole: bool,
}

impl<'a> Hidden<'a> {
    fn new(pattern: &'a Pattern) -> Self {
        let text = pattern.as_str();
        let last = text.rsplit('/').next().unwrap_or(text);
        let special = text.contains('{').then_some(0).or_else(|| last.find(['*', '?', '[', '\\']));
        let start = &last.as_bytes()[..special.unwrap_or(last.len())];
        Hidden { pattern, start, whole: special.is_none() }
    }

    fn matches(&self, name: &[u8], path: &[u8]) -> bool {
        let looks = if self.whole { name == self.start } else { name.starts_with(self.start) };
        looks && self.pattern.matches(path)
    }
}

impl Walk<'_> {
    fn run(&self) -> io::Result<Found> {
        let queue = Mutex::new(Queue { folders: vec![vec![]], busy: 0, failure: None });
        let changed = Condvar::new();
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(8));
        let mut all = std::thread::scope(|scope| {
            let mut found = Found::default();
            let mut helpers = vec![];
            while let Some(path) = next(&queue, &changed) {
                let waiting = self.read(&path, &queue, &changed, &mut found);
                if waiting > WORTH_A_THREAD && helpers.is_empty() {
                    helpers.extend((1..threads).map(|_| scope.spawn(|| self.help(&queue, &changed))));
                }
            }
            for helper in helpers {
                found.add(helper.join().unwrap_or_default()); // a panic has been reported by itself
            }
            found
        });
        if let Some(error) = queue.into_inner().unwrap_or_else(PoisonError::into_inner).failure {
            return Err(error);
        }
        all.survey.hidden.sort();
        Ok(all)
    }

    fn help(&self, queue: &Mutex<Queue>, changed: &Condvar) -> Found {
        let mut found = Found::default();
        while let Some(path) = next(queue, changed) {
            self.read(&path, queue, changed, &mut found);
        }
        found
    }

    /// Reads one folder and queues those in it. Says how many wait.
    fn read(&self, path: &[u8], queue: &Mutex<Queue>, changed: &Condvar, found: &mut Found) -> usize {
        let mut folders = vec![];
        let result = self.entries(path, &mut folders, found);
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.busy -= 1;
        match result {
            Ok(()) => queue.folders.append(&mut folders),
            Err(error) => {
                queue.folders.clear();
                queue.failure.get_or_insert(error);
            }
        }
        changed.notify_all();
        queue.folders.len()
    }

    fn entries(&self, path: &[u8], folders: &mut Vec<Vec<u8>>, found: &mut Found) -> io::Result<()> {
        let opened = open_beneath(self.folder, path, OFlags::RDONLY | OFlags::DIRECTORY);
        let folder = match opened {
            Ok(folder) => folder,
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
            let kind = self.look(folder.as_fd(), name, entry.file_type(), &whole, found)?;
            if kind == Some(Kind::Folder) {
                folders.push(whole.clone());
            }
        }
        Ok(())
    }

    /// Looks at one entry that is shown; gives what it is, unless it is gone meanwhile.
    fn look(
        &self,
        folder: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        kind: FileType,
        path: &[u8],
        found: &mut Found,
    ) -> io::Result<Option<Kind>> {
        let by_name = Kind::of(kind);
        let foreign = |kind: Kind| Foreign { path: path.to_vec(), kind };
        if kind != FileType::Unknown && !matches!(self.wanted, Wanted::OtherThan(_)) {
            if self.wanted == Wanted::All {
                found.survey.foreign.extend(by_name.map(foreign));
            }
            return Ok(by_name);
        }
        let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::GID;
        let stat = match rustix::fs::statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(kind) = Kind::of(FileType::from_raw_mode(stat.stx_mode.into())) else { return Ok(None) };
        let owner = Owner { user: stat.stx_uid, group: stat.stx_gid };
        match self.wanted {
            Wanted::Nothing => {}
            Wanted::OtherThan(same) if same == owner => found.same += 1,
            Wanted::OtherThan(_) => {
                *found.others.entry(owner).or_default() += 1;
                found.survey.foreign.push(foreign(kind));
            }
            Wanted::All => found.survey.foreign.push(foreign(kind)),
        }
        Ok(Some(kind))
    }
}

/// The next folder to read; none when all are read.
fn next(queue: &Mutex<Queue>, changed: &Condvar) -> Option<Vec<u8>> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(path) = queue.folders.pop() {
            queue.busy += 1;
            return Some(path);
        }
        if queue.busy == 0 {
            return None;
        }
        queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// A folder that the program won't see anything in either: not ours to read, gone, or another file
/// system, which an overlay doesn't show.
fn is_nothing_to_see(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound | io::ErrorKind::CrossesDevices
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(text).unwrap()).collect()
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
        let open = open_folder(folder.path()).unwrap();
        let hide = patterns(&["**/.env*", "**/.git/hooks"]);
        for owners in [false, true] {
            let survey = Survey::of_what_needs_care(open.as_fd(), &hide, owners).unwrap();
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
            let hidden = Hidden::new(&pattern);
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
        let open = open_folder(folder.path()).unwrap();
        let survey = Survey::of_everything(open.as_fd(), &[]).unwrap();
        assert_eq!(survey.foreign.len(), 901);
        assert!(survey.foreign.windows(2).all(|two| two[0].path < two[1].path));
        assert!(survey.foreign.iter().all(|entry| entry.path != b"socket"));
    }

    #[test]
    fn what_belongs_to_somebody_else_than_most_is_told_apart() {
        if cofferdam_sys::process::effective_user() != 0 {
            cofferdam_testkit::skip!("giving files away is for root");
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "mine"] {
            fs::write(folder.path().join(name), "").unwrap();
            if name != "mine" {
                std::os::unix::fs::chown(folder.path().join(name), Some(4242), Some(4243)).unwrap();
            }
        }
        let open = open_folder(folder.path()).unwrap();
        let survey = Survey::of_what_needs_care(open.as_fd(), &[], true).unwrap();
        assert_eq!(survey.owner, Owner { user: 4242, group: 4243 });
        assert_eq!(survey.foreign, [Foreign { path: b"mine".to_vec(), kind: Kind::File }]);
    }
}
