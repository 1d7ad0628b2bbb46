//! A registry of images (Distribution, version 2): a token that is signed here, as its specification of authentication
//! by tokens says, for these actions on these repositories.
//!
//! A registry looks at a token and asks nobody, so nothing ends one before its time: it lives five minutes at most, and
//! the Outcome says that it expires.

mod key;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cofferdam_core::secret::Secret;
use serde_json::{Value, json};

use super::{Alive, Boxed, Issuer, IssuerError, Minted, Scope, no_findings, root};
use crate::config::{IssuerConfig, LONGEST_TOKEN};
use crate::trial::Finding;
use key::Key;

/// How long after its end a registry still takes a token. Source: Distribution, `Leeway` of `registry/auth/token`.
const LEEWAY: Duration = Duration::from_secs(60);

/// One registry.
pub(super) struct Registry {
    config: IssuerConfig,
    /// Whom the registry trusts, by the name that it has of us.
    issuer: String,
    /// What the registry calls itself.
    service: String,
}

impl Registry {
    pub(super) fn new(config: &IssuerConfig, issuer: &str, service: &str) -> Self {
        Registry { config: config.clone(), issuer: issuer.to_owned(), service: service.to_owned() }
    }

    fn wrong_root(&self, why: impl Into<String>) -> IssuerError {
        IssuerError::Root { issuer: self.config.name.clone(), why: why.into() }
    }

    fn not_revocable(&self) -> IssuerError {
        let why = "asks nobody about a token, so none can be revoked".to_owned();
        IssuerError::Refused { issuer: self.config.name.clone(), why }
    }

    /// What a token says.
    fn claims(&self, handle: &str, scope: &Scope, now: u64, end: u64) -> Value {
        let values = |field: &str| scope.get(field).map_or(&[][..], Vec::as_slice);
        let access: Vec<_> = values("repositories")
            .iter()
            .map(|name| json!({ "type": "repository", "name": name, "actions": values("actions") }))
            .collect();
        json!({
            "iss": self.issuer,
            "sub": handle,
            "aud": self.service,
            "exp": end,
            "nbf": now,
            "iat": now,
            "jti": handle,
            "access": access,
        })
    }
}

/// A JSON Web Token (RFC 7519). Until it is signed, nothing of it is secret.
fn token(key: &Key, claims: &Value) -> Result<Secret, &'static str> {
    let header = json!({ "typ": "JWT", "alg": key.algorithm(), "kid": key.id() });
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encoded(&header), encoded(claims));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())?);
    Ok(Secret::new([signed.as_bytes(), b".", signature.as_bytes()].concat()))
}

impl Issuer for Registry {
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        until: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let root = root::read(&self.config).await?;
            let key = Key::parse(root.expose()).map_err(|why| self.wrong_root(why))?;
            let now = seconds(SystemTime::now());
            let end = seconds(until).min(now + LONGEST_TOKEN.as_secs());
            let claims = self.claims(handle, scope, now, end);
            let token = token(&key, &claims).map_err(|why| self.wrong_root(why))?;
            let expires = UNIX_EPOCH + Duration::from_secs(end) + LEEWAY;
            Ok(Minted { parts: BTreeMap::from([("token", token)]), expires: Some(expires), kept: None })
        })
    }

    fn can_revoke(&self, _: &str) -> bool {
        false
    }

    fn revoke<'a>(&'a self, _: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async { Err(self.not_revocable()) })
    }

    fn try_use<'a>(
        &'a self,
        _: &'a str,
        _: &'a Scope,
        _: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async { Err(self.not_revocable()) })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        no_findings()
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
