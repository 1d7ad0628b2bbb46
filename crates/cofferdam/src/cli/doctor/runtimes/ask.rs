//! Asking a program for its version. Only a program that nobody but root could have put there is
//! started: with an empty environment, for two seconds at most, and only its first bytes are read.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a program may take to say its version.
const LIMIT: Duration = Duration::from_secs(2);

/// How much of what it says is read, in bytes.
const SAID: u64 = 16 << 10;

/// The first program of this name on a path, as a shell would find it.
pub(super) fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    let programs = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    programs.map(|folder| folder.join(name)).find(|program| {
        program.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// What a program prints when it is asked for its version.
///
/// # Errors
///
/// Why it wasn't asked, or didn't answer.
pub(super) fn version(program: &Path) -> Result<String, String> {
    if let Some(place) = not_roots(program) {
        return Err(format!("it isn't run, since others than root can change {}", place.display()));
    }
    let mut child = Command::new(program)
        .arg("--version")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("it can't be started: {error}"))?;
    let said = listen(&mut child);
    // It may have answered and not ended.
    let _ = child.kill();
    let _ = child.wait();
    said.ok_or_else(|| format!("it didn't answer within {} s", LIMIT.as_secs()))
}

/// What a program says until it closes its output.
fn listen(child: &mut Child) -> Option<String> {
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    // On a thread, since a read can't be told to stop. It ends with the program, or with us.
    thread::spawn(move || {
        let mut bytes = vec![];
        let read = output.take(SAID).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes)); // whoever waits may have given up
    });
    let bytes = receiver.recv_timeout(LIMIT).ok()?.ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first part of a program's path that others than root could replace, if there is one: the
/// program, its folder, and the folders above.
fn not_roots(program: &Path) -> Option<PathBuf> {
    let named = program.parent().map(Path::canonicalize);
    let Ok(real) = program.canonicalize() else { return Some(program.to_path_buf()) };
    let Some(Ok(folder)) = named else { return Some(program.to_path_buf()) };
    let own = |path: &Path, sticky_is_enough: bool| {
        path.symlink_metadata().is_ok_and(|found| {
            let (mode, group_is_root) = (found.mode(), found.gid() == 0);
            let writable = mode & 0o002 != 0 || (mode & 0o020 != 0 && !group_is_root);
            // In a sticky folder nobody can rename what is root's.
            found.uid() == 0 && (!writable || (sticky_is_enough && mode & 0o1000 != 0))
        })
    };
    let inner = [Some(real.as_path()), real.parent(), Some(folder.as_path())];
    if let Some(place) = inner.into_iter().flatten().find(|path| !own(path, false)) {
        return Some(place.to_path_buf());
    }
    let above = real.ancestors().skip(2).chain(folder.ancestors().skip(1));
    let mut above = above.filter(|path| !own(path, true));
    above.next().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_in_a_folder_that_others_can_write_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let (program, mark) = (folder.path().join("runc"), folder.path().join("ran"));
        fs::write(&program, format!("#!/bin/sh\ntouch {}\n", mark.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let why = version(&program).unwrap_err();
        assert!(why.contains("isn't run"), "{why}");
        assert!(!mark.exists());
    }

    #[test]
    fn only_a_program_that_can_be_executed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("runc"), "").unwrap();
        assert_eq!(find("runc", folder.path().as_os_str()), None);
    }
}
