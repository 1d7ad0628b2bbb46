//! What a backend needs of a container that is the jail of its worker.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_core::backend::BackendError;
use cofferdam_core::outcome::LimitName;
use cofferdam_core::request::Variable;
use cofferdam_sys::process::{self, Space};

use super::files::{Base, Put};
use super::root;
use super::running::Inside;
use super::session::{ContainerSession, full, living};

/// How full the file system is in which anything can be written, and the times of its folders: a file that was
/// made and removed shows in them alone, and a program can set two of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracesOfWriting {
    space: Space,
    /// Seconds and nanoseconds of the last access, the last write and the last change of each.
    times: [[(i64, i64); 3]; 3],
}

impl TracesOfWriting {
    /// Whether it is as full as it was then, and each of its times is of this moment or later, and so nothing that a
    /// program had chosen.
    pub(crate) fn is_renewed(&self, before: &TracesOfWriting, at: SystemTime) -> bool {
        let at = at.checked_sub(CLOCK_TICK).unwrap_or(at);
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let at = (at.as_secs().cast_signed(), i64::from(at.subsec_nanos()));
        self.space == before.space && self.times.as_flattened().iter().all(|time| *time >= at)
    }
}

/// How far the clock of a file system is behind: a tick of the slowest kernel, of 100 Hz.
const CLOCK_TICK: Duration = Duration::from_millis(10);

fn unseen(error: io::Error) -> BackendError {
    BackendError::host("see what is written in the sandbox")(error)
}

impl ContainerSession {
    /// The variables that were granted.
    pub(crate) fn environment(&self) -> &[Variable] {
        &self.environment
    }

    /// What programs share with the session.
    pub(crate) fn inside(&self) -> &Arc<Inside> {
        &self.inside
    }

    /// Starts a program of ours with an environment of its own, which is empty, on three descriptors; gives
    /// its number among those that were started.
    ///
    /// # Errors
    ///
    /// As those of a program.
    pub(crate) async fn start_ours(
        &self,
        argv: Vec<CString>,
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<usize, BackendError> {
        self.inside.agent.exec(argv, vec![], root::WORKSPACE.into(), streams, false).await
    }

    /// Forgets what was put.
    pub(crate) fn forget_put(&mut self) {
        self.put = Put::default();
    }

    /// Whether the working directory was empty when the sandbox was opened.
    pub(crate) fn began_empty(&self) -> bool {
        matches!(self.base, Base::Empty)
    }

    /// What shows that something was written, or is no more. Only for a sandbox that is set up: its agent has
    /// said so.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the sandbox is gone.
    pub(crate) fn traces_of_writing(&mut self) -> Result<TracesOfWriting, BackendError> {
        let space = self.space()?;
        let [workspace, tmp, home] = self.writable()?;
        let times = |folder: &fs::File| {
            let of = folder.metadata()?;
            let times = [(of.atime(), of.atime_nsec()), (of.mtime(), of.mtime_nsec())];
            io::Result::Ok([times[0], times[1], (of.ctime(), of.ctime_nsec())])
        };
        let times = || io::Result::Ok([times(workspace)?, times(tmp)?, times(home)?]);
        Ok(TracesOfWriting { space, times: times().map_err(unseen)? })
    }

    /// What is used of the one file system in which anything can be written, and what is free.
    fn space(&mut self) -> Result<Space, BackendError> {
        let [_, tmp, _] = self.writable()?;
        process::space(tmp.as_fd()).map_err(unseen)
    }

    /// The folders in which anything can be written.
    fn writable(&mut self) -> Result<&[fs::File; 3], BackendError> {
        if self.writable.is_none() {
            let open = |place| fs::File::open(format!("/proc/{}/root{place}", self.launched.pid()));
            let open = || io::Result::Ok([open("/workspace")?, open("/tmp")?, open("/home/user")?]);
            self.writable = Some(open().map_err(unseen)?);
        }
        self.writable.as_ref().ok_or_else(|| unseen(io::ErrorKind::NotFound.into()))
    }

    /// The quotas that are as good as full.
    ///
    /// # Errors
    ///
    /// As [`ContainerSession::traces_of_writing`].
    pub(crate) fn fullness(&mut self) -> Result<BTreeSet<LimitName>, BackendError> {
        self.space().map(|space| full(&space))
    }

    /// How many processes there are, the agent included.
    pub(crate) fn processes(&self) -> usize {
        living(&self.inside.group, self.launched.pid()).len()
    }

    /// The one process beside the agent, as the host numbers it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if there isn't exactly one.
    pub(crate) fn the_other(&self) -> Result<i32, BackendError> {
        let agent = self.launched.pid();
        let read = || {
            let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"))?;
            let mut children = children.split_whitespace().map(str::parse::<i32>);
            match (children.next(), children.next()) {
                (Some(Ok(one)), None) => Ok(one),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        };
        read().map_err(BackendError::host("see what runs in the sandbox"))
    }
}
