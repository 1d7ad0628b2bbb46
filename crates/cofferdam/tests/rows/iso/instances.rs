//! One instance and the next, and whoever controls them.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use cofferdam_testkit::product::finish;
use cofferdam_testkit::rows::{Row, attempts_of_job, probe};
use serde_json::json;

use crate::{Ended, heard, row};

row!("ISO-09", nothing_of_one_job_is_found_by_the_next);
row!("ISO-10", control_endpoints_are_out_of_reach);

/// Leaves something of each kind, below `root` where files are concerned. The daemon ends when somebody
/// connects to it, or by itself.
const LEAVE: &str = r"
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for place in places:
    os.makedirs(root + place, exist_ok=True)
    open(f'{root}{place}/{name}', 'w').write(name)
key = int(name[-7:])
CREATE = 0o1000 | 0o666
assert libc.shmget(key, 4096, CREATE) >= 0 and libc.semget(key, 1, CREATE) >= 0 and libc.msgget(key, CREATE) >= 0
# Landlock refuses it inside, since the file system of such queues is mounted nowhere.
libc.mq_open(b'/' + name.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
lock = open(f'{root}/tmp/lock', 'w')
listener = socket.socket(socket.AF_UNIX)
listener.bind('\0' + name)
listener.listen()
os.set_inheritable(listener.fileno(), True)
if os.fork() == 0:
    os.setsid()
    with open('/dev/null', 'r+') as null:
        for n in range(3): os.dup2(null.fileno(), n)
    os.execv('/usr/bin/python3', ['python3', '-c', 'import socket, sys\ns = socket.socket(fileno=int(sys.argv[1]))\ns.settimeout(10)\ns.accept()', str(listener.fileno()), 'daemon-' + name])
";

const LOOK: &str = r"
import ctypes, glob, os, socket
libc = ctypes.CDLL(None, use_errno=True)
name = head + tail
for place in places:
    attempt('a file in ' + place, lambda: name in os.listdir(root + place))
key = int(name[-7:])
for kind, args in {'shm': (0, 0), 'sem': (0, 0), 'msg': (0,)}.items():
    attempt(f'{kind} by its key', lambda: getattr(libc, kind + 'get')(key, *args) >= 0)
    attempt(f'{kind} in the list', lambda: str(key) in open('/proc/sysvipc/' + kind).read())
attempt('a message queue', lambda: libc.mq_open(b'/' + name.encode(), os.O_RDONLY) >= 0)
attempt('an abstract socket in the list', lambda: name in open('/proc/net/unix').read())
def command_lines():
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            if ('daemon-' + name).encode() in open(path, 'rb').read(): return True
        except OSError: pass
    return False
attempt('a daemon', command_lines)
def talk():
    with socket.socket(socket.AF_UNIX) as s: s.connect('\0' + name)
attempt('a daemon that listens', talk)
";

/// Where a job may write, and where package managers keep what they fetched.
const PLACES: [&str; 9] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/workspace",
    "/home/user",
    "/home/user/.cache/pip",
    "/home/user/.npm/_cacache",
    "/home/user/.cargo/registry",
    "/home/user/.local/lib",
];

/// What was left outside, for the control; gone with this.
struct Left(String);

impl Drop for Left {
    fn drop(&mut self) {
        let (name, key) = (&self.0, &self.0[self.0.len() - 7..]);
        let remove = format!(
            "import ctypes, socket\nlibc = ctypes.CDLL(None)\nkey = {}\nlibc.shmctl(libc.shmget(key, 0, 0), 0, None)\nlibc.semctl(libc.semget(key, 0, 0), 0, 0)\nlibc.msgctl(libc.msgget(key, 0), 0, None)\nlibc.mq_unlink(b'/{name}')\ntry: socket.socket(socket.AF_UNIX).connect('\\0{name}')\nexcept OSError: pass",
            key
        );
        let _ = std::process::Command::new("/usr/bin/python3").args(["-c", &remove]).status();
    }
}

fn nothing_of_one_job_is_found_by_the_next(row: &mut Row) -> Ended {
    // The last seven digits are the key of what has a number for a name.
    let left = Left(format!("cofferdam-row-{}", 1_000_000 + std::process::id() % 1_000_000));
    let name = left.0.as_str();
    let with = |root: &str, code: &str| {
        // Its command line must not be what is found.
        let (head, tail) = name.split_at(6);
        format!(
            "places, root, head, tail = {PLACES:?}, {root:?}, {head:?}, {tail:?}\nname = head + tail\n{code}"
        )
    };
    let (leave, look) = (with("", LEAVE), with("", LOOK));
    let scratch = row.product().folder().join("scratch");
    let scratch = scratch.to_str().unwrap();
    let outside = row.product().beside("/usr/bin/python3", ["-c", &with(scratch, LEAVE)]);
    let outside = finish(outside);
    assert_eq!(outside.code, 0, "{outside:?}");

    // Two runs, while the same is left on the host.
    let first = row.run(&["-c", &leave]);
    assert_eq!(first.code, 0, "{first:?}");
    let mut found = vec![row.inside(&[], &look)];
    // A pool: one after another, which is a sandbox made ahead; and beside one another.
    let leave = json!({"code": leave});
    let stay = json!({"code": format!("{}\nimport time\ntime.sleep(0.6)", leave["code"].as_str().unwrap())});
    let look = json!({"code": probe(&look)});
    let late = json!({"code": format!("import time\ntime.sleep(0.2)\n{}", look["code"].as_str().unwrap())});
    let one_by_one = row.outcomes(&[], &[leave.clone(), look.clone(), leave, look]);
    let beside = row.outcomes(&["--jobs", "2"], &[stay, late]);
    let (lookers, leavers): (Vec<_>, Vec<_>) =
        one_by_one.iter().chain(&beside).partition(|outcome| outcome["exit_code"] != 0);
    assert_eq!((leavers.len(), lookers.len()), (3, 3), "{one_by_one:?} {beside:?}");
    found.extend(lookers.into_iter().map(attempts_of_job));
    let control = row.outside(&with(scratch, LOOK));
    found.iter().for_each(|found| row.compare(found, &control));
    Ended::Tested
}

/// Sockets by which daemons are controlled: of containers, of virtual machines, of us.
const ENDPOINTS: [&str; 14] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/user/1000/podman/podman.sock",
    "/run/user/1000/docker.sock",
    "/run/libvirt/libvirt-sock",
    "/run/firecracker.socket",
    "/tmp/firecracker.socket",
    "/tmp/qmp.sock",
    "/run/cofferdam/control.sock",
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
];

/// Connects to endpoints below `root` and by the paths that they have outside, and to whatever else is
/// found. `top` is where a walk begins, which has a bound.
const CONNECT: &str = r"
import collections, os, re, socket, stat
def connect(address, family=socket.AF_UNIX):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
        s.send(b'x')
for name in endpoints:
    attempt(name, lambda: connect(root + name))
for name in endpoints:
    attempt('by its path outside ' + name, lambda: connect(outside + name))
def sockets():
    found, queue, seen = [], collections.deque([top]), 0
    last = []
    while queue or last:
        folder = queue.popleft() if queue else last.pop()
        try: entries = list(os.scandir(folder))
        except OSError: continue
        for entry in entries:
            seen += 1
            try: mode = entry.stat(follow_symlinks=False).st_mode
            except OSError: continue
            if stat.S_ISSOCK(mode): found.append(entry.path)
            elif stat.S_ISDIR(mode) and entry.path == '/usr': last.append(entry.path)
            elif stat.S_ISDIR(mode) and entry.path != '/proc' and seen < 40000: queue.append(entry.path)
    return found
attempt('a socket in any folder', lambda: sockets() != [] and sockets()[:3])
attempt('an abstract socket in the list', lambda: re.findall(r'@' + listed, open('/proc/net/unix').read()) != [])
attempt('an abstract socket', lambda: connect('\0' + head + tail))
for family, address in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'), (socket.AF_INET, '0.0.0.0')]:
    attempt(f'a port at {address}', lambda: connect((address, ports[family]), family))
";

/// Ports of loopback at which a daemon, or a broker, might be administered.
const KNOWN_PORTS: [u16; 10] = [22, 2375, 2376, 4243, 5000, 6443, 8080, 9000, 10250, 16509];

const CONNECT_TO_PORTS: &str = r"
import socket
for port in ports:
    def connect():
        with socket.create_connection(('127.0.0.1', port), 1): pass
    attempt(f'port {port}', connect)
";

fn control_endpoints_are_out_of_reach(row: &mut Row) -> Ended {
    let machine = row.product().folder().join("machine");
    let mut listeners = vec![];
    for name in ENDPOINTS {
        let path = machine.join(&name[1..]);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        listeners.push(UnixListener::bind(&path).unwrap());
    }
    row.product().give(&machine);
    let name = format!("cofferdam-row-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    listeners.push(UnixListener::bind_addr(&address).unwrap());
    let tcp = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).unwrap());
    let ports = tcp.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let connect = |root: &str, top: &str, listed: &str| {
        let (head, tail) = name.split_at(5);
        format!(
            "import socket\nendpoints, outside = {ENDPOINTS:?}, {machine:?}\nroot, top, listed = {root:?}, {top:?}, {listed:?}\nhead, tail = {head:?}, {tail:?}\nports = {{socket.AF_INET: {}, socket.AF_INET6: {}}}\n{CONNECT}",
            ports[0], ports[1]
        )
    };
    let inside = row.inside(&[], &connect("", "/", ""));
    let arrived = || {
        let tcp: usize = tcp.iter().map(connections).sum();
        (listeners.iter().map(heard).sum::<usize>(), tcp)
    };
    assert_eq!(arrived(), (0, 0), "nothing arrived");
    let root = machine.to_str().unwrap();
    let outside = row.outside(&connect(root, root, &name));
    row.compare(&inside, &outside);
    // Each endpoint twice, and the abstract one.
    assert_eq!(arrived(), (2 * ENDPOINTS.len() + 1, 3), "everything arrives from outside");
    no_known_port_is_reached(row);
    Ended::Tested
}

/// A daemon of the host's listens at each port: one of ours, or whoever has it already, who isn't connected
/// to from outside.
fn no_known_port_is_reached(row: &mut Row) {
    let listening: Vec<_> =
        KNOWN_PORTS.iter().filter_map(|port| TcpListener::bind(("127.0.0.1", *port)).ok()).collect();
    let ours: Vec<_> = listening.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let inside = row.inside(&[], &format!("ports = {KNOWN_PORTS:?}\n{CONNECT_TO_PORTS}"));
    let outside = row.outside(&format!("ports = {ours:?}\n{CONNECT_TO_PORTS}"));
    let somebodys: Vec<_> =
        KNOWN_PORTS.iter().filter(|port| !ours.contains(port)).map(|port| format!("port_{port}")).collect();
    let somebodys: Vec<_> = somebodys.iter().map(String::as_str).collect();
    let unproved = row.unproved(&inside, &outside, &somebodys);
    if !unproved.is_empty() {
        row.inconclusive(format!("somebody else listens there: {}", unproved.join(" ")));
    }
    for listener in &listening {
        assert_eq!(connections(listener), 1, "from outside alone: {listener:?}");
    }
}

/// How many connections wait at a listener, which are taken.
fn connections(listener: &TcpListener) -> usize {
    listener.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| listener.accept().ok()).count()
}
