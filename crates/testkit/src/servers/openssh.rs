//! An OpenSSH server of a test's own, which trusts a certificate authority of a test's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{NOBODY, Process, as_nobody, free_port, program};
use crate::host::{eventually, is_root};
use crate::product::{Ran, finish};

/// Whom a server logs in that root has started: nobody by another name, since that one is locked.
const DEPLOYER: &str = "deployer";

/// A server, which ends with this.
pub struct OpenSsh {
    _process: Process,
    folder: TempDir,
    port: u16,
    user: String,
}

impl OpenSsh {
    /// One that takes certificates alone, if there is an OpenSSH here. It logs in one user: whoever runs the tests,
    /// or somebody who has nothing if that is root.
    #[must_use]
    pub fn start() -> Option<OpenSsh> {
        let (server, _, _) = (program("sshd")?, program("ssh")?, program("ssh-keygen")?);
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["ca", "host"] {
            generate(&["-q", "-t", "ed25519", "-N", "", "-f", &at(name)]);
        }
        // A list of revoked keys with nothing on it. Without the file, a server refuses everybody.
        fs::write(at("none"), "").unwrap();
        generate(&["-q", "-k", "-f", &at("krl"), "-s", &at("ca.pub"), &at("none")]);
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nTrustedUserCAKeys {}\nRevokedKeys {}\n\
             PidFile none\nUsePAM no\nStrictModes no\nAuthorizedKeysFile none\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nMaxStartups 100\n",
            at("host"),
            at("ca.pub"),
            at("krl")
        );
        fs::write(at("sshd_config"), settings).unwrap();
        let revoke = "serial=$(sed 's/.*\"serial\":\\([0-9]*\\).*/\\1/'); echo \"serial: $serial\" | \
                      ssh-keygen -q -k -u -f \"$D/krl\" -s \"$D/ca.pub\" -";
        let test = "f=$(mktemp); sed 's/.*\"certificate\":\"\\([^\"]*\\)\".*/\\1/' > $f; \
                    ssh-keygen -Qf \"$D/krl\" $f; code=$?; rm -f $f; exit $code";
        for (name, body) in [("revoke", revoke), ("test", test)] {
            fs::write(at(name), format!("#!/bin/sh\nD='{}'\n{body}\n", folder.path().display())).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(0o755)).unwrap();
        }
        let (mut command, user) = as_somebody_with_a_shell(&server, folder.path());
        // What an operator's helper is, nobody else may change.
        let own = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        for name in ["revoke", "test"] {
            std::os::unix::fs::chown(at(name), Some(own), None).unwrap();
        }
        // Whoever runs the product of a test puts serial numbers onto the list.
        fs::set_permissions(at("krl"), Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        command.args(["-D", "-e", "-f", &at("sshd_config")]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(at("log")).unwrap());
        let process = Process(command.spawn().unwrap());
        let openssh = OpenSsh { _process: process, folder, port, user };
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(eventually(Duration::from_secs(30), listens), "{}", openssh.log());
        Some(openssh)
    }

    /// The port on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whom it logs in.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The authority's private key.
    #[must_use]
    pub fn authority(&self) -> String {
        fs::read_to_string(self.folder.path().join("ca")).unwrap()
    }

    /// The program that puts a serial number onto the list of revoked keys.
    #[must_use]
    pub fn krl(&self) -> String {
        self.folder.path().join("revoke").display().to_string()
    }

    /// The program that looks whether a certificate is on the list.
    #[must_use]
    pub fn test(&self) -> String {
        self.folder.path().join("test").display().to_string()
    }

    /// What it has written down.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Logs in with a key and a certificate, as whoever kept them would.
    pub fn log_in(&self, key: &str, certificate: &str, words: &[&str]) -> Ran {
        let kept = tempfile::tempdir().unwrap();
        let (key_file, certificate_file) = (kept.path().join("key"), kept.path().join("key-cert.pub"));
        fs::write(&key_file, key).unwrap();
        fs::set_permissions(&key_file, Permissions::from_mode(0o600)).unwrap();
        fs::write(&certificate_file, certificate).unwrap();
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no"]);
        ssh.args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "BatchMode=yes",
            "-o",
            "ExitOnForwardFailure=yes",
        ]);
        ssh.arg("-i").arg(&key_file).args(["-p", &self.port.to_string(), "-l", &self.user]);
        ssh.args(words).stdin(Stdio::null());
        finish(ssh)
    }
}

/// Calls `ssh-keygen`.
fn generate(args: &[&str]) {
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(args).stdin(Stdio::null());
    let made = finish(keygen);
    assert_eq!(made.code, 0, "{made:?}");
}

/// A program as nobody runs it, where nobody has a name and a shell to be logged in to; and that name.
fn as_somebody_with_a_shell(program: &Path, folder: &Path) -> (Command, String) {
    let mut plain = as_nobody(program, folder);
    if !is_root() {
        let mut id = Command::new("id");
        id.arg("-un");
        return (plain, finish(id).stdout.trim().to_owned());
    }
    let passwd: PathBuf = folder.join("passwd");
    let home = folder.display();
    fs::write(&passwd, format!("{DEPLOYER}:x:{NOBODY}:{NOBODY}::{home}:/bin/sh\n")).unwrap();
    plain = {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$1\" /etc/passwd && shift && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&passwd);
        command.arg(plain.get_program()).args(plain.get_args()).current_dir(folder);
        command
    };
    (plain, DEPLOYER.to_owned())
}
