//! Both ends of the wire between the host and a sandbox's process 1: any bytes are a message, not
//! yet one, or refused; a message is written back as the bytes that it was read from; and what waits
//! for its end is never more than a frame.

#![no_main]

use cofferdam_guest::wire::{BadFrame, Frame, FromGuest, Inbox, ToGuest};
use libfuzzer_sys::fuzz_target;

/// The bytes before a frame that say how long it is.
const LENGTH: usize = 4;

/// How much comes at once.
const PIECE: usize = 7;

fuzz_target!(|bytes: &[u8]| {
    read_all::<ToGuest>(bytes);
    read_all::<FromGuest>(bytes);
});

fn read_all<T: Frame + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let mut inbox = Inbox::default();
    let (mut pushed, mut read) = (0, 0);
    for piece in bytes.chunks(PIECE) {
        inbox.push(piece);
        pushed += piece.len();
        loop {
            match inbox.take::<T>() {
                Ok(Some(message)) => {
                    let frame = message.encode();
                    assert!(frame.len() <= LENGTH + T::MOST_BYTES, "{} bytes", frame.len());
                    assert_eq!(bytes[read..pushed].get(..frame.len()), Some(frame.as_slice()), "{message:?}");
                    read += frame.len();
                    let mut again = Inbox::default();
                    again.push(&frame);
                    assert_eq!(again.take::<T>(), Ok(Some(message)));
                }
                Ok(None) => {
                    assert!(pushed - read < LENGTH + T::MOST_BYTES, "{} bytes wait", pushed - read);
                    break;
                }
                Err(error) => {
                    refused::<T>(&bytes[read..pushed], error);
                    return;
                }
            }
        }
    }
}

/// Holds that what was refused is refused as early as it can be, and for what it is.
fn refused<T: Frame>(waiting: &[u8], error: BadFrame) {
    let length = waiting.first_chunk::<LENGTH>().map(|length| u32::from_le_bytes(*length) as usize);
    let length = length.expect("nothing is refused before its length is there");
    let possible = (1..=T::MOST_BYTES).contains(&length);
    match error {
        BadFrame::Length(told) => {
            assert!(!possible && told == length, "{told} of {length}");
            assert!(waiting.len() < LENGTH + PIECE, "{} bytes were taken first", waiting.len());
        }
        BadFrame::Kind(kind) | BadFrame::Content(kind) => {
            assert!(possible && waiting.get(LENGTH) == Some(&kind), "kind {kind} in {waiting:?}");
        }
    }
}
