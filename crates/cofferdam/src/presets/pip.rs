//! What pip is configured for: <https://pip.pypa.io/en/stable/topics/configuration/>.

use std::path::PathBuf;

use super::ini::{self, Entry};
use super::{Found, Machine, Registry, root, rules, variable};
use crate::files::value::BadValue;

/// Commands whose section says more than `[global]`, the weaker first.
const SECTIONS: [&str; 3] = ["global", "download", "install"];

pub(super) fn resolve(machine: &Machine<'_>) -> Result<Found, BadValue> {
    let settings = Settings { machine, entries: read(machine) };
    let words = |key: &str| settings.value(key).unwrap_or_default();
    let read = |text: &str| text.split_whitespace().filter_map(Registry::parse).collect::<Vec<_>>();
    let is_off = matches!(words("no-index").as_str(), "1" | "true" | "yes" | "on");
    let index = if is_off { vec![] } else { read(&words("index-url")) };
    let others = if is_off { vec![] } else { read(&words("extra-index-url")) };
    let links = read(&words("find-links"));
    let all: Vec<_> = [&index, &others, &links].into_iter().flatten().cloned().collect();
    if all.is_empty() {
        return Err(BadValue::new(
            "pip's configuration on this machine names no index",
            "name it (`pip config set global.index-url URL`, or PIP_INDEX_URL), or allow the hosts that pip needs: \
             --allow 'GET,HEAD HOST'",
        ));
    }
    let urls = |found: &[Registry]| found.iter().map(|one| one.url.as_str()).collect::<Vec<_>>().join(" ");
    let lists = [("PIP_INDEX_URL", &index), ("PIP_EXTRA_INDEX_URL", &others), ("PIP_FIND_LINKS", &links)];
    let set = lists.into_iter().filter(|(_, found)| !found.is_empty());
    Ok(Found {
        rules: rules("pypi", &all, machine),
        variables: set.filter_map(|(name, found)| variable(name, &urls(found))).collect(),
        roots: root(settings.value("cert"), machine).into_iter().collect(),
    })
}

struct Settings<'a> {
    machine: &'a Machine<'a>,
    entries: Vec<Entry>,
}

impl Settings<'_> {
    /// A setting: the variable, else what the last file says in the strongest section.
    fn value(&self, key: &str) -> Option<String> {
        let name = format!("PIP_{}", key.to_ascii_uppercase().replace('-', "_"));
        let said = |section: &&str| {
            let is_it = |entry: &&Entry| entry.section == *section && entry.key.replace('_', "-") == key;
            self.entries.iter().rev().find(is_it).map(|entry| entry.value.clone())
        };
        self.machine.word(&name).or_else(|| SECTIONS.iter().rev().find_map(said))
    }
}

/// The files, the weakest first. That of a virtual environment isn't looked for: which one is meant isn't known.
fn read(machine: &Machine<'_>) -> Vec<Entry> {
    let named = machine.word("PIP_CONFIG_FILE");
    if named.as_deref() == Some("/dev/null") {
        return vec![];
    }
    let systems = machine.word("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".to_owned());
    let systems = systems.split(':').map(|folder| PathBuf::from(folder).join("pip/pip.conf"));
    let users = machine.word("XDG_CONFIG_HOME").map_or_else(|| machine.home().join(".config"), PathBuf::from);
    let files = systems.chain([
        "/etc/pip.conf".into(),
        machine.home().join(".pip/pip.conf"),
        users.join("pip/pip.conf"),
    ]);
    let files = files.chain(named.map(PathBuf::from)).filter(|path| path.is_absolute());
    files.filter_map(|path| (machine.text)(&path)).flat_map(|text| ini::entries(&text)).collect()
}
