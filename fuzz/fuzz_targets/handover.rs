//! What the proxy says to the broker when it hands a connection over: any bytes are a handover or none, and one is
//! written back as it was read.

#![no_main]

use cofferdam_core::handover::{Handover, MOST_BYTES, Taken};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(handover) = Handover::decode(bytes) {
        assert_eq!(Handover::decode(&handover.encode()), Ok(handover));
    }
    for byte in bytes.iter().take(MOST_BYTES) {
        if let Some(taken) = Taken::decode(*byte) {
            assert_eq!(taken.encode(), *byte);
        }
    }
});
