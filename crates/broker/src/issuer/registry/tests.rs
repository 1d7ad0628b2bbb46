//! Against a real registry.

use cofferdam_testkit::servers::registry::{ISSUER, KeyKind, Registry as Server, SERVICE};

use super::*;
use crate::config::Kind;
use crate::issuer::testing::{config, mint, part, scope, words};

/// A registry, or the end of the test with the reason.
macro_rules! server {
    ($kind:expr) => {
        match Server::start($kind) {
            Some(server) => server,
            None => cofferdam_testkit::skip!("there is no docker-registry with openssl"),
        }
    };
}

fn issuer(server: &Server) -> Registry {
    let kind = Kind::Registry {
        issuer: ISSUER.to_owned(),
        service: SERVICE.to_owned(),
        repositories: words(["shop/app"]),
        actions: words(["pull", "push"]),
    };
    Registry::new(&config(kind, &server.key()), ISSUER, SERVICE)
}

fn does_its_one_thing(server: &Server) {
    let issuer = issuer(server);
    let pulling = scope([("repositories", &["shop/app"]), ("actions", &["pull"])]);
    let minted = mint(&issuer, "cofferdam_a", &pulling, Duration::from_secs(60)).unwrap();
    let token = part(&minted, "token");
    assert_eq!(server.status(token, "GET", "/v2/shop/app/tags/list"), 200, "{}", server.log());
    assert_eq!(server.status("", "GET", "/v2/shop/app/tags/list"), 401);
    assert_eq!(server.status(token, "GET", "/v2/shop/secret/tags/list"), 401);
    assert_eq!(server.status(token, "GET", "/v2/_catalog"), 401);
    assert_eq!(server.status(token, "POST", "/v2/shop/app/blobs/uploads/"), 401);
    let pushing = scope([("repositories", &["shop/app", "shop/other"]), ("actions", &["pull", "push"])]);
    let minted = mint(&issuer, "cofferdam_b", &pushing, Duration::from_secs(60)).unwrap();
    for path in ["/v2/shop/app/blobs/uploads/", "/v2/shop/other/blobs/uploads/"] {
        assert_eq!(server.status(part(&minted, "token"), "POST", path), 202, "{}", server.log());
    }
    assert!(!issuer.can_revoke("cofferdam_a"));
}

#[test]
fn a_token_of_a_key_of_p256_does_its_one_thing() {
    does_its_one_thing(&server!(KeyKind::P256));
}

#[test]
fn a_token_of_a_key_of_rsa_does_its_one_thing() {
    does_its_one_thing(&server!(KeyKind::Rsa));
}

#[test]
fn a_token_lives_five_minutes_at_most() {
    let server = server!(KeyKind::P256);
    let pulling = scope([("repositories", &["shop/app"]), ("actions", &["pull"])]);
    let minted = mint(&issuer(&server), "cofferdam_a", &pulling, Duration::from_secs(3600)).unwrap();
    let claims = part(&minted, "token").split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let [issued, end] = ["iat", "exp"].map(|name| claims[name].as_u64().unwrap());
    assert_eq!(end - issued, 300);
    assert_eq!(
        (&claims["sub"], &claims["jti"], &claims["aud"]),
        (&json!("cofferdam_a"), &json!("cofferdam_a"), &json!(SERVICE))
    );
    assert_eq!(minted.expires, Some(UNIX_EPOCH + Duration::from_secs(end) + LEEWAY));
}
