//! A thread that writes to one of our own output streams, for writes that may wait for a reader.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc;

use tokio::sync::oneshot;

/// What the thread is given: bytes, and where to say how it went.
type Job = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// The thread's near end. It ends with this, or with the process if it still waits for a reader.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// What the kernel said: EAGAIN where no further thread may be started.
    pub(super) fn start(mut file: File) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        std::thread::Builder::new().spawn(move || {
            while let Ok((bytes, done)) = waiting.recv() {
                let _ = done.send(file.write_all(&bytes)); // whoever asked may have stopped waiting
            }
        })?;
        Ok(Writer { jobs })
    }

    /// Writes bytes; returns when they are written.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        let gone = |_| io::Error::other("the thread that writes our output has ended");
        self.jobs.send((bytes, done)).map_err(|_| gone(()))?;
        answer.await.map_err(|_| gone(()))?
    }
}
