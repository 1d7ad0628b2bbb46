//! What this machine offers: the backends of this build, and where the state is.

use std::env;
use std::path::{Path, PathBuf};

use cofferdam_backends::container::Container;
use cofferdam_core::policy::BackendName;
use cofferdam_engine::select::{Absent, Candidate};
use cofferdam_sys::process;

use crate::files::Node;

/// Every backend that there is a name for: those of this build, and of the others why not. For a
/// command that only looks.
pub(crate) fn candidates(state: &Path) -> Vec<Candidate> {
    backends(&|| Container::probe(state.to_owned()))
}

/// The same for a command that starts sandboxes.
pub(crate) fn candidates_for_runs(state: &Path) -> Vec<Candidate> {
    backends(&|| Container::for_runs(state.to_owned()))
}

fn backends(container: &dyn Fn() -> Container) -> Vec<Candidate> {
    BackendName::ALL
        .iter()
        .map(|&name| Candidate {
            name,
            backend: match name {
                BackendName::Container => Ok(Box::new(container()) as _),
                other => Err(not_built(other)),
            },
        })
        .collect()
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
