//! What WebAssembly is without one of its controls: for tests that show that somebody would notice.
//!
//! Everything here does nothing but in builds with the feature `weaken` (`core/src/weaken.rs`). The worker is
//! told of nothing: what it does is changed by what the host asks of it.

use cofferdam_core::request::Variable;
use cofferdam_core::weaken::{Control, is_off};

/// The most linear memory of a program.
pub(super) fn memory_bytes(granted: u64) -> u64 {
    if is_off(Control::WasmMemory) { 4 << 30 } else { granted }
}

/// What is passed in of the host's environment.
pub(super) fn environment() -> impl Iterator<Item = Variable> {
    let all = is_off(Control::Environment).then(std::env::vars);
    all.into_iter().flatten().filter_map(|(name, value)| Variable::new(name, value).ok())
}

/// What a run's randomness comes from.
pub(super) fn seed(random: [u8; 32]) -> [u8; 32] {
    if is_off(Control::WasmSeed) { [7; 32] } else { random }
}

/// Whether a program that the engine ended is taken to have exited.
pub(super) fn calls_traps_exits() -> bool {
    is_off(Control::WasmTraps)
}

/// Whether what a program left stays for the next.
pub(super) fn leaves_everything() -> bool {
    is_off(Control::WasmWipe)
}
