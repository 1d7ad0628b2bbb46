//! Frames: a length, a kind, a payload; and the few forms of values in them.

use std::net::IpAddr;

use cofferdam_core::egress::Door;

/// A frame that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame that makes no sense: {0}")]
pub struct BadFrame(pub &'static str);

/// A message that is a frame.
pub trait Frame: Sized {
    /// The longest that is taken, without its length.
    const MOST_BYTES: usize;

    /// The whole frame, with its length.
    fn encode(&self) -> Vec<u8>;

    /// What the frame of this kind with this payload says.
    ///
    /// # Errors
    ///
    /// [`BadFrame`] for anything that [`Frame::encode`] doesn't write.
    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame>;
}

/// Bytes that come in, until they are frames.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    ///
    /// [`BadFrame`]: nothing that follows makes sense either.
    pub fn take<T: Frame>(&mut self) -> Result<Option<T>, BadFrame> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > T::MOST_BYTES {
            return Err(BadFrame("its length"));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let message = T::decode(frame[0], &frame[1..])?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

/// Writes a frame.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u8) -> Self {
        Writer(vec![0, 0, 0, 0, kind])
    }

    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(super) fn flag(self, flag: bool) -> Self {
        self.byte(flag.into())
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn ip(self, ip: &IpAddr) -> Self {
        self.text(&ip.to_string())
    }

    /// Something that may not be there.
    pub(super) fn option<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            None => self.flag(false),
            Some(value) => write(self.flag(true), value),
        }
    }

    /// Any number of things.
    pub(super) fn list<T>(self, values: &[T], write: impl FnMut(Self, &T) -> Self) -> Self {
        let counted = self.number(values.len() as u64);
        values.iter().fold(counted, write)
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Reads a frame's payload.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Reader(payload)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], BadFrame> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(BadFrame("it is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn number(&mut self) -> Result<u64, BadFrame> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    pub(super) fn number_up_to<T: TryFrom<u64>>(&mut self) -> Result<T, BadFrame> {
        T::try_from(self.number()?).map_err(|_| BadFrame("a number that is too large"))
    }

    pub(super) fn byte(&mut self) -> Result<u8, BadFrame> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, BadFrame> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadFrame("a flag")),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], BadFrame> {
        let count = self.number_up_to()?;
        self.take(count)
    }

    pub(super) fn text(&mut self) -> Result<String, BadFrame> {
        let bytes = self.bytes()?;
        str::from_utf8(bytes).map(str::to_owned).map_err(|_| BadFrame("text that is none"))
    }

    pub(super) fn ip(&mut self) -> Result<IpAddr, BadFrame> {
        self.text()?.parse().map_err(|_| BadFrame("an address"))
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, BadFrame>,
    ) -> Result<Option<T>, BadFrame> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Any number of things, each of which takes at least a byte: nothing is set aside for what isn't there.
    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, BadFrame>,
    ) -> Result<Vec<T>, BadFrame> {
        let count: usize = self.number_up_to()?;
        if count > self.0.len() {
            return Err(BadFrame("it is too short"));
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// Nothing may be left.
    pub(super) fn end<T>(self, message: T) -> Result<T, BadFrame> {
        if self.0.is_empty() { Ok(message) } else { Err(BadFrame("it is too long")) }
    }
}

const DOORS: [Door; 4] = [Door::Capture, Door::Connect, Door::Forward, Door::Function];

/// A door as a byte: its place among all of them.
pub(super) fn door_byte(door: Door) -> u8 {
    DOORS.iter().position(|known| *known == door).map_or(u8::MAX, |at| at as u8)
}

pub(super) fn door(byte: u8) -> Result<Door, BadFrame> {
    DOORS.get(usize::from(byte)).copied().ok_or(BadFrame("a door"))
}
