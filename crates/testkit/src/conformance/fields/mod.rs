//! Each field of the policy: a run that would break it if the backend ignored it.
//!
//! - `limits`: ceilings.
//! - `files`: files of the host.
//! - `reach`: the environment, the network, credentials.
//! - `choice`: which backend, what it must have and what it may lack; the terminal.

pub(super) mod choice;
pub(super) mod files;
pub(super) mod limits;
pub(super) mod reach;
