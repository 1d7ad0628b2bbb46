//! Writable space that is larger than memory: a file system in a sparse file.
//!
//! The file has no name and the device over it lets go of it by itself, so that nothing is left
//! however this process ends. The space is at least what was granted and at most a twentieth more:
//! the file system's own tables can't be foretold to the byte.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_core::backend::BackendError;
use cofferdam_core::policy::Limits;
use cofferdam_core::weaken::stop_at;
use cofferdam_sys::launch::Ids;
use cofferdam_sys::loop_device::LoopDevice;
use cofferdam_sys::process;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Whether a grant needs one.
pub(super) fn is_needed(limits: &Limits) -> bool {
    limits.disk_bytes() > limits.memory_bytes
}

/// Why none can be made here, and what to do about it.
pub(super) fn hindrance(root: bool) -> Option<(String, String)> {
    let refuse = |why: &str, fix: &str| Some((why.to_owned(), fix.to_owned()));
    if !root {
        let why = "a disk larger than memory is a loop device, which only root can make";
        return refuse(why, "run it as root, or ask for at least as much --memory as --disk");
    }
    if mkfs().is_none() {
        let why = "a disk larger than memory needs mkfs.ext4, which isn't installed";
        return refuse(why, "apt-get install e2fsprogs, or ask for at least as much --memory as --disk");
    }
    if !Path::new("/dev/loop-control").exists() {
        let why = "a disk larger than memory needs loop devices, and there is no /dev/loop-control";
        return refuse(
            why,
            "modprobe loop (in an outer container: --device /dev/loop-control and privileges)",
        );
    }
    None
}

/// The program that makes the file system, where only root puts programs.
fn mkfs() -> Option<PathBuf> {
    ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.exists())
}

/// Makes a file system of its own for a sandbox, mounted nowhere yet.
///
/// # Errors
///
/// [`BackendError::Disk`] if the host has no room for it, [`BackendError::Host`] if it can't be made.
pub(super) fn make(folder: &Path, limits: &Limits, ids: &Ids) -> Result<OwnedFd, BackendError> {
    let failed = |what: &str| BackendError::host(format!("{what} a disk in {}", folder.display()));
    let image = unnamed(folder).map_err(failed("make the file of"))?;
    stop_at("disk-made");
    let free = process::available(image.as_fd()).map_err(failed("see the room for"))?;
    if free < limits.disk_bytes() {
        let why = format!("{} has {free} bytes free", folder.display());
        return Err(BackendError::Disk { bytes: limits.disk_bytes(), why });
    }
    image.set_len(image_bytes(limits)).map_err(failed("make the file of"))?;
    format(&image, limits, ids).map_err(failed("format"))?;
    let device = LoopDevice::over(image.as_fd()).map_err(failed("make a device of"))?;
    stop_at("disk-attached");
    mount(&device).map_err(failed("mount"))
}

/// The bytes of an inode in the file system: mke2fs' own default.
const INODE_BYTES: u64 = 256;

/// Files and folders that the sandbox itself has on it, with room to spare.
const OWN_FILES: u64 = 64;

/// The size of the file: what was granted, what ext4 keeps back for itself (a fiftieth, at most 16 MiB:
/// `ext4_calculate_resv_clusters`), and its tables.
fn image_bytes(limits: &Limits) -> u64 {
    let granted = limits.disk_bytes();
    let kept_back = (granted / 48).min(17 << 20);
    let inodes = limits.files.saturating_add(OWN_FILES).saturating_mul(INODE_BYTES);
    let tables = inodes.saturating_add(granted / 4096).saturating_add(3 << 20);
    granted.saturating_add(kept_back).saturating_add(tables) / 4096 * 4096
}

/// A file without a name, which is gone when nothing has it open any more.
fn unnamed(folder: &Path) -> io::Result<File> {
    /// `asm-generic/fcntl.h`: a file that never has a name.
    const O_TMPFILE: i32 = 0o20_200_000;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options.clone().custom_flags(O_TMPFILE).open(folder) {
        return Ok(file);
    }
    // Not every file system has those. A kill between the next two calls leaves an empty file.
    let path = folder.join(format!(
        "{}-{}",
        std::process::id(),
        u64::from_ne_bytes(cofferdam_sys::fd::random_bytes()?)
    ));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn format(image: &File, limits: &Limits, ids: &Ids) -> io::Result<()> {
    let owner = ids.root_outside.unwrap_or(ids.outside);
    let program = mkfs().ok_or(io::ErrorKind::NotFound)?;
    // The file goes as standard input, since it has no name and other descriptors close at an exec.
    let output = Command::new(program)
        .env_clear()
        .args([
            "-q",
            "-F",
            "-b",
            "4096",
            "-m",
            "0",
            "-O",
            "^has_journal,^resize_inode",
            "-I",
            &INODE_BYTES.to_string(),
        ])
        .args(["-N", &limits.files.saturating_add(OWN_FILES).to_string()])
        .args(["-E", &format!("lazy_itable_init=1,nodiscard,root_owner={owner}:{owner}"), "/proc/self/fd/0"])
        .stdin(Stdio::from(image.try_clone()?))
        .stdout(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("mkfs.ext4: {}", said.lines().last().unwrap_or("it failed"))))
}

fn mount(device: &LoopDevice) -> io::Result<OwnedFd> {
    let system = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(system.as_fd(), "source", device.path())?;
    // Nothing on it outlives the run, so nothing has to reach the platters.
    for option in ["nobarrier", "noinit_itable"] {
        rustix::mount::fsconfig_set_flag(system.as_fd(), option)?;
    }
    rustix::mount::fsconfig_create(system.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_what_was_granted_and_hardly_more() {
        let limits = Limits { disk_bytes: Some(4 << 30), ..Limits::DEFAULT };
        let bytes = image_bytes(&limits);
        assert!(bytes > 4 << 30 && bytes < (4 << 30) + (4 << 30) / 20, "{bytes}");
        let most = Limits { disk_bytes: Some(u64::MAX - 5000), files: u64::MAX, ..Limits::DEFAULT };
        assert!(image_bytes(&Limits { files: 1, ..most }) > 0);
    }

    #[test]
    fn only_a_disk_beyond_memory_needs_one() {
        assert!(!is_needed(&Limits::DEFAULT));
        assert!(is_needed(&Limits { disk_bytes: Some(2 << 30), ..Limits::DEFAULT }));
    }

    #[test]
    fn without_root_there_is_none_and_it_says_why() {
        assert!(hindrance(false).unwrap().0.contains("only root"));
    }
}
