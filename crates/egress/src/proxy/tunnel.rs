//! Bytes that nobody opens, both ways.

use std::net::IpAddr;
use std::sync::Arc;

use cofferdam_core::egress::{ConnectPermit, Denial, DenialCode, TunnelPermit};
use tokio::io::copy_bidirectional_with_sizes;

use super::dial::{DialError, Dialled, begin_tls, dial, exhausted};
use super::sandbox::Sandbox;
use super::stream::Stream;
use crate::control::Report;

/// Room for what waits to be sent on, in bytes: outwards, where there is less, and inwards.
const OUT_BYTES: usize = 16 << 10;
const IN_BYTES: usize = 64 << 10;

/// Opens a tunnel for a connection that may be, and copies until both sides are done. `server_name` is that of the
/// handshake that the stream begins with, where it is TLS.
pub(crate) async fn serve(
    sandbox: &Arc<Sandbox>,
    permit: &ConnectPermit,
    server_name: Option<&[u8]>,
    stream: Stream,
) {
    let opened = open(sandbox, permit, server_name, false).await;
    serve_opened(sandbox, permit, opened, stream).await;
}

/// The same, where we speak TLS with the server, which has to prove its name: the stream is what is inside.
pub(crate) async fn serve_in_tls(
    sandbox: &Arc<Sandbox>,
    permit: &ConnectPermit,
    server_name: &[u8],
    stream: Stream,
) {
    let opened = open(sandbox, permit, Some(server_name), true).await;
    serve_opened(sandbox, permit, opened, stream).await;
}

async fn serve_opened(
    sandbox: &Arc<Sandbox>,
    permit: &ConnectPermit,
    opened: Result<(TunnelPermit, Stream), Refused>,
    stream: Stream,
) {
    match opened {
        Ok((tunnel, outwards)) => copy(sandbox, &tunnel, stream, outwards).await,
        Err(Refused { denial, ip }) => {
            let door = Some(permit.to().door());
            sandbox.tell(Report::Denied { denial: *denial, door, ip }).await;
        }
    }
}

/// Why there is no tunnel, and the address that it would have led to.
struct Refused {
    denial: Box<Denial>,
    ip: Option<IpAddr>,
}

async fn open(
    sandbox: &Arc<Sandbox>,
    permit: &ConnectPermit,
    server_name: Option<&[u8]>,
    is_ours_to_encrypt: bool,
) -> Result<(TunnelPermit, Stream), Refused> {
    let refused = |denial, ip| Refused { denial: Box::new(denial), ip };
    let tunnel = sandbox.rules().tunnel(permit, server_name).map_err(|denial| refused(denial, None))?;
    let failed = |error: DialError, ip| refused(denial(&tunnel, &error), ip);
    let dialled = dial(sandbox, tunnel.to(), tunnel.terms(), None).await;
    let Dialled { stream, ip } = dialled.map_err(|error| match error {
        DialError::Address(ip, _) => failed(error, Some(ip)),
        _ => failed(error, None),
    })?;
    let stream: Stream = if is_ours_to_encrypt {
        let config = &sandbox.outside().tls_opaque;
        let begun = begin_tls(stream, tunnel.to().host(), config).await;
        Box::new(begun.map_err(|error| failed(error, Some(ip)))?)
    } else {
        Box::new(stream)
    };
    Ok((tunnel, stream))
}

fn denial(tunnel: &TunnelPermit, error: &DialError) -> Denial {
    match error {
        DialError::Address(_, why) => tunnel.address_denied(*why),
        DialError::Exhausted(why) => why.denial(tunnel.denial(DenialCode::LimitExceeded)),
        DialError::NotRecorded => tunnel.denial(DenialCode::TaskEnded),
        DialError::Tls(_) => tunnel.denial(DenialCode::UpstreamTls),
        DialError::Broker(code) => tunnel.denial(*code),
        DialError::OtherProtocol | DialError::Unreachable(_) => {
            tunnel.denial(DenialCode::UpstreamUnreachable)
        }
    }
}

async fn copy(sandbox: &Sandbox, tunnel: &TunnelPermit, mut stream: Stream, mut outwards: Stream) {
    let copied = copy_bidirectional_with_sizes(&mut stream, &mut outwards, OUT_BYTES, IN_BYTES).await;
    if let Err(error) = copied
        && let Some(why) = exhausted(&error)
    {
        let denial = why.denial(tunnel.denial(DenialCode::LimitExceeded));
        sandbox.deny(&denial, tunnel.to().door()).await;
    }
}
