//! What the host and the proxy say to each other: any bytes are messages, not yet one, or refused, and a message is
//! written back as the bytes that it was read from.

#![no_main]

use cofferdam_egress::control::{Frame, Frames, FromProxy, ToProxy};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_all::<FromProxy>(bytes);
    read_all::<ToProxy>(bytes);
});

fn read_all<T: Frame + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let mut frames = Frames::default();
    frames.push(bytes);
    while let Ok(Some(message)) = frames.take::<T>() {
        let again = message.encode();
        assert_eq!(T::decode(again[4], &again[5..]), Ok(message));
    }
}
