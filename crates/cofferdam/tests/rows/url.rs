//! Hosts, ports, methods and paths that look like allowed ones.

use cofferdam_testkit::rows::{Attempts, Row};

use crate::world::{World, codes};
use crate::{Ended, row};

pub(crate) mod names;
pub(crate) mod requests;

row!("URL-01", a_wildcard_has_one_label_and_not_the_apex);
row!("URL-02", what_begins_like_an_allowed_host_is_another);
row!("URL-05", an_address_is_an_address_however_it_is_written);
row!("URL-07", a_port_is_one_number);
row!("URL-08", all_that_names_the_host_agrees);

/// What is right, by each door.
pub(crate) const RIGHT: &str = r"
attempt('captured', lambda: reaches('allowed.test', 443, 'allowed.test'))
attempt('captured in the clear', lambda: reaches('allowed.test', 80, 'allowed.test'))
attempt('CONNECT', lambda: tunnels(b'allowed.test:443'))
attempt('absolute', lambda: through_proxy(b'GET http://allowed.test/canary HTTP/1.1\r\nHost: allowed.test\r\n\r\n'))
attempt('SOCKS', lambda: socks(b'allowed.test'))
";

/// Its rules.
pub(crate) const ALLOWED: [&str; 4] = ["--allow", "allowed.test", "--allow", "http://allowed.test"];

/// The attempts that weren't refused with one of some answers.
pub(crate) fn answered_otherwise<'a>(
    attempts: &'a Attempts,
    expected: &[&str],
) -> Vec<(&'a String, &'a String)> {
    let others =
        attempts.iter().filter(|(_, attempt)| !expected.iter().any(|answer| attempt.detail.contains(answer)));
    others.map(|(name, attempt)| (name, &attempt.detail)).collect()
}

const SUFFIXES: &str = r"
for host in ['evilgithub.test', 'github.test.evil.test', 'xgithub.test', 'github.test', 'deep.api.github.test']:
    for port in [80, 443]:
        attempt(f'{host} {port}', lambda: reaches(host, port, host))
";

pub(crate) fn a_wildcard_has_one_label_and_not_the_apex(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let allowed = ["--allow", "*.github.test", "--allow", "http://*.github.test"];
    let outcome = world.denies(row, &allowed, SUFFIXES);
    for host in
        ["evilgithub.test", "github.test.evil.test", "xgithub.test", "github.test", "deep.api.github.test"]
    {
        assert_eq!(
            codes(&outcome, host).into_iter().collect::<Vec<_>>(),
            ["host_not_allowed"],
            "{outcome:#}"
        );
    }
    let _ = world.net.seen();
    assert_eq!(world.fetches(row, &allowed, "https://api.github.test/ok"), "ok");
    assert_eq!(world.fetches(row, &["--allow", "github.test"], "https://github.test/ok"), "ok");
    assert_eq!(world.net.seen().places(), ["203.0.113.20:443", "203.0.113.21:443"]);
    Ended::Tested
}

pub(crate) const PREFIXES: &str = r"
for name in [b'allowed.test.evil.test', b'allowed.test@evil.test', b'evil.test@allowed.test', b'allowed.test%2eevil.test',
             b'allowed.test#@evil.test', b'evil.test#allowed.test', b'allowed.test/@evil.test', b'allowed.test\\@evil.test',
             b'allowed.test:443@evil.test', b'evil.test?allowed.test', b'allowed.test;evil.test', b'allowed.test,evil.test']:
    attempt(f'CONNECT {name}', lambda: tunnels(name + b':443'))
    if b'/' not in name: attempt(f'absolute {name}', lambda: through_proxy(b'GET http://' + name + b'/canary HTTP/1.1\r\nHost: allowed.test\r\n\r\n'))
    if b'/' not in name: attempt(f'absolute and Host {name}', lambda: through_proxy(b'GET http://' + name + b'/canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n'))
    attempt(f'SOCKS {name}', lambda: socks(name))
    def with_host():
        with dial('allowed.test', 80) as stream:
            stream.sendall(b'GET /canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n')
            judged(heard(stream))
    attempt(f'Host {name}', with_host)
";

fn what_begins_like_an_allowed_host_is_another(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let refused = world.denies_what_is_wrong(row, &ALLOWED, PREFIXES, RIGHT);
    let plain = &refused["CONNECT_b'allowed.test.evil.test'"].detail;
    assert!(plain.contains("403 host_not_allowed"), "{plain}");
    let codes = ["host_not_allowed", "400", "name_mismatch", "SOCKS"];
    assert_eq!(answered_otherwise(&refused, &codes), []);
    Ended::Tested
}

pub(crate) const ADDRESSES: &str = r"
for name in [b'169.254.169.254', b'2852039166', b'0xa9fea9fe', b'0251.0376.0251.0376', b'169.254.43518', b'0xa9.254.0xa9fe',
             b'169.254.169.254.', b'[::ffff:169.254.169.254]', b'[::ffff:a9fe:a9fe]', b'[64:ff9b::a9fe:a9fe]',
             b'[2002:a9fe:a9fe::1]', b'0.0.0.0', b'0', b'[::]', b'127.1', b'2130706433', b'017700000001', b'[::1]',
             b'203.0.113.13', b'3405803789', b'0xcb.0.0x710d', b'[::ffff:203.0.113.13]', b'256.256.256.256', b'1.2.3.4.5']:
    attempt(f'CONNECT {name}', lambda: tunnels(name + b':443', sni='x.wild.test'))
    attempt(f'absolute {name}', lambda: through_proxy(b'GET http://' + name + b'/canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n'))
    attempt(f'SOCKS {name}', lambda: socks(name, sni='x.wild.test'))
    def with_host():
        with dial('x.wild.test', 80) as stream:
            stream.sendall(b'GET /canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n')
            judged(heard(stream))
    attempt(f'Host {name}', with_host)
def by_libc(text): reaches(text, 80)
for text in ['2852039166', '0xa9fea9fe', '0251.0376.0251.0376', '169.254.43518', '2130706433.wild.test.evil.test']:
    attempt(f'libc {text}', lambda: by_libc(text))
";

fn an_address_is_an_address_however_it_is_written(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let wild = ["--allow", "*.wild.test", "--allow", "http://*.wild.test", "--allow", "allowed.test"];
    let right = r"
attempt('CONNECT', lambda: tunnels(b'x.wild.test:443', sni='x.wild.test'))
attempt('captured', lambda: reaches('y.wild.test', 80, 'y.wild.test'))
";
    let refused = world.denies_what_is_wrong(row, &wild, ADDRESSES, right);
    let codes = ["host_not_allowed", "400", "name_mismatch", "private_address", "SOCKS", "Errno"];
    assert_eq!(answered_otherwise(&refused, &codes), []);
    // An address that a rule has is reached, in the one form that it is known by.
    let by_address = ["--allow", "http://203.0.113.13"];
    let _ = world.net.seen();
    assert_eq!(world.fetches(row, &by_address, "http://203.0.113.13/ok"), "ok");
    assert_eq!(world.net.seen().asked(), ["GET 203.0.113.13 /ok"]);
    Ended::Tested
}

pub(crate) const PORTS: &str = r"
for authority in [b'allowed.test:25', b'allowed.test:0', b'allowed.test:65536', b'allowed.test:65979', b'allowed.test:+443',
                  b'allowed.test:-443', b'allowed.test: 443', b'allowed.test:443:1', b'allowed.test:0443', b'allowed.test:0x1bb',
                  b'allowed.test:443#', b'allowed.test:', b'allowed.test', b'u@allowed.test:443', b'u:p@allowed.test:443',
                  b'allowed.test:443@allowed.test:443', b'allowed.test:8443']:
    attempt(f'CONNECT {authority}', lambda: tunnels(authority))
    def with_host():
        with dial('allowed.test', 443, 'allowed.test') as stream:
            stream.sendall(b'GET /canary HTTP/1.1\r\nHost: ' + authority + b'\r\n\r\n')
            judged(heard(stream))
    if authority not in (b'allowed.test', ): attempt(f'Host {authority}', with_host)
for port in [22, 25, 8080, 8443, 5432]:
    attempt(f'captured {port}', lambda: reaches('allowed.test', port, 'allowed.test'))
    attempt(f'SOCKS {port}', lambda: socks(b'allowed.test', port))
attempt('SOCKS 0', lambda: socks(b'allowed.test', 0))
";

fn a_port_is_one_number(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let refused = world.denies_what_is_wrong(row, &ALLOWED, PORTS, RIGHT);
    assert!(refused["CONNECT_b'allowed.test:25'"].detail.contains("403 port_not_allowed"), "{refused:?}");
    for authority in ["allowed.test:0", "allowed.test:65536", "allowed.test:+443", "u@allowed.test:443"] {
        let detail = &refused[&format!("CONNECT_b'{authority}'")].detail;
        assert!(detail.contains("400 invalid_authority"), "{authority}: {detail}");
    }
    Ended::Tested
}

/// Three names for one request: of the connection, of the handshake, and of the request.
pub(crate) const FRONTS: &str = r"
def captured(connection, sni, host):
    with dial(connection, 443, sni) as stream:
        stream.sendall(request(host))
        judged(heard(stream))
names = ['allowed.test', 'second.test', 'evil.test']
for connection in names:
    for sni in names:
        for host in names:
            if connection == sni == host: continue
            attempt(f'captured {connection} {sni} {host}', lambda: captured(connection, sni, host))
            if sidewise: attempt(f'CONNECT {connection} {sni} {host}', lambda: tunnels(connection.encode() + b':443', sni, host))
def in_the_clear(host, more=''):
    with dial('allowed.test', 80) as stream:
        stream.sendall(request(host, more=more))
        judged(heard(stream))
attempt('in the clear', lambda: in_the_clear('evil.test'))
def in_the_clear_absolute():
    with dial('allowed.test', 80) as stream:
        stream.sendall(b'GET http://evil.test/canary HTTP/1.1\r\nHost: allowed.test\r\n\r\n')
        judged(heard(stream))
attempt('in absolute form', lambda: in_the_clear_absolute())
def second():
    with dial('allowed.test', 443, 'allowed.test') as stream:
        stream.sendall(b'GET /ok HTTP/1.1\r\nHost: allowed.test\r\n\r\n')
        said = b''
        while not said.endswith(b'ok\n'):
            part = stream.recv(4096)
            if not part: break
            said += part
        stream.sendall(request('evil.test'))
        judged(heard(stream))
attempt('the second request of a connection', lambda: second())
";

/// A handshake that names nobody.
const UNNAMED: &str = r"
def unnamed():
    with socket.create_connection(('allowed.test', 443)) as plain:
        with unverified.wrap_socket(plain) as stream:
            stream.sendall(request('allowed.test'))
            judged(heard(stream))
attempt('without a server name', unnamed)
";

fn all_that_names_the_host_agrees(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let options = [&ALLOWED[..], &["--allow", "second.test"]].concat();
    let (inside, outcome) = world.inside(row, &options, &format!("sidewise = True\n{FRONTS}{UNNAMED}"));
    // The first of two requests on a connection is right, and nothing else is.
    assert_eq!(world.net.seen().asked(), ["GET allowed.test /ok"]);
    let outside = world.outside(row, &format!("sidewise = False\n{FRONTS}{UNNAMED}"));
    let tunnels: Vec<_> =
        inside.keys().filter(|name| name.starts_with("CONNECT")).map(String::as_str).collect();
    let unproved = row.unproved(&inside, &outside, &tunnels);
    let unproved: Vec<_> = unproved.iter().filter(|name| !name.starts_with("CONNECT")).collect();
    assert!(unproved.is_empty(), "outside each gets through: {unproved:?}");
    for host in ["allowed.test", "second.test"] {
        assert!(codes(&outcome, host).contains("name_mismatch"), "{outcome:#}");
    }
    assert!(codes(&outcome, "allowed.test").contains("no_server_name"), "{outcome:#}");
    let _ = world.net.seen();
    let (right, _) = world.inside(row, &options, RIGHT);
    assert!(right.values().all(|attempt| attempt.breach), "what is right gets through: {right:?}");
    let seen = world.net.seen();
    assert_eq!(
        (seen.requests.len(), seen.places()),
        (5, vec!["203.0.113.13:443".into(), "203.0.113.13:80".into()])
    );
    Ended::Tested
}
