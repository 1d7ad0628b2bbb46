//! Clients, as programs inside have them: bytes over a socket, TLS, and HTTP of either version.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// An answer: its head, and its body as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// The code of a refusal, as header and document have it.
    pub(crate) fn denied(&self) -> Option<String> {
        let line = self.head.lines().find_map(|line| line.strip_prefix("x-cofferdam-denied: "))?;
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["code"], line);
        assert!(document["detail"].as_str().unwrap().contains("report it"));
        assert!(self.head.contains("content-type: application/problem+json"));
        Some(line.to_owned())
    }
}

/// Sends a request and reads an answer that says how long it is; the connection stays.
pub(crate) fn ask(stream: &mut (impl Read + Write), request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    read(stream)
}

/// Reads an answer that says how long it is.
pub(crate) fn read(stream: &mut impl Read) -> Answer {
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // Which goes on after a signal, unlike `read`.
        match stream.read_exact(&mut byte) {
            Ok(()) => head.push(byte[0]),
            Err(_) => return Answer { head: String::from_utf8_lossy(&head).into_owned(), body: vec![] },
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    Answer { head, body }
}

/// A request with nothing but what it needs.
pub(crate) fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn config(authority: &str, protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// TLS with a server that is called so, by who trusts an authority.
pub(crate) fn tls(
    stream: TcpStream,
    name: &str,
    authority: &str,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(config(authority, &["http/1.1"]), name).unwrap(), stream)
}

/// HTTP/2 over TLS.
pub(crate) async fn http2(stream: TcpStream, name: &str, authority: &str) -> SendRequest<Full<Bytes>> {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let connector = tokio_rustls::TlsConnector::from(config(authority, &["h2"]));
    let stream = connector.connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}
