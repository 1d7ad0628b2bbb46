//! Our own standard input, read ahead by one piece.

use std::io::{self, Read};

use tokio::sync::{Mutex, mpsc};

/// How much is read at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Standard input, or none.
pub(super) struct Input {
    reader: Option<Mutex<Reader>>,
}

/// The thread's near end. A read from a terminal or a pipe can wait for ever and can't be called off,
/// so it has a thread of its own, which ends with the process.
struct Reader {
    /// Said once, when the first piece is wanted: until then nothing is taken from the input.
    go: std::sync::mpsc::Sender<()>,
    pieces: mpsc::Receiver<Vec<u8>>,
}

impl Input {
    /// No input: the program's is empty.
    pub(super) fn empty() -> Self {
        Input { reader: None }
    }

    /// Our own standard input; none if it is closed or `/dev/null`.
    ///
    /// # Errors
    ///
    /// What the kernel said: EAGAIN where no further thread may be started.
    pub(super) fn standard() -> io::Result<Self> {
        if cofferdam_sys::fd::is_null_device(io::stdin()) {
            return Ok(Input::empty());
        }
        let (go, gone) = std::sync::mpsc::channel();
        let (send, pieces) = mpsc::channel(1);
        std::thread::Builder::new().spawn(move || {
            if gone.recv().is_ok() {
                read_ahead(&send);
            }
        })?;
        Ok(Input { reader: Some(Mutex::new(Reader { go, pieces })) })
    }

    /// Whether there is any.
    pub(super) fn is_there(&self) -> bool {
        self.reader.is_some()
    }

    /// The next piece; none at the end.
    pub(super) async fn next(&self) -> Option<Vec<u8>> {
        let mut reader = self.reader.as_ref()?.lock().await;
        let _ = reader.go.send(()); // once it reads, it doesn't listen any more
        reader.pieces.recv().await
    }
}

/// Reads until the end, or until nobody wants more.
fn read_ahead(send: &mpsc::Sender<Vec<u8>>) {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        match io::stdin().lock().read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(count) => piece.truncate(count),
        }
        if send.blocking_send(piece).is_err() {
            return;
        }
    }
}
