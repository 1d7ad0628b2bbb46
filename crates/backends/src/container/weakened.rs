//! What a container is without one of its controls: for tests that show that somebody would notice.
//!
//! Everything here does nothing but in builds with the feature `weaken` (`core/src/weaken.rs`).

use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_core::files::Pattern;
use cofferdam_core::request::Variable;
use cofferdam_core::weaken::{Control, is_off};
use cofferdam_sys::capture::{Support, Why};
use cofferdam_sys::cgroup::Ceilings;
use cofferdam_sys::launch::{Launch, Resource, Step};
use cofferdam_sys::mount;
use rustix::fs::{Mode, OFlags};

/// The ceilings of a cgroup.
pub(super) fn ceilings(asked: Ceilings) -> Ceilings {
    let Ceilings { mut memory_bytes, mut cpu_thousandths, mut pids } = asked;
    if is_off(Control::Memory) {
        memory_bytes = 1 << 40;
    }
    if is_off(Control::Cpu) {
        cpu_thousandths = 1000 * 1000;
    }
    if is_off(Control::Pids) {
        pids = 1 << 20;
    }
    Ceilings { memory_bytes, cpu_thousandths, pids }
}

/// What is passed in of the host's environment.
pub(super) fn environment() -> impl Iterator<Item = Variable> {
    let all = is_off(Control::Environment).then(std::env::vars);
    all.into_iter().flatten().filter_map(|(name, value)| Variable::new(name, value).ok())
}

/// What isn't shown.
pub(super) fn hidden(patterns: Vec<Pattern>) -> Vec<Pattern> {
    if is_off(Control::Hide) { vec![] } else { patterns }
}

/// The plan of a sandbox.
pub(super) fn launch(mut launch: Launch) -> Launch {
    if is_off(Control::Filter) || is_off(Control::NoNewPrivileges) {
        launch.seccomp = None; // without privileges of its own, a filter can't be had without the other
    }
    if is_off(Control::Landlock) || is_off(Control::NoNewPrivileges) {
        launch.landlock = None;
    }
    if is_off(Control::Rlimits) {
        launch.rlimits.retain(|(resource, _)| *resource == Resource::Processes);
    }
    if is_off(Control::Pids) {
        launch.rlimits.retain(|(resource, _)| *resource != Resource::Processes);
    }
    if is_off(Control::Cpu) {
        launch.cores.clear();
    }
    launch.steps = launch.steps.into_iter().filter_map(step).collect();
    let _ = show_host(&mut launch); // a row that doesn't notice says so
    launch
}

/// Whether a sandbox has a network of its own, in which something can be captured.
pub(super) fn has_its_own_network() -> bool {
    !is_off(Control::NetNamespace)
}

/// What of the network is captured.
pub(super) fn captured(support: &Support) -> Support {
    let mut support = support.clone();
    if is_off(Control::CatchAll) {
        support.every_port = Err(Why { action: "load a table".to_owned(), errno: 0 });
    }
    support
}

/// One step, or none.
fn step(step: Step) -> Option<Step> {
    match step {
        Step::Cover { .. } if is_off(Control::Masks) => None,
        Step::Hostname(_) if is_off(Control::UtsNamespace) => None,
        Step::Loopback if is_off(Control::NetNamespace) => None,
        Step::Attributes { target, mut set, recursive } if is_off(Control::ReadOnly) => {
            set.read_only = false;
            Some(Step::Attributes { target, set, recursive })
        }
        // Nobody may mount a new one for a namespace that isn't theirs.
        Step::Mount { kind, target, .. } if is_off(Control::PidNamespace) && kind.as_c_str() == c"proc" => {
            Some(Step::Bind { source: c"/proc".into(), target })
        }
        Step::NewRoot { over, options } if is_off(Control::Disk) || is_off(Control::Files) => {
            let options = options.to_string_lossy().into_owned();
            let lifted = options.split(',').map(|option| match option.split_once('=') {
                Some(("size", _)) if is_off(Control::Disk) => "size=1g",
                Some(("nr_inodes", _)) if is_off(Control::Files) => "nr_inodes=0",
                _ => option,
            });
            let options = lifted.collect::<Vec<_>>().join(",");
            Some(Step::NewRoot { over, options: CString::new(options).unwrap_or_default() })
        }
        step => Some(step),
    }
}

/// Shows at `/host` what no sandbox may show: the host's root, or the folder beside the home, in which
/// a test listens on a socket. None where that can't be done: the sandbox has everything then.
fn show_host(launch: &mut Launch) -> Option<()> {
    let shown = if is_off(Control::HostRoot) {
        PathBuf::from("/")
    } else if is_off(Control::ControlSocket) {
        Path::new(&std::env::var_os("HOME")?).parent()?.to_owned()
    } else {
        return None;
    };
    let folder = rustix::fs::open(&shown, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    launch.mounts.push(mount::copy_of(folder.as_fd()).ok()?);
    let pivot = launch.steps.iter().position(|step| *step == Step::Pivot)?;
    let place = Step::Folder { path: c"host".into(), mode: 0o755, owned: false };
    let attach = Step::Attach { mount: launch.mounts.len() - 1, target: c"host".into() };
    launch.steps.splice(pivot..pivot, [place, attach]);
    Some(())
}
