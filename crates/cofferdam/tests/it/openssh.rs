//! Certificates of OpenSSH, against a real server: what a run may do with its own, and until when somebody who kept it
//! can do that too.

use cofferdam_testkit::product::Product;
use cofferdam_testkit::servers::openssh::OpenSsh;
use serde_json::{Value, json};

use crate::operator::{Operator, ROOT, expires, stdout, wait_until_after};
use crate::{ordinary, product};

/// What a certificate lets its holder run.
const COMMAND: &str = "echo deployed";

/// Both users' products, each with a server.
fn worlds(can_revoke: bool, max_ttl: &str) -> Option<[(Operator, OpenSsh); 2]> {
    let world = |product: Product| {
        let server = OpenSsh::start()?;
        let revocation = format!("krl = [\"{}\"]\ntest = [\"{}\"]\n", server.krl(), server.test());
        let issuers = format!(
            "[ssh.build]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             principals = [\"{}\"]\ncommands = [\"{COMMAND}\"]\nsources = [\"127.0.0.0/8\"]\n\
             max_ttl = \"{max_ttl}\"\n{}",
            server.port(),
            server.user(),
            if can_revoke { &revocation } else { "" }
        );
        Some((Operator::new(product, &server.authority(), &issuers), server))
    };
    Some([world(product())?, world(ordinary())?])
}

macro_rules! worlds {
    ($can_revoke:expr, $max_ttl:expr) => {
        match worlds($can_revoke, $max_ttl) {
            Some(worlds) => worlds,
            None => cofferdam_testkit::skip!("there is no sshd with its ssh and ssh-keygen"),
        }
    };
}

/// The credential that is asked for.
fn deploying(server: &OpenSsh) -> String {
    format!("build=ssh.build:principal={},command={COMMAND}", server.user())
}

/// A script that logs in with what a run holds, asks for another command, and prints it all.
fn script(server: &OpenSsh) -> String {
    format!(
        "umask 077; cd \"$(mktemp -d)\"; echo \"$SSH_PRIVATE_KEY\" >key; echo \"$SSH_CERTIFICATE\" >key-cert.pub\n\
         ssh -F none -i key -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \
         -o UserKnownHostsFile=/dev/null -p {} -l \"$SSH_USER\" host.cofferdam.internal cat /etc/passwd\n\
         cat key-cert.pub key",
        server.port()
    )
}

/// The certificate and the key in what a run printed, behind what the server's command said.
fn kept(outcome: &Value) -> (&str, &str) {
    let rest = stdout(outcome).strip_prefix("deployed\n").unwrap_or_else(|| panic!("{outcome}"));
    rest.split_once('\n').unwrap()
}

#[test]
fn a_run_deploys_and_its_certificate_expires_when_the_outcome_says_so() {
    for (operator, server) in worlds!(false, "10s") {
        let outcome = operator.run(&deploying(&server), &script(&server));
        let (certificate, key) = kept(&outcome);
        let lease = &outcome["leases"][0];
        assert_eq!((&lease["state"], &lease["can_revoke"]), (&json!("expires"), &json!(false)), "{outcome}");
        assert_eq!(lease["scope"], json!({"command": [COMMAND], "principal": [server.user()]}));
        wait_until_after(expires(&outcome));
        let late = server.log_in(key, certificate, &["127.0.0.1"]);
        assert!(late.stderr.contains("Permission denied"), "{late:?}");
        assert!(server.log().contains("expired"), "{}", server.log());
        let log = operator.audit();
        assert!(log.contains("lease.minted") && !log.contains(certificate), "{log}");
    }
}

#[test]
fn where_the_operator_revokes_the_certificate_is_dead_when_the_run_ends() {
    // ssh-keygen, which keeps the list, refuses to work for a user who has no name: so not for the ordinary one too.
    let [(operator, server), _] = worlds!(true, "15m");
    let outcome = operator.run(&deploying(&server), &script(&server));
    let (certificate, key) = kept(&outcome);
    let lease = &outcome["leases"][0];
    assert_eq!((&lease["state"], &lease["can_revoke"]), (&json!("dead"), &json!(true)), "{outcome}");
    assert!(lease["verified"].as_str().unwrap().contains("says that it is refused"), "{outcome}");
    let after = server.log_in(key, certificate, &["127.0.0.1"]);
    assert!(after.stderr.contains("Permission denied"), "{after:?}");
}

#[test]
fn another_principal_or_command_is_refused_and_nothing_is_signed() {
    for (operator, server) in worlds!(false, "15m") {
        let user = server.user();
        for (cred, says) in [
            (format!("build=ssh.build:principal={user}"), "doesn't say its `command`"),
            (format!("build=ssh.build:principal=root-too,command={COMMAND}"), "may not give `principal`"),
            (format!("build=ssh.build:principal={user},command=sh"), "may not give `command` of `sh`"),
        ] {
            operator.refuses(&cred, "credential_denied", says);
        }
    }
}
