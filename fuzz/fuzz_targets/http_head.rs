//! Framing of HTTP/1, heads of `CONNECT` among them: how bytes arrive changes nothing of what is passed on, what is
//! passed on is the bytes that came, and a head that is passed on has one reading.

#![no_main]

use cofferdam_egress::proxy::http::framing::{BadMessage, Framing};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = passed(bytes, bytes.len().max(1));
    for at_once in [1, 7] {
        let pieces = passed(bytes, at_once);
        assert_eq!(pieces.1.is_some(), whole.1.is_some());
        assert!(pieces.0.starts_with(&whole.0) || whole.0.starts_with(&pieces.0));
    }
    assert!(bytes.starts_with(&whole.0));
});

/// What is passed on, and why no more.
fn passed(bytes: &[u8], at_once: usize) -> (Vec<u8>, Option<BadMessage>) {
    let (mut framing, mut waiting, mut passed) = (Framing::default(), vec![], vec![]);
    for piece in bytes.chunks(at_once) {
        waiting.extend_from_slice(piece);
        loop {
            let is_in_head = framing.is_in_head();
            match framing.pass(&waiting) {
                Ok(0) => break,
                Ok(count) => {
                    let piece: Vec<u8> = waiting.drain(..count).collect();
                    if is_in_head {
                        assert!(piece.ends_with(b"\r\n\r\n") && !piece.contains(&0));
                    }
                    passed.extend(piece);
                }
                Err(bad) => return (passed, Some(bad)),
            }
        }
    }
    (passed, None)
}
