//! The ways by which proxies reach the broker: a socket for each run, which the host made. Who holds its other end is
//! that run's proxy, whatever it says: so what stands for a credential of one run is worth nothing in another.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use cofferdam_core::egress::DenialCode;
use cofferdam_core::handover::{Handover, MOST_BYTES, Taken};
use cofferdam_sys::fdpass::{self, Received};
use tokio::io::unix::AsyncFd;

use super::stand_ins::TaskRun;
use super::tasks::Tasks;
use crate::upstream::{Tls, connection};

/// Accepts ways for as long as the host lives: each is a task's number, and a descriptor beside it.
///
/// # Errors
///
/// What the kernel said.
pub(super) fn accept(ways: OwnedFd, tasks: &Rc<Tasks>, tls: Tls) -> io::Result<()> {
    let (ways, tasks, tls) = (watched(ways)?, tasks.clone(), Rc::new(tls));
    tokio::task::spawn_local(async move {
        let mut number = [0; size_of::<u64>()];
        while let Ok(Some((count, fds))) = receive(&ways, &mut number).await {
            let task = u64::from_le_bytes(number);
            // A number that came in two pieces isn't one of the host's.
            let Some(way) = fds.into_iter().next().filter(|_| count == number.len()) else { return };
            tokio::task::spawn_local(serve(way, task, tasks.clone(), tls.clone()));
        }
    });
    Ok(())
}

/// Serves what a run's proxy hands over, until it closes its end.
async fn serve(way: OwnedFd, task: u64, tasks: Rc<Tasks>, tls: Rc<Tls>) {
    let Ok(way) = watched(way) else { return };
    let mut message = [0; MOST_BYTES];
    while let Ok(Some((count, fds))) = receive(&way, &mut message).await {
        let handover = Handover::decode(&message[..count]);
        let (Ok(handover), Ok([dialled, pair])) = (handover, <[OwnedFd; 2]>::try_from(fds)) else { continue };
        let Some((over, turn)) = tasks.over(task) else {
            refuse(pair); // too many, or its run is over
            continue;
        };
        let (run, tls) = (Rc::new(TaskRun::new(task, tasks.clone())), tls.clone());
        tokio::task::spawn_local(async move {
            connection::serve(run, &tls, handover, (dialled, pair), over).await;
            drop(turn);
        });
    }
}

/// Says that nothing is spoken over a connection.
fn refuse(pair: OwnedFd) {
    let taken = Taken::Denied(DenialCode::LimitExceeded);
    let _ = UnixStream::from(pair).write_all(&[taken.encode()]); // the proxy may be gone
}

fn watched(socket: OwnedFd) -> io::Result<AsyncFd<UnixStream>> {
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    #[expect(deprecated, reason = "unsound only where the descriptor can change; a socket owns its own")]
    AsyncFd::new(socket)
}

/// A message and its descriptors; none at the end.
async fn receive(
    socket: &AsyncFd<UnixStream>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        let read = ready.try_io(|socket| fdpass::receive_all(socket.get_ref().as_fd(), buffer));
        let Ok(read) = read else { continue };
        let Received { count, fds, .. } = read?;
        return Ok((count > 0).then_some((count, fds)));
    }
}
