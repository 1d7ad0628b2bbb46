//! Why a decision comes out as it does: what each rule says to it, and how much the deciding one lets out.

use std::fmt;

use super::address::judge;
use super::decide::{ConnectPermit, Destination, Door, Rules, has_method, has_path, names};
use super::denial::{Denial, DenialCode};
use super::host::Host;
use super::path::PlainPath;
use super::{RequestHead, authority};
use crate::policy::{NetworkRule, Protocol};

/// What may be asked: a connection, or a request on it.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The host.
    pub host: &'a Host,
    /// The port.
    pub port: u16,
    /// What would be spoken there, where it is known: HTTP with or without TLS, or any bytes.
    pub spoken: Option<Protocol>,
    /// The method and the path, where it is about a request.
    pub request: Option<(&'a [u8], &'a [u8])>,
}

/// The answer, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The position of the rule that allows it, or why none does.
    pub verdict: Result<usize, Denial>,
    /// What each rule says, in their order.
    pub rules: Vec<Says>,
    /// What else the rule that allows it lets out.
    pub lets_out: Vec<Breadth>,
}

/// What one rule says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// It would allow it, but one before it has decided.
    AlsoAllows,
    /// It allows it, and decides.
    Decides,
    /// It allows the host, and not the address that this is.
    OtherAddress,
    /// It is for another host.
    OtherHost,
    /// It is for another method.
    OtherMethod,
    /// It is for another path.
    OtherPath,
    /// It is for another port.
    OtherPort,
    /// It is for another scheme.
    OtherScheme,
    /// It is for something else that is spoken; one before it has decided what is.
    OtherProtocol,
}

impl Says {
    /// The same in words, which follow the rule's name.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Says::AlsoAllows => "would allow it; a rule before it decides",
            Says::Decides => "allows it",
            Says::OtherAddress => "allows the host, and no address of this kind",
            Says::OtherHost => "is for another host",
            Says::OtherMethod => "is for other methods",
            Says::OtherPath => "is for other paths",
            Says::OtherPort => "is for other ports",
            Says::OtherScheme => "is for something else than that scheme",
            Says::OtherProtocol => "speaks something else here; a rule before it has decided what is spoken",
        }
    }
}

/// A way in which a rule lets out more than one may think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breadth {
    /// Any bytes over TCP.
    AnyBytes,
    /// Any method, so also those that upload.
    AnyMethod,
    /// Any path, so also an account of somebody else's.
    AnyPath,
    /// Every name one label below another.
    EveryName,
    /// Addresses of this machine and of private networks.
    Private,
    /// TLS that isn't opened: whatever the servers behind that address serve.
    WholeCdn,
}

impl Breadth {
    /// What a rule lets out, the widest first.
    #[must_use]
    pub fn of(rule: &NetworkRule) -> Vec<Breadth> {
        let is_read = rule.protocol.has_requests();
        let all = [
            (Breadth::AnyBytes, rule.protocol == Protocol::Tcp),
            (Breadth::WholeCdn, rule.protocol == Protocol::TlsPassthrough),
            (Breadth::EveryName, rule.host.is_wildcard()),
            (Breadth::AnyMethod, is_read && rule.methods.is_none()),
            (Breadth::AnyPath, is_read && rule.paths.is_none()),
            (Breadth::Private, rule.private),
        ];
        all.into_iter().filter(|(_, is_so)| *is_so).map(|(breadth, _)| breadth).collect()
    }
}

impl fmt::Display for Breadth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Breadth::AnyBytes => "any bytes: nothing that goes over it is read, and it may carry any protocol",
            Breadth::AnyMethod => "any method: a program may upload as well as download",
            Breadth::AnyPath => {
                "any path: a program may use every account and function of the host, also with a key that it \
                 brings itself"
            }
            Breadth::EveryName => "every name one label below, also ones that are added later",
            Breadth::Private => "addresses of this machine and of private networks",
            Breadth::WholeCdn => {
                "TLS that nobody opens: any method, any path, and every site that the servers behind this name \
                 serve"
            }
        })
    }
}

impl Rules {
    /// Explains what a question is answered with where every name of the request is its host's.
    #[must_use]
    pub fn explain(&self, question: &Question) -> Explanation {
        let mut rules: Vec<_> = self.says(question);
        let address = rules
            .iter()
            .position(|says| *says == Says::Decides)
            .map_or(Ok(()), |at| self.address(question, at).inspect_err(|_| rules[at] = Says::OtherAddress));
        let spoken = self.spoken_by(question);
        if let (Err(_), Some(at)) = (&spoken, rules.iter().position(|says| *says == Says::Decides)) {
            rules[at] = Says::OtherScheme;
        }
        let verdict = self.answer(question).and(spoken).and(address);
        let decided = rules.iter().position(|says| *says == Says::Decides);
        let lets_out = decided.map(|at| Breadth::of(&self.as_slice()[at])).unwrap_or_default();
        // A rule that decides is there exactly where nothing was refused.
        let verdict = verdict.and_then(|()| decided.ok_or_else(|| self.none(question)));
        Explanation { verdict, rules, lets_out }
    }

    /// The decision itself.
    fn answer(&self, question: &Question) -> Result<(), Denial> {
        let Question { host, port, spoken, request } = *question;
        let door = match spoken {
            Some(Protocol::Http) => Door::Forward,
            Some(Protocol::Https) => Door::Connect,
            _ => Door::Capture,
        };
        let permit = self.connection(door, host, port)?;
        let Some((method, path)) = request.filter(|_| permit.to().protocol().has_requests()) else {
            return Ok(());
        };
        let (authority, name) = (format!("{}:{port}", authority::Bracketed(host)), host.to_string());
        let authorities = &[authority.as_bytes()][..];
        let server_name = matches!(host, Host::Name(_)).then_some(name.as_bytes());
        self.request(&permit, &RequestHead { authorities, server_name, method, path }).map(drop)
    }

    /// Whether the rule that decides carries what would be spoken.
    fn spoken_by(&self, question: &Question) -> Result<(), Denial> {
        let Some(spoken) = question.spoken else { return Ok(()) };
        let Ok(permit) = self.connection(Door::Capture, question.host, question.port) else { return Ok(()) };
        match permit.to().protocol() {
            Protocol::Tcp => Ok(()),
            Protocol::TlsPassthrough if spoken == Protocol::Https => Ok(()),
            protocol if protocol == spoken => Ok(()),
            _ => Err(self.spoken(&permit, spoken)),
        }
    }

    /// Whether the rule at a place lets an address be dialled. Of a name only its lookup tells.
    fn address(&self, question: &Question, at: usize) -> Result<(), Denial> {
        let Host::Address(ip) = question.host else { return Ok(()) };
        let private = self.as_slice()[at].private;
        let Err(why) = judge(*ip, private, &[]) else { return Ok(()) };
        let permit = self.connection(Door::Capture, question.host, question.port)?;
        let denial = permit.denial(DenialCode::PrivateAddress);
        Err(super::miss::address(denial, why, permit.to(), None))
    }

    fn none(&self, question: &Question) -> Denial {
        super::miss::connection(self.as_slice(), Door::Capture, question.host, question.port)
    }

    fn says(&self, question: &Question) -> Vec<Says> {
        let spoken = self.connection(Door::Capture, question.host, question.port).ok();
        let spoken = spoken.as_ref().map(ConnectPermit::to).map(Destination::protocol);
        let mut is_decided = false;
        let mut say = |rule: &NetworkRule| {
            let misses = misses(rule, question, spoken);
            let says = misses.unwrap_or(if is_decided { Says::AlsoAllows } else { Says::Decides });
            is_decided |= says == Says::Decides;
            says
        };
        self.as_slice().iter().map(&mut say).collect()
    }
}

/// The first clause by which a rule isn't for what is asked; none where it is.
fn misses(rule: &NetworkRule, question: &Question, spoken: Option<Protocol>) -> Option<Says> {
    let Question { host, port, request, .. } = *question;
    if !names(rule, host) {
        return Some(Says::OtherHost);
    }
    if !rule.ports.contains(&port) {
        return Some(Says::OtherPort);
    }
    if spoken != Some(rule.protocol) {
        return Some(Says::OtherProtocol);
    }
    let (method, path) = request?;
    if !has_method(rule, method) {
        return Some(Says::OtherMethod);
    }
    (!has_path(rule, PlainPath::new(path).as_ref())).then_some(Says::OtherPath)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::AllowFlag;

    fn rules(flags: &[&str]) -> Rules {
        let rule = |flag: &&str| match NetworkRule::parse_flag(flag) {
            Ok(AllowFlag::Rule(rule)) => rule,
            other => panic!("{flag}: {other:?}"),
        };
        Rules::new(&flags.iter().map(rule).collect::<Vec<_>>())
    }

    #[test]
    fn each_rule_has_its_say_and_the_first_that_allows_it_decides() {
        let rules = rules(&[
            "b.test",
            "tcp://a.test:22",
            "GET a.test/x/**",
            "tls://a.test",
            "POST a.test",
            "a.test",
            "GET *.a.test",
        ]);
        let host = Host::parse(b"a.test").unwrap();
        let explained = rules.explain(&Question {
            host: &host,
            port: 443,
            spoken: None,
            request: Some((b"POST", b"/y")),
        });
        assert_eq!(explained.verdict, Ok(4));
        assert_eq!(
            explained.rules,
            [
                Says::OtherHost,
                Says::OtherPort,
                Says::OtherMethod,
                Says::OtherProtocol,
                Says::Decides,
                Says::AlsoAllows,
                Says::OtherHost
            ]
        );
        assert_eq!(explained.lets_out, [Breadth::AnyPath]);
        let explained =
            rules.explain(&Question { host: &host, port: 443, spoken: None, request: Some((b"GET", b"/y")) });
        assert_eq!((explained.verdict, explained.rules[2]), (Ok(5), Says::OtherPath));
    }

    #[test]
    fn what_nothing_allows_is_explained_by_its_refusal() {
        let rules = rules(&["GET a.test/x"]);
        let host = Host::parse(b"a.test").unwrap();
        for (port, request, code) in [
            (443, Some((&b"PUT"[..], &b"/x"[..])), DenialCode::MethodNotAllowed),
            (443, Some((b"GET", b"/y")), DenialCode::PathNotAllowed),
            (80, None, DenialCode::PortNotAllowed),
        ] {
            let explained = rules.explain(&Question { host: &host, port, spoken: None, request });
            assert_eq!(explained.verdict.unwrap_err().code, code);
            assert!(explained.lets_out.is_empty() && !explained.rules.contains(&Says::Decides));
        }
        let explained = rules.explain(&Question { host: &host, port: 443, spoken: None, request: None });
        assert_eq!(explained.verdict, Ok(0), "a connection may be");
    }

    #[test]
    fn an_address_that_no_run_would_dial_is_not_allowed() {
        for (flag, host, code) in [
            ("http://10.0.0.5", "10.0.0.5", Some(DenialCode::PrivateAddress)),
            ("http://10.0.0.5,private", "10.0.0.5", None),
            ("http://203.0.113.9", "203.0.113.9", None),
        ] {
            let host = Host::parse(host.as_bytes()).unwrap();
            let explained =
                rules(&[flag]).explain(&Question { host: &host, port: 80, spoken: None, request: None });
            assert_eq!(explained.verdict.err().map(|denial| denial.code), code, "{flag}");
            assert_eq!(explained.rules[0] == Says::OtherAddress, code.is_some(), "{flag}");
        }
    }

    #[test]
    fn a_broad_rule_says_what_it_lets_out() {
        for (flag, breadths) in [
            ("GET a.test/x", &[][..]),
            ("a.test", &[Breadth::AnyMethod, Breadth::AnyPath]),
            ("GET *.a.test", &[Breadth::EveryName, Breadth::AnyPath]),
            ("tls://a.test", &[Breadth::WholeCdn]),
            ("tcp://a.test:22,private", &[Breadth::AnyBytes, Breadth::Private]),
        ] {
            assert_eq!(Breadth::of(&rules(&[flag]).as_slice()[0]), breadths, "{flag}");
        }
    }
}
