//! Our own standard input, read ahead by one piece.

use std::io::{self, Read};

use tokio::sync::{Mutex, mpsc};

/// How much is read at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Standard input, or none.
pub(super) struct Input {
    /// Where the pieces come from; the thread that reads is started with the first.
    pieces: Option<Mutex<Option<mpsc::Receiver<Vec<u8>>>>>,
}

impl Input {
    /// No input: the program's is empty.
    pub(super) fn empty() -> Self {
        Input { pieces: None }
    }

    /// Our own standard input; none if it is closed or `/dev/null`.
    pub(super) fn standard() -> Self {
        let empty = cofferdam_sys::fd::is_null_device(io::stdin());
        Input { pieces: (!empty).then(|| Mutex::new(None)) }
    }

    /// Whether there is any.
    pub(super) fn is_there(&self) -> bool {
        self.pieces.is_some()
    }

    /// The next piece; none at the end.
    pub(super) async fn next(&self) -> Option<Vec<u8>> {
        let mut pieces = self.pieces.as_ref()?.lock().await;
        pieces.get_or_insert_with(read_ahead).recv().await
    }
}

/// Reads on a thread of its own: a read from a terminal or a pipe can wait for ever and can't be
/// called off. The thread ends with the process.
fn read_ahead() -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel(1);
    std::thread::spawn(move || {
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
    });
    receive
}
