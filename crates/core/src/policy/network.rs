//! Where a program may connect: allow-only, exact unless a rule says otherwise.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::egress::{BadHost, Host, HostName, judge};

/// One permission to connect. Anything that no rule names is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRule {
    /// The rule's name, for the audit and for messages.
    pub name: Option<String>,
    /// The host or hosts.
    pub host: HostPattern,
    /// The ports.
    pub ports: Vec<u16>,
    /// What is spoken there, and so how far it can be judged.
    pub protocol: Protocol,
    /// HTTP methods; none means any.
    pub methods: Option<Vec<String>>,
    /// Path globs; none means any.
    pub paths: Option<Vec<String>>,
    /// Whether the host may be at a private address.
    pub private: bool,
    /// The credential that requests must carry.
    pub credential: Option<String>,
}

impl NetworkRule {
    /// Any request over TLS to one host, on port 443.
    #[must_use]
    pub fn https(host: HostPattern) -> Self {
        NetworkRule {
            name: None,
            host,
            ports: vec![443],
            protocol: Protocol::Https,
            methods: None,
            paths: None,
            private: false,
            credential: None,
        }
    }

    /// Whether something that both match would be decided otherwise by `earlier`.
    fn is_decided_otherwise_by(&self, earlier: &NetworkRule) -> bool {
        let connections_meet =
            self.host.overlaps(&earlier.host) && self.ports.iter().any(|port| earlier.ports.contains(port));
        let requests_meet = || {
            meet(self.methods.as_ref(), earlier.methods.as_ref(), |one, other| one == other)
                && meet(self.paths.as_ref(), earlier.paths.as_ref(), may_meet)
        };
        let other_terms = self.credential != earlier.credential || (self.private && !earlier.private);
        connections_meet && (self.protocol != earlier.protocol || (other_terms && requests_meet()))
    }

    /// What it is called where it decided: its name, else the flags that say the same.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.to_string())
    }

    /// Whether everything that this rule allows is allowed by `other` too.
    #[must_use]
    pub fn within(&self, other: &NetworkRule) -> bool {
        let listed = |inner: &Option<Vec<String>>, outer: &Option<Vec<String>>| match (inner, outer) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(inner), Some(outer)) => inner.iter().all(|item| outer.contains(item)),
        };
        self.host.within(&other.host)
            && self.ports.iter().all(|port| other.ports.contains(port))
            && self.protocol == other.protocol
            && listed(&self.methods, &other.methods)
            && listed(&self.paths, &other.paths)
            && (other.private || !self.private)
            && self.credential == other.credential
    }
}

/// The position of the first rule of `mine` that lets something out which the rules of `base`, tried in their
/// order, don't.
///
/// A rule has to be within one of the base's, and what both match may not be decided otherwise by one before
/// that: there, another protocol would be spoken, another credential be asked for, or a private address be
/// refused. Where that earlier rule stands before this one in `mine` too, it decides in both.
pub(super) fn first_wider(mine: &[NetworkRule], base: &[NetworkRule]) -> Option<usize> {
    mine.iter().enumerate().position(|(at, rule)| {
        let decides_alike =
            |earlier: &NetworkRule| !rule.is_decided_otherwise_by(earlier) || mine[..at].contains(earlier);
        let is_granted = |outer: usize| rule.within(&base[outer]) && base[..outer].iter().all(decides_alike);
        !(0..base.len()).any(is_granted)
    })
}

/// Whether two lists have something in common; none is everything.
fn meet(one: Option<&Vec<String>>, other: Option<&Vec<String>>, alike: fn(&str, &str) -> bool) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.iter().any(|item| other.iter().any(|known| alike(item, known))),
        _ => true,
    }
}

/// Whether two globs may match one path: what stands before the first wildcard of one has to begin the other.
fn may_meet(one: &str, other: &str) -> bool {
    let start = |glob: &str| glob.find('*').map_or(glob.len(), |at| at);
    let (mine, theirs) = (start(one), start(other));
    match (mine == one.len(), theirs == other.len()) {
        (true, true) => one == other,
        // `/a/**` matches `/a` too.
        _ => {
            let common = mine.min(theirs).saturating_sub(1);
            one.as_bytes()[..common] == other.as_bytes()[..common]
        }
    }
}

/// What is spoken to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP in the clear.
    Http,
    /// HTTP over TLS that is ended by us.
    Https,
    /// Any bytes over TCP.
    Tcp,
    /// TLS that is passed through unopened.
    TlsPassthrough,
}

impl Protocol {
    /// The port of a rule that names none: RFC 9110, sections 4.2.1 and 4.2.2.
    #[must_use]
    pub fn default_port(self) -> Option<u16> {
        match self {
            Protocol::Http => Some(80),
            Protocol::Https | Protocol::TlsPassthrough => Some(443),
            Protocol::Tcp => None,
        }
    }

    /// Whether it begins with a handshake of TLS.
    #[must_use]
    pub fn has_tls(self) -> bool {
        matches!(self, Protocol::Https | Protocol::TlsPassthrough)
    }

    /// Whether requests are read, so that methods and paths can be judged.
    #[must_use]
    pub fn has_requests(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Https)
    }
}

/// The name by which a program reaches services of the machine that it runs on.
pub const OWN_HOST: &str = "host.cofferdam.internal";

/// A host, or every host one label below a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPattern(Hosts);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hosts {
    Below(HostName),
    Exactly(Host),
}

/// Why something is not a host pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHostPattern {
    /// A wildcard that would match names of many owners, or everything.
    #[error("`{0}` is too broad: names below a public suffix belong to anybody")]
    Broad(String),
    /// Something that isn't a host.
    #[error("`{text}` is not a host: {why}")]
    Host {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: BadHost,
    },
    /// The sandbox's own loopback, which no rule is about: to a program there, nothing of the host's is.
    #[error("`{0}` is the sandbox's own, and nothing outside of it")]
    Loopback(String),
    /// An address that is never let out.
    #[error("`{0}` is an address that no rule can allow")]
    Never(String),
    /// An IPv4 address in another form than the usual one.
    #[error("`{text}` is the address {address}: write that")]
    Spelling {
        /// What was written.
        text: String,
        /// What it means.
        address: IpAddr,
    },
    /// A wildcard before an address.
    #[error("`{0}` is no host: there is nothing below an address")]
    WildcardAddress(String),
}

impl HostPattern {
    /// Takes a host as [`Host::parse`] reads it, or `*.` and a name that isn't a public suffix. An IPv4 address
    /// has to be written in its usual form: what stands in a policy is read by people.
    ///
    /// # Errors
    ///
    /// [`BadHostPattern`] for anything else; nothing is guessed.
    pub fn parse(text: &str) -> Result<Self, BadHostPattern> {
        let read = |part: &str| {
            Host::parse(part.as_bytes()).map_err(|why| BadHostPattern::Host { text: text.to_owned(), why })
        };
        let Some(rest) = text.strip_prefix("*.") else {
            if text == "*" {
                return Err(BadHostPattern::Broad(text.to_owned()));
            }
            return match read(text)? {
                Host::Address(address) if !text.contains(':') && text != address.to_string() => {
                    Err(BadHostPattern::Spelling { text: text.to_owned(), address })
                }
                Host::Address(address) if address.to_canonical().is_loopback() => {
                    Err(BadHostPattern::Loopback(text.to_owned()))
                }
                Host::Name(name) if name.as_str() == "localhost" => {
                    Err(BadHostPattern::Loopback(text.to_owned()))
                }
                Host::Address(address) if judge(address, true, &[]).is_err() => {
                    Err(BadHostPattern::Never(text.to_owned()))
                }
                host => Ok(HostPattern::exactly(host)),
            };
        };
        match read(rest)? {
            Host::Address(_) => Err(BadHostPattern::WildcardAddress(text.to_owned())),
            Host::Name(name) if is_public_suffix(&name) => Err(BadHostPattern::Broad(text.to_owned())),
            Host::Name(name) => Ok(HostPattern(Hosts::Below(name))),
        }
    }

    /// This host and no other.
    #[must_use]
    pub fn exactly(host: Host) -> Self {
        HostPattern(Hosts::Exactly(host))
    }

    /// Whether it matches a host: exactly, or as a name with one label more. A wildcard matches no address.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match (&self.0, host) {
            (Hosts::Exactly(known), host) => known == host,
            (Hosts::Below(above), Host::Name(name)) => name.parent() == Some(above.as_str()),
            (Hosts::Below(_), Host::Address(_)) => false,
        }
    }

    /// The one host that it matches; none for a wildcard.
    #[must_use]
    pub fn exact(&self) -> Option<&Host> {
        match &self.0 {
            Hosts::Exactly(host) => Some(host),
            Hosts::Below(_) => None,
        }
    }

    /// Whether it matches more than one host.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        matches!(self.0, Hosts::Below(_))
    }

    /// Whether every host that this pattern matches is matched by `other` too.
    fn within(&self, other: &HostPattern) -> bool {
        match &self.0 {
            Hosts::Exactly(host) => other.matches(host),
            Hosts::Below(_) => self == other,
        }
    }

    /// Whether some host is matched by both.
    fn overlaps(&self, other: &HostPattern) -> bool {
        self.within(other) || other.within(self)
    }
}

/// Whether anybody can have a name below this one, by the Public Suffix List (both of its parts; a top-level
/// domain that it doesn't know is one), or the names below it are themselves such suffixes.
fn is_public_suffix(name: &HostName) -> bool {
    let is_suffix = |name: &str| psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix == name.as_bytes());
    is_suffix(name.as_str()) || is_suffix(&format!("a.{name}"))
}

/// The text from which the same pattern is read again; an IPv6 address without brackets.
impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Hosts::Below(name) => write!(f, "*.{name}"),
            Hosts::Exactly(host) => host.fmt(f),
        }
    }
}

/// A credential that a run wants minted. What it may do is between its issuer and the policy file;
/// the decision needs to know that it is there and how long it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRule {
    /// The name by which rules refer to it.
    pub name: String,
    /// Who mints it.
    pub issuer: String,
    /// How long it lives at most; none means as long as the run.
    pub ttl: Option<Duration>,
    /// Whether the run ends where it, or what might be another, is sent where it may not be.
    pub ends_on_misuse: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_mean_everything_or_nothing_are_refused() {
        for text in [
            "*",
            "*.com",
            "*.",
            "",
            ".",
            "a..b",
            "https://a.test",
            "a.test:443",
            "a.test/x",
            "a b.test",
            "a\0.test",
            "user@a.test",
            "-a.test",
            "*.*.test",
            "a.*.test",
            "1.2.3",
            "ä.test",
            "[::1",
            "fe80::1%1",
            "0/0",
            "*.1.2.3.4",
            "*.::1",
            "2130706433",
            "0x7f.1",
            "127.0.0.1.",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_read_once_into_one_form() {
        let shown = |text| HostPattern::parse(text).unwrap().to_string();
        assert_eq!(shown("API.Example.COM."), "api.example.com");
        assert_eq!(shown("*.Example.com"), "*.example.com");
        assert_eq!(shown("FD00::FFFF"), "fd00::ffff");
        assert_eq!(shown("[fd00::1]"), "fd00::1");
        assert_eq!(shown("::ffff:10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn a_wildcard_stands_below_a_name_that_somebody_owns() {
        for text in [
            "*.com",
            "*.co.uk",
            "*.github.io",
            "*.s3.amazonaws.com",
            "*.ck",
            "*.foo.ck",
            "*.kawasaki.jp",
            "*.test",
        ] {
            assert_eq!(HostPattern::parse(text), Err(BadHostPattern::Broad(text.to_owned())), "{text}");
        }
        for text in
            ["*.example.com", "*.example.co.uk", "*.acme.github.io", "*.corp.internal", "*.github.test"]
        {
            assert!(HostPattern::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_name_that_only_looks_like_one_is_not_matched() {
        let matches = |pattern: &str, host: &str| {
            HostPattern::parse(pattern).unwrap().matches(&Host::parse(host.as_bytes()).unwrap())
        };
        assert!(matches("*.github.test", "api.github.test") && matches("*.github.test", "API.GitHub.test."));
        for host in
            ["evilgithub.test", "github.test.evil.test", "xgithub.test", "github.test", "a.b.github.test"]
        {
            assert!(!matches("*.github.test", host) && !matches("api.github.test", host), "{host}");
        }
        assert!(matches("github.test", "github.test") && !matches("*.0.test", "10.0.0.1"));
        assert!(matches("10.0.0.1", "0xa.1") && matches("10.0.0.1", "::ffff:a00:1"));
        // An A-label is compared as it stands: what looks alike is another name.
        assert!(
            matches("xn--bcher-kva.test", "XN--bcher-KVA.test")
                && !matches("bucher.test", "xn--bcher-kva.test")
        );
    }

    #[test]
    fn a_wildcard_covers_one_label_and_not_the_apex() {
        let rule = |text| NetworkRule::https(HostPattern::parse(text).unwrap());
        assert!(rule("a.example.com").within(&rule("*.example.com")));
        assert!(!rule("example.com").within(&rule("*.example.com")));
        assert!(!rule("a.b.example.com").within(&rule("*.example.com")));
        assert!(!rule("*.example.com").within(&rule("a.example.com")));
    }
}
