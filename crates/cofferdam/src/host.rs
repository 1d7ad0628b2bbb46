//! What this machine offers: the backends of this build, and where the state is.

use std::env;
use std::path::{Path, PathBuf};

use cofferdam_backends::container::Container;
#[cfg(feature = "wasm")]
use cofferdam_backends::wasm::{Wasm, WorkerProgram};
use cofferdam_core::policy::BackendName;
use cofferdam_engine::select::{Absent, Candidate};
use cofferdam_sys::process;

use crate::files::Node;

/// Every backend that there is a name for: those of this build, and of the others why not. For a
/// command that only looks.
pub(crate) fn candidates(state: &Path) -> Vec<Candidate> {
    backends(state, &|| Container::probe(state.to_owned()))
}

/// The same for a command that starts sandboxes.
pub(crate) fn candidates_for_runs(state: &Path) -> Vec<Candidate> {
    backends(state, &|| Container::for_runs(state.to_owned()))
}

#[cfg_attr(not(feature = "wasm"), expect(unused_variables, reason = "only what is prepared lies there"))]
fn backends(state: &Path, container: &dyn Fn() -> Container) -> Vec<Candidate> {
    BackendName::ALL
        .iter()
        .map(|&name| Candidate {
            name,
            backend: match name {
                BackendName::Container => Ok(Box::new(container().with_outlets().with_credentials()) as _),
                #[cfg(feature = "wasm")]
                BackendName::Wasm => in_wasm(state, container()).map(|wasm| Box::new(wasm) as _),
                other => Err(not_built(other)),
            },
        })
        .collect()
}

/// WebAssembly in jails of this container.
#[cfg(feature = "wasm")]
fn in_wasm(state: &Path, container: Container) -> Result<Wasm, Absent> {
    // The program is shown to its jails by its path.
    let program = env::current_exe().map_err(|error| Absent {
        why: format!("the path of this program can't be read: {error}"),
        fix: "mount /proc".to_owned(),
        later: false,
    })?;
    Ok(Wasm::new(container, worker(program), prepared_folder(state)).with_outlets().with_credentials())
}

/// WebAssembly, for whoever only wants to know what is prepared.
#[cfg(feature = "wasm")]
pub(crate) fn wasm(state: &Path) -> Wasm {
    Wasm::new(Container::for_runs(state.to_owned()), worker(PathBuf::new()), prepared_folder(state))
}

/// This program as a worker.
#[cfg(feature = "wasm")]
fn worker(path: PathBuf) -> WorkerProgram {
    let name = std::ffi::CString::new(crate::cli::WORKER).unwrap_or_default();
    WorkerProgram { path, args: vec![name] }
}

/// Where what is prepared once is kept: below `COFFERDAM_DATA`, else below the usual folder of a user's data,
/// or, for root, where the state is.
#[cfg(feature = "wasm")]
pub(crate) fn prepared_folder(state: &Path) -> PathBuf {
    let named = env::var_os("COFFERDAM_DATA").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let usual = || {
        if process::effective_user() == 0 {
            state.to_owned()
        } else {
            base_folder("XDG_DATA_HOME", ".local/share").join("cofferdam")
        }
    };
    named.unwrap_or_else(usual).join("wasm")
}

/// A backend that this version doesn't have. Honest about there being nothing to install.
fn not_built(name: BackendName) -> Absent {
    let what = match name {
        BackendName::Container => "containers",
        BackendName::Gvisor => "gVisor",
        BackendName::Hosted => "hosted sandboxes",
        BackendName::Kata => "Kata",
        BackendName::Microvm => "microVMs",
        BackendName::Wasm => "WebAssembly",
    };
    Absent {
        why: format!("this version has no {what} yet"),
        fix: "nothing to install brings it: it comes with a later version (SPEC.md, Planned)".to_owned(),
        later: true,
    }
}

/// Where runs and the audit log are kept: `COFFERDAM_STATE`, else what `node.toml` says, else the
/// usual place for root or for a user.
pub(crate) fn state_folder(node: &Node) -> PathBuf {
    if let Some(folder) = env::var_os("COFFERDAM_STATE").filter(|folder| !folder.is_empty()) {
        return folder.into();
    }
    if let Some(folder) = &node.state {
        return folder.clone();
    }
    if process::effective_user() == 0 {
        return "/var/lib/cofferdam".into();
    }
    base_folder("XDG_STATE_HOME", ".local/state").join("cofferdam")
}

/// The places in which an operator's file may be, the system's first: a user's own can't replace it.
pub(crate) fn operator_files(name: &str) -> Vec<PathBuf> {
    vec![PathBuf::from("/etc/cofferdam").join(name), users_file(name)]
}

/// A file of the user's own configuration.
pub(crate) fn users_file(name: &str) -> PathBuf {
    base_folder("XDG_CONFIG_HOME", ".config").join("cofferdam").join(name)
}

/// A folder of the XDG base directory specification: the variable if it is an absolute path, else
/// the default below the home.
fn base_folder(variable: &str, default: &str) -> PathBuf {
    let named = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    // A relative home would be looked for in the working directory, which the code under test may
    // have written.
    let home = || env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| home().unwrap_or_else(|| "/".into()).join(default))
}
