//! Datagrams: questions of DNS on its port, and echoes on the others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use cofferdam_sys::capture::{DNS_PORT, DnsSocket};
use cofferdam_sys::fd::set_nonblocking;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::World;
use super::dns;
use super::seen::Carrier;

/// Answers for as long as there is a runtime.
pub(super) async fn serve(port: u16, socket: DnsSocket, world: Arc<World>) {
    set_nonblocking(socket.as_fd()).unwrap();
    let watched = socket.as_fd().try_clone_to_owned().unwrap();
    let watched = UdpSocket::from_std(watched.into()).unwrap();
    while watched.readable().await.is_ok() {
        // It wants more than the next datagram: where that was meant to go.
        let _ = watched.try_io(Interest::READABLE, || one(port, &socket, &world));
    }
}

/// Takes one datagram, and answers it. Nobody may wait for the answer any more.
fn one(port: u16, socket: &DnsSocket, world: &World) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let (length, asker) = socket.question(&mut buffer)?;
    let (message, to) = (&buffer[..length], SocketAddr::new(asker.asked(), port));
    let answer = if port == DNS_PORT {
        dns::answer(message, Carrier::Udp, to, world)
    } else {
        world.log.arrival(Carrier::Udp, to).lock().unwrap().add(message);
        Some(message.to_vec())
    };
    if let Some(answer) = answer {
        let _ = socket.answer(&answer, &asker);
    }
    Ok(())
}
