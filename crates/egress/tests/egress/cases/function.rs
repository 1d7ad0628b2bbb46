//! Connections that were made for a program without sockets, which says where they are to lead and who speaks TLS.

use std::io::{Read, Write};

use super::{Site, in_the_world};
use crate::client::{ask, get};
use crate::origin;

#[test]
fn a_connection_that_is_made_for_a_program_is_judged_as_any_other() {
    in_the_world!();
    let site = Site::new(&["api.test", "wrong.test"]);
    let heard = site.https("api.test", &["http/1.1"]);
    let sandbox = site.plan(&["GET api.test/ok/**", "wrong.test"]).start();
    let denied = |host: &str, tls: Option<&str>, request: &str| {
        let mut stream = sandbox.made(host.as_bytes(), 443, tls).unwrap();
        ask(&mut stream, request).denied()
    };
    let mut stream = sandbox.made(b"api.test", 443, Some("api.test")).unwrap();
    assert_eq!(ask(&mut stream, &get("api.test", "/ok/1")).body, b"ok\n");
    assert_eq!(ask(&mut stream, &get("api.test", "/no")).denied().as_deref(), Some("path_not_allowed"));
    for (host, tls, named, code) in [
        ("api.test", Some("front.test"), "api.test", "name_mismatch"),
        ("api.test", Some("api.test"), "front.test", "name_mismatch"),
        ("api.test", None, "api.test", "no_server_name"),
        ("evil.test", Some("evil.test"), "evil.test", "host_not_allowed"),
        ("evil.test", Some("api.test"), "api.test", "host_not_allowed"),
        ("api.test\0.evil.test", Some("api.test"), "api.test", "invalid_host"),
        ("", Some("api.test"), "api.test", "invalid_host"),
        ("2130706433", Some("api.test"), "api.test", "host_not_allowed"),
        ("wrong.test", Some("wrong.test"), "wrong.test", "upstream_tls"),
    ] {
        let denied = denied(host, tls, &get(named, "/ok/1"));
        assert_eq!(denied.as_deref(), Some(code), "{host:?} {tls:?} {named}");
    }
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests, ["GET api.test/ok/1 HTTP/1.1"]);
    // Who has to prove its name is dialled for that, and so it is written down.
    assert_eq!(sandbox.log.allowed(), ["GET api.test:443/ok/1", "GET wrong.test:443/ok/1"]);
    sandbox.cut();
    assert!(sandbox.made(b"api.test", 443, Some("api.test")).is_none(), "nothing after the end");
}

#[test]
fn any_bytes_go_over_it_where_a_rule_says_so_in_tls_that_we_speak_if_that_is_asked_for() {
    in_the_world!();
    let site = Site::new(&["db.test", "api.test", "wrong.test"]);
    let heard = origin::raw((site.ip, 5432));
    let secret = site.https("api.test", &[]);
    let rules = ["tcp://db.test:5432", "tcp://api.test:443", "tls://wrong.test"];
    let sandbox = site.plan(&rules).start();
    let mut stream = sandbox.made(b"db.test", 5432, None).unwrap();
    let mut greeting = [0; 6];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello\n");
    let mut stream = sandbox.made(b"api.test", 443, Some("api.test")).unwrap();
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200);
    for (host, tls) in [("api.test", "front.test"), ("wrong.test", "wrong.test"), ("wrong.test", "api.test")]
    {
        let mut stream = sandbox.made(host.as_bytes(), 443, Some(tls)).unwrap();
        let _ = stream.write_all(get(host, "/").as_bytes()); // it may be closed already
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "{host} {tls}");
    }
    let denied = sandbox.log.denied();
    for code in ["name_mismatch api.test", "upstream_tls wrong.test", "name_mismatch wrong.test"] {
        assert!(denied.contains(&code.to_owned()), "{code}: {denied:?}");
    }
    assert_eq!(heard.lines(), ["connected"]);
    assert_eq!(secret.lines().iter().filter(|line| line.starts_with("GET")).count(), 1);
}

#[test]
fn what_is_refused_is_written_down_though_the_run_ends_at_once() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    for _ in 0..10 {
        let sandbox = site.plan(&["api.test"]).start();
        let stream = sandbox.made(b"evil.test", 8443, None);
        sandbox.cut();
        assert_eq!(sandbox.log.denied(), ["host_not_allowed evil.test"]);
        drop(stream);
    }
}

#[test]
fn idle_connections_make_room_for_those_that_are_wanted() {
    in_the_world!();
    let site = Site::new(&["a.test", "b.test", "c.test", "d.test"]);
    let _heard = site.http();
    let mut plan = site.plan(&["http://a.test", "http://b.test", "http://c.test", "http://d.test"]);
    plan.limits.connections = 2;
    let sandbox = plan.start();
    for host in ["a.test", "b.test", "c.test", "d.test", "a.test", "b.test"] {
        let mut stream = sandbox.made(host.as_bytes(), 80, None).unwrap();
        assert_eq!(ask(&mut stream, &get(host, "/")).status(), 200, "{host}");
    }
}
