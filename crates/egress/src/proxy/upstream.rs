//! Sends permitted requests to their origins, over connections that are kept.
//!
//! An origin is spoken to in the version that the program speaks, as without us; in HTTP/2 to a program's HTTP/1.1 if it
//! speaks nothing else.
//!
//! Order: the address is judged; the host wrote down that the request goes there; it is dialled and has proved its
//! name; then the request goes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_core::egress::{Denial, DenialCode, Destination, RequestPermit};
use cofferdam_core::handover;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::Instant;

use super::dial::{DialError, Dialled, allowed, begin_tls, dial, judge_address};
use super::http::BODY_BYTES;
use super::http::astray::{Found, Watched};
use super::http::headers::{authority, join_cookies, take_off};
use super::sandbox::{Sandbox, Within};
use super::stream::{EndedBy, Stream};

/// How long a connection is kept that nobody uses: less than most origins keep theirs.
const IDLE: Duration = Duration::from_secs(30);

/// How many idle ones are kept for one origin, and for all.
const IDLE_EACH: usize = 8;
const IDLE_ALL: usize = 64;

/// What an origin may send over HTTP/2 that a program hasn't read, for one request and for all on its connection: enough
/// for 10 MB a second at a distance of 50 ms.
const STREAM_BYTES: u32 = 512 << 10;
const CONNECTION_BYTES: u32 = 1 << 20;

/// How often a request is tried that no origin has seen: a kept connection may have been closed meanwhile.
const TRIES: usize = 3;

/// What a connection takes requests with.
enum Sender {
    Http1(http1::SendRequest<Watched>),
    Http2(http2::SendRequest<Watched>),
}

/// A connection to an origin.
struct Upstream {
    sender: Sender,
    ip: IpAddr,
    ended_by: EndedBy,
}

/// Which connections can serve a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    host: cofferdam_core::egress::Host,
    port: u16,
    has_tls: bool,
    /// What its requests carry, if the broker has it.
    credential: Option<String>,
    /// Whether the program speaks HTTP/2.
    is_http2: bool,
}

/// Connections that are kept.
#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<Key, Vec<(Instant, Upstream)>>>);

impl Pool {
    /// Closes those that nobody uses.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Vec<(Instant, Upstream)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is usable; of HTTP/2, another handle to it.
    fn take(&self, key: &Key, is_judged: impl Fn(IpAddr) -> bool) -> Option<Upstream> {
        let mut idle = self.lock();
        let kept = idle.get_mut(key)?;
        let now = Instant::now();
        while let Some((since, upstream)) = kept.pop() {
            let is_usable = now - since < IDLE && upstream.is_usable() && is_judged(upstream.ip);
            if !is_usable {
                continue;
            }
            if let Sender::Http2(sender) = &upstream.sender {
                let sender = Sender::Http2(sender.clone());
                kept.push((now, Upstream { sender, ip: upstream.ip, ended_by: upstream.ended_by.clone() }));
            }
            return Some(upstream);
        }
        None
    }

    fn keep(&self, key: Key, upstream: Upstream) {
        let mut idle = self.lock();
        if idle.values().map(Vec::len).sum::<usize>() >= IDLE_ALL {
            idle.clear();
        }
        let kept = idle.entry(key).or_default();
        if kept.len() < IDLE_EACH {
            kept.push((Instant::now(), upstream));
        }
    }
}

impl Upstream {
    fn is_usable(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }
}

/// Sends a request and gives what its origin answers. `upgrades` is whether it asks to speak something else: then
/// it has a connection to itself, whose bytes are copied both ways once that is granted.
///
/// # Errors
///
/// The refusal that whoever sent it is told.
pub(crate) async fn send(
    sandbox: &Arc<Sandbox>,
    permit: &RequestPermit,
    mut request: Request<Incoming>,
    upgrades: bool,
) -> Result<Response<Incoming>, Box<Denial>> {
    let to = permit.to();
    let has_tls = to.protocol().has_tls();
    let is_http2 = request.version() == Version::HTTP_2;
    let credential = permit.terms().credential().map(str::to_owned);
    let key = Key { host: to.host().clone(), port: to.port(), has_tls, credential, is_http2 };
    let by_client = upgrades.then(|| hyper::upgrade::on(&mut request));
    let trace = (request.method().as_str().as_bytes().to_vec(), plain_path(&request));
    prepare(&mut request, to, upgrades);
    let (mut request, found) = watched(request, sandbox, permit);
    for _ in 0..TRIES {
        let kept = if upgrades { None } else { take(sandbox, permit, &key) };
        let mut upstream = match kept {
            Some(upstream) => {
                record(sandbox, permit, upstream.ip, trace.clone()).await?;
                upstream
            }
            None => {
                let mut opened = open(sandbox, permit, &key, key.is_http2, &trace).await;
                if matches!(&opened, Err(error) if error.is_other_protocol()) && !key.is_http2 && !upgrades {
                    opened = open(sandbox, permit, &key, true, &trace).await;
                }
                opened.map_err(|error| refusal(permit, &error))?
            }
        };
        address(&mut request, to, &upstream.sender);
        match upstream.try_send(request).await {
            Ok(response) => {
                found.is_answered();
                if let Some(denial) = by_broker(permit, &response) {
                    return Err(denial);
                }
                return Ok(answered(sandbox, key, upstream, response, by_client));
            }
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => {
                    let found = found.take().map(Box::new);
                    return Err(found.unwrap_or_else(|| failed(permit, &upstream.ended_by)));
                }
            },
        }
    }
    Err(Box::new(permit.denial(DenialCode::UpstreamUnreachable)))
}

/// A request whose body is watched.
fn watched(
    request: Request<Incoming>,
    sandbox: &Arc<Sandbox>,
    permit: &RequestPermit,
) -> (Request<Watched>, Arc<Found>) {
    let (head, body) = request.into_parts();
    let (body, found) = Watched::new(body, sandbox, permit);
    (Request::from_parts(head, body), found)
}

/// The broker's refusal, if an answer is one.
fn by_broker(permit: &RequestPermit, response: &Response<Incoming>) -> Option<Box<Denial>> {
    permit.terms().credential()?;
    let code = response.headers().get(handover::DENIED)?.to_str().ok()?;
    Some(Box::new(permit.denial(DenialCode::of_code(code).unwrap_or(DenialCode::CredentialExpired))))
}

fn take(sandbox: &Sandbox, permit: &RequestPermit, key: &Key) -> Option<Upstream> {
    let is_judged = |ip| judge_address(sandbox, permit.to(), permit.terms(), ip).is_ok();
    sandbox.pool().take(key, is_judged)
}

async fn record(
    sandbox: &Sandbox,
    permit: &RequestPermit,
    ip: IpAddr,
    request: (Vec<u8>, Vec<u8>),
) -> Result<(), Box<Denial>> {
    let recorded = sandbox.record(allowed(permit.to(), ip, Some(request))).await;
    recorded.map_err(|_| Box::new(permit.denial(DenialCode::TaskEnded)))
}

/// Opens a connection to an origin and speaks what it speaks: HTTP/1.1, and HTTP/2 where that may be.
async fn open(
    sandbox: &Arc<Sandbox>,
    permit: &RequestPermit,
    key: &Key,
    may_be_http2: bool,
    request: &(Vec<u8>, Vec<u8>),
) -> Result<Upstream, DialError> {
    let to = permit.to();
    let Dialled { stream, ip } = dial(sandbox, to, permit.terms(), Some(request)).await?;
    let ended_by = stream.ended_by();
    let (stream, is_http2): (Stream, bool) = if let Some(credential) = &key.credential {
        let broker = sandbox.broker().ok_or(DialError::Broker(DenialCode::CredentialExpired))?;
        let (stream, is_http2) = broker.hand_over(stream, to, credential, may_be_http2).await?;
        (Box::new(stream), is_http2)
    } else if key.has_tls {
        let outside = sandbox.outside();
        let config = if may_be_http2 { &outside.tls } else { &outside.tls_http1 };
        let stream = begin_tls(stream, to.host(), config).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        (Box::new(stream), is_http2)
    } else {
        (Box::new(stream), key.is_http2)
    };
    let sender = handshake(sandbox, stream, is_http2).await;
    let sender = sender.map_err(|error| DialError::Unreachable(std::io::Error::other(error)))?;
    let upstream = Upstream { sender, ip, ended_by };
    if let Sender::Http2(sender) = &upstream.sender {
        let sender = Sender::Http2(sender.clone());
        sandbox.pool().keep(key.clone(), Upstream { sender, ip, ended_by: upstream.ended_by.clone() });
    }
    Ok(upstream)
}

async fn handshake(sandbox: &Arc<Sandbox>, stream: Stream, is_http2: bool) -> hyper::Result<Sender> {
    let io = TokioIo::new(stream);
    if is_http2 {
        let mut builder = http2::Builder::new(Within(sandbox.clone()));
        builder.initial_stream_window_size(STREAM_BYTES).initial_connection_window_size(CONNECTION_BYTES);
        let (sender, connection) = builder.handshake(io).await?;
        sandbox.spawn(async move {
            let _ = connection.await; // who sends over it hears of it
        });
        return Ok(Sender::Http2(sender));
    }
    let mut builder = http1::Builder::new();
    builder.preserve_header_case(true).max_buf_size(BODY_BYTES);
    let (sender, connection) = builder.handshake(io).await?;
    sandbox.spawn(async move {
        let _ = connection.with_upgrades().await; // as above
    });
    Ok(Sender::Http1(sender))
}

impl Upstream {
    async fn try_send(
        &mut self,
        request: Request<Watched>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Watched>>> {
        match &mut self.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        }
    }
}

/// Takes care of what comes after the head of an answer.
fn answered(
    sandbox: &Arc<Sandbox>,
    key: Key,
    upstream: Upstream,
    mut response: Response<Incoming>,
    by_client: Option<hyper::upgrade::OnUpgrade>,
) -> Response<Incoming> {
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let Some(by_client) = by_client.filter(|_| switches) {
        let by_origin = hyper::upgrade::on(&mut response);
        sandbox.spawn(async move {
            if let (Ok(client), Ok(origin)) = tokio::join!(by_client, by_origin) {
                let (mut client, mut origin) = (TokioIo::new(client), TokioIo::new(origin));
                let _ = copy_bidirectional(&mut client, &mut origin).await; // both ends see that it is over
            }
        });
    } else if let Sender::Http1(mut sender) = upstream.sender {
        let (within, ip, ended_by) = (sandbox.clone(), upstream.ip, upstream.ended_by);
        sandbox.spawn(async move {
            if sender.ready().await.is_ok() {
                within.pool().keep(key, Upstream { sender: Sender::Http1(sender), ip, ended_by });
            }
        });
    }
    take_off(response.headers_mut(), switches);
    *response.version_mut() = Version::HTTP_11;
    response
}

/// Takes off what was about the connection inside.
fn prepare(request: &mut Request<Incoming>, to: &Destination, upgrades: bool) {
    take_off(request.headers_mut(), upgrades);
    request.headers_mut().remove(hyper::header::PROXY_AUTHORIZATION);
    name_host(request.headers_mut(), to);
}

/// Names the host that was judged. Where there is a name, it stays in its place.
fn name_host(headers: &mut HeaderMap, to: &Destination) {
    if let Ok(host) = HeaderValue::from_str(&authority(to)) {
        headers.insert(HOST, host);
    }
}

/// Says where a request goes in the form of the version that is spoken: the host that was judged, in one spelling.
fn address(request: &mut Request<Watched>, to: &Destination, sender: &Sender) {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let uri: Result<Uri, _> = match sender {
        Sender::Http1(_) => {
            *request.version_mut() = Version::HTTP_11;
            join_cookies(request.headers_mut());
            name_host(request.headers_mut(), to);
            // Otherwise the library takes some methods for such without a body.
            if !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH) {
                request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            path.parse()
        }
        Sender::Http2(_) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            request.headers_mut().remove(TRANSFER_ENCODING);
            let scheme = if to.protocol().has_tls() { "https" } else { "http" };
            Uri::builder()
                .scheme(scheme)
                .authority(authority(to))
                .path_and_query(path)
                .build()
                .map_err(|_| ())
                .or_else(|()| "/".parse())
        }
    };
    if let Ok(uri) = uri {
        *request.uri_mut() = uri;
    }
}

fn plain_path(request: &Request<Incoming>) -> Vec<u8> {
    request.uri().path().as_bytes().to_vec()
}

fn refusal(permit: &RequestPermit, error: &DialError) -> Box<Denial> {
    Box::new(match error {
        DialError::Address(_, why) => permit.address_denied(*why),
        DialError::Exhausted(why) => why.denial(permit.denial(DenialCode::LimitExceeded)),
        DialError::NotRecorded => permit.denial(DenialCode::TaskEnded),
        DialError::Tls(_) => permit.denial(DenialCode::UpstreamTls),
        DialError::Broker(code) => permit.denial(*code),
        DialError::OtherProtocol | DialError::Unreachable(_) => {
            permit.denial(DenialCode::UpstreamUnreachable)
        }
    })
}

fn failed(permit: &RequestPermit, ended_by: &EndedBy) -> Box<Denial> {
    Box::new(match ended_by.get() {
        Some(why) => why.denial(permit.denial(DenialCode::LimitExceeded)),
        None => permit.denial(DenialCode::UpstreamUnreachable),
    })
}
