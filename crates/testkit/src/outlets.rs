//! Ways out that do what they are told and record what they were told: for tests of the engine and of backends.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::egress::{Denial, DenialCode};
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{Cut, Dial, Doors, Outlet, OutletError, Outlets, Sink};
use cofferdam_core::policy::Limits;

/// What the ways out of a test do.
#[derive(Clone, Debug, Default)]
pub struct OutletScript {
    /// What each says when it is cut.
    pub cut: Cut,
    /// Whether a cut takes for ever.
    pub cut_hangs: bool,
    /// Whether none can be opened.
    pub open_fails: bool,
}

/// Makes them, and keeps them all.
#[derive(Clone, Default)]
pub struct ScriptedOutlets {
    script: OutletScript,
    told: Arc<Mutex<Vec<String>>>,
    opened: Arc<Mutex<Vec<Arc<ScriptedOutlet>>>>,
}

/// One of them.
pub struct ScriptedOutlet {
    script: OutletScript,
    told: Arc<Mutex<Vec<String>>>,
    /// Whose sandbox it was opened for.
    pub opened_for: RunId,
    /// What may leave there altogether.
    pub limits: Limits,
    doors: Mutex<Option<Doors>>,
    sink: Mutex<Option<(RunId, Arc<dyn Sink>)>>,
}

impl ScriptedOutlets {
    /// Ways out that follow a script, and tell what they are told to whoever keeps the list.
    #[must_use]
    pub fn new(script: OutletScript, told: Arc<Mutex<Vec<String>>>) -> Self {
        ScriptedOutlets { script, told, opened: Arc::default() }
    }

    /// Those that were opened, in order.
    #[must_use]
    pub fn opened(&self) -> Vec<Arc<ScriptedOutlet>> {
        self.opened.lock().unwrap().clone()
    }
}

impl Outlets for ScriptedOutlets {
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn Outlet>, OutletError> {
        if self.script.open_fails {
            return Err(OutletError::of("do as it was told")(std::io::ErrorKind::Other.into()));
        }
        self.told.lock().unwrap().push("open outlet".to_owned());
        let outlet = Arc::new(ScriptedOutlet {
            script: self.script.clone(),
            told: Arc::clone(&self.told),
            opened_for: run.clone(),
            limits: grant.limits().clone(),
            doors: Mutex::default(),
            sink: Mutex::default(),
        });
        self.opened.lock().unwrap().push(Arc::clone(&outlet));
        Ok(outlet)
    }
}

impl ScriptedOutlet {
    /// The run that has it, once one has.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        self.sink.lock().unwrap().as_ref().map(|(run, _)| run.clone())
    }

    /// The doors that were attached, which the caller then has.
    #[must_use]
    pub fn take_doors(&self) -> Option<Doors> {
        self.doors.lock().unwrap().take()
    }

    /// Asks that a refusal of this host be recorded, as a proxy would.
    ///
    /// # Errors
    ///
    /// What the sink said.
    ///
    /// # Panics
    ///
    /// If no run has it.
    pub async fn refuse(&self, host: &str) -> Result<(), AuditError> {
        let denial = Denial::of_bytes(DenialCode::HostNotAllowed, host.as_bytes());
        self.record_event(Event::EgressDenied { denial, door: None, ip: None, more: 0 }).await
    }

    /// Asks that an event be recorded.
    ///
    /// # Errors
    ///
    /// What the sink said.
    ///
    /// # Panics
    ///
    /// If no run has it.
    pub async fn record_event(&self, event: Event) -> Result<(), AuditError> {
        let sink = self.sink.lock().unwrap().as_ref().map(|(_, sink)| Arc::clone(sink)).unwrap();
        sink.record(event).await
    }
}

impl Outlet for ScriptedOutlet {
    fn prepare(&self) {}

    fn authority(&self) -> &str {
        AUTHORITY
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        *self.doors.lock().unwrap() = Some(doors);
        self.told.lock().unwrap().push("attach".to_owned());
        Ok(())
    }

    fn connect(&self, dial: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>> {
        drop(stream);
        self.told.lock().unwrap().push(format!("connect {}:{}", dial.host.escape_ascii(), dial.port));
        Box::pin(async { Ok(()) })
    }

    fn record(&self, run: &RunId, sink: Arc<dyn Sink>, _: Option<OwnedFd>) {
        let before = self.sink.lock().unwrap().replace((run.clone(), sink));
        assert!(before.is_none(), "two runs have one way out");
        self.told.lock().unwrap().push("record".to_owned());
    }

    fn cut(&self) -> Boxed<'_, Cut> {
        self.told.lock().unwrap().push("cut".to_owned());
        Box::pin(async {
            if self.script.cut_hangs {
                pending::<()>().await;
            }
            self.script.cut.clone()
        })
    }
}

/// A moment that is easily told from others: 2026-11-29T20:15:04.120Z.
#[must_use]
pub fn a_moment() -> SystemTime {
    SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_795_983_304_120)
}

/// What stands where a certificate would.
pub const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nc2NyaXB0ZWQ=\n-----END CERTIFICATE-----\n";
