//! What a program changed in its working directory, and what of that may come out.
//!
//! Everything here comes from a sandbox: names, sizes and targets are hostile. [`Found`] is what a
//! backend sees of one entry, a [`Judge`] says whether it may come out, and a [`Collect`] takes it.

mod host_exec;
mod judge;
mod name;

use std::fmt;
use std::io;

pub use judge::{ENTRIES, Judge, TOTAL_BYTES};
pub use name::{DEPTH, NAME_BYTES, PATH_BYTES, SHOWN_BYTES, shown};

/// How an entry differs from what the program was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It wasn't there.
    Added,
    /// It is no longer there.
    Deleted,
    /// It is another than it was.
    Modified,
}

impl Change {
    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Deleted => "deleted",
            Change::Modified => "modified",
        }
    }
}

/// One entry that differs. Its contents are read only while it is handed over.
pub struct Found<'a> {
    /// Where it is: relative to the working directory, components separated by `/`, any bytes.
    pub path: &'a [u8],
    /// How it differs.
    pub change: Change,
    /// What it is now; what it was, if it is deleted.
    pub entry: Entry<'a>,
}

/// What an entry is.
pub enum Entry<'a> {
    /// A regular file.
    File(FileFound<'a>),
    /// A folder. Only an added or deleted one is worth telling.
    Folder,
    /// A symbolic link and what it says.
    Link(&'a [u8]),
    /// Something that can't be taken out whatever the rules say.
    Refused(Rejection),
}

/// A regular file that was found.
pub struct FileFound<'a> {
    /// Its apparent size in bytes; holes count.
    pub bytes: u64,
    /// Whether it may be executed.
    pub executable: bool,
    /// What it holds now. Nothing for a deleted file.
    pub now: Option<&'a mut dyn io::Read>,
    /// What it held before; nothing for an added file.
    pub before: Option<Before<'a>>,
}

/// A regular file as the program was shown it.
pub struct Before<'a> {
    /// Whether it could be executed.
    pub executable: bool,
    /// What it held.
    pub content: &'a mut dyn io::Read,
}

/// Takes what a program changed, entry by entry: folders before what is in them.
pub trait Collect: Send {
    /// Takes one entry. What it doesn't read of the entry's contents is skipped.
    ///
    /// # Errors
    ///
    /// What the receiver's own file system said; it ends the collection. A sandbox that can't be
    /// read is not its business.
    fn take(&mut self, found: Found<'_>) -> io::Result<()>;
}

/// Why an entry doesn't come out. Names are public: people script against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rejection {
    /// Its name differs from another's in case alone: one of them would be lost where case doesn't count.
    Collision,
    /// There are more entries than may come out.
    Count,
    /// It is too deep below the working directory.
    Depth,
    /// It has the name of something that the program wasn't shown, which it would take the place of.
    Hidden,
    /// A tool of the host may run it or obey it, and the policy doesn't keep it.
    HostExec,
    /// Its name is no text, too long, or has characters that drive a terminal.
    Name,
    /// All that comes out together would be larger than it may be.
    Size,
    /// A link that leads out of the working directory, or may be made to.
    Symlink,
    /// A device, a FIFO or a socket.
    Type,
    /// It couldn't be read.
    Unreadable,
}

impl Rejection {
    /// Every reason, by name.
    pub const ALL: [Rejection; 10] = [
        Rejection::Collision,
        Rejection::Count,
        Rejection::Depth,
        Rejection::Hidden,
        Rejection::HostExec,
        Rejection::Name,
        Rejection::Size,
        Rejection::Symlink,
        Rejection::Type,
        Rejection::Unreadable,
    ];

    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rejection::Collision => "collision",
            Rejection::Count => "count",
            Rejection::Depth => "depth",
            Rejection::Hidden => "hidden",
            Rejection::HostExec => "host_exec",
            Rejection::Name => "name",
            Rejection::Size => "size",
            Rejection::Symlink => "symlink",
            Rejection::Type => "type",
            Rejection::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file that came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Where it was, relative to the working directory.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The SHA-256 of what it holds, in lower-case hexadecimal.
    pub sha256: String,
}

/// An entry that did not come out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Where it was; bytes that are no text, and characters that drive a terminal, are spelled out.
    pub path: String,
    /// Why.
    pub why: Rejection,
}
