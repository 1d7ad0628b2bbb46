//! Folders and files of the host that a person names, and where a run sees them.
//!
//! Flags and policy files come here with what was written and the folder that it is relative to. What
//! comes out is a path with its links resolved, that is there, that its owner may read, and that isn't
//! a part of the machine itself. What is wrong is a [`BadValue`], to which the caller adds the place.
//!
//! - [`workspace`] and [`input`] read one thing that was named;
//! - [`settle`] looks at all that a run would see together: no two things may be in one place;
//! - [`refuse_state`] keeps our own records out.
//!
//! The home folder may be a workspace, since a container's only folder often is one; whoever shows it
//! is told by [`warning`] what that means.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use cofferdam_core::files::{BadGuestPath, Files, GuestPath, Shown};

use crate::files::value::BadValue;

/// Folders of the machine itself: devices, kernel interfaces, sockets of daemons. To show one read-only
/// isn't to show it harmlessly: a socket there still answers.
const MACHINE: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// The folder that is to be the working directory, with its links resolved.
pub(crate) fn workspace(named: &Path, base: &Path) -> Result<PathBuf, BadValue> {
    folder(named, base, "name its folder; a single file is shown with --in, or [files] inputs")
}

/// A folder that may be shown, with its links resolved. `help` is for what is no folder.
pub(crate) fn folder(named: &Path, base: &Path, help: &str) -> Result<PathBuf, BadValue> {
    let (path, found) = find(named, base, "name a folder that is there")?;
    if !found.is_dir() {
        return Err(BadValue::new(format!("{} is not a folder", quoted(named)), help));
    }
    refuse_machine(named, &path)?;
    fs::read_dir(&path).map_err(|error| unreadable(named, &error))?;
    Ok(path)
}

/// A file or folder that is to be shown read-only, at `guest` or else by its own name in `/inputs`.
pub(crate) fn input(named: &Path, guest: Option<&Path>, base: &Path) -> Result<Shown, BadValue> {
    let (path, found) = find(named, base, "name a file or folder that is there")?;
    refuse_machine(named, &path)?;
    if found.is_dir() {
        fs::read_dir(&path).map(drop).map_err(|error| unreadable(named, &error))?;
    } else if found.is_file() {
        fs::File::open(&path).map(drop).map_err(|error| unreadable(named, &error))?;
    } else {
        let why = format!("{} is neither a file nor a folder", quoted(named));
        return Err(BadValue::new(why, "name a regular file or a folder: sockets and devices stay out"));
    }
    // The name that was written, where it is one: a link `data` is expected as /inputs/data.
    let name = || named.file_name().or(path.file_name()).unwrap_or_default();
    let guest = guest.map_or_else(|| Path::new("/inputs").join(name()), Path::to_owned);
    Ok(Shown { guest: guest_path(&guest)?, host: path })
}

/// A path inside at which something may be shown.
pub(crate) fn guest_path(path: &Path) -> Result<GuestPath, BadValue> {
    GuestPath::new(path).map_err(|error| {
        let help = match &error {
            BadGuestPath::Form | BadGuestPath::Nul => "write a path such as /inputs/data",
            BadGuestPath::Reserved(_) => "choose another place, such as one in /inputs or /opt",
        };
        BadValue::new(format!("nothing can be shown at {}: {error}", quoted(path)), help)
    })
}

/// Splits `HOST:GUEST` at the last colon before a slash. A host's path that holds such a colon needs
/// its GUEST written out.
pub(crate) fn split(text: &OsStr) -> (PathBuf, Option<PathBuf>) {
    let bytes = text.as_bytes();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match bytes.windows(2).rposition(|pair| pair == b":/") {
        Some(at) if at > 0 => (path(&bytes[..at]), Some(path(&bytes[at + 1..]))),
        _ => (path(bytes), None),
    }
}

/// Puts what a run sees in order: by its place inside, each thing once.
///
/// # Errors
///
/// Where two things would be in one place, or one within another.
pub(crate) fn settle(files: &mut Files) -> Result<(), BadValue> {
    let mut shown = std::mem::take(&mut files.shown);
    shown.sort_by(|a, b| a.guest.as_path().cmp(b.guest.as_path()));
    for next in shown {
        let outer = files.shown.iter().find(|outer| next.guest.as_path().starts_with(outer.guest.as_path()));
        match outer {
            None => files.shown.push(next),
            Some(outer) if covers(outer, &next) => {}
            Some(outer) => return Err(in_one_place(outer, &next)),
        }
    }
    Ok(())
}

/// Whether one thing that is shown shows another already, at the same place.
fn covers(outer: &Shown, inner: &Shown) -> bool {
    let below = inner.guest.as_path().strip_prefix(outer.guest.as_path());
    // Joining nothing would add a slash, which a file's path can't have.
    below.is_ok_and(|below| inner.host.strip_prefix(&outer.host) == Ok(below))
}

fn in_one_place(outer: &Shown, inner: &Shown) -> BadValue {
    let (first, second) = (quoted(&outer.host), quoted(&inner.host));
    let why = if outer.guest == inner.guest {
        format!("{first} and {second} would both be at {}", quoted(inner.guest.as_path()))
    } else {
        format!(
            "{second} would be at {}, within {first} at {}",
            quoted(inner.guest.as_path()),
            quoted(outer.guest.as_path())
        )
    };
    BadValue::new(why, "give one of them a place of its own: HOST:/inputs/NAME, or `guest` in a policy file")
}

/// Refuses to show the folder where runs and the audit log are kept, or anything in it.
pub(crate) fn refuse_state(files: &Files, state: &Path) -> Result<(), BadValue> {
    let state = existing(state);
    let workspace = files.workspace.iter().map(|workspace| &workspace.host);
    let mut all = workspace.chain(files.shown.iter().map(|shown| &shown.host));
    let Some(path) = all.find(|path| state.starts_with(path) || path.starts_with(&state)) else {
        return Ok(());
    };
    let why = format!(
        "{} would show the program {}, where Cofferdam keeps runs and the audit log",
        quoted(path),
        quoted(&state)
    );
    Err(BadValue::new(why, "show a smaller folder, or set COFFERDAM_STATE to a folder elsewhere"))
}

/// A path with the links resolved of as much of it as is there.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = absolute.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = found else { return absolute };
    match absolute.strip_prefix(above) {
        Ok(below) if below != Path::new("") => real.join(below),
        _ => real,
    }
}

/// What somebody should know who shows the folder that holds a person's keys.
pub(crate) fn warning(files: &Files, home: Option<&Path>) -> Option<String> {
    let home = home.filter(|home| home.is_absolute())?.canonicalize().ok()?;
    let workspace = &files.workspace.as_ref()?.host;
    home.starts_with(workspace).then(|| {
        format!(
            "the workspace {} holds your whole home folder, with its keys and settings; the program could \
             read them: name the project's own folder with --workspace",
            quoted(workspace)
        )
    })
}

/// What is at a path that was named, with its links resolved.
fn find(named: &Path, base: &Path, help: &str) -> Result<(PathBuf, fs::Metadata), BadValue> {
    if named.as_os_str().is_empty() {
        return Err(BadValue::new("an empty path names nothing", help));
    }
    let found = base.join(named).canonicalize().and_then(|path| Ok((path.clone(), fs::metadata(path)?)));
    found.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            BadValue::new(format!("there is no {}", quoted(named)), help)
        }
        _ => unreadable(named, &error),
    })
}

fn unreadable(named: &Path, error: &io::Error) -> BadValue {
    BadValue::new(format!("could not read {}: {error}", quoted(named)), "make it readable for you")
}

fn refuse_machine(named: &Path, path: &Path) -> Result<(), BadValue> {
    let own = MACHINE.iter().any(|folder| path.starts_with(folder));
    if !own && path != Path::new("/") {
        return Ok(());
    }
    let why = format!("{} belongs to the machine itself, and is never shown", quoted(named));
    Err(BadValue::new(why, "name the folder of a project, or copy what the program needs to another place"))
}

/// A path for a message: quoted, so that no byte of it drives a terminal.
pub(crate) fn quoted(path: &Path) -> String {
    format!("{:?}", path.as_os_str())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use cofferdam_core::files::Workspace;

    use super::*;

    /// A folder `w` with a file `f`, and links to both.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("w")).unwrap();
        fs::write(folder.path().join("w/f"), "").unwrap();
        symlink("w", folder.path().join("link")).unwrap();
        symlink("w/f", folder.path().join("data")).unwrap();
        symlink("nowhere", folder.path().join("dangling")).unwrap();
        folder
    }

    fn shown(host: &str, guest: &str) -> Shown {
        Shown { host: host.into(), guest: GuestPath::new(Path::new(guest)).unwrap() }
    }

    fn settled(shown: &[Shown]) -> Result<Vec<Shown>, BadValue> {
        let mut files = Files { shown: shown.to_vec(), ..Files::default() };
        settle(&mut files).map(|()| files.shown)
    }

    #[test]
    fn a_workspace_is_a_folder_with_its_links_resolved() {
        let folder = folder();
        let real = folder.path().canonicalize().unwrap();
        for named in ["w", "link", "./w/", "link/../w"] {
            assert_eq!(workspace(Path::new(named), folder.path()).unwrap(), real.join("w"), "{named}");
        }
        for (named, words) in
            [("none", "there is no"), ("data", "not a folder"), ("dangling", "there is no"), ("", "empty")]
        {
            let error = workspace(Path::new(named), folder.path()).unwrap_err();
            assert!(error.why.contains(words) && !error.help.is_empty(), "{named}: {error}");
        }
    }

    #[test]
    fn the_machine_itself_is_never_shown() {
        let folder = folder();
        symlink("/proc/self", folder.path().join("sly")).unwrap();
        for named in ["/", "/proc", "/sys/kernel", "/dev", "/run", "/var/run", "sly", "/usr/.."] {
            let path = Path::new(named);
            if path.is_absolute() && !path.exists() {
                continue;
            }
            let error = workspace(path, folder.path()).unwrap_err();
            assert!(error.why.contains("machine itself"), "{named}: {error}");
            assert!(input(path, None, folder.path()).is_err(), "{named}");
        }
        assert!(workspace(Path::new("w"), folder.path()).is_ok(), "the same with a folder of a project");
    }

    #[test]
    fn an_input_is_shown_by_the_name_that_was_written() {
        let folder = folder();
        let real = folder.path().canonicalize().unwrap().join("w/f");
        let found = input(Path::new("data"), None, folder.path()).unwrap();
        assert_eq!((found.host, found.guest.as_path()), (real.clone(), Path::new("/inputs/data")));
        let found = input(Path::new("w/."), None, folder.path()).unwrap();
        assert_eq!(found.guest.as_path(), Path::new("/inputs/w"));
        let (host, guest) = split(OsStr::new("w/f:/opt/x"));
        let found = input(&host, guest.as_deref(), folder.path()).unwrap();
        assert_eq!((found.host, found.guest.as_path()), (real, Path::new("/opt/x")));
    }

    #[test]
    fn an_input_is_a_file_or_a_folder_at_a_place_that_is_free() {
        let folder = folder();
        let base = folder.path();
        let _socket = std::os::unix::net::UnixListener::bind(base.join("socket")).unwrap();
        assert!(input(Path::new("socket"), None, base).unwrap_err().why.contains("neither"));
        for guest in ["/etc/passwd", "/usr/lib/x", "/workspace/x", "/inputs", "x", "/a/../b"] {
            let error = input(Path::new("data"), Some(Path::new(guest)), base).unwrap_err();
            assert!(error.why.contains("nothing can be shown"), "{guest}: {error}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_an_input_all_the_same() {
        let folder = folder();
        let name = OsStr::from_bytes(b"\xff\x1b.bin");
        fs::write(folder.path().join(name), "").unwrap();
        let found = input(Path::new(name), None, folder.path()).unwrap();
        assert_eq!(found.guest.as_path(), Path::new("/inputs").join(name));
        let error = workspace(Path::new(name), folder.path()).unwrap_err();
        assert!(!error.why.contains('\u{1b}'), "{error:?}");
    }

    #[test]
    fn host_and_guest_part_at_the_last_colon_before_a_slash() {
        for (text, host, guest) in [
            ("a", "a", None),
            ("a:b", "a:b", None),
            ("a:/b", "a", Some("/b")),
            ("a:/b:/c", "a:/b", Some("/c")),
            (":/b", ":/b", None),
            ("a:", "a:", None),
        ] {
            assert_eq!(split(OsStr::new(text)), (host.into(), guest.map(PathBuf::from)), "{text}");
        }
    }

    #[test]
    fn two_things_are_never_in_one_place() {
        let both = settled(&[shown("/a", "/x"), shown("/b", "/x")]).unwrap_err();
        assert!(both.why.contains("both be at"), "{both}");
        assert!(settled(&[shown("/b", "/x/y"), shown("/a", "/x")]).unwrap_err().why.contains("within"));
        let apart = [shown("/b", "/x"), shown("/a", "/x-y"), shown("/c", "/z/x")];
        assert_eq!(settled(&apart).unwrap().len(), 3);
    }

    #[test]
    fn what_is_shown_already_is_not_shown_again() {
        let venv_in_a_prefix = [shown("/o/p/envs/e", "/o/p/envs/e"), shown("/o/p", "/o/p")];
        assert_eq!(settled(&venv_in_a_prefix).unwrap(), [shown("/o/p", "/o/p")]);
        assert_eq!(settled(&[shown("/a", "/x"), shown("/a", "/x")]).unwrap(), [shown("/a", "/x")]);
        assert!(settled(&[shown("/a", "/x"), shown("/a/c", "/x/b")]).is_err());
    }

    #[test]
    fn our_own_records_are_never_shown() {
        let folder = folder();
        let real = folder.path().canonicalize().unwrap();
        let showing = |host: &Path| Files {
            workspace: Some(Workspace { host: host.to_owned(), copy: false }),
            ..Files::default()
        };
        // Through a link, and before it is there.
        let state = folder.path().join("link/state");
        for host in [real.join("w"), real.clone(), real.join("w/state/audit")] {
            let error = refuse_state(&showing(&host), &state).unwrap_err();
            assert!(error.why.contains("audit log") && error.help.contains("COFFERDAM_STATE"), "{error}");
        }
        assert_eq!(refuse_state(&showing(&real.join("w/other")), &state), Ok(()));
        let input = Files { shown: vec![Shown { host: real, ..shown("/a", "/a") }], ..Files::default() };
        assert!(refuse_state(&input, &state).is_err());
    }

    #[test]
    fn whoever_shows_a_whole_home_is_told_so() {
        let folder = folder();
        let real = folder.path().canonicalize().unwrap();
        let showing =
            |host: PathBuf| Files { workspace: Some(Workspace { host, copy: false }), ..Files::default() };
        let home = real.join("w");
        assert!(warning(&showing(home.clone()), Some(&home)).is_some_and(|text| text.contains("keys")));
        assert!(warning(&showing(real), Some(&home)).is_some());
        assert_eq!(warning(&showing(home.join("project")), Some(&home)), None);
        assert_eq!(warning(&Files::default(), Some(&home)), None);
    }
}
