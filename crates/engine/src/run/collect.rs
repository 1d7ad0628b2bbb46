//! Takes out what a program changed: each entry is judged, handed to whoever keeps it, and noted.
//!
//! What a sandbox says of itself is hostile: a size is a claim, and a name any bytes. An entry that
//! can't be read as it was said is rejected and the rest goes on; a place that can't be written ends
//! the collection, and with it the run, as the host's failure.

use std::io;

use cofferdam_core::artifact::{
    Artifact, Before, Change, Collect, Entry, FileFound, Found, Judge, Rejected, Rejection, shown,
};
use cofferdam_core::audit::Event;
use cofferdam_core::backend::{BackendError, Session};
use cofferdam_core::files::Pattern;
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_core::weaken::stop_at;

use super::fault;
use super::keep::{Content, FileKept, Former, Gone, Keep, Watched};

/// The most entries of a list in the Outcome. What comes out is bounded by the judge.
const LISTED: usize = 10_000;

/// The most events of a run about what did not come out; the last one counts the rest.
const EVENTS: usize = 1_000;

/// What came of a collection.
#[derive(Default)]
pub(super) struct Collected {
    /// Files that came out.
    pub(super) artifacts: Vec<Artifact>,
    /// What didn't, as far as it is listed.
    pub(super) rejected: Vec<Rejected>,
    /// How many more didn't.
    pub(super) unlisted: u64,
    /// What ended it before its end.
    pub(super) fault: Option<Fault>,
}

impl Collected {
    /// Somebody told us to stop.
    pub(super) fn interrupted() -> Collected {
        let message = "taking out what the program changed was interrupted: what was written is incomplete";
        let fix = Some("run it again, or without --out and --diff".to_owned());
        let fault = Fault { code: FaultCode::HostError, message: message.to_owned(), fix };
        Collected { fault: Some(fault), ..Collected::default() }
    }

    /// What the audit has to hold.
    pub(super) fn events(&self) -> Vec<Event> {
        let total = self.rejected.len() as u64 + self.unlisted;
        let event = |(at, rejected): (usize, &Rejected)| {
            let more = if at + 1 == EVENTS { total - EVENTS as u64 } else { 0 };
            let path = rejected.path.clone();
            match rejected.why {
                Rejection::HostExec => Event::ArtifactQuarantined { path, more },
                why => Event::ArtifactRejected { path, why, more },
            }
        };
        self.rejected.iter().take(EVENTS).enumerate().map(event).collect()
    }

    /// What a person should know that the lists don't say.
    pub(super) fn hint(&self) -> Option<String> {
        (self.unlisted > 0)
            .then(|| format!("{} more entries did not come out and are not listed", self.unlisted))
    }
}

/// Takes everything that differs out of a session that was halted.
pub(super) async fn collect(
    session: &mut dyn Session,
    keep_patterns: Vec<Pattern>,
    hidden: Vec<Pattern>,
    run: &RunId,
    keep: Option<&mut dyn Keep>,
) -> Collected {
    let mut nowhere = Nowhere;
    let keep: &mut dyn Keep = keep.unwrap_or(&mut nowhere);
    let mut collected = Collected::default();
    if let Err(error) = keep.begin(run) {
        collected.fault = Some(fault::of_keeping(None, &error));
        return collected;
    }
    let mut collector =
        Collector { judge: Judge::new(keep_patterns, hidden), keep, at: String::new(), collected };
    let got = session.get(&mut collector).await;
    let Collector { keep, at, mut collected, .. } = collector;
    collected.fault = match got {
        Ok(()) => keep.finish().err().map(|error| fault::of_keeping(None, &error)),
        Err(BackendError::Collect { source }) => Some(fault::of_keeping(Some(&at), &source)),
        Err(error) => Some(fault::of_collecting(&error)),
    };
    collected
}

/// The same without a run around it, for the fuzz targets: what came out and what didn't.
#[cfg(fuzzing)]
pub async fn collect_for_fuzzing(
    session: &mut dyn Session,
    run: &RunId,
    keep: &mut dyn Keep,
) -> (Vec<Artifact>, Vec<Rejected>, Option<Fault>) {
    let Collected { artifacts, rejected, fault, .. } =
        collect(session, vec![], vec![], run, Some(keep)).await;
    (artifacts, rejected, fault)
}

struct Collector<'a> {
    judge: Judge,
    keep: &'a mut dyn Keep,
    /// The entry that is in hand, as it can be shown.
    at: String,
    collected: Collected,
}

impl Collect for Collector<'_> {
    fn take(&mut self, found: Found<'_>) -> io::Result<()> {
        self.at = shown(found.path);
        let judged = self.judge.judge(&found);
        let taken = match judged {
            Ok(path) => self.accepted(&path, found.change, found.entry)?,
            Err(why) => Err(why),
        };
        stop_at("collecting");
        match taken {
            Ok(artifact) => {
                self.collected.artifacts.extend(artifact);
                Ok(())
            }
            Err(why) => self.reject(why),
        }
    }
}

/// What became of an entry: a file that came out, or something without a content, or neither.
type Taken = Result<Option<Artifact>, Rejection>;

impl Collector<'_> {
    fn accepted(&mut self, path: &str, change: Change, entry: Entry<'_>) -> io::Result<Taken> {
        let deleted = change == Change::Deleted;
        match entry {
            Entry::File(file) if deleted => self.deleted(path, file.before),
            Entry::File(file) => self.file(path, change, file),
            Entry::Folder if deleted => self.keep.gone(path, Gone::Folder).map(|()| Ok(None)),
            Entry::Folder => self.keep.folder(path, change).map(|()| Ok(None)),
            Entry::Link(target) if deleted => self.keep.gone(path, Gone::Link(target)).map(|()| Ok(None)),
            Entry::Link(target) => match std::str::from_utf8(target) {
                Ok(target) => self.keep.link(path, target, change).map(|()| Ok(None)),
                Err(_) => Ok(Err(Rejection::Symlink)), // it was judged: this can't be
            },
            Entry::Refused(why) => Ok(Err(why)),
        }
    }

    fn file(&mut self, path: &str, change: Change, file: FileFound<'_>) -> io::Result<Taken> {
        let Some(source) = file.now else { return Ok(Err(Rejection::Unreadable)) };
        let FileFound { bytes, executable, before, .. } = file;
        let mut now = Content::new(source, bytes);
        let mut before = before.map(watch);
        let kept = hand_over(self.keep, path, change, executable, &mut now, before.as_mut());
        let unreadable = now.failed || before.is_some_and(|(_, watched)| watched.failed);
        match kept {
            Ok(sha256) => Ok(Ok(Some(Artifact { path: path.to_owned(), bytes, sha256 }))),
            Err(_) if unreadable => Ok(Err(Rejection::Unreadable)),
            Err(error) => Err(error),
        }
    }

    fn deleted(&mut self, path: &str, before: Option<Before<'_>>) -> io::Result<Taken> {
        let mut before = before.map(watch);
        let kept = self.keep.gone(path, Gone::File(before.as_mut().map(former)));
        match kept {
            Ok(()) => Ok(Ok(None)),
            Err(_) if before.is_some_and(|(_, watched)| watched.failed) => Ok(Err(Rejection::Unreadable)),
            Err(error) => Err(error),
        }
    }

    fn reject(&mut self, why: Rejection) -> io::Result<()> {
        let rejected = Rejected { path: self.at.clone(), why };
        if self.collected.rejected.len() == LISTED {
            self.collected.unlisted += 1;
            return Ok(());
        }
        self.keep.rejected(&rejected)?;
        self.collected.rejected.push(rejected);
        Ok(())
    }
}

fn watch(Before { executable, content }: Before<'_>) -> (bool, Watched<'_>) {
    (executable, Watched { source: content, failed: false })
}

fn former<'a>((executable, content): &'a mut (bool, Watched<'_>)) -> Former<'a> {
    Former { executable: *executable, content }
}

/// Hands a file over, and gives its hash.
fn hand_over(
    keep: &mut dyn Keep,
    path: &str,
    change: Change,
    executable: bool,
    now: &mut Content<'_>,
    before: Option<&mut (bool, Watched<'_>)>,
) -> io::Result<String> {
    let before = before.map(former);
    keep.file(FileKept { path, change, executable, now, before })?;
    now.sha256()
}

/// Where nobody keeps what comes out: it is judged, hashed and listed.
struct Nowhere;

impl Keep for Nowhere {
    fn begin(&mut self, _: &RunId) -> io::Result<()> {
        Ok(())
    }

    fn folder(&mut self, _: &str, _: Change) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, _: FileKept<'_, '_>) -> io::Result<()> {
        Ok(())
    }

    fn link(&mut self, _: &str, _: &str, _: Change) -> io::Result<()> {
        Ok(())
    }

    fn gone(&mut self, _: &str, _: Gone<'_>) -> io::Result<()> {
        Ok(())
    }

    fn rejected(&mut self, _: &Rejected) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_rejections_the_audit_has_the_first_and_counts_the_rest() {
        let rejected = |at| Rejected { path: format!("f{at}"), why: Rejection::Type };
        let collected = |listed: usize, unlisted| Collected {
            rejected: (0..listed).map(rejected).collect(),
            unlisted,
            ..Collected::default()
        };
        let more = |collected: Collected| -> Vec<u64> {
            let count = |event: &Event| match event {
                Event::ArtifactRejected { more, .. } => *more,
                _ => panic!("{event:?}"),
            };
            collected.events().iter().map(count).collect()
        };
        assert_eq!(more(collected(3, 0)), [0, 0, 0]);
        assert_eq!(more(collected(EVENTS, 0)), vec![0; EVENTS]);
        let many = more(collected(LISTED, 5));
        assert_eq!((many.len(), many[EVENTS - 1]), (EVENTS, (LISTED + 5 - EVENTS) as u64));
        assert!(many[..EVENTS - 1].iter().all(|&more| more == 0));
    }
}
