//! A container as the jail of another backend's worker: what such a one has that no grant asks for.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use cofferdam_core::backend::BackendError;
use cofferdam_sys::launch::{Ids, MountFlags};
use cofferdam_sys::{mount, process};
use rustix::fs::OFlags;

use super::files::{HostFiles, Owner, Source, c_path, copy_shown_as_ours, stat, survey};

/// What a jail has beyond what was granted. A container that runs programs itself has nothing.
#[derive(Debug, Default)]
pub(crate) struct Fittings {
    /// Files and folders of ours.
    pub(crate) shown: Vec<Fitting>,
    /// The folder below which the jail has what the grant shows, instead of the root; relative to that.
    pub(crate) below: Option<&'static str>,
    /// Memory that the worker takes for itself.
    pub(crate) memory_bytes: u64,
    /// Processes and threads that it consists of.
    pub(crate) pids: u32,
}

/// A file or folder of ours that a jail shows read-only, as it is: what changes in it is seen.
#[derive(Debug)]
pub(crate) struct Fitting {
    /// Where it is on the host. Nobody but us may be able to put something else there.
    pub(crate) host: PathBuf,
    /// Where it is inside, relative to the root.
    pub(crate) place: String,
}

/// A fitting that is ready to be put in its place.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) source: Source,
    pub(super) place: String,
    pub(super) folder: bool,
}

impl Fittings {
    /// Where something that is shown at a path goes in the jail, relative to its root. What lies in folders
    /// that can be written is seen through those.
    pub(super) fn place_of(&self, guest: &str) -> String {
        match self.below {
            Some(below) if !guest.starts_with("home/user/") && !guest.starts_with("tmp/") => {
                format!("{below}/{guest}")
            }
            _ => guest.to_owned(),
        }
    }
}

impl HostFiles {
    /// Makes a fitting ready.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if that can't be done: it is ours, and no request's.
    pub(super) fn fit(&mut self, fitting: &Fitting, ids: &Ids) -> Result<(), BackendError> {
        let path = &fitting.host;
        let failed = |error: io::Error| BackendError::host(format!("show {} inside", path.display()))(error);
        let place = survey::open_as_resolved(path, OFlags::PATH).map_err(failed)?;
        let found = stat(&place).map_err(failed)?;
        // Who could put something else there could have it run, if only in a jail.
        if found.st_uid != process::effective_user() && found.st_uid != 0 {
            return Err(failed(io::ErrorKind::PermissionDenied.into()));
        }
        let folder = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        let source = if ids.root_outside.is_some() {
            let owner = Owner { user: found.st_uid, group: found.st_gid };
            let (copy, _) = copy_shown_as_ours(&place, owner, ids).map_err(failed)?;
            mount::restrict(copy.as_fd(), MountFlags::READ_ONLY).map_err(failed)?;
            Source::Mount(self.attach(copy))
        } else {
            Source::Path(c_path(path))
        };
        self.fittings.push(Ready { source, place: fitting.place.clone(), folder });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_lies_below_the_fittings_but_for_what_is_in_writable_folders() {
        let fittings = Fittings { below: Some("guest"), ..Fittings::default() };
        assert_eq!(fittings.place_of("inputs/a"), "guest/inputs/a");
        assert_eq!(fittings.place_of("home/user/a"), "home/user/a");
        assert_eq!(fittings.place_of("tmp/a"), "tmp/a");
        assert_eq!(fittings.place_of("tmpx/a"), "guest/tmpx/a");
        assert_eq!(Fittings::default().place_of("inputs/a"), "inputs/a");
    }
}
