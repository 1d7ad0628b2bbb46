//! The daily benchmark: what a workspace adds to a start, and what it costs not to be root.
//!
//! All of them run `/bin/true`, take turns, and are started through the same `setpriv`, so that only
//! what is compared differs. A workspace's cost is a difference of medians, in milliseconds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::contender::Scratch;
use super::stats::Samples;
use super::{Benchmark, Options, Report};
use crate::problem::Problem;
use crate::workspace::Workspace;

/// This benchmark.
pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "daily",
    gates: &[
        "rootless_vs_root_p50",
        "workspace_100000_ms",
        "workspace_100000_owners_ms",
        "workspace_1000_ms",
    ],
    run,
};

/// A user whom nobody else is.
const ORDINARY: u32 = 61_234;

/// One kind of start.
struct Start {
    name: &'static str,
    user: u32,
    binary: PathBuf,
    home: PathBuf,
    options: Vec<String>,
}

fn run(workspace: &Workspace, options: &Options) -> Result<Report, Problem> {
    if !options.only.is_empty() {
        return Err(Problem::Stop("`daily` compares things in pairs; it has no --only".to_owned()));
    }
    let binary = super::start::build(workspace)?;
    let scratch = Scratch::new()?;
    let folder = scratch.outcome().parent().map(Path::to_owned).unwrap_or_default();
    let starts = starts(&binary, &folder)?;
    let mut times = vec![Vec::new(); starts.len()];
    for round in 0..options.warmup + options.rounds {
        for turn in 0..starts.len() {
            let which = (round + turn) % starts.len();
            let took = starts[which].once()?;
            if round >= options.warmup {
                times[which].push(took);
            }
        }
    }
    let times: Vec<_> = times.into_iter().map(Samples::new).collect();
    Ok(report(&starts, &times, options))
}

fn starts(binary: &Path, folder: &Path) -> Result<Vec<Start>, Problem> {
    let home = |name: &str, user: u32| -> Result<PathBuf, Problem> {
        let home = folder.join(name);
        fs::create_dir(&home).map_err(Problem::at("create", &home))?;
        std::os::unix::fs::chown(&home, Some(user), Some(user)).map_err(Problem::at("give away", &home))?;
        Ok(home)
    };
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(folder, open).map_err(Problem::at("open", folder))?;
    let copy = folder.join("cofferdam");
    fs::copy(binary, &copy).map_err(Problem::at("copy", binary))?;
    let start = |name: &'static str, user: u32, home: &Path, options: &[&str]| Start {
        name,
        user,
        binary: copy.clone(),
        home: home.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    };
    let (root, user) = (home("root", 0)?, home("user", ORDINARY)?);
    let (thousand, many) = (tree(folder, 1_000)?, tree(folder, 100_000)?);
    let (thousand, many) = (thousand.to_string_lossy(), many.to_string_lossy());
    let lacking = gaps(&start("ordinary user", ORDINARY, &user, &[]))?;
    let lacking: Vec<&str> = lacking.iter().flat_map(|gap| ["--accept-gap", gap.as_str()]).collect();
    let with_many = [&lacking[..], &["--workspace", &many]].concat();
    Ok(vec![
        start("root", 0, &root, &[]),
        start("ordinary user", ORDINARY, &user, &lacking),
        start("100,000, user", ORDINARY, &user, &with_many),
        start("1,000, root", 0, &root, &["--workspace", &thousand]),
        start("100,000, root", 0, &root, &["--workspace", &many]),
    ])
}

/// A workspace of so many files, a hundred in a folder, as sources lie.
fn tree(folder: &Path, files: usize) -> Result<PathBuf, Problem> {
    let top = folder.join(format!("tree{files}"));
    for group in 0..files / 100 {
        let place = top.join(format!("part{}/module{group}", group / 50));
        fs::create_dir_all(&place).map_err(Problem::at("create", &place))?;
        for file in 0..100 {
            let path = place.join(format!("file{file}.txt"));
            fs::write(&path, "text\n").map_err(Problem::at("write", &path))?;
        }
    }
    Ok(top)
}

/// What this host can't enforce for a user, as the refusal names it.
fn gaps(start: &Start) -> Result<Vec<String>, Problem> {
    let output = start.command().output().map_err(Problem::starting("cofferdam"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let words: Vec<_> = text.split_whitespace().collect();
    Ok(words.windows(2).filter(|two| two[0] == "--accept-gap").map(|two| two[1].to_owned()).collect())
}

impl Start {
    fn command(&self) -> Command {
        let user = self.user.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .arg(&self.binary)
            .args(["run", "--profile", "internal", "--quiet"])
            .args(&self.options)
            .args(["--", "/bin/true"])
            .env("HOME", &self.home)
            .env("COFFERDAM_STATE", self.home.join("state"))
            .stdin(Stdio::null());
        command
    }

    /// The time of one start to its end, in milliseconds.
    fn once(&self) -> Result<f64, Problem> {
        let mut command = self.command();
        let start = Instant::now();
        let output = command.output().map_err(Problem::starting("setpriv"))?;
        let took = start.elapsed().as_secs_f64() * 1000.0;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Problem::Stop(format!("{}: {}: {}", self.name, output.status, said.trim())));
        }
        Ok(took)
    }
}

fn report(starts: &[Start], times: &[Samples], options: &Options) -> Report {
    let p50 = |at: usize| times[at].percentile(50);
    let figures = vec![
        ("rootless_vs_root_p50", p50(1) / p50(0)),
        ("workspace_100000_ms", p50(2) - p50(1)),
        ("workspace_1000_ms", p50(3) - p50(0)),
        ("workspace_100000_owners_ms", p50(4) - p50(0)),
    ];
    let mut table = format!(
        "daily: /bin/true in a sandbox; ms from spawn to reaped; {} rounds after {} discarded\n\n",
        options.rounds, options.warmup
    );
    // Writing to a String can't fail.
    let _ = writeln!(table, "{:<16}{:>9}{:>9}{:>9}", "", "min", "p50", "p95");
    for (start, samples) in starts.iter().zip(times) {
        let (p50, p95) = (samples.percentile(50), samples.percentile(95));
        let _ = writeln!(table, "{:<16}{:>9.2}{p50:>9.2}{p95:>9.2}", start.name, samples.min());
    }
    let contenders: serde_json::Map<String, Value> = starts
        .iter()
        .zip(times)
        .map(|(start, samples)| (start.name.to_owned(), json!({ "samples_ms": samples.values() })))
        .collect();
    let named: serde_json::Map<String, Value> =
        figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect();
    let details = json!({
        "rounds": options.rounds,
        "warmup": options.warmup,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "contenders": contenders,
        "figures": named,
    });
    Report { table, figures, left_out: vec![], details }
}
