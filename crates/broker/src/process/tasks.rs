//! The leases of the runs that the broker serves.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofferdam_core::secret::Secret;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::host::Host;
use super::stand_ins::InUse;
use super::timer::Timer;
use super::{Issuers, Refused, template};
use crate::config::{IssuerConfig, Kind};
use crate::control::{Answer, Ask, Ended, Lease, Refusal, State};
use crate::issuer::{self, Alive, Issuer, IssuerError, Minted};
use crate::journal::{Entry, Journal, Open};

/// How long a lease's end may take: revoking, and seeing that it is dead. Less than the host waits
/// (`client::ENDING`).
const ENDING: Duration = Duration::from_secs(15);

/// How long is waited between two looks at something that was revoked and still does something.
const AGAIN: Duration = Duration::from_millis(20);

/// How often it is looked at.
const LOOKS: usize = 25;

/// What an issuer needs beyond the time of a run, so that its clock may be a little behind.
const SLACK: Duration = Duration::from_secs(30);

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
    /// For one whose issuer doesn't end it by itself.
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
        let (mut variables, mut secrets, mut leases) = (vec![], vec![], vec![]);
        for (ask, known) in asks.into_iter().zip(checked) {
            let has_ended = self.preparing().get(&task).copied().unwrap_or_default();
            let prepared =
                if has_ended { Err(over()) } else { self.prepare_one(task, run, ask, known).await };
            match prepared {
                Ok((delivered, lease)) => {
                    leases.extend(lease);
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
        if known.config.kind == Kind::Static {
            return Err(Refused {
                kind: Refusal::Request,
                message: format!("the secret of `{}` outlives every run, so no program gets it", ask.issuer),
                fix: "let it stand in requests: `credential` in a [[network.allow]], and `inject`".to_owned(),
            });
        }
        let lease = self.mint(task, run, &ask, &known).await?;
        let live = self.live();
        let parts = live.get(&task).and_then(|all| all.last()?.minted.as_deref());
        Ok((deliveries(&ask, &known.config, parts), Some(lease)))
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
        let handle = handle().map_err(|error| host(format!("there is no randomness: {error}")))?;
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
        let is_endless = minted.expires.is_none() && lease.can_revoke;
        let timer = is_endless.then(|| Timer::start(until, known.issuer.clone(), entry.handle.clone()));
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
        let (mut ended, uses) = self.stop_using(task, began);
        let held = self.live().remove(&task).unwrap_or_default();
        ended.extend(end_each(held, began, ENDING).await.into_iter().map(forgotten));
        for (name, count) in uses {
            if let Some(ended) = ended.iter_mut().find(|ended| ended.lease.name == name) {
                ended.lease.uses = Some(count);
            }
        }
        ended
    }

    /// Ends what everybody holds.
    pub(super) async fn end_all(&self) {
        let in_use: Vec<u64> = self.in_use().keys().copied().collect();
        for task in in_use {
            self.stop_using(task, Instant::now());
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
                return Err(refused(message, format!("its fields are {}", fields.join(", "))));
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
    let open = (!matches!(state, State::Unknown { .. })).then_some(open);
    let expires = minted.as_ref().map_or(entry.expires, |minted| minted.expires.map(seconds));
    let fingerprint = minted.as_deref().map(fingerprint).unwrap_or_default();
    let lease = Lease { expires, fingerprint, ..described(&entry, can_revoke) };
    (Ended { run: entry.run, lease, state }, open)
}

/// Closes the entry of what has ended.
fn forgotten((ended, open): EndedOne) -> Ended {
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

/// Whether each part that is to be delivered is one that its issuer mints.
fn check_templates(ask: &Ask, config: &IssuerConfig) -> Result<(), Refused> {
    let parts = config.kind.parts();
    for (variable, template) in &ask.deliver {
        if let Some(unknown) = template::unknown_part(template, parts) {
            return Err(Refused {
                kind: Refusal::Request,
                message: format!(
                    "`{variable}` is to have the part `{{{unknown}}}`, which no credential of `{}` has",
                    ask.issuer
                ),
                fix: format!("its parts are {}", template::all_parts(parts)),
            });
        }
    }
    Ok(())
}

/// The variables of a credential: templates, with its parts in place of `{part}`. What is no part stays as it stands.
fn deliveries(ask: &Ask, config: &IssuerConfig, minted: Option<&Minted>) -> Vec<(String, Secret)> {
    let usual = config.kind.usual_variables().iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let mut wanted: Vec<(String, String)> =
        if ask.deliver.is_empty() { usual.collect() } else { ask.deliver.clone() };
    if wanted.is_empty() {
        wanted.push((token_variable(&ask.name), "{token}".to_owned())); // clients have no name of their own for it
    }
    let (host, port) = config.hosts.first().and_then(|host| host.rsplit_once(':')).unwrap_or_default();
    let part = |name: &str| match name {
        "host" => Some(host.as_bytes()),
        "port" => Some(port.as_bytes()),
        name => minted?.parts.get(name).map(Secret::expose),
    };
    wanted.into_iter().map(|(name, template)| (name, filled(&template, part))).collect()
}

/// Where a program finds a token that nobody named a variable for: the credential's name and `_TOKEN`.
fn token_variable(name: &str) -> String {
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).chain("_TOKEN".chars()).collect()
}

fn filled<'a>(template: &str, part: impl Fn(&str) -> Option<&'a [u8]>) -> Secret {
    const LONGEST: usize = 64 << 10; // so that it never grows, and leaves no copy
    let (mut value, mut rest) = (Vec::with_capacity(LONGEST.max(template.len())), template);
    while let Some(at) = rest.find('{') {
        value.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        let end = rest.find('}');
        match end.and_then(|end| Some((end, part(&rest[1..end])?))) {
            Some((end, bytes)) => {
                value.extend_from_slice(bytes);
                rest = &rest[end + 1..];
            }
            None => {
                value.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    value.extend_from_slice(rest.as_bytes());
    Secret::new(value)
}

/// A name that nobody else has and that stands anywhere: 120 random bits.
fn handle() -> io::Result<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let bytes: [u8; 24] = cofferdam_sys::fd::random_bytes()?;
    let text: String = bytes.iter().map(|byte| char::from(DIGITS[usize::from(byte & 31)])).collect();
    Ok(format!("cofferdam_{text}"))
}

/// The first four bytes of the hash of all that is secret of it.
fn fingerprint(minted: &Minted) -> String {
    let secret = minted.parts.iter().filter(|(name, _)| matches!(**name, "key" | "password" | "token"));
    fingerprint_of(secret.map(|(_, value)| value.expose()))
}

pub(super) fn fingerprint_of<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    secrets.into_iter().for_each(|secret| hash.update(secret));
    hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

pub(super) fn host(message: String) -> Refused {
    Refused { kind: Refusal::Host, message, fix: "see what the kernel says of the state folder".to_owned() }
}

/// The refusal that nobody waits for any more.
fn over() -> Refused {
    Refused {
        kind: Refusal::Host,
        message: "the run ended before its credentials were there".to_owned(),
        fix: "see why its issuer takes so long".to_owned(),
    }
}

fn of_journal(error: &io::Error) -> Refused {
    Refused {
        kind: Refusal::Host,
        message: format!("the journal of leases can't be written: {error}"),
        fix: "see that there is room for it below the state folder, and that it is yours".to_owned(),
    }
}

pub(super) fn of_issuer(error: &IssuerError) -> Refused {
    let (kind, fix) = match error {
        IssuerError::Root { .. } => (Refusal::Host, "mend its `root` in issuers.toml"),
        IssuerError::Unreachable { .. } | IssuerError::Lost { .. } => {
            (Refusal::Upstream, "see whether it runs and can be reached from here")
        }
        IssuerError::Unusable { .. } => (
            Refusal::Upstream,
            "have the helper print what is missing: docs/credentials.md says what it prints",
        ),
        IssuerError::Refused { .. } => (
            Refusal::Upstream,
            "see that its root may do this, and that its server has what its table names (docs/credentials.md and \
             docs/issuers.md say what it takes)",
        ),
    };
    Refused { kind, message: error.to_string(), fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_with_what_is_a_part_and_keep_the_rest() {
        let part = |name: &str| match name {
            "user" => Some(&b"u"[..]),
            "password" => Some(&b"{user}"[..]),
            _ => None,
        };
        let said = |template: &str| String::from_utf8(filled(template, part).expose().to_vec()).unwrap();
        assert_eq!(said("a{user}b{password}c"), "aub{user}c", "what was put in is not read again");
        assert_eq!(said("{"), "{");
        assert_eq!(said("{\"json\": {user}}"), "{\"json\": u}");
        assert_eq!(said("{nobody}"), "{nobody}");
    }

    #[test]
    fn a_token_has_a_variable_by_its_name() {
        assert_eq!(token_variable("vault.shop-1"), "VAULT_SHOP_1_TOKEN");
    }

    #[test]
    fn handles_differ() {
        assert_ne!(handle().unwrap(), handle().unwrap());
        assert_eq!(handle().unwrap().len(), 34);
    }
}
