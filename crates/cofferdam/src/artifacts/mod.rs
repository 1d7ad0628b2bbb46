//! Where what a program changed goes on the host: a folder, a unified diff, or both.
//!
//! Both are prepared before the run, so that a place that can't be written refuses it, and both
//! leave a result that is whole or none that looks so: [`Out`] writes `changes.json` last, and
//! [`Diff`] takes its name last. What they get was judged by then (`core::artifact::Judge`).

mod changes;
mod diff;
mod out;
mod place;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use cofferdam_core::artifact::{Change, Rejected};
use cofferdam_core::files::{Files, Pattern};
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_engine::run::{FileKept, Gone, Keep};

pub(crate) use diff::Diff;
use diff::Side;
pub(crate) use out::Out;

/// What keeps a run's changes, by what was asked for.
pub(crate) struct Keeper {
    out: Option<Out>,
    diff: Option<Diff>,
}

impl Keeper {
    /// Feeds both; none where neither was asked for.
    pub(crate) fn new(out: Option<Out>, diff: Option<Diff>) -> Option<Keeper> {
        (out.is_some() || diff.is_some()).then_some(Keeper { out, diff })
    }

    /// Prepares whatever was asked for, by absolute paths.
    ///
    /// # Errors
    ///
    /// Why a place can't be used and what to do about it. Nothing has been changed then.
    pub(crate) fn prepare(
        out: Option<&Path>,
        diff: Option<&Path>,
        files: &Files,
    ) -> Result<Option<Keeper>, Fault> {
        let workspace = files.workspace.as_ref().map(|workspace| workspace.host.as_path());
        let out = out.map(|folder| Out::prepare(folder, workspace)).transpose()?;
        let diff = diff.map(|file| Diff::prepare(file, files)).transpose()?;
        Ok(Keeper::new(out, diff))
    }
}

impl Keeper {
    /// What a person should know of what was kept.
    pub(crate) fn note(&self) -> Option<String> {
        self.diff.as_ref().and_then(Diff::note)
    }
}

/// What hides a place of the host's in a workspace that it lies in: a program isn't shown where its
/// results go, nor an earlier result.
pub(crate) fn hidden(place: &Path, files: &Files) -> Option<Pattern> {
    let workspace = files.workspace.as_ref()?;
    let place = fs::canonicalize(place.parent()?).ok()?.join(place.file_name()?);
    let below = place.strip_prefix(&workspace.host).ok()?.to_str()?;
    let special = |c: char| "\\*?[]{}!".contains(c);
    let plain: String =
        below.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect();
    Pattern::new(&plain).ok()
}

impl Keep for Keeper {
    fn begin(&mut self, run: &RunId) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), |out| out.begin(run))
    }

    fn folder(&mut self, path: &str, change: Change) -> io::Result<()> {
        if let Some(out) = &mut self.out {
            out.folder(path)?;
        }
        match &mut self.diff {
            Some(diff) if change == Change::Modified => diff.became_a_folder(path),
            _ => Ok(()),
        }
    }

    /// The content passes once, in pieces: to the folder's file and, as far as a diff shows it, into
    /// memory. Whatever fails, the folder's file is removed again.
    fn file(&mut self, file: FileKept<'_, '_>) -> io::Result<()> {
        let FileKept { path, change, executable, now, before } = file;
        let mut writing = self.out.as_mut().map(|out| out.write(path, executable)).transpose()?;
        let mut side = self.diff.as_ref().map(|_| Side::file(executable));
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let got = match now.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some(writing) = &mut writing {
                writing.write_all(&piece[..got])?;
            }
            if let Some(side) = &mut side {
                side.write_all(&piece[..got])?;
            }
        }
        let sha256 = now.sha256()?;
        if let (Some(diff), Some(side)) = (&mut self.diff, side) {
            diff.file(path, change, &side, before)?;
        }
        writing.map_or(Ok(()), |writing| writing.done(change, sha256))
    }

    fn link(&mut self, path: &str, target: &str, change: Change) -> io::Result<()> {
        if let Some(out) = &mut self.out {
            out.link(path, target)?;
        }
        self.diff.as_mut().map_or(Ok(()), |diff| diff.link(path, target, change))
    }

    fn gone(&mut self, path: &str, what: Gone<'_>) -> io::Result<()> {
        if let Some(diff) = &mut self.diff {
            diff.gone(path, what)?;
        }
        if let Some(out) = &mut self.out {
            out.gone(path);
        }
        Ok(())
    }

    fn rejected(&mut self, rejected: &Rejected) -> io::Result<()> {
        if let Some(out) = &mut self.out {
            out.rejected(rejected);
        }
        self.diff.as_mut().map_or(Ok(()), |diff| diff.rejected(rejected))
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(diff) = &mut self.diff {
            diff.finish()?;
        }
        self.out.as_mut().map_or(Ok(()), Out::finish)
    }
}

/// How much of a file is held at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

fn refusal(message: String, fix: impl Into<String>) -> Fault {
    Fault { code: FaultCode::BadRequest, message, fix: Some(fix.into()) }
}

/// An error with the name of the host's file that it is about.
fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + use<> {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}
