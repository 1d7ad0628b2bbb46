//! `crash PROGRAM [PLACE]`: kills a run at each place where it can be stopped, and looks at what is left.
//!
//! PROGRAM is built with the feature `weaken`; `cargo xtask crash` builds and calls both. A case is one
//! place, one user (root, and an ordinary one) and one command that comes next (another run, or `gc`).
//! Its run has a workspace, an input, a result of an earlier run to replace, a diff, and a process that
//! would survive. It is killed when it says that it is at the place; then must hold:
//!
//! 1. within seconds everything inside is dead;
//! 2. the result of the earlier run is whole, or doesn't look so; its diff is there, or that of the run
//!    that was killed, whole; and the workspace is as it was;
//! 3. after the next command nothing is left on the host or in the state folder, and no file beside the
//!    result;
//! 4. the audit log verifies, and every run in it has its end, but for those that [`UNENDED`] names.
//!
//! Exit codes: 0 all of it holds everywhere, 1 it doesn't somewhere, which was printed.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cofferdam_core::weaken::PLACES;
use cofferdam_testkit::host::{Snapshot, eventually, is_root, processes_with};
use cofferdam_testkit::left::{left, names};
use cofferdam_testkit::product::{Product, Ran, Started, start};
use serde_json::Value;

/// Places after which the log keeps a run without its end: nothing that a sweep could find was there yet,
/// or any more.
const UNENDED: &[&str] = &["event-written", "granted", "run-forgotten"];

/// What is on the command line of what would survive.
const SURVIVOR: &str = "sleep 311.9";

/// What a run does in its sandbox; its argument is the word by which its files are told from another run's.
const SCRIPT: &str = "mkdir -p d; for f in a d/b kept; do echo $1 > $f; done
setsid sleep 311.9 & sleep 0.05";

/// How long anything may take.
const BOUND: Duration = Duration::from_secs(60);

/// How long the kernel may take to kill what was inside, and to take namespaces apart.
const DYING: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(program) = args.next() else {
        eprintln!("crash: name the program, built with the feature `weaken`");
        return ExitCode::from(2);
    };
    let only = args.next();
    let began = Instant::now();
    let (mut cases, mut wrong, mut remains) = (0, 0, 0);
    let mut left_out = vec![];
    for user in [User::Root, User::Ordinary] {
        if user == User::Root && !is_root() {
            left_out.push("everything as root".to_owned());
            continue;
        }
        let stage = Stage::set(&program, user);
        for place in PLACES.iter().filter(|place| only.as_deref().is_none_or(|only| only == **place)) {
            if user == User::Ordinary && place.starts_with("disk-") {
                left_out.push(format!("{place} as an ordinary user, who gets no such disk"));
                continue;
            }
            for next in [Next::Run, Next::Sweep] {
                let found = stage.case(place, next, &mut remains);
                cases += 1;
                wrong += usize::from(!found.is_empty());
                found.iter().for_each(|line| println!("{place} ({user:?}, then {next:?}): {line}"));
            }
        }
    }
    left_out.iter().for_each(|what| println!("left out: {what}"));
    let (seconds, places) = (began.elapsed().as_secs(), PLACES.len());
    println!(
        "crash: {cases} kills at {places} places in {seconds} s; {remains} left something for the next \
         command to remove, {wrong} something wrong"
    );
    // Had nothing ever been left, nothing would show that the look at what is left sees it.
    ExitCode::from(u8::from(wrong > 0 || remains == 0))
}

/// Whose run is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    Ordinary,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Run,
    Sweep,
}

/// A product and the files that its runs are about.
struct Stage {
    product: Product,
    accepting: Vec<String>,
    workspace: PathBuf,
}

impl Stage {
    fn set(program: &str, user: User) -> Stage {
        let product = match user {
            User::Root => Product::alone(program),
            User::Ordinary => Product::alone_of_an_ordinary_user(program),
        };
        let accepting = if user == User::Root { vec![] } else { product.accepting() };
        let workspace = product.folder().join("work");
        fs::create_dir(&workspace).unwrap();
        fs::write(workspace.join("kept"), "as it was\n").unwrap();
        product.file("input", "something\n");
        product.file("script.sh", SCRIPT);
        product.give(product.folder());
        Stage { product, accepting, workspace }
    }

    /// Kills one run at one place, and says what is wrong afterwards. Counts in `remains` if something was
    /// left before the next command.
    fn case(&self, place: &str, next: Next, remains: &mut u32) -> Vec<String> {
        // The run at the place `agent-unfinished` is one that finds no agent.
        let _ = fs::remove_dir_all(self.product.state().join("agent"));
        if self.result().as_deref() != Ok("earlier") {
            let ran = self.start(place, "earlier", None).into_child().wait_with_output().unwrap();
            if !ran.status.success() {
                return vec![format!("the run before it failed: {ran:?}")];
            }
            let _ = fs::remove_dir_all(self.product.state().join("agent"));
        }
        let (before, beside, unended) = (Snapshot::take(), names(self.product.folder()), self.unended());
        let diff = self.diff();
        let mut child = self.start(place, "later", Some(place));
        let reached = reaches(&mut child, place);
        child.kill().unwrap();
        child.wait().unwrap();
        if let Err(said) = reached {
            return vec![format!("it was not reached: {said}")];
        }
        let mut wrong = vec![];
        let inside = || Snapshot::take().namespaces.difference(&before.namespaces).count();
        if !eventually(DYING, || processes_with(SURVIVOR).is_empty() && inside() == 0) {
            wrong.push(format!("{} namespaces and {:?} live on", inside(), processes_with(SURVIVOR)));
        }
        wrong.extend(self.result().err());
        wrong.extend(diff_is_whole(&diff, &self.diff()));
        *remains += u32::from(!left(&self.product, &before).is_empty());
        let ran = self.next(next);
        if ran.code != 0 {
            wrong.push(format!("the next command fails: {ran:?}"));
        }
        if !eventually(DYING, || left(&self.product, &before).is_empty()) {
            wrong.extend(left(&self.product, &before));
        }
        let new = names(self.product.folder()).into_iter().filter(|name| !beside.contains(name));
        wrong.extend(new.map(|name| format!("there is a {name} beside the result")));
        if fs::read_to_string(self.workspace.join("kept")).unwrap() != "as it was\n" {
            wrong.push("the workspace was changed".to_owned());
        }
        wrong.extend(self.log_is_whole(place, &unended));
        wrong
    }

    /// Starts the run of a place, which does there what it is told by the variable.
    fn start(&self, place: &str, word: &str, stop_at: Option<&str>) -> Started {
        let folder = self.product.folder();
        let accepting = self.accepting.iter().map(String::as_str);
        let mut command = if place == "parked" && stop_at.is_some() {
            let mut command = self.product.command(["batch", "--profile", "internal"]);
            command.args(accepting).stdin(Stdio::piped());
            command
        } else {
            let mut command = self.product.command(["run", "--profile", "internal"]);
            command.args(accepting).arg("--workspace").arg(&self.workspace);
            command.arg("--in").arg(folder.join("input")).arg("--out").arg(folder.join("out"));
            command.arg("--diff").arg(folder.join("diff"));
            if place.starts_with("disk-") {
                command.args(["--memory", "64MiB", "--disk", "128MiB"]);
            }
            command.arg(folder.join("script.sh")).arg(word);
            command
        };
        if let Some(place) = stop_at {
            command.env("COFFERDAM_STOP_AT", place);
        }
        let mut child = start(&mut command);
        if let Some(stdin) = &mut child.stdin {
            stdin.write_all(b"{\"argv\":[\"true\"]}\n").unwrap();
        }
        child
    }

    fn next(&self, next: Next) -> Ran {
        match next {
            Next::Sweep => self.product.call(["gc"]),
            Next::Run => {
                let words = ["run", "--profile", "internal"].into_iter();
                let accepting = self.accepting.iter().map(String::as_str);
                self.product.call(words.chain(accepting).chain(["--", "true"]))
            }
        }
    }

    /// The word of the run whose result is there, or nothing where none looks whole; what is wrong with
    /// one that looks so and isn't.
    fn result(&self) -> Result<String, String> {
        let out = self.product.folder().join("out");
        let Ok(changes) = fs::read(out.join("changes.json")) else { return Ok(String::new()) };
        if out.join(".cofferdam-incomplete").exists() {
            return Ok(String::new());
        }
        let changes: Value = serde_json::from_slice(&changes).map_err(|error| error.to_string())?;
        let mut words = BTreeSet::new();
        let files = ["added", "modified"].iter().filter_map(|key| changes[key].as_array()).flatten();
        for file in files {
            let path = file["path"].as_str().unwrap_or_default();
            let text = fs::read_to_string(out.join("files").join(path));
            let text = text.map_err(|error| format!("a result looks whole and has no {path}: {error}"))?;
            if file["bytes"] != text.len() {
                return Err(format!("a result looks whole and its {path} has another length"));
            }
            words.insert(text);
        }
        match (words.len(), words.first()) {
            (1, Some(text)) if names(&out.join("files")) == ["a", "d", "kept"] => {
                Ok(text.split_whitespace().last().unwrap_or_default().to_owned())
            }
            _ => Err(format!("a result looks whole and is of several runs: {words:?}")),
        }
    }

    /// What is in the place of the diff.
    fn diff(&self) -> String {
        fs::read_to_string(self.product.folder().join("diff")).unwrap_or_default()
    }

    /// Runs in the log that have a start and no end.
    fn unended(&self) -> BTreeSet<String> {
        let log = fs::read_to_string(self.product.state().join("audit/log.ndjson")).unwrap_or_default();
        let events: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let runs = |name| {
            let of = events.iter().filter(move |event| event["event"] == name);
            of.filter_map(|event| event["run"].as_str().map(str::to_owned)).collect::<BTreeSet<_>>()
        };
        runs("task.start").difference(&runs("task.end")).cloned().collect()
    }

    fn log_is_whole(&self, place: &str, unended: &BTreeSet<String>) -> Vec<String> {
        let mut wrong = vec![];
        let verified = self.product.call(["audit", "verify"]);
        if verified.code != 0 {
            wrong.push(format!("the audit log doesn't verify: {verified:?}"));
        }
        let new = self.unended().difference(unended).count();
        if new != usize::from(UNENDED.contains(&place)) {
            wrong.push(format!("{new} more runs in the log have no end"));
        }
        wrong
    }
}

/// What is wrong with a diff, where a whole one of another word was before. The one takes the other's place
/// in one step, so that there always is one.
fn diff_is_whole(before: &str, now: &str) -> Option<String> {
    let of = |text: &str, word: &str| text.replace("earlier", word).replace("later", word);
    let files = ["b/a\n", "b/d/b\n", "b/kept\n"];
    if !files.iter().all(|name| before.contains(&format!("+++ {name}"))) {
        return Some(format!("the diff of the run before isn't whole: {before:?}"));
    }
    let whole = ["earlier", "later"].iter().any(|word| now == of(before, word));
    (!whole).then(|| format!("the diff is neither run's: {now:?}"))
}

/// Waits until a process says that it stopped at a place, or what it said instead.
fn reaches(child: &mut Child, place: &str) -> Result<(), String> {
    let (teller, told) = mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| teller.send(line)));
    let (expected, until) = (format!("stopped at {place}"), Instant::now() + BOUND);
    let mut said = String::new();
    while let Ok(line) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if line == expected {
            return Ok(());
        }
        said += &format!("{line}\n");
    }
    Err(said)
}
