//! The end of a lease: it is revoked, and then tried by another way than the answer of who revoked it.

use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::tasks::{Known, Live, SLACK, seconds};
use crate::control::{Ended, Lease, State};
use crate::issuer::{Alive, IssuerError, Minted};
use crate::journal::{Entry, Open};

/// How long is waited between two looks at something that was revoked and still does something.
const AGAIN: Duration = Duration::from_millis(20);

/// How often it is looked at.
const LOOKS: usize = 25;

/// What became of a lease, and its entry if nothing of it can be alive any more but what expires.
pub(super) type EndedOne = (Ended, Option<Open>);

/// Ends leases side by side: one that is slow holds up no other.
pub(super) async fn end_each(held: Vec<Live>, began: Instant, within: Duration) -> Vec<EndedOne> {
    let end = |live| tokio::task::spawn_local(end_one(live, began, within));
    let ends: Vec<_> = held.into_iter().map(end).collect();
    let mut ended = vec![];
    for end in ends {
        ended.extend(end.await.ok());
    }
    ended
}

async fn end_one(live: Live, began: Instant, within: Duration) -> EndedOne {
    let Live { known, entry, open, minted, timer } = live;
    drop(timer); // it is ended now
    let can_revoke = known.issuer.can_revoke(&entry.handle);
    let state = match timeout(within, revoke_and_look(&known, &entry, minted.as_deref())).await {
        Ok(Ok(Some(verified))) => State::Dead { after_us: began.elapsed().as_micros() as u64, verified },
        Ok(Ok(None)) => State::Expires,
        Ok(Err(error)) => State::Unknown { why: error.to_string() },
        Err(_) => State::Unknown {
            why: format!("`{}` had not answered after {} s", entry.issuer, within.as_secs()),
        },
    };
    // What ends by itself has, whoever could have been asked: so no entry stays for ever.
    let is_over = entry.expires.is_some_and(|at| at + SLACK.as_secs() < seconds(SystemTime::now()));
    let state = match state {
        State::Unknown { .. } if is_over && known.config.kind.ends_by_itself() => State::Expires,
        state => state,
    };
    let open = (!matches!(state, State::Unknown { .. })).then_some(open);
    let expires = minted.as_ref().map_or(entry.expires, |minted| minted.expires.map(seconds));
    let fingerprint = minted.as_deref().map(fingerprint).unwrap_or_default();
    let lease = Lease { expires, fingerprint, ..described(&entry, can_revoke) };
    (Ended { run: entry.run, lease, state }, open)
}

/// Closes the entry of what has ended.
pub(super) fn forgotten((ended, open): EndedOne) -> Ended {
    let _ = open.map(Open::close); // otherwise it is revoked once more
    ended
}

/// How it was seen that it is dead; none where it can't be revoked.
async fn revoke_and_look(
    known: &Known,
    entry: &Entry,
    minted: Option<&Minted>,
) -> Result<Option<String>, IssuerError> {
    if !known.issuer.can_revoke(&entry.handle) {
        return Ok(None);
    }
    known.issuer.revoke(&entry.handle).await?;
    for _ in 0..LOOKS {
        match known.issuer.try_use(&entry.handle, &entry.scope, minted).await? {
            Alive::No(how) => return Ok(Some(how)),
            Alive::Yes => tokio::time::sleep(AGAIN).await,
        }
    }
    let why = "says that it revoked the credential, which still works".to_owned();
    Err(IssuerError::Refused { issuer: entry.issuer.clone(), why })
}

pub(super) fn described(entry: &Entry, can_revoke: bool) -> Lease {
    Lease {
        name: entry.name.clone(),
        issuer: entry.issuer.clone(),
        scope: entry.scope.clone(),
        minted: entry.minted,
        expires: entry.expires,
        can_revoke,
        fingerprint: String::new(),
        is_weak: false,
        uses: None,
    }
}

/// The first four bytes of the hash of all that is secret of it.
pub(super) fn fingerprint(minted: &Minted) -> String {
    let secret = minted.parts.iter().filter(|(name, _)| matches!(**name, "key" | "password" | "token"));
    fingerprint_of(secret.map(|(_, value)| value.expose()))
}

pub(super) fn fingerprint_of<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    secrets.into_iter().for_each(|secret| hash.update(secret));
    hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
