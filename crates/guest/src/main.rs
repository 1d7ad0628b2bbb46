//! Process 1 of a sandbox: starts the program, moves files in, forwards signals, reaps.
//!
//! It runs as the program's own user, behind the same filter, without a capability: there is
//! nothing in it to be had. What protects it from the program is the kernel's care for process 1
//! and that it is undumpable. When the host's end of the control socket closes it ends, and the
//! kernel ends the namespace with it.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cofferdam_guest::wire::{Frame, FromGuest, Inbox, ToGuest, VERSION};
use cofferdam_sys::{errno, fd, fdpass, process};

/// Where the host put the control socket: the first descriptor after the standard ones.
const CONTROL: i32 = 3;

/// Where programs find their files.
const WORKSPACE: &str = "/workspace";

/// Where a program is looked for if its environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

fn main() -> io::Result<()> {
    process::become_undumpable()?;
    let mut agent = Agent::new()?;
    agent.say(FromGuest::Ready(VERSION))?;
    while agent.turn()? {}
    Ok(())
}

/// The state of process 1.
struct Agent {
    control: UnixStream,
    children: OwnedFd,
    inbox: Inbox,
    /// Descriptors that came and weren't used yet.
    fds: Vec<OwnedFd>,
    /// The program, while it runs.
    program: Option<i32>,
    /// The file that is being put, so that a large one is opened once.
    putting: Result<Option<File>, i32>,
}

impl Agent {
    fn new() -> io::Result<Self> {
        Ok(Agent {
            control: fd::inherited(CONTROL)?.into(),
            children: process::child_signals()?,
            inbox: Inbox::default(),
            fds: vec![],
            program: None,
            putting: Ok(None),
        })
    }

    /// Waits for something to do and does it. False when the host is gone.
    fn turn(&mut self) -> io::Result<bool> {
        let [control, children] = process::wait_readable([self.control.as_fd(), self.children.as_fd()])?;
        if children {
            self.reap()?;
        }
        if control {
            return self.listen();
        }
        Ok(true)
    }

    fn say(&mut self, answer: FromGuest) -> io::Result<()> {
        self.control.write_all(&answer.encode())
    }

    /// Takes in what the host said.
    fn listen(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let (count, fds) = fdpass::receive(self.control.as_fd(), &mut buffer)?;
        if count == 0 {
            return Ok(false);
        }
        self.fds.extend(fds);
        self.inbox.push(&buffer[..count]);
        while let Some(message) = self.inbox.take().map_err(io::Error::other)? {
            self.obey(message)?;
        }
        Ok(true)
    }

    fn obey(&mut self, message: ToGuest) -> io::Result<()> {
        match message {
            ToGuest::Exec { argv, envp, cwd, terminal } => {
                let answer = match self.start(&argv, &envp, &cwd, terminal) {
                    Ok(()) => FromGuest::Started,
                    Err(error) => FromGuest::NotStarted(number(&error)),
                };
                self.fds.clear();
                self.say(answer)
            }
            ToGuest::Put { name, executable, offset, last, bytes } => {
                if offset == 0 {
                    self.putting = create(&name, executable).map(Some).map_err(|error| number(&error));
                }
                if let Ok(Some(file)) = &self.putting
                    && let Err(error) = file.write_all_at(&bytes, offset)
                {
                    self.putting = Err(number(&error));
                }
                if !last {
                    return Ok(());
                }
                let done = std::mem::replace(&mut self.putting, Ok(None));
                self.say(FromGuest::Put(done.map(drop)))
            }
            ToGuest::Signal(signal) => {
                if let Some(pid) = self.program {
                    // A bad number is the only possible failure, and the host's own mistake.
                    let _ = process::signal_group(pid, signal);
                }
                Ok(())
            }
        }
    }

    /// Starts the program with the descriptors that came beside the frame. One runs at a time.
    fn start(&mut self, argv: &[CString], envp: &[CString], cwd: &CStr, terminal: bool) -> io::Result<()> {
        self.bury()?;
        if self.program.is_some() {
            return Err(io::Error::from_raw_os_error(errno::BUSY));
        }
        let Ok(streams) = <[OwnedFd; 3]>::try_from(std::mem::take(&mut self.fds)) else {
            return Err(io::Error::from_raw_os_error(errno::INVALID));
        };
        let name = argv.first().ok_or_else(|| io::Error::from_raw_os_error(errno::INVALID))?;
        let path = find(name, envp, cwd)?;
        let terminal = if terminal { Some(fd::terminal_name(streams[0].as_fd())?) } else { None };
        let streams = streams.each_ref().map(AsFd::as_fd);
        let terminal = terminal.as_deref();
        let pid = process::Spawn { path: &path, argv, envp, cwd, streams, terminal }.start()?;
        self.program = Some(pid);
        Ok(())
    }

    /// Looks for what has ended since a signal said that something had.
    fn reap(&mut self) -> io::Result<()> {
        let mut signal = [0; 128]; // one `signalfd_siginfo`, which only says that there is something
        let _ = File::from(self.children.try_clone()?).read(&mut signal);
        self.bury()
    }

    /// Takes note of every child that has ended: the program, and orphans that became ours.
    fn bury(&mut self) -> io::Result<()> {
        while let Some((pid, exit)) = process::reap_any() {
            if self.program == Some(pid) {
                self.program = None;
                self.say(match exit {
                    process::Exit::Code(code) => FromGuest::Exited(code),
                    process::Exit::Signal(signal) => FromGuest::Signalled(signal),
                })?;
            }
        }
        Ok(())
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(errno::INPUT_OUTPUT)
}

/// Makes a file in the working directory, in place of one of the same name.
fn create(name: &CStr, executable: bool) -> io::Result<File> {
    let name = OsStr::from_bytes(name.to_bytes());
    if Path::new(name).components().count() != 1 || name == ".." {
        return Err(io::Error::from_raw_os_error(errno::INVALID));
    }
    let path = Path::new(WORKSPACE).join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mode = if executable { 0o755 } else { 0o644 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Finds a program as a shell would: as a path if it holds a slash, else along PATH. What was
/// found and can't be executed is reported only if nothing better follows.
fn find(name: &CStr, envp: &[CString], cwd: &CStr) -> io::Result<CString> {
    let name = name.to_bytes();
    if name.contains(&b'/') {
        return CString::new(name).map_err(io::Error::other);
    }
    let path = envp.iter().rev().find_map(|line| line.as_bytes().strip_prefix(b"PATH="));
    let mut refusal = errno::NOT_FOUND;
    for folder in path.unwrap_or(DEFAULT_PATH).split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { cwd.to_bytes() } else { folder };
        let candidate = PathBuf::from(OsStr::from_bytes(folder)).join(OsStr::from_bytes(name));
        match fs::metadata(&candidate) {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => {
                return CString::new(candidate.into_os_string().as_bytes()).map_err(io::Error::other);
            }
            Ok(found) if found.is_file() => refusal = errno::NOT_PERMITTED,
            _ => {}
        }
    }
    Err(io::Error::from_raw_os_error(refusal))
}
