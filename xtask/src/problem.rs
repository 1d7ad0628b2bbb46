//! What keeps a command from doing its work. What it *finds* is a `Verdict`, not a `Problem`.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// A file or the output of a tool does not have the form that is read here.
    #[error("{what} can't be read: {why}")]
    Form {
        /// The file or the tool.
        what: String,
        /// What is wrong with it and what is expected.
        why: String,
    },
    /// The system refused an operation.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation, as a verb phrase: "write limits.json".
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something must be done by a person first; the text says what.
    #[error("{0}")]
    Stop(String),
}

impl Problem {
    /// For `map_err`: names the operation on `path` that failed.
    pub(crate) fn at(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let action = format!("{verb} {}", path.display());
        move |source| Self::Io { action, source }
    }

    /// For `map_err`: names the program that could not be started.
    pub(crate) fn starting(program: impl Display) -> impl FnOnce(io::Error) -> Self {
        let action = format!("start {program}");
        move |source| Self::Io { action, source }
    }

    /// For `map_err`: says what could not be read and why.
    pub(crate) fn form<E: Display>(what: impl Display) -> impl FnOnce(E) -> Self {
        let what = what.to_string();
        move |error| Self::Form { what, why: error.to_string() }
    }
}
