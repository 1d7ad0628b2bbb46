//! Our own terminal while a program has one inside: its keys are passed on raw, its size is passed
//! on, and two presses of control-C in a row end the run.
//!
//! A program that answers to control-C, as a shell or an editor does, never meets the second: what it
//! writes in between shows that it lives. One that ignores it can't keep the person from leaving.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use cofferdam_core::request::WindowSize;
use rustix::termios::{OptionalActions, Termios};

/// A terminal in raw mode, which is as it was again when this is dropped.
pub(super) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    /// Sets standard input to raw mode; none if it is no terminal.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn set() -> io::Result<Option<Self>> {
        let terminal = io::stdin().as_fd().try_clone_to_owned()?;
        let Ok(before) = rustix::termios::tcgetattr(&terminal) else { return Ok(None) };
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Some(RawMode { terminal, before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // At once: to wait until what was written is read would be for ever where nobody reads. If the
        // terminal is gone there is nothing to restore.
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// The size of a window where there is none: what terminals had when they were made of glass.
const USUAL: WindowSize = WindowSize { columns: 80, rows: 24 };

/// The size of our own terminal's window.
pub(crate) fn window_size() -> WindowSize {
    let found = rustix::termios::tcgetwinsize(io::stdin())
        .or_else(|_| rustix::termios::tcgetwinsize(io::stdout()))
        .map(|size| WindowSize { columns: size.ws_col, rows: size.ws_row });
    found.ok().filter(|size| size.columns > 0 && size.rows > 0).unwrap_or(USUAL)
}

/// What control-C is on a raw terminal.
const INTERRUPT: u8 = 0x03;

/// Presses of control-C with nothing from the program in between.
#[derive(Debug, Default)]
pub(super) struct Presses {
    last: Option<Instant>,
    /// How often it was pressed without a pause, whatever the program wrote.
    hammered: u32,
}

/// How soon a second press has to follow the first.
const SOON: Duration = Duration::from_secs(1);

/// So many presses, each soon after the last, are meant whatever the program writes.
const HAMMERED: u32 = 5;

impl Presses {
    /// Takes in keys. Says whether they end the run.
    pub(super) fn typed(&mut self, keys: &[u8], now: Instant) -> bool {
        let mut ends = false;
        for &key in keys {
            if key != INTERRUPT {
                *self = Presses::default();
                continue;
            }
            let soon = self.last.is_some_and(|last| now.duration_since(last) < SOON);
            self.hammered += 1;
            ends |= soon || self.hammered >= HAMMERED;
            self.last = Some(now);
        }
        ends
    }

    /// Takes in what the program wrote. The echo of the key itself is no sign of life.
    pub(super) fn written(&mut self, bytes: &[u8]) {
        let echo = bytes.iter().all(|byte| b"^C\r\n".contains(byte));
        if !echo {
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_press_ends_a_program_that_says_nothing() {
        let now = Instant::now();
        let mut presses = Presses::default();
        assert!(!presses.typed(b"ls\r\x03", now));
        presses.written(b"^C\r\n");
        assert!(presses.typed(b"\x03", now + SOON / 2));
    }

    #[test]
    fn a_program_that_answers_is_not_ended() {
        let now = Instant::now();
        let mut presses = Presses::default();
        assert!(!presses.typed(b"\x03", now));
        presses.written(b"^C\r\n$ ");
        assert!(!presses.typed(b"\x03", now));
    }

    #[test]
    fn presses_apart_in_time_or_with_keys_between_are_each_the_first() {
        let now = Instant::now();
        let mut presses = Presses::default();
        assert!(!presses.typed(b"\x03", now));
        assert!(!presses.typed(b"\x03", now + SOON * 2));
        let mut presses = Presses::default();
        assert!(!presses.typed(b"\x03a\x03", now));
    }

    #[test]
    fn hammering_ends_a_program_that_never_stops_writing() {
        let now = Instant::now();
        let mut presses = Presses::default();
        for press in 1..=HAMMERED {
            assert_eq!(presses.typed(b"\x03", now), press == HAMMERED);
            presses.written(b"noise");
        }
    }
}
