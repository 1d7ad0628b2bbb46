//! What npm is configured for: <https://docs.npmjs.com/cli/configuring-npm/npmrc>.

use std::path::PathBuf;

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
    if found.is_empty() {
        return Err(BadValue::new(
            "npm's configuration on this machine names no registry",
            "name it (`npm config set registry URL`, or npm_config_registry), or allow the hosts that npm needs: \
             --allow 'GET,HEAD HOST'",
        ));
    }
    let registries: Vec<_> = found.iter().map(|(_, registry)| registry.clone()).collect();
    let set =
        found.iter().filter_map(|(key, registry)| variable(&format!("npm_config_{key}"), &registry.url));
    Ok(Found {
        rules: rules("npm", &registries, machine),
        variables: set.collect(),
        roots: root(value("cafile"), machine).into_iter().collect(),
    })
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
