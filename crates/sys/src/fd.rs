//! Descriptors: pipes, sockets, sealed memory, event counters, locks on parts of a file.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::check;

/// Takes ownership of a number that a call just returned.
fn own(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(libc::c_long::from(result))? as RawFd;
    // SAFETY: the kernel just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes a descriptor that this process was started with, by its number. Call it once for each,
/// before anything else opens files.
///
/// # Errors
///
/// EBADF if there is none of this number.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: reads and sets flags, which are numbers.
    check(libc::c_long::from(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }))?;
    // SAFETY: it is open, as was just seen; whoever started this process left it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets the times of the last access and of the last write to now, which whoever may write to it can.
///
/// # Errors
///
/// What the kernel said: EACCES or EPERM to others.
pub fn touch(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open; no times means now: futimens(3).
    check(libc::c_long::from(unsafe { libc::futimens(fd.as_raw_fd(), std::ptr::null()) })).map(|_| ())
}

/// A pipe: what is written to the second end is read from the first. Closed at an exec.
///
/// # Errors
///
/// What the kernel said: EMFILE or ENFILE where there are too many descriptors.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    check(libc::c_long::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    // SAFETY: the kernel just made both, and nobody else knows them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Asks for a larger buffer in a pipe, in bytes. A refusal is no harm: the pipe works as it was.
pub fn widen_pipe(pipe: BorrowedFd<'_>, bytes: i32) {
    // SAFETY: takes a number.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
}

/// Makes reads and writes return at once instead of waiting.
///
/// # Errors
///
/// What the kernel said.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: reads and sets flags, which are numbers.
    unsafe {
        let flags = check(libc::c_long::from(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL)))?;
        let flags = flags as libc::c_int | libc::O_NONBLOCK;
        check(libc::c_long::from(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags)))?;
    }
    Ok(())
}

/// An empty file in memory that can be executed once it is filled.
///
/// # Errors
///
/// What the kernel said: EACCES where `vm.memfd_noexec` forbids executable memory files.
pub(crate) fn executable(name: &CStr) -> io::Result<OwnedFd> {
    // MFD_EXEC says that execution is meant; kernels before 6.3 don't know it and mean it anyway.
    const MFD_EXEC: libc::c_uint = 0x10;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    memory_file(name, flags | MFD_EXEC).or_else(|error| {
        if error.raw_os_error() == Some(libc::EINVAL) { memory_file(name, flags) } else { Err(error) }
    })
}

/// Fills a file in memory, after which nobody can change it any more.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn fill_and_seal(file: OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::from(file);
    file.write_all(bytes)?;
    // FUTURE_WRITE rather than WRITE: nobody has it mapped for writing, and the stricter seal waits
    // for every reference to every page, which now and then ends in EBUSY (`mm/memfd.c`).
    let seals = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: takes numbers.
    check(libc::c_long::from(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })).map(drop)
}

/// A file in memory for scratch data: it counts as the kernel's memory, not as ours.
///
/// # Errors
///
/// What the kernel said.
pub fn scratch_file() -> io::Result<File> {
    const MFD_NOEXEC_SEAL: libc::c_uint = 0x8;
    memory_file(c"scratch", libc::MFD_CLOEXEC | MFD_NOEXEC_SEAL)
        .or_else(|_| memory_file(c"scratch", libc::MFD_CLOEXEC))
        .map(File::from)
}

fn memory_file(name: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the name is a live string.
    own(unsafe { libc::memfd_create(name.as_ptr(), flags) })
}

/// Opens a regular file for reading, and nothing else: neither a pipe nor a device nor a folder is
/// opened, so this never waits for anybody. `None` where the path leads to something else.
///
/// # Errors
///
/// What the kernel said: ENOENT, EACCES, ELOOP.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    // It may have been replaced since: a pipe is then opened without waiting, and seen for what it is.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let regular = file.metadata()?.is_file();
    Ok(regular.then_some(file))
}

/// A counter that becomes readable when the kernel adds to it.
///
/// # Errors
///
/// What the kernel said.
pub fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Takes everything out of a counter, so that it becomes readable again only when something is added.
pub fn drain_counter(counter: BorrowedFd<'_>) {
    let mut value = [0u8; 8];
    // SAFETY: reads at most eight bytes into a live buffer; the counter doesn't wait.
    unsafe { libc::read(counter.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
}

/// Tries to lock one byte of a file for this open file alone, until it is closed everywhere. Says
/// whether it could: false means that another open file has it.
///
/// # Errors
///
/// What the kernel said.
pub fn try_lock_byte(file: &File, byte: i64) -> io::Result<bool> {
    // SAFETY: plain data for which zeros are valid (`l_pid` must be zero).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte;
    lock.l_len = 1;
    // SAFETY: the structure is live.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match check(libc::c_long::from(result)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a descriptor is a terminal's.
pub fn is_terminal(fd: impl AsFd) -> bool {
    use std::io::IsTerminal;
    fd.as_fd().is_terminal()
}

/// The name of a pseudo-terminal in this process's own `/dev/pts`.
///
/// # Errors
///
/// ENOTTY if it is none.
pub fn terminal_name(fd: BorrowedFd<'_>) -> io::Result<CString> {
    let device = File::from(fd.try_clone_to_owned()?).metadata()?.rdev();
    if !is_terminal(fd) {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    // Each has its number as the minor number of its device (`drivers/tty/pty.c`).
    CString::new(format!("/dev/pts/{}", libc::minor(device))).map_err(io::Error::other)
}

/// Whether a descriptor is closed or the null device: nothing will ever be read from it.
pub fn is_null_device(fd: impl AsFd) -> bool {
    let Ok(copy) = fd.as_fd().try_clone_to_owned() else { return true };
    let Ok(found) = File::from(copy).metadata() else { return true };
    // Character device 1:3: `Documentation/admin-guide/devices.txt`.
    found.file_type().is_char_device() && found.rdev() == libc::makedev(1, 3)
}

/// Waits until a little can be written without waiting, at most so long. Says whether it can.
#[must_use]
pub fn takes_some_within(fd: impl AsFd, most: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let milliseconds = most.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one live structure, as the count says.
    let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
    ready == 1 && poll.revents & libc::POLLOUT != 0
}

/// Whether a write of so many bytes would not have to wait: it is small, and there is room. A terminal
/// says that there is room for a byte and may wait for the others.
pub fn takes_at_once(fd: impl AsFd, bytes: usize) -> bool {
    if bytes > libc::PIPE_BUF || is_terminal(&fd) {
        return false;
    }
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live structure, as the count says; returns at once.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLOUT != 0
}

/// Random bytes from the kernel.
///
/// # Errors
///
/// What the kernel said; with no flags it waits until its generator is ready, once after boot.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is live and of the stated size; up to 256 bytes come in one piece.
    let got = check(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } as libc::c_long)?;
    if got as usize == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_sealed_file_cannot_be_written() {
        let fd = executable(c"t").unwrap();
        let file = File::from(fd.try_clone().unwrap());
        fill_and_seal(fd, b"abc").unwrap();
        assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn what_is_touched_has_the_times_of_now() {
        let file = File::from(executable(c"t").unwrap());
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        file.set_times(std::fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago)).unwrap();
        touch(file.as_fd()).unwrap();
        let metadata = file.metadata().unwrap();
        assert!(metadata.atime() > 1_000_000_000 && metadata.mtime() > 1_000_000_000);
    }

    #[test]
    fn a_byte_is_locked_by_one_open_file_at_a_time() {
        let path = std::env::temp_dir().join(format!("cofferdam-lock-{}", std::process::id()));
        let open = || File::options().create(true).write(true).truncate(false).open(&path).unwrap();
        let (one, two) = (open(), open());
        assert!(try_lock_byte(&one, 7).unwrap());
        assert!(!try_lock_byte(&two, 7).unwrap());
        assert!(try_lock_byte(&two, 8).unwrap());
        drop(one);
        assert!(try_lock_byte(&two, 7).unwrap());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn only_a_regular_file_is_opened_to_be_looked_at() {
        assert!(open_regular(Path::new("/proc/self/status")).unwrap().is_some());
        for other in ["/dev/null", "/dev/zero", "/proc"] {
            assert!(open_regular(Path::new(other)).unwrap().is_none(), "{other}");
        }
        assert!(open_regular(Path::new("/no-such-file")).is_err());
    }
}
