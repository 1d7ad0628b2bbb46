//! A Redis of a test's own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{Process, as_nobody, free_port, program};
use crate::host::eventually;
use crate::product::{Ran, finish};

/// What the root of a test's server logs in with, and who looks at it from outside.
const ROOT_PASSWORD: &str = "the-roots-own";
const WATCHER_PASSWORD: &str = "the-watchers-own";

/// A server, which ends with this.
pub struct Redis {
    _process: Process,
    _folder: TempDir,
    client: PathBuf,
    port: u16,
}

impl Redis {
    /// One that nobody enters without a password, if there is a Redis here: with a minter, and two keys, `orders:1`
    /// and `secrets:1`.
    #[must_use]
    pub fn start() -> Option<Redis> {
        Redis::with("off")
    }

    /// The same, where whoever comes is let in, as many servers are.
    #[must_use]
    pub fn start_open() -> Option<Redis> {
        Redis::with("on nopass ~* &* +@all")
    }

    fn with(default: &str) -> Option<Redis> {
        let (server, client) = (program("redis-server")?, program("redis-cli")?);
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsave \"\"\nlogfile log\nuser default {default}\n\
             user minter on >{ROOT_PASSWORD} -@all +acl|setuser +acl|deluser +acl|getuser\n\
             user watcher on >{WATCHER_PASSWORD} ~* &* +@all\n"
        );
        std::fs::write(folder.path().join("redis.conf"), settings).unwrap();
        let mut command = as_nobody(&server, folder.path());
        command.arg("redis.conf").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(command.spawn().unwrap());
        let redis = Redis { _process: process, _folder: folder, client, port };
        assert!(eventually(Duration::from_secs(30), || redis.ask(&["ping"]).stdout.trim() == "PONG"));
        for (key, value) in [("orders:1", "tea"), ("secrets:1", "hush")] {
            assert_eq!(redis.ask(&["set", key, value]).stdout.trim(), "OK");
        }
        Some(redis)
    }

    /// The port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of who mints.
    #[must_use]
    pub fn root(&self) -> String {
        format!("redis://minter:{ROOT_PASSWORD}@127.0.0.1:{}/0", self.port)
    }

    /// Has the watcher ask something, who may do everything.
    pub fn ask(&self, words: &[&str]) -> Ran {
        self.ask_as("watcher", WATCHER_PASSWORD, words)
    }

    /// Has somebody with a password ask something, as whoever kept it would.
    pub fn ask_as(&self, user: &str, password: &str, words: &[&str]) -> Ran {
        let mut client = Command::new(&self.client);
        client.args(["-p", &self.port.to_string(), "--user", user, "--no-auth-warning"]);
        client.args(words).env("REDISCLI_AUTH", password).stdin(Stdio::null());
        finish(client)
    }

    /// Whether somebody can log in: asked of the server by a client of its own.
    #[must_use]
    pub fn lets_in(&self, user: &str, password: &str) -> bool {
        let mut client = Command::new(&self.client);
        client.args(["-p", &self.port.to_string(), "auth", user, password]).stdin(Stdio::null());
        finish(client).stdout.trim() == "OK"
    }

    /// The users that were minted and are there.
    #[must_use]
    pub fn minted(&self) -> Vec<String> {
        let users = self.ask(&["acl", "users"]).stdout;
        users.lines().filter(|user| user.starts_with("cofferdam_")).map(str::to_owned).collect()
    }
}
