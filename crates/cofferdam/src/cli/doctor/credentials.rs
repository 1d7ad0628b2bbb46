//! Who mints credentials for runs: the operator's file, and where the roots are. No root is read and no broker started,
//! unless issuers are to be tried.

use std::path::PathBuf;

use cofferdam_broker::config::IssuerConfig;
use cofferdam_broker::{Finding, Seen, Tested};

use super::findings::{CredentialsFound, IssuerFound, IssuerTried, Trouble};
use crate::cli::credential::seen;
use crate::credentials;
use crate::files::load_issuers;
use crate::host::operator_files;

/// Looks at the operator's file, and has each issuer mint if `try_each` says so.
pub(super) fn look(try_each: bool) -> CredentialsFound {
    let mut found = look_at(&operator_files("issuers.toml"));
    if try_each && !found.issuers.is_empty() {
        match credentials::test(None) {
            Ok(tested) => tested.into_iter().for_each(|one| add(&mut found.issuers, one)),
            Err(fault) => {
                found.trouble = Some(Trouble::new(fault.message, fault.fix.unwrap_or_default()));
            }
        }
    }
    found
}

fn look_at(places: &[PathBuf]) -> CredentialsFound {
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let file = places.iter().find(|path| path.symlink_metadata().is_ok()).map(text);
    let (trouble, issuers) = match (&file, load_issuers(places)) {
        (None, _) => (None, vec![]),
        (Some(_), Ok(issuers)) => (None, issuers.iter().map(issuer).collect()),
        (Some(_), Err(unserved)) => (Some(Trouble::new(unserved.message, unserved.fix)), vec![]),
    };
    CredentialsFound { file, places: places.iter().map(text).collect(), trouble, issuers }
}

fn issuer(config: &IssuerConfig) -> IssuerFound {
    let of_root = |Finding { message, fix }: Finding| Trouble::new(format!("its root {message}"), fix);
    IssuerFound {
        name: config.name.clone(),
        hosts: config.hosts.clone(),
        root: config.root.place(),
        trouble: config.root.look().err().map(of_root),
        tried: None,
    }
}

fn add(issuers: &mut [IssuerFound], Tested { issuer, seen: what, findings }: Tested) {
    let Some(found) = issuers.iter_mut().find(|found| found.name == issuer) else { return };
    let (passed, words) = (what.is_fine(), seen(&what));
    let trouble = match what {
        Seen::Failed(finding) => Some(Trouble::from(finding)),
        Seen::Dead { .. } | Seen::Expires { .. } | Seen::Weak => None,
    };
    let findings = findings.into_iter().map(Trouble::from).collect();
    found.tried = Some(IssuerTried { passed, seen: words, trouble, findings });
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const FILE: &str = "[static.a]\nroot = { env = \"PATH\" }\nhosts = [\"a.test:443\"]\ninject = \"bearer\"\n\
                        [static.b]\nroot = { file = \"/nonexistent/b\" }\nhosts = [\"b.test:443\"]\ninject = \"bearer\"\n";

    #[test]
    fn each_issuer_is_named_with_its_root_and_what_is_wrong_with_that() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("issuers.toml");
        let places = [folder.path().join("none"), path.clone()];
        let none = look_at(&places);
        assert!(none.file.is_none() && none.trouble.is_none() && none.issuers.is_empty(), "{none:?}");
        fs::write(&path, FILE).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let readable = look_at(&places).trouble.unwrap();
        assert!(readable.why.contains("read or written by others") && readable.fix.contains("chmod 600"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let found = look_at(&places);
        assert_eq!((found.file, found.trouble), (Some(path.display().to_string()), None));
        let [a, b] = &found.issuers[..] else { panic!("there are two") };
        assert_eq!((a.name.as_str(), a.root.as_str(), &a.trouble), ("static.a", "the variable PATH", &None));
        let trouble = b.trouble.as_ref().unwrap();
        assert!(trouble.why.starts_with("its root can't be read from /nonexistent/b"), "{}", trouble.why);
        assert!(a.tried.is_none() && b.tried.is_none(), "nobody asked");
    }

    #[test]
    fn what_was_tried_stands_beside_its_issuer() {
        let finding = Finding { message: "PUBLIC may".to_owned(), fix: "REVOKE".to_owned() };
        let root = cofferdam_broker::config::Root::Env("PATH".to_owned());
        let kind = cofferdam_broker::config::Kind::Static;
        let name = "static.a".to_owned();
        let mut issuers =
            [issuer(&IssuerConfig { name, root, hosts: vec![], max_ttl: None, inject: None, kind })];
        let tested = |seen, findings| Tested { issuer: "static.a".to_owned(), seen, findings };
        add(&mut issuers, tested(Seen::Weak, vec![finding.clone()]));
        let tried = issuers[0].tried.take().unwrap();
        assert!(
            tried.passed
                && tried.findings == [Trouble::new("PUBLIC may", "REVOKE")]
                && tried.trouble.is_none()
        );
        add(&mut issuers, tested(Seen::Failed(finding), vec![]));
        let tried = issuers[0].tried.take().unwrap();
        assert!(!tried.passed && tried.trouble == Some(Trouble::new("PUBLIC may", "REVOKE")));
    }
}
