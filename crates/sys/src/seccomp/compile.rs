//! Turns a table into a program for the kernel's packet-filter machine.
//!
//! The machine has one register, which we load with 32 bits of the call's data at a time. Jumps go forward
//! only, and a conditional jump reaches at most 255 instructions.
//!
//! The program is therefore written from its last instruction to its first: whatever a jump leads to is
//! there already, its distance is known, and nothing has to be patched. What a jump leads to is a
//! [`Target`]; [`Backwards::reach`] makes it reachable.
//!
//! # The program
//!
//! 1. Another architecture than ours: kill. Its numbers mean other calls.
//! 2. On x86_64, a number of the x32 interface: kill, for the same reason.
//! 3. A binary search over ranges of numbers with the same rule, and at its leaves the answer, or the
//!    questions about arguments.
//!
//! Up to a question only the number is looked at. That keeps calls which are always allowed fast: since
//! Linux 5.11 the kernel finds out which those are when the filter is installed, and does not run it for
//! them (`seccomp_cache_prepare` in `kernel/seccomp.c`).

use std::mem::offset_of;

use libc::{seccomp_data, sock_filter};

use super::rule::{Line, NUMBERS, Question, Rule, UNLISTED, Word};

#[cfg(not(target_endian = "little"))]
compile_error!("the halves of an argument are laid out for little-endian machines");

/// The six instructions we use, of those the kernel admits in a filter (`seccomp_check_filter`).
///
/// Loads 32 bits of the call's data into the register.
pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// Keeps the bits of a mask in the register.
pub(super) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
/// Skips instructions; 32 bits say how many.
pub(super) const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
/// Skips instructions, up to 255, depending on whether the register is equal to a value.
pub(super) const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
/// As [`EQUAL`], but depending on whether the register is that value or more.
pub(super) const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
/// Ends the program with an answer to the kernel.
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The architecture whose calls the tables name, as the kernel reports it to a filter.
///
/// Source: Linux, `include/uapi/linux/audit.h`: the ELF machine, marked as 64-bit and little-endian.
pub(super) const ARCHITECTURE: u32 = 0xc000_0000
    | if cfg!(target_arch = "x86_64") {
        libc::EM_X86_64 as u32
    } else if cfg!(target_arch = "aarch64") {
        libc::EM_AARCH64 as u32
    } else {
        panic!("no table for this architecture")
    };

/// Numbers from here to [`X32_END`] call the x32 interface: x86_64 with 32-bit pointers.
///
/// Source: Linux, `arch/x86/include/uapi/asm/unistd.h`, `__X32_SYSCALL_BIT`.
pub(super) const X32: u32 = 0x4000_0000;

/// Numbers from here on are negative to the kernel, which knows no such call on any interface.
pub(super) const X32_END: u32 = 0x8000_0000;

/// Compiles `table`. The same table gives the same program, byte for byte.
pub(super) fn compile(table: &[&[Line]]) -> Vec<sock_filter> {
    let mut program = Backwards::default();
    let mut start = program.search(&ranges(table));
    if cfg!(target_arch = "x86_64") {
        let unlisted = program.rule(UNLISTED);
        let beyond = program.branch(AT_LEAST, X32_END, unlisted, KILL);
        start = program.branch(AT_LEAST, X32, beyond, start);
    }
    start = program.load(offset_of!(seccomp_data, nr), u32::MAX, start);
    start = program.branch(EQUAL, ARCHITECTURE, start, KILL);
    program.load(offset_of!(seccomp_data, arch), u32::MAX, start);
    program.instructions.reverse();
    program.instructions
}

/// Runs of numbers with the same rule, each by its first number, in order. The last one has no end.
fn ranges(table: &[&[Line]]) -> Vec<(u32, Rule)> {
    let mut rules = [UNLISTED; NUMBERS + 1]; // The one after the last stands for all that follow.
    for line in table.iter().copied().flatten() {
        rules[line.number as usize] = line.rule;
    }
    let mut ranges: Vec<(u32, Rule)> = Vec::with_capacity(NUMBERS);
    for (number, rule) in (0..).zip(rules) {
        if ranges.last().is_none_or(|(_, last)| *last != rule) {
            ranges.push((number, rule));
        }
    }
    ranges
}

/// A program in the making, last instruction first.
#[derive(Default)]
struct Backwards {
    instructions: Vec<sock_filter>,
    /// Where each answer was last written, for jumps to share it.
    answers: Vec<(u32, usize)>,
}

/// What a jump leads to.
#[derive(Clone, Copy)]
enum Target {
    /// The end of the program, with this answer to the kernel.
    Answer(u32),
    /// The instruction at this index of [`Backwards::instructions`].
    Written(usize),
}

/// Ends the whole process, as only calls through a foreign interface do.
const KILL: Target = Target::Answer(libc::SECCOMP_RET_KILL_PROCESS);

/// How far a conditional jump can be counted on to reach. It is one less than what fits into its 8 bits,
/// because making its other target reachable may put one instruction between.
const REACH: usize = 254;

impl Backwards {
    /// Finds the number in the register among `ranges`, and goes on with its rule.
    fn search(&mut self, ranges: &[(u32, Rule)]) -> Target {
        if let [(_, rule)] = ranges {
            return self.rule(*rule);
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let yes = self.search(upper);
        let no = self.search(lower);
        self.branch(AT_LEAST, upper[0].0, yes, no)
    }

    fn rule(&mut self, rule: Rule) -> Target {
        match rule {
            Rule::Allow => Target::Answer(libc::SECCOMP_RET_ALLOW),
            Rule::Deny(errno) => Target::Answer(libc::SECCOMP_RET_ERRNO | errno as u32),
            Rule::Ask(question) => self.question(question),
        }
    }

    fn question(&mut self, question: &Question) -> Target {
        let mut next = self.rule(question.otherwise);
        for (values, rule) in question.cases.iter().rev() {
            let hit = self.rule(*rule);
            for value in values.iter().rev() {
                next = self.branch(EQUAL, *value, hit, next);
            }
        }
        self.load(offset(question.word), question.mask, next)
    }

    /// Compares the register with `value`, and goes on at `yes` or `no`.
    fn branch(&mut self, comparison: u16, value: u32, yes: Target, no: Target) -> Target {
        let yes = self.reach(yes);
        let no = self.reach(no);
        let here = self.instructions.len();
        let jump = |target: usize| u8::try_from(here - target - 1).expect("reach() keeps targets near");
        let (yes, no) = (jump(yes), jump(no));
        self.write(comparison, yes, no, value)
    }

    /// Loads the 32 bits at `offset` of the call's data, keeps those in `mask`, and goes on at `next`.
    fn load(&mut self, offset: usize, mask: u32, next: Target) -> Target {
        let next = self.reach(next);
        if next + 1 != self.instructions.len() {
            self.jump(next);
        }
        if mask != u32::MAX {
            self.write(AND, 0, 0, mask);
        }
        self.write(LOAD, 0, 0, offset as u32)
    }

    /// An index that the next conditional jump can reach and that leads to `target`.
    fn reach(&mut self, target: Target) -> usize {
        let written = match target {
            Target::Written(index) => Some(index),
            Target::Answer(value) => self.answers.iter().find(|(v, _)| *v == value).map(|(_, index)| *index),
        };
        let near = written.filter(|index| self.instructions.len() - index <= REACH);
        match (near, target) {
            (Some(index), _) => index,
            (None, Target::Written(index)) => self.jump(index),
            (None, Target::Answer(value)) => self.answer(value),
        }
    }

    /// Writes an unconditional jump, whose distance has 32 bits.
    fn jump(&mut self, target: usize) -> usize {
        let here = self.instructions.len();
        self.write(JUMP, 0, 0, (here - target - 1) as u32);
        here
    }

    /// Writes an end of the program.
    fn answer(&mut self, value: u32) -> usize {
        let here = self.instructions.len();
        self.write(RETURN, 0, 0, value);
        self.answers.retain(|(v, _)| *v != value);
        self.answers.push((value, here));
        here
    }

    fn write(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Target {
        self.instructions.push(sock_filter { code, jt, jf, k });
        Target::Written(self.instructions.len() - 1)
    }
}

/// Where `word` lies in the call's data.
fn offset(word: Word) -> usize {
    let (argument, half) = match word {
        Word::Low(argument) => (argument, 0),
        Word::High(argument) => (argument, 4),
    };
    offset_of!(seccomp_data, args) + 8 * argument as usize + half
}
