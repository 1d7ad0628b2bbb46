//! One line on a terminal that says how far a batch is; nothing where no person looks.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cofferdam_sys::fd;

/// How often the line is drawn again at most.
const PAUSE: Duration = Duration::from_millis(200);

/// How far a batch is.
pub(super) struct Progress {
    began: Instant,
    next: tokio::time::Instant,
    drawn: bool,
    shown: bool,
    done: usize,
    failed: usize,
}

impl Progress {
    /// Shown if standard error is a terminal and the answers go elsewhere.
    pub(super) fn new(quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal() && !io::stdout().is_terminal();
        let next = tokio::time::Instant::now() + PAUSE;
        Progress { began: Instant::now(), next, drawn: false, shown, done: 0, failed: 0 }
    }

    /// Counts a job that is over.
    pub(super) fn count(&mut self, failed: bool) {
        self.done += 1;
        self.failed += usize::from(failed);
    }

    /// Waits until it is time to draw; for ever where nothing is shown.
    pub(super) async fn due(&self) {
        if !self.shown {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(self.next).await;
    }

    /// Draws the line.
    pub(super) fn draw(&mut self, running: usize) {
        let (done, failed, elapsed) = (self.done, self.failed, self.began.elapsed().as_secs_f64());
        self.write(&format!(
            "\r\x1b[Kcofferdam: {done} done · {running} running · {failed} failed · {elapsed:.0} s"
        ));
        self.drawn = true;
        self.next = tokio::time::Instant::now() + PAUSE;
    }

    /// Takes the line away.
    pub(super) fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) {
            self.write("\r\x1b[K");
        }
    }

    /// Writes to the terminal, unless that would wait: somebody may have stopped it.
    fn write(&self, text: &str) {
        let mut err = io::stderr().lock();
        if self.shown && fd::takes_at_once(err.as_fd(), text.len()) {
            let _ = err.write_all(text.as_bytes()); // there is nobody left to tell
        }
    }
}
