//! A registry of images of a test's own, which trusts tokens of a key of a test's own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{Process, as_nobody, free_port, program};
use crate::host::eventually;
use crate::product::finish;

/// Whom it trusts.
pub const ISSUER: &str = "cofferdam";

/// What it calls itself.
pub const SERVICE: &str = "registry.test";

/// What signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A key on P-256.
    P256,
    /// A key of RSA, of 2048 bits.
    Rsa,
}

/// A registry, which ends with this.
pub struct Registry {
    _process: Process,
    folder: TempDir,
    port: u16,
}

impl Registry {
    /// One with two repositories, `shop/app` and `shop/secret`, if there is a registry here.
    #[must_use]
    pub fn start(kind: KeyKind) -> Option<Registry> {
        let (server, openssl) = (program("docker-registry")?, program("openssl")?);
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut made = Command::new(openssl);
        made.args([
            "req",
            "-x509",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=cofferdam",
            "-keyout",
            "key",
            "-out",
            "cert",
        ]);
        match kind {
            KeyKind::P256 => made.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]),
            KeyKind::Rsa => made.args(["-newkey", "rsa:2048"]),
        };
        made.current_dir(folder.path()).stdin(Stdio::null());
        let made = finish(made);
        assert_eq!(made.code, 0, "{made:?}");
        for name in ["app", "secret"] {
            let tag = format!("data/docker/registry/v2/repositories/shop/{name}/_manifests/tags/latest");
            fs::create_dir_all(folder.path().join(tag)).unwrap();
        }
        let settings = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {at}/data\nhttp:\n  addr: 127.0.0.1:{port}\n\
             auth:\n  token:\n    realm: http://127.0.0.1:9/\n    service: {SERVICE}\n    issuer: {ISSUER}\n    \
             rootcertbundle: {at}/cert\n",
            at = folder.path().display()
        );
        fs::write(folder.path().join("settings.yml"), settings).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = as_nobody(&server, folder.path());
        command.args(["serve", "settings.yml"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = Process(command.spawn().unwrap());
        let registry = Registry { _process: process, folder, port };
        let answers =
            || TcpStream::connect(("127.0.0.1", port)).is_ok() && registry.status("", "GET", "/v2/") == 401;
        assert!(eventually(Duration::from_secs(30), answers), "{}", registry.log());
        Some(registry)
    }

    /// The port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The private key that it trusts, in PEM.
    #[must_use]
    pub fn key(&self) -> String {
        fs::read_to_string(self.folder.path().join("key")).unwrap()
    }

    /// What it has written down.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// What it answers to somebody with a token: the status.
    #[must_use]
    pub fn status(&self, token: &str, method: &str, path: &str) -> u16 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let bearer =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{answer}"))
    }
}
