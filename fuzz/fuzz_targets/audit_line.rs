//! A line of the audit log that anybody may have edited: read or refused, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = cofferdam_engine::record::parse_line(bytes);
});
