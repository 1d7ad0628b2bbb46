//! Addresses that aren't anybody's in the world: metadata services, the host's own, private networks.

use cofferdam_testkit::rows::Row;

use crate::world::{World, codes};
use crate::{Ended, row};

row!("NET-06", metadata_is_out_of_reach_whatever_a_rule_says);
row!("NET-07", neither_the_host_nor_its_networks_are_reached);

const METADATA: &str = r"
tokens = ['', 'Metadata-Flavor: Google\r\n', 'Metadata: true\r\n', 'X-aws-ec2-metadata-token: x\r\n']
def service(host, path, token):
    with dial(host, 80) as stream:
        stream.sendall(request(host, path, 'PUT' if path.endswith('token') else 'GET', token))
        judged(heard(stream))
hosts = ['169.254.169.254', '169.254.170.2', '100.100.100.200', '168.63.129.16', 'fd00:ec2::254', 'metadata.test',
         'metadata.google.internal', 'ecs.test', 'alibaba.test', 'metadata6.test', 'nat64.test', 'sixtofour.test']
for host in hosts:
    for number, token in enumerate(tokens):
        attempt(f'{host} {number}', lambda: service(host, '/latest/meta-data/', token))
    attempt(f'{host} token', lambda: service(host, '/latest/api/token', ''))
";

/// The names among them.
const NAMES: [&str; 7] = [
    "metadata.test",
    "metadata.google.internal",
    "ecs.test",
    "alibaba.test",
    "metadata6.test",
    "nat64.test",
    "sixtofour.test",
];

pub(crate) fn metadata_is_out_of_reach_whatever_a_rule_says(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &[], METADATA);
    for private in ["", ",private"] {
        let rules: Vec<_> = NAMES.iter().map(|name| format!("http://{name}{private}")).collect();
        let options: Vec<_> = rules.iter().flat_map(|rule| ["--allow", rule]).collect();
        let _ = world.net.seen();
        let (inside, outcome) = world.inside(row, &options, METADATA);
        // The names were looked up, since a rule has them: nothing was dialled.
        not_dialled(&world);
        row.compare(&inside, &world.outside(row, METADATA));
        for name in NAMES {
            assert!(codes(&outcome, name).contains("private_address"), "{name}: {outcome:#}");
        }
    }
    Ended::Tested
}

/// The resolver alone was spoken to.
fn not_dialled(world: &World) {
    let seen = world.net.seen();
    assert!(seen.arrivals.is_empty() && seen.counted.tcp == 0, "{:?}", seen.places());
}

/// Hosts whose addresses are private, the machine's own or nobody's, each with a rule that doesn't say
/// `private`.
const HOSTS: [&str; 9] = [
    "private.test",
    "carrier.test",
    "link-local.test",
    "loopback.test",
    "loopback6.test",
    "own.test",
    "mapped.test",
    "unspecified.test",
    "mixed.test",
];

/// By their names, which are allowed, and by addresses, which aren't.
const NEARBY: &str = r"
for host in hosts:
    for port in [80, 8080, 22]:
        attempt(f'{host} {port}', lambda: reaches(host, port, host))
for host in ['10.0.0.5', '172.16.0.1', '192.168.1.1', '100.64.0.1', '169.254.7.7', '203.0.113.200', '10.77.0.1',
             'fd12:3456::1', '2001:db8::200', '172.17.0.1']:
    for port in [22, 80, 8080]:
        attempt(f'{host} {port}', lambda: reaches(host, port, host))
";

/// What listens on the machine's own loopback, which is another than the sandbox's.
pub(crate) const LOOPBACK: &str = r"
for host in ['127.0.0.1', '127.0.0.2', '::1', '0.0.0.0', '::', '::ffff:127.0.0.1']:
    for port in [22, 80, 8080, 5432]:
        attempt(f'{host} {port}', lambda: reaches(host, port, 'localhost'))
";

fn neither_the_host_nor_its_networks_are_reached(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &[], LOOPBACK);
    nothing_nearby_is_reached(row, &world);
    let own = "import socket\nserver = socket.create_server(('127.0.0.1', 8080))\n\
               client = socket.create_connection(('127.0.0.1', 8080))\nprint(server.accept()[1][0])";
    assert_eq!(row.run(&["-c", own]).stdout, "127.0.0.1\n", "the sandbox has a loopback of its own");
    one_sandbox_does_not_reach_another(row, &world);
    Ended::Tested
}

/// Rules that name hosts nearby let nobody through to them, but for one that says that they may be there.
pub(crate) fn nothing_nearby_is_reached(row: &mut Row, world: &World) {
    let ports = |host| [format!("http://{host}"), format!("http://{host}:8080"), format!("tcp://{host}:22")];
    let rules: Vec<_> = HOSTS.iter().flat_map(ports).collect();
    let options: Vec<_> = rules.iter().flat_map(|rule| ["--allow", rule]).collect();
    let python = format!("hosts = {HOSTS:?}\n{NEARBY}");
    let (inside, outcome) = world.inside(row, &options, &python);
    not_dialled(world);
    row.compare(&inside, &world.outside(row, &python));
    for host in HOSTS {
        assert!(codes(&outcome, host).contains("private_address"), "{host}: {outcome:#}");
    }
    let _ = world.net.seen();
    // The same rule with `private` is what it takes.
    let reached = world.fetches(row, &["--allow", "http://private.test,private"], "http://private.test/ok");
    assert_eq!((reached.as_str(), world.net.seen().places()), ("ok", vec!["10.0.0.5:80".to_owned()]));
}

/// Two at once, one of which listens on every address.
fn one_sandbox_does_not_reach_another(row: &mut Row, world: &World) {
    use std::io::{BufRead as _, BufReader};
    let listens = "import socket\nserver = socket.create_server(('', 8080))\nprint('listening', flush=True)\n\
                   server.settimeout(8)\ntry: print(server.accept())\nexcept TimeoutError: print('nobody')";
    let command = row.command(&["--quiet", "--timeout", "60s", "-c", listens]);
    let mut sibling = cofferdam_testkit::product::start(&mut world.net.command(&command));
    let (mut line, mut out) = (String::new(), BufReader::new(sibling.stdout.take().unwrap()));
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let tries = "for host in ['127.0.0.1', '10.0.0.1', '::1']: attempt(host, lambda: reaches(host, 8080))";
    let (inside, _) = world.inside(row, &[], tries);
    assert!(inside.values().all(|attempt| !attempt.breach), "{inside:?}");
    line.clear();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "nobody\n");
    cofferdam_testkit::product::wait(sibling, std::time::Instant::now());
}
