//! Bytes that leave in pieces: a surrogate in them is seen before its last byte goes, however they are cut, and one that
//! isn't there isn't seen.

#![no_main]

use cofferdam_core::surrogate::{self, LETTERS, Watch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], [u8; LETTERS], u8, bool)| {
    let (bytes, random, size, is_put) = input;
    let size = usize::from(size).max(1);
    let one = surrogate::of("", &random);
    let middle = bytes.len() / 2;
    let put = if is_put { one.as_bytes() } else { b"" };
    let text = [&bytes[..middle], put, &bytes[middle..]].concat();
    let is_there = surrogate::stands_in(&text);
    assert!(is_there || !is_put, "one that was put there is seen");
    let mut watch = Watch::default();
    let is_seen = text.chunks(size).any(|piece| watch.sees(piece));
    assert!(is_seen || !is_there, "pieces of {size} hide nothing");
});
