//! As much of the protocol of Redis (RESP2) as four commands need: words there, and the first line of an answer back.
//!
//! It is written here and not taken from a client, since a client copies the words that it sends into buffers of its
//! own, and a password is among them. Source: redis.io/docs, "Redis serialization protocol specification".

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

/// The longest line of an answer, in bytes.
const LONGEST: u64 = 16 << 10;

/// What a server answers, as far as its first line says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It did it, in its words: `OK`, or a number.
    Done(String),
    /// It doesn't, and why.
    Refused(String),
    /// There is no such thing.
    Nothing,
    /// There is: what is behind this line isn't read, so nothing else can be asked on this connection.
    Something,
}

/// A connection.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(super) async fn open(host: &str, port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Sends a command and reads the first line of its answer.
    ///
    /// # Errors
    ///
    /// What the kernel said, or `InvalidData` for what is no answer.
    pub(super) async fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.0.write_all(&command(words)).await?;
        let mut line = Vec::new();
        (&mut self.0).take(LONGEST).read_until(b'\n', &mut line).await?;
        reply(&line)
    }
}

/// A command as the server reads it, in a buffer that doesn't grow.
fn command(words: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    const AROUND: usize = 32; // letters around a word: a length of at most 20 digits and the ends of lines
    let room = words.iter().map(|word| word.len() + AROUND).sum::<usize>() + AROUND;
    let mut text = Zeroizing::new(Vec::with_capacity(room));
    text.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        text.extend_from_slice(word);
        text.extend_from_slice(b"\r\n");
    }
    text
}

fn reply(line: &[u8]) -> io::Result<Reply> {
    let line = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let text = |rest: &[u8]| String::from_utf8_lossy(rest).into_owned();
    match line {
        [b'+' | b':', rest @ ..] => Ok(Reply::Done(text(rest))),
        [b'-', rest @ ..] => Ok(Reply::Refused(text(rest))),
        b"*-1" | b"$-1" => Ok(Reply::Nothing),
        [b'*' | b'$', ..] => Ok(Reply::Something),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it doesn't speak as Redis does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sent_whole_whatever_is_in_them() {
        assert_eq!(*command(&[b"GET", b"a\r\n*1"]), *b"*2\r\n$3\r\nGET\r\n$5\r\na\r\n*1\r\n");
    }

    #[test]
    fn an_answer_is_known_by_its_first_line() {
        assert_eq!(reply(b"+OK\r\n").unwrap(), Reply::Done("OK".to_owned()));
        assert_eq!(reply(b":1\r\n").unwrap(), Reply::Done("1".to_owned()));
        assert_eq!(reply(b"-ERR no\r\n").unwrap(), Reply::Refused("ERR no".to_owned()));
        assert_eq!(reply(b"*-1\r\n").unwrap(), Reply::Nothing);
        assert_eq!(reply(b"$-1\r\n").unwrap(), Reply::Nothing);
        assert_eq!(reply(b"*12\r\n").unwrap(), Reply::Something);
        for bad in [&b""[..], b"+OK", b"HTTP/1.1 400\r\n", b"\r\n"] {
            assert!(reply(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
