//! A connection that the proxy dialled and handed over: TLS with the host on its one side, and on the other the requests
//! that the proxy passes on, in the version of HTTP that the host speaks.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_core::egress::{ConnectPermit, DenialCode, Host};
use cofferdam_core::handover::{DENIED, Handover, Taken};
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, IF_RANGE,
    PROXY_AUTHORIZATION, RANGE, SET_COOKIE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Tls;
use super::place::{self, Carries};
use super::scrub::Scrubbed;
use super::stand_in::{Kept, StandIn};

/// How long a host may take to prove its name.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many bytes of a body wait on their way, as in the proxy.
const BODY_BYTES: usize = 256 << 10;

/// What a host may send over HTTP/2 that nobody has read yet, for one request and for all, as in the proxy.
const STREAM_BYTES: u32 = 512 << 10;
const CONNECTION_BYTES: u32 = 1 << 20;

/// The credentials of a run, as a connection of it needs them.
pub(crate) trait Run {
    /// The credential of this name.
    fn stand_in(&self, name: &str) -> Option<Rc<StandIn>>;

    /// Whether a surrogate is one of this run's.
    fn is_ours(&self, surrogate: &str) -> bool;

    /// The secret that one stands for, minted by the first that asks.
    ///
    /// # Errors
    ///
    /// The code by which the request is refused.
    fn secret<'a>(&'a self, stand_in: &'a StandIn) -> Secrets<'a>;

    /// A host sent a secret back.
    fn reflected(&self, name: &str, host: &Host);
}

/// A secret that may have to be minted first.
pub(crate) type Secrets<'a> = std::pin::Pin<Box<dyn Future<Output = Result<&'a Kept, DenialCode>> + 'a>>;

/// By these, some servers take a request for one with another method or path than it was judged by.
const OTHER_THAN_JUDGED: [HeaderName; 5] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// What an answer has for a body.
type Body = Either<Full<Bytes>, Scrubbed>;

/// Who sends requests on.
#[derive(Clone)]
enum Sender {
    Http1(Rc<tokio::sync::Mutex<http1::SendRequest<Incoming>>>),
    Http2(http2::SendRequest<Incoming>),
}

/// A connection that carries one credential to one host.
struct Carrying<R> {
    run: Rc<R>,
    stand_in: Rc<StandIn>,
    permit: ConnectPermit,
    host: Host,
    sender: Sender,
}

/// Serves what is handed over until either end closes it, or the run is over.
pub(crate) async fn serve<R: Run + 'static>(
    run: Rc<R>,
    tls: &Tls,
    handover: Handover,
    (dialled, pair): (OwnedFd, OwnedFd),
    mut over: watch::Receiver<bool>,
) {
    let ended = over.clone();
    let serving = async {
        let pair = std::os::unix::net::UnixStream::from(pair);
        pair.set_nonblocking(true)?;
        let mut pair = UnixStream::from_std(pair)?;
        match begin(&run, tls, &handover, dialled).await {
            Ok((stand_in, permit, stream)) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let taken = if is_http2 { Taken::Http2 } else { Taken::Http1 };
                pair.write_u8(taken.encode()).await?;
                let host = handover.host;
                let carrying = |sender| Carrying { run, stand_in, permit, host, sender };
                match is_http2 {
                    true => over_http2(stream, pair, carrying, ended).await,
                    false => over_http1(stream, pair, carrying).await,
                }
                .map_err(io::Error::other)
            }
            Err(taken) => pair.write_u8(taken.encode()).await,
        }
    };
    tokio::select! {
        biased;
        _ = over.wait_for(|over| *over) => {}
        _ = serving => {} // both ends see that it is over
    }
}

type Begun = (Rc<StandIn>, ConnectPermit, TlsStream<TcpStream>);

/// Judges a handover, and has the host prove its name.
async fn begin<R: Run>(
    run: &Rc<R>,
    tls: &Tls,
    handover: &Handover,
    dialled: OwnedFd,
) -> Result<Begun, Taken> {
    let Handover { credential, host, port, offers_http2 } = handover;
    let stand_in = run.stand_in(credential).ok_or(Taken::Denied(DenialCode::CredentialExpired))?;
    let permit = stand_in.connection(host, *port).map_err(Taken::Denied)?;
    let no_tls = |_| Taken::Denied(DenialCode::UpstreamTls);
    let dialled = std::net::TcpStream::from(dialled);
    dialled.set_nonblocking(true).map_err(no_tls)?;
    let dialled = TcpStream::from_std(dialled).map_err(no_tls)?;
    let stream = handshake(tls.offering(*offers_http2), host, dialled).await.map_err(|error| {
        if is_other_protocol(&error) { Taken::OtherProtocol } else { Taken::Denied(DenialCode::UpstreamTls) }
    })?;
    Ok((stand_in, permit, stream))
}

async fn handshake(
    config: &Arc<ClientConfig>,
    host: &Host,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = match host {
        Host::Address(ip) => ServerName::from(*ip),
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?,
    };
    timeout(HANDSHAKE, TlsConnector::from(config.clone()).connect(name, stream)).await?
}

/// Whether a host speaks none of the protocols that were offered: RFC 7301, section 3.2.
fn is_other_protocol(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let said = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    inner.is_some_and(|error| *error == said || *error == rustls::Error::NoApplicationProtocol)
}

async fn over_http1<R: Run + 'static>(
    stream: TlsStream<TcpStream>,
    pair: UnixStream,
    carrying: impl FnOnce(Sender) -> Carrying<R>,
) -> hyper::Result<()> {
    let mut builder = http1::Builder::new();
    builder.preserve_header_case(true).max_buf_size(BODY_BYTES);
    let (sender, outwards) = builder.handshake(TokioIo::new(stream)).await?;
    let carrying = Rc::new(carrying(Sender::Http1(Rc::new(tokio::sync::Mutex::new(sender)))));
    let service = service_fn(move |request| carrying.clone().answer(request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.preserve_header_case(true).auto_date_header(false).header_read_timeout(None).half_close(true);
    builder.max_buf_size(BODY_BYTES);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(pair), service));
    tokio::select! {
        served = serving.as_mut() => return served,
        _ = outwards => serving.as_mut().graceful_shutdown(), // an answer may still be on its way
    }
    serving.await
}

async fn over_http2<R: Run + 'static>(
    stream: TlsStream<TcpStream>,
    pair: UnixStream,
    carrying: impl FnOnce(Sender) -> Carrying<R>,
    over: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let within = Within(over);
    let mut builder = http2::Builder::new(within.clone());
    builder.initial_stream_window_size(STREAM_BYTES).initial_connection_window_size(CONNECTION_BYTES);
    let (sender, outwards) = builder.handshake(TokioIo::new(stream)).await?;
    let carrying = Rc::new(carrying(Sender::Http2(sender)));
    let service = service_fn(move |request| carrying.clone().answer(request));
    let mut builder = hyper::server::conn::http2::Builder::new(within);
    builder.auto_date_header(false);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(pair), service));
    tokio::select! {
        served = serving.as_mut() => return served,
        _ = outwards => serving.as_mut().graceful_shutdown(),
    }
    serving.await
}

/// Runs a library's tasks on this thread, until the run is over.
#[derive(Clone)]
struct Within(watch::Receiver<bool>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Within {
    fn execute(&self, future: F) {
        let mut over = self.0.clone();
        tokio::task::spawn_local(async move {
            tokio::select! {
                biased;
                _ = over.wait_for(|over| *over) => {}
                _ = future => {}
            }
        });
    }
}

impl<R: Run + 'static> Carrying<R> {
    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        Ok(match self.forward(request).await {
            Ok(response) => response,
            Err(code) => refusal(code),
        })
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Body>, DenialCode> {
        let is_ours = |surrogate: &str| self.run.is_ours(surrogate);
        let carries = self.stand_in.request(&self.permit, &request, is_ours)?;
        if !ends_in_one_way(request.headers()) {
            return Err(DenialCode::InvalidAuthority);
        }
        about_this_connection(request.headers_mut());
        request.headers_mut().remove(PROXY_AUTHORIZATION);
        for name in OTHER_THAN_JUDGED {
            request.headers_mut().remove(name);
        }
        let kept = match carries {
            Carries::Nothing => None,
            Carries::Surrogate => Some(self.swap(request.headers_mut()).await?),
        };
        self.address(&mut request);
        let response = self.send(request).await.map_err(|_| DenialCode::UpstreamUnreachable)?;
        Ok(self.scrubbed(response, kept))
    }

    /// Puts the secret in its place.
    async fn swap(&self, headers: &mut HeaderMap) -> Result<&Kept, DenialCode> {
        let kept = self.run.secret(&self.stand_in).await?;
        self.stand_in.use_once()?; // now: others may have waited for the same secret
        let name = place::header(&self.stand_in.place);
        let value = headers
            .get(&name)
            .and_then(|before| place::with_secret(&self.stand_in.place, before, &kept.secret));
        headers.insert(name, value.ok_or(DenialCode::CredentialWrongPlace)?);
        // What is compressed couldn't be scrubbed.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // Nor what comes in pieces of the program's choice.
        headers.remove(RANGE);
        headers.remove(IF_RANGE);
        Ok(kept)
    }

    /// In HTTP/1, a target is a path, and a body whose length isn't said comes in chunks.
    fn address(&self, request: &mut Request<Incoming>) {
        if let Sender::Http2(_) = self.sender {
            return;
        }
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        if let Ok(path) = path.parse() {
            *request.uri_mut() = path;
        }
        if !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH) {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }

    async fn send(&self, request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
        match self.sender.clone() {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(mut sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// An answer without the secret, and without what a program could keep instead of it.
    fn scrubbed(&self, mut response: Response<Incoming>, kept: Option<&Kept>) -> Response<Body> {
        let headers = response.headers_mut();
        about_this_connection(headers);
        headers.remove(DENIED);
        headers.remove(SET_COOKIE);
        response.extensions_mut().remove::<ReasonPhrase>();
        let headers = response.headers_mut();
        let Some(kept) = kept else { return response.map(|body| Either::Right(Scrubbed::as_it_is(body))) };
        if kept.forms.mask_headers(headers) {
            self.run.reflected(&self.stand_in.name, &self.host);
        }
        let (run, stand_in, host) = (self.run.clone(), self.stand_in.clone(), self.host.clone());
        let reflected = move || run.reflected(&stand_in.name, &host);
        response.map(|body| Either::Right(Scrubbed::new(body, kept.forms.clone(), reflected)))
    }
}

/// Takes off what was about one connection: RFC 9110, section 7.6.1. What the proxy passes on has none of it.
fn about_this_connection(headers: &mut HeaderMap) {
    const ITS: [HeaderName; 5] = [
        CONNECTION,
        UPGRADE,
        TRANSFER_ENCODING,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in ITS {
        headers.remove(name);
    }
}

/// Whether a request says at most once where it ends: the proxy passes on no other, and a host might read it in two ways.
fn ends_in_one_way(headers: &HeaderMap) -> bool {
    let count = |name: HeaderName| headers.get_all(name).iter().count();
    count(CONTENT_LENGTH) + count(TRANSFER_ENCODING) <= 1
}

/// A refusal, for the proxy: it says the rest.
fn refusal(code: DenialCode) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.headers_mut().insert(DENIED, HeaderValue::from_static(code.code()));
    response
}
