//! A rule as `--allow` takes it: read or told what to write instead. What was read is written so that it reads
//! back as itself, and lets out nothing that it doesn't name.

#![no_main]

use cofferdam_core::egress::{Door, Host, Question, Rules};
use cofferdam_core::policy::{AllowFlag, NetworkRule, OWN_HOST};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let flag = match NetworkRule::parse_flag(text) {
        Ok(flag) => flag,
        Err(bad) => {
            assert!(!bad.to_string().is_empty() && !bad.instead().is_empty(), "{text:?}");
            return;
        }
    };
    assert_eq!(NetworkRule::parse_flag(&flag.to_string()).as_ref(), Ok(&flag), "{text:?}");
    let AllowFlag::Rule(rule) = flag else { return };
    assert!(rule.within(&rule) && rule.ports.len() == 1 && rule.flags().len() == 1, "{text:?}");
    assert!(rule.host.to_string() != OWN_HOST || rule.private, "{text:?}");
    let rules = Rules::new(std::slice::from_ref(&rule));
    for name in ["a.test", "x.a.test", "127.0.0.1", "::1"] {
        let host = Host::parse(name.as_bytes()).unwrap();
        for port in [80, 443, rule.ports[0]] {
            let is_allowed = rules.connection(Door::Capture, &host, port).is_ok();
            assert_eq!(
                is_allowed,
                rule.host.matches(&host) && rule.ports == [port],
                "{text:?} {name}:{port}"
            );
            let request = Some((&b"GET"[..], &b"/x"[..]));
            let explained = rules.explain(&Question { host: &host, port, spoken: None, request });
            assert!(is_allowed || explained.verdict.is_err(), "{text:?} {name}:{port}");
        }
    }
});
