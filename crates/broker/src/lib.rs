//! Credentials: minted for the task, useless elsewhere, dead when it ends.
//!
//! The broker is a process of its own. It alone holds the roots that mint, and tries whether what it revoked is dead;
//! runs and their hosts never read `issuers.toml`. Two sides speak over one socket:
//!
//! - [`client`] is the host's: it starts the process, asks it to prepare and to end, and has its events recorded.
//! - [`process`] is the broker's own: it does so.
//!
//! Between them `control` has the messages. `issuer` has one module for each kind of credential, all behind one
//! trait: mint, revoke, try to use. `upstream` puts credentials into requests, and takes them out of answers. `journal` remembers on disk
//! what lives, so that a killed broker leaves nothing that the next command doesn't find. `trial` has what is seen of an
//! issuer when it is tried.
//!
//! # Invariants
//!
//! 1. What may live is in the journal, and the journal on disk, before anybody asks an issuer for it.
//! 2. Secrets are `Secret`: no `Debug`, no copy, overwritten at the end. They are in no argument and no message
//!    about an error; the audit has a fingerprint.
//! 3. A request may only narrow what the operator's ceiling allows, and says each field that narrows.

pub mod client;
pub mod config;
mod control;
mod issuer;
mod journal;
pub mod process;
mod trial;
mod upstream;

pub use journal::{MayLive, Orphans};
pub use trial::{Finding, Seen, Tested};
