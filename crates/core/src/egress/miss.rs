//! What a refusal says: the clause that misses least, and the smallest flag that would have allowed it.

use std::net::IpAddr;

use super::address::{AddressDenied, judge};
use super::decide::{Destination, Door, RequestHead, has_method, has_path, names};
use super::denial::{Denial, DenialCode, SHOWN_BYTES};
use super::host::Host;
use super::path::PlainPath;
use crate::policy::{HostPattern, NetworkRule, OWN_HOST, Protocol, check_glob};

/// The refusal of a name that no rule has.
pub(super) fn lookup(host: &Host) -> Denial {
    let needs = least(Door::Capture, host, 443).as_ref().map(flag);
    Denial { needs, ..Denial::of_host(DenialCode::HostNotAllowed, host, None) }
}

/// The refusal of an address: `request` is the method and the path, where there is one.
pub(super) fn address(
    denial: Denial,
    why: AddressDenied,
    to: &Destination,
    request: Option<(&str, &str)>,
) -> Denial {
    let rule = match request {
        Some((method, path)) => one_request(to, method.as_bytes(), PlainPath::new(path.as_bytes()).as_ref()),
        None => Some(to_host(to)),
    };
    let private = |rule| flag(&NetworkRule { private: true, ..rule });
    Denial { needs: rule.filter(|_| why.needs_private()).map(private), ..denial }
}

/// The refusal of a connection that no rule allows.
pub(super) fn connection(rules: &[NetworkRule], door: Door, host: &Host, port: u16) -> Denial {
    let near = rules.iter().find(|rule| names(rule, host));
    let code = near.map_or(DenialCode::HostNotAllowed, |_| DenialCode::PortNotAllowed);
    Denial {
        rule: near.map(NetworkRule::label),
        needs: least(door, host, port).as_ref().map(flag),
        ..Denial::of_host(code, host, Some(port))
    }
}

/// The refusal of what comes over a connection that these rules don't allow: its permit is of others.
pub(super) fn gone(rules: &[NetworkRule], to: &Destination) -> Denial {
    connection(rules, to.door(), to.host(), to.port())
}

/// The refusal of bytes that nobody opens.
pub(super) fn tunnel(rule: &NetworkRule, to: &Destination, code: DenialCode) -> Denial {
    spoken(rule, to, code, Protocol::Tcp)
}

/// The refusal of what is spoken otherwise than the rule says.
pub(super) fn spoken(rule: &NetworkRule, to: &Destination, code: DenialCode, protocol: Protocol) -> Denial {
    let private = rule.private || is_private(to.host());
    let wider = || NetworkRule { protocol, private, ..to_host(to) };
    Denial {
        rule: Some(rule.label()),
        needs: (to.protocol().has_requests() && !has_credential(&[rule])).then(|| flag(&wider())),
        ..Denial::of_destination(code, to)
    }
}

/// The refusal of a request, where these are the rules for its connection.
pub(super) fn request(
    rules: &[&NetworkRule],
    to: &Destination,
    head: &RequestHead,
    path: Option<&PlainPath>,
) -> Denial {
    let with_method = rules.iter().find(|rule| has_method(rule, head.method));
    let with_path = || rules.iter().find(|rule| has_path(rule, path));
    let (code, near) = match with_method {
        Some(rule) => (DenialCode::PathNotAllowed, Some(rule)),
        None => (DenialCode::MethodNotAllowed, with_path().or(rules.first())),
    };
    Denial {
        rule: near.map(|rule| rule.label()),
        // A flag would let the request out without the credential that it is to carry.
        needs: one_request(to, head.method, path).filter(|_| !has_credential(rules)).map(|rule| {
            let private = near.is_some_and(|near| near.private) || is_private(to.host());
            flag(&NetworkRule { private, ..rule })
        }),
        ..Denial::of_destination(code, to).with_request(head.method, head.path)
    }
}

/// Whether requests carry a credential by one of these rules.
fn has_credential(rules: &[&NetworkRule]) -> bool {
    rules.iter().any(|rule| rule.credential.is_some())
}

/// The rule for one request alone. None where no rule says exactly that: a method or a path that can't be
/// written in one, or a path that can be read in two ways, for which a rule would have to allow every path.
fn one_request(to: &Destination, method: &[u8], path: Option<&PlainPath>) -> Option<NetworkRule> {
    let path = path?.as_str();
    let method = str::from_utf8(method).ok().filter(|method| NetworkRule::is_method(method))?;
    let (methods, paths) = (Some(vec![method.to_owned()]), Some(vec![path.to_owned()]));
    // A path that is cut where it is shown, that is a glob itself, or that ends as a flag may, is another rule's.
    let is_whole = path.len() <= SHOWN_BYTES && !path.ends_with(",private");
    let is_exact = is_whole && !path.contains('*') && check_glob(path).is_ok();
    is_exact.then(|| NetworkRule { methods, paths, ..to_host(to) })
}

/// The rule for everything at a destination.
fn to_host(to: &Destination) -> NetworkRule {
    NetworkRule { ports: vec![to.port()], protocol: to.protocol(), ..NetworkRule::https(exactly(to.host())) }
}

/// One host. What a sandbox without a loopback of its own dials there is meant for this machine.
fn exactly(host: &Host) -> HostPattern {
    let own = || HostPattern::parse(OWN_HOST).ok();
    is_loopback(host).then(own).flatten().unwrap_or_else(|| HostPattern::exactly(host.clone()))
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Name(name) => name.as_str() == "localhost",
        Host::Address(address) => address.to_canonical().is_loopback(),
    }
}

/// The least rule that allows a connection, as far as its port and its door tell what is spoken: HTTP over TLS
/// on 443 and where a proxy was asked for a tunnel, HTTP on 80 and in absolute form, else any bytes. None for an
/// address that no rule allows.
fn least(door: Door, host: &Host, port: u16) -> Option<NetworkRule> {
    let protocol = match (door, port) {
        (_, 443) | (Door::Connect, _) => Protocol::Https,
        (_, 80) | (Door::Forward, _) => Protocol::Http,
        (Door::Capture | Door::Function, _) => Protocol::Tcp,
    };
    let private = is_private(host);
    let is_possible = |address: &IpAddr| judge(*address, true, &[]).is_ok();
    let rule = NetworkRule { ports: vec![port], protocol, private, ..NetworkRule::https(exactly(host)) };
    (!matches!(host, Host::Address(address) if !is_possible(address))).then_some(rule)
}

/// Whether a rule for a host has to say `private`, as far as its name tells.
fn is_private(host: &Host) -> bool {
    match host {
        _ if is_loopback(host) => true,
        Host::Name(name) => name.as_str() == OWN_HOST,
        Host::Address(address) => judge(*address, false, &[]).is_err(),
    }
}

/// A rule as an option of the command line, in quotes where a shell needs them.
fn flag(rule: &NetworkRule) -> String {
    let text = rule.to_string();
    if text.contains(|c: char| !c.is_ascii_alphanumeric() && !"-._:/,".contains(c)) {
        format!("--allow '{}'", text.replace('\'', r"'\''"))
    } else {
        format!("--allow {text}")
    }
}
