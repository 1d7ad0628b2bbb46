//! Tells the host what happens to credentials, and waits for its word that it is written down where it has to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::control::{self, Answer, Numbered, What};

/// The way to the host.
pub(super) struct Host {
    control: Arc<UnixStream>,
    waiting: RefCell<Waiting>,
}

/// Who waits for which event.
#[derive(Default)]
struct Waiting {
    last: u64,
    answers: HashMap<u64, oneshot::Sender<bool>>,
}

impl Host {
    pub(super) fn new(control: Arc<UnixStream>) -> Self {
        Host { control, waiting: RefCell::default() }
    }

    /// Has something written down; whether it is.
    pub(super) async fn record(&self, task: u64, what: What) -> bool {
        let (answer, answered) = oneshot::channel();
        let event = self.next();
        self.waiting.borrow_mut().answers.insert(event, answer);
        self.say(task, event, what);
        answered.await.unwrap_or(false)
    }

    /// The same without waiting, for what can't be stopped any more.
    pub(super) fn tell(&self, task: u64, what: What) {
        self.say(task, self.next(), what);
    }

    /// The host's answer.
    pub(super) fn written(&self, event: u64, is_written: bool) {
        if let Some(answer) = self.waiting.borrow_mut().answers.remove(&event) {
            let _ = answer.send(is_written); // who asked may be gone
        }
    }

    fn next(&self) -> u64 {
        let mut waiting = self.waiting.borrow_mut();
        waiting.last += 1;
        waiting.last
    }

    fn say(&self, task: u64, event: u64, what: What) {
        let message = Numbered { number: 0, message: Answer::Happened { task, event, what } };
        let _ = control::write(&mut &*self.control, &message, &[]); // it may be gone, and then all of this ends
    }
}
