//! Origins: servers that count what reaches them, and one that is asked for their names.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_egress::proxy::dns::message::{A, Code, question};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What has a gzip's beginning and no gzip's content: whoever unpacks it breaks it.
pub(crate) const PACKED: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03not really\0\xff";

/// An authority that the proxy is told to trust.
pub(crate) struct Root {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Root {
    pub(crate) fn new() -> Root {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "origins");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Root { issuer: Issuer::new(params, key), pem }
    }

    /// How a server proves that it is a name.
    pub(crate) fn server(&self, name: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = CertificateDer::from(params.signed_by(&key, &self.issuer).unwrap().der().to_vec());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// What reached an origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A thread with a runtime, for as long as the tests run.
fn run(future: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    });
}

fn listen(at: (Ipv4Addr, u16)) -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind(at).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// An origin of HTTP, over TLS where it has a configuration. It notes connections as `connected`.
pub(crate) fn http(at: (Ipv4Addr, u16), tls: Option<Arc<ServerConfig>>) -> Heard {
    let heard = Heard::default();
    let (noting, listener) = (heard.clone(), listen(at));
    run(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            noting.note("connected".to_owned());
            let (noting, tls) = (noting.clone(), tls.clone());
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(request, noting.clone()));
                let Some(tls) = tls else {
                    let builder = hyper::server::conn::http1::Builder::new();
                    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                    return;
                };
                let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let builder = hyper::server::conn::http1::Builder::new();
                    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                }
            });
        }
    });
    heard
}

type Body = BoxBody<Bytes, hyper::Error>;

fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

async fn answer(mut request: Request<Incoming>, heard: Heard) -> Result<Response<Body>, Infallible> {
    let version = request.version();
    let host = request.headers().get("host").map(|host| host.to_str().unwrap().to_owned());
    let authority = request.uri().authority().map(ToString::to_string).or(host).unwrap_or_default();
    let path = request.uri().path().to_owned();
    heard.note(format!(
        "{} {authority}{} {version:?}",
        request.method(),
        request.uri().path_and_query().unwrap()
    ));
    Ok(match path.as_str() {
        "/echo" => {
            let collected = request.into_body().collect().await;
            let Ok(collected) = collected else { return Ok(Response::new(full("broken"))) };
            let trailers = collected.trailers().cloned();
            let bytes = collected.to_bytes();
            heard.note(format!("body {}", bytes.len()));
            let frames =
                [Ok(Frame::data(bytes))].into_iter().chain(trailers.map(|it| Ok(Frame::trailers(it))));
            let stream = futures(frames);
            Response::new(StreamBody::new(stream).boxed())
        }
        "/packed" => Response::builder().header("content-encoding", "gzip").body(full(PACKED)).unwrap(),
        "/trailers" => {
            let mut trailers = hyper::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [Ok(Frame::data(Bytes::from("message"))), Ok(Frame::trailers(trailers))];
            let builder = Response::builder().header("trailer", "grpc-status");
            builder.body(StreamBody::new(futures(frames.into_iter())).boxed()).unwrap()
        }
        "/events" => Response::builder()
            .header("content-type", "text/event-stream")
            .body(StreamBody::new(events()).boxed())
            .unwrap(),
        "/big" => Response::new(full(vec![b'x'; 8 << 20])),
        "/moved" => {
            Response::builder().status(302).header("location", "http://other.test/").body(full("")).unwrap()
        }
        "/socket" if request.headers().contains_key("upgrade") => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    stream.write_all(&buffer[..count]).await.unwrap();
                    stream.flush().await.unwrap();
                }
            });
            let builder = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            builder.header("connection", "upgrade").header("upgrade", "websocket").body(full("")).unwrap()
        }
        _ => Response::new(full("ok\n")),
    })
}

/// A stream of what is there already.
fn futures<T>(items: impl Iterator<Item = T>) -> impl futures_core::Stream<Item = T> {
    Items(items.collect::<Vec<_>>().into_iter(), None)
}

/// Two events, a quarter of a second apart, and then nothing for long.
fn events() -> impl futures_core::Stream<Item = Result<Frame<Bytes>, hyper::Error>> {
    let frames = ["data: 1\n\n", "data: 2\n\n"].map(|text| Ok(Frame::data(Bytes::from(text))));
    Items(Vec::from(frames).into_iter(), Some(Box::pin(tokio::time::sleep(Duration::ZERO))))
}

struct Items<T>(std::vec::IntoIter<T>, Option<std::pin::Pin<Box<tokio::time::Sleep>>>);

impl<T> Unpin for Items<T> {}

impl<T> futures_core::Stream for Items<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        let is_last = self.0.len() == 0;
        if let Some(sleep) = &mut self.1 {
            std::task::ready!(sleep.as_mut().poll(context));
            let pause = Duration::from_millis(if is_last { 60_000 } else { 250 });
            sleep.as_mut().reset(tokio::time::Instant::now() + pause);
        }
        std::task::Poll::Ready(self.0.next())
    }
}

/// An origin of raw bytes: greets first, then echoes.
pub(crate) fn raw(at: (Ipv4Addr, u16)) -> Heard {
    let heard = Heard::default();
    let (noting, listener) = (heard.clone(), listen(at));
    run(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            noting.note("connected".to_owned());
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = write.write_all(b"hello\n").await;
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    heard
}

/// A server of names, which notes what it is asked.
pub(crate) fn names(table: &[(&str, IpAddr)]) -> (SocketAddr, Heard) {
    let table: BTreeMap<String, IpAddr> = table.iter().map(|(name, ip)| ((*name).to_owned(), *ip)).collect();
    let socket = UdpSocket::bind((super::world::address(), 53)).unwrap();
    let (at, heard) = (socket.local_addr().unwrap(), Heard::default());
    let noting = heard.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = question(&buffer[..length]).unwrap().unwrap();
            let name = question.name.clone().unwrap().to_string();
            let ip = table.get(&name).copied().filter(|_| question.kind == A);
            let code = if table.contains_key(&name) { Code::NoError } else { Code::NoSuchName };
            socket.send_to(&question.answer(code, ip, 1), from).unwrap();
            noting.note(name);
        }
    });
    (at, heard)
}
