//! What the tests of issuers share.

use std::time::{Duration, SystemTime};

use super::{Alive, Issuer, IssuerError, Minted, Scope};
use crate::config::{IssuerConfig, Kind, Root};

/// An issuer's configuration, whose root a program prints.
pub(super) fn config(kind: Kind, root: &str) -> IssuerConfig {
    let name = format!("{}.main", kind.name());
    let root = Root::Command(["printf", "%s", root].map(str::to_owned).into());
    IssuerConfig { name, root, hosts: vec!["db.internal:1".to_owned()], max_ttl: None, inject: None, kind }
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

pub(super) fn scope<const N: usize>(fields: [(&str, &[&str]); N]) -> Scope {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    fields.map(|(name, values)| (name.to_owned(), owned(values))).into()
}

pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(super) fn mint(
    issuer: &dyn Issuer,
    handle: &str,
    scope: &Scope,
    ttl: Duration,
) -> Result<Minted, IssuerError> {
    wait(issuer.mint(handle, scope, SystemTime::now() + ttl))
}

/// A part of a credential, as a client has it.
pub(super) fn part<'a>(minted: &'a Minted, name: &str) -> &'a str {
    std::str::from_utf8(minted.parts[name].expose()).unwrap()
}

/// How a credential was seen to be dead; none while it is alive.
pub(super) fn seen_dead(issuer: &dyn Issuer, handle: &str, minted: Option<&Minted>) -> Option<String> {
    match wait(issuer.try_use(handle, &Scope::new(), minted)).unwrap() {
        Alive::Yes => None,
        Alive::No(how) => Some(how),
    }
}
