//! TLS: ended, passed through, and what both have to agree on.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;

use cofferdam_core::outlet::Outlet;

use super::{Site, in_the_world};
use crate::client::{ask, get, http2, tls};
use crate::origin;

#[test]
fn a_request_over_tls_is_read_and_its_origin_has_to_prove_its_name() {
    in_the_world!();
    let site = Site::new(&["api.test", "wrong.test"]);
    let heard = site.https("api.test", &["http/1.1"]);
    let sandbox = site.plan(&["GET api.test/ok/**", "wrong.test"]).start();
    let authority = sandbox.outlet.authority().to_owned();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", &authority);
    assert_eq!(ask(&mut stream, &get("api.test", "/ok/1")).body, b"ok\n");
    assert_eq!(ask(&mut stream, &get("api.test", "/no")).denied().as_deref(), Some("path_not_allowed"));
    let mut stream = tls(sandbox.connect("wrong.test", 443), "wrong.test", &authority);
    let answer = ask(&mut stream, &get("wrong.test", "/"));
    assert_eq!((answer.status(), answer.denied().as_deref()), (502, Some("upstream_tls")));
    let mut stream = tls(sandbox.connect("evil.test", 443), "evil.test", &authority);
    assert_eq!(ask(&mut stream, &get("evil.test", "/")).denied().as_deref(), Some("host_not_allowed"));
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests, ["GET api.test/ok/1 HTTP/1.1"]);
}

#[test]
fn names_that_do_not_agree_go_nowhere() {
    in_the_world!();
    let site = Site::new(&["api.test", "front.test"]);
    let heard = site.https("api.test", &["http/1.1"]);
    let sandbox = site.plan(&["api.test", "front.test"]).start();
    let authority = sandbox.outlet.authority().to_owned();
    for (to, server_name, host) in [
        ("api.test", "front.test", "api.test"),
        ("api.test", "api.test", "front.test"),
        ("front.test", "api.test", "api.test"),
        ("api.test", "evil.test", "evil.test"),
    ] {
        let mut stream = tls(sandbox.connect(to, 443), server_name, &authority);
        let denied = ask(&mut stream, &get(host, "/")).denied();
        assert_eq!(denied.as_deref(), Some("name_mismatch"), "{to} {server_name} {host}");
    }
    assert_eq!(heard.lines(), [""; 0]);
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", &authority);
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200, "the positive control");
    let mut stream = sandbox.connect("api.test", 443);
    let answer = ask(&mut stream, &get("api.test", "/"));
    assert_eq!(answer.denied().as_deref(), Some("no_server_name"), "in the clear, where TLS is spoken");
}

#[test]
fn http2_is_spoken_on_both_sides_with_its_trailers() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.https("api.test", &["h2", "http/1.1"]);
    let sandbox = site.plan(&["api.test"]).start();
    let authority = sandbox.outlet.authority().to_owned();
    let stream = sandbox.connect("api.test", 443);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sender = http2(stream, "api.test", &authority).await;
        let request = |uri: &str| {
            Request::builder().uri(uri).header("te", "trailers").body(Full::new(Bytes::from("hi"))).unwrap()
        };
        let response = sender.send_request(request("https://api.test/trailers")).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), "message");
        let response = sender.send_request(request("https://other.test/")).await.unwrap();
        assert_eq!(response.headers()["x-cofferdam-denied"], "name_mismatch");
        let response = sender.send_request(request("https://api.test/echo")).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hi");
    });
    let lines = heard.lines();
    assert_eq!(lines.iter().filter(|line| *line == "connected").count(), 1, "{lines:?}");
    assert!(lines.iter().filter(|line| line.starts_with("GET")).all(|line| line.ends_with("HTTP/2.0")));
}

#[test]
fn a_length_over_http2_is_said_once_and_plainly() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.https("api.test", &["http/1.1"]);
    let sandbox = site.plan(&["api.test"]).start();
    let authority = sandbox.outlet.authority().to_owned();
    let stream = sandbox.connect("api.test", 443);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sender = http2(stream, "api.test", &authority).await;
        for (lengths, status) in [(&["2"][..], 200), (&["02"], 400), (&["2", "2"], 400)] {
            let mut request = Request::builder().method("POST").uri("https://api.test/echo");
            for length in lengths {
                request = request.header("content-length", *length);
            }
            let request = request.body(Full::new(Bytes::from("hi"))).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{lengths:?}");
        }
    });
    assert_eq!(heard.lines(), ["connected", "POST api.test/echo HTTP/1.1", "body 2"]);
}

#[test]
fn tls_is_passed_through_unopened_under_its_own_name_alone() {
    in_the_world!();
    let site = Site::new(&["pinned.test"]);
    let heard = site.https("pinned.test", &["http/1.1"]);
    let sandbox = site.plan(&["tls://pinned.test"]).start();
    let mut stream = tls(sandbox.connect("pinned.test", 443), "pinned.test", &site.root.pem);
    assert_eq!(ask(&mut stream, &get("pinned.test", "/")).status(), 200, "the origin's own certificate");
    let before = heard.lines().len();
    let mut stream = tls(sandbox.connect("pinned.test", 443), "other.test", sandbox.outlet.authority());
    let _ = stream.write_all(b"x");
    assert!(stream.read(&mut [0; 1]).is_err() || stream.read(&mut [0; 1]).unwrap() == 0);
    let mut plain = sandbox.connect("pinned.test", 443);
    assert_eq!(ask(&mut plain, &get("pinned.test", "/")).denied().as_deref(), Some("no_server_name"));
    assert_eq!(heard.lines().len(), before);
    assert_eq!(sandbox.log.allowed(), ["tunnel pinned.test:443"]);
}

#[test]
fn any_bytes_go_where_a_rule_says_so_and_others_are_closed_at_once() {
    in_the_world!();
    let site = Site::new(&["db.test"]);
    let heard = origin::raw((site.ip, 5432));
    let sandbox = site.plan(&["tcp://db.test:5432"]).start();
    let mut stream = sandbox.connect("db.test", 5432);
    let mut greeting = [0; 6];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello\n", "who speaks first is heard");
    stream.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
    let mut echo = [0; 8];
    stream.read_exact(&mut echo).unwrap();
    for (name, port, says) in
        [("db.test", 5433, &b"\0\x01x"[..]), ("other.test", 5432, b"\x01"), ("other.test", 25, b"")]
    {
        let began = Instant::now();
        let mut stream = sandbox.connect(name, port);
        stream.write_all(says).unwrap();
        let ended = stream.read(&mut [0; 1]);
        assert!(matches!(ended, Ok(0) | Err(_)), "{name}:{port}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(heard.lines(), ["connected"]);
    let denied = sandbox.log.denied();
    assert!(denied.contains(&"port_not_allowed db.test".to_owned()), "{denied:?}");
    assert!(denied.contains(&"host_not_allowed other.test".to_owned()), "{denied:?}");
}

#[test]
fn a_client_of_postgresql_is_told_why_in_its_own_protocol() {
    in_the_world!();
    let site = Site::new(&["db.test"]);
    let sandbox = site.plan(&["tcp://db.test:5432"]).start();
    for (name, port, code) in
        [("db.test", 5433, "port_not_allowed"), ("other.test", 5432, "host_not_allowed")]
    {
        let mut stream = sandbox.connect(name, port);
        stream.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"N");
        stream.write_all(b"\0\0\0\x10\0\x03\0\0user\0me\0").unwrap();
        let mut said = vec![];
        stream.read_to_end(&mut said).unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(
            said.starts_with('E') && said.contains(&format!("MCofferdam: {code}, needs --allow ")),
            "{said:?}"
        );
        assert!(sandbox.log.denied().contains(&format!("{code} {name}")));
    }
}

#[test]
fn tls_within_a_connect_is_ended_and_judged_as_any_other() {
    in_the_world!();
    let site = Site::new(&["api.test", "front.test"]);
    let heard = site.https("api.test", &["h2", "http/1.1"]);
    let sandbox = site.plan(&["GET api.test/ok", "front.test"]).start();
    let within = |to: &str, server_name: &str| {
        let mut stream = sandbox.connect_to_proxy();
        let head = format!("CONNECT {to}:443 HTTP/1.1\r\nHost: {to}:443\r\n\r\n");
        assert_eq!(ask(&mut stream, &head).status(), 200);
        tls(stream, server_name, sandbox.outlet.authority())
    };
    let mut stream = within("api.test", "api.test");
    assert_eq!(ask(&mut stream, &get("api.test", "/ok")).status(), 200);
    assert_eq!(ask(&mut stream, &get("api.test", "/no")).denied().as_deref(), Some("path_not_allowed"));
    let fronted = ask(&mut within("front.test", "front.test"), &get("api.test", "/ok"));
    assert_eq!(fronted.denied().as_deref(), Some("name_mismatch"));
    let fronted = ask(&mut within("front.test", "api.test"), &get("front.test", "/ok"));
    assert_eq!(fronted.denied().as_deref(), Some("name_mismatch"));
    let forward = "GET https://api.test/ok HTTP/1.1\r\nHost: api.test\r\n\r\n";
    assert_eq!(ask(&mut sandbox.connect_to_proxy(), forward).status(), 200, "TLS is begun for who asks so");
    let plain = forward
        .replace("https://api.test", "http://api.test:443")
        .replace("Host: api.test", "Host: api.test:443");
    assert_eq!(ask(&mut sandbox.connect_to_proxy(), &plain).denied().as_deref(), Some("no_server_name"));
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests, ["GET api.test/ok HTTP/1.1"; 2], "as the program speaks");
}

#[test]
fn an_origin_that_speaks_nothing_else_is_spoken_to_in_http2() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.https("api.test", &["h2"]);
    let sandbox = site.plan(&["api.test"]).start();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", sandbox.outlet.authority());
    for _ in 0..2 {
        assert_eq!(ask(&mut stream, &get("api.test", "/ok")).status(), 200);
    }
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests, ["GET api.test/ok HTTP/2.0"; 2]);
}

#[test]
fn another_protocol_is_spoken_over_tls_with_an_origin_that_would_speak_http2() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.https("api.test", &["h2", "http/1.1"]);
    let sandbox = site.plan(&["api.test"]).start();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", sandbox.outlet.authority());
    assert_eq!(ask(&mut stream, &get("api.test", "/ok")).status(), 200);
    let upgrade =
        "GET /socket HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(ask(&mut stream, upgrade).status(), 101);
    stream.write_all(b"\x81\x05hello").unwrap();
    let mut echo = [0; 7];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"\x81\x05hello");
    let requests: Vec<_> = heard.lines().into_iter().filter(|line| line != "connected").collect();
    assert_eq!(requests, ["GET api.test/ok HTTP/1.1", "GET api.test/socket HTTP/1.1"]);
}

#[test]
fn a_client_that_trusts_nobody_leaves_its_refusal_in_the_log() {
    in_the_world!();
    let site = Site::new(&[]);
    let sandbox = site.plan(&["api.test"]).start();
    let mut stream = tls(sandbox.connect("evil.test", 443), "evil.test", &site.root.pem);
    assert!(
        stream.write_all(b"x").and_then(|()| stream.flush()).is_err(),
        "it doesn't trust the certificate"
    );
    drop(stream);
    let is_logged = || sandbox.log.denied().contains(&"host_not_allowed evil.test".to_owned());
    assert!(cofferdam_testkit::host::eventually(Duration::from_secs(10), is_logged));
}
