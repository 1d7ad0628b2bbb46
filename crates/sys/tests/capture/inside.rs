//! What the program inside does when it is told.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Set where this binary is the program inside.
pub(crate) const MARK: &str = "COFFERDAM_CAPTURE_INSIDE";

/// Longer than anything here takes that comes to an end at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Does what it is told, until nobody is there to tell.
pub(crate) fn obey() {
    let control = UnixStream::from(cofferdam_sys::fd::inherited(3).unwrap());
    let mut answers = control.try_clone().unwrap();
    let mut held = Held::default();
    for order in BufReader::new(control).lines() {
        let order = order.unwrap();
        let words: Vec<_> = order.split(' ').collect();
        let said = held.carry_out(&words).unwrap_or_else(|error| describe(&error));
        writeln!(answers, "{said}").unwrap();
    }
}

/// An error as a test compares it.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => format!("errno {number}"),
        None => format!("{:?}", error.kind()),
    }
}

/// What stays open between two orders.
#[derive(Default)]
struct Held {
    streams: Vec<TcpStream>,
    listeners: Vec<TcpListener>,
    asking: HashMap<bool, UdpSocket>,
}

impl Held {
    fn carry_out(&mut self, words: &[&str]) -> io::Result<String> {
        match *words {
            ["dial", to] => self.dial(address(to)),
            ["dial-from-here", to] => dial_itself(address(to)),
            ["bind", at] => self.bind(address(at)),
            ["ask", to] => self.ask(address(to)),
            ["datagram", to] => datagram(address(to)),
            ["datagram-unheard", to] => {
                UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", address(to))?;
                Ok("done".into())
            }
            ["noted"] => {
                let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?;
                Ok(count.trim().to_owned())
            }
            ["own-address"] => {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect("198.51.100.1:53")?;
                Ok(socket.local_addr()?.ip().to_string())
            }
            ["raw", protocol, to] => {
                let sent = raw_packet(protocol.parse().unwrap(), to.parse().unwrap());
                sent.map_err(io::Error::from_raw_os_error)
            }
            ["capabilities"] => capabilities(),
            ["undo", "netfilter"] => undo(libc::NETLINK_NETFILTER, &delete_the_table()),
            ["undo", "route"] => undo(libc::NETLINK_ROUTE, &loopback_down()),
            ["elsewhere", to] => in_namespaces_of_its_own(address(to)),
            _ => panic!("what is {words:?}?"),
        }
    }

    /// Says by whom it was accepted, or after how long it was refused.
    fn dial(&mut self, to: SocketAddr) -> io::Result<String> {
        let began = Instant::now();
        let mut stream = match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => stream,
            Err(error) if began.elapsed() < Duration::from_secs(1) => return Err(error),
            Err(error) => return Ok(format!("{} after a long time", describe(&error))),
        };
        assert_eq!(stream.peer_addr()?, to);
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting)?;
        self.streams.push(stream);
        Ok(String::from_utf8_lossy(&greeting).into_owned())
    }

    fn bind(&mut self, at: SocketAddr) -> io::Result<String> {
        self.listeners.push(TcpListener::bind(at)?);
        Ok("bound".into())
    }

    /// From one socket for each family, whomever it asks: says who answered, and what.
    fn ask(&mut self, to: SocketAddr) -> io::Result<String> {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let asking = self.asking.entry(to.is_ipv4()).or_insert_with(|| UdpSocket::bind(any).unwrap());
        asking.set_read_timeout(Some(PATIENCE))?;
        asking.send_to(b"who is there?", to)?;
        let mut answer = [0; 64];
        let (length, from) = asking.recv_from(&mut answer)?;
        Ok(format!("{from} says {}", String::from_utf8_lossy(&answer[..length])))
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Serves and visits in one process.
fn dial_itself(at: SocketAddr) -> io::Result<String> {
    let server = TcpListener::bind(at)?;
    let _client = TcpStream::connect_timeout(&at, PATIENCE)?;
    let (_, from) = server.accept()?;
    Ok(format!("visited from {}", from.ip()))
}

/// Both ways in which a refusal shows: at once, or as the error of the next call.
fn datagram(to: SocketAddr) -> io::Result<String> {
    const MOST: Duration = Duration::from_secs(1);
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(MOST))?;
    socket.connect(to)?;
    let sent = socket.send(b"x").map(drop);
    let began = Instant::now();
    let heard = socket.recv(&mut [0; 8]).map(drop);
    let show = |result: io::Result<()>| result.map_or_else(|error| describe(&error), |()| "done".into());
    let soon = if began.elapsed() < MOST { "soon" } else { "late" };
    Ok(format!("sent: {}, heard: {} {soon}", show(sent), show(heard)))
}

fn capabilities() -> io::Result<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let sets = status.lines().filter_map(|line| line.strip_prefix("Cap")?.split_once(":\t"));
    Ok(sets.map(|(_, set)| set.trim_start_matches('0')).collect::<Vec<_>>().concat())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; the descriptor is new.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol))?)) }
}

/// A packet of some protocol, an echo request where that is one. Says whether something came back.
pub(crate) fn raw_packet(protocol: libc::c_int, to: IpAddr) -> Result<String, i32> {
    let errno = |error: io::Error| error.raw_os_error().unwrap();
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = UdpSocket::from(socket(family, libc::SOCK_RAW, protocol).map_err(errno)?);
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let echo = if to.is_ipv4() { 8 } else { 128 };
    let mut packet = [echo, 0, 0, 0, 0, 1, 0, 1, b'o', b'u', b't', b'!', 0, 0, 0, 0];
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    packet[2..4].copy_from_slice(&(!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes());
    socket.send_to(&packet, (to, 0)).map_err(errno)?;
    let mut heard = [0; 256];
    while let Ok((length, _)) = socket.recv_from(&mut heard) {
        // The socket sees what it sent too; an echo reply has a type of its own, after an IPv4 header.
        if to.is_ipv4() && length > 20 && heard[20] == 0 {
            return Ok("answered".into());
        }
    }
    Ok("sent".into())
}

/// Undoes and dials in a child with namespaces of its own, where it has every privilege.
fn in_namespaces_of_its_own(to: SocketAddr) -> io::Result<String> {
    // SAFETY: the child only makes system calls and allocates, which the C library allows after a fork, and
    // ends without running anything of the process that it was copied from.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            let alone = check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)).is_ok();
            let undone = undo(libc::NETLINK_NETFILTER, &delete_the_table()).is_ok()
                && undo(libc::NETLINK_ROUTE, &loopback_down()).is_ok();
            let dialled = TcpStream::connect_timeout(&to, PATIENCE).map_err(|error| error.raw_os_error());
            let unreachable = dialled.is_err_and(|errno| errno == Some(libc::ENETUNREACH));
            libc::_exit(if alone && undone && unreachable { 0 } else { 1 });
        }
    }
    let mut status = 0;
    // SAFETY: the status is live.
    check(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    Ok(if status == 0 { "undone, and nowhere to go".into() } else { format!("status {status}") })
}

/// Asks the kernel for something over netlink, and says what it answered.
fn undo(bus: libc::c_int, bytes: &[u8]) -> io::Result<String> {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, bus)?;
    let mut answer = [0u8; 512];
    // SAFETY: both buffers are live and of the stated sizes.
    unsafe {
        check(libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) as libc::c_int)?;
        check(libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) as libc::c_int)?;
    }
    match i32::from_ne_bytes(answer[16..20].try_into().unwrap()) {
        0 => Ok("done".into()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn message(kind: u16, flags: libc::c_int, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// A batch that deletes every table of the family `inet`.
fn delete_the_table() -> Vec<u8> {
    let kind = (10 << 8) | libc::NFT_MSG_DELTABLE as u16;
    [
        message(0x10, 0, &[0, 0, 0, 10]),
        message(kind, libc::NLM_F_ACK, &[libc::NFPROTO_INET as u8, 0, 0, 0]),
        message(0x11, 0, &[0, 0, 0, 10]),
    ]
    .concat()
}

/// The loopback interface, without IFF_UP.
fn loopback_down() -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(1u32.to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    body.extend((libc::IFF_UP as u32).to_ne_bytes());
    message(libc::RTM_NEWLINK, libc::NLM_F_ACK, &body)
}

/// For tests that name an address of the family.
pub(crate) const DOCUMENTS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5);
