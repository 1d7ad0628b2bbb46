//! `cargo xtask test`: every test of the workspace, with nothing skipped in silence.
//!
//! Uses cargo-nextest where it is installed and plain `cargo test` otherwise; both with the `dev`
//! profile, and both leave the same `results.json` behind.
//!
//! # How a test says that it can't run here
//!
//! It appends one line, `NAME<TAB>REASON`, to the file that the environment variable
//! `COFFERDAM_SKIPS` names, and returns. NAME is the test's path (what the thread running it is
//! called), with the crate's name and `::` in front where that alone is ambiguous. The test then counts
//! as skipped. A test marked `#[ignore]` does too. What became of the table of attacks is told in the
//! same way ([`rows`]).

mod libtest;
pub(crate) mod needs;
mod nextest;
pub(crate) mod results;
pub(crate) mod rows;
mod stream;
mod templates;

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Verdict;
use crate::problem::Problem;
use crate::workspace::Workspace;
use results::{End, Results, Run};

/// The variable by which tests find the file for their skips.
const SKIPS_VARIABLE: &str = "COFFERDAM_SKIPS";

/// What tests are told by variables.
struct Told<'a> {
    /// The file for their skips.
    skips: &'a Path,
    /// The folder of what is prepared for them.
    templates: &'a Path,
}

/// What was built for the tests.
struct Built {
    /// Which test binary belongs to which target. Key: file name; value: the name that nextest would use.
    binaries: HashMap<String, String>,
    /// The program itself, if a test uses it.
    product: Option<PathBuf>,
}

/// Runs the tests that `args` select, or all of them.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<Verdict, Problem> {
    needs::check()?;
    let folder = workspace.results_folder()?;
    let skips = folder.join("skips.tsv");
    let rows = folder.join(rows::FILE);
    for file in [&skips, &rows] {
        fs::write(file, "").map_err(Problem::at("write", file))?;
    }

    let nextest = workspace.has_cargo_tool("nextest");
    let built = build(workspace, args, nextest)?;
    let templates = templates::prepare(built.product.as_deref())?;
    let told = Told { skips: &skips, templates: &templates.folder };
    let (runs, runner_is_content) = if nextest {
        with_nextest(workspace, args, &told)?
    } else {
        with_cargo(workspace, args, &told, built.binaries)?
    };
    drop(templates);

    let mut results =
        Results { runner: if nextest { "cargo-nextest" } else { "cargo test" }.to_owned(), runs };
    let skip_lines = fs::read_to_string(&skips).map_err(Problem::at("read", &skips))?;
    let strangers = results.mark_skipped(&skip_lines);
    let file = if args.is_empty() { "results.json" } else { "results.partial.json" };
    results.write(&folder.join(file))?;
    if results.runs.is_empty() {
        return Err(Problem::Stop(
            "not one test ran; look at what was selected, and at the messages above".to_owned(),
        ));
    }
    let verdict = report(&results, &strangers, runner_is_content)?;
    print!("{}", rows::summary(&fs::read_to_string(&rows).map_err(Problem::at("read", &rows))?));
    Ok(verdict)
}

fn report(results: &Results, strangers: &[String], runner_is_content: bool) -> Result<Verdict, Problem> {
    println!();
    for run in &results.runs {
        match &run.end {
            End::Passed => {}
            End::Failed => println!("FAILED  {}", run.id()),
            End::Skipped(reason) => println!("SKIPPED {}: {reason}", run.id()),
        }
    }
    for line in strangers {
        println!("SKIPPED by a test that isn't among those that ran: {line}");
    }
    let count = |wanted: fn(&End) -> bool| results.runs.iter().filter(|run| wanted(&run.end)).count();
    let failed = count(|end| matches!(end, End::Failed));
    if failed == 0 && !runner_is_content {
        println!("The runner ended with an error although no test failed: its message is above.");
    }
    println!(
        "{} passed, {failed} failed, {} skipped",
        count(|end| matches!(end, End::Passed)),
        count(|end| matches!(end, End::Skipped(_)))
    );
    Ok(Verdict::from(failed == 0 && runner_is_content))
}

fn with_nextest(
    workspace: &Workspace,
    args: &[String],
    told: &Told<'_>,
) -> Result<(Vec<Run>, bool), Problem> {
    let mut command = workspace.cargo();
    command.args(["nextest", "run", "--no-fail-fast", "--color=never"]);
    // With `all`, ignored tests are shown, but also every test that `args` don't select.
    command.arg(if args.is_empty() { "--status-level=all" } else { "--status-level=pass" });
    command.arg("--final-status-level=fail");
    select(&mut command, args, told);
    let mut parser = nextest::Parser::default();
    let mut content = follow(&mut command, |line| parser.line(line))?;
    let mut runs = parser.finish();
    if args.is_empty() {
        // nextest doesn't run documentation tests, and some of our promises are of the form "this does
        // not compile".
        let mut command = workspace.cargo();
        command.args(["test", "--doc", "--no-fail-fast"]);
        select(&mut command, args, told);
        let mut parser = libtest::Parser::new(HashMap::new());
        content &= follow(&mut command, |line| parser.line(line))?;
        runs.extend(parser.finish());
    }
    Ok((runs, content))
}

fn with_cargo(
    workspace: &Workspace,
    args: &[String],
    told: &Told<'_>,
    binaries: HashMap<String, String>,
) -> Result<(Vec<Run>, bool), Problem> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]);
    select(&mut command, args, told);
    let mut parser = libtest::Parser::new(binaries);
    let content = follow(&mut command, |line| parser.line(line))?;
    Ok((parser.finish(), content))
}

/// Shows the output while it is parsed; says whether the command ended well.
fn follow(command: &mut Command, mut parse: impl FnMut(&str)) -> Result<bool, Problem> {
    let status = stream::each_line(command, |line| {
        // If nobody reads any more, the tests and their results still matter.
        let _ = writeln!(std::io::stdout(), "{line}");
        parse(line);
    })?;
    Ok(status.success())
}

fn select(command: &mut Command, args: &[String], told: &Told<'_>) {
    whole_workspace(command, args);
    command.args(args).env(SKIPS_VARIABLE, told.skips).env("CARGO_TERM_COLOR", "never");
    command.env(rows::VARIABLE, told.skips.with_file_name(rows::FILE));
    command.env(templates::VARIABLE, told.templates);
}

fn whole_workspace(command: &mut Command, args: &[String]) {
    if !args.iter().any(|arg| arg.starts_with("-p") || arg.starts_with("--package")) {
        command.arg("--workspace");
    }
}

/// Builds the test binaries and says which belongs to which target: `cargo test` prints only a file name when it
/// runs them. nextest has other words for what is selected than cargo: for it, all of the packages is built.
fn build(workspace: &Workspace, args: &[String], nextest: bool) -> Result<Built, Problem> {
    let ours =
        if nextest { packages(args) } else { args.iter().take_while(|arg| *arg != "--").cloned().collect() };
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    whole_workspace(&mut command, &ours);
    command.args(&ours).env("CARGO_TERM_COLOR", "never");
    let output = command.stderr(Stdio::inherit()).output().map_err(Problem::starting("cargo test"))?;
    if !output.status.success() {
        return Err(Problem::Stop("the tests don't build; the compiler's messages are above".to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(Built {
        binaries: text.lines().filter_map(artifact).collect(),
        product: text.lines().find_map(product),
    })
}

/// Which packages and features some arguments name.
fn packages(args: &[String]) -> Vec<String> {
    let mut found = vec![];
    let mut args = args.iter().take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        let takes_one = matches!(arg.as_str(), "-p" | "--package" | "-F" | "--features");
        let whole = ["-p", "--package=", "-F", "--features=", "--no-default-features", "--all-features"];
        if takes_one || whole.iter().any(|word| arg.starts_with(word)) {
            found.push(arg.clone());
            if takes_one {
                found.extend(args.next().cloned());
            }
        }
    }
    found
}

/// Where the program itself is, if a message of cargo's is about that.
fn product(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let ours = target["name"] == "cofferdam" && target["kind"][0] == "bin";
    let path = message["executable"].as_str()?;
    (ours && message["profile"]["test"] == Value::Bool(false)).then(|| path.into())
}

fn artifact(line: &str) -> Option<(String, String)> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != Value::Bool(true) {
        return None;
    }
    let executable = Path::new(message["executable"].as_str()?).file_name()?.to_string_lossy().into_owned();
    let package = package_name(message["package_id"].as_str()?)?;
    let target = message["target"]["name"].as_str()?;
    let name = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package}::{target}"),
        kind @ ("bin" | "example" | "bench") => format!("{package}::{kind}/{target}"),
        _ => package,
    };
    Some((executable, name))
}

/// The name in a package id, which is `path+file:///…/FOLDER#VERSION` where the folder has the
/// package's name and `path+file:///…/FOLDER#NAME@VERSION` where it has not.
fn package_name(id: &str) -> Option<String> {
    let (location, fragment) = id.rsplit_once('#')?;
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => location.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_binary_gets_the_name_that_nextest_gives_it() {
        let line = |kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/core#cofferdam-core@0.1.0",
                "target":{{"kind":["{kind}"],"name":"run"}},"profile":{{"test":true}},
                "executable":"/t/debug/deps/run-275ab411bad78933"}}"#
            )
            .replace('\n', "")
        };
        let name = |kind| artifact(&line(kind)).unwrap();
        assert_eq!(name("test"), ("run-275ab411bad78933".to_owned(), "cofferdam-core::run".to_owned()));
        assert_eq!(name("bin").1, "cofferdam-core::bin/run");
        assert_eq!(name("lib").1, "cofferdam-core");
    }

    #[test]
    fn the_program_itself_is_found_among_what_was_built() {
        let line = |test: bool| {
            format!(
                r#"{{"package_id":"path+file:///w/crates/cofferdam#0.1.0","target":{{"kind":["bin"],"name":"cofferdam"}},
                "profile":{{"test":{test}}},"executable":"/t/debug/cofferdam"}}"#
            )
        };
        assert_eq!(product(&line(false)), Some("/t/debug/cofferdam".into()));
        assert_eq!(product(&line(true)), None);
    }

    #[test]
    fn only_packages_and_features_are_built_for_nextest() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let args = words("-p core --features weaken -E test(a) --package=sys -- --exact");
        assert_eq!(packages(&args), words("-p core --features weaken --package=sys"));
    }

    #[test]
    fn a_program_that_is_not_a_test_binary_is_left_out() {
        let line = r#"{"package_id":"path+file:///w/sample#0.1.0","target":{"kind":["bin"],"name":"sample"},
            "profile":{"test":false},"executable":"/t/debug/sample"}"#;
        assert_eq!(artifact(&line.replace('\n', "")), None);
    }

    #[test]
    fn a_package_is_named_after_its_folder_unless_its_id_says_otherwise() {
        assert_eq!(package_name("path+file:///w/sample#0.1.0").as_deref(), Some("sample"));
        assert_eq!(
            package_name("path+file:///w/crates/core#cofferdam-core@0.1.0").as_deref(),
            Some("cofferdam-core")
        );
    }
}
