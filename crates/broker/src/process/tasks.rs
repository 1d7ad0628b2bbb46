//! The leases of the runs that the broker serves.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofferdam_core::secret::Secret;

use super::delivery::{check_templates, deliveries};
use super::end::{end_each, fingerprint, forgotten};
use super::host::Host;
use super::refusal::{of_issuer, of_journal, over};
use super::stand_ins::InUse;
use super::timer::Timer;
use super::{Issuers, Refused, refusal};
use crate::config::IssuerConfig;
use crate::control::{Answer, Ask, Ended, Lease, Refusal};
use crate::issuer::{self, Alive, Issuer, IssuerError, Minted};
use crate::journal::{Entry, Journal, Open};

/// How long a lease's end may take: revoking, and seeing that it is dead. Less than the host waits
/// (`client::ENDING`).
const ENDING: Duration = Duration::from_secs(15);

/// What an issuer needs beyond the time of a run, so that its clock may be a little behind.
pub(super) const SLACK: Duration = Duration::from_secs(30);

/// Everybody's leases.
pub(super) struct Tasks {
    issuers: Result<BTreeMap<String, Known>, super::Unserved>,
    pub(super) journal: Journal,
    live: RefCell<BTreeMap<u64, Vec<Live>>>,
    in_use: RefCell<BTreeMap<u64, InUse>>,
    /// The runs for which something is being minted, and whether their end came meanwhile.
    preparing: RefCell<BTreeMap<u64, bool>>,
    /// The entries of what a sweep saw dead, until that is written down.
    pub(super) swept: RefCell<Vec<Open>>,
    /// The number of the last trial's task. They are counted down from the top, where none of the host's is.
    trials: Cell<u64>,
    pub(super) host: Rc<Host>,
}

/// An issuer that the operator's file has.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) config: IssuerConfig,
    pub(super) issuer: Arc<dyn Issuer>,
}

/// A lease that lives.
pub(super) struct Live {
    pub(super) known: Known,
    pub(super) entry: Entry,
    pub(super) open: Open,
    /// None for one that was found in the journal.
    pub(super) minted: Option<Rc<Minted>>,
    /// For one that can be revoked: what it began may outlive the time that its issuer knows.
    pub(super) timer: Option<Timer>,
}

impl Live {
    /// Writes down what only its issuer knew, for after a crash, before anybody gets its value.
    fn keep(&mut self) -> Result<(), Refused> {
        let Some(minted) = &self.minted else { return Ok(()) };
        let expires = minted.expires.map(seconds);
        if minted.kept.is_none() && expires == self.entry.expires {
            return Ok(());
        }
        (self.entry.kept, self.entry.expires) = (minted.kept.clone(), expires);
        self.open.amend(&self.entry).map_err(|error| of_journal(&error))
    }
}

impl Tasks {
    pub(super) fn new(state: &Path, issuers: Issuers, host: Rc<Host>) -> io::Result<Self> {
        let known = |config: IssuerConfig| {
            let issuer = issuer::of(&config);
            (config.name.clone(), Known { config, issuer })
        };
        let issuers = issuers.map(|issuers| issuers.into_iter().map(known).collect());
        Ok(Tasks {
            issuers,
            journal: Journal::open(state)?,
            live: RefCell::default(),
            in_use: RefCell::default(),
            preparing: RefCell::default(),
            swept: RefCell::default(),
            trials: Cell::new(u64::MAX),
            host,
        })
    }

    /// What an issuer is for.
    pub(super) fn describe(&self, issuer: &str) -> Result<Answer, Refused> {
        let Known { config, .. } = self.known(issuer)?;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Ok(Answer::Described {
            hosts: config.hosts.clone(),
            fields: config.kind.ceiling().into_iter().map(|(name, _)| name.to_owned()).collect(),
            variables: config.kind.usual_variables().iter().map(owned).collect(),
            stands_in_requests: config.inject.is_some(),
        })
    }

    /// Mints what a run asks for, or nothing of it. What is minted after the run's end is ended at once.
    pub(super) async fn prepare(
        &self,
        task: u64,
        run: &str,
        asks: Vec<Ask>,
    ) -> Result<(Vec<String>, Vec<Secret>, Vec<Lease>), Refused> {
        self.preparing().insert(task, false);
        let prepared = self.prepare_each(task, run, asks).await;
        let has_ended = self.preparing().remove(&task).unwrap_or_default();
        if has_ended && prepared.is_ok() {
            self.end(task).await;
            return Err(over());
        }
        prepared
    }

    async fn prepare_each(
        &self,
        task: u64,
        run: &str,
        asks: Vec<Ask>,
    ) -> Result<(Vec<String>, Vec<Secret>, Vec<Lease>), Refused> {
        // Everything is looked at before anything is minted.
        let checked: Vec<_> = asks.iter().map(|ask| self.check(ask)).collect::<Result<_, _>>()?;
        self.in_use().insert(task, InUse::new(run));
        let mut names = std::collections::BTreeSet::new();
        let (mut variables, mut secrets, mut leases) = (vec![], vec![], vec![]);
        for (ask, known) in asks.into_iter().zip(checked) {
            let has_ended = self.preparing().get(&task).copied().unwrap_or_default();
            let prepared =
                if has_ended { Err(over()) } else { self.prepare_one(task, run, ask, known).await };
            match prepared {
                Ok((delivered, lease)) => {
                    leases.extend(lease);
                    if let Some((twice, _)) = delivered.iter().find(|(name, _)| !names.insert(name.clone())) {
                        self.end(task).await;
                        return Err(refusal::twice(twice));
                    }
                    delivered.into_iter().for_each(|(name, value)| {
                        variables.push(name);
                        secrets.push(value);
                    });
                }
                Err(refusal) => {
                    self.end(task).await; // what isn't dead then stays in the journal
                    return Err(refusal);
                }
            }
        }
        Ok((variables, secrets, leases))
    }

    /// Mints what the program is to hold, or makes what stands for it.
    async fn prepare_one(
        &self,
        task: u64,
        run: &str,
        ask: Ask,
        known: Known,
    ) -> Result<(Vec<(String, Secret)>, Option<Lease>), Refused> {
        if ask.in_requests.is_some() {
            let surrogate = self.stand_in(task, ask.clone(), known.clone()).await?;
            let parts = BTreeMap::from([("token", surrogate)]);
            return Ok((
                deliveries(&ask, &known.config, Some(&Minted { parts, expires: None, kept: None })),
                None,
            ));
        }
        let lease = self.mint(task, run, &ask, &known).await?;
        let live = self.live();
        let parts = live.get(&task).and_then(|all| all.last()?.minted.as_deref());
        Ok((deliveries(&ask, &known.config, parts), Some(lease)))
    }

    /// Whether something is held for a run under this name.
    pub(super) fn holds(&self, task: u64, name: &str) -> bool {
        self.live().get(&task).is_some_and(|all| all.iter().any(|live| live.entry.name == name))
    }

    /// A part of what was minted for a run under this name.
    pub(super) fn part(&self, task: u64, name: &str, part: &str) -> Option<Secret> {
        let live = self.live();
        let minted = live.get(&task)?.iter().find(|live| live.entry.name == name)?.minted.as_ref()?;
        Some(Secret::new(minted.parts.get(part)?.expose().to_vec()))
    }

    /// A number for a task that isn't the host's.
    pub(super) fn next_trial(&self) -> u64 {
        let task = self.trials.get();
        self.trials.set(task - 1);
        task
    }

    /// Tries what a task holds as its holder would; none where it holds nothing.
    pub(super) async fn try_held(&self, task: u64) -> Option<Result<Alive, IssuerError>> {
        let (known, entry, minted) = {
            let live = self.live();
            let first = live.get(&task)?.first()?;
            (first.known.clone(), first.entry.clone(), first.minted.clone())
        };
        Some(known.issuer.try_use(&entry.handle, &entry.scope, minted.as_deref()).await)
    }

    pub(super) async fn mint(
        &self,
        task: u64,
        run: &str,
        ask: &Ask,
        known: &Known,
    ) -> Result<Lease, Refused> {
        let now = SystemTime::now();
        let most = known.config.max_ttl.unwrap_or(Duration::MAX);
        let until = now + Duration::from_millis(ask.ttl_ms).saturating_add(SLACK).min(most);
        let handle = handle().map_err(|error| refusal::host(format!("there is no randomness: {error}")))?;
        let entry = Entry {
            run: run.to_owned(),
            name: ask.name.clone(),
            issuer: ask.issuer.clone(),
            scope: ask.scope.clone(),
            handle,
            minted: seconds(now),
            expires: Some(seconds(until)),
            kept: None,
        };
        let open = self.journal.begin(&entry).map_err(|error| of_journal(&error))?;
        let minted = known.issuer.mint(&entry.handle, &ask.scope, until).await;
        let minted = match minted {
            Ok(minted) => minted,
            Err(error) if error.left_nothing() => {
                let _ = open.close(); // otherwise nothing is revoked once more
                return Err(of_issuer(&error));
            }
            Err(error) => {
                // It may have been made all the same, where its answer was lost.
                let live = Live { known: known.clone(), entry, open, minted: None, timer: None };
                self.live().entry(task).or_default().push(live);
                return Err(of_issuer(&error));
            }
        };
        let lease = Lease {
            name: ask.name.clone(),
            issuer: ask.issuer.clone(),
            scope: ask.scope.clone(),
            minted: entry.minted,
            expires: minted.expires.map(seconds),
            can_revoke: known.issuer.can_revoke(&entry.handle),
            fingerprint: fingerprint(&minted),
            is_weak: false,
            uses: None,
        };
        // Also where its issuer ends it: a role's open sessions outlive its time.
        let ends = now + Duration::from_millis(ask.ttl_ms).min(most);
        let timer = lease.can_revoke.then(|| Timer::start(ends, known.issuer.clone(), entry.handle.clone()));
        let mut live = Live { known: known.clone(), entry, open, minted: Some(Rc::new(minted)), timer };
        let kept = live.keep();
        self.live().entry(task).or_default().push(live);
        kept.map(|()| lease)
    }

    /// Ends what a run holds; all of it at once.
    pub(super) async fn end(&self, task: u64) -> Vec<Ended> {
        if let Some(has_ended) = self.preparing().get_mut(&task) {
            *has_ended = true; // what is being minted just now is ended by who asked for it
        }
        let began = Instant::now();
        let in_use = self.stop_using(task);
        if let Some(in_use) = &in_use {
            in_use.settle(ENDING).await;
        }
        let held = self.live().remove(&task).unwrap_or_default();
        let mut ended: Vec<_> = end_each(held, began, ENDING).await.into_iter().map(forgotten).collect();
        // What may have been minted, although its answer was lost, is said as that.
        if let Some(in_use) = in_use {
            in_use.complete(&mut ended, began);
        }
        ended
    }

    /// Ends what everybody holds.
    pub(super) async fn end_all(&self) {
        let in_use: Vec<u64> = self.in_use().keys().copied().collect();
        for task in in_use {
            self.stop_using(task);
        }
        let held = std::mem::take(&mut *self.live());
        let ended = end_each(held.into_values().flatten().collect(), Instant::now(), ENDING).await;
        ended.into_iter().for_each(|ended| drop(forgotten(ended)));
    }

    /// All that the operator's file has.
    pub(super) fn issuers(&self) -> Result<&BTreeMap<String, Known>, Refused> {
        self.issuers.as_ref().map_err(|unserved| Refused {
            kind: Refusal::Host,
            message: unserved.message.clone(),
            fix: unserved.fix.clone(),
        })
    }

    pub(super) fn known(&self, issuer: &str) -> Result<Known, Refused> {
        let issuers = self.issuers()?;
        issuers.get(issuer).cloned().ok_or_else(|| Refused {
            kind: Refusal::Request,
            message: format!("no issuer is called `{issuer}`"),
            fix: match issuers.keys().cloned().collect::<Vec<_>>().as_slice() {
                [] => "the operator's issuers.toml has none; add it there".to_owned(),
                names => format!("the operator's issuers.toml has {}", names.join(", ")),
            },
        })
    }

    /// Whether what is asked for is within the ceiling, and narrowed in each field.
    fn check(&self, ask: &Ask) -> Result<Known, Refused> {
        let known = self.known(&ask.issuer)?;
        let refused = |message: String, fix: String| Refused { kind: Refusal::Request, message, fix };
        let ceiling = known.config.kind.ceiling();
        for name in ask.scope.keys() {
            if !ceiling.iter().any(|(field, _)| field == name) {
                let fields: Vec<_> = ceiling.iter().map(|(field, _)| *field).collect();
                let message = format!("`{}` has nothing called `{name}` to narrow", ask.issuer);
                let fix = match fields.is_empty() {
                    true => "leave it out: its scope is the hosts and paths of rules".to_owned(),
                    false => format!("its fields are {}", fields.join(", ")),
                };
                return Err(refused(message, fix));
            }
        }
        for (field, allowed) in ceiling {
            let example = allowed.first().map_or("…", String::as_str);
            let Some(values) = ask.scope.get(field).filter(|values| !values.is_empty()) else {
                let message = format!("the credential `{}` doesn't say its `{field}`", ask.name);
                return Err(refused(
                    message,
                    format!("add {field}={example}: each field has to be narrowed"),
                ));
            };
            if let Some(beyond) = values.iter().find(|value| !allowed.contains(value)) {
                let message = format!("`{}` may not give `{field}` of `{beyond}`", ask.issuer);
                return Err(refused(message, format!("it may give {}", allowed.join(", "))));
            }
            if known.config.kind.takes_one(field) && values.len() > 1 {
                let message = format!("`{}` gives one `{field}` at a time", ask.issuer);
                return Err(refused(message, "ask for two credentials".to_owned()));
            }
        }
        if let (Some(asked), Some(most)) = (ask.asked_ttl_ms, known.config.max_ttl)
            && Duration::from_millis(asked) > most
        {
            let most = humantime::format_duration(most);
            let message =
                format!("the credential `{}` is to live longer than `{}` lets any", ask.name, ask.issuer);
            return Err(refused(message, format!("write at most `ttl = \"{most}\"`")));
        }
        if known.config.inject.is_some() && ask.in_requests.is_none() {
            let message = format!("the credentials of `{}` stay outside, so no program gets one", ask.issuer);
            let fix = "let it stand in requests: `credential` in a [[network.allow]] without `protocol`, which is HTTP over TLS";
            return Err(refused(message, fix.to_owned()));
        }
        check_templates(ask, &known.config)?;
        Ok(known)
    }

    fn preparing(&self) -> RefMut<'_, BTreeMap<u64, bool>> {
        self.preparing.borrow_mut()
    }

    fn live(&self) -> RefMut<'_, BTreeMap<u64, Vec<Live>>> {
        self.live.borrow_mut()
    }

    pub(super) fn in_use(&self) -> RefMut<'_, BTreeMap<u64, InUse>> {
        self.in_use.borrow_mut()
    }
}

/// A name that nobody else has and that stands anywhere: 120 random bits.
fn handle() -> io::Result<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let bytes: [u8; 24] = cofferdam_sys::fd::random_bytes()?;
    let text: String = bytes.iter().map(|byte| char::from(DIGITS[usize::from(byte & 31)])).collect();
    Ok(format!("cofferdam_{text}"))
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_differ() {
        assert_ne!(handle().unwrap(), handle().unwrap());
        assert_eq!(handle().unwrap().len(), 34);
    }
}
