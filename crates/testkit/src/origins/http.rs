//! What HTTP answers, by path:
//!
//! | Path | Answer |
//! |---|---|
//! | `/ok` | `ok` |
//! | `/echo` | the body, as it comes |
//! | `/upload` | how many bytes the body had |
//! | `/head` | the request's line and header fields |
//! | `/redirect?to=URL` | 302 to there; `/redirect/308?to=URL` keeps the method |
//! | `/slow?ms=N` | `slow`, after so long |
//! | `/gzip` | a text, compressed |
//! | `/large?bytes=N` | so many bytes |
//! | `/events` | three server-sent events, one after another |
//! | `/trailers` | the body, and trailers as gRPC has them |
//! | `/ws` | a WebSocket that sends back what it gets; 200 without an upgrade |
//!
//! Everything else is answered with where it arrived.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::World;
use super::seen::{self, Entry};
use super::share::{Answered, Asked};

type Body = BoxBody<Bytes, Infallible>;

/// What `/gzip` is when it is unpacked.
pub(super) const TEXT: &str = "a text that is compressed, compressed, compressed\n";

/// Speaks either version of HTTP on a connection until that ends.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    to: SocketAddr,
    tls: bool,
    world: Arc<World>,
) {
    let service = service_fn(move |request| answer(request, to, tls, Arc::clone(&world)));
    let builder = Builder::new(TokioExecutor::new());
    // A client may say what is no HTTP, or go away.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    to: SocketAddr,
    tls: bool,
    world: Arc<World>,
) -> Result<Response<Body>, Infallible> {
    let entry = world.log.request(note(&request, to, tls));
    let path = request.uri().path().to_owned();
    if let Some((share, rest)) = world.shares.at(&path) {
        let asked = asked(request, rest, &entry).await;
        let answered = tokio::task::spawn_blocking(move || share.answer(&asked)).await;
        return Ok(answered.map_or_else(|_| text(""), shared));
    }
    Ok(match path.as_str() {
        "/ok" => text("ok\n"),
        "/echo" => echo(request, entry, false),
        "/events" => events(),
        "/gzip" => gzip(),
        "/head" => text(head(&entry.lock().unwrap().clone())),
        "/large" => large(number(&request, "bytes")),
        "/redirect" => redirect(&request, StatusCode::FOUND),
        "/redirect/308" => redirect(&request, StatusCode::PERMANENT_REDIRECT),
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(number(&request, "ms"))).await;
            text("slow\n")
        }
        "/trailers" => echo(request, entry, true),
        "/upload" => {
            let body = read(request, &entry).await;
            text(format!("{}\n", body.len()))
        }
        "/ws" => web_socket(request),
        _ => {
            read(request, &entry).await;
            let request = entry.lock().unwrap().clone();
            text(format!("reached {} at {}\n", request.host, request.to))
        }
    })
}

/// What is written down of a request.
fn note(request: &Request<Incoming>, to: SocketAddr, tls: bool) -> seen::Request {
    let headers = request.headers().iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let named = request.uri().authority().map(ToString::to_string);
    let host =
        named.or_else(|| headers.iter().find(|(name, _)| name == "host").map(|(_, host)| host.clone()));
    seen::Request {
        to,
        tls,
        version: format!("{:?}", request.version()),
        host: host.unwrap_or_default(),
        method: request.method().to_string(),
        path: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers,
        body_bytes: 0,
    }
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

fn text(text: impl Into<String>) -> Response<Body> {
    Response::new(full(text.into()))
}

fn with_header(mut response: Response<Body>, name: &'static str, value: &str) -> Response<Body> {
    let value = HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static("invalid"));
    response.headers_mut().insert(name, value);
    response
}

/// A number in the query; zero where there is none.
fn number(request: &Request<Incoming>, name: &str) -> u64 {
    let parts = request.uri().query().unwrap_or_default().split('&');
    let mut values = parts.filter_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    values.next().and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn head(request: &seen::Request) -> String {
    let fields = request.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
    format!("{} {} {}\n{}", request.method, request.path, request.version, fields.collect::<String>())
}

fn redirect(request: &Request<Incoming>, status: StatusCode) -> Response<Body> {
    let to = request.uri().query().and_then(|query| query.strip_prefix("to=")).unwrap_or("/ok");
    let mut response = with_header(text("elsewhere\n"), "location", to);
    *response.status_mut() = status;
    response
}

fn gzip() -> Response<Body> {
    let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    packed.write_all(TEXT.as_bytes()).unwrap(); // memory takes everything
    with_header(Response::new(full(packed.finish().unwrap())), "content-encoding", "gzip")
}

/// The whole body, counted as it comes.
async fn read(request: Request<Incoming>, entry: &Entry<seen::Request>) -> Bytes {
    let (mut body, mut whole) = (request.into_body(), vec![]);
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            entry.lock().unwrap().body_bytes += data.len() as u64;
            whole.extend(data);
        }
    }
    whole.into()
}

/// A response whose body somebody writes meanwhile.
fn streamed<F: Future<Output = ()> + Send + 'static>(
    write: impl FnOnce(Sender<Bytes, Infallible>) -> F,
) -> Response<Body> {
    let (sender, body) = Channel::new(4);
    tokio::spawn(write(sender));
    Response::new(body.boxed())
}

fn echo(request: Request<Incoming>, entry: Entry<seen::Request>, trailers: bool) -> Response<Body> {
    let response = streamed(|mut sender| async move {
        let mut body = request.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            entry.lock().unwrap().body_bytes += data.len() as u64;
            if sender.send_data(data).await.is_err() {
                return;
            }
        }
        if trailers {
            let mut fields = HeaderMap::new();
            fields.insert("grpc-status", HeaderValue::from_static("0"));
            let _ = sender.send_trailers(fields).await; // the client may have gone away
        }
    });
    let kind = if trailers { "application/grpc" } else { "application/octet-stream" };
    // Without this, HTTP/1.1 has no trailers.
    let response = if trailers { with_header(response, "trailer", "grpc-status") } else { response };
    with_header(response, "content-type", kind)
}

fn large(bytes: u64) -> Response<Body> {
    let response = streamed(|mut sender| async move {
        let block = Bytes::from(vec![b'x'; 64 << 10]);
        let mut left = bytes;
        while left > 0 {
            let part = block.slice(..block.len().min(left as usize));
            left -= part.len() as u64;
            if sender.send_data(part).await.is_err() {
                return;
            }
        }
    });
    with_header(response, "content-length", &bytes.to_string())
}

fn events() -> Response<Body> {
    let response = streamed(|mut sender| async move {
        for number in 1..=3 {
            if sender.send_data(format!("data: {number}\n\n").into()).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    with_header(response, "content-type", "text/event-stream")
}

fn web_socket(request: Request<Incoming>) -> Response<Body> {
    let Some(key) = request.headers().get("sec-websocket-key") else { return text("no upgrade\n") };
    let accept = derive_accept_key(key.as_bytes());
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        let (mut sink, mut stream) = socket.split();
        while let Some(Ok(message)) = stream.next().await {
            if (message.is_text() || message.is_binary()) && sink.send(message).await.is_err() {
                return;
            }
        }
    });
    let mut response = with_header(text(""), "sec-websocket-accept", &accept);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    response
}

/// A request for a share, whose whole body is waited for.
async fn asked(request: Request<Incoming>, path: String, entry: &Entry<seen::Request>) -> Asked {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let noted = entry.lock().unwrap().clone();
    let known = request.body().is_end_stream();
    let body = if known { Bytes::new() } else { read(request, entry).await };
    Asked { method: noted.method, path, query, headers: noted.headers, body }
}

fn shared(answered: Answered) -> Response<Body> {
    let mut response = Response::new(full(answered.body));
    *response.status_mut() = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in answered.headers {
        let name = hyper::header::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
