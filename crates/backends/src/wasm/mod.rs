//! The Wasm backend: a program of WebAssembly, run by a worker that lives in a container of its own.
//!
//! - [`wire`]: what the host and a worker say to each other.
//! - [`worker`]: the process inside, which has the engine.
//! - [`setup`]: what is prepared once, so that a run starts in half a millisecond.

mod engine;
mod prepared;
pub mod setup;
pub mod wire;
pub mod worker;
