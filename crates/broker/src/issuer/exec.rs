//! A helper of the operator's, for whatever else mints: it prints a token, until when it lives, and what ends it.
//!
//! It is called with its words and gets `{"handle": …, "scope": {…}, "until": "…"}` on standard input. It prints
//! `{"token": "…", "expires_at": "…", "revoke": ["program", …], "test": ["program", …]}`, of which `token` alone has to
//! be there. `revoke` ends the token; `test` succeeds while it is alive. Both are called with the token on standard
//! input. A helper that names no `revoke` makes tokens that can't be revoked, and the Outcome says so.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use cofferdam_core::secret::Secret;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::{Alive, Boxed, Issuer, IssuerError, Minted, Scope, root};
use crate::config::IssuerConfig;

/// How long a helper may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The variable in which a helper finds the root.
const ROOT: &str = "COFFERDAM_ROOT";

/// One helper.
pub(super) struct Exec {
    config: IssuerConfig,
    command: Vec<String>,
    /// What it said of each token that lives.
    said: Mutex<BTreeMap<String, Said>>,
}

/// What a helper says of a token.
struct Said {
    token: Secret,
    revoke: Option<Vec<String>>,
    test: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    token: Zeroizing<String>,
    expires_at: Option<String>,
    revoke: Option<Vec<String>>,
    test: Option<Vec<String>>,
}

impl Exec {
    pub(super) fn new(config: &IssuerConfig, command: &[String]) -> Self {
        Exec { config: config.clone(), command: command.to_vec(), said: Mutex::default() }
    }

    fn refused(&self, why: impl Into<String>) -> IssuerError {
        IssuerError::Refused { issuer: self.config.name.clone(), why: why.into() }
    }

    /// Calls a program; gives whether it succeeded, and what it printed.
    async fn call(
        &self,
        words: &[String],
        root: Option<&Secret>,
        input: &[u8],
    ) -> Result<(bool, Zeroizing<Vec<u8>>), IssuerError> {
        let [program, args @ ..] = words else { return Err(self.refused("names no program to call")) };
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some(root) = root.and_then(|root| std::str::from_utf8(root.expose()).ok()) {
            command.env(ROOT, root);
        }
        let started = |error| self.refused(format!("can't call `{program}`: {error}"));
        let mut child = command.spawn().map_err(started)?;
        let whole = async {
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(input).await; // it may not care
            }
            child.wait_with_output().await
        };
        match timeout(PATIENCE, whole).await {
            Ok(Ok(output)) => Ok((output.status.success(), Zeroizing::new(output.stdout))),
            Ok(Err(error)) => Err(started(error)),
            Err(_) => Err(IssuerError::Unreachable {
                issuer: self.config.name.clone(),
                why: format!("`{program}` had not ended after 10 s"),
            }),
        }
    }

    /// What is to be called for a token, with the token itself.
    fn of(
        &self,
        handle: &str,
        which: impl Fn(&Said) -> Option<Vec<String>>,
    ) -> Option<(Vec<String>, Secret)> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.get(handle)?;
        Some((which(said)?, Secret::new(said.token.expose().to_vec())))
    }
}

impl Issuer for Exec {
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        until: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let root = root::read(&self.config).await?;
            let until = humantime::format_rfc3339_seconds(until).to_string();
            let input = json!({ "handle": handle, "scope": scope, "until": until }).to_string();
            let (succeeded, printed) = self.call(&self.command, Some(&root), input.as_bytes()).await?;
            if !succeeded {
                return Err(self.refused("refuses: its helper failed"));
            }
            // What doesn't parse isn't shown: there is a token in it.
            let printed: Printed = serde_json::from_slice(&printed)
                .map_err(|error| self.refused(format!("printed no token ({})", kind(&error))))?;
            let expires = printed.expires_at.as_deref().map(humantime::parse_rfc3339).transpose();
            let expires =
                expires.map_err(|error| self.refused(format!("printed a bad expires_at: {error}")))?;
            let token = |text: &str| Secret::new(text.as_bytes().to_vec());
            let said = Said { token: token(&printed.token), revoke: printed.revoke, test: printed.test };
            self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.to_owned(), said);
            Ok(Minted { parts: BTreeMap::from([("token", token(&printed.token))]), expires })
        })
    }

    fn can_revoke(&self, handle: &str) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(handle).is_none_or(|said| said.revoke.is_some())
    }

    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async move {
            let Some((words, token)) = self.of(handle, |said| said.revoke.clone()) else {
                return Err(self.refused("has named nothing that revokes it"));
            };
            let (succeeded, _) = self.call(&words, None, token.expose()).await?;
            if succeeded { Ok(()) } else { Err(self.refused("refuses: what revokes failed")) }
        })
    }

    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        _: &'a Scope,
        _: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async move {
            let Some((words, token)) = self.of(handle, |said| said.test.clone()) else {
                return Err(self.refused("has named nothing that tests it"));
            };
            let (is_alive, _) = self.call(&words, None, token.expose()).await?;
            Ok(if is_alive { Alive::Yes } else { Alive::No(format!("`{}` refused it", words[0])) })
        })
    }
}

/// What is wrong with some JSON, without any of it.
fn kind(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => "not the fields that are expected",
        _ => "not JSON",
    }
}
