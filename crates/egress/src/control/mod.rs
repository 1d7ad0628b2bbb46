//! What the host and the proxy say to each other, over one socket.
//!
//! ```text
//! host                                   proxy
//! Node                    once ─►
//!                              ◄─ Ready | Failed
//! Door, Door, … , Open     for each run of a sandbox ─►        a descriptor beside each Door
//!                              ◄─ Event                        and nothing goes out until
//! Written                      ─►                              the host wrote it down
//! Connection                   ─►                              a descriptor beside it
//! Cut                          ─►
//!                              ◄─ IsCut
//! ```
//!
//! A frame is a length (4 bytes, little-endian, of what follows), a kind (1 byte) and a payload. What comes
//! from the proxy is hostile, since a program may have taken it over: frames are bounded and checked whole, and
//! an event has to survive the host's own judgement (`outlet::ledger`).

mod codec;
mod from_proxy;
mod link;
mod to_proxy;

use std::net::IpAddr;

use cofferdam_core::egress::{Denial, Door};
use cofferdam_core::outlet::Dial;
use cofferdam_core::policy::{HostPattern, Limits, NetworkRule};

pub use codec::{BadFrame, Frame, Frames};
pub(crate) use link::{Link, send_frame, watched};

/// The version of this wire; the proxy says it when it is ready.
pub const VERSION: u8 = 2;

/// The longest frame that a proxy takes: certificates of an operator's own are in one.
pub const TO_PROXY_BYTES: usize = 4 << 20;

/// The longest frame that a host takes: a request's path is in one, and what is read of a head is less.
pub const FROM_PROXY_BYTES: usize = 64 << 10;

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToProxy {
    /// What holds for all sandboxes. Once, and first.
    Node(Node),
    /// One of the sockets for the next `Open`. A descriptor comes with it.
    Door(DoorKind),
    /// Serve a run, with the doors that came since the last `Open`.
    Open(Box<Terms>),
    /// Whether an event is written down.
    Written {
        /// Its number.
        event: u64,
        /// Whether it is; what it records must not happen otherwise.
        is_written: bool,
    },
    /// Serve a connection that was made for a program of a run. A descriptor comes with it.
    Connection {
        /// The run.
        session: u32,
        /// Where it is meant to go.
        dial: Dial,
    },
    /// Let nothing of a run through any more.
    Cut {
        /// Its number.
        session: u32,
    },
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorKind {
    /// It accepts what was meant for somewhere else.
    Tcp,
    /// It is asked for names.
    Dns,
    /// It accepts what asks for a proxy.
    Proxy,
    /// Over it, the broker is handed connections whose requests carry a credential of the run's.
    Broker,
}

/// What holds for all sandboxes of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Whom to ask for names, as `ADDRESS:PORT`; none means whom the system asks.
    pub resolvers: Vec<std::net::SocketAddr>,
    /// Certificates to trust beside the system's and the bundled ones, as PEM.
    pub extra_roots: Vec<u8>,
    /// A proxy through which everything is dialled, as `HOST:PORT`.
    pub upstream_proxy: Option<String>,
    /// The hosts that may be at private addresses, where a rule says so too; none means whatever rules say.
    pub private_hosts: Option<Vec<HostPattern>>,
    /// Who to be, where the proxy is started by root: user and group.
    pub user: u32,
}

/// What a name that no rule has is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeniedNames {
    /// An address at which the refusal can be read.
    #[default]
    Explain,
    /// That there is no such name.
    NxDomain,
}

/// What a run may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The number by which both sides know it.
    pub session: u32,
    /// The run, as refusals name it.
    pub run: String,
    /// Its rules, in order.
    pub rules: Vec<NetworkRule>,
    /// Its ceilings; only those on what leaves count here.
    pub limits: Limits,
    /// What a name that no rule has is answered with.
    pub denied_names: DeniedNames,
    /// The addresses of this machine.
    pub own: Vec<IpAddr>,
    /// The common name of its authority.
    pub authority: String,
    /// The authority's key: PKCS #8, DER.
    pub authority_key: Vec<u8>,
}

/// What the proxy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromProxy {
    /// It is confined, and speaks this version.
    Ready(u8),
    /// It can't go on, and why: untrusted text.
    Failed(String),
    /// Something that has to be written down.
    Event {
        /// The run.
        session: u32,
        /// The number by which it is answered.
        event: u64,
        /// What.
        report: Report,
    },
    /// Nothing of a run is open any more.
    IsCut {
        /// The run.
        session: u32,
        /// Bytes that left.
        bytes_out: u64,
        /// Bytes that came in.
        bytes_in: u64,
    },
}

/// What the proxy decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Something is about to go out.
    Allowed(Allowed),
    /// Something was refused.
    Denied {
        /// What, and why.
        denial: Denial,
        /// The way by which it came, where that is known.
        door: Option<Door>,
        /// The address that it would have gone to, where it came to that.
        ip: Option<IpAddr>,
    },
    /// A name was asked for that no rule has.
    NameDenied {
        /// What, and why.
        denial: Denial,
        /// Whether the program was told so; otherwise what it sends there will be refused.
        is_told: bool,
    },
}

/// A request or a tunnel that is about to go out, in the words of which the host makes its own judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The way by which it came.
    pub door: Door,
    /// The host, as text.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address that was dialled.
    pub ip: IpAddr,
    /// Method and path, as they were sent but for the query; none for a tunnel.
    pub request: Option<(Vec<u8>, Vec<u8>)>,
}
