//! Bytes that name a host, or don't: what is read reads back as itself, what was read as a name is no address
//! to anybody, and no pattern matches an address by a wildcard.

#![no_main]

use std::net::IpAddr;

use cofferdam_core::egress::{Host, LABEL_BYTES, NAME_BYTES, judge};
use cofferdam_core::policy::HostPattern;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(host) = Host::parse(bytes) {
        reads_back(&host);
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(pattern) = HostPattern::parse(text) else { return };
    let shown = pattern.to_string();
    assert_eq!(HostPattern::parse(&shown).as_ref(), Ok(&pattern), "{text:?}");
    for address in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1", "2001:db8::7f00:1"] {
        let address = Host::parse(address.as_bytes()).unwrap();
        assert!(pattern.exact() == Some(&address) || !pattern.matches(&address), "{pattern} {address}");
    }
    if let Some(above) = shown.strip_prefix("*.") {
        let matches = |name: &str| Host::parse(name.as_bytes()).is_ok_and(|host| pattern.matches(&host));
        assert!(!matches(above) && !matches(&format!("a.b.{above}")) && !matches(&format!("a{above}")));
        assert!(matches(&format!("a.{above}")) || above.len() + 2 > NAME_BYTES, "{pattern}");
    }
});

fn reads_back(host: &Host) {
    let shown = host.to_string();
    assert_eq!(Host::parse(shown.as_bytes()).as_ref(), Ok(host));
    match host {
        Host::Name(name) => {
            let name = name.as_str();
            assert!(name.parse::<IpAddr>().is_err() && name.len() <= NAME_BYTES, "{name}");
            let last = name.rsplit('.').next().unwrap();
            assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
            assert!(name.split('.').all(|label| (1..=LABEL_BYTES).contains(&label.len())), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()
                || byte.is_ascii_digit()
                || matches!(byte, b'-' | b'_' | b'.')));
        }
        Host::Address(address) => {
            assert_eq!(shown.parse::<IpAddr>().unwrap(), *address);
            assert_eq!(address.to_canonical(), *address);
            let (public, private) = (judge(*address, false, &[]), judge(*address, true, &[]));
            assert!(public.is_err() || public == private, "{address}");
            assert!(judge(*address, false, &[*address]).is_err(), "{address}");
        }
    }
}
