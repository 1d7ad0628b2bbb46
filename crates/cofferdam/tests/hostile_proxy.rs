//! A proxy that somebody took over, before a real broker: it dials its own server, asks for other paths, says what no
//! program said. It gets a credential used within its scope while the run lives, and neither the secret nor anything else.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_broker::client::{Broker, BrokerProgram, Brokered, Wanted};
use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::egress::{DenialCode, Host};
use cofferdam_core::grant::Grant;
use cofferdam_core::handover::{Handover, Taken};
use cofferdam_core::lease::{Held, Leases as _};
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Sink;
use cofferdam_core::policy::{CredentialRule, HostPattern, Layer, NetworkRule, Policy, PolicyHash, decide};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_sys::fdpass;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const SECRET: &str = "the-secret-behind-the-surrogate";

/// A server over TLS that writes down every head that it gets.
struct Origin {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// One that can prove one name.
    fn start(name: &str, authority: &Issuer<'static, KeyPair>) -> Origin {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, authority).unwrap().der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let writes = heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, writes) = (config.clone(), writes.clone());
                std::thread::spawn(move || answer(&config, stream, &writes));
            }
        });
        Origin { port, heard }
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

fn answer(config: &Arc<ServerConfig>, stream: TcpStream, heard: &Mutex<Vec<String>>) {
    let connection = ServerConnection::new(config.clone()).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let (mut said, mut buffer) = (vec![], [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        said.extend_from_slice(&buffer[..count]);
        if said.ends_with(b"\r\n\r\n") {
            heard.lock().unwrap().push(String::from_utf8_lossy(&said).into_owned());
            said.clear();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n"); // whoever asked may be gone
        }
    }
    if !said.is_empty() {
        heard.lock().unwrap().push(String::from_utf8_lossy(&said).into_owned());
    }
}

struct Nowhere;

impl Sink for Nowhere {
    fn record(&self, _: Event) -> Boxed<'_, Result<(), AuditError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A broker that serves one run, of which everybody else has nothing but the proxy's end of its way.
struct World {
    right: Origin,
    own: Origin,
    held: Box<dyn Held>,
    way: UnixStream,
    surrogate: String,
    /// Everything that the proxy got from the broker.
    got: Mutex<Vec<u8>>,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let authority = Issuer::new(params, key);
        let (right, own) = (Origin::start("api.test", &authority), Origin::start("evil.test", &authority));
        let config = folder.path().join(".config/cofferdam");
        std::fs::create_dir_all(&config).unwrap();
        let write = |name: &str, text: &str| {
            let path = config.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (roots, secret) = (write("roots.pem", &pem), write("secret", SECRET));
        let state = folder.path().join("state");
        write("node.toml", &format!("state = {state:?}\nextra_roots = [{roots:?}]\n"));
        write(
            "issuers.toml",
            &format!(
                "[static.api]\nroot = {{ file = {secret:?} }}\nhosts = [\"api.test:{}\"]\ninject = \"bearer\"\n",
                right.port
            ),
        );
        let home = format!("HOME={}", folder.path().display());
        let words = ["-i", &home, env!("CARGO_BIN_EXE_cofferdam"), "broker"];
        let program = BrokerProgram { path: "/usr/bin/env".into(), args: words.map(Into::into).into() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let wanted = BTreeMap::from([("api".to_owned(), Wanted::default())]);
        let leases = Brokered::new(Arc::new(Broker::new(program)), wanted);
        let run = RunId::new(1, [7; 10]);
        let (deliveries, mut held) =
            runtime.block_on(leases.prepare(&run, &grant(right.port), Arc::new(Nowhere))).unwrap();
        let variable = &deliveries.variables[0];
        assert_eq!(variable.name(), "API_TOKEN");
        let surrogate = String::from_utf8(variable.value().expose().to_vec()).unwrap();
        let way = UnixStream::from(held.take_way().unwrap());
        World { right, own, held, way, surrogate, got: Mutex::default(), runtime, _folder: folder }
    }

    /// Hands over a connection to a port of this machine, as one to a host; gives the answer and the other end.
    fn hands_over(&self, port: u16, credential: &str, host: &str) -> (Option<Taken>, UnixStream) {
        let dialled = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let message = Handover {
            credential: credential.to_owned(),
            host: Host::parse(host.as_bytes()).unwrap(),
            port: self.right.port,
            offers_http2: false,
        };
        let _ = fdpass::send(self.way.as_fd(), &message.encode(), &[dialled.as_fd(), theirs.as_fd()]); // it may be over
        drop(theirs);
        let mut byte = [0];
        let taken = ours.read_exact(&mut byte).ok().and_then(|()| Taken::decode(byte[0]));
        (taken, ours)
    }

    /// Says something over a connection that was taken, to the end of what is answered.
    fn says(&self, text: &str) -> String {
        let (taken, mut line) = self.hands_over(self.right.port, "api", "api.test");
        assert_eq!(taken, Some(Taken::Http1));
        line.write_all(text.as_bytes()).unwrap();
        line.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = vec![];
        let _ = line.read_to_end(&mut answer); // what it got is what counts
        self.got.lock().unwrap().extend_from_slice(&answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn head(&self, line: &str, more: &str) -> String {
        format!("{line} HTTP/1.1\r\nHost: api.test:{}\r\n{more}\r\n", self.right.port)
    }
}

/// A run that may read one path of one host with one credential.
fn grant(port: u16) -> Grant {
    let rule = NetworkRule {
        ports: vec![port],
        methods: Some(vec!["GET".into()]),
        paths: Some(vec!["/allowed".into()]),
        credential: Some("api".into()),
        ..NetworkRule::https(HostPattern::parse("api.test").unwrap())
    };
    let credential =
        CredentialRule { name: "api".into(), issuer: "static.api".into(), ttl: None, ends_on_misuse: false };
    let layer = Layer { network: vec![rule], credentials: vec![credential], ..Layer::default() };
    let policy = Policy::resolve(&[layer], &Default::default()).unwrap();
    let program = Program::Command(Argv::new(c"true".into(), vec![]));
    let (files, environment, labels) = (vec![], vec![], BTreeMap::new());
    let request = Request { program, files, environment, labels, terminal: None, collect: false };
    decide(&policy, PolicyHash("00".into()), &request).unwrap()
}

/// A world, and the header that what the run holds is sent in.
fn world() -> (World, String) {
    let world = World::new();
    let bearer = format!("Authorization: Bearer {}\r\n", world.surrogate);
    (world, bearer)
}

impl World {
    /// That within its scope it is used, and that nobody but the right server ever had the secret.
    fn proves(&self, bearer: &str) {
        let said = self.says(&self.head("GET /allowed", bearer));
        assert!(said.starts_with("HTTP/1.1 200"), "a positive control: {said}");
        assert!(self.right.heard().concat().contains(&format!("Bearer {SECRET}")));
        assert!(!self.own.heard().concat().contains(SECRET), "its own server gets no secret");
        let got = self.got.lock().unwrap();
        assert!(!got.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "the proxy never had it");
    }
}

#[test]
fn a_hostile_proxy_that_dials_its_own_server_gets_no_secret() {
    let (world, bearer) = world();
    // Its own server, under the name of the right one and under its own; another credential's name.
    let (own, right) = (world.own.port, world.right.port);
    for (port, credential, host, code) in [
        (own, "api", "api.test", DenialCode::UpstreamTls),
        (own, "api", "evil.test", DenialCode::CredentialWrongHost),
        (right, "api", "evil.test", DenialCode::CredentialWrongHost),
        (right, "other", "api.test", DenialCode::CredentialExpired),
    ] {
        let (taken, _) = world.hands_over(port, credential, host);
        assert_eq!(taken, Some(Taken::Denied(code)), "{host}");
    }
    world.proves(&bearer);
}

#[test]
fn a_hostile_proxy_gets_no_request_beyond_the_scope() {
    let (world, bearer) = world();
    // Requests that no rule has, and such as no program sends.
    let foreign = "Authorization: Bearer mine\r\n";
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n";
    let chunked = format!("{bearer}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n");
    for (text, code) in [
        (world.head("GET /other", &bearer), Some("path_not_allowed")),
        (world.head("GET /allowed/../other", &bearer), Some("path_not_allowed")),
        (world.head("DELETE /allowed", &bearer), Some("method_not_allowed")),
        (format!("GET /allowed HTTP/1.1\r\nHost: evil.test\r\n{bearer}\r\n"), Some("name_mismatch")),
        (world.head("GET https://evil.test/allowed", &bearer), Some("name_mismatch")),
        (world.head("GET /allowed", foreign), Some("foreign_credential")),
        (world.head("GET /allowed", &format!("{bearer}{foreign}")), Some("foreign_credential")),
        (world.head(&format!("GET /allowed?t={}", world.surrogate), &bearer), Some("credential_wrong_place")),
        (
            world.head("GET /allowed", &format!("X-Api-Key: {}\r\n", world.surrogate)),
            Some("credential_wrong_place"),
        ),
        (world.head("GET /allowed", &chunked) + "0\r\n\r\n" + smuggled, None), // one of the two is taken off, and it goes
        (format!("GET /other HTTP/1.1\nHost: api.test\n{bearer}\n"), None),
    ] {
        let said = world.says(&text);
        if let Some(code) = code {
            assert!(said.contains(&format!("x-cofferdam-broker-denied: {code}\r\n")), "{text}: {said}");
        }
        let heard = world.right.heard().concat();
        assert!(
            !heard.contains("/other") && !heard.contains("/smuggled") && !heard.contains("mine"),
            "{text}: {heard}"
        );
        assert!(code.is_none() || heard.is_empty(), "{text}: {heard}");
        assert!(!heard.contains("ontent-") || !heard.contains("ransfer-"), "{text}: {heard}");
    }
    world.proves(&bearer);
}

#[test]
fn nonsense_from_a_hostile_proxy_ends_nothing() {
    let (world, bearer) = world();
    // Nonsense, and descriptors that are none of sockets: the next request is served.
    let (file, pair) = (std::fs::File::open("/dev/null").unwrap(), UnixStream::pair().unwrap());
    for message in [&b"api"[..], b"api\0api.test\x001\x001", &[0xff; 900]] {
        let fds = [OwnedFd::from(file.try_clone().unwrap()), OwnedFd::from(pair.0.try_clone().unwrap())];
        let _ = fdpass::send(world.way.as_fd(), message, &[fds[0].as_fd(), fds[1].as_fd()]); // it may not take it
    }
    let valid = Handover {
        credential: "api".into(),
        host: Host::parse(b"api.test").unwrap(),
        port: world.right.port,
        offers_http2: true,
    };
    fdpass::send(world.way.as_fd(), &valid.encode(), &[file.as_fd(), pair.0.as_fd()]).unwrap();
    world.proves(&bearer);
}

#[test]
fn after_the_end_of_its_run_a_hostile_proxy_has_nothing() {
    let (mut world, bearer) = world();
    world.proves(&bearer);
    // After the end of the run, the way leads nowhere.
    let ended = world.runtime.block_on(world.held.end(Duration::ZERO));
    assert_eq!((ended[0].state.name(), ended[0].uses), ("dead", Some(1)), "{ended:?}");
    let (taken, _) = world.hands_over(world.right.port, "api", "api.test");
    assert!(!matches!(taken, Some(Taken::Http1 | Taken::Http2)), "{taken:?}");
    assert!(world.right.heard().is_empty());
}
