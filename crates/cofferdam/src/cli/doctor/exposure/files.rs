//! Credential files and start-up files, by their tables.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cofferdam_core::capability::Capability;

use cofferdam_core::files::{ALWAYS_HIDDEN, Pattern};
use serde_json::Value;

use super::environment::{kind, kind_by_value, url_with_password};
use super::findings::{Finding, Group, Kind, Scope, ShownBy};
use super::surroundings::{
    Surroundings, has_entry, head, identity, is_readable_file, is_writable, text, whole_text,
};
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
    let workspace = around.workspace();
    let mut known = HashSet::new();
    let mut found = vec![];
    for place in places {
        for path in around.at(place) {
            if !holds(&path) || !identity(&path).is_none_or(|file| known.insert(file)) {
                continue;
            }
            let by = if group == Group::StartUpFiles { HIDDEN_BY } else { hidden_by(&path) };
            let mut finding = Finding::new(group, scope(place), kind, &around.shown(&path), by);
            // What a run changes in a workspace doesn't reach it; what it reads there is the thing itself.
            if group == Group::CredentialFiles && is_shown_with(workspace.as_deref(), &path) {
                finding.be_shown_by(ShownBy::Workspace);
            }
            found.push(finding);
        }
    }
    found
}

/// Whether a run sees a file if it is given this workspace: it lies below it, and isn't always hidden.
fn is_shown_with(workspace: Option<&Path>, path: &Path) -> bool {
    let real = path.canonicalize().ok();
    let below = |real: &PathBuf| Some(real.strip_prefix(workspace?).ok()?.to_owned());
    let always = |below: &Path| {
        let bytes = below.as_os_str().as_bytes();
        ALWAYS_HIDDEN.iter().filter_map(|text| Pattern::new(text).ok()).any(|pattern| pattern.covers(bytes))
    };
    real.as_ref().and_then(below).is_some_and(|below| !always(&below))
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
        Proof::SecretLine => text(path).is_some_and(|text| text.lines().any(is_secret_line)),
        Proof::ServerSecret => whole_text(path).is_some_and(|text| hands_servers_a_secret(&text)),
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
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // `$(pass show x)` and `$OTHER` say where it comes from.
    plain && !value.starts_with(['$', '`']) && kind(&name, value).is_some()
}

/// How deep the servers of an agent lie in its settings: those of one of its projects are at
/// `projects.FOLDER.mcpServers`.
const SERVERS_DEPTH: usize = 4;

/// Whether settings in JSON hand a secret to a server: in its `env` or `headers`, its arguments or its
/// address.
fn hands_servers_a_secret(text: &str) -> bool {
    fn any(value: &Value, depth: usize) -> bool {
        let Value::Object(members) = value else { return false };
        members.iter().any(|(name, inner)| match (name.as_str(), inner) {
            ("mcpServers" | "servers", Value::Object(servers)) => servers.values().any(has_secret),
            _ => depth > 0 && any(inner, depth - 1),
        })
    }
    serde_json::from_str(text).is_ok_and(|value: Value| any(&value, SERVERS_DEPTH))
}

/// Whether a server's settings hold a secret. `${NAME}` is looked up when it starts.
fn has_secret(server: &Value) -> bool {
    let given = |name: &str, value: &Value| {
        let name = name.replace('-', "_");
        value.as_str().is_some_and(|value| !value.contains('$') && kind(&name, value).is_some())
    };
    let by_value = |value: &Value| value.as_str().is_some_and(|value| kind_by_value(value).is_some());
    let named = ["env", "headers"].iter().filter_map(|part| server.get(part)?.as_object());
    named.flatten().any(|(name, value)| given(name, value))
        || server.get("args").and_then(Value::as_array).is_some_and(|args| args.iter().any(by_value))
        || server.get("url").is_some_and(by_value)
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
        for line in ["export X_API_KEY=sk1", "SETTING=ghp_0123456789abcdefABCDEF"] {
            assert!(is_secret_line(line), "{line}");
        }
        for line in ["export X_TOKEN=$(pass show x)", "X_TOKEN=\"$OTHER\"", "export X_API_KEY=`cat x`", "=x"]
        {
            assert!(!is_secret_line(line), "{line}");
        }
        for line in ["API_TOKEN=", "API_TOKEN=''", "# API_TOKEN=x", "LEVEL=debug", "a b_token=x", ""] {
            assert!(!is_secret_line(line), "{line}");
        }
    }

    #[test]
    fn a_server_of_an_agent_has_a_secret_wherever_its_settings_may_hold_one() {
        let servers = |server: &str| format!("{{\"mcpServers\": {{\"one\": {server}}}}}");
        let key = "ghp_0123456789abcdefABCDEF";
        for secret in [
            "{\"env\": {\"LINEAR_API_KEY\": \"x9\"}}".to_owned(),
            "{\"headers\": {\"X-Api-Key\": \"x9\"}}".to_owned(),
            format!("{{\"headers\": {{\"Authorization\": \"Bearer {key}\"}}}}"),
            format!("{{\"args\": [\"--key\", \"{key}\"]}}"),
            "{\"url\": \"https://a:b@example.com\"}".to_owned(),
        ] {
            assert!(hands_servers_a_secret(&servers(&secret)), "{secret}");
            let project = format!("{{\"projects\": {{\"/w\": {}}}}}", servers(&secret));
            assert!(hands_servers_a_secret(&project), "{project}");
        }
        for none in
            ["{\"env\": {\"LEVEL\": \"debug\"}}", "{\"env\": {\"X_API_KEY\": \"${X_API_KEY}\"}}", "{}", "7"]
        {
            assert!(!hands_servers_a_secret(&servers(none)), "{none}");
        }
        assert!(!hands_servers_a_secret("no JSON") && !hands_servers_a_secret(&"[".repeat(10_000)));
    }

    #[test]
    fn what_a_workspace_shows_lies_below_it_and_is_not_always_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["w/.git/config", "w/.env.local", "w/key.json", "other"] {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(root.join("other"), root.join("w/link")).unwrap();
        let workspace = root.join("w");
        let shown = |name: &str| is_shown_with(Some(&workspace), &root.join(name));
        assert!(shown("w/.git/config") && shown("w/key.json"));
        assert!(!shown("w/.env.local") && !shown("other") && !shown("w/link"), "a link out leads nowhere");
        assert!(!is_shown_with(None, &root.join("w/key.json")));
    }
}
