//! A refusal in the protocol of PostgreSQL, whose clients show the reason: `psql` and every library.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>. Only what a client begins with is read, and
//! only of connections that lead nowhere.

use std::io;
use std::ops::RangeInclusive;

use cofferdam_core::egress::Denial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::http::problem;
use super::opening::PATIENCE;
use super::stream::Stream;

/// A length and a code, of four bytes each: what each first message begins with.
const HEAD_BYTES: usize = 8;

/// `GSSENCRequest` and `SSLRequest`: the code says so alone.
const ENCRYPTION_CODES: [u32; 2] = [80_877_104, 80_877_103];

/// `StartupMessage` of version 3, whatever comes after the point.
const VERSION: u32 = 3;

/// How long a `StartupMessage` is at all: as its server has it (`MAX_STARTUP_PACKET_LENGTH`), in bytes.
const STARTUP_BYTES: RangeInclusive<usize> = HEAD_BYTES + 1..=10_000;

/// A client asks for encryption, of both kinds, before it begins.
const MOST_MESSAGES: usize = 3;

/// `invalid_authorization_specification`: appendix A of the manual.
const SQLSTATE: &str = "28000";

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// It asks whether what follows may be encrypted, and waits.
    Encrypt,
    /// It begins, with a message of so many bytes.
    Startup(usize),
}

fn first(head: [u8; HEAD_BYTES]) -> Option<First> {
    let [a, b, c, d, code @ ..] = head;
    let (bytes, code) = (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes(code));
    if bytes == HEAD_BYTES && ENCRYPTION_CODES.contains(&code) {
        return Some(First::Encrypt);
    }
    (code >> 16 == VERSION && STARTUP_BYTES.contains(&bytes)).then_some(First::Startup(bytes))
}

/// Whether first bytes are those of such a client; none where more has to come.
pub(crate) fn begins(bytes: &[u8]) -> Option<bool> {
    match bytes.first_chunk() {
        Some(head) => Some(first(*head).is_some()),
        None if bytes.iter().take(2).all(|byte| *byte == 0) => None,
        None => Some(false),
    }
}

/// Answers a client that its connection is refused, and why.
pub(crate) async fn refuse(denial: &Denial, stream: Stream) {
    let _ = timeout(PATIENCE, answer(denial, stream)).await; // a client that is gone or says no more needs no answer
}

async fn answer(denial: &Denial, mut stream: Stream) -> io::Result<()> {
    for _ in 0..MOST_MESSAGES {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        match first(head) {
            Some(First::Encrypt) => stream.write_all(b"N").await?,
            Some(First::Startup(bytes)) => {
                // What is left unread when it is closed would take the answer away.
                stream.read_exact(&mut vec![0; bytes - HEAD_BYTES]).await?;
                stream.write_all(&error(denial)).await?;
                return stream.shutdown().await;
            }
            None => break,
        }
    }
    Ok(())
}

/// `ErrorResponse`.
fn error(denial: &Denial) -> Vec<u8> {
    let (message, hint) = (problem::reason(denial), denial.code.sentence());
    let fields = [('S', "FATAL"), ('V', "FATAL"), ('C', SQLSTATE), ('M', &message), ('H', &hint)];
    let fields: String = fields.iter().map(|(kind, text)| format!("{kind}{text}\0")).collect();
    let bytes = size_of::<u32>() + fields.len() + 1;
    [&b"E"[..], &(bytes as u32).to_be_bytes(), fields.as_bytes(), b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use cofferdam_core::egress::DenialCode;

    use super::*;

    const SSL: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    const STARTUP: [u8; 12] = [0, 0, 0, 12, 0, 3, 0, 0, b'u', 0, b'a', 0];

    #[test]
    fn what_a_client_begins_with_is_told_from_anything_else() {
        assert_eq!(begins(&SSL), Some(true));
        assert_eq!(begins(&STARTUP), Some(true));
        for incomplete in [&[][..], &[0], &SSL[..7]] {
            assert_eq!(begins(incomplete), None);
        }
        for other in
            [&[0, 1][..], b"SSH-", &[0; 8], &[0, 0, 0x7f, 0xff, 0, 3, 0, 0], &[0, 0, 0, 8, 0, 3, 0, 0]]
        {
            assert_eq!(begins(other), Some(false), "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_asks_for_encryption_first_is_told_why_afterwards() {
        let denial = Denial::of_bytes(DenialCode::HostNotAllowed, b"db.test");
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (_, said) = tokio::join!(refuse(&denial, Box::new(server)), async {
            client.write_all(&[SSL, SSL].concat()).await.unwrap();
            client.write_all(&STARTUP).await.unwrap();
            let mut said = vec![];
            client.read_to_end(&mut said).await.unwrap();
            said
        });
        let (heads, fields) = said.split_at(7);
        assert_eq!(heads, [&b"NNE"[..], &(said.len() as u32 - 3).to_be_bytes()].concat());
        let fields: Vec<_> = str::from_utf8(fields).unwrap().split('\0').collect();
        assert_eq!(fields[3], "MCofferdam: host_not_allowed");
        assert_eq!(fields[5..], ["", ""], "the end of the fields and of the message");
    }
}
