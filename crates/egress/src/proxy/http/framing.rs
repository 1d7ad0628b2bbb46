//! Where requests of HTTP/1 begin and end, read once and strictly.
//!
//! What is judged has to be what is sent. So before the library that reads requests sees a byte, this reads
//! the same bytes and takes only what has one reading: lines that end in CRLF, one `Host`, one
//! `Content-Length` or `Transfer-Encoding: chunked`, no folded lines, no bytes of control. Bodies are followed to
//! their ends, so that each further head is checked too.

use hyper::Uri;

/// The most bytes of a head or of trailers.
pub const HEAD_BYTES: usize = 32 << 10;

/// The most header lines: what the library takes that reads them behind this.
const LINES: usize = 100;

/// The most digits of a chunk's length: those of 64 bits.
const CHUNK_DIGITS: usize = 16;

/// Why a message has no one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// A chunk whose length or end is malformed, or that has extensions.
    #[error("a chunk is malformed")]
    Chunk,
    /// A header line that is malformed or folded.
    #[error("a header line is malformed")]
    Header,
    /// Its end can be found in two ways.
    #[error("it says in more than one way, or in none that is known, where it ends")]
    Length,
    /// A line that doesn't end in CRLF, or a byte of control.
    #[error("it has a byte of control, or a line that doesn't end in CRLF")]
    Line,
    /// The first line isn't one.
    #[error("its first line is malformed")]
    RequestLine,
    /// More than one `Host`, or none in a version that has to have one: RFC 9112, section 3.2.
    #[error("it names its host more than once, or not at all")]
    Hosts,
    /// A head that takes too long.
    #[error("its head did not come in time")]
    Late,
    /// A head or trailers that are too long.
    #[error("its head is too long")]
    TooLong,
}

/// Where in a conversation the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a head.
    Head,
    /// In a body, with so many bytes to go.
    Body(u64),
    /// Before a chunk.
    ChunkLine,
    /// In a chunk, with so many bytes to go, its CRLF among them.
    Chunk(u64),
    /// After the last chunk.
    Trailers,
    /// After a request to speak something else, which isn't answered yet.
    Held,
    /// Where something else is spoken.
    Other,
}

/// Follows one side of a conversation.
#[derive(Debug)]
pub struct Framing {
    at: At,
    /// How much of what isn't passed on yet was searched for an end.
    searched: usize,
}

impl Default for Framing {
    fn default() -> Self {
        Framing { at: At::Head, searched: 0 }
    }
}

impl Framing {
    /// How many bytes from the front of `bytes` may be passed on. None means that more has to come first, or,
    /// where [`Framing::is_held`], an answer. The rest is to be given again, with more behind it.
    ///
    /// # Errors
    ///
    /// [`BadMessage`]: nothing of the rest may be passed on.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, BadMessage> {
        match self.at {
            At::Head => self.head(bytes),
            At::Trailers => self.trailers(bytes),
            At::ChunkLine => self.chunk_line(bytes),
            At::Body(left) => Ok(self.counted(bytes, left, At::Body, At::Head)),
            At::Chunk(left) => self.chunk(bytes, left),
            At::Held => Ok(0),
            At::Other => Ok(bytes.len()),
        }
    }

    /// Whether the next byte is in a head.
    #[must_use]
    pub fn is_in_head(&self) -> bool {
        self.at == At::Head
    }

    /// Whether an answer decides what the next byte is.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.at == At::Held
    }

    /// The answer to a request to speak something else.
    pub fn release(&mut self, is_granted: bool) {
        if self.is_held() {
            self.at = if is_granted { At::Other } else { At::Head };
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, BadMessage> {
        let Some(end) = self.end_of_head(bytes)? else { return Ok(0) };
        self.at = after(&bytes[..end])?;
        Ok(end)
    }

    /// The length of a head with its empty line, if that is there.
    fn end_of_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadMessage> {
        let from = self.searched.saturating_sub(3);
        let within = &bytes[..bytes.len().min(HEAD_BYTES)];
        if let Some(at) = within[from.min(within.len())..].windows(4).position(|four| four == b"\r\n\r\n") {
            self.searched = 0;
            return Ok(Some(from + at + 4));
        }
        if bytes.len() >= HEAD_BYTES {
            return Err(BadMessage::TooLong);
        }
        // A line that ends otherwise is refused when it is there, not when its head is.
        let fresh = &within[self.searched.min(within.len())..];
        let bare = fresh.iter().enumerate().any(|(at, byte)| {
            *byte == b'\n' && (self.searched + at == 0 || within[self.searched + at - 1] != b'\r')
        });
        if bare {
            return Err(BadMessage::Line);
        }
        self.searched = within.len();
        Ok(None)
    }

    fn trailers(&mut self, bytes: &[u8]) -> Result<usize, BadMessage> {
        let end = match bytes.first_chunk::<2>() {
            None => return Ok(0),
            Some(b"\r\n") => 2,
            Some(_) => match self.end_of_head(bytes)? {
                None => return Ok(0),
                Some(end) => {
                    for line in lines(&bytes[..end]) {
                        // RFC 9112, section 7.1.2: not what says where a message ends.
                        let (name, _) = field(line?)?;
                        if is(name, b"content-length") || is(name, b"transfer-encoding") || is(name, b"host")
                        {
                            return Err(BadMessage::Length);
                        }
                    }
                    end
                }
            },
        };
        self.at = At::Head;
        Ok(end)
    }

    fn chunk_line(&mut self, bytes: &[u8]) -> Result<usize, BadMessage> {
        let window = &bytes[..bytes.len().min(CHUNK_DIGITS + b"\r\n".len())];
        let end = window.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(window.len());
        if end > CHUNK_DIGITS {
            return Err(BadMessage::Chunk);
        }
        if end == window.len() {
            return Ok(0);
        }
        match window[end..].first_chunk::<2>() {
            Some(b"\r\n") => {}
            None if window[end] == b'\r' => return Ok(0),
            _ => return Err(BadMessage::Chunk),
        }
        let digits = str::from_utf8(&window[..end]).map_err(|_| BadMessage::Chunk)?;
        let length = u64::from_str_radix(digits, 16).map_err(|_| BadMessage::Chunk)?;
        self.at = match length {
            0 => At::Trailers,
            _ => At::Chunk(length.checked_add(2).ok_or(BadMessage::Chunk)?),
        };
        Ok(end + 2)
    }

    fn chunk(&mut self, bytes: &[u8], left: u64) -> Result<usize, BadMessage> {
        if left > 2 {
            let data = left - 2;
            let passed = (bytes.len() as u64).min(data);
            self.at = At::Chunk(left - passed);
            return Ok(passed as usize);
        }
        match bytes.first_chunk::<2>() {
            None => Ok(0),
            Some(b"\r\n") => {
                self.at = At::ChunkLine;
                Ok(2)
            }
            Some(_) => Err(BadMessage::Chunk),
        }
    }

    fn counted(&mut self, bytes: &[u8], left: u64, within: fn(u64) -> At, then: At) -> usize {
        let passed = (bytes.len() as u64).min(left);
        self.at = if passed == left { then } else { within(left - passed) };
        passed as usize
    }
}

/// The lines of a head without their ends, but for the empty one.
fn lines(head: &[u8]) -> impl Iterator<Item = Result<&[u8], BadMessage>> {
    let text = head.strip_suffix(b"\r\n\r\n").unwrap_or(head);
    text.split(|byte| *byte == b'\n').map(move |line| {
        // The last has lost its CRLF with the empty line's.
        let is_last = line.as_ptr_range().end == text.as_ptr_range().end;
        let line = if is_last { line } else { line.strip_suffix(b"\r").ok_or(BadMessage::Line)? };
        let is_plain = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        if line.iter().all(is_plain) { Ok(line) } else { Err(BadMessage::Line) }
    })
}

/// The two parts of a header line. RFC 9112, section 5: no space before the colon, no folded lines.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), BadMessage> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(BadMessage::Header)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(BadMessage::Header);
    }
    Ok((name, value.trim_ascii()))
}

/// A byte of a token: RFC 9110, section 5.6.2.
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

fn is(name: &[u8], known: &[u8]) -> bool {
    name.eq_ignore_ascii_case(known)
}

/// What follows a head.
fn after(head: &[u8]) -> Result<At, BadMessage> {
    let mut lines = lines(head);
    let first = lines.next().ok_or(BadMessage::RequestLine)??;
    let (method, is_1_0) = request_line(first)?;
    let (mut length, mut is_chunked, mut hosts, mut upgrades) = (None, false, 0, false);
    for (count, line) in lines.enumerate() {
        if count == LINES {
            return Err(BadMessage::TooLong);
        }
        let (name, value) = field(line?)?;
        if is(name, b"host") {
            hosts += 1;
        } else if is(name, b"content-length") {
            let again = length.replace(decimal(value)?).is_some();
            if again {
                return Err(BadMessage::Length);
            }
        } else if is(name, b"transfer-encoding") {
            if is_chunked || is_1_0 || !is(value, b"chunked") {
                return Err(BadMessage::Length);
            }
            is_chunked = true;
        } else if is(name, b"upgrade") {
            upgrades = true;
        }
    }
    if hosts > 1 || (hosts == 0 && !is_1_0) {
        return Err(BadMessage::Hosts);
    }
    let speaks_other = method == b"CONNECT" || upgrades;
    match (is_chunked, length) {
        (true, Some(_)) => Err(BadMessage::Length),
        (true, None) if speaks_other => Err(BadMessage::Length),
        (false, Some(1..)) if speaks_other => Err(BadMessage::Length),
        (true, None) => Ok(At::ChunkLine),
        (false, Some(length @ 1..)) => Ok(At::Body(length)),
        (false, _) if speaks_other => Ok(At::Held),
        (false, _) => Ok(At::Head),
    }
}

/// The method, and whether the version is 1.0: RFC 9112, section 3, with one space where it has one.
fn request_line(line: &[u8]) -> Result<(&[u8], bool), BadMessage> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else { return Err(BadMessage::RequestLine) };
    let is_1_0 = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        _ => return Err(BadMessage::RequestLine),
    };
    // A fragment is for the client alone: RFC 9112, section 3.2.
    let is_of_target = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
    // What the library behind this can't read it would refuse by itself, and nobody would hear of it.
    let is_target = target.iter().all(is_of_target) && Uri::try_from(target).is_ok();
    if method.is_empty() || !method.iter().all(is_token) || !is_target {
        return Err(BadMessage::RequestLine);
    }
    Ok((method, is_1_0))
}

/// Digits and nothing else: no sign, no list.
fn decimal(value: &[u8]) -> Result<u64, BadMessage> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(BadMessage::Length);
    }
    let text = str::from_utf8(value).map_err(|_| BadMessage::Length)?;
    text.parse().map_err(|_| BadMessage::Length)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
