//! Sandboxes that are made ahead of need.
//!
//! A parked sandbox is open, has a run's identity and its file of state, and nothing has run in it.
//! It serves one run and is closed, as every other is; what is saved is the wait for it. Where the
//! backend can make a fresh sandbox out of one whose program has exited (`Session::renew`), that is done
//! between two runs instead of closing one and opening another; the fresh one has an identity of its own.
//!
//! # Invariants
//!
//! 1. A run gets a parked sandbox only if its own grant asks for exactly that sandbox
//!    ([`SandboxKey`]) in that backend. Any other run gets one of its own, opened for its own grant.
//! 2. A parked sandbox that has died is closed and not handed out, and so is one that could not be
//!    renewed.
//! 3. When [`Pool::keep`] returns, every parked sandbox is closed. If we are killed before, the files
//!    of state are there for the sweep, as for a run.
//!
//! Sandboxes die with the thread that opened them: a pool is kept and used on one thread.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_core::backend::Session;
use cofferdam_core::grant::{Grant, SandboxKey};
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Outlet;
use cofferdam_core::policy::{BackendName, Policy, PolicyHash, decide};
use cofferdam_core::request::Request;
use cofferdam_core::weaken::stop_at;
use tokio::sync::Notify;

use crate::run::way_out;
use crate::state::RunLock;
use crate::{Engine, policy_hash, select};

/// Makes the identity of a run.
type NewRun = Box<dyn Fn() -> io::Result<RunId> + Send + Sync>;

/// A few sandboxes of one policy, ready for runs.
pub struct Pool {
    policy: Policy,
    hash: PolicyHash,
    /// A run as most will be: it decides the backend.
    usual: Request,
    size: usize,
    new_run: NewRun,
    parked: Mutex<VecDeque<Parked>>,
    /// Sandboxes that can be renewed.
    used: Mutex<VecDeque<Used>>,
    /// Held while one of them is renewed.
    renewing: tokio::sync::Mutex<()>,
    /// The sandbox of a usual run.
    usual_key: OnceLock<Option<SandboxKey>>,
    wanted: Notify,
    shut: AtomicBool,
}

/// A sandbox that is open and in which nothing has run, with its way out, which lets nothing through yet.
pub(crate) struct Parked {
    pub(crate) run: RunId,
    pub(crate) session: Box<dyn Session>,
    pub(crate) lock: RunLock,
    pub(crate) outlet: Arc<dyn Outlet>,
    backend: BackendName,
    key: SandboxKey,
}

impl Parked {
    /// Closes it unused.
    pub(crate) async fn discard(self) {
        way_out::close_unused(self.outlet.as_ref()).await;
        close(self.session, self.lock).await;
    }
}

/// A sandbox whose program has exited and whose way out is cut, with the identity that it has next.
struct Used {
    run: RunId,
    session: Box<dyn Session>,
    lock: RunLock,
    backend: BackendName,
    key: SandboxKey,
}

/// Closes a sandbox that no run has.
async fn close(mut session: Box<dyn Session>, lock: RunLock) {
    let halted = session.halt().await.is_ok();
    if !(session.close().await.is_ok() && halted) {
        lock.leave_to_sweep();
    }
}

impl Pool {
    /// A pool of at most `size` sandboxes for runs under a policy, of which `usual` is one. It is
    /// empty until [`Pool::keep`] fills it.
    #[must_use]
    pub fn new(policy: Policy, usual: Request, size: usize, new_run: NewRun) -> Pool {
        Pool {
            hash: policy_hash(&policy),
            policy,
            usual,
            size,
            new_run,
            parked: Mutex::default(),
            used: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            usual_key: OnceLock::new(),
            wanted: Notify::new(),
            shut: AtomicBool::new(false),
        }
    }

    /// Keeps the pool full until it is shut, and then closes what is parked.
    ///
    /// A sandbox that can't be opened is no failure here: the next run opens its own, and reports
    /// what stands in the way.
    pub async fn keep(&self, engine: &Engine) {
        while !self.is_shut() {
            while !self.is_shut() && self.renew_one(engine).await {}
            while !self.is_shut() && self.idle() < self.size {
                if self.park(engine).await.is_none() {
                    break;
                }
            }
            self.wanted.notified().await;
        }
        // Taken out before it is waited for: nothing is held meanwhile.
        while let Some(parked) = { self.parked().pop_front() } {
            parked.discard().await;
        }
        while let Some(used) = { self.used().pop_front() } {
            close(used.session, used.lock).await;
        }
    }

    /// Lets [`Pool::keep`] close everything and return. Nothing is handed out afterwards.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        self.wanted.notify_one();
    }

    /// Has the pool filled again, as soon as its thread is free.
    pub(crate) fn refill(&self) {
        self.wanted.notify_one();
    }

    /// A parked sandbox that is exactly what a grant asks for, if there is one that lives, or one that can
    /// be renewed.
    pub(crate) async fn take(
        &self,
        engine: &Engine,
        backend: BackendName,
        key: &SandboxKey,
    ) -> Option<Parked> {
        loop {
            if let Some(parked) = self.living(backend, key).await {
                return Some(parked);
            }
            if !self.would_have(key) {
                return None; // none of those that have been used is one like it
            }
            let renewing = self.renewing.lock().await; // one that is being renewed may be parked by now
            if let Some(parked) = self.living(backend, key).await {
                return Some(parked);
            }
            let used = self.used().pop_front()?;
            self.renew(engine, used).await;
            drop(renewing);
        }
    }

    /// A parked sandbox that matches and lives.
    async fn living(&self, backend: BackendName, key: &SandboxKey) -> Option<Parked> {
        while let Some(parked) = self.pop_matching(backend, key) {
            if parked.session.is_alive() {
                return Some(parked);
            }
            parked.discard().await;
        }
        None
    }

    /// Whether a sandbox is of the kind that is parked here.
    pub(crate) fn would_have(&self, key: &SandboxKey) -> bool {
        let usual = self.usual_key.get_or_init(|| Some(self.usual_grant()?.sandbox_key()));
        // What it would show of a workspace is looked up anew for every run: see `park`.
        self.policy.files.workspace.is_none() && usual.as_ref() == Some(key) && !self.is_shut()
    }

    /// Takes a sandbox that is settled, to be renewed under an identity of its own; closes it where there
    /// are enough.
    pub(crate) async fn take_back(
        &self,
        engine: &Engine,
        backend: BackendName,
        key: SandboxKey,
        session: Box<dyn Session>,
        lock: RunLock,
    ) {
        // Twice as many as there are otherwise: while some run, as many are renewed, and the two take turns. With room
        // for fewer, one is closed and another opened whenever two programs end at once.
        let room = self.idle() < 2 * self.size && self.would_have(&key);
        let run = (self.new_run)();
        // If we are killed from here on, it isn't the run that has ended whose remains are swept.
        let (run, passed_on) = match run {
            Ok(run) if room => {
                let passed_on = engine.state.pass_on(lock, &run);
                (run, passed_on)
            }
            Ok(run) => (run, Err(lock)),
            Err(_) => (RunId::new(0, [0; 10]), Err(lock)), // names no run: it is closed
        };
        match passed_on {
            Ok(lock) => {
                self.used().push_back(Used { run, session, lock, backend, key });
                self.refill();
            }
            Err(lock) => close(session, lock).await,
        }
    }

    /// Renews the sandbox that was used first; false if there is none.
    async fn renew_one(&self, engine: &Engine) -> bool {
        let _renewing = self.renewing.lock().await;
        let Some(used) = self.used().pop_front() else { return false };
        self.renew(engine, used).await;
        true
    }

    /// Makes a parked sandbox out of one that was used, if that can be had.
    async fn renew(&self, engine: &Engine, used: Used) {
        let Used { run, session, lock, backend, key } = used;
        // Its key is that of a usual run, so what may leave is the same.
        let Some(outlet) = self.usual_grant().and_then(|grant| engine.outlets.open(&run, &grant).ok()) else {
            return close(session, lock).await;
        };
        match session.renew(Arc::clone(&outlet)).await {
            Ok(Some(session)) => {
                self.parked().push_back(Parked { run, session, lock, outlet, backend, key });
            }
            Ok(None) => drop(lock),
            Err(_) => lock.leave_to_sweep(),
        }
    }

    /// How many sandboxes no run has.
    fn idle(&self) -> usize {
        self.parked().len() + self.used().len()
    }

    async fn park(&self, engine: &Engine) -> Option<()> {
        // What isn't shown of a workspace is found by a walk when the sandbox opens: one that was opened
        // earlier would show what came since.
        if self.policy.files.workspace.is_some() {
            return None;
        }
        let grant = self.usual_grant()?;
        let key = grant.sandbox_key();
        let (_, selected) = select::select(&engine.candidates, &grant, &self.usual);
        let selected = selected.ok()?;
        let run = (self.new_run)().ok()?;
        let lock = engine.state.begin(&run, selected.name, &selected.backend.traces(&run)).ok()?;
        let outlet = engine.outlets.open(&run, &grant).ok()?;
        let session = selected.backend.open(&run, grant, Arc::clone(&outlet)).await.ok()?;
        let parked = Parked { run, session, lock, outlet, backend: selected.name, key };
        self.parked().push_back(parked);
        stop_at("parked");
        Some(())
    }

    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// The grant of a run as most will be.
    fn usual_grant(&self) -> Option<Grant> {
        decide(&self.policy, self.hash.clone(), &self.usual).ok()
    }

    fn pop_matching(&self, backend: BackendName, key: &SandboxKey) -> Option<Parked> {
        let mut parked = self.parked();
        let fits = |parked: &Parked| parked.backend == backend && parked.key == *key;
        let at = parked.iter().position(fits).filter(|_| !self.is_shut())?;
        parked.remove(at)
    }

    fn used(&self) -> MutexGuard<'_, VecDeque<Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
