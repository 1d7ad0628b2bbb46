//! The operator's files: the policy of a run, and the node's own settings.
//!
//! A file is read whole or refused whole: the first thing in it that isn't understood, or that
//! doesn't fit the rest, is a [`FileError`] with its place and what to do about it.
//!
//! From the outside in:
//!
//! - [`load_policy`] and [`load_users_policy`] read a policy file and what it extends (`extends`);
//! - `check` holds what must be true among the values of one file;
//! - `job` is what of a policy a job of a batch can say, as JSON;
//! - `write` turns a resolved policy back into a file;
//! - `policy` and `node` are the files' tables, as declarations;
//! - `words` are the values in those tables, and `value` their parsers, which the flags use too;
//! - `text` reads from the disk, and `error` says what is wrong.

mod check;
mod error;
mod extends;
mod issuers;
mod job;
mod node;
mod policy;
mod text;
pub(crate) mod value;
mod words;
mod write;

#[cfg(test)]
mod tests;

use std::ffi::OsString;

use cofferdam_core::policy::Layer;

pub(crate) use error::{FileError, HELP_FOLLOWS, did_you_mean};
pub(crate) use extends::{load_policy, load_users_policy};
pub(crate) use issuers::load_issuers;
pub(crate) use job::{JobPolicy, narrow};
pub(crate) use node::{Node, Resolver, load_node};
pub(crate) use policy::{CredentialTable, PolicyFile};
pub(crate) use value::BadValue;
pub(crate) use words::{Denied, Time, VariableName, VariableValue};
pub(crate) use write::allowing;

/// Where the values of variables come from that a policy passes on.
pub(crate) type HostEnvironment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// What a policy file says.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// What the decision needs.
    pub(crate) layer: Layer,
    /// What only matters once something may leave the sandbox.
    pub(crate) rest: Rest,
}

/// What a policy file says about traffic that a rule allows.
///
/// What of credentials this version doesn't do is refused, and not ignored: see `credentials`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rest {
    /// The credentials of the layer, with what their issuers have to know.
    pub(crate) credentials: Vec<CredentialTable>,
    /// What is answered for a name that no rule allows.
    pub(crate) denied_names: Option<Denied>,
    /// Whether requests that were allowed are recorded.
    pub(crate) record_requests: Option<bool>,
}
