//! What killed brokers left: found in the journal, ended, and forgotten when the host has written that down.

use std::time::{Duration, Instant};

use super::Refused;
use super::end::{described, end_each};
use super::refusal::host;
use super::tasks::{Live, Tasks};
use crate::control::{Ended, State, Whose};
use crate::journal::{Entry, Open};

impl Tasks {
    /// Ends what nobody is responsible for. What belongs to an issuer that the file doesn't have any more is left, and
    /// said. The entries of what is dead stay until [`forget_swept`](Tasks::forget_swept): who dies before leaves them
    /// to the next command, which loses no event and revokes what is gone, which does no harm.
    pub(super) async fn sweep(&self, whose: &Whose) -> Result<Vec<Ended>, Refused> {
        let wanted = |entry: &Entry| {
            whose.run.as_ref().is_none_or(|run| *run == entry.run)
                && whose.name.as_ref().is_none_or(|name| *name == entry.name)
        };
        let orphans = self.journal.orphans(wanted).map_err(|error| host(format!("the journal: {error}")))?;
        let (mut held, mut ended) = (vec![], vec![]);
        for (entry, open) in orphans {
            match self.known(&entry.issuer) {
                Ok(known) => {
                    if let Some(kept) = &entry.kept {
                        known.issuer.recall(&entry.handle, kept);
                    }
                    held.push(Live { known, entry, open, minted: None, timer: None });
                }
                Err(Refused { message, .. }) => {
                    let state = State::Unknown { why: message };
                    ended.push(Ended { run: entry.run.clone(), lease: described(&entry, true), state });
                }
            }
        }
        let within = Duration::from_millis(whose.within_ms);
        for (one, open) in end_each(held, Instant::now(), within).await {
            ended.push(one);
            self.swept.borrow_mut().extend(open);
        }
        Ok(ended)
    }

    /// Closes the entries of what was swept.
    pub(super) fn forget_swept(&self) {
        let swept: Vec<Open> = self.swept.borrow_mut().drain(..).collect();
        for open in swept {
            let _ = open.close(); // otherwise it is revoked once more
        }
    }
}
