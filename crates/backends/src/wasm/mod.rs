//! The Wasm backend: a program of WebAssembly, run by a worker that lives in a container of its own.

pub mod wire;
