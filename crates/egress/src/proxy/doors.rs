//! The doors of a sandbox: what is accepted at each, and where it was meant to go.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::egress::{Denial, DenialCode, Door, Host};
use cofferdam_core::outlet::Dial;
use cofferdam_sys::capture::{DNS_PORT, original_destination};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connection::{self, Meant};
use super::dns::question;
use super::http::serve::{Conversation, Speaks, Verdict};
use super::opening::PATIENCE;
use super::sandbox::{Accepted, Sandbox};
use super::socks::{self, Read, Reply, Request};
use super::stream::{Stream, replay};
use crate::control::{DoorKind, watched};

/// How long is waited after something that more waiting may mend: a table of descriptors that is full.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves a door for as long as the run is.
pub(crate) fn open(sandbox: &Arc<Sandbox>, kind: DoorKind, socket: OwnedFd) {
    let within = sandbox.clone();
    sandbox.spawn(async move {
        // A socket that can't be waited for is closed: what comes there is refused by the kernel.
        let _ = match kind {
            DoorKind::Tcp => accept(within, socket, captured).await,
            DoorKind::Proxy => accept(within, socket, asked_as_proxy).await,
            DoorKind::Dns => question::serve_udp(within, socket).await,
            DoorKind::Broker => Ok(()), // it leads the other way
        };
    });
}

/// Accepts connections and serves each in a task of its own.
async fn accept(
    sandbox: Arc<Sandbox>,
    socket: OwnedFd,
    serve: fn(&Arc<Sandbox>, TcpStream, Accepted) -> io::Result<()>,
) -> io::Result<()> {
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = watched(listener)?;
    loop {
        let mut ready = listener.readable().await?;
        let Ok(accepted) = ready.try_io(|listener| listener.get_ref().accept()) else { continue };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Some(guard) = sandbox.accept() else {
            refuse_one_too_many(&sandbox, &stream).await;
            continue;
        };
        let _ = serve(&sandbox, stream, guard); // who dialled may be gone already
    }
}

async fn refuse_one_too_many(sandbox: &Sandbox, stream: &TcpStream) {
    let host = original_destination(stream).map(|to| (sandbox.names().host(to.ip()), to.port()));
    let denial = match host {
        Ok((host, port)) => Denial::of_host(DenialCode::LimitExceeded, &host, Some(port)),
        Err(_) => Denial::of_bytes(DenialCode::LimitExceeded, b""),
    };
    let denial = Denial { rule: Some("limits.connections".to_owned()), ..denial };
    sandbox.deny(&denial, Door::Capture).await;
}

/// A connection that was caught on its way out.
fn captured(sandbox: &Arc<Sandbox>, stream: TcpStream, guard: Accepted) -> io::Result<()> {
    let to = original_destination(&stream)?;
    if to.ip().to_canonical().is_loopback() {
        return Ok(()); // it dialled the door itself, which leads nowhere
    }
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let host = sandbox.names().host(to.ip());
    let (within, port) = (sandbox.clone(), to.port());
    let is_dns = port == DNS_PORT && within.rules().connection(Door::Capture, &host, port).is_err();
    sandbox.spawn(async move {
        let _guard = guard;
        if is_dns {
            let _ = question::serve_tcp(within, stream).await; // who asked sees that it is closed
        } else {
            let meant = Meant { door: Door::Capture, host, port, tls: None };
            connection::serve(within, Box::new(stream), meant).await;
        }
    });
    Ok(())
}

/// A connection to a proxy as such: SOCKS if it begins so, else HTTP.
fn asked_as_proxy(sandbox: &Arc<Sandbox>, stream: TcpStream, guard: Accepted) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    let within = sandbox.clone();
    sandbox.spawn(async move {
        let _guard = guard;
        let mut bytes = vec![];
        match timeout(PATIENCE, stream.read_buf(&mut bytes)).await {
            Ok(Ok(1..)) if bytes[0] == 5 => {
                let _ = by_socks(&within, Box::new(stream), bytes).await; // who asked sees that it is closed
            }
            Ok(Ok(1..)) => {
                let conversation = Conversation::new(&within, Door::Forward, Verdict::Open);
                conversation.serve(Speaks::Http1, replay(bytes, Box::new(stream))).await;
            }
            _ => {}
        }
    });
    Ok(())
}

/// Reads a greeting and a request, and serves what follows as any connection there.
async fn by_socks(sandbox: &Arc<Sandbox>, mut stream: Stream, mut bytes: Vec<u8>) -> io::Result<()> {
    let request = match timeout(PATIENCE, ask(&mut stream, &mut bytes)).await?? {
        Ok(request) => request,
        Err(reply) => return stream.write_all(&reply).await,
    };
    let port = request.port;
    let host = match request.host {
        Ok(host) => host,
        Err((name, _)) => {
            let denial = Denial { port: Some(port), ..Denial::of_bytes(DenialCode::InvalidHost, &name) };
            sandbox.deny(&denial, Door::Connect).await;
            return stream.write_all(&Reply::NotAllowed.bytes()).await;
        }
    };
    if let Err(denial) = sandbox.rules().connection(Door::Connect, &host, port) {
        sandbox.deny(&denial, Door::Connect).await;
        return stream.write_all(&Reply::NotAllowed.bytes()).await;
    }
    stream.write_all(&Reply::Succeeded.bytes()).await?;
    let meant = Meant { door: Door::Connect, host, port, tls: None };
    connection::serve(sandbox.clone(), replay(bytes, stream), meant).await;
    Ok(())
}

/// Serves a connection that was made for a program; none where this process has no room for one more. What becomes of
/// it is decided here, so that a refusal is written down even if the run ends before it could be said.
pub(crate) fn asked_of_the_host(sandbox: &Arc<Sandbox>, dial: Dial, stream: Option<OwnedFd>) {
    let Dial { host, port, tls } = dial;
    let door = Door::Function;
    let refused = |code| Denial { port: Some(port), ..Denial::of_bytes(code, &host) };
    let Some(stream) = stream.and_then(|stream| adopt(stream).ok()) else {
        return sandbox.deny_now(&refused(DenialCode::LimitExceeded), door);
    };
    let guard = sandbox.accept();
    let meant = match (&guard, Host::parse(&host)) {
        (None, _) => {
            let rule = Some("limits.connections".to_owned());
            Err(Denial { rule, ..refused(DenialCode::LimitExceeded) })
        }
        (_, Err(_)) => Err(refused(DenialCode::InvalidHost)),
        (_, Ok(host)) => Ok(Meant { door, host, port, tls }),
    };
    let serving: Pin<Box<dyn Future<Output = ()> + Send>> = match meant {
        Ok(meant) => connection::serve_within(sandbox.clone(), stream, meant),
        Err(denial) => Box::pin(connection::refuse(sandbox, stream, door, denial)),
    };
    sandbox.spawn(async move {
        let _guard = guard;
        serving.await;
    });
}

/// A stream socket of the host's, as ours.
fn adopt(stream: OwnedFd) -> io::Result<Stream> {
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    Ok(Box::new(tokio::net::UnixStream::from_std(stream)?))
}

/// What is asked for, or what to answer instead.
async fn ask(stream: &mut Stream, bytes: &mut Vec<u8>) -> io::Result<Result<Request, Vec<u8>>> {
    match read(stream, bytes, socks::greeting).await? {
        Ok(true) => stream.write_all(&socks::NO_AUTHENTICATION).await?,
        Ok(false) => return Ok(Err(socks::NO_METHOD.to_vec())),
        Err(reply) => return Ok(Err(reply.bytes().to_vec())),
    }
    Ok(read(stream, bytes, socks::request).await?.map_err(|reply| reply.bytes().to_vec()))
}

/// Reads until a message is whole, and takes it from what was read.
async fn read<T>(
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    parse: fn(&[u8]) -> Read<T>,
) -> io::Result<Result<T, Reply>> {
    loop {
        match parse(bytes) {
            Read::Whole(message, took) => {
                bytes.drain(..took);
                return Ok(Ok(message));
            }
            Read::Refused(reply) => return Ok(Err(reply)),
            Read::Incomplete => {
                if stream.read_buf(bytes).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}
