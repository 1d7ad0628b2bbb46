//! The words a profile is written in.
//!
//! A table is made of [`Line`]s. A line gives one system call a [`Rule`]: allow it, deny it, or ask a
//! [`Question`] about its arguments. There is only one kind of question (take 32 bits of an argument, keep
//! the bits of a mask, look the result up), and an answer may be a further question. Every condition of
//! the policy can be said that way, so the compiler and the tests need to understand nothing else.
//!
//! # Deliberately absent
//!
//! Anything behind a pointer. seccomp sees the registers of a call and not the memory they point to, which
//! another thread could change after the check.

use libc::c_int;

/// One system call, what happens to it, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The constant that names the call, `SYS_read`.
    pub(super) constant: &'static str,
    /// Its number on this architecture; smaller than [`NUMBERS`].
    pub(super) number: u32,
    /// What happens to it.
    pub(super) rule: Rule,
    /// Which programs need the call, or what denying it prevents.
    pub(super) reason: &'static str,
}

impl Line {
    /// The call as manual pages name it: `read`.
    pub(super) fn name(&self) -> &'static str {
        self.constant.trim_start_matches("SYS_")
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// It runs.
    Allow,
    /// It does not run and returns this error.
    Deny(c_int),
    /// It depends on an argument.
    Ask(&'static Question),
}

/// A look at 32 bits of one argument.
///
/// The rule of the first case that lists `word & mask` applies; if none does, `otherwise`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The bits to look at.
    pub(super) word: Word,
    /// Which of them count.
    pub(super) mask: u32,
    /// Values, and what follows from them. Never empty.
    pub(super) cases: &'static [(&'static [u32], Rule)],
    /// What follows from every other value.
    pub(super) otherwise: Rule,
}

/// Half of one of the six arguments, which seccomp shows as 64 bits each.
///
/// Where the kernel reads an `int`, [`Low`](Word::Low) is the whole argument: the kernel ignores the rest
/// of the register, so a program may set it to anything, and a check that looked there could be evaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Bits 0 to 31 of the argument with this index.
    Low(u32),
    /// Bits 32 to 63.
    High(u32),
}

/// Numbers a table may use are below this.
///
/// The newest call known here is 471 (Linux 7.0), and a kernel release adds about three.
pub(super) const NUMBERS: usize = 512;

/// What happens to a call that no line names, whether or not some kernel knows it.
///
/// `ENOSYS` is what a kernel without the call says, so programs that probe for a newer one fall back.
pub(super) const UNLISTED: Rule = Rule::Deny(libc::ENOSYS);

/// Whether two lines name the same number, which would leave it open which of them applies.
pub(super) const fn repeats(table: &[&[Line]]) -> bool {
    let mut seen = [false; NUMBERS];
    let mut group = 0;
    while group < table.len() {
        let mut line = 0;
        while line < table[group].len() {
            let number = table[group][line].number as usize;
            if seen[number] {
                return true;
            }
            seen[number] = true;
            line += 1;
        }
        group += 1;
    }
    false
}
