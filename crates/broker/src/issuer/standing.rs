//! A secret that nobody mints: it was there before the run and is there after it. Only its place is ours: it stands
//! in requests and is kept from programs. The Outcome calls it weak, since whoever uses it has all of its power.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::{Alive, Boxed, Issuer, IssuerError, Minted, Scope, no_findings, root};
use crate::config::IssuerConfig;
use crate::trial::Finding;

/// One secret.
pub(super) struct Standing {
    config: IssuerConfig,
}

impl Standing {
    pub(super) fn new(config: &IssuerConfig) -> Self {
        Standing { config: config.clone() }
    }
}

impl Issuer for Standing {
    fn mint<'a>(&'a self, _: &'a str, _: &'a Scope, _: SystemTime) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let token = root::read(&self.config).await?;
            Ok(Minted { parts: BTreeMap::from([("token", token)]), expires: None, kept: None })
        })
    }

    fn can_revoke(&self, _: &str) -> bool {
        false
    }

    fn revoke<'a>(&'a self, _: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        let why = "has nothing that could be revoked".to_owned();
        Box::pin(async move { Err(IssuerError::Refused { issuer: self.config.name.clone(), why }) })
    }

    fn try_use<'a>(
        &'a self,
        _: &'a str,
        _: &'a Scope,
        _: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async { Ok(Alive::Yes) })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        no_findings()
    }
}
