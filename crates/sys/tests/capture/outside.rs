//! The host's side: starts a program in namespaces with a capture around it, tells it what to do, and
//! answers for the world.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cofferdam_sys::capture::{self, Capture, Doors, Support, Table, original_destination};
use cofferdam_sys::launch::{Ids, Launch, LaunchError, Launched, Program, Step};
use cofferdam_sys::{fd, fdpass, process};
use cofferdam_testkit::host::is_root;

use crate::inside::{MARK, PATIENCE};

/// What this host offers; without all of it the tests can't say anything.
pub(crate) fn support() -> Support {
    capture::probe().unwrap()
}

/// A program inside that waits for orders.
pub(crate) struct Sandbox {
    pub(crate) launched: Launched,
    pub(crate) doors: Doors,
    orders: BufReader<UnixStream>,
}

impl Sandbox {
    pub(crate) fn start() -> Self {
        Sandbox::with(&Capture::new(&support(), &[]))
    }

    pub(crate) fn with(capture: &Capture) -> Self {
        let (ours, theirs) = fdpass::pair().unwrap();
        ours.set_read_timeout(Some(4 * PATIENCE)).unwrap();
        let steps = [capture.first_steps(), capture.steps()].concat();
        let mut launched = launch(steps, theirs).spawn().unwrap();
        match capture.load(&launched).and_then(|table| capture.doors(&launched, table)) {
            Ok(doors) => Sandbox { launched, doors, orders: BufReader::new(ours) },
            Err(error) => panic!("{error}: {:?}", launched.failure()),
        }
    }

    /// Has the program do something, and gives what it says.
    pub(crate) fn order(&mut self, order: &str) -> String {
        self.orders.get_mut().write_all(format!("{order}\n").as_bytes()).unwrap();
        self.answer()
    }

    /// The same, with the host doing something meanwhile.
    pub(crate) fn meanwhile<T>(&mut self, order: &str, f: impl FnOnce(&Doors) -> T) -> (String, T) {
        self.orders.get_mut().write_all(format!("{order}\n").as_bytes()).unwrap();
        let result = f(&self.doors);
        (self.answer(), result)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.orders.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Has the program dial, and says where the host thinks that it wanted to go.
    pub(crate) fn dial(&mut self, to: SocketAddr) -> SocketAddr {
        let (said, wanted) = self.meanwhile(&format!("dial {to}"), |doors| {
            let mut connection = accept(&doors.tcp).unwrap();
            connection.write_all(b"hello").unwrap();
            original_destination(&connection).unwrap()
        });
        assert_eq!(said, "hello", "the program hears the host as {to}");
        wanted
    }

    pub(crate) fn table(&mut self) -> &mut Table {
        self.doors.table.as_mut().unwrap()
    }
}

/// Waits for a connection at any of some doors, for a while.
pub(crate) fn accept(doors: &[TcpListener]) -> Option<TcpStream> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(connection) = accept_now(doors) {
            return Some(connection);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// A connection that is there already.
pub(crate) fn accept_now(doors: &[TcpListener]) -> Option<TcpStream> {
    doors.iter().find_map(|door| {
        door.set_nonblocking(true).unwrap();
        let (connection, _) = door.accept().ok()?;
        connection.set_nonblocking(false).unwrap();
        Some(connection)
    })
}

/// Answers one question at the socket of its family, repeating it. Says which address was asked.
pub(crate) fn answer(doors: &Doors, ipv4: bool) -> IpAddr {
    let socket = &doors.dns[usize::from(!ipv4)];
    assert!(process::readable_within(socket.as_fd(), PATIENCE));
    let mut question = [0; 64];
    let (length, asker) = socket.question(&mut question).unwrap();
    socket.answer(&question[..length], &asker).unwrap();
    asker.asked()
}

/// Why a launch failed, with what the kernel said.
pub(crate) fn words(failure: &LaunchError) -> String {
    format!("{failure}: {}", failure.source)
}

/// This binary as the program, in namespaces of its own over the host's files.
pub(crate) fn launch(steps: Vec<Step>, control: UnixStream) -> Launch {
    let words = ["payload", "--exact", "--nocapture", "--test-threads", "1"];
    Launch {
        joins: vec![],
        born_in: None,
        ids: ids(),
        mounts: vec![],
        steps,
        cores: vec![],
        rlimits: vec![],
        landlock: None,
        seccomp: None,
        program: Program::Open(File::open("/proc/self/exe").unwrap().into()),
        argv: std::iter::once("inside").chain(words).map(|word| CString::new(word).unwrap()).collect(),
        envp: vec![CString::new(format!("{MARK}=1")).unwrap()],
        fds: vec![control.into()],
    }
}

/// Ids that nobody else has, as root; our own otherwise.
fn ids() -> Ids {
    let (user, group) = (process::effective_user(), process::effective_group());
    if is_root() {
        let some = 1_900_000_000;
        return Ids { inside: 1000, outside: some, group_outside: some, root_outside: Some(some + 1) };
    }
    Ids { inside: 1000, outside: user, group_outside: group, root_outside: None }
}

/// Moves this thread into a process's network namespace, for good.
pub(crate) fn enter_network_of(pid: i32) {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    // SAFETY: changes this thread's namespace and touches no memory.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Which network namespace a process is in.
pub(crate) fn network_namespace(pid: i32) -> std::path::PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}

/// A socket of the host's own: whoever is let out of a sandbox would be heard there.
pub(crate) struct Canary {
    tcp: TcpListener,
    udp: std::net::UdpSocket,
}

impl Canary {
    pub(crate) fn everywhere() -> Self {
        let tcp = TcpListener::bind("[::]:0").unwrap(); // IPv4 too
        let udp = std::net::UdpSocket::bind(("::", tcp.local_addr().unwrap().port())).unwrap();
        fd::set_nonblocking(tcp.as_fd()).unwrap();
        fd::set_nonblocking(udp.as_fd()).unwrap();
        Canary { tcp, udp }
    }

    pub(crate) fn port(&self) -> u16 {
        self.tcp.local_addr().unwrap().port()
    }

    /// How many connections and datagrams have come since the last look.
    pub(crate) fn heard(&self) -> usize {
        let connections = std::iter::from_fn(|| self.tcp.accept().ok()).count();
        connections + std::iter::from_fn(|| self.udp.recv(&mut [0; 64]).ok()).count()
    }
}
