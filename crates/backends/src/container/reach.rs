//! What a container has of the network: a capture of everything that it sends, handed over to its way out, and
//! trust in that.
//!
//! The capture is set up for every container, with or without a rule, so that a refusal is never mute. Nobody
//! inside can undo it ([`capture`](cofferdam_sys::capture)). What is trusted, and the variables that say so,
//! are a convenience: whoever changes them inside trusts less, and reaches no more.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_core::backend::BackendError;
use cofferdam_core::outlet::{self, Outlet};
use cofferdam_core::policy::NetworkRule;
use cofferdam_core::request::Variable;
use cofferdam_sys::capture::{self, Capture, Support, Table, Why};
use cofferdam_sys::launch::Launched;
use cofferdam_sys::process;

use super::java;

/// Whom programs ask for names. Any address does, since port 53 is captured at each; this one is of those that
/// RFC 5737 keeps for documents, so that it is nobody's. Not a loopback address: DNS over TCP to those would be the
/// sandbox's own.
pub(super) const NAME_SERVER: &str = "192.0.2.53";

/// The host's certificates and that of the sandbox's own authority, for what takes one bundle instead of its own.
pub(super) const BUNDLE: &str = "/run/trust/bundle.pem";

/// The certificate of the sandbox's own authority alone, for what adds to its own.
pub(super) const AUTHORITY: &str = "/run/trust/authority.pem";

/// Where systems have the bundle that their programs trust: Debian, Alpine and Arch; Fedora; SUSE.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Variables of programs that take a bundle instead of their own.
const REPLACE: [&str; 11] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NIX_SSL_CERT_FILE",
    "PERL_LWP_SSL_CA_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// Variables of programs that add to what they have built in.
const ADD: [&str; 2] = ["DENO_CERT", "NODE_EXTRA_CA_CERTS"];

/// What a container trusts beyond the host's own certificates.
#[derive(Debug)]
pub(super) struct Trust {
    /// The certificate of its own authority.
    pub(super) authority: String,
    /// The host's, and how many bytes that has; none where it trusts nobody.
    pub(super) system: Option<(PathBuf, usize)>,
    /// The system's bundles that are there, over which that is shown.
    pub(super) over: Vec<PathBuf>,
    /// Java's store with it, and where that is.
    pub(super) java: Option<(PathBuf, Vec<u8>)>,
}

impl Trust {
    /// Of an authority; none where there is none. Java's store takes longer than all of the rest, so it is made only
    /// where something is let out that `java` could read.
    pub(super) fn of(authority: &str, java: bool) -> Option<Trust> {
        if authority.is_empty() {
            return None;
        }
        let over: Vec<_> = SYSTEM_BUNDLES.iter().map(PathBuf::from).filter(|path| path.is_file()).collect();
        let length = |path: &PathBuf| usize::try_from(fs::metadata(path).ok()?.len()).ok();
        let system = over.first().and_then(|path| Some((path.clone(), length(path)?)));
        let java = java.then(|| java::with(authority)).flatten();
        Some(Trust { authority: authority.to_owned(), system, over, java })
    }

    /// Variables by which programs find what is trusted that don't look where the system has it.
    pub(super) fn variables() -> impl Iterator<Item = Variable> {
        let replaced = REPLACE.iter().map(|name| (name, BUNDLE));
        let added = ADD.iter().map(|name| (name, AUTHORITY));
        replaced.chain(added).filter_map(|(name, path)| Variable::new(*name, path).ok())
    }
}

/// A container's way out, and what leads there.
pub(super) struct Reach {
    /// None where nothing is captured: nothing leads out of the sandbox then.
    captured: Option<(Capture, Arc<dyn Outlet>)>,
    /// What counts, once it is loaded.
    table: Option<Table>,
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach")
            .field("captured", &self.captured.as_ref().map(|(capture, _)| capture))
            .finish()
    }
}

impl Reach {
    /// A way out for what this kernel captures.
    pub(super) fn new(support: &Support, rules: &[NetworkRule], outlet: Arc<dyn Outlet>) -> Reach {
        let listed: Vec<_> = rules.iter().flat_map(|rule| rule.ports.iter().copied()).collect();
        Reach { captured: Some((Capture::new(support, &listed), outlet)), table: None }
    }

    /// No way out.
    pub(super) fn nowhere() -> Reach {
        Reach { captured: None, table: None }
    }

    /// What the launch has to set up.
    pub(super) fn capture(&self) -> Option<&Capture> {
        self.captured.as_ref().map(|(capture, _)| capture)
    }

    /// Has the way out begin with what takes it time.
    pub(super) fn prepare(&self) {
        if let Some((_, outlet)) = &self.captured {
            outlet.prepare();
        }
    }

    /// Keeps what was loaded until the doors are handed over.
    pub(super) fn with_table(self, table: Option<Table>) -> Reach {
        Reach { table, ..self }
    }

    /// What programs have to trust, where these rules say what is let out.
    pub(super) fn trust(&self, rules: &[NetworkRule]) -> Option<Trust> {
        self.captured.as_ref().and_then(|(_, outlet)| Trust::of(outlet.authority(), !rules.is_empty()))
    }

    /// Whether doors are still to be handed over.
    pub(super) fn is_pending(&self) -> bool {
        self.captured.is_some()
    }

    /// Hands the doors over to the way out, once. The sandbox has to be set up, and whatever it handed over before to
    /// be taken.
    ///
    /// # Errors
    ///
    /// [`BackendError::Gone`] if the sandbox never was set up; [`BackendError::Outlet`] if the way out can't use them.
    pub(super) fn hand_over(&mut self, launched: &Launched) -> Result<(), BackendError> {
        let Some((capture, outlet)) = self.captured.take() else { return Ok(()) };
        let doors = capture.doors(launched, self.table.take()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackendError::Gone,
            _ => BackendError::host("take over what the sandbox listens on")(error),
        })?;
        outlet.attach(as_descriptors(doors)).map_err(BackendError::from)
    }
}

fn as_descriptors(doors: capture::Doors) -> outlet::Doors {
    let capture::Doors { tcp, dns, proxy, table } = doors;
    outlet::Doors {
        tcp: tcp.into_iter().map(OwnedFd::from).collect(),
        dns: dns.into_iter().map(OwnedFd::from).collect(),
        proxy: Some(proxy.into()),
        table: table.map(OwnedFd::from),
    }
}

/// What this kernel captures. Trying takes a few milliseconds, so what was found is kept in a folder of ours, until
/// the next boot; what couldn't be had is tried again each time.
///
/// # Errors
///
/// [`Why`] nothing can be captured at all.
pub(super) fn support(folder: &Path) -> Result<Support, Why> {
    let (kept, here) = (folder.join("captures"), surroundings());
    if here.is_some() && fs::read_to_string(&kept).ok() == here {
        return Ok(Support { ipv6: Ok(()), every_port: Ok(()) });
    }
    let support = capture::probe()?;
    if let (Ok(()), Ok(()), Some(here)) = (&support.ipv6, &support.every_port, here) {
        let _ = fs::write(kept, here); // then it is tried again
    }
    Ok(support)
}

/// What tells this boot and this user from others; none where it can't be seen.
fn surroundings() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let users = fs::read_link("/proc/self/ns/user").ok()?;
    Some(format!("{} {} {}\n", boot.trim(), users.to_str()?, process::effective_user()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replaces_has_the_hosts_certificates_too_and_what_adds_has_ours_alone() {
        let ours = "-----BEGIN CERTIFICATE-----\nb3Vycw==\n-----END CERTIFICATE-----\n";
        let trust = Trust::of(ours, false).unwrap();
        assert_eq!(trust.authority, ours);
        if let Some((path, length)) = &trust.system {
            assert!(*path == trust.over[0] && fs::read(path).unwrap().len() == *length);
        }
        assert!(Trust::of("", true).is_none());
        let value = |name: &str| {
            let found = Trust::variables().find(|variable| variable.name() == name);
            found.map(|variable| variable.value().to_str().unwrap().to_owned())
        };
        assert_eq!(value("SSL_CERT_FILE").as_deref(), Some(BUNDLE));
        assert_eq!(value("NODE_EXTRA_CA_CERTS").as_deref(), Some(AUTHORITY));
        assert_eq!(Trust::variables().count(), REPLACE.len() + ADD.len());
        assert!(Trust::variables().all(|variable| !variable.name().to_lowercase().contains("proxy")));
    }

    #[test]
    fn what_was_found_is_kept_for_this_boot() {
        let folder = tempfile::tempdir().unwrap();
        let Ok(Support { ipv6: Ok(()), every_port: Ok(()) }) = support(folder.path()) else { return };
        let kept = folder.path().join("captures");
        assert_eq!(fs::read_to_string(&kept).ok(), surroundings());
        fs::write(&kept, "another boot").unwrap();
        assert!(support(folder.path()).is_ok());
        assert_eq!(fs::read_to_string(&kept).ok(), surroundings());
    }
}
