//! A conversation in HTTP with a program inside: each of its requests is judged, and answered by its origin or by
//! its refusal.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_core::egress::{
    Authority, ConnectPermit, Denial, DenialCode, Door, RequestHead, RequestPermit,
};
use cofferdam_core::policy::Protocol;
use http_body_util::Either;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;

use super::BODY_BYTES;
use super::astray;
use super::framing::HEAD_BYTES;
use super::guard::{Gate, Guard, REFUSED};
use super::headers::asks_to_upgrade;
use super::problem::{self, Body, Form, Held};
use crate::proxy::connection::{self, Meant};
use crate::proxy::sandbox::{Sandbox, Within};
use crate::proxy::stream::Stream;
use crate::proxy::upstream;

/// Requests at once on one connection: what RFC 9113, section 6.5.2, has as the least that is sensible.
const STREAMS: u32 = 100;

/// What waits for a program that doesn't read, for each of its requests on a connection of HTTP/2.
const STREAM_BYTES: usize = 64 << 10;

/// What is known of a conversation's requests before they come.
pub(crate) enum Verdict {
    /// They go to one host, as far as they are allowed.
    Permitted(ConnectPermit),
    /// None of them goes anywhere.
    Denied(Denial),
    /// Each says where it goes: we are asked as a proxy.
    Open,
}

/// The version that a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

/// A conversation.
pub(crate) struct Conversation {
    sandbox: Arc<Sandbox>,
    door: Door,
    verdict: Verdict,
    server_name: Option<Vec<u8>>,
    gate: Arc<Gate>,
    told: Told,
}

/// Whether a program was told of a refusal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Arc<AtomicBool>);

impl Told {
    /// Notes that it is told; says whether it was before.
    pub(crate) fn tell(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }
}

impl Conversation {
    pub(crate) fn new(sandbox: &Arc<Sandbox>, door: Door, verdict: Verdict) -> Self {
        let (sandbox, gate) = (sandbox.clone(), Arc::default());
        Conversation { sandbox, door, verdict, server_name: None, gate, told: Told::default() }
    }

    pub(crate) fn with_server_name(self, server_name: Option<Vec<u8>>) -> Self {
        Conversation { server_name, ..self }
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    pub(crate) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Answers requests until there are no more. What goes wrong on the way ends the connection, and who is at its
    /// other end sees that.
    pub(crate) async fn serve(self, speaks: Speaks, stream: Stream) {
        let sandbox = self.sandbox.clone();
        let gate = self.gate.clone();
        let this = Arc::new(self);
        let service = service_fn(move |request| this.clone().answer(request));
        match speaks {
            Speaks::Http1 => {
                let io = TokioIo::new(Guard::new(stream, gate));
                let mut builder = http1::Builder::new();
                // Who has said everything may still hear the answer.
                builder.half_close(true);
                builder.max_buf_size(BODY_BYTES);
                builder.preserve_header_case(true).auto_date_header(false).header_read_timeout(None);
                let _ = builder.serve_connection(io, service).with_upgrades().await;
            }
            Speaks::Http2 => {
                let mut builder = http2::Builder::new(Within(sandbox));
                builder.max_concurrent_streams(STREAMS).auto_date_header(false);
                builder.max_header_list_size(HEAD_BYTES as u32);
                builder.max_send_buf_size(STREAM_BYTES);
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let is_http1 = request.version() < Version::HTTP_2;
        let has_body = !request.body().is_end_stream();
        let form = Form::of(request.uri());
        let response = match self.judge(&request) {
            Ok(Judged::Connect(authority)) => self.connect(request, &authority).await,
            Ok(Judged::Request(permit)) => self.forward(request, *permit).await,
            Err(denial) => Err(denial),
        };
        let is_switched = matches!(&response, Ok(response) if is_switching(response));
        self.gate.release(is_switched);
        Ok(match response {
            Ok(response) => response,
            Err(denial) => {
                self.told.tell();
                self.sandbox.deny(&denial, self.door).await;
                // What is left of the body would stand where the next request is expected.
                problem::answer(
                    &denial,
                    self.sandbox.run(),
                    form,
                    is_http1 && (has_body || self.gate.refused().is_some()),
                )
            }
        })
    }

    fn judge(&self, request: &Request<Incoming>) -> Result<Judged, Box<Denial>> {
        let path = path(request);
        let with_request =
            |denial: Denial| Box::new(denial.with_request(request.method().as_str().as_bytes(), path));
        if request.method().as_str() == REFUSED && self.gate.refused().is_some() {
            return Err(Box::new(self.malformed()));
        }
        let permit = match &self.verdict {
            Verdict::Denied(denial) => return Err(with_request(denial.clone())),
            Verdict::Permitted(permit) => permit.clone(),
            Verdict::Open if request.method() == Method::CONNECT => {
                let authority = self.authority(request).map_err(with_request)?;
                return Ok(Judged::Connect(authority));
            }
            Verdict::Open => self.destination(request).map_err(with_request)?,
        };
        if request.method() == Method::CONNECT {
            return Err(with_request(permit.denial(DenialCode::InvalidAuthority)));
        }
        if !is_one_length(request) {
            return Err(with_request(permit.denial(DenialCode::InvalidAuthority)));
        }
        let head = RequestHead {
            authorities: &authorities(request),
            server_name: self.server_name.as_deref(),
            method: request.method().as_str().as_bytes(),
            path,
        };
        let permit = self.sandbox.rules().request(&permit, &head)?;
        if let Some(denial) = astray::in_head(request, &permit, self.sandbox.rules()) {
            return Err(Box::new(denial));
        }
        let limited =
            |denial: Denial| move |why: cofferdam_core::egress::Exhausted| Box::new(why.denial(denial));
        self.sandbox.budget().request().map_err(limited(permit.denial(DenialCode::LimitExceeded)))?;
        Ok(Judged::Request(Box::new(permit)))
    }

    /// The refusal of what has no one reading.
    fn malformed(&self) -> Denial {
        match &self.verdict {
            Verdict::Permitted(permit) => permit.denial(DenialCode::InvalidAuthority),
            Verdict::Denied(denial) => denial.clone(),
            Verdict::Open => Denial::of_bytes(DenialCode::InvalidAuthority, b""),
        }
    }

    /// The host and port that a `CONNECT` is for: RFC 9110, section 9.3.6.
    fn authority(&self, request: &Request<Incoming>) -> Result<Authority, Denial> {
        let text =
            request.uri().authority().map(|authority| authority.as_str().as_bytes()).unwrap_or_default();
        Authority::parse(text).map_err(|bad| Denial::of_bytes(bad.into(), text))
    }

    /// Where a request in absolute form goes (RFC 9112, section 3.2.2). What it says of TLS has to be what the
    /// rule says.
    fn destination(&self, request: &Request<Incoming>) -> Result<ConnectPermit, Denial> {
        let uri = request.uri();
        let text = uri.authority().map(|authority| authority.as_str().as_bytes()).unwrap_or_default();
        let (protocol, port) = match uri.scheme_str() {
            Some("http") => (Protocol::Http, 80),
            Some("https") => (Protocol::Https, 443),
            _ => return Err(Denial::of_bytes(DenialCode::InvalidAuthority, text)),
        };
        let authority =
            Authority::parse_with_default(text, port).map_err(|bad| Denial::of_bytes(bad.into(), text))?;
        let permit = self.sandbox.rules().connection(Door::Forward, authority.host(), authority.port())?;
        match permit.to().protocol() {
            its if its == protocol => Ok(permit),
            Protocol::Https | Protocol::TlsPassthrough => Err(permit.denial(DenialCode::NoServerName)),
            Protocol::Http | Protocol::Tcp => Err(permit.denial(DenialCode::InvalidAuthority)),
        }
    }

    /// Grants a `CONNECT`, and serves what comes over it as any connection there.
    async fn connect(
        &self,
        mut request: Request<Incoming>,
        authority: &Authority,
    ) -> Result<Response<Body>, Box<Denial>> {
        let (host, port) = (authority.host().clone(), authority.port());
        self.sandbox.rules().connection(Door::Connect, &host, port)?;
        let upgrade = hyper::upgrade::on(&mut request);
        let sandbox = self.sandbox.clone();
        self.sandbox.spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let stream = Box::new(TokioIo::new(upgraded));
                let meant = Meant { door: Door::Connect, host, port, tls: None };
                connection::serve_within(sandbox, stream, meant).await;
            }
        });
        Ok(Response::new(Either::Left(http_body_util::Full::default())))
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        permit: RequestPermit,
    ) -> Result<Response<Body>, Box<Denial>> {
        let upgrades = request.version() == Version::HTTP_11 && asks_to_upgrade(request.headers());
        if upgrades && permit.terms().credential().is_some() {
            // Nobody would see what credentials are in what is spoken then.
            return Err(Box::new(permit.denial(DenialCode::ForeignCredential)));
        }
        let turn = self.sandbox.turn().await;
        let response = upstream::send(&self.sandbox, &permit, request, upgrades).await;
        match response {
            Ok(response) => Ok(response.map(|body| Either::Right(Held { body, _turn: turn }))),
            // It wasn't the origin that failed.
            Err(_) if self.gate.refused().is_some() => {
                Err(Box::new(permit.denial(DenialCode::InvalidAuthority)))
            }
            Err(denial) => Err(denial),
        }
    }
}

/// What is to be done with a request.
enum Judged {
    Connect(Authority),
    Request(Box<RequestPermit>),
}

fn is_switching(response: &Response<Body>) -> bool {
    let is_connected = response.status() == StatusCode::OK && matches!(response.body(), Either::Left(_));
    response.status() == StatusCode::SWITCHING_PROTOCOLS || is_connected
}

/// The path with its query, as it was sent. `*` and the target of a `CONNECT` have none.
fn path(request: &Request<Incoming>) -> &[u8] {
    request.uri().path_and_query().map_or(&b""[..], |path| path.as_str().as_bytes())
}

/// Whether a request says its length at most once and in plain digits, as in HTTP/1.1: so it is written on, where its
/// origin speaks that.
fn is_one_length(request: &Request<Incoming>) -> bool {
    let mut lengths = request.headers().get_all(CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let is_plain = |digits: &[u8]| {
        digits == b"0" || (digits.first() != Some(&b'0') && digits.iter().all(u8::is_ascii_digit))
    };
    match (lengths.next(), lengths.next()) {
        (None, _) => true,
        (Some(one), None) => !one.is_empty() && is_plain(one),
        (Some(_), Some(_)) => false,
    }
}

/// Everything in a request that names a host.
fn authorities(request: &Request<Incoming>) -> Vec<&[u8]> {
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let headers = request.headers().get_all(HOST).into_iter().map(HeaderValue::as_bytes);
    target.into_iter().chain(headers).collect()
}
