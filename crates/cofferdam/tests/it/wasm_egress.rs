//! What leaves Python in WebAssembly, seen from the far end: a network of the test's own in which every address answers.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, Ran};
use cofferdam_testkit::{skip, templates};
use serde_json::{Value, json};

use crate::{needs_root, product};

/// A product in such a network, where a Python is prepared.
struct World {
    product: Product,
    net: Net,
    data: PathBuf,
}

impl World {
    /// None without one of both, and why.
    fn new() -> Result<World, String> {
        let data = templates::data().ok_or(templates::NONE)?;
        let (product, net) = (product(), Net::start()?);
        net.settle(&product);
        Ok(World { product, net, data })
    }

    /// `run` under the default profile.
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.product.command([&["run"], args].concat());
        command.env("COFFERDAM_DATA", &self.data);
        self.net.run(&command)
    }

    fn outcome(&self, args: &[&str]) -> Value {
        self.run(&[&["--json"], args].concat()).json()
    }
}

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn a_rule_lets_out_what_it_names_and_the_rest_raises_with_the_reason() {
    needs_root!();
    let world = world!();
    let fetches = |url: &str| format!("import urllib.request as u; print(u.urlopen({url:?}).read())");
    for (rule, url) in [("api.test", "https://api.test/ok"), ("http://api.test", "http://api.test/ok")] {
        let ran = world.run(&["--allow", rule, "-c", &fetches(url)]).exits(0);
        assert_eq!(ran.stdout, "b'ok\\n'\n", "{ran:?}");
        assert_eq!(world.net.seen().asked(), ["GET api.test /ok"]);
        let ran = world.run(&["--allow", rule, "-c", &fetches(&url.replace("api", "other"))]).exits(1);
        assert!(ran.stderr.contains("HTTP Error 403"), "{ran:?}");
        assert!(
            ran.stderr.contains("cofferdam: other.test: The policy of this task names no such host"),
            "{ran:?}"
        );
        assert!(world.net.seen().is_nothing(), "not one packet, and no question");
    }
    let outcome = world.outcome(&["--allow", "api.test", "-c", &fetches("https://other.test/ok")]);
    assert_eq!((&outcome["backend"], &outcome["denials"][0]["host"]), (&json!("wasm"), &json!("other.test")));
    let enforced = outcome["enforced"].as_array().unwrap();
    assert!(
        ["egress", "egress-http", "dns"].iter().all(|name| enforced.contains(&json!(name))),
        "{outcome:#}"
    );
    let log = world.product.call(["audit", "show", "last"]).exits(0).stdout;
    assert!(log.contains("egress.denied") && log.contains("door=function"), "{log}");
}

/// The packages of the host's that are Python alone, in a folder; none where one isn't there.
fn packages(names: &[&str], into: &Path) -> Option<()> {
    let places = [Path::new("/usr/lib/python3/dist-packages"), Path::new("/usr/share/python-wheels")];
    for name in names {
        let found = places.iter().map(|place| place.join(name)).find(|path| path.is_dir())?;
        let copied = std::process::Command::new("cp").arg("-rL").arg(found).arg(into).status().ok()?;
        copied.success().then_some(())?;
    }
    Some(())
}

#[test]
fn requests_and_urllib3_reach_what_rules_name() {
    needs_root!();
    let world = world!();
    let folder = world.product.folder().join("with-requests");
    fs::create_dir(&folder).unwrap();
    if packages(&["requests", "urllib3", "idna", "chardet"], &folder).is_none() {
        skip!("this host has no python3-requests (apt install python3-requests)");
    }
    // Debian's names a file of the host's. Whom to trust is decided outside.
    fs::create_dir(folder.join("certifi")).unwrap();
    fs::write(folder.join("certifi/__init__.py"), "def where(): return __file__\n").unwrap();
    let script = r#"
import requests, urllib3
with requests.Session() as session:
    for _ in range(3):
        answer = session.get("https://api.test/ok", timeout=10)
        print(answer.status_code, answer.text.strip())
    refused = session.get("https://other.test/ok")
    print(refused.status_code, refused.headers["x-cofferdam-denied"], refused.json()["needs"])
print(urllib3.PoolManager().request("GET", "https://api.test/ok").data)
print(requests.post("https://api.test/echo", data=b"x" * 100_000, verify=False).status_code)
"#;
    fs::write(folder.join("client.py"), script).unwrap();
    let workspace = folder.to_str().unwrap();
    let script = folder.join("client.py");
    let ran =
        world.run(&["--allow", "api.test", "--workspace", workspace, script.to_str().unwrap()]).exits(0);
    let said = "200 ok\n200 ok\n200 ok\n403 host_not_allowed --allow other.test\nb'ok\\n'\n200\n";
    assert_eq!(ran.stdout, said, "{ran:?}");
    let seen = world.net.seen();
    assert_eq!(
        seen.asked().iter().filter(|asked| **asked == "GET api.test /ok").count(),
        4,
        "{:?}",
        seen.asked()
    );
    let bodies: Vec<_> =
        seen.requests.iter().map(|request| request.body_bytes).filter(|bytes| *bytes > 0).collect();
    assert_eq!(bodies, [100_000]);
}

#[test]
fn any_protocol_over_tcp_is_spoken_where_a_rule_says_so_and_refused_connections_end() {
    needs_root!();
    let world = world!();
    let code = r#"
import select, socket
with socket.create_connection(("api.test", 7), 10) as stream:
    stream.sendall(b"canary")
    print(select.select([stream], [], [], 10) == ([stream], [], []), stream.recv(100), stream.getpeername()[1])
for host, port in [("api.test", 9), ("other.test", 7), ("203.0.113.10", 7)]:
    try:
        with socket.create_connection((host, port), 10) as stream:
            stream.sendall(b"\x00canary")
            print(host, port, stream.recv(100))
    except OSError as error:
        print(host, port, type(error).__name__)
"#;
    let outcome = world.outcome(&["--allow", "tcp://api.test:7", "-c", code]);
    let said = outcome["stdout"]["text"].as_str().unwrap();
    assert!(said.starts_with("True b'canary' 7\n"), "{outcome:#}");
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(
        said.lines().skip(1).all(|line| line.ends_with("b''") || line.ends_with("ConnectionResetError")),
        "{said}"
    );
    let codes: Vec<_> =
        outcome["denials"].as_array().unwrap().iter().map(|denial| denial["code"].clone()).collect();
    assert_eq!(codes, ["port_not_allowed", "host_not_allowed", "host_not_allowed"], "{outcome:#}");
    assert_eq!(world.net.seen().places(), ["203.0.113.10:7"]);
}

#[test]
fn each_line_of_a_batch_has_a_way_out_and_budgets_of_its_own() {
    needs_root!();
    let world = world!();
    let policy = "version = 1\n[limits]\nrequests = 2\n[[network.allow]]\nhost = \"api.test\"\n";
    let policy = world.product.file("two.toml", policy);
    let code = "import urllib.request as u, urllib.error\nfor _ in range(3):\n    try: print(u.urlopen('https://api.test/ok').status)\n    except urllib.error.HTTPError as error: print(error.code)";
    let lines: String = (0..4).map(|_| format!("{}\n", json!({"code": code}))).collect();
    let mut command = world.product.command(["batch", "--policy", policy.to_str().unwrap()]);
    command.env("COFFERDAM_DATA", &world.data);
    let mut inside = world.net.command(&command);
    inside.stdin(fs::File::open(world.product.file("jobs.jsonl", lines)).unwrap());
    let ran = cofferdam_testkit::product::finish(inside);
    assert_eq!(ran.code, 0, "{ran:?}");
    for line in ran.stdout.lines() {
        let outcome: Value = serde_json::from_str(line).unwrap();
        assert_eq!(outcome["stdout"]["text"], "200\n200\n403\n", "{outcome:#}");
        assert_eq!(
            (&outcome["limits_hit"], &outcome["denials"][0]["code"]),
            (&json!(["requests"]), &json!("limit_exceeded"))
        );
    }
    assert_eq!(world.net.seen().requests.len(), 8);
}
