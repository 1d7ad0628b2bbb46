//! The wire between the host and process 1 of a sandbox.
//!
//! A frame is a length (4 bytes, little-endian, of what follows), a kind (1 byte) and a payload.
//! Numbers are little-endian; a byte string is its length (4 bytes) and its bytes. In a container
//! the three streams of a program travel as descriptors beside the `Exec` frame.
//!
//! Neither side trusts the other: every frame is checked whole before it means anything, and what
//! comes out of a sandbox is at most [`FROM_GUEST_BYTES`] long.

use std::ffi::CString;
use std::ops::RangeInclusive;

/// The version of this wire; the guest says it first.
pub const VERSION: u32 = 2;

/// The longest frame that a guest takes: more than the kernel passes as arguments and environment
/// together (a quarter of the stack's 8 MiB; `execve(2)`, "Limits on size").
pub const TO_GUEST_BYTES: usize = 4 << 20;

/// The longest frame that a host takes from a guest.
pub const FROM_GUEST_BYTES: usize = 64;

/// The most bytes of a file in one frame.
pub const PIECE_BYTES: usize = 64 << 10;

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// Start a program. Three descriptors come with it: its standard streams.
    Exec {
        /// The arguments, the program's name first; never empty.
        argv: Vec<CString>,
        /// The environment, `NAME=VALUE`.
        envp: Vec<CString>,
        /// The working directory.
        cwd: CString,
        /// Whether its streams are a terminal, which it then has for itself.
        terminal: bool,
    },
    /// Write a piece of a file into the working directory.
    Put {
        /// Its name there, one component.
        name: CString,
        /// Whether it may be executed.
        executable: bool,
        /// Where the piece goes; at 0 the file is made new.
        offset: u64,
        /// Whether it is the last piece, which is answered.
        last: bool,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// Send a signal to the program and its group.
    Signal(i32),
}

/// What the guest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromGuest {
    /// The program exited by itself.
    Exited(u8),
    /// The program could not be started: the error number.
    NotStarted(i32),
    /// A file was written, or the error number.
    Put(Result<(), i32>),
    /// The guest is there and speaks this version.
    Ready(u32),
    /// A signal ended the program.
    Signalled(u8),
    /// The program runs.
    Started,
}

/// Bytes that are no frame. The connection is of no use afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// A payload that doesn't hold what its kind says.
    #[error("a frame of kind {0} does not hold what it should")]
    Content(u8),
    /// A kind that doesn't exist.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// A length that no frame has.
    #[error("a frame of {0} bytes is longer than any may be, or empty")]
    Length(usize),
}

const EXEC: u8 = 1;
const PUT: u8 = 2;
const SIGNAL: u8 = 3;
const EXITED: u8 = 129;
const NOT_STARTED: u8 = 130;
const PUT_DONE: u8 = 131;
const READY: u8 = 132;
const SIGNALLED: u8 = 133;
const STARTED: u8 = 134;

/// The largest error number: MAX_ERRNO in `linux/err.h`.
const MOST_ERRNO: i32 = 4095;

/// The largest signal: _NSIG in `asm/signal.h`.
const MOST_SIGNAL: i32 = 64;

/// A message that can be put on the wire.
pub trait Frame: Sized {
    /// The longest frame of this direction, kind and payload together.
    const MOST_BYTES: usize;

    /// The frame, its length first.
    fn encode(&self) -> Vec<u8>;

    /// Reads a frame's kind and payload.
    ///
    /// # Errors
    ///
    /// [`BadFrame`] if they are not exactly one message.
    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame>;
}

impl Frame for ToGuest {
    const MOST_BYTES: usize = TO_GUEST_BYTES;

    fn encode(&self) -> Vec<u8> {
        match self {
            ToGuest::Exec { argv, envp, cwd, terminal } => {
                let mut frame = Writer::new(EXEC);
                frame.strings(argv).strings(envp).bytes(cwd.as_bytes()).flag(*terminal);
                frame.finish()
            }
            ToGuest::Put { name, executable, offset, last, bytes } => {
                let mut frame = Writer::new(PUT);
                frame.bytes(name.as_bytes()).flag(*executable).number(&offset.to_le_bytes());
                frame.flag(*last).bytes(bytes);
                frame.finish()
            }
            ToGuest::Signal(signal) => {
                let mut frame = Writer::new(SIGNAL);
                frame.number(&signal.to_le_bytes());
                frame.finish()
            }
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(kind, payload);
        let message = match kind {
            EXEC => {
                let argv = reader.strings()?;
                if argv.is_empty() {
                    return Err(BadFrame::Content(kind));
                }
                let (envp, cwd) = (reader.strings()?, reader.string()?);
                ToGuest::Exec { argv, envp, cwd, terminal: reader.flag()? }
            }
            PUT => ToGuest::Put {
                name: reader.string()?,
                executable: reader.flag()?,
                offset: u64::from_le_bytes(reader.array()?),
                last: reader.flag()?,
                bytes: reader.bytes()?.to_vec(),
            },
            SIGNAL => ToGuest::Signal(i32::from_le_bytes(reader.array()?)),
            _ => return Err(BadFrame::Kind(kind)),
        };
        reader.end(message)
    }
}

impl Frame for FromGuest {
    const MOST_BYTES: usize = FROM_GUEST_BYTES;

    fn encode(&self) -> Vec<u8> {
        let (kind, number) = match *self {
            FromGuest::Exited(code) => (EXITED, i32::from(code)),
            FromGuest::NotStarted(errno) => (NOT_STARTED, errno),
            FromGuest::Put(result) => (PUT_DONE, result.err().unwrap_or(0)),
            FromGuest::Ready(version) => (READY, version as i32),
            FromGuest::Signalled(signal) => (SIGNALLED, i32::from(signal)),
            FromGuest::Started => (STARTED, 0),
        };
        let mut frame = Writer::new(kind);
        frame.number(&number.to_le_bytes());
        frame.finish()
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(kind, payload);
        let number = i32::from_le_bytes(reader.array()?);
        let bad = BadFrame::Content(kind);
        let within = |range: RangeInclusive<i32>| range.contains(&number).then_some(number).ok_or(bad);
        let message = match kind {
            EXITED => FromGuest::Exited(within(0..=255)? as u8),
            NOT_STARTED => FromGuest::NotStarted(within(1..=MOST_ERRNO)?),
            PUT_DONE => FromGuest::Put(if number == 0 { Ok(()) } else { Err(within(1..=MOST_ERRNO)?) }),
            READY => FromGuest::Ready(number as u32),
            SIGNALLED => FromGuest::Signalled(within(1..=MOST_SIGNAL)? as u8),
            STARTED => within(0..=0).map(|_| FromGuest::Started)?,
            _ => return Err(BadFrame::Kind(kind)),
        };
        reader.end(message)
    }
}

/// Puts a frame together; the length is filled in at the end.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A frame of this kind, without a payload.
    #[must_use]
    pub fn new(kind: u8) -> Self {
        Writer(vec![0, 0, 0, 0, kind])
    }

    /// Adds bytes as they are: a number, or anything whose length both sides know.
    pub fn number(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a yes or no.
    pub fn flag(&mut self, flag: bool) -> &mut Self {
        self.number(&[u8::from(flag)])
    }

    /// Adds a byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(&(bytes.len() as u32).to_le_bytes()).number(bytes)
    }

    /// Adds a list of byte strings.
    pub fn strings(&mut self, strings: &[CString]) -> &mut Self {
        self.number(&(strings.len() as u32).to_le_bytes());
        for string in strings {
            self.bytes(string.as_bytes());
        }
        self
    }

    /// The frame.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32 - 4;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Takes a payload apart. Each method's error is [`BadFrame::Content`]: the bytes don't hold that.
#[derive(Debug)]
pub struct Reader<'a> {
    kind: u8,
    rest: &'a [u8],
}

#[expect(clippy::missing_errors_doc, reason = "the type says it for all of them")]
impl<'a> Reader<'a> {
    /// The payload of a frame of this kind.
    #[must_use]
    pub fn new(kind: u8, payload: &'a [u8]) -> Self {
        Reader { kind, rest: payload }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], BadFrame> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(BadFrame::Content(self.kind))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes a number, or anything whose length both sides know.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Takes a yes or no.
    pub fn flag(&mut self) -> Result<bool, BadFrame> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(BadFrame::Content(self.kind)),
        }
    }

    /// Takes a byte string.
    pub fn bytes(&mut self) -> Result<&'a [u8], BadFrame> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        self.take(length)
    }

    /// Takes a byte string without a NUL.
    pub fn string(&mut self) -> Result<CString, BadFrame> {
        CString::new(self.bytes()?).map_err(|_| BadFrame::Content(self.kind))
    }

    /// Takes a list of byte strings without a NUL.
    pub fn strings(&mut self) -> Result<Vec<CString>, BadFrame> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        // Each takes at least its length, so a count beyond the bytes is a lie: no memory for it.
        if count > self.rest.len() / 4 {
            return Err(BadFrame::Content(self.kind));
        }
        (0..count).map(|_| self.string()).collect()
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The message, if nothing is left over.
    pub fn end<T>(self, message: T) -> Result<T, BadFrame> {
        if self.rest.is_empty() { Ok(message) } else { Err(BadFrame::Content(self.kind)) }
    }
}

/// Collects bytes as they come, and gives out whole frames.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Adds bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    ///
    /// [`BadFrame`] if the bytes can't become a frame; the inbox is of no use then.
    pub fn take<T: Frame>(&mut self) -> Result<Option<T>, BadFrame> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > T::MOST_BYTES {
            return Err(BadFrame::Length(length));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let message = T::decode(frame[0], &frame[1..])?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec() -> ToGuest {
        ToGuest::Exec {
            argv: vec![c"sh".into(), c"-c".into(), c"a\nb".into()],
            envp: vec![c"A=b".into()],
            cwd: c"/workspace".into(),
            terminal: true,
        }
    }

    fn put() -> ToGuest {
        let (name, bytes) = (c"x.py".into(), vec![0, 1, 255]);
        ToGuest::Put { name, executable: true, offset: 1 << 40, last: false, bytes }
    }

    #[test]
    fn every_message_comes_out_as_it_went_in_however_it_is_cut() {
        let sent = [exec(), put(), ToGuest::Signal(15)];
        let bytes: Vec<u8> = sent.iter().flat_map(Frame::encode).collect();
        for cut in 1..bytes.len() {
            let mut inbox = Inbox::default();
            let mut got = vec![];
            for piece in bytes.chunks(cut) {
                inbox.push(piece);
                while let Some(message) = inbox.take::<ToGuest>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, sent, "cut into pieces of {cut}");
        }
    }

    #[test]
    fn every_answer_comes_out_as_it_went_in() {
        for answer in [
            FromGuest::Exited(3),
            FromGuest::NotStarted(2),
            FromGuest::Put(Ok(())),
            FromGuest::Put(Err(28)),
            FromGuest::Ready(VERSION),
            FromGuest::Signalled(9),
            FromGuest::Started,
        ] {
            let mut inbox = Inbox::default();
            inbox.push(&answer.encode());
            assert_eq!(inbox.take(), Ok(Some(answer)));
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_or_carries_more_is_refused() {
        for message in [exec(), put()] {
            let frame = message.encode();
            let (kind, payload) = (frame[4], &frame[5..]);
            for length in 0..payload.len() {
                assert!(ToGuest::decode(kind, &payload[..length]).is_err(), "{length}");
            }
            assert!(ToGuest::decode(kind, &[payload, b"x"].concat()).is_err());
        }
    }

    #[test]
    fn a_guest_cannot_make_the_host_collect_more_than_a_short_frame() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::MAX.to_le_bytes());
        assert!(inbox.take::<FromGuest>().is_err());
        let mut inbox = Inbox::default();
        inbox.push(&[0, 0, 0, 0]);
        assert_eq!(inbox.take::<FromGuest>(), Err(BadFrame::Length(0)));
        assert_eq!(FromGuest::decode(EXITED, &256i32.to_le_bytes()), Err(BadFrame::Content(EXITED)));
        assert_eq!(FromGuest::decode(EXEC, &[0; 4]), Err(BadFrame::Kind(EXEC)));
    }

    #[test]
    fn a_number_that_no_kernel_gives_is_no_answer() {
        for (kind, numbers) in [
            (EXITED, &[-1, 256, i32::MAX][..]),
            (NOT_STARTED, &[0, -1, 4096]),
            (PUT_DONE, &[-1, 4096, i32::MIN]),
            (SIGNALLED, &[0, -9, 65, 255]),
            (STARTED, &[1]),
        ] {
            for number in numbers {
                let said = FromGuest::decode(kind, &number.to_le_bytes());
                assert_eq!(said, Err(BadFrame::Content(kind)), "{number}");
            }
        }
    }

    #[test]
    fn a_count_that_the_bytes_cannot_hold_takes_no_memory() {
        assert!(ToGuest::decode(EXEC, &u32::MAX.to_le_bytes()).is_err());
    }
}
