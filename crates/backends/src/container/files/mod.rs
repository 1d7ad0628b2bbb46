//! The host's files in a container: the workspace, and what is shown read-only.
//!
//! - [`survey`]: one walk through the workspace, for what must not be shown and what needs care.
//! - [`cover`]: what is put over the workspace before the program's own layer: white-outs of hidden
//!   names, and copies of files whose owner can't be mapped.
//! - [`changes`]: what the program changed, read when it is dead, and [`told`] by a thread of its own.
//!
//! Folders are shown through overlays, which have inodes of their own: the host's sockets, FIFOs,
//! locks and watches are not reached through them. As root a folder's owner is mapped to the
//! program's user; who isn't root *is* the program's user outside.

mod changes;
mod cover;
pub(super) mod survey;
mod told;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_core::backend::BackendError;
use cofferdam_core::files::{Files, Shown, Workspace};
use cofferdam_sys::launch::{Ids, MountFlags};
use cofferdam_sys::mount::{self, OwnerMap};
use rustix::fs::{FileType, OFlags};

use super::fittings::{self, Fittings};
pub(super) use changes::{Base, Changes, Put};
pub(super) use cover::fill;
pub(super) use survey::Owner;
use survey::{Kind, Surveying, Wanted};

/// What is ready to be shown.
#[derive(Debug, Default)]
pub(super) struct HostFiles {
    /// Mounts that were made ready, for the launch.
    pub(super) mounts: Vec<OwnedFd>,
    /// What is shown read-only, outer places before inner ones.
    pub(super) shown: Vec<Place>,
    /// The folder that is the working directory.
    pub(super) workspace: Option<WorkspacePlan>,
    /// What is ours.
    pub(super) fittings: Vec<fittings::Ready>,
    /// The folder below which the rest is shown, if that isn't the root.
    pub(super) below: Option<&'static str>,
}

/// Something of the host's and its place inside.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder, or the one that the file is in.
    pub(super) source: Source,
    /// Its path inside, without the leading slash.
    pub(super) guest: String,
    /// The file's name in its folder; none if it is the folder that is shown.
    pub(super) file: Option<CString>,
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
    /// The walk that finds what to put over it, or all that is to be copied.
    pub(super) surveying: Surveying,
    /// The folder itself.
    pub(super) folder: OwnedFd,
    /// Its path, for messages.
    pub(super) path: PathBuf,
}

/// The first Linux whose tmpfs has the attributes (`user.*`) in which an overlay notes what it needs.
const OVERLAY_SINCE: (u32, u32) = (6, 6);

impl HostFiles {
    /// Looks at the files of a grant and makes ready what needs root for it. `owner` is whose most of
    /// the workspace is, if that is known to be somebody else than whose the folder itself is.
    ///
    /// # Errors
    ///
    /// [`BackendError::Files`] names the file and what to do.
    pub(super) fn prepare(
        files: &Files,
        ids: &Ids,
        owner: Option<Owner>,
        fittings: &Fittings,
    ) -> Result<Self, BackendError> {
        let mut ready = HostFiles { below: fittings.below, ..HostFiles::default() };
        for shown in outer_first(files)? {
            ready.show(shown, ids, fittings)?;
        }
        for fitting in &fittings.shown {
            ready.fit(fitting, ids)?;
        }
        if let Some(workspace) = &files.workspace {
            ready.workspace = Some(ready.plan(workspace, files, ids, owner)?);
        }
        Ok(ready)
    }

    /// Whether something is shown by a path below a folder, which has to stay in sight for that.
    pub(super) fn are_below(&self, folder: &Path) -> bool {
        let workspace = self.workspace.as_ref().and_then(|plan| plan.lower.as_ref());
        let fittings = self.fittings.iter().map(|ready| &ready.source);
        let mut all = self.shown.iter().map(|place| &place.source).chain(workspace).chain(fittings);
        all.any(|source| match source {
            Source::Mount(_) => false,
            Source::Path(path) => Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).starts_with(folder),
        })
    }

    /// Adds a mount that was made ready elsewhere; gives its position.
    pub(super) fn attach(&mut self, mount: OwnedFd) -> usize {
        self.mounts.push(mount);
        self.mounts.len() - 1
    }

    fn show(&mut self, shown: &Shown, ids: &Ids, fittings: &Fittings) -> Result<(), BackendError> {
        let path = &shown.host;
        let failed = |error: io::Error| refuse(path, &error, "name a file or folder that you can read");
        let refused = |why: &str, fix: &str| BackendError::Files {
            path: path.clone(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        };
        let place = survey::open_as_resolved(path, OFlags::PATH).map_err(failed)?;
        let found = stat(&place).map_err(failed)?;
        let kind = Kind::of(FileType::from_raw_mode(found.st_mode));
        let Some(kind @ (Kind::File | Kind::Folder)) = kind else {
            let fix = "show the folder that it is in, in which it will be out of reach";
            return Err(refused("it is neither a regular file nor a folder", fix));
        };
        let guest = shown.guest.as_c_str().to_str();
        let guest =
            guest.map_err(|_| refused("its name is no UTF-8", "give it another: --in HOST:/inputs/NAME"))?;
        // A file is shown through its folder too, of which nothing else is shown: an overlay's own inodes
        // can't be had for a file alone.
        let file = path.file_name().filter(|_| kind == Kind::File);
        let (place, path) = match (file, path.parent()) {
            (Some(_), Some(folder)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                (survey::open_as_resolved(folder, flags).map_err(failed)?, folder)
            }
            _ => (place, path.as_path()),
        };
        let source = if ids.root_outside.is_some() {
            let owner = Owner { user: found.st_uid, group: found.st_gid };
            let (copy, _) = copy_shown_as_ours(&place, owner, ids).map_err(failed)?;
            mount::restrict(copy.as_fd(), MountFlags::READ_ONLY).map_err(failed)?;
            Source::Mount(self.attach(copy))
        } else {
            Source::Path(c_path(path))
        };
        let guest = fittings.place_of(guest.trim_start_matches('/'));
        self.shown.push(Place { source, guest, file: file.map(|name| c_path(Path::new(name))) });
        Ok(())
    }

    fn plan(
        &mut self,
        workspace: &Workspace,
        files: &Files,
        ids: &Ids,
        owner: Option<Owner>,
    ) -> Result<WorkspacePlan, BackendError> {
        let path = workspace.host.clone();
        let failed =
            |error: io::Error| refuse(&path, &error, "name a folder that you can read with --workspace");
        if !workspace.copy && kernel_version() < OVERLAY_SINCE {
            let why = format!("an overlay over it needs Linux {}.{}", OVERLAY_SINCE.0, OVERLAY_SINCE.1);
            let fix = "copy it instead: --copy".to_owned();
            return Err(BackendError::Files { path, why, fix });
        }
        let folder = survey::open_as_resolved(&path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        let found = stat(&folder).map_err(failed)?;
        let owner = owner.unwrap_or(Owner { user: found.st_uid, group: found.st_gid });
        let as_root = ids.root_outside.is_some();
        let mut walked = folder.try_clone().map_err(failed)?;
        let (lower, wanted) = if workspace.copy {
            (None, Wanted::All)
        } else if as_root {
            let (copy, mapped) = copy_shown_as_ours(&folder, owner, ids).map_err(failed)?;
            if mapped {
                walked = copy.try_clone().map_err(failed)?;
                let shown_as = Owner { user: ids.outside, group: ids.group_outside };
                (Some(Source::Mount(self.attach(copy))), Wanted::Foreign { owner, shown_as })
            } else {
                (None, Wanted::All) // nothing in it would be the program's to change
            }
        } else {
            (Some(Source::Path(c_path(&path))), Wanted::Names)
        };
        let surveying =
            Surveying::start(walked, super::weakened::hidden(files.hidden()), wanted).map_err(failed)?;
        Ok(WorkspacePlan { lower, surveying, folder, path })
    }
}

/// What differs in a folder from another, or from nothing: the collector alone, for the fuzz targets.
///
/// # Errors
///
/// As [`Session::get`](cofferdam_core::backend::Session::get).
#[cfg(fuzzing)]
pub async fn collect(
    folder: OwnedFd,
    source: Option<OwnedFd>,
    receiver: &mut dyn cofferdam_core::artifact::Collect,
) -> Result<(), BackendError> {
    let base = source.map_or(Base::Empty, |source| Base::Copy { source, hidden: vec![], since: (0, 0) });
    Changes { folder, base, put: Put::default() }.collect(receiver).await
}

pub(super) fn stat(place: &OwnedFd) -> io::Result<rustix::fs::Stat> {
    Ok(rustix::fs::fstat(place)?)
}

/// A copy of a mount in which one owner is shown as the program's user, if the file system knows how:
/// the second half says so. What is mounted below it isn't in it.
pub(super) fn copy_shown_as_ours(place: &OwnedFd, owner: Owner, ids: &Ids) -> io::Result<(OwnedFd, bool)> {
    let copy = mount::copy_of(place.as_fd())?;
    let map = OwnerMap::new((owner.user, ids.outside), (owner.group, ids.group_outside))?;
    let mapped = mount::show_as(copy.as_fd(), &map).is_ok();
    Ok((copy, mapped))
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

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default() // a path of the host has no NUL
}

/// A file of the host that can't be used.
pub(super) fn refuse(path: &Path, error: &io::Error, fix: &str) -> BackendError {
    BackendError::Files { path: path.to_owned(), why: error.to_string(), fix: fix.to_owned() }
}
