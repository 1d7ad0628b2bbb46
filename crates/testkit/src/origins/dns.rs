//! The resolver: RFC 1035 as far as stub resolvers need it, over UDP and TCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::World;
use super::place::addresses;
use super::seen::{Carrier, Question};

/// The numbers of records with an address.
const A: u16 = 1;
const AAAA: u16 = 28;

const HEADER_BYTES: usize = 12;

/// An answer, a recursion that was wanted and is available; the lowest bits say how it went.
const ANSWER: u16 = 0x8180;
const NO_SUCH_NAME: u16 = 3;

/// What a question looks like.
struct Asked {
    name: String,
    kind: u16,
    /// Where it ends in the message.
    end: usize,
}

/// Answers a message, and writes the question down. None for what is no question.
pub(super) fn answer(message: &[u8], carrier: Carrier, to: SocketAddr, world: &World) -> Option<Vec<u8>> {
    let asked = read(message)?;
    let found = addresses(&asked.name);
    let records: Vec<_> = found.iter().flatten().filter(|address| kind_of(address) == asked.kind).collect();
    let flags = ANSWER | if found.is_none() { NO_SUCH_NAME } else { 0 };
    let mut answer = message[..2].to_vec(); // its number
    for number in [flags, 1, records.len() as u16, 0, 0] {
        answer.extend(number.to_be_bytes());
    }
    answer.extend(&message[HEADER_BYTES..asked.end]);
    for address in records {
        answer.extend(record(*address));
    }
    world.log.question(Question { name: asked.name, kind: asked.kind, carrier, to });
    Some(answer)
}

/// The first question of a message, without compression, which questions don't have.
fn read(message: &[u8]) -> Option<Asked> {
    let (mut name, mut at) = (vec![], HEADER_BYTES);
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = message.get(at..at + length)?;
        name.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?);
    message.get(at + 2..at + 4)?; // its class
    Some(Asked { name: name.join("."), kind, end: at + 4 })
}

fn kind_of(address: &IpAddr) -> u16 {
    if address.is_ipv4() { A } else { AAAA }
}

/// A record for the name of the question, which is good for this moment alone.
fn record(address: IpAddr) -> Vec<u8> {
    const NAME_OF_THE_QUESTION: u16 = 0xc000 | HEADER_BYTES as u16;
    let octets = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (internet, seconds) = (1_u16, 0_u32);
    let mut record = NAME_OF_THE_QUESTION.to_be_bytes().to_vec();
    record.extend(kind_of(&address).to_be_bytes());
    record.extend(internet.to_be_bytes());
    record.extend(seconds.to_be_bytes());
    record.extend((octets.len() as u16).to_be_bytes());
    record.extend(octets);
    record
}

/// Answers over TCP, where a length stands before each message.
pub(super) async fn serve_stream(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    to: SocketAddr,
    world: Arc<World>,
) {
    while let Ok(length) = stream.read_u16().await {
        let mut message = vec![0; usize::from(length)];
        if stream.read_exact(&mut message).await.is_err() {
            return;
        }
        let Some(answer) = answer(&message, Carrier::Tcp, to, &world) else { return };
        let framed = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
}
