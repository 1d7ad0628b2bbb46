//! Cofferdam's words, and the decisions that need nothing but words.
//!
//! Read the modules in the order in which a run meets them:
//!
//! 1. [`request`]: what somebody asks to have run.
//! 2. [`policy`]: what is allowed, as layers that are resolved into one policy, and `decide`.
//! 3. [`files`]: the files of the host that a run sees.
//! 4. [`egress`]: hosts and addresses, and what of a run's requests may leave.
//! 5. [`grant`]: the evaluated permission of one run; only `decide` makes one.
//! 6. [`capability`]: the vocabulary in which a backend says what it enforces.
//! 7. [`backend`]: the contract between the engine and anything that runs code.
//! 8. [`outlet`]: a sandbox's only way out, as the engine and the backends hold it.
//! 9. [`lease`]: the credentials of a run, from the value that its program gets to how its death was seen.
//! 10. [`surrogate`]: what a sandbox sees in place of a credential; [`handover`]: how a request gets to who swaps it.
//! 11. [`artifact`]: what a program changed, and what of that may come out.
//! 12. [`outcome`]: what happened, in the words that users script against.
//! 13. [`audit`]: the events that are written before the things they record.
//!
//! Beside them: [`secret`], bytes that show themselves nowhere, and [`weaken`], which is empty but in builds for tests.
//!
//! # What this crate must not know
//!
//! Files, sockets, clocks, async runtimes, serialization. Everything here is a value or a total
//! function of values, so a decision can be replayed from the log.

pub mod artifact;
pub mod audit;
pub mod backend;
pub mod capability;
pub mod egress;
pub mod files;
pub mod grant;
pub mod handover;
pub mod lease;
pub mod outcome;
pub mod outlet;
pub mod policy;
pub mod request;
pub mod secret;
pub mod surrogate;
pub mod weaken;

pub use capability::{Capability, Gap};
pub use grant::Grant;
