//! What a Python can ask of its host: connections, which lead to the sandbox's way out, and what goes over them.
//!
//! A program of WebAssembly has no sockets. It asks through one function, a frame for a frame, whose other end is
//! in the prelude. The host makes each connection and hands its end over; TLS is spoken outside, by whoever lets
//! things out. Everything that is asked is the program's: lengths and numbers are checked, and what it keeps open
//! is bounded.
//!
//! ```text
//! 1 port(2) has_tls(1) length(4) host name    ─► 0 handle(4)             connect
//! 2 handle(4) milliseconds(4, as below) bytes  ─► 0 count(4) | 2         send: all, or what the time was enough for
//! 3 handle(4) most(4) milliseconds(4, -1: no end) ─► 0 bytes | 2         receive; no bytes are the end
//! 4 handle(4)                                  ─► 0                      say that nothing more is sent
//! 5 handle(4)                                  ─► 0                      close
//! 6 milliseconds(4) handle(4)…                 ─► 0 handle(4)…           which have something to read
//! anything else                                ─► 1 errno(4) words       what went wrong
//! ```
//!
//! Numbers are little-endian. `2` alone says that the time is over.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_guest::wire::{Frame, Inbox};
use cofferdam_sys::{fdpass, process};

use crate::wasm::wire::{FromWorker, MOST_HOST_BYTES, ToWorker};

/// The most connections that a program has open at once. A policy's own limit is counted by its way out.
const MOST_OPEN: usize = 256;

/// The most bytes that are received at once.
const MOST_BYTES: usize = 256 << 10;

/// As many bytes as a socket that can be written to takes without a wait: it says that it can once three quarters of
/// its buffer are free (`unix_writable` in Linux), of which the least that is usual is 208 KiB.
const UNWAITED: usize = 32 << 10;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const LATE: u8 = 2;

// Errors as Linux numbers them: errno(3).
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const ECONNREFUSED: i32 = 111;

/// The connections of one run.
pub(super) struct Network {
    host: Arc<UnixStream>,
    open: Vec<Option<UnixStream>>,
}

/// Why something isn't done.
struct Refused {
    errno: i32,
    words: String,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        // The number is Linux's; the program's own error has another.
        let words = error.to_string();
        let words = words.split(" (os error").next().unwrap_or_default().to_owned();
        Refused { errno: error.raw_os_error().unwrap_or(EINVAL), words }
    }
}

fn refused<T>(errno: i32, words: &str) -> Result<T, Refused> {
    Err(Refused { errno, words: words.to_owned() })
}

impl Network {
    /// Asks this host.
    pub(super) fn new(host: Arc<UnixStream>) -> Self {
        Network { host, open: vec![] }
    }

    /// Answers a frame.
    pub(super) fn answer(&mut self, frame: &[u8]) -> Vec<u8> {
        self.obey(frame).unwrap_or_else(|Refused { errno, words }| {
            [&[FAILED][..], &errno.to_le_bytes(), words.as_bytes()].concat()
        })
    }

    fn obey(&mut self, frame: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut asked = Asked(frame);
        match asked.array()? {
            [1] => self.connect(asked),
            [2] => self.send(asked),
            [3] => self.receive(asked),
            [4] => {
                self.stream(asked.number()?)?.shutdown(Shutdown::Write)?;
                Ok(vec![DONE])
            }
            [5] => {
                let handle = asked.number()?;
                self.open.get_mut(handle as usize).and_then(Option::take);
                Ok(vec![DONE])
            }
            [6] => self.readable(asked),
            _ => refused(EINVAL, "the host has no such function"),
        }
    }

    fn connect(&mut self, mut asked: Asked<'_>) -> Result<Vec<u8>, Refused> {
        let port = u16::from_le_bytes(asked.array()?);
        let [has_tls] = asked.array()?;
        let length = asked.number()? as usize;
        let Some((host, name)) = asked.0.split_at_checked(length) else {
            return refused(EINVAL, "the frame is cut short");
        };
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if free == MOST_OPEN {
            return refused(EMFILE, "too many connections are open at once");
        }
        // What is cut is too long for a host's name with or without its end.
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(MOST_HOST_BYTES)].to_vec();
        let dial = FromWorker::Dial { host: cut(host), port, tls: (has_tls != 0).then(|| cut(name)) };
        let stream = self.dial(&dial)?;
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some(stream);
        Ok([&[DONE][..], &(free as u32).to_le_bytes()].concat())
    }

    /// Has the host make a connection. While a program runs, the host says nothing else.
    fn dial(&self, dial: &FromWorker) -> Result<UnixStream, Refused> {
        (&*self.host).write_all(&dial.encode())?;
        let (mut inbox, mut stream) = (Inbox::default(), None);
        loop {
            let mut buffer = [0; 256];
            let (count, fds) = fdpass::receive(self.host.as_fd(), &mut buffer)?;
            if count == 0 {
                return refused(ECONNREFUSED, "the host is gone");
            }
            stream = fds.into_iter().next().or(stream);
            inbox.push(&buffer[..count]);
            match inbox.take().map_err(io::Error::other)? {
                None => {}
                Some(ToWorker::Dialled) => {
                    let Some(stream) = stream.take() else {
                        return refused(EINVAL, "there is no connection");
                    };
                    return Ok(UnixStream::from(stream));
                }
                Some(ToWorker::NotDialled) => {
                    return refused(ECONNREFUSED, "nothing goes out of this sandbox any more");
                }
                Some(_) => return refused(EINVAL, "the host says something else"),
            }
        }
    }

    fn send(&self, mut asked: Asked<'_>) -> Result<Vec<u8>, Refused> {
        let (handle, within) = (asked.number()?, patience(&mut asked)?);
        let mut stream = self.stream(handle)?;
        let Some(within) = within else {
            stream.write_all(asked.0)?;
            return Ok(counted(asked.0.len()));
        };
        let until = Instant::now() + within;
        let mut sent = 0;
        while sent < asked.0.len() {
            if !process::writable_within(stream.as_fd(), until.saturating_duration_since(Instant::now())) {
                break;
            }
            sent += stream.write(&asked.0[sent..asked.0.len().min(sent + UNWAITED)])?;
        }
        Ok(if sent == 0 && !asked.0.is_empty() { vec![LATE] } else { counted(sent) })
    }

    fn receive(&mut self, mut asked: Asked<'_>) -> Result<Vec<u8>, Refused> {
        let (handle, most) = (asked.number()?, asked.number()? as usize);
        let within = patience(&mut asked)?;
        let mut stream = self.stream(handle)?;
        if within.is_some_and(|within| !process::readable_within(stream.as_fd(), within)) {
            return Ok(vec![LATE]);
        }
        let mut answer = vec![DONE; 1 + most.min(MOST_BYTES)];
        let count = stream.read(&mut answer[1..])?;
        answer.truncate(1 + count);
        Ok(answer)
    }

    fn readable(&mut self, mut asked: Asked<'_>) -> Result<Vec<u8>, Refused> {
        let within = patience(&mut asked)?;
        let mut handles = vec![];
        while !asked.0.is_empty() {
            handles.push(asked.number()?);
        }
        let mut streams = vec![];
        for handle in &handles {
            streams.push(self.stream(*handle)?.as_fd());
        }
        let ready = process::which_are_readable(&streams, within)?;
        let ready = handles.iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        let ready = ready.flat_map(|(handle, _)| handle.to_le_bytes());
        Ok([DONE].into_iter().chain(ready).collect())
    }

    fn stream(&self, handle: u32) -> Result<&UnixStream, Refused> {
        match self.open.get(handle as usize) {
            Some(Some(stream)) => Ok(stream),
            _ => refused(EBADF, "there is no such connection"),
        }
    }
}

/// An answer that is a number.
fn counted(count: usize) -> Vec<u8> {
    [&[DONE][..], &(count as u32).to_le_bytes()].concat()
}

/// How long to wait; none for as long as it takes.
fn patience(asked: &mut Asked<'_>) -> Result<Option<Duration>, Refused> {
    let milliseconds = i32::from_le_bytes(asked.array()?);
    Ok(u64::try_from(milliseconds).ok().map(Duration::from_millis))
}

/// What is left of a frame.
struct Asked<'a>(&'a [u8]);

impl Asked<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            return refused(EINVAL, "the frame is cut short");
        };
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u32, Refused> {
        self.array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network whose host answers so, with one end of a pair each time.
    fn with(answers: &[ToWorker]) -> (Network, UnixStream, Vec<UnixStream>) {
        let (host, worker) = UnixStream::pair().unwrap();
        let mut ends = vec![];
        for answer in answers {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let fds = [theirs.as_fd()];
            let fds = if *answer == ToWorker::Dialled { &fds[..] } else { &[] };
            fdpass::send(host.as_fd(), &answer.encode(), fds).unwrap();
            ends.push(ours);
        }
        (Network::new(Arc::new(worker)), host, ends)
    }

    fn connect(network: &mut Network, host: &[u8], tls: Option<&[u8]>) -> Vec<u8> {
        let flag = [u8::from(tls.is_some())];
        let length = (host.len() as u32).to_le_bytes();
        network.answer(&[&[1, 187, 1], &flag[..], &length, host, tls.unwrap_or_default()].concat())
    }

    fn words(answer: &[u8]) -> (i32, String) {
        assert_eq!(answer[0], FAILED, "{answer:?}");
        let errno = i32::from_le_bytes(answer[1..5].try_into().unwrap());
        (errno, String::from_utf8(answer[5..].to_vec()).unwrap())
    }

    #[test]
    fn what_is_sent_and_received_goes_over_the_connection_that_the_host_gave() {
        let (mut network, mut host, mut ends) = with(&[ToWorker::Dialled]);
        assert_eq!(connect(&mut network, b"api.test", Some(b"api.test")), [0, 0, 0, 0, 0]);
        let mut inbox = Inbox::default();
        let mut buffer = [0; 256];
        let count = host.read(&mut buffer).unwrap();
        inbox.push(&buffer[..count]);
        let dial = FromWorker::Dial { host: b"api.test".into(), port: 443, tls: Some(b"api.test".into()) };
        assert_eq!(inbox.take(), Ok(Some(dial)));
        assert_eq!(network.answer(b"\x02\0\0\0\0\xff\xff\xff\xffhello"), [0, 5, 0, 0, 0]);
        let end = &mut ends[0];
        assert_eq!(end.read(&mut buffer).unwrap(), 5);
        let (soon, receive) = ([0; 4], [&[3][..], &[0; 4], &4u32.to_le_bytes()].concat());
        assert_eq!(network.answer(&[&receive[..], &soon].concat()), [LATE]);
        assert_eq!(network.answer(&[&[6][..], &soon, &[0; 4]].concat()), [0]);
        end.write_all(b"answer").unwrap();
        assert_eq!(network.answer(&[&[6][..], &soon, &[0; 4]].concat()), [0, 0, 0, 0, 0]);
        let forever = (-1i32).to_le_bytes();
        assert_eq!(network.answer(&[&receive[..], &forever].concat()), b"\0answ");
        assert_eq!(network.answer(&[&receive[..], &soon].concat()), b"\0er");
        assert_eq!(network.answer(&[4, 0, 0, 0, 0]), [0]);
        assert_eq!(end.read(&mut buffer).unwrap(), 0);
        ends.clear();
        assert_eq!(network.answer(&[&receive[..], &forever].concat()), [0], "the end");
        assert_eq!(network.answer(&[5, 0, 0, 0, 0]), [0]);
        assert_eq!(words(&network.answer(b"\x02\0\0\0\0\0\0\0\0x")).0, EBADF);
    }

    #[test]
    fn what_nobody_reads_is_sent_as_far_as_the_time_goes() {
        let (mut network, _host, mut ends) = with(&[ToWorker::Dialled]);
        connect(&mut network, b"a.test", None);
        let body = vec![b'x'; 4 << 20];
        let send = [&[2, 0, 0, 0, 0][..], &20u32.to_le_bytes(), &body].concat();
        let answer = network.answer(&send);
        let count = u32::from_le_bytes(answer[1..].try_into().unwrap()) as usize;
        assert!(answer[0] == DONE && (1..body.len()).contains(&count), "{answer:?}");
        assert_eq!(network.answer(&send), [LATE], "nothing more goes in");
        let mut taken = vec![0; count];
        ends[0].read_exact(&mut taken).unwrap();
        assert_eq!(network.answer(&send)[0], DONE, "there is room again");
    }

    #[test]
    fn a_host_that_gives_none_is_said_so() {
        for (answer, errno) in [(ToWorker::NotDialled, ECONNREFUSED), (ToWorker::Renew, EINVAL)] {
            let (mut network, host, _) = with(&[answer]);
            assert_eq!(words(&connect(&mut network, b"a.test", None)).0, errno);
            drop(host);
            assert_eq!(connect(&mut network, b"a.test", None)[0], FAILED);
        }
    }

    #[test]
    fn no_frame_is_too_short_or_too_long_to_be_answered() {
        let (mut network, _host, _ends) = with(&[]);
        for frame in [
            &b""[..],
            b"\x07",
            b"\x01\x01",
            b"\x01\0\0\0\xff\xff\xff\xffa",
            b"\x03\0\0\0\0",
            b"\x06\0\0",
            b"\x02\0\0\0\0x",
        ] {
            assert_eq!(words(&network.answer(frame)).0, EINVAL, "{frame:?}");
        }
        for frame in [&b"\x02\xff\xff\xff\xff\0\0\0\0"[..], b"\x04\x01\0\0\0", b"\x06\0\0\0\0\x09\0\0\0"] {
            assert_eq!(words(&network.answer(frame)).0, EBADF, "{frame:?}");
        }
        assert_eq!(network.answer(&[5, 9, 9, 9, 9]), [0], "what isn't open is closed");
    }

    #[test]
    fn as_many_are_open_as_may_be() {
        let answers: Vec<_> = (0..=MOST_OPEN).map(|_| ToWorker::Dialled).collect();
        let (mut network, _host, _ends) = with(&answers);
        for _ in 0..MOST_OPEN {
            assert_eq!(connect(&mut network, b"a.test", None)[0], DONE);
        }
        assert_eq!(words(&connect(&mut network, b"a.test", None)).0, EMFILE);
        network.answer(&[5, 3, 0, 0, 0]);
        assert_eq!(connect(&mut network, b"a.test", None), [0, 3, 0, 0, 0], "a place that is free again");
    }
}
