//! Everything that is offered, asked for by plain clients in the namespace; and nothing of it stays.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::host::{Snapshot, holders_of, processes_with};

/// A network, or a skipped test.
macro_rules! net {
    () => {
        match Net::start() {
            Ok(net) => net,
            Err(why) => crate::skip!("{why}"),
        }
    };
}

/// Python that a plain client begins with: `fetch` over HTTP or HTTPS at an address, by a name.
const CLIENT: &str = r#"
import http.client, socket, ssl, struct, sys
trusting = ssl.create_default_context(cafile=sys.argv[1])
def dial(to, name=None):
    plain = socket.create_connection(to, 10)
    return trusting.wrap_socket(plain, server_hostname=name) if name else plain
def fetch(path, to=('203.0.113.10', 443), name='api.test', method='GET', body=None, headers={}, chunked=False):
    connection = http.client.HTTPSConnection(name, context=trusting) if name and to[1] == 443 else http.client.HTTPConnection(name or to[0])
    connection.sock = dial(to, name if to[1] == 443 else None)
    connection.request(method, path, body, headers, encode_chunked=chunked)
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())
"#;

/// Runs Python in there, and gives what it printed.
fn python(net: &Net, code: &str) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &format!("{CLIENT}{code}")]).arg(net.authority());
    let ran = net.run(&command).exits(0);
    ran.stdout
}

#[test]
fn http_answers_in_the_clear_and_in_tls_at_any_address() {
    let net = net!();
    let said = python(
        &net,
        r"
print(fetch('/ok')[:2])
print(fetch('/anything', ('192.0.2.77', 443), 'some.test')[1])
print(fetch('/ok', ('2001:db8::10', 80))[:2])
print(fetch('/ok', ('127.0.0.1', 8080))[:2])
",
    );
    let expected =
        "(200, b'ok\\n')\nb'reached some.test at 192.0.2.77:443\\n'\n(200, b'ok\\n')\n(200, b'ok\\n')\n";
    assert_eq!(said, expected);
    let seen = net.seen();
    let places = ["127.0.0.1:8080", "192.0.2.77:443", "203.0.113.10:443", "[2001:db8::10]:80"];
    assert_eq!(seen.places(), places);
    assert_eq!(seen.asked()[..2], ["GET api.test /ok", "GET some.test /anything"]);
    assert_eq!(seen.arrivals[0].server_name.as_deref(), Some("api.test"));
    assert!(seen.holds(b"GET /ok HTTP/1.1"), "what is within TLS is kept too");
    assert_eq!((seen.requests[0].tls, seen.requests[2].tls), (true, false));
    let counted = Counted { packets: 0, ..seen.counted };
    assert_eq!(counted, Counted { tcp: 4, ..Counted::default() });
    let again = net.seen();
    assert!(again.arrivals.is_empty() && again.requests.is_empty(), "it is told once");
}

#[test]
fn bodies_come_whole_in_either_direction() {
    let net = net!();
    let said = python(
        &net,
        r"
import gzip, time
parts = (b'x' * 1000 for _ in range(50))
print(fetch('/upload', method='POST', body=parts, headers={'Transfer-Encoding': 'chunked'}, chunked=True)[1])
print(fetch('/echo', method='PUT', body=bytes(range(256)))[1] == bytes(range(256)))
print(len(fetch('/large?bytes=3000000')[1]))
status, body, headers = fetch('/gzip')
print(headers['content-encoding'], gzip.decompress(body))
began = time.monotonic()
print(fetch('/slow?ms=300')[1], time.monotonic() - began >= 0.3)
status, body, headers = fetch('/redirect?to=https://other.test/x')
print(status, headers['location'])
print(fetch('/events')[1])
",
    );
    let expected = "b'50000\\n'\nTrue\n3000000\ngzip b'a text that is compressed, compressed, compressed\\n'\n\
                    b'slow\\n' True\n302 https://other.test/x\nb'data: 1\\n\\ndata: 2\\n\\ndata: 3\\n\\n'\n";
    assert_eq!(said, expected);
    let seen = net.seen();
    assert_eq!(seen.requests[0].body_bytes, 50_000);
}

#[test]
fn events_come_one_by_one_and_a_web_socket_sends_back() {
    let net = net!();
    let said = python(
        &net,
        r"
s = dial(('203.0.113.10', 443), 'api.test')
s.sendall(b'GET /events HTTP/1.1\r\nHost: api.test\r\n\r\n')
first = b''
while b'data: 1' not in first: first += s.recv(4096)
print(b'data: 2' not in first)
s = dial(('203.0.113.10', 443), 'api.test')
s.sendall(b'GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
head = b''
while b'\r\n\r\n' not in head: head += s.recv(4096)
print(head.split(b'\r\n')[0], b's3pPLMBiTxaQ9kYGzzhZRbK+xOo=' in head)
s.sendall(b'\x81\x85\x00\x00\x00\x00hello')
print(s.recv(100))
",
    );
    assert_eq!(said, "True\nb'HTTP/1.1 101 Switching Protocols' True\nb'\\x81\\x05hello'\n");
}

#[test]
fn http_2_has_trailers() {
    let net = net!();
    let (authority, to) = (net.authority(), "api.test:443:203.0.113.10");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http2", "-D", "-", "--resolve", to, "--cacert"]).arg(authority);
    curl.args(["--data-binary", "hello", "https://api.test/trailers"]);
    let said = net.run(&curl);
    if said.code != 0 || !said.stdout.starts_with("HTTP/2") {
        crate::skip!("there is no curl that speaks HTTP/2: {said:?}");
    }
    assert!(said.stdout.contains("grpc-status: 0") && said.stdout.contains("hello"), "{said:?}");
    assert_eq!(net.seen().requests[0].version, "HTTP/2.0");
}

#[test]
fn a_server_that_is_not_who_it_says_is_not_trusted() {
    let net = net!();
    let said = python(
        &net,
        r"
for name in ['api.test', 'misnamed.test', 'untrusted.test']:
    try: print(fetch('/ok', name=name)[0])
    except ssl.SSLCertVerificationError as error: print(error.verify_message)
",
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "200");
    assert!(lines[1].contains("Hostname mismatch"), "{lines:?}");
    assert!(lines[2].contains("unable to get local issuer") || lines[2].contains("self"), "{lines:?}");
}

/// Python that asks for a name over either carrier: `ask(name, kind, to, tcp)` gives addresses.
const ASK: &str = r"
def question(name, kind):
    labels = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.'))
    return b'\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00' + labels + b'\x00' + struct.pack('>HH', kind, 1)
def ask(name, kind, to='203.0.113.53', tcp=False):
    asked = question(name, kind)
    if tcp:
        s = dial((to, 53))
        s.sendall(struct.pack('>H', len(asked)) + asked)
        answer = s.recv(4096)[2:]
    else:
        s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(10)
        s.sendto(asked, (to, 53))
        answer, _ = s.recvfrom(4096)
    assert answer[:2] == asked[:2]
    count, rest, found = answer[7], answer[len(asked):], []
    for _ in range(count):
        length = rest[11]
        found.append(socket.inet_ntop(socket.AF_INET if length == 4 else socket.AF_INET6, rest[12:12 + length]))
        rest = rest[12 + length:]
    return answer[3] & 15, found
";

#[test]
fn the_resolver_answers_everywhere_and_notes_every_question() {
    let net = net!();
    let code = r"
print(ask('api.test', 1), ask('API.test', 28, '9.9.9.9', True), ask('mixed.test', 1, '2001:db8::53'))
print(ask('x.wild.test', 1), ask('api.test', 16), ask('secret.nobody.test', 1))
print(socket.getaddrinfo('api.test', 443, socket.AF_INET, socket.SOCK_STREAM)[0][4])
";
    let said = python(&net, &format!("{ASK}{code}"));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "(0, ['203.0.113.10']) (0, ['2001:db8::10']) (0, ['10.0.0.5', '127.0.0.1'])");
    assert_eq!(lines[1], "(0, ['203.0.113.40']) (0, []) (3, [])");
    assert_eq!(lines[2], "('203.0.113.10', 443)", "libc asks it too, whoever its resolver is");
    let seen = net.seen();
    let second = &seen.questions[1];
    assert_eq!((second.name.as_str(), second.kind, second.carrier), ("api.test", 28, Carrier::Tcp));
    assert_eq!(second.to.to_string(), "9.9.9.9:53");
    assert!(seen.names().contains(&"secret.nobody.test"), "{seen:?}");
}

/// Every port, at addresses of every kind.
#[test]
fn each_canary_counts_what_comes_and_sends_it_back() {
    let net = net!();
    let mut ports: Vec<u16> = ECHO_PORTS.into();
    ports.sort_unstable();
    let code = format!(
        r"
for at in ['10.0.0.5', '100.64.0.1', '169.254.169.254', '203.0.113.200', '127.0.0.1', 'fd00:ec2::254', '::1']:
    for port in {ports:?}:
        s = dial((at, port))
        s.sendall(b'canary bytes')
        said = b''
        while not said.endswith(b'canary bytes'): said += s.recv(100)
    for port in {UDP_PORTS:?}:
        s = socket.socket(socket.AF_INET6 if ':' in at else socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(10)
        s.sendto(b'datagram', (at, port))
        assert s.recvfrom(100)[0] == b'datagram'
for port in [53, 80, 443, 8080, 8443]: dial(('198.51.100.1', port))
"
    );
    python(&net, &code);
    let seen = net.seen();
    let count = |carrier| seen.arrivals.iter().filter(|arrival| arrival.carrier == carrier).count();
    assert_eq!((count(Carrier::Tcp), count(Carrier::Udp)), (7 * ports.len() + 5, 7 * UDP_PORTS.len()));
    let bytes: u64 = seen.arrivals.iter().map(|arrival| arrival.bytes).sum();
    assert_eq!(bytes, 7 * (12 * ports.len() + 8 * UDP_PORTS.len()) as u64);
    assert!(seen.holds(b"canary bytes") && seen.holds(b"datagram") && !seen.holds(b"nothing"));
    assert!(seen.places().contains(&"169.254.169.254:22".to_owned()), "{:?}", seen.places());
    assert_eq!(seen.counted.tcp, (7 * ports.len() + 5) as u64);
}

#[test]
fn what_nobody_listens_for_is_counted_too() {
    let net = net!();
    assert!(net.seen().is_nothing());
    let code = r"
for port in range(2000, 2005):
    try: dial(('203.0.113.10', port))
    except ConnectionRefusedError: pass
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', port))
";
    python(&net, code);
    let seen = net.seen();
    assert!(seen.arrivals.is_empty() && !seen.is_nothing());
    // For each, the packet and its refusal.
    assert_eq!(seen.counted, Counted { tcp_refused: 5, udp_unheard: 5, packets: 20, ..Counted::default() });
    if is_root() {
        let code = r"
for protocol, packet in [(1, b'\x08\x00\xf7\xff\x00\x00\x00\x00'), (41, b'xxxx'), (47, b'xxxx')]:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol).sendto(packet, ('8.8.8.8', 0))
";
        python(&net, code);
        // What is echoed comes back.
        assert_eq!(net.seen().counted, Counted { echo: 1, packets: 4, ..Counted::default() });
    }
}

#[test]
fn folders_programs_and_servers_can_be_put_there() {
    let net = net!();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "an index").unwrap();
    std::fs::write(folder.path().join("secret"), "above").unwrap();
    std::fs::create_dir(folder.path().join("shown")).unwrap();
    std::fs::write(folder.path().join("shown/a.json"), "{}").unwrap();
    let program = folder.path().join("program");
    let script = "#!/bin/sh\nprintf 'Status: 201 Made\\r\\nContent-Type: text/x\\r\\n\\r\\n'\n\
                  echo \"$REQUEST_METHOD $PATH_INFO $QUERY_STRING $MORE $(cat)\"\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    net.share("/shown/", Share::Folder(folder.path().join("shown")));
    net.share("/simple/", Share::Folder(folder.path().to_owned()));
    let variables = vec![("MORE".to_owned(), "more".to_owned())];
    net.share("/program", Share::Program { path: program, variables });
    let socket = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    net.share("5432", Share::Socket(socket));
    let server = std::thread::spawn(move || {
        use std::io::Write as _;
        listener.accept().unwrap().0.write_all(b"from behind").unwrap();
    });
    let said = python(
        &net,
        r"
print(fetch('/simple/')[:2], fetch('/shown/a.json')[1], fetch('/shown/../secret')[0])
print(fetch('/program/a/b?c=d', method='POST', body=b'body')[:2])
print(dial(('203.0.113.15', 5432)).recv(100))
",
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "(200, b'an index') b'{}' 404");
    assert_eq!(lines[1], "(201, b'POST /a/b c=d more body\\n')");
    assert_eq!(lines[2], "b'from behind'");
    server.join().unwrap();
}

#[test]
fn a_command_is_who_it_would_be_and_has_what_it_would_have() {
    let net = net!();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "id -u; pwd; echo $GIVEN; readlink /proc/self/ns/net; ls /proc/sys/net/ipv4/conf"]);
    command.env("GIVEN", "given").current_dir("/usr");
    let (inside, outside) = (net.run(&command).exits(0), finish(command).exits(0));
    let lines = |ran: &Ran| ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    let (inside, outside) = (lines(&inside), lines(&outside));
    assert_eq!(inside[..3], outside[..3]);
    assert_ne!(inside[3], outside[3], "the network alone is another");
    let interfaces = inside[4..].iter().filter(|name| !["all", "default"].contains(&name.as_str()));
    assert!(interfaces.clone().any(|name| name == "lo"), "{inside:?}");
}

#[test]
fn nothing_of_it_stays() {
    let before = Snapshot::take();
    let net = net!();
    let (holder, folder) = (net.holder, net.folder.path().to_owned());
    let namespace = std::fs::read_link(format!("/proc/{holder}/ns/net")).unwrap();
    let namespace = namespace.to_string_lossy().into_owned();
    assert_eq!(holders_of(&namespace), [format!("process {holder}")], "the positive control");
    // With something under way.
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "import socket; socket.create_connection(('203.0.113.10', 7)).recv(1)"]);
    let mut waits = net.command(&command).spawn().unwrap();
    assert!(eventually(Duration::from_secs(10), || !net.seen().arrivals.is_empty()));
    drop(net);
    waits.wait().unwrap();
    assert!(eventually(Duration::from_secs(5), || holders_of(&namespace).is_empty()));
    assert!(!Path::new(&format!("/proc/{holder}")).exists() && !folder.exists());
    assert_eq!(processes_with(folder.to_str().unwrap()), [] as [i32; 0]);
    let mut new = Snapshot::take().new_since(&before);
    new.retain(|item| !item.contains(':') || item.contains(&namespace)); // others make namespaces meanwhile
    assert_eq!(new, [] as [String; 0]);
}
