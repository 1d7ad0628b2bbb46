//! Process 1 inside a sandbox, and the wire that it speaks.
//!
//! The library is the wire: the host's side uses it too. The program (`main.rs`) is static, so
//! that it runs in any root file system, and has no more rights than the program that it starts.
//!
//! # What this crate must not know
//!
//! Policies, grants, secrets, any type of the host's.

pub mod wire;
