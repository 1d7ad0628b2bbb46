//! Credentials for runs: this very program as the broker, asked for what flags and policies name.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use cofferdam_broker::client::{Broker, BrokerProgram, Brokered, LONGEST_END, Orphaned, Wanted};
use cofferdam_broker::{Orphans, Tested};
use cofferdam_core::audit::{AuditSink, Event};
use cofferdam_core::egress::Authority;
use cofferdam_core::lease::{LeaseEnd, LeaseState, Leases};
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_core::policy::{CredentialRule, HostPattern, NetworkRule, Protocol};

use crate::cli;
use crate::files::{BadValue, CredentialTable, Rest};
use crate::report;

/// What `--cred` was given: `NAME=ISSUER[:KEY=VALUE,…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CredFlag {
    name: String,
    issuer: String,
    scope: BTreeMap<String, Vec<String>>,
}

impl CredFlag {
    /// Reads it. A part without `=` continues the list before it: `repositories=shop,site`.
    ///
    /// # Errors
    ///
    /// [`BadValue`] says what is wrong with it, and what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, BadValue> {
        let wrong = |why: String| {
            BadValue::new(
                why,
                "write NAME=ISSUER:KEY=VALUE,…, such as db=postgres.main:template=readers,database=shop",
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(|| wrong(format!("`{text}` names no issuer")))?;
        let (issuer, scope) = rest.split_once(':').unwrap_or((rest, ""));
        if name.is_empty() || issuer.is_empty() {
            return Err(wrong(format!("`{text}` names no issuer")));
        }
        let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut last = None;
        for part in scope.split(',').filter(|part| !part.is_empty()) {
            let (field, value) = match (part.split_once('='), &last) {
                (Some((field, value)), _) => (field.to_owned(), value),
                (None, Some(field)) => (String::clone(field), part),
                (None, None) => return Err(wrong(format!("`{part}` in `{text}` belongs to no key"))),
            };
            fields.entry(field.clone()).or_default().push(value.to_owned());
            last = Some(field);
        }
        Ok(CredFlag { name: name.to_owned(), issuer: issuer.to_owned(), scope: fields })
    }

    /// What the decision needs to know of it.
    pub(crate) fn rule(&self) -> CredentialRule {
        let (name, issuer) = (self.name.clone(), self.issuer.clone());
        CredentialRule { name, issuer, ttl: None, ends_on_misuse: false }
    }
}

/// The broker of this program; nothing is started yet.
///
/// # Errors
///
/// A [`Fault`] if our own path can't be read.
pub(crate) fn broker() -> Result<Arc<Broker>, Fault> {
    let path = env::current_exe().map_err(|error| Fault {
        code: FaultCode::HostError,
        message: format!("the path of this program can't be read: {error}"),
        fix: Some("mount /proc".to_owned()),
    })?;
    Ok(Arc::new(Broker::new(BrokerProgram { path, args: vec![cli::BROKER.into()] })))
}

/// The rules for the hosts of what flags name, as the operator has them: where a credential leads is meant, also if
/// that is a private address.
///
/// # Errors
///
/// A [`Fault`]: there is no such issuer, or no broker.
pub(crate) fn rules(broker: &Broker, flags: &[CredFlag]) -> Result<Vec<NetworkRule>, Fault> {
    let mut rules: Vec<NetworkRule> = vec![];
    for (at, flag) in flags.iter().enumerate() {
        if flags[..at].iter().any(|earlier| earlier.name == flag.name) {
            return Err(twice(&format!("--cred `{}` is there twice", flag.name)));
        }
        let described = block_on(broker.describe(&flag.issuer))?;
        let in_requests = described.stands_in_requests;
        let own: Vec<_> =
            described.hosts.iter().filter_map(|host| rule(&flag.name, host, in_requests)).collect();
        let same = |one: &&NetworkRule| {
            in_requests && rules.iter().any(|rule| rule.host == one.host && rule.ports == one.ports)
        };
        if let Some(one) = own.iter().find(same) {
            let host = &one.host;
            return Err(twice(&format!(
                "two credentials are for requests to {host}, and a request carries one"
            )));
        }
        rules.extend(own);
    }
    Ok(rules)
}

fn twice(message: &str) -> Fault {
    Fault {
        code: FaultCode::CredentialDenied,
        message: message.to_owned(),
        fix: Some("leave one of them out, or write a policy whose rules have other paths".to_owned()),
    }
}

/// The rule for a host: of requests that carry the credential, or of connections on which a program says it itself.
fn rule(name: &str, host: &str, in_requests: bool) -> Option<NetworkRule> {
    let authority = Authority::parse(host.as_bytes()).ok()?; // the broker has read it so
    Some(NetworkRule {
        name: Some(format!("credential {name}")),
        ports: vec![authority.port()],
        protocol: if in_requests { Protocol::Https } else { Protocol::Tcp },
        private: true,
        credential: in_requests.then(|| name.to_owned()),
        ..NetworkRule::https(HostPattern::exactly(authority.host().clone()))
    })
}

/// What mints for a run what flags and policies name.
///
/// # Errors
///
/// A [`Fault`] for a credential that makes no sense.
pub(crate) fn leases(broker: Arc<Broker>, rest: &Rest, flags: &[CredFlag]) -> Result<Arc<dyn Leases>, Fault> {
    let mut wanted = BTreeMap::new();
    for table in &rest.credentials {
        wanted.insert(table.name.value.0.clone(), of_table(table)?);
    }
    for flag in flags {
        wanted.insert(flag.name.clone(), Wanted { scope: flag.scope.clone(), ..Wanted::default() });
    }
    Ok(Arc::new(Brokered::new(broker, wanted)))
}

fn of_table(table: &CredentialTable) -> Result<Wanted, Fault> {
    let refused = |message: String, fix: &str| Fault {
        code: FaultCode::PolicyDenied,
        message,
        fix: Some(fix.to_owned()),
    };
    let name = &table.name.value.0;
    let mut scope = BTreeMap::new();
    for (field, value) in &table.scope {
        let values = match value {
            toml::Value::String(one) => Some(vec![one.clone()]),
            toml::Value::Array(many) => {
                many.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
            }
            _ => None,
        };
        let values = values.ok_or_else(|| {
            let message = format!(
                "`{field}` in the scope of the credential `{name}` is neither text nor a list of texts"
            );
            refused(message, "write `field = \"value\"` or `field = [\"one\", \"two\"]`")
        })?;
        scope.insert(field.clone(), values);
    }
    let deliver = table.deliver.iter().map(|(name, value)| (name.value.0.clone(), value.0.clone()));
    let surrogate = table.surrogate_env.iter().map(|name| (name.value.0.clone(), "{token}".to_owned()));
    Ok(Wanted {
        scope,
        deliver: deliver.chain(surrogate).collect(),
        inject: table.inject.as_ref().map(|inject| inject.value.name().to_owned()),
        max_uses: table.max_uses.as_ref().map(|uses| uses.value.0),
    })
}

/// How long a run waits for each credential that killed ones left. What takes longer is tried again by the next command,
/// so that an issuer that is down delays runs no more than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Revokes what nobody is responsible for any more, and says what became of each, a line each. What has ended is in the
/// audit log, as `lease.orphaned` of the run that it was for, before it is forgotten.
pub(crate) fn sweep(state: &Path, audit: &dyn AuditSink, patience: Duration) -> Vec<String> {
    if !Orphans::are_there(state) {
        return vec![];
    }
    match revoke(audit, &Orphaned::default(), patience) {
        Ok(revoked) => revoked.lines,
        Err(fault) => vec![format!("credentials of killed runs may still be alive: {}", fault.message)],
    }
}

/// What became of what nobody was responsible for.
pub(crate) struct Revoked {
    /// A line for each, and for what could not be written down.
    pub(crate) lines: Vec<String>,
    /// Whether all of it was seen to be dead.
    pub(crate) all_dead: bool,
}

/// Revokes some of what nobody is responsible for.
///
/// # Errors
///
/// A [`Fault`] if there is no broker, or it can't.
pub(crate) fn revoke(audit: &dyn AuditSink, which: &Orphaned, patience: Duration) -> Result<Revoked, Fault> {
    let mut unwritten = vec![];
    let record = |run: &str, lease: &LeaseEnd| {
        // Who else than a run of ours would have left it: there is no part of the log for that.
        let Some(run) = RunId::parse(run) else { return true };
        let written = audit.append(&run, &[Event::LeaseOrphaned(Box::new(lease.clone()))]);
        if let Err(error) = &written {
            unwritten.push(format!("{}; the next command revokes it once more", report::chain(error)));
        }
        written.is_ok()
    };
    let ended = block_on(broker()?.sweep(which, patience, record))?;
    let is_dead = |(_, lease): &(String, LeaseEnd)| matches!(lease.state, LeaseState::Dead { .. });
    let all_dead = ended.iter().all(is_dead);
    let lines = ended.iter().map(|(run, lease)| said(run, lease)).chain(unwritten).collect();
    Ok(Revoked { lines, all_dead })
}

/// Has each issuer, or one, mint, and sees that what it minted works and dies.
///
/// # Errors
///
/// A [`Fault`]: there is no such issuer, the operator's file is wrong, or there is no broker.
pub(crate) fn test(issuer: Option<&str>) -> Result<Vec<Tested>, Fault> {
    // An identity of its own, by which what it leaves is found if it is killed.
    let run = cli::new_run().map_err(|error| Fault {
        code: FaultCode::HostError,
        message: format!("the kernel gives no random bytes: {error}"),
        fix: None,
    })?;
    block_on(broker()?.test(&run, issuer))
}

fn said(run: &str, lease: &LeaseEnd) -> String {
    let LeaseEnd { name, issuer, .. } = lease;
    match &lease.state {
        LeaseState::Dead { verified, .. } => {
            format!("revoked the credential `{name}` of {issuer} that run {run} left: {verified}")
        }
        LeaseState::Expires if lease.expires.is_some_and(|at| at < SystemTime::now()) => {
            format!("the credential `{name}` of {issuer} that run {run} left has expired")
        }
        LeaseState::Expires => {
            format!("the credential `{name}` of {issuer} that run {run} left can't be revoked, and expires")
        }
        LeaseState::Unknown { why } => {
            format!(
                "the credential `{name}` of {issuer} that run {run} left MAY STILL BE ALIVE: {why}; the \
                 next command tries again, and `cofferdam gc` waits for up to {} s",
                LONGEST_END.as_secs()
            )
        }
    }
}

fn block_on<T>(future: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Fault {
        code: FaultCode::HostError,
        message: format!("could not start the event loop: {error}"),
        fix: None,
    })?;
    runtime.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_names_an_issuer_and_narrows_it() {
        let flag = CredFlag::parse("gh=github-app.acme:repositories=shop,site,contents=read").unwrap();
        assert_eq!((flag.name.as_str(), flag.issuer.as_str()), ("gh", "github-app.acme"));
        assert_eq!(flag.scope["repositories"], ["shop", "site"]);
        assert_eq!(flag.scope["contents"], ["read"]);
        assert!(CredFlag::parse("db=postgres.main").unwrap().scope.is_empty());
        for text in ["db", "=x", "db=", "db=postgres.main:shop", "db=:a=b"] {
            assert!(CredFlag::parse(text).is_err(), "{text}");
        }
    }
}
