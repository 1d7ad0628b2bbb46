//! Against a real server, with a real client.

use std::time::Duration;

use cofferdam_testkit::host::eventually;
use cofferdam_testkit::servers::openssh::OpenSsh as Server;

use super::*;
use crate::config::Kind;
use crate::issuer::testing::{config, mint, part, scope, seen_dead, wait, words};

const TTL: Duration = Duration::from_secs(60);

/// What a certificate lets its holder run.
const COMMAND: &str = "echo deployed";

/// A server, or the end of the test with the reason.
macro_rules! server {
    () => {
        match Server::start() {
            Some(server) => server,
            None => cofferdam_testkit::skip!("there is no sshd with its ssh and ssh-keygen"),
        }
    };
}

fn issuer(server: &Server, sources: &[&str], can_revoke: bool) -> Ssh {
    let revocation = || Revocation { krl: vec![server.krl()], test: vec![server.test()] };
    let sources: Vec<_> = sources.iter().map(|source| (*source).to_owned()).collect();
    let revocation = can_revoke.then(revocation);
    let kind = Kind::Ssh {
        principals: vec![server.user().to_owned()],
        commands: words([COMMAND]),
        sources: sources.clone(),
        revocation: revocation.clone(),
    };
    Ssh::new(&config(kind, &server.authority()), &sources, revocation.as_ref())
}

fn deploying(principal: &str) -> Scope {
    scope([("principal", &[principal]), ("command", &[COMMAND])])
}

fn log_in(server: &Server, minted: &Minted, words: &[&str]) -> cofferdam_testkit::product::Ran {
    server.log_in(part(minted, "key"), part(minted, "certificate"), words)
}

#[test]
fn a_certificate_runs_its_one_command_whatever_is_asked_for_and_nothing_is_forwarded() {
    let server = server!();
    let issuer = issuer(&server, &[], false);
    let minted = mint(&issuer, "cofferdam_a", &deploying(server.user()), TTL).unwrap();
    assert!(!issuer.can_revoke("cofferdam_a") && minted.kept.is_none());
    assert_eq!(part(&minted, "user"), server.user());
    let ran = log_in(&server, &minted, &["127.0.0.1", "cat", "/etc/passwd"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "deployed\n"), "{ran:?} {}", server.log());
    assert!(server.log().contains("ID cofferdam_a"), "the server knows it by its handle: {}", server.log());
    let forwarding = log_in(&server, &minted, &["-R", "0:127.0.0.1:1", "127.0.0.1"]);
    assert_ne!(forwarding.code, 0, "{forwarding:?}");
    let terminal = log_in(&server, &minted, &["-tt", "127.0.0.1"]);
    assert!(terminal.stderr.contains("PTY allocation request failed"), "{terminal:?}");
    let other = mint(&issuer, "cofferdam_b", &deploying("somebody-else"), TTL).unwrap();
    assert!(log_in(&server, &other, &["127.0.0.1"]).stderr.contains("Permission denied"));
}

#[test]
fn a_certificate_is_of_no_use_from_elsewhere_or_after_it_expired() {
    let server = server!();
    let elsewhere = issuer(&server, &["10.0.0.0/8"], false);
    let minted = mint(&elsewhere, "cofferdam_a", &deploying(server.user()), TTL).unwrap();
    assert!(log_in(&server, &minted, &["127.0.0.1"]).stderr.contains("Permission denied"));
    let here = issuer(&server, &["10.0.0.0/8", "127.0.0.0/8"], false);
    let minted = mint(&here, "cofferdam_b", &deploying(server.user()), Duration::from_secs(5)).unwrap();
    let ran = log_in(&server, &minted, &["127.0.0.1"]);
    assert_eq!(ran.code, 0, "{ran:?} {}", server.log());
    let left = minted.expires.unwrap().duration_since(SystemTime::now()).unwrap_or_default();
    std::thread::sleep(left);
    assert!(log_in(&server, &minted, &["127.0.0.1"]).stderr.contains("Permission denied"));
    assert!(server.log().contains("expired"), "{}", server.log());
}

#[test]
fn a_certificate_on_the_list_of_revoked_keys_is_dead_also_when_the_broker_was_killed() {
    let server = server!();
    let issuer = issuer(&server, &[], true);
    let [one, two] = ["cofferdam_a", "cofferdam_b"]
        .map(|handle| mint(&issuer, handle, &deploying(server.user()), TTL).unwrap());
    assert_eq!(log_in(&server, &one, &["127.0.0.1"]).code, 0, "{}", server.log());
    assert_eq!(seen_dead(&issuer, "cofferdam_a", Some(&one)), None);
    wait(issuer.revoke("cofferdam_a")).unwrap();
    assert!(seen_dead(&issuer, "cofferdam_a", Some(&one)).unwrap().contains("says that it is refused"));
    assert!(log_in(&server, &one, &["127.0.0.1"]).stderr.contains("Permission denied"));
    // Another process knows the handle, and what was kept.
    let next = self::issuer(&server, &[], true);
    next.recall("cofferdam_b", two.kept.as_ref().unwrap());
    assert_eq!(seen_dead(&next, "cofferdam_b", None), None);
    wait(next.revoke("cofferdam_b")).unwrap();
    assert!(seen_dead(&next, "cofferdam_b", None).is_some());
    let is_refused = || log_in(&server, &two, &["127.0.0.1"]).stderr.contains("Permission denied");
    assert!(eventually(Duration::from_secs(5), is_refused));
}

#[test]
fn a_test_that_fails_says_nothing_and_is_no_proof() {
    let server = server!();
    let revocation = Revocation { krl: words(["true"]), test: words(["sh", "-c", "exit 2"]) };
    let issuer = Ssh { revocation: Some(revocation), ..issuer(&server, &[], true) };
    let error = wait(issuer.try_use("cofferdam_a", &Scope::new(), None)).unwrap_err();
    assert!(error.to_string().contains("doesn't say whether it is dead"), "{error}");
}

#[test]
fn a_root_that_does_not_sign_says_so_without_being_shown() {
    let key = |args: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca");
        let mut keygen = std::process::Command::new("ssh-keygen");
        keygen.args(["-q", "-f"]).arg(&path).args(args);
        keygen.status().ok().filter(std::process::ExitStatus::success)?;
        std::fs::read_to_string(path).ok()
    };
    let Some(locked) = key(&["-t", "ed25519", "-N", "hush-hush"]) else {
        cofferdam_testkit::skip!("there is no ssh-keygen")
    };
    let ecdsa = key(&["-t", "ecdsa", "-N", ""]).unwrap();
    for (root, says) in [
        (locked, "behind a passphrase"),
        (ecdsa, "isn't a private key of Ed25519"),
        ("hush".to_owned(), "isn't a private key of Ed25519"),
    ] {
        let why = Authority::parse(root.as_bytes()).err().unwrap();
        assert!(why.contains(says) && !why.contains("hush"), "{why}");
    }
}

#[test]
fn serial_numbers_differ_and_every_reader_takes_them_for_the_same() {
    assert_ne!(serial("cofferdam_a"), serial("cofferdam_b"));
    assert!((1..1 << 53).contains(&serial("cofferdam_a")));
}
