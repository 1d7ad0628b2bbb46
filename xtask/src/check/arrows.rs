//! Which of our crates may use which of ours. Cargo would accept any acyclic graph; this is the one
//! that keeps each crate from knowing what it must not know.
//!
//! Development dependencies follow the same arrows, and may use `testkit` besides. The fuzz targets are
//! a workspace of their own and may use everything.

use std::fs;

use toml::{Table, Value};

use crate::problem::Problem;
use crate::workspace::Workspace;

/// The prefix of our crates' names; the program itself has the bare name.
const OURS: &str = "cofferdam";

const TESTKIT: &str = "cofferdam-testkit";

/// What each crate may use of ours. A crate that isn't here may use nothing.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "cofferdam",
        &[
            "cofferdam-backends",
            "cofferdam-broker",
            "cofferdam-core",
            "cofferdam-egress",
            "cofferdam-engine",
            "cofferdam-guest",
            "cofferdam-sys",
        ],
    ),
    ("cofferdam-backends", &["cofferdam-core", "cofferdam-guest", "cofferdam-sys"]),
    ("cofferdam-broker", &["cofferdam-core", "cofferdam-sys"]),
    ("cofferdam-core", &[]),
    ("cofferdam-egress", &["cofferdam-core", "cofferdam-sys"]),
    ("cofferdam-engine", &["cofferdam-core"]),
    ("cofferdam-guest", &["cofferdam-core", "cofferdam-sys"]),
    ("cofferdam-sys", &["cofferdam-core"]),
    (TESTKIT, &["cofferdam-backends", "cofferdam-core", "cofferdam-engine", "cofferdam-sys"]),
    ("xtask", &[]),
];

/// Every arrow that isn't drawn, in all manifests of the workspace.
pub(crate) fn violations(workspace: &Workspace) -> Result<Vec<String>, Problem> {
    let crates = workspace.root.join("crates");
    let mut manifests = vec!["xtask/Cargo.toml".to_owned()];
    for entry in fs::read_dir(&crates).map_err(Problem::at("list", &crates))? {
        let name = entry.map_err(Problem::at("list", &crates))?.file_name();
        manifests.push(format!("crates/{}/Cargo.toml", name.to_string_lossy()));
    }
    manifests.sort();
    let mut violations = Vec::new();
    for path in manifests {
        let text = workspace.read(&path)?;
        let manifest: Table = text.parse().map_err(Problem::form(&path))?;
        violations.extend(in_manifest(&manifest).into_iter().map(|violation| format!("{path}: {violation}")));
    }
    Ok(violations)
}

fn in_manifest(manifest: &Table) -> Vec<String> {
    let Some(name) = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str)
    else {
        return vec!["it names no package".to_owned()];
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
        return vec![format!("{name} is a new crate: draw its arrows in xtask/src/check/arrows.rs")];
    };
    let mut violations = Vec::new();
    for section in sections(manifest) {
        for (key, spec) in section.dependencies {
            let used = spec.get("package").and_then(Value::as_str).unwrap_or(key);
            let ours = used == OURS || used.starts_with("cofferdam-") || used == "xtask";
            let drawn = allowed.contains(&used) || (section.development && used == TESTKIT);
            if ours && !drawn {
                violations.push(format!("{name} must not use {used} (in {})", section.name));
            }
        }
    }
    violations
}

/// One table of dependencies.
struct Section<'a> {
    name: &'static str,
    development: bool,
    dependencies: &'a Table,
}

fn sections(manifest: &Table) -> Vec<Section<'_>> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let per_target = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let mut sections = Vec::new();
    for place in std::iter::once(manifest).chain(per_target) {
        for name in ["dependencies", "build-dependencies", "dev-dependencies"] {
            if let Some(dependencies) = place.get(name).and_then(Value::as_table) {
                sections.push(Section { name, development: name == "dev-dependencies", dependencies });
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations_of(name: &str, rest: &str) -> Vec<String> {
        in_manifest(&format!("[package]\nname = \"{name}\"\n{rest}").parse().unwrap())
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_found_in_every_section() {
        for section in
            ["dependencies", "build-dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"]
        {
            let found =
                violations_of("cofferdam-core", &format!("[{section}]\ncofferdam-sys.workspace = true"));
            assert_eq!(found.len(), 1, "{section}");
            assert!(found[0].contains("cofferdam-core must not use cofferdam-sys"), "{found:?}");
        }
    }

    #[test]
    fn another_name_for_a_crate_hides_nothing() {
        let rest = "[dependencies]\nbackends = { package = \"cofferdam-backends\", path = \"../backends\" }";
        assert_eq!(violations_of("cofferdam-engine", rest).len(), 1);
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        let line = "cofferdam-testkit.workspace = true";
        assert_eq!(violations_of("cofferdam", &format!("[dependencies]\n{line}")).len(), 1);
        assert!(violations_of("cofferdam", &format!("[dev-dependencies]\n{line}")).is_empty());
    }

    #[test]
    fn a_new_crate_has_to_be_drawn_first() {
        assert_eq!(violations_of("cofferdam-extra", "").len(), 1);
    }

    #[test]
    fn arrows_that_are_drawn_and_foreign_crates_pass() {
        let rest = "[dependencies]\ncofferdam-core.workspace = true\nlibc = \"0.2\"";
        assert!(violations_of("cofferdam-sys", rest).is_empty());
    }

    #[test]
    fn no_two_crates_may_use_each_other() {
        for (from, allowed) in ARROWS {
            for to in *allowed {
                let back = ARROWS.iter().find(|(name, _)| name == to).map(|(_, allowed)| *allowed);
                assert!(!back.unwrap().contains(from), "{from} and {to}");
            }
        }
    }
}
