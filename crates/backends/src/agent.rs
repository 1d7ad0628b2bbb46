//! The host's side of the guest agent: its program, and the conversation with it.
//!
//! Everything that the agent says is hostile. It can say how its own program ended and nothing
//! else that matters: ends by deadline or lack of memory and all counts come from the kernel. Whatever
//! it is asked it has to answer in time; only how its program ends can take longer.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_core::backend::BackendError;
use cofferdam_core::request::File;
use cofferdam_core::weaken::stop_at;
use cofferdam_guest::wire::{Frame, FromGuest, Inbox, PIECE_BYTES, ToGuest, VERSION};
use cofferdam_sys::launch::Program;
use cofferdam_sys::process;
use tokio::sync::Mutex;

use crate::channel::{Channel, in_time};

/// The agent's program, compiled by the build script.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-guest"));

/// The name under which it is kept, which tells this program from that of another build. Its first
/// 15 bytes are what `ps` shows.
const KEPT_NAME: &str = concat!("cofferdam-guest-", env!("COFFERDAM_AGENT_ID"));

/// What the names of all builds' programs start with.
const KEPT_PREFIX: &str = "cofferdam-guest-";

/// What the name of one that is being written starts with.
const UNFINISHED: &str = ".new-";

/// The agent in memory, made anew for each sandbox. It leaves nothing behind.
pub(crate) fn in_memory() -> Program {
    Program::InMemory(PROGRAM)
}

/// The agent from a folder in which it is kept, since writing a megabyte takes a twentieth of a
/// short run; in memory where it can't be kept.
pub(crate) fn kept_in(folder: &Path) -> Program {
    let path = folder.join(KEPT_NAME);
    let file = open_kept(&path).or_else(|_| {
        keep(folder, &path)?;
        open_kept(&path)
    });
    file.map_or_else(|_| in_memory(), |file| Program::Open(file.into()))
}

/// Opens the kept program, if it is what this build put there and nobody else could have changed.
fn open_kept(path: &Path) -> io::Result<std::fs::File> {
    // O_NOFOLLOW of `asm-generic/fcntl.h`: a link in its place is somebody else's doing.
    const O_NOFOLLOW: i32 = 0o400_000;
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path)?;
    let found = file.metadata()?;
    let ours = found.is_file()
        && found.uid() == process::effective_user()
        && found.mode() & 0o777 == 0o555
        && found.nlink() == 1
        && found.len() == PROGRAM.len() as u64;
    let executable = !process::on_noexec_mount(file.as_fd());
    if ours && executable { Ok(file) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Whether a name in the folder is one that a build gave: of a program, or of one being written.
fn is_ours(name: &str) -> bool {
    let hash = |rest: &str| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix(KEPT_PREFIX).is_some_and(hash) || name.strip_prefix(UNFINISHED).is_some_and(number)
}

/// Puts the program into its folder, in place of those of other builds.
fn keep(folder: &Path, path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != process::effective_user() || found.mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into()); // a link, or somebody else's
    }
    for other in std::fs::read_dir(folder)?.flatten() {
        let name = other.file_name();
        let name = name.to_string_lossy();
        if is_ours(&name) {
            let _ = std::fs::remove_file(other.path()); // gone already, or in use, which it stays
        }
    }
    let unfinished = folder.join(format!("{UNFINISHED}{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&unfinished)?;
    file.write_all(PROGRAM)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o555))?;
    drop(file);
    stop_at("agent-unfinished");
    std::fs::rename(&unfinished, path)
}

/// A conversation with an agent. Speaking and listening are independent of each other.
#[derive(Debug)]
pub(crate) struct Agent {
    channel: Channel,
    ear: Mutex<Ear>,
    /// Whether it was heard to say that it is there. Nothing that it says before that counts.
    greeted: AtomicBool,
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Ear {
    inbox: Inbox,
    /// How many programs it has started.
    started: usize,
    /// How those of them that have ended did, in their order: one runs at a time.
    ends: Vec<FromGuest>,
}

impl Agent {
    /// Takes the host's end of the control socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn new(socket: StdUnixStream) -> io::Result<Self> {
        let channel = Channel::new(socket, "guest agent")?;
        Ok(Agent { channel, ear: Mutex::default(), greeted: AtomicBool::new(false) })
    }

    /// Whether it was heard to say that it is there. Until then, what is seen of its sandbox can be the host's own.
    pub(crate) fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }

    /// Puts a file into the working directory.
    ///
    /// # Errors
    ///
    /// [`BackendError::Put`] with what the kernel said inside.
    pub(crate) async fn put(&self, file: &File) -> Result<(), BackendError> {
        let mut pieces = file.bytes.chunks(PIECE_BYTES).peekable();
        let mut offset = 0;
        loop {
            let bytes = pieces.next().unwrap_or_default().to_vec();
            let (length, last) = (bytes.len() as u64, pieces.peek().is_none());
            let name = file.name.as_c_str().to_owned();
            let piece = ToGuest::Put { name, executable: file.executable, offset, last, bytes };
            in_time(self.say(&piece, &[])).await?;
            offset += length;
            if last {
                break;
            }
        }
        let mut ear = self.ear.lock().await;
        match in_time(self.answer(&mut ear)).await? {
            Some(FromGuest::Put(Ok(()))) => Ok(()),
            Some(FromGuest::Put(Err(errno))) => {
                Err(BackendError::Put { source: io::Error::from_raw_os_error(errno) })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Starts a program on three streams, which may be one terminal; gives its number.
    ///
    /// # Errors
    ///
    /// [`BackendError::Exec`] with what the kernel said inside; that it is busy while another runs.
    pub(crate) async fn exec(
        &self,
        argv: Vec<CString>,
        envp: Vec<CString>,
        cwd: CString,
        streams: [BorrowedFd<'_>; 3],
        terminal: bool,
    ) -> Result<usize, BackendError> {
        let program = argv.first().cloned().unwrap_or_default();
        let exec = ToGuest::Exec { argv, envp, cwd, terminal };
        let refused = |source| BackendError::Exec { program: program.clone(), source };
        if exec.encode().len() > cofferdam_guest::wire::TO_GUEST_BYTES {
            const E2BIG: i32 = 7;
            return Err(refused(io::Error::from_raw_os_error(E2BIG)));
        }
        // Somebody who listens waits for a program's end.
        let Ok(mut ear) = self.ear.try_lock() else {
            return Err(refused(io::ErrorKind::ResourceBusy.into()));
        };
        in_time(self.say(&exec, &streams)).await?;
        match in_time(self.answer(&mut ear)).await? {
            Some(FromGuest::Started) => {
                ear.started += 1;
                Ok(ear.started - 1)
            }
            Some(FromGuest::NotStarted(errno)) => Err(refused(io::Error::from_raw_os_error(errno))),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    ///
    /// [`BackendError::Host`] if the socket can't be written.
    pub(crate) async fn signal(&self, signal: i32) -> Result<(), BackendError> {
        in_time(self.say(&ToGuest::Signal(signal), &[])).await
    }

    /// How the program with a number ended; none if the agent is gone. Safe to drop while waiting.
    ///
    /// # Errors
    ///
    /// [`BackendError::Wire`] if what it says is no end.
    pub(crate) async fn end_of(&self, program: usize) -> Result<Option<FromGuest>, BackendError> {
        let mut ear = self.ear.lock().await;
        if ear.ends.len() <= program
            && let Some(message) = self.answer_after(&mut ear, program + 1).await?
        {
            return Err(out_of_turn(message));
        }
        Ok(ear.ends.get(program).copied())
    }

    /// The next thing that it says and that is no end of a program that it has started; none if it is gone.
    async fn answer(&self, ear: &mut Ear) -> Result<Option<FromGuest>, BackendError> {
        self.answer_after(ear, usize::MAX).await
    }

    /// The same, or none as soon as so many programs have ended.
    async fn answer_after(&self, ear: &mut Ear, ends: usize) -> Result<Option<FromGuest>, BackendError> {
        while ear.ends.len() < ends {
            match self.hear(ear).await? {
                Some(end @ (FromGuest::Exited(_) | FromGuest::Signalled(_)))
                    if ear.ends.len() < ear.started =>
                {
                    ear.ends.push(end);
                }
                other => return Ok(other),
            }
        }
        Ok(None)
    }

    /// Waits until it has said that it is there: its sandbox is set up then.
    ///
    /// # Errors
    ///
    /// [`BackendError::Gone`] or [`BackendError::Silent`] if it never does, [`BackendError::Wire`] if it says
    /// something else.
    pub(crate) async fn greeted(&self) -> Result<(), BackendError> {
        let mut ear = self.ear.lock().await;
        let greeting = async {
            while !self.has_greeted() {
                match ear.inbox.take().map_err(|bad| BackendError::Wire(bad.to_string()))? {
                    Some(FromGuest::Ready(VERSION)) => self.greeted.store(true, Ordering::Relaxed),
                    Some(other) => return Err(out_of_turn(other)),
                    None => match self.channel.read().await? {
                        Some(bytes) => ear.inbox.push(&bytes),
                        None => return Err(BackendError::Gone),
                    },
                }
            }
            Ok(())
        };
        in_time(greeting).await
    }

    /// The next thing that the agent says; none if it is gone. Safe to drop while waiting.
    ///
    /// # Errors
    ///
    /// [`BackendError::Wire`] if it is no message, or the first isn't its greeting.
    async fn hear(&self, ear: &mut Ear) -> Result<Option<FromGuest>, BackendError> {
        loop {
            match ear.inbox.take().map_err(|bad| BackendError::Wire(bad.to_string()))? {
                Some(FromGuest::Ready(VERSION)) if !self.has_greeted() => {
                    self.greeted.store(true, Ordering::Relaxed);
                }
                Some(message) if self.has_greeted() => return Ok(Some(message)),
                Some(message) => return Err(out_of_turn(message)),
                None => match self.channel.read().await? {
                    Some(bytes) => ear.inbox.push(&bytes),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Says something, with descriptors beside its first byte.
    async fn say(&self, message: &ToGuest, fds: &[BorrowedFd<'_>]) -> Result<(), BackendError> {
        self.channel.write(&message.encode(), fds).await
    }
}

fn unexpected(answer: Option<FromGuest>) -> BackendError {
    answer.map_or(BackendError::Gone, out_of_turn)
}

fn out_of_turn(answer: FromGuest) -> BackendError {
    BackendError::Wire(format!("{answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_kept_once_and_never_taken_from_somebody_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("agent");
        assert!(matches!(kept_in(&place), Program::Open(_)));
        let path = place.join(KEPT_NAME);
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        let made = std::fs::metadata(&path).unwrap().ino();
        assert!(matches!(kept_in(&place), Program::Open(_)));
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), made);
        // A file that others can write, or of another size, is replaced.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(&path, b"#!/bin/sh\n").unwrap();
        assert!(matches!(kept_in(&place), Program::Open(_)));
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
    }

    #[test]
    fn a_folder_behind_a_link_is_not_used_and_nothing_in_it_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("agent"));
        std::fs::create_dir(&target).unwrap();
        let other = target.join(format!("{KEPT_PREFIX}0123456789abcdef"));
        std::fs::write(&other, "somebody's").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(kept_in(&link), Program::InMemory(_)));
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1);
        assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
    }

    #[test]
    fn only_names_that_a_build_gave_are_replaced() {
        assert!(is_ours("cofferdam-guest-0123456789abcdef") && is_ours(".new-17"));
        for name in ["cofferdam-guest-mine.txt", "cofferdam-guest-", "cofferdam-guest", ".new-x", "notes"] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn where_nothing_can_be_kept_the_program_is_in_memory() {
        assert!(matches!(kept_in(Path::new("/proc/no/such/place")), Program::InMemory(_)));
    }

    /// What an agent is to be asked.
    #[derive(Clone, Copy, Debug)]
    enum Question {
        Exec,
        Greeting,
        Put(usize),
        Signals,
    }

    /// Asks an agent something whose end of the socket has said these bytes and, unless it is gone,
    /// then neither speaks nor listens. Time passes as soon as nothing else happens.
    fn asked(question: Question, said: &[u8], gone: bool) -> Result<(), BackendError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (ours, mut theirs) = cofferdam_sys::fdpass::pair().unwrap();
            theirs.write_all(said).unwrap();
            let theirs = (!gone).then_some(theirs);
            let agent = Agent::new(ours).unwrap();
            let answer = match question {
                Question::Put(bytes) => {
                    let name = cofferdam_core::request::FileName::new("x").unwrap();
                    agent.put(&File { name, bytes: vec![0; bytes], executable: false }).await
                }
                Question::Exec => {
                    let null = std::fs::File::open("/dev/null").unwrap();
                    let streams = [null.as_fd(); 3];
                    agent.exec(vec![c"x".into()], vec![], c"/".into(), streams, false).await.map(drop)
                }
                Question::Greeting => agent.greeted().await,
                Question::Signals => loop {
                    if let Err(error) = agent.signal(15).await {
                        break Err(error);
                    }
                },
            };
            drop(theirs);
            answer
        })
    }

    fn frames(messages: &[FromGuest]) -> Vec<u8> {
        messages.iter().flat_map(Frame::encode).collect()
    }

    #[test]
    fn an_agent_that_neither_answers_nor_listens_is_given_up() {
        let hello = frames(&[FromGuest::Ready(VERSION)]);
        let half = [hello.as_slice(), &FromGuest::Started.encode()[..7]].concat();
        for question in [Question::Exec, Question::Put(10), Question::Put(8 << 20), Question::Signals] {
            for said in [&[][..], &hello, &half] {
                let given_up = asked(question, said, false);
                assert!(matches!(given_up, Err(BackendError::Silent { .. })), "{question:?}: {given_up:?}");
            }
        }
    }

    #[test]
    fn a_greeting_is_heard_once_and_waited_for_no_longer_than_anything_else() {
        let hello = frames(&[FromGuest::Ready(VERSION)]);
        asked(Question::Greeting, &hello, false).unwrap();
        assert!(matches!(asked(Question::Greeting, &hello[..5], false), Err(BackendError::Silent { .. })));
        assert!(matches!(asked(Question::Greeting, &[], true), Err(BackendError::Gone)));
    }

    #[test]
    fn an_agent_that_is_gone_is_not_waited_for() {
        let hello = frames(&[FromGuest::Ready(VERSION)]);
        let half = [hello.as_slice(), &FromGuest::Started.encode()[..7]].concat();
        for question in [Question::Exec, Question::Put(10), Question::Put(8 << 20), Question::Signals] {
            for said in [&[][..], &hello, &half] {
                let gone = asked(question, said, true);
                assert!(matches!(gone, Err(BackendError::Gone)), "{question:?}: {gone:?}");
            }
        }
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_none() {
        use FromGuest::{Exited, NotStarted, Put, Ready, Signalled, Started};
        let wrong = |question, said: &[FromGuest]| {
            let answer = asked(question, &frames(said), false);
            assert!(matches!(answer, Err(BackendError::Wire(_))), "{said:?}: {answer:?}");
        };
        for other in [Exited(0), Put(Ok(())), Put(Err(2)), Signalled(9), Ready(VERSION)] {
            wrong(Question::Exec, &[Ready(VERSION), other]);
        }
        for other in [Exited(0), Started, NotStarted(2), Signalled(9), Ready(VERSION)] {
            wrong(Question::Put(1), &[Ready(VERSION), other]);
        }
        // Nothing counts before the greeting, and no other version's is one.
        for first in [Started, Exited(0), Put(Ok(())), Ready(VERSION + 1), Ready(0)] {
            wrong(Question::Greeting, &[first]);
            wrong(Question::Exec, &[first, Ready(VERSION), Started]);
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_and_not_collected() {
        for said in [&[0xff; 64][..], &[0; 4], &u32::MAX.to_le_bytes(), b"GET / HTTP/1.1\r\n", &[65, 0, 0, 0]]
        {
            let answer = asked(Question::Exec, said, false);
            assert!(matches!(answer, Err(BackendError::Wire(_))), "{said:?}: {answer:?}");
        }
    }
}
