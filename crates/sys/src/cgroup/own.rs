//! A cgroup of our own on version 2, for a user who isn't root.
//!
//! Version 2 gives controllers only to the children of a group that holds no processes itself. So to
//! make groups for sandboxes, the group that we are in has to be ours to divide, and we have to leave
//! it for a child of it. Nobody else is moved: where other processes are in the group, or where it
//! isn't ours, systemd's user manager is asked for a scope.
//!
//! ```text
//! the delegated group, or our scope      its controllers are enabled for its children
//! ├── cofferdam-self                     this process, and others of Cofferdam's
//! └── cofferdam-RUN                      a sandbox
//! ```
//!
//! Nothing of this is undone when we end: to switch the controllers off again would lift the ceilings
//! of whoever else still uses them. systemd removes a scope of ours as soon as nobody is in it.
//! Sources: `cgroup-v2.rst` ("No Internal Process Constraint", "Delegation Containment") and systemd's
//! "Control Group APIs and Delegation".

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::user_manager::{self, Bus, ScopeError};
use super::{CgroupError, Controller, Missing, members, writable};

/// The child in which we ourselves are.
pub(super) const SELF: &str = "cofferdam-self";

/// How long until we have to be where the user manager said that it would move us. It takes some
/// milliseconds; on a machine that is busy with other things, hundreds of times that.
const MOVE: Duration = Duration::from_secs(5);

/// How long others that are just starting may take to leave a group that we want to divide.
const LEAVE: Duration = Duration::from_millis(200);

/// Who wants groups, and what there is to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// Root: groups are made wherever the controllers are.
    Root,
    /// Anybody else.
    Ordinary {
        /// The user's number.
        id: u32,
        /// The user's message bus, if the environment says where it is.
        bus: Option<Bus>,
    },
}

impl User {
    /// Who we are.
    #[must_use]
    pub fn ourselves() -> Self {
        match crate::process::effective_user() {
            0 => User::Root,
            id => User::Ordinary { id, bus: Bus::of_environment() },
        }
    }
}

/// How a run gets a group of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The group that we are in is ours alone.
    Own(PathBuf),
    /// The user manager is asked for a scope.
    Ask {
        /// The user's number.
        user: u32,
        /// Where to ask.
        bus: Bus,
    },
}

impl Display for Way {
    /// What it does, as the rest of "a run first …".
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Way::Own(group) => {
                write!(to, "moves into a child of {}, which is Cofferdam's alone", group.display())
            }
            Way::Ask { bus, .. } => write!(to, "asks systemd's user manager for a scope, over {bus}"),
        }
    }
}

/// Where an ordinary user's groups are made now, or what it would take. `own` is the group that we are
/// in, `manager` that of systemd's user manager.
pub(super) fn place(
    controller: &'static str,
    own: &Path,
    manager: &Path,
    user: u32,
    bus: Option<&Bus>,
) -> Result<PathBuf, Missing> {
    if let Some(parent) = divided(own).filter(|parent| usable(parent)) {
        return match enabled(parent, controller) {
            true => Ok(parent.to_owned()),
            false => Err(Missing::NotDelegated { controller, group: parent.to_owned() }),
        };
    }
    let pending = |way| Err(Missing::Pending { controller, way });
    if delegated(own) && members(own) == [std::process::id() as i32] {
        return if offered(own, controller) {
            pending(Way::Own(own.to_owned()))
        } else {
            Err(Missing::NotDelegated { controller, group: own.to_owned() })
        };
    }
    let Some(bus) = bus.filter(|bus| bus.seems_there()) else {
        let why = "it has no message bus here".to_owned();
        return Err(Missing::NoScope { controller, why });
    };
    if manager.is_dir() && !offered(manager, controller) {
        return Err(Missing::Withheld { controller, group: manager.to_owned() });
    }
    pending(Way::Ask { user, bus: bus.clone() })
}

/// The group above ours, if ours is the child that we move to.
fn divided(own: &Path) -> Option<&Path> {
    own.parent().filter(|_| own.file_name().is_some_and(|name| name == SELF))
}

fn lists(file: &Path, controller: &str) -> bool {
    fs::read_to_string(file).unwrap_or_default().split_whitespace().any(|item| item == controller)
}

/// Whether a group may use a controller.
fn offered(group: &Path, controller: &str) -> bool {
    lists(&group.join("cgroup.controllers"), controller)
}

/// Whether a group's children may use a controller.
fn enabled(group: &Path, controller: &str) -> bool {
    lists(&group.join("cgroup.subtree_control"), controller)
}

/// Whether we may make children, move processes between them, and give them controllers.
fn usable(group: &Path) -> bool {
    ["", "cgroup.procs", "cgroup.subtree_control"].iter().all(|file| writable(&group.join(file)))
}

/// Whether a group is ours to divide. A unit of systemd's that isn't marked as delegated is systemd's,
/// even if its files are the user's: it may take the controllers away again at any time.
fn delegated(group: &Path) -> bool {
    let unit = group
        .extension()
        .is_some_and(|kind| ["scope", "service", "slice"].iter().any(|known| kind == *known));
    usable(group) && (!unit || crate::process::has_mark(group, c"user.delegate"))
}

/// Why we got no group of our own.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A file of the group's.
    #[error("{}", in_full(.0))]
    Group(#[from] CgroupError),
    /// The user manager gave no scope.
    #[error("{0}")]
    Scope(#[from] ScopeError),
    /// It said that it would, and we weren't moved.
    #[error("it agreed to {0}, and this process was not moved there within 5 s")]
    NotMoved(String),
}

/// With what the kernel said.
fn in_full(error: &CgroupError) -> String {
    format!("{error}: {}", error.source)
}

/// Gets a group of our own, in this way or in the next one that there is.
pub(super) fn get(way: &Way, where_we_are: impl Fn() -> Option<PathBuf>) -> Result<(), Failure> {
    match way {
        Way::Own(group) => divide(group).or_else(|failure| {
            let User::Ordinary { id, bus: Some(bus) } = User::ourselves() else { return Err(failure) };
            if !bus.seems_there() {
                return Err(failure);
            }
            ask(id, &bus, where_we_are)
        }),
        Way::Ask { user, bus } => ask(*user, bus, where_we_are),
    }
}

fn ask(user: u32, bus: &Bus, where_we_are: impl Fn() -> Option<PathBuf>) -> Result<(), Failure> {
    let name = user_manager::unit_name()
        .map_err(|source| ScopeError::Bus { action: "find a name for the scope", source })?;
    user_manager::start_scope(bus, user, &name)?;
    let asked = Instant::now();
    loop {
        let there = where_we_are().filter(|group| group.file_name().is_some_and(|last| *last == *name));
        if let Some(group) = there {
            return divide(&group);
        }
        if asked.elapsed() > MOVE {
            return Err(Failure::NotMoved(name));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Moves this process into a child of its group, and gives the group's children the controllers that
/// it has.
fn divide(group: &Path) -> Result<(), Failure> {
    let ours = group.join(SELF);
    match fs::create_dir(&ours) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(CgroupError::at("create", &ours))?,
    }
    let join = ours.join("cgroup.procs");
    fs::write(&join, "0").map_err(CgroupError::at("join", &join))?; // 0 is whoever writes it
    let control = group.join("cgroup.subtree_control");
    for controller in Controller::ALL.map(Controller::name) {
        if offered(group, controller) && !enabled(group, controller) {
            enable(&control, controller).map_err(CgroupError::at("write", &control))?;
        }
    }
    Ok(())
}

/// Gives a controller to the children of a group. It is busy while a process is in it: others of
/// Cofferdam's that have just started leave it in a moment, as we did.
fn enable(control: &Path, controller: &str) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match fs::write(control, format!("+{controller}")) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < LEAVE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of plain files with these processes, in a folder of this name.
    fn group(name: &str, processes: &str) -> (tempfile::TempDir, PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let group = top.path().join(name);
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), processes).unwrap();
        fs::write(group.join("cgroup.controllers"), "memory pids\n").unwrap();
        fs::write(group.join("cgroup.subtree_control"), "").unwrap();
        (top, group)
    }

    fn find(controller: &'static str, own: &Path, bus: Option<&Bus>) -> Result<PathBuf, Missing> {
        place(controller, own, Path::new("/nonexistent"), 1001, bus)
    }

    #[test]
    fn a_group_that_is_ours_alone_is_taken_without_asking_anybody() {
        let (_top, own) = group("mine", &format!("{}\n", std::process::id()));
        let pending = find("memory", &own, None).unwrap_err();
        assert_eq!(pending, Missing::Pending { controller: "memory", way: Way::Own(own.clone()) });
        assert!(matches!(find("cpu", &own, None), Err(Missing::NotDelegated { .. })));
    }

    #[test]
    fn where_somebody_else_is_in_the_group_it_is_left_alone() {
        let (_top, own) = group("mine", &format!("{}\n1\n", std::process::id()));
        assert!(matches!(find("memory", &own, None), Err(Missing::NoScope { .. })));
    }

    #[test]
    fn a_unit_that_systemd_did_not_delegate_is_left_alone() {
        let (_top, own) = group("app.scope", &format!("{}\n", std::process::id()));
        assert!(matches!(find("memory", &own, None), Err(Missing::NoScope { .. })));
    }

    #[test]
    fn the_user_manager_is_asked_if_its_bus_is_there_and_it_has_the_controller() {
        let (_top, own) = group("session.scope", "1\n");
        let (_other, manager) = group("manager", "");
        let socket = own.join("bus");
        let bus = Bus::Path(socket.clone());
        let find = |controller| place(controller, &own, &manager, 1001, Some(&bus));
        assert!(matches!(find("memory"), Err(Missing::NoScope { .. })), "there is no socket yet");
        fs::write(socket, "").unwrap();
        let way = Way::Ask { user: 1001, bus: bus.clone() };
        assert!(way.to_string().contains(&bus.to_string()), "{way}");
        assert_eq!(find("memory"), Err(Missing::Pending { controller: "memory", way }));
        assert!(matches!(find("cpu"), Err(Missing::Withheld { .. })));
    }

    #[test]
    fn once_divided_groups_are_made_beside_us() {
        let (_top, group) = group("mine", "");
        let own = group.join(SELF);
        assert!(matches!(find("memory", &own, None), Err(Missing::NotDelegated { .. })));
        fs::write(group.join("cgroup.subtree_control"), "memory").unwrap();
        assert_eq!(find("memory", &own, None), Ok(group));
    }
}
