//! `changes.json`, version 1: what is in a result's folder, what is gone, and what did not come out.

use cofferdam_core::artifact::{Change, Rejected};
use cofferdam_core::outcome::RunId;
use serde::Serialize;
use serde_json::Value;

/// The whole file, with its keys in the order in which they are written.
#[derive(Default, Serialize)]
pub(super) struct Changes {
    version: u32,
    run: String,
    added: Vec<FileJson>,
    modified: Vec<FileJson>,
    deleted: Vec<String>,
    links: Vec<LinkJson>,
    folders: Vec<String>,
    rejected: Vec<RejectedJson>,
}

#[derive(Serialize)]
struct FileJson {
    path: String,
    bytes: u64,
    sha256: String,
    executable: bool,
}

#[derive(Serialize)]
struct LinkJson {
    path: String,
    target: String,
}

#[derive(Serialize)]
struct RejectedJson {
    path: String,
    why: &'static str,
}

impl Changes {
    pub(super) fn of(run: &RunId) -> Changes {
        Changes { version: 1, run: run.to_string(), ..Changes::default() }
    }

    pub(super) fn file(&mut self, change: Change, path: &str, bytes: u64, sha256: String, executable: bool) {
        let file = FileJson { path: path.to_owned(), bytes, sha256, executable };
        if change == Change::Added { &mut self.added } else { &mut self.modified }.push(file);
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.links.push(LinkJson { path: path.to_owned(), target: target.to_owned() });
    }

    pub(super) fn folder(&mut self, path: &str) {
        self.folders.push(path.to_owned());
    }

    pub(super) fn deleted(&mut self, path: &str) {
        self.deleted.push(path.to_owned());
    }

    pub(super) fn rejected(&mut self, rejected: &Rejected) {
        self.rejected.push(RejectedJson { path: rejected.path.clone(), why: rejected.why.name() });
    }
}

/// Whether bytes are such a file, so that what lies beside it is a result that may be replaced.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    let Ok(found) = serde_json::from_slice::<Value>(bytes) else { return false };
    found["version"] == 1
        && found["run"].as_str().is_some_and(|run| RunId::parse(run).is_some())
        && found["added"].is_array()
        && found["rejected"].is_array()
}
