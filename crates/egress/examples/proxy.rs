//! The proxy as a program of its own, which the tests and benchmarks of this crate start: the product's own binary
//! is it under a subcommand, and no test's is, since a harness has threads.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam_egress::proxy::main().into()
}
