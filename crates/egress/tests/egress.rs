//! The way out of a sandbox, for real: a launched program dials, the proxy is a process, and the origins are
//! servers on 203.0.113.0/24 in a network namespace that the tests have to themselves, so that the judgement of
//! addresses is the real one.
//!
//! This very binary is the program inside ([`payload`]), and the example `proxy` is the proxy. The tests of [`cases`]
//! run again, all together, in a new network namespace.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

#[path = "egress/cases/mod.rs"]
mod cases;
#[path = "egress/client.rs"]
mod client;
#[path = "egress/origin.rs"]
mod origin;
#[path = "egress/world.rs"]
mod world;

use std::process::Command;

use cofferdam_testkit::host::is_root;
use cofferdam_testkit::skip;

/// Not a test but the program inside a sandbox of the others; anywhere else it has nothing to do.
#[test]
fn payload() {
    if std::env::var_os(world::INSIDE).is_some() {
        world::obey();
    }
}

#[test]
fn all_of_it_holds_in_a_network_of_its_own() {
    if !is_root() {
        skip!("only root can make a network with origins in it");
    }
    // One kills whatever proxy this process started.
    let alone = "cases::hostile::a_proxy_that_is_killed_leaves_no_way_out_and_the_end_says_so";
    for words in [["cases::", "--skip", alone], [alone, "--exact", "--quiet"]] {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.arg("--net").arg(program).args(words).args(["--test-threads", "2"]).env(world::WORLD, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        println!("{said}");
    }
}
