//! The host's files in a container: what is shown, what isn't, and what comes out.
#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_backends::container::Container;
use cofferdam_core::artifact::{Collect, Entry, Found};
use cofferdam_core::backend::{Backend, BackendError, Ending, Exec, Output};
use cofferdam_core::files::{GuestPath, Pattern, Shown, Workspace};
use cofferdam_core::lease::Deliveries;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Closed;
use cofferdam_core::policy::{
    BackendName, Ceiling, FilesLayer, Layer, LimitsLayer, Policy, PolicyHash, Profile, decide,
};
use cofferdam_core::request::{Argv, Program, Request};
use cofferdam_core::{Capability, Grant};
use cofferdam_sys::process;
use tempfile::TempDir;

/// A run that is over.
#[derive(Debug)]
struct Ran {
    ending: Ending,
    output: String,
    /// What was found changed: `A path`, `M path`, `D path`, and what it is.
    changes: BTreeMap<String, String>,
}

fn grant(files: FilesLayer, limits: LimitsLayer) -> Grant {
    let mut layer = Layer {
        profile: Some(Profile::Internal),
        backend: Some(Some(BackendName::Container)),
        files,
        limits,
        ..Layer::default()
    };
    if process::effective_user() != 0 {
        layer.accept_gaps = [Capability::Memory, Capability::Cpu].into();
    }
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    let request = Request {
        program: Program::Command(Argv::new(c"true".into(), vec![])),
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: true,
    };
    decide(&policy, PolicyHash("00".into()), &request).unwrap()
}

fn new_run() -> RunId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RunId::new(COUNT.fetch_add(1, Ordering::Relaxed), cofferdam_sys::fd::random_bytes().unwrap())
}

fn run_limited(files: FilesLayer, limits: LimitsLayer, shell: &str) -> Result<Ran, BackendError> {
    let kept = tempfile::tempdir().unwrap();
    let container = Container::probe(kept.path().to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut session = container.open(&new_run(), grant(files, limits), Arc::new(Closed)).await?;
        let argv = Argv::new(c"sh".into(), vec![c"-c".into(), std::ffi::CString::new(shell).unwrap()]);
        let program = Program::Command(argv);
        let exec = Exec {
            program,
            environment: vec![],
            delivered: Deliveries::default(),
            terminal: None,
            stdin: false,
        };
        let running = session.exec(exec).await?;
        let mut output = vec![];
        while let Some(piece) = running.output().await? {
            let (Output::Stdout(bytes) | Output::Stderr(bytes)) = piece;
            output.extend(bytes);
        }
        let ending = running.wait().await?;
        session.halt().await?;
        let mut listed = List::default();
        session.get(&mut listed).await?;
        drop(running);
        session.close().await?;
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Ran { ending, output, changes: listed.0 })
    })
}

fn run(files: FilesLayer, shell: &str) -> Ran {
    run_limited(files, LimitsLayer::default(), shell).unwrap()
}

fn workspace(folder: &Path) -> FilesLayer {
    let host = folder.canonicalize().unwrap();
    FilesLayer { workspace: Some(Workspace { host, copy: false }), ..FilesLayer::default() }
}

fn copied(folder: &Path) -> FilesLayer {
    let host = folder.canonicalize().unwrap();
    FilesLayer { workspace: Some(Workspace { host, copy: true }), ..FilesLayer::default() }
}

/// Takes everything, and says what it was.
#[derive(Default)]
struct List(BTreeMap<String, String>);

impl Collect for List {
    fn take(&mut self, found: Found<'_>) -> std::io::Result<()> {
        let text = |mut reader: &mut dyn std::io::Read| {
            let mut bytes = vec![];
            (&mut reader).take(1000).read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let what = match found.entry {
            Entry::File(file) => {
                let before = file.before.map(|before| text(before.content)).unwrap_or_default();
                let now = file.now.map(text).unwrap_or_default();
                let x = if file.executable { " x" } else { "" };
                format!("file {:?} {:?}{x}", before, now)
            }
            Entry::Folder => "folder".into(),
            Entry::Link(target) => format!("link {}", String::from_utf8_lossy(target)),
            Entry::Refused(why) => format!("refused {why}"),
        };
        let key = format!("{} {}", found.change.name(), String::from_utf8_lossy(found.path));
        assert_eq!(self.0.insert(key, what), None, "told twice");
        Ok(())
    }
}

/// A folder that belongs to whoever tests, with a file tree of a project.
fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("src/deep")).unwrap();
    fs::create_dir_all(at(".git/hooks")).unwrap();
    for (path, text) in [
        ("src/a.txt", "a\n"),
        ("src/deep/b.txt", "b\n"),
        (".env", "SECRET=1\n"),
        ("src/.env.local", "SECRET=2\n"),
        (".git/hooks/pre-commit", "#!/bin/sh\n"),
        ("gone.txt", "gone\n"),
    ] {
        fs::write(at(path), text).unwrap();
    }
    folder
}

/// Everything about a tree that a run could have changed.
fn fingerprint(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, into: &mut Vec<String>) {
        let found = fs::symlink_metadata(folder).unwrap();
        let content = if found.is_file() { fs::read(folder).unwrap() } else { vec![] };
        into.push(format!(
            "{} {:o} {}:{} {} {:?}",
            folder.display(),
            found.mode(),
            found.uid(),
            found.gid(),
            found.mtime_nsec(),
            content
        ));
        if found.is_dir() {
            let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
            names.sort();
            names.iter().for_each(|path| walk(path, into));
        }
    }
    let mut all = vec![];
    walk(folder, &mut all);
    all
}

const CHANGING: &str = "set -e
    test ! -e .env; test ! -e src/.env.local; test ! -e .git/hooks
    echo more >> src/a.txt
    touch src/deep/b.txt
    rm gone.txt
    mkdir new; echo n > new/n.txt; chmod 700 new/n.txt
    ln -s n.txt new/link
    rm -r src/deep; mkdir src/deep; echo c > src/deep/c.txt
    echo mine > .env
    ls -ld . src src/a.txt";

const CHANGED: [(&str, &str); 9] = [
    ("added .env", "file \"\" \"mine\\n\""),
    ("added new", "folder"),
    ("added new/link", "link n.txt"),
    ("added new/n.txt", "file \"\" \"n\\n\" x"),
    ("added src/deep/c.txt", "file \"\" \"c\\n\""),
    ("deleted gone.txt", "file \"gone\\n\" \"\""),
    ("deleted src/deep/b.txt", "file \"b\\n\" \"\""),
    ("modified src/a.txt", "file \"a\\n\" \"a\\nmore\\n\""),
    ("", ""),
];

fn expected() -> BTreeMap<String, String> {
    let told = CHANGED.iter().filter(|(key, _)| !key.is_empty());
    told.map(|(key, what)| ((*key).to_owned(), (*what).to_owned())).collect()
}

#[test]
fn a_workspace_is_changed_inside_and_not_on_the_host() {
    let folder = project();
    let before = fingerprint(folder.path());
    for files in [workspace(folder.path()), copied(folder.path())] {
        let ran = run(files, CHANGING);
        assert_eq!(ran.ending, Ending::Exited(0), "{ran:?}");
        assert!(!ran.output.contains("nobody"), "it belongs to the program's user: {}", ran.output);
        assert_eq!(ran.changes, expected(), "{}", ran.output);
        assert_eq!(fingerprint(folder.path()), before);
    }
}

#[test]
fn what_the_policy_hides_is_not_there() {
    let folder = project();
    let mut files = workspace(folder.path());
    files.hide = vec![Pattern::new("src/deep").unwrap()];
    let ran = run(files, "ls -A . src; echo x > src/deep");
    assert_eq!(ran.ending, Ending::Exited(0), "{ran:?}");
    assert!(ran.output.contains("a.txt") && !ran.output.contains("deep"), "{}", ran.output);
    assert_eq!(ran.changes.keys().collect::<Vec<_>>(), ["added src/deep"]);
}

#[test]
fn as_root_files_of_any_owner_can_be_changed() {
    if process::effective_user() != 0 {
        cofferdam_testkit::skip!("files of other owners can be made by root alone");
    }
    let folder = project();
    let give =
        |path: &str, id| std::os::unix::fs::chown(folder.path().join(path), Some(id), Some(id)).unwrap();
    for path in ["", "src", "src/deep", "src/deep/b.txt"] {
        give(path, 4321);
    }
    fs::set_permissions(folder.path().join("gone.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = fingerprint(folder.path());
    let ran = run(workspace(folder.path()), CHANGING);
    assert_eq!(ran.ending, Ending::Exited(0), "{ran:?}");
    assert_eq!(ran.changes, expected());
    assert_eq!(fingerprint(folder.path()), before);
}

#[test]
fn as_root_hidden_names_in_a_folder_that_the_program_could_not_list_are_not_shown() {
    if process::effective_user() != 0 {
        cofferdam_testkit::skip!("only root can make a folder of somebody else's");
    }
    let folder = project();
    for (name, mode) in [("closed", 0o711), ("open", 0o755)] {
        let below = folder.path().join(name);
        fs::create_dir(&below).unwrap();
        fs::write(below.join(".env"), "SECRET=3\n").unwrap();
        fs::write(below.join("plain"), "plain\n").unwrap();
        std::os::unix::fs::chown(&below, Some(4_000_001), Some(4_000_001)).unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
    }
    let script = "cat closed/.env open/.env; ls -d closed open; cat open/plain";
    // A copy is made by root, who can list it: what is hidden in it is left out.
    for (files, listed) in [(workspace(folder.path()), "open"), (copied(folder.path()), "closed\nopen")] {
        let ran = run(files, &format!("{{ {script}; }} 2>/dev/null"));
        assert_eq!(ran.output, format!("{listed}\nplain\n"), "{ran:?}");
        assert_eq!(ran.changes, BTreeMap::new());
    }
}

#[test]
fn an_input_can_be_read_and_not_written_and_its_sockets_are_out_of_reach() {
    let folder = project();
    let socket = folder.path().join("live");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok(), "outside it answers");
    let show = |host: PathBuf, guest: &str| Shown { host, guest: GuestPath::new(Path::new(guest)).unwrap() };
    let host = folder.path().canonicalize().unwrap();
    let shown = vec![show(host.clone(), "/inputs/data"), show(host.join("src/a.txt"), "/srv/x/a.txt")];
    let before = fingerprint(folder.path());
    let ran = run(
        FilesLayer { shown, ..FilesLayer::default() },
        "cat /inputs/data/src/a.txt /srv/x/a.txt
         for p in /inputs/data/src/a.txt /inputs/data/new /srv/x/a.txt /srv/x/b /inputs/new; do
             sh -c \"echo x > $p\" 2>/dev/null && echo WROTE $p
         done
         rm -f /inputs/data/gone.txt 2>/dev/null; chmod 777 /inputs/data/src 2>/dev/null
         python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/inputs/data/live\")' 2>&1 | tail -1",
    );
    assert!(ran.output.starts_with("a\na\n") && !ran.output.contains("WROTE"), "{}", ran.output);
    assert!(ran.output.contains("ConnectionRefusedError"), "{}", ran.output);
    assert_eq!(ran.changes, BTreeMap::new());
    assert_eq!(fingerprint(folder.path()), before);
}

#[test]
fn a_lock_of_the_hosts_is_not_met_inside() {
    let folder = project();
    let host = folder.path().canonicalize().unwrap();
    let (one, all) = (Path::new("/srv/a.txt"), Path::new("/inputs/data"));
    let shown = [(host.join("src/a.txt"), one), (host.clone(), all)];
    let shown = shown.map(|(host, guest)| Shown { host, guest: GuestPath::new(guest).unwrap() }).to_vec();
    let held = fs::File::open(host.join("src/a.txt")).unwrap();
    held.lock().unwrap();
    let other = fs::File::open(host.join("src/a.txt")).unwrap();
    assert!(other.try_lock().is_err(), "outside it is met");
    let ran = run(
        FilesLayer { shown, ..workspace(folder.path()) },
        "for file in /srv/a.txt /inputs/data/src/a.txt src/a.txt; do flock -n $file echo locked; done",
    );
    assert_eq!(ran.output, "locked\nlocked\nlocked\n", "{ran:?}");
}

#[test]
fn a_folder_that_was_swapped_for_a_link_since_it_was_named_is_not_shown() {
    let top = tempfile::tempdir().unwrap();
    let (named, other) = (top.path().join("named"), top.path().join("other"));
    for folder in [named.join("below"), other.join("below")] {
        fs::create_dir_all(folder).unwrap();
    }
    let files = [workspace(&named.join("below")), copied(&named.join("below"))];
    for files in &files {
        assert!(run_limited(files.clone(), LimitsLayer::default(), "true").is_ok());
    }
    fs::rename(&named, top.path().join("away")).unwrap();
    symlink(&other, &named).unwrap();
    for files in files {
        match run_limited(files, LimitsLayer::default(), "true") {
            Err(BackendError::Files { path, .. }) => assert!(path.ends_with("named/below"), "{path:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_file_that_is_too_large_to_come_out_is_not_read_to_compare_it() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [("large", (1u64 << 30) + 1), ("small", 1 << 20)] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(bytes).unwrap();
    }
    let ran = run(workspace(folder.path()), "touch large small");
    assert_eq!(ran.changes.keys().collect::<Vec<_>>(), ["modified large"], "{ran:?}");
}

#[test]
fn what_is_no_file_is_told_and_never_waited_for() {
    let ran = run(
        FilesLayer::default(),
        "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'
         ln -s /etc/shadow out; truncate -s 1T sparse; echo x > plain; ln plain hard; chmod 6755 plain
         mkdir locked; echo y > locked/y; chmod 0 locked",
    );
    let told: Vec<_> =
        ran.changes.iter().map(|(key, what)| (key.as_str(), &what[..12.min(what.len())])).collect();
    assert_eq!(
        told.iter().filter(|(key, _)| !key.contains("sparse")).collect::<Vec<_>>(),
        [
            &("added hard", "file \"\" \"x\\n"),
            &("added locked", "folder"),
            &("added locked/y", "file \"\" \"y\\n"),
            &("added out", "link /etc/sh"),
            &("added pipe", "refused type"),
            &("added plain", "file \"\" \"x\\n"),
            &("added sock", "refused type"),
        ]
    );
    assert!(ran.changes.contains_key("added sparse"));
}

#[test]
fn a_workspace_with_sockets_devices_and_links_is_left_as_it_was() {
    let folder = project();
    let at = |path: &str| folder.path().join(path);
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    assert!(fs::symlink_metadata(at("socket")).unwrap().file_type().is_socket());
    symlink("/etc/passwd", at("out")).unwrap();
    symlink("src", at("in")).unwrap();
    let root = process::effective_user() == 0;
    if root {
        let made = std::process::Command::new("mknod").arg(at("device")).args(["c", "1", "3"]).status();
        assert!(made.unwrap().success());
    }
    let before = fingerprint(folder.path());
    for files in [workspace(folder.path()), copied(folder.path())] {
        let ran = run(
            files,
            "echo x > device 2>/dev/null; cat in/a.txt; echo y >> in/a.txt; cat out >/dev/null && echo read;
             rm -f socket; true",
        );
        assert!(ran.output.contains("a\n"), "{ran:?}");
        assert!(ran.changes.contains_key("modified src/a.txt"), "{ran:?}");
        assert_eq!(fingerprint(folder.path()), before);
    }
}

#[test]
fn only_what_changed_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..2000 {
        fs::write(folder.path().join(format!("f{n}")), vec![n as u8; 10_000]).unwrap();
    }
    // What this thread read so far: `rchar` of `/proc/[pid]/io`.
    let read = || {
        let text = fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap()
    };
    let before = read();
    let ran = run(workspace(folder.path()), "for n in 1 2 3 4 5 6 7 8 9; do echo x >> f$n; done; touch f10");
    let all = read() - before;
    assert_eq!(ran.changes.len(), 9, "{ran:?}");
    // Of ten files both versions, and some of our own: of the twenty megabytes in all, a twentieth.
    assert!(all < 1_000_000, "{all} bytes were read");
}

#[test]
fn copies_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("big"), vec![1; 3 << 20]).unwrap();
    let limits = LimitsLayer { disk_bytes: Some(1 << 20), ..LimitsLayer::default() };
    match run_limited(copied(folder.path()), limits, "true") {
        Err(BackendError::Files { path, fix, .. }) => {
            assert!(path.ends_with("big") && fix.contains("--disk"), "{path:?}: {fix}");
        }
        other => panic!("{other:?}"),
    }
}
