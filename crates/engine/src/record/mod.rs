//! The audit log: what a state folder's runs decided, in a form that shows when it is changed.
//!
//! # Files
//!
//! `STATE/audit/log.ndjson` holds one event a line, `STATE/audit/head` says where the log ends.
//! Any number of processes append, each while it alone holds `STATE/audit/lock`. Nothing is synced:
//! a killed process loses nothing, a power cut can.
//!
//! # Links
//!
//! Events are numbered from 1 without a hole. Each has the hash of its own bytes, and two hashes
//! of others: `after` links it to the log's event before, `prev` to the same run's event before
//! (for a run's first event the same as `after`). So a run's events can be checked on their own,
//! and the hash that an Outcome carries vouches for everything that the log held until then. An
//! `audit.gap` tells of events that could not be written; it belongs to no run.
//!
//! # What shows and what doesn't
//!
//! [`verify`] finds every edited, moved, removed or inserted line, and a log that is shorter than
//! its head says. Whoever can write to the folder can also compute hashes, and replace all lines
//! from some point on together with the head, or everything at once. What shows that is a hash
//! kept elsewhere: every Outcome has one. A process that is appending meanwhile notices as well.
//!
//! # What this module must not know
//!
//! Runs, policies, backends: it writes what it is handed, and reads lines that nobody vouches for.

mod check;
mod event;
mod files;
mod head;
mod line;
mod lines;
mod reader;
mod report;
#[cfg(test)]
mod tests;
mod time;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cofferdam_core::audit::{AuditError, AuditSink, Event};
use cofferdam_core::outcome::{AuditSpan, RunId};

pub use line::{BadLine, Hash, LINE_MAX_BYTES, Line, parse_line};
pub use reader::{Entry, Events, RunFilter, events, verify};
pub use report::{Chain, Finding, Report};

pub(crate) use time::rfc3339;

use files::{Disk, Folder, Held, failed};
use head::Head;
use writer::Writer;

/// The log of one state folder, open for appending.
///
/// Any number of these may be open on one folder, in any number of processes. But the events of one
/// run go through one of them, which keeps in memory where that run is. A sweep may go on with the
/// run of a process that was killed, and has `lease.orphaned` of one whose broker alone was killed.
#[derive(Debug)]
pub struct AuditLog {
    lock: File,
    lock_path: PathBuf,
    writer: Mutex<Writer<Disk>>,
}

impl AuditLog {
    /// Opens the log of a state folder, or begins one. The state folder must exist.
    ///
    /// What a writer that was killed had left is put in order first.
    ///
    /// # Errors
    ///
    /// - [`AuditError::Cut`] and [`AuditError::Changed`] if the log is not as it was left. Nothing
    ///   was written; nothing can be until somebody has moved `STATE/audit` away.
    /// - [`AuditError::Io`] if the files can't be used, or are not the owner's alone.
    pub fn open(state: &Path) -> Result<AuditLog, AuditError> {
        let folder = Folder::prepare(state)?;
        let lock_path = folder.lock();
        let lock = folder.write(&lock_path, false)?;
        let held = Held::take(&lock, true).map_err(|source| failed("lock", &lock_path, source))?;
        let head = folder.write(&folder.head(), false)?;
        let log = folder.write(&folder.log(), true)?;
        let mut disk = Disk { log, head };
        begin(&mut disk).map_err(|source| failed("begin", &folder.head(), source))?;
        let writer = Writer::open(disk, folder, SystemTime::now())?;
        drop(held);
        Ok(AuditLog { lock, lock_path, writer: Mutex::new(writer) })
    }
}

/// Writes the head of a log that has none yet. A log that holds something and has no head is left
/// as it is, to be refused: its head was taken away.
fn begin(disk: &mut Disk) -> std::io::Result<()> {
    use files::Storage as _;
    if disk.head.metadata()?.len() == 0 && disk.log.metadata()?.len() == 0 {
        disk.write_head(&Head::EMPTY.render())?;
    }
    Ok(())
}

impl AuditSink for AuditLog {
    fn append(&self, run: &RunId, events: &[Event]) -> Result<AuditSpan, AuditError> {
        // A panic elsewhere leaves nothing half done: each append starts from what the files say.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _held = Held::take(&self.lock, true).map_err(|source| failed("lock", &self.lock_path, source))?;
        writer.append(run, events, SystemTime::now())
    }
}
