//! The host's files in a container: the workspace, and what is shown read-only.
//!
//! - [`survey`]: one walk through the workspace, for what must not be shown and what needs care.
//! - [`cover`]: what is put over the workspace before the program's own layer: white-outs of hidden
//!   names, and copies of files whose owner can't be mapped.
//! - [`changes`]: what the program changed, read when it is dead.
//!
//! Folders are shown through overlays, which have inodes of their own: the host's sockets, FIFOs,
//! locks and watches are not reached through them. As root a folder's owner is mapped to the
//! program's user; who isn't root *is* the program's user outside.

mod changes;
mod cover;
mod survey;

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_core::backend::BackendError;
use cofferdam_core::files::{Files, Shown, Workspace};
use cofferdam_sys::launch::{Ids, MountFlags};
use cofferdam_sys::mount::{self, OwnerMap};

pub(super) use changes::{Base, Changes, Put};
pub(super) use cover::fill;
use survey::{Owner, Survey};

/// What is ready to be shown.
#[derive(Debug, Default)]
pub(super) struct HostFiles {
    /// Mounts that were made ready, for the launch.
    pub(super) mounts: Vec<OwnedFd>,
    /// What is shown read-only, outer places before inner ones.
    pub(super) shown: Vec<Place>,
    /// The folder that is the working directory.
    pub(super) workspace: Option<WorkspacePlan>,
}

/// Something of the host's and its place inside.
#[derive(Debug)]
pub(super) struct Place {
    /// Where it comes from.
    pub(super) source: Source,
    /// Its path inside, without the leading slash.
    pub(super) guest: String,
    /// Whether it is a folder.
    pub(super) folder: bool,
}

/// Where something comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A mount that was made ready: its position among [`HostFiles::mounts`].
    Mount(usize),
    /// A path of the host's, which the sandbox's own user can reach.
    Path(CString),
}

/// How the workspace gets inside.
#[derive(Debug)]
pub(super) struct WorkspacePlan {
    /// The folder below the program's own layer; none if everything is copied instead.
    pub(super) lower: Option<Source>,
    /// What to put over it, or all of it.
    pub(super) survey: Survey,
    /// The folder itself.
    pub(super) folder: File,
    /// Its path, for messages.
    pub(super) path: PathBuf,
}

impl WorkspacePlan {
    /// Whether something has to be put in place by the host before the program's layer is mounted.
    pub(super) fn needs_filling(&self) -> bool {
        self.lower.is_none() || !self.survey.hidden.is_empty() || !self.survey.foreign.is_empty()
    }
}

/// The first Linux whose tmpfs has the attributes (`user.*`) in which an overlay notes what it needs.
const OVERLAY_SINCE: (u32, u32) = (6, 6);

impl HostFiles {
    /// Looks at the files of a grant and makes ready what needs root for it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Files`] names the file and what to do.
    pub(super) fn prepare(files: &Files, ids: &Ids) -> Result<Self, BackendError> {
        let mut ready = HostFiles::default();
        for shown in outer_first(files)? {
            ready.show(shown, ids)?;
        }
        if let Some(workspace) = &files.workspace {
            ready.workspace = Some(ready.plan(workspace, files, ids)?);
        }
        Ok(ready)
    }

    /// Whether something is shown by a path below a folder, which has to stay in sight for that.
    pub(super) fn are_below(&self, folder: &Path) -> bool {
        let workspace = self.workspace.as_ref().and_then(|plan| plan.lower.as_ref());
        self.shown.iter().map(|place| &place.source).chain(workspace).any(|source| match source {
            Source::Mount(_) => false,
            Source::Path(path) => Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).starts_with(folder),
        })
    }

    /// Adds a mount that was made ready elsewhere; gives its position.
    pub(super) fn attach(&mut self, mount: OwnedFd) -> usize {
        self.mounts.push(mount);
        self.mounts.len() - 1
    }

    fn show(&mut self, shown: &Shown, ids: &Ids) -> Result<(), BackendError> {
        let failed =
            |error: io::Error| refuse(&shown.host, &error, "name a file or folder that you can read");
        let found = std::fs::metadata(&shown.host).map_err(failed)?;
        if !found.is_dir() && !found.is_file() {
            let why = "it is neither a regular file nor a folder".to_owned();
            let fix = "show the folder that it is in, in which it will be out of reach".to_owned();
            return Err(BackendError::Files { path: shown.host.clone(), why, fix });
        }
        let path = c_path(&shown.host);
        let source = if ids.root_outside.is_some() {
            let owner = Owner::of(&found);
            let copy = self.make_ready(&path, owner, ids, found.is_dir()).map_err(failed)?;
            Source::Mount(copy.0)
        } else {
            Source::Path(path)
        };
        let guest = shown.guest.as_c_str().to_string_lossy().trim_start_matches('/').to_owned();
        self.shown.push(Place { source, guest, folder: found.is_dir() });
        Ok(())
    }

    /// Copies a mount, read-only and with its owner shown as the program's user where that can be.
    /// Gives its position, and whether the owner is mapped.
    fn make_ready(&mut self, path: &CStr, owner: Owner, ids: &Ids, whole: bool) -> io::Result<(usize, bool)> {
        let copy = mount::copy_of(path, false)?;
        mount::restrict(copy.as_fd(), MountFlags::READ_ONLY)?;
        let map = OwnerMap::new((owner.user, ids.outside), (owner.group, ids.group_outside))?;
        let mapped = mount::show_as(copy.as_fd(), &map).is_ok();
        let copy = if mapped || !whole {
            copy
        } else {
            // As it is, then, with what is mounted below it.
            let copy = mount::copy_of(path, false)?;
            mount::restrict(copy.as_fd(), MountFlags::READ_ONLY)?;
            copy
        };
        Ok((self.attach(copy), mapped))
    }

    fn plan(
        &mut self,
        workspace: &Workspace,
        files: &Files,
        ids: &Ids,
    ) -> Result<WorkspacePlan, BackendError> {
        let path = workspace.host.clone();
        let failed =
            |error: io::Error| refuse(&path, &error, "name a folder that you can read with --workspace");
        if !workspace.copy && kernel_version() < OVERLAY_SINCE {
            let why = format!("an overlay over it needs Linux {}.{}", OVERLAY_SINCE.0, OVERLAY_SINCE.1);
            let fix = "copy it instead: --copy".to_owned();
            return Err(BackendError::Files { path, why, fix });
        }
        let folder = survey::open_folder(&path).map_err(failed)?;
        let as_root = ids.root_outside.is_some();
        let mut survey = if workspace.copy {
            Survey::of_everything(folder.as_fd(), &files.hidden()).map_err(failed)?
        } else {
            Survey::of_what_needs_care(folder.as_fd(), &files.hidden(), as_root).map_err(failed)?
        };
        let lower = if workspace.copy {
            None
        } else if as_root {
            let (at, mapped) = self.make_ready(&c_path(&path), survey.owner, ids, false).map_err(failed)?;
            if !mapped {
                // Nothing in it would be the program's to change: all of it has to be copied.
                survey = Survey::of_everything(folder.as_fd(), &files.hidden()).map_err(failed)?;
            }
            mapped.then_some(Source::Mount(at))
        } else {
            Some(Source::Path(c_path(&path)))
        };
        Ok(WorkspacePlan { lower, survey, folder, path })
    }
}

/// What is shown, outer places first. One inside another is there already if it lies there on the
/// host too; anything else would have to be made in somebody else's folder.
fn outer_first(files: &Files) -> Result<Vec<&Shown>, BackendError> {
    let guest = |shown: &Shown| PathBuf::from(std::ffi::OsStr::from_bytes(shown.guest.as_c_str().to_bytes()));
    let mut all: Vec<_> = files.shown.iter().collect();
    all.sort_by_key(|shown| guest(shown).components().count());
    let mut kept: Vec<&Shown> = vec![];
    for shown in all {
        let place = guest(shown);
        let Some(outer) = kept.iter().find(|outer| place.starts_with(guest(outer))) else {
            kept.push(shown);
            continue;
        };
        let below = place.strip_prefix(guest(outer)).unwrap_or(Path::new(""));
        if outer.host.join(below) != shown.host && outer.host != shown.host {
            return Err(BackendError::Files {
                path: shown.host.clone(),
                why: format!(
                    "{} lies within {}, which shows something else",
                    place.display(),
                    guest(outer).display()
                ),
                fix: "give it a place of its own: --in HOST:/inputs/NAME".to_owned(),
            });
        }
    }
    Ok(kept)
}

/// The kernel's version, as far as it has two numbers.
fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

impl Owner {
    fn of(found: &Metadata) -> Self {
        Owner { user: found.uid(), group: found.gid() }
    }
}

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default() // a path of the host has no NUL
}

/// A file of the host that can't be used.
fn refuse(path: &Path, error: &io::Error, fix: &str) -> BackendError {
    BackendError::Files { path: path.to_owned(), why: error.to_string(), fix: fix.to_owned() }
}
