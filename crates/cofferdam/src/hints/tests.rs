//! Claims about hints: when there is one, what it names, and what it never does.

use std::collections::BTreeMap;

use cofferdam_core::files::{GuestPath, Pattern, Python, Workspace};
use cofferdam_core::outcome::{Fault, RunId};

use super::*;
use crate::report;

/// A working directory with a script and its neighbours.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for name in ["job.py", "helper.py", "data.csv", ".env"] {
            fs::write(folder.0.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.0.path().join("w")).unwrap();
        fs::write(folder.0.path().join("w/.env.local"), "").unwrap();
        fs::write(folder.0.path().join("w/own.txt"), "").unwrap();
        folder
    }

    fn host<'a>(&self, asked: &'a Asked, user: u32) -> Host<'a> {
        let around = Surroundings { folder: self.0.path().to_owned(), ..Surroundings::default() };
        Host { asked, around, user }
    }

    /// The hints after a run of `job.py` that failed with a line.
    fn hints(&self, files: Files, line: &str) -> Vec<String> {
        let asked = Asked { file: Some("job.py".into()), files, ..Asked::default() };
        self.host(&asked, 1000).hints(&failed(End::Exited(1), None), line)
    }

    fn with_workspace(&self) -> Files {
        let host = self.0.path().join("w");
        Files { workspace: Some(Workspace { host, copy: false }), ..Files::default() }
    }
}

fn failed(end: End, code: Option<FaultCode>) -> Outcome {
    let fault = Fault { code: FaultCode::Internal, message: String::new(), fix: None };
    let mut outcome = report::never_ran(&RunId::new(1, [0; 10]), BTreeMap::new(), fault);
    outcome.end = end;
    outcome.error = code.map(|code| Fault { code, message: String::new(), fix: None });
    outcome
}

#[test]
fn a_module_beside_the_script_asks_for_the_folder() {
    let folder = Folder::new();
    let line = "ModuleNotFoundError: No module named 'helper'";
    assert_eq!(
        folder.hints(Files::default(), line),
        ["only \"job.py\" is inside, and \"helper.py\" beside it is not: show the folder with --workspace ."]
    );
}

#[test]
fn a_module_that_an_environment_lacks_is_to_be_installed_there() {
    let folder = Folder::new();
    let place = |path: &str| GuestPath::new(Path::new(path)).unwrap();
    let python = Some(Python { executable: place("/v/bin/python"), venv: Some(place("/v")) });
    let hints = folder.hints(Files { python, ..Files::default() }, "No module named 'numpy'");
    assert_eq!(hints, ["numpy isn't installed in \"/v\": install it there, and run this again"]);
}

#[test]
fn a_module_that_is_nowhere_names_ones_own_python_or_an_environment() {
    let folder = Folder::new();
    let line = "No module named 'numpy'";
    assert!(folder.hints(Files::default(), line)[0].contains("virtual environment"), "the last resort");
    fs::create_dir(folder.0.path().join(".venv")).unwrap();
    fs::write(folder.0.path().join(".venv/pyvenv.cfg"), "").unwrap();
    assert!(folder.hints(Files::default(), line)[0].ends_with("pass --venv .venv"));
    let asked = Asked::default();
    let mut host = folder.host(&asked, 1000);
    host.around.virtual_env = Some(folder.0.path().join(".venv"));
    let hints = host.hints(&failed(End::Exited(1), None), line);
    assert!(hints[0].contains("your own python3") && hints[0].contains("--venv"), "{hints:?}");
}

#[test]
fn a_missing_file_beside_the_script_is_named() {
    let folder = Folder::new();
    let line = "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'";
    assert!(folder.hints(Files::default(), line)[0].ends_with("--workspace ."));
    let hints = folder.hints(folder.with_workspace(), line);
    assert_eq!(
        hints,
        ["\"data.csv\" is not in the workspace: show it at \"/inputs/data.csv\" with --in data.csv"]
    );
    assert_eq!(folder.hints(Files::default(), "No such file or directory: 'nowhere.csv'"), [""; 0]);
}

#[test]
fn a_hidden_file_is_said_to_be_hidden() {
    let folder = Folder::new();
    let mut files = folder.with_workspace();
    let hints = folder.hints(files.clone(), "No such file or directory: '/workspace/.env.local'");
    assert!(hints[0].contains("hidden by the pattern \"**/.env*\""), "{hints:?}");
    let line = "cat: own.txt: No such file or directory";
    assert_eq!(folder.hints(files.clone(), line), [""; 0], "it is there, or the program removed it");
    files.hide = vec![Pattern::new("*.txt").unwrap()];
    assert!(folder.hints(files, line)[0].contains("hidden by the pattern \"*.txt\""));
    let alone = folder.hints(Files::default(), "No such file or directory: '.env'");
    assert!(alone[0].contains("hidden"), "a workspace wouldn't show it: {alone:?}");
}

#[test]
fn a_file_of_somebody_elses_asks_for_a_copy() {
    let folder = Folder::new();
    let line = "PermissionError: [Errno 13] Permission denied: 'own.txt'";
    let owner = fs::metadata(folder.0.path().join("w/own.txt")).unwrap().uid();
    let hints = |files: Files, user: u32| {
        let asked = Asked { files, ..Asked::default() };
        folder.host(&asked, user).hints(&failed(End::Exited(1), None), line)
    };
    assert!(hints(folder.with_workspace(), owner + 1)[0].ends_with("add --copy"));
    assert_eq!(hints(folder.with_workspace(), owner), [""; 0], "it is the caller's own");
    assert_eq!(hints(folder.with_workspace(), 0), [""; 0], "root can change it");
    let mut copied = folder.with_workspace();
    copied.workspace.as_mut().unwrap().copy = true;
    assert_eq!(hints(copied, owner + 1), [""; 0]);
}

#[test]
fn a_network_that_a_rule_opened_is_not_said_to_be_closed() {
    let folder = Folder::new();
    let line = "[Errno -3] Temporary failure in name resolution";
    assert!(folder.hints(Files::default(), line)[0].contains("no network"));
    let asked = Asked { has_network: true, ..Asked::default() };
    assert_eq!(folder.host(&asked, 1000).hints(&failed(End::Exited(1), None), line), [""; 0]);
}

#[test]
fn a_command_that_only_the_host_has_is_named_with_its_folder() {
    let folder = Folder::new();
    let tool = folder.0.path().join("mytool");
    fs::write(&tool, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let refused = failed(End::Refused, Some(FaultCode::NotFound));
    let hints = |command: &str| {
        let asked = Asked { command: Some(command.into()), ..Asked::default() };
        let mut host = folder.host(&asked, 1000);
        host.around.path = vec![folder.0.path().to_owned()];
        host.hints(&refused, "")
    };
    assert!(hints("mytool")[0].contains("--in"));
    assert!(hints("./mytool")[0].ends_with("--workspace ."));
    assert_eq!(hints("notool"), [""; 0]);
    let other = failed(End::Refused, Some(FaultCode::BackendRefused));
    let asked = Asked { command: Some("mytool".into()), ..Asked::default() };
    assert_eq!(folder.host(&asked, 1000).hints(&other, ""), [""; 0]);
}

#[test]
fn what_a_program_writes_is_only_compared() {
    let folder = Folder::new();
    fs::write(folder.0.path().join("a\u{1b}[2Jb"), "").unwrap();
    let long = "x".repeat(5000);
    for name in
        ["/etc/passwd", "../job.py", "w/../data.csv", "/workspace/../etc", "", ".", "/", "job.py", &long]
    {
        let hints = folder.hints(Files::default(), &format!("No such file or directory: '{name}'"));
        assert_eq!(hints, [""; 0], "{name}");
    }
    let hints = folder.hints(Files::default(), "No such file or directory: 'a\u{1b}[2Jb'");
    assert!(hints.len() == 1 && !hints[0].contains('\u{1b}'), "{hints:?}");
}

#[test]
fn there_are_few_hints_and_none_after_success() {
    let folder = Folder::new();
    for name in ["1", "2", "3", "4", "5"] {
        fs::write(folder.0.path().join(name), "").unwrap();
    }
    let text: String = (1..6).map(|n| format!("No such file or directory: '{n}'\n")).collect();
    assert_eq!(folder.hints(Files::default(), &text).len(), MOST);
    let asked = Asked { file: Some("job.py".into()), ..Asked::default() };
    for end in [End::Exited(0), End::TimedOut, End::OutOfMemory] {
        assert_eq!(of(&failed(end, None), &asked, b"Network is unreachable"), [""; 0], "{end:?}");
    }
    assert_eq!(of(&failed(End::Exited(1), None), &asked, b"Network is unreachable").len(), 1);
}
