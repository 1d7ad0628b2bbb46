//! What takes a program's changes where they are to go: the edge's side of a collection.
//!
//! The engine has judged each entry by then, so that its path and what a link says are text that can
//! be used as they are. A [`Content`] gives what was judged and no byte more, and knows its SHA-256
//! when it has been read.

use std::io::{self, Read};

use cofferdam_core::artifact::{Change, Rejected};
use cofferdam_core::outcome::RunId;
use sha2::{Digest, Sha256};

/// Takes what a program changed. An error of any method but [`Keep::file`] and [`Keep::gone`] is a
/// failure to write, and ends the collection.
pub trait Keep: Send {
    /// The program has ended; entries follow, folders before what is in them.
    ///
    /// # Errors
    ///
    /// What the place's file system said.
    fn begin(&mut self, run: &RunId) -> io::Result<()>;

    /// Takes a folder that was made, or that took the place of something else.
    ///
    /// # Errors
    ///
    /// What the place's file system said.
    fn folder(&mut self, path: &str, change: Change) -> io::Result<()>;

    /// Takes a file that was added or modified.
    ///
    /// # Errors
    ///
    /// What a content or the place's file system said; it need not tell them apart. Nothing of the
    /// file is then left in the place.
    fn file(&mut self, file: FileKept<'_, '_>) -> io::Result<()>;

    /// Takes a symbolic link that was added or modified.
    ///
    /// # Errors
    ///
    /// What the place's file system said.
    fn link(&mut self, path: &str, target: &str, change: Change) -> io::Result<()>;

    /// Takes notice of what is no longer there.
    ///
    /// # Errors
    ///
    /// As [`Keep::file`].
    fn gone(&mut self, path: &str, what: Gone<'_>) -> io::Result<()>;

    /// Takes notice of what did not come out.
    ///
    /// # Errors
    ///
    /// What the place's file system said.
    fn rejected(&mut self, rejected: &Rejected) -> io::Result<()>;

    /// There is no more. What was taken is whole only when this has returned.
    ///
    /// # Errors
    ///
    /// What the place's file system said.
    fn finish(&mut self) -> io::Result<()>;
}

/// A file that comes out.
pub struct FileKept<'a, 'b> {
    /// Where it is, below the working directory.
    pub path: &'a str,
    /// Whether it is new or another.
    pub change: Change,
    /// Whether it may be executed.
    pub executable: bool,
    /// What it holds now.
    pub now: &'a mut Content<'b>,
    /// What it held before; nothing where it wasn't there, or was no file.
    pub before: Option<Former<'a>>,
}

/// A file as it was before the program ran.
pub struct Former<'a> {
    /// Whether it could be executed.
    pub executable: bool,
    /// What it held.
    pub content: &'a mut dyn Read,
}

/// Something that is no longer there.
pub enum Gone<'a> {
    /// A file, and what it held, where that is known.
    File(Option<Former<'a>>),
    /// A folder.
    Folder,
    /// A symbolic link and what it said, which can be any bytes.
    Link(&'a [u8]),
}

/// What a file holds: exactly as many bytes as it was said to have. Less or more is an error, since
/// nothing may change while files are taken out.
pub struct Content<'a> {
    source: &'a mut dyn Read,
    bytes: u64,
    left: u64,
    hash: Sha256,
    pub(super) failed: bool,
    ended: bool,
}

impl<'a> Content<'a> {
    /// A content of a size that was judged, in bytes.
    pub fn new(source: &'a mut dyn Read, bytes: u64) -> Content<'a> {
        Content { source, bytes, left: bytes, hash: Sha256::new(), failed: false, ended: false }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The SHA-256 of all of it, in lower-case hexadecimal. Reads what wasn't read yet.
    ///
    /// # Errors
    ///
    /// What reading said.
    pub fn sha256(&mut self) -> io::Result<String> {
        io::copy(self, &mut io::sink())?;
        Ok(hex(&self.hash.clone().finalize()))
    }

    fn read_within(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            // One byte more is asked for, and never passed on, so that a file that is longer than it
            // said isn't taken for a whole one.
            let more = !self.ended && self.source.read(&mut [0])? > 0;
            self.ended = true;
            return if more { Err(io::Error::other("it is longer than it said")) } else { Ok(0) };
        }
        let room = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.source.read(&mut into[..room])?;
        if got == 0 && room > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than it said"));
        }
        self.left -= got as u64;
        self.hash.update(&into[..got]);
        Ok(got)
    }
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other("it could not be read"));
        }
        let result = self.read_within(into);
        self.failed = result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

/// A reader that remembers whether it failed.
pub(super) struct Watched<'a> {
    pub(super) source: &'a mut dyn Read,
    pub(super) failed: bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let result = self.source.read(into);
        self.failed |= result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(held: &[u8], said: u64) -> io::Result<Vec<u8>> {
        let mut held = held;
        let mut content = Content::new(&mut held, said);
        let mut got = vec![];
        content.read_to_end(&mut got)?;
        Ok(got)
    }

    #[test]
    fn a_content_is_what_was_said_of_it_or_an_error() {
        assert_eq!(read(b"hello", 5).unwrap(), b"hello");
        assert_eq!(read(b"", 0).unwrap(), b"");
        assert!(read(b"hello", 6).is_err());
        assert!(read(b"hello", 4).is_err());
        assert!(read(b"x", 0).is_err());
    }

    #[test]
    fn the_hash_is_of_all_whether_it_was_read_or_not() {
        let expected = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let mut held = &b"hello"[..];
        let mut content = Content::new(&mut held, 5);
        content.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(content.sha256().unwrap(), expected);
        assert_eq!(content.sha256().unwrap(), expected);
        let mut held = &b"hello"[..];
        assert!(Content::new(&mut held, 6).sha256().is_err());
    }

    /// Says that it is endless, and counts what is asked of it.
    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0 += into.len() as u64;
            into.fill(0);
            Ok(into.len())
        }
    }

    #[test]
    fn no_more_is_read_than_was_judged_and_the_byte_that_tells() {
        let mut endless = Endless(0);
        assert!(Content::new(&mut endless, 1000).read_to_end(&mut vec![]).is_err());
        assert_eq!(endless.0, 1001);
    }
}
