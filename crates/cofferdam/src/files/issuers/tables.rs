//! The tables of issuers whose values are looked at when the file is read: what is wrong is shown at its key.

use cofferdam_broker::config::{IssuerConfig, Kind, LONGEST_TOKEN, Revocation};
use serde::Deserialize;

use super::super::error::{FileError, Source, Span};
use super::super::words::{At, Inject, Time};
use super::{RootTable, issuer, place};

/// Users of Redis.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RedisTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    keys: At<Vec<String>>,
    commands: At<Vec<String>>,
    max_ttl: Option<Time>,
}

impl RedisTable {
    pub(super) fn issuer(self, name: &str, source: &Source) -> Result<IssuerConfig, FileError> {
        let places = [("keys", self.keys.span), ("commands", self.commands.span)];
        let kind = Kind::Redis { keys: self.keys.value, commands: self.commands.value };
        checked(issuer(name, kind, self.root, &self.hosts, self.max_ttl, source)?, &places, source)
    }
}

/// Certificates of OpenSSH.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct SshTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    principals: At<Vec<String>>,
    commands: At<Vec<String>>,
    sources: Option<At<Vec<String>>>,
    krl: Option<At<Vec<String>>>,
    test: Option<At<Vec<String>>>,
    max_ttl: Option<Time>,
}

impl SshTable {
    pub(super) fn issuer(self, name: &str, source: &Source) -> Result<IssuerConfig, FileError> {
        let revocation = revocation(self.krl, self.test, source)?;
        let sources = self.sources.unwrap_or_else(|| vec![].into());
        let places = [
            ("principals", self.principals.span),
            ("commands", self.commands.span),
            ("sources", sources.span),
        ];
        let kind = Kind::Ssh {
            principals: self.principals.value,
            commands: self.commands.value,
            sources: sources.value,
            revocation,
        };
        checked(issuer(name, kind, self.root, &self.hosts, self.max_ttl, source)?, &places, source)
    }
}

/// What revokes, and what sees that it has: both or neither.
fn revocation(
    krl: Option<At<Vec<String>>>,
    test: Option<At<Vec<String>>>,
    source: &Source,
) -> Result<Option<Revocation>, FileError> {
    let wrong = |place: &At<Vec<String>>, message: &str, help: &str| {
        Err(source.error(&place.span, message, "here", help))
    };
    for program in [&krl, &test].into_iter().flatten() {
        if program.value.is_empty() {
            return wrong(program, "this names no program", "write it like [\"/usr/local/bin/revoke\"]");
        }
    }
    match (krl, test) {
        (None, None) => Ok(None),
        (Some(krl), Some(test)) => Ok(Some(Revocation { krl: krl.value, test: test.value })),
        (Some(krl), None) => wrong(
            &krl,
            "there is `krl` and no `test`, so nobody could see whether a certificate is dead",
            "add test, a program that ends with 0 while the servers take a certificate, and with 1 when they don't",
        ),
        (None, Some(test)) => wrong(
            &test,
            "there is `test` and no `krl`, so nothing could be revoked that is tested",
            "add krl, a program that puts a serial number onto the servers' list of revoked keys",
        ),
    }
}

/// Tokens of a registry of images.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RegistryTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    issuer: String,
    service: String,
    repositories: At<Vec<String>>,
    actions: At<Vec<String>>,
    max_ttl: Option<At<Time>>,
    /// So that programs see surrogates; without it they get the tokens, which live for minutes.
    inject: Option<At<Inject>>,
}

impl RegistryTable {
    pub(super) fn issuer(self, name: &str, source: &Source) -> Result<IssuerConfig, FileError> {
        let max_ttl = self.max_ttl.unwrap_or_else(|| Time(LONGEST_TOKEN).into());
        let places = [
            ("repositories", self.repositories.span),
            ("actions", self.actions.span),
            ("max_ttl", max_ttl.span),
        ];
        let kind = Kind::Registry {
            issuer: self.issuer,
            service: self.service,
            repositories: self.repositories.value,
            actions: self.actions.value,
        };
        let inject = place(self.inject.as_ref(), None, None, source)?;
        let issuer = issuer(name, kind, self.root, &self.hosts, Some(max_ttl.value), source)?;
        checked(IssuerConfig { inject, ..issuer }, &places, source)
    }
}

/// Gives an issuer that can be used as it stands.
fn checked(
    issuer: IssuerConfig,
    places: &[(&str, Span)],
    source: &Source,
) -> Result<IssuerConfig, FileError> {
    match issuer.check() {
        Ok(()) => Ok(issuer),
        Err(unfit) => {
            let place = places.iter().find(|(key, _)| *key == unfit.key);
            let span = place.map_or(0..0, |(_, span)| span.clone());
            Err(source.error(&span, &unfit.message, "here", &unfit.fix))
        }
    }
}
