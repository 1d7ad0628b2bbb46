//! Claims about interpreters that are named: what is shown, and what is refused.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use cofferdam_core::files::Files;

use super::*;

/// A made-up host: a folder with interpreters, which are copies of the first bytes of our own program.
struct Host {
    folder: tempfile::TempDir,
    root: PathBuf,
}

impl Host {
    fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        Host { folder, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn link(&self, name: &str, target: impl AsRef<Path>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// An installed Python with its prefix.
    fn install(&self, prefix: &str) -> PathBuf {
        self.write(&format!("{prefix}/lib/python3.12/os.py"), "");
        self.link(&format!("{prefix}/bin/python3"), "python3.12");
        self.link(&format!("{prefix}/bin/python"), "python3");
        self.write(&format!("{prefix}/bin/python3.12"), &fs::read("/proc/self/exe").unwrap()[..64])
    }

    /// A virtual environment whose `python` leads to a target.
    fn venv(&self, name: &str, home: &Path, target: impl AsRef<Path>) {
        self.write(&format!("{name}/pyvenv.cfg"), format!("home = {}\nversion = 3.12.1\n", home.display()));
        self.link(&format!("{name}/bin/python3"), target);
        self.link(&format!("{name}/bin/python"), "python3");
    }

    fn around(&self) -> Surroundings {
        Surroundings { folder: self.root.clone(), ..Surroundings::default() }
    }

    fn environment(&self, name: &str) -> Result<Found, BadValue> {
        environment(Path::new(name), &self.around())
    }
}

/// What is shown: each place inside with what is there.
fn places(found: Found) -> Vec<(PathBuf, PathBuf)> {
    let mut files = Files { shown: found.shown, ..Files::default() };
    places::settle(&mut files).unwrap();
    files.shown.into_iter().map(|one| (one.guest.as_path().to_owned(), one.host)).collect()
}

#[test]
fn an_environment_is_shown_with_the_prefix_that_it_was_made_from() {
    let host = Host::new();
    host.install("opt/py");
    host.venv("w/.venv", &host.path("opt/py/bin"), host.path("opt/py/bin/python3"));
    let found = host.environment("w/.venv").unwrap();
    let venv = host.path("w/.venv");
    assert_eq!(found.python.executable.as_path(), venv.join("bin/python"));
    assert_eq!(found.python.venv.as_ref().unwrap().as_path(), venv);
    let prefix = host.path("opt/py");
    assert_eq!(places(found), [(prefix.clone(), prefix), (venv.clone(), venv)]);
}

#[test]
fn a_prefix_is_shown_by_each_name_that_leads_to_it() {
    let host = Host::new();
    host.install("uv/cpython-3.12.4");
    host.link("uv/cpython-3.12", "cpython-3.12.4");
    host.venv(".venv", &host.path("uv/cpython-3.12/bin"), host.path("uv/cpython-3.12/bin/python3.12"));
    let (venv, real) = (host.path(".venv"), host.path("uv/cpython-3.12.4"));
    let expected = [(venv.clone(), venv), (host.path("uv/cpython-3.12"), real.clone()), (real.clone(), real)];
    assert_eq!(places(host.environment(".venv").unwrap()), expected);
}

#[test]
fn a_folder_of_links_is_shown_where_one_of_them_leads_to_the_interpreter() {
    let host = Host::new();
    let real = host.install("share/py");
    host.link("local/bin/python3.12", &real);
    host.venv(".venv", &host.path("local/bin"), host.path("local/bin/python3.12"));
    let guests: Vec<_> =
        places(host.environment(".venv").unwrap()).into_iter().map(|(guest, _)| guest).collect();
    assert_eq!(guests, [host.path(".venv"), host.path("local/bin"), host.path("share/py")]);
}

#[test]
fn an_environment_cannot_show_what_is_no_python() {
    let host = Host::new();
    let real = host.install("opt/py");
    let elf = fs::read(&real).unwrap();
    // A program with its secrets beside it.
    let cargo = host.write("cargo/bin/cargo", &elf);
    host.write("cargo/credentials.toml", "token");
    host.venv("sly", &host.path("cargo/bin"), &cargo);
    assert!(host.environment("sly").unwrap_err().why.contains("no Python in"));
    // The right interpreter, and a home that isn't its.
    host.venv("sly2", &host.path("cargo/bin"), &real);
    assert!(host.environment("sly2").unwrap_err().why.contains("which holds other things"));
    host.venv("fair", &host.path("opt/py/bin"), &real);
    assert!(host.environment("fair").is_ok(), "the same with the home that it has");
}

#[test]
fn a_copied_interpreter_finds_its_prefix_by_home() {
    let host = Host::new();
    let real = host.install("opt/py");
    host.write(".venv/pyvenv.cfg", format!("HOME = {}\n", host.path("opt/py/bin").display()));
    host.write(".venv/bin/python", fs::read(real).unwrap());
    let guests: Vec<_> =
        places(host.environment(".venv").unwrap()).into_iter().map(|(guest, _)| guest).collect();
    assert_eq!(guests, [host.path(".venv"), host.path("opt/py")]);
}

#[test]
fn an_environment_of_the_systems_own_python_needs_nothing_else() {
    if !Path::new(SYSTEM).exists() {
        cofferdam_testkit::skip!("there is no /usr/bin/python3");
    }
    let host = Host::new();
    host.venv(".venv", Path::new("/usr/bin"), SYSTEM);
    let venv = host.path(".venv");
    assert_eq!(places(host.environment(".venv").unwrap()), [(venv.clone(), venv)]);
    let found = interpreter(Path::new(SYSTEM), &host.around()).unwrap();
    assert!(found.shown.is_empty() && found.python.executable.as_path().starts_with("/usr/bin"));
}

#[test]
fn an_environment_that_was_typed_through_a_link_is_there_by_both_names() {
    let host = Host::new();
    let real = host.install("opt/py");
    host.venv("data/.venv", &host.path("opt/py/bin"), real);
    host.link("project", "data");
    let guests: Vec<_> =
        places(host.environment("project/.venv").unwrap()).into_iter().map(|(guest, _)| guest).collect();
    assert_eq!(guests, [host.path("data/.venv"), host.path("opt/py"), host.path("project/.venv")]);
}

#[test]
fn what_is_no_environment_is_refused_with_what_to_do() {
    let host = Host::new();
    let real = host.install("opt/py");
    fs::create_dir(host.path("empty")).unwrap();
    host.write("bare/pyvenv.cfg", "home = /usr/bin\n");
    host.venv("gone", &host.path("nowhere/bin"), host.path("nowhere/bin/python3"));
    host.venv("homeless", &host.path("nowhere/bin"), &real);
    host.write("script/bin/python", "#!/bin/sh\n");
    host.write("script/pyvenv.cfg", "home = /usr/bin\n");
    host.write("conda/conda-meta/history", "");
    for (name, why, help) in [
        ("none", "there is no", "that is there"),
        ("empty", "no virtual environment", "python3 -m venv"),
        ("bare", "no bin/python", "anew"),
        ("gone", "is gone", "anew"),
        ("homeless", "is gone", "anew"),
        ("script", "is a script", "sys.executable"),
        ("conda", "of conda", "--python"),
        ("opt/py/bin/python3", "not a folder", "--python"),
    ] {
        let error = host.environment(name).unwrap_err();
        assert!(error.why.contains(why) && error.help.contains(help), "{name}: {error}");
    }
}

#[test]
fn an_interpreter_is_named_by_its_path_or_its_name_in_path() {
    let host = Host::new();
    let real = host.install("opt/py");
    host.link("local/bin/python3.12", &real);
    let around = Surroundings { path: vec![host.path("local/bin")], ..host.around() };
    for named in ["python3.12", "local/bin/python3.12", "opt/py/bin/python"] {
        let found = interpreter(Path::new(named), &around).unwrap();
        assert_eq!(found.python.executable.as_path(), real, "{named}");
        assert_eq!(places(found), [(host.path("opt/py"), host.path("opt/py"))], "{named}");
    }
    for (named, why) in [("python9", "in PATH"), ("opt/none", "could not find"), ("opt/py/bin", "a folder")] {
        assert!(interpreter(Path::new(named), &around).unwrap_err().why.contains(why), "{named}");
    }
}

#[test]
fn a_folder_of_path_that_is_relative_is_passed_over() {
    let host = Host::new();
    host.install("opt/py");
    let around = Surroundings { path: vec!["opt/py/bin".into(), "".into(), ".".into()], ..host.around() };
    assert_eq!(around.on_path(OsStr::new("python3")), None);
    let around = Surroundings { path: vec![host.path("opt/py/bin")], ..host.around() };
    assert!(around.on_path(OsStr::new("python3")).is_some());
}

#[test]
fn an_interpreter_of_an_environment_is_that_environment() {
    let host = Host::new();
    let real = host.install("opt/py");
    host.venv(".venv", &host.path("opt/py/bin"), real);
    let found = interpreter(Path::new(".venv/bin/python3"), &host.around()).unwrap();
    assert_eq!(found.python.venv.unwrap().as_path(), host.path(".venv"));
}

#[test]
fn a_prefix_that_is_a_home_or_cannot_be_shown_is_refused() {
    let host = Host::new();
    host.install("home");
    host.install("home/.local");
    let around = Surroundings { home: Some(host.path("home")), ..host.around() };
    for named in ["home/bin/python3", "home/.local/bin/python3"] {
        let error = interpreter(Path::new(named), &around).unwrap_err();
        assert!(error.why.contains("more than Python"), "{named}: {error}");
    }
    assert!(interpreter(Path::new("home/bin/python3"), &host.around()).is_ok(), "in another's home");
    assert!(
        cannot_be_shown(Path::new("/var/x"), "it", &places::guest_path(Path::new("/var/x")).unwrap_err())
            .help
            .contains("/opt")
    );
    drop(host.folder);
}

/// A host with a pyenv of three versions.
fn with_pyenv() -> Host {
    let host = Host::new();
    for version in ["3.9.1", "3.12.1", "3.12.10"] {
        host.install(&format!("pyenv/versions/{version}"));
    }
    host.write("pyenv/shims/python3", "#!/usr/bin/env bash\nexec \"/x/libexec/pyenv\" exec python3 \"$@\"\n");
    host.write("pyenv/version", "3.9.1 # by default\n");
    host
}

fn chosen(host: &Host, around: &Surroundings) -> Result<PathBuf, BadValue> {
    let found = interpreter(&host.path("pyenv/shims/python3"), around)?;
    let executable = found.python.executable.as_path().to_owned();
    Ok(executable.strip_prefix(host.path("pyenv/versions")).unwrap().to_owned())
}

#[test]
fn a_shim_of_pyenv_is_the_interpreter_that_it_would_start() {
    let host = with_pyenv();
    assert_eq!(chosen(&host, &host.around()).unwrap(), Path::new("3.9.1/bin/python3.12"));
    let named = |version: &str| Surroundings { pyenv_version: Some(version.into()), ..host.around() };
    assert_eq!(chosen(&host, &named("none:3.12.1")).unwrap(), Path::new("3.12.1/bin/python3.12"));
    assert_eq!(chosen(&host, &named("3.12")).unwrap(), Path::new("3.12.10/bin/python3.12"));
    host.write("w/.python-version", "3.12.1\n");
    let below = Surroundings { folder: host.path("w/deep"), ..host.around() };
    assert_eq!(chosen(&host, &below).unwrap(), Path::new("3.12.1/bin/python3.12"));
}

#[test]
fn a_shim_that_would_start_nothing_is_refused_with_a_path_that_is_there() {
    let host = with_pyenv();
    for version in ["4.0", "../../..", "/etc", "", "system"] {
        let around = Surroundings { pyenv_version: Some(version.into()), ..host.around() };
        let error = chosen(&host, &around).unwrap_err();
        assert!(error.why.contains("shim of pyenv"), "{version}: {error}");
        assert!(error.help.contains("versions/3.12.1/bin/python3"), "{version}: {error}");
    }
}

#[test]
fn ones_own_python_is_told_from_the_sandboxs() {
    if !Path::new(SYSTEM).exists() {
        cofferdam_testkit::skip!("there is no /usr/bin/python3");
    }
    let host = with_pyenv();
    let with = |path: PathBuf| Surroundings { path: vec![path], ..host.around() };
    assert_eq!(own(&with("/usr/bin".into())), None);
    let pyenv = own(&with(host.path("pyenv/shims"))).unwrap();
    assert_eq!(pyenv.path, host.path("pyenv/versions/3.9.1/bin/python3"));
    host.venv(".venv", Path::new("/usr/bin"), SYSTEM);
    let venv = Some(host.path(".venv"));
    assert_eq!(own(&with(host.path(".venv/bin"))).unwrap().venv, venv);
    let active = Surroundings { virtual_env: venv.clone(), ..with("/usr/bin".into()) };
    assert_eq!(own(&active).unwrap().venv, venv);
}

#[test]
fn a_module_is_told_from_the_names_that_installers_give_it() {
    let host = Host::new();
    let packages = "v/lib/python3.12/site-packages";
    host.write(&format!("{packages}/single.py"), "");
    host.write(&format!("{packages}/folder/__init__.py"), "");
    host.write(&format!("{packages}/compiled.cpython-312-x86_64-linux-gnu.so"), "");
    host.write(&format!("{packages}/Linked_In-1.0.dist-info/RECORD"), "");
    host.write("v/lib64/pypy3.10/site-packages/other.py", "");
    host.write("v/lib/python3.12/lib-dynload/_tkinter.cpython-312-x86_64-linux-gnu.so", "");
    for module in ["single", "folder", "compiled", "linked_in", "other", "_tkinter"] {
        assert!(has_module(&host.path("v"), module), "{module}");
    }
    for module in ["sing", "compile", "linked", "cpython"] {
        assert!(!has_module(&host.path("v"), module), "{module}");
    }
    assert!(!has_module(&host.path("none"), "single"));
}

#[test]
fn an_interpreter_that_may_not_be_read_is_not_called_gone() {
    let why = |kind: io::ErrorKind| no_base(Path::new(".venv"), &kind.into()).why;
    assert!(why(io::ErrorKind::NotFound).ends_with("is gone"));
    let denied = why(io::ErrorKind::PermissionDenied);
    assert!(denied.contains("may not read") && !denied.contains("gone"), "{denied}");
    assert!(!why(io::ErrorKind::Interrupted).contains("gone"));
}
