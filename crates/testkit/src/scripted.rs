//! A backend that does what it is told and records what it was told: for tests of the engine.
//!
//! It is stricter than any real one: it panics where a caller breaks the contract (a program
//! started after the halt, a session dropped without being closed).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cofferdam_core::artifact::{Before, Change, Collect, Entry, FileFound, Found, Rejection};
use cofferdam_core::backend::{
    Backend, BackendError, Boxed, Ending, Exec, Fit, Left, Output, Running, Session,
};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::Files;
use cofferdam_core::grant::{Grant, SandboxKey};
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{Doors, Outlet};
use cofferdam_core::policy::ALWAYS_ASKED;
use cofferdam_core::request::{File, Request, WindowSize};
use cofferdam_engine::run::Streams;

/// What its programs do.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it offers.
    pub offers: Offers,
    /// What of it its sandboxes lack all the same.
    pub lacks: BTreeSet<Capability>,
    /// What a program writes, and then how it ends; none means never.
    pub output: Vec<Output>,
    /// How it ends.
    pub ending: Option<Ending>,
    /// What the kernel counted.
    pub left: Left,
    /// Whether `open` fails.
    pub open_fails: bool,
    /// What `get` hands over.
    pub changed: Vec<Changed>,
    /// Whether `get` fails once it has handed over everything.
    pub get_fails: bool,
    /// Whether a program is never seen to start.
    pub start_hangs: bool,
    /// How many of the first sandboxes die as soon as they are open.
    pub stillborn: usize,
    /// How often each sandbox can be renewed; none can't be settled.
    pub renewals: Option<usize>,
}

impl Script {
    /// Programs that say nothing and exit with 0, in a backend that has what every policy asks for and this.
    #[must_use]
    pub fn offering(more: &[Capability]) -> Script {
        Script {
            offers: Offers::nothing().with(ALWAYS_ASKED).with(more.iter().copied()),
            output: vec![],
            ending: Some(Ending::Exited(0)),
            left: Left::default(),
            open_fails: false,
            changed: vec![],
            get_fails: false,
            start_hangs: false,
            stillborn: 0,
            lacks: BTreeSet::new(),
            renewals: None,
        }
    }
}

/// Streams of a run without anything in them.
#[derive(Debug)]
pub struct Silent;

impl Streams for Silent {
    fn accept(&self, _: Output) -> Boxed<'_, std::io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn has_input(&self) -> bool {
        false
    }

    fn input(&self) -> Boxed<'_, Option<Vec<u8>>> {
        Box::pin(async { None })
    }

    fn interrupt(&self) -> Boxed<'_, i32> {
        Box::pin(std::future::pending())
    }

    fn resized(&self) -> Boxed<'_, WindowSize> {
        Box::pin(std::future::pending())
    }

    fn dropped(&self) -> [u64; 2] {
        [0, 0]
    }
}

/// An entry that `get` hands over, as a sandbox may say it: nothing of it need be true.
#[derive(Clone, Debug)]
pub struct Changed {
    /// Where it is, any bytes.
    pub path: Vec<u8>,
    /// How it differs.
    pub change: Change,
    /// What it is.
    pub what: What,
}

/// What a scripted entry is.
#[derive(Clone, Debug)]
pub enum What {
    /// A file that says of itself how large it is, with what it holds and what it held before, each
    /// with whether it can be executed. A content that is none can't be read.
    File {
        /// The size that it says.
        bytes: u64,
        /// What it holds.
        now: Option<(bool, Vec<u8>)>,
        /// What it held.
        before: Option<(bool, Vec<u8>)>,
    },
    /// A folder.
    Folder,
    /// A link and what it says.
    Link(Vec<u8>),
    /// What can't come out.
    Refused(Rejection),
}

impl Changed {
    /// A file that was added and tells the truth.
    #[must_use]
    pub fn added(path: &str, content: &[u8]) -> Changed {
        Changed::file(path, Change::Added, Some(content), None)
    }

    /// A file that tells the truth, not executable.
    #[must_use]
    pub fn file(path: &str, change: Change, now: Option<&[u8]>, before: Option<&[u8]>) -> Changed {
        let content = |bytes: &[u8]| (false, bytes.to_vec());
        let bytes = now.or(before).map_or(0, |bytes| bytes.len() as u64);
        let what = What::File { bytes, now: now.map(content), before: before.map(content) };
        Changed { path: path.into(), change, what }
    }

    /// A folder.
    #[must_use]
    pub fn folder(path: &str, change: Change) -> Changed {
        Changed { path: path.into(), change, what: What::Folder }
    }

    /// A link.
    #[must_use]
    pub fn link(path: &str, change: Change, target: &str) -> Changed {
        Changed { path: path.into(), change, what: What::Link(target.into()) }
    }

    /// Hands this over as a backend does.
    ///
    /// # Errors
    ///
    /// What the receiver said.
    pub fn hand_over(&self, receiver: &mut dyn Collect) -> std::io::Result<()> {
        let (path, change) = (self.path.as_slice(), self.change);
        let (bytes, now, before) = match &self.what {
            What::Folder => return receiver.take(Found { path, change, entry: Entry::Folder }),
            What::Link(target) => return receiver.take(Found { path, change, entry: Entry::Link(target) }),
            What::Refused(why) => return receiver.take(Found { path, change, entry: Entry::Refused(*why) }),
            What::File { bytes, now, before } => (*bytes, now, before),
        };
        let (executable, mut now) = match now {
            Some((executable, held)) => (*executable, Some(held.as_slice())),
            None => (false, None),
        };
        let mut held = before.as_ref().map(|(executable, held)| (*executable, held.as_slice()));
        let before = held.as_mut().map(|(executable, content)| Before { executable: *executable, content });
        let now = now.as_mut().map(|held| held as &mut dyn std::io::Read);
        receiver.take(Found {
            path,
            change,
            entry: Entry::File(FileFound { bytes, executable, now, before }),
        })
    }
}

/// The backend.
#[derive(Clone)]
pub struct Scripted {
    script: Arc<Script>,
    told: Arc<Mutex<Vec<String>>>,
    opened: Arc<Mutex<Vec<SandboxKey>>>,
    executed_in: Arc<Mutex<Vec<usize>>>,
    renewed: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Scripted {
    /// A backend that follows a script.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Scripted {
            script: Arc::new(script),
            told: Arc::default(),
            opened: Arc::default(),
            executed_in: Arc::default(),
            renewed: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// What each sandbox was opened for, in order.
    #[must_use]
    pub fn opened(&self) -> Vec<SandboxKey> {
        self.opened.lock().unwrap().clone()
    }

    /// In which of the sandboxes that were opened each program was started.
    #[must_use]
    pub fn executed_in(&self) -> Vec<usize> {
        self.executed_in.lock().unwrap().clone()
    }

    /// How often a sandbox was renewed.
    #[must_use]
    pub fn renewed(&self) -> usize {
        self.renewed.load(Ordering::SeqCst)
    }

    /// How many sandboxes are closed.
    #[must_use]
    pub fn closed(&self) -> usize {
        self.closed.load(Ordering::SeqCst)
    }

    /// What it was told, in order.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    /// The list of what it is told, for others to add to.
    #[must_use]
    pub fn list(&self) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(&self.told)
    }

    fn note(&self, what: impl Into<String>) {
        self.told.lock().unwrap().push(what.into());
    }
}

impl Backend for Scripted {
    fn offers(&self) -> &Offers {
        &self.script.offers
    }

    fn gaps(&self, grant: &Grant) -> Vec<Gap> {
        self.script.offers.missing(grant.asks())
    }

    fn traces(&self, run: &RunId) -> Vec<String> {
        vec![format!("trace of {run}")]
    }

    fn sweep(&self, traces: &[String]) -> Result<(), BackendError> {
        self.note(format!("sweep {}", traces.join(" ")));
        Ok(())
    }

    fn fit(&self, _: &Request, _: &Files) -> Fit {
        Fit::Yes { why: "it is scripted".into() }
    }

    fn open<'a>(
        &'a self,
        _: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>> {
        Box::pin(async move {
            self.note("open");
            if self.script.open_fails {
                return Err(BackendError::host("do as it was told")(std::io::ErrorKind::Other.into()));
            }
            let number = {
                let mut opened = self.opened.lock().unwrap();
                opened.push(grant.sandbox_key());
                opened.len() - 1
            };
            outlet.attach(Doors::default())?;
            let mut enforced = self.script.offers.enforced().clone();
            enforced.retain(|capability| !self.script.lacks.contains(capability));
            let backend = self.clone();
            let state = ScriptedState::default();
            Ok(Box::new(ScriptedSession { backend, number, enforced, renewals: 0, state }) as _)
        })
    }
}

struct ScriptedSession {
    backend: Scripted,
    number: usize,
    enforced: BTreeSet<Capability>,
    /// How often it was renewed.
    renewals: usize,
    state: ScriptedState,
}

/// What a sandbox has been through since it was opened or renewed.
#[derive(Default)]
struct ScriptedState {
    ran: bool,
    settled: bool,
    halted: bool,
    closed: bool,
}

impl Drop for ScriptedSession {
    fn drop(&mut self) {
        assert!(self.state.closed || std::thread::panicking(), "a session was dropped without being closed");
    }
}

impl Session for ScriptedSession {
    fn enforced(&self) -> &BTreeSet<Capability> {
        &self.enforced
    }

    fn is_alive(&self) -> bool {
        !self.state.halted && self.number >= self.backend.script.stillborn
    }

    fn put(&mut self, file: File) -> Boxed<'_, Result<(), BackendError>> {
        self.backend.note(format!("put {}", file.name.as_c_str().to_string_lossy()));
        Box::pin(async { Ok(()) })
    }

    fn exec(&mut self, exec: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        assert!(!self.state.halted, "a program was started after the halt");
        assert!(!self.state.settled, "a program was started in a sandbox that another has used");
        self.state.ran = true;
        self.backend.note(format!("exec {}", exec.program.name()));
        self.backend.executed_in.lock().unwrap().push(self.number);
        let script = Arc::clone(&self.backend.script);
        let output = Mutex::new(script.output.clone().into_iter());
        let backend = self.backend.clone();
        Box::pin(async move {
            if script.start_hangs {
                std::future::pending::<()>().await;
            }
            Ok(Box::new(ScriptedRunning { backend, output }) as _)
        })
    }

    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>> {
        if !self.state.halted {
            self.backend.note("halt");
        }
        self.state.halted = true;
        let left = self.backend.script.left.clone();
        Box::pin(async { Ok(left) })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        assert!(self.state.halted, "files were taken from a session that still runs");
        self.backend.note("get");
        Box::pin(async move {
            let script = &self.backend.script;
            for changed in &script.changed {
                changed.hand_over(receiver).map_err(|source| BackendError::Collect { source })?;
            }
            if script.get_fails {
                return Err(BackendError::host("do as it was told")(std::io::ErrorKind::Other.into()));
            }
            Ok(())
        })
    }

    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>> {
        assert!(self.state.ran && !self.state.halted, "there is nothing to settle");
        self.state.settled = self.backend.script.renewals.is_some();
        if self.state.settled {
            self.backend.note("settle");
        }
        let left = self.state.settled.then(|| self.backend.script.left.clone());
        Box::pin(async { Ok(left) })
    }

    fn renew(
        mut self: Box<Self>,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>> {
        assert!(self.state.settled && !self.state.halted, "only what is settled is renewed");
        self.renewals += 1;
        if Some(self.renewals) > self.backend.script.renewals {
            return Box::pin(async {
                self.halt().await?;
                self.close().await.map(|()| None)
            });
        }
        self.backend.note("renew");
        self.backend.renewed.fetch_add(1, Ordering::SeqCst);
        self.state = ScriptedState::default();
        Box::pin(async move {
            outlet.attach(Doors::default())?;
            Ok(Some(self as Box<dyn Session>))
        })
    }

    fn close(mut self: Box<Self>) -> Boxed<'static, Result<(), BackendError>> {
        assert!(self.state.halted, "a session was closed before it was halted");
        self.state.closed = true;
        self.backend.closed.fetch_add(1, Ordering::SeqCst);
        self.backend.note("close");
        Box::pin(async { Ok(()) })
    }
}

struct ScriptedRunning {
    backend: Scripted,
    output: Mutex<std::vec::IntoIter<Output>>,
}

impl Running for ScriptedRunning {
    fn output(&self) -> Boxed<'_, Result<Option<Output>, BackendError>> {
        let next = self.output.lock().unwrap().next();
        Box::pin(async { Ok(next) })
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> Boxed<'a, Result<(), BackendError>> {
        self.backend.note(format!("write {}", bytes.len()));
        Box::pin(async { Ok(()) })
    }

    fn close_stdin(&self) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    fn signal(&self, signal: i32) -> Boxed<'_, Result<(), BackendError>> {
        self.backend.note(format!("signal {signal}"));
        Box::pin(async { Ok(()) })
    }

    fn resize(&self, size: WindowSize) -> Boxed<'_, Result<(), BackendError>> {
        self.backend.note(format!("resize {}x{}", size.columns, size.rows));
        Box::pin(async { Ok(()) })
    }

    fn wait(&self) -> Boxed<'_, Result<Ending, BackendError>> {
        let ending = self.backend.script.ending;
        Box::pin(async move {
            match ending {
                Some(ending) => Ok(ending),
                None => std::future::pending().await,
            }
        })
    }
}
