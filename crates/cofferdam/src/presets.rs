//! `--allow pypi`, `npm` and `git:HOST`: what a client's own configuration on this machine says it talks to.
//!
//! No registry's host is written here. What pip and npm are configured for is read when a run starts, from their
//! files, variables and what they have built in, and without starting either; it becomes rules, the variables by which the client inside is
//! configured the same, and the certificates that it trusts for that. User information in an address stays outside.

mod ini;
mod npm;
mod pip;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use cofferdam_core::egress::{Authority, Host, judge};
use cofferdam_core::policy::{HostPattern, NetworkRule, Preset, Protocol};
use cofferdam_core::request::Variable;

use crate::files::value::BadValue;

/// What a preset comes to on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// What may be reached.
    pub(crate) rules: Vec<NetworkRule>,
    /// How the client inside is configured.
    pub(crate) variables: Vec<Variable>,
    /// Files with certificates that the client trusts.
    pub(crate) roots: Vec<PathBuf>,
}

/// Where configuration is found.
pub(crate) struct Machine<'a> {
    /// A variable of ours.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The text of a file; none if it can't be read.
    pub(crate) text: &'a dyn Fn(&Path) -> Option<String>,
    /// The addresses of a host, as this machine finds them.
    pub(crate) addresses: &'a dyn Fn(&Host) -> Vec<IpAddr>,
}

impl Machine<'_> {
    /// This one.
    pub(crate) fn ours() -> Machine<'static> {
        Machine {
            variable: &|name| std::env::var_os(name),
            text: &|path| fs::read_to_string(path).ok(),
            addresses: &addresses,
        }
    }

    /// A variable that says something and is text.
    fn word(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|value| !value.is_empty())
    }

    fn home(&self) -> PathBuf {
        self.word("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).unwrap_or_else(|| "/".into())
    }
}

fn addresses(host: &Host) -> Vec<IpAddr> {
    match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
            found.map(|address| address.ip()).collect()
        }
    }
}

/// What a preset comes to.
///
/// # Errors
///
/// [`BadValue`] where the client's configuration names no host, with what to add.
pub(crate) fn resolve(preset: &Preset, machine: &Machine<'_>) -> Result<Found, BadValue> {
    match preset {
        Preset::Git(host) => Ok(git(host)),
        Preset::Npm => npm::resolve(machine),
        Preset::Pypi => pip::resolve(machine),
    }
}

/// Reading repositories over HTTP: what is asked first, and what sends their objects. Nothing is pushed.
fn git(host: &Host) -> Found {
    let rule = |method: &str, path: &str| NetworkRule {
        name: Some(format!("git:{host} {method}")),
        methods: Some(vec![method.to_owned()]),
        paths: Some(vec![path.to_owned()]),
        ..NetworkRule::https(HostPattern::exactly(host.clone()))
    };
    let rules = vec![rule("GET", "/**/info/refs"), rule("POST", "/**/git-upload-pack")];
    Found { rules, ..Found::default() }
}

/// A registry that a client is configured for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registry {
    host: Host,
    port: u16,
    protocol: Protocol,
    /// Its address without user information.
    url: String,
}

impl Registry {
    /// Reads an address of HTTP; none for anything else.
    fn parse(url: &str) -> Option<Registry> {
        let (scheme, rest) = url.trim().split_once("://")?;
        let (protocol, usual) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Protocol::Http, 80),
            "https" => (Protocol::Https, 443),
            _ => return None,
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let read = Authority::parse_with_default(authority.as_bytes(), usual).ok()?;
        let url = format!("{}://{authority}{path}", scheme.to_ascii_lowercase());
        Some(Registry { host: read.host().clone(), port: read.port(), protocol, url })
    }

    /// The rule for reading from it.
    fn rule(&self, name: String, machine: &Machine<'_>) -> NetworkRule {
        // Where the operator's own client goes is meant, also if that is a mirror inside.
        let private =
            (machine.addresses)(&self.host).iter().any(|address| judge(*address, false, &[]).is_err());
        NetworkRule {
            name: Some(name),
            ports: vec![self.port],
            protocol: self.protocol,
            methods: Some(vec!["GET".to_owned(), "HEAD".to_owned()]),
            private,
            ..NetworkRule::https(HostPattern::exactly(self.host.clone()))
        }
    }
}

/// A rule for each host and port, named after the preset.
fn rules(preset: &str, registries: &[Registry], machine: &Machine<'_>) -> Vec<NetworkRule> {
    let mut rules: Vec<NetworkRule> = vec![];
    for registry in registries {
        let name = match rules.len() {
            0 => preset.to_owned(),
            more => format!("{preset}-{}", more + 1),
        };
        let rule = registry.rule(name, machine);
        let same = |known: &NetworkRule| (&known.host, &known.ports) == (&rule.host, &rule.ports);
        if !rules.iter().any(same) {
            rules.push(rule);
        }
    }
    rules
}

/// A variable of a client's; none if no environment can hold it.
fn variable(name: &str, value: &str) -> Option<Variable> {
    Variable::new(name, value).ok()
}

/// A file of certificates, if it is named by a path from the root on and is text.
fn root(path: Option<String>, machine: &Machine<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(path?);
    (path.is_absolute() && (machine.text)(&path).is_some()).then_some(path)
}

#[cfg(test)]
mod tests;
