//! The two decisions about what leaves: may this connection be, may this request go.
//!
//! Both are total functions of the rules and of what was asked. The first rule that matches decides; where
//! none does, the answer is no, and it names the clause that misses least. Nothing is looked up before: a
//! decision is about names, and [`judge`](super::judge) about the addresses that they turn out to have.

use super::address::AddressDenied;
use super::authority::Authority;
use super::denial::{Denial, DenialCode, shown};
use super::host::Host;
use super::miss;
use super::path::{PlainPath, glob_form};
use crate::policy::{NetworkRule, Protocol};
use crate::weaken::{self, Control};

/// The way by which something came to be judged. It changes no verdict but that a request which doesn't come
/// in TLS of its own needs no server name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// A connection that was caught on its way out.
    Capture,
    /// `CONNECT host:port`, to a proxy that was asked for.
    Connect,
    /// A request in absolute form, to a proxy that was asked for.
    Forward,
    /// A function of the host's, called by WebAssembly.
    Function,
}

impl Door {
    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Door::Capture => "capture",
            Door::Connect => "connect",
            Door::Forward => "forward",
            Door::Function => "function",
        }
    }

    /// Whether a request to a host that speaks TLS comes to us in TLS.
    fn has_tls(self) -> bool {
        matches!(self, Door::Capture | Door::Connect)
    }
}

/// Where a connection leads, and by which door it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    door: Door,
    host: Host,
    port: u16,
    protocol: Protocol,
}

impl Destination {
    /// The door.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door
    }

    /// The host: what is looked up and dialled, and the name that its certificate has to have.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What is spoken.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}

/// What the rule that decided says beyond yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    rule: String,
    private: bool,
    credential: Option<String>,
}

impl Terms {
    fn of(rule: &NetworkRule) -> Terms {
        Terms { rule: rule.label(), private: rule.private, credential: rule.credential.clone() }
    }

    /// The rule's name, or the flag that says the same.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Whether the host may be at a private address.
    #[must_use]
    pub fn private(&self) -> bool {
        self.private
    }

    /// The credential that the request has to carry, and no other.
    #[must_use]
    pub fn credential(&self) -> Option<&str> {
        self.credential.as_deref()
    }
}

/// A connection that some rule allows. Nothing is dialled for it yet: it takes a request or a tunnel for that.
///
/// ```compile_fail,E0451
/// let forged = cofferdam_core::egress::ConnectPermit { to: todo!() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectPermit {
    to: Destination,
}

impl ConnectPermit {
    /// Where it leads.
    #[must_use]
    pub fn to(&self) -> &Destination {
        &self.to
    }

    /// A refusal of what comes over this connection.
    #[must_use]
    pub fn denial(&self, code: DenialCode) -> Denial {
        Denial::of_destination(code, &self.to)
    }
}

/// A connection whose bytes go on unopened.
///
/// ```compile_fail,E0451
/// let forged = cofferdam_core::egress::TunnelPermit { to: todo!(), terms: todo!() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPermit {
    to: Destination,
    terms: Terms,
}

/// A request that some rule allows.
///
/// ```compile_fail,E0451
/// let forged = cofferdam_core::egress::RequestPermit { to: todo!(), ..todo!() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPermit {
    to: Destination,
    terms: Terms,
    method: String,
    path: String,
}

impl TunnelPermit {
    /// Where it leads.
    #[must_use]
    pub fn to(&self) -> &Destination {
        &self.to
    }

    /// What its rule says beyond yes.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// A refusal of what was permitted, for something that was found out later.
    #[must_use]
    pub fn denial(&self, code: DenialCode) -> Denial {
        Denial { rule: Some(self.terms.rule.clone()), ..Denial::of_destination(code, &self.to) }
    }
}

impl TunnelPermit {
    /// A refusal of the address that the host turned out to have.
    #[must_use]
    pub fn address_denied(&self, why: AddressDenied) -> Denial {
        miss::address(self.denial(DenialCode::PrivateAddress), why, &self.to, None)
    }
}

impl RequestPermit {
    /// A refusal of the address that the host turned out to have.
    #[must_use]
    pub fn address_denied(&self, why: AddressDenied) -> Denial {
        let request = Some((self.method.as_str(), self.path.as_str()));
        miss::address(self.denial(DenialCode::PrivateAddress), why, &self.to, request)
    }

    /// Where it leads.
    #[must_use]
    pub fn to(&self) -> &Destination {
        &self.to
    }

    /// What its rule says beyond yes.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The method, as text that drives no terminal.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path without its query, as text that drives no terminal.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A refusal of what was permitted, for something that was found out later.
    #[must_use]
    pub fn denial(&self, code: DenialCode) -> Denial {
        Denial {
            method: Some(self.method.clone()),
            path: Some(self.path.clone()),
            rule: Some(self.terms.rule.clone()),
            ..Denial::of_destination(code, &self.to)
        }
    }
}

/// What of a request is judged.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// Everything in it that names a host, each as it was sent: the target's authority if it has one, and the
    /// `Host` header or `:authority`, or both.
    pub authorities: &'a [&'a [u8]],
    /// The server name of the handshake that it came in, if there was one with a name, or of the one that we are
    /// asked for.
    pub server_name: Option<&'a [u8]>,
    /// The method.
    pub method: &'a [u8],
    /// The target's path, with its query or without.
    pub path: &'a [u8],
}

/// The rules of one run, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Vec<NetworkRule>);

impl Rules {
    /// Takes the rules that a run was granted.
    #[must_use]
    pub fn new(rules: &[NetworkRule]) -> Rules {
        let mut rules = rules.to_vec();
        for paths in rules.iter_mut().filter_map(|rule| rule.paths.as_mut()) {
            paths.iter_mut().for_each(|glob| *glob = glob_form(glob));
        }
        Rules(rules)
    }

    /// The rules.
    #[must_use]
    pub fn as_slice(&self) -> &[NetworkRule] {
        &self.0
    }

    /// Whether a name may be asked for: some rule names it, on whatever port.
    ///
    /// # Errors
    ///
    /// [`DenialCode::HostNotAllowed`].
    pub fn lookup(&self, host: &Host) -> Result<(), Denial> {
        match self.0.iter().any(|rule| names(rule, host)) {
            true => Ok(()),
            false => Err(miss::lookup(host)),
        }
    }

    /// Whether a connection may be, and what is spoken on it: what the first rule for this host and port says.
    ///
    /// # Errors
    ///
    /// [`DenialCode::HostNotAllowed`], or [`DenialCode::PortNotAllowed`] where only the port is another.
    pub fn connection(&self, door: Door, host: &Host, port: u16) -> Result<ConnectPermit, Denial> {
        let first = self.0.iter().find(|rule| names(rule, host) && rule.ports.contains(&port));
        let Some(rule) = first else { return Err(miss::connection(&self.0, door, host, port)) };
        Ok(ConnectPermit { to: Destination { door, host: host.clone(), port, protocol: rule.protocol } })
    }

    /// Whether bytes that nobody opens may go over a connection. TLS that is passed through has to begin with
    /// the name of its server; that which we are asked to speak has to be with the host's.
    ///
    /// # Errors
    ///
    /// [`DenialCode::NoServerName`] and [`DenialCode::NameMismatch`] for the handshake. Where the rule is for
    /// requests, which have to be read, it is `NoServerName` for what isn't TLS, and
    /// [`DenialCode::InvalidAuthority`] for what isn't HTTP.
    pub fn tunnel(&self, permit: &ConnectPermit, server_name: Option<&[u8]>) -> Result<TunnelPermit, Denial> {
        let to = &permit.to;
        let Some(rule) = self.of(to).next() else { return Err(miss::gone(&self.0, to)) };
        let refused = match to.protocol {
            Protocol::Tcp => server_name.and_then(|name| same_server_name(to, Some(name)).err()),
            Protocol::TlsPassthrough => same_server_name(to, server_name).err(),
            Protocol::Https => Some(DenialCode::NoServerName),
            Protocol::Http => Some(DenialCode::InvalidAuthority),
        };
        match refused {
            Some(code) => Err(miss::tunnel(rule, to, code)),
            None => Ok(TunnelPermit { to: to.clone(), terms: Terms::of(rule) }),
        }
    }

    /// The refusal of a connection over which something else is spoken than its rule says.
    #[must_use]
    pub fn spoken(&self, permit: &ConnectPermit, protocol: Protocol) -> Denial {
        let to = &permit.to;
        let code =
            if to.protocol.has_tls() { DenialCode::NoServerName } else { DenialCode::InvalidAuthority };
        match self.of(to).next() {
            Some(rule) => miss::spoken(rule, to, code, protocol),
            None => miss::gone(&self.0, to),
        }
    }

    /// Whether a request may go over a connection: its names have to be the connection's, and the first rule
    /// for this method and this path decides.
    ///
    /// # Errors
    ///
    /// The codes of names ([`DenialCode::InvalidHost`], [`DenialCode::InvalidAuthority`],
    /// [`DenialCode::NameMismatch`], [`DenialCode::NoServerName`]), [`DenialCode::MethodNotAllowed`], or
    /// [`DenialCode::PathNotAllowed`] where some rule has the method.
    pub fn request(&self, permit: &ConnectPermit, head: &RequestHead) -> Result<RequestPermit, Denial> {
        let to = &permit.to;
        let refused = |code| permit.denial(code).with_request(head.method, head.path);
        same_authority(to, head.authorities).map_err(refused)?;
        if to.protocol.has_tls() && (to.door.has_tls() || head.server_name.is_some()) {
            same_server_name(to, head.server_name).map_err(refused)?;
        }
        let path = PlainPath::new(head.path);
        let first = self.of(to).find(|rule| has_method(rule, head.method) && has_path(rule, path.as_ref()));
        let Some(rule) = first else {
            let rules: Vec<_> = self.of(to).collect();
            return Err(miss::request(&rules, to, head, path.as_ref()));
        };
        let plain = head.path.split(|byte| *byte == b'?').next().unwrap_or_default();
        Ok(RequestPermit {
            to: to.clone(),
            terms: Terms::of(rule),
            method: shown(head.method),
            path: shown(plain),
        })
    }

    /// Whether requests to a destination carry a credential by some rule, if not by each.
    #[must_use]
    pub fn have_a_credential(&self, to: &Destination) -> bool {
        self.of(to).any(|rule| rule.credential.is_some())
    }

    /// The rules for a connection.
    fn of<'a>(&'a self, to: &'a Destination) -> impl Iterator<Item = &'a NetworkRule> {
        let speaks = |rule: &&NetworkRule| rule.protocol == to.protocol && rule.ports.contains(&to.port);
        self.0.iter().filter(speaks).filter(|rule| names(rule, &to.host))
    }
}

/// Whether a rule names a host.
pub(super) fn names(rule: &NetworkRule, host: &Host) -> bool {
    weaken::is_off(Control::RuleMatch) || rule.host.matches(host)
}

/// Whether a rule has a method: methods are case-sensitive (RFC 9110, section 9.1).
pub(super) fn has_method(rule: &NetworkRule, method: &[u8]) -> bool {
    rule.methods.as_ref().is_none_or(|methods| methods.iter().any(|known| known.as_bytes() == method))
}

/// Whether a rule has a path. A path that can be read in two ways has only a rule that names none.
pub(super) fn has_path(rule: &NetworkRule, path: Option<&PlainPath>) -> bool {
    let Some(globs) = &rule.paths else { return true };
    path.is_some_and(|path| globs.iter().any(|glob| path.matches(glob)))
}

/// Every authority of a request has to be there and to be the connection's.
fn same_authority(to: &Destination, authorities: &[&[u8]]) -> Result<(), DenialCode> {
    if weaken::is_off(Control::HostCheck) {
        return Ok(());
    }
    if authorities.is_empty() {
        return Err(DenialCode::InvalidAuthority);
    }
    for bytes in authorities {
        let authority = Authority::parse_with_default(bytes, to.protocol.default_port().unwrap_or(to.port))?;
        if (authority.host(), authority.port()) != (&to.host, to.port) {
            return Err(DenialCode::NameMismatch);
        }
    }
    Ok(())
}

/// A handshake has to name the connection's host. One with an address names none: RFC 6066, section 3,
/// permits no addresses there.
fn same_server_name(to: &Destination, server_name: Option<&[u8]>) -> Result<(), DenialCode> {
    if weaken::is_off(Control::SniCheck) {
        return Ok(());
    }
    match (server_name, &to.host) {
        (None, Host::Address(_)) => Ok(()),
        (None, Host::Name(_)) => Err(DenialCode::NoServerName),
        (Some(bytes), host) => match Host::parse(bytes) {
            Ok(named) if named == *host => Ok(()),
            Ok(_) => Err(DenialCode::NameMismatch),
            Err(_) => Err(DenialCode::InvalidHost),
        },
    }
}
