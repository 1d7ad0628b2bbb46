//! `batch --out DIR`: a folder for the results of each job, by the job's id.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_core::files::Files;
use cofferdam_core::outcome::{Fault, FaultCode};
use cofferdam_core::request::FileName;

use crate::artifacts::Keeper;
use crate::report::job_id::JobId;

/// Where results go.
pub(super) struct Results {
    folder: PathBuf,
    /// Ids that have a folder by now: a later job of the same id would replace its results.
    taken: RefCell<BTreeSet<String>>,
}

fn refuse(message: String, fix: &str) -> Fault {
    Fault { code: FaultCode::BadRequest, message, fix: Some(fix.to_owned()) }
}

impl Results {
    /// Makes the folder, if it isn't there, given by its absolute path.
    pub(super) fn prepare(folder: &Path) -> Result<Self, Fault> {
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => {
                let message = format!("--out: {}: {error}", folder.display());
                Err(refuse(
                    message,
                    "name a folder that you can write, or a new one in a folder that is there",
                ))
            }
            _ => Ok(Results { folder: folder.to_owned(), taken: RefCell::default() }),
        }
    }

    /// What keeps the results of a job.
    pub(super) fn of(&self, id: &JobId, files: &Files) -> Result<Option<Keeper>, Fault> {
        let name = id.to_string();
        let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if FileName::new(name.as_str()).is_err() || name.starts_with('.') || !name.chars().all(plain) {
            let message = format!("the id {name:?} can't be the name of a folder in --out");
            return Err(refuse(message, "give the job an id of letters and digits"));
        }
        if !self.taken.borrow_mut().insert(name.to_lowercase()) {
            let message = format!("another job of this batch has the id {name:?}, and its results are kept");
            return Err(refuse(message, "give each job an id of its own, not in case alone"));
        }
        Keeper::prepare(Some(&self.folder.join(name)), None, files)
    }
}
