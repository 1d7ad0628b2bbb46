//! A database, whose protocol nobody between reads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_testkit::host::{eventually, is_root};
use cofferdam_testkit::origins::Share;

use super::{for_each_user, make, this_test};

/// The newest PostgreSQL that is installed.
fn programs() -> Option<PathBuf> {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    versions.filter(|path| path.join("postgres").exists() && path.join("psql").exists()).max()
}

/// A server that listens on a Unix socket alone, and ends with this.
struct Server {
    folder: tempfile::TempDir,
    child: std::process::Child,
}

/// Who runs the server, which refuses to run as root, and as somebody who has no name.
const NOBODY: u32 = 65_534;

impl Server {
    fn start(programs: &Path) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let as_nobody = |name: &str| {
            let program = programs.join(name);
            let mut command = Command::new("setpriv");
            match is_root() {
                true => command
                    .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
                    .arg("--clear-groups"),
                false => command.arg("--"),
            };
            command.arg(program).current_dir(folder.path());
            command
        };
        if is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = folder.path().join("data");
        make(as_nobody("initdb").args(["-U", "postgres", "-A", "trust", "--no-sync", "-D"]).arg(&data));
        let mut server = as_nobody("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(folder.path()).args(["-c", "listen_addresses=", "-F"]);
        let child = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { folder, child };
        assert!(eventually(Duration::from_secs(30), || server.socket().exists()));
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends its own processes when it is asked to.
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

#[test]
fn psql() {
    let Some(programs) = programs() else {
        cofferdam_testkit::skip!("there is no PostgreSQL with its server below /usr/lib/postgresql");
    };
    let server = Server::start(&programs);
    let psql = programs.join("psql");
    let psql = psql.to_str().unwrap();
    for_each_user(this_test!("psql"), &[psql], |place| {
        place.net.share("5432", Share::Socket(server.socket()));
        let asks = |host: &'static str| ["--", psql, "-h", host, "-U", "postgres", "-Atc", "select 41 + 1"];
        place.reaches(&[], &asks("db.test"), "42");
        let reason = "FATAL:  Cofferdam: host_not_allowed, needs --allow tcp://other.test:5432";
        place.is_refused(&[], &asks("other.test"), reason);
    });
}
