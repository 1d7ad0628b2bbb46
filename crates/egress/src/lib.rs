//! The only way out of a sandbox.
//!
//! Two processes are in here, and the line between them:
//!
//! - [`outlet`] is the host's side, in the process that runs the engine. It has the sockets that a sandbox's
//!   network leads to, and watches them. The first packet starts the proxy.
//! - [`proxy`] is a process of its own, without privileges, files or environment. It accepts, reads what
//!   programs send, decides with [`cofferdam_core::egress`], dials and streams.
//! - [`control`] is what they say to each other. The host judges again whatever the proxy says that it lets
//!   out, and writes it down before a byte of it goes.
//!
//! A proxy that a sandbox took over could reach what the host's network reaches, as that user; it can't make
//! the log say anything that the rules don't allow, and holds no secret but the keys of its sandboxes' own
//! authorities, which nobody else trusts.
//!
//! # What this crate must not know
//!
//! Backends, and any type that holds a credential.

pub mod authority;
pub mod control;
pub mod outlet;
pub mod proxy;

pub use proxy::{NodeError, roots};
