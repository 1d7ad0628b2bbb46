//! What a connection begins with: any bytes are one thing, more of them never make another of what was said to be
//! whole, and a name that was read is in the bytes.

#![no_main]

use cofferdam_egress::proxy::client_hello::{Beginning, read};
use cofferdam_egress::proxy::opening::{Opening, look};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    for end in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        match read(&bytes[..end]) {
            Beginning::Incomplete => {}
            earlier => assert_eq!(earlier, whole, "more bytes changed it"),
        }
    }
    if let Beginning::Hello(hello) = &whole {
        assert!(matches!(look(bytes), Some(Opening::Tls(seen)) if seen == *hello));
    }
});
