//! `cofferdam gc`: removes what killed runs left.

use std::io::Write;

use cofferdam_broker::client::LONGEST_END;
use cofferdam_engine::Engine;

use super::Failure;
use crate::{credentials, host};

/// Sweeps, and says what was removed and what could not be.
///
/// # Errors
///
/// Where the state folder can't be used, or `out` not be written.
pub(super) fn main(out: &mut dyn Write) -> Result<u8, Failure> {
    let folder = host::state_folder(&super::node()?);
    let engine = Engine::open(host::candidates(&folder), &folder).map_err(|error| Failure::of(&error))?;
    let swept = engine.sweep().map_err(|error| Failure::of(&error))?;
    for run in &swept.removed {
        writeln!(out, "removed what {run} left")?;
    }
    for (run, why) in &swept.stuck {
        writeln!(out, "could not remove what {run} left: {why}")?;
    }
    let leases = credentials::sweep(&folder, engine.audit(), LONGEST_END);
    for line in &leases {
        writeln!(out, "{line}")?;
    }
    if swept.removed.is_empty() && swept.stuck.is_empty() && leases.is_empty() {
        writeln!(out, "nothing was left")?;
    }
    Ok(if swept.stuck.is_empty() { 0 } else { super::REFUSED })
}
