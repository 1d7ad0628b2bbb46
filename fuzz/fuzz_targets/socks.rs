//! SOCKS: what is whole has one reading, whatever follows it, and is incomplete up to its last byte; a host in it is
//! one, and reads back as itself.

#![no_main]

use cofferdam_core::egress::Host;
use cofferdam_egress::proxy::socks::{Read, greeting, request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    has_one_reading(bytes, greeting);
    has_one_reading(bytes, request);
    if let Read::Whole(request, _) = request(bytes)
        && let Ok(host) = request.host
    {
        assert_eq!(Host::parse(host.to_string().as_bytes()), Ok(host));
    }
});

fn has_one_reading<T: PartialEq + std::fmt::Debug>(bytes: &[u8], read: fn(&[u8]) -> Read<T>) {
    let Read::Whole(message, took) = read(bytes) else { return };
    for end in 0..took {
        assert_eq!(read(&bytes[..end]), Read::Incomplete, "{end} of {took}");
    }
    assert_eq!(read(&bytes[..took]), Read::Whole(message, took), "what follows is no part of it");
}
