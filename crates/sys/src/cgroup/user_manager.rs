//! Asking systemd's user manager for a scope: a unit that holds processes which somebody else started,
//! here this one, and whose cgroup is ours to divide (`Delegate`).
//!
//! One call over the user's message bus, spoken here: authentication by who we are, `Hello`, and
//! `StartTransientUnit`. Sources: the D-Bus specification, version 0.43 ("Message Protocol",
//! "Authentication Protocol"), and `org.freedesktop.systemd1(5)`.

use std::env;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long any one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest message that is read, in bytes. What is asked for here is answered in a few hundred.
const LONGEST: usize = 64 << 10;

/// How many messages that aren't the answer are passed over: the bus tells of names, and no more.
const OTHERS: u32 = 64;

/// Where the user's bus listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// A socket in the file system.
    Path(PathBuf),
    /// A socket with a name of its own, without the leading zero byte.
    Abstract(Vec<u8>),
}

impl Bus {
    /// The bus that the environment names, else the usual one below the user's runtime folder.
    #[must_use]
    pub fn of_environment() -> Option<Bus> {
        if let Some(addresses) = env::var_os("DBUS_SESSION_BUS_ADDRESS").filter(|text| !text.is_empty()) {
            return Bus::parse(addresses.as_bytes());
        }
        let folder = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(Bus::Path(folder?.join("bus")))
    }

    /// The first address of a list that can be used here.
    fn parse(addresses: &[u8]) -> Option<Bus> {
        addresses.split(|byte| *byte == b';').find_map(|address| {
            let keys = address.strip_prefix(b"unix:")?;
            keys.split(|byte| *byte == b',').find_map(|pair| {
                let value = |key: &[u8]| unescape(pair.strip_prefix(key)?);
                let path = value(b"path=").map(|path| Bus::Path(OsString::from_vec(path).into()));
                path.or_else(|| value(b"abstract=").map(Bus::Abstract))
            })
        })
    }

    /// Whether there is a socket, as far as that can be seen without connecting.
    #[must_use]
    pub fn seems_there(&self) -> bool {
        match self {
            Bus::Path(path) => path.exists(),
            Bus::Abstract(_) => true,
        }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = match self {
            Bus::Path(path) => UnixStream::connect(path),
            Bus::Abstract(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        }?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

impl Display for Bus {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Bus::Path(path) => write!(to, "{}", path.display()),
            Bus::Abstract(name) => write!(to, "@{}", name.escape_ascii()),
        }
    }
}

/// `%` and two hexadecimal digits are a byte.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = text.iter().copied();
    let mut plain = vec![];
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        plain.push(match byte {
            b'%' => (digit(bytes.next())? * 16 + digit(bytes.next())?) as u8,
            plain => plain,
        });
    }
    Some(plain)
}

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The bus can't be reached, or said something that can't be read.
    #[error("could not {action}: {source}")]
    Bus {
        /// What was tried.
        action: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// The user manager answered with an error.
    #[error("it answered {name}: {text}")]
    Refused {
        /// The error's name on the bus.
        name: String,
        /// Its words.
        text: String,
    },
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> ScopeError {
    move |source| ScopeError::Bus { action, source }
}

/// Asks for a scope of this name with this process in it. The answer says that the request is queued:
/// the process is moved a moment later.
///
/// # Errors
///
/// [`ScopeError`] with what couldn't be done or what was answered.
pub fn start_scope(bus: &Bus, user: u32, unit: &str) -> Result<(), ScopeError> {
    let mut stream = bus.connect().map_err(failed("connect to the user's message bus"))?;
    authenticate(&mut stream, user).map_err(failed("log in to the user's message bus"))?;
    let dbus = Call {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "Hello",
        signature: "",
        body: Body::default(),
    };
    let ask = Call {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
        signature: "ssa(sv)a(sa(sv))",
        body: transient_scope(unit, std::process::id()),
    };
    for (serial, call) in [(1, dbus), (2, ask)] {
        stream.write_all(&call.message(serial)).map_err(failed("write to the user's message bus"))?;
        answer(&mut stream, serial)?;
    }
    Ok(())
}

/// The EXTERNAL mechanism: the bus asks the kernel who is at the other end of the socket.
fn authenticate(stream: &mut UnixStream, user: u32) -> io::Result<()> {
    let digits: String = user.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {digits}\r\n").as_bytes())?;
    let mut line = vec![];
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        if line.len() > 1024 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    if !line.starts_with(b"OK ") {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.write_all(b"BEGIN\r\n")
}

/// The arguments of `StartTransientUnit`: name, mode, properties, and no further units.
fn transient_scope(unit: &str, pid: u32) -> Body {
    let mut body = Body::default();
    body.string(unit);
    body.string("fail"); // rather than replace a unit of that name
    body.array(8, |body| {
        body.property("PIDs", "au", |body| body.array(4, |body| body.number(pid)));
        body.property("Delegate", "b", |body| body.number(1));
        // Nothing stays of it once we have ended, however that was.
        body.property("CollectMode", "s", |body| body.string("inactive-or-failed"));
        body.property("Description", "s", |body| body.string("Cofferdam and its sandboxes"));
    });
    body.array(8, |_| {});
    body
}

/// Bytes in D-Bus's marshalling, little-endian, aligned from their own beginning.
#[derive(Debug, Default)]
struct Body(Vec<u8>);

impl Body {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(text.len() as u8);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// The length counts the items only, not the padding before the first.
    fn array(&mut self, alignment: usize, items: impl FnOnce(&mut Self)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let start = self.0.len();
        items(self);
        let length = (self.0.len() - start) as u32;
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn property(&mut self, name: &str, signature: &str, value: impl FnOnce(&mut Self)) {
        self.align(8);
        self.string(name);
        self.signature(signature);
        value(self);
    }
}

/// A method call.
struct Call {
    destination: &'static str,
    path: &'static str,
    interface: &'static str,
    member: &'static str,
    signature: &'static str,
    body: Body,
}

/// Types of messages.
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

impl Call {
    fn message(&self, serial: u32) -> Vec<u8> {
        let mut message = Body(vec![b'l', METHOD_CALL, 0, 1]);
        message.number(self.body.0.len() as u32);
        message.number(serial);
        message.array(8, |fields| {
            for (code, kind, value) in [
                (PATH, "o", self.path),
                (INTERFACE, "s", self.interface),
                (MEMBER, "s", self.member),
                (DESTINATION, "s", self.destination),
            ] {
                fields.align(8);
                fields.0.push(code);
                fields.signature(kind);
                fields.string(value);
            }
            if !self.signature.is_empty() {
                fields.align(8);
                fields.0.push(SIGNATURE);
                fields.signature("g");
                fields.signature(self.signature);
            }
        });
        message.align(8);
        message.0.extend(&self.body.0);
        message.0
    }
}

/// Reads until the answer to a call has come.
fn answer(stream: &mut UnixStream, serial: u32) -> Result<(), ScopeError> {
    for _ in 0..OTHERS {
        let message = Message::read(stream).map_err(failed("read from the user's message bus"))?;
        let Some(answer) = message.parse() else {
            return Err(failed("understand the user's message bus")(io::ErrorKind::InvalidData.into()));
        };
        match answer {
            Answer { to: Some(to), kind: METHOD_RETURN, .. } if to == serial => return Ok(()),
            Answer { to: Some(to), kind: ERROR, name, text } if to == serial => {
                return Err(ScopeError::Refused { name, text });
            }
            _ => {}
        }
    }
    Err(failed("find an answer on the user's message bus")(io::ErrorKind::TimedOut.into()))
}

/// A message as it came: the fixed part and the fields, and the body.
struct Message {
    header: Vec<u8>,
    body: Vec<u8>,
}

/// What matters of a message.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    kind: u8,
    to: Option<u32>,
    name: String,
    text: String,
}

impl Message {
    fn read(stream: &mut impl Read) -> io::Result<Message> {
        let mut header = vec![0; 16];
        stream.read_exact(&mut header)?;
        let number = |at| Reader { bytes: &header, at }.number().map(|number| number as usize);
        let (Some(body), Some(fields)) = (number(4), number(12)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // Nobody who runs on this machine answers in the other order of bytes.
        if header[0] != b'l' || body > LONGEST || fields > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        header.resize((16 + fields).next_multiple_of(8), 0);
        stream.read_exact(&mut header[16..])?;
        header.truncate(16 + fields);
        let mut body = vec![0; body];
        stream.read_exact(&mut body)?;
        Ok(Message { header, body })
    }

    fn parse(&self) -> Option<Answer> {
        let mut answer = Answer { kind: self.header[1], to: None, name: String::new(), text: String::new() };
        let mut fields = Reader { bytes: &self.header, at: 16 };
        let mut body_is_text = false;
        while fields.at < self.header.len() {
            fields.align(8);
            let code = fields.byte()?;
            match fields.signature()? {
                "u" if code == REPLY_SERIAL => answer.to = Some(fields.number()?),
                "u" => drop(fields.number()?),
                "s" if code == ERROR_NAME => fields.string()?.clone_into(&mut answer.name),
                "s" | "o" => drop(fields.string()?),
                "g" if code == SIGNATURE => body_is_text = fields.signature()?.starts_with('s'),
                _ => return None,
            }
        }
        if body_is_text {
            Reader { bytes: &self.body, at: 0 }.string()?.clone_into(&mut answer.text);
        }
        Some(answer)
    }
}

/// The reverse of [`Body`].
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self, length: usize) -> Option<&'a str> {
        let text = str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    fn string(&mut self) -> Option<&'a str> {
        let length = self.number()?;
        self.text(length as usize)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = self.byte()?;
        self.text(length.into())
    }
}

/// A name for a unit that nothing else has.
///
/// # Errors
///
/// What the kernel said when asked for randomness.
pub fn unit_name() -> io::Result<String> {
    let mut random = [0; 8];
    std::fs::File::open(Path::new("/dev/urandom"))?.read_exact(&mut random)?;
    Ok(format!("cofferdam-{}-{:016x}.scope", std::process::id(), u64::from_le_bytes(random)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A message from the bus: an answer with a first argument that is text.
    fn message(kind: u8, serial: u32, name: Option<&str>, text: &str) -> Vec<u8> {
        let mut body = Body::default();
        body.string(text);
        let mut message = Body(vec![b'l', kind, 1, 1]);
        message.number(body.0.len() as u32);
        message.number(77);
        message.array(8, |fields| {
            fields.0.push(REPLY_SERIAL);
            fields.signature("u");
            fields.number(serial);
            if let Some(name) = name {
                fields.align(8);
                fields.0.push(ERROR_NAME);
                fields.signature("s");
                fields.string(name);
            }
            fields.align(8);
            fields.0.push(SIGNATURE);
            fields.signature("g");
            fields.signature("s");
        });
        message.align(8);
        message.0.extend(body.0);
        message.0
    }

    #[test]
    fn a_bus_is_found_in_each_form_of_its_address() {
        let path = |text: &str| Some(Bus::Path(text.into()));
        assert_eq!(Bus::parse(b"unix:path=/run/user/1/bus"), path("/run/user/1/bus"));
        assert_eq!(Bus::parse(b"tcp:host=x;unix:guid=1,path=/a%20b"), path("/a b"));
        assert_eq!(Bus::parse(b"unix:abstract=/tmp/x,guid=2"), Some(Bus::Abstract(b"/tmp/x".into())));
        assert_eq!(Bus::parse(b"tcp:host=localhost"), None);
        assert_eq!(Bus::parse(b"unix:path=/a%2"), None);
    }

    #[test]
    fn an_answer_is_told_from_an_error_and_from_what_is_for_somebody_else() {
        let mut bytes = message(METHOD_RETURN, 9, None, "other");
        bytes.extend(message(ERROR, 2, Some("org.example.No"), "not here"));
        let mut stream = bytes.as_slice();
        let mut next = || Message::read(&mut stream).unwrap().parse().unwrap();
        assert_eq!(next().to, Some(9));
        let error = next();
        assert_eq!((error.kind, error.name.as_str(), error.text.as_str()), (3, "org.example.No", "not here"));
    }

    #[test]
    fn a_message_that_is_cut_or_too_long_is_an_error_and_no_panic() {
        let whole = message(ERROR, 2, Some("org.example.No"), "not here");
        for length in 0..whole.len() {
            assert!(Message::read(&mut &whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            if let Ok(message) = Message::read(&mut wrong.as_slice()) {
                let _ = message.parse(); // any answer but a panic
            }
        }
    }

    #[test]
    fn what_the_manager_refuses_comes_out_in_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let bus = Bus::Path(folder.path().join("bus"));
        let listener = UnixListener::bind(folder.path().join("bus")).unwrap();
        let manager = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut said = vec![0; "\0AUTH EXTERNAL 31303031\r\n".len()];
            stream.read_exact(&mut said).unwrap();
            stream.write_all(b"OK 0123\r\n").unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
            let hello = Message::read(&mut stream).unwrap();
            stream.write_all(&message(METHOD_RETURN, 1, None, ":1.7")).unwrap();
            let call = Message::read(&mut stream).unwrap();
            stream.write_all(&message(ERROR, 2, Some("org.example.No"), "no scopes today")).unwrap();
            (said, hello.header, call)
        });
        let error = start_scope(&bus, 1001, "cofferdam-test.scope").unwrap_err();
        assert_eq!(error.to_string(), "it answered org.example.No: no scopes today");
        let (said, hello, call) = manager.join().unwrap();
        assert_eq!(said, b"\0AUTH EXTERNAL 31303031\r\n");
        assert!(hello.windows(5).any(|part| part == b"Hello"));
        assert!(call.header.windows(18).any(|part| part == b"StartTransientUnit"));
        assert!(call.body.windows(20).any(|part| part == b"cofferdam-test.scope"));
    }

    #[test]
    fn no_two_units_have_one_name() {
        assert_ne!(unit_name().unwrap(), unit_name().unwrap());
    }
}
