//! The state folder and the audit log's: where they are, and whether they can be written.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_sys::process;

use super::findings::{FolderFound, Trouble};

/// The state folder, in which each run is noted.
pub(super) fn state(folder: &Path) -> FolderFound {
    found(folder, |why| {
        let fix = format!("make {} writable, or set COFFERDAM_STATE to a folder that is", folder.display());
        Trouble::new(why, fix)
    })
}

/// The audit log's folder, in the state folder. What is wrong with that is wrong with this.
pub(super) fn audit(state: &Path, state_found: &FolderFound) -> FolderFound {
    let folder = state.join("audit");
    let fix = format!("make {} writable", folder.display());
    found(&folder, |why| state_found.trouble.clone().unwrap_or_else(|| Trouble::new(why, fix)))
}

fn found(folder: &Path, trouble: impl FnOnce(String) -> Trouble) -> FolderFound {
    let refusal = refusal(folder);
    FolderFound {
        folder: folder.to_string_lossy().into_owned(),
        exists: folder.is_dir(),
        writable: refusal.is_none(),
        trouble: refusal.map(trouble),
    }
}

/// Why a folder can't be written, or made where it isn't there. Asks the kernel and writes nothing.
fn refusal(folder: &Path) -> Option<String> {
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok());
    // A relative path ends in the empty one, which is the working directory.
    let there = there.unwrap_or(Path::new("."));
    if !there.is_dir() {
        return Some(format!("{} is not a folder", there.display()));
    }
    let writable = CString::new(there.as_os_str().as_bytes()).is_ok_and(|path| process::can_write(&path));
    (!writable).then(|| format!("{} can't be written by this user", there.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn looking_at_a_folder_does_not_make_it() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let found = state(&folder);
        assert!(found.writable && !found.exists);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_trouble_with_a_way_out() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        for folder in [file.clone(), file.join("below")] {
            let found = state(&folder);
            assert!(!found.writable);
            let trouble = found.trouble.unwrap();
            assert!(trouble.why.ends_with("file is not a folder"), "{}", trouble.why);
            assert!(trouble.fix.contains("COFFERDAM_STATE"));
        }
    }
}
