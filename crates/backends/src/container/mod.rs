//! The built-in container: namespaces, cgroups, seccomp and Landlock on the host's own kernel.
//! Nothing has to be installed for it.
//!
//! What a sandbox is made of, and where it stands:
//!
//! - [`probe`]: what this host lets it enforce, and why not. [`hindrances`] is a part of it.
//! - [`files`]: the host's files in it, and what the program changed in them.
//! - [`ids`]: the unprivileged user that a run is outside.
//! - [`root`]: the root file system, as a list of steps. [`etc`] and [`cpu`] are parts of it.
//! - [`open`]: how all of it becomes a sandbox. [`session`]: a sandbox that is open; [`running`]: a program in it, perhaps on a [`terminal`].
//! - [`disk`]: writable space beyond memory. [`reach`]: what leads out, and what is trusted there, by [`java`] too.
//! - [`fittings`] and [`jail`]: what a container has that is the jail of another backend's worker.

#[cfg(test)]
mod agreement;
mod cpu;
mod disk;
mod etc;
mod files;
mod fittings;
mod hindrances;
mod ids;
#[cfg(feature = "wasm")]
mod jail;
mod java;
mod open;
mod probe;
mod reach;
mod root;
mod running;
mod session;
mod terminal;
mod weakened;

use std::ffi::CString;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cofferdam_core::backend::{Backend, BackendError, Boxed, Fit, Session};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::Files;
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Outlet;
use cofferdam_core::policy::Limits;
use cofferdam_core::request::{Lang, Program, Request};
use cofferdam_sys::cgroup::{self, CgroupError};
use cofferdam_sys::launch::LaunchError;

#[cfg(not(feature = "wasm"))]
use fittings::Fittings;
#[cfg(feature = "wasm")]
pub(crate) use fittings::{Fitting, Fittings};
#[cfg(feature = "wasm")]
pub(crate) use jail::TracesOfWriting;
#[cfg(feature = "wasm")]
pub(crate) use running::{Inside, Pipes, Streams};
#[cfg(feature = "wasm")]
pub(crate) use session::ContainerSession;
#[cfg(not(feature = "wasm"))]
use session::ContainerSession;

#[cfg(fuzzing)]
pub use files::collect;
pub use probe::Host;

/// Runs programs in containers of this host.
#[derive(Debug)]
pub struct Container {
    /// What was found when it was first asked for: an ordinary user's run gets a cgroup of its own
    /// then, and a command that runs nothing in a container shouldn't.
    found: OnceLock<(Host, Offers)>,
    /// Whether there are ways out for its sandboxes.
    reaches_out: bool,
    /// Whether programs may hold credentials: somebody mints them and ends them.
    holds_credentials: bool,
    /// A folder of ours: the guest agent's program is kept in it, and disks are made there.
    folder: PathBuf,
}

impl Container {
    /// Looks at what this host has, when that is first needed. Cheap enough for every run: a few small
    /// files are read, and an ordinary user may get a cgroup ([`Host::look_for_runs`]).
    ///
    /// `folder` is one that only we can write; the first run puts the guest agent's program into it.
    #[must_use]
    pub fn for_runs(folder: PathBuf) -> Self {
        Container { found: OnceLock::new(), reaches_out: false, holds_credentials: false, folder }
    }

    /// The same where the engine has ways out for sandboxes: then what a container sends is captured and judged,
    /// as far as this kernel can do that.
    #[must_use]
    pub fn with_outlets(mut self) -> Self {
        self.reaches_out = true;
        if let Some((host, _)) = self.found.take() {
            self.found = OnceLock::from(self.found_on(host));
        }
        self
    }

    /// The same where the engine has credentials minted. They go to a sandbox only where what leaves it is judged outside.
    #[must_use]
    pub fn with_credentials(mut self) -> Self {
        self.holds_credentials = true;
        if let Some((host, _)) = self.found.take() {
            self.found = OnceLock::from(self.found_on(host));
        }
        self
    }

    /// What is found on a host, with what it captures if that is wanted.
    fn found_on(&self, mut host: Host) -> (Host, Offers) {
        if self.reaches_out {
            host.look_at_captures(&self.folder);
        }
        let mut offers = host.offers();
        if self.holds_credentials && offers.enforced().contains(&Capability::Egress) {
            offers = offers.with([Capability::Credentials]);
        }
        (host, offers)
    }

    /// The same for a command that only looks: nothing is changed.
    #[must_use]
    pub fn probe(folder: PathBuf) -> Self {
        let host = Host::look();
        let offers = host.offers();
        Container {
            found: OnceLock::from((host, offers)),
            reaches_out: false,
            holds_credentials: false,
            folder,
        }
    }

    fn found(&self) -> &(Host, Offers) {
        self.found.get_or_init(|| self.found_on(Host::look_for_runs()))
    }

    /// What was found on the host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.found().0
    }

    /// Opens a container with fittings, for programs of its own or as another backend's jail. `gaps` are
    /// what the grant asks for and isn't enforced. Without an outlet nothing leads out of it.
    pub(crate) async fn open_with(
        &self,
        run: &RunId,
        grant: &Grant,
        gaps: &[Gap],
        fittings: &Fittings,
        outlet: Option<Arc<dyn Outlet>>,
    ) -> Result<ContainerSession, BackendError> {
        open::open(self.host(), &self.folder, &group_name(run), grant, gaps, fittings, outlet).await
    }
}

/// The name of a run's cgroups.
fn group_name(run: &RunId) -> String {
    format!("{GROUP_PREFIX}{run}")
}

/// What the names of all our cgroups start with.
const GROUP_PREFIX: &str = "cofferdam-";

impl Backend for Container {
    fn offers(&self) -> &Offers {
        &self.found().1
    }

    fn gaps(&self, grant: &Grant) -> Vec<Gap> {
        let mut gaps = self.offers().missing(grant.asks());
        gaps.extend(disk_beyond_memory(grant.limits(), || disk::hindrance(self.host().root)));
        gaps
    }

    fn traces(&self, run: &RunId) -> Vec<String> {
        let folders = self.host().cgroups.folders(&group_name(run));
        folders.iter().filter_map(|folder| Some(folder.to_str()?.to_owned())).collect()
    }

    fn sweep(&self, traces: &[String]) -> Result<(), BackendError> {
        traces.iter().map(|trace| sweep_group(Path::new(trace))).fold(Ok(()), Result::and)
    }

    fn fit(&self, request: &Request, files: &Files) -> Fit {
        match &request.program {
            Program::Script(script) if script.lang == Lang::Python && files.python.is_some() => {
                Fit::Yes { why: "it runs the interpreter that was named".into() }
            }
            Program::Command(_) => Fit::Yes { why: "it runs any Linux program".into() },
            Program::Script(script) if !interpreter_path(script.lang).exists() => Fit::NotYet {
                why: format!(
                    "there is no {} on this host, whose /usr a container shows",
                    interpreter_path(script.lang).display()
                ),
                fix: "install it, or name another interpreter after --".to_owned(),
            },
            Program::Script(_) => Fit::Yes { why: "it runs the host's own interpreters".into() },
        }
    }

    fn open<'a>(
        &'a self,
        run: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>> {
        Box::pin(async move {
            let (gaps, fittings) = (self.gaps(&grant), Fittings::default());
            let mut session = self.open_with(run, &grant, &gaps, &fittings, Some(outlet)).await?;
            let asks_for_credentials = grant.asks().contains(&Capability::Credentials);
            if asks_for_credentials && self.offers().enforced().contains(&Capability::Credentials) {
                session.enforced_mut().insert(Capability::Credentials);
            }
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

/// Writable space is memory unless it is more than there is of that, which not every host can give.
fn disk_beyond_memory(limits: &Limits, hindrance: impl FnOnce() -> Option<(String, String)>) -> Option<Gap> {
    let (why, fix) = disk::is_needed(limits).then(hindrance).flatten()?;
    Some(Gap { capability: Capability::Disk, why, fix })
}

/// Where the interpreter of a language is, on the host and so inside.
fn interpreter_path(lang: Lang) -> PathBuf {
    match lang {
        Lang::Python => "/usr/bin/python3".into(),
        Lang::Shell => "/bin/sh".into(),
        Lang::JavaScript => {
            let local = PathBuf::from("/usr/local/bin/node");
            if local.exists() { local } else { "/usr/bin/node".into() }
        }
    }
}

/// The same as a program's name.
fn interpreter(lang: Lang) -> CString {
    CString::new(interpreter_path(lang).into_os_string().into_encoded_bytes()).unwrap_or_default()
}

/// A group that can't be used, in the words of the contract.
fn of_cgroup(error: CgroupError) -> BackendError {
    BackendError::host(format!("{} {}", error.action, error.path.display()))(error.source)
}

/// A set-up that failed, in the words of the contract.
fn of_launch(error: LaunchError) -> BackendError {
    let LaunchError { action, source } = error;
    match action.strip_prefix("mount overlay on ") {
        Some(place) => BackendError::Files {
            path: place.into(),
            why: format!("the kernel mounts no overlay there: {source}"),
            fix: "have it copied instead: --workspace DIR --copy".to_owned(),
        },
        None => BackendError::Host { action, source },
    }
}

/// Kills what is left in a group of a dead run, and removes it.
fn sweep_group(folder: &Path) -> Result<(), BackendError> {
    let ours = folder
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.strip_prefix(GROUP_PREFIX).is_some_and(|run| RunId::parse(run).is_some()));
    let straight = folder.components().all(|part| !matches!(part, Component::ParentDir));
    if !ours || !straight || !folder.starts_with("/sys/fs/cgroup") {
        return Ok(()); // nothing that we ever wrote down
    }
    cgroup::empty(folder).map_err(of_cgroup)?;
    cgroup::remove(folder).map_err(of_cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_touches_nothing_but_groups_of_runs() {
        let folder = std::env::temp_dir().join(format!("cofferdam-sweep-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        sweep_group(&folder).unwrap();
        assert!(folder.exists());
        std::fs::remove_dir(&folder).unwrap();
        let run = RunId::new(1, [0; 10]);
        let outside = std::env::temp_dir().join(group_name(&run));
        std::fs::create_dir_all(&outside).unwrap();
        sweep_group(&Path::new("/sys/fs/cgroup/../../..").join(outside.strip_prefix("/").unwrap())).unwrap();
        assert!(outside.exists(), "a way out of the hierarchy is not followed");
        std::fs::remove_dir(&outside).unwrap();
    }

    #[test]
    fn disk_beyond_memory_is_a_gap_with_its_way_out() {
        let fits = Limits { disk_bytes: Some(1 << 20), memory_bytes: 1 << 20, ..Limits::DEFAULT };
        assert_eq!(disk_beyond_memory(&fits, || disk::hindrance(false)), None);
        let more = Limits { memory_bytes: 1 << 10, ..fits };
        let gap = disk_beyond_memory(&more, || disk::hindrance(false)).unwrap();
        assert_eq!(gap.capability, Capability::Disk);
        assert!(gap.fix.contains("--memory"));
        assert_eq!(disk_beyond_memory(&more, || None), None);
    }
}
