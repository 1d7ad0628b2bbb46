//! `egress-bench PROGRAM ROUNDS WARMUP [MITMDUMP]`: what a way out costs those who use it.
//!
//! `cargo xtask bench egress` builds PROGRAM and this for release, and holds the figures against gates. One client,
//! curl, asks one origin in a network of its own, in turns: directly, out of a sandbox of PROGRAM's whose rule ends
//! TLS, out of one whose rule passes it through, and through mitmproxy if that is named. Times are curl's own, so a
//! sandbox's start isn't in them. A time counts only if every answer was whole, and for a sandbox only if its Outcome
//! says that egress was enforced, without a gap.
//!
//! Prints one JSON object: times in ms by contender, and the memory of an idle proxy in KiB. Exit codes: 0, or 1 with
//! what was wrong.

#![expect(clippy::unwrap_used, reason = "a measurement that can't go on should say where")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, is_root, processes_with};
use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, Started, start};
use serde_json::{Map, Value, json};

/// Requests of one call, all on one connection; the first, which makes it, isn't counted.
const REQUESTS: usize = 201;

/// Bytes of a download: 256 MiB.
const DOWNLOAD: u64 = 256 << 20;

/// One round of downloads for so many of requests: each takes a hundred times as long.
const ROUNDS_FOR_A_DOWNLOAD: usize = 10;

/// Connections at once, and for how long the origin has each wait for its answer, in ms.
const AT_ONCE: usize = 200;
const HELD_MS: u32 = 3000;

/// How long an idle proxy is left alone before its memory is read.
const IDLE: Duration = Duration::from_millis(500);

/// Where the other proxy listens, in the network of the measurement alone.
const OTHERS_PORT: &str = "18080";

/// What the name of PROGRAM is followed by where it is its own proxy.
const OWN_PROXY: &str = "egress";

const HOST: &str = "https://api.test";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (numbers, other) = match &words[..] {
        [_, rounds, warmup] => ((rounds.parse(), warmup.parse()), None),
        [_, rounds, warmup, other] => ((rounds.parse(), warmup.parse()), Some(other.as_str())),
        _ => return usage("name the program, the rounds, the rounds of warm-up and perhaps mitmdump"),
    };
    let (Ok(rounds), Ok(warmup)) = numbers else { return usage("rounds are whole numbers") };
    if !is_root() {
        return usage("needs root, whose runs have everything that can be enforced");
    }
    match measure(&words[0], rounds, warmup, other) {
        Ok(figures) => println!("{figures}"),
        Err(wrong) => {
            eprintln!("egress-bench: {wrong}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage(text: &str) -> ExitCode {
    eprintln!("egress-bench: {text}");
    ExitCode::from(2)
}

fn measure(program: &str, rounds: usize, warmup: usize, other: Option<&str>) -> Result<Value, String> {
    let net = Net::start()?;
    let product = Product::new(program);
    net.settle(&product);
    let trusted = product.folder().join("trusted.pem");
    trust(&[Path::new(SYSTEM_BUNDLE), &net.authority()], &trusted)?;
    let bench = Bench { outcome: product.folder().join("outcome.json"), trusted, product, net };
    let other = other.map(|program| Other::start(&bench, program)).transpose()?;
    let mut contenders = vec![Contender::Direct, Contender::Terminated, Contender::PassedThrough];
    contenders.extend(other.as_ref().map(Contender::Other));
    let request = format!("{HOST}/ok?[1-{REQUESTS}]");
    let requests = bench.in_turns(&contenders, rounds, warmup, |contender| {
        let answers = bench.curl(contender, &[], &request, REQUESTS, 3)?;
        Ok(answers[1..].to_vec())
    })?;
    let url = format!("{HOST}/large?bytes={DOWNLOAD}");
    let downloads =
        bench.in_turns(&contenders, rounds.div_ceil(ROUNDS_FOR_A_DOWNLOAD), warmup.min(1), |contender| {
            bench.curl(contender, &[], &url, 1, DOWNLOAD)
        })?;
    Ok(json!({
        "requests_ms": requests,
        "downloads_ms": downloads,
        "at_once": AT_ONCE,
        "held_for_ms": HELD_MS,
        "all_answered_ms": bench.many_at_once()?,
        "idle_proxy_kib": bench.idle_proxy_kib()?,
    }))
}

/// Who stands between the client and the origin.
#[derive(Clone, Copy)]
enum Contender<'a> {
    /// Nobody.
    Direct,
    /// A sandbox whose rule sees requests.
    Terminated,
    /// A sandbox whose rule sees the server's name alone.
    PassedThrough,
    /// Another proxy, which sees requests, and no sandbox.
    Other(&'a Other),
}

impl Contender<'_> {
    fn name(&self) -> &'static str {
        match self {
            Contender::Direct => "direct",
            Contender::Terminated => "terminated",
            Contender::PassedThrough => "passed through",
            Contender::Other(_) => "mitmproxy",
        }
    }
}

/// What the system trusts, and the sandbox in addition to its own authority.
const SYSTEM_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Makes a bundle of bundles. Every client reads one of the same length, which takes curl 40 ms of each first request.
fn trust(bundles: &[&Path], made: &Path) -> Result<(), String> {
    let read = |path: &&Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let all: Vec<_> = bundles.iter().map(read).collect::<Result<_, _>>()?;
    fs::write(made, all.concat()).map_err(|error| error.to_string())
}

struct Bench {
    outcome: PathBuf,
    /// What a client trusts that nobody stands before.
    trusted: PathBuf,
    product: Product,
    net: Net,
}

impl Bench {
    /// What each contender took, in ms: each round begins with another one.
    fn in_turns(
        &self,
        contenders: &[Contender<'_>],
        rounds: usize,
        warmup: usize,
        once: impl Fn(Contender<'_>) -> Result<Vec<f64>, String>,
    ) -> Result<Map<String, Value>, String> {
        let mut times = vec![vec![]; contenders.len()];
        for round in 0..warmup + rounds {
            for turn in 0..contenders.len() {
                let which = (round + turn) % contenders.len();
                let took = once(contenders[which])?;
                if round >= warmup {
                    times[which].extend(took);
                }
            }
            let _ = self.net.seen(); // or what the origin writes down would grow
        }
        let named = contenders.iter().zip(times);
        Ok(named.map(|(contender, times)| (contender.name().to_owned(), json!(times))).collect())
    }

    /// Has curl ask; gives what each of so many answers of so many bytes took, in ms.
    fn curl(
        &self,
        contender: Contender<'_>,
        options: &[&str],
        url: &str,
        answers: usize,
        bytes: u64,
    ) -> Result<Vec<f64>, String> {
        let mut words = vec!["curl", "--silent", "--show-error", "--http1.1", "--output", "/dev/null"];
        words.extend(["--write-out", "%{http_code} %{size_download} %{time_total}\n"]);
        words.extend(options);
        match contender {
            Contender::Direct => words.extend(["--cacert", self.trusted.to_str().unwrap()]),
            // Where its authority is trusted is a part of what is measured.
            Contender::Terminated => {}
            // The origin's authority is in no sandbox's files.
            Contender::PassedThrough => words.push("--insecure"),
            Contender::Other(other) => {
                words.extend(["--proxy", &other.address, "--cacert", &other.trusted]);
            }
        }
        words.push(url);
        let ran = match contender {
            Contender::Terminated => self.net.run(&self.sandboxed("api.test", &words)),
            Contender::PassedThrough => self.net.run(&self.sandboxed("tls://api.test", &words)),
            Contender::Direct | Contender::Other(_) => {
                let mut command = Command::new(words[0]);
                self.net.run(command.args(&words[1..]))
            }
        };
        let times: Option<Vec<f64>> = ran.stdout.lines().map(|line| time(line, bytes)).collect();
        let times = times.filter(|times| times.len() == answers && ran.code == 0);
        let times =
            times.ok_or_else(|| format!("{}: not {answers} whole answers: {ran:?}", contender.name()))?;
        if matches!(contender, Contender::Terminated | Contender::PassedThrough) {
            self.was_enforced()?;
        }
        Ok(times)
    }

    /// A run with a way out for what a rule names.
    fn sandboxed(&self, rule: &str, words: &[&str]) -> Command {
        let mut command = self.product.command(["run", "--profile", "internal", "--quiet", "--outcome"]);
        command.arg(&self.outcome).args(["--allow", rule, "--"]).args(words);
        command
    }

    /// Whether the run before was one whose way out was judged.
    fn was_enforced(&self) -> Result<(), String> {
        let text = fs::read_to_string(&self.outcome).map_err(|error| error.to_string())?;
        let outcome: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let is_said =
            outcome["enforced"].as_array().is_some_and(|names| names.iter().any(|name| name == "egress"));
        let is_whole = outcome["gaps"].as_array().is_none_or(Vec::is_empty);
        fs::remove_file(&self.outcome).map_err(|error| error.to_string())?; // it speaks for no other run
        if is_said && is_whole { Ok(()) } else { Err(format!("egress was not enforced: {outcome}")) }
    }

    /// From the first of many connections to the last answer, in ms.
    fn many_at_once(&self) -> Result<f64, String> {
        let at_once = AT_ONCE.to_string();
        // Without checking certificates: curl reads all that it trusts for each connection, 40 ms of its time.
        let options = ["--insecure", "--parallel", "--parallel-immediate", "--parallel-max", &at_once];
        let url = format!("{HOST}/slow?ms={HELD_MS}&n=[1-{AT_ONCE}]");
        let began = Instant::now();
        // One that shared a connection would have waited for the other's answer, and the whole twice as long.
        self.curl(Contender::Terminated, &options, &url, AT_ONCE, 5)?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        Ok(took)
    }

    /// The resident memory of a proxy that has served a request and waits, in KiB.
    fn idle_proxy_kib(&self) -> Result<u64, String> {
        let url = format!("{HOST}/ok");
        let script = format!("curl --silent --show-error {url} && sleep 3");
        let mut child = start(&mut self.net.command(&self.sandboxed("api.test", &["sh", "-c", &script])));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        std::thread::sleep(IDLE);
        let words = format!("{} {OWN_PROXY} ", self.product.program().display());
        let mut found = processes_with(&words).into_iter();
        let (proxy, another) = (found.next(), found.next());
        let memory = proxy.filter(|_| another.is_none()).and_then(resident_kib);
        let ended = child.wait().map_err(|error| error.to_string())?;
        if line != "ok\n" || !ended.success() {
            return Err(format!("the run whose proxy was looked at said {line:?} and ended with {ended}"));
        }
        self.was_enforced()?;
        memory.ok_or_else(|| "there was not one proxy".to_owned())
    }
}

/// The time of a whole answer, in ms, by what curl wrote of it: its status, bytes and seconds.
fn time(line: &str, bytes: u64) -> Option<f64> {
    let mut words = line.split(' ');
    let whole = words.next() == Some("200") && words.next()?.parse() == Ok(bytes);
    let seconds: f64 = words.next()?.parse().ok()?;
    whole.then_some(seconds * 1000.0)
}

fn resident_kib(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Another proxy, as its own documentation has it: told to pass large bodies on as they come.
struct Other {
    _process: Started,
    address: String,
    trusted: String,
}

impl Other {
    fn start(bench: &Bench, program: &str) -> Result<Other, String> {
        let folder = bench.product.folder().join("mitmproxy");
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        let mut command = Command::new(program);
        command.args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port", OTHERS_PORT]);
        command.args(["--set", &option("confdir", &folder), "--set", "stream_large_bodies=1m"]);
        command.args(["--set", &option("ssl_verify_upstream_trusted_ca", &bench.net.authority())]);
        let process = start(&mut bench.net.command(&command));
        let authority = folder.join("mitmproxy-ca-cert.pem");
        if !eventually(Duration::from_secs(20), || authority.is_file()) {
            return Err(format!("{program} made no authority"));
        }
        let trusted = bench.product.folder().join("trusted-by-its-clients.pem");
        trust(&[Path::new(SYSTEM_BUNDLE), &authority], &trusted)?;
        let trusted = trusted.to_str().unwrap().to_owned();
        let other = Other { _process: process, address: format!("http://127.0.0.1:{OTHERS_PORT}"), trusted };
        let serves = || bench.curl(Contender::Other(&other), &[], &format!("{HOST}/ok"), 1, 3).is_ok();
        if !eventually(Duration::from_secs(20), serves) {
            let contender = Contender::Other(&other);
            return Err(bench.curl(contender, &[], &format!("{HOST}/ok"), 1, 3).err().unwrap_or_default());
        }
        Ok(other)
    }
}
