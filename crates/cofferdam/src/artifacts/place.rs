//! Where a result may go: checked before a run, so that what can't be used refuses it.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_core::outcome::Fault;

use super::refusal;

/// A place that was named, its parent's links resolved and its own name not.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder that it lies in.
    pub(super) parent: PathBuf,
    /// Its path.
    pub(super) path: PathBuf,
}

/// Finds a place by its absolute path. `option` names it in messages.
pub(super) fn find(option: &str, path: &Path) -> Result<Place, Fault> {
    let shown = path.display();
    if path.file_name() == Some("-".as_ref()) {
        let fix = "name a file or a folder of another name";
        return Err(refusal(format!("{option}: results don't go to standard output"), fix));
    }
    if !path.is_absolute() {
        return Err(refusal(format!("{option}: {shown} is a relative path"), "name it from / on"));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refusal(format!("{option}: {shown} has no name of its own"), "name it without `..`"));
    };
    let parent = fs::canonicalize(parent).map_err(|error| {
        let fix = format!("make the folder that it is to lie in: mkdir -p {:?}", parent.as_os_str());
        refusal(format!("{option}: {}: {error}", parent.display()), fix)
    })?;
    let path = parent.join(name);
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
        let fix = "name what it leads to, or remove the link";
        return Err(refusal(format!("{option}: {} is a symbolic link", path.display()), fix));
    }
    Ok(Place { parent, path })
}
