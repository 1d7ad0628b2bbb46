//! What the proxy knows of the outside: whom to ask for names, whom to trust, and the operator's own proxy. All of
//! it is read before the process confines itself; afterwards it can open no file.

use std::fs;
use std::sync::Arc;

use cofferdam_core::egress::{Authority, Host};
use cofferdam_core::policy::HostPattern;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::certificates::PROTOCOLS;
use super::dns::resolver::Resolver;
use crate::control::Node;

/// The outside, for all sandboxes.
pub(crate) struct Outside {
    pub(crate) resolver: Resolver,
    pub(crate) upstream_proxy: Option<Authority>,
    private_hosts: Option<Vec<HostPattern>>,
    /// TLS that offers HTTP/2 and HTTP/1.1.
    pub(crate) tls: Arc<ClientConfig>,
    /// TLS that offers HTTP/1.1 alone, for what only that can do.
    pub(crate) tls_http1: Arc<ClientConfig>,
    /// TLS that says nothing of what is spoken in it.
    pub(crate) tls_opaque: Arc<ClientConfig>,
}

/// What an operator's configuration has wrong.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No host and port.
    #[error("the upstream proxy `{0}` is no host and port")]
    UpstreamProxy(String),
    /// No certificates.
    #[error("the extra roots are no certificates: {0}")]
    ExtraRoots(String),
    /// The library refuses its own defaults.
    #[error("could not set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Outside {
    /// Takes an operator's configuration, and reads what the system has.
    ///
    /// # Errors
    ///
    /// [`NodeError`] says what is wrong with it.
    pub(crate) fn new(node: Node) -> Result<Outside, NodeError> {
        let upstream_proxy = node
            .upstream_proxy
            .map(|text| Authority::parse(text.as_bytes()).map_err(|_| NodeError::UpstreamProxy(text)));
        let roots = Arc::new(roots(&node.extra_roots)?);
        Ok(Outside {
            resolver: resolver(node.resolvers),
            upstream_proxy: upstream_proxy.transpose()?,
            private_hosts: node.private_hosts,
            tls: client(&roots, &PROTOCOLS)?,
            tls_http1: client(&roots, &PROTOCOLS[1..])?,
            tls_opaque: client(&roots, &[])?,
        })
    }

    /// Whether the operator lets a host be at a private address, where a rule says so.
    pub(crate) fn may_be_private(&self, host: &Host) -> bool {
        self.private_hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|known| known.matches(host)))
    }
}

fn resolver(servers: Vec<std::net::SocketAddr>) -> Resolver {
    if !servers.is_empty() {
        return Resolver::of_servers(servers);
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    Resolver::of_system(&read("/etc/resolv.conf"), &read("/etc/hosts"))
}

/// Those that this system trusts, those that come with us (a system may have none), and those of the operator, as PEM.
///
/// # Errors
///
/// [`NodeError`]: those of the operator are none.
pub fn roots(extra: &[u8]) -> Result<RootCertStore, NodeError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let failed = |error: &dyn std::fmt::Display| NodeError::ExtraRoots(error.to_string());
    for certificate in CertificateDer::pem_slice_iter(extra) {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    Ok(roots)
}

fn client(roots: &Arc<RootCertStore>, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, NodeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}
