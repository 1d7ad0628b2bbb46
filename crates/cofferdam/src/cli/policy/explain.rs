//! `cofferdam policy explain HOST [METHOD PATH]`: what a policy says to a connection or a request, and why.

use std::io::{self, Write};

use cofferdam_core::egress::{Authority, Explanation, Question, Rules};
use cofferdam_core::policy::{NetworkRule, Policy, Protocol};

/// What is asked.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// A host, and maybe a port.
    pub(crate) host: &'a str,
    /// A method and a path.
    pub(crate) request: Option<(&'a str, &'a str)>,
    /// The port where none is said: that of a URL's scheme.
    usual_port: Option<u16>,
    /// What that says is spoken.
    spoken: Option<Protocol>,
}

impl<'a> Asked<'a> {
    /// What is asked by words: a host and maybe a request, or a URL, which is both (`GET`, unless a method is said).
    pub(crate) fn new(host: &'a str, method: Option<&'a str>, path: Option<&'a str>) -> Self {
        let request = method.map(|method| (method, path.unwrap_or("/")));
        if let Some(place) = host.strip_prefix("tcp://") {
            return Asked { host: place, request, usual_port: None, spoken: Some(Protocol::Tcp) };
        }
        let schemes = [("https://", 443, Protocol::Https), ("http://", 80, Protocol::Http)];
        let url = schemes.iter().find_map(|(scheme, port, protocol)| {
            Some((host.strip_prefix(scheme)?, Some(*port), Some(*protocol)))
        });
        let Some((rest, usual_port, spoken)) = url else {
            return Asked { host, request, usual_port: None, spoken: None };
        };
        let (host, its_path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let its_path = its_path.split('#').next().filter(|path| path.starts_with('/')).unwrap_or("/");
        let request = Some((method.unwrap_or("GET"), path.unwrap_or(its_path)));
        Asked { host, request, usual_port, spoken }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    /// What stands for a method or a path is none.
    #[error("`{0}` is not {1}")]
    Request(String, &'static str),
    /// It is about a scheme that no rule has.
    #[error("`{0}` is not a URL that rules are about: they know https://, http:// and tcp://")]
    Scheme(String),
    /// What was asked about is no host.
    #[error("`{text}` is not a host: {why}")]
    Host {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The output can't be written.
    #[error("could not write the explanation: {0}")]
    Write(#[from] io::Error),
}

/// Explains what is answered, and says whether it is yes.
///
/// # Errors
///
/// [`ExplainError`] if it is asked about no host, or `out` can't be written.
pub(crate) fn explain(policy: &Policy, asked: &Asked<'_>, out: &mut dyn Write) -> Result<bool, ExplainError> {
    let rules = Rules::new(&policy.network);
    let (host, port) = place(asked, &policy.network)?;
    if let Some((method, path)) = asked.request {
        let refused = |text: &str, what| Err(ExplainError::Request(text.escape_debug().to_string(), what));
        match (NetworkRule::is_method(method), path.starts_with('/')) {
            (false, _) => return refused(method, "an HTTP method such as GET: write HOST METHOD PATH"),
            (_, false) => return refused(path, "a path: it begins with `/`"),
            _ => {}
        }
    }
    let request = asked.request.map(|(method, path)| (method.as_bytes(), path.as_bytes()));
    let explanation = rules.explain(&Question { host: &host, port, spoken: asked.spoken, request });
    let what = match asked.request {
        Some((method, path)) => format!("{method} {}", path.escape_debug()),
        None => "a connection".to_owned(),
    };
    let Explanation { verdict, rules: says, lets_out } = &explanation;
    match verdict {
        Ok(at) => writeln!(out, "{host}:{port}, {what}: allowed by `{}`", policy.network[*at].label())?,
        Err(denial) => {
            writeln!(out, "{host}:{port}, {what}: denied ({})", denial.code)?;
            if let Some(needs) = &denial.needs {
                writeln!(out, "  it would take: {needs}")?;
            }
        }
    }
    if policy.network.is_empty() {
        writeln!(out, "  there are no rules: nothing leaves")?;
    }
    for (rule, says) in policy.network.iter().zip(says) {
        writeln!(out, "  `{}` {}", rule.label(), says.words())?;
    }
    if !lets_out.is_empty() {
        writeln!(out, "that rule lets out:")?;
    }
    for breadth in lets_out {
        writeln!(out, "  {breadth}")?;
    }
    Ok(verdict.is_ok())
}

/// A host and its port: the one that was typed, else the scheme's, else that of the first rule for the host, else
/// 443.
fn place(
    asked: &Asked<'_>,
    rules: &[NetworkRule],
) -> Result<(cofferdam_core::egress::Host, u16), ExplainError> {
    const USUAL: u16 = 443;
    let text = asked.host;
    if text.contains("://") {
        return Err(ExplainError::Scheme(text.escape_debug().to_string()));
    }
    let read = |port| {
        Authority::parse_with_default(text.as_bytes(), port)
            .map_err(|bad| ExplainError::Host { text: text.escape_debug().to_string(), why: bad.to_string() })
    };
    let (one, other) = (read(USUAL)?, read(USUAL + 1)?);
    let host = one.host().clone();
    if one.port() == other.port() {
        return Ok((host, one.port())); // it was typed
    }
    if let Some(port) = asked.usual_port {
        return Ok((host, port));
    }
    let named = rules.iter().find(|rule| rule.host.matches(&host)).and_then(|rule| rule.ports.first());
    Ok((host, named.copied().unwrap_or(USUAL)))
}

#[cfg(test)]
mod tests {
    use cofferdam_core::policy::{AllowFlag, Ceiling, Layer};

    use super::*;

    fn policy(flags: &[&str]) -> Policy {
        let rule = |flag: &&str| match NetworkRule::parse_flag(flag) {
            Ok(AllowFlag::Rule(rule)) => rule,
            other => panic!("{flag}: {other:?}"),
        };
        let network = flags.iter().map(rule).collect();
        Policy::resolve(&[Layer { network, ..Layer::default() }], &Ceiling::default()).unwrap()
    }

    fn said(flags: &[&str], host: &str, request: Option<(&str, &str)>) -> (bool, String) {
        let (method, path) = request.unzip();
        let mut out = vec![];
        let yes = explain(&policy(flags), &Asked::new(host, method, path), &mut out).unwrap();
        (yes, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_url_is_a_host_a_port_and_a_request() {
        let flags = ["GET a.test/x/**", "http://b.test"];
        let (yes, text) = said(&flags, "https://a.test/x/y?q=1#z", None);
        assert!(yes && text.starts_with("a.test:443, GET /x/y?q=1: allowed"), "{text}");
        assert!(!said(&flags, "https://a.test", None).0 && !said(&flags, "https://a.test?/x/", None).0);
        assert!(said(&flags, "http://b.test", None).0 && !said(&flags, "https://b.test/", None).0);
        assert!(!said(&flags, "https://a.test:8443/x/y", None).0);
        let (yes, text) = said(&flags, "http://a.test:443/x/y", None);
        assert!(!yes && text.contains("is for something else than that scheme"), "{text}");
        assert!(!said(&flags, "https://b.test:80", None).0);
        let (yes, text) = said(&flags, "http://c.test:3000/", None);
        assert!(!yes && text.contains("--allow http://c.test:3000"), "{text}");
        for bad in [
            ("a.test", "get", "/"),
            ("a.test", "GET", "x"),
            ("a.test", "/x", "/"),
            ("ftp://a.test", "GET", "/"),
        ] {
            let asked = Asked::new(bad.0, Some(bad.1), Some(bad.2));
            assert!(explain(&policy(&flags), &asked, &mut vec![]).is_err(), "{bad:?}");
        }
        assert!(said(&["tcp://db.test:5432"], "tcp://db.test:5432", None).0);
        let asked = Asked::new("https://a.test/x/y", Some("POST"), None);
        assert!(!explain(&policy(&flags), &asked, &mut vec![]).unwrap());
    }

    #[test]
    fn what_is_allowed_says_by_which_rule_and_what_else_that_lets_out() {
        let (yes, text) = said(&["b.test", "GET a.test"], "a.test", Some(("GET", "/x")));
        assert!(yes);
        assert!(text.starts_with("a.test:443, GET /x: allowed by `GET a.test`\n"), "{text}");
        assert!(
            text.contains("`b.test` is for another host") && text.contains("that rule lets out:\n  any path")
        );
    }

    #[test]
    fn what_is_denied_says_what_it_would_take() {
        let (yes, text) = said(&["GET a.test/x"], "a.test", Some(("POST", "/x")));
        assert!(!yes && text.contains("denied (method_not_allowed)"), "{text}");
        assert!(text.contains("it would take: --allow 'POST a.test/x'"), "{text}");
        let (yes, text) = said(&[], "evil.test", None);
        assert!(!yes && text.contains("--allow evil.test") && text.contains("there are no rules"), "{text}");
    }

    #[test]
    fn a_port_is_the_one_that_was_typed_or_the_rules_own() {
        let flags = ["http://a.test", "tcp://db.test:5432"];
        assert!(said(&flags, "db.test", None).0 && said(&flags, "a.test", None).0);
        assert!(!said(&flags, "db.test:443", None).0);
        assert!(explain(&policy(&[]), &Asked::new("a b", None, None), &mut vec![]).is_err());
    }
}
