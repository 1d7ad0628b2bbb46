//! Issuers: who mints, one module for each kind, behind one trait.
//!
//! Revoking and trying go different ways: what an issuer answers to `revoke` is what it believes, and what
//! [`Issuer::try_use`] sees is what whoever kept the credential would see.

mod exec;
mod helper;
mod password;
mod postgres;
mod redis;
mod registry;
pub(crate) mod root;
mod ssh;
mod standing;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use cofferdam_core::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::config::{IssuerConfig, Kind};
use crate::trial::Finding;

/// A future without a name.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a credential may do: each field that narrows, with its values.
pub(crate) type Scope = BTreeMap<String, Vec<String>>;

/// A credential, as the templates of `deliver` name its parts: `user`, `password`, `token`.
pub(crate) struct Minted {
    /// Its parts.
    pub(crate) parts: BTreeMap<&'static str, Secret>,
    /// When its issuer ends it by itself.
    pub(crate) expires: Option<SystemTime>,
    /// What its issuer has to know again after a crash.
    pub(crate) kept: Option<Kept>,
}

/// What an issuer has to know of a credential to end it after a crash. It is on disk for as long as the credential
/// may live, so nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Kept(pub(crate) serde_json::Value);

/// Whether a credential still does something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    /// It does.
    Yes,
    /// It doesn't, and how that was seen, as a clause.
    No(String),
}

/// Something that an issuer didn't do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuerError {
    /// It says that it minted nothing.
    #[error("`{issuer}` {why}")]
    Declined { issuer: String, why: String },
    /// Its root can't be had, or isn't one.
    #[error("the root of `{issuer}` {why}")]
    Root { issuer: String, why: String },
    /// It can't be reached, and nothing was asked of it.
    #[error("`{issuer}` could not be reached: {why}")]
    Unreachable { issuer: String, why: String },
    /// It was asked, and nobody knows what it did.
    #[error("`{issuer}` was asked, and its answer was lost: {why}")]
    Lost { issuer: String, why: String },
    /// What it made is of no use, and is dead.
    #[error("`{issuer}` {why}")]
    Unusable { issuer: String, why: String },
    /// It refuses, or does something else than what was asked.
    #[error("`{issuer}` {why}")]
    Refused { issuer: String, why: String },
}

impl IssuerError {
    /// Whether nothing can be alive where this is what minting ended with.
    pub(crate) fn left_nothing(&self) -> bool {
        match self {
            IssuerError::Declined { .. }
            | IssuerError::Root { .. }
            | IssuerError::Unreachable { .. }
            | IssuerError::Unusable { .. } => true,
            IssuerError::Lost { .. } | IssuerError::Refused { .. } => false,
        }
    }
}

/// Who mints.
pub(crate) trait Issuer: Send + Sync {
    /// Makes a credential that does no more than this, and ends by itself at `until` at the latest where the issuer
    /// has such a thing. `handle` is a name that nobody else has, by which it can be revoked.
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        until: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>>;

    /// Whether it can end this credential before its time.
    fn can_revoke(&self, handle: &str) -> bool;

    /// Takes back what was kept of a credential by a process that is gone.
    fn recall(&self, _handle: &str, _kept: &Kept) {}

    /// Ends it, and whatever it began. One that was never minted is no error.
    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>>;

    /// Tries it as its holder would.
    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        minted: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>>;

    /// What its server lets in beyond what a credential is narrowed to, as its root sees it. Nothing is changed.
    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>>;
}

/// The findings of who can't see any.
fn no_findings<'a>() -> Boxed<'a, Result<Vec<Finding>, IssuerError>> {
    Box::pin(std::future::ready(Ok(vec![])))
}

/// The value of a field that has one.
fn one<'a>(scope: &'a Scope, field: &str) -> &'a str {
    scope.get(field).and_then(|values| values.first()).map_or("", String::as_str)
}

/// Whether a server is on this machine, so that nobody reads what is said to it.
fn is_here_by_name(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The issuer of a configuration.
pub(crate) fn of(config: &IssuerConfig) -> Arc<dyn Issuer> {
    match &config.kind {
        Kind::Postgres { .. } => Arc::new(postgres::Postgres::new(config)),
        Kind::Exec { command, .. } => Arc::new(exec::Exec::new(config, command)),
        Kind::Redis { .. } => Arc::new(redis::Redis::new(config)),
        Kind::Ssh { sources, revocation, .. } => {
            Arc::new(ssh::Ssh::new(config, sources, revocation.as_ref()))
        }
        Kind::Registry { issuer, service, .. } => Arc::new(registry::Registry::new(config, issuer, service)),
        Kind::Static => Arc::new(standing::Standing::new(config)),
    }
}
