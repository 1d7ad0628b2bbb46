//! Names and addresses.

use std::io::{Read, Write};
use std::net::IpAddr;

use cofferdam_egress::outlet::DeniedNames;
use cofferdam_egress::proxy::dns::message::{A, AAAA, Said, ask, said};

use super::{Site, in_the_world};
use crate::client::{self, get};
use crate::origin;
use crate::world::{self, OWN, Plan};

#[test]
fn nobody_outside_is_asked_for_a_name_before_something_permitted_is_sent() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.http();
    let sandbox = site.plan(&["http://api.test", "http://*.wild.test"]).start();
    let first = sandbox.lookup("api.test").unwrap();
    assert_eq!(sandbox.lookup("API.test"), Some(first), "a name keeps its address");
    for name in ["a.wild.test", "secret.evil.test", "evil.test"] {
        assert_ne!(sandbox.lookup(name), Some(first), "{name}");
    }
    let answer = sandbox.ask("api.test", 65);
    assert_eq!(said(&answer, 7, "api.test", 65), Some(Said::Addresses(vec![], 0)), "no keys of TLS");
    assert!(
        matches!(said(&sandbox.ask("api.test", AAAA), 7, "api.test", AAAA), Some(Said::Addresses(list, _)) if list.len() == 1)
    );
    assert_eq!(site.asked.lines(), [""; 0], "nothing was sent yet");
    assert_eq!(client::ask(&mut sandbox.connect("api.test", 80), &get("api.test", "/")).status(), 200);
    assert!(site.asked.lines().iter().all(|name| name == "api.test"));
    assert_eq!(sandbox.log.denied(), ["dns secret.evil.test", "dns evil.test"]);
}

#[test]
fn a_name_that_no_rule_has_can_be_one_that_there_is_not() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let mut plan = site.plan(&["http://api.test"]);
    plan.denied_names = DeniedNames::NxDomain;
    let sandbox = plan.start();
    assert!(sandbox.lookup("api.test").is_some());
    assert_eq!(sandbox.lookup("evil.test"), None);
    assert_eq!(sandbox.cut().denials.counts().len(), 1);
}

#[test]
fn names_are_asked_for_over_tcp_too() {
    in_the_world!();
    let site = Site::new(&[]);
    let sandbox = site.plan(&["http://api.test"]).start();
    let mut stream = sandbox.connect_to(([192, 0, 2, 1], 53).into()).unwrap();
    for _ in 0..2 {
        let question = ask(9, "api.test", A);
        stream.write_all(&[&(question.len() as u16).to_be_bytes()[..], &question].concat()).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).unwrap();
        assert!(matches!(said(&answer, 9, "api.test", A), Some(Said::Addresses(list, _)) if list.len() == 1));
    }
}

#[test]
fn a_name_that_turns_out_to_be_somewhere_private_is_not_dialled() {
    in_the_world!();
    let private: std::net::Ipv4Addr = [10, 99, 0, world::address().octets()[3]].into();
    let heard = origin::http((private, 80), None);
    let loopback = origin::http(([127, 0, 0, 1].into(), 8099), None);
    let table: [(&str, IpAddr); 5] = [
        ("private.test", private.into()),
        ("loop.test", [127, 0, 0, 1].into()),
        ("own.test", OWN.parse().unwrap()),
        ("meta.test", [169, 254, 169, 254].into()),
        ("inside.test", [198, 18, 0, 1].into()),
    ];
    let (resolver, _) = origin::names(&table);
    let root = origin::Root::new();
    let names = ["private.test", "loop.test", "own.test", "meta.test", "inside.test"];
    let flags: Vec<String> = names.iter().map(|name| format!("http://{name}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let sandbox = Plan::new(&flags, resolver, &root.pem).start();
    for name in names {
        let answer = client::ask(&mut sandbox.connect(name, 80), &get(name, "/"));
        assert_eq!(answer.denied().as_deref(), Some("private_address"), "{name}");
    }
    assert_eq!(heard.lines(), [""; 0]);
    let sandbox = Plan::new(
        &[
            "http://private.test,private",
            "http://meta.test,private",
            "http://host.cofferdam.internal:8099,private",
        ],
        resolver,
        &root.pem,
    )
    .start();
    let answer = client::ask(&mut sandbox.connect("private.test", 80), &get("private.test", "/"));
    assert_eq!(answer.status(), 200, "the positive control");
    let answer = client::ask(&mut sandbox.connect("meta.test", 80), &get("meta.test", "/"));
    assert_eq!(answer.denied().as_deref(), Some("private_address"), "whatever a rule says");
    let own = "host.cofferdam.internal";
    let answer = client::ask(&mut sandbox.connect(own, 8099), &get(&format!("{own}:8099"), "/"));
    assert_eq!(answer.status(), 200);
    assert_eq!(loopback.lines().len(), 2);
}

#[test]
fn an_operator_says_which_hosts_may_be_private_at_all() {
    in_the_world!();
    let private: std::net::Ipv4Addr = [10, 99, 1, world::address().octets()[3]].into();
    let _heard = origin::http((private, 80), None);
    let (resolver, _) = origin::names(&[("a.test", private.into()), ("b.test", private.into())]);
    let mut plan = Plan::new(&["http://a.test,private", "http://b.test,private"], resolver, "");
    plan.node.private_hosts = Some(vec![cofferdam_core::policy::HostPattern::parse("a.test").unwrap()]);
    let sandbox = plan.start();
    let status = |name: &str| client::ask(&mut sandbox.connect(name, 80), &get(name, "/")).status();
    assert_eq!((status("a.test"), status("b.test")), (200, 403));
}

#[test]
fn an_address_that_has_no_name_is_judged_as_one() {
    in_the_world!();
    let site = Site::new(&[]);
    let heard = site.http();
    let (ip, port) = (site.ip, 80);
    let sandbox = site.plan(&[&format!("http://{ip}")]).start();
    let mut stream = sandbox.connect_to((ip, port).into()).unwrap();
    assert_eq!(client::ask(&mut stream, &get(&ip.to_string(), "/")).status(), 200);
    for other in ["203.0.113.251:80", "127.1.2.3:1", "169.254.169.254:80", "[2001:db8::1]:80"] {
        let Some(mut stream) = sandbox.connect_to(other.parse().unwrap()) else {
            assert!(other.starts_with("127."), "only what is its own is refused by the kernel: {other}");
            continue;
        };
        let host = other.rsplit_once(':').unwrap().0;
        assert_eq!(client::ask(&mut stream, &get(host, "/")).denied().as_deref(), Some("host_not_allowed"));
    }
    assert_eq!(heard.lines().len(), 2);
}
