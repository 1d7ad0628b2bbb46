//! Where a program may connect: allow-only, exact unless a rule says otherwise.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

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

/// A host, or every host one label below a name. Lower case, without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPattern {
    /// The name, or for a wildcard what follows `*.`.
    name: String,
    wildcard: bool,
}

/// Why something is not a host pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHost {
    /// A wildcard that would match a whole top-level domain, or everything.
    #[error("`{0}` is too broad: a wildcard needs at least two labels after `*.`")]
    Broad(String),
    /// Something that isn't a host name: a URL, a port, a path, a byte that no name holds.
    #[error("`{0}` is not a host name: write `example.com`, `*.example.com` or an address")]
    Malformed(String),
}

impl HostPattern {
    /// Takes a host, an address, or `*.` and a name of at least two labels.
    ///
    /// # Errors
    ///
    /// [`BadHost`] for anything else; nothing is guessed.
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        let malformed = || BadHost::Malformed(text.to_owned());
        let lower = text.to_ascii_lowercase();
        if let Ok(address) = lower.parse::<IpAddr>() {
            return Ok(HostPattern { name: address.to_string(), wildcard: false });
        }
        let (wildcard, rest) = match lower.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None if lower == "*" => return Err(BadHost::Broad(text.to_owned())),
            None => (false, lower.as_str()),
        };
        let name = rest.strip_suffix('.').unwrap_or(rest);
        let labels: Vec<_> = name.split('.').collect();
        let all_numeric = labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        if name.len() > 253 || all_numeric || !labels.iter().all(|label| is_label(label)) {
            return Err(malformed());
        }
        if wildcard && labels.len() < 2 {
            return Err(BadHost::Broad(text.to_owned()));
        }
        Ok(HostPattern { name: name.to_owned(), wildcard })
    }

    /// Whether every host that this pattern matches is matched by `other` too.
    fn within(&self, other: &HostPattern) -> bool {
        match (self.wildcard, other.wildcard) {
            (true, false) => false,
            (false, true) => {
                self.name.split_once('.').is_some_and(|(_, parent)| parent == other.name)
                    && self.name.parse::<IpAddr>().is_err()
            }
            _ => self.name == other.name,
        }
    }
}

/// A label of a host name: RFC 1123, section 2.1, with the underscore that service names use.
fn is_label(label: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&label.len())
        && label.bytes().all(allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.name)
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
            "[::1]",
            "0/0",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_read_once_into_one_form() {
        let shown = |text| HostPattern::parse(text).unwrap().to_string();
        assert_eq!(shown("API.Example.COM."), "api.example.com");
        assert_eq!(shown("*.Example.com"), "*.example.com");
        assert_eq!(shown("::FFFF"), "::ffff");
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
