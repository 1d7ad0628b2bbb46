//! `credentials-bench PROGRAM ROUNDS WARMUP`: how soon a credential is dead, and what one that is swapped costs.
//!
//! `cargo xtask bench credentials` builds PROGRAM and this for release, and holds the figures against gates. Three kinds
//! in turns: a surrogate that a request used, a user of Redis and a role of PostgreSQL, each with a session that is open
//! when the program ends. Times are those of the Outcome, from the end of the program until the credential was seen
//! dead, and count only if its state is `dead` and the server itself has nothing left of it. What swapping costs is
//! timed by one program inside, which asks two hosts in turns on connections that are kept: one with a credential of the
//! run's, one without.
//!
//! Prints one JSON object: times in ms. Exit codes: 0, or 1 with what was wrong.

#![expect(clippy::unwrap_used, reason = "a measurement that can't go on should say where")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, ExitCode};

use cofferdam_testkit::host::is_root;
use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, finish};
use cofferdam_testkit::servers::postgres::{Server, programs};
use cofferdam_testkit::servers::redis::Redis;
use serde_json::{Value, json};

/// Requests to each host in one run; the first of each, which makes its connection, isn't counted.
const REQUESTS: usize = 201;

/// Asks two hosts in turns, and prints what each answer took, in ms.
const IN_TURNS: &str = r"
import http.client, json, os, ssl, time
context = ssl.create_default_context()
hosts = {'swapped': ('api.test', {'Authorization': 'Bearer ' + os.environ['API_TOKEN']}), 'not swapped': ('second.test', {'Authorization': 'Bearer x'})}
lines = {name: http.client.HTTPSConnection(host, context=context) for name, (host, _) in hosts.items()}
times = {name: [] for name in hosts}
for _ in range(REQUESTS):
    for name, (_, headers) in hosts.items():
        began = time.perf_counter()
        lines[name].request('GET', '/ok', headers=headers)
        answer = lines[name].getresponse()
        assert answer.status == 200 and answer.read() == b'ok\n', answer.status
        times[name].append((time.perf_counter() - began) * 1000)
print(json.dumps({name: all[1:] for name, all in times.items()}))
";

/// What the operator keeps.
const SECRET: &str = "the-secret-of-the-bench-0123456789";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [program, rounds, warmup] = &words[..] else {
        return usage("name the program, the rounds and the warm-up");
    };
    let (Ok(rounds), Ok(warmup)) = (rounds.parse(), warmup.parse()) else {
        return usage("rounds are whole numbers");
    };
    if !is_root() {
        return usage("needs root, whose runs have everything that can be enforced");
    }
    match Bench::new(program).and_then(|bench| bench.measure(rounds, warmup)) {
        Ok(figures) => println!("{figures}"),
        Err(wrong) => {
            eprintln!("credentials-bench: {wrong}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage(text: &str) -> ExitCode {
    eprintln!("credentials-bench: {text}");
    ExitCode::from(2)
}

struct Bench {
    product: Product,
    net: Net,
    postgres: Server,
    postgres_root: String,
    redis: Redis,
}

impl Bench {
    fn new(program: &str) -> Result<Bench, String> {
        let net = Net::start()?;
        let product = Product::new(program);
        net.settle(&product);
        let installed =
            programs().ok_or("there is no PostgreSQL; `apt-get install -y postgresql` brings it")?;
        let redis = Redis::start().ok_or("there is no Redis; `apt-get install -y redis-server` brings it")?;
        let postgres = Server::with_passwords(&installed);
        let postgres_root = postgres.with_a_shop();
        let issuers = format!(
            "[static.api]\nroot = {{ env = \"BENCH_SECRET\" }}\nhosts = [\"api.test:443\"]\ninject = \"bearer\"\n\
             [postgres.main]\nroot = {{ env = \"BENCH_POSTGRES\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             templates = [\"readers\"]\ndatabases = [\"shop\"]\n\
             [redis.main]\nroot = {{ env = \"BENCH_REDIS\" }}\nhosts = [\"host.cofferdam.internal:{}\"]\n\
             keys = [\"orders:*\"]\ncommands = [\"get\", \"blpop\", \"ping\"]\n",
            postgres.port(),
            redis.port()
        );
        let file = product.folder().join("home/.config/cofferdam/issuers.toml");
        fs::write(&file, issuers)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))
            .unwrap();
        Ok(Bench { product, net, postgres, postgres_root, redis })
    }

    fn measure(&self, rounds: usize, warmup: usize) -> Result<Value, String> {
        let mut dead = [vec![], vec![], vec![]];
        for round in 0..warmup + rounds {
            for turn in 0..dead.len() {
                let which = (round + turn) % dead.len();
                let took = match which {
                    0 => self.surrogate()?,
                    1 => self.of_redis()?,
                    _ => self.of_postgres()?,
                };
                if round >= warmup {
                    dead[which].push(took);
                }
            }
            let _ = self.net.seen(); // or what the origin writes down would grow
        }
        let [surrogate, redis, postgres] = dead;
        let requests = self.requests()?;
        Ok(json!({
            "dead_ms": { "surrogate": surrogate, "redis": redis, "postgres": postgres },
            "requests_ms": requests,
        }))
    }

    fn command(&self, cred: &str, more: &[&str], program: &[&str]) -> Command {
        let mut command = self.product.command(["run", "--json", "--profile", "internal", "--cred", cred]);
        command.args(more).arg("--").args(program);
        command.env("BENCH_SECRET", SECRET);
        command.env("BENCH_POSTGRES", &self.postgres_root).env("BENCH_REDIS", self.redis.root());
        command
    }

    fn surrogate(&self) -> Result<f64, String> {
        let script = "curl -sS --max-time 20 -H \"Authorization: Bearer $API_TOKEN\" https://api.test/ok";
        let outcome = self.net.run(&self.command("api=static.api", &[], &["sh", "-c", script])).json();
        if outcome["stdout"]["text"] != "ok\n" || outcome["leases"][0]["uses"] != 1 {
            return Err(format!("no request used it: {outcome}"));
        }
        dead(&outcome)
    }

    fn of_redis(&self) -> Result<f64, String> {
        let script = "redis-cli -u \"$REDIS_URL\" --no-auth-warning ping; \
                      redis-cli -u \"$REDIS_URL\" --no-auth-warning blpop orders:none 600 & sleep 0.1";
        let cred = "db=redis.main:keys=orders:*,commands=get,blpop,ping";
        let outcome = finish(self.command(cred, &[], &["sh", "-c", script])).json();
        let left = self.redis.minted();
        if outcome["stdout"]["text"] != "PONG\n" || !left.is_empty() {
            return Err(format!("it wasn't used, or is there: {left:?} {outcome}"));
        }
        dead(&outcome)
    }

    fn of_postgres(&self) -> Result<f64, String> {
        let script = "psql -Atc 'select 1'; psql -Atc 'select pg_sleep(600)' & sleep 0.2";
        let cred = "db=postgres.main:template=readers,database=shop";
        let outcome = finish(self.command(cred, &[], &["sh", "-c", script])).json();
        let left = self.postgres.minted();
        if outcome["stdout"]["text"] != "1\n" || !left.is_empty() {
            return Err(format!("it wasn't used, or is there: {left:?} {outcome}"));
        }
        dead(&outcome)
    }

    /// What requests take with a credential that is swapped and without, in ms.
    fn requests(&self) -> Result<Value, String> {
        let code = IN_TURNS.replace("REQUESTS", &REQUESTS.to_string());
        let program = ["/usr/bin/python3", "-c", &code];
        let command = self.command("api=static.api", &["--allow", "second.test"], &program);
        let outcome = self.net.run(&command).json();
        let said = outcome["stdout"]["text"].as_str().unwrap_or_default();
        let seen = self.net.seen();
        let swapped = seen
            .requests
            .iter()
            .filter(|request| request.headers.iter().any(|(_, value)| value.ends_with(SECRET)));
        if swapped.count() != REQUESTS {
            return Err(format!("not each of {REQUESTS} requests was swapped: {outcome}"));
        }
        serde_json::from_str(said).map_err(|error| format!("{error}: {outcome}"))
    }
}

/// From the end of the program until its credential was seen dead, in ms.
fn dead(outcome: &Value) -> Result<f64, String> {
    let lease = &outcome["leases"][0];
    let took = lease["revoked_ms"].as_f64().filter(|_| lease["state"] == "dead");
    took.ok_or_else(|| format!("it isn't known to be dead: {outcome}"))
}
