//! Messages of DNS: a question that we would ask again reads as the same, its answer repeats it and reads back, and
//! what a resolver says makes nobody panic.

#![no_main]

use std::net::IpAddr;

use cofferdam_core::egress::Host;
use cofferdam_egress::proxy::dns::message::{A, AAAA, Code, Question, Said, ask, question, said};
use libfuzzer_sys::fuzz_target;

/// What answers are told by.
const ID: u16 = 7;

fuzz_target!(|bytes: &[u8]| {
    if let Some(Ok(question)) = question(bytes) {
        is_answered(&question, bytes);
        if let Ok(host) = &question.name {
            has_one_reading(host, question.kind);
        }
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

fn is_answered(asked: &Question, bytes: &[u8]) {
    let answer = asked.answer(Code::NoError, Some(IpAddr::from([198, 18, 0, 1])), 60);
    assert!(answer.len() <= bytes.len() + 16, "an answer is no amplifier");
    assert!(question(&answer).is_none(), "an answer is no question");
}

/// A name that is a host is one when it is asked for again, and what is answered then reads as that.
fn has_one_reading(host: &Host, kind: u16) {
    let name = host.to_string();
    let Host::Name(_) = host else { return };
    let Some(Ok(again)) = question(&ask(ID, &name, kind)) else { panic!("{name} can't be asked for") };
    assert_eq!((again.name.as_ref(), again.kind, again.is_internet), (Ok(host), kind, true));
    if kind == A {
        let ip = IpAddr::from([198, 18, 0, 1]);
        let answer = again.answer(Code::NoError, Some(ip), 60);
        let Some(Said::Addresses(addresses, _)) = said(&answer, ID, &name, A) else { panic!("{name}") };
        assert_eq!(addresses, [ip]);
    }
}
