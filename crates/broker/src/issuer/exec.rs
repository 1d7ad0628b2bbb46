//! A helper of the operator's, for whatever else mints: it prints a token, until when it lives, and what ends it.
//!
//! It is called with its words and gets `{"handle": …, "scope": {…}, "until": "…"}` on standard input. It prints
//! `{"token": "…", "expires_at": "…", "revoke": ["program", …], "test": ["program", …]}`, of which `token` alone has to
//! be there, and `test` where `revoke` is. `revoke` ends the token; `test` succeeds while it is alive. Both get
//! `{"handle": "…", "token": "…"}` on standard input.
//!
//! - A helper that names no `revoke` makes tokens that can't be revoked, and the Outcome says so.
//! - One that names `revoke` and no `test` is refused: nobody could see whether its tokens are dead.
//! - The words are kept in the journal and the token nowhere, so that they can be called after a crash of the broker:
//!   then with `"token": null`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cofferdam_core::secret::Secret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use super::{Alive, Boxed, Issuer, IssuerError, Kept, Minted, Scope, helper, no_findings, root};
use crate::config::IssuerConfig;
use crate::trial::Finding;

/// One helper.
pub(super) struct Exec {
    config: IssuerConfig,
    command: Vec<String>,
    /// What it said of each token that lives.
    said: Mutex<BTreeMap<String, Said>>,
}

/// What a helper says of a token.
struct Said {
    /// None for one that was found in the journal.
    token: Option<Secret>,
    ends: Ends,
}

/// What is called to end a token, and to see whether it is dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ends {
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

    fn remember(&self, handle: &str, said: Said) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.to_owned(), said);
    }

    /// What is to be called for a token, and what it gets.
    fn of(
        &self,
        handle: &str,
        which: impl Fn(&Ends) -> &Option<Vec<String>>,
    ) -> Option<(Vec<String>, Zeroizing<Vec<u8>>)> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.get(handle)?;
        Some((which(&said.ends).clone()?, input(handle, said.token.as_ref())))
    }

    /// Calls what the helper named for a token; gives whether it succeeded, and the program's name.
    async fn call(
        &self,
        handle: &str,
        which: impl Fn(&Ends) -> &Option<Vec<String>>,
        what_for: &str,
    ) -> Result<(bool, String), IssuerError> {
        let Some((words, input)) = self.of(handle, which) else {
            return Err(self.refused(format!("has named nothing that {what_for} it")));
        };
        let (status, _) = helper::call(&self.config.name, &words, None, &input).await?;
        Ok((status.success(), words.into_iter().next().unwrap_or_default()))
    }

    /// Refuses a token whose death nobody could see, and ends it, as far as it can be ended.
    async fn refuse_untestable(&self, handle: &str) -> IssuerError {
        let why = "printed `revoke` and no `test`, so nobody could see whether its token is dead";
        let issuer = self.config.name.clone();
        match self.revoke(handle).await {
            Ok(()) => {
                self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(handle);
                IssuerError::Unusable { issuer, why: format!("{why}; the token was revoked") }
            }
            Err(error) => self.refused(format!("{why}; and the token lives: {error}")),
        }
    }
}

/// `{"handle": …, "token": …}`, in a buffer that doesn't grow.
fn input(handle: &str, token: Option<&Secret>) -> Zeroizing<Vec<u8>> {
    let handle = json!(handle).to_string();
    let text = token.and_then(|token| std::str::from_utf8(token.expose()).ok());
    let room = handle.len() + 6 * text.map_or(4, str::len) + 32; // `\u0000` is the longest that a byte becomes
    let mut input = Zeroizing::new(Vec::with_capacity(room));
    input.extend_from_slice(format!("{{\"handle\":{handle},\"token\":").as_bytes());
    let _ = serde_json::to_writer(&mut *input, &text); // a vector takes everything
    input.push(b'}');
    input
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
            let called = helper::call(&self.config.name, &self.command, Some(&root), input.as_bytes());
            let (status, printed) = called.await?;
            if !status.success() {
                let issuer = self.config.name.clone();
                return Err(IssuerError::Declined {
                    issuer,
                    why: format!("mints nothing: its helper ended with {status}"),
                });
            }
            // What doesn't parse isn't shown: there is a token in it.
            let printed: Printed = serde_json::from_slice(&printed)
                .map_err(|error| self.refused(format!("printed no token ({})", kind(&error))))?;
            let token = |text: &str| Secret::new(text.as_bytes().to_vec());
            let ends = Ends { revoke: printed.revoke, test: printed.test };
            self.remember(handle, Said { token: Some(token(&printed.token)), ends: ends.clone() });
            if ends.revoke.is_some() && ends.test.is_none() {
                return Err(self.refuse_untestable(handle).await);
            }
            let expires = printed.expires_at.as_deref().map(humantime::parse_rfc3339).transpose();
            let expires =
                expires.map_err(|error| self.refused(format!("printed a bad expires_at: {error}")))?;
            let parts = BTreeMap::from([("token", token(&printed.token))]);
            Ok(Minted { parts, expires, kept: Some(Kept(json!(ends))) })
        })
    }

    fn can_revoke(&self, handle: &str) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(handle).is_none_or(|said| said.ends.revoke.is_some())
    }

    fn recall(&self, handle: &str, kept: &Kept) {
        // What doesn't parse names nothing, and the token is said to be unknown.
        if let Ok(ends) = Ends::deserialize(&kept.0) {
            self.remember(handle, Said { token: None, ends });
        }
    }

    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async move {
            let (succeeded, program) = self.call(handle, |ends| &ends.revoke, "revokes").await?;
            if succeeded { Ok(()) } else { Err(self.refused(format!("refuses: `{program}` failed"))) }
        })
    }

    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        _: &'a Scope,
        _: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async move {
            let (is_alive, program) = self.call(handle, |ends| &ends.test, "tests").await?;
            Ok(if is_alive { Alive::Yes } else { Alive::No(format!("`{program}` refused it")) })
        })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        no_findings()
    }
}

/// What is wrong with some JSON, without any of it.
fn kind(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => "not the fields that are expected",
        _ => "not JSON",
    }
}
