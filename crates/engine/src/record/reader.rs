//! Reads a log that nobody vouches for: [`verify`] says what is wrong with it, [`events`] shows it.
//!
//! Both look at the log as it was at one moment, between two appends, and read it as a stream:
//! memory grows with the number of runs and not with the log. They need no more than the right to
//! read, and they change nothing.

use std::fs::File;
use std::io::{BufReader, Read as _, Take};
use std::path::{Path, PathBuf};

use cofferdam_core::audit::AuditError;
use cofferdam_core::outcome::RunId;

use super::check::Check;
use super::event::START;
use super::files::{Folder, Held, failed, read_head};
use super::head::HeadFile;
use super::line::{BadLine, Line, parse_line};
use super::lines::{Backward, Ending, Forward, mentions};
use super::report::Report;

/// Checks a whole log: form, numbers, hashes, links, and the head file.
///
/// No log at all is one without events. Everything that is wrong with the log is a [finding](Report::findings).
///
/// # Errors
///
/// [`AuditError::Io`] if a file can't be read.
pub fn verify(state: &Path) -> Result<Report, AuditError> {
    let snapshot = Snapshot::take(state)?;
    let mut check = Check::new(snapshot.head);
    if let Some(mut lines) = snapshot.lines {
        while let Some(raw) = lines.next().map_err(|source| failed("read", &snapshot.path, source))? {
            check.line(&raw);
        }
    }
    Ok(check.finish())
}

/// Which events to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFilter {
    /// All.
    All,
    /// Those of the run that started last.
    Last,
    /// Those of one run.
    One(RunId),
}

/// A line to show.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it stands, from 1.
    pub number: u64,
    /// Its bytes, without the newline. They come from the file as they are: unless the line reads,
    /// they may hold anything.
    pub raw: Vec<u8>,
    /// What it says. Lines that can't be read are shown only together with all others, since they
    /// can't be told to belong to a run.
    pub line: Result<Line, BadLine>,
}

/// Reads the events that a filter lets through, in the log's order.
///
/// # Errors
///
/// [`AuditError::Io`] if the log can't be read.
pub fn events(state: &Path, filter: RunFilter) -> Result<Events, AuditError> {
    let snapshot = Snapshot::take(state)?;
    let only = match filter {
        RunFilter::All => Only::All,
        RunFilter::One(run) => Only::Run(run),
        RunFilter::Last => snapshot.last_run()?.map_or(Only::Nothing, Only::Run),
    };
    Ok(Events { lines: snapshot.lines, path: snapshot.path, only, number: 0 })
}

/// The events of a log, read one by one.
#[derive(Debug)]
pub struct Events {
    lines: Option<Lines>,
    path: PathBuf,
    only: Only,
    number: u64,
}

#[derive(Debug)]
enum Only {
    All,
    Nothing,
    Run(RunId),
}

impl Iterator for Events {
    type Item = Result<Entry, AuditError>;

    fn next(&mut self) -> Option<Self::Item> {
        let lines = self.lines.as_mut()?;
        loop {
            let raw = match lines.next() {
                Ok(Some(raw)) => raw,
                Ok(None) => return None,
                Err(source) => {
                    self.lines = None; // so that whoever goes on gets an end and not a loop
                    return Some(Err(failed("read", &self.path, source)));
                }
            };
            self.number += 1;
            let run = match &self.only {
                Only::All => None,
                Only::Run(run) if mentions(raw.bytes, run) => Some(run),
                Only::Nothing | Only::Run(_) => continue,
            };
            let line = match raw.ending {
                Ending::Newline => parse_line(raw.bytes),
                Ending::Torn => Err(BadLine::Form { part: "the end of the line" }),
            };
            if run.is_some() && line.as_ref().ok().and_then(|line| line.run.as_ref()) != run {
                continue;
            }
            return Some(Ok(Entry { number: self.number, raw: raw.bytes.to_vec(), line }));
        }
    }
}

type Lines = Forward<BufReader<Take<File>>>;

/// A log as it was at one moment.
#[derive(Debug)]
struct Snapshot {
    head: HeadFile,
    lines: Option<Lines>,
    path: PathBuf,
}

impl Snapshot {
    /// Waits until nobody is appending, and notes how long the log is then.
    fn take(state: &Path) -> Result<Snapshot, AuditError> {
        let folder = Folder::of(state);
        let lock_path = folder.lock();
        let lock = Folder::read(&lock_path)?;
        let held = lock.as_ref().map(|lock| Held::take(lock, false)).transpose();
        let _held = held.map_err(|source| failed("lock", &lock_path, source))?;
        let head = match Folder::read(&folder.head())? {
            None => HeadFile::Missing,
            Some(file) => {
                HeadFile::of(&read_head(&file).map_err(|source| failed("read", &folder.head(), source))?)
            }
        };
        let path = folder.log();
        let lines = Folder::read(&path)?.map(lines).transpose();
        Ok(Snapshot { head, lines: lines.map_err(|source| failed("read", &path, source))?, path })
    }

    /// The run that started last.
    fn last_run(&self) -> Result<Option<RunId>, AuditError> {
        let failed = |source| failed("read", &self.path, source);
        let Some(lines) = &self.lines else { return Ok(None) };
        let log = lines.source().get_ref();
        for line in Backward::new(log.get_ref(), log.limit()).map_err(failed)? {
            if let Ok(Line { event, run: Some(run), .. }) = parse_line(&line.map_err(failed)?)
                && event == START
            {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }
}

/// The lines that a log has at this moment.
fn lines(log: File) -> std::io::Result<Lines> {
    let bytes = log.metadata()?.len();
    Ok(Forward::new(BufReader::with_capacity(64 << 10, log.take(bytes)), 0))
}
