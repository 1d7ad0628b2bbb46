//! OpenSSH: a key that is made for the task, and a user certificate for it that the operator's authority signs.
//!
//! - The certificate is for one principal and one command (`force-command`), from the operator's addresses alone where
//!   the table names any. It has no extensions: no terminal, and nothing is forwarded.
//! - Its key id is the handle, and its serial number follows from the handle, so both are known after a crash.
//! - Nothing here speaks SSH. A certificate lives until it expires, unless the operator names a program that puts it
//!   onto the servers' list of revoked keys, and one that sees whether they still take it.
//! - Neither expiry nor such a list ends a session that is open.

mod certificate;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cofferdam_core::secret::Secret;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{Alive, Boxed, Issuer, IssuerError, Kept, Minted, Scope, helper, no_findings, one, root};
use crate::config::{IssuerConfig, Revocation};
use crate::trial::Finding;
use certificate::{Authority, Wanted};

/// One authority.
pub(super) struct Ssh {
    config: IssuerConfig,
    /// The addresses from which a certificate is taken; none for any.
    sources: Vec<String>,
    revocation: Option<Revocation>,
    /// The certificates that may live and can be revoked, a line each. They are of no use without their keys.
    certificates: Mutex<BTreeMap<String, String>>,
}

impl Ssh {
    pub(super) fn new(config: &IssuerConfig, sources: &[String], revocation: Option<&Revocation>) -> Self {
        Ssh {
            config: config.clone(),
            sources: sources.to_vec(),
            revocation: revocation.cloned(),
            certificates: Mutex::default(),
        }
    }

    fn wrong_root(&self, why: impl Into<String>) -> IssuerError {
        IssuerError::Root { issuer: self.config.name.clone(), why: why.into() }
    }

    fn refused(&self, why: impl Into<String>) -> IssuerError {
        IssuerError::Refused { issuer: self.config.name.clone(), why: why.into() }
    }

    fn revocation(&self) -> Result<&Revocation, IssuerError> {
        self.revocation.as_ref().ok_or_else(|| self.refused("names no program that revokes a certificate"))
    }

    fn remember(&self, handle: &str, certificate: &str) {
        let mut certificates = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        certificates.insert(handle.to_owned(), certificate.to_owned());
    }

    fn remembered(&self, handle: &str) -> Option<String> {
        self.certificates.lock().unwrap_or_else(PoisonError::into_inner).get(handle).cloned()
    }
}

/// The serial number of a certificate: of 53 bits, which every reader of JSON takes for the same number, and never 0,
/// by which nothing can be revoked.
fn serial(handle: &str) -> u64 {
    const BITS: u32 = 53;
    let hash = Sha256::digest(handle.as_bytes());
    let number = hash.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    (number >> (u64::BITS - BITS)).max(1)
}

impl Issuer for Ssh {
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        until: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let root = root::read(&self.config).await?;
            let authority = Authority::parse(root.expose()).map_err(|why| self.wrong_root(why))?;
            let wanted = Wanted {
                key_id: handle,
                serial: serial(handle),
                principal: one(scope, "principal"),
                command: one(scope, "command"),
                sources: &self.sources,
                until,
            };
            let signed = authority.sign(&wanted).map_err(|why| self.wrong_root(why))?;
            self.remember(handle, &signed.certificate);
            let kept = self.revocation.is_some().then(|| Kept(json!({ "certificate": signed.certificate })));
            let text = |text: &str| Secret::new(text.as_bytes().to_vec());
            let parts = [
                ("key", signed.key),
                ("certificate", text(&signed.certificate)),
                ("user", text(wanted.principal)),
            ];
            Ok(Minted { parts: parts.into(), expires: Some(until), kept })
        })
    }

    fn can_revoke(&self, _: &str) -> bool {
        self.revocation.is_some()
    }

    fn recall(&self, handle: &str, kept: &Kept) {
        if let Some(certificate) = kept.0["certificate"].as_str() {
            self.remember(handle, certificate);
        }
    }

    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async move {
            let words = &self.revocation()?.krl;
            let input = json!({ "serial": serial(handle), "key_id": handle }).to_string();
            let (status, _) = helper::call(&self.config.name, words, None, input.as_bytes()).await?;
            match status.success() {
                true => Ok(()),
                false => Err(self.refused(format!("refuses: its `krl` ended with {status}"))),
            }
        })
    }

    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        _: &'a Scope,
        _: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async move {
            let words = &self.revocation()?.test;
            let certificate = self.remembered(handle);
            let input =
                json!({ "serial": serial(handle), "key_id": handle, "certificate": certificate }).to_string();
            let (status, _) = helper::call(&self.config.name, words, None, input.as_bytes()).await?;
            match status.code() {
                Some(0) => Ok(Alive::Yes),
                Some(1) => {
                    let program = words.first().map_or("", String::as_str);
                    Ok(Alive::No(format!("`{program}` says that it is refused")))
                }
                // A program that isn't there, or fails, has seen nothing.
                _ => {
                    Err(self
                        .refused(format!("doesn't say whether it is dead: its `test` ended with {status}")))
                }
            }
        })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        no_findings()
    }
}

#[cfg(test)]
mod tests;
