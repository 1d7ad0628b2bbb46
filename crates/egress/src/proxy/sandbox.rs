//! One run of one sandbox, as the proxy knows it: its rules, what it used up, its names, its certificates, its
//! connections. Everything that is done for it is done in tasks of its own, which end when it is cut.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_core::egress::{Budget, Denial, Door, Exhausted, Rules};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::brokered::Broker;
use super::certificates::Certificates;
use super::dns::names::Names;
use super::node::Outside;
use super::report::{Host, NotRecorded};
use super::upstream::Pool;
use crate::authority::AuthorityError;
use crate::control::{Allowed, DeniedNames, FromProxy, Report, Terms};

/// A run of a sandbox.
pub(crate) struct Sandbox {
    session: u32,
    run: String,
    rules: Rules,
    denied_names: DeniedNames,
    own: Vec<IpAddr>,
    has_ipv6: bool,
    most_accepted: usize,
    accepted: AtomicUsize,
    turns: Arc<Semaphore>,
    budget: Mutex<Budget>,
    bytes_in: AtomicU64,
    names: Mutex<Names>,
    certificates: Certificates,
    pool: Pool,
    outside: Arc<Outside>,
    broker: Option<Broker>,
    host: Arc<Host>,
    ended: watch::Sender<bool>,
    /// Held by every task: when the last is gone, the other end knows.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    all_ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

/// Connections that are accepted beyond those that may lead out: questions for names, and refusals.
const ACCEPTED_BESIDE: usize = 64;

/// Requests that are answered at once; others wait for their turn. What waits on the way to a program that doesn't read
/// is this process's memory, not the sandbox's: some hundred KiB each. As many as a program may have connections,
/// unless its policy says otherwise.
const REQUESTS_AT_ONCE: usize = 256;

/// How long an idle connection may take to be closed, in milliseconds: it has nothing to say.
const CLOSING_MS: usize = 50;

impl Sandbox {
    /// Takes what a run may do.
    ///
    /// # Errors
    ///
    /// [`AuthorityError`] if its key is none.
    pub(crate) fn new(
        terms: &Terms,
        has_ipv6: bool,
        outside: Arc<Outside>,
        host: Arc<Host>,
        broker: Option<Broker>,
    ) -> Result<Arc<Sandbox>, AuthorityError> {
        let (alive, all_ended) = mpsc::channel(1);
        let most = usize::try_from(terms.limits.connections).unwrap_or(usize::MAX);
        Ok(Arc::new(Sandbox {
            session: terms.session,
            run: terms.run.clone(),
            rules: Rules::new(&terms.rules),
            denied_names: terms.denied_names,
            own: terms.own.clone(),
            has_ipv6,
            most_accepted: most.saturating_add(ACCEPTED_BESIDE),
            accepted: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
            budget: Mutex::new(Budget::new(&terms.limits)),
            bytes_in: AtomicU64::new(0),
            names: Mutex::default(),
            certificates: Certificates::new(&terms.authority, &terms.authority_key)?,
            pool: Pool::default(),
            outside,
            broker,
            host,
            ended: watch::Sender::new(false),
            alive: Mutex::new(Some(alive)),
            all_ended: tokio::sync::Mutex::new(all_ended),
        }))
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn denied_names(&self) -> DeniedNames {
        self.denied_names
    }

    pub(crate) fn own_addresses(&self) -> &[IpAddr] {
        &self.own
    }

    pub(crate) fn has_ipv6(&self) -> bool {
        self.has_ipv6
    }

    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// The way to whoever has the run's credentials.
    pub(crate) fn broker(&self) -> Option<&Broker> {
        self.broker.as_ref()
    }

    /// One of the turns that requests have. Nobody ends them.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone().acquire_owned().await.ok()
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    pub(crate) fn budget(&self) -> MutexGuard<'_, Budget> {
        lock(&self.budget)
    }

    pub(crate) fn count_in(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a connection of the sandbox's as accepted until the guard is dropped; none where there are too many.
    pub(crate) fn accept(self: &Arc<Self>) -> Option<Accepted> {
        let before = self.accepted.fetch_add(1, Ordering::Relaxed);
        let accepted = Accepted(self.clone());
        (before < self.most_accepted).then_some(accepted)
    }

    /// Counts a connection outwards as open until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] where there are as many as may be, none of them idle.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<Opened, Exhausted> {
        let mut result = self.budget().connection_opened();
        if result.is_err() {
            self.pool.clear();
        }
        // Those that were idle end in tasks of their own.
        for _ in 0..CLOSING_MS {
            if result.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            result = self.budget().connection_opened();
        }
        result.map(|()| Opened(self.clone()))
    }

    /// Does something for this run until that is done or the run is cut.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(alive) = lock(&self.alive).clone() else { return };
        let mut ended = self.ended.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {}
                () = task => {}
            }
            drop(alive);
        });
    }

    /// Ends everything of this run, and says so when nothing is left.
    pub(crate) async fn cut(&self) {
        self.ended.send_replace(true);
        lock(&self.alive).take();
        self.pool.clear();
        while self.all_ended.lock().await.recv().await.is_some() {}
        self.pool.clear();
        self.host.say(&FromProxy::IsCut {
            session: self.session,
            bytes_out: self.budget().bytes_out_used(),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
        });
    }

    /// Has a refusal written down. It is one whether it is or not.
    pub(crate) async fn tell(&self, report: Report) {
        let _ = self.host.record(self.session, report).await;
    }

    /// Has a refusal of something that came by a door written down.
    pub(crate) async fn deny(&self, denial: &Denial, door: Door) {
        self.tell(Report::Denied { denial: denial.clone(), door: Some(door), ip: None }).await;
    }

    /// The same without waiting, for what may be cut before it could be said.
    pub(crate) fn deny_now(&self, denial: &Denial, door: Door) {
        self.host.tell(self.session, Report::Denied { denial: denial.clone(), door: Some(door), ip: None });
    }

    /// Has something written down that is about to go out.
    ///
    /// # Errors
    ///
    /// [`NotRecorded`]: it must not go out.
    pub(crate) async fn record(&self, allowed: Allowed) -> Result<(), NotRecorded> {
        self.host.record(self.session, Report::Allowed(allowed)).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that was accepted.
pub(crate) struct Accepted(Arc<Sandbox>);

impl Drop for Accepted {
    fn drop(&mut self) {
        self.0.accepted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection outwards.
pub(crate) struct Opened(Arc<Sandbox>);

impl Opened {
    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.budget().connection_closed();
    }
}

/// Runs the tasks of a library as those of a run.
#[derive(Clone)]
pub(crate) struct Within(pub(crate) Arc<Sandbox>);

impl<F: Future + Send + 'static> hyper::rt::Executor<F> for Within {
    fn execute(&self, future: F) {
        self.0.spawn(async move {
            future.await;
        });
    }
}
