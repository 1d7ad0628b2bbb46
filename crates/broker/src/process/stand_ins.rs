//! What of a run's credentials requests carry: each is a surrogate to the program, and is minted by the first request
//! that needs it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cofferdam_core::egress::{Authority, DenialCode, Host, Rules};
use cofferdam_core::policy::{HostPattern, NetworkRule};
use cofferdam_core::secret::Secret;
use cofferdam_core::surrogate;
use cofferdam_core::weaken::{self, Control};
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Refused;
use super::end::fingerprint_of;
use super::refusal::{host, of_issuer};
use super::tasks::{Known, Tasks, seconds};
use crate::config::{Inject, Kind};
use crate::control::{Ask, Ended, InRequests, Lease, Refusal, RuleText, State, What};
use crate::upstream::connection::{Run, Secrets};
use crate::upstream::stand_in::{Kept, StandIn, prefix};

/// How often it is looked whether something is minted.
const LOOK: Duration = Duration::from_millis(1);

/// The most connections of one run's that are handed over at once: as many as a run may have by itself
/// (`limits.connections`).
pub(super) const HANDED_OVER: usize = 256;

/// The credentials of one run that requests carry.
pub(super) struct InUse {
    run: String,
    all: Vec<Rc<One>>,
    over: watch::Sender<bool>,
    turns: Arc<Semaphore>,
}

/// One of them.
struct One {
    ask: Ask,
    known: Known,
    since: SystemTime,
    stand_in: Rc<StandIn>,
    /// A secret that nobody mints, until the first request takes it.
    read: RefCell<Option<Secret>>,
    /// Why it could not be minted, if it couldn't.
    failed: RefCell<Option<String>>,
    /// Whether something may live although it is said to have failed: then nothing more is minted.
    may_live: Cell<bool>,
    /// Who asks for the secret, one after the other.
    turn: Mutex<()>,
    /// What mints it: its end is waited for whoever asked is gone.
    minting: RefCell<Option<JoinHandle<()>>>,
    /// Whether nobody waits for that any more.
    is_given_up: Cell<bool>,
}

impl InUse {
    pub(super) fn new(run: &str) -> Self {
        let turns = Arc::new(Semaphore::new(HANDED_OVER));
        InUse { run: run.to_owned(), all: vec![], over: watch::Sender::new(false), turns }
    }

    /// Waits for what is being minted just now. What takes longer is ended by who mints it.
    pub(super) async fn settle(&self, within: Duration) {
        let settled = async {
            for one in &self.all {
                one.is_minted().await;
            }
        };
        if timeout(within, settled).await.is_err() {
            self.all.iter().for_each(|one| one.is_given_up.set(true));
        }
    }

    /// Says of what was ended how often it was used, and what became of the rest: nothing of that was minted.
    pub(super) fn complete(&self, ended: &mut Vec<Ended>, began: Instant) {
        for one in &self.all {
            // What may have been minted, although its answer was lost, is said as that.
            match ended.iter_mut().find(|ended| ended.lease.name == one.ask.name) {
                Some(ended) => ended.lease.uses = Some(one.stand_in.uses.get()),
                None => ended.push(one.ended(&self.run, began)),
            }
        }
    }

    fn named(&self, name: &str) -> Option<&Rc<One>> {
        self.all.iter().find(|one| one.ask.name == name)
    }
}

impl Tasks {
    /// Makes a surrogate for what a run asks for. Nothing is minted; a secret that nobody mints is read, so that one
    /// that isn't there is said before anything starts.
    pub(super) async fn stand_in(&self, task: u64, ask: Ask, known: Known) -> Result<Secret, Refused> {
        let Some(in_requests) = ask.in_requests.clone() else { return Err(no_requests(&ask)) };
        let place = place(&ask, &in_requests, &known)?;
        let read = match known.config.kind {
            Kind::Static => {
                let minted = known.issuer.mint("", &ask.scope, SystemTime::now()).await;
                minted.map_err(|error| of_issuer(&error))?.parts.remove("token")
            }
            _ => None,
        };
        let random = cofferdam_sys::fd::random_bytes();
        let random = random.map_err(|error| host(format!("there is no randomness: {error}")))?;
        let surrogate = match &read {
            Some(secret) if weaken::is_off(Control::Surrogate) => {
                String::from_utf8_lossy(secret.expose()).into_owned()
            }
            read => surrogate::of(read.as_ref().map_or("", prefix), &random),
        };
        let hosts = known.config.hosts.iter().filter_map(|host| Authority::parse(host.as_bytes()).ok());
        let hosts: Vec<_> = hosts.map(|authority| (authority.host().clone(), authority.port())).collect();
        within_hosts(&ask, &in_requests, &hosts)?;
        let now = SystemTime::now();
        let most = known.config.max_ttl.unwrap_or(Duration::MAX);
        let stand_in = StandIn {
            name: ask.name.clone(),
            surrogate: surrogate.clone(),
            place,
            rules: Rules::new(&in_requests.rules.iter().filter_map(rule).collect::<Vec<_>>()),
            hosts,
            until: now + Duration::from_millis(ask.ttl_ms).min(most),
            max_uses: in_requests.max_uses,
            uses: Cell::new(0),
            is_over: Cell::new(false),
            secret: OnceCell::new(),
        };
        let one = One {
            ask,
            known,
            since: now,
            stand_in: Rc::new(stand_in),
            read: RefCell::new(read),
            failed: RefCell::default(),
            may_live: Cell::new(false),
            turn: Mutex::default(),
            minting: RefCell::default(),
            is_given_up: Cell::new(false),
        };
        if let Some(in_use) = self.in_use().get_mut(&task) {
            in_use.all.push(Rc::new(one));
        }
        Ok(Secret::new(surrogate.into_bytes()))
    }

    /// Tells that a run is over, if it lives, and one of its turns to have a connection served; none where it has too
    /// many.
    pub(super) fn over(&self, task: u64) -> Option<(watch::Receiver<bool>, OwnedSemaphorePermit)> {
        let in_use = self.in_use();
        let in_use = in_use.get(&task)?;
        Some((in_use.over.subscribe(), in_use.turns.clone().try_acquire_owned().ok()?))
    }

    /// Has no request of a run carry anything any more.
    pub(super) fn stop_using(&self, task: u64) -> Option<InUse> {
        let in_use = self.in_use().remove(&task)?;
        for one in &in_use.all {
            one.stand_in.is_over.set(true);
        }
        in_use.over.send_replace(true);
        Some(in_use)
    }

    /// The first request that carries a credential has it minted.
    async fn mint_for(&self, task: u64, one: &One) -> Result<Kept, DenialCode> {
        let read = one.read.borrow_mut().take();
        let (lease, secret) = match read {
            Some(secret) => (one.lease(fingerprint_of([secret.expose()])), secret),
            None => self.minted(task, one).await?,
        };
        if self.host.record(task, What::Minted(lease)).await {
            Ok(Kept::new(secret))
        } else {
            Err(DenialCode::TaskEnded)
        }
    }

    async fn minted(&self, task: u64, one: &One) -> Result<(Lease, Secret), DenialCode> {
        let left = one
            .stand_in
            .until
            .duration_since(SystemTime::now())
            .map_err(|_| DenialCode::CredentialExpired)?;
        let ttl_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let ask = Ask { ttl_ms, ..one.ask.clone() };
        let run = self.in_use().get(&task).map(|in_use| in_use.run.clone());
        let run = run.ok_or(DenialCode::TaskEnded)?;
        let lease = self.mint(task, &run, &ask, &one.known).await.map_err(|refused| {
            *one.failed.borrow_mut() = Some(refused.message);
            one.may_live.set(self.holds(task, &ask.name));
            DenialCode::UpstreamUnreachable
        })?;
        let secret = self.part(task, &ask.name, "token").ok_or(DenialCode::CredentialExpired)?;
        Ok((Lease { uses: Some(0), ..lease }, secret))
    }
}

/// Has a secret minted in a task of its own, since whoever asks for it may go away.
async fn mint(tasks: Rc<Tasks>, task: u64, one: Rc<One>) {
    if let Ok(kept) = tasks.mint_for(task, &one).await {
        let _ = one.stand_in.secret.set(kept); // nobody else mints it
    }
    if one.is_given_up.get() {
        tasks.end(task).await;
    }
}

impl One {
    /// Waits until nothing is being minted.
    async fn is_minted(&self) {
        while self.minting.borrow().as_ref().is_some_and(|minting| !minting.is_finished()) {
            sleep(LOOK).await;
        }
    }

    fn lease(&self, fingerprint: String) -> Lease {
        Lease {
            name: self.ask.name.clone(),
            issuer: self.ask.issuer.clone(),
            scope: self.ask.scope.clone(),
            minted: seconds(self.since),
            expires: Some(seconds(self.stand_in.until)),
            can_revoke: self.known.issuer.can_revoke(""),
            fingerprint,
            is_weak: self.known.config.kind == Kind::Static,
            uses: Some(self.stand_in.uses.get()),
        }
    }

    /// What became of it: nobody has anything to revoke, and what stood for it is tried once more.
    fn ended(&self, run: &str, began: Instant) -> Ended {
        let stand_in = &self.stand_in;
        let tried = stand_in.hosts.first().map(|(host, port)| stand_in.connection(host, *port));
        let verified = match (self.failed.borrow().as_ref(), tried) {
            (Some(why), _) => Some(format!("it could not be minted: {why}")),
            (None, Some(Ok(_))) => None,
            (None, _) if self.known.config.kind == Kind::Static => {
                Some("what stood for it is refused".to_owned())
            }
            (None, _) => Some("no request carried it, so it was never minted".to_owned()),
        };
        let state = match verified {
            Some(verified) => State::Dead { after_us: began.elapsed().as_micros() as u64, verified },
            None => State::Unknown { why: "what stands for it is still taken".to_owned() },
        };
        Ended { run: run.to_owned(), lease: self.lease(String::new()), state }
    }
}

/// Whether each rule is for a host to which the issuer's operator lets its credentials go.
fn within_hosts(ask: &Ask, in_requests: &InRequests, hosts: &[(Host, u16)]) -> Result<(), Refused> {
    let is_known =
        |host: &str, port: u16| hosts.iter().any(|(known, its)| known.to_string() == host && *its == port);
    for RuleText { host, ports, .. } in &in_requests.rules {
        if let Some(port) = ports.iter().find(|port| !is_known(host, **port)) {
            let allowed: Vec<_> = hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            return Err(Refused {
                kind: Refusal::Request,
                message: format!("`{}` lets no credential go to {host}:{port}", ask.issuer),
                fix: format!(
                    "take `credential = \"{}\"` off that rule; it goes to {}",
                    ask.name,
                    allowed.join(", ")
                ),
            });
        }
    }
    Ok(())
}

/// Where a credential stands: where the issuer's operator says, and the policy can only say the same.
fn place(ask: &Ask, in_requests: &InRequests, known: &Known) -> Result<Inject, Refused> {
    let refused =
        |message: String, fix: &str| Refused { kind: Refusal::Request, message, fix: fix.to_owned() };
    let Ask { name, issuer, .. } = ask;
    if !known.config.kind.is_a_token() {
        return Err(refused(
            format!("`{issuer}` mints what doesn't fit into requests, so `{name}` can't be injected"),
            "deliver it in variables",
        ));
    }
    let its = known.config.inject.as_ref();
    match (in_requests.inject.as_deref(), its) {
        (None, None) | (Some("bearer"), None) => Ok(Inject::Bearer),
        (Some("basic"), None) => Ok(Inject::Basic { user: None }),
        (None, Some(its)) => Ok(its.clone()),
        (Some(asked), Some(its)) if asked == its.name() => Ok(its.clone()),
        (Some("header"), None) => Err(refused(
            format!("`{issuer}` doesn't say in which header its credentials stand"),
            "the operator adds `inject = \"header\"` and `header = \"X-Api-Key\"` to it in issuers.toml",
        )),
        (Some(asked), its) => Err(refused(
            format!("`{issuer}` doesn't inject as `{asked}`"),
            &format!("write inject = \"{}\"", its.map_or("bearer", Inject::name)),
        )),
    }
}

fn no_requests(ask: &Ask) -> Refused {
    Refused {
        kind: Refusal::Request,
        message: format!("nothing says into which requests the credential `{}` goes", ask.name),
        fix: "add `credential` to the [[network.allow]] that it is for".to_owned(),
    }
}

fn rule(text: &RuleText) -> Option<NetworkRule> {
    let RuleText { host, ports, methods, paths } = text;
    let host = HostPattern::parse(host).ok()?;
    Some(NetworkRule {
        ports: ports.clone(),
        methods: methods.clone(),
        paths: paths.clone(),
        ..NetworkRule::https(host)
    })
}

/// A run, as its connections know it.
pub(super) struct TaskRun {
    task: u64,
    tasks: Rc<Tasks>,
}

impl TaskRun {
    pub(super) fn new(task: u64, tasks: Rc<Tasks>) -> Self {
        TaskRun { task, tasks }
    }
}

impl Run for TaskRun {
    fn stand_in(&self, name: &str) -> Option<Rc<StandIn>> {
        let in_use = self.tasks.in_use();
        Some(in_use.get(&self.task)?.named(name)?.stand_in.clone())
    }

    fn is_ours(&self, surrogate: &str) -> bool {
        let in_use = self.tasks.in_use();
        in_use
            .get(&self.task)
            .is_some_and(|in_use| in_use.all.iter().any(|one| one.stand_in.surrogate == surrogate))
    }

    fn secret<'a>(&'a self, stand_in: &'a StandIn) -> Secrets<'a> {
        let one =
            self.tasks.in_use().get(&self.task).and_then(|in_use| in_use.named(&stand_in.name).cloned());
        Box::pin(async move {
            let one = one.ok_or(DenialCode::CredentialExpired)?;
            let _turn = one.turn.lock().await;
            one.is_minted().await;
            if stand_in.secret.get().is_none() {
                if one.may_live.get() {
                    return Err(DenialCode::UpstreamUnreachable);
                }
                let minting = tokio::task::spawn_local(mint(self.tasks.clone(), self.task, one.clone()));
                one.minting.replace(Some(minting));
                one.is_minted().await;
            }
            stand_in.secret.get().ok_or(DenialCode::UpstreamUnreachable)
        })
    }

    fn reflected(&self, name: &str, host: &Host) {
        let what = What::Reflected { name: name.to_owned(), host: host.to_string() };
        self.tasks.host.tell(self.task, what);
    }
}
