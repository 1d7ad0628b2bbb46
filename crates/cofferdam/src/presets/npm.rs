//! What npm is configured for: <https://docs.npmjs.com/cli/configuring-npm/npmrc>. Where nothing is, it asks the registry
//! that it has built in, and that is read out of the npm that sandboxes are shown.

use std::path::{Path, PathBuf};

use super::ini::{self, Entry};
use super::{Found, Machine, Registry, root, rules, variable};
use crate::files::value::BadValue;

pub(super) fn resolve(machine: &Machine<'_>) -> Result<Found, BadValue> {
    let entries = read(machine);
    let last =
        |key: &str| entries.iter().rev().find(|entry| entry.key == key).map(|entry| entry.value.clone());
    let value = |key: &str| {
        let lower = machine.word(&format!("npm_config_{key}"));
        lower
            .or_else(|| machine.word(&format!("NPM_CONFIG_{}", key.to_ascii_uppercase())))
            .or_else(|| last(key))
    };
    // Those of scopes: `@acme:registry`.
    let mut keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.retain(|key| key.starts_with('@') && key.ends_with(":registry"));
    keys.sort_unstable();
    keys.dedup();
    let named = [("registry".to_owned(), value("registry"))];
    let named = named.into_iter().chain(keys.into_iter().map(|key| (key.to_owned(), last(key))));
    let found: Vec<_> = named.filter_map(|(key, url)| Some((key, Registry::parse(&url?)?))).collect();
    let built_in = if value("registry").is_some() { None } else { built_in(machine) };
    if found.is_empty() && built_in.is_none() {
        return Err(BadValue::new(
            "npm's configuration on this machine names no registry, and no npm below /usr has one built in",
            "name it (`npm config set registry URL`, or npm_config_registry), or allow the hosts that npm needs: \
             --allow 'GET,HEAD HOST'",
        ));
    }
    let registries: Vec<_> =
        built_in.into_iter().chain(found.iter().map(|(_, registry)| registry.clone())).collect();
    let set =
        found.iter().filter_map(|(key, registry)| variable(&format!("npm_config_{key}"), &registry.url));
    Ok(Found {
        rules: rules("npm", &registries, machine),
        variables: set.collect(),
        roots: root(value("cafile"), machine).into_iter().collect(),
    })
}

/// Where npm has its settings described: as it comes from its makers or with Node; as Debian has it, by version.
const DEFINITIONS: [&str; 4] = [
    "/usr/lib/node_modules/npm/node_modules/@npmcli/config/lib/definitions/definitions.js",
    "/usr/lib/node_modules/npm/lib/utils/config/definitions.js",
    "/usr/share/nodejs/@npmcli/config/lib/definitions/definitions.js",
    "/usr/share/nodejs/npm/lib/utils/config/definitions.js",
];

/// The registry that npm asks where nothing says another.
fn built_in(machine: &Machine<'_>) -> Option<Registry> {
    let text = DEFINITIONS.iter().find_map(|path| (machine.text)(Path::new(path)))?;
    let (_, described) = text.split_once("'registry', {")?;
    let (_, after) = described.split_once("default: '")?;
    Registry::parse(after.split_once('\'')?.0)
}

/// The files, the weakest first. That of a project isn't read: the code under test may have written it.
fn read(machine: &Machine<'_>) -> Vec<Entry> {
    let named =
        |lower: &str, upper: &str| machine.word(lower).or_else(|| machine.word(upper)).map(PathBuf::from);
    let global = named("npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG");
    let usual = || ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"].map(PathBuf::from).to_vec();
    let globals = global.map_or_else(usual, |path| vec![path]);
    let users = named("npm_config_userconfig", "NPM_CONFIG_USERCONFIG");
    let users = users.unwrap_or_else(|| machine.home().join(".npmrc"));
    let files = globals.into_iter().chain([users]).filter(|path| path.is_absolute());
    files.filter_map(|path| (machine.text)(&path)).flat_map(|text| ini::entries(&text)).collect()
}
