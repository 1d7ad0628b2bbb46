//! Programs inside whose host's network is a test's own, with the whole world in it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use cofferdam_testkit::origins::{Net, Seen};
use cofferdam_testkit::product::finish;
use cofferdam_testkit::rows::{Attempts, Row, attempts, probe};
use serde_json::Value;

use crate::Ended;

/// Python with which the far end is tried. An attempt gets through if the far end itself answered.
const FAR_END: &str = r#"
import http.client, json, os, re, socket, ssl, struct, subprocess, urllib.error, urllib.request
_denials += (http.client.HTTPException, subprocess.TimeoutExpired)
socket.setdefaulttimeout(10)
unverified = ssl._create_unverified_context()
MARKS = [b'reached ', b'GET /canary ', b'SSH-2.0-canary', b'220 canary']
DENIED = re.compile(rb'(?i)x-cofferdam-denied: *([a-z_]+)\r\n')
def heard(stream, said=b''):
    "What comes until it can only be the far end, or nothing more does."
    while not any(mark in said for mark in MARKS) and not DENIED.search(said):
        part = stream.recv(65536)
        if not part: break
        said += part
    return said
def judged(said):
    "Gets through, or is an error that says how it was refused."
    code = DENIED.search(said)
    status = re.match(rb'HTTP/1.. ([0-9]+)', said)
    if code: raise OSError(f'{status and status[1].decode()} {code[1].decode()}')
    if not any(mark in said for mark in MARKS): raise OSError(f'heard {said[:80]}')
def request(host, path='/canary', method='GET', more=''):
    return f'{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n'.encode()
def question(name, kind=1):
    labels = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.'))
    return b'\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00' + labels + b'\x00' + struct.pack('>HH', kind, 1)
def resolved(answer):
    "Gets through if it says where the name is in the world."
    at = [bytes([203, 0, 113]), bytes([0x20, 0x01, 0x0d, 0xb8])]
    if not any(part in answer for part in at): raise OSError(f'answered {answer[12:].hex()}')
def dial(address, port, tls_name=None):
    stream = socket.create_connection((address, port))
    return unverified.wrap_socket(stream, server_hostname=tls_name) if tls_name else stream
def reaches(address, port, name='x.test'):
    "Speaks what is spoken at a port, at an address or a name."
    with dial(address, port, name if port in (443, 8443) else None) as stream:
        if port == 53:
            asked = question('api.test')
            stream.sendall(struct.pack('>H', len(asked)) + asked)
            return resolved(stream.recv(4096))
        stream.sendall(request(name))
        judged(heard(stream))
def asks(name, to='203.0.113.53', kind=1, port=53):
    with socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(3)
        stream.sendto(question(name, kind), (to, port))
        resolved(stream.recv(4096)[28:])
def echoes(to, port):
    with socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(2)
        stream.sendto(b'canary', (to, port))
        if stream.recv(100) != b'canary': raise OSError('another answer')
PROXY = ('127.0.0.1', 1022)
def through_proxy(said):
    "What is said to the proxy as such."
    with socket.create_connection(PROXY) as stream:
        stream.sendall(said)
        judged(heard(stream))
def tunnels(authority, sni='allowed.test', host=None):
    "CONNECT, and a request in TLS in the tunnel."
    with socket.create_connection(PROXY) as stream:
        stream.sendall(b'CONNECT ' + authority + b' HTTP/1.1\r\nHost: ' + authority + b'\r\n\r\n')
        said = b''
        while b'\r\n\r\n' not in said:
            part = stream.recv(65536)
            if not part: break
            said += part
        if not said.startswith(b'HTTP/1.1 200'): judged(said)
        with unverified.wrap_socket(stream, server_hostname=sni) as inner:
            inner.sendall(request(host or sni))
            judged(heard(inner))
def socks(name, port=443, sni='allowed.test'):
    "SOCKS5 with a name as bytes, and a request in TLS behind it."
    with socket.create_connection(PROXY) as stream:
        stream.sendall(b'\x05\x01\x00')
        if stream.recv(2) != b'\x05\x00': raise OSError('no SOCKS')
        stream.sendall(b'\x05\x01\x00\x03' + bytes([len(name)]) + name + struct.pack('>H', port))
        answer = stream.recv(64)
        if answer[1:2] != b'\x00': raise OSError(f'SOCKS {answer[:2].hex()}')
        with unverified.wrap_socket(stream, server_hostname=sni) as inner:
            inner.sendall(request(sni))
            judged(heard(inner))
"#;

/// The network around a row's runs.
pub(crate) struct World {
    pub(crate) net: Net,
}

impl World {
    /// Makes it, and has the row's product know its resolver and its authority.
    pub(crate) fn around(row: &Row) -> Result<World, Ended> {
        let net = Net::start().map_err(Ended::Skipped)?;
        net.settle(row.product());
        Ok(World { net })
    }

    /// Has the operator keep a secret that runs may use at `api.test`, in a file of its own: the secret.
    pub(crate) fn keeps_a_secret(&self, row: &mut Row) -> String {
        let secret = row.secret();
        let folder = row.product().folder().join("home/.config/cofferdam");
        let (root, issuers) = (folder.join("secret"), folder.join("issuers.toml"));
        let text = format!(
            "[static.api]\nroot = {{ file = {root:?} }}\nhosts = [\"api.test:443\"]\ninject = \"bearer\"\n"
        );
        for (file, text) in [(&root, &secret), (&issuers, &text)] {
            std::fs::write(file, text).unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
            row.product().give(file);
        }
        secret
    }

    /// A policy with rules and one credential, with more of it.
    pub(crate) fn policy(&self, row: &Row, rules: &str, more: &str) -> String {
        let credential = "[[credential]]\nname = \"api\"\nissuer = \"static.api\"\ninject = \"bearer\"\n\
                          surrogate_env = \"API_TOKEN\"\n";
        let text = format!("version = 1\nprofile = \"internal\"\n{rules}{credential}{more}");
        let file = row.product().file("policy.toml", text);
        row.product().give(&file);
        file.to_str().unwrap().to_owned()
    }

    /// Runs Python in the same network without a sandbox, as the same user, with a token in its environment.
    pub(crate) fn outside_with(&self, row: &Row, token: &str, python: &str) -> Attempts {
        let mut command = row.product().beside("/usr/bin/python3", ["-c", &with_far_end(python)]);
        command.env("API_TOKEN", token);
        attempts(&finish(self.net.command(&command)))
    }

    /// Runs Python inside, and gives its attempts and the Outcome.
    pub(crate) fn inside(&self, row: &mut Row, options: &[&str], python: &str) -> (Attempts, Value) {
        let code = probe(&format!("{FAR_END}{python}"));
        let command = row.command(&[&["--json"], options, &["-c", &code]].concat());
        let mut ran = row.finish_command(self.net.command(&command));
        let outcome = ran.json();
        assert_eq!(outcome["end"], "exited", "{outcome:#}");
        ran.stdout = outcome["stdout"]["text"].as_str().unwrap().to_owned();
        (attempts(&ran), outcome)
    }

    /// Runs Python in the same network without a sandbox, as the same user.
    pub(crate) fn outside(&self, row: &Row, python: &str) -> Attempts {
        let code = probe(&format!("{FAR_END}{python}"));
        attempts(&finish(self.net.command(&row.product().beside("/usr/bin/python3", ["-c", &code]))))
    }

    /// Runs Python inside and then outside: nothing may get through inside, and nothing may have arrived.
    pub(crate) fn denies(&self, row: &mut Row, options: &[&str], python: &str) -> Value {
        let _ = self.net.seen();
        let (inside, outcome) = self.inside(row, options, python);
        nothing(&self.net.seen());
        let outside = self.outside(row, python);
        assert!(!self.net.seen().is_nothing(), "what arrives would be seen");
        row.compare(&inside, &outside);
        outcome
    }

    /// What is attempted inside alone, since there is nobody outside to whom it could be said: nothing gets
    /// through. `proof` is the same with nothing wrong in it, which must.
    pub(crate) fn denies_what_is_wrong(
        &self,
        row: &mut Row,
        options: &[&str],
        python: &str,
        proof: &str,
    ) -> Attempts {
        let _ = self.net.seen();
        let (inside, _) = self.inside(row, options, python);
        nothing(&self.net.seen());
        let names: Vec<_> = inside.keys().map(String::as_str).collect();
        row.unproved(&inside, &Attempts::new(), &names);
        let (right, _) = self.inside(row, options, proof);
        let refused: Vec<_> = right.iter().filter(|(_, attempt)| !attempt.breach).collect();
        assert!(refused.is_empty(), "what is right gets through: {refused:?}");
        assert!(!self.net.seen().requests.is_empty(), "and arrives");
        row.proved();
        inside
    }

    /// Fetches a page inside, and gives what it said, or the code by which it was denied.
    pub(crate) fn fetches(&self, row: &mut Row, options: &[&str], url: &str) -> String {
        let code = "import sys, urllib.error, urllib.request\n\
                    try: print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode(), end='')\n\
                    except urllib.error.HTTPError as error: print(error.headers['x-cofferdam-denied'])";
        let command = row.command(&[options, &["-c", code, url]].concat());
        let ran = row.finish_command(self.net.command(&command));
        assert_eq!(ran.code, 0, "{url}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// A run that must be refused before anything starts.
    pub(crate) fn refuses(&self, row: &mut Row, options: &[&str]) {
        let command = row.command(&[&["--json"], options, &["-c", "print('ran')"]].concat());
        let ran = row.finish_command(self.net.command(&command));
        assert_eq!(ran.code, 125, "{options:?}: {ran:?}");
        let outcome = ran.json();
        assert_eq!((&outcome["end"], &outcome["ran"]), (&"refused".into(), &"no".into()), "{outcome:#}");
        nothing(&self.net.seen());
    }
}

/// A whole probe that tries the far end.
pub(crate) fn with_far_end(python: &str) -> String {
    probe(&format!("{FAR_END}{python}"))
}

/// Not one packet was sent.
pub(crate) fn nothing(seen: &Seen) {
    let began: Vec<_> = seen.arrivals.iter().map(|one| one.began.escape_ascii().to_string()).collect();
    let counted = seen.counted;
    assert!(seen.is_nothing(), "{:?} {:?} arrived: {began:?} {counted:?}", seen.places(), seen.names());
}

/// The codes of an Outcome's denials of a host, each once.
pub(crate) fn codes<'a>(outcome: &'a Value, host: &str) -> BTreeSet<&'a str> {
    let denials = outcome["denials"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_host = denials.iter().filter(|denial| denial["host"] == host);
    of_host.filter_map(|denial| denial["code"].as_str()).collect()
}

/// The ports of an Outcome's denials of a host.
pub(crate) fn ports(outcome: &Value, host: &str) -> BTreeSet<u64> {
    let denials = outcome["denials"].as_array().map(Vec::as_slice).unwrap_or_default();
    denials
        .iter()
        .filter(|denial| denial["host"] == host)
        .filter_map(|denial| denial["port"].as_u64())
        .collect()
}

/// All the events of a row's runs.
pub(crate) fn log(row: &Row) -> String {
    std::fs::read_to_string(row.product().state().join("audit/log.ndjson")).unwrap()
}
