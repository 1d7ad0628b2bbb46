//! Other runtimes on the path, and whether they are below the release that has their known holes
//! mended. Cofferdam's own container uses none of them; whoever does should know.
//!
//! - [`version`]: versions and floors, pure.
//! - [`ask`]: asking a program for its version, only where nobody but root could have put it there.

mod ask;
mod version;

use std::ffi::OsStr;

use super::findings::{RuntimeFound, Standing, Trouble};
use version::{Floors, Version};

/// A runtime that is looked for.
struct Runtime {
    name: &'static str,
    /// The program, which is asked with `--version`.
    program: &'static str,
    /// Its floors; nothing where no floor is known.
    floors: Option<Floors>,
}

/// Every runtime that is looked for, with the first releases of each series that have all holes
/// mended that were public on 2026-11-29, and a reason to care.
const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "runc",
        program: "runc",
        floors: Some(Floors {
            releases: &[[1, 3, 6], [1, 4, 3], [1, 5, 0]],
            reason: "older ones let a container write the host's /proc and get out (CVE-2025-31133, \
                     CVE-2025-52565, CVE-2025-52881), and lack what was mended after",
        }),
    },
    Runtime {
        name: "Docker Engine",
        program: "dockerd",
        floors: Some(Floors {
            releases: &[[29, 4, 3]],
            reason: "older ones lack mended holes of the engine, whose socket is root",
        }),
    },
    Runtime {
        name: "Firecracker",
        program: "firecracker",
        floors: Some(Floors {
            releases: &[[1, 14, 4], [1, 15, 1]],
            reason: "older ones lack mended holes between the guest and the host",
        }),
    },
    Runtime {
        name: "Kata Containers",
        program: "kata-runtime",
        floors: Some(Floors {
            releases: &[[3, 31, 0]],
            reason: "older ones lack mended holes between the guest and the host",
        }),
    },
    Runtime { name: "bubblewrap", program: "bwrap", floors: None },
];

/// Every runtime that is on a path, in the table's order.
pub(super) fn look(path: Option<&OsStr>) -> Vec<RuntimeFound> {
    RUNTIMES.iter().filter_map(|runtime| found(runtime, path?)).collect()
}

fn found(runtime: &Runtime, path: &OsStr) -> Option<RuntimeFound> {
    let program = ask::find(runtime.program, path)?;
    let said = ask::version(&program).map(|output| (Version::parse(&output), output));
    let version = said.as_ref().ok().and_then(|(version, _)| version.clone());
    let (standing, trouble) = match (said, &version) {
        (Err(why), _) => (Standing::Unknown, Some(unknown(runtime, &why))),
        (Ok(_), None) => {
            let why = "its --version doesn't say a number that can be read";
            (Standing::Unknown, Some(unknown(runtime, why)))
        }
        (Ok(_), Some(version)) => judge(runtime, version),
    };
    Some(RuntimeFound {
        name: runtime.name,
        program: program.to_string_lossy().into_owned(),
        version: version.map(|version| version.to_string()),
        floor: runtime.floors.as_ref().map(Floors::to_string),
        standing,
        trouble,
    })
}

fn unknown(runtime: &Runtime, why: &str) -> Trouble {
    let floor = runtime.floors.as_ref().map_or_else(
        || "no floor is known for it".to_owned(),
        |floors| format!("compare it with the floor yourself: {floors}"),
    );
    Trouble::new(
        format!("its version isn't known: {why}"),
        format!("run `{} --version`; {floor}", runtime.program),
    )
}

fn judge(runtime: &Runtime, version: &Version) -> (Standing, Option<Trouble>) {
    let Some(floors) = &runtime.floors else { return (Standing::NoFloor, None) };
    let Some(floor) = floors.above(version) else { return (Standing::Fine, None) };
    let [major, minor, patch] = floor;
    let why = format!(
        "{version} is below the floor by its number ({floors}); the distribution may have patched it: {}",
        floors.reason
    );
    let program = runtime.program;
    let fix = format!(
        "install {} {major}.{minor}.{patch} or newer, or check the changelog of your distribution's \
         package: `apt-get changelog $(dpkg -S $(readlink -f $(command -v {program})) | cut -d: -f1)` or \
         `rpm -q --changelog -f $(command -v {program})`",
        runtime.name
    );
    (Standing::Below, Some(Trouble::new(why, fix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(program: &str, output: &str) -> Standing {
        let runtime = RUNTIMES.iter().find(|runtime| runtime.program == program).unwrap();
        judge(runtime, &Version::parse(output).unwrap()).0
    }

    #[test]
    fn each_runtime_is_judged_by_what_it_really_prints() {
        for (program, output, expected) in [
            (
                "runc",
                "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n",
                Standing::Below,
            ),
            ("runc", "runc version 1.3.5\ncommit: v1.3.5-0-gabc\n", Standing::Below),
            ("runc", "runc version 1.3.6\n", Standing::Fine),
            ("runc", "runc version 1.4.2\n", Standing::Below),
            ("runc", "runc version 1.4.3-0ubuntu1~24.04.1\n", Standing::Fine),
            ("runc", "runc version 1.5.0-rc.1\n", Standing::Below),
            ("runc", "runc version 1.5.0\n", Standing::Fine),
            ("runc", "runc version 1.6.0\n", Standing::Fine),
            ("dockerd", "Docker version 28.2.2, build 28.2.2-0ubuntu1\n", Standing::Below),
            ("dockerd", "Docker version 29.4.3, build 0abc\n", Standing::Fine),
            ("dockerd", "Docker version 30.0.0, build 0abc\n", Standing::Fine),
            (
                "firecracker",
                "Firecracker v1.14.3\n\nSupported snapshot data format versions: v9.0.0\n",
                Standing::Below,
            ),
            ("firecracker", "Firecracker v1.15.0\n", Standing::Below),
            ("firecracker", "Firecracker v1.15.1\n", Standing::Fine),
            (
                "kata-runtime",
                "kata-runtime  : 3.30.0\n   commit   : 2a3\n   OCI specs: 1.2.1\n",
                Standing::Below,
            ),
            ("kata-runtime", "kata-runtime  : 3.31.0\n", Standing::Fine),
            ("bwrap", "bubblewrap 0.8.0\n", Standing::NoFloor),
        ] {
            assert_eq!(standing(program, output), expected, "{output}");
        }
    }

    #[test]
    fn what_is_below_says_the_floor_that_patches_are_possible_and_the_way_out() {
        let (_, trouble) = judge(&RUNTIMES[0], &Version::parse("runc version 1.4.0").unwrap());
        let Trouble { why, fix } = trouble.unwrap();
        assert!(why.contains("1.4.3") && why.contains("may have patched it"), "{why}");
        assert!(fix.starts_with("install runc 1.4.3 or newer") && fix.contains("changelog"), "{fix}");
    }
}
