//! What may only narrow never widens: random layers, held against what the result lets a run do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::{
    BackendName, Ceiling, Cpus, CredentialRule, Environment, FilesLayer, HostPattern, Layer, Limits,
    LimitsLayer, NetworkRule, Policy, Profile, Protocol,
};
use crate::capability::Capability;
use crate::files::{GuestPath, Pattern, Python, Shown, Workspace};
use crate::request::Variable;

/// Hosts that somebody may connect to: above, at and below the patterns of the rules.
const HOSTS: [&str; 5] = ["a.test", "x.a.test", "y.x.a.test", "b.test", "10.0.0.1"];
const PATTERNS: [&str; 5] = ["a.test", "x.a.test", "*.a.test", "*.x.a.test", "10.0.0.1"];
const PORTS: [u16; 2] = [443, 8443];
const METHODS: [&str; 2] = ["GET", "POST"];
const PATHS: [&str; 2] = ["/a", "/b/*"];
const PROTOCOLS: [Protocol; 4] = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TlsPassthrough];
const NAMES: [&str; 3] = ["A", "B", "C"];

fn limits() -> impl Strategy<Value = LimitsLayer> {
    let seconds = || option::of((0..4u64).prop_map(Duration::from_secs));
    let number = || option::of(select(vec![1u64, 2, 64 << 20, 1 << 40]));
    let cpus = option::of(select(vec![10u32, 1000, 64_000]).prop_map(|n| Cpus::from_thousandths(n).unwrap()));
    let leaving = (number(), number(), number(), number());
    (seconds(), seconds(), number(), cpus, option::of(1u32..1000), number(), number(), number(), leaving)
        .prop_map(|(timeout, grace, memory_bytes, cpus, pids, disk_bytes, files, output_bytes, leaving)| {
            let (bytes_out, requests, connections, hosts) = leaving;
            LimitsLayer {
                timeout,
                grace,
                memory_bytes,
                cpus,
                pids,
                disk_bytes,
                files,
                output_bytes,
                bytes_out,
                requests,
                connections,
                hosts,
            }
        })
}

fn files() -> impl Strategy<Value = FilesLayer> {
    let workspace = option::of((select(vec!["/w", "/v"]), any::<bool>()))
        .prop_map(|found| found.map(|(host, copy)| Workspace { host: host.into(), copy }));
    let shown = || {
        let one = (select(vec!["/h/a", "/h/b"]), select(vec!["/inputs/a", "/inputs/b"]));
        vec(one, 0..3).prop_map(|shown| {
            let at = |guest: &str| GuestPath::new(guest.as_ref()).unwrap();
            shown.into_iter().map(|(host, guest)| Shown { host: host.into(), guest: at(guest) }).collect()
        })
    };
    let patterns = || {
        let some = btree_set(select(vec![".env", "secret", "*.pem"]), 0..3);
        some.prop_map(|some| some.into_iter().map(|text| Pattern::new(text).unwrap()).collect())
    };
    let at = |guest: &str| GuestPath::new(guest.as_ref()).unwrap();
    let python =
        (select(vec!["/opt/a/python", "/opt/b/python"]), option::of(select(vec!["/opt/a", "/opt/b"])));
    let python = option::of(
        python.prop_map(move |(executable, venv)| Python { executable: at(executable), venv: venv.map(at) }),
    );
    (workspace, shown(), patterns(), patterns(), python).prop_map(|(workspace, shown, hide, keep, python)| {
        FilesLayer { workspace, shown, hide, keep, python }
    })
}

fn rules() -> impl Strategy<Value = Vec<NetworkRule>> {
    let some = |of: &'static [&str]| option::of(subsequence(of.to_vec(), 0..=of.len()));
    let texts = |some: Option<Vec<&str>>| some.map(|some| some.into_iter().map(str::to_owned).collect());
    let rule = (
        select(&PATTERNS[..]),
        subsequence(PORTS.to_vec(), 1..=2),
        select(&PROTOCOLS[..]),
        some(&METHODS),
        some(&PATHS),
        any::<bool>(),
        option::weighted(0.2, select(&NAMES[..])),
    );
    let rule =
        rule.prop_map(move |(host, ports, protocol, methods, paths, private, credential)| NetworkRule {
            ports,
            protocol,
            methods: texts(methods),
            paths: texts(paths),
            private,
            credential: credential.map(str::to_owned),
            ..NetworkRule::https(HostPattern::parse(host).unwrap())
        });
    vec(rule, 0..3)
}

fn credentials() -> impl Strategy<Value = Vec<CredentialRule>> {
    let one = (select(&NAMES[..]), select(&NAMES[..]), option::of((1..4u64).prop_map(Duration::from_secs)));
    let one = one.prop_map(|(name, issuer, ttl)| CredentialRule {
        name: name.into(),
        issuer: issuer.into(),
        ttl,
        ends_on_misuse: false,
    });
    vec(one, 0..2)
}

fn capabilities() -> impl Strategy<Value = BTreeSet<Capability>> {
    btree_set(select(Capability::ALL), 0..3)
}

fn environment() -> impl Strategy<Value = Environment> {
    // A name has one value on a host, and the names of the two lists differ.
    let passed = subsequence(NAMES.to_vec(), 0..=3);
    let set = (subsequence(vec!["X", "Y"], 0..=2), "[a-z]{0,2}");
    (passed, set).prop_map(|(passed, (set, value))| Environment {
        passed: passed.into_iter().map(|name| Variable::new(name, "host's").unwrap()).collect(),
        set: set.into_iter().map(|name| Variable::new(name, value.clone()).unwrap()).collect(),
    })
}

fn layer() -> impl Strategy<Value = Layer> {
    let choice = (option::of(select(Profile::ALL)), option::of(option::of(select(BackendName::ALL))));
    (choice, limits(), environment(), files(), rules(), credentials(), capabilities(), capabilities())
        .prop_map(
            |((profile, backend), limits, environment, files, network, credentials, accept_gaps, require)| {
                Layer {
                    profile,
                    backend,
                    limits,
                    environment,
                    files,
                    network,
                    credentials,
                    accept_gaps,
                    require,
                }
            },
        )
}

/// A layer that says a few things only, as one that extends another does.
fn short_layer() -> impl Strategy<Value = Layer> {
    (layer(), subsequence((0..9).collect::<Vec<_>>(), 1..4)).prop_map(|(full, said)| {
        let mut layer = Layer::default();
        for field in said {
            match field {
                0 => layer.profile = full.profile,
                1 => layer.backend = full.backend,
                2 => layer.limits = full.limits.clone(),
                3 => layer.environment = full.environment.clone(),
                4 => layer.files = full.files.clone(),
                5 => layer.network.clone_from(&full.network),
                6 => layer.credentials.clone_from(&full.credentials),
                7 => layer.accept_gaps.clone_from(&full.accept_gaps),
                _ => layer.require.clone_from(&full.require),
            }
        }
        layer
    })
}

fn ceiling() -> impl Strategy<Value = Ceiling> {
    (limits(), option::of(btree_set(select(Profile::ALL), 1..3)))
        .prop_map(|(limits, profiles)| Ceiling { limits, profiles })
}

/// A connection: host, port, protocol, method, path, whether the host is private, and the credential that
/// it carries.
type Connection = (&'static str, u16, usize, &'static str, &'static str, bool, Option<String>);

/// Every connection that a policy may be asked about, and whether some rule of its lets it through: not
/// by the comparison of rules, which is what is under test.
fn connections(policy: &Policy) -> BTreeSet<Connection> {
    let matches = |pattern: &HostPattern, host: &str| match pattern.to_string().strip_prefix("*.") {
        Some(parent) if host.parse::<IpAddr>().is_err() => {
            host.split_once('.').is_some_and(|(_, rest)| rest == parent)
        }
        Some(_) => false,
        None => pattern.to_string() == host,
    };
    let lists = |list: &Option<Vec<String>>, item: &str| {
        list.as_ref().is_none_or(|list| list.iter().any(|one| one == item))
    };
    let mut found = BTreeSet::new();
    for rule in &policy.network {
        let protocol = PROTOCOLS.iter().position(|protocol| *protocol == rule.protocol).unwrap();
        let hosts = HOSTS.into_iter().filter(|host| matches(&rule.host, host));
        for host in hosts {
            for port in &rule.ports {
                for method in METHODS.into_iter().filter(|method| lists(&rule.methods, method)) {
                    for path in PATHS.into_iter().filter(|path| lists(&rule.paths, path)) {
                        for private in [false, true].into_iter().filter(|private| rule.private || !private) {
                            let carried = rule.credential.clone();
                            found.insert((host, *port, protocol, method, path, private, carried));
                        }
                    }
                }
            }
        }
    }
    found
}

fn limits_are_no_wider(mine: &Limits, than: &Limits) {
    let output = |limits: &Limits| limits.output_bytes.unwrap_or(u64::MAX);
    assert!(mine.timeout <= than.timeout && mine.grace <= than.grace, "{mine:?} {than:?}");
    assert!(mine.memory_bytes <= than.memory_bytes && mine.disk_bytes() <= than.disk_bytes());
    assert!(mine.cpus <= than.cpus && mine.pids <= than.pids && mine.files <= than.files);
    assert!(output(mine) <= output(than), "{mine:?} {than:?}");
    assert!(mine.bytes_out <= than.bytes_out && mine.requests <= than.requests, "{mine:?} {than:?}");
    assert!(mine.connections <= than.connections && mine.hosts <= than.hosts, "{mine:?} {than:?}");
}

/// Whatever one policy lets a run do, the other does too.
fn is_no_wider(mine: &Policy, than: &Policy) {
    assert_eq!(mine.profile, than.profile);
    assert!(than.backend.is_none() || mine.backend == than.backend);
    limits_are_no_wider(&mine.limits, &than.limits);
    assert!(mine.environment.passed.iter().all(|variable| than.environment.passed.contains(variable)));
    assert!(mine.files.workspace.is_none() || mine.files.workspace == than.files.workspace);
    assert!(mine.files.shown.iter().all(|shown| than.files.shown.contains(shown)));
    assert!(mine.files.keep.iter().all(|pattern| than.files.keep.contains(pattern)));
    assert!(than.files.hide.iter().all(|pattern| mine.files.hide.contains(pattern)));
    assert!(connections(mine).is_subset(&connections(than)), "{:?} {:?}", mine.network, than.network);
    for credential in &mine.credentials {
        let lives = |ttl: Option<Duration>| ttl.unwrap_or(Duration::MAX);
        assert!(than.credentials.iter().any(|outer| {
            (&outer.name, &outer.issuer) == (&credential.name, &credential.issuer)
                && lives(credential.ttl) <= lives(outer.ttl)
        }));
    }
    assert!(mine.accept_gaps.is_subset(&than.accept_gaps));
    assert!(mine.require.is_superset(&than.require));
}

/// A policy as a layer that says everything, as the base of another has to.
fn stated(policy: &Policy) -> Layer {
    let mut layer = policy.as_layer();
    layer.limits.disk_bytes = Some(policy.limits.disk_bytes());
    layer
}

fn resolve(layer: &Layer) -> Policy {
    Policy::resolve(std::slice::from_ref(layer), &Ceiling::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn what_extends_a_policy_grants_no_more_than_it(base in layer(), mine in short_layer()) {
        let base = resolve(&base);
        let both = mine.narrows(&stated(&base));
        prop_assume!(both.is_ok());
        let policy = resolve(&both.unwrap());
        is_no_wider(&policy, &base);
        // Which interpreter it is grants nothing: it is a path inside, of what is shown.
        prop_assert_eq!(&policy.files.python, mine.files.python.as_ref().map_or(&base.files.python, |_| &mine.files.python));
    }

    #[test]
    fn a_policy_extends_itself(base in layer()) {
        let base = stated(&resolve(&base));
        prop_assert_eq!(base.narrows(&base), Ok(base.clone()));
    }

    #[test]
    fn a_ceiling_lowers_or_refuses(layers in vec(layer(), 0..3), ceiling in ceiling()) {
        let without = Policy::resolve(&layers, &Ceiling::default()).unwrap();
        match Policy::resolve(&layers, &ceiling) {
            Ok(policy) => {
                is_no_wider(&policy, &without);
                prop_assert!(ceiling.profiles.as_ref().is_none_or(|listed| listed.contains(&policy.profile)));
                let bounds = &ceiling.limits;
                let within = |mine: u64, most: Option<u64>| most.is_none_or(|most| mine <= most);
                let limits = &policy.limits;
                prop_assert!(bounds.timeout.is_none_or(|most| limits.timeout.saturating_add(limits.grace) <= most));
                prop_assert!(bounds.grace.is_none_or(|most| limits.grace <= most));
                prop_assert!(bounds.cpus.is_none_or(|most| limits.cpus <= most));
                prop_assert!(bounds.pids.is_none_or(|most| limits.pids <= most));
                prop_assert!(within(limits.memory_bytes, bounds.memory_bytes));
                prop_assert!(within(limits.disk_bytes(), bounds.disk_bytes));
                prop_assert!(within(limits.files, bounds.files));
                prop_assert!(within(limits.output_bytes.unwrap_or(u64::MAX), bounds.output_bytes));
                prop_assert!(within(limits.bytes_out, bounds.bytes_out));
                prop_assert!(within(limits.requests, bounds.requests));
                prop_assert!(within(limits.connections, bounds.connections));
                prop_assert!(within(limits.hosts, bounds.hosts));
            }
            // What is refused asks for more by name.
            Err(over) => prop_assert!(!over.key.is_empty() && over.asked != over.ceiling),
        }
    }

    #[test]
    fn more_that_is_hidden_or_demanded_never_widens(
        base in layer(),
        hide in files(),
        require in capabilities(),
    ) {
        let more = Layer {
            files: FilesLayer { hide: hide.hide, ..FilesLayer::default() },
            require,
            ..Layer::default()
        };
        let (without, ceiling) = (resolve(&base), Ceiling::default());
        is_no_wider(&Policy::resolve(&[base, more], &ceiling).unwrap(), &without);
    }
}
