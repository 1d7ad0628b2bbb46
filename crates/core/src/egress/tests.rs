//! The decisions: tables of what tries to get past them, and properties over random rules.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::policy::{AllowFlag, HostPattern, Layer, NetworkRule, Protocol};

fn rule(flag: &str) -> NetworkRule {
    match NetworkRule::parse_flag(flag) {
        Ok(AllowFlag::Rule(rule)) => rule,
        other => panic!("{flag}: {other:?}"),
    }
}

fn rules(flags: &[&str]) -> Rules {
    Rules::new(&flags.iter().map(|flag| rule(flag)).collect::<Vec<_>>())
}

fn host(text: &str) -> Host {
    Host::parse(text.as_bytes()).unwrap()
}

const DOORS: [Door; 4] = [Door::Capture, Door::Connect, Door::Forward, Door::Function];

/// A request on a connection to `a.test:443` that names it everywhere.
const HEAD: RequestHead<'static> =
    RequestHead { authorities: &[b"a.test"], server_name: Some(b"a.test"), method: b"GET", path: b"/x" };

fn request(rules: &Rules, head: &RequestHead) -> Result<RequestPermit, Denial> {
    let permit = rules.connection(Door::Capture, &host("a.test"), 443).unwrap();
    rules.request(&permit, head)
}

fn code(rules: &Rules, head: &RequestHead) -> Option<DenialCode> {
    request(rules, head).err().map(|denial| denial.code)
}

#[test]
fn a_connection_is_what_a_rule_names_and_nothing_else_by_any_door() {
    let rules =
        rules(&["*.github.test", "tcp://db.test:5432", "http://a.test:8080", "10.0.0.1:8443,private"]);
    for door in DOORS {
        let code = |name: &str, port| match rules.connection(door, &host(name), port) {
            Ok(_) => "",
            Err(denial) => denial.code.code(),
        };
        for (name, port) in [
            ("api.github.test", 443),
            ("API.GITHUB.test.", 443),
            ("db.test", 5432),
            ("a.test", 8080),
            ("0x0a000001", 8443),
        ] {
            assert_eq!(code(name, port), "", "{name}:{port}");
        }
        for (name, port) in [
            ("evilgithub.test", 443),
            ("github.test.evil.test", 443),
            ("xgithub.test", 443),
            ("github.test", 443),
            ("a.b.github.test", 443),
            ("127.0.0.2", 8443),
            ("198.18.0.1", 443),
            ("fd00::1", 8443),
        ] {
            assert_eq!(code(name, port), "host_not_allowed", "{name}:{port}");
        }
        for (name, port) in [("api.github.test", 25), ("db.test", 443), ("a.test", 80), ("10.0.0.1", 443)] {
            assert_eq!(code(name, port), "port_not_allowed", "{name}:{port}");
        }
    }
}

#[test]
fn no_rule_means_no() {
    let none = Rules::new(&[]);
    for door in DOORS {
        let denial = none.connection(door, &host("a.test"), 443).unwrap_err();
        assert_eq!((denial.code, denial.rule), (DenialCode::HostNotAllowed, None));
    }
    assert_eq!(none.lookup(&host("a.test")).unwrap_err().code, DenialCode::HostNotAllowed);
    // A permit of other rules is worth nothing here.
    let permit = rules(&["a.test"]).connection(Door::Capture, &host("a.test"), 443).unwrap();
    assert!(none.request(&permit, &HEAD).is_err() && none.tunnel(&permit, Some(b"a.test")).is_err());
}

#[test]
fn a_name_is_looked_up_only_if_some_rule_has_it() {
    let rules = rules(&["tcp://db.test:5432", "*.github.test"]);
    for name in ["db.test", "x.github.test"] {
        assert_eq!(rules.lookup(&host(name)), Ok(()), "{name}");
    }
    for name in ["secret.evil.test", "a.b.github.test", "x.db.test", "github.test"] {
        let denial = rules.lookup(&host(name)).unwrap_err();
        assert_eq!((denial.code, denial.host.as_str()), (DenialCode::HostNotAllowed, name));
        assert_eq!(denial.needs, Some(format!("--allow {name}")));
    }
}

#[test]
fn every_name_of_a_request_has_to_be_its_connections() {
    let rules = rules(&["a.test", "b.test"]);
    let names = |authorities: &[&[u8]], server_name: Option<&[u8]>| {
        code(&rules, &RequestHead { authorities, server_name, ..HEAD })
    };
    let sni = Some(&b"a.test"[..]);
    for authorities in [&[&b"a.test"[..]][..], &[b"A.test.:443"], &[b"a.test", b"a.test:443"]] {
        assert_eq!(names(authorities, sni), None, "{authorities:?}");
    }
    for authority in
        [&b"b.test"[..], b"a.test:8443", b"a.test:80", b"x.a.test", b"10.0.0.1", b"a.test.evil.test"]
    {
        assert_eq!(names(&[authority], sni), Some(DenialCode::NameMismatch), "{authority:?}");
        assert_eq!(names(&[b"a.test", authority], sni), Some(DenialCode::NameMismatch), "{authority:?}");
    }
    for authority in
        [&b""[..], b"a.test\0", b"a.test\r\n", b"a.test%2eevil.test", b"a\xc2\xad.test", b"[fe80::1%1]"]
    {
        assert_eq!(names(&[authority], sni), Some(DenialCode::InvalidHost), "{authority:?}");
    }
    for authority in
        [&b"a.test@evil.test"[..], b"a.test#@evil.test", b"a.test:+443", b"a.test:443 ", b"a.test:443:1"]
    {
        assert_eq!(names(&[authority], sni), Some(DenialCode::InvalidAuthority), "{authority:?}");
    }
    assert_eq!(names(&[], sni), Some(DenialCode::InvalidAuthority));
    // Pairwise different, and what is allowed by itself.
    assert_eq!(names(&[b"b.test"], Some(b"c.test")), Some(DenialCode::NameMismatch));
    assert_eq!(names(&[b"a.test"], Some(b"b.test")), Some(DenialCode::NameMismatch));
    assert_eq!(names(&[b"a.test"], None), Some(DenialCode::NoServerName));
    assert_eq!(names(&[b"a.test"], Some(b"a.test\0.evil.test")), Some(DenialCode::InvalidHost));
}

#[test]
fn a_request_that_comes_without_tls_of_its_own_needs_no_server_name() {
    let rules = rules(&["a.test", "http://a.test", "10.0.0.1,private"]);
    let head = RequestHead { server_name: None, ..HEAD };
    let asked = |door, name: &str, port, head: &RequestHead| {
        let permit = rules.connection(door, &host(name), port).unwrap();
        rules.request(&permit, head).err().map(|denial| denial.code)
    };
    for door in [Door::Forward, Door::Function] {
        assert_eq!(asked(door, "a.test", 443, &head), None);
        let named = RequestHead { server_name: Some(b"b.test"), ..head };
        assert_eq!(
            asked(door, "a.test", 443, &named),
            Some(DenialCode::NameMismatch),
            "who names one means it"
        );
    }
    for door in [Door::Capture, Door::Connect] {
        assert_eq!(asked(door, "a.test", 443, &head), Some(DenialCode::NoServerName));
        assert_eq!(asked(door, "a.test", 80, &head), None, "HTTP in the clear");
        let address = RequestHead { authorities: &[b"10.0.0.1"], ..head };
        assert_eq!(asked(door, "10.0.0.1", 443, &address), None, "an address is no server name");
        let named = RequestHead { server_name: Some(b"a.test"), ..address };
        assert_eq!(asked(door, "10.0.0.1", 443, &named), Some(DenialCode::NameMismatch));
    }
}

#[test]
fn the_first_rule_that_has_method_and_path_decides() {
    let mut list = ["GET a.test/x/**", "a.test/x/secret,private", "POST,PUT a.test/up"].map(rule);
    (list[0].name, list[2].credential) = (Some("reading".into()), Some("gh".into()));
    let rules = Rules::new(&list);
    let permit = request(&rules, &RequestHead { path: b"/x/secret?token=1", ..HEAD }).unwrap();
    assert_eq!(
        (permit.terms().rule(), permit.terms().private(), permit.terms().credential()),
        ("reading", false, None)
    );
    assert_eq!((permit.method(), permit.path()), ("GET", "/x/secret"));
    let permit = request(&rules, &RequestHead { method: b"DELETE", path: b"/x/secret", ..HEAD }).unwrap();
    assert_eq!((permit.terms().rule(), permit.terms().private()), ("a.test/x/secret,private", true));
    let permit = request(&rules, &RequestHead { method: b"PUT", path: b"/up", ..HEAD }).unwrap();
    assert_eq!(permit.terms().credential(), Some("gh"));
    assert_eq!((permit.to().host(), permit.to().port()), (&host("a.test"), 443));
}

#[test]
fn a_refusal_names_the_clause_that_misses_least_and_what_would_do() {
    let rules = rules(&["GET a.test/x", "POST a.test/y", "GET,HEAD a.test/z/**"]);
    let needs = |method: &'static str, path: &'static str| {
        let head = RequestHead { method: method.as_bytes(), path: path.as_bytes(), ..HEAD };
        let denial = request(&rules, &head).unwrap_err();
        (denial.code.code(), denial.rule.unwrap(), denial.needs.unwrap_or_default())
    };
    let told = |code, rule: &str, needs: &str| (code, rule.to_owned(), needs.to_owned());
    assert_eq!(needs("GET", "/q?s=1"), told("path_not_allowed", "GET a.test/x", "--allow 'GET a.test/q'"));
    assert_eq!(needs("POST", "/x"), told("path_not_allowed", "POST a.test/y", "--allow 'POST a.test/x'"));
    assert_eq!(
        needs("PUT", "/z/1"),
        told("method_not_allowed", "GET,HEAD a.test/z/**", "--allow 'PUT a.test/z/1'")
    );
    assert_eq!(needs("PUT", "/q"), told("method_not_allowed", "GET a.test/x", "--allow 'PUT a.test/q'"));
    let long = "/x".repeat(SHOWN_BYTES);
    let permit = rules.connection(Door::Capture, &host("a.test"), 443).unwrap();
    let denial = rules.request(&permit, &RequestHead { path: long.as_bytes(), ..HEAD }).unwrap_err();
    assert_eq!((denial.path.unwrap().len(), denial.needs), (SHOWN_BYTES + 3, None));
    // What no rule should be widened for has no flag.
    for path in ["/x/../q", "/x%2fq", "//x", "/a*b", "/a|b", "/q,private"] {
        assert_eq!(needs("GET", path), told("path_not_allowed", "GET a.test/x", ""), "{path}");
    }
    assert_eq!(needs("get", "/x"), told("method_not_allowed", "GET a.test/x", ""));
}

#[test]
fn a_connections_refusal_has_the_least_flag() {
    let rules = rules(&["a.test", "tcp://db.test:5432"]);
    let needs =
        |door, name: &str, port| rules.connection(door, &host(name), port).unwrap_err().needs.unwrap();
    assert_eq!(needs(Door::Capture, "evil.test", 443), "--allow evil.test");
    assert_eq!(needs(Door::Capture, "evil.test", 80), "--allow http://evil.test");
    assert_eq!(needs(Door::Capture, "evil.test", 22), "--allow tcp://evil.test:22");
    assert_eq!(needs(Door::Connect, "evil.test", 8443), "--allow evil.test:8443");
    assert_eq!(needs(Door::Forward, "evil.test", 8080), "--allow http://evil.test:8080");
    assert_eq!(needs(Door::Capture, "2001:db8::1", 443), "--allow '[2001:db8::1]'");
    assert_eq!(needs(Door::Capture, "10.0.0.1", 80), "--allow http://10.0.0.1,private");
    assert_eq!(needs(Door::Connect, "fd00::1", 8443), "--allow '[fd00::1]:8443,private'");
    for address in ["169.254.169.254", "::ffff:100.100.100.200", "198.18.0.1", "0.0.0.0"] {
        let denial = rules.connection(Door::Capture, &host(address), 80).unwrap_err();
        assert_eq!((denial.code, denial.needs), (DenialCode::HostNotAllowed, None), "{address}");
    }
    assert_eq!(needs(Door::Capture, "db.test", 5433), "--allow tcp://db.test:5433");
    assert_eq!(
        needs(Door::Capture, crate::policy::OWN_HOST, 80),
        "--allow http://host.cofferdam.internal:80,private"
    );
    let denial = rules.connection(Door::Capture, &host("a.test"), 25).unwrap_err();
    assert_eq!((denial.code, denial.rule.as_deref()), (DenialCode::PortNotAllowed, Some("a.test")));
}

#[test]
fn what_nobody_opens_is_for_rules_that_say_so() {
    let rules = rules(&["tls://pinned.test", "tcp://db.test:5432", "a.test", "http://a.test"]);
    let tunnel = |name: &str, port, server_name: Option<&[u8]>| {
        let permit = rules.connection(Door::Capture, &host(name), port).unwrap();
        rules.tunnel(&permit, server_name).map(|_| ()).map_err(|denial| denial.code)
    };
    assert_eq!(tunnel("pinned.test", 443, Some(b"PINNED.test")), Ok(()));
    assert_eq!(tunnel("pinned.test", 443, Some(b"front.test")), Err(DenialCode::NameMismatch));
    assert_eq!(tunnel("pinned.test", 443, None), Err(DenialCode::NoServerName));
    assert_eq!(tunnel("pinned.test", 443, Some(b"a b")), Err(DenialCode::InvalidHost));
    assert_eq!(tunnel("db.test", 5432, None), Ok(()));
    assert_eq!(tunnel("a.test", 443, Some(b"a.test")), Err(DenialCode::NoServerName));
    assert_eq!(tunnel("a.test", 80, None), Err(DenialCode::InvalidAuthority));
    let permit = rules.connection(Door::Capture, &host("a.test"), 443).unwrap();
    let denial = rules.tunnel(&permit, None).unwrap_err();
    assert_eq!(denial.needs.as_deref(), Some("--allow tcp://a.test:443"));
}

#[test]
fn what_a_lookup_answered_is_judged_by_the_rule_that_permitted() {
    let rules = rules(&["GET a.test/x", "tcp://db.test:5432,private"]);
    let permit = request(&rules, &HEAD).unwrap();
    // A second answer for the same name is judged like the first: rebinding gains nothing.
    let judged = |ip: &str| {
        let address: IpAddr = ip.parse().unwrap();
        judge(address, permit.terms().private(), &[]).map_err(|why| permit.address_denied(why))
    };
    assert!(judged("203.0.113.7").is_ok());
    let denial = judged("10.0.0.1").unwrap_err();
    assert_eq!(denial.code, DenialCode::PrivateAddress);
    assert_eq!(denial.rule.as_deref(), Some("GET a.test/x"));
    assert_eq!(denial.needs.as_deref(), Some("--allow 'GET a.test/x,private'"));
    for ip in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "198.18.0.1", "224.0.0.1"] {
        assert_eq!(judged(ip).unwrap_err().needs, None, "{ip}");
    }
    let permit = rules.connection(Door::Capture, &host("db.test"), 5432).unwrap();
    let tunnel = rules.tunnel(&permit, None).unwrap();
    assert!(judge("10.0.0.1".parse().unwrap(), tunnel.terms().private(), &[]).is_ok());
    let metadata = judge("100.100.100.200".parse().unwrap(), true, &[]).unwrap_err();
    assert_eq!(tunnel.address_denied(metadata).needs, None);
}

#[test]
fn each_hop_of_a_redirect_is_asked_anew() {
    let rules = rules(&["GET a.test/x", "GET b.test/y"]);
    for (name, port, code) in [
        ("evil.test", 443, Some(DenialCode::HostNotAllowed)),
        ("169.254.169.254", 80, Some(DenialCode::HostNotAllowed)),
        ("a.test", 80, Some(DenialCode::PortNotAllowed)),
        ("b.test", 443, None),
    ] {
        let hop = rules.connection(Door::Capture, &host(name), port);
        assert_eq!(hop.err().map(|denial| denial.code), code, "{name}:{port}");
    }
    let permit = rules.connection(Door::Capture, &host("b.test"), 443).unwrap();
    let head = RequestHead { authorities: &[b"b.test"], server_name: Some(b"b.test"), ..HEAD };
    assert_eq!(rules.request(&permit, &head).unwrap_err().code, DenialCode::PathNotAllowed);
}

const NAMES: [&str; 6] = ["a.test", "x.a.test", "y.x.a.test", "b.test", "10.0.0.1", "fd00::1"];
const PATTERNS: [&str; 6] = ["a.test", "x.a.test", "*.a.test", "*.x.a.test", "10.0.0.1", "fd00::1"];
const PORTS: [u16; 2] = [443, 80];
const METHODS: [&str; 2] = ["GET", "POST"];
const GLOBS: [&str; 4] = ["/a", "/b/*", "/**", "/b/c/**"];
const PATHS: [&str; 4] = ["/a", "/b/c", "/b/c/d", "/b/%2e"];
const PROTOCOLS: [Protocol; 4] = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TlsPassthrough];

fn some_rule() -> impl Strategy<Value = NetworkRule> {
    let some = |of: &'static [&str]| option::of(subsequence(of.to_vec(), 0..=of.len()));
    let texts = |some: Option<Vec<&str>>| some.map(|some| some.into_iter().map(str::to_owned).collect());
    let rule = (
        select(&PATTERNS[..]),
        subsequence(PORTS.to_vec(), 1..=2),
        // Most rules are of one kind, so that they meet.
        prop_oneof![3 => Just(Protocol::Https), 1 => select(&PROTOCOLS[..])],
        some(&METHODS),
        some(&GLOBS),
        any::<bool>(),
        option::weighted(0.2, Just("gh".to_owned())),
    );
    rule.prop_map(move |(host, ports, protocol, methods, paths, private, credential)| NetworkRule {
        ports,
        protocol,
        methods: texts(methods).filter(|_| protocol.has_requests()),
        paths: texts(paths).filter(|_| protocol.has_requests()),
        private,
        credential,
        ..NetworkRule::https(HostPattern::parse(host).unwrap())
    })
}

/// What a decision lets out: none for no.
type Let = Option<(Protocol, bool, Option<String>)>;

/// Every question there is to these names, and its answer.
fn answers(rules: &Rules) -> Vec<Let> {
    let mut found = vec![];
    for (name, port, method, path) in itertools(&NAMES, &PORTS, &METHODS, &PATHS) {
        let host = host(name);
        let shown =
            Authority::parse_with_default(format!("{}:{port}", Bracketed(&host)).as_bytes(), port).unwrap();
        let authorities = [shown.to_string().into_bytes()];
        let authorities = authorities.each_ref().map(Vec::as_slice);
        let server_name = matches!(host, Host::Name(_)).then_some(name.as_bytes());
        let head = RequestHead {
            authorities: &authorities,
            server_name,
            method: method.as_bytes(),
            path: path.as_bytes(),
        };
        let of = |to: &Destination, terms: &Terms| {
            (to.protocol(), terms.private(), terms.credential().map(str::to_owned))
        };
        let connection = rules.connection(Door::Capture, &host, port).ok();
        found.push(connection.and_then(|permit| match permit.to().protocol().has_requests() {
            true => rules.request(&permit, &head).ok().map(|permit| of(permit.to(), permit.terms())),
            false => rules.tunnel(&permit, server_name).ok().map(|permit| of(permit.to(), permit.terms())),
        }));
    }
    found
}

/// All combinations.
fn itertools<'a>(
    names: &'a [&'a str],
    ports: &'a [u16],
    methods: &'a [&'a str],
    paths: &'a [&'a str],
) -> impl Iterator<Item = (&'a str, u16, &'a str, &'a str)> {
    names.iter().flat_map(move |name| {
        ports.iter().flat_map(move |port| {
            methods
                .iter()
                .flat_map(move |method| paths.iter().map(move |path| (*name, *port, *method, *path)))
        })
    })
}

/// Whether the second answer lets out whatever the first does.
fn is_no_wider(mine: &Let, theirs: &Let) -> bool {
    match (mine, theirs) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(mine), Some(theirs)) => mine.0 == theirs.0 && (!mine.1 || theirs.1) && mine.2 == theirs.2,
    }
}

fn layer(network: &[NetworkRule]) -> Layer {
    Layer { network: network.to_vec(), ..Layer::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn what_narrows_rules_is_allowed_nothing_that_they_refuse(
        base in vec(some_rule(), 1..5),
        own in vec(some_rule(), 0..2),
        picked in vec((any::<proptest::sample::Index>(), any::<bool>(), any::<bool>()), 1..4),
    ) {
        // Most of a random list is no part of another, so some of it is taken from there and made less.
        let less = |(index, method, private): &(proptest::sample::Index, bool, bool)| {
            let mut rule = index.get(&base).clone();
            if *method && rule.methods.is_none() && rule.protocol.has_requests() {
                rule.methods = Some(vec!["GET".into()]);
            }
            rule.private &= *private;
            rule
        };
        let mine: Vec<_> = picked.iter().map(less).chain(own).collect();
        prop_assume!(layer(&mine).narrows(&layer(&base)).is_ok());
        let (inner, outer) = (answers(&Rules::new(&mine)), answers(&Rules::new(&base)));
        for (mine_let, base_let) in inner.iter().zip(&outer) {
            prop_assert!(is_no_wider(mine_let, base_let), "{mine_let:?} {base_let:?} {mine:#?} {base:#?}");
        }
    }

    #[test]
    fn rules_narrow_themselves(base in vec(some_rule(), 0..5)) {
        prop_assert!(layer(&base).narrows(&layer(&base)).is_ok());
    }

    #[test]
    fn one_rule_within_another_is_allowed_nothing_that_it_refuses(mine in some_rule(), other in some_rule()) {
        prop_assume!(mine.within(&other));
        let (inner, outer) = (answers(&Rules::new(&[mine])), answers(&Rules::new(&[other])));
        prop_assert!(inner.iter().zip(&outer).all(|(mine, other)| is_no_wider(mine, other)));
    }

    #[test]
    fn an_explanation_says_what_is_decided(list in vec(some_rule(), 0..5)) {
        let rules = Rules::new(&list);
        for (name, port, method, path) in itertools(&NAMES, &PORTS, &METHODS, &PATHS) {
            let host = host(name);
            let question = Question { host: &host, port, spoken: None, request: Some((method.as_bytes(), path.as_bytes())) };
            let explained = rules.explain(&question);
            let authority = Authority::parse_with_default(format!("{}:{port}", Bracketed(&host)).as_bytes(), 1);
            let authority = authority.unwrap().to_string();
            let authorities = &[authority.as_bytes()][..];
            let server_name = matches!(host, Host::Name(_)).then_some(name.as_bytes());
            let head =
                RequestHead { authorities, server_name, method: method.as_bytes(), path: path.as_bytes() };
            let decided = rules
                .connection(Door::Capture, &host, port)
                .and_then(|permit| rules.request(&permit, &head).map(|permit| permit.terms().rule().to_owned()));
            match (explained.verdict, decided) {
                (Ok(at), Ok(rule)) => prop_assert_eq!(rules.as_slice()[at].label(), rule),
                (Err(mine), Err(theirs)) => prop_assert_eq!(mine, theirs),
                // An address is judged here, and elsewhere when it is dialled.
                (Err(mine), Ok(_)) if mine.code == DenialCode::PrivateAddress => {}
                (mine, theirs) => prop_assert!(false, "{mine:?} {theirs:?}"),
            }
            let deciding = explained.rules.iter().filter(|says| **says == Says::Decides).count();
            prop_assert!(deciding <= 1);
        }
    }

    #[test]
    fn what_a_refusal_needs_would_have_allowed_it(list in vec(some_rule(), 0..4)) {
        let rules = Rules::new(&list);
        for (name, port, method, path) in itertools(&NAMES, &PORTS, &METHODS, &PATHS) {
            let host = host(name);
            let question = Question { host: &host, port, spoken: None, request: Some((method.as_bytes(), path.as_bytes())) };
            let Err(denial) = rules.explain(&question).verdict else { continue };
            if denial.code == DenialCode::PrivateAddress {
                continue; // the rule that is there decides, and is what has to be changed
            }
            let Some(flag) = denial.needs else { continue };
            let flag = flag.strip_prefix("--allow ").unwrap().trim_matches('\'');
            let more: Vec<_> = list.iter().cloned().chain([rule(flag)]).collect();
            prop_assert!(Rules::new(&more).explain(&question).verdict.is_ok(), "{flag} {list:?} {question:?}");
        }
    }
}
