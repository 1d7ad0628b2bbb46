//! The Wasm backend: a program of WebAssembly, run by a worker that lives in a container of its own.
//!
//! - [`Wasm`]: what it enforces, and which programs it runs, by a look at them ([`fit`]).
//! - [`session`]: a sandbox that is open: a container as the [`jail`], a worker in it, and how the host talks
//!   with that ([`talk`]). [`templates`]: the Pythons that are prepared.
//! - [`wire`]: what the host and a worker say to each other.
//! - [`worker`]: the process inside, which has the engine. [`whole`]: code and the memory that it begins with.
//! - [`setup`]: what is prepared once, so that a run starts in about a millisecond.

mod backend;
mod engine;
mod fit;
mod jail;
mod prepared;
mod session;
pub mod setup;
mod talk;
mod templates;
mod weakened;
mod whole;
pub mod wire;
pub mod worker;

pub use backend::{Wasm, WorkerProgram};
