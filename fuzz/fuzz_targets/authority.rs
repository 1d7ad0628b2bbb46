//! Bytes that name a host and a port, or don't, and a request that carries them: what is read reads back as
//! itself, and a request is let through only where everything in it names its connection.
//!
//! The input is an authority; what follows its first newline is a server name, a method and a path, a line each.

#![no_main]

use std::sync::LazyLock;

use cofferdam_core::egress::{Authority, Door, Host, RequestHead, Rules};
use cofferdam_core::policy::{AllowFlag, NetworkRule};
use libfuzzer_sys::fuzz_target;

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let flags =
        ["GET a.test/x/**", "POST a.test:8443/y", "http://*.b.test", "tls://c.test", "127.0.0.1,private"];
    let rule = |flag| match NetworkRule::parse_flag(flag) {
        Ok(AllowFlag::Rule(rule)) => rule,
        other => panic!("{flag}: {other:?}"),
    };
    Rules::new(&flags.map(rule))
});

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let authority = lines.next().unwrap_or_default();
    let read = Authority::parse(authority);
    if let Ok(read) = &read {
        assert_eq!(Authority::parse(read.to_string().as_bytes()).as_ref(), Ok(read));
        assert_eq!(Authority::parse_with_default(authority, 1).as_ref(), Ok(read));
        assert!(read.port() > 0);
    }
    let (server_name, method, path) = (lines.next(), lines.next(), lines.next());
    let (Some(method), Some(path)) = (method, path) else { return };
    for (name, port) in
        [("a.test", 443), ("a.test", 8443), ("x.b.test", 80), ("c.test", 443), ("127.0.0.1", 443)]
    {
        let host = Host::parse(name.as_bytes()).unwrap();
        let permit = RULES.connection(Door::Capture, &host, port).unwrap();
        let head = RequestHead { authorities: &[authority], server_name, method, path };
        match RULES.request(&permit, &head) {
            Ok(_) => {
                let named =
                    Authority::parse_with_default(authority, if port == 80 { 80 } else { 443 }).unwrap();
                assert_eq!((named.host(), named.port()), (&host, port));
                let plain = path.split(|byte| *byte == b'?').next().unwrap_or_default();
                assert!(name != "a.test" || !plain.windows(2).any(|two| two == b"//"), "{path:?}");
                assert!(name != "a.test" || !plain.split(|byte| *byte == b'/').any(|part| part == b".."));
            }
            Err(denial) => {
                let texts = [Some(denial.host), denial.method, denial.path, denial.rule, denial.needs];
                assert!(
                    texts.iter().flatten().all(|text| text.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
                );
            }
        }
        if RULES.tunnel(&permit, server_name).is_ok() {
            assert_eq!(server_name.map(Host::parse), Some(Ok(host)));
        }
    }
});
