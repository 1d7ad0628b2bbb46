//! The control plane, where the boundary is WebAssembly.

use cofferdam_testkit::rows::Row;

use crate::{Ended, in_wasm};

in_wasm!("CTL-01", a_control_that_the_host_lacks_is_refused_by_name);
in_wasm!("CTL-02", an_engine_below_its_security_floor_is_not_built_in);
in_wasm!("CTL-04", nothing_inside_changes_what_a_run_is_judged_by);

fn a_control_that_the_host_lacks_is_refused_by_name(row: &mut Row) -> Ended {
    crate::ctl::a_control_that_the_host_lacks_is_refused_by_name(row)
}

fn nothing_inside_changes_what_a_run_is_judged_by(row: &mut Row) -> Ended {
    crate::ctl::nothing_inside_changes_what_a_run_is_judged_by(row)
}

/// The security floors of Wasmtime: the oldest release of each line that has everything that its advisories until
/// the end of 2026 mend. Whatever is newer than the last line has it too.
const FLOORS: [[u32; 3]; 4] = [[24, 0, 13], [36, 0, 14], [46, 0, 3], [47, 0, 4]];

/// Whether a version has everything that was mended so far.
fn is_above_the_floor(version: [u32; 3]) -> bool {
    let line = FLOORS.iter().find(|floor| floor[0] == version[0]);
    line.map_or(version[0] > FLOORS[FLOORS.len() - 1][0], |floor| version >= *floor)
}

/// The engine is part of the program, so that no host can have another: what is built in is looked at.
fn an_engine_below_its_security_floor_is_not_built_in(row: &mut Row) -> Ended {
    let lock = include_str!("../../../../../Cargo.lock");
    let mut packages = lock.split("[[package]]");
    let engine = packages.find(|package| package.contains("name = \"wasmtime\"\n")).unwrap();
    let version = engine.split_once("version = \"").unwrap().1.split('"').next().unwrap();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(is_above_the_floor(numbers.try_into().unwrap()), "Wasmtime {version} is below its floor");
    assert!(!is_above_the_floor([46, 0, 2]) && !is_above_the_floor([40, 0, 0]), "the control");
    row.inconclusive(format!(
        "Wasmtime {version} is built in and above its floor; that a host's would be refused can't be tried"
    ));
    Ended::Tested
}
