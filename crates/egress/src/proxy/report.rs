//! What the proxy tells the host, and the host's word that it is written down.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::control::{Frame, FromProxy, Report};

/// The way to the host. Frames are sent in order by whoever has the other end of the channel.
#[derive(Debug)]
pub(crate) struct Host {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Mutex<Waiting>,
}

/// Who waits for which event.
#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    answers: HashMap<u64, oneshot::Sender<bool>>,
}

/// The host didn't write something down, so it must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotRecorded;

impl Host {
    pub(crate) fn new(frames: mpsc::UnboundedSender<Vec<u8>>) -> Self {
        Host { frames, waiting: Mutex::default() }
    }

    /// Says something that needs no answer. What can't be said any more is said to nobody: the process ends.
    pub(crate) fn say(&self, message: &FromProxy) {
        let _ = self.frames.send(message.encode());
    }

    /// Has something written down, and waits until it is.
    pub(crate) async fn record(&self, session: u32, report: Report) -> Result<(), NotRecorded> {
        let (answer, answered) = oneshot::channel();
        let event = {
            let mut waiting = self.lock();
            waiting.last += 1;
            let event = waiting.last;
            waiting.answers.insert(event, answer);
            event
        };
        self.say(&FromProxy::Event { session, event, report });
        match answered.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(NotRecorded),
        }
    }

    /// Has something written down, and doesn't wait.
    pub(crate) fn tell(&self, session: u32, report: Report) {
        let event = {
            let mut waiting = self.lock();
            waiting.last += 1;
            waiting.last
        };
        self.say(&FromProxy::Event { session, event, report });
    }

    /// The host's answer.
    pub(crate) fn written(&self, event: u64, is_written: bool) {
        if let Some(answer) = self.lock().answers.remove(&event) {
            let _ = answer.send(is_written); // who asked may have been cut
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
