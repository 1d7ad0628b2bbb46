//! What a backend needs of a container that is the jail of its worker.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use cofferdam_core::backend::BackendError;
use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::LimitName;
use cofferdam_core::request::Variable;
use cofferdam_sys::process::{self, Space};

use super::files::{Base, Put};
use super::root;
use super::running::Inside;
use super::session::{ContainerSession, full, living};

impl ContainerSession {
    /// What holds for everything inside, for a backend that says the rest.
    pub(crate) fn enforced_mut(&mut self) -> &mut BTreeSet<Capability> {
        &mut self.enforced
    }

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

    /// What is used of the one file system in which anything can be written, and what is free. Only for a
    /// sandbox that is set up: its agent has said so.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the sandbox is gone.
    pub(crate) fn space(&mut self) -> Result<Space, BackendError> {
        let failed = |error| BackendError::host("see what is written in the sandbox")(error);
        if self.writable.is_none() {
            let place = format!("/proc/{}/root/tmp", self.launched.pid());
            self.writable = Some(fs::File::open(place).map_err(failed)?.into());
        }
        let folder = self.writable.as_ref().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        process::space(folder.as_fd()).map_err(failed)
    }

    /// The quotas that are as good as full.
    ///
    /// # Errors
    ///
    /// As [`ContainerSession::space`].
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
