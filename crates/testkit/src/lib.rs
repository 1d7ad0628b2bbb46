//! Test machinery: never shipped.
//!
//! - [`conformance`]: the behaviour that every backend must show, and toys that show that it is tested.
//! - [`origins`]: a network with the whole world in it, which says what arrived where.
//! - [`outlets`]: ways out that do what they are told and record it, for tests of the engine and of backends.
//! - [`product`]: the program as a user has it, with a state folder of its own.
//! - [`host`]: what the host looks like, to compare before and after.
//! - [`left`]: what a product left there, told from what others do meanwhile.
//! - [`rows`]: the rows of the table of attacks, each beside its positive control.
//! - [`secrets`]: looks for a secret in what came out, in whatever form.
//! - [`servers`]: real servers that credentials are minted for, each with its test.
//! - [`scripted`]: a strict backend that does what it is told and records it, for engine tests.
//! - [`templates`]: the Pythons that tests run in WebAssembly.
//! - The programs `crash`, `soak` and `soak-wasm`, which `cargo xtask` calls by night.
//! - [`skip!`]: a test that can't run here says so by name, and is counted.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

pub mod conformance;
pub mod host;
pub mod left;
pub mod origins;
pub mod outlets;
pub mod product;
pub mod rows;
pub mod scripted;
pub mod secrets;
pub mod servers;
pub mod templates;

use std::io::Write;

/// Ends a test that can't run on this host, with the reason. It is counted as skipped.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        let thread = std::thread::current();
        let name = format!("{}::{}", env!("CARGO_CRATE_NAME"), thread.name().unwrap_or("?"));
        $crate::record_skip(&name, &format!($($reason)*));
        return;
    }};
}

/// Writes down a skipped test where `cargo xtask test` counts it.
pub fn record_skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("COFFERDAM_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(format!("{name}\t{reason}\n").as_bytes()).unwrap(); // at once: others write too
    }
}
