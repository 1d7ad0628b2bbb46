//! Both ends of the wire between the host and a sandbox's process 1: any bytes are a message, not
//! yet one, or refused; a message is written back as the bytes that it was read from.

#![no_main]

use cofferdam_guest::wire::{Frame, FromGuest, Inbox, ToGuest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_all::<ToGuest>(bytes);
    read_all::<FromGuest>(bytes);
});

fn read_all<T: Frame + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let mut inbox = Inbox::default();
    for piece in bytes.chunks(7) {
        inbox.push(piece);
        loop {
            match inbox.take::<T>() {
                Ok(Some(message)) => {
                    let mut again = Inbox::default();
                    again.push(&message.encode());
                    assert_eq!(again.take::<T>(), Ok(Some(message)));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
