//! The proxy as a process, runs that follow each other, and the operator's own proxy.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::outcome::{RunId, Traffic};
use cofferdam_core::outlet::Outlet;
use cofferdam_testkit::host::{eventually, processes_with};

use super::{Site, in_the_world};
use crate::client::{ask, get, tls};
use crate::world::{self, Log};

/// What the kernel says of each proxy that this process started.
fn proxies() -> Vec<(i32, String)> {
    let status = |pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = format!("PPid:\t{}\n", std::process::id());
    let all = processes_with("examples/proxy").into_iter().map(|pid| (pid, status(pid)));
    all.filter(|(_, status)| status.contains(&own)).collect()
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:\t")));
    line.unwrap_or_default().trim().to_owned()
}

#[test]
fn the_proxy_has_no_privileges_no_files_no_environment_and_little_memory() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.https("api.test", &["h2", "http/1.1"]);
    let sandbox = site.plan(&["api.test"]).start();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", sandbox.outlet.authority());
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200, "the positive control: it serves");
    // Those of other tests may be at their beginning or end.
    let is_confined = |(pid, status): &(i32, String)| {
        let [seccomp, privileges, capabilities, threads] =
            ["Seccomp", "NoNewPrivs", "CapPrm", "Threads"].map(|name| field(status, name));
        let user = field(status, "Uid").split('\t').all(|id| id == "1890000000");
        let groups = field(status, "Groups").is_empty();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let confined = (seccomp.as_str(), privileges.as_str(), threads.as_str()) == ("2", "1", "1");
        confined && capabilities == "0000000000000000" && user && groups && environment.is_empty()
    };
    assert!(eventually(Duration::from_secs(10), || {
        let found = proxies();
        !found.is_empty() && found.iter().all(is_confined)
    }));
    for (pid, status) in proxies() {
        println!("proxy {pid}: {}", field(&status, "VmRSS"));
    }
}

#[test]
fn a_sandbox_that_is_used_again_has_a_budget_and_a_log_of_its_own_each_time() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let heard = site.http();
    let mut plan = site.plan(&["http://api.test"]);
    plan.limits.requests = 1;
    let sandbox = plan.start();
    let request = |path: &str| ask(&mut sandbox.connect("api.test", 80), &get("api.test", path));
    assert_eq!(request("/1").status(), 200);
    assert_eq!(request("/2").denied().as_deref(), Some("limit_exceeded"));
    let ip = sandbox.lookup("api.test").unwrap();
    let cut = sandbox.cut();
    assert_eq!((cut.denials.counts().len(), sandbox.log.allowed().len()), (1, 1));
    // What comes between two runs is nobody's: it is thrown away.
    let mut between = sandbox.connect_to((ip, 80).into()).unwrap();
    between.write_all(get("api.test", "/between").as_bytes()).unwrap();
    let log: Arc<Log> = Arc::default();
    sandbox.outlet.record(&RunId::new(2, [7; 10]), log.clone(), None);
    assert!(matches!(between.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(request("/3").status(), 200, "the budget begins anew");
    assert_eq!(sandbox.cut().denials.counts().len(), 0);
    assert_eq!((log.allowed().len(), sandbox.log.allowed().len()), (1, 1));
    assert!(!heard.lines().iter().any(|line| line.contains("between")));
}

#[test]
fn a_sandbox_that_sends_nothing_starts_nothing() {
    in_the_world!();
    let site = Site::new(&[]);
    let sandbox = site.plan(&[]).start();
    let cut = sandbox.cut();
    assert_eq!((cut.traffic, cut.denials.counts().len(), cut.lost), (Some(Traffic::default()), 0, None));
    assert_eq!(sandbox.log.denied(), [""; 0]);
}

/// A proxy that notes what it is asked for.
fn corporate_proxy() -> (std::net::SocketAddr, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((world::address(), 3128)).unwrap();
    let (at, noted) = (listener.local_addr().unwrap(), Arc::default());
    let noting: Arc<std::sync::Mutex<Vec<String>>> = Arc::clone(&noted);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = vec![];
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let to = String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned();
            let mut origin = TcpStream::connect(&to).unwrap();
            noting.lock().unwrap().push(to);
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let (mut from, mut into) = (client.try_clone().unwrap(), origin.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            std::thread::spawn(move || std::io::copy(&mut origin, &mut client));
        }
    });
    (at, noted)
}

#[test]
fn where_the_operator_has_a_proxy_it_is_told_the_address_that_was_judged() {
    in_the_world!();
    let site = Site::new(&["api.test"]);
    let _heard = site.https("api.test", &["http/1.1"]);
    let (at, noted) = corporate_proxy();
    let mut plan = site.plan(&["api.test"]);
    plan.node.upstream_proxy = Some(at.to_string());
    let sandbox = plan.start();
    let mut stream = tls(sandbox.connect("api.test", 443), "api.test", sandbox.outlet.authority());
    assert_eq!(ask(&mut stream, &get("api.test", "/")).status(), 200);
    let mut stream = tls(sandbox.connect("evil.test", 443), "evil.test", sandbox.outlet.authority());
    assert_eq!(ask(&mut stream, &get("evil.test", "/")).denied().as_deref(), Some("host_not_allowed"));
    assert_eq!(*noted.lock().unwrap(), [format!("{}:443", site.ip)]);
}
