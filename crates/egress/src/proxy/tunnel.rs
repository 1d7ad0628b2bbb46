//! Bytes that nobody opens, both ways.

use std::net::IpAddr;
use std::sync::Arc;

use cofferdam_core::egress::{ConnectPermit, Denial, DenialCode, TunnelPermit};
use tokio::io::copy_bidirectional_with_sizes;

use super::dial::{DialError, Dialled, dial, exhausted};
use super::sandbox::Sandbox;
use super::stream::{Metered, Stream};
use crate::control::{Allowed, Report};

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
    let door = permit.to().door();
    match open(sandbox, permit, server_name).await {
        Ok((tunnel, outwards)) => copy(sandbox, &tunnel, stream, outwards).await,
        Err(Refused { denial, ip }) => {
            sandbox.tell(Report::Denied { denial: *denial, door: Some(door), ip }).await;
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
) -> Result<(TunnelPermit, Metered), Refused> {
    let refused = |denial, ip| Refused { denial: Box::new(denial), ip };
    let tunnel = sandbox.rules().tunnel(permit, server_name).map_err(|denial| refused(denial, None))?;
    let Dialled { stream, ip } =
        dial(sandbox, tunnel.to(), tunnel.terms()).await.map_err(|error| match error {
            DialError::Address(ip, why) => refused(tunnel.address_denied(why), Some(ip)),
            DialError::Exhausted(why) => refused(why.denial(tunnel.denial(DenialCode::LimitExceeded)), None),
            DialError::Unreachable(_) | DialError::Tls(_) => {
                refused(tunnel.denial(DenialCode::UpstreamUnreachable), None)
            }
        })?;
    let to = tunnel.to();
    let allowed =
        Allowed { door: to.door(), host: to.host().to_string(), port: to.port(), ip, request: None };
    match sandbox.record(allowed).await {
        Ok(()) => Ok((tunnel, stream)),
        Err(_) => Err(refused(tunnel.denial(DenialCode::TaskEnded), Some(ip))),
    }
}

async fn copy(sandbox: &Sandbox, tunnel: &TunnelPermit, mut stream: Stream, mut outwards: Metered) {
    let copied = copy_bidirectional_with_sizes(&mut stream, &mut outwards, OUT_BYTES, IN_BYTES).await;
    if let Err(error) = copied
        && let Some(why) = exhausted(&error)
    {
        let denial = why.denial(tunnel.denial(DenialCode::LimitExceeded));
        sandbox.deny(&denial, tunnel.to().door()).await;
    }
}
