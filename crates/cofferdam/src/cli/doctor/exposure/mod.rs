//! `cofferdam doctor --exposure`: what code that runs on this machine *without* Cofferdam would inherit
//! from the person who runs it, and what of that a run would still have.
//!
//! - [`surroundings`]: what is looked at, and how it is looked at without waiting or asking.
//! - [`table`]: what is looked for, each thing declared once.
//! - [`environment`], [`files`], [`sockets`], [`metadata`], [`kernel`]: the probes.
//! - [`findings`]: the report, which is also the JSON. It holds places and kinds, never values.
//! - [`page`]: the report as a person reads it.

mod environment;
mod files;
mod findings;
mod kernel;
mod metadata;
mod page;
mod sockets;
mod surroundings;
mod table;

use std::io::{self, Write};

use cofferdam_core::policy::Profile;

use super::boundaries::Boundaries;
use super::page::Paint;
use crate::cli::Failure;
use findings::{Finding, ProfileSeen, Report};
use surroundings::Surroundings;

/// Looks at what this process would hand on and prints it. Exit code 0 whatever that is.
///
/// # Errors
///
/// Where `out` can't be written.
pub(super) fn main(
    json: bool,
    profile: Profile,
    boundaries: &Boundaries,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let around = Surroundings::own();
    let report = Report::of(look(&around), seen(profile, boundaries), notes(&around));
    if json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        page::print(&report, &Paint::of(crate::report::colours(&io::stdout())), out)?;
    }
    Ok(0)
}

/// Every probe.
fn look(around: &Surroundings) -> Vec<Finding> {
    [
        environment::look(around),
        files::credentials(around),
        sockets::look(around),
        metadata::look(around),
        files::start_up(around),
        kernel::look(around),
    ]
    .concat()
}

/// What couldn't be looked at.
fn notes(around: &Surroundings) -> Vec<String> {
    match around.home {
        Some(_) => vec![],
        None => vec!["HOME is no absolute path, so the files of a home were not looked for.".to_owned()],
    }
}

/// What a run of the profile would be in, as `doctor` says.
fn seen(profile: Profile, boundaries: &Boundaries) -> ProfileSeen {
    let found = boundaries.profile(profile);
    ProfileSeen {
        name: found.name,
        backend: found.backend,
        why: found.why,
        fix: found.fix,
        enforced: found.backend.map(|name| boundaries.enforced(name)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
