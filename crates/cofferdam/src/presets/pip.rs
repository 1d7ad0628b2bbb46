//! What pip is configured for: <https://pip.pypa.io/en/stable/topics/configuration/>. Where nothing is, it asks the index
//! that it has built in, and that is read out of the pip that sandboxes are shown.

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
    let named = settings.value("index-url");
    let index = if is_off { vec![] } else { read(named.as_deref().unwrap_or_default()) };
    let built_in = if is_off || named.is_some() { vec![] } else { built_in(machine) };
    let others = if is_off { vec![] } else { read(&words("extra-index-url")) };
    let links = read(&words("find-links"));
    let all: Vec<_> = [&built_in, &index, &others, &links].into_iter().flatten().cloned().collect();
    if all.is_empty() {
        return Err(BadValue::new(
            "pip's configuration on this machine names no index, and no pip below /usr has one built in",
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

/// Where systems have the pip that their own Python runs: Debian; Fedora and Arch, by the minor version of Python.
fn packages() -> impl Iterator<Item = PathBuf> {
    const MINORS: std::ops::RangeInclusive<u8> = 9..=15;
    let others = MINORS.map(|minor| format!("/usr/lib/python3.{minor}/site-packages").into());
    std::iter::once("/usr/lib/python3/dist-packages".into()).chain(others)
}

/// The index that pip asks where nothing says another, and the host that has its files.
fn built_in(machine: &Machine<'_>) -> Vec<Registry> {
    let module = packages().find_map(|folder| (machine.text)(&folder.join("pip/_internal/models/index.py")));
    let of = |text: &str| {
        let (_, words) = text.split_once("\nPyPI = PackageIndex(")?;
        let (words, _) = words.split_once(')')?;
        let quoted: Vec<_> = words.split('"').skip(1).step_by(2).collect();
        let [index, files] = quoted[..] else { return None };
        Some([Registry::parse(index)?, Registry::parse(&format!("https://{files}"))?])
    };
    module.as_deref().and_then(of).into_iter().flatten().collect()
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
