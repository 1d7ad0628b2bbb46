//! Where things are in the jail of a worker.
//!
//! The jail is a container's root. A program inside the worker sees of it only what is opened for it: the
//! folders that it may write, and what the grant shows, which lies below a folder of its own for that.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::setup::Template;
use super::wire::{PYTHON_PREOPENS, Preopen};
use crate::container::{Fitting, Fittings};

/// The product's own program, relative to the root.
const PROGRAM: &str = "cofferdam/program";

/// What was prepared, relative to the root.
const PREPARED: &str = "cofferdam/prepared";

/// What the grant shows, relative to the root.
const SHOWN: &str = "cofferdam/shown";

/// Memory that a worker may take for itself, in bytes, beside what was granted to its program: 7 MB when it
/// waits for one (docs/decisions/0012), and room for a long script in its hands. A program's linear memory is
/// bounded apart, by what was granted.
const WORKER_BYTES: u64 = 32 << 20;

/// Processes and threads of a worker: its own, the one that runs programs, and one that waits for streams.
/// Twice as many, since they are bounded by themselves.
const WORKER_THREADS: u32 = 8;

/// What a worker's jail has that no grant asks for.
pub(super) fn fittings(program: PathBuf, prepared: &Path) -> Fittings {
    let fitting = |host: PathBuf, place: &str| Fitting { host, place: place.to_owned() };
    Fittings {
        shown: vec![fitting(program, PROGRAM), fitting(prepared.to_owned(), PREPARED)],
        below: Some(SHOWN),
        memory_bytes: WORKER_BYTES,
        pids: WORKER_THREADS,
    }
}

/// How a worker is started, with these arguments.
pub(super) fn worker_argv(args: &[CString]) -> Vec<CString> {
    std::iter::once(path(&["/", PROGRAM])).chain(args.iter().cloned()).collect()
}

/// The path inside of something in the folder of what was prepared.
pub(super) fn inside(prepared: &Path, host: &Path) -> CString {
    let below = host.strip_prefix(prepared).unwrap_or(Path::new(""));
    let bytes = [b"/", PREPARED.as_bytes(), b"/", below.as_os_str().as_bytes()].concat();
    CString::new(bytes).unwrap_or_default() // a path of the host has no NUL
}

/// The folders that Python sees, each by the place that its template knows it by.
pub(super) fn python_preopens(prepared: &Path, template: &Template) -> Vec<Preopen> {
    let place = |guest: &CStr| match guest.to_bytes() {
        b"/" => path(&["/", SHOWN]),
        b"/usr/local/lib" => inside(prepared, &template.library),
        bytes if bytes.starts_with(b"/usr/local/lib/") => inside(prepared, &template.data),
        _ => guest.to_owned(),
    };
    let preopens = PYTHON_PREOPENS.iter();
    preopens
        .map(|(guest, writable)| Preopen { guest: (*guest).into(), jail: place(guest), writable: *writable })
        .collect()
}

/// The folders that a module sees. Names without a folder are those of the working directory, as where a
/// module is run by hand. `shown` are the first names of what the grant shows.
pub(super) fn module_preopens(shown: &[String]) -> Vec<Preopen> {
    let writable = [(c".", c"/workspace"), (c"/workspace", c"/workspace"), (c"/tmp", c"/tmp")];
    let writable = writable.into_iter().chain([(c"/home/user", c"/home/user")]);
    let writable =
        writable.map(|(guest, jail)| Preopen { guest: guest.into(), jail: jail.into(), writable: true });
    let shown = shown.iter().map(|name| Preopen {
        guest: path(&["/", name]),
        jail: path(&["/", SHOWN, "/", name]),
        writable: false,
    });
    writable.chain(shown).collect()
}

fn path(parts: &[&str]) -> CString {
    CString::new(parts.concat()).unwrap_or_default() // none of them holds a NUL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template {
            name: "python".into(),
            module: "/p/code-1.cwasm".into(),
            image: "/p/python-1.cwasm".into(),
            library: "/p/code-1.files/lib".into(),
            data: "/p/code-1.files/mpl-data".into(),
            importable: Default::default(),
            preload: vec![],
            loaded: Default::default(),
            memory_bytes: 0,
            held: vec![],
        }
    }

    #[test]
    fn a_program_sees_nothing_of_what_its_worker_is_made_of() {
        let python = python_preopens(Path::new("/p"), &template());
        for Preopen { guest, jail, writable } in python.iter().chain(&module_preopens(&["inputs".to_owned()]))
        {
            let jail = Path::new(jail.to_str().unwrap());
            let own = ["/workspace", "/tmp", "/home/user"].iter().any(|folder| jail == Path::new(folder));
            let read =
                jail.starts_with("/cofferdam/shown") || jail.starts_with("/cofferdam/prepared/code-1.files");
            assert!(own || (read && !writable), "{guest:?} is {jail:?}");
        }
    }

    #[test]
    fn a_template_finds_its_folders_where_it_was_made_with_them() {
        let preopens = python_preopens(Path::new("/p"), &template());
        let told = preopens.iter().map(|preopen| (preopen.guest.as_c_str(), preopen.writable));
        assert!(told.eq(PYTHON_PREOPENS));
        let jail = |guest: &CStr| {
            preopens.iter().find(|preopen| preopen.guest.as_c_str() == guest).unwrap().jail.clone()
        };
        assert_eq!(jail(c"/usr/local/lib").as_c_str(), c"/cofferdam/prepared/code-1.files/lib");
        assert_eq!(jail(PYTHON_PREOPENS[2].0).as_c_str(), c"/cofferdam/prepared/code-1.files/mpl-data");
        assert_eq!(jail(c"/").as_c_str(), c"/cofferdam/shown");
        assert_eq!(jail(c"/workspace").as_c_str(), c"/workspace");
        let module = inside(Path::new("/p"), &template().image);
        assert_eq!(module.as_c_str(), c"/cofferdam/prepared/python-1.cwasm");
    }
}
