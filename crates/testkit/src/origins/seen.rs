//! What arrived, as the servers wrote it down and as the kernel counted it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A connection.
    Tcp,
    /// A datagram.
    Udp,
}

/// A connection or a datagram.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Which of them.
    pub carrier: Carrier,
    /// Where it was meant to go.
    pub to: SocketAddr,
    /// The server that its TLS named, if it got so far.
    pub server_name: Option<String>,
    /// How many bytes came, on the wire.
    pub bytes: u64,
    /// The first of them, and where they were TLS also what was in it.
    pub began: Vec<u8>,
}

/// A request of HTTP.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where its connection was meant to go.
    pub to: SocketAddr,
    /// Whether it came in TLS.
    pub tls: bool,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// What it names as its host.
    pub host: String,
    /// Its method.
    pub method: String,
    /// Its path with the query.
    pub path: String,
    /// Its header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// How many bytes of its body came.
    pub body_bytes: u64,
}

/// A question to the resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name, in lower case and without a dot at its end.
    pub name: String,
    /// The type of record: 1 for A, 28 for AAAA.
    pub kind: u16,
    /// How it was asked.
    pub carrier: Carrier,
    /// Who was asked.
    pub to: SocketAddr,
}

/// What the kernel counted in the namespace, whether somebody listens or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// TCP connections that were accepted.
    pub tcp: u64,
    /// TCP connections that were begun in there and refused, since nobody listens.
    pub tcp_refused: u64,
    /// Datagrams for which nobody listens.
    pub udp_unheard: u64,
    /// Echo requests of ICMP.
    pub echo: u64,
    /// Packets of every kind.
    pub packets: u64,
}

/// Everything that arrived in some time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Connections and datagrams, but for those to the resolver.
    pub arrivals: Vec<Arrival>,
    /// Requests of HTTP.
    pub requests: Vec<Request>,
    /// What the resolver was asked.
    pub questions: Vec<Question>,
    /// What the kernel counted.
    pub counted: Counted,
}

impl Seen {
    /// Where connections and datagrams were meant to go, each place once.
    #[must_use]
    pub fn places(&self) -> Vec<String> {
        let mut places: Vec<_> = self
            .arrivals
            .iter()
            .map(|arrival| match arrival.carrier {
                Carrier::Tcp => arrival.to.to_string(),
                Carrier::Udp => format!("udp {}", arrival.to),
            })
            .collect();
        places.sort();
        places.dedup();
        places
    }

    /// The names that were asked for, each once.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.questions.iter().map(|question| question.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The requests, as `METHOD HOST PATH`.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        let line = |request: &Request| format!("{} {} {}", request.method, request.host, request.path);
        self.requests.iter().map(line).collect()
    }

    /// Whether some bytes are among those with which a connection or a datagram began.
    #[must_use]
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let holds = |arrival: &Arrival| arrival.began.windows(bytes.len()).any(|part| part == bytes);
        self.arrivals.iter().any(holds)
    }

    /// Whether nothing at all arrived: not one packet, whatever it was for.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.arrivals.is_empty()
            && self.requests.is_empty()
            && self.questions.is_empty()
            && self.counted == Counted::default()
    }
}

/// An entry that changes while what it is about goes on.
pub(super) type Entry<T> = Arc<Mutex<T>>;

/// How many of a connection's first bytes are kept.
const KEPT_BYTES: usize = 64 << 10;

impl Arrival {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.keep(bytes);
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        let room = KEPT_BYTES.saturating_sub(self.began.len());
        self.began.extend(bytes.iter().take(room));
    }
}

/// Where the servers write.
#[derive(Default)]
pub(super) struct Log {
    records: Mutex<Records>,
    holder: OnceLock<i32>,
}

#[derive(Default)]
struct Records {
    arrivals: Vec<Entry<Arrival>>,
    requests: Vec<Entry<Request>>,
    questions: Vec<Question>,
    /// Connections that were accepted, ever.
    accepted: u64,
    /// What the kernel had counted when it was last asked.
    counted: Counted,
}

impl Log {
    /// Counts from now on, by the process that holds the namespace.
    pub(super) fn begin(&self, holder: i32) {
        self.holder.set(holder).unwrap();
        self.records.lock().unwrap().counted = self.counted();
    }

    /// Notes something that begins to arrive.
    pub(super) fn arrival(&self, carrier: Carrier, to: SocketAddr) -> Entry<Arrival> {
        let arrival = Arrival { carrier, to: canonical(to), server_name: None, bytes: 0, began: vec![] };
        let arrival = Arc::new(Mutex::new(arrival));
        let mut records = self.records.lock().unwrap();
        records.accepted += u64::from(carrier == Carrier::Tcp);
        records.arrivals.push(Arc::clone(&arrival));
        arrival
    }

    pub(super) fn request(&self, mut request: Request) -> Entry<Request> {
        request.to = canonical(request.to);
        let request = Arc::new(Mutex::new(request));
        self.records.lock().unwrap().requests.push(Arc::clone(&request));
        request
    }

    pub(super) fn question(&self, mut question: Question) {
        question.to = canonical(question.to);
        self.records.lock().unwrap().questions.push(question);
    }

    /// Whether every connection that the kernel has accepted for us is noted.
    pub(super) fn has_heard_everything(&self) -> bool {
        self.records.lock().unwrap().accepted >= self.counted().tcp
    }

    /// Whether some connection is about to end: packets of it may still be on their way.
    pub(super) fn is_closing(&self) -> bool {
        let Some(holder) = self.holder.get() else { return false };
        ["tcp", "tcp6"].iter().any(|name| {
            let table = std::fs::read_to_string(format!("/proc/{holder}/net/{name}")).unwrap_or_default();
            table.lines().skip(1).any(|line| line.split_ascii_whitespace().nth(3).is_some_and(is_closing))
        })
    }

    /// What came since this was last called.
    pub(super) fn take(&self) -> Seen {
        let now = self.counted();
        let mut records = self.records.lock().unwrap();
        let before = std::mem::replace(&mut records.counted, now);
        Seen {
            arrivals: records.arrivals.drain(..).map(|entry| entry.lock().unwrap().clone()).collect(),
            requests: records.requests.drain(..).map(|entry| entry.lock().unwrap().clone()).collect(),
            questions: std::mem::take(&mut records.questions),
            counted: now.since(before),
        }
    }

    /// What the kernel counted since the namespace was made.
    fn counted(&self) -> Counted {
        let Some(holder) = self.holder.get() else { return Counted::default() };
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{holder}/net/{name}"));
        Counted::read(&read("snmp").unwrap_or_default(), &read("snmp6").unwrap_or_default())
    }
}

/// Whether a state of a connection, as `/proc/net/tcp` writes it, is one between the first and the last packet of its
/// end: `include/net/tcp_states.h`.
fn is_closing(state: &str) -> bool {
    const FIN_WAIT1: &str = "04";
    const FIN_WAIT2: &str = "05";
    const CLOSE_WAIT: &str = "08";
    const LAST_ACK: &str = "09";
    const CLOSING: &str = "0B";
    [FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING].contains(&state)
}

/// An IPv4 address within IPv6 as the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Counted {
    /// Reads `snmp`, which has a line of names and one of numbers for each protocol, and `snmp6`, which has a
    /// line for each number.
    fn read(snmp: &str, snmp6: &str) -> Counted {
        let v4 = |protocol: &str, name: &str| {
            let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
            let (names, numbers) = (lines.next()?, lines.next()?);
            let mut both = names.split(' ').zip(numbers.split(' '));
            both.find(|(known, _)| *known == name)?.1.parse().ok()
        };
        let v6 = |name: &str| {
            let numbers = snmp6.lines().filter_map(|line| line.split_once(char::is_whitespace));
            let (_, number) = numbers.into_iter().find(|(known, _)| *known == name)?;
            number.trim().parse().ok()
        };
        let sum = |v4: Option<u64>, v6: Option<u64>| v4.unwrap_or_default() + v6.unwrap_or_default();
        Counted {
            tcp: sum(v4("Tcp", "PassiveOpens"), None), // of both families
            tcp_refused: sum(v4("Tcp", "AttemptFails"), None),
            udp_unheard: sum(v4("Udp", "NoPorts"), v6("Udp6NoPorts")),
            echo: sum(v4("Icmp", "InEchos"), v6("Icmp6InEchos")),
            packets: sum(v4("Ip", "InReceives"), v6("Ip6InReceives")),
        }
    }

    fn since(self, before: Counted) -> Counted {
        Counted {
            tcp: self.tcp - before.tcp,
            tcp_refused: self.tcp_refused - before.tcp_refused,
            udp_unheard: self.udp_unheard - before.udp_unheard,
            echo: self.echo - before.echo,
            packets: self.packets - before.packets,
        }
    }
}

/// A stream of which is noted what is read.
pub(super) struct Tapped<S> {
    stream: S,
    arrival: Entry<Arrival>,
    /// What is done with the bytes: on the wire they count, within TLS they are kept alone.
    note: fn(&mut Arrival, &[u8]),
}

impl<S> Tapped<S> {
    pub(super) fn new(stream: S, arrival: Entry<Arrival>) -> Self {
        Tapped { stream, arrival, note: Arrival::add }
    }

    /// What was in the TLS of an arrival.
    pub(super) fn within(stream: S, arrival: Entry<Arrival>) -> Self {
        Tapped { stream, arrival, note: Arrival::keep }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tapped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        (self.note)(&mut self.arrival.lock().unwrap(), &buffer.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tapped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
