//! The boundaries. Each module is one backend, behind a feature of its name; they share the
//! contract in `cofferdam_core::backend` and know nothing of each other.
//!
//! # What this crate must not know
//!
//! The policy's text, issuers' roots, the table of surrogates.

mod agent;
mod channel;
#[cfg(feature = "container")]
pub mod container;
#[cfg(feature = "wasm")]
pub mod wasm;
