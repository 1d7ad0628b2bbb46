//! The operator's own programs, as more than one issuer calls them.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use cofferdam_core::secret::Secret;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::IssuerError;

/// How long a helper may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most bytes that a helper may print: a token, and words.
const MOST_PRINTED: u64 = 1 << 20;

/// The variable in which a helper finds the root.
const ROOT: &str = "COFFERDAM_ROOT";

/// Refuses a program that somebody else could put another in the place of: it gets a root, or a token. One that is found
/// on the path is where the system's are.
fn others_cannot_write(program: &str) -> Result<(), String> {
    let path = Path::new(program);
    let Ok(found) = path.metadata() else { return Ok(()) }; // calling it says why
    let is_ours = found.uid() == 0 || found.uid() == cofferdam_sys::process::effective_user();
    match program.contains('/') && (!is_ours || found.mode() & 0o022 != 0) {
        true => Err(format!("`{program}` can be changed by others: chmod go-w, and chown it to yourself")),
        false => Ok(()),
    }
}

/// Calls a program; gives how it ended, and what it printed.
///
/// # Errors
///
/// [`IssuerError::Unreachable`] if it couldn't be started, [`IssuerError::Lost`] if it didn't end within 10 s.
pub(super) async fn call(
    issuer: &str,
    words: &[String],
    root: Option<&Secret>,
    input: &[u8],
) -> Result<(ExitStatus, Zeroizing<Vec<u8>>), IssuerError> {
    let unreachable = |why: String| IssuerError::Unreachable { issuer: issuer.to_owned(), why };
    let lost = |why: String| IssuerError::Lost { issuer: issuer.to_owned(), why };
    let [program, args @ ..] = words else {
        return Err(unreachable("its table names no program to call".to_owned()));
    };
    others_cannot_write(program).map_err(unreachable)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    if let Some(root) = root.and_then(|root| std::str::from_utf8(root.expose()).ok()) {
        command.env(ROOT, root);
    }
    let mut child =
        command.spawn().map_err(|error| unreachable(format!("can't call `{program}`: {error}")))?;
    let whole = async {
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input).await; // it may not care
        }
        let mut printed = Zeroizing::new(Vec::with_capacity(MOST_PRINTED as usize + 1));
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MOST_PRINTED + 1).read_to_end(&mut printed).await?;
        }
        if printed.len() as u64 > MOST_PRINTED {
            return Err(io::Error::other("it printed more than 1 MiB"));
        }
        Ok((child.wait().await?, printed))
    };
    match timeout(PATIENCE, whole).await {
        Ok(Ok(ended)) => Ok(ended),
        Ok(Err(error)) => Err(lost(format!("`{program}`: {error}"))),
        Err(_) => Err(lost(format!("`{program}` had not ended after 10 s"))),
    }
}
