//! Messages of DNS: a question's answer repeats it and reads back, and what a resolver says makes nobody panic.

#![no_main]

use std::net::IpAddr;

use cofferdam_egress::proxy::dns::message::{A, AAAA, Code, Said, ask, question, said};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(Ok(question)) = question(bytes) {
        let answer = question.answer(Code::NoError, Some(IpAddr::from([198, 18, 0, 1])), 60);
        assert!(answer.len() <= bytes.len() + 16, "an answer is no amplifier");
        assert!(cofferdam_egress::proxy::dns::message::question(&answer).is_none(), "an answer is no question");
    }
    for kind in [A, AAAA] {
        let mut message = ask(1, "a.test", kind);
        (message[2], message[7]) = (0x81, 4);
        message.extend_from_slice(bytes);
        if let Some(Said::Addresses(addresses, _)) = said(&message, 1, "a.test", kind) {
            assert!(addresses.iter().all(|ip| ip.is_ipv4() == (kind == A)));
        }
        let _ = said(bytes, 1, "a.test", kind);
    }
});
