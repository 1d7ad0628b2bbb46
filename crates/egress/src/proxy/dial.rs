//! Dials what was permitted, at an address that was looked at: lookup, judgement, connection, TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::egress::{
    AddressDenied, Authority, CheckedAddress, DenialCode, Destination, Exhausted, Host, Terms, judge,
};
use cofferdam_core::policy::OWN_HOST;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::sandbox::Sandbox;
use super::stream::Metered;
use crate::control::Allowed;

/// How long one address is waited for, and a handshake with what is there.
const CONNECT: Duration = Duration::from_secs(10);

/// How many addresses of a host are tried.
const TRIED: usize = 4;

/// The most bytes that an operator's proxy may answer with before it connects.
const PROXY_HEAD_BYTES: usize = 8 << 10;

/// As many bytes of TLS are read at once: four records of the longest kind (RFC 8446, section 5.1). By itself the
/// library that opens them reads a quarter of one.
const READ_AHEAD: usize = 64 << 10;

/// Why something permitted wasn't reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{1}")]
    Address(IpAddr, AddressDenied),
    #[error("{0}")]
    Exhausted(#[from] Exhausted),
    #[error("it could not be written down")]
    NotRecorded,
    #[error("it could not be reached: {0}")]
    Unreachable(io::Error),
    #[error("no TLS could be had: {0}")]
    Tls(io::Error),
    #[error("the broker would not take it: {0}")]
    Broker(DenialCode),
    #[error("it speaks none of the protocols that were offered")]
    OtherProtocol,
}

impl DialError {
    /// Whether the other end speaks none of the protocols that were offered: RFC 7301, section 3.2.
    pub(crate) fn is_other_protocol(&self) -> bool {
        let error = match self {
            DialError::OtherProtocol => return true,
            DialError::Tls(error) => error,
            _ => return false,
        };
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let said = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        inner.is_some_and(|error| *error == said || *error == rustls::Error::NoApplicationProtocol)
    }
}

/// A connection, and the address that it leads to.
pub(crate) struct Dialled<S> {
    pub(crate) stream: S,
    pub(crate) ip: IpAddr,
}

/// Whether a connection to an address may serve what was permitted on these terms.
pub(crate) fn judge_address(
    sandbox: &Sandbox,
    to: &Destination,
    terms: &Terms,
    ip: IpAddr,
) -> Result<CheckedAddress, AddressDenied> {
    let private = terms.private() && sandbox.outside().may_be_private(to.host());
    judge(ip, private, sandbox.own_addresses())
}

/// Dials what was permitted, for this request if it is one. Each address is written down before it is dialled.
///
/// # Errors
///
/// [`DialError`].
pub(crate) async fn dial(
    sandbox: &Arc<Sandbox>,
    to: &Destination,
    terms: &Terms,
    request: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Dialled<Metered<TcpStream>>, DialError> {
    sandbox.budget().host(to.host())?;
    let addresses = addresses(sandbox, to.host()).await?;
    let (mut checked, mut refused) = (vec![], None);
    for ip in addresses {
        match judge_address(sandbox, to, terms, ip) {
            Ok(address) => checked.push(address),
            Err(why) => refused = refused.or(Some(DialError::Address(ip, why))),
        }
    }
    let opened = sandbox.open().await?;
    let mut last = refused.unwrap_or_else(|| DialError::Unreachable(io::ErrorKind::NotFound.into()));
    for address in checked.into_iter().take(TRIED) {
        let allowed = allowed(to, address.ip(), request.cloned());
        sandbox.record(allowed).await.map_err(|_| DialError::NotRecorded)?;
        match connect(sandbox, address, to.port()).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(DialError::Unreachable)?;
                return Ok(Dialled { stream: Metered::new(stream, opened), ip: address.ip() });
            }
            Err(error) => last = DialError::Unreachable(error),
        }
    }
    Err(last)
}

/// What is written down of something that goes to an address.
pub(crate) fn allowed(to: &Destination, ip: IpAddr, request: Option<(Vec<u8>, Vec<u8>)>) -> Allowed {
    Allowed { door: to.door(), host: to.host().to_string(), port: to.port(), ip, request }
}

async fn addresses(sandbox: &Sandbox, host: &Host) -> Result<Vec<IpAddr>, DialError> {
    match host {
        Host::Address(ip) => Ok(vec![*ip]),
        Host::Name(name) if name.as_str() == OWN_HOST => {
            Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
        }
        Host::Name(name) => sandbox.outside().resolver.addresses(name).await.map_err(DialError::Unreachable),
    }
}

/// Connects to a checked address: by itself, or through the operator's proxy, which is told the address too. It
/// is the operator's, so it may be anywhere. This machine's own services aren't behind it.
async fn connect(sandbox: &Sandbox, address: CheckedAddress, port: u16) -> io::Result<TcpStream> {
    let to = SocketAddr::from((address.ip(), port));
    match &sandbox.outside().upstream_proxy {
        Some(proxy) if !to.ip().is_loopback() => timeout(CONNECT, through_proxy(sandbox, proxy, to)).await?,
        _ => timeout(CONNECT, TcpStream::connect(to)).await?,
    }
}

/// RFC 9110, section 9.3.6.
async fn through_proxy(sandbox: &Sandbox, proxy: &Authority, to: SocketAddr) -> io::Result<TcpStream> {
    let ip = match proxy.host() {
        Host::Address(ip) => *ip,
        Host::Name(name) => {
            let addresses = sandbox.outside().resolver.addresses(name).await?;
            *addresses.first().ok_or(io::ErrorKind::NotFound)?
        }
    };
    let mut stream = TcpStream::connect((ip, proxy.port())).await?;
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = vec![];
    while !answer.ends_with(b"\r\n\r\n") {
        // Byte by byte: what follows the head is the connection's.
        answer.push(stream.read_u8().await?);
        if answer.len() > PROXY_HEAD_BYTES {
            return Err(io::Error::other("the upstream proxy's answer is too long"));
        }
    }
    match answer.split(|byte| *byte == b' ').nth(1) {
        Some([b'2', _, _]) => Ok(stream),
        _ => Err(io::Error::other("the upstream proxy refuses")),
    }
}

/// Begins TLS with a host, which has to prove that it is the one that was permitted.
///
/// # Errors
///
/// [`DialError`].
pub(crate) async fn begin_tls(
    stream: Metered<TcpStream>,
    host: &Host,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<BufReader<Metered<TcpStream>>>, DialError> {
    let name = match host {
        Host::Address(ip) => ServerName::from(*ip),
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
            .map_err(|error| DialError::Tls(io::Error::other(error)))?,
    };
    let stream = BufReader::with_capacity(READ_AHEAD, stream);
    let handshake = TlsConnector::from(config.clone()).connect(name, stream);
    match timeout(CONNECT, handshake).await {
        Ok(result) => {
            result.map_err(|error| exhausted(&error).map_or(DialError::Tls(error), DialError::Exhausted))
        }
        Err(_) => Err(DialError::Tls(io::ErrorKind::TimedOut.into())),
    }
}

/// The budget that ended a connection, if one did.
pub(crate) fn exhausted(error: &(dyn std::error::Error + 'static)) -> Option<Exhausted> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref::<Exhausted>()) {
            return Some(*found);
        }
        next = error.source();
    }
    None
}
