//! The tables of issuers whose values are looked at when the file is read: what is wrong is shown at its key.

use cofferdam_broker::config::{IssuerConfig, Kind};
use serde::Deserialize;

use super::super::error::{FileError, Source, Span};
use super::super::words::{At, Time};
use super::{RootTable, issuer};

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
