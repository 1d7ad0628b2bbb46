//! SOCKS: a message is whole, incomplete or refused, takes no more bytes than there are, and a host in it is one.

#![no_main]

use cofferdam_core::egress::Host;
use cofferdam_egress::proxy::socks::{Read, greeting, request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Read::Whole(_, took) = greeting(bytes) {
        assert!(took <= bytes.len());
    }
    if let Read::Whole(request, took) = request(bytes) {
        assert!(took <= bytes.len());
        if let Ok(host) = request.host {
            assert_eq!(Host::parse(host.to_string().as_bytes()), Ok(host));
        }
    }
});
