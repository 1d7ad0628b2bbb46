//! Ways out for sandboxes: this very program as the proxy, told what the operator configured.

use std::env;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::audit::{AuditError, Event};
use cofferdam_core::backend::Boxed;
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::{Fault, FaultCode, RunId};
use cofferdam_core::outlet::{Cut, Dial, Doors, Outlet, OutletError, Outlets, Sink};
use cofferdam_egress::outlet::{self, DeniedNames, NoProxy, ProxyProgram, Settings};
use rustls::RootCertStore;

use crate::cli;
use crate::files::{Denied, Node, Resolver, Rest};

/// Whom the proxy is where root starts it: an id after those of all runs (`backends::container::ids`), which nobody
/// else has.
const PROXY_USER: u32 = 0x7010_0000;

/// Makes ways out as the node and a policy have it. `roots` are files with certificates that are trusted besides the
/// node's. Nothing is started before a sandbox sends something.
///
/// # Errors
///
/// A [`Fault`] if a file of certificates can't be read, or our own path.
pub(crate) fn outlets(node: &Node, rest: &Rest, roots: &[PathBuf]) -> Result<Arc<dyn Outlets>, Fault> {
    let denied_names = match rest.denied_names {
        Some(Denied::Nxdomain) => DeniedNames::NxDomain,
        Some(Denied::Explain) | None => DeniedNames::Explain,
    };
    let outlets = Arc::new(outlet::Outlets::new(settings(node, roots, denied_names)?));
    Ok(if rest.record_requests == Some(false) { Arc::new(Unrecorded(outlets)) } else { outlets })
}

/// Starts a proxy as a sandbox would have it, and ends it: how long it took to be ready.
///
/// # Errors
///
/// Why there can't be one, and what to do.
pub(crate) fn trial(node: &Node) -> Result<Duration, (String, String)> {
    let settings = settings(node, &[], DeniedNames::Explain)
        .map_err(|fault| (fault.message, fault.fix.unwrap_or_default()))?;
    outlet::trial(&settings).map_err(|none| {
        let fix = match none {
            NoProxy::Start(_) => {
                "see that this program can be run from where it lies, and that /proc is mounted"
            }
            NoProxy::GaveUp(_) => "mend what it names, in node.toml or on the host",
            NoProxy::Silent => "look at the kernel's log for why it ended; then try again",
        };
        (none.to_string(), fix.to_owned())
    })
}

fn settings(node: &Node, roots: &[PathBuf], denied_names: DeniedNames) -> Result<Settings, Fault> {
    let path = env::current_exe().map_err(|error| Fault {
        code: FaultCode::HostError,
        message: format!("the path of this program can't be read: {error}"),
        fix: Some("mount /proc".to_owned()),
    })?;
    let mut extra_roots = vec![];
    for root in node.extra_roots.iter().chain(roots) {
        extra_roots.extend(certificates(root).map_err(|error| unreadable(root, &error))?);
    }
    Ok(Settings {
        program: ProxyProgram { path, args: vec![cli::PROXY.into()] },
        node: outlet::Node {
            resolvers: match &node.resolver {
                Resolver::Servers(servers) => servers.clone(),
                Resolver::System => vec![],
            },
            extra_roots,
            upstream_proxy: node.upstream_proxy.as_deref().map(authority_of),
            private_hosts: node.private_hosts.clone(),
            user: PROXY_USER,
        },
        denied_names,
        own_addresses: None,
    })
}

/// Whom a node trusts to say who a host is, for who puts credentials into requests. A file that can't be read trusts
/// nobody; [`trouble`] says so.
pub(crate) fn trusted(node: &Node) -> RootCertStore {
    let extra: Vec<u8> =
        node.extra_roots.iter().filter_map(|root| certificates(root).ok()).flatten().collect();
    cofferdam_egress::roots(&extra).unwrap_or_else(|_| RootCertStore::empty())
}

/// What is in the way of the node's settings for what leaves, and what to do.
pub(crate) fn trouble(node: &Node) -> Option<(String, String)> {
    node.extra_roots.iter().find_map(|root| {
        let fault = unreadable(root, &certificates(root).err()?);
        Some((fault.message, fault.fix.unwrap_or_default()))
    })
}

/// A file of certificates in PEM, with a line's end at its end.
fn certificates(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = fs::read(path)?;
    text.push(b'\n');
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault {
        code: FaultCode::HostError,
        message: format!("could not read the certificates in {}: {error}", path.display()),
        fix: Some("name a file of certificates (PEM) that can be read: extra_roots in node.toml".to_owned()),
    }
}

/// `HOST:PORT` of an address that `node.toml` has as `http://HOST:PORT`.
fn authority_of(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    rest.strip_suffix('/').unwrap_or(rest).to_owned()
}

/// Ways out whose policy doesn't want what was let out to be recorded. Refusals are, all the same.
struct Unrecorded(Arc<dyn Outlets>);

impl Outlets for Unrecorded {
    fn open(&self, run: &RunId, grant: &Grant) -> Result<Arc<dyn Outlet>, OutletError> {
        Ok(Arc::new(UnrecordedOutlet(self.0.open(run, grant)?)))
    }
}

struct UnrecordedOutlet(Arc<dyn Outlet>);

impl Outlet for UnrecordedOutlet {
    fn prepare(&self) {
        self.0.prepare();
    }

    fn authority(&self) -> &str {
        self.0.authority()
    }

    fn attach(&self, doors: Doors) -> Result<(), OutletError> {
        self.0.attach(doors)
    }

    fn connect(&self, dial: Dial, stream: OwnedFd) -> Boxed<'_, Result<(), OutletError>> {
        self.0.connect(dial, stream)
    }

    fn record(&self, run: &RunId, sink: Arc<dyn Sink>, broker: Option<OwnedFd>) {
        self.0.record(run, Arc::new(Refusals(sink)), broker);
    }

    fn cut(&self) -> Boxed<'_, Cut> {
        self.0.cut()
    }
}

/// Passes on what was refused.
struct Refusals(Arc<dyn Sink>);

impl Sink for Refusals {
    fn record(&self, event: Event) -> Boxed<'_, Result<(), AuditError>> {
        match event {
            Event::EgressAllowed(_) => Box::pin(async { Ok(()) }),
            event => self.0.record(event),
        }
    }
}
