//! A compiled program in words, for people who review a change of policy.
//!
//! The first part names every call of the table and what the *program* answers to it, found by following
//! the program and not by reading the table; so a mistake of the compiler shows up under the name of the
//! call it concerns. The second part lists the instructions.

use std::env::consts::ARCH;
use std::fmt::Write;

use libc::sock_filter;

use super::compile::{AND, ARCHITECTURE, AT_LEAST, EQUAL, JUMP, LOAD, RETURN};
use super::rule::Line;

/// Writes out `program`, with the names and reasons of `table`.
pub(super) fn listing(program: &[sock_filter], table: &[&[Line]]) -> String {
    let mut lines: Vec<Line> = table.concat();
    lines.sort_unstable_by_key(|line| line.number);
    let mut text = format!("{ARCH}: {} calls, {} instructions\n\n", lines.len(), program.len());
    for line in &lines {
        let fate = fate(program, line.number);
        let _ = writeln!(text, "{:>4} {:<24} {fate:<15} {}", line.number, line.name(), line.reason);
    }
    text.push('\n');
    for (index, instruction) in program.iter().enumerate() {
        let _ = writeln!(text, "{index:>4} {}", sentence(index, *instruction, &lines));
    }
    text
}

/// What becomes of call `number`: an answer, or the instruction that asks for an argument.
fn fate(program: &[sock_filter], number: u32) -> String {
    let mut register = 0;
    let mut at = 0;
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        let holds = match code {
            EQUAL => register == k,
            _ => register >= k,
        };
        at += 1;
        match code {
            LOAD if k == 0 => register = number,
            LOAD if k == 4 => register = ARCHITECTURE,
            LOAD => return format!("asks at {}", at - 1),
            JUMP => at += k as usize,
            RETURN => return answer(k),
            _ => at += usize::from(if holds { jt } else { jf }),
        }
    }
}

/// One instruction. Comparisons of order are only made with numbers of calls, so those get their names.
fn sentence(index: usize, instruction: sock_filter, lines: &[Line]) -> String {
    let sock_filter { code, jt, jf, k } = instruction;
    let to = |skipped: u32| index + 1 + skipped as usize;
    let (yes, no) = (to(jt.into()), to(jf.into()));
    match code {
        LOAD => format!("load {}", place(k)),
        AND => format!("keep {k:#x}"),
        JUMP => format!("go to {}", to(k)),
        EQUAL => format!("if = {k:#x} go to {yes} else {no}"),
        AT_LEAST => match lines.iter().find(|line| line.number == k) {
            Some(line) => format!("if >= {k} go to {yes} else {no} ({})", line.name()),
            None => format!("if >= {k} go to {yes} else {no}"),
        },
        RETURN => answer(k),
        other => format!("unknown instruction {other:#x}"),
    }
}

/// The part of the call's data at `offset`. Source: Linux, `struct seccomp_data`.
fn place(offset: u32) -> String {
    match (offset, offset % 8) {
        (0, _) => "number".into(),
        (4, _) => "architecture".into(),
        (_, 0) => format!("argument {}, low half", (offset - 16) / 8),
        _ => format!("argument {}, high half", (offset - 16) / 8),
    }
}

/// What the kernel is told.
fn answer(value: u32) -> String {
    let errno = |value| value as i32 & 0xffff;
    match value {
        libc::SECCOMP_RET_ALLOW => "allow".into(),
        libc::SECCOMP_RET_KILL_PROCESS => "kill".into(),
        _ => match errno(value) {
            libc::EPERM => "EPERM".into(),
            libc::EINVAL => "EINVAL".into(),
            libc::ENOSYS => "ENOSYS".into(),
            libc::EPROTONOSUPPORT => "EPROTONOSUPPORT".into(),
            libc::EAFNOSUPPORT => "EAFNOSUPPORT".into(),
            other => format!("errno {other}"),
        },
    }
}
