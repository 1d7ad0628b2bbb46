//! The secret that mints, read when it is needed and not before.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cofferdam_core::secret::Secret;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::IssuerError;
use crate::config::{IssuerConfig, Root};
use crate::trial::Finding;

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
        Root::File(path) => from_file(path).map_err(wrong)?,
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

/// Reads a file that is nobody else's: what mints is guarded as `issuers.toml` is.
fn from_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let shown = path.display();
    // The broker's own folder is none that the operator has in mind.
    if !path.is_absolute() {
        return Err(format!("is to be in the file {shown}, which is no absolute path"));
    }
    let cant = |error: io::Error| format!("can't be read from {shown}: {error}");
    let mut file = File::open(path).map_err(cant)?;
    // Of what was opened, so that nobody puts another file there in between.
    let found = file.metadata().map_err(cant)?;
    is_ours_alone(&found, path).map_err(|Finding { message, fix }| format!("{message}: {fix}"))?;
    // With room for all of it, so that no copy of it is left behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(found.len() as usize + 1));
    file.read_to_end(&mut bytes).map_err(cant)?;
    Ok(bytes)
}

/// Refuses a file that somebody else could read or write.
fn is_ours_alone(found: &Metadata, path: &Path) -> Result<(), Finding> {
    let shown = path.display();
    let is_ours = found.uid() == cofferdam_sys::process::effective_user() || found.uid() == 0;
    if !is_ours {
        let message = format!("is in {shown}, which belongs to another user");
        return Err(Finding { message, fix: "chown it to yourself".to_owned() });
    }
    if found.mode() & 0o077 != 0 {
        let message = format!("is in {shown}, which others can read or write");
        return Err(Finding { message, fix: format!("chmod 600 {shown}") });
    }
    Ok(())
}

/// What is wrong with where a root is, as far as that is seen without reading it: nothing is opened or started. The
/// message is a clause about the root.
pub(crate) fn look(root: &Root) -> Result<(), Finding> {
    match root {
        Root::Env(name) if std::env::var_os(name).is_none_or(|value| value.is_empty()) => Err(Finding {
            message: format!("is to be in the variable {name}, which isn't set here"),
            fix: format!("set {name} where cofferdam is started"),
        }),
        Root::Env(_) => Ok(()),
        Root::File(path) => look_at_file(path),
        Root::Command(words) => {
            let program = words.first().map_or("", String::as_str);
            if is_there(program, std::env::var_os("PATH").as_deref()) {
                return Ok(());
            }
            Err(Finding {
                message: format!("is to be printed by `{program}`, which isn't there"),
                fix: "install it, or name its whole path in issuers.toml".to_owned(),
            })
        }
    }
}

fn look_at_file(path: &Path) -> Result<(), Finding> {
    let shown = path.display();
    let found = path.metadata().map_err(|error| Finding {
        message: format!("can't be read from {shown}: {error}"),
        fix: format!("put it there with `chmod 600 {shown}`, or name where it is in issuers.toml"),
    })?;
    if !found.is_file() {
        let message = format!("is to be in {shown}, which is no file");
        return Err(Finding { message, fix: "name the file in issuers.toml".to_owned() });
    }
    is_ours_alone(&found, path)?;
    let user = cofferdam_sys::process::effective_user();
    if user == 0 || (found.uid() == user && found.mode() & 0o400 != 0) {
        return Ok(());
    }
    let message = format!("is in {shown}, which this user can't read");
    Err(Finding { message, fix: format!("chown it to yourself; chmod 600 {shown}") })
}

/// Whether a program can be started by a name: from where the broker is (`/`), or by the path.
fn is_there(program: &str, path: Option<&OsStr>) -> bool {
    let is_one =
        |file: PathBuf| file.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0);
    match program {
        "" => false,
        name if name.contains('/') => is_one(Path::new("/").join(name)),
        name => std::env::split_paths(path.unwrap_or_default()).any(|folder| is_one(folder.join(name))),
    }
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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_root_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root");
        fs::write(&path, "hush\n").unwrap();
        for (mode, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = from_file(&path);
            assert_eq!(read.is_ok(), is_fine, "{mode:o}: {read:?}");
            assert!(read.map_or_else(|why| why.contains("others can read"), |text| *text == *b"hush\n"));
        }
        assert!(from_file(&folder.path().join("none")).unwrap_err().contains("can't be read from"));
    }

    #[test]
    fn what_is_wrong_with_a_root_is_seen_without_reading_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root");
        let message = |root: Root| look(&root).unwrap_err().message;
        assert!(message(Root::File(path.clone())).contains("can't be read from"));
        fs::write(&path, "hush").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(message(Root::File(path.clone())).contains("others can read"));
        assert!(
            message(Root::Command(vec![path.display().to_string()])).contains("isn't there"),
            "not to be run"
        );
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look(&Root::File(path)), Ok(()));
        assert!(message(Root::File(folder.path().to_owned())).contains("no file"));
        assert!(message(Root::Env("COFFERDAM_NO_SUCH_ROOT".into())).contains("isn't set"));
        assert_eq!(look(&Root::Env("PATH".into())), Ok(()), "a positive control");
        assert_eq!(look(&Root::Command(vec!["sh".into()])), Ok(()));
        assert!(message(Root::Command(vec!["no-such-program-of-cofferdam".into()])).contains("isn't there"));
    }

    #[test]
    fn a_path_that_is_not_absolute_is_refused() {
        assert!(from_file(Path::new("ca")).unwrap_err().contains("no absolute path"));
    }
}
