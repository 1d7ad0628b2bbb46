//! TLS with the certificate of whatever server is named.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

use super::World;
use super::seen::{Arrival, Entry, Tapped};

/// Who vouches for the servers.
pub(super) struct Authority {
    pem: String,
    config: Arc<ServerConfig>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let ((known, pem), (unknown, _)) = (issuer("the authority of a test"), issuer("nobody's authority"));
        let provider = Arc::new(ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config =
            config.with_no_client_auth().with_cert_resolver(Arc::new(Certificates { known, unknown }));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Authority { pem, config: Arc::new(config) }
    }

    /// Its certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }
}

/// Someone who signs, and their certificate.
fn issuer(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

/// Makes a certificate for whoever is asked for.
struct Certificates {
    known: Issuer<'static, KeyPair>,
    unknown: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().unwrap_or("unnamed.test");
        let (issuer, name) = match asked {
            "untrusted.test" => (&self.unknown, asked),
            "misnamed.test" => (&self.known, "other.test"),
            name => (&self.known, name),
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true; // some verifiers want it
        let certificate = params.signed_by(&key, issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let key = ring::sign::any_supported_type(&key).unwrap();
        Some(Arc::new(CertifiedKey::new(vec![certificate.der().clone()], key)))
    }
}

/// Ends TLS, and speaks HTTP within.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    to: SocketAddr,
    arrival: Entry<Arrival>,
    world: Arc<World>,
) {
    let acceptor = TlsAcceptor::from(Arc::clone(&world.authority.config));
    // A client that doesn't trust us goes away, which is all that is to be done about it.
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let connection: &rustls::ServerConnection = stream.get_ref().1;
    arrival.lock().unwrap().server_name = connection.server_name().map(str::to_owned);
    super::http::serve(Tapped::within(stream, arrival), to, true, world).await;
}
