//! The users that a run's processes are outside.
//!
//! Every run as root gets a block of ids that nobody else has, so that no two share what the kernel
//! counts by user. A block is reserved by a lock on one byte of a file, which ends with this process
//! however it ends. Who isn't root can map nobody but themselves: their runs are themselves outside.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use cofferdam_sys::launch::Ids;
use cofferdam_sys::{fd, process};

/// The user that programs are, inside.
pub(super) const USER: u32 = 1000;

/// The first id of all blocks. Above what systemd gives to containers (0x00080000 to 0x6FFFFFFF,
/// "Users, Groups, UIDs and GIDs on systemd Systems") and within 31 bits, which some tools need.
const FIRST: u32 = 0x7000_0000;

/// Ids in a block: root of the namespace, the user, and room for a range later.
const BLOCK: u32 = 16;

/// How many blocks there are.
const BLOCKS: u32 = 65_536;

/// The ids of one run, with the lock on their block until this is dropped.
#[derive(Debug)]
pub(super) struct RunIds {
    ids: Ids,
    _lock: Option<File>,
}

impl RunIds {
    /// The ids for a run: a reserved block as root, our own otherwise.
    ///
    /// # Errors
    ///
    /// As [`RunIds::reserve`].
    pub(super) fn take() -> io::Result<Self> {
        if process::effective_user() == 0 {
            RunIds::reserve()
        } else {
            Ok(RunIds { ids: own(), _lock: None })
        }
    }

    /// Reserves a block that no other run has and that isn't in `/etc/subuid` or `/etc/subgid`.
    ///
    /// # Errors
    ///
    /// What the kernel said about the lock's file; `StorageFull` if every block is taken.
    pub(super) fn reserve() -> io::Result<Self> {
        let lock = open_lock(Path::new("/run/cofferdam"))?;
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let taken = ranges(&[read("/etc/subuid"), read("/etc/subgid")].concat());
        for block in 0..BLOCKS {
            let first = FIRST + block * BLOCK;
            let free = !taken.iter().any(|&(start, end)| first < end && start < first + BLOCK);
            if free && fd::try_lock_byte(&lock, i64::from(block))? {
                return Ok(RunIds { ids: of_block(first), _lock: Some(lock) });
            }
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, "every block of user ids is taken"))
    }

    /// Ids for a try that runs no program: the last block's, without reserving it, or our own.
    pub(super) fn unreserved() -> Ids {
        if process::effective_user() == 0 { of_block(FIRST + (BLOCKS - 1) * BLOCK) } else { own() }
    }

    /// The ids.
    pub(super) fn ids(&self) -> &Ids {
        &self.ids
    }
}

/// The ids of a block: its first is the namespace's root, its second the user.
fn of_block(first: u32) -> Ids {
    Ids { inside: USER, outside: first + 1, group_outside: first + 1, root_outside: Some(first) }
}

/// Our own ids.
fn own() -> Ids {
    let (user, group) = (process::effective_user(), process::effective_group());
    Ids { inside: USER, outside: user, group_outside: group, root_outside: None }
}

/// The file whose bytes stand for blocks. Its folder is gone after a reboot, as the locks are.
fn open_lock(folder: &Path) -> io::Result<File> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(folder.join("ids.lock"))
}

/// The ranges of a subordinate id file: `name:start:count` in each line.
fn ranges(text: &str) -> Vec<(u32, u32)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.rsplit(':');
            let (count, start) = (fields.next()?.trim().parse().ok()?, fields.next()?.parse().ok()?);
            Some((start, u32::saturating_add(start, count)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ranges_are_read_and_rubbish_is_not() {
        assert_eq!(
            ranges("u:100000:65536\n# x\nv:4294967295:9\n"),
            [(100_000, 165_536), (u32::MAX, u32::MAX)]
        );
    }

    #[test]
    fn two_runs_never_share_a_block() {
        if process::effective_user() != 0 {
            cofferdam_testkit::skip!("blocks of ids are for root");
        }
        let (one, two) = (RunIds::reserve().unwrap(), RunIds::reserve().unwrap());
        assert_ne!(one.ids().outside, two.ids().outside);
    }
}
