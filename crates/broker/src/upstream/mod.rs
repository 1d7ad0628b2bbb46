//! Requests that carry a credential: the proxy hands over what it has dialled, and here is where the secret meets the
//! request, and nowhere else.
//!
//! - [`connection`] speaks TLS with the host and serves the requests that the proxy passes on.
//! - [`place`] judges where in a request a credential stands, and puts the secret there.
//! - [`scrub`] takes the secret out of what comes back.
//! - [`stand_in`] is one credential of one run, as requests meet it.
//!
//! # Invariants
//!
//! 1. A secret goes over TLS to a host that proved its name, and that the issuer's operator and a rule of the policy
//!    both name. Whatever the proxy says, another host gets nothing.
//! 2. Each request is judged again, by the same function as in the proxy: a proxy that is taken over can use a
//!    credential within its scope while the run lives, and can neither read nor misdirect it.
//! 3. A request has the run's credential or none: what else might be one is refused.

pub(crate) mod connection;
pub(crate) mod place;
mod scrub;
pub(crate) mod stand_in;

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// How TLS is spoken with hosts.
pub(crate) struct Tls {
    /// Offering HTTP/2 and HTTP/1.1.
    both: Arc<ClientConfig>,
    /// Offering HTTP/1.1 alone.
    http1: Arc<ClientConfig>,
}

impl Tls {
    /// Trusts these.
    ///
    /// # Errors
    ///
    /// What the library says of its own defaults.
    pub(crate) fn new(roots: RootCertStore) -> Result<Self, rustls::Error> {
        let roots = Arc::new(roots);
        let client = |protocols: &[&[u8]]| {
            let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions()?;
            let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Ok::<_, rustls::Error>(Arc::new(config))
        };
        Ok(Tls { both: client(&[b"h2", b"http/1.1"])?, http1: client(&[b"http/1.1"])? })
    }

    fn offering(&self, http2: bool) -> &Arc<ClientConfig> {
        if http2 { &self.both } else { &self.http1 }
    }
}
