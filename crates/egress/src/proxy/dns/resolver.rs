//! Asks for the addresses of names, outside.
//!
//! A stub of a hundred lines rather than a library: what it has to do is little (RFC 1123, section 6.1.3.1), the
//! names it takes are checked already, and the library at hand brings tables of Unicode that nothing here needs.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cofferdam_core::egress::HostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::message::{A, AAAA, Said, ask, said};

/// How long one server is waited for, as `resolv.conf(5)` has it by default, and how often all are asked.
const WAIT: Duration = Duration::from_secs(5);
const ROUNDS: usize = 2;

/// The longest that an answer is kept. Somebody's own server may say anything.
const MOST_SECONDS: u32 = 300;

/// How many answers are kept.
const MOST_KEPT: usize = 1024;

/// The most addresses of a name that are looked at.
const MOST_ADDRESSES: usize = 16;

/// The most bytes of an answer over UDP that are read; larger ones are truncated by the server.
const ANSWER_BYTES: usize = 4096;

/// Whom to ask, and what was answered.
#[derive(Debug)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
    /// What the system's own table of names says.
    table: HashMap<String, Vec<IpAddr>>,
    kept: Mutex<HashMap<HostName, (Instant, Vec<IpAddr>)>>,
}

impl Resolver {
    /// One that asks these servers alone.
    #[must_use]
    pub fn of_servers(servers: Vec<SocketAddr>) -> Resolver {
        Resolver { servers, table: HashMap::new(), kept: Mutex::default() }
    }

    /// One that asks whom this system asks, by the texts of its `resolv.conf(5)` and `hosts(5)`.
    #[must_use]
    pub fn of_system(resolv_conf: &str, hosts: &str) -> Resolver {
        let words = resolv_conf.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next()).flatten()
        });
        let servers = words.filter_map(|word| word.parse().ok()).map(|ip: IpAddr| (ip, 53).into()).collect();
        Resolver { table: table(hosts), ..Resolver::of_servers(servers) }
    }

    /// The addresses of a name, those of IPv4 first; none if nobody knows any.
    ///
    /// # Errors
    ///
    /// What the last server's socket said, if no server answered at all.
    pub async fn addresses(&self, name: &HostName) -> io::Result<Vec<IpAddr>> {
        if let Some(known) = self.table.get(name.as_str()) {
            return Ok(known.clone());
        }
        let kept = self.lock().get(name).filter(|(until, _)| *until > Instant::now()).cloned();
        if let Some((_, addresses)) = kept {
            return Ok(addresses);
        }
        let (v4, v6) = tokio::join!(self.ask(name.as_str(), A), self.ask(name.as_str(), AAAA));
        let (mut addresses, mut seconds) = match (v4, v6) {
            (Err(error), Err(_)) => return Err(error),
            (v4, v6) => {
                let (mut v4, v6) = (v4.unwrap_or_default(), v6.unwrap_or_default());
                v4.0.extend(v6.0);
                (v4.0, v4.1.min(v6.1))
            }
        };
        addresses.truncate(MOST_ADDRESSES);
        seconds = seconds.min(MOST_SECONDS);
        self.keep(name, &addresses, seconds);
        Ok(addresses)
    }

    fn keep(&self, name: &HostName, addresses: &[IpAddr], seconds: u32) {
        let now = Instant::now();
        let mut kept = self.lock();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (until, _)| *until > now);
        }
        if kept.len() < MOST_KEPT && seconds > 0 && !addresses.is_empty() {
            let until = now + Duration::from_secs(seconds.into());
            kept.insert(name.clone(), (until, addresses.to_vec()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<HostName, (Instant, Vec<IpAddr>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one server after the other.
    async fn ask(&self, name: &str, kind: u16) -> io::Result<(Vec<IpAddr>, u32)> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no server to ask");
        for server in std::iter::repeat_n(&self.servers, ROUNDS).flatten() {
            match timeout(WAIT, ask_one(*server, name, kind)).await {
                Ok(Ok(Said::Addresses(addresses, seconds))) => return Ok((addresses, seconds)),
                // RFC 1035, section 4.1.1: there is no such name. Any other code is that server's own trouble.
                Ok(Ok(Said::Nothing(3))) => return Ok((vec![], 0)),
                Ok(Ok(_)) => last = io::Error::other("the server could not say"),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }
}

/// A number and, with a socket of its own, a port that nobody can guess (RFC 5452, section 9.2).
async fn ask_one(server: SocketAddr, name: &str, kind: u16) -> io::Result<Said> {
    let id = u16::from_ne_bytes(cofferdam_sys::fd::random_bytes()?);
    let question = ask(id, name, kind);
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut buffer = [0; ANSWER_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match said(&buffer[..length], id, name, kind) {
            Some(Said::Truncated) => return ask_over_tcp(server, &question, (id, name, kind)).await,
            Some(said) => return Ok(said),
            None => {} // somebody else's, or nonsense
        }
    }
}

async fn ask_over_tcp(
    server: SocketAddr,
    question: &[u8],
    (id, name, kind): (u16, &str, u16),
) -> io::Result<Said> {
    let mut stream = TcpStream::connect(server).await?;
    let framed = [&(question.len() as u16).to_be_bytes()[..], question].concat();
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    said(&answer, id, name, kind).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The lines of `hosts(5)`: an address and its names.
fn table(hosts: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut table: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in hosts.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        for name in words {
            table.entry(name.to_ascii_lowercase()).or_default().push(address);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_say_whom_to_ask_and_what_is_known() {
        let conf =
            "# x\nsearch a.test\nnameserver 203.0.113.1\nnameserver 2001:db8::1\nnameserver x\noptions y";
        let resolver =
            Resolver::of_system(conf, "127.0.0.1 localhost # x y\n\n203.0.113.2\tDB.internal db\n");
        let servers = ["203.0.113.1:53", "[2001:db8::1]:53"].map(|text| text.parse().unwrap());
        assert_eq!(resolver.servers, servers);
        assert_eq!(resolver.table["db.internal"], ["203.0.113.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(resolver.table.len(), 3);
    }
}
