//! Claims about hints: when there is one, what it names, and what it never does.

use std::collections::BTreeMap;

use cofferdam_core::files::{GuestPath, Pattern, Python, Workspace};
use cofferdam_core::outcome::{Fault, RunId};
use cofferdam_core::policy::Ceiling;
use cofferdam_core::request::{Lang, Origin, Script};

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

    fn host<'a>(&self, asked: &'a Asked, user: u32) -> Around<'a> {
        let around = Surroundings { folder: self.0.path().to_owned(), ..Surroundings::default() };
        Around { asked, around, user }
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

/// Makes a virtual environment, and in it what is installed.
fn environment(folder: &Path, installed: &[&str]) {
    let packages = folder.join("lib/python3.12/site-packages");
    fs::create_dir_all(&packages).unwrap();
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::write(folder.join("bin/python"), "").unwrap();
    fs::write(folder.join("pyvenv.cfg"), "").unwrap();
    for name in installed {
        fs::create_dir_all(packages.join(name)).unwrap();
    }
}

#[test]
fn another_python_is_proposed_only_where_the_module_lies_in_it() {
    let folder = Folder::new();
    let line = "No module named 'numpy'";
    let asked = Asked::default();
    let in_wasm = Outcome { backend: Some(BackendName::Wasm), ..failed(End::Exited(1), None) };
    assert_eq!(folder.host(&asked, 1000).hints(&in_wasm, line), [""; 0], "none of the host's ran");
    let nowhere = folder.hints(Files::default(), line);
    assert!(nowhere[0].contains("isn't installed in any Python found here"), "{nowhere:?}");
    assert!(nowhere[0].contains(python::SYSTEM) && nowhere[0].ends_with("pass --venv DIR"), "{nowhere:?}");
    let venv = folder.0.path().join(".venv");
    environment(&venv, &[]);
    let empty = folder.hints(Files::default(), line);
    assert!(empty[0].contains("isn't installed in any Python found here"), "{empty:?}");
    assert!(empty[0].contains("install it in") && empty[0].ends_with("pass --venv .venv"), "{empty:?}");
    environment(&venv, &["numpy"]);
    let hints = folder.hints(Files::default(), line);
    assert!(hints[0].starts_with("numpy is installed in") && hints[0].ends_with("pass --venv .venv"));
    environment(&folder.0.path().join("active"), &["scipy"]);
    let asked = Asked::default();
    let mut host = folder.host(&asked, 1000);
    host.around.virtual_env = Some(folder.0.path().join("active"));
    let hints = |line: &str| host.hints(&failed(End::Exited(1), None), line);
    assert!(hints("No module named 'scipy'")[0].ends_with("pass --venv active"));
    assert!(hints(line)[0].ends_with("pass --venv .venv"), "the active one hasn't it, the one beside has");
}

#[test]
fn a_module_of_the_person_alone_is_shown_with_its_folder() {
    let folder = Folder::new();
    let packages = folder.0.path().join("home/.local/lib/python3.12/site-packages");
    fs::create_dir_all(packages.join("numpy")).unwrap();
    let asked = Asked::default();
    let mut host = folder.host(&asked, 1000);
    host.around.home = Some(folder.0.path().join("home"));
    let hints = host.hints(&failed(End::Exited(1), None), "No module named 'numpy'");
    assert!(hints[0].ends_with(&format!("--env PYTHONPATH={}", packages.display())), "{hints:?}");
}

#[test]
fn a_module_that_a_workspace_hides_is_said_to_be_hidden() {
    let folder = Folder::new();
    let workspace = folder.0.path().join("w");
    fs::write(workspace.join("secret.py"), "").unwrap();
    fs::create_dir(workspace.join("pack")).unwrap();
    let mut files = folder.with_workspace();
    assert_eq!(folder.hints(files.clone(), "No module named 'secret'"), [""; 0], "it is inside");
    files.hide = vec![Pattern::new("secret.py").unwrap(), Pattern::new("pack/**").unwrap()];
    for module in ["secret", "pack"] {
        let hints = folder.hints(files.clone(), &format!("No module named '{module}'"));
        assert!(hints[0].contains("hidden by the pattern"), "{hints:?}");
    }
}

#[test]
fn a_command_of_an_environment_asks_for_the_environment() {
    let folder = Folder::new();
    for (place, files) in [(".venv", Files::default()), ("w/.venv", folder.with_workspace())] {
        environment(&folder.0.path().join(place), &[]);
        let asked = Asked { command: Some(".venv/bin/python".into()), files, ..Asked::default() };
        let hints = folder.host(&asked, 1000).hints(&failed(End::Refused, Some(FaultCode::NotFound)), "");
        assert!(hints[0].contains(&format!("pass --venv {place}, and name the command python")), "{hints:?}");
    }
    let asked = Asked { command: Some(".venv/bin/none".into()), ..Asked::default() };
    let hints = folder.host(&asked, 1000).hints(&failed(End::Refused, Some(FaultCode::NotFound)), "");
    assert_eq!(hints, [""; 0], "it isn't there");
}

#[test]
fn an_option_after_the_script_is_pointed_out_where_the_run_was_refused() {
    let script = |args: &[&str]| {
        let args = args.iter().map(|word| std::ffi::CString::new(*word).unwrap()).collect();
        Program::Script(Script { lang: Lang::Python, origin: Origin::Inline, source: vec![], args })
    };
    let folder = Folder::new();
    let policy = Policy::resolve(&[], &Ceiling::default()).unwrap();
    let hints = |args: &[&str], code| {
        let asked = Asked::new(Some("job.py".into()), &script(args), &policy);
        folder.host(&asked, 1000).hints(&failed(End::Refused, Some(code)), "")
    };
    let found = hints(&["x", "--profile=internal"], FaultCode::BackendRefused);
    assert!(found.len() == 1 && found[0].starts_with("--profile stands after the script"), "{found:?}");
    assert_eq!(hints(&["--verbose-thing", "-v"], FaultCode::BackendRefused), [""; 0]);
    assert_eq!(hints(&["--profile"], FaultCode::HostError), [""; 0], "it was refused for something else");
}

#[test]
fn the_advice_for_a_job_is_one_that_its_sender_can_take() {
    let folder = Folder::new();
    environment(&folder.0.path().join(".venv"), &["numpy"]);
    let asked = Asked { is_job: true, ..Asked::default() };
    let hints = |line: &str| folder.host(&asked, 1000).hints(&failed(End::Exited(1), None), line);
    let file = hints("No such file or directory: 'data.csv'");
    assert!(file[0].ends_with("put it among the job's `files`"), "{file:?}");
    assert!(hints("No such file or directory: 'w'")[0].ends_with("start the batch with --workspace ."));
    assert!(hints("No module named 'numpy'")[0].ends_with("start the batch with --venv .venv"));
    assert!(hints("Network is unreachable")[0].contains("the job's `files`"));
    assert!(hints("No such file or directory: '.env'")[0].contains("the job's `files`"), "it can be sent");
}

#[test]
fn a_missing_file_beside_the_script_is_named() {
    let folder = Folder::new();
    let line = "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'";
    assert!(folder.hints(Files::default(), line)[0].ends_with("--workspace ."));
    let hints = folder.hints(folder.with_workspace(), line);
    assert_eq!(
        hints,
        [
            "\"data.csv\" is not in the workspace: show it with --in data.csv, and it is at \"/inputs/data.csv\""
        ]
    );
    assert_eq!(folder.hints(Files::default(), "No such file or directory: 'nowhere.csv'"), [""; 0]);
}

#[test]
fn a_file_that_is_shown_elsewhere_is_said_to_be_there() {
    let folder = Folder::new();
    fs::create_dir(folder.0.path().join("data")).unwrap();
    fs::write(folder.0.path().join("data/part.csv"), "").unwrap();
    let shown = |name: &str, guest: &str| {
        let guest = GuestPath::new(Path::new(guest)).unwrap();
        Shown { host: folder.0.path().join(name), guest }
    };
    let shown =
        vec![shown("data.csv", "/inputs/data.csv"), shown("data", "/opt/all"), shown("data", "/inputs/data")];
    let hints = |name: &str| {
        let files = Files { shown: shown.clone(), ..folder.with_workspace() };
        folder.hints(files, &format!("FileNotFoundError: [Errno 2] No such file or directory: '{name}'"))
    };
    let whole = folder.0.path().join("data/part.csv");
    for (name, place) in [
        ("data.csv", "/inputs/data.csv"),
        ("./data.csv", "/inputs/data.csv"),
        ("/workspace/data.csv", "/inputs/data.csv"),
        ("data/part.csv", "/inputs/data/part.csv"),
        ("part.csv", "/opt/all/part.csv"),
        (whole.to_str().unwrap(), "/opt/all/part.csv"),
    ] {
        let found = hints(name);
        assert!(
            found.len() == 1 && found[0].ends_with(&format!("is inside at {place:?}: open it there")),
            "{found:?}"
        );
    }
    for name in ["data/other.csv", "/etc/data.csv", "../data.csv"] {
        assert_eq!(hints(name), [""; 0], "{name}");
    }
}

#[test]
fn a_hidden_file_is_said_to_be_hidden() {
    let folder = Folder::new();
    let mut files = folder.with_workspace();
    let hints = folder.hints(files.clone(), "No such file or directory: '/workspace/.env.local'");
    assert!(
        hints[0].contains("hidden by the pattern \"**/.env*\", as it always is: pass single"),
        "{hints:?}"
    );
    let line = "cat: own.txt: No such file or directory";
    assert_eq!(folder.hints(files.clone(), line), [""; 0], "it is there, or the program removed it");
    files.hide = vec![Pattern::new("*.txt").unwrap()];
    let hints = folder.hints(files.clone(), line);
    assert!(hints[0].contains("hidden by the pattern \"*.txt\", of --hide"), "{hints:?}");
    assert!(!hints[0].contains("--env"), "it is no file of variables: {hints:?}");
    fs::create_dir_all(folder.0.path().join("w/.git/hooks")).unwrap();
    let hooks = folder.hints(files, "ls: cannot access '.git/hooks': No such file or directory");
    assert!(hooks[0].ends_with("\"**/.git/hooks\", as it always is"), "{hooks:?}");
    let alone = folder.hints(Files::default(), "No such file or directory: '.env'");
    assert!(alone[0].contains("hidden"), "a workspace wouldn't show it: {alone:?}");
}

#[test]
fn more_memory_than_webassembly_can_have_is_said_to_be_that() {
    let folder = Folder::new();
    let hints = |backend, memory_bytes, end, line: &str| {
        let asked = Asked { memory_bytes, ..Asked::default() };
        let outcome = Outcome { backend: Some(backend), ..failed(end, None) };
        folder.host(&asked, 1000).hints(&outcome, line)
    };
    let (wasm, container) = (BackendName::Wasm, BackendName::Container);
    for (end, line) in [(End::OutOfMemory, ""), (End::Exited(1), "MemoryError")] {
        let found = hints(wasm, 5 << 30, end, line);
        assert!(found.len() == 1 && found[0].contains("4 GiB at most"), "{found:?}");
        assert_eq!(hints(wasm, 4 << 30, end, line), [""; 0], "more can be allowed");
        assert_eq!(hints(container, 5 << 30, end, line), [""; 0]);
    }
    assert_eq!(hints(wasm, 5 << 30, End::Exited(1), "ValueError"), [""; 0]);
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
fn what_was_refused_is_told_with_the_flag_that_allows_it() {
    use cofferdam_core::egress::{Door, Host, Rules};
    let rules = Rules::new(&[]);
    let host = Host::parse(b"a.test").unwrap();
    let mut outcome = failed(End::Exited(1), None);
    outcome.denials.add(rules.lookup(&host).unwrap_err());
    outcome.denials.add(rules.connection(Door::Capture, &host, 80).unwrap_err());
    let hints = of(&outcome, &Asked::default(), b"Network is unreachable");
    assert!(hints.len() == 1 && hints[0].contains("add --allow http://a.test ("), "{hints:?}");
    let job = of(&outcome, &Asked { is_job: true, ..Asked::default() }, b"");
    assert!(job[0].contains("start the batch with --allow"), "{job:?}");
}

#[test]
fn a_network_that_a_rule_opened_is_not_said_to_be_closed() {
    let folder = Folder::new();
    let line = "[Errno -3] Temporary failure in name resolution";
    assert!(folder.hints(Files::default(), line)[0].contains("has no network but a loopback"));
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
