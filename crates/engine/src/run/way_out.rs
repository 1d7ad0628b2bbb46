//! A run's way out: its events go into the run's part of the audit log, and it is cut before anything else ends.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use cofferdam_core::audit::{AuditError, AuditSink, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::capability::{Capability, Gap};
use cofferdam_core::egress::DenialCode;
use cofferdam_core::outcome::{DenialCount, LimitName, RunId};
use cofferdam_core::outlet::{Cut, Outlet, Sink};
use cofferdam_core::weaken::{self, Control};
use tokio::sync::{Notify, OnceCell};

use crate::record;

/// How long an outlet may take to be cut. What it does then takes milliseconds; one that is silent for longer
/// holds nobody up, and is said to be lost.
const CUTTING: Duration = Duration::from_secs(2);

/// The outlet of a sandbox that a run has.
pub(super) struct WayOut {
    outlet: Arc<dyn Outlet>,
    recorder: Arc<Recorder>,
    end: OnceCell<End>,
}

/// What there is to say of a way out when it is cut.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// What went through.
    pub(super) cut: Cut,
    /// That nothing could go through for a while, if it was so.
    pub(super) gap: Option<Gap>,
    /// How many events could not be recorded.
    pub(super) unrecorded: u64,
}

impl WayOut {
    /// Has an outlet record what it does as a run's.
    /// `broker` is the way to whoever has the run's credentials; whether a misuse of them ends the run is in
    /// `ends_on_misuse`.
    pub(super) fn of(
        run: &RunId,
        outlet: Arc<dyn Outlet>,
        audit: Arc<dyn AuditSink>,
        broker: Option<OwnedFd>,
        ends_on_misuse: bool,
    ) -> Self {
        let (run_id, misused) = (run.clone(), ends_on_misuse.then(Notify::new));
        let recorder = Arc::new(Recorder { audit, run: run_id, state: Mutex::default(), misused });
        outlet.record(run, Arc::clone(&recorder) as Arc<dyn Sink>, broker);
        WayOut { outlet, recorder, end: OnceCell::new() }
    }

    /// Waits until a credential was misused, for ever where that ends no run.
    pub(super) async fn is_misused(&self) {
        match &self.recorder.misused {
            Some(misused) => misused.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Lets nothing through any more, the first time; says each time what came of it. Safe to drop while waiting.
    pub(super) async fn cut(&self) -> &End {
        self.end.get_or_init(|| self.cut_once()).await
    }

    async fn cut_once(&self) -> End {
        let cut = tokio::time::timeout(CUTTING, self.outlet.cut()).await;
        // Whatever still comes belongs to no run.
        let unrecorded = self.recorder.close();
        let gap = match &cut {
            Ok(Cut { lost: Some(at), .. }) => Some(lost(&format!("was lost at {}", record::rfc3339(*at)))),
            Ok(_) => None,
            Err(_) => {
                let now = record::rfc3339(SystemTime::now());
                Some(lost(&format!("gave no account of itself by {now}, when the run had ended")))
            }
        };
        End { cut: cut.unwrap_or_else(|_| Cut::unknown()), gap, unrecorded }
    }
}

impl End {
    /// The limits that something was refused for.
    pub(super) fn limits_hit(&self) -> impl Iterator<Item = LimitName> {
        let limit = |DenialCount { denial, .. }: &DenialCount| {
            let rule = denial.rule.as_deref().filter(|_| denial.code == DenialCode::LimitExceeded)?;
            let name = rule.strip_prefix("limits.")?;
            LimitName::ALL.into_iter().find(|limit| limit.name() == name)
        };
        self.cut.denials.counts().iter().filter_map(limit)
    }
}

fn lost(how: &str) -> Gap {
    Gap {
        capability: Capability::Egress,
        why: format!("the egress proxy {how}; nothing could leave from then on, and counts may be too low"),
        fix: "look at the kernel's log for why it ended; then run it again".to_owned(),
    }
}

/// Closes an outlet that no run has.
pub(crate) async fn close_unused(outlet: &dyn Outlet) {
    let _ = tokio::time::timeout(CUTTING, outlet.cut()).await; // dropping it does the rest
}

/// Writes an outlet's events into a run's part of the log, until that is over.
struct Recorder {
    audit: Arc<dyn AuditSink>,
    run: RunId,
    state: Mutex<State>,
    /// Told of a misuse, where that ends the run.
    misused: Option<Notify>,
}

#[derive(Default)]
struct State {
    closed: bool,
    unrecorded: u64,
}

impl Recorder {
    /// Takes no more events; gives how many could not be recorded.
    fn close(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.unrecorded
    }

    fn append(&self, event: Event) -> Result<(), AuditError> {
        let refused = |why| Err(AuditError::Refused { event: event.name(), why });
        if !is_of_an_outlet(&event) {
            return refused("it isn't a way out's to record");
        }
        // Held while it is written, so that nothing comes after the end of its run.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return refused("its run is over");
        }
        if weaken::is_off(Control::Audit) {
            return Ok(());
        }
        let misuse = misuse(&event);
        if let (Some(_), Some(misused)) = (&misuse, &self.misused) {
            misused.notify_one();
        }
        let events: Vec<_> = std::iter::once(event).chain(misuse).collect();
        let appended = self.audit.append(&self.run, &events);
        state.unrecorded += u64::from(appended.is_err());
        appended.map(drop)
    }
}

impl Sink for Recorder {
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>> {
        Box::pin(async move { self.append(event) })
    }
}

/// That a refusal was for a credential, or for what stands for one.
fn misuse(event: &Event) -> Option<Event> {
    let Event::EgressDenied { denial, .. } = event else { return None };
    is_misuse(denial.code).then(|| Event::CredentialMisused { denial: denial.clone() })
}

/// Whether something is refused since it isn't the credential that belongs there.
pub(super) fn is_misuse(code: DenialCode) -> bool {
    matches!(
        code,
        DenialCode::CredentialWrongHost | DenialCode::CredentialWrongPlace | DenialCode::ForeignCredential
    )
}

fn is_of_an_outlet(event: &Event) -> bool {
    matches!(event, Event::EgressAllowed(_) | Event::EgressDenied { .. } | Event::DnsDenied { .. })
}
