//! The wire between the host and a worker, which runs WebAssembly inside a jail.
//!
//! Frames are those of [`cofferdam_guest::wire`]: a length, a kind and a payload. The three streams
//! of a program travel as descriptors beside the `Run` frame. A worker runs one program at a time; where
//! the host's end of the socket closes, it ends.
//!
//! ```text
//! Compile ─► Compiled | Failed  once, instead of all others
//! Open ─► Ready | Failed        once
//! Run  ─► Started, Exited | Trapped       or Failed, if it could not be started
//!      Dial ◄─ while it runs; Dialled | NotDialled ─►      one at a time
//! Renew ─► Clean                after a run; or the worker ends
//! ```
//!
//! What a worker says is hostile, since the program may have taken it over: every frame is checked
//! whole before it means anything, and is at most [`FROM_WORKER_BYTES`] long.

use std::ffi::{CStr, CString};

use cofferdam_guest::wire::{BadFrame, Frame, Reader, Writer};

/// The version of this wire; the worker says it when it is ready.
pub const VERSION: u32 = 3;

/// The longest frame that a worker takes: a script, its arguments and its environment.
pub const TO_WORKER_BYTES: usize = 64 << 20;

/// The longest frame that a host takes from a worker.
pub const FROM_WORKER_BYTES: usize = 4 << 10;

/// The most bytes of a host's name that a worker passes on: more than any has (253), so that what is cut is none.
pub const MOST_HOST_BYTES: usize = 1 << 10;

/// The longest text in a frame of a worker's, so that any text fits with its length and kind.
const MOST_TEXT_BYTES: usize = FROM_WORKER_BYTES - 16;

/// The folders that a Python template was made with, in this order, and whether they may be written. A
/// clone finds its files by the same numbers, so `Open` must name exactly these. The longest path that
/// fits wins: `/` shows what is shown read-only elsewhere.
pub const PYTHON_PREOPENS: [(&CStr, bool); 6] = [
    (c"/", false),
    (c"/usr/local/lib", false),
    // Matplotlib reads its fonts and styles as files, where its package lies: in the zip.
    (c"/usr/local/lib/python315.zip/matplotlib/mpl-data", false),
    (c"/workspace", true),
    (c"/tmp", true),
    (c"/home/user", true),
];

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// Compile a module. Two descriptors come with it: it is read from the first, and what is compiled is
    /// written to the second.
    Compile {
        /// What it is: no Python.
        kind: Kind,
    },
    /// A connection is made, and its descriptor comes with this.
    Dialled,
    /// No connection is made: nothing goes out, or not any more.
    NotDialled,
    /// Open what is to be run. Once, and first.
    Open {
        /// The path of the prepared file, as the worker sees it.
        module: CString,
        /// That of the image that a Python begins with.
        image: Option<CString>,
        /// What it is.
        kind: Kind,
        /// Most linear memory of the program, in bytes.
        memory_bytes: u64,
        /// The folders that the program sees.
        preopens: Vec<Preopen>,
    },
    /// Drop everything of the last run, and empty the folders that can be written.
    Renew,
    /// Run a program. Three descriptors come with it: its standard streams.
    Run {
        /// The script, if an interpreter runs one.
        script: Option<Script>,
        /// The arguments, the program's name first. For an interpreter that has a script: the script's
        /// `sys.argv`.
        argv: Vec<CString>,
        /// The environment, `NAME=VALUE`.
        envp: Vec<CString>,
        /// What the program's random generators start from.
        seed: [u8; 32],
    },
}

/// What a prepared file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command component: WASI preview 2.
    Component,
    /// A core module with `_start`: WASI preview 1.
    Core,
    /// A Python, with an image of one that has started.
    Python,
}

/// A folder that a program sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preopen {
    /// Its path as the program sees it.
    pub guest: CString,
    /// Its path as the worker sees it.
    pub jail: CString,
    /// Whether the program may write there.
    pub writable: bool,
}

/// A script for an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its file name in tracebacks.
    pub name: CString,
    /// Its text.
    pub source: Vec<u8>,
}

/// How the reason begins for which a worker doesn't open a prepared file that is damaged, or was made with other
/// settings.
pub(super) const UNREADABLE: &str = "open the prepared file";

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromWorker {
    /// Nothing of the last run is left, as far as the worker can tell.
    Clean,
    /// What was compiled is written.
    Compiled,
    /// The program asks for a connection.
    Dial {
        /// The host, as it names it.
        host: Vec<u8>,
        /// The port.
        port: u16,
        /// Where we are to speak TLS with the server, the name by which it wants to know it.
        tls: Option<Vec<u8>>,
    },
    /// The program ended by itself.
    Exited(i32),
    /// What was asked could not be done, and why. Shown to a person, so it must be taken as untrusted
    /// text.
    Failed(String),
    /// The prepared file is open; the worker speaks this version.
    Ready(u32),
    /// The program runs.
    Started,
    /// The engine ended the program.
    Trapped(Trap),
}

/// Why the engine ended a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It asked for more memory than it may have, and then gave up.
    Memory,
    /// Anything else: a bad memory access, a division by zero.
    Other,
    /// Its stack was full.
    Stack,
    /// It ran into an instruction that says that it should never be reached: an abort.
    Unreachable,
}

const OPEN: u8 = 1;
const RENEW: u8 = 2;
const RUN: u8 = 3;
const COMPILE: u8 = 4;
const DIALLED: u8 = 5;
const NOT_DIALLED: u8 = 6;
const CLEAN: u8 = 129;
const EXITED: u8 = 130;
const FAILED: u8 = 131;
const READY: u8 = 132;
const STARTED: u8 = 133;
const TRAPPED: u8 = 134;
const COMPILED: u8 = 135;
const DIAL: u8 = 136;

impl Frame for ToWorker {
    const MOST_BYTES: usize = TO_WORKER_BYTES;

    fn encode(&self) -> Vec<u8> {
        match self {
            ToWorker::Compile { kind } => {
                let mut frame = Writer::new(COMPILE);
                frame.number(&[kind.number()]);
                frame.finish()
            }
            ToWorker::Open { module, image, kind, memory_bytes, preopens } => {
                let mut frame = Writer::new(OPEN);
                frame.bytes(module.as_bytes()).flag(image.is_some());
                if let Some(image) = image {
                    frame.bytes(image.as_bytes());
                }
                frame.number(&[kind.number()]).number(&memory_bytes.to_le_bytes());
                frame.number(&(preopens.len() as u32).to_le_bytes());
                for Preopen { guest, jail, writable } in preopens {
                    frame.bytes(guest.as_bytes()).bytes(jail.as_bytes()).flag(*writable);
                }
                frame.finish()
            }
            ToWorker::Dialled => Writer::new(DIALLED).finish(),
            ToWorker::NotDialled => Writer::new(NOT_DIALLED).finish(),
            ToWorker::Renew => Writer::new(RENEW).finish(),
            ToWorker::Run { script, argv, envp, seed } => {
                let mut frame = Writer::new(RUN);
                frame.flag(script.is_some());
                if let Some(Script { name, source }) = script {
                    frame.bytes(name.as_bytes()).bytes(source);
                }
                frame.strings(argv).strings(envp).number(seed);
                frame.finish()
            }
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(kind, payload);
        let message = match kind {
            COMPILE => {
                let bad = BadFrame::Content(kind);
                let kind = Kind::of_number(reader.array()?).filter(|kind| *kind != Kind::Python);
                ToWorker::Compile { kind: kind.ok_or(bad)? }
            }
            OPEN => ToWorker::Open {
                module: reader.string()?,
                image: if reader.flag()? { Some(reader.string()?) } else { None },
                kind: Kind::of_number(reader.array()?).ok_or(BadFrame::Content(kind))?,
                memory_bytes: u64::from_le_bytes(reader.array()?),
                preopens: preopens(kind, &mut reader)?,
            },
            DIALLED => ToWorker::Dialled,
            NOT_DIALLED => ToWorker::NotDialled,
            RENEW => ToWorker::Renew,
            RUN => {
                let script = match reader.flag()? {
                    true => Some(Script { name: reader.string()?, source: reader.bytes()?.to_vec() }),
                    false => None,
                };
                let (argv, envp) = (reader.strings()?, reader.strings()?);
                ToWorker::Run { script, argv, envp, seed: reader.array()? }
            }
            _ => return Err(BadFrame::Kind(kind)),
        };
        reader.end(message)
    }
}

/// The least bytes that a folder takes in a frame: two lengths and a yes or no.
const LEAST_PREOPEN_BYTES: usize = 9;

fn preopens(kind: u8, reader: &mut Reader<'_>) -> Result<Vec<Preopen>, BadFrame> {
    let count = u32::from_le_bytes(reader.array()?) as usize;
    // A count beyond the bytes is a lie: no memory for it.
    if count > reader.left() / LEAST_PREOPEN_BYTES {
        return Err(BadFrame::Content(kind));
    }
    let preopen = |reader: &mut Reader<'_>| {
        Ok(Preopen { guest: reader.string()?, jail: reader.string()?, writable: reader.flag()? })
    };
    (0..count).map(|_| preopen(reader)).collect()
}

impl Frame for FromWorker {
    const MOST_BYTES: usize = FROM_WORKER_BYTES;

    fn encode(&self) -> Vec<u8> {
        let (kind, number) = match self {
            FromWorker::Clean => (CLEAN, 0),
            FromWorker::Compiled => (COMPILED, 0),
            FromWorker::Dial { host, port, tls } => {
                let mut frame = Writer::new(DIAL);
                frame.bytes(host).number(&port.to_le_bytes()).flag(tls.is_some());
                if let Some(name) = tls {
                    frame.bytes(name);
                }
                return frame.finish();
            }
            FromWorker::Exited(code) => (EXITED, *code),
            FromWorker::Failed(text) => {
                let mut frame = Writer::new(FAILED);
                frame.bytes(&text.as_bytes()[..text.floor_char_boundary(MOST_TEXT_BYTES)]);
                return frame.finish();
            }
            FromWorker::Ready(version) => (READY, *version as i32),
            FromWorker::Started => (STARTED, 0),
            FromWorker::Trapped(trap) => (TRAPPED, trap.number()),
        };
        let mut frame = Writer::new(kind);
        frame.number(&number.to_le_bytes());
        frame.finish()
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(kind, payload);
        let bad = BadFrame::Content(kind);
        if kind == FAILED {
            let text = str::from_utf8(reader.bytes()?).map_err(|_| bad)?.to_owned();
            return reader.end(FromWorker::Failed(text));
        }
        if kind == DIAL {
            let (host, port) = (reader.bytes()?.to_vec(), u16::from_le_bytes(reader.array()?));
            let tls = if reader.flag()? { Some(reader.bytes()?.to_vec()) } else { None };
            return reader.end(FromWorker::Dial { host, port, tls });
        }
        let number = i32::from_le_bytes(reader.array()?);
        let nothing = |message| if number == 0 { Ok(message) } else { Err(bad) };
        let message = match kind {
            CLEAN => nothing(FromWorker::Clean)?,
            COMPILED => nothing(FromWorker::Compiled)?,
            EXITED => FromWorker::Exited(number),
            READY => FromWorker::Ready(number as u32),
            STARTED => nothing(FromWorker::Started)?,
            TRAPPED => FromWorker::Trapped(Trap::of_number(number).ok_or(bad)?),
            _ => return Err(BadFrame::Kind(kind)),
        };
        reader.end(message)
    }
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Component => 1,
            Kind::Core => 2,
            Kind::Python => 3,
        }
    }

    fn of_number([number]: [u8; 1]) -> Option<Self> {
        [Kind::Component, Kind::Core, Kind::Python].into_iter().find(|kind| kind.number() == number)
    }
}

impl Trap {
    fn number(self) -> i32 {
        match self {
            Trap::Memory => 1,
            Trap::Other => 2,
            Trap::Stack => 3,
            Trap::Unreachable => 4,
        }
    }

    fn of_number(number: i32) -> Option<Self> {
        let all = [Trap::Memory, Trap::Other, Trap::Stack, Trap::Unreachable];
        all.into_iter().find(|trap| trap.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_guest::wire::Inbox;

    fn open() -> ToWorker {
        let preopen = |(guest, writable): &(&CStr, bool)| Preopen {
            guest: (*guest).into(),
            jail: c"/j".into(),
            writable: *writable,
        };
        let preopens = PYTHON_PREOPENS.iter().map(preopen).collect();
        let (module, image) = (c"/t/p.cwasm".into(), Some(c"/t/i.cwasm".into()));
        ToWorker::Open { module, image, kind: Kind::Python, memory_bytes: 1 << 40, preopens }
    }

    fn run(script: Option<Script>) -> ToWorker {
        let argv = vec![c"a.py".into(), c"".into(), c"b\nc".into()];
        ToWorker::Run { script, argv, envp: vec![c"A=b".into()], seed: [7; 32] }
    }

    fn dial(tls: Option<&[u8]>) -> FromWorker {
        FromWorker::Dial { host: vec![b'a'; MOST_HOST_BYTES], port: 443, tls: tls.map(<[u8]>::to_vec) }
    }

    fn script() -> Script {
        Script { name: c"a.py".into(), source: b"print(0)\0\xff".to_vec() }
    }

    #[test]
    fn every_message_comes_out_as_it_went_in_however_it_is_cut() {
        let module = c"/m".into();
        let core =
            ToWorker::Open { module, image: None, kind: Kind::Core, memory_bytes: 0, preopens: vec![] };
        let compile = |kind| ToWorker::Compile { kind };
        let compiles = [compile(Kind::Core), compile(Kind::Component)];
        let others = [ToWorker::Renew, ToWorker::Dialled, ToWorker::NotDialled];
        let sent = [&[open(), core, run(Some(script())), run(None)][..], &others, &compiles].concat();
        let bytes: Vec<u8> = sent.iter().flat_map(Frame::encode).collect();
        for cut in 1..bytes.len() {
            let mut inbox = Inbox::default();
            let mut got = vec![];
            for piece in bytes.chunks(cut) {
                inbox.push(piece);
                while let Some(message) = inbox.take::<ToWorker>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, sent, "cut into pieces of {cut}");
        }
    }

    #[test]
    fn every_answer_comes_out_as_it_went_in() {
        let traps = [Trap::Memory, Trap::Other, Trap::Stack, Trap::Unreachable];
        let others = [
            FromWorker::Clean,
            FromWorker::Compiled,
            dial(None),
            dial(Some(&[b'x'; MOST_HOST_BYTES])),
            FromWorker::Exited(-1),
            FromWorker::Exited(3),
            FromWorker::Failed("no such file: ü".to_owned()),
            FromWorker::Ready(VERSION),
            FromWorker::Started,
        ];
        for answer in others.into_iter().chain(traps.map(FromWorker::Trapped)) {
            let mut inbox = Inbox::default();
            inbox.push(&answer.encode());
            assert_eq!(inbox.take(), Ok(Some(answer)));
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_or_carries_more_is_refused() {
        for message in [open(), run(Some(script())), run(None)] {
            let frame = message.encode();
            let (kind, payload) = (frame[4], &frame[5..]);
            for length in 0..payload.len() {
                assert!(ToWorker::decode(kind, &payload[..length]).is_err(), "{length} of {message:?}");
            }
            assert!(ToWorker::decode(kind, &[payload, b"x"].concat()).is_err());
        }
        for answer in
            [FromWorker::Failed("why".to_owned()), FromWorker::Started, dial(None), dial(Some(b"b"))]
        {
            let frame = answer.encode();
            for length in 0..frame.len() - 5 {
                assert!(FromWorker::decode(frame[4], &frame[5..5 + length]).is_err(), "{length}");
            }
            assert!(FromWorker::decode(frame[4], &[&frame[5..], b"x"].concat()).is_err());
        }
    }

    #[test]
    fn a_worker_cannot_make_the_host_collect_more_than_a_short_frame() {
        let mut inbox = Inbox::default();
        inbox.push(&(FROM_WORKER_BYTES as u32 + 1).to_le_bytes());
        assert_eq!(inbox.take::<FromWorker>(), Err(BadFrame::Length(FROM_WORKER_BYTES + 1)));
        let mut inbox = Inbox::default();
        inbox.push(&[0, 0, 0, 0]);
        assert_eq!(inbox.take::<FromWorker>(), Err(BadFrame::Length(0)));
    }

    #[test]
    fn a_long_reason_is_cut_to_what_the_host_takes() {
        let frame = FromWorker::Failed("ü".repeat(FROM_WORKER_BYTES)).encode();
        let mut inbox = Inbox::default();
        inbox.push(&frame);
        let Ok(Some(FromWorker::Failed(text))) = inbox.take() else { panic!("it is a frame") };
        assert_eq!(text.len(), MOST_TEXT_BYTES / 2 * 2);
    }

    #[test]
    fn an_answer_that_no_worker_gives_is_none() {
        for (kind, number) in
            [(CLEAN, 1), (COMPILED, 1), (STARTED, -1), (TRAPPED, 0), (TRAPPED, 5), (TRAPPED, -1)]
        {
            assert_eq!(FromWorker::decode(kind, &i32::to_le_bytes(number)), Err(BadFrame::Content(kind)));
        }
        for kind in [0, OPEN, RUN, DIAL + 1, 255] {
            assert_eq!(FromWorker::decode(kind, &[0; 4]), Err(BadFrame::Kind(kind)));
        }
        let text = [&2u32.to_le_bytes()[..], b"\xff\xfe"].concat();
        assert_eq!(FromWorker::decode(FAILED, &text), Err(BadFrame::Content(FAILED)));
    }

    #[test]
    fn a_python_is_nothing_to_compile() {
        let frame = ToWorker::Compile { kind: Kind::Python }.encode();
        assert_eq!(ToWorker::decode(COMPILE, &frame[5..]), Err(BadFrame::Content(COMPILE)));
    }

    #[test]
    fn a_count_that_the_bytes_cannot_hold_takes_no_memory() {
        let ToWorker::Open { module, .. } = open() else { panic!("it is an Open") };
        let mut frame = Writer::new(OPEN);
        frame
            .bytes(module.as_bytes())
            .flag(false)
            .number(&[1])
            .number(&[0; 8])
            .number(&u32::MAX.to_le_bytes());
        assert_eq!(ToWorker::decode(OPEN, &frame.finish()[5..]), Err(BadFrame::Content(OPEN)));
    }
}
