//! Reads a file's text: a regular file of at most 1 MiB of UTF-8, or an error that says why not.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::error::{FileError, Source};

/// More than any policy, and little enough to show an error in.
const MOST_BYTES: u64 = 1 << 20;

/// A file that was read.
#[derive(Debug)]
pub(crate) struct Text {
    /// What it holds.
    pub(crate) text: String,
    /// The same, as errors show it.
    pub(crate) source: Source,
    /// Device and inode, by which a file is known whatever its path.
    pub(crate) identity: (u64, u64),
}

/// A file can't be read, as its reader's caller may want to say it in another place.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// What is wrong, with the file's name.
    pub(crate) message: String,
    /// What to do next.
    pub(crate) help: String,
    /// What the host said, where it was the one that refused.
    pub(crate) cause: Option<io::Error>,
}

impl Unreadable {
    fn new(message: String, help: &str) -> Self {
        Unreadable { message, help: help.to_owned(), cause: None }
    }

    fn io(path: &Path, cause: io::Error) -> Self {
        let help = match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "check the path, or create the file",
            io::ErrorKind::PermissionDenied => "give yourself the right to read it, or name another file",
            _ => "name a file that can be read",
        };
        let message = format!("could not read `{}`", path.display());
        Unreadable { message, help: help.to_owned(), cause: Some(cause) }
    }

    /// Whether there is nothing by that name, not even a link that leads nowhere.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        let absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        self.cause.as_ref().is_some_and(absent)
            && fs::symlink_metadata(path).is_err_and(|error| absent(&error))
    }
}

impl From<Unreadable> for FileError {
    fn from(unreadable: Unreadable) -> Self {
        FileError::without_place(&unreadable.message, &unreadable.help, unreadable.cause)
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Text, Unreadable> {
    // Looked at before it is opened, since opening a pipe would wait for a writer.
    refuse_irregular(path, &fs::metadata(path).map_err(|error| Unreadable::io(path, error))?)?;
    let file = File::open(path).map_err(|error| Unreadable::io(path, error))?;
    let metadata = file.metadata().map_err(|error| Unreadable::io(path, error))?;
    refuse_irregular(path, &metadata)?;
    let mut bytes = vec![];
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Unreadable::io(path, error))?;
    if bytes.len() as u64 > MOST_BYTES {
        let message = format!("`{}` is larger than 1 MiB", path.display());
        return Err(Unreadable::new(message, "name the right file, or make it smaller"));
    }
    let text = String::from_utf8(bytes).map_err(|error| not_utf8(path, &error))?;
    let source = Source::new(&path.to_string_lossy(), &text);
    Ok(Text { text, source, identity: (metadata.dev(), metadata.ino()) })
}

fn refuse_irregular(path: &Path, metadata: &fs::Metadata) -> Result<(), Unreadable> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
    Err(Unreadable::new(format!("`{}` is {what}", path.display()), "name a regular file"))
}

fn not_utf8(path: &Path, error: &std::string::FromUtf8Error) -> Unreadable {
    let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let message = format!("`{}` is not UTF-8: line {line} has a byte that isn't text", path.display());
    Unreadable::new(message, "save the file as UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_text_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("large"), vec![b'#'; (MOST_BYTES + 1) as usize]).unwrap();
        fs::write(path("most"), vec![b'#'; MOST_BYTES as usize]).unwrap();
        fs::write(path("binary"), b"a = 1\n\xff").unwrap();
        assert!(read(&path("large")).unwrap_err().message.ends_with("is larger than 1 MiB"));
        assert!(read(&path("most")).is_ok());
        assert!(read(&path("binary")).unwrap_err().message.contains("line 2"));
        assert!(read(folder.path()).unwrap_err().message.ends_with("is a directory"));
        assert!(read(Path::new("/dev/null")).unwrap_err().message.ends_with("is not a regular file"));
        assert!(read(&path("none")).unwrap_err().is_absent(&path("none")));
    }

    #[test]
    fn a_pipe_is_refused_rather_than_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read(&pipe).unwrap_err().message.ends_with("is not a regular file"));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_not_the_same_as_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(!read(&link).unwrap_err().is_absent(&link));
    }

    #[test]
    fn every_refusal_says_what_to_do_next() {
        let error = FileError::from(read(Path::new("/nonexistent/policy.toml")).unwrap_err());
        assert!(error.summary().starts_with("could not read `/nonexistent/policy.toml`: No such file"));
        assert!(!error.fix().is_empty());
    }
}
