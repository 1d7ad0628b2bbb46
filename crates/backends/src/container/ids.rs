//! The users that a run's processes are outside: ids that nobody else has.
//!
//! Every run as root gets a block of ids of its own, so that no two share what the kernel counts by
//! user. A block is reserved by a lock on one byte of a file, which ends with this process however
//! it ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use cofferdam_sys::fd;
use cofferdam_sys::launch::Ids;

/// The user that programs are, inside.
pub(super) const USER: u32 = 1000;

/// The first id of all blocks. Above what systemd gives to containers (0x00080000 to 0x6FFFFFFF,
/// "Users, Groups, UIDs and GIDs on systemd Systems") and within 31 bits, which some tools need.
const FIRST: u32 = 0x7000_0000;

/// Ids in a block: root of the namespace, the user, and room for a range later.
const BLOCK: u32 = 16;

/// How many blocks there are.
const BLOCKS: u32 = 65_536;

/// A block of ids that is reserved until this is dropped.
#[derive(Debug)]
pub(super) struct IdBlock {
    ids: Ids,
    _lock: File,
}

impl IdBlock {
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
                let ids = Ids { inside: USER, outside: first + 1, root_outside: Some(first) };
                return Ok(IdBlock { ids, _lock: lock });
            }
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, "every block of user ids is taken"))
    }

    /// The ids of the last block, without reserving it: for a try that runs no program.
    pub(super) fn unreserved() -> Ids {
        let first = FIRST + (BLOCKS - 1) * BLOCK;
        Ids { inside: USER, outside: first + 1, root_outside: Some(first) }
    }

    /// The ids.
    pub(super) fn ids(&self) -> &Ids {
        &self.ids
    }
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
        if cofferdam_sys::process::effective_user() != 0 {
            cofferdam_testkit::skip!("blocks of ids are for root");
        }
        let (one, two) = (IdBlock::reserve().unwrap(), IdBlock::reserve().unwrap());
        assert_ne!(one.ids().outside, two.ids().outside);
    }
}
