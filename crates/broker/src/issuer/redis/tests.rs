//! Against a real server.

use cofferdam_testkit::servers::redis::Redis as Server;

use super::*;
use crate::config::Kind;
use crate::issuer::testing::{config, mint, part, scope, seen_dead, wait, words};

/// A minute, which no user of Redis knows of.
const TTL: Duration = Duration::from_secs(60);

fn issuer(root: &str) -> Redis {
    Redis::new(&config(Kind::Redis { keys: words(["orders:*"]), commands: words(["get"]) }, root))
}

/// A server, or the end of the test with the reason.
macro_rules! server {
    ($start:ident) => {
        match Server::$start() {
            Some(server) => server,
            None => cofferdam_testkit::skip!("there is no redis-server with its redis-cli"),
        }
    };
}

#[test]
fn a_user_does_its_one_thing_and_is_dead_when_it_was_revoked() {
    let server = server!(start);
    let issuer = issuer(&server.root());
    let minted = mint(&issuer, "cofferdam_a", &scope([("keys", &["orders:*"]), ("commands", &["get"])]), TTL);
    let minted = minted.unwrap();
    assert_eq!(
        (part(&minted, "user"), part(&minted, "database"), minted.expires),
        ("cofferdam_a", "0", None)
    );
    let ask = |words: &[&str]| server.ask_as("cofferdam_a", part(&minted, "password"), words).stdout;
    assert_eq!(ask(&["get", "orders:1"]), "tea\n");
    for refused in [
        &["get", "secrets:1"][..],
        &["set", "orders:1", "x"],
        &["keys", "*"],
        &["acl", "whoami"],
        &["publish", "a", "b"],
    ] {
        assert!(ask(refused).contains("NOPERM"), "{refused:?}: {}", ask(refused));
    }
    assert_eq!(seen_dead(&issuer, "cofferdam_a", Some(&minted)), None);
    assert_eq!(seen_dead(&issuer, "cofferdam_a", None), None, "also by who has no password");
    wait(issuer.revoke("cofferdam_a")).unwrap();
    let how = seen_dead(&issuer, "cofferdam_a", Some(&minted));
    assert_eq!(how.as_deref(), Some("the server refused its login"));
    let how = seen_dead(&issuer, "cofferdam_a", None);
    assert_eq!(how.as_deref(), Some("the server knows nobody by its name"));
    assert!(!server.lets_in("cofferdam_a", part(&minted, "password")), "as a client outside sees it");
    wait(issuer.revoke("cofferdam_a")).unwrap();
}

#[test]
fn a_key_may_be_given_to_read_alone() {
    let server = server!(start);
    let issuer = issuer(&server.root());
    let scope = scope([("keys", &["%R~orders:*", "%W~out"]), ("commands", &["get", "set"])]);
    let minted = mint(&issuer, "cofferdam_a", &scope, TTL).unwrap();
    let ask = |words: &[&str]| server.ask_as("cofferdam_a", part(&minted, "password"), words).stdout;
    assert_eq!(
        (ask(&["get", "orders:1"]), ask(&["set", "out", "x"])),
        ("tea\n".to_owned(), "OK\n".to_owned())
    );
    assert!(ask(&["set", "orders:1", "x"]).contains("NOPERM") && ask(&["get", "out"]).contains("NOPERM"));
}

#[test]
fn a_connection_that_is_open_when_its_user_is_revoked_is_closed() {
    let server = server!(start);
    let issuer = issuer(&server.root());
    let minted =
        mint(&issuer, "cofferdam_a", &scope([("keys", &["*"]), ("commands", &["get"])]), TTL).unwrap();
    wait(async {
        let mut held = Connection::open("127.0.0.1", server.port()).await.unwrap();
        let login = [b"AUTH", &b"cofferdam_a"[..], minted.parts["password"].expose()];
        assert_eq!(held.ask(&login).await.unwrap(), Reply::Done("OK".to_owned()));
        assert_eq!(held.ask(&[b"GET", b"nothing"]).await.unwrap(), Reply::Nothing);
        issuer.revoke("cofferdam_a").await.unwrap();
        assert!(held.ask(&[b"GET", b"nothing"]).await.is_err());
    });
}

#[test]
fn a_server_that_lets_anybody_in_is_refused() {
    let server = server!(start_open);
    let issuer = issuer(&server.root());
    let refused = mint(&issuer, "cofferdam_a", &scope([("keys", &["*"]), ("commands", &["get"])]), TTL);
    let error = refused.err().unwrap();
    assert!(error.to_string().contains("without a password") && error.left_nothing(), "{error}");
    assert!(server.minted().is_empty());
}

#[test]
fn a_root_that_is_wrong_says_so_without_being_shown_and_leaves_nothing() {
    let server = server!(start);
    let scope = scope([("keys", &["*"]), ("commands", &["get"])]);
    for (root, says) in [
        (server.root().replace(":the-roots", ":hush"), "isn't taken by the server: WRONGPASS"),
        (format!("redis://127.0.0.1:{}", server.port()), "has no password"),
        ("redis://minter:hush@127.0.0.1:9".to_owned(), "could not be reached"),
        ("rediss://minter:hush@127.0.0.1".to_owned(), "asks for TLS"),
    ] {
        let error = mint(&issuer(&root), "cofferdam_a", &scope, TTL).err().unwrap();
        let said = error.to_string();
        assert!(said.contains(says) && !said.contains("hush") && error.left_nothing(), "{root}: {said}");
    }
    let scope = self::scope([("keys", &["*"]), ("commands", &["no-such-command"])]);
    let error = mint(&issuer(&server.root()), "cofferdam_a", &scope, TTL).err().unwrap();
    assert!(error.to_string().contains("Unknown command"), "{error}");
    assert!(server.minted().is_empty());
}
