//! The templates that tests run: those that `cargo xtask test` prepared.

use cofferdam_backends::wasm::setup::{self, Folder, Template};
use cofferdam_testkit::templates;

/// The template of a name, if it is prepared.
pub(crate) fn template(name: &str) -> Option<Template> {
    let folder = templates::folder();
    folder.exists().then(|| setup::find(&Folder::open(&folder).unwrap(), name).unwrap())?
}
