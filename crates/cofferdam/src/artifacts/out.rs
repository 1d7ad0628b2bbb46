//! `--out DIR`: the changed files below `DIR/files`, and `DIR/changes.json`, which is written last.
//!
//! Files belong to the caller and are 0644, or 0755 if they can be executed, less the umask; nothing
//! else of theirs (special bits, extended attributes, times) comes along. What is empty in a file
//! takes no room. While `DIR` is not whole, it has a mark of its own and no `changes.json`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use cofferdam_core::artifact::{Change, Rejected};
use cofferdam_core::outcome::{Fault, RunId};
use cofferdam_core::weaken::stop_at;
use cofferdam_sys::beneath::Folder;

use super::changes::{self, Changes};
use super::place;
use super::{at, refusal};

/// What says that a folder is not whole, or that it is being written.
const MARK: &str = ".cofferdam-incomplete";
const CHANGES: &str = "changes.json";
const CHANGES_NEW: &str = ".changes.json.new";
const FILES: &str = "files";

/// The most that a `changes.json` of ours can have, in bytes: 10,000 paths that came out and as many
/// that didn't, each of at most 4,096 bytes, and what is said of each.
const CHANGES_BYTES: u64 = 256 << 20;

/// A folder for what a program changed.
pub(crate) struct Out {
    path: PathBuf,
    folder: Folder,
    files: Option<Folder>,
    changes: Changes,
    /// Whether we made the folder: it goes again if no run comes to its end.
    made: bool,
}

impl Out {
    /// Makes or checks a folder, given by its absolute path: it is new, empty, or has an earlier
    /// result. One with anything else, one that is the workspace or has it inside, and one that
    /// another run is writing is refused. Inside the workspace it is new or has an earlier result.
    ///
    /// # Errors
    ///
    /// Why it can't be used and what to do about it.
    pub(crate) fn prepare(folder: &Path, workspace: Option<&Path>) -> Result<Out, Fault> {
        let path = place::find("--out", folder)?.path;
        let shown = path.display();
        if workspace.is_some_and(|workspace| workspace.starts_with(&path)) {
            let fix = "name a new folder elsewhere: the workspace itself is never written";
            return Err(refusal(format!("--out: {shown} is the workspace or has it inside"), fix));
        }
        let cannot = |error: io::Error| {
            refusal(format!("--out: {shown}: {error}"), "name a folder that you can write, or a new one")
        };
        let made = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(cannot(error)),
        };
        let folder = Folder::open(&path).map_err(cannot)?;
        let out = Out { path: path.clone(), folder, files: None, changes: Changes::default(), made };
        if let Err(fs::TryLockError::WouldBlock) = out.folder.file().try_lock() {
            return Err(refusal(format!("--out: another run is writing to {shown}"), "name another folder"));
        }
        if !made {
            let inside = workspace.is_some_and(|workspace| path.starts_with(workspace));
            out.replaceable(inside).map_err(cannot)?.map_err(|message| {
                refusal(format!("--out: {shown} {message}"), "name a new folder, or empty this one yourself")
            })?;
        }
        out.mark().and_then(|()| out.folder.remove_file(MARK)).map_err(cannot)?;
        Ok(out)
    }

    /// Whether what is in the folder may be replaced, or why not.
    fn replaceable(&self, inside: bool) -> io::Result<Result<(), &'static str>> {
        let mut names = vec![];
        for entry in fs::read_dir(&self.path)? {
            names.push(entry?.file_name());
        }
        if names.is_empty() {
            let refused = "is there, in the workspace, and has no earlier result";
            return Ok(if inside { Err(refused) } else { Ok(()) });
        }
        let ours = [MARK, CHANGES, CHANGES_NEW, FILES];
        let known = names.iter().all(|name| ours.iter().any(|ours| name == ours));
        let marked = names.iter().any(|name| name == MARK);
        let result = known && (marked || self.has_changes());
        Ok(if result { Ok(()) } else { Err("has something else than an earlier result in it") })
    }

    fn has_changes(&self) -> bool {
        let Ok(file) = self.folder.open_file(CHANGES) else { return false };
        let mut bytes = vec![];
        file.take(CHANGES_BYTES).read_to_end(&mut bytes).is_ok() && changes::is_one(&bytes)
    }

    /// Says that the folder is not whole.
    fn mark(&self) -> io::Result<()> {
        match self.folder.create_file(MARK, false) {
            Ok(mut file) => file.write_all(b"A run of cofferdam is writing here, or failed to.\n"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the earlier result, and makes room for the new one.
    pub(super) fn begin(&mut self, run: &RunId) -> io::Result<()> {
        self.made = false; // from now on there is something in it
        self.changes = Changes::of(run);
        self.mark().map_err(at(&self.path.join(MARK)))?;
        for name in [CHANGES, CHANGES_NEW] {
            gone(self.folder.remove_file(name)).map_err(at(&self.path.join(name)))?;
        }
        let files = self.path.join(FILES);
        // By the open folder, whatever its path is by now.
        let below = format!("/proc/self/fd/{}/{FILES}", self.folder.file().as_raw_fd());
        let removed = match fs::symlink_metadata(&below) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&below),
            Ok(_) => self.folder.remove_file(FILES),
            Err(error) => Err(error),
        };
        gone(removed).map_err(at(&files))?;
        self.folder.create_folder(FILES).map_err(at(&files))?;
        self.files = Some(Folder::open(Path::new(&below)).map_err(at(&files))?);
        stop_at("result-begun");
        Ok(())
    }

    /// The folder of the files, with a path's parents made. A parent isn't told where it was there
    /// before.
    fn files(&self, path: &str) -> io::Result<&Folder> {
        let files = self.files.as_ref().ok_or_else(|| io::Error::other("nothing has begun"))?;
        for (end, _) in path.match_indices('/') {
            files.create_folder(&path[..end])?;
        }
        Ok(files)
    }

    fn at(&self, path: &str) -> impl FnOnce(io::Error) -> io::Error + use<> {
        at(&self.path.join(FILES).join(path))
    }

    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.files(path).and_then(|files| files.create_folder(path)).map_err(self.at(path))?;
        self.changes.folder(path);
        Ok(())
    }

    /// Begins a file, which is removed again unless it is [`Writing::done`].
    pub(super) fn write(&mut self, path: &str, executable: bool) -> io::Result<Writing<'_>> {
        let file =
            self.files(path).and_then(|files| files.create_file(path, executable)).map_err(self.at(path))?;
        Ok(Writing { out: self, path: path.to_owned(), file, executable, bytes: 0, done: false })
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.files(path).and_then(|files| files.create_link(path, target)).map_err(self.at(path))?;
        self.changes.link(path, target);
        Ok(())
    }

    pub(super) fn gone(&mut self, path: &str) {
        self.changes.deleted(path);
    }

    pub(super) fn rejected(&mut self, rejected: &Rejected) {
        self.changes.rejected(rejected);
    }

    /// Writes `changes.json` and gives it its name in one step; then the folder is whole.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let file = self.folder.create_file(CHANGES_NEW, false);
        let written = file.and_then(|file| {
            let mut writer = io::BufWriter::new(file);
            serde_json::to_writer(&mut writer, &self.changes)?;
            writer.write_all(b"\n")?;
            writer.flush()
        });
        written
            .and_then(|()| self.folder.rename(CHANGES_NEW, CHANGES))
            .inspect(|()| stop_at("result-named"))
            .and_then(|()| self.folder.remove_file(MARK))
            .map_err(at(&self.path.join(CHANGES)))
    }
}

impl Drop for Out {
    /// A folder that was made for a run that never came to its end is removed, if it is empty.
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// A removal of what may not be there.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A file that is being written.
pub(super) struct Writing<'a> {
    out: &'a mut Out,
    path: String,
    file: File,
    executable: bool,
    bytes: u64,
    done: bool,
}

impl Writing<'_> {
    /// Appends bytes; zeros alone only make the file longer.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        let written = if bytes.iter().all(|&byte| byte == 0) {
            self.file.seek(SeekFrom::Start(self.bytes)).map(drop)
        } else {
            self.file.write_all(bytes)
        };
        written.map_err(self.out.at(&self.path))
    }

    /// The file is whole.
    pub(super) fn done(mut self, change: Change, sha256: String) -> io::Result<()> {
        self.file.set_len(self.bytes).map_err(self.out.at(&self.path))?;
        self.out.changes.file(change, &self.path, self.bytes, sha256, self.executable);
        self.done = true;
        Ok(())
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let (false, Some(files)) = (self.done, &self.out.files) {
            // If that fails too, the missing changes.json still says that the folder isn't whole.
            let _ = files.remove_file(&self.path);
        }
    }
}
