//! Answers a sandbox's questions for names, over UDP and TCP alike.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::egress::{Denial, DenialCode};
use cofferdam_sys::capture::DnsSocket;
use cofferdam_sys::fd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::message::{A, AAAA, Code, Question, UDP_BYTES, question};
use crate::control::{DeniedNames, Report, watched};
use crate::proxy::sandbox::Sandbox;

/// How long an answer is good inside, in seconds. It stays true for as long as the sandbox lives.
const SECONDS: u32 = 60;

/// How long a connection for questions may be quiet: RFC 7766, section 6.2.3, asks for seconds.
const QUIET: Duration = Duration::from_secs(10);

/// Answers whatever comes to a socket, in its order.
///
/// # Errors
///
/// What the kernel said about the socket.
pub(crate) async fn serve_udp(sandbox: Arc<Sandbox>, socket: OwnedFd) -> io::Result<()> {
    let socket = DnsSocket::from(socket);
    fd::set_nonblocking(std::os::fd::AsFd::as_fd(&socket))?;
    let socket = watched(socket)?;
    // A question is a name, a type and maybe options of EDNS; a longer one is cut, and malformed.
    let mut buffer = [0; UDP_BYTES];
    loop {
        let mut ready = socket.readable().await?;
        let Ok(asked) = ready.try_io(|socket| socket.get_ref().question(&mut buffer)) else { continue };
        let Ok((length, asker)) = asked else { continue };
        if let Some(answer) = answer(&sandbox, &buffer[..length]).await {
            let _ = socket.get_ref().answer(&answer, &asker); // who asked may be gone, or asks again
        }
    }
}

/// Answers what comes over a connection: each message with its length before it (RFC 1035, section 4.2.2).
///
/// # Errors
///
/// What the kernel said about the connection.
pub(crate) async fn serve_tcp(sandbox: Arc<Sandbox>, mut stream: TcpStream) -> io::Result<()> {
    while let Ok(length) = timeout(QUIET, stream.read_u16()).await {
        let mut message = vec![0; length?.into()];
        timeout(QUIET, stream.read_exact(&mut message)).await??;
        let Some(answer) = answer(&sandbox, &message).await else { break };
        let framed = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
        timeout(QUIET, stream.write_all(&framed)).await??;
    }
    Ok(())
}

/// The answer to a message; none for what isn't worth one.
async fn answer(sandbox: &Sandbox, message: &[u8]) -> Option<Vec<u8>> {
    let question = match question(message)? {
        Ok(question) => question,
        Err(answer) => return Some(answer),
    };
    Some(decide(sandbox, &question).await)
}

async fn decide(sandbox: &Sandbox, question: &Question) -> Vec<u8> {
    let host = match &question.name {
        Ok(host) => host,
        Err((text, _)) => {
            let denial = Denial::of_bytes(DenialCode::InvalidHost, text.as_bytes());
            sandbox.tell(Report::NameDenied { denial, is_told: true }).await;
            return question.answer(Code::Refused, None, 0);
        }
    };
    let refused = sandbox.rules().lookup(host).err();
    let is_allowed = refused.is_none();
    let explains = is_allowed || sandbox.denied_names() == DeniedNames::Explain;
    let addresses = if explains { sandbox.names().addresses(host, is_allowed) } else { None };
    if let Some(denial) = refused {
        // A name is asked for twice, once in each family, and again; the first time says it.
        let is_first = addresses.is_none_or(|addresses| addresses.are_new);
        if is_first {
            sandbox.tell(Report::NameDenied { denial, is_told: addresses.is_none() }).await;
        }
    }
    let Some(addresses) = addresses else {
        return question.answer(if is_allowed { Code::Refused } else { Code::NoSuchName }, None, 0);
    };
    let address: Option<IpAddr> = match question.kind {
        _ if !question.is_internet => None,
        A => Some(addresses.v4.into()),
        AAAA if sandbox.has_ipv6() => Some(addresses.v6.into()),
        // Nothing else is known of a name; so there is no other key of TLS (type 65) and no other host.
        _ => None,
    };
    question.answer(Code::NoError, address, SECONDS)
}
