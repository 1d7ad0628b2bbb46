//! What a connection begins with: its first bytes say what is spoken on it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use super::client_hello::{self, Beginning, ClientHello};
use super::http::framing::HEAD_BYTES;
use super::postgres;

/// How a connection of HTTP/2 begins: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long the whole of what decides may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The most bytes that are looked at: a message of TLS in many records, or a head.
const MOST_BYTES: usize = HEAD_BYTES;

/// What is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// HTTP/1: at least a first line that says so.
    Http1,
    /// HTTP/2, by those who know beforehand.
    Http2,
    /// Nothing yet: it was closed, or nothing came for as long as was waited.
    Nothing,
    /// Nothing that can be read, or something that didn't come in time.
    Other,
    /// The protocol of PostgreSQL.
    Postgres,
    /// TLS.
    Tls(ClientHello),
}

/// Looks at first bytes; none where more has to come.
#[must_use]
pub fn look(bytes: &[u8]) -> Option<Opening> {
    if bytes.is_empty() {
        return None;
    }
    if client_hello::may_begin_record(bytes) {
        return match client_hello::read(bytes) {
            Beginning::Hello(hello) => Some(Opening::Tls(hello)),
            Beginning::Incomplete if bytes.len() < MOST_BYTES => None,
            Beginning::Incomplete | Beginning::Malformed => Some(Opening::Other),
        };
    }
    if PREFACE.starts_with(bytes) || bytes.starts_with(PREFACE) {
        return (bytes.len() >= PREFACE.len()).then_some(Opening::Http2);
    }
    if bytes[0] == 0 {
        let spoken = |is_postgres| if is_postgres { Opening::Postgres } else { Opening::Other };
        return postgres::begins(bytes).map(spoken);
    }
    let line_end = bytes.iter().position(|byte| *byte == b'\n');
    let line = &bytes[..line_end.unwrap_or(bytes.len())];
    // Only a name of a method or what follows it can begin a line of HTTP/1.
    if !line.iter().all(|byte| matches!(byte, b'\r' | b' '..=b'~' | 0x80..)) || line[0] == b' ' {
        return Some(Opening::Other);
    }
    match line_end {
        Some(_) if line.windows(6).any(|six| six == b" HTTP/") => Some(Opening::Http1),
        Some(_) => Some(Opening::Other),
        None if bytes.len() >= MOST_BYTES => Some(Opening::Http1),
        None => None,
    }
}

/// Reads first bytes until they say what is spoken, for as long as `most` says. The first is waited for as long as
/// `first` says.
///
/// # Errors
///
/// What the kernel said.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    first: Duration,
    most: Duration,
) -> io::Result<(Opening, Vec<u8>)> {
    let mut bytes = vec![];
    let until = Instant::now() + most;
    let mut this_until = until.min(Instant::now() + first);
    loop {
        match timeout_at(this_until, stream.read_buf(&mut bytes)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) | Err(_) if bytes.is_empty() => return Ok((Opening::Nothing, bytes)),
            Ok(Ok(0)) | Err(_) => return Ok((Opening::Other, bytes)),
            Ok(Err(error)) => return Err(error),
        }
        if let Some(opening) = look(&bytes) {
            return Ok((opening, bytes));
        }
        this_until = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spoken_is_told_by_the_first_bytes() {
        let look = |text: &str| look(text.as_bytes());
        for text in ["GET / HTTP/1.1\r\n", "OPTIONS * HTTP/1.0\r\nX", "GET / HTTP/1.1\n", "x y HTTP/9\r\n"] {
            assert_eq!(look(text), Some(Opening::Http1), "{text:?}");
        }
        for text in ["", "G", "GET /long", "P", "PRI * HTTP/2.0\r\n\r\nSM", "SSH-2.0-x", "\0\0\0\x08\x04"] {
            assert_eq!(look(text), None, "{text:?}");
        }
        for text in
            ["SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "\0\x01", "GET /\r\n", "\x16\x02", " GET", "EHLO a\r\n"]
        {
            assert_eq!(look(text), Some(Opening::Other), "{text:?}");
        }
        assert_eq!(look("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxyz"), Some(Opening::Http2));
        assert_eq!(look("\0\0\0\x0c\0\x03\0\0"), Some(Opening::Postgres));
    }
}
