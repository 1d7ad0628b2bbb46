//! Compiles the guest agent as a static program and leaves its bytes where `agent.rs` includes
//! them.
//!
//! It is compiled for the host's own target with the C library linked in, into a target folder of
//! its own: the outer build holds the lock of the usual one.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = manifest.ancestors().nth(2).expect("crates/backends lies in the workspace").to_owned();
    for source in ["guest/src", "guest/Cargo.toml", "sys/src", "sys/Cargo.toml", "backends/build.rs"] {
        println!("cargo:rerun-if-changed={}", workspace.join("crates").join(source).display());
    }
    let target = variable("TARGET");
    let out = PathBuf::from(variable("OUT_DIR"));
    let built = compile(&workspace, &target, &out.join("guest"));
    let program =
        std::fs::read(&built).unwrap_or_else(|error| panic!("could not read {}: {error}", built.display()));
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    println!("cargo:rustc-env=COFFERDAM_AGENT_ID={:016x}", hasher.finish());
    std::fs::write(out.join("cofferdam-guest"), program)
        .unwrap_or_else(|error| panic!("could not write to {}: {error}", out.display()));
}

fn compile(workspace: &Path, target: &str, folder: &Path) -> PathBuf {
    let status = Command::new(variable("CARGO"))
        .current_dir(workspace)
        .args(["build", "--quiet", "--release", "--locked", "--package", "cofferdam-guest"])
        .args(["--bin", "cofferdam-guest", "--target", target, "--target-dir"])
        .arg(folder)
        // Position-dependent, small, and without unwinding: it is mapped anew for every sandbox.
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // What the outer build set for itself means nothing here, and would be taken as meant.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .status()
        .unwrap_or_else(|error| panic!("could not run cargo to build the guest agent: {error}"));
    assert!(
        status.success(),
        "the guest agent did not compile; it needs a static C library (Debian: libc6-dev)"
    );
    folder.join(target).join("release/cofferdam-guest")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}
