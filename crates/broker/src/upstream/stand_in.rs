//! A credential of a run, as requests meet it: the surrogate that stands for it, where it may go, and the secret once
//! a request needs it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::SystemTime;

use cofferdam_core::egress::{ConnectPermit, DenialCode, Door, Host, RequestHead, Rules};
use cofferdam_core::secret::Secret;
use cofferdam_core::weaken::{self, Control};
use hyper::Request;
use hyper::header::{HOST, HeaderValue};
use tokio::sync::OnceCell;

use super::place::{self, Carries};
use super::scrub::Forms;
use crate::config::Inject;

/// One credential of one run.
pub(crate) struct StandIn {
    pub(crate) name: String,
    pub(crate) surrogate: String,
    pub(crate) place: Inject,
    pub(crate) rules: Rules,
    /// Where the issuer's operator lets it go.
    pub(crate) hosts: Vec<(Host, u16)>,
    pub(crate) until: SystemTime,
    pub(crate) max_uses: Option<u64>,
    pub(crate) uses: Cell<u64>,
    /// Whether its run is over.
    pub(crate) is_over: Cell<bool>,
    pub(crate) secret: OnceCell<Kept>,
}

/// A secret, and what it may look like when it comes back.
pub(crate) struct Kept {
    pub(crate) secret: Secret,
    pub(crate) forms: Rc<Forms>,
}

impl Kept {
    pub(crate) fn new(secret: Secret) -> Self {
        let forms = Rc::new(Forms::of(&secret));
        Kept { secret, forms }
    }
}

impl StandIn {
    /// Whether a connection may carry it.
    ///
    /// # Errors
    ///
    /// The code by which it is refused.
    pub(crate) fn connection(&self, host: &Host, port: u16) -> Result<ConnectPermit, DenialCode> {
        self.is_alive()?;
        if !self.hosts.iter().any(|(known, its)| (known, *its) == (host, port)) {
            return Err(DenialCode::CredentialWrongHost);
        }
        self.rules.connection(Door::Forward, host, port).map_err(|denial| denial.code)
    }

    /// Whether a request may go, and what it carries.
    ///
    /// # Errors
    ///
    /// The code by which it is refused.
    pub(crate) fn request<B>(
        &self,
        permit: &ConnectPermit,
        request: &Request<B>,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<Carries, DenialCode> {
        self.is_alive()?;
        let path = request.uri().path_and_query().map_or("", |target| target.as_str());
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let hosts = request.headers().get_all(HOST).into_iter().map(HeaderValue::as_bytes);
        let head = RequestHead {
            authorities: &authority.into_iter().chain(hosts).collect::<Vec<_>>(),
            server_name: None,
            method: request.method().as_str().as_bytes(),
            path: path.as_bytes(),
        };
        self.rules.request(permit, &head).map_err(|denial| denial.code)?;
        let carries = place::judge(&self.place, &self.surrogate, request.uri(), request.headers(), is_ours)?;
        Ok(carries)
    }

    /// Counts one use, if there may be one more.
    ///
    /// # Errors
    ///
    /// The code by which the request is refused.
    pub(crate) fn use_once(&self) -> Result<(), DenialCode> {
        self.is_alive()?;
        if self.max_uses.is_some_and(|most| self.uses.get() >= most) {
            return Err(DenialCode::CredentialExpired);
        }
        self.uses.set(self.uses.get() + 1);
        Ok(())
    }

    /// Whether its run lives, and its time isn't over.
    fn is_alive(&self) -> Result<(), DenialCode> {
        if weaken::is_off(Control::LeaseEnd) {
            return Ok(());
        }
        match self.is_over.get() || self.until <= SystemTime::now() {
            true => Err(DenialCode::CredentialExpired),
            false => Ok(()),
        }
    }
}

/// Beginnings by which programs and people know what kind of secret something is, as their issuers document them. What
/// stands in for one has the same; they say nothing secret.
const PREFIXES: [&str; 19] = [
    "dckr_pat_",
    "dop_v1_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "hvs.",
    "npm_",
    "pypi-",
    "sk-ant-",
    "sk-proj-",
    "sk_live_",
    "sk_test_",
    "sk-",
    "xoxb-",
    "xoxp-",
];

/// The public beginning of a secret, for its surrogate.
pub(crate) fn prefix(secret: &Secret) -> &'static str {
    PREFIXES.into_iter().find(|prefix| secret.expose().starts_with(prefix.as_bytes())).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_surrogate_begins_like_what_it_stands_for() {
        let of = |text: &str| prefix(&Secret::new(text.as_bytes().to_vec()));
        assert_eq!(of("ghp_0123"), "ghp_");
        assert_eq!(of("sk-ant-api03-x"), "sk-ant-");
        assert_eq!(of("sk-x"), "sk-");
        assert_eq!(of("hunter2"), "");
    }
}
