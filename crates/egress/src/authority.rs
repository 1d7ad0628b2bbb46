//! A sandbox's own certificate authority, and the certificates that it gives to names.
//!
//! The host makes it, since what is inside has to trust it before anything runs; the proxy gets its key and
//! signs. It isn't constrained to names: it also signs for the refusal of a name that isn't allowed, so that
//! the refusal can be read. Nobody but the one sandbox trusts it, and it lives in memory for a day at most.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use cofferdam_core::egress::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// How long what is signed is good: longer than any run of a sandbox that is parked may take.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the clock of a sandbox may be behind.
const SLACK: Duration = Duration::from_secs(60 * 60);

/// A key or a certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not make a certificate: {0}")]
pub struct AuthorityError(String);

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        AuthorityError(error.to_string())
    }
}

impl AuthorityError {
    pub(crate) fn of(error: &impl std::fmt::Display) -> Self {
        AuthorityError(error.to_string())
    }
}

/// An authority.
#[derive(Debug)]
pub struct Authority {
    name: String,
    key: KeyPair,
    certificate: String,
}

impl Authority {
    /// Makes one with a new key (P-256). Takes about a tenth of a millisecond.
    ///
    /// # Errors
    ///
    /// [`AuthorityError`] if there is no randomness.
    pub fn new(name: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate = of_authority(name).self_signed(&key)?.pem();
        Ok(Authority { name: name.to_owned(), key, certificate })
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its common name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its key, as PKCS #8 in DER.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        self.key.serialize_der()
    }
}

/// What an authority's certificate says. The same name and key give the same issuer.
fn of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_life(&mut params);
    params
}

fn set_life(params: &mut CertificateParams) {
    let now = SystemTime::now();
    params.not_before = (now - SLACK).into();
    params.not_after = (now + LIFE).into();
}

/// What signs for names. One key serves all certificates of a sandbox: they are all its own.
pub(crate) struct Signer {
    issuer: Issuer<'static, KeyPair>,
    key: KeyPair,
}

impl Signer {
    /// Takes an authority's name and key.
    ///
    /// # Errors
    ///
    /// [`AuthorityError`] if that is no key.
    pub(crate) fn new(name: &str, key: &[u8]) -> Result<Self, AuthorityError> {
        let key = KeyPair::try_from(key)?;
        Ok(Signer { issuer: Issuer::new(of_authority(name), key), key: KeyPair::generate()? })
    }

    /// The key of all certificates, as PKCS #8 in DER.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.key.serialize_der()
    }

    /// Signs a certificate for a host, in DER.
    ///
    /// # Errors
    ///
    /// [`AuthorityError`] if it can't be made.
    pub(crate) fn sign(&self, host: &Host) -> Result<Vec<u8>, AuthorityError> {
        let mut params = CertificateParams::default();
        let name = match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(ip) => SanType::IpAddress(IpAddr::to_canonical(ip)),
        };
        params.subject_alt_names = vec![name];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_life(&mut params);
        Ok(params.signed_by(&self.key, &self.issuer)?.der().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_trusted_by_whoever_trusts_the_authority() {
        use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
        let authority = Authority::new("a").unwrap();
        let signer = Signer::new(authority.name(), &authority.key()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().unwrap();
        for text in ["a.b-c.test", "203.0.113.5", "2001:db8::1"] {
            let leaf = signer.sign(&Host::parse(text.as_bytes()).unwrap()).unwrap();
            let name = ServerName::try_from(text).unwrap();
            use rustls::client::danger::ServerCertVerifier;
            let verify = |name: &ServerName| {
                verifier.verify_server_cert(&leaf.as_slice().into(), &[], name, &[], UnixTime::now())
            };
            verify(&name).unwrap();
            assert!(verify(&ServerName::try_from("other.test").unwrap()).is_err());
        }
    }
}
