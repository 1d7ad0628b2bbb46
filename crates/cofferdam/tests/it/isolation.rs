//! What a program inside can't see or do. Each denial stands beside the same probe outside, which
//! must get through: else the probe proves nothing.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use cofferdam_testkit::product::{Product, finish};

use crate::{needs_root, product};

/// Runs Python outside, as the tests' own user: the positive control.
fn outside(code: &str) -> String {
    let output = Command::new("/usr/bin/python3").args(["-c", code]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inside(product: &Product, code: &str) -> String {
    product.run(&["-c", code]).exits(0).stdout
}

#[test]
fn a_live_control_socket_is_out_of_reach() {
    needs_root!();
    let product = product();
    let path = product.folder().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let abstract_name = format!("cofferdam-test-{}", std::process::id());
    let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
        &abstract_name,
    )
    .unwrap();
    let abstract_listener = UnixListener::bind_addr(&address).unwrap();
    abstract_listener.set_nonblocking(true).unwrap();
    let code = format!(
        "import socket\nn = 0\nfor address in [{path:?}, '\\0{abstract_name}', '/run/docker.sock', '/var/run/docker.sock', '/run/containerd/containerd.sock']:\n    s = socket.socket(socket.AF_UNIX)\n    try:\n        s.connect(address); s.send(b'x'); n += 1\n    except OSError: pass\nprint(n)"
    );
    assert_eq!(inside(&product, &code), "0\n");
    assert!(listener.accept().is_err() && abstract_listener.accept().is_err(), "nothing arrived");
    assert_eq!(outside(&code), "2\n");
    let mut byte = [0];
    listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
}

#[test]
fn nothing_leaves_and_its_own_loopback_works() {
    needs_root!();
    let product = product();
    let canary = TcpListener::bind("0.0.0.0:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let port = canary.local_addr().unwrap().port();
    let code = format!(
        r#"
import socket
n = 0
for address in ['127.0.0.1', '0.0.0.0', socket.gethostbyname('localhost'), '203.0.113.1']:
    s = socket.socket(); s.settimeout(0.5)
    try:
        s.connect((address, {port})); s.settimeout(3)
        try: s.recv(1) # nothing comes; what is refused on its way out is closed at once
        except TimeoutError: n += 1
    except OSError: pass
print(n)
"#
    );
    assert_eq!(inside(&product, &code), "0\n");
    assert!(canary.accept().is_err(), "nothing arrived");
    assert_eq!(outside(&code), "3\n");
    assert!(canary.accept().is_ok());
    let own = "import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\ns6 = socket.create_server(('::1', 0), family=socket.AF_INET6)\nsocket.create_connection(s6.getsockname()[:2])\nprint('ok')";
    assert_eq!(inside(&product, own), "ok\n");
    let interfaces = inside(
        &product,
        "import os; print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line))",
    );
    assert_eq!(interfaces, "['lo']\n");
}

#[test]
fn every_thread_is_filtered_and_without_capabilities() {
    needs_root!();
    let code = r#"
import threading, time, glob
for _ in range(3):
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
lines = set()
for path in glob.glob('/proc/self/task/*/status'):
    for line in open(path):
        name, value = line.split(':', 1)
        if name.startswith('Cap') or name in ('NoNewPrivs', 'Seccomp', 'Uid', 'Gid', 'Groups'):
            lines.add(name + ' ' + ' '.join(value.split()))
print(len(glob.glob('/proc/self/task/*')), sorted(lines))
"#;
    let none = "0000000000000000";
    let expected = format!(
        "4 ['CapAmb {none}', 'CapBnd {none}', 'CapEff {none}', 'CapInh {none}', 'CapPrm {none}', \
         'Gid 1000 1000 1000 1000', 'Groups ', 'NoNewPrivs 1', 'Seccomp 2', 'Uid 1000 1000 1000 1000']\n"
    );
    assert_eq!(inside(&product(), code), expected);
}

#[test]
fn outside_the_program_is_nobody_that_the_host_knows() {
    needs_root!();
    let product = product();
    let mut command =
        product.command(["run", "--profile", "internal", "--timeout", "20s", "--", "sleep", "303.3"]);
    let child = cofferdam_testkit::product::start(&mut command);
    let mut pids = vec![];
    assert!(cofferdam_testkit::host::eventually(Duration::from_secs(5), || {
        pids = inner_processes("sleep 303.3");
        !pids.is_empty()
    }));
    let status = std::fs::read_to_string(format!("/proc/{}/status", pids[0])).unwrap();
    let uid: u32 = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(uid >= 0x7000_0000, "{uid}");
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(!passwd.contains(&format!(":{uid}:")));
    Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap();
    cofferdam_testkit::product::wait(child, std::time::Instant::now());
    assert!(cofferdam_testkit::host::eventually(Duration::from_secs(5), || inner_processes("sleep 303.3")
        .is_empty()));
}

/// Processes with a command line that begins with a text: the program, not who started it.
fn inner_processes(text: &str) -> Vec<i32> {
    cofferdam_testkit::host::processes_with(text)
        .into_iter()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").starts_with(text)
        })
        .collect()
}

#[test]
fn a_program_starts_with_its_three_streams_and_nothing_else_open() {
    needs_root!();
    let product = product();
    // The fourth is the folder that is being listed.
    let code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))";
    assert_eq!(inside(&product, code), "[0, 1, 2, 3]\n");
}

#[test]
fn the_system_is_read_only_and_the_host_unchanged() {
    needs_root!();
    let product = product();
    let code = r#"
import os
n = []
for path in ['/usr/bin/x', '/etc/x', '/x', '/dev/x', '/sys/x', '/proc/sys/kernel/hostname', '/run/x', '/var/x', '/usr/lib/os-release', '/etc/passwd', '/proc/sysrq-trigger']:
    try:
        open(path, 'w').write('x'); n.append(path)
    except OSError: pass
for act in [lambda: os.chmod('/usr/bin/env', 0o777), lambda: os.utime('/usr/bin/env'), lambda: os.rename('/usr/bin/env', '/usr/bin/x'), lambda: os.unlink('/etc/passwd'), lambda: os.mkdir('/home/other'), lambda: os.link('/usr/bin/env', '/tmp/env')]:
    try:
        act(); n.append('act')
    except OSError: pass
print(n)
"#;
    assert_eq!(inside(&product, code), "[]\n");
}

#[test]
fn kernel_surfaces_in_proc_are_masked() {
    needs_root!();
    let product = product();
    let code = r#"
n = []
for name in ['kcore', 'kallsyms', 'keys', 'key-users', 'kmsg', 'timer_list', 'sched_debug', 'interrupts', 'sysrq-trigger', 'latency_stats']:
    try:
        if open('/proc/' + name, 'rb').read(1): n.append(name)
    except OSError: pass
import os
for name in ['acpi', 'scsi', 'asound', 'pressure']:
    try:
        if os.listdir('/proc/' + name): n.append(name)
    except OSError: pass
print(n, os.listdir('/sys'))
"#;
    assert_eq!(inside(&product, code), "[] ['devices']\n");
    assert_ne!(outside(code), "[] ['devices']\n");
}

#[test]
fn process_one_cannot_be_read_traced_or_killed() {
    needs_root!();
    let product = product();
    let code = r#"
import os, ctypes, signal
n = []
for name in ['mem', 'environ', 'maps', 'exe', 'root', 'cwd', 'fd/3']:
    try:
        open('/proc/1/' + name, 'rb').read(1); n.append(name)
    except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
for name, args in [('ptrace', (16, 1, 0, 0)), ('process_vm_readv', (1, 0, 0, 0, 0, 0))]:
    if getattr(libc, name)(*args) == 0: n.append(name)
for s in [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT]:
    os.kill(1, s)
print(n, len([p for p in os.listdir('/proc') if p.isdigit()]))
"#;
    // Two processes: the agent, which is alive after all that, and the program.
    assert_eq!(inside(&product, code), "[] 2\n");
}

#[test]
fn refused_system_calls_say_so_and_the_probes_get_through_outside() {
    needs_root!();
    let product = product();
    let code = r#"
import ctypes, socket, os
libc = ctypes.CDLL(None, use_errno=True)
n = []
def call(name, number, *args):
    ctypes.set_errno(0)
    if libc.syscall(number, *args) >= 0: n.append(name)
pid = os.fork()
if pid == 0:
    if libc.unshare(0x10000000) == 0: os._exit(1)
    os._exit(0)
if os.waitpid(pid, 0)[1]: n.append('unshare')
call('io_uring_setup', 425, 1, ctypes.create_string_buffer(256))
call('userfaultfd', 323, 1)
for family in ['AF_NETLINK', 'AF_PACKET', 'AF_VSOCK']:
    try:
        socket.socket(getattr(socket, family), socket.SOCK_RAW if family != 'AF_VSOCK' else socket.SOCK_STREAM); n.append(family)
    except OSError: pass
print(n)
"#;
    assert_eq!(inside(&product, code), "[]\n");
    let control = outside(code);
    assert!(control.contains("unshare") && control.contains("AF_NETLINK"), "{control}");
}

#[test]
fn a_later_run_finds_nothing_of_an_earlier_one() {
    needs_root!();
    let product = product();
    let leave = "for p in /tmp /var/tmp /dev/shm /workspace /home/user; do echo canary > $p/left; done; ipcmk -M 4096 > /dev/null; setsid sleep 304.4 &";
    let _ = product.run(&["--", "sh", "-c", leave]).exits(0);
    let look = "ls -A /tmp /var/tmp /dev/shm /workspace /home/user | grep -c left; ipcs -m | grep -c 4096; ls -d /proc/[0-9]* | wc -l";
    let ran = product.run(&["--", "sh", "-c", look]);
    // Inside are the agent, the shell, and the two of the pipe.
    let counts: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(&counts[..2], ["0", "0"], "{ran:?}");
    assert!(counts[2].parse::<u32>().unwrap() <= 5, "{ran:?}");
}

#[test]
fn what_the_kernel_counts_by_user_is_not_taken_from_root() {
    needs_root!();
    let product = product();
    // Takes every inotify instance that it gets, says so, and keeps them.
    let take = "import ctypes, time\nlibc = ctypes.CDLL(None)\nn = 0\nwhile libc.inotify_init1(0) >= 0: n += 1\nprint(n, flush=True)\ntime.sleep(30)";
    let mut command = product.command(["run", "--profile", "internal", "-c", take]);
    let mut child = cofferdam_testkit::product::start(&mut command);
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(line.trim().parse::<u32>().unwrap() > 10, "the probe takes some: {line:?}");
    let one = "import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)";
    assert_eq!(outside(one), "True\n", "the host's root has its own");
    assert_eq!(inside(&product, one), "True\n", "and so has another sandbox");
    child.kill().unwrap();
    cofferdam_testkit::product::wait(child, std::time::Instant::now());
}

#[test]
fn terminals_are_bounded_by_sandbox() {
    needs_root!();
    let code = "import os\nn = 0\ntry:\n    while True:\n        os.openpty(); n += 1\nexcept OSError:\n    print(n)";
    let count: u32 = inside(&product(), code).trim().parse().unwrap();
    assert!((1..=64).contains(&count), "{count}");
}

#[test]
fn nothing_in_the_product_can_turn_a_control_off() {
    needs_root!();
    let product = product();
    let mut probe =
        product.command(["run", "--profile", "internal", "--", "grep", "Seccomp:", "/proc/self/status"]);
    probe.env("COFFERDAM_WEAKEN", "filter").env("COFFERDAM_STOP_AT", "opened");
    assert_eq!(finish(probe).exits(0).stdout, "Seccomp:\t2\n");
    // What a build for tests reads its orders from isn't even there. The control is a name that is.
    let program = std::fs::read(env!("CARGO_BIN_EXE_cofferdam")).unwrap();
    let holds = |text: &str| program.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("COFFERDAM_STATE"));
    assert!(!holds("COFFERDAM_WEAKEN") && !holds("COFFERDAM_STOP_AT"));
}

#[test]
fn no_core_of_a_program_is_handed_to_the_host() {
    needs_root!();
    let product = product();
    let code = "
import resource
limit = lambda: resource.getrlimit(resource.RLIMIT_CORE)
before = limit()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(before, limit())
";
    // With 1 the kernel starts no handler; with 0 it starts one that `kernel.core_pattern` names.
    assert_eq!(inside(&product, code), "(1, 1) (1, 1)\n");
    assert!(outside(code).ends_with(" (0, 0)\n"), "the control");
}

#[test]
fn the_null_device_of_the_host_is_nobodys_standard_input() {
    needs_root!();
    let product = product();
    let times = || std::fs::metadata("/dev/null").unwrap().modified().unwrap();
    let before = times();
    let code = "
import os, sys
try: os.utime(0, (1, 1))
except OSError: pass
print(repr(sys.stdin.read()), os.path.samestat(os.fstat(0), os.stat('/dev/null')))
";
    assert_eq!(inside(&product, code), "'' False\n");
    assert_eq!(times(), before);
}
