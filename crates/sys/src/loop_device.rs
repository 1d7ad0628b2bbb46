//! A file as a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use crate::check;

/// A block device over a file. It lets go of the file when nobody has it open or mounted any more.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _device: File,
}

/// Requests of `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` and `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    file: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// How often another process may take the device that was free a moment ago.
const ATTEMPTS: u32 = 20;

impl LoopDevice {
    /// Makes a device of a file.
    ///
    /// # Errors
    ///
    /// What the kernel said: ENOENT where there is no `/dev/loop-control`, EPERM for who isn't root.
    pub fn over(file: BorrowedFd<'_>) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut attempt = 0;
        loop {
            // SAFETY: takes no argument.
            let number = check(libc::c_long::from(unsafe {
                libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _)
            }))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                Ok(()) => return Ok(LoopDevice { path, _device: device }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

fn configure(device: &File, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain data for which zeros are valid.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.file = file.as_raw_fd() as u32;
    config.block_bytes = 4096;
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the structure is live and has the layout that the request reads.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    check(libc::c_long::from(result)).map(drop)
}

// The kernel checks no sizes, so the compiler does.
const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);
