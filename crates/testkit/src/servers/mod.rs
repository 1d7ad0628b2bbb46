//! Servers of a test's own: real ones, on a free port of the loopback, run by somebody who has no name where that is
//! possible, and gone with the test.

pub mod openssh;
pub mod postgres;
pub mod redis;
pub mod registry;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::host::is_root;

/// Who runs a server that needs no more: somebody who has no name.
const NOBODY: u32 = 65_534;

/// A program that is installed, in one of the folders for programs or for administrators.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// A port that is free now, and nobody else's by chance until it is taken.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program as nobody runs it, whose folder is given to nobody with everything in it.
fn as_nobody(program: &Path, folder: &Path) -> Command {
    if !is_root() {
        let mut command = Command::new(program);
        command.current_dir(folder);
        return command;
    }
    give_to_nobody(folder);
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]).arg("--clear-groups");
    command.arg(program).current_dir(folder);
    command
}

fn give_to_nobody(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if std::fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give_to_nobody(&entry.unwrap().path());
        }
    }
}

/// A process that is asked to end with this, by its id, and waited for.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status(); // it may have ended
        let _ = self.0.wait();
    }
}
