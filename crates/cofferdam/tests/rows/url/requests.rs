//! Requests within requests, redirects, and what an allowed host would take.

use cofferdam_testkit::rows::Row;

use crate::world::{World, codes};
use crate::{Ended, row};

row!("URL-11", one_request_is_one_request);
row!("URL-13", each_hop_is_judged_anew);
row!("URL-15", a_rule_for_reading_is_none_for_writing);

/// Bytes in which servers of different minds see another request. Each has a mark of its own in what is smuggled,
/// which no rule allows.
const SMUGGLED: &str = r"
inner = b'GET /smuggled-NN- HTTP/1.1\r\nHost: allowed.test\r\n\r\n'
post, get, host = b'POST /ok HTTP/1.1\r\n', b'GET /ok HTTP/1.1\r\n', b'Host: allowed.test\r\n'
chunked, none = b'Transfer-Encoding: chunked\r\n', b'0\r\n\r\n'
def length(number): return b'Content-Length: ' + str(number).encode() + b'\r\n'
shapes = {
    'a length and chunks': post + host + length(5 + len(inner)) + chunked + b'\r\n' + none + inner,
    'chunks and a length': post + host + chunked + length(5) + b'\r\n' + none + inner,
    'two lengths': post + host + length(0) + length(len(inner)) + b'\r\n' + inner,
    'two lengths in one': post + host + b'Content-Length: 0, %d\r\n\r\n' % len(inner) + inner,
    'a length with a sign': post + host + b'Content-Length: +%d\r\n\r\n' % len(inner) + inner,
    'a negative length': post + host + b'Content-Length: -1\r\n\r\n' + inner,
    'a length and a space': post + host + b'Content-Length : %d\r\n\r\n' % len(inner) + inner,
    'a bare line feed': post + host + b'X: y\n' + length(len(inner)) + b'\r\n' + inner,
    'bare line feeds': (post + host + b'\r\n').replace(b'\r\n', b'\n') + inner,
    'a bare return': post + host + b'X: y\rTransfer-Encoding: chunked\r\n\r\n' + none + inner,
    'a folded field': post + host + b'X: y\r\n Transfer-Encoding: chunked\r\n\r\n' + none + inner,
    'folded chunks': post + host + b'Transfer-Encoding:\r\n chunked\r\n\r\n' + none + inner,
    'a space before a colon': post + host + b'Transfer-Encoding : chunked\r\n\r\n' + none + inner,
    'other chunks': post + host + b'Transfer-Encoding: xchunked\r\n\r\n' + none + inner,
    'chunks that are not last': post + host + b'Transfer-Encoding: chunked, identity\r\n\r\n' + none + inner,
    'chunks twice': post + host + chunked + chunked.replace(b'chunked', b'identity') + b'\r\n' + none + inner,
    'a bad size': post + host + chunked + b'\r\n0x0\r\n\r\n' + inner,
    'a size that is too large': post + host + chunked + b'\r\n10000000000000000\r\n' + inner,
    'an extension with a line feed': post + host + chunked + b'\r\n0;a\nb\r\n\r\n' + inner,
    'a chunk without an end': post + host + chunked + b'\r\n1\r\nxx0\r\n\r\n' + inner,
    'a nul in a field': get + host + b'X: \x00\r\n\r\n' + inner,
    'two hosts': get + host + b'Host: smuggled-NN-.test\r\n\r\n',
    'no host': get + b'X: smuggled-NN-\r\n\r\n',
    'a path with a space': b'GET /ok /smuggled-NN- HTTP/1.1\r\n' + host + b'\r\n',
    'a path that climbs': b'GET /ok/../smuggled-NN- HTTP/1.1\r\n' + host + b'\r\n',
    'a path that is encoded': b'GET /ok/%2e%2e/smuggled-NN- HTTP/1.1\r\n' + host + b'\r\n',
    'a pipelined request': get + host + b'\r\n' + inner,
    'an upgrade that is not taken': get + host + b'Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n' + inner,
    'an upgrade to h2c': get + host + b'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n' + inner,
}
def hidden(said):
    'Whether anything but what is allowed was answered.'
    with dial('allowed.test', 80) as stream:
        stream.sendall(said)
        stream.shutdown(socket.SHUT_WR)
        judged(heard(stream))
for number, (name, said) in enumerate(shapes.items()):
    attempt(f'{number:02} {name}', lambda: hidden(said.replace(b'NN', b'%02d' % number)))
";

/// Shapes that begin with a request that is right: it is let through, and what follows isn't.
const RIGHT_AT_FIRST: [&str; 3] =
    ["a_pipelined_request", "an_upgrade_that_is_not_taken", "an_upgrade_to_h2c"];

/// Shapes of which only the body is wrong, which is seen when the request is under way.
const WRONG_IN_THE_BODY: [&str; 4] =
    ["a_bad_size", "a_size_that_is_too_large", "an_extension_with_a_line_feed", "a_chunk_without_an_end"];

pub(crate) fn one_request_is_one_request(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let allowed = ["--allow", "http://allowed.test/ok"];
    let (inside, outcome) = world.inside(row, &allowed, SMUGGLED);
    let seen = world.net.seen();
    assert!(!seen.holds(b"smuggled"), "{:?}", seen.asked());
    assert!(seen.asked().iter().all(|asked| asked.ends_with(" allowed.test /ok")), "{:?}", seen.asked());
    assert!(seen.requests.iter().any(|request| request.method == "GET"), "what is right gets through");
    for (name, attempt) in &inside {
        let shape = &name[3..];
        let passes = RIGHT_AT_FIRST.contains(&shape) || WRONG_IN_THE_BODY.contains(&shape);
        let refused = ["400", "path_not_allowed"].iter().any(|answer| attempt.detail.contains(answer));
        assert!(passes || refused, "{name}: {attempt:?}");
    }
    assert!(codes(&outcome, "allowed.test").contains("path_not_allowed"), "{outcome:#}");
    // Without anybody between, what is smuggled arrives, whatever the far end makes of it.
    world.outside(row, SMUGGLED);
    let seen = world.net.seen();
    let mark = |name: &str| format!("smuggled-{}-", &name[..2]);
    let arrived = |name: &&String| seen.holds(mark(name).as_bytes());
    let missing: Vec<_> = inside.keys().filter(|name| !arrived(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    row.proved();
    Ended::Tested
}

/// Follows redirects as programs do: each of them to the end, or to a refusal.
const HOPS: &str = r"
def follows(first, code=''):
    url = f'http://api.test/redirect{code}?to={first}'
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=unverified))
    try: said = opener.open(url, b'body' if code == 'post' else None).read()
    except urllib.error.HTTPError as error: raise OSError(f'{error.code} {error.headers[denied]}')
    if said != b'ok\n' and b'reached ' not in said: raise OSError(said)
denied = 'x-cofferdam-denied'
for to in ['https://other.test/ok', 'http://other.test/ok', 'http://169.254.169.254/latest/meta-data/', 'http://metadata.test/latest',
           'http://private.test/ok', 'http://api.test:8080/ok', 'https://api.test/ok', 'http://10.0.0.5/ok', 'http://[::ffff:a9fe:a9fe]/x']:
    attempt(to, lambda: follows(to))
    attempt(f'{to} by two hops', lambda: follows(f'http://api.test/redirect?to={to}'))
";

/// A redirect to another host that is allowed, whose client takes its headers along.
const WITH_A_CREDENTIAL: &str = r"
def follows():
    asked = urllib.request.Request('https://api.test/redirect?to=https://second.test/head')
    asked.add_header('Authorization', 'Bearer ' + os.environ['API_TOKEN'])
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=unverified))
    try: said = opener.open(asked).read()
    except urllib.error.HTTPError as error: raise OSError(f'{error.code} {error.headers[denied]}')
    if b'Bearer' not in said: raise OSError(said)
denied = 'x-cofferdam-denied'
attempt('a redirect with a credential', follows)
";

pub(crate) fn each_hop_is_judged_anew(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let options =
        ["--allow", "http://api.test", "--allow", "http://second.test", "--allow", "http://private.test"];
    let (inside, outcome) = world.inside(row, &options, HOPS);
    let seen = world.net.seen();
    assert_eq!(seen.places(), ["203.0.113.10:80"], "the first hop alone");
    let outside = world.outside(row, HOPS);
    row.compare(&inside, &outside);
    assert!(codes(&outcome, "other.test").contains("host_not_allowed"), "{outcome:#}");
    assert!(codes(&outcome, "api.test").contains("port_not_allowed"), "{outcome:#}");
    assert!(codes(&outcome, "private.test").contains("private_address"), "{outcome:#}");
    // To another host that is allowed it goes on.
    let _ = world.net.seen();
    let second = "http://api.test/redirect?to=http://second.test/ok";
    assert_eq!(world.fetches(row, &options, second), "ok");
    assert_eq!(
        world.net.seen().asked(),
        ["GET api.test /redirect?to=http://second.test/ok", "GET second.test /ok"]
    );
    // A credential doesn't go along, and neither does what stands for it.
    let secret = world.keeps_a_secret(row);
    let options = ["--cred", "api=static.api", "--allow", "second.test"];
    let (inside, outcome) = world.inside(row, &options, WITH_A_CREDENTIAL);
    let seen = world.net.seen();
    assert_eq!(seen.asked(), ["GET api.test /redirect?to=https://second.test/head"], "the first hop alone");
    assert!(seen.holds(secret.as_bytes()), "which has the credential");
    let outside = world.outside_with(row, &secret, WITH_A_CREDENTIAL);
    row.compare(&inside, &outside);
    assert!(codes(&outcome, "second.test").contains("credential_wrong_host"), "{outcome:#}");
    Ended::Tested
}

/// Asks for a WebSocket.
const UPGRADES: &str = r"
def upgrades(path):
    upgrade = 'Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n'
    with dial('api.test', 443, 'api.test') as stream:
        stream.sendall(request('api.test', path, 'GET', upgrade).replace(b'Connection: close\r\n', b''))
        said = stream.recv(4096)
        if not said.startswith(b'HTTP/1.1 101'): judged(said)
";

/// Ways to leave something at a host with a key of one's own.
const FOREIGN: &str = r"
def leaves(path, more, body=b'canary'):
    with dial('api.test', 443, 'api.test') as stream:
        stream.sendall(request('api.test', path, 'POST', f'Content-Length: {len(body)}\r\n{more}') + body)
        said = heard(stream)
        judged(said.replace(b'\n6\n', b'\nreached '))
for name, path, more in [
    ('a bearer', '/upload', 'Authorization: Bearer not-ours\r\n'), ('basic', '/upload', 'Authorization: Basic bm90Om91cnM=\r\n'),
    ('a signature', '/bucket/file', 'Authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, Signature=y\r\n'),
    ('a key', '/upload', 'X-Api-Key: not-ours\r\n'), ('a cookie', '/gists', 'Cookie: session=not-ours\r\n'),
    ('a key in the address', '/upload?api_key=not-ours', ''), ('a signed address', '/bucket/file?X-Amz-Signature=y', ''),
]:
    attempt(name, lambda: leaves(path, more))
attempt('a WebSocket', lambda: upgrades('/ws'))
";

/// Ways to leave something at a host that may be read from.
const UPLOADS: &str = r"
def asks_for(method, path, more='', body=b''):
    with dial('api.test', 443, 'api.test') as stream:
        stream.sendall(request('api.test', path, method, more) + body)
        said = heard(stream)
        judged(said.replace(b'\nok\n', b'\nreached ').replace(b'\n6\n', b'\nreached '))
sized = 'Content-Length: 6\r\nAuthorization: Bearer not-ours\r\n'
for method in ['POST', 'PUT', 'PATCH', 'DELETE', 'get', 'PROPFIND']:
    attempt(f'{method} where one may read', lambda: asks_for(method, '/public/file', sized, b'canary'))
for path in ['/upload', '/gists', '/other/repo.git/git-receive-pack', '/publicfile', '/public/../upload', '/public/%2e%2e/upload',
             '/public/..%2fupload', '/public//../upload', '//upload', '/./upload']:
    attempt(f'POST {path}', lambda: asks_for('POST', path, sized, b'canary'))
    attempt(f'GET {path}', lambda: asks_for('GET', path, sized, b'canary'))
attempt('POST in chunks', lambda: asks_for('POST', '/public/file', 'Transfer-Encoding: chunked\r\n', b'6\r\ncanary\r\n0\r\n\r\n'))
attempt('POST by another field', lambda: asks_for('POST', '/public/file', sized + 'X-HTTP-Method-Override: GET\r\n', b'canary'))
attempt('a WebSocket', lambda: upgrades('/ws'))
";

pub(crate) fn a_rule_for_reading_is_none_for_writing(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let reading = ["--allow", "GET,HEAD api.test/public/**"];
    let uploads = format!("{UPGRADES}{UPLOADS}");
    let (inside, outcome) = world.inside(row, &reading, &uploads);
    let seen = world.net.seen();
    assert!(seen.arrivals.is_empty(), "{:?} {:?}", seen.asked(), seen.places());
    let outside = world.outside(row, &uploads);
    let seen = world.net.seen();
    assert!(seen.holds(b"canary"), "what is left there would be seen");
    row.compare(&inside, &outside);
    let codes = codes(&outcome, "api.test");
    assert!(codes.contains("method_not_allowed") && codes.contains("path_not_allowed"), "{outcome:#}");
    assert_eq!(
        world.fetches(row, &reading, "https://api.test/public/page"),
        "reached api.test at 203.0.113.10:443"
    );
    // A rule for that path lets the same upgrade through.
    let (attempts, _) = world.inside(
        row,
        &["--allow", "api.test/ws"],
        &format!("{UPGRADES}\nattempt('a WebSocket', lambda: upgrades('/ws'))"),
    );
    assert!(attempts["a_WebSocket"].breach, "{attempts:?}");
    // Where the host has a credential of the run's, no other is let through, and nothing that nobody can judge.
    world.keeps_a_secret(row);
    let _ = world.net.seen();
    let foreign = format!("{UPGRADES}{FOREIGN}");
    let (inside, outcome) = world.inside(row, &["--cred", "api=static.api"], &foreign);
    assert!(world.net.seen().requests.is_empty());
    let outside = world.outside(row, &foreign);
    row.compare(&inside, &outside);
    let codes = crate::world::codes(&outcome, "api.test");
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), ["foreign_credential"], "{outcome:#}");
    Ended::Tested
}
