//! Credential files and start-up files, by their tables.

use std::collections::HashSet;
use std::path::Path;

use cofferdam_core::capability::Capability;

use super::environment::{is_secret_name, url_with_password};
use super::findings::{Finding, Group, Kind, Scope};
use super::surroundings::{Surroundings, has_entry, head, identity, is_readable_file, is_writable};
use super::table::credentials::{self, Proof};
use super::table::{Base, Place, startup};

/// A run sees no file of the host's but what was handed in.
const HIDDEN_BY: &[Capability] = &[Capability::Files];

/// What lies below `/usr` is shown to every container, so nothing hides it. It can't be changed there.
const SHOWN: &str = "/usr";

/// How the head of a private key is told, in lower case: PEM, OpenSSH, PuTTY.
const PRIVATE_KEY: [&str; 2] = ["private key-----", "putty-user-key-file"];

/// Every credential file that this user can read.
pub(super) fn credentials(around: &Surroundings) -> Vec<Finding> {
    let mut found = vec![];
    for row in credentials::TABLE {
        let holds = |path: &Path| proves(path, row.proof);
        found.extend(look(around, row.places, Group::CredentialFiles, row.kind, holds));
    }
    found
}

/// Every start-up file and folder that is there and that this user can write.
pub(super) fn start_up(around: &Surroundings) -> Vec<Finding> {
    let mut found = vec![];
    for row in startup::TABLE {
        let holds = |path: &Path| (path.is_dir() || is_plain_file(path)) && is_writable(path);
        found.extend(look(around, row.places, Group::StartUpFiles, row.kind, holds));
    }
    let mut places: HashSet<_> = found.iter().map(|finding| finding.place.clone()).collect();
    found.extend(programs_folders(around).into_iter().filter(|finding| places.insert(finding.place.clone())));
    found
}

/// What isn't a pipe, a device or a broken link.
fn is_plain_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
}

/// What is at the places of a kind, each file once whatever its names.
fn look(
    around: &Surroundings,
    places: &[Place],
    group: Group,
    kind: Kind,
    holds: impl Fn(&Path) -> bool,
) -> Vec<Finding> {
    let mut known = HashSet::new();
    let mut found = vec![];
    for place in places {
        for path in around.at(place) {
            if holds(&path) && identity(&path).is_none_or(|file| known.insert(file)) {
                let by = if group == Group::StartUpFiles { HIDDEN_BY } else { hidden_by(&path) };
                found.push(Finding::new(group, scope(place), kind, &around.shown(&path), by));
            }
        }
    }
    found
}

/// What keeps a run from reading a file, or connecting to a socket.
pub(super) fn hidden_by(path: &Path) -> &'static [Capability] {
    let shown = path.canonicalize().is_ok_and(|real| real.starts_with(SHOWN));
    if shown { &[] } else { HIDDEN_BY }
}

/// Whose a thing at a place is.
pub(super) fn scope(place: &Place) -> Scope {
    if place.base == Base::Machine { Scope::Machine } else { Scope::Person }
}

/// Whether what is at a path is what its row says.
fn proves(path: &Path, proof: Proof) -> bool {
    let any = |needles: &[&str]| head(path).is_some_and(|text| needles.iter().any(|it| text.contains(it)));
    match proof {
        Proof::Entry(pattern) => path.is_dir() && has_entry(path, pattern),
        Proof::Holds(needles) => any(needles),
        Proof::Presence => is_readable_file(path) && path.metadata().is_ok_and(|found| found.len() > 0),
        Proof::PrivateKey => any(&PRIVATE_KEY),
        Proof::SecretLine => head(path).is_some_and(|text| text.lines().any(is_secret_line)),
        Proof::UrlWithPassword => head(path).is_some_and(|text| url_with_password(&text)),
    }
}

/// `export API_TOKEN=…`, but not `API_TOKEN=` and not a comment.
fn is_secret_line(line: &str) -> bool {
    let line = line.trim();
    let Some((name, value)) = line.strip_prefix("export ").unwrap_or(line).split_once('=') else {
        return false;
    };
    let value = value.trim().trim_matches(['"', '\'']);
    // Names in a properties file have dots: `signing.password`.
    let name = name.trim().replace(['.', '-'], "_").to_ascii_uppercase();
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain && !value.is_empty() && (is_secret_name(&name) || url_with_password(value))
}

/// Folders of `PATH` that this user can write, and those that depend on where one stands.
fn programs_folders(around: &Surroundings) -> Vec<Finding> {
    const WRITABLE: Kind =
        Kind::new("program-folder", "folder of PATH", "a program put there is run in the place of another");
    const RELATIVE: Kind = Kind::new(
        "program-folder-relative",
        "relative folder of PATH",
        "a program of the folder that you stand in is run",
    );
    let Some(path) = around.variable("PATH") else { return vec![] };
    let mut known = HashSet::new();
    let mut found = vec![];
    for folder in std::env::split_paths(path) {
        if !folder.is_absolute() {
            if known.insert(None) {
                found.push(Finding::new(Group::StartUpFiles, Scope::Person, RELATIVE, "PATH", HIDDEN_BY));
            }
            continue;
        }
        if folder.is_dir() && is_writable(&folder) && known.insert(identity(&folder)) {
            let scope = if around.is_in_home(&folder) { Scope::Person } else { Scope::Machine };
            let place = around.shown(&folder);
            found.push(Finding::new(Group::StartUpFiles, scope, WRITABLE, &place, HIDDEN_BY));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_container_is_shown_is_not_called_hidden() {
        assert!(hidden_by(Path::new("/usr/bin")).is_empty());
        assert_eq!(hidden_by(Path::new("/etc/passwd")), HIDDEN_BY);
    }

    #[test]
    fn a_line_is_a_secret_by_its_name_and_only_with_a_value() {
        for line in ["API_TOKEN=x", "export DB_PASSWORD='x'", "signing.password=x", "URL=https://a:b@c/"] {
            assert!(is_secret_line(line), "{line}");
        }
        for line in ["API_TOKEN=", "API_TOKEN=''", "# API_TOKEN=x", "LEVEL=debug", "a b_token=x", ""] {
            assert!(!is_secret_line(line), "{line}");
        }
    }
}
