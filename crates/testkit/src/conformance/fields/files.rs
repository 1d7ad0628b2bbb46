//! Files of the host: what a program sees of them, what becomes of them, and what comes out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cofferdam_core::backend::Exec;
use cofferdam_core::capability::Capability;
use cofferdam_core::files::{GuestPath, Pattern, Python, Shown, Workspace};
use cofferdam_core::outcome::{End, Outcome};
use cofferdam_core::policy::FilesLayer;
use tempfile::TempDir;

use crate::conformance::trial::{Ran, Trial, exec, listen, new_run, python, said, until_it_says};
use crate::conformance::{Broken, Checked, Subject, Verdict};

/// A folder of the host's with files in it.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// Everything about a tree that a run could have changed.
fn looks(folder: &Path) -> Vec<String> {
    let found = fs::symlink_metadata(folder).unwrap();
    let content = if found.is_file() { fs::read(folder).unwrap() } else { vec![] };
    let times = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
    let owner = (found.mode(), found.uid(), found.gid());
    let mut all = vec![format!("{} {owner:?} {times:?} {content:?}", folder.display())];
    if found.is_dir() {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        all.extend(paths.iter().flat_map(|path| looks(path)));
    }
    all
}

fn workspace(folder: &TempDir, copy: bool) -> Option<Workspace> {
    Some(Workspace { host: folder.path().canonicalize().unwrap(), copy })
}

/// Runs code with files, and has what it changed taken out.
fn with(trial: &Trial<'_>, files: FilesLayer, code: &str) -> Result<Ran, Broken> {
    let mut what = trial.python(code);
    what.layer.files = files;
    what.layer.accept_gaps.remove(&Capability::Files);
    what.collect = true;
    trial.run(what)
}

/// What came out.
fn artifacts(outcome: &Outcome) -> BTreeSet<&str> {
    outcome.artifacts.iter().map(|artifact| artifact.path.as_str()).collect()
}

pub(in crate::conformance) fn a_workspace_is_seen_and_not_written(subject: &Subject) -> Checked {
    let host = folder(&[("src/a.txt", "a\n"), ("gone.txt", "gone\n"), ("same.txt", "same\n")]);
    let before = looks(host.path());
    let trial = Trial::of(subject)?;
    let code = "import os
print(open('src/a.txt').read() + open('gone.txt').read(), end='', flush=True)
open('src/a.txt', 'a').write('more\\n'); os.remove('gone.txt'); open('new', 'w').write('n')
try: os.chmod('same.txt', 0o600)
except (AttributeError, NotImplementedError, OSError): pass # not every backend has permissions
os.utime('same.txt')";
    for copy in [false, true] {
        let files = FilesLayer { workspace: workspace(&host, copy), ..FilesLayer::default() };
        let ran = with(&trial, files, code)?;
        if let Some(refused) = trial.refused(&ran, Capability::Files)? {
            return Ok(refused);
        }
        must!(looks(host.path()) == before, "the host's files are others now: {}", ran.story());
        ran.says("a\ngone\n")?;
        let out = artifacts(&ran.outcome);
        must!(out == BTreeSet::from(["new", "src/a.txt"]), "{out:?} came out");
    }
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn a_copy_is_of_the_moment_before_the_start(subject: &Subject) -> Checked {
    let host = folder(&[("a.txt", "before")]);
    let trial = Trial::of(subject)?;
    let code = "print(open('a.txt').read(), flush=True); input(); print(open('a.txt').read(), end='')";
    let mut layer = trial.layer();
    layer.files = FilesLayer { workspace: workspace(&host, true), ..FilesLayer::default() };
    layer.accept_gaps.remove(&Capability::Files);
    if let Some(gap) = trial.gap(Capability::Files) {
        return Ok(Verdict::Refused(gap));
    }
    let run = new_run();
    let read = trial.until_hung(async {
        let mut session = trial.open(&run, layer).await?;
        let reading = Exec { stdin: true, ..exec(python(code)) };
        let running = session.exec(reading).await.map_err(said("exec"))?;
        until_it_says(running.as_ref(), "before\n").await?;
        fs::write(host.path().join("a.txt"), "meanwhile").unwrap();
        running.write(b"\n").await.map_err(said("write"))?;
        let heard = listen(running.as_ref()).await?;
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))?;
        Ok(String::from_utf8_lossy(&heard.stdout).into_owned())
    })?;
    must!(read == "before", "what changed on the host since is in the copy: {read:?}");
    trial.left_nothing(&run)?;
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn an_input_is_seen_and_not_written(subject: &Subject) -> Checked {
    let host = folder(&[("data.csv", "1,2\n"), ("sub/x", "x")]);
    let before = looks(host.path());
    let trial = Trial::of(subject)?;
    let shown = |path: &Path, guest: &str| Shown {
        host: path.canonicalize().unwrap(),
        guest: GuestPath::new(Path::new(guest)).unwrap(),
    };
    let shown =
        vec![shown(host.path(), "/inputs/data"), shown(&host.path().join("data.csv"), "/srv/one.csv")];
    // Where there are no permissions, changing them may be called done.
    let code = "import os
def chmod(path):
    os.chmod(path, 0o777)
    if os.stat(path).st_mode & 0o777 != 0o777: raise OSError
print(open('/inputs/data/data.csv').read() + open('/srv/one.csv').read(), end='')
for action in (lambda: open('/inputs/data/data.csv', 'a').write('x'), lambda: open('/inputs/data/new', 'w'),
               lambda: open('/srv/one.csv', 'w'), lambda: os.remove('/inputs/data/sub/x'),
               lambda: chmod('/inputs/data'), lambda: os.utime('/srv/one.csv')):
    try: action(); print('wrote')
    except (AttributeError, NotImplementedError, OSError): pass";
    let ran = with(&trial, FilesLayer { shown, ..FilesLayer::default() }, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Files)? {
        return Ok(refused);
    }
    must!(looks(host.path()) == before, "the host's files are others now: {}", ran.story());
    ran.says("1,2\n1,2\n")?;
    must!(artifacts(&ran.outcome).is_empty(), "{:?} came out", ran.outcome.artifacts);
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn what_is_hidden_is_not_seen(subject: &Subject) -> Checked {
    let secret = "sk-hidden-0123456789";
    let host = folder(&[
        (".env", secret),
        ("sub/.env.local", secret),
        (".git/hooks/pre-commit", secret),
        ("keys/deep/a.key", secret),
        ("private/x", secret),
        ("seen.txt", "seen"),
    ]);
    let trial = Trial::of(subject)?;
    let code = "import os
for path, folders, files in os.walk('.'):
    for name in files: print(os.path.join(path, name), open(os.path.join(path, name)).read())
for path in ('.env', 'sub/.env.local', 'keys/deep/a.key', 'private/x', '.git/hooks/pre-commit'):
    try: print(open(path).read())
    except OSError: pass";
    for copy in [false, true] {
        let hide = ["*.key", "private"].map(|pattern| Pattern::new(pattern).unwrap()).to_vec();
        let files = FilesLayer { workspace: workspace(&host, copy), hide, ..FilesLayer::default() };
        let ran = with(&trial, files, code)?;
        if let Some(refused) = trial.refused(&ran, Capability::Files)? {
            return Ok(refused);
        }
        ran.says("./seen.txt seen\n")?;
    }
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run(
    subject: &Subject,
) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
for path in ('.vscode/tasks.json', '.husky/pre-commit', 'plain.txt'):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True); open(path, 'w').write('x')";
    let keep = vec![Pattern::new(".vscode").unwrap()];
    let ran = with(&trial, FilesLayer { keep, ..FilesLayer::default() }, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Files)? {
        return Ok(refused);
    }
    ran.ends(End::Exited(0))?;
    let out = artifacts(&ran.outcome);
    must!(out == BTreeSet::from([".vscode/tasks.json", "plain.txt"]), "{out:?} came out");
    let told = ran.outcome.rejected.iter().any(|rejected| rejected.path.starts_with(".husky"));
    must!(told, "what didn't come out isn't told: {:?}", ran.outcome.rejected);
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn the_python_that_was_named_is_the_one_that_runs(subject: &Subject) -> Checked {
    let host = folder(&[("python", "#!/bin/sh\nNAMED=yes exec /usr/bin/python3 \"$@\"\n")]);
    let script = host.path().canonicalize().unwrap().join("python");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let executable = GuestPath::new(Path::new("/opt/named/python")).unwrap();
    let shown = vec![Shown { host: script, guest: executable.clone() }];
    let venv = Some(GuestPath::new(Path::new("/opt/venv")).unwrap());
    let python = Some(Python { executable, venv });
    let trial = Trial::of(subject)?;
    let code = "import os
print(os.environ.get('NAMED'), os.environ['PATH'].split(':')[0], os.environ.get('VIRTUAL_ENV'))";
    let ran = with(&trial, FilesLayer { shown, python, ..FilesLayer::default() }, code)?;
    let refused =
        if trial.has_sh() { trial.refused(&ran, Capability::Files)? } else { trial.unfit(&ran, "Python")? };
    if let Some(refused) = refused {
        return Ok(refused);
    }
    ran.says("yes /opt/named /opt/venv\n")?;
    Ok(Verdict::Held)
}
