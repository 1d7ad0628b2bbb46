//! What a program changed in its working directory, read when everything inside is dead.
//!
//! Whatever it left is hostile: no link is followed, nothing but regular files is opened, and what
//! can't be read is said rather than waited for. What was shown is compared byte for byte, so that
//! touching a file doesn't change it; only what is in the program's own layer is read, and no more of it
//! than bounds say. The reading has a thread of its own: whoever waits for it can do other things, or stop
//! waiting, which ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cofferdam_core::artifact::{Change, Collect, Rejection};
use cofferdam_core::backend::BackendError;
use cofferdam_core::weaken::{self, Control};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use tokio::sync::mpsc;

use super::survey::open_beneath;
use super::told::{IN_HAND, Stopped, Teller, What};

/// What the program was shown in its working directory.
#[derive(Debug)]
pub(in super::super) enum Base {
    /// A copy of a folder, of which nothing was changed before so many seconds and nanoseconds.
    Copy { source: OwnedFd, hidden: Vec<Vec<u8>>, since: (i64, i64) },
    /// Nothing.
    Empty,
    /// A folder below the program's own layer, with a cover over it.
    Layer { lower: OwnedFd, cover: OwnedFd, hidden: Vec<Vec<u8>> },
}

/// A working directory whose program is dead.
pub(in super::super) struct Changes {
    /// The program's own layer, or the working directory itself.
    pub(in super::super) folder: OwnedFd,
    /// What was shown.
    pub(in super::super) base: Base,
    /// What was put there.
    pub(in super::super) put: Put,
}

/// Files that were put into the working directory: they are no change unless they were changed.
#[derive(Debug, Default)]
pub(in super::super) struct Put {
    /// Keyed hashes of what they held; the key is random, so no program can find another content.
    files: BTreeMap<Vec<u8>, u64>,
    key: RandomState,
}

impl Put {
    pub(in super::super) fn note(&mut self, name: &[u8], bytes: &[u8]) {
        self.files.insert(name.to_vec(), self.key.hash_one(bytes));
    }

    /// Whether a file is as it was put.
    fn is_as_it_was(&self, path: &[u8], file: &mut File, bytes: u64) -> bool {
        /// Longer ones aren't read to see: nothing longer is put.
        const MOST_BYTES: u64 = 64 << 20;
        let Some(hash) = self.files.get(path).filter(|_| bytes <= MOST_BYTES) else { return false };
        let mut content = vec![];
        let read = file.take(MOST_BYTES).read_to_end(&mut content).is_ok() && file.rewind().is_ok();
        read && self.key.hash_one(content.as_slice()) == *hash
    }
}

/// The deepest folder that is read. What may come out is bounded by less.
const DEEPEST: usize = 64;

impl Base {
    /// What was shown at a path, if something was.
    fn stat(&self, path: &[u8]) -> Option<Stat> {
        let file = self.open(path, OFlags::PATH)?;
        rustix::fs::fstat(file).ok()
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Option<OwnedFd> {
        match self {
            Base::Empty => None,
            Base::Copy { hidden, .. } if covers(hidden, path) => None,
            Base::Copy { source, .. } => open_beneath(source.as_fd(), path, flags).ok(),
            Base::Layer { lower, cover, .. } => {
                let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                if ends.any(|end| is_white_out(cover.as_fd(), &path[..end])) {
                    return None;
                }
                match stat(cover.as_fd(), path) {
                    Ok(found) if white_out(&found) => None,
                    Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Directory => {
                        open_beneath(cover.as_fd(), path, flags).ok()
                    }
                    _ => open_beneath(lower.as_fd(), path, flags).ok(),
                }
            }
        }
    }

    /// The names in a folder that was shown.
    fn names(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some(folder) = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) else { return vec![] };
        let mut names = names(folder.as_fd()).unwrap_or_default();
        names.retain(|name| self.stat(&join(path, name)).is_some());
        names
    }

    /// Whether something in a folder isn't shown.
    fn hides_below(&self, path: &[u8]) -> bool {
        let hidden = match self {
            Base::Empty => return false,
            Base::Copy { hidden, .. } | Base::Layer { hidden, .. } => hidden,
        };
        hidden.iter().any(|hidden| hidden.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/")))
    }

    /// Whether a file can't have been changed since it was shown, without reading it. Nobody inside
    /// can set the time at which an inode was changed.
    fn is_untouched(&self, found: &Stat) -> bool {
        let changed = (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or(0));
        matches!(self, Base::Copy { since, .. } if changed < *since)
    }
}

fn covers(hidden: &[Vec<u8>], path: &[u8]) -> bool {
    hidden.iter().any(|hidden| {
        path.strip_prefix(hidden.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    })
}

fn stat(folder: BorrowedFd<'_>, path: &[u8]) -> io::Result<Stat> {
    Ok(rustix::fs::fstat(open_beneath(folder, path, OFlags::PATH)?)?)
}

fn white_out(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
}

fn is_white_out(folder: BorrowedFd<'_>, path: &[u8]) -> bool {
    stat(folder, path).is_ok_and(|found| white_out(&found))
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }
}

/// The names in a folder, in order.
fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(folder, &mut buffer);
    let mut names = vec![];
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(name.to_vec()),
        }
    }
    names.sort();
    Ok(names)
}

impl Changes {
    /// Hands over every change, folders before what is in them. Dropping the future ends the reading.
    ///
    /// # Errors
    ///
    /// As [`Session::get`](cofferdam_core::backend::Session::get).
    pub(in super::super) async fn collect(self, receiver: &mut dyn Collect) -> Result<(), BackendError> {
        let (teller, mut told) = mpsc::channel(IN_HAND);
        let reading = std::thread::Builder::new().spawn(move || {
            let whole = !matches!(self.base, Base::Layer { .. });
            self.folder(&[], whole, 0, &Teller::new(teller))
        });
        let reading = reading.map_err(BackendError::host("start a thread"))?;
        while let Some(told) = told.recv().await {
            told.hand_over(receiver).map_err(|source| BackendError::Collect { source })?;
        }
        match reading.join() {
            Ok(Ok(()) | Err(Stopped::NobodyListens)) => Ok(()),
            Ok(Err(Stopped::Unreadable(error))) => {
                Err(BackendError::host("read the working directory")(error))
            }
            Err(_) => Err(BackendError::host("read the working directory")(io::Error::other("a panic"))),
        }
    }

    /// Looks through one folder. `whole` says that what isn't in it isn't there, however it was shown.
    fn folder(&self, path: &[u8], whole: bool, depth: usize, teller: &Teller) -> Result<(), Stopped> {
        let opened = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY);
        let listed = opened.and_then(|folder| Ok((names(folder.as_fd())?, is_opaque(folder.as_fd()))));
        let (names, opaque) = match listed {
            Ok(listed) => listed,
            Err(error) if path.is_empty() => {
                return Err(Stopped::Unreadable(error));
            }
            Err(error) => return teller.tell(path, Change::Added, What::Refused(unreadable(&error))),
        };
        let whole = whole || opaque;
        if whole {
            for name in self.base.names(path) {
                if names.binary_search(&name).is_err() {
                    self.deleted(&join(path, &name), depth, teller)?;
                }
            }
        }
        for name in names {
            self.entry(&join(path, &name), whole, depth, teller)?;
        }
        Ok(())
    }

    fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        match open_beneath(self.folder.as_fd(), path, flags) {
            // Its owner took the right to read it from themselves, and is us where we aren't root.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !path.is_empty() => {
                rustix::fs::chmodat(self.folder.as_fd(), path, Mode::RWXU, AtFlags::empty())?;
                open_beneath(self.folder.as_fd(), path, flags)
            }
            result => result,
        }
    }

    fn entry(&self, path: &[u8], whole: bool, depth: usize, teller: &Teller) -> Result<(), Stopped> {
        let refused = |why| teller.tell(path, Change::Added, What::Refused(why));
        let found = match stat(self.folder.as_fd(), path) {
            Ok(found) => found,
            Err(error) => return refused(unreadable(&error)),
        };
        if white_out(&found) && !whole {
            return self.deleted(path, depth, teller);
        }
        let before = self.base.stat(path);
        let kind = FileType::from_raw_mode(found.st_mode);
        let same_kind = before.as_ref().is_some_and(|before| FileType::from_raw_mode(before.st_mode) == kind);
        if before.is_some() && !same_kind {
            self.deleted(path, depth, teller)?;
        }
        match kind {
            FileType::Directory => {
                if !same_kind {
                    teller.tell(path, Change::Added, What::Folder)?;
                }
                if depth < DEEPEST { self.folder(path, whole, depth + 1, teller) } else { Ok(()) }
            }
            FileType::RegularFile if same_kind && self.base.is_untouched(&found) => Ok(()),
            FileType::RegularFile => self.file(path, &found, before.filter(|_| same_kind), teller),
            FileType::Symlink => self.link(path, same_kind, teller),
            _ => refused(Rejection::Type),
        }
    }

    fn file(&self, path: &[u8], found: &Stat, before: Option<Stat>, teller: &Teller) -> Result<(), Stopped> {
        let change = if before.is_some() { Change::Modified } else { Change::Added };
        let mut now = match self.open(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => File::from(file),
            Err(error) => return teller.tell(path, change, What::Refused(unreadable(&error))),
        };
        let executable = |found: &Stat| found.st_mode & 0o111 != 0;
        let bytes = u64::try_from(found.st_size).unwrap_or(0);
        let mut then =
            before.and_then(|before| Some((before, File::from(self.base.open(path, OFlags::RDONLY)?))));
        if let Some((before, then)) = &mut then {
            let alike = before.st_size == found.st_size && executable(before) == executable(found);
            if alike && teller.may_compare(bytes) && same_bytes(&mut now, then, teller).unwrap_or(false) {
                return Ok(());
            }
            // A reader that can't go back has told its part already, and ends early below.
            let _ = (now.rewind(), then.rewind());
        } else if self.put.is_as_it_was(path, &mut now, bytes) {
            return Ok(());
        }
        let before = then.map(|(before, then)| (executable(&before), then));
        teller.tell(path, change, What::File { bytes, executable: executable(found), now: Some(now), before })
    }

    fn link(&self, path: &[u8], was_link: bool, teller: &Teller) -> Result<(), Stopped> {
        if weaken::is_off(Control::Links) {
            return self.followed(path, teller);
        }
        let says = |link: OwnedFd| rustix::fs::readlinkat(link, "", vec![]).map_err(io::Error::from);
        let now = match open_beneath(self.folder.as_fd(), path, OFlags::PATH).and_then(says) {
            Ok(now) => now,
            Err(error) => return teller.tell(path, Change::Added, What::Refused(unreadable(&error))),
        };
        let before = self.base.open(path, OFlags::PATH).filter(|_| was_link).and_then(|link| says(link).ok());
        if before.as_ref() == Some(&now) {
            return Ok(());
        }
        let change = if was_link { Change::Modified } else { Change::Added };
        teller.tell(path, change, What::Link(now.into_bytes()))
    }

    /// Tells what a link leads to on the host: what no collector may do, for the test that would notice.
    fn followed(&self, path: &[u8], teller: &Teller) -> Result<(), Stopped> {
        let file = rustix::fs::openat(&self.folder, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let Ok(file) = file.map(File::from) else { return Ok(()) };
        let bytes = file.metadata().map_or(0, |found| found.len());
        let what = What::File { bytes, executable: false, now: Some(file), before: None };
        teller.tell(path, Change::Added, what)
    }

    /// Tells that something which was shown is gone, with everything below it.
    fn deleted(&self, path: &[u8], depth: usize, teller: &Teller) -> Result<(), Stopped> {
        let Some(before) = self.base.stat(path) else { return Ok(()) };
        match FileType::from_raw_mode(before.st_mode) {
            FileType::Directory => {
                // With something hidden in it, it is still there outside.
                if !self.base.hides_below(path) {
                    teller.tell(path, Change::Deleted, What::Folder)?;
                }
                let names = if depth < DEEPEST { self.base.names(path) } else { vec![] };
                names.iter().try_for_each(|name| self.deleted(&join(path, name), depth + 1, teller))
            }
            FileType::RegularFile => {
                let then = self.base.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map(File::from);
                let executable = before.st_mode & 0o111 != 0;
                let bytes = u64::try_from(before.st_size).unwrap_or(0);
                let before = then.map(|then| (executable, then));
                teller.tell(path, Change::Deleted, What::File { bytes, executable, now: None, before })
            }
            FileType::Symlink => {
                let link = self.base.open(path, OFlags::PATH);
                let says = link.and_then(|link| rustix::fs::readlinkat(link, "", vec![]).ok());
                let says = says.map(std::ffi::CString::into_bytes).unwrap_or_default();
                teller.tell(path, Change::Deleted, What::Link(says))
            }
            _ => Ok(()),
        }
    }
}

fn unreadable(error: &io::Error) -> Rejection {
    const ENAMETOOLONG: i32 = 36; // `asm-generic/errno.h`
    if error.raw_os_error() == Some(ENAMETOOLONG) { Rejection::Name } else { Rejection::Unreadable }
}

/// Whether a folder of the program's layer hides what was shown there before it was made anew.
fn is_opaque(folder: BorrowedFd<'_>) -> bool {
    let mut value = [0u8; 1];
    rustix::fs::fgetxattr(folder, "user.overlay.opaque", &mut value).is_ok() && value == *b"y"
}

/// Whether two files hold the same, from where they are. Without anybody to tell it is of no interest.
fn same_bytes(one: &mut File, other: &mut File, teller: &Teller) -> io::Result<bool> {
    let mut buffers = [vec![0; 64 << 10], vec![0; 64 << 10]];
    loop {
        let [first, second] = &mut buffers;
        let count = one.read(first)?;
        if !teller.is_heard() {
            return Ok(false);
        }
        if count == 0 {
            return Ok(other.read(second)? == 0);
        }
        if other.read_exact(&mut second[..count]).is_err() || first[..count] != second[..count] {
            return Ok(false);
        }
    }
}
