//! The index that pip is configured for on this machine: the one place beyond this machine that a test asks, since
//! that is what people do first.

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_testkit::product::{Product, finish};

use crate::{ordinary, product};

/// What the README has a person type, inside.
const INSTALLS: &str =
    "python3 -m venv v && v/bin/pip install tabulate humanize msgpack && v/bin/python app.py";

const README: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));

/// Whether the system's Python can make environments, and the index answers whoever asks it from no sandbox; else what
/// was said.
fn answers() -> Result<(), String> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", "import ensurepip"]);
    if finish(python).code != 0 {
        return Err("/usr/bin/python3 makes no virtual environments".to_owned());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut pip = Command::new("/usr/bin/python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "0"]);
    pip.args(["--timeout", "10", "--dest"]).arg(folder.path()).arg("tabulate");
    let ran = finish(pip);
    if ran.code == 0 { Ok(()) } else { Err(ran.stderr.lines().last().unwrap_or("pip failed").to_owned()) }
}

/// Whoever runs the tests may have configured pip; a product has a home of its own.
fn configured(product: &Product) -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    let text = std::fs::read(Path::new(&home).join(".config/pip/pip.conf")).ok()?;
    let file = product.file("pip.conf", text);
    product.give(&file);
    Some(file)
}

/// The README's command in a product of its own, with these options.
fn installs(product: &Product, options: &[&str]) -> cofferdam_testkit::product::Ran {
    let workspace = product.folder().join("app");
    std::fs::create_dir_all(&workspace).unwrap();
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/app/app.py");
    std::fs::copy(app, workspace.join("app.py")).unwrap();
    product.give(&workspace);
    let accepted = product.accepting();
    let accepted: Vec<_> = accepted.iter().map(String::as_str).collect();
    let shown = ["--quiet", "--workspace", workspace.to_str().unwrap()];
    let program = ["--", "sh", "-c", INSTALLS];
    let args = [&["run", "--profile", "internal"], &accepted[..], &shown, options, &program].concat();
    let mut command = product.command(args);
    if let Some(file) = configured(product) {
        command.env("PIP_CONFIG_FILE", file);
    }
    let ran = finish(command);
    assert!(!workspace.join("v").exists(), "what was installed stays inside: {ran:?}");
    ran
}

#[test]
fn a_program_installs_what_it_needs_from_the_configured_index_and_runs() {
    assert!(README.contains(&format!("--workspace examples/app --allow pypi -- sh -c '{INSTALLS}'")));
    if let Err(why) = answers() {
        cofferdam_testkit::skip!("nothing can be installed here, from no sandbox either: {why}");
    }
    for product in [product(), ordinary()] {
        let ran = installs(&product, &["--allow", "pypi"]).exits(0);
        let said = |words: &str| ran.stdout.lines().any(|line| line.contains(words));
        assert!(said("Successfully installed"), "{ran:?}");
        assert!(said("1.2 million") && said("2.0 million"), "{ran:?}");
        let refused = installs(&product, &[]);
        assert!(refused.code != 0 && refused.stderr.contains("No matching distribution"), "{refused:?}");
    }
}
