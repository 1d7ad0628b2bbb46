//! What a container sends comes to its way out and nowhere else, and what is trusted there is trusted inside.
#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cofferdam_backends::container::Container;
use cofferdam_core::backend::{Backend, Ending, Exec, Output, Session};
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{Doors, Outlets as _};
use cofferdam_core::policy::{BackendName, Ceiling, Layer, Policy, PolicyHash, Profile, decide};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_core::{Capability, Grant};
use cofferdam_sys::capture::{DnsSocket, Table, original_destination};
use cofferdam_sys::process;
use cofferdam_testkit::outlets::{AUTHORITY, OutletScript, ScriptedOutlet, ScriptedOutlets};
use cofferdam_testkit::skip;

fn grant() -> Grant {
    let mut layer = Layer {
        profile: Some(Profile::Internal),
        backend: Some(Some(BackendName::Container)),
        ..Layer::default()
    };
    if process::effective_user() != 0 {
        layer.accept_gaps = [Capability::Memory, Capability::Cpu].into();
    }
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    decide(&policy, PolicyHash("00".into()), &request()).unwrap()
}

fn request() -> Request {
    Request {
        program: Program::Command(Argv::new(c"true".into(), vec![])),
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: false,
    }
}

fn new_run() -> RunId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RunId::new(COUNT.fetch_add(1, Ordering::Relaxed), cofferdam_sys::fd::random_bytes().unwrap())
}

/// What a container says that may be captured, on a host that captures every port.
fn container(kept: &tempfile::TempDir) -> Option<Container> {
    let container = Container::probe(kept.path().to_owned()).with_outlets();
    container.offers().enforced().contains(&Capability::DenialsUnlistedPort).then_some(container)
}

/// Runs Python in a container with a way out, and gives what it says and the doors.
fn run(container: &Container, code: &str) -> (String, Ending, Doors, Arc<ScriptedOutlet>) {
    let outlets = ScriptedOutlets::new(OutletScript::default(), Arc::new(Mutex::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (said, ending) = runtime.block_on(async {
        let (run, grant) = (new_run(), grant());
        let outlet = outlets.open(&run, &grant).unwrap();
        let mut session = container.open(&run, grant, outlet).await.unwrap();
        let said = say(session.as_mut(), code).await;
        session.halt().await.unwrap();
        session.close().await.unwrap();
        said
    });
    let outlet = outlets.opened().remove(0);
    (said, ending, outlet.take_doors().unwrap(), outlet)
}

async fn say(session: &mut dyn Session, code: &str) -> (String, Ending) {
    let argv = Argv::new(c"/usr/bin/python3".into(), vec![c"-c".into(), CString::new(code).unwrap()]);
    let exec = Exec {
        program: Program::Command(argv),
        environment: vec![],
        delivered: Deliveries::default(),
        terminal: None,
        stdin: false,
    };
    let running = session.exec(exec).await.unwrap();
    let mut said = vec![];
    while let Some(Output::Stdout(bytes) | Output::Stderr(bytes)) = running.output().await.unwrap() {
        said.extend(bytes);
    }
    (String::from_utf8_lossy(&said).into_owned(), running.wait().await.unwrap())
}

#[test]
fn everything_that_a_program_dials_asks_or_throws_away_comes_to_its_way_out() {
    let kept = tempfile::tempdir().unwrap();
    let Some(container) = container(&kept) else { skip!("this kernel doesn't capture every port") };
    let code = "
import socket
tcp = socket.create_connection(('203.0.113.9', 5432), 5)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server = open('/etc/resolv.conf').read().split()[1]
udp.sendto(b'a question', (server, 53))
try: udp.sendto(b'thrown away', ('203.0.113.9', 123)); print('sent')
except PermissionError: print('refused')
own = socket.create_server(('127.0.0.1', 0))
socket.create_connection(own.getsockname(), 5)
print('own')";
    let (said, ending, doors, _) = run(&container, code);
    assert_eq!((said.as_str(), ending), ("refused\nown\n", Ending::Exited(0)));
    let tcp = TcpListener::from(doors.tcp.into_iter().next().unwrap());
    let dialled = original_destination(&tcp.accept().unwrap().0).unwrap();
    assert_eq!(dialled, "203.0.113.9:5432".parse::<SocketAddr>().unwrap());
    let dns = DnsSocket::from(doors.dns.into_iter().next().unwrap());
    let (length, asker) = dns.question(&mut [0; 64]).unwrap();
    assert_eq!((length, asker.asked().to_string()), (10, "192.0.2.53".to_owned()));
    assert!(doors.proxy.is_some());
    assert_eq!(Table::from(doors.table.unwrap()).refused().unwrap().udp, 1);
}

#[test]
fn a_sandboxs_own_authority_is_trusted_where_programs_look_and_no_proxy_is_named() {
    let kept = tempfile::tempdir().unwrap();
    let Some(container) = container(&kept) else { skip!("this kernel doesn't capture every port") };
    let code = "
import os
ours = open(os.environ['NODE_EXTRA_CA_CERTS']).read()
bundle = open(os.environ['SSL_CERT_FILE']).read()
system = open('/etc/ssl/certs/ca-certificates.crt').read()
print(ours, end='')
print(bundle.endswith(ours) and len(bundle) > len(ours), bundle == system)
print([name for name in os.environ if 'proxy' in name.lower()])
try: open('/etc/ssl/certs/ca-certificates.crt', 'a')
except OSError: print('refused')";
    let (said, ..) = run(&container, code);
    if !std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        skip!("this host has no bundle of certificates there");
    }
    assert_eq!(said, format!("{AUTHORITY}True True\n[]\nrefused\n"));
}

#[test]
fn nothing_inside_undoes_the_capture() {
    let kept = tempfile::tempdir().unwrap();
    let Some(container) = container(&kept) else { skip!("this kernel doesn't capture every port") };
    // NETLINK_ROUTE with a request to delete the route that makes every address local; NETLINK_NETFILTER; a new
    // namespace in which there would be another network; the ports of the doors.
    let code = "
import ctypes, socket, struct
def attempt(what):
    try: what(); print('done')
    except OSError as error: print('refused')
def ask(family, kind, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    s.send(struct.pack('=IHHII', 16 + len(body), kind, 5, 1, 0) + body)
    code = struct.unpack('=i', s.recv(4096)[16:20])[0]
    if code: raise OSError(-code, '')
attempt(lambda: ask(0, 25, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 255, 0, 0, 0, 0)))
attempt(lambda: ask(12, 0xa02, struct.pack('=BBH', 1, 0, 0)))
libc = ctypes.CDLL(None, use_errno=True)
def unshare():
    if libc.unshare(0x40000000): raise OSError(ctypes.get_errno(), '')
attempt(unshare)
for port in (1021, 1022): attempt(lambda: socket.create_server(('127.0.0.1', port)))
socket.create_connection(('203.0.113.9', 9), 5)
print('captured')";
    let (said, _, doors, _) = run(&container, code);
    assert_eq!(said, "refused\n".repeat(5) + "captured\n");
    let tcp = TcpListener::from(doors.tcp.into_iter().next().unwrap());
    assert!(tcp.accept().is_ok());
}

#[test]
fn where_nobody_takes_the_doors_everything_is_refused_at_once() {
    let kept = tempfile::tempdir().unwrap();
    let Some(container) = container(&kept) else { skip!("this kernel doesn't capture every port") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = "
import socket, time
began = time.monotonic()
for attempt in (lambda: socket.create_connection(('203.0.113.9', 443), 20),
                lambda: socket.getaddrinfo('a.test', 443)):
    try: attempt(); print('done')
    except OSError as error: print(type(error).__name__)
print(time.monotonic() - began < 5)";
    let said = runtime.block_on(async {
        let closed = Arc::new(cofferdam_core::outlet::Closed);
        let mut session = container.open(&new_run(), grant(), closed).await.unwrap();
        let said = say(session.as_mut(), code).await;
        session.halt().await.unwrap();
        session.close().await.unwrap();
        said.0
    });
    assert_eq!(said, "ConnectionRefusedError\ngaierror\nTrue\n");
}
