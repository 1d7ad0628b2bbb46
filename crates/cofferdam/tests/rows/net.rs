//! What leaves, by whatever way, when the policy doesn't name where it goes.

use cofferdam_testkit::rows::Row;

use crate::world::{World, codes, log, nothing, ports};
use crate::{Ended, row};

pub(crate) mod addresses;
pub(crate) mod names;

row!("NET-01", without_a_rule_nothing_leaves);
row!("NET-02", the_address_of_an_allowed_host_is_no_way_around);
row!("NET-08", ipv6_is_no_way_around);
row!("NET-09", no_datagram_leaves);
row!("NET-10", no_packet_of_another_protocol_leaves);

/// Hosts by address and by name, on the ports on which something is always listening somewhere.
const EVERYWHERE: &str = r"
for host in ['203.0.113.10', '8.8.8.8', 'api.test', 'other.test']:
    for port in [22, 53, 80, 443, 853, 8080]:
        attempt(f'{host}:{port}', lambda: reaches(host, port, 'api.test'))
";

pub(crate) fn without_a_rule_nothing_leaves(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let empty = row.product().file("empty.toml", "version = 1\n[network]\nallow = []\n");
    row.product().give(&empty);
    for options in [&[][..], &["--policy", empty.to_str().unwrap()]] {
        let outcome = world.denies(row, options, EVERYWHERE);
        for host in ["203.0.113.10", "8.8.8.8", "api.test", "other.test"] {
            assert!(codes(&outcome, host).contains("host_not_allowed"), "{host}: {outcome:#}");
            // Also of ports that no rule could have named.
            let ports = ports(&outcome, host);
            assert!([22, 80, 443, 853, 8080].iter().all(|port| ports.contains(port)), "{host}: {outcome:#}");
        }
    }
    assert!(log(row).contains("\"event\":\"egress.denied\""));
    // What isn't understood isn't taken for anything.
    for rule in ["", " ", "*", "*.test", "https://", ":443", "a b.test", "api.test:0", "api.test:https"] {
        world.refuses(row, &["--allow", rule]);
    }
    for (number, rules) in
        ["allow = [\"\"]", "allow = \"api.test\"", "[[network.allow]]\nhost = \"\""].into_iter().enumerate()
    {
        let heading = if rules.starts_with('[') { "" } else { "[network]\n" };
        let name = format!("malformed-{number}.toml");
        let policy = row.product().file(name, format!("version = 1\n{heading}{rules}\n"));
        row.product().give(&policy);
        world.refuses(row, &["--policy", policy.to_str().unwrap()]);
    }
    Ended::Tested
}

/// The proxy variables are no control: without them, and with an address at hand, there is no other way.
const AROUND: &str = r#"
for name in list(os.environ):
    if 'proxy' in name.lower(): del os.environ[name]
os.environ['NO_PROXY'] = os.environ['no_proxy'] = '*'
for address in ['203.0.113.10', '2001:db8::10', '::ffff:203.0.113.10']:
    for port in [22, 80, 443, 8080]:
        attempt(f'{address} {port}', lambda: reaches(address, port, 'api.test'))
def by_the_shell(words):
    script = f'exec 3<>/dev/tcp/{words}; printf %s "$0" >&3; timeout 3 cat <&3'
    ran = subprocess.run(['bash', '-c', script, request('api.test').decode()], capture_output=True, timeout=20)
    judged(ran.stdout)
attempt('by the shell', lambda: by_the_shell('203.0.113.10/80'))
attempt('by the shell, another port', lambda: by_the_shell('203.0.113.10/7'))
def heard_from(own):
    stream = socket.create_connection(('203.0.113.10', 80), source_address=own)
    stream.sendall(request('api.test'))
    return heard(stream)
attempt('from a port of its own', lambda: judged(heard_from(('0.0.0.0', 40000))))
"#;

fn the_address_of_an_allowed_host_is_no_way_around(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let allowed = ["--allow", "api.test"];
    let outcome = world.denies(row, &allowed, AROUND);
    assert!(codes(&outcome, "203.0.113.10").contains("host_not_allowed"), "{outcome:#}");
    // By its name it is reached, with one connection and one request, and another host isn't.
    assert_eq!(world.fetches(row, &allowed, "https://api.test/ok"), "ok");
    let seen = world.net.seen();
    assert_eq!(seen.asked(), ["GET api.test /ok"]);
    assert_eq!(seen.names(), ["api.test"]);
    assert_eq!(world.fetches(row, &allowed, "https://other.test/ok"), "host_not_allowed");
    nothing(&world.net.seen());
    // No variable says where a proxy is: nothing here rests on one.
    let variables = row.command(&[&allowed[..], &["--", "env"]].concat());
    let ran = row.finish_command(world.net.command(&variables));
    assert!(!ran.stdout.to_lowercase().contains("_proxy="), "{ran:?}");
    Ended::Tested
}

const BY_IPV6: &str = r"
for address in ['2001:db8::10', '2001:4860:4860::8888', 'fd00:ec2::254', 'fd12:3456::1', '2001:db8::200',
                '::ffff:203.0.113.10', '::ffff:169.254.169.254', '::ffff:10.0.0.5', '64:ff9b::a9fe:a9fe',
                '2002:a9fe:a9fe::1', 'six.test', 'metadata6.test']:
    for port in [22, 80, 443]:
        attempt(f'{address} {port}', lambda: reaches(address, port, 'six.test'))
attempt('a datagram', lambda: echoes('2001:db8::53', 5353))
";

fn ipv6_is_no_way_around(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let outcome = world.denies(row, &[], BY_IPV6);
    assert!(codes(&outcome, "2001:db8::10").contains("host_not_allowed"), "{outcome:#}");
    assert!(codes(&outcome, "six.test").contains("host_not_allowed"), "{outcome:#}");
    let interfaces = row.run(&["--", "cat", "/proc/net/if_inet6"]);
    let others: Vec<_> = interfaces.stdout.lines().filter(|line| !line.ends_with(" lo")).collect();
    assert!(others.is_empty(), "{interfaces:?}");
    // A host that has IPv6 alone is reached by its name.
    assert_eq!(world.fetches(row, &["--allow", "six.test"], "https://six.test/ok"), "ok");
    assert_eq!(world.net.seen().places(), ["[2001:db8::14]:443"]);
    Ended::Tested
}

const DATAGRAMS: &str = r"
for to in ['203.0.113.10', '8.8.8.8', '10.0.0.5', '2001:db8::10']:
    for port in [123, 161, 443, 853, 5355, 47474]:
        attempt(f'{to} {port}', lambda: echoes(to, port))
";

fn no_datagram_leaves(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    for options in [&[][..], &["--allow", "api.test", "--allow", "tcp://203.0.113.10:443"]] {
        let outcome = world.denies(row, options, DATAGRAMS);
        assert_eq!(outcome["usage"]["udp_refused"], 24, "{outcome:#}");
    }
    Ended::Tested
}

/// Echo requests with something in them, and packets of IP in IP, IPv6 in IP and GRE.
const PACKETS: &str = r"
def sends(kind, protocol, packet, family=socket.AF_INET, to='203.0.113.10'):
    with socket.socket(family, kind, protocol) as stream: stream.sendto(packet, (to, 0))
echo = b'\x08\x00' + b'\x7e\x64' + b'\x00\x00\x00\x00' + b'canary!!'
attempt('echo request', lambda: sends(socket.SOCK_RAW, socket.IPPROTO_ICMP, echo))
attempt('echo request by an ordinary socket', lambda: sends(socket.SOCK_DGRAM, socket.IPPROTO_ICMP, echo))
attempt('echo request of IPv6', lambda: sends(socket.SOCK_RAW, socket.IPPROTO_ICMPV6, b'\x80' + echo[1:], socket.AF_INET6, '2001:db8::10'))
for protocol in [4, 41, 47, 132, 255]:
    attempt(f'protocol {protocol}', lambda: sends(socket.SOCK_RAW, protocol, b'\x45' + b'\x00' * 40))
";

fn no_packet_of_another_protocol_leaves(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let (inside, _) = world.inside(row, &["--allow", "api.test"], PACKETS);
    nothing(&world.net.seen());
    let outside = world.outside(row, PACKETS);
    let got_through = outside.values().filter(|attempt| attempt.breach).count() as u64;
    assert!(world.net.seen().counted.packets >= got_through, "what is sent would be counted");
    row.compare(&inside, &outside);
    Ended::Tested
}
