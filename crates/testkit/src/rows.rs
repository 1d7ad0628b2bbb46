//! Rows of the table of attacks (`THREATS.md`): what hostile code attempts, and what must come of it.
//!
//! A [`Row`] runs a probe inside a sandbox and the same probe outside, as the same kind of user. Inside,
//! nothing that it attempts may get through; outside, everything must, or the attempt proves nothing and
//! is named as inconclusive. A row of which nothing got through outside is inconclusive as a whole, and
//! counts as a test that was skipped. What a probe says is never enough: when the row ends the host must
//! look as before, no secret that was planted may be found in anything that came out in any of its usual
//! encodings, the audit log must hold together, and the next run must work.
//!
//! # The protocol of a probe
//!
//! It prints a line `@ NAME VERDICT DETAIL` for each attempt, where VERDICT is `breach` or `denied`, and
//! exits with 0 if anything got through, with 10 if nothing did, and with anything else if it couldn't
//! run, which fails the row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::host::{Snapshot, command_lines, eventually, is_root, namespaces_of, pids};
use crate::left::left;
use crate::product::{Product, Ran, finish};
use crate::secrets::Secrets;

/// Who runs the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Root.
    Root,
    /// An ordinary user.
    Ordinary,
}

impl User {
    fn name(self) -> &'static str {
        match self {
            User::Root => "root",
            User::Ordinary => "rootless",
        }
    }
}

/// The boundary that a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// A container.
    Container,
    /// A Python in WebAssembly, or a module.
    Wasm,
}

impl Boundary {
    fn name(self) -> &'static str {
        match self {
            Boundary::Container => "container",
            Boundary::Wasm => "wasm",
        }
    }

    /// The options of `run` and `batch` that choose it.
    #[must_use]
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Boundary::Container => &["--profile", "internal"],
            Boundary::Wasm => &["--profile", "internal", "--backend", "wasm"],
        }
    }
}

/// What became of the attempts of one probe, by name.
pub type Attempts = BTreeMap<String, Attempt>;

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Whether it got through.
    pub breach: bool,
    /// What the probe says of it.
    pub detail: String,
}

/// One row while it is tested.
pub struct Row {
    id: &'static str,
    /// The name of the test.
    test: String,
    boundary: Boundary,
    user: User,
    product: Product,
    before: Snapshot,
    secrets: Vec<String>,
    said: String,
    /// How many attempts were denied inside and got through outside.
    conclusive: usize,
    inconclusive: Vec<String>,
    /// Words that accept what the host lacks.
    accepting: Vec<String>,
}

/// Python that every probe in Python begins with.
const PRELUDE: &str = r#"
import sys
_breach = False
_denials = (OSError, ValueError)
def report(name, breach, detail=''):
    global _breach
    _breach = _breach or bool(breach)
    print('@', name.replace(' ', '_'), 'breach' if breach else 'denied', str(detail).replace('\n', ' ')[:200], flush=True)
def attempt(name, action):
    "Gets through unless it raises one of _denials or gives False."
    try:
        result = action()
    except _denials as error:
        report(name, False, repr(error))
    else:
        report(name, result is not False, '' if result is None else result)
def done():
    sys.exit(0 if _breach else 10)
"#;

/// Added to it in WebAssembly, whose Python lacks the functions that ask for what it can't have.
const LACKS: &str = "_denials += (AttributeError,)\n";

impl Row {
    /// Begins a row about containers, with no other test using the host. None if it can't be tested by this
    /// user; that is recorded.
    #[must_use]
    pub fn begin(id: &'static str, test: &str, program: &str, user: User) -> Option<Row> {
        let alone = || Some(product(program, user));
        Row::begin_with(id, test, Boundary::Container, user, alone)
    }

    /// The same about WebAssembly, with a template of Python out of this folder.
    #[must_use]
    pub fn begin_in_wasm(
        id: &'static str,
        test: &str,
        program: &str,
        user: User,
        templates: Option<PathBuf>,
    ) -> Option<Row> {
        let alone = || product(program, user).with_python(&templates?, &["python"]);
        Row::begin_with(id, test, Boundary::Wasm, user, alone)
    }

    fn begin_with(
        id: &'static str,
        test: &str,
        boundary: Boundary,
        user: User,
        product: impl FnOnce() -> Option<Product>,
    ) -> Option<Row> {
        let skipped = |why: &str| {
            crate::record_skip(test, why);
            record(boundary, user, id, "skipped", why);
        };
        if user == User::Root && !is_root() {
            skipped("the tests don't run as root");
            return None;
        }
        let Some(product) = product() else {
            skipped("no template of Python is prepared (COFFERDAM_TEST_TEMPLATES)");
            return None;
        };
        let before = Snapshot::take();
        let test = test.to_owned();
        let mut row = Row {
            id,
            test,
            boundary,
            user,
            product,
            before,
            secrets: vec![],
            said: String::new(),
            conclusive: 0,
            inconclusive: vec![],
            accepting: vec![],
        };
        if user == User::Ordinary {
            row.accepting = row.gaps().into_iter().flat_map(|gap| ["--accept-gap".to_owned(), gap]).collect();
        }
        Some(row)
    }

    /// What this host can't hold for this user: what a refusal says could be accepted.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let words = [&["run"], self.boundary.options(), &self.saying("")].concat();
        crate::product::gaps_in(&self.product.call(words).stderr)
    }

    /// Words of `run` for a program that prints a text.
    #[must_use]
    pub fn saying<'a>(&self, text: &'a str) -> Vec<&'a str> {
        match self.boundary {
            Boundary::Container => vec!["--", "echo", text],
            Boundary::Wasm => vec!["-c", "import sys; print(*sys.argv[1:])", text],
        }
    }

    /// Which boundary it is about.
    #[must_use]
    pub fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// The boundary's name, as an Outcome has it.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.boundary.name()
    }

    /// The whole of a probe for the boundary.
    #[must_use]
    pub fn probe(&self, python: &str) -> String {
        match self.boundary {
            Boundary::Container => probe(python),
            Boundary::Wasm => probe(&format!("{LACKS}{python}")),
        }
    }

    /// Who runs the sandbox.
    #[must_use]
    pub fn user(&self) -> User {
        self.user
    }

    /// The program under test.
    #[must_use]
    pub fn product(&self) -> &Product {
        &self.product
    }

    /// A secret that must not come out of any run.
    pub fn secret(&mut self) -> String {
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let secret = format!("canary-{}", random.trim());
        self.secrets.push(secret.clone());
        secret
    }

    /// A file outside that holds a secret and can be read by whoever runs the sandbox.
    pub fn canary(&mut self, name: &str) -> (PathBuf, String) {
        let secret = self.secret();
        let path = self.product.file(name, &secret);
        self.product.give(&path);
        (path, secret)
    }

    /// `run` in the boundary, with what this host lacks accepted. What it says counts as having
    /// come out.
    pub fn run(&mut self, args: &[&str]) -> Ran {
        let command = self.command(args);
        self.finish_command(command)
    }

    /// The same, not started yet. Hand it to [`Row::finish_command`].
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut words = [&["run"], self.boundary.options()].concat();
        words.extend(self.accepting.iter().map(String::as_str));
        words.extend(args);
        self.product.command(words)
    }

    /// `batch`, as [`Row::command`] is `run`; its jobs are for standard input ([`with_input`]).
    #[must_use]
    pub fn batch(&self, args: &[&str]) -> Command {
        let mut words = [&["batch"], self.boundary.options()].concat();
        words.extend(self.accepting.iter().map(String::as_str));
        words.extend(args);
        self.product.command(words)
    }

    /// Words of `run` that accept what this host lacks for this user.
    #[must_use]
    pub fn accepting(&self) -> &[String] {
        &self.accepting
    }

    /// Counts something that the program said as having come out.
    pub fn heard(&mut self, ran: &Ran) {
        let _ = write!(self.said, "{}\n{}\n", ran.stdout, ran.stderr); // a String takes everything
    }

    /// Runs a command of the program's to its end; what it says counts as having come out.
    pub fn finish_command(&mut self, command: Command) -> Ran {
        let ran = finish(command);
        self.heard(&ran);
        ran
    }

    /// Runs Python inside, under the options that are given, and gives its attempts.
    pub fn inside(&mut self, options: &[&str], python: &str) -> Attempts {
        let code = self.probe(python);
        let words = [options, &["-c", &code]].concat();
        let ran = self.run(&words);
        attempts(&ran)
    }

    /// Runs Python inside as [`Row::inside`] does; gives the Outcome too, in which everything that it
    /// printed is.
    pub fn inside_with_outcome(&mut self, options: &[&str], python: &str) -> (Attempts, Value) {
        let code = self.probe(python);
        let ran = self.run(&[&["--json"], options, &["-c", &code]].concat());
        let outcome = ran.json();
        let stdout = outcome["stdout"]["text"].as_str().unwrap().to_owned();
        (attempts(&Ran { stdout, ..ran }), outcome)
    }

    /// Runs Python outside, as the same kind of user: the positive control.
    pub fn outside(&self, python: &str) -> Attempts {
        let code = probe(python);
        let mut command = self.product.beside("/usr/bin/python3", ["-c", &code]);
        command.current_dir(self.product.folder());
        attempts(&finish(command))
    }

    /// `run` under profile `internal`, started by other words as the same user: a shell that opens
    /// descriptors first and then executes what follows.
    #[must_use]
    pub fn command_after(&self, before: &[&str], args: &[&str]) -> Command {
        let plain = self.product.command::<&str>([]);
        let program = self.product.program().to_str().unwrap();
        let mut words = [before, &[program, "run"], self.boundary.options()].concat();
        words.extend(self.accepting.iter().map(String::as_str));
        words.extend(args);
        let mut command = self.product.beside(words[0], &words[1..]);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Runs Python outside, started by other words as the same kind of user.
    #[must_use]
    pub fn outside_after(&self, before: &[&str], python: &str) -> Attempts {
        let code = probe(python);
        let words = [before, &["/usr/bin/python3", "-c", &code]].concat();
        let mut command = self.product.beside(words[0], &words[1..]);
        command.current_dir(self.product.folder());
        attempts(&finish(command))
    }

    /// The attempts of a probe (see [`probe`]) that a command runs; what it says counts as having come
    /// out.
    pub fn attempts_of(&mut self, command: Command) -> Attempts {
        let ran = self.finish_command(command);
        attempts(&ran)
    }

    /// `batch` under profile `internal`, with all its jobs at once: their Outcomes.
    pub fn outcomes(&mut self, options: &[&str], jobs: &[Value]) -> Vec<Value> {
        let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
        let mut command = self.batch(options);
        command.stdin(std::fs::File::open(self.product.file("jobs.jsonl", lines)).unwrap());
        let ran = self.finish_command(command);
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Builds a program in C that follows the protocol by itself.
    #[must_use]
    pub fn build(&self, name: &str, c: &str) -> PathBuf {
        let source = self.product.file(format!("{name}.c"), c);
        let program = self.product.folder().join(name);
        let mut command = Command::new("cc");
        command.args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source);
        let built = finish(command);
        assert_eq!(built.code, 0, "{built:?}");
        self.product.give(&program);
        program
    }

    /// Runs a program that was built inside, and gives its attempts.
    pub fn inside_program(&mut self, options: &[&str], program: &Path, args: &[&str]) -> Attempts {
        let words = [options, &[program.to_str().unwrap()], args].concat();
        let ran = self.run(&words);
        attempts(&ran)
    }

    /// Runs a program that was built outside, as the same kind of user.
    #[must_use]
    pub fn outside_program(&self, program: &Path, args: &[&str]) -> Attempts {
        attempts(&finish(self.product.beside(program, args)))
    }

    /// Runs Python inside and outside: nothing may get through inside, and what doesn't outside either
    /// is inconclusive.
    pub fn denies(&mut self, python: &str) {
        self.denies_under(&[], python);
    }

    /// The same, with options for the run inside.
    pub fn denies_under(&mut self, options: &[&str], python: &str) {
        let (inside, outside) = (self.inside(options, python), self.outside(python));
        self.compare(&inside, &outside);
    }

    /// Holds what a probe got inside against what it got where the control is absent, which must have
    /// attempted the same.
    pub fn compare(&mut self, inside: &Attempts, control: &Attempts) {
        for name in self.unproved(inside, control, &[]) {
            self.inconclusive(format!("{name}: outside too: {}", control[&name].detail));
        }
    }

    /// The same, for a probe of which these attempts are made inside alone; gives the names of those that
    /// prove nothing, since they don't get through outside either or aren't made there.
    pub fn unproved(&mut self, inside: &Attempts, control: &Attempts, inside_alone: &[&str]) -> Vec<String> {
        let breaches: Vec<_> = inside.iter().filter(|(_, attempt)| attempt.breach).collect();
        assert!(breaches.is_empty(), "{} got through: {breaches:?}", self.id);
        assert!(!inside.is_empty(), "{}: the probe attempted nothing", self.id);
        let differ = differing(inside, control, inside_alone);
        assert!(differ.is_empty(), "{}: attempted on one side alone: {differ:?}", self.id);
        let got_through = |name: &String| control.get(name).is_some_and(|attempt| attempt.breach);
        let (proved, unproved): (Vec<_>, Vec<_>) = inside.keys().cloned().partition(got_through);
        self.conclusive += proved.len();
        unproved
    }

    /// Notes that something held which was seen to be otherwise where the control is absent, by other means
    /// than the attempts of a probe.
    pub fn proved(&mut self) {
        self.conclusive += 1;
    }

    /// Notes a part of the row that proves nothing on this host, once.
    pub fn inconclusive(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.inconclusive.contains(&what) {
            self.inconclusive.push(what);
        }
    }

    /// Ends a row that can't be tested here to its end: what it did until then is looked at all the same.
    pub fn skip(mut self, reason: &str) {
        self.oracle();
        crate::record_skip(&self.test, reason);
        record(self.boundary, self.user, self.id, "skipped", reason);
    }

    /// Ends the row. If nothing that it attempts gets through outside it has proved nothing.
    pub fn end(mut self) {
        self.oracle();
        let unproved = self.inconclusive.join("; ");
        if self.conclusive == 0 {
            crate::record_skip(&self.test, &format!("inconclusive: {unproved}"));
            return record(self.boundary, self.user, self.id, "inconclusive", &unproved);
        }
        record(self.boundary, self.user, self.id, "passed", &unproved);
    }

    /// What must hold after every row, whatever its probes say.
    fn oracle(&mut self) {
        self.next_run_works();
        self.look_for_secrets();
        let log = self.product.call(["audit", "verify"]);
        assert_eq!(log.code, 0, "{}: the audit log: {log:?}", self.id);
        self.what_began_has_ended();
        // What others do on this host meanwhile comes and goes, or belongs to runs that aren't ours; what
        // we left stays.
        let mut left = self.new_on_the_host();
        eventually(std::time::Duration::from_secs(15), || {
            let now = self.new_on_the_host();
            left.retain(|item| now.contains(item));
            left.is_empty()
        });
        assert_eq!(left, [] as [String; 0], "{}: the host isn't as it was", self.id);
    }

    /// The next run works, and while it has a secret of the operator's no command line of the host's has
    /// any: everybody may read those.
    fn next_run_works(&mut self) {
        let secret = self.secret();
        let waits: &[&str] = match self.boundary {
            Boundary::Container => &["--", "sh", "-c", "echo next; read line"],
            Boundary::Wasm => &["-c", "import sys; print('next', flush=True); sys.stdin.readline()"],
        };
        let mut command = self.command(&[&["--pass-env", "ROW_SECRET"], waits].concat());
        let mut next = crate::product::start(command.env("ROW_SECRET", secret).stdin(Stdio::piped()));
        let (mut said, mut stdout) = (String::new(), BufReader::new(next.stdout.take().unwrap()));
        stdout.read_line(&mut said).unwrap();
        let secrets = Secrets::new(&self.secrets);
        for (pid, line) in command_lines() {
            let found = secrets.found_in(&line);
            let line = String::from_utf8_lossy(&line);
            assert_eq!(found, None, "{}: a secret is in the command line of {pid}: {line}", self.id);
        }
        let _ = next.stdin.take().unwrap().write_all(b"\n"); // it may have failed
        let ran = crate::product::wait(next, std::time::Instant::now());
        assert_eq!((ran.code, said.as_str()), (0, "next\n"), "{}: the next run: {ran:?}", self.id);
        self.heard(&ran);
    }

    /// The log tells the end of every sandbox that it tells the start of, unless that failed, and of every
    /// run but those whose Cofferdam was killed.
    fn what_began_has_ended(&self) {
        let log = std::fs::read_to_string(self.product.state().join("audit/log.ndjson")).unwrap();
        let count = |text: &str| log.matches(text).count();
        let event = |name: &str| count(&format!("\"event\":\"{name}\""));
        let (opened, failed) = (event("sandbox.opened"), count("\"end\":\"sandbox_error\""));
        let closed = opened.saturating_sub(failed)..=opened;
        assert!(closed.contains(&event("sandbox.closed")), "{}: {log}", self.id);
        let (starts, swept) = (event("task.start"), count("\"swept\":true"));
        let ends = starts.saturating_sub(swept)..=starts;
        assert!(ends.contains(&event("task.end")), "{}: {log}", self.id);
    }

    /// What the host has now and hadn't when the row began, as far as it can be this product's.
    fn new_on_the_host(&self) -> Vec<String> {
        let mut new = left(&self.product, &self.before);
        let others = namespaces_of_others(&self.product.state());
        new.retain(|item| !others.contains(item.trim_matches('"')));
        new
    }

    /// No secret is in what was said, in what the program keeps, or in what came out as files.
    fn look_for_secrets(&mut self) {
        let mut places = vec![("what was said".to_owned(), self.said.clone().into_bytes())];
        collect(&self.product.state(), &mut places);
        for out in std::fs::read_dir(self.product.folder()).unwrap().flatten() {
            if out.file_name().to_string_lossy().starts_with("out") {
                collect(&out.path(), &mut places);
            }
        }
        let secrets = Secrets::new(&self.secrets);
        for (place, bytes) in &places {
            let found = secrets.found_in(bytes);
            assert_eq!(found, None, "{}: a secret is in {place}", self.id);
        }
    }
}

/// The program of a user's, with no other test using the host.
fn product(program: &str, user: User) -> Product {
    match user {
        User::Root => Product::alone(program),
        User::Ordinary => Product::alone_of_an_ordinary_user(program),
    }
}

/// What was attempted on one side alone, but for what is known to be attempted inside alone.
fn differing<'a>(inside: &'a Attempts, control: &'a Attempts, inside_alone: &[&str]) -> Vec<&'a String> {
    let untried = |name: &&String| !control.contains_key(*name) && !inside_alone.contains(&name.as_str());
    let missing = control.keys().filter(|name| !inside.contains_key(*name));
    inside.keys().filter(untried).chain(missing).collect()
}

/// The whole of a probe in Python, for whoever starts it in another way.
#[must_use]
pub fn probe(python: &str) -> String {
    format!("{PRELUDE}\n{python}\ndone()\n")
}

/// The attempts of a probe that was a job of a batch.
#[must_use]
pub fn attempts_of_job(outcome: &Value) -> Attempts {
    let text = |stream: &str| outcome[stream]["text"].as_str().unwrap_or_default().to_owned();
    let code = outcome["exit_code"].as_i64().unwrap_or(-1) as i32;
    let took = std::time::Duration::ZERO;
    attempts(&Ran { code, stdout: text("stdout"), stderr: text("stderr"), took })
}

/// Namespaces of sandboxes that a product with another state folder made.
fn namespaces_of_others(state: &Path) -> BTreeSet<String> {
    let is_other = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let named =
            environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"COFFERDAM_STATE="));
        Some(named? != state.as_os_str().as_encoded_bytes())
    };
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let by_others = |pid: &i32| {
        std::iter::successors(Some(*pid), |pid| parent(*pid)).take(64).find_map(is_other).unwrap_or(false)
    };
    pids().filter(by_others).flat_map(namespaces_of).collect()
}

/// Adds every file below a folder.
fn collect(path: &Path, into: &mut Vec<(String, Vec<u8>)>) {
    let Ok(found) = std::fs::symlink_metadata(path) else { return };
    if found.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), into);
        }
    } else if found.is_file() {
        let mut bytes = vec![];
        std::fs::File::open(path).unwrap().take(16 << 20).read_to_end(&mut bytes).unwrap();
        into.push((path.display().to_string(), bytes));
    }
}

/// Reads the attempts of a probe, whose exit code must agree with them.
///
/// # Panics
///
/// If the probe couldn't run, or doesn't follow the protocol.
#[must_use]
pub fn attempts(ran: &Ran) -> Attempts {
    let mut attempts = Attempts::new();
    for line in ran.stdout.lines() {
        let Some(line) = line.strip_prefix("@ ") else { continue };
        let mut words = line.splitn(3, ' ');
        let (name, verdict) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let breach = match verdict {
            "breach" => true,
            "denied" => false,
            _ => panic!("a probe said {line:?}"),
        };
        let detail = words.next().unwrap_or_default().to_owned();
        let known = attempts.insert(name.to_owned(), Attempt { breach, detail });
        assert!(known.is_none(), "a probe attempted {name} twice");
    }
    let expected = if attempts.values().any(|attempt| attempt.breach) { 0 } else { 10 };
    assert_eq!(ran.code, expected, "a probe could not run: {ran:?}");
    attempts
}

/// Writes down what became of a row where `cargo xtask test` reads it.
fn record(boundary: Boundary, user: User, id: &str, verdict: &str, detail: &str) {
    println!("ROW {} ({}) {id}: {verdict} {detail}", boundary.name(), user.name());
    if let Some(path) = std::env::var_os("COFFERDAM_ROWS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        let detail = detail.replace(['\t', '\n'], " ");
        let line = format!("{}\t{}\t{id}\t{verdict}\t{detail}\n", boundary.name(), user.name());
        file.write_all(line.as_bytes()).unwrap(); // at once: others write too
    }
}

/// Feeds bytes to a command's standard input and runs it to its end.
pub fn with_input(mut command: Command, input: &[u8]) -> Ran {
    let mut child = crate::product::start(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input); // the program may not want it all
    });
    let ran = crate::product::wait(child, std::time::Instant::now());
    writer.join().unwrap();
    ran
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempted(names: &[&str]) -> Attempts {
        let attempt = Attempt { breach: false, detail: String::new() };
        names.iter().map(|name| ((*name).to_owned(), attempt.clone())).collect()
    }

    #[test]
    fn an_attempt_of_one_side_alone_is_seen_from_either_side() {
        let (both, more) = (attempted(&["a", "b"]), attempted(&["a", "b", "c"]));
        assert_eq!(differing(&both, &both, &[]), [] as [&str; 0]);
        assert_eq!(differing(&more, &both, &[]), ["c"]);
        assert_eq!(differing(&more, &both, &["c"]), [] as [&str; 0]);
        assert_eq!(differing(&both, &more, &["c"]), ["c"], "only inside may there be more");
    }
}
