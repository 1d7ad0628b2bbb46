//! The program as its users have it: whole processes, real sandboxes.
//!
//! One binary for link time; each module is a kind of promise. Names are claims.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

mod audit;
mod batch;
mod clients;
mod command_line;
#[cfg(feature = "wasm")]
mod compile;
mod credential_command;
mod credential_faults;
mod credentials;
mod egress;
mod inputs;
mod isolation;
mod leftovers;
mod limits;
mod openssh;
mod operator;
mod outcome;
mod redis;
mod refusals;
mod registry;
mod results;
mod rootless;
mod run;
#[cfg(feature = "wasm")]
mod scripts;
#[cfg(feature = "wasm")]
mod setup;
mod surrogates;
mod terminal;
#[cfg(feature = "wasm")]
mod wasm;
#[cfg(feature = "wasm")]
mod wasm_batch;
#[cfg(feature = "wasm")]
mod wasm_egress;
#[cfg(feature = "wasm")]
mod wasm_modules;
mod workspace;

use cofferdam_testkit::product::Product;

/// The program, beside other tests.
fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_cofferdam"))
}

/// The program as an ordinary user has it, beside other tests.
fn ordinary() -> Product {
    Product::of_an_ordinary_user(env!("CARGO_BIN_EXE_cofferdam"))
}

/// The program, with no other test using it.
fn alone() -> Product {
    Product::alone(env!("CARGO_BIN_EXE_cofferdam"))
}

/// Skips a test that needs what root alone has everywhere: cgroups, and ids that nobody else has.
macro_rules! needs_root {
    () => {
        if !cofferdam_testkit::host::is_root() {
            cofferdam_testkit::skip!("it holds what root alone has everywhere: cgroups, and ids of its own");
        }
    };
}
pub(crate) use needs_root;
