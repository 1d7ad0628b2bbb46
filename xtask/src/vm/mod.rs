//! `cargo xtask vm`: the same product under another kernel, with cgroup version 2 alone.
//!
//! A Debian kernel is booted in QEMU, by emulation, so that it works wherever QEMU does. Its root file
//! system is this machine's own, read-only over 9p, with everything that is written kept in memory: so
//! nothing has to be installed in it, and nothing here is changed. It runs the checks of [`checks`] and
//! says over the serial console what came of each.
//!
//! | Module | Holds |
//! |---|---|
//! | `checks` | what is checked, as whom; a new check is a line there |
//! | `packages` | the kernel and a shell for its start, from Debian's packages, unpacked below `target/vm` |
//! | `archive` | the initial file system, in the form that the kernel unpacks |
//! | `console` | what the machine says |
//! | `*.sh` | the three stages inside: before the root file system, plain, under systemd |

mod archive;
pub(crate) mod checks;
mod console;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Verdict;
use crate::problem::Problem;
use crate::test::results::{End, Results, Run};
use crate::workspace::Workspace;
use archive::Archive;
use checks::{CHECKS, Check};
use console::Console;

/// Where the results are, in the folder for our own.
pub(crate) const RESULTS: &str = "vm.json";

/// The time for everything inside, unless told otherwise: several times what it takes on two cores.
const SECONDS: u64 = 420;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Parts of names; a check is run if its name holds one of them, or if there are none.
    names: Vec<String>,
    seconds: u64,
}

/// Boots, checks, and tells.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    let options = parse(args)?;
    let chosen = |check: &&Check| {
        options.names.is_empty() || options.names.iter().any(|name| check.name.contains(name.as_str()))
    };
    let checks: Vec<&Check> = CHECKS.iter().filter(chosen).collect();
    if checks.is_empty() {
        return Err(Problem::Stop("no check has such a name; they are in xtask/src/vm/checks.rs".to_owned()));
    }
    let began = Instant::now();
    let runs = match prepare(workspace, &checks)? {
        Ok(machine) => machine.judge(&checks, Duration::from_secs(options.seconds))?,
        Err(missing) => skipped(&checks, &missing),
    };
    let results = Results { runner: "cargo xtask vm".to_owned(), runs };
    let file = if options.names.is_empty() { RESULTS } else { "vm.partial.json" };
    results.write(&workspace.results_folder()?.join(file))?;
    Ok(report(&results, began.elapsed()))
}

fn parse(args: &[String]) -> Result<Options, Problem> {
    let mut options = Options { names: vec![], seconds: SECONDS };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            options.seconds = args
                .next()
                .and_then(|value| value.parse().ok())
                .filter(|seconds| *seconds > 0)
                .ok_or_else(|| Problem::Stop("--seconds needs a whole number above 0".to_owned()))?;
        } else if arg.starts_with('-') {
            return Err(Problem::Stop(format!("what is `{arg}`? Usage: vm [NAME…] [--seconds N]")));
        } else {
            options.names.push(arg.clone());
        }
    }
    Ok(options)
}

/// A machine that is ready to be booted.
struct Machine {
    kernel: PathBuf,
    initial: PathBuf,
}

/// Builds what runs inside and what boots it; or names what is missing on this machine.
fn prepare(workspace: &Workspace, checks: &[&Check]) -> Result<Result<Machine, String>, Problem> {
    if !starts(QEMU) {
        return Ok(Err(format!("{QEMU} is not installed (Debian: qemu-system-x86)")));
    }
    let folder = workspace.target.join("vm");
    let found = match packages::get(&folder)? {
        Ok(found) => found,
        Err(missing) => return Ok(Err(missing)),
    };
    let programs = build(workspace)?;
    let mut archive = Archive::default();
    archive.folders(&["bin", "dev", "host", "modules", "new", "proc", "rw", "sys", "vm", "vm/checks"]);
    archive.program("init", include_bytes!("init.sh"));
    archive.program("bin/busybox", &read(&found.busybox)?);
    for (number, module) in found.modules.iter().enumerate() {
        archive.file(&format!("modules/{number:02}.ko"), &packages::module(module)?);
    }
    archive.program("vm/plain", include_bytes!("plain.sh"));
    archive.program("vm/systemd", include_bytes!("systemd.sh"));
    archive.program("vm/check", include_bytes!("check.sh"));
    archive.file("vm/words", include_bytes!("words.sh"));
    archive.program("vm/cofferdam", &read(&programs.product)?);
    archive.file("vm/programs", programs.as_shell().as_bytes());
    for check in checks {
        let name = format!("vm/checks/{}.{}", check.stage.word(), check.name);
        archive.file(&name, check.script.as_bytes());
    }
    let initial = folder.join("initial.cpio");
    fs::write(&initial, archive.finish()).map_err(Problem::at("write", &initial))?;
    Ok(Ok(Machine { kernel: found.kernel, initial }))
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    fs::read(path).map_err(Problem::at("read", path))
}

const QEMU: &str = "qemu-system-x86_64";

fn starts(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// What was built here and runs inside.
struct Programs {
    product: PathBuf,
    /// The test programs that a check may call, each by the name of a variable.
    tests: Vec<(String, PathBuf)>,
}

impl Programs {
    /// Lines for a shell: `SUITE_it=/path`.
    fn as_shell(&self) -> String {
        let quoted = |path: &Path| format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"));
        self.tests.iter().map(|(name, path)| format!("SUITE_{name}={}\n", quoted(path))).collect()
    }
}

/// Builds the product and the suites that checks call.
fn build(workspace: &Workspace) -> Result<Programs, Problem> {
    let output = workspace
        .cargo()
        .args(["test", "--no-run", "--quiet", "--message-format=json"])
        .args(["-p", "cofferdam", "-p", "cofferdam-sys", "--test", "it", "--test", "own_cgroup"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(Problem::starting("cargo test --no-run"))?;
    if !output.status.success() {
        return Err(Problem::Stop("the programs for the machine don't build; see above".to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let built =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter_map(|message| {
            let path = message["executable"].as_str()?.into();
            Some((message["target"]["name"].as_str()?.to_owned(), message["profile"]["test"] == true, path))
        });
    let mut programs = Programs { product: PathBuf::new(), tests: vec![] };
    for (name, is_test, path) in built {
        match (name.as_str(), is_test) {
            ("cofferdam", false) => programs.product = path,
            (_, true) => programs.tests.push((name, path)),
            _ => {}
        }
    }
    Ok(programs)
}

impl Machine {
    /// Boots, and listens until everything was said or the time is over.
    fn judge(&self, checks: &[&Check], most: Duration) -> Result<Vec<Run>, Problem> {
        let mut qemu = self.command().spawn().map_err(Problem::starting(QEMU))?;
        let lines = qemu.stdout.take().map(console::lines);
        let mut console = Console::default();
        let deadline = Instant::now() + most;
        if let Some(lines) = lines {
            while !console.ended() {
                let left = deadline.saturating_duration_since(Instant::now());
                let Ok(line) = lines.recv_timeout(left) else { break };
                if let Some(shown) = console.hear(&line) {
                    println!("{shown}");
                }
            }
        }
        let in_time = Instant::now() < deadline;
        stop(&mut qemu);
        if !console.ended() {
            let why = if in_time { "the machine stopped" } else { "the time was over" };
            println!("{why} before everything was checked; its last words:\n{}", console.last_words());
        }
        Ok(console.judge(checks))
    }

    /// Two cores, no network, no devices but a console and the root file system.
    fn command(&self) -> Command {
        let mut command = Command::new(QEMU);
        command
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"])
            .args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"])
            .args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initial)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }
}

/// The machine switches itself off; one that doesn't is killed.
fn stop(qemu: &mut Child) {
    for _ in 0..100 {
        if !matches!(qemu.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = qemu.kill(); // it may have ended meanwhile
    let _ = qemu.wait();
}

fn skipped(checks: &[&Check], why: &str) -> Vec<Run> {
    checks.iter().map(|check| check.run(End::Skipped(why.to_owned()))).collect()
}

fn report(results: &Results, took: Duration) -> Verdict {
    for run in &results.runs {
        match &run.end {
            End::Passed => {}
            End::Failed => println!("FAILED  {}", run.name),
            End::Skipped(reason) => println!("SKIPPED {}: {reason}", run.name),
        }
    }
    let count = |wanted: fn(&End) -> bool| results.runs.iter().filter(|run| wanted(&run.end)).count();
    let failed = count(|end| matches!(end, End::Failed));
    println!(
        "vm: {} passed, {failed} failed, {} skipped, in {} s",
        count(|end| matches!(end, End::Passed)),
        count(|end| matches!(end, End::Skipped(_))),
        took.as_secs()
    );
    Verdict::from(failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn names_and_a_time_are_read_in_any_order() {
        let expected = Options { names: args("root pids"), seconds: 9 };
        assert_eq!(parse(&args("root --seconds 9 pids")).unwrap(), expected);
        assert!(parse(&args("--seconds none")).is_err());
        assert!(parse(&args("--fast")).is_err());
    }
}
