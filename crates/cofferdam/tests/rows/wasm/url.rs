//! Hosts, ports, methods and paths that look like allowed ones, asked of the host by bytes that no library would send.

use cofferdam_testkit::rows::{Attempts, Row};

use crate::url::a_wildcard_has_one_label_and_not_the_apex;
use crate::url::names::{ALIKE, ANSWERS, BYTES, EVERYWHERE, FORMS, RIGHT_EVERYWHERE};
use crate::url::requests::{
    a_rule_for_reading_is_none_for_writing, each_hop_is_judged_anew, one_request_is_one_request,
};
use crate::url::{ADDRESSES, ALLOWED, FRONTS, PORTS, PREFIXES, RIGHT, answered_otherwise};
use crate::world::{World, codes};
use crate::{Ended, in_wasm};

in_wasm!("URL-01", a_wildcard_has_one_label_and_not_the_apex);
in_wasm!("URL-02", what_begins_like_an_allowed_host_is_another);
in_wasm!("URL-03", names_that_no_host_has_are_refused_before_they_are_matched);
in_wasm!("URL-04", no_byte_ends_a_name_early);
in_wasm!("URL-05", an_address_is_an_address_however_it_is_written);
in_wasm!("URL-06", a_name_that_looks_alike_is_another);
in_wasm!("URL-07", a_port_is_one_number);
in_wasm!("URL-08", all_that_names_the_host_agrees);
in_wasm!("URL-11", one_request_is_one_request);
in_wasm!("URL-13", each_hop_is_judged_anew);
in_wasm!("URL-15", a_rule_for_reading_is_none_for_writing);

/// What a container's program asks of a proxy, asked of the function of the host's: a name of any bytes, with TLS
/// that is spoken outside under another.
const BY_THE_FUNCTION: &str = r"
import _host
FRONT = 'allowed.test'
def asked(name, port, sni):
    line = socket.socket()
    line.connect(('placeholder.test', port))
    sni = sni.encode()
    answer = _host.call(b'\x01' + port.to_bytes(2, 'little') + b'\x01' + len(name).to_bytes(4, 'little') + name + sni)
    if answer[0] != 0: raise OSError(f'{answer[5:]}')
    line._line.handle = answer[1:]
    return line
def tunnels(authority, sni='allowed.test', host=None):
    name, colon, port = authority.rpartition(b':')
    number = int(port) if port.isdigit() else -1
    if port != b'%d' % number or not 0 <= number < 1 << 16: raise OSError('400: no such port can be asked for')
    with asked(name, number, sni) as stream:
        stream.sendall(request(host or sni))
        judged(heard(stream))
def socks(name, port=443, sni='allowed.test'):
    with asked(name, port, sni) as stream:
        stream.sendall(request(sni))
        judged(heard(stream))
def through_proxy(said):
    with dial(FRONT, 80) as stream:
        stream.sendall(said)
        judged(heard(stream))
";

fn refuses(
    row: &mut Row,
    rules: &[&str],
    wrong: &str,
    right: &str,
    codes: &[&str],
) -> Result<Attempts, Ended> {
    let world = World::around(row)?;
    let [wrong, right] = [wrong, right].map(|python| format!("{BY_THE_FUNCTION}{python}"));
    let refused = world.denies_what_is_wrong(row, rules, &wrong, &right);
    assert_eq!(answered_otherwise(&refused, codes), []);
    Ok(refused)
}

fn ended(refused: Result<Attempts, Ended>) -> Ended {
    refused.map_or_else(|ended| ended, |_| Ended::Tested)
}

/// How what is wrong is refused. A connection that begins with no line of HTTP is closed.
const CODES: [&str; 5] = ["host_not_allowed", "400", "name_mismatch", "private_address", "Connection reset"];

fn what_begins_like_an_allowed_host_is_another(row: &mut Row) -> Ended {
    ended(refuses(row, &ALLOWED, PREFIXES, RIGHT, &CODES))
}

fn everywhere(row: &mut Row, wrong: &str) -> Ended {
    let right = format!("{EVERYWHERE}{RIGHT_EVERYWHERE}{RIGHT}");
    let answers = [&ANSWERS[..], &CODES].concat();
    ended(refuses(row, &ALLOWED, &format!("{EVERYWHERE}{wrong}"), &right, &answers))
}

fn names_that_no_host_has_are_refused_before_they_are_matched(row: &mut Row) -> Ended {
    everywhere(row, FORMS)
}

fn no_byte_ends_a_name_early(row: &mut Row) -> Ended {
    everywhere(row, BYTES)
}

fn a_name_that_looks_alike_is_another(row: &mut Row) -> Ended {
    everywhere(row, ALIKE)
}

fn an_address_is_an_address_however_it_is_written(row: &mut Row) -> Ended {
    let wild = ["--allow", "*.wild.test", "--allow", "http://*.wild.test", "--allow", "allowed.test"];
    let right = r"
attempt('by its name', lambda: tunnels(b'x.wild.test:443', sni='x.wild.test'))
attempt('in the clear', lambda: reaches('y.wild.test', 80, 'y.wild.test'))
";
    ended(refuses(row, &wild, &format!("FRONT = 'x.wild.test'\n{ADDRESSES}"), right, &CODES))
}

fn a_port_is_one_number(row: &mut Row) -> Ended {
    // Where servers speak first, a refused connection is closed at once.
    let codes = [&CODES[..], &["port_not_allowed", "Broken pipe"]].concat();
    let refused = match refuses(row, &ALLOWED, PORTS, RIGHT, &codes) {
        Ok(refused) => refused,
        Err(ended) => return ended,
    };
    for name in ["CONNECT_b'allowed.test:8443'", "CONNECT_b'allowed.test:0'", "SOCKS_0"] {
        assert!(refused[name].detail.contains("403 port_not_allowed"), "{name}: {refused:?}");
    }
    Ended::Tested
}

fn all_that_names_the_host_agrees(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let options = [&ALLOWED[..], &["--allow", "second.test"]].concat();
    let fronts = format!("sidewise = False\n{FRONTS}");
    let (inside, outcome) = world.inside(row, &options, &fronts);
    // The first of two requests on a connection is right, and nothing else is.
    assert_eq!(world.net.seen().asked(), ["GET allowed.test /ok"]);
    let outside = world.outside(row, &fronts);
    row.compare(&inside, &outside);
    for host in ["allowed.test", "second.test"] {
        assert!(codes(&outcome, host).contains("name_mismatch"), "{outcome:#}");
    }
    let _ = world.net.seen();
    let (right, _) = world.inside(row, &options, &format!("{BY_THE_FUNCTION}{RIGHT}"));
    assert!(right.values().all(|attempt| attempt.breach), "what is right gets through: {right:?}");
    Ended::Tested
}
