//! Ends TLS for a sandbox: a certificate for each name, signed by the sandbox's own authority.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_core::egress::Host;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{CipherSuite, ServerConfig};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::stream::Stream;
use crate::authority::{AuthorityError, Signer};

/// How many names have a certificate at once. Another one costs a tenth of a millisecond.
const MOST_NAMES: usize = 256;

/// How many sessions of one name can be resumed.
const SESSIONS: usize = 16;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What is offered to clients: RFC 7301, section 6.
pub(crate) const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The usual cryptography, with AES of 128 bits preferred to 256: what is encrypted here never leaves the machine, and
/// ten rounds instead of fourteen are a seventh less time for the whole of a large answer.
fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// Certificates, and what makes them.
pub(crate) struct Certificates {
    signer: Signer,
    made: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl Certificates {
    /// Takes an authority's name and key.
    ///
    /// # Errors
    ///
    /// [`AuthorityError`] if that is no key.
    pub(crate) fn new(name: &str, key: &[u8]) -> Result<Self, AuthorityError> {
        Ok(Certificates { signer: Signer::new(name, key)?, made: Mutex::default() })
    }

    /// Ends TLS as a host would.
    ///
    /// # Errors
    ///
    /// What went wrong in the handshake; `TimedOut` if it took too long.
    pub(crate) async fn end_tls(&self, host: &Host, stream: Stream) -> io::Result<TlsStream<Stream>> {
        let config = self.config(host).map_err(io::Error::other)?;
        timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await?
    }

    fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(host) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make(host)?);
        if made.len() >= MOST_NAMES {
            made.clear();
        }
        made.insert(host.clone(), config.clone());
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, AuthorityError> {
        let certificate = CertificateDer::from(self.signer.sign(host)?);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.signer.key()));
        let config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key));
        let mut config = config.map_err(|error| AuthorityError::of(&error))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        config.ignore_client_order = true; // our own order is the faster one
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        Ok(config)
    }
}
