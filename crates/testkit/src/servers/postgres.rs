//! A PostgreSQL: its databases are empty but for a shop, if that is asked for.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::host::{eventually, is_root};
use crate::product::{Ran, finish};

/// The newest PostgreSQL that is installed.
#[must_use]
pub fn programs() -> Option<PathBuf> {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    versions.filter(|path| path.join("postgres").exists() && path.join("psql").exists()).max()
}

/// A server, which ends with this.
pub struct Server {
    folder: tempfile::TempDir,
    child: Child,
    programs: PathBuf,
    port: Option<u16>,
}

/// Who runs the server, which refuses to run as root, and as somebody who has no name.
const NOBODY: u32 = 65_534;

/// What the root of a test's server logs in with.
const ROOT_PASSWORD: &str = "the-roots-own";

impl Server {
    /// One that listens on a Unix socket alone and trusts whoever asks.
    #[must_use]
    pub fn start(programs: &Path) -> Server {
        Server::with(programs, &["-A", "trust"], None)
    }

    /// One that listens on this machine's loopback too and wants passwords there.
    #[must_use]
    pub fn with_passwords(programs: &Path) -> Server {
        // Free now, and nobody else's by chance until it is taken.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server::with(programs, &["--auth-local=trust", "--auth-host=scram-sha-256"], Some(port))
    }

    fn with(programs: &Path, auth: &[&str], port: Option<u16>) -> Server {
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
        let mut initdb = as_nobody("initdb");
        initdb.args(["-U", "postgres", "--no-sync"]).args(auth).arg("-D").arg(&data);
        let made = finish(initdb);
        assert_eq!(made.code, 0, "{made:?}");
        let mut server = as_nobody("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(folder.path()).arg("-F");
        match port {
            Some(port) => server.args(["-c", "listen_addresses=127.0.0.1", "-p", &port.to_string()]),
            None => server.args(["-c", "listen_addresses="]),
        };
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        server.args(["-c", "log_statement=all"]).stdout(Stdio::null()).stderr(log);
        let child = server.spawn().unwrap();
        let server = Server { folder, child, programs: programs.to_owned(), port };
        let answers = || server.socket().exists() && server.ask("postgres", "select 1").code == 0;
        assert!(eventually(Duration::from_secs(30), answers));
        server
    }

    /// Its socket on this machine.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{}", self.port.unwrap_or(5432)))
    }

    /// The port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap()
    }

    /// What it has written down, all statements among it.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Has its root ask something of a database.
    #[must_use]
    pub fn ask(&self, database: &str, statement: &str) -> Ran {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.arg("-h").arg(self.folder.path()).args(["-U", "postgres", "-d", database, "-Atc", statement]);
        psql.args(["-p", &self.port.unwrap_or(5432).to_string()]);
        finish(psql)
    }

    /// Logs in over the loopback as somebody with a password, as whoever kept it would.
    #[must_use]
    pub fn log_in(&self, user: &str, password: &str, database: &str) -> Ran {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-h", "127.0.0.1", "-p", &self.port().to_string(), "-U", user, "-d", database]);
        psql.args(["-Atc", "select 1"]).env("PGPASSWORD", password);
        finish(psql)
    }

    /// A database with two tables, a template that may read one of them, and who mints members of it. Gives the
    /// root's address.
    #[must_use]
    pub fn with_a_shop(&self) -> String {
        assert_eq!(self.ask("postgres", "create database shop").code, 0);
        let made = self.ask(
            "shop",
            &format!(
                "create table orders(id int, item text); insert into orders values (1, 'tea');
                 create table secrets(word text); insert into secrets values ('hush');
                 create role readers nologin; grant select on orders to readers;
                 create role minter login createrole password '{ROOT_PASSWORD}';
                 grant pg_signal_backend to minter; grant readers to minter with admin option"
            ),
        );
        assert_eq!(made.code, 0, "{made:?}");
        format!("postgresql://minter:{ROOT_PASSWORD}@127.0.0.1:{}/shop", self.port())
    }

    /// The roles that were minted and are there.
    #[must_use]
    pub fn minted(&self) -> Vec<String> {
        let roles = self.ask("postgres", "select rolname from pg_roles where rolname like 'cofferdam\\_%'");
        roles.stdout.lines().map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends its own processes when it is asked to.
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}
