//! Requests in the clear, by every door.

use std::io::{Read, Write};
use std::net::TcpStream;

use cofferdam_core::policy::Limits;

use super::{Site, in_the_world};
use crate::client::{ask, get, read};
use crate::origin;

#[test]
fn an_allowed_request_arrives_and_another_is_told_why_not() {
    in_the_world!();
    let site = Site::new(&["api.test", "other.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["GET http://api.test/ok/**"]).start();
    let mut stream = sandbox.connect("api.test", 80);
    let answer = ask(&mut stream, &get("api.test", "/ok/1?x=y"));
    assert_eq!((answer.status(), answer.body.as_slice()), (200, &b"ok\n"[..]));
    for (request, code) in [
        (get("api.test", "/private"), "path_not_allowed"),
        ("DELETE /ok/1 HTTP/1.1\r\nHost: api.test\r\n\r\n".to_owned(), "method_not_allowed"),
        (get("other.test", "/ok/1"), "name_mismatch"),
    ] {
        let answer = ask(&mut stream, &request);
        assert_eq!((answer.status(), answer.denied().as_deref()), (403, Some(code)), "{request}");
    }
    let answer = ask(&mut sandbox.connect("other.test", 80), &get("other.test", "/"));
    assert_eq!((answer.status(), answer.denied().as_deref()), (403, Some("host_not_allowed")));
    let answer = ask(&mut stream, &get("api.test", "/ok/2"));
    assert_eq!(answer.status(), 200, "the connection serves on");
    assert_eq!(
        heard.lines(),
        ["connected", "GET api.test/ok/1?x=y HTTP/1.1", "GET api.test/ok/2 HTTP/1.1"],
        "one connection, kept"
    );
    assert_eq!(sandbox.log.allowed(), ["GET api.test:80/ok/1", "GET api.test:80/ok/2"]);
    let asked = site.asked.lines();
    assert!(asked.iter().all(|name| name == "api.test") && asked.len() == 2, "{asked:?}");
    let cut = sandbox.cut();
    assert_eq!(cut.denials.counts().len(), 4);
    let traffic = cut.traffic.unwrap();
    assert!(traffic.bytes_out > 50 && traffic.bytes_in > 50 && cut.lost.is_none(), "{cut:?}");
}

#[test]
fn a_body_arrives_whatever_the_method_and_however_its_length_is_said() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["http://api.test"]).start();
    for method in ["GET", "DELETE", "POST"] {
        for (said, body) in
            [("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"), ("Content-Length: 5", "hello")]
        {
            let request = format!("{method} /echo HTTP/1.1\r\nHost: api.test\r\n{said}\r\n\r\n{body}");
            let answer = ask(&mut sandbox.connect("api.test", 80), &request);
            assert_eq!(answer.status(), 200, "{request}");
        }
    }
    let bodies = heard.lines().iter().filter(|line| *line == "body 5").count();
    assert_eq!(bodies, 6, "{:?}", heard.lines());
}

#[test]
fn what_the_library_behind_would_refuse_is_in_the_log() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let sandbox = site.plan(&["http://api.test"]).start();
    let odd = "CONNECT evil.test%00:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let answer = ask(&mut sandbox.connect_to_proxy(), odd);
    assert_eq!((answer.status(), answer.denied().as_deref()), (400, Some("invalid_authority")));
    let many = format!("GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n{}\r\n", "X: y\r\n".repeat(101));
    let answer = ask(&mut sandbox.connect_to_proxy(), &many);
    assert_eq!((answer.status(), answer.denied().as_deref()), (400, Some("invalid_authority")));
    let denials: u64 = sandbox.cut().denials.counts().iter().map(|counted| counted.count).sum();
    assert_eq!(denials, 2);
}

#[test]
fn a_proxy_that_is_asked_for_gives_the_same_verdicts() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["http://api.test"]).start();
    let forward = |host: &str| format!("GET http://{host}/f HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut stream = sandbox.connect_to_proxy();
    assert_eq!(ask(&mut stream, &forward("api.test")).status(), 200);
    let denied = ask(&mut stream, &forward("other.test"));
    assert_eq!(denied.denied().as_deref(), Some("host_not_allowed"));
    let mixed = "GET http://api.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n";
    assert_eq!(ask(&mut stream, mixed).denied().as_deref(), Some("name_mismatch"));
    assert_eq!(ask(&mut stream, &get("api.test", "/")).denied().as_deref(), Some("invalid_authority"));

    let connect = |stream: &mut TcpStream, to: &str| {
        ask(stream, &format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"))
    };
    let mut stream = sandbox.connect_to_proxy();
    assert_eq!(connect(&mut stream, "other.test:80").denied().as_deref(), Some("host_not_allowed"));
    assert_eq!(connect(&mut stream, "api.test:81").denied().as_deref(), Some("port_not_allowed"));
    assert_eq!(connect(&mut stream, "api.test:80").status(), 200);
    assert_eq!(ask(&mut stream, &get("api.test", "/c")).status(), 200);

    let socks = |name: &[u8]| {
        let mut stream = sandbox.connect_to_proxy();
        stream.write_all(&[5, 1, 0]).unwrap();
        stream.write_all(&[&[5, 1, 0, 3, name.len() as u8][..], name, &[0, 80]].concat()).unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).unwrap();
        (reply[3], stream)
    };
    assert_eq!(socks(b"other.test").0, 2);
    assert_eq!(socks(b"api.test\0.other.test").0, 2);
    let (reply, mut stream) = socks(b"api.test");
    assert_eq!((reply, ask(&mut stream, &get("api.test", "/s")).status()), (0, 200));
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert_eq!(sandbox.log.allowed().len(), 3);
}

#[test]
fn bodies_pass_exactly_both_ways() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.http();
    let sandbox = site.plan(&["http://api.test"]).start();
    let mut stream = sandbox.connect("api.test", 80);
    assert_eq!(ask(&mut stream, &get("api.test", "/packed")).body, origin::PACKED);
    let body: String = (0..200_000).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let head = format!("POST /echo HTTP/1.1\r\nHost: api.test\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let sent = body.clone();
    let writer = std::thread::spawn(move || writing.write_all(sent.as_bytes()).unwrap());
    let answer = read(&mut stream);
    writer.join().unwrap();
    let mut all = vec![];
    if answer.head.contains("chunked") {
        stream
            .write_all(get("api.test", "/").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes())
            .unwrap();
        stream.read_to_end(&mut all).unwrap();
        assert!(all.len() > body.len());
    } else {
        assert_eq!(answer.body, body.as_bytes());
    }
    let asks_first =
        "POST /echo HTTP/1.1\r\nHost: api.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let mut stream = sandbox.connect("api.test", 80);
    assert_eq!(ask(&mut stream, asks_first).status(), 100);
    assert_eq!(ask(&mut stream, "hi").status(), 200);
}

#[test]
fn what_is_not_http_goes_on_after_an_upgrade_and_events_come_as_they_happen() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.http();
    let sandbox = site.plan(&["http://api.test"]).start();
    let mut stream = sandbox.connect("api.test", 80);
    let upgrade =
        "GET /socket HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(ask(&mut stream, upgrade).status(), 101);
    for text in [&b"\x81\x05hello"[..], b"\0\r\n\n GET"] {
        stream.write_all(text).unwrap();
        let mut echo = vec![0; text.len()];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(echo, text);
    }
    let mut stream = sandbox.connect("api.test", 80);
    let refused = "GET /ok HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(ask(&mut stream, refused).status(), 200);
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200, "it is HTTP still");
    let answer = ask(&mut stream, &get("api.test", "/events"));
    assert!(answer.head.contains("text/event-stream"));
    let mut text = vec![0; 4];
    stream.read_exact(&mut text).unwrap();
}

#[test]
fn budgets_end_what_they_count() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let mut plan = site.plan(&["http://api.test"]);
    plan.limits = Limits { requests: 2, bytes_out: 2000, ..Limits::DEFAULT };
    let sandbox = plan.start();
    let mut stream = sandbox.connect("api.test", 80);
    assert_eq!(ask(&mut stream, &get("api.test", "/1")).status(), 200);
    let body = "x".repeat(3000);
    let head = format!("POST /echo HTTP/1.1\r\nHost: api.test\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = ask(&mut stream, &(head + &body));
    assert_eq!(answer.denied().as_deref(), Some("limit_exceeded"));
    assert!(!heard.lines().iter().any(|line| line.starts_with("body")), "{:?}", heard.lines());
    let mut stream = sandbox.connect("api.test", 80);
    assert_eq!(ask(&mut stream, &get("api.test", "/3")).denied().as_deref(), Some("limit_exceeded"));
    assert!(sandbox.cut().traffic.unwrap().bytes_out <= 2000);
}

#[test]
fn nothing_goes_that_can_not_be_written_down() {
    in_the_world!();
    let site = Site::new(&["api.test", "fresh.test"]);
    let heard = site.http();
    let sandbox = site.plan(&["http://api.test", "http://fresh.test"]).start();
    let mut stream = sandbox.connect("api.test", 80);
    assert_eq!(ask(&mut stream, &get("api.test", "/1")).status(), 200, "the positive control");
    sandbox.log.fill();
    let connected = || heard.lines().iter().filter(|line| *line == "connected").count();
    let before = connected();
    let mut fresh = sandbox.connect("fresh.test", 80);
    assert_eq!(ask(&mut fresh, &get("fresh.test", "/2")).denied().as_deref(), Some("task_ended"));
    assert_eq!(connected(), before, "it isn't dialled either");
    assert_eq!(ask(&mut stream, &get("api.test", "/2")).denied().as_deref(), Some("task_ended"));
    assert!(!heard.lines().iter().any(|line| line.contains("/2")), "{:?}", heard.lines());
}
