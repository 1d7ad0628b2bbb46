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
use std::net::IpAddr;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use cofferdam_core::policy::{Ceiling, CredentialRule, Layer, NetworkRule, Policy, Protocol};
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
    // By the value of the key: the same text may stand in a comment.
    let table = str::from_utf8(policy).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let extends = table.as_ref().and_then(|table| table.get("extends")?.as_str());
    if extends == Some("base.toml")
        && let (Some(mine), Some(theirs)) = (resolved(&loaded.layer), resolved(&base.layer))
    {
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
    assert!(a.bytes_out <= b.bytes_out && a.requests <= b.requests, "{a:?} {b:?}");
    assert!(a.connections <= b.connections && a.hosts <= b.hosts, "{a:?} {b:?}");
    assert!(mine.accept_gaps.is_subset(&theirs.accept_gaps));
    assert!(mine.require.is_superset(&theirs.require));
    for connection in mine.network.iter().flat_map(connections) {
        let allowed = theirs.network.iter().any(|rule| lets_through(rule, &connection));
        assert!(allowed, "{connection:?} by {:?} and not by {:?}", mine.network, theirs.network);
    }
    for credential in &mine.credentials {
        let lives = |ttl: Option<Duration>| ttl.unwrap_or(Duration::MAX);
        let same =
            |outer: &&CredentialRule| (&outer.name, &outer.issuer) == (&credential.name, &credential.issuer);
        let outer = theirs.credentials.iter().find(same);
        assert!(outer.is_some_and(|outer| lives(credential.ttl) <= lives(outer.ttl)), "{credential:?}");
    }
    assert!(mine.environment.passed.iter().all(|passed| theirs.environment.passed.contains(passed)));
    let (a, b) = (&mine.files, &theirs.files);
    assert!(a.workspace.is_none() || a.workspace == b.workspace, "{:?} {:?}", a.workspace, b.workspace);
    assert!(a.python == b.python, "no file names an interpreter: {:?}", a.python);
    assert!(a.shown.iter().all(|shown| b.shown.contains(shown)));
    assert!(a.keep.iter().all(|kept| b.keep.contains(kept)));
    assert!(b.hide.iter().all(|hidden| a.hide.contains(hidden)));
}

/// Something that a program may ask for.
#[derive(Debug)]
struct Connection {
    host: String,
    port: u16,
    protocol: Protocol,
    method: String,
    path: String,
    private: bool,
    credential: Option<String>,
}

/// What of all that a rule lets through tells it from a narrower one.
fn connections(rule: &NetworkRule) -> Vec<Connection> {
    let pattern = rule.host.to_string();
    let hosts = match pattern.strip_prefix("*.") {
        Some(parent) => vec![format!("one.{parent}"), format!("two.{parent}")],
        None => vec![pattern],
    };
    // A word that no list has stands for whatever it doesn't name.
    let each = |list: &Option<Vec<String>>| list.clone().unwrap_or_else(|| vec!["\0unlisted".into()]);
    let mut found = vec![];
    for host in &hosts {
        for port in rule.ports.iter().take(8) {
            for method in each(&rule.methods).into_iter().take(8) {
                for path in each(&rule.paths).into_iter().take(8) {
                    let private = [false, true].into_iter().filter(|private| rule.private || !private);
                    found.extend(private.map(|private| Connection {
                        host: host.clone(),
                        port: *port,
                        protocol: rule.protocol,
                        method: method.clone(),
                        path: path.clone(),
                        private,
                        credential: rule.credential.clone(),
                    }));
                }
            }
        }
    }
    found
}

/// Whether a rule lets a connection through, by what it says: the comparison of rules is under test.
fn lets_through(rule: &NetworkRule, asked: &Connection) -> bool {
    let pattern = rule.host.to_string();
    let host = match pattern.strip_prefix("*.") {
        Some(parent) => {
            asked.host.parse::<IpAddr>().is_err()
                && asked.host.split_once('.').is_some_and(|(_, rest)| rest == parent)
        }
        None => pattern == asked.host,
    };
    let lists =
        |list: &Option<Vec<String>>, item: &String| list.as_ref().is_none_or(|list| list.contains(item));
    host && rule.ports.contains(&asked.port)
        && rule.protocol == asked.protocol
        && lists(&rule.methods, &asked.method)
        && lists(&rule.paths, &asked.path)
        && (rule.private || !asked.private)
        && rule.credential == asked.credential
}
