//! An ordinary user's own cgroup on version 2, for real. Each test changes the cgroup of its process, so
//! each runs in a process of its own, in the machine of `cargo xtask vm`; anywhere else they are skipped.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use cofferdam_sys::cgroup::{Ceilings, Cgroups, Controller, Missing, Version};

macro_rules! needs_the_machine {
    () => {
        if std::env::var_os("COFFERDAM_VM").is_none() {
            cofferdam_testkit::skip!("cargo xtask vm runs this as an ordinary user on cgroup version 2");
        }
    };
}

fn membership() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap()
}

/// Makes a group with ceilings, puts a process into it, and kills it there.
fn use_groups(cgroups: &Cgroups) {
    for controller in Controller::ALL {
        assert_eq!(cgroups.place(controller).unwrap().version, Version::V2, "{controller:?}");
    }
    let name = format!("cofferdam-test-{}", std::process::id());
    let ceilings = Ceilings { memory_bytes: 64 << 20, cpu_thousandths: 500, pids: 7 };
    let group = cgroups.create(&name, &ceilings).unwrap();
    let [folder] = cgroups.folders(&name).try_into().unwrap();
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap().trim().to_owned();
    assert_eq!((read("memory.max").as_str(), read("cpu.max").as_str()), ("67108864", "50000 100000"));
    assert_eq!(read("pids.max"), "7");
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(folder.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert_eq!(group.processes().map(|pids| pids.len()), Some(1));
    group.kill_all();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!((group.counts().pids_peak.unwrap_or(1), group.oom_kills()), (1, 0));
    group.remove().unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_group_of_our_own_has_every_ceiling() {
    needs_the_machine!();
    let before = membership();
    let mut cgroups = Cgroups::discover();
    for controller in Controller::ALL {
        let missing = cgroups.place(controller).unwrap_err();
        assert!(matches!(missing, Missing::Pending { .. }), "{missing}");
    }
    assert_eq!(membership(), before, "looking moves nobody");
    let began = std::time::Instant::now();
    cgroups.prepare();
    println!("\nmeasured: a group of our own after {} ms", began.elapsed().as_millis());
    assert!(membership().trim().ends_with("/cofferdam-self"), "{:?}", cgroups.place(Controller::Memory));
    use_groups(&cgroups);
    // What is there is used again.
    let again = membership();
    let mut cgroups = Cgroups::discover();
    cgroups.prepare();
    assert_eq!(membership(), again);
    use_groups(&cgroups);
}

#[test]
fn groups_are_made_beside_others_of_ours() {
    needs_the_machine!();
    let before = membership();
    let mut cgroups = Cgroups::discover();
    cgroups.prepare();
    assert_eq!(membership(), before);
    use_groups(&cgroups);
}

#[test]
fn without_a_group_of_our_own_the_reason_is_said() {
    needs_the_machine!();
    let before = membership();
    let mut cgroups = Cgroups::discover();
    cgroups.prepare();
    assert_eq!(membership(), before, "nobody was moved");
    for controller in Controller::ALL {
        let missing = cgroups.place(controller).unwrap_err();
        assert!(matches!(missing, Missing::NoScope { .. }), "{missing}");
        assert!(missing.to_string().contains("no message bus"), "{missing}");
    }
}
