//! A network with origins in it, and sandboxes whose way out is the one that is tested.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::{Cut, Dial, Doors, Outlet, Sink};
use cofferdam_core::policy::{AllowFlag, Limits, NetworkRule};
use cofferdam_egress::outlet::{DeniedNames, Node, Outlets, ProxyProgram, Settings};
use cofferdam_sys::capture::{self, Capture};
use cofferdam_sys::launch::{Ids, Launch, Launched, Program};
use cofferdam_sys::{fd, fdpass};

/// Set where this binary is the program inside.
pub(crate) const INSIDE: &str = "COFFERDAM_EGRESS_INSIDE";

/// Set where the tests have a network to themselves.
pub(crate) const WORLD: &str = "COFFERDAM_EGRESS_WORLD";

/// Longer than anything here takes that comes to an end at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An address that counts as this machine's own.
pub(crate) const OWN: &str = "203.0.113.250";

/// Whether the tests have a network to themselves; every address of 203.0.113.0/24 is in it then.
pub(crate) fn is_there() -> bool {
    static MADE: Once = Once::new();
    let is_there = std::env::var_os(WORLD).is_some();
    if is_there {
        MADE.call_once(|| {
            for line in [
                "link set lo up",
                "route add local 203.0.113.0/24 dev lo",
                "route add local 10.99.0.0/16 dev lo",
            ] {
                assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
            }
        });
    }
    is_there
}

/// An address for an origin, which no other test has.
pub(crate) fn address() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(1);
    Ipv4Addr::new(203, 0, 113, LAST.fetch_add(1, Ordering::Relaxed))
}

/// Does what it is told inside: makes a socket, and hands it over.
pub(crate) fn obey() {
    let control = UnixStream::from(fd::inherited(3).unwrap());
    for order in BufReader::new(control.try_clone().unwrap()).lines() {
        let order = order.unwrap();
        let made: std::io::Result<OwnedFd> = match order.split_once(' ').unwrap() {
            ("tcp", to) => TcpStream::connect(to).map(Into::into),
            ("udp", to) => UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
                socket.connect(to)?;
                Ok(socket.into())
            }),
            _ => panic!("{order}"),
        };
        match made {
            Ok(socket) => fdpass::send(control.as_fd(), b"y", &[socket.as_fd()]),
            Err(_) => fdpass::send(control.as_fd(), b"n", &[]),
        }
        .unwrap();
    }
}

/// What was written down.
#[derive(Debug, Default)]
pub(crate) struct Log {
    events: Mutex<Vec<Event>>,
    is_full: std::sync::atomic::AtomicBool,
}

impl Log {
    /// Nothing can be written down any more.
    pub(crate) fn fill(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// What was let out, as `METHOD host:port/path` or `tunnel host:port`.
    pub(crate) fn allowed(&self) -> Vec<String> {
        let line = |event: &Event| match event {
            Event::EgressAllowed(passage) => {
                let to = format!("{}:{}", passage.to.host(), passage.to.port());
                Some(match &passage.request {
                    Some((method, path)) => format!("{method} {to}{path}"),
                    None => format!("tunnel {to}"),
                })
            }
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(line).collect()
    }

    /// The codes and hosts of what was refused.
    pub(crate) fn denied(&self) -> Vec<String> {
        let line = |event: &Event| match event {
            Event::EgressDenied { denial, .. } => Some(format!("{} {}", denial.code, denial.host)),
            Event::DnsDenied { denial, .. } => Some(format!("dns {}", denial.host)),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(line).collect()
    }
}

impl Sink for Log {
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>> {
        Box::pin(async move {
            if self.is_full.load(Ordering::Relaxed) {
                return Err(AuditError::Changed { seq: 0 });
            }
            self.events.lock().unwrap().push(event);
            Ok(())
        })
    }
}

/// What a flag says.
fn rule(flag: &str) -> NetworkRule {
    match NetworkRule::parse_flag(flag).unwrap() {
        AllowFlag::Rule(rule) => rule,
        other => panic!("{other:?}"),
    }
}

/// What a test has of its own kind.
pub(crate) struct Plan {
    pub(crate) rules: Vec<NetworkRule>,
    pub(crate) limits: Limits,
    pub(crate) node: Node,
    pub(crate) denied_names: DeniedNames,
}

impl Plan {
    /// Flags as a person writes them, a resolver, and a root to trust.
    pub(crate) fn new(flags: &[&str], resolver: SocketAddr, root: &str) -> Plan {
        Plan {
            rules: flags.iter().map(|flag| rule(flag)).collect(),
            limits: Limits::DEFAULT,
            node: Node {
                resolvers: vec![resolver],
                extra_roots: root.as_bytes().to_vec(),
                user: 1_890_000_000,
                ..Node::default()
            },
            denied_names: DeniedNames::Explain,
        }
    }

    pub(crate) fn start(self) -> Sandbox {
        Sandbox::start(self)
    }
}

/// The example that is the proxy: cargo builds it with the tests.
fn proxy() -> std::path::PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = own.ancestors().nth(2).unwrap().join("examples/proxy");
    assert!(built.exists(), "`cargo test` of this package builds {}", built.display());
    built
}

/// A sandbox with a program in it that makes sockets.
pub(crate) struct Sandbox {
    _launched: Launched,
    control: UnixStream,
    pub(crate) outlet: Arc<cofferdam_egress::outlet::Outlet>,
    pub(crate) log: Arc<Log>,
}

impl Sandbox {
    fn start(plan: Plan) -> Sandbox {
        let outlets = Outlets::new(Settings {
            program: ProxyProgram { path: proxy(), args: vec![] },
            node: plan.node,
            denied_names: plan.denied_names,
            own_addresses: Some(vec![OWN.parse().unwrap()]),
        });
        let run = RunId::new(1, fd::random_bytes().unwrap());
        let outlet = outlets.open_for(&run, &plan.rules, &plan.limits);
        let (control, theirs) = fdpass::pair().unwrap();
        let capture = Capture::new(&capture::probe().unwrap(), &[]);
        let launched = launch(&capture, theirs).spawn().unwrap();
        let table = capture.load(&launched).unwrap();
        let doors = capture.doors(&launched, table).unwrap();
        outlet
            .attach(Doors {
                tcp: doors.tcp.into_iter().map(Into::into).collect(),
                dns: doors.dns.iter().map(|door| door.as_fd().try_clone_to_owned().unwrap()).collect(),
                proxy: Some(doors.proxy.into()),
                table: doors.table.map(|table| table.as_fd().try_clone_to_owned().unwrap()),
            })
            .unwrap();
        let log: Arc<Log> = Arc::default();
        outlet.record(&run, log.clone(), None);
        Sandbox { _launched: launched, control, outlet, log }
    }

    /// A socket inside; none where the kernel refuses.
    fn socket(&self, order: &str) -> Option<OwnedFd> {
        let mut control = &self.control;
        control.write_all(format!("{order}\n").as_bytes()).unwrap();
        let (_, fds) = fdpass::receive(control.as_fd(), &mut [0; 1]).unwrap();
        fds.into_iter().next()
    }

    /// A connection from inside, to an address.
    pub(crate) fn connect_to(&self, to: SocketAddr) -> Option<TcpStream> {
        let stream = TcpStream::from(self.socket(&format!("tcp {to}"))?);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(stream)
    }

    /// A connection from inside, to a name as a program has it.
    pub(crate) fn connect(&self, name: &str, port: u16) -> TcpStream {
        let ip = self.lookup(name).unwrap_or_else(|| panic!("{name} has no address"));
        self.connect_to((ip, port).into()).unwrap()
    }

    /// A connection from inside to the proxy as such.
    pub(crate) fn connect_to_proxy(&self) -> TcpStream {
        self.connect_to(([127, 0, 0, 1], capture::PROXY_PORT).into()).unwrap()
    }

    /// What a question of this type is answered with, as it comes.
    pub(crate) fn ask(&self, name: &str, kind: u16) -> Vec<u8> {
        let socket = UdpSocket::from(self.socket("udp 192.0.2.53:53").unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(&cofferdam_egress::proxy::dns::message::ask(7, name, kind)).unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        answer[..length].to_vec()
    }

    /// The address of a name inside.
    pub(crate) fn lookup(&self, name: &str) -> Option<IpAddr> {
        use cofferdam_egress::proxy::dns::message::{A, Said, said};
        match said(&self.ask(name, A), 7, &name.to_ascii_lowercase(), A)? {
            Said::Addresses(addresses, _) => addresses.first().copied(),
            _ => None,
        }
    }

    /// A connection that is made for a program; none where nothing goes out any more.
    pub(crate) fn made(&self, host: &[u8], port: u16, tls: Option<&str>) -> Option<UnixStream> {
        let (theirs, ours) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let dial = Dial { host: host.to_vec(), port, tls: tls.map(|name| name.as_bytes().to_vec()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let made = self.outlet.connect(dial, ours.into());
        let made = runtime.block_on(async { tokio::time::timeout(PATIENCE, made).await.unwrap() });
        made.ok().map(|()| theirs)
    }

    /// Ends the run.
    pub(crate) fn cut(&self) -> Cut {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cut = self.outlet.cut();
        runtime.block_on(async { tokio::time::timeout(PATIENCE, cut).await.unwrap() })
    }
}

/// This binary as the program, in namespaces of its own over the host's files.
fn launch(capture: &Capture, control: UnixStream) -> Launch {
    let words = ["inside", "payload", "--exact", "--nocapture", "--test-threads", "1"];
    let some = 1_900_000_000;
    Launch {
        joins: vec![],
        born_in: None,
        ids: Ids { inside: 1000, outside: some, group_outside: some, root_outside: Some(some + 1) },
        mounts: vec![],
        steps: [capture.first_steps(), capture.steps()].concat(),
        cores: vec![],
        rlimits: vec![],
        landlock: None,
        seccomp: None,
        program: Program::Open(File::open("/proc/self/exe").unwrap().into()),
        argv: words.map(|word| CString::new(word).unwrap()).to_vec(),
        envp: vec![CString::new(format!("{INSIDE}=1")).unwrap()],
        fds: vec![control.into()],
    }
}
