//! The host's side: starts the broker when a grant names a credential, and says what the program gets and what became
//! of it.
//!
//! - `running` is the process, and the thread that reads what it says, whatever runtime the callers have.
//! - `held` is what a run holds, until its end.
//!
//! When the broker is lost, every lease that it held is unknown until the next command has swept.

mod held;
mod running;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::backend::Boxed;
use cofferdam_core::grant::Grant;
use cofferdam_core::lease::{Deliveries, Held, LeaseBegin, LeaseEnd, LeaseState, Leases, Prepared};
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_core::outlet::Sink;
use cofferdam_core::policy::{CredentialRule, NetworkRule, Protocol};
use cofferdam_core::secret::{Secret, SecretVariable};
use tokio::time::timeout;

use crate::control::{Answer, Ask, Ended, InRequests, Lease, Refusal, RuleText, State, ToBroker, Whose};
use crate::trial::Tested;
use held::{Ending, NoneHeld};
use running::{Heard, Running};

/// How long the broker may take to prepare, and to end: longer than each issuer may.
const PREPARING: Duration = Duration::from_secs(60);
const ENDING: Duration = Duration::from_secs(20);

/// How long a sweep may wait for each lease at most: as the broker does where a run ends.
pub const LONGEST_END: Duration = Duration::from_secs(15);

/// What the broker may take beyond that, to start and to answer.
const STARTING: Duration = Duration::from_secs(3);

/// How long it may take to try issuers: longer than a root, a mint, a try and an end together.
const TESTING: Duration = Duration::from_secs(120);

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
    /// Whether its credentials stand in requests, and a program gets a surrogate.
    pub stands_in_requests: bool,
}

/// Which of what nobody is responsible for; by default all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphaned {
    /// Of this run alone.
    pub run: Option<String>,
    /// By this name alone.
    pub name: Option<String>,
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
            Answer::Described { hosts, fields, variables, stands_in_requests } => {
                Ok(Description { hosts, fields, variables, stands_in_requests })
            }
            other => Err(of_answer(other)),
        }
    }

    /// Revokes what no living process is responsible for, and gives what became of it, each with the run that it was
    /// for. `record` writes down what has ended: it isn't forgotten before all of that is written, so that whoever is
    /// killed in between leaves it to the next command.
    ///
    /// # Errors
    ///
    /// A [`Fault`] if there is no broker, or it can't.
    pub async fn sweep(
        &self,
        which: &Orphaned,
        patience: Duration,
        mut record: impl FnMut(&str, &LeaseEnd) -> bool,
    ) -> Result<Vec<(String, LeaseEnd)>, Fault> {
        let patience = patience.min(LONGEST_END);
        let Orphaned { run, name } = which.clone();
        let within_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let asked = ToBroker::Sweep(Whose { run, name, within_ms });
        let ended: Vec<_> = match self.ask(asked, patience + STARTING).await?.0 {
            Answer::Ended { leases } => {
                leases.into_iter().map(|ended| (ended.run.clone(), of_ended(ended))).collect()
            }
            other => return Err(of_answer(other)),
        };
        let has_ended = |(_, lease): &&(String, LeaseEnd)| !matches!(lease.state, LeaseState::Unknown { .. });
        let mut is_written = true;
        for (run, lease) in ended.iter().filter(has_ended) {
            is_written &= record(run, lease);
        }
        if is_written {
            self.ask(ToBroker::Swept, ENDING).await?;
        }
        Ok(ended)
    }

    /// Mints from each issuer or from one, and sees that what it minted works and that it dies. `run` is whose it is
    /// meanwhile: by that name it is found if the broker is killed.
    ///
    /// # Errors
    ///
    /// A [`Fault`] if there is no such issuer, the operator's file is wrong, or there is no broker.
    pub async fn test(&self, run: &RunId, issuer: Option<&str>) -> Result<Vec<Tested>, Fault> {
        let asked = ToBroker::Test { run: run.to_string(), issuer: issuer.map(str::to_owned) };
        match self.ask(asked, TESTING).await?.0 {
            Answer::Tested { issuers } => Ok(issuers),
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
    /// Where it stands in requests; none for the issuer's place.
    pub inject: Option<String>,
    /// How often requests may carry it.
    pub max_uses: Option<u64>,
}

impl Brokered {
    /// Prepares what these say, by the credentials' names.
    #[must_use]
    pub fn new(broker: Arc<Broker>, asks: BTreeMap<String, Wanted>) -> Self {
        Brokered { broker, asks: Arc::new(asks) }
    }

    fn ask_for(&self, rule: &CredentialRule, network: &[NetworkRule], timeout: Duration) -> Ask {
        let wanted = self.asks.get(&rule.name).cloned().unwrap_or_default();
        let Wanted { scope, deliver, inject, max_uses } = wanted;
        let named = |known: &&NetworkRule| {
            known.protocol == Protocol::Https && known.credential.as_ref() == Some(&rule.name)
        };
        let rules: Vec<_> = network.iter().filter(named).map(rule_text).collect();
        let is_in_requests = !rules.is_empty() || inject.is_some();
        let ttl = rule.ttl.map_or(timeout, |ttl| ttl.min(timeout));
        Ask {
            name: rule.name.clone(),
            issuer: rule.issuer.clone(),
            scope,
            ttl_ms: milliseconds(ttl),
            asked_ttl_ms: rule.ttl.map(milliseconds),
            deliver,
            in_requests: is_in_requests.then_some(InRequests { inject, max_uses, rules }),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn rule_text(rule: &NetworkRule) -> RuleText {
    RuleText {
        host: rule.host.to_string(),
        ports: rule.ports.clone(),
        methods: rule.methods.clone(),
        paths: rule.paths.clone(),
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
                return Ok((Deliveries::default(), Box::new(NoneHeld) as Box<dyn Held>));
            }
            let task = self.broker.tasks.fetch_add(1, Ordering::Relaxed);
            let (timeout, network) = (grant.limits().timeout, grant.network());
            let asks: Vec<_> =
                grant.credentials().iter().map(|rule| self.ask_for(rule, network, timeout)).collect();
            let is_in_requests = asks.iter().any(|ask| ask.in_requests.is_some());
            let running = self.broker.running()?;
            let heard = Arc::new(Heard::new(sink));
            running.listen(task, heard.clone());
            let way = is_in_requests.then(|| running.way(task)).transpose().map_err(|error| Fault {
                code: FaultCode::HostError,
                message: format!("could not make a way to the broker: {error}"),
                fix: Some("see that this process may have more descriptors".to_owned()),
            });
            let mut held = Ending::new(running, task, heard);
            let prepared = async {
                held.way = way?;
                let message = ToBroker::Prepare { task, run: run.to_string(), asks };
                let (variables, leases, secrets) = match self.broker.ask(message, PREPARING).await? {
                    (Answer::Prepared { variables, leases }, secrets) => (variables, leases, secrets),
                    (other, _) => return Err(of_answer(other)),
                };
                held.begin(leases).await?;
                let variables = variables.into_iter().zip(secrets);
                let variables = variables.filter_map(|(name, value)| SecretVariable::new(name, value).ok());
                Ok(Deliveries { variables: variables.collect() })
            };
            // Where it fails, what is held is dropped: so also what is minted when nobody waits for it any more is ended.
            let deliveries = prepared.await?;
            Ok((deliveries, Box::new(held) as Box<dyn Held>))
        })
    }
}

fn begun(lease: &Lease) -> LeaseBegin {
    LeaseBegin {
        name: lease.name.clone(),
        issuer: lease.issuer.clone(),
        scope: lease.scope.clone(),
        expires: lease.expires.map(time),
        fingerprint: lease.fingerprint.clone(),
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
        is_weak: lease.is_weak,
        uses: lease.uses,
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

    struct Nowhere;

    impl Sink for Nowhere {
        fn record(
            &self,
            _: cofferdam_core::audit::Event,
        ) -> Boxed<'_, Result<(), cofferdam_core::audit::AuditError>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[test]
    fn the_end_of_a_run_that_nobody_holds_is_said_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let heard = folder.path().join("heard");
        let script = format!("cat > '{}'", heard.display());
        let args = ["-c", &script].map(OsString::from).into();
        let broker = Broker::new(BrokerProgram { path: "/bin/sh".into(), args });
        let running = broker.running().unwrap();
        drop(Ending::new(running.clone(), 7, Arc::new(Heard::new(Arc::new(Nowhere)))));
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
