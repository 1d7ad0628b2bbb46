//! The program as its users have it: whole processes, real sandboxes.
//!
//! One binary for link time; each module is a kind of promise. Names are claims.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

mod audit;
mod batch;
mod command_line;
mod isolation;
mod leftovers;
mod limits;
mod outcome;
mod refusals;
mod run;

use cofferdam_testkit::product::Product;

/// The program, beside other tests.
fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_cofferdam"))
}

/// The program, with no other test using it.
fn alone() -> Product {
    Product::alone(env!("CARGO_BIN_EXE_cofferdam"))
}

/// Skips a test that needs root, since this version starts containers as root only.
macro_rules! needs_root {
    () => {
        if !cofferdam_testkit::host::is_root() {
            cofferdam_testkit::skip!("containers are started by root in this version");
        }
    };
}
pub(crate) use needs_root;
