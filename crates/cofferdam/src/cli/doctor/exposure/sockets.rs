//! Agents, keyrings and control sockets. A socket counts if this user may connect to it; nobody is
//! connected to.

use std::collections::HashSet;

use cofferdam_core::capability::Capability;

use super::files::{hidden_by, scope};
use super::findings::{Finding, Group, Kind, Scope};
use super::surroundings::{Surroundings, identity, is_open_socket, text};
use super::table::sockets;
use super::table::{Base, Place};

/// A configuration file is out of reach.
const BY_FILES: &[Capability] = &[Capability::Files];

/// A socket without a path, or one of TCP, is out of reach in a network namespace of its own.
const BY_NETWORK: &[Capability] = &[Capability::Network];

/// Keyrings have no namespace; the calls that read them are not on the list of allowed ones.
const BY_SYSCALLS: &[Capability] = &[Capability::Syscalls];

/// Every socket of the table that can be connected to, each once, whatever its names.
pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let mut known = HashSet::new();
    let mut found = vec![];
    for row in sockets::TABLE {
        for place in row.places {
            for path in around.at(place) {
                if is_open_socket(&path) && identity(&path).is_none_or(|socket| known.insert(socket)) {
                    let shown = around.shown(&path);
                    let by = hidden_by(&path);
                    found.push(Finding::new(row.group, scope(place), row.kind, &shown, by));
                }
            }
        }
    }
    found.extend(editors(around, &mut known));
    found.extend(without_path(around));
    found.extend(kernel_keyring(around));
    found.extend(credential_helper(around));
    found
}

/// VS Code names its sockets in variables that begin alike.
fn editors(around: &Surroundings, known: &mut HashSet<(u64, u64)>) -> Vec<Finding> {
    const EDITOR: Kind = Kind::new("vscode", "VS Code", "opens files and runs commands in your editor");
    let hooks = around
        .environment
        .iter()
        .filter(|(name, _)| name.to_str().is_some_and(|name| name.starts_with("VSCODE_IPC_HOOK")));
    let paths = hooks.map(|(_, value)| std::path::PathBuf::from(value));
    let open = paths.filter(|path| path.is_absolute() && is_open_socket(path));
    open.filter(|path| identity(path).is_none_or(|socket| known.insert(socket)))
        .map(|path| {
            Finding::new(Group::ControlSockets, Scope::Person, EDITOR, &around.shown(&path), hidden_by(&path))
        })
        .collect()
}

/// Variables that name a socket that has no path: by TCP, or abstract. Whether somebody listens there
/// would have to be tried, and isn't.
fn without_path(around: &Surroundings) -> Vec<Finding> {
    const DOCKER: Kind = Kind::new(
        "docker-address",
        "Docker by network",
        "starts a container with the whole host in it: root",
    );
    const BUS: Kind =
        Kind::new("session-bus-abstract", "session bus", "asks your desktop, its Secret Service among it");
    let mut found = vec![];
    let starts = |name, starts: &[&str]| {
        let value = around.variable(name).and_then(|value| value.to_str());
        value.is_some_and(|value| starts.iter().any(|start| value.starts_with(start)))
    };
    if starts("DOCKER_HOST", &["tcp:", "ssh:", "http:", "https:"]) {
        let group = Group::ControlSockets;
        found.push(Finding::new(group, Scope::Person, DOCKER, "DOCKER_HOST", BY_NETWORK));
    }
    if starts("DBUS_SESSION_BUS_ADDRESS", &["unix:abstract=", "tcp:"]) {
        let name = "DBUS_SESSION_BUS_ADDRESS";
        found.push(Finding::new(Group::Agents, Scope::Person, BUS, name, BY_NETWORK));
    }
    found
}

/// Keys that the kernel holds for this user.
fn kernel_keyring(around: &Surroundings) -> Option<Finding> {
    const KEYS: Kind = Kind::new("kernel-keyring", "keys in the kernel's keyring", "can be read or used");
    let keys = text(&around.machine("/proc/keys"))?;
    let own = keys.lines().any(|line| is_own_key(line, around.user));
    own.then(|| Finding::new(Group::Agents, Scope::Person, KEYS, "/proc/keys", BY_SYSCALLS))
}

/// Whether a line of `/proc/keys` is a key that holds something, of this user. The fields are: number,
/// flags, uses, timeout, rights, user, group, type, description. Source: `keyrings(7)`.
fn is_own_key(line: &str, user: u32) -> bool {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [_, _, _, _, _, owner, _, kind, description, ..] = fields[..] else { return false };
    let holds = ["big_key", "encrypted", "logon", "trusted", "user"].contains(&kind);
    // systemd puts a service's number there, which is no secret.
    owner == user.to_string() && holds && !description.starts_with("invocation_id")
}

/// Programs that Git asks for passwords. Their names are not shown: a helper can be a line of shell
/// with a password in it.
fn credential_helper(around: &Surroundings) -> Vec<Finding> {
    const HELPER: Kind = Kind::new(
        "git-credential-helper",
        "Git credential helper",
        "hands out Git passwords to whoever asks",
    );
    let places = [
        Place { base: Base::Home, pattern: ".gitconfig" },
        Place { base: Base::Config, pattern: "git/config" },
        Place { base: Base::Variable("GIT_CONFIG_GLOBAL"), pattern: "" },
        Place { base: Base::Repository, pattern: "config" },
        Place { base: Base::Machine, pattern: "etc/gitconfig" },
    ];
    let mut found = vec![];
    for place in &places {
        for path in around.at(place) {
            if text(&path).is_some_and(|config| names_a_helper(&config)) {
                let shown = around.shown(&path);
                found.push(Finding::new(Group::Agents, scope(place), HELPER, &shown, BY_FILES));
            }
        }
    }
    found
}

/// Whether a Git configuration has `helper = …` in a section `credential`.
fn names_a_helper(config: &str) -> bool {
    let mut inside = false;
    for line in config.lines().map(|line| line.trim().to_ascii_lowercase()) {
        if line.starts_with('[') {
            inside = line.starts_with("[credential");
        }
        let rest = line.rsplit(']').next().unwrap_or_default().trim();
        let helper = rest.strip_prefix("helper").and_then(|rest| rest.trim_start().strip_prefix('='));
        if inside && helper.is_some_and(|value| !value.trim().is_empty()) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_this_users_only_if_it_holds_something() {
        let key = "2ae1a3bc I--Q---     1 perm 3f010000  1000  1000 user      krb: 12";
        assert!(is_own_key(key, 1000));
        assert!(!is_own_key(key, 0));
        let service = "2ae1a3bc I--Q---     1 perm 3f010000  1000  1000 user      invocation_id: 16";
        assert!(!is_own_key(service, 1000));
        let ring = "09ae1a3b I--Q---     4 perm 3f030000  1000  1000 keyring   _ses: 1";
        assert!(!is_own_key(ring, 1000));
        assert!(!is_own_key("", 0));
    }

    #[test]
    fn a_helper_counts_only_in_its_own_section() {
        for config in [
            "[credential]\n\thelper = store",
            "[credential \"https://a\"] helper=x",
            "[Credential]\nHelper = x",
        ] {
            assert!(names_a_helper(config), "{config}");
        }
        for config in
            ["[credential]\nhelper =", "[user]\nhelper = store", "[credential]\n[user]\nhelper = x", ""]
        {
            assert!(!names_a_helper(config), "{config}");
        }
    }
}
