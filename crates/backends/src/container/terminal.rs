//! A private terminal: its other end, which the host holds.
//!
//! The pair is made in the sandbox's own file system of terminals, so that the program finds its
//! terminal under the name that it is told, and never a terminal of the host's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cofferdam_core::request::WindowSize;
use cofferdam_sys::launch::Ids;
use cofferdam_sys::process;
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The host's end of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    end: AsyncFd<OwnedFd>,
}

/// What a terminal takes for the end of its input: VEOF, control-D.
const END_OF_INPUT: &[u8] = b"\x04";

impl Terminal {
    /// Makes a terminal in a sandbox's folder of terminals. Gives the program's end too.
    ///
    /// # Errors
    ///
    /// What the kernel said: ENOSPC if the sandbox has as many as it may.
    pub(super) fn make(folder: &OwnedFd, ids: &Ids, size: WindowSize) -> io::Result<(Self, OwnedFd)> {
        // Its owner is whoever makes it.
        let acting =
            ids.root_outside.map(|_| process::ActingAs::user_and_group(ids.outside, ids.group_outside));
        let acting = acting.transpose()?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let ours = rustix::fs::openat(folder, "ptmx", flags, Mode::empty())?;
        drop(acting);
        rustix::pty::unlockpt(&ours)?;
        let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, peer)?;
        #[expect(deprecated, reason = "unsound only where the descriptor can change; an OwnedFd's can't")]
        let terminal = Terminal { end: AsyncFd::new(ours)? };
        terminal.resize(size)?;
        Ok((terminal, theirs))
    }

    /// Tells the program that its window has another size.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn resize(&self, size: WindowSize) -> io::Result<()> {
        let WindowSize { columns: ws_col, rows: ws_row } = size;
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(self.end.get_ref(), size)?)
    }

    /// The next bytes; none when nobody has the other end open any more.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) async fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; 64 << 10];
        let read = self.end.async_io(Interest::READABLE, |end| Ok(rustix::io::read(end, &mut buffer)?)).await;
        match read {
            Ok(0) => Ok(None),
            // EIO is how the kernel says that the other end is closed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(None),
            Ok(count) => {
                buffer.truncate(count);
                Ok(Some(buffer))
            }
            Err(error) => Err(error),
        }
    }

    /// Types bytes; waits while the program doesn't read. An ended program is not an error.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let wrote =
                self.end.async_io(Interest::WRITABLE, |end| Ok(rustix::io::write(end.as_fd(), bytes)?)).await;
            match wrote {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the input, as control-D does.
    pub(super) async fn end_input(&self) {
        let _ = self.write(END_OF_INPUT).await; // nobody is there any more
    }
}
