//! What a program has of the host besides files: its environment, its network, its credentials.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{End, LimitName};
use cofferdam_core::policy::{CredentialRule, HostPattern, LimitsLayer, NetworkRule, OWN_HOST, Protocol};
use cofferdam_core::request::Variable;

use crate::conformance::trial::Trial;
use crate::conformance::{Broken, Checked, Subject, Verdict};

/// Prints every variable, a line each.
const PRINT: &str = "import os
for name, value in os.environb.items(): print((name + b'=' + value).hex())";

/// The variables that a program under a policy finds, as `NAME=VALUE`.
fn environment(
    subject: &Subject,
    set: &[(&str, &str)],
    passed: &[(&str, &str)],
) -> Result<BTreeSet<Vec<u8>>, Broken> {
    let trial = Trial::of(subject)?;
    let variables = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, value)| Variable::new(*name, *value).unwrap()).collect()
    };
    let mut what = trial.python(PRINT);
    what.layer.environment.set = variables(set);
    what.layer.environment.passed = variables(passed);
    let ran = trial.run(what)?;
    ran.ends(End::Exited(0))?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let line = |line: &str| line.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
    let said = ran.said();
    said.lines().map(line).collect::<Option<_>>().ok_or_else(|| Broken(format!("it said {said:?}")))
}

pub(in crate::conformance) fn what_the_policy_sets_is_set(subject: &Subject) -> Checked {
    let set = [("SET_TEXT", "a=b 'c' \u{e9}\n\t"), ("SET_EMPTY", ""), ("PATH", "/usr/bin:/bin:/set")];
    let found = environment(subject, &set, &[])?;
    for (name, value) in set {
        must!(found.contains(format!("{name}={value}").as_bytes()), "{name} isn't {value:?}");
    }
    let without = environment(subject, &[], &[])?;
    let more = found.difference(&without).count();
    must!(more == set.len(), "{more} variables are other than without the three");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn what_the_policy_passes_is_passed(subject: &Subject) -> Checked {
    let passed = [("PASSED_TEXT", "from the host"), ("PASSED_BOTH", "host")];
    let found = environment(subject, &[("PASSED_BOTH", "policy")], &passed)?;
    must!(found.contains(&b"PASSED_TEXT=from the host"[..]), "PASSED_TEXT isn't there");
    must!(found.contains(&b"PASSED_BOTH=policy"[..]), "what the policy sets wins");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn what_no_policy_names_is_not_passed(subject: &Subject) -> Checked {
    use std::os::unix::ffi::OsStringExt;
    // What both may have of themselves. A value of the host's is looked for whatever its name.
    const USUAL: [&[u8]; 9] =
        [b"HOME", b"LANG", b"LOGNAME", b"PATH", b"PWD", b"SHELL", b"SHLVL", b"TERM", b"USER"];
    let found = environment(subject, &[], &[])?;
    let mut tried = 0;
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.into_vec(), value.into_vec());
        if USUAL.contains(&name.as_slice()) || value.len() < 4 {
            continue;
        }
        tried += 1;
        let line = [name.as_slice(), b"=", &value].concat();
        must!(!found.contains(&line), "the host's {} is there", String::from_utf8_lossy(&name));
    }
    must!(tried > 0, "the host has no variable by which this could be seen");
    Ok(Verdict::Held)
}

/// Listens where nobody may come, and says who did.
struct Canary {
    tcp: TcpListener,
    udp: UdpSocket,
    named: UnixListener,
    name: String,
}

impl Canary {
    fn set_up() -> std::io::Result<Self> {
        let tcp = TcpListener::bind("0.0.0.0:0")?;
        let udp = UdpSocket::bind(("0.0.0.0", tcp.local_addr()?.port()))?;
        let name = format!("cofferdam-canary-{}-{}", std::process::id(), tcp.local_addr()?.port());
        let named = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        tcp.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        named.set_nonblocking(true)?;
        Ok(Canary { tcp, udp, named, name })
    }

    fn port(&self) -> u16 {
        self.tcp.local_addr().map_or(0, |address| address.port())
    }

    /// Addresses of this host, besides its loopback: those that it would speak from.
    fn addresses(&self) -> Vec<String> {
        let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect(("192.0.2.1", 9))?; // nothing is sent: it only chooses a way
            socket.local_addr()
        });
        ["127.0.0.1".to_owned()].into_iter().chain(own.map(|own| own.ip().to_string())).collect()
    }

    fn heard(&self) -> Vec<&'static str> {
        let mut heard = vec![];
        let came = |kind: ErrorKind| kind != ErrorKind::WouldBlock;
        if self.tcp.accept().map_or_else(|error| came(error.kind()), |_| true) {
            heard.push("TCP");
        }
        if self.udp.recv(&mut [0; 16]).map_or_else(|error| came(error.kind()), |_| true) {
            heard.push("UDP");
        }
        if self.named.accept().map_or_else(|error| came(error.kind()), |_| true) {
            heard.push("an abstract name");
        }
        heard
    }
}

/// Tries each way out, to the host's addresses and to what is named besides.
fn knock(canary: &Canary, besides: &[&str]) -> String {
    let hosts: Vec<_> = canary.addresses().iter().map(ToString::to_string).collect();
    let hosts: Vec<_> = hosts.iter().map(String::as_str).chain(besides.iter().copied()).collect();
    format!(
        "import socket
for host in {hosts:?}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            way = socket.socket(socket.AF_INET, kind); way.settimeout(1)
            way.connect((host, {port})); way.send(b'out')
        except OSError: pass
try: socket.socket(socket.AF_UNIX).connect('\\0' + {:?})
except (AttributeError, OSError): pass
print('tried')",
        canary.name,
        port = canary.port(),
    )
}

pub(in crate::conformance) fn nothing_leaves_without_a_rule(subject: &Subject) -> Checked {
    let failed = |error: std::io::Error| Broken(format!("no canary could be set up: {error}"));
    let canary = Canary::set_up().map_err(failed)?;
    let outside = std::process::Command::new("/usr/bin/python3").args(["-c", &knock(&canary, &[])]).output();
    let outside = outside.map_err(failed)?;
    must!(outside.status.success(), "the attempt fails outside: {outside:?}");
    must!(canary.heard().len() == 3, "outside each way is open, or this shows nothing");
    while !canary.heard().is_empty() {} // one for each address
    let trial = Trial::of(subject)?;
    let mut what = trial.python(&knock(&canary, &[]));
    what.layer.accept_gaps.remove(&Capability::Network);
    let ran = trial.run(what)?;
    if let Some(refused) = trial.refused(&ran, Capability::Network)? {
        return Ok(refused);
    }
    ran.says("tried\n")?;
    let heard = canary.heard();
    must!(heard.is_empty(), "something left by {heard:?}");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn a_rule_lets_through_what_it_names_or_is_refused(subject: &Subject) -> Checked {
    let failed = |error: std::io::Error| Broken(format!("no canary could be set up: {error}"));
    let canary = Canary::set_up().map_err(failed)?;
    let trial = Trial::of(subject)?;
    let mut what = trial.python(&knock(&canary, &[OWN_HOST]));
    what.layer.network = vec![NetworkRule {
        ports: vec![canary.port()],
        protocol: Protocol::Tcp,
        private: true,
        ..NetworkRule::https(HostPattern::parse(OWN_HOST).unwrap())
    }];
    let ran = trial.run(what)?;
    for capability in [Capability::Egress, Capability::EgressTcp, Capability::Dns] {
        if trial.gap(capability).is_some() {
            return trial
                .refused(&ran, capability)?
                .ok_or_else(|| Broken(format!("it hasn't got {capability}, and ran: {}", ran.story())));
        }
    }
    ran.says("tried\n")?;
    must!(canary.heard() == ["TCP"], "what the rule names, and nothing else, gets through");
    Ok(Verdict::Held)
}

/// Bytes of each body that [`Origin`] is sent.
const BODY: usize = 20_000;

/// An origin on this host that answers each request when it has all of it, and counts.
struct Origin {
    port: u16,
    connections: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Origin {
    /// Listens until the process ends: nobody accepts what comes after that.
    fn set_up() -> std::io::Result<Self> {
        let listener = TcpListener::bind("0.0.0.0:0")?;
        let port = listener.local_addr()?.port();
        let (connections, bytes) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let origin = Origin { port, connections: Arc::clone(&connections), bytes: Arc::clone(&bytes) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::Relaxed);
                let bytes = Arc::clone(&bytes);
                std::thread::spawn(move || answer(stream, &bytes));
            }
        });
        Ok(origin)
    }

    /// How many connections and bytes came since this was last asked.
    fn counted(&self) -> (usize, usize) {
        (self.connections.swap(0, Ordering::Relaxed), self.bytes.swap(0, Ordering::Relaxed))
    }
}

/// Answers whatever is as long as a request with its body.
fn answer(mut stream: TcpStream, bytes: &AtomicUsize) {
    let (mut came, mut piece) = (vec![], [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        bytes.fetch_add(count, Ordering::Relaxed);
        came.extend_from_slice(&piece[..count]);
        let head = came.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| came.len() >= head + 4 + BODY) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); // it may be cut off
            came.clear();
        }
    }
}

/// Sends three requests, on a connection each that stays, and says how many were answered.
fn three_requests(port: u16) -> String {
    format!(
        "import socket
held, answered = [], 0
for number in range(3):
    try:
        way = socket.create_connection(('{OWN_HOST}', {port}), 10); held.append(way)
        way.sendall(b'POST / HTTP/1.1\\r\\nHost: {OWN_HOST}:{port}\\r\\nContent-Length: {BODY}\\r\\n\\r\\n')
        way.sendall(b'x' * {BODY})
        answered += way.recv(4096).startswith(b'HTTP/1.1 200')
    except OSError: pass
print(answered)"
    )
}

pub(in crate::conformance) fn what_leaves_ends_at_its_limits_or_the_rule_is_refused(
    subject: &Subject,
) -> Checked {
    let origin = Origin::set_up().map_err(|error| Broken(format!("no origin could be set up: {error}")))?;
    let trial = Trial::of(subject)?;
    let under = |limits: LimitsLayer, protocol: Protocol| {
        let mut what = trial.python(&three_requests(origin.port));
        what.layer.limits = limits;
        what.layer.network = vec![NetworkRule {
            ports: vec![origin.port],
            protocol,
            private: true,
            ..NetworkRule::https(HostPattern::parse(OWN_HOST).unwrap())
        }];
        trial.run(what)
    };
    let usual = LimitsLayer::default;
    let ran = under(usual(), Protocol::Tcp)?;
    for capability in [Capability::Egress, Capability::EgressTcp, Capability::EgressHttp, Capability::Dns] {
        if trial.gap(capability).is_some() {
            return trial
                .refused(&ran, capability)?
                .ok_or_else(|| Broken(format!("it hasn't got {capability}, and ran: {}", ran.story())));
        }
    }
    for (limit, limits, protocol, answered) in [
        (None, usual(), Protocol::Tcp, 3),
        (None, usual(), Protocol::Http, 3),
        (Some(LimitName::Connections), LimitsLayer { connections: Some(2), ..usual() }, Protocol::Tcp, 2),
        (Some(LimitName::Requests), LimitsLayer { requests: Some(2), ..usual() }, Protocol::Http, 2),
        (Some(LimitName::Hosts), LimitsLayer { hosts: Some(0), ..usual() }, Protocol::Tcp, 0),
        (Some(LimitName::BytesOut), LimitsLayer { bytes_out: Some(30_000), ..usual() }, Protocol::Tcp, 1),
    ] {
        let _ = origin.counted();
        let ran = under(limits, protocol)?;
        ran.ends(End::Exited(0))?;
        let (connections, bytes) = origin.counted();
        let said = ran.said();
        must!(
            said == format!("{answered}\n"),
            "of three, {said:?} were answered at {limit:?}: {}",
            ran.story()
        );
        let Some(limit) = limit else { continue };
        let within = match limit {
            LimitName::BytesOut => bytes <= 30_000,
            LimitName::Requests => bytes < 3 * BODY,
            _ => connections == answered,
        };
        must!(within, "{connections} connections and {bytes} bytes came at {}", limit.name());
        must!(
            ran.outcome.limits_hit.contains(&limit),
            "that {} ended it isn't told: {}",
            limit.name(),
            ran.story()
        );
    }
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn a_credential_is_refused_as_long_as_nobody_mints_it(
    subject: &Subject,
) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.python("print('ran')");
    let ttl = Some(Duration::from_secs(60));
    what.layer.credentials =
        vec![CredentialRule { name: "orders".into(), issuer: "db.main".into(), ttl, ends_on_misuse: false }];
    let ran = trial.run(what)?;
    match trial.refused(&ran, Capability::Credentials)? {
        Some(refused) => Ok(refused),
        // Whoever can mint shows here that it was: nothing in this suite can see that yet.
        None => Err(Broken(format!("it ran without its credential: {}", ran.story()))),
    }
}
