//! `cofferdam policy check` and `cofferdam policy show`.

use std::io::{self, Write};
use std::path::PathBuf;

use cofferdam_core::policy::Policy;

use crate::files::value::{BadValue, write_size};
use crate::files::{HostEnvironment, PolicyFile, Rest, load_policy};

/// Reads each file and says of each that it is right, or what is wrong and where.
///
/// Gives whether all of them are right. Nothing of them is used.
///
/// # Errors
///
/// Where `out` can't be written.
pub(crate) fn check(
    paths: &[PathBuf],
    environment: &HostEnvironment<'_>,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let mut all_right = true;
    for path in paths {
        match load_policy(path, environment) {
            Ok(_) => writeln!(out, "ok: {}", path.to_string_lossy().escape_debug())?,
            Err(error) => {
                all_right = false;
                // The debug form of a report is the one for people: how it looks was set at the start.
                writeln!(out, "{:?}", miette::Report::new(error))?;
            }
        }
    }
    Ok(all_right)
}

/// How `show` writes a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON object.
    Json,
    /// A policy file.
    Toml,
}

/// A policy can't be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShowError {
    /// A value has no place in a policy file.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// The output can't be written.
    #[error("could not write the policy: {0}")]
    Write(#[from] io::Error),
}

/// Writes the policy that a run would be judged by, in the words of a policy file: one that is
/// read back is the same policy.
///
/// # Errors
///
/// [`ShowError`] if a value isn't text, or `out` can't be written.
pub(crate) fn show(policy: &Policy, rest: &Rest, form: Form, out: &mut dyn Write) -> Result<(), ShowError> {
    let file = PolicyFile::of(policy, rest)?;
    match form {
        Form::Json => {
            serde_json::to_writer_pretty(&mut *out, &file).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Form::Toml => {
            writeln!(out, "# What a run would be judged by: defaults, files and flags, within this node's ceiling.")?;
            if policy.limits.disk_bytes.is_none() {
                let disk = write_size(policy.limits.disk_bytes());
                writeln!(out, "# limits.disk is left out, and so half of the memory: {disk}")?;
            }
            out.write_all(toml::to_string(&file).map_err(io::Error::other)?.as_bytes())?;
        }
    }
    Ok(())
}
