//! A policy file that anybody may have written: loaded, or refused with a place that is in the file. One
//! that was loaded resolves, and one that extends another grants nothing that the other doesn't.
//!
//! The input is the file; what follows its first NUL byte is `base.toml` beside it.

#![no_main]

#[allow(dead_code, unused_imports, reason = "it is the product's own, of which this uses a part")]
#[path = "../../crates/cofferdam/src/files/mod.rs"]
mod files;
#[allow(dead_code, unused_imports, reason = "it is the product's own, of which this uses a part")]
#[path = "../../crates/cofferdam/src/places.rs"]
mod places;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use cofferdam_core::policy::{Ceiling, Layer, Policy};
use files::{FileError, Loaded, load_policy};
use libfuzzer_sys::fuzz_target;
use miette::Diagnostic;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let (policy, base) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b""[..]),
    };
    let (path, base_path) = (FOLDER.path().join("policy.toml"), FOLDER.path().join("base.toml"));
    fs::write(&path, policy).unwrap();
    fs::write(&base_path, base).unwrap();
    let loaded = load(&path, policy.len().max(base.len()));
    let base = load(&base_path, base.len());
    let (Some(loaded), Some(base)) = (loaded, base) else { return };
    let extends = String::from_utf8_lossy(policy).contains("extends = \"base.toml\"");
    if extends && let (Some(mine), Some(theirs)) = (resolved(&loaded.layer), resolved(&base.layer)) {
        grants_no_more(&mine, &theirs);
    }
});

fn load(path: &Path, bytes: usize) -> Option<Loaded> {
    match load_policy(path, &|name| (name != "UNSET").then(|| "value".into())) {
        Ok(loaded) => {
            resolved(&loaded.layer);
            Some(loaded)
        }
        Err(error) => {
            tells_where(&error, bytes);
            None
        }
    }
}

fn resolved(layer: &Layer) -> Option<Policy> {
    Policy::resolve(std::slice::from_ref(layer), &Ceiling::default()).ok()
}

fn tells_where(error: &FileError, bytes: usize) {
    assert!(!error.summary().is_empty() && !error.fix().is_empty());
    let _ = error.at();
    for label in error.labels().into_iter().flatten() {
        assert!(label.offset() + label.len() <= bytes, "a place beyond the file: {error}");
    }
    let hostile = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    assert!(!hostile(error.message()) && !hostile(error.fix()), "{error:?}");
}

fn grants_no_more(mine: &Policy, theirs: &Policy) {
    let (a, b) = (&mine.limits, &theirs.limits);
    assert_eq!(mine.profile, theirs.profile);
    assert!(theirs.backend.is_none() || mine.backend == theirs.backend);
    assert!(a.timeout <= b.timeout && a.grace <= b.grace, "{a:?} {b:?}");
    assert!(a.memory_bytes <= b.memory_bytes && a.disk_bytes() <= b.disk_bytes(), "{a:?} {b:?}");
    assert!(a.cpus <= b.cpus && a.pids <= b.pids && a.files <= b.files, "{a:?} {b:?}");
    let output = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
    assert!(output(a.output_bytes) <= output(b.output_bytes), "{a:?} {b:?}");
    assert!(mine.accept_gaps.is_subset(&theirs.accept_gaps));
    assert!(mine.network.iter().all(|rule| theirs.network.iter().any(|outer| rule.within(outer))));
    assert!(mine.environment.passed.iter().all(|passed| theirs.environment.passed.contains(passed)));
    let (a, b) = (&mine.files, &theirs.files);
    assert!(a.workspace.is_none() || a.workspace.as_ref().map(|w| &w.host) == b.workspace.as_ref().map(|w| &w.host));
    assert!(a.shown.iter().all(|shown| b.shown.contains(shown)));
    assert!(a.keep.iter().all(|kept| b.keep.contains(kept)));
    assert!(b.hide.iter().all(|hidden| a.hide.contains(hidden)));
}
