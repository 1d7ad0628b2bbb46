//! The secret that mints, read when it is needed and not before.

use std::process::Stdio;
use std::time::Duration;

use cofferdam_core::secret::Secret;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::IssuerError;
use crate::config::{IssuerConfig, Root};

/// How long a program may take that prints a root: a person may have to touch a key.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads it, without the line's end behind it.
///
/// # Errors
///
/// [`IssuerError::Root`], which never says what was read.
pub(super) async fn read(config: &IssuerConfig) -> Result<Secret, IssuerError> {
    let wrong = |why: String| IssuerError::Root { issuer: config.name.clone(), why };
    let mut bytes = match &config.root {
        Root::Env(name) => std::env::var_os(name)
            .map(|value| Zeroizing::new(value.into_encoded_bytes()))
            .ok_or_else(|| wrong(format!("is to be in the variable {name}, which isn't set")))?,
        Root::File(path) => std::fs::read(path)
            .map(Zeroizing::new)
            .map_err(|error| wrong(format!("can't be read from {}: {error}", path.display())))?,
        Root::Command(words) => printed(words).await.map_err(wrong)?,
    };
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err(wrong("is empty".to_owned()));
    }
    Ok(Secret::new(std::mem::take(&mut *bytes)))
}

async fn printed(words: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let [program, args @ ..] = words else { return Err("is to be printed by no program".to_owned()) };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let said = timeout(PATIENCE, command.output()).await;
    match said {
        Err(_) => Err(format!("isn't there: `{program}` had printed nothing after 30 s")),
        Ok(Err(error)) => Err(format!("isn't there: `{program}` could not be started: {error}")),
        Ok(Ok(output)) if !output.status.success() => {
            Err(format!("isn't there: `{program}` ended with {}", output.status))
        }
        Ok(Ok(output)) => Ok(Zeroizing::new(output.stdout)),
    }
}
