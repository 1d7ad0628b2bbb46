//! Rules as `--allow` takes them: `[METHOD,METHOD ][SCHEME://]HOST[:PORT][/GLOB][,private]`, or the name of a
//! preset.
//!
//! The schemes are `http`, `tcp` and `tls` (passed through unopened); without one a rule is HTTP over TLS.
//! Methods and a glob go with requests that are read alone. An IPv6 address stands in brackets.

use std::fmt;

use super::network::{BadHostPattern, HostPattern, NetworkRule, OWN_HOST, Protocol};
use super::path_glob::{BadGlob, check_glob};
use crate::egress::{self, Host};

/// What `--allow` was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowFlag {
    /// Hosts that a client's own configuration names.
    Preset(Preset),
    /// One rule.
    Rule(NetworkRule),
}

/// A name for hosts that a client's own configuration names when a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preset {
    /// The repositories of one host: `git:HOST`.
    Git(Host),
    /// The registry that npm is configured for.
    Npm,
    /// The index that pip is configured for.
    Pypi,
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    /// The host is none.
    #[error(transparent)]
    Host(#[from] BadHostPattern),
    /// An IPv6 address without brackets.
    #[error("`{0}` has more than one colon")]
    Brackets(String),
    /// A glob that matches no path in one clear way.
    #[error(transparent)]
    Glob(#[from] BadGlob),
    /// Something that is no method stands before the host.
    #[error("`{0}` is not an HTTP method")]
    Method(String),
    /// A rule for any bytes names no port.
    #[error("a rule for TCP needs its port")]
    NoPort,
    /// This machine's own services, without saying that it is meant and which.
    #[error("this machine's own services need a port and `private`")]
    OwnHost(String),
    /// The port isn't a number that ports have.
    #[error("`{0}` is not a port")]
    Port(String),
    /// A range of addresses.
    #[error("`{0}` is a range of addresses")]
    Range(String),
    /// A scheme that rules don't have.
    #[error("`{scheme}://` is not a scheme of rules")]
    Scheme {
        /// What stands before `://`.
        scheme: String,
        /// What follows it.
        rest: String,
    },
    /// Methods or paths of bytes that aren't read.
    #[error("methods and paths can't be judged here, since these bytes are not read")]
    Unread,
    /// Something other than `private` after a comma, or that twice.
    #[error("`{0}` is nothing that a rule can say")]
    Word(String),
}

impl BadRule {
    /// What to write instead.
    #[must_use]
    pub fn instead(&self) -> String {
        match self {
            BadRule::Host(BadHostPattern::Broad(_)) => {
                "name the hosts, or a wildcard such as `*.example.com`".to_owned()
            }
            BadRule::Host(BadHostPattern::Loopback(_)) => {
                format!("for a service of this machine, write `{OWN_HOST}:PORT,private`")
            }
            BadRule::Host(BadHostPattern::Never(_)) => "leave it out: nothing there is let out".to_owned(),
            BadRule::Host(BadHostPattern::Spelling { address, .. }) => format!("write `{address}`"),
            BadRule::Host(BadHostPattern::Host { .. } | BadHostPattern::WildcardAddress(_)) => {
                "write a host such as `api.example.com`, `*.example.com` or `192.0.2.7`".to_owned()
            }
            BadRule::Brackets(text) if text.parse::<std::net::Ipv6Addr>().is_ok() => {
                format!("write `[{text}]`")
            }
            BadRule::Brackets(_) => {
                "write one host and one port; an IPv6 address stands in brackets".to_owned()
            }
            BadRule::Glob(bad) => bad.instead(),
            BadRule::Method(text) if NetworkRule::is_method(&text.to_ascii_uppercase()) => {
                format!("write `{}`", text.to_ascii_uppercase())
            }
            BadRule::Method(_) => "write methods such as `GET,HEAD` and a space before the host".to_owned(),
            BadRule::NoPort => "write `tcp://HOST:PORT`".to_owned(),
            BadRule::OwnHost(scheme) => format!("write `{scheme}{OWN_HOST}:PORT,private`"),
            BadRule::Port(_) => "write a port from 1 to 65535, or leave it out".to_owned(),
            BadRule::Range(_) => "name one address: rules have no ranges".to_owned(),
            BadRule::Scheme { scheme, rest } if scheme == "https" => {
                format!("write `{rest}`: a rule is HTTP over TLS where it doesn't say otherwise")
            }
            BadRule::Scheme { .. } => {
                "write `http://`, `tcp://`, `tls://` or none, which is HTTP over TLS".to_owned()
            }
            BadRule::Unread => "leave them out, or let it be HTTP by leaving the scheme out".to_owned(),
            BadRule::Word(_) => "`,private` may stand once, at the end".to_owned(),
        }
    }
}

const PRIVATE: &str = ",private";

impl NetworkRule {
    /// Reads what `--allow` takes. A preset's name is a preset; a host of that name is written with its port.
    ///
    /// # Errors
    ///
    /// [`BadRule`] says what is wrong first, and [what to write instead](BadRule::instead).
    pub fn parse_flag(text: &str) -> Result<AllowFlag, BadRule> {
        if let Some(preset) = preset(text) {
            return preset.map(AllowFlag::Preset);
        }
        let (text, private) = match text.strip_suffix(PRIVATE) {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (methods, target) = match text.rsplit_once(' ') {
            Some((methods, target)) => (Some(self::methods(methods)?), target),
            None => (None, text),
        };
        let (protocol, target) = scheme(target)?;
        let (authority, glob) = target.split_at(target.find('/').unwrap_or(target.len()));
        let (host, port) = host_and_port(authority)?;
        let host = HostPattern::parse(host)?;
        let is_number =
            |text: &str| !text.is_empty() && text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit());
        if matches!(host.exact(), Some(Host::Address(_))) && glob.strip_prefix('/').is_some_and(is_number) {
            return Err(BadRule::Range(target.to_owned()));
        }
        let is_own = host.to_string() == OWN_HOST;
        if is_own && !(private && port.is_some()) {
            return Err(BadRule::OwnHost(scheme_of(protocol).to_owned()));
        }
        if (methods.is_some() || !glob.is_empty()) && !protocol.has_requests() {
            return Err(BadRule::Unread);
        }
        if !glob.is_empty() {
            check_glob(glob)?;
        }
        if glob.ends_with(PRIVATE) {
            return Err(BadRule::Word(PRIVATE.to_owned()));
        }
        Ok(AllowFlag::Rule(NetworkRule {
            ports: vec![port.or(protocol.default_port()).ok_or(BadRule::NoPort)?],
            protocol,
            methods,
            paths: (!glob.is_empty()).then(|| vec![glob.to_owned()]),
            private,
            ..NetworkRule::https(host)
        }))
    }

    /// Whether a text is a method that rules can name: a token of RFC 9110, section 5.6.2, in capitals.
    #[must_use]
    pub fn is_method(text: &str) -> bool {
        let known =
            |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        text.starts_with(|first: char| first.is_ascii_uppercase()) && text.bytes().all(known)
    }

    /// The flags that together say the same: one for each port and each path. A name and a credential are not
    /// in them.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        if self.methods.as_ref().is_some_and(Vec::is_empty) {
            return vec![];
        }
        let methods = self.methods.as_ref().map(|methods| methods.join(",") + " ").unwrap_or_default();
        let end = if self.private { PRIVATE } else { "" };
        let anywhere = vec![String::new()];
        let paths = self.paths.as_ref().unwrap_or(&anywhere);
        let flag = |port: u16, path: &str| {
            let (scheme, authority) = (scheme_of(self.protocol), self.authority(port, path.is_empty()));
            // The comma of a path that ends like a rule is told from a rule's.
            let path =
                path.strip_suffix(PRIVATE).map(|path| format!("{path}%2Cprivate")).unwrap_or(path.to_owned());
            format!("{methods}{scheme}{authority}{path}{end}")
        };
        self.ports.iter().flat_map(|port| paths.iter().map(|path| flag(*port, path))).collect()
    }

    /// The host, and the port where it has to be said.
    fn authority(&self, port: u16, is_last: bool) -> String {
        let host = match self.host.exact() {
            Some(host) => egress::Bracketed(host).to_string(),
            None => self.host.to_string(),
        };
        // What else a preset would be.
        let is_alone = is_last && self.methods.is_none() && self.protocol == Protocol::Https && !self.private;
        let is_preset = is_alone && preset(&host).is_some();
        if self.protocol.default_port() == Some(port) && host != OWN_HOST && !is_preset {
            return host;
        }
        format!("{host}:{port}")
    }
}

/// The flags that say the same, with `;` between them.
impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flags().join("; "))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Preset::Git(host) => write!(f, "git:{}", egress::Bracketed(host)),
            Preset::Npm => f.write_str("npm"),
            Preset::Pypi => f.write_str("pypi"),
        }
    }
}

/// The text from which the same is read again.
impl fmt::Display for AllowFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllowFlag::Preset(preset) => preset.fmt(f),
            AllowFlag::Rule(rule) => rule.fmt(f),
        }
    }
}

/// The preset that a text names, if it names one. `git:` and a port is a host with that name.
fn preset(text: &str) -> Option<Result<Preset, BadRule>> {
    match text {
        "npm" => return Some(Ok(Preset::Npm)),
        "pypi" => return Some(Ok(Preset::Pypi)),
        _ => {}
    }
    let host = text.strip_prefix("git:")?;
    let is_port = host.split(['/', ',']).next().is_some_and(|first| egress::port(first.as_bytes()).is_some());
    if host.starts_with("//") || is_port {
        return None;
    }
    let exact = || {
        let pattern = HostPattern::parse(host)?;
        let broad = || BadRule::Host(BadHostPattern::Broad(host.to_owned()));
        pattern.exact().cloned().map(Preset::Git).ok_or_else(broad)
    };
    Some(exact())
}

fn methods(text: &str) -> Result<Vec<String>, BadRule> {
    let method = |text: &str| match NetworkRule::is_method(text) {
        true => Ok(text.to_owned()),
        false => Err(BadRule::Method(text.to_owned())),
    };
    text.split(',').map(method).collect()
}

const SCHEMES: [(&str, Protocol); 3] =
    [("http", Protocol::Http), ("tcp", Protocol::Tcp), ("tls", Protocol::TlsPassthrough)];

fn scheme(target: &str) -> Result<(Protocol, &str), BadRule> {
    let Some((scheme, rest)) = target.split_once("://") else { return Ok((Protocol::Https, target)) };
    let known = SCHEMES.iter().find(|(name, _)| *name == scheme);
    let unknown = || BadRule::Scheme { scheme: scheme.to_owned(), rest: rest.to_owned() };
    known.map(|(_, protocol)| (*protocol, rest)).ok_or_else(unknown)
}

fn scheme_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http://",
        Protocol::Https => "",
        Protocol::Tcp => "tcp://",
        Protocol::TlsPassthrough => "tls://",
    }
}

fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), BadRule> {
    let end = match authority.strip_prefix('[') {
        Some(_) => authority.find(']').map_or(authority.len(), |at| at + 1),
        None if authority.matches(':').count() > 1 => return Err(BadRule::Brackets(authority.to_owned())),
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    match rest.strip_prefix(':') {
        Some(digits) => {
            let port = egress::port(digits.as_bytes()).ok_or_else(|| BadRule::Port(digits.to_owned()))?;
            Ok((host, Some(port)))
        }
        None if rest.is_empty() => Ok((host, None)),
        None => Err(BadRule::Port(rest.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;

    fn rule(text: &str) -> NetworkRule {
        match NetworkRule::parse_flag(text).unwrap_or_else(|bad| panic!("{text}: {bad}")) {
            AllowFlag::Rule(rule) => rule,
            AllowFlag::Preset(preset) => panic!("{preset}"),
        }
    }

    #[test]
    fn a_host_alone_is_any_request_over_tls() {
        assert_eq!(rule("api.test"), NetworkRule::https(HostPattern::parse("api.test").unwrap()));
    }

    #[test]
    fn every_part_of_a_rule_can_be_said() {
        let full = rule("GET,HEAD *.api.test:8443/v1/**,private");
        assert_eq!(full.host.to_string(), "*.api.test");
        assert_eq!((&full.ports[..], full.protocol, full.private), (&[8443][..], Protocol::Https, true));
        assert_eq!(full.methods.unwrap(), ["GET", "HEAD"]);
        assert_eq!(full.paths.unwrap(), ["/v1/**"]);
        for (text, protocol, port) in [
            ("http://a.test", Protocol::Http, 80),
            ("http://a.test:8080", Protocol::Http, 8080),
            ("tcp://a.test:5432", Protocol::Tcp, 5432),
            ("tls://a.test", Protocol::TlsPassthrough, 443),
            ("tls://a.test:6443,private", Protocol::TlsPassthrough, 6443),
            ("POST http://a.test/x", Protocol::Http, 80),
            ("[fd00::1]:8080,private", Protocol::Https, 8080),
            ("host.cofferdam.internal:8080,private", Protocol::Https, 8080),
            ("pypi:443", Protocol::Https, 443),
            ("git:443", Protocol::Https, 443),
        ] {
            let rule = rule(text);
            assert_eq!((rule.protocol, &rule.ports[..]), (protocol, &[port][..]), "{text}");
        }
    }

    #[test]
    fn presets_have_names() {
        for text in ["pypi", "npm", "git:github.test", "git:[fd00::1]"] {
            let flag = NetworkRule::parse_flag(text).unwrap();
            assert!(matches!(flag, AllowFlag::Preset(_)), "{text}");
            assert_eq!(flag.to_string(), text);
        }
        for text in ["git:", "git:*.github.test", "git:a.test:22", "git:a.test/x", "git:a.test,private"] {
            assert!(NetworkRule::parse_flag(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_told_what_to_write() {
        for (text, instead) in [
            ("", "api.example.com"),
            ("*", "*.example.com"),
            ("*.com", "*.example.com"),
            ("https://a.test/x", "write `a.test/x`"),
            ("ftp://a.test", "http://"),
            ("get a.test", "write `GET`"),
            ("GET,  a.test", "GET,HEAD"),
            (" a.test", "GET,HEAD"),
            ("a.test:0", "1 to 65535"),
            ("a.test:+443", "1 to 65535"),
            ("a.test:", "1 to 65535"),
            ("[::1]x", "1 to 65535"),
            ("::1", "write `[::1]`"),
            ("a.test:443:1", "one host and one port"),
            ("tcp://a.test", "tcp://HOST:PORT"),
            ("tcp://a.test:1/x", "leave them out"),
            ("GET tls://a.test", "leave them out"),
            ("a.test,privat", "api.example.com"),
            ("a.test/x,private,private", "once"),
            ("a.test/x?y=1", "queries"),
            ("a.test/../x", "leads to"),
            ("u@a.test", "api.example.com"),
            ("2130706433", "write `127.0.0.1`"),
            ("http://127.0.0.1:80,private", "host.cofferdam.internal:PORT,private"),
            ("http://localhost:80", "host.cofferdam.internal:PORT,private"),
            ("[::1]:80", "host.cofferdam.internal:PORT,private"),
            ("169.254.169.254,private", "leave it out"),
            ("host.cofferdam.internal", "host.cofferdam.internal:PORT,private"),
            ("tcp://host.cofferdam.internal:1", "tcp://host.cofferdam.internal:PORT,private"),
            ("host.cofferdam.internal,private", "host.cofferdam.internal:PORT,private"),
            ("b\u{fc}cher.test", "api.example.com"),
        ] {
            let bad = NetworkRule::parse_flag(text).expect_err(text);
            assert!(bad.instead().contains(instead), "{text}: {bad}; {}", bad.instead());
            assert!(!bad.to_string().is_empty());
        }
    }

    #[test]
    fn a_rule_with_several_ports_and_paths_is_several_flags() {
        let mut several = rule("GET a.test/x");
        several.ports = vec![443, 8443];
        several.paths = Some(vec!["/x".into(), "/y,private".into()]);
        let flags =
            ["GET a.test/x", "GET a.test/y%2Cprivate", "GET a.test:8443/x", "GET a.test:8443/y%2Cprivate"];
        assert_eq!(several.flags(), flags);
        assert_eq!(several.to_string(), flags.join("; "));
        several.methods = Some(vec![]);
        assert!(several.flags().is_empty(), "it allows nothing");
    }

    fn rules() -> impl Strategy<Value = NetworkRule> {
        let hosts = ["a.test", "*.a.test", "10.0.0.1", "fd00::1", "pypi", "git", "npm", OWN_HOST];
        let protocols = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TlsPassthrough];
        let methods = option::of(subsequence(vec!["GET", "POST", "M-SEARCH"], 1..3));
        let path = option::of(select(vec!["/", "/x", "/**", "/a/*/b", "/a:b@c,d", "/a%20b", "/x,private"]));
        (
            select(hosts.to_vec()),
            select(vec![80u16, 443, 5432]),
            select(protocols.to_vec()),
            methods,
            path,
            any::<bool>(),
        )
            .prop_map(|(host, port, protocol, methods, path, private)| {
                let own = host == OWN_HOST;
                let read = protocol.has_requests();
                let owned = |methods: Vec<&str>| methods.into_iter().map(str::to_owned).collect();
                NetworkRule {
                    ports: vec![port],
                    protocol,
                    methods: methods.filter(|_| read).map(owned),
                    paths: path.filter(|_| read).map(|path| vec![path.to_owned()]),
                    private: private || own,
                    ..NetworkRule::https(HostPattern::parse(host).unwrap())
                }
            })
    }

    proptest! {
        #[test]
        fn a_rule_reads_back_from_its_flag(rule in rules()) {
            let mut rule = rule;
            let flag = rule.to_string();
            let read = NetworkRule::parse_flag(&flag);
            if let Some(paths) = &mut rule.paths {
                paths.iter_mut().for_each(|path| *path = path.replace(",private", "%2Cprivate"));
            }
            prop_assert_eq!(read, Ok(AllowFlag::Rule(rule)), "{}", flag);
        }

        #[test]
        fn what_is_read_reads_back(text in r"((GET|PUT|get)[, ])?((http|tcp|tls|git):(//)?)?(\*\.)?[a-c.:0-9\[\]]{0,12}(:[0-9]{1,5})?(/[a*/%2C.,]{0,8})?(,private)?") {
            if let Ok(flag) = NetworkRule::parse_flag(&text) {
                prop_assert_eq!(NetworkRule::parse_flag(&flag.to_string()), Ok(flag));
            }
        }

        #[test]
        fn no_text_panics(letters in vec(any::<char>(), 0..40)) {
            let text: String = letters.into_iter().collect();
            if let Err(bad) = NetworkRule::parse_flag(&text) {
                prop_assert!(!bad.instead().is_empty());
            }
        }
    }
}
