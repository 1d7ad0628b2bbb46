//! What a program does that wants more than it may, or only harm.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cofferdam_core::outlet::Outlet;
use cofferdam_testkit::host::{eventually, processes_with};

use super::{Site, in_the_world};
use crate::client::{ask, get, read, tls};

#[test]
fn a_message_with_two_readings_is_refused_and_what_stands_behind_it_too() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["http://api.test"]).start();
    let behind = "GET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n";
    for shape in [
        "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
        "GET / HTTP/1.1\nHost: api.test\n\n",
        "GET / HTTP/1.1\r\nHost: api.test\r\nX: y\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : api.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test\0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test\r\nX: \u{7f}\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
    ] {
        let mut stream = sandbox.connect("api.test", 80);
        let first = ask(&mut stream, &get("api.test", "/first"));
        assert_eq!(first.status(), 200, "the positive control");
        stream.write_all(format!("{shape}{behind}").as_bytes()).unwrap();
        let answer = read(&mut stream);
        assert_eq!(
            (answer.status(), answer.denied().as_deref()),
            (400, Some("invalid_authority")),
            "{shape:?}"
        );
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "it is closed: {shape:?}");
    }
    let lines = heard.lines();
    assert!(lines.iter().all(|line| line == "connected" || line.contains("/first")), "{lines:?}");
    let answer = ask(&mut sandbox.connect("api.test", 80), "GET / HTTP/1.1\r\n\r\n");
    assert_eq!(answer.denied().as_deref(), Some("invalid_authority"), "no host at all");
}

#[test]
fn what_stands_behind_a_request_for_another_protocol_waits_for_its_answer() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["GET http://api.test/ok"]).start();
    let mut stream = sandbox.connect("api.test", 80);
    let upgrade = "GET /ok HTTP/1.1\r\nHost: api.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer = ask(&mut stream, &format!("{upgrade}{}", get("api.test", "/smuggled")));
    assert_eq!(answer.status(), 200);
    assert_eq!(
        read(&mut stream).denied().as_deref(),
        Some("path_not_allowed"),
        "it is judged like any other"
    );
    assert!(!heard.lines().iter().any(|line| line.contains("smuggled")));
}

#[test]
fn many_connections_are_held_at_once_while_others_are_slow_or_never_read() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.http();
    let mut plan = site.plan(&["http://api.test"]);
    plan.limits.requests = 2000;
    let sandbox = plan.start();
    let mut slow = sandbox.connect("api.test", 80);
    slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    let mut never = sandbox.connect("api.test", 80);
    never.write_all(get("api.test", "/big").as_bytes()).unwrap();
    let mut held: Vec<TcpStream> = (0..254).map(|_| sandbox.connect("api.test", 80)).collect();
    for round in 0..2 {
        for stream in &mut held {
            assert_eq!(ask(stream, &get("api.test", "/")).status(), 200, "{round}");
        }
    }
    let began = Instant::now();
    let answer = read(&mut slow);
    assert_eq!(answer.denied().as_deref(), Some("invalid_authority"));
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(ask(&mut held[0], &get("api.test", "/")).status(), 200);
    assert_eq!(read(&mut never).body.len(), 8 << 20, "it is all there, for who reads it after all");
}

#[test]
fn a_proxy_that_is_killed_leaves_no_way_out_and_the_end_says_so() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.https("api.test", &["http/1.1"]);
    let sandbox = site.plan(&["api.test"]).start();
    let authority = sandbox.outlet.authority().to_owned();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", &authority);
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200, "the positive control");
    let ip = sandbox.lookup("api.test").unwrap();
    let before = heard.lines().len();
    kill_own_proxy();
    assert!(eventually(Duration::from_secs(10), || sandbox.connect_to((ip, 443).into()).is_none()));
    assert!(matches!(stream.sock.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(heard.lines().len(), before);
    let cut = sandbox.cut();
    assert!(cut.lost.is_some());
    assert_eq!(cut.traffic, None, "it answered, and so there was some, but nobody knows how much");
}

/// Every proxy that this very process started by now and no other test uses: run alone.
fn kill_own_proxy() {
    let own = std::process::id();
    for pid in processes_with("examples/proxy") {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        if parent == Some(own) {
            std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
        }
    }
}
