//! A product whose operator has an issuer, for the tests of one kind of issuer each.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use cofferdam_testkit::product::{Product, Ran, finish};
use serde_json::Value;

/// The variable that has the root.
pub(crate) const ROOT: &str = "COFFERDAM_TEST_ROOT";

/// A product, and the root that is in [`ROOT`].
pub(crate) struct Operator {
    pub(crate) product: Product,
    root: String,
}

impl Operator {
    /// One whose `issuers.toml` is this.
    pub(crate) fn new(product: Product, root: &str, issuers: &str) -> Operator {
        let folder = product.folder().join("home/.config/cofferdam");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("issuers.toml");
        std::fs::write(&file, issuers).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        product.give(&product.folder().join("home"));
        Operator { product, root: root.to_owned() }
    }

    /// `run --json` with a credential, a script of the shell's as the program.
    pub(crate) fn command(&self, cred: &str, script: &str) -> Command {
        let mut command = self.product.command(["run", "--json", "--profile", "internal"]);
        command.args(self.product.accepting());
        if !cred.is_empty() {
            command.args(["--cred", cred]);
        }
        command.args(["--", "sh", "-c", script]).env(ROOT, &self.root);
        command
    }

    /// The Outcome of the same.
    pub(crate) fn run(&self, cred: &str, script: &str) -> Value {
        finish(self.command(cred, script)).json()
    }

    /// Any command, where the root is.
    pub(crate) fn call(&self, words: &[&str]) -> Ran {
        let mut command = self.product.command(words);
        command.env(ROOT, &self.root);
        finish(command)
    }

    /// What the audit log has of the last run.
    pub(crate) fn audit(&self) -> String {
        finish(self.product.command(["audit", "show", "last"])).exits(0).stdout
    }

    /// Asserts that a run with a credential is refused, and says why.
    pub(crate) fn refuses(&self, cred: &str, code: &str, says: &str) {
        let outcome = self.run(cred, "true");
        let error = &outcome["error"];
        assert_eq!((&outcome["end"], &error["code"]), (&"refused".into(), &code.into()), "{outcome}");
        assert!(error["message"].as_str().unwrap().contains(says), "{outcome}");
    }
}

/// What a run printed.
pub(crate) fn stdout(outcome: &Value) -> &str {
    outcome["stdout"]["text"].as_str().unwrap_or_else(|| panic!("{outcome}"))
}

/// Until when a lease is said to live, in seconds of Unix time.
pub(crate) fn expires(outcome: &Value) -> u64 {
    let said = outcome["leases"][0]["expires"].as_str().unwrap_or_else(|| panic!("{outcome}"));
    let mut date = Command::new("date");
    date.args(["-u", "+%s", "-d", said]);
    finish(date).stdout.trim().parse().unwrap()
}

/// Waits until a second of Unix time is over.
pub(crate) fn wait_until_after(second: u64) {
    let end = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second + 1);
    if let Ok(left) = end.duration_since(std::time::SystemTime::now()) {
        std::thread::sleep(left);
    }
}
