//! Tokens of a registry of images, against a real one: what a run may do with its own, and until when somebody who
//! kept it can do that too.

use cofferdam_testkit::product::Product;
use cofferdam_testkit::servers::registry::{ISSUER, KeyKind, Registry, SERVICE};
use serde_json::json;

use crate::operator::{Operator, ROOT, expires, stdout, wait_until_after};
use crate::{ordinary, product};

/// The credential that is asked for.
const PULLING: &str = "images=registry.main:repositories=shop/app,actions=pull";

/// Both users' products, each with a registry.
fn worlds() -> Option<[(Operator, Registry); 2]> {
    let world = |product: Product, key: KeyKind| {
        let server = Registry::start(key)?;
        let issuers = format!(
            "[registry.main]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             issuer = \"{ISSUER}\"\nservice = \"{SERVICE}\"\nrepositories = [\"shop/app\", \"shop/site\"]\n\
             actions = [\"pull\"]\nmax_ttl = \"5s\"\n",
            server.port()
        );
        Some((Operator::new(product, &server.key(), &issuers), server))
    };
    Some([world(product(), KeyKind::Rsa)?, world(ordinary(), KeyKind::P256)?])
}

macro_rules! worlds {
    () => {
        match worlds() {
            Some(worlds) => worlds,
            None => cofferdam_testkit::skip!("there is no docker-registry with openssl"),
        }
    };
}

/// A script that prints its token, and the registry's answers: to what it may do, and to what it may not.
fn script(server: &Registry) -> String {
    let place = format!("http://host.cofferdam.internal:{}/v2", server.port());
    format!(
        "echo $IMAGES_TOKEN\n\
         ask() {{ curl -s -o /dev/null -w '%{{http_code}}\\n' -H \"Authorization: Bearer $IMAGES_TOKEN\" \"$@\"; }}\n\
         ask {place}/shop/app/tags/list\nask {place}/shop/secret/tags/list\nask {place}/_catalog\n\
         ask -X POST {place}/shop/app/blobs/uploads/"
    )
}

#[test]
fn a_run_pulls_from_its_repository_and_its_token_expires_when_the_outcome_says_so() {
    let worlds = worlds!();
    let outcomes = worlds.each_ref().map(|(operator, server)| operator.run(PULLING, &script(server)));
    for ((operator, server), outcome) in worlds.iter().zip(&outcomes) {
        let said: Vec<_> = stdout(outcome).lines().collect();
        assert_eq!(said[1..], ["200", "401", "401", "401"], "{outcome} {}", server.log());
        let lease = &outcome["leases"][0];
        assert_eq!((&lease["state"], &lease["can_revoke"]), (&json!("expires"), &json!(false)), "{outcome}");
        assert_eq!(lease["scope"], json!({"actions": ["pull"], "repositories": ["shop/app"]}));
        let log = operator.audit();
        assert!(log.contains("lease.minted") && !log.contains(said[0]), "{log}");
    }
    // Both together, since a registry takes a token for a minute after its own end.
    for ((_, server), outcome) in worlds.iter().zip(&outcomes) {
        let token = stdout(outcome).lines().next().unwrap();
        wait_until_after(expires(outcome));
        assert_eq!(server.status(token, "GET", "/v2/shop/app/tags/list"), 401, "{}", server.log());
    }
}

#[test]
fn another_repository_or_action_is_refused_and_nothing_is_signed() {
    for (operator, _) in worlds!() {
        for (cred, says) in [
            ("images=registry.main:repositories=shop/app", "doesn't say its `actions`"),
            ("images=registry.main:repositories=shop/secret,actions=pull", "may not give `repositories`"),
            (
                "images=registry.main:repositories=shop/app,actions=pull,push",
                "may not give `actions` of `push`",
            ),
        ] {
            operator.refuses(cred, "credential_denied", says);
        }
    }
}
