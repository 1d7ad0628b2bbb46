//! One sandbox's way out, as the host knows it.
//!
//! It is *made*, then has doors and a run, then is *watched* until the first packet; then it is *served* by the
//! proxy in a session, until it is cut. A sandbox that is used again has a session for each run. Lost, it stays
//! closed.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use cofferdam_core::audit::Event;
use cofferdam_core::outcome::{RunId, Traffic};
use cofferdam_core::outlet::{Cut, Dial, Sink};
use cofferdam_core::policy::{Limits, NetworkRule};
use cofferdam_sys::capture::Table;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

use super::doors::DoorSet;
use super::ledger::Ledger;
use crate::authority::Authority;
use crate::control::{DeniedNames, DoorKind, Terms, watched};

/// One sandbox's way out.
#[derive(Debug)]
pub(super) struct Way {
    rules: Vec<NetworkRule>,
    limits: Limits,
    authority: Arc<Authority>,
    doors: Arc<DoorSet>,
    table: Option<Table>,
    /// What was counted before this run.
    refused_before: u64,
    run: Option<(RunId, Recorder)>,
    /// The way to the broker of this run.
    broker: Option<OwnedFd>,
    watching: Vec<AbortHandle>,
    session: Option<Session>,
    lost: Option<SystemTime>,
    /// Connections that were made before there is a session.
    asked: Vec<Asked>,
    /// Whether it is to be handed over when the proxy is ready.
    pub(super) is_waiting: bool,
}

/// A connection that was made for a program.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) dial: Dial,
    pub(super) stream: OwnedFd,
    /// Told when the proxy has it; dropped where it never will.
    pub(super) taken: oneshot::Sender<()>,
}

/// A run that the proxy serves.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u32,
    pub(super) ledger: Ledger,
    /// Who waits for its end.
    pub(super) cut: Option<oneshot::Sender<Cut>>,
    recorder: Option<mpsc::UnboundedSender<Entry>>,
}

/// Events, and what is done when they are written down or can't be.
type Entry = (Vec<Event>, Box<dyn FnOnce(bool) + Send>);

/// Writes a run's events down, one after the other.
#[derive(Debug)]
struct Recorder {
    entries: mpsc::UnboundedSender<Entry>,
    task: JoinHandle<()>,
}

impl Recorder {
    fn start(sink: Arc<dyn Sink>) -> Recorder {
        let (entries, mut to_write) = mpsc::unbounded_channel::<Entry>();
        let task = tokio::spawn(async move {
            while let Some((events, then)) = to_write.recv().await {
                let mut is_written = true;
                for event in events {
                    is_written &= sink.record(event).await.is_ok();
                }
                then(is_written);
            }
        });
        Recorder { entries, task }
    }
}

impl Session {
    pub(super) fn new(number: u32, ledger: Ledger) -> Self {
        Session { number, ledger, cut: None, recorder: None }
    }

    /// Has events written down.
    pub(super) fn record(&self, events: Vec<Event>, then: impl FnOnce(bool) + Send + 'static) {
        match &self.recorder {
            Some(recorder) => {
                let _ = recorder.send((events, Box::new(then))); // the task ends after its channel
            }
            None => then(false),
        }
    }
}

impl Way {
    pub(super) fn new(
        rules: Vec<NetworkRule>,
        limits: Limits,
        authority: Arc<Authority>,
        doors: Arc<DoorSet>,
    ) -> Self {
        Way {
            rules,
            limits,
            authority,
            doors,
            table: None,
            refused_before: 0,
            run: None,
            broker: None,
            watching: vec![],
            session: None,
            lost: None,
            asked: vec![],
            is_waiting: false,
        }
    }

    /// Takes what counts refusals, when there are doors.
    pub(super) fn attached(&mut self, table: Option<OwnedFd>, wake: Box<dyn Fn() + Send + Sync>) {
        self.table = table.map(Table::from);
        self.watch(wake);
    }

    pub(super) fn record(
        &mut self,
        run: RunId,
        sink: Arc<dyn Sink>,
        broker: Option<OwnedFd>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) {
        self.refused_before = self.refused();
        self.run = Some((run, Recorder::start(sink)));
        self.broker = broker;
        self.watch(wake);
    }

    /// Waits for the first packet, once there are doors and a run. Either can be there before it is told here, so
    /// this comes twice.
    fn watch(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        if self.doors.is_empty() || self.run.is_none() || self.lost.is_some() {
            return;
        }
        if self.is_watched() || self.is_waiting || self.session.is_some() {
            return;
        }
        let wake: Arc<dyn Fn() + Send + Sync> = wake.into();
        let copies = self.copies().and_then(|copies| copies.into_iter().map(|(_, fd)| watched(fd)).collect());
        let copies: Vec<_> = match copies {
            Ok(copies) => copies,
            Err(_) => return self.close(SystemTime::now()),
        };
        let watch = |fd: tokio::io::unix::AsyncFd<OwnedFd>| {
            let wake = wake.clone();
            let task = tokio::spawn(async move {
                if fd.readable().await.is_ok() {
                    wake();
                }
            });
            task.abort_handle()
        };
        self.watching = copies.into_iter().map(watch).collect();
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.watching.is_empty()
    }

    pub(super) fn stop_watching(&mut self) {
        self.watching.drain(..).for_each(|task| task.abort());
    }

    /// A copy of each door.
    fn copies(&self) -> io::Result<Vec<(DoorKind, OwnedFd)>> {
        self.doors.copies()
    }

    /// What the proxy gets to serve a run: a copy of each door, and the way to the run's broker.
    pub(super) fn openings(&mut self) -> io::Result<Vec<(DoorKind, OwnedFd)>> {
        let mut openings = self.copies()?;
        openings.extend(self.broker.take().map(|broker| (DoorKind::Broker, broker)));
        Ok(openings)
    }

    /// What the proxy is told.
    pub(super) fn terms(&self, session: u32, own: Vec<IpAddr>, denied_names: DeniedNames) -> Terms {
        Terms {
            session,
            run: self.run.as_ref().map(|(run, _)| run.to_string()).unwrap_or_default(),
            rules: self.rules.clone(),
            limits: self.limits.clone(),
            denied_names,
            own,
            authority: self.authority.name().to_owned(),
            authority_key: self.authority.key(),
        }
    }

    /// Keeps a connection until there is a session. Whether there can be one.
    pub(super) fn ask(&mut self, asked: Asked) -> bool {
        let can_be = self.run.is_some() && self.lost.is_none();
        if can_be {
            self.asked.push(asked);
        }
        can_be
    }

    /// The connections that were kept.
    pub(super) fn take_asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    pub(super) fn begin(&mut self, mut session: Session) {
        session.recorder = self.run.as_ref().map(|(_, recorder)| recorder.entries.clone());
        self.session = Some(session);
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    pub(super) fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    pub(super) fn take_session(&mut self) -> Option<Session> {
        self.stop_watching();
        self.session.take()
    }

    /// Closes it for good.
    pub(super) fn close(&mut self, when: SystemTime) {
        self.stop_watching();
        self.is_waiting = false;
        self.asked.clear();
        self.doors.close();
        self.lost = self.lost.or(Some(when));
    }

    /// Ends the session, and says what there was in it: what the proxy counted, if it could still be asked.
    pub(super) fn finish(&mut self, counted: Option<Traffic>) -> Cut {
        self.is_waiting = false;
        self.asked.clear();
        self.broker = None;
        let mut session = self.session.take();
        // What never was the proxy's sent nothing; of what was, nobody else knows.
        let traffic = counted.or(session.is_none().then(Traffic::default));
        let denials = session.as_mut().map(|session| {
            let rest = session.ledger.rest();
            if !rest.is_empty() {
                session.record(rest, |_| {});
            }
            session.ledger.denials()
        });
        let udp_refused = self.refused().saturating_sub(self.refused_before);
        Cut { denials: denials.unwrap_or_default(), traffic, udp_refused, lost: self.lost }
    }

    /// Gives an answer when all that was said is written down.
    pub(super) fn answer(&mut self, cut: Cut, answer: oneshot::Sender<Cut>) {
        let Some((_, Recorder { entries, task })) = self.run.take() else {
            let _ = answer.send(cut); // who asked may be gone
            return;
        };
        drop(entries);
        tokio::spawn(async move {
            let _ = task.await; // a sink that panics has written what it has
            let _ = answer.send(cut); // as above
        });
    }

    fn refused(&mut self) -> u64 {
        self.table.as_mut().and_then(|table| table.refused().ok()).map_or(0, |refused| refused.udp)
    }
}
