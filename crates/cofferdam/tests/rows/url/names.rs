//! Names that no host has, in every place where a host is named.

use cofferdam_testkit::rows::Row;

use super::{ALLOWED, RIGHT, answered_otherwise};
use crate::world::World;
use crate::{Ended, row};

row!("URL-03", names_that_no_host_has_are_refused_before_they_are_matched);
row!("URL-04", no_byte_ends_a_name_early);
row!("URL-06", a_name_that_looks_alike_is_another);

/// `everywhere(name)` says a name, as bytes, in each place where a host can be named.
pub(crate) const EVERYWHERE: &str = r"
def hello(name):
    'A handshake whose server name is these bytes.'
    def framed(data, size): return len(data).to_bytes(size, 'big') + data
    names = framed(b'\x00' + framed(name, 2), 2)
    groups, algorithms = framed(b'\x00\x1d', 2), framed(b'\x04\x03\x08\x04', 2)
    extensions = [(0, names), (10, groups), (13, algorithms), (43, b'\x02\x03\x04'),
                  (51, framed(b'\x00\x1d' + framed(os.urandom(32), 2), 2))]
    body = b'\x03\x03' + os.urandom(32) + framed(os.urandom(32), 1) + framed(b'\x13\x01\xc0\x2b', 2) + b'\x01\x00'
    body += framed(b''.join(kind.to_bytes(2, 'big') + framed(data, 2) for kind, data in extensions), 2)
    return b'\x16\x03\x01' + framed(b'\x01' + framed(body, 3), 2)
def shakes_hands(name):
    with socket.create_connection(('allowed.test', 443)) as stream:
        stream.sendall(hello(name))
        # A handshake that goes on begins with a handshake record of the server's.
        said = stream.recv(4096)
        if said[:1] != b'\x16': raise OSError(f'heard {said[:20]}')
def with_host(name):
    with dial('allowed.test', 80) as stream:
        stream.sendall(b'GET /canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n')
        judged(heard(stream))
def everywhere(name, handshake=True):
    shown = repr(name if len(name) < 60 else name[:8] + b'%d' % len(name))
    attempt(f'CONNECT {shown}', lambda: tunnels(name + b':443'))
    attempt(f'absolute {shown}', lambda: through_proxy(b'GET http://' + name + b'/canary HTTP/1.1\r\nHost: allowed.test\r\n\r\n'))
    if name.strip(b' \t') == name: attempt(f'Host {shown}', lambda: with_host(name)) # around it space means nothing
    if len(name) < 256: attempt(f'SOCKS {shown}', lambda: socks(name))
    # Where the name is one, the handshake goes on, so that the refusal can be read: URL-08 has those.
    if handshake: attempt(f'SNI {shown}', lambda: shakes_hands(name))
";

/// Also of `everywhere` itself.
pub(crate) const RIGHT_EVERYWHERE: &str = r"
for name in [b'allowed.test', b'ALLOWED.test', b'allowed.test.']: everywhere(name)
";

pub(crate) const ANSWERS: [&str; 5] = ["400", "name_mismatch", "host_not_allowed", "SOCKS", "heard"];

fn refuses(row: &mut Row, wrong: &str) -> Result<cofferdam_testkit::rows::Attempts, Ended> {
    let world = World::around(row)?;
    let right = format!("{EVERYWHERE}{RIGHT_EVERYWHERE}{RIGHT}");
    let refused = world.denies_what_is_wrong(row, &ALLOWED, &format!("{EVERYWHERE}{wrong}"), &right);
    assert_eq!(answered_otherwise(&refused, &ANSWERS), []);
    Ok(refused)
}

pub(crate) const FORMS: &str = r"
for name in [b'allowed..test', b'.allowed.test', b'allowed.test..', b' allowed.test', b'allowed.test ', b'allowed .test',
             b'allowed\t.test', b'allowed.test\t', b'', b'.', b'..', b'-allowed.test', b'allowed-.test',
             b'a' * 64 + b'.allowed.test', b'.'.join([b'a' * 49] * 5) + b'.test']:
    everywhere(name)
";

fn names_that_no_host_has_are_refused_before_they_are_matched(row: &mut Row) -> Ended {
    let refused = match refuses(row, FORMS) {
        Ok(refused) => refused,
        Err(ended) => return ended,
    };
    for name in ["allowed..test", ".allowed.test", "allowed.test.."] {
        for way in ["CONNECT", "Host"] {
            let detail = &refused[&format!("{way}_b'{name}'")].detail;
            assert!(detail.contains("400 invalid_host"), "{way} {name}: {detail}");
        }
    }
    Ended::Tested
}

pub(crate) const BYTES: &str = r"
for byte in [b'\x00', b'\r', b'\n', b'\r\n', b'%', b'%00', b'%2e', b'\x7f', b'\xff', b'\x1b']:
    everywhere(b'allowed.test' + byte + b'.evil.test')
    everywhere(b'evil.test' + byte + b'.allowed.test')
    if byte != b'\r\n': everywhere(b'allowed.test' + byte) # which ends a field as it should
for name in [b'[fe80::1%25eth0]', b'[fe80::1%eth0]', b'[2001:db8::10%1]', b'fe80::1%lo', b'[allowed.test]', b'[::1']:
    everywhere(name)
";

fn no_byte_ends_a_name_early(row: &mut Row) -> Ended {
    let refused = match refuses(row, BYTES) {
        Ok(refused) => refused,
        Err(ended) => return ended,
    };
    let host = |detail: &str| detail.contains("400 invalid_host") || detail.contains("400 invalid_authority");
    let name = r"Host_b'allowed.test\x00.evil.test'";
    assert!(host(&refused[name].detail), "{:?}", refused[name]);
    Ended::Tested
}

pub(crate) const ALIKE: &str = r"
for name in ['\u0430llowed.test', 'allowed\u3002test', 'allowed\uff0etest', 'allow\u00aded.test', '\uff41llowed.test',
             'allowed.te\u017ft', 'a\u200bllowed.test', 'allowe\u0501.test', '\u24d0llowed.test']:
    everywhere(name.encode())
for name in [b'xn--llowed-8fg.test', b'XN--LLOWED-8FG.TEST', b'xn--allowed-.test', b'xn--.test']:
    everywhere(name, False)
attempt('libc with another alphabet', lambda: reaches('\u0430llowed.test', 80, 'xn--llowed-8fg.test'))
attempt('libc with its encoding', lambda: reaches('xn--llowed-8fg.test', 443, 'xn--llowed-8fg.test'))
";

fn a_name_that_looks_alike_is_another(row: &mut Row) -> Ended {
    match refuses(row, ALIKE) {
        Ok(_) => Ended::Tested,
        Err(ended) => ended,
    }
}
