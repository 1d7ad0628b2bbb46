//! The host's side: starts the broker when a grant names a credential, and says what the program gets and what became
//! of it.
//!
//! A thread reads what the broker says, whatever runtime the callers have. When the broker is lost, every lease that it
//! held is unknown until the next command has swept.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::audit::Event;
use cofferdam_core::backend::Boxed;
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::{Deliveries, Held, LeaseBegin, LeaseEnd, LeaseState, Leases, Prepared};
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_core::outlet::Sink;
use cofferdam_core::policy::CredentialRule;
use cofferdam_core::secret::{Secret, SecretVariable};
use cofferdam_sys::process::{self, Spawn};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::control::{self, Answer, Ask, Ended, Lease, Numbered, Refusal, State, ToBroker};

/// How long the broker may take to prepare, and to end: longer than each issuer may.
const PREPARING: Duration = Duration::from_secs(60);
const ENDING: Duration = Duration::from_secs(20);

/// The program that is the broker: it calls [`process::main`](crate::process::main).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerProgram {
    /// Its file.
    pub path: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
}

/// What an issuer is for, as `--cred` needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The hosts of its credentials, with their ports.
    pub hosts: Vec<String>,
    /// What a request has to narrow.
    pub fields: Vec<String>,
    /// The variables that clients read, and what stands there.
    pub variables: Vec<(String, String)>,
}

/// The broker, which is started by the first that needs it.
#[derive(Debug)]
pub struct Broker {
    program: BrokerProgram,
    running: Mutex<Option<Arc<Running>>>,
    tasks: AtomicU64,
}

impl Broker {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(program: BrokerProgram) -> Self {
        Broker { program, running: Mutex::default(), tasks: AtomicU64::new(1) }
    }

    /// What an issuer is for.
    ///
    /// # Errors
    ///
    /// A [`Fault`]: there is no such issuer, or the operator's file is wrong.
    pub async fn describe(&self, issuer: &str) -> Result<Description, Fault> {
        let asked = ToBroker::Describe { issuer: issuer.to_owned() };
        match self.ask(asked, PREPARING).await?.0 {
            Answer::Described { hosts, fields, variables } => Ok(Description { hosts, fields, variables }),
            other => Err(of_answer(other)),
        }
    }

    /// Revokes what no living process is responsible for. Each with the run that it was for.
    ///
    /// # Errors
    ///
    /// A [`Fault`] if there is no broker, or it can't.
    pub async fn sweep(&self) -> Result<Vec<(String, LeaseEnd)>, Fault> {
        match self.ask(ToBroker::Sweep, ENDING).await?.0 {
            Answer::Ended { leases } => {
                Ok(leases.into_iter().map(|ended| (ended.run.clone(), of_ended(ended))).collect())
            }
            other => Err(of_answer(other)),
        }
    }

    async fn ask(&self, message: ToBroker, within: Duration) -> Result<(Answer, Vec<Secret>), Fault> {
        let running = self.running()?;
        match timeout(within, running.ask(message)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(lost("ended")),
            Err(_) => Err(lost(&format!("gave no answer for {} s", within.as_secs()))),
        }
    }

    fn running(&self) -> Result<Arc<Running>, Fault> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.as_ref().filter(|running| !running.is_lost()) {
            return Ok(running.clone());
        }
        let started = Running::start(&self.program).map_err(|error| Fault {
            code: FaultCode::HostError,
            message: format!("could not start the broker: {error}"),
            fix: Some(
                "see that this program can be run from where it lies, and that /proc is mounted".to_owned(),
            ),
        })?;
        Ok(running.insert(Arc::new(started)).clone())
    }
}

/// A broker that runs. Dropped, it ends by itself when it has revoked what lives.
#[derive(Debug)]
struct Running {
    control: Mutex<UnixStream>,
    waiting: Arc<Waiting>,
    numbers: AtomicU64,
}

/// Who waits for which answer; none when nothing comes any more.
#[derive(Default)]
struct Waiting(Mutex<Option<Waiters>>);

/// By the numbers of their messages.
type Waiters = HashMap<u64, oneshot::Sender<(Answer, Vec<Secret>)>>;

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Waiters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(program: &BrokerProgram) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let pidfd = spawn(program, &theirs)?;
        drop(theirs);
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let (mut from, told) = (ours.try_clone()?, waiting.clone());
        std::thread::Builder::new().name("broker".to_owned()).spawn(move || {
            // Its end, an error and nonsense are one: it can't be spoken with.
            while let Ok(Some((Numbered { number, message }, secrets))) = control::read::<Answer>(&mut from) {
                let waiter = told.lock().as_mut().and_then(|waiters| waiters.remove(&number));
                if let Some(waiter) = waiter {
                    let _ = waiter.send((message, secrets)); // who asked may be gone
                }
            }
            told.lock().take();
            let _ = process::reap(pidfd.as_fd()); // it has closed its end, so it is ending
        })?;
        Ok(Running { control: Mutex::new(ours), waiting, numbers: AtomicU64::new(0) })
    }

    fn is_lost(&self) -> bool {
        self.waiting.lock().is_none()
    }

    /// Says something whose answer nobody waits for.
    fn tell(&self, message: ToBroker) -> io::Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control::write(&mut *control, &Numbered { number, message }, &[])
    }

    async fn ask(&self, message: ToBroker) -> io::Result<(Answer, Vec<Secret>)> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (waiter, answered) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.waiting.lock().as_mut().ok_or_else(gone)?.insert(number, waiter);
        {
            let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
            control::write(&mut *control, &Numbered { number, message }, &[])?;
        }
        answered.await.map_err(|_| gone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let control = self.control.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(std::net::Shutdown::Both); // the thread holds another descriptor of it
    }
}

fn spawn(program: &BrokerProgram, control: &UnixStream) -> io::Result<std::os::fd::OwnedFd> {
    let word = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let path = word(program.path.as_os_str().as_bytes())?;
    let args = program.args.iter().map(|arg| word(arg.as_bytes()));
    let argv: Vec<CString> = std::iter::once(Ok(path.clone())).chain(args).collect::<io::Result<_>>()?;
    // All of it: roots may be in variables, and helpers need theirs.
    let variables = std::env::vars_os().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let envp: Vec<CString> = variables.filter_map(|variable| CString::new(variable).ok()).collect();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let spawn = Spawn {
        path: &path,
        argv: &argv,
        envp: &envp,
        cwd: c"/",
        streams: [control.as_fd(), null.as_fd(), null.as_fd()],
        terminal: None,
    };
    process::pidfd(spawn.start()?)
}

/// Leases of runs, from a broker.
#[derive(Clone, Debug)]
pub struct Brokered {
    broker: Arc<Broker>,
    /// What the policy says of each credential that the grant names.
    asks: Arc<BTreeMap<String, Wanted>>,
}

/// What a policy says of a credential beyond what a decision needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What it may do.
    pub scope: BTreeMap<String, Vec<String>>,
    /// Variables and their templates; empty for those that clients read.
    pub deliver: Vec<(String, String)>,
}

impl Brokered {
    /// Prepares what these say, by the credentials' names.
    #[must_use]
    pub fn new(broker: Arc<Broker>, asks: BTreeMap<String, Wanted>) -> Self {
        Brokered { broker, asks: Arc::new(asks) }
    }

    fn ask_for(&self, rule: &CredentialRule, timeout: Duration) -> Ask {
        let Wanted { scope, deliver } = self.asks.get(&rule.name).cloned().unwrap_or_default();
        let ttl = rule.ttl.map_or(timeout, |ttl| ttl.min(timeout));
        Ask {
            name: rule.name.clone(),
            issuer: rule.issuer.clone(),
            scope,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            deliver,
        }
    }
}

impl Leases for Brokered {
    fn prepare<'a>(
        &'a self,
        run: &'a RunId,
        grant: &'a Grant,
        sink: Arc<dyn Sink>,
    ) -> Boxed<'a, Result<Prepared, Fault>> {
        Box::pin(async move {
            if grant.credentials().is_empty() {
                return Ok((Deliveries::default(), Box::new(Ending::of_nothing()) as Box<dyn Held>));
            }
            let task = self.broker.tasks.fetch_add(1, Ordering::Relaxed);
            let timeout = grant.limits().timeout;
            let asks = grant.credentials().iter().map(|rule| self.ask_for(rule, timeout)).collect();
            let message = ToBroker::Prepare { task, run: run.to_string(), asks };
            let unheld = Unheld { broker: &self.broker, task };
            let (answer, secrets) = self.broker.ask(message, PREPARING).await?;
            let (variables, leases) = match answer {
                Answer::Prepared { variables, leases } => (variables, leases),
                other => return Err(of_answer(other)),
            };
            std::mem::forget(unheld); // from here on it is held
            let mut held = Ending { broker: Some(self.broker.clone()), task, leases, sink, ended: None };
            if let Err(error) = held.record_the_begin().await {
                held.end().await;
                return Err(error);
            }
            let variables = variables.into_iter().zip(secrets);
            let variables = variables.filter_map(|(name, value)| SecretVariable::new(name, value).ok());
            Ok((Deliveries { variables: variables.collect() }, Box::new(held) as Box<dyn Held>))
        })
    }
}

/// A run for which something is being minted, and which nobody holds yet. Dropped, its end is said: the broker may
/// still mint for it where an answer came too late, or nobody waited for it.
struct Unheld<'a> {
    broker: &'a Broker,
    task: u64,
}

impl Drop for Unheld<'_> {
    fn drop(&mut self) {
        let running = self.broker.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(running) = running {
            let _ = running.tell(ToBroker::End { task: self.task }); // a broker that is lost ends it by itself
        }
    }
}

/// The leases of a run.
struct Ending {
    broker: Option<Arc<Broker>>,
    task: u64,
    leases: Vec<Lease>,
    sink: Arc<dyn Sink>,
    ended: Option<Vec<LeaseEnd>>,
}

impl Ending {
    fn of_nothing() -> Self {
        let sink = Arc::new(Nowhere);
        Ending { broker: None, task: 0, leases: vec![], sink, ended: Some(vec![]) }
    }

    /// Has it written down that the leases live, before the program gets them.
    async fn record_the_begin(&self) -> Result<(), Fault> {
        for lease in &self.leases {
            let begun = LeaseBegin {
                name: lease.name.clone(),
                issuer: lease.issuer.clone(),
                scope: lease.scope.clone(),
                expires: lease.expires.map(time),
                fingerprint: lease.fingerprint.clone(),
            };
            self.sink.record(Event::LeaseMinted(Box::new(begun))).await.map_err(|error| Fault {
                code: FaultCode::AuditUnavailable,
                message: format!("the audit log can't be written: {error}"),
                fix: Some("see that there is room for it".to_owned()),
            })?;
        }
        Ok(())
    }

    async fn end_once(&mut self) -> Vec<LeaseEnd> {
        let Some(broker) = self.broker.take() else { return vec![] };
        // The one that held them: another would know nothing of them.
        let running = broker.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = match running {
            Some(running) => timeout(ENDING, running.ask(ToBroker::End { task: self.task })).await,
            None => Ok(Err(io::ErrorKind::BrokenPipe.into())),
        };
        let ended = match answer {
            Ok(Ok((Answer::Ended { leases }, _))) if leases.len() == self.leases.len() => {
                leases.into_iter().map(of_ended).collect()
            }
            Ok(Ok(_)) => self.unknown("the broker gave no account of it"),
            Ok(Err(_)) => self.unknown("the broker was lost"),
            Err(_) => self.unknown("the broker gave no answer for 20 s"),
        };
        for lease in &ended {
            let _ = self.sink.record(Event::LeaseRevoked(Box::new(lease.clone()))).await; // the Outcome has it too
        }
        ended
    }

    fn unknown(&self, why: &str) -> Vec<LeaseEnd> {
        let state = State::Unknown { why: why.to_owned() };
        let ended = |lease: &Lease| {
            of_ended(Ended { run: String::new(), lease: lease.clone(), state: state.clone() })
        };
        self.leases.iter().map(ended).collect()
    }
}

impl Held for Ending {
    fn end(&mut self) -> Boxed<'_, Vec<LeaseEnd>> {
        Box::pin(async move {
            if self.ended.is_none() {
                let ended = self.end_once().await;
                self.ended = Some(ended);
            }
            self.ended.clone().unwrap_or_default()
        })
    }
}

/// A run without leases has nothing to record.
struct Nowhere;

impl Sink for Nowhere {
    fn record(&self, _: Event) -> Boxed<'_, Result<(), cofferdam_core::audit::AuditError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn of_ended(Ended { lease, state, .. }: Ended) -> LeaseEnd {
    LeaseEnd {
        name: lease.name,
        issuer: lease.issuer,
        scope: lease.scope,
        minted: time(lease.minted),
        expires: lease.expires.map(time),
        can_revoke: lease.can_revoke,
        is_weak: false,
        uses: None,
        state: match state {
            State::Dead { after_us, verified } => {
                LeaseState::Dead { after: Duration::from_micros(after_us), verified }
            }
            State::Expires => LeaseState::Expires,
            State::Unknown { why } => LeaseState::Unknown { why },
        },
    }
}

fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn of_answer(answer: Answer) -> Fault {
    let Answer::Refused { kind, message, fix } = answer else { return lost("said something else") };
    let code = match kind {
        Refusal::Request => FaultCode::CredentialDenied,
        Refusal::Host => FaultCode::IssuersUnusable,
        Refusal::Upstream => FaultCode::IssuerFailed,
    };
    Fault { code, message, fix: Some(fix) }
}

fn lost(how: &str) -> Fault {
    Fault {
        code: FaultCode::Internal,
        message: format!("the broker {how}"),
        fix: Some(
            "look at the kernel's log for why it ended; the next command revokes what it left".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_that_nobody_holds_is_said_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let heard = folder.path().join("heard");
        let script = format!("cat > '{}'", heard.display());
        let args = ["-c", &script].map(OsString::from).into();
        let broker = Broker::new(BrokerProgram { path: "/bin/sh".into(), args });
        let running = broker.running().unwrap();
        drop(Unheld { broker: &broker, task: 7 });
        drop((running, broker)); // it has heard everything
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let is_said =
            || std::fs::read(&heard).is_ok_and(|all| all.ends_with(b"{\"End\":{\"task\":7}}}\0\0\0\0"));
        while !is_said() {
            assert!(std::time::Instant::now() < deadline, "{:?}", std::fs::read_to_string(&heard));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
