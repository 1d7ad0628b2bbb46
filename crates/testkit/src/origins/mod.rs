//! A network of a test's own, in which the whole world is: every address of IPv4 and IPv6 leads to servers of
//! the test's, which write down what arrives and where it was meant to go. Nothing there leads out.
//!
//! A command that is run in it ([`Net::run`]) finds a resolver that knows the names of [`ZONE`] and answers
//! over UDP and TCP at any address, HTTP on 80 and 8080, HTTPS on 443 and 8443 (HTTP/1.1 and HTTP/2, with the
//! certificate of whatever server is named, by the authority of [`Net::authority`]), and on the other ports of
//! [`ECHO_PORTS`] and [`UDP_PORTS`] something that sends back what it gets. So an attempt that isn't stopped
//! gets through and says so, and what is allowed works: each server is origin and canary in one, and
//! [`Net::seen`] tells them apart by where things were meant to go.
//!
//! What HTTP answers is by path: [`http`]. The machine's own addresses in there are the loopback's and those
//! of [`OWN`]. It ends with the value, and nothing of it stays.

mod dns;
mod echo;
mod http;
mod namespace;
mod place;
mod seen;
mod share;
mod tls;
mod udp;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::host::{eventually, is_root};
use crate::product::{Product, Ran, finish};

pub use place::{ECHO_PORTS, OWN, RESOLVER, UDP_PORTS, ZONE};
pub use seen::{Arrival, Carrier, Counted, Question, Request, Seen};
pub use share::Share;

use namespace::Namespace;
use seen::Log;

/// What the servers have in common.
struct World {
    log: Log,
    authority: tls::Authority,
    shares: share::Shares,
}

/// A network of its own, with the world in it.
pub struct Net {
    world: Arc<World>,
    /// The process that keeps the namespace.
    holder: i32,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    /// Makes it, and starts its servers.
    ///
    /// # Errors
    ///
    /// Why this host can't have one, in words for a test that is skipped.
    pub fn start() -> Result<Net, String> {
        let world =
            World { log: Log::default(), authority: tls::Authority::new(), shares: share::Shares::default() };
        let world = Arc::new(world);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(AUTHORITY), world.authority.pem()).unwrap();
        // A namespace's process dies with the thread that launched it.
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let its_world = Arc::clone(&world);
        let thread = std::thread::spawn(move || serve(&its_world, stopped, &tell));
        let holder = told.recv().unwrap()?;
        world.log.begin(holder);
        let net = Net { world, holder, folder, stop: Some(stop), thread: Some(thread) };
        if is_root() {
            net.lets_everybody_ping();
        }
        Ok(net)
    }

    /// An ordinary user's echo requests leave, as on a desktop: by default a new network allows nobody any.
    fn lets_everybody_ping(&self) {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range"]);
        let ran = self.run(&command);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    /// A command as it is, but in there. Whoever it becomes, it is the same user that a test's command is.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        let namespace = |kind: &str| format!("--{kind}=/proc/{}/ns/{kind}", self.holder);
        let mut inside = Command::new("nsenter");
        if !is_root() {
            inside.args([&namespace("user"), "--preserve-credentials"]);
        }
        inside.arg(namespace("net")).arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside.stdin(std::process::Stdio::null());
        inside
    }

    /// Runs a command in there to its end.
    #[must_use]
    pub fn run(&self, command: &Command) -> Ran {
        finish(self.command(command))
    }

    /// Has a product ask this network's resolver, and trust its authority: writes its `node.toml`.
    pub fn settle(&self, product: &Product) {
        self.settle_with(product, "");
    }

    /// The same, with more lines.
    pub fn settle_with(&self, product: &Product, more: &str) {
        let authority = product.file(AUTHORITY, self.world.authority.pem());
        let folder = product.folder().join("home/.config/cofferdam");
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("resolver = [\"{RESOLVER}\"]\nextra_roots = [{authority:?}]\n{more}\n");
        std::fs::write(folder.join("node.toml"), text).unwrap();
        product.give(&authority);
        product.give(&product.folder().join("home"));
    }

    /// The certificate of the authority that vouches for every server here, but for those that
    /// [`ZONE`] says otherwise of.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join(AUTHORITY)
    }

    /// Has HTTP answer paths that begin so from a folder or by a program.
    pub fn share(&self, prefix: &str, share: Share) {
        self.world.shares.add(prefix, share);
    }

    /// What arrived since this was last asked. Everything that was sent before is in it: whatever waits to be
    /// accepted is waited for, and so is the end of a connection that one side has closed, whose last packets would
    /// count among those of what comes next.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let log = &self.world.log;
        eventually(Duration::from_secs(5), || log.has_heard_everything() && !log.is_closing());
        log.take()
    }
}

/// The file that holds the authority's certificate.
const AUTHORITY: &str = "authority.pem";

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.stop.take()); // which the thread hears
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it said what it panicked about
        }
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// Makes the namespace, says by which process it is held, and serves until nobody wants it any more.
fn serve(world: &Arc<World>, stopped: oneshot::Receiver<()>, tell: &mpsc::Sender<Result<i32, String>>) {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return tell.send(Err(why)).unwrap(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for listener in namespace.tcp {
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            tokio::spawn(accept(listener, Arc::clone(world)));
        }
        for (port, socket) in namespace.udp {
            tokio::spawn(udp::serve(port, socket, Arc::clone(world)));
        }
        tell.send(Ok(namespace.holder.pid())).unwrap();
        let _ = stopped.await; // either way it is over
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
}

/// Accepts for as long as there is a runtime.
async fn accept(listener: TcpListener, world: Arc<World>) {
    while let Ok((connection, _)) = listener.accept().await {
        let _ = connection.set_nodelay(true); // it may be gone already
        let Ok(to) = connection.local_addr() else { continue };
        let arrival = world.log.arrival(Carrier::Tcp, to);
        let connection = seen::Tapped::new(connection, Arc::clone(&arrival));
        let world = Arc::clone(&world);
        match to.port() {
            80 | 8080 => tokio::spawn(http::serve(connection, to, false, world)),
            443 | 8443 => tokio::spawn(tls::serve(connection, to, arrival, world)),
            53 => tokio::spawn(dns::serve_stream(connection, to, world)),
            port => tokio::spawn(echo::serve(connection, port, world)),
        };
    }
}

/// A file of a folder that a server may give out: nothing above it.
fn below(folder: &Path, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    plain.then(|| folder.join(relative))
}

#[cfg(test)]
#[test]
fn all_of_it_holds_for_an_ordinary_user_too() {
    let test = concat!(module_path!(), "::all_of_it_holds_for_an_ordinary_user_too");
    crate::conformance::ordinary::again("origins::tests::", 11, test);
}
