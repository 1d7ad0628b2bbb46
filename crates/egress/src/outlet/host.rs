//! The thread on which outlets are served: it waits for packets, for the proxy, and for whoever opens and cuts.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cofferdam_core::outcome::{RunId, Traffic};
use cofferdam_core::outlet::{Cut, Sink};
use cofferdam_sys::addresses;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::ledger::{Entry, Ledger};
use super::process::Proxy;
use super::way::{Asked, Session, Way};
use super::{Made, Settings};
use crate::control::{DoorKind, Frame, FromProxy, Report, Terms, ToProxy, VERSION};

/// How long the proxy may take until it is ready, and to cut what it serves.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked of the thread.
pub(super) enum Command {
    /// Make an authority that will be asked for.
    Prepare {
        authority: Arc<Made>,
        name: String,
    },
    Open {
        number: u64,
        way: Box<Way>,
    },
    Attach {
        number: u64,
        table: Option<OwnedFd>,
    },
    Connect {
        number: u64,
        asked: Asked,
    },
    Record {
        number: u64,
        run: RunId,
        sink: Arc<dyn Sink>,
        broker: Option<OwnedFd>,
    },
    Cut {
        number: u64,
        answer: oneshot::Sender<Cut>,
    },
    Drop {
        number: u64,
    },
}

/// A number for an outlet, which no other has.
pub(super) fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Starts the thread. It ends when nobody can tell it anything any more.
///
/// # Errors
///
/// What the kernel said.
pub(super) fn start(settings: Arc<Settings>) -> io::Result<mpsc::UnboundedSender<Command>> {
    let (commands, to_do) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    std::thread::Builder::new().name("egress".to_owned()).spawn(move || {
        runtime.block_on(serve(settings, to_do));
    })?;
    Ok(commands)
}

/// The proxy, as far as it is there.
struct Running {
    proxy: Proxy,
    said: mpsc::Receiver<FromProxy>,
    is_ready: bool,
    /// When it has to be ready, or to have cut something.
    until: Option<Instant>,
}

struct Serving {
    settings: Arc<Settings>,
    ways: HashMap<u64, Way>,
    /// Which way a session is of.
    sessions: HashMap<u32, u64>,
    last_session: u32,
    running: Option<Running>,
    /// Where the first packet of a way is told.
    woken: mpsc::UnboundedSender<u64>,
}

/// What happened.
enum Happened {
    Told(Option<Command>),
    Woken(u64),
    Said(Option<FromProxy>),
    Late,
}

async fn serve(settings: Arc<Settings>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let (woken, mut wakes) = mpsc::unbounded_channel();
    let (ways, sessions) = (HashMap::new(), HashMap::new());
    let mut serving = Serving { settings, ways, sessions, last_session: 0, running: None, woken };
    loop {
        let until = serving.running.as_ref().and_then(|running| running.until);
        let happened = tokio::select! {
            command = commands.recv() => Happened::Told(command),
            Some(number) = wakes.recv() => Happened::Woken(number),
            said = said(&mut serving.running) => Happened::Said(said),
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => Happened::Late,
        };
        match happened {
            Happened::Told(Some(command)) => serving.told(command),
            Happened::Told(None) => return,
            Happened::Woken(number) => serving.woken(number),
            Happened::Said(Some(message)) => serving.said(message),
            Happened::Said(None) | Happened::Late => serving.lose(),
        }
    }
}

/// What the proxy says next; waits forever where there is none.
async fn said(running: &mut Option<Running>) -> Option<FromProxy> {
    match running {
        Some(running) => running.said.recv().await,
        None => std::future::pending().await,
    }
}

impl Serving {
    fn told(&mut self, command: Command) {
        match command {
            Command::Prepare { authority, name } => {
                authority.get(&name);
            }
            Command::Open { number, way } => {
                self.ways.insert(number, *way);
            }
            Command::Attach { number, table } => self.with(number, |way, woken| way.attached(table, woken)),
            Command::Connect { number, asked } => self.connect(number, asked),
            Command::Record { number, run, sink, broker } => {
                self.with(number, |way, woken| way.record(run, sink, broker, woken));
            }
            Command::Cut { number, answer } => self.cut(number, answer),
            Command::Drop { number } => {
                if let Some(mut way) = self.ways.remove(&number)
                    && let Some(session) = way.take_session()
                {
                    self.sessions.remove(&session.number);
                    self.say(&ToProxy::Cut { session: session.number }, None);
                }
            }
        }
    }

    fn with(&mut self, number: u64, f: impl FnOnce(&mut Way, Box<dyn Fn() + Send + Sync>)) {
        let woken = self.woken.clone();
        if let Some(way) = self.ways.get_mut(&number) {
            let wake = Box::new(move || {
                let _ = woken.send(number); // the thread ends with its receiver
            });
            f(way, wake);
        }
    }

    /// A program asks for a connection: the proxy gets it, now or when it serves the run.
    fn connect(&mut self, number: u64, asked: Asked) {
        let Some(way) = self.ways.get_mut(&number) else { return };
        match way.session().map(|session| session.number) {
            Some(session) if self.sessions.contains_key(&session) => self.say_connection(session, asked),
            Some(_) => {} // it is over
            None => {
                if way.ask(asked) && !way.is_waiting {
                    self.serve_way(number);
                }
            }
        }
    }

    fn say_connection(&self, session: u32, Asked { dial, stream, taken }: Asked) {
        if let Some(running) = &self.running {
            let message = ToProxy::Connection { session, dial };
            running.proxy.say_and_tell(message.encode(), stream, taken);
        }
    }

    fn cut(&mut self, number: u64, answer: oneshot::Sender<Cut>) {
        let Some(way) = self.ways.get_mut(&number) else { return };
        way.stop_watching();
        let session = match way.session_mut() {
            Some(session) if self.sessions.contains_key(&session.number) => {
                session.cut = Some(answer);
                session.number
            }
            // Nobody serves it, or not any more.
            _ => {
                let cut = way.finish(None);
                return way.answer(cut, answer);
            }
        };
        self.say(&ToProxy::Cut { session }, None);
        if let Some(running) = &mut self.running {
            running.until = running.until.or(Some(Instant::now() + PATIENCE));
        }
    }

    /// The first packet of a way: hands it over.
    fn woken(&mut self, number: u64) {
        if self.ways.get(&number).is_none_or(|way| !way.is_watched()) {
            return; // cut meanwhile, or handed over already
        }
        self.serve_way(number);
    }

    /// Has the proxy serve a way, which is started if it isn't there.
    fn serve_way(&mut self, number: u64) {
        if self.running.is_none() {
            match self.start() {
                Ok(running) => self.running = Some(running),
                Err(_) => return self.lose_way(number),
            }
        }
        let is_ready = self.running.as_ref().is_some_and(|running| running.is_ready);
        if let Some(way) = self.ways.get_mut(&number) {
            way.stop_watching();
            way.is_waiting = !is_ready;
        }
        if is_ready {
            self.hand_over(number);
        }
    }

    fn start(&self) -> io::Result<Running> {
        let (proxy, said) = Proxy::start(&self.settings.program)?;
        proxy.say(ToProxy::Node(self.settings.node.clone()).encode(), None);
        Ok(Running { proxy, said, is_ready: false, until: Some(Instant::now() + PATIENCE) })
    }

    /// Gives the proxy what a run may do, and a copy of each door.
    fn hand_over(&mut self, number: u64) {
        let own = match &self.settings.own_addresses {
            Some(own) => Ok(own.clone()),
            None => addresses::own(),
        };
        self.last_session = self.last_session.wrapping_add(1);
        let session = self.last_session;
        let Some(way) = self.ways.get_mut(&number) else { return };
        let prepared = own.and_then(|own| Ok((way.openings()?, own)));
        let Ok((doors, own)) = prepared else { return self.lose_way(number) };
        let terms = way.terms(session, own.clone(), self.settings.denied_names);
        let ledger = Ledger::new(&terms.rules, own, self.settings.node.private_hosts.clone());
        way.begin(Session::new(session, ledger));
        let asked = way.take_asked();
        self.sessions.insert(session, number);
        self.say_terms(terms, doors);
        for asked in asked {
            self.say_connection(session, asked);
        }
    }

    fn say_terms(&self, terms: Terms, doors: Vec<(DoorKind, OwnedFd)>) {
        for (kind, fd) in doors {
            self.say(&ToProxy::Door(kind), Some(fd));
        }
        self.say(&ToProxy::Open(Box::new(terms)), None);
    }

    fn say(&self, message: &ToProxy, fd: Option<OwnedFd>) {
        if let Some(running) = &self.running {
            running.proxy.say(message.encode(), fd);
        }
    }

    fn said(&mut self, message: FromProxy) {
        match message {
            FromProxy::Ready(VERSION) => self.ready(),
            FromProxy::Ready(_) | FromProxy::Failed(_) => self.lose(),
            FromProxy::Event { session, event, report } => self.event(session, event, report),
            FromProxy::IsCut { session, bytes_out, bytes_in } => {
                self.is_cut(session, Traffic { bytes_out, bytes_in });
            }
        }
    }

    fn ready(&mut self) {
        if let Some(running) = &mut self.running {
            (running.is_ready, running.until) = (true, None);
        }
        let waiting: Vec<u64> =
            self.ways.iter().filter(|(_, way)| way.is_waiting).map(|(number, _)| *number).collect();
        for number in waiting {
            if let Some(way) = self.ways.get_mut(&number) {
                way.is_waiting = false;
            }
            self.hand_over(number);
        }
    }

    fn event(&mut self, session: u32, event: u64, report: Report) {
        let Some(running) = &self.running else { return };
        let proxy = &running.proxy;
        let answer = |is_written| ToProxy::Written { event, is_written }.encode();
        // A run that is over has no log to write to.
        let way = self.sessions.get(&session).and_then(|number| self.ways.get_mut(number));
        let Some(session) = way.and_then(Way::session_mut) else {
            return proxy.say(answer(false), None);
        };
        match session.ledger.enter(report) {
            Entry::Counted => proxy.say(answer(true), None),
            Entry::Refused => proxy.say(answer(false), None),
            Entry::Record(events) => {
                let (yes, no) = (answer(true), answer(false));
                let say = running.proxy.sayer();
                session.record(events, move |is_written| say(if is_written { yes } else { no }));
            }
        }
    }

    fn is_cut(&mut self, session: u32, counted: Traffic) {
        let Some(number) = self.sessions.remove(&session) else { return };
        let Some(way) = self.ways.get_mut(&number) else { return };
        let Some(answer) = way.session_mut().and_then(|session| session.cut.take()) else {
            return self.lose(); // nobody asked
        };
        let cut = way.finish(Some(counted));
        way.answer(cut, answer);
        let is_waited_for = |way: &Way| way.session().is_some_and(|session| session.cut.is_some());
        if !self.ways.values().any(is_waited_for)
            && let Some(running) = &mut self.running
        {
            running.until = None;
        }
    }

    /// The proxy is gone, or can't be spoken with: then it has to be.
    fn lose(&mut self) {
        self.running = None;
        self.sessions.clear();
        let numbers: Vec<u64> = self.ways.keys().copied().collect();
        for number in numbers {
            let is_served = |way: &Way| way.session().is_some() || way.is_waiting;
            if self.ways.get(&number).is_some_and(is_served) {
                self.lose_way(number);
            }
        }
    }

    /// Closes a way for good: what its sandbox dials is refused by the kernel.
    fn lose_way(&mut self, number: u64) {
        let Some(way) = self.ways.get_mut(&number) else { return };
        way.close(SystemTime::now());
        if let Some(answer) = way.session_mut().and_then(|session| session.cut.take()) {
            let cut = way.finish(None);
            way.answer(cut, answer);
        }
    }
}
