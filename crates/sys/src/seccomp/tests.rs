//! Three kinds of tests: claims about the policy, made to the compiled program; the program against the
//! table, on many calls; and the kernel itself, in a child under the filter.
//!
//! The first two run the program with [`run`], which knows the six instructions we use and panics at any
//! other, and at a jump out of the program.

use std::collections::BTreeSet;

use super::compile::{AND, ARCHITECTURE, AT_LEAST, EQUAL, JUMP, LOAD, RETURN, X32, X32_END, compile};
use super::numbers::*;
use super::rule::{Line, NUMBERS, Question, Rule, UNLISTED, Word, repeats};
use super::table::CONTAINER;
use super::{Filter, container, proxy};

const ALLOW: u32 = SECCOMP_RET_ALLOW;
const KILL: u32 = SECCOMP_RET_KILL_PROCESS;

/// Any bits in the half of a register that the kernel ignores for an `int`.
const HIGH_BITS: u64 = 1 << 32;

// ---- Claims about the policy ----

#[test]
fn a_foreign_architecture_kills() {
    let i386 = 0x4000_0003;
    for number in [0, SYS_getpid, 500] {
        let call = Call { architecture: i386, ..Call::new(number, []) };
        assert_eq!(run(container().instructions(), &call), KILL, "{number}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_number_of_the_x32_interface_kills() {
    for number in [X32, X32 | SYS_getpid as u32, X32 | 547, X32_END - 1] {
        assert_eq!(answer(number.into(), []), KILL, "{number:#x}");
    }
}

#[test]
fn a_number_without_a_line_is_an_unknown_call() {
    for number in [337, 400, 423, 472, 511, 512, 600, X32 - 1, X32_END, u32::MAX] {
        assert_eq!(answer(number.into(), []), deny(ENOSYS), "{number:#x}");
    }
}

#[test]
fn the_proxy_dials_and_neither_opens_starts_nor_writes_code() {
    let answer = |number, first: [u64; 3]| run(proxy().instructions(), &Call::new(number, first));
    let executable = (PROT_READ | PROT_EXEC) as u64;
    for (family, kind) in
        [(AF_INET, SOCK_STREAM), (AF_INET6, SOCK_DGRAM), (AF_INET, SOCK_STREAM | SOCK_CLOEXEC)]
    {
        assert_eq!(answer(SYS_socket, [family as u64, kind as u64, 0]), ALLOW);
    }
    for (family, kind, errno) in [
        (AF_UNIX, SOCK_STREAM, EAFNOSUPPORT),
        (AF_NETLINK, SOCK_RAW, EAFNOSUPPORT),
        (AF_INET, SOCK_RAW, EPERM),
    ] {
        assert_eq!(answer(SYS_socket, [family as u64, kind as u64, 0]), deny(errno));
    }
    for number in [SYS_mmap, SYS_mprotect] {
        assert_eq!(answer(number, [0, 4096, PROT_READ as u64]), ALLOW);
        assert_eq!(answer(number, [0, 4096, executable]), deny(EPERM));
    }
    for number in [
        SYS_openat,
        SYS_openat2,
        SYS_execve,
        SYS_execveat,
        SYS_clone,
        SYS_clone3,
        SYS_ptrace,
        SYS_kill,
        SYS_prctl,
        SYS_setresuid,
        SYS_unshare,
        SYS_setns,
        SYS_listen,
        SYS_io_uring_setup,
        SYS_bpf,
        SYS_memfd_create,
    ] {
        assert_eq!(answer(number, [0; 3]), deny(ENOSYS), "{number}");
    }
    let program = [SO_ATTACH_FILTER, SO_ATTACH_BPF]
        .map(|name| answer(SYS_setsockopt, [0, SOL_SOCKET as u64, name as u64]));
    assert_eq!(program, [deny(EPERM); 2]);
    assert_eq!(answer(SYS_setsockopt, [0, IPPROTO_TCP as u64, TCP_NODELAY as u64]), ALLOW);
}

#[test]
fn a_clone_with_any_new_namespace_is_refused() {
    let threads = CLONE_VM | CLONE_THREAD | CLONE_SIGHAND;
    for flag in
        [CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET]
    {
        for flags in [flag, flag | threads, flag | SIGCHLD] {
            assert_eq!(answer(SYS_clone, [flags as u64]), deny(EPERM), "{flags:#x}");
            assert_eq!(answer(SYS_clone, [flags as u64 | HIGH_BITS]), deny(EPERM), "{flags:#x}");
        }
    }
    for flags in [threads, SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD] {
        assert_eq!(answer(SYS_clone, [flags as u64]), ALLOW, "{flags:#x}");
    }
    assert_eq!(answer(SYS_clone3, []), deny(ENOSYS));
}

#[test]
fn input_into_a_terminal_is_refused_whatever_the_high_bits() {
    for request in [0x5412, 0x541c, 0x5423] {
        for high in [0, HIGH_BITS, 0xffff_ffff << 32] {
            assert_eq!(answer(SYS_ioctl, [0, request | high]), deny(EPERM), "{request:#x}");
        }
    }
    let get_attributes = 0x5401;
    let take_as_controlling = 0x540e;
    let pty_number = 0x8004_5430;
    let non_blocking = 0x5421;
    for request in [get_attributes, take_as_controlling, pty_number, non_blocking] {
        assert_eq!(answer(SYS_ioctl, [0, request]), ALLOW, "{request:#x}");
    }
}

#[test]
fn requests_to_devices_of_the_host_are_refused() {
    let tun_set_interface = 0x4004_54ca;
    let kvm_create_vm = 0xae01;
    let loop_set_file = 0x4c00;
    let block_read_only = 0x125d;
    let mapper_create = 0xc138_fd03;
    for request in [tun_set_interface, kvm_create_vm, loop_set_file, block_read_only, mapper_create] {
        assert_eq!(answer(SYS_ioctl, [3, request]), deny(EPERM), "{request:#x}");
    }
    let clone_file = 0x4004_9409;
    let file_flags = 0x8008_6601;
    for request in [clone_file, file_flags] {
        assert_eq!(answer(SYS_ioctl, [3, request]), ALLOW, "{request:#x}");
    }
}

#[test]
fn a_socket_of_another_family_is_not_supported() {
    let families = (0..=50).filter(|family| ![AF_UNIX, AF_INET, AF_INET6].contains(family));
    for family in families {
        for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_RAW] {
            for number in [SYS_socket, SYS_socketpair] {
                let socket = answer(number, [family as u64, kind as u64]);
                assert_eq!(socket, deny(EAFNOSUPPORT), "family {family}");
            }
        }
    }
}

#[test]
fn a_socket_is_local_or_tcp_or_udp() {
    let socket = |family: c_int, kind: c_int, protocol: c_int| {
        let kind = kind | SOCK_CLOEXEC | SOCK_NONBLOCK;
        answer(SYS_socket, [family as u64 | HIGH_BITS, kind as u64 | HIGH_BITS, protocol as u64 | HIGH_BITS])
    };
    for family in [AF_INET, AF_INET6] {
        assert_eq!(socket(family, SOCK_RAW, IPPROTO_ICMP), deny(EPERM));
        assert_eq!(socket(family, SOCK_SEQPACKET, 0), deny(EAFNOSUPPORT));
        assert_eq!(socket(family, SOCK_STREAM, IPPROTO_SCTP), deny(EPROTONOSUPPORT));
        assert_eq!(socket(family, SOCK_DGRAM, IPPROTO_ICMP), deny(EPROTONOSUPPORT));
        assert_eq!(socket(family, SOCK_STREAM, 0), ALLOW);
        assert_eq!(socket(family, SOCK_STREAM, IPPROTO_TCP), ALLOW);
        assert_eq!(socket(family, SOCK_DGRAM, IPPROTO_UDP), ALLOW);
    }
    assert_eq!(socket(AF_UNIX, SOCK_RAW, 0), deny(EPERM));
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        assert_eq!(socket(AF_UNIX, kind, 0), ALLOW);
    }
}

#[test]
fn a_device_node_is_refused() {
    for kind in [S_IFCHR, S_IFBLK, S_IFDIR, S_IFLNK] {
        assert_eq!(answer(SYS_mknodat, [0, 0, u64::from(kind | 0o600)]), deny(EPERM));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(answer(SYS_mknod, [0, u64::from(kind | 0o600)]), deny(EPERM));
    }
    for kind in [0, S_IFREG, S_IFIFO, S_IFSOCK] {
        assert_eq!(answer(SYS_mknodat, [0, 0, u64::from(kind | 0o600)]), ALLOW);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(answer(SYS_mknod, [0, u64::from(kind | 0o600)]), ALLOW);
    }
}

#[test]
fn no_handle_on_process_one_is_given() {
    for (pid, expected) in [(1, deny(EPERM)), (1 | 1 << 32, deny(EPERM)), (2, ALLOW), (7, ALLOW)] {
        assert_eq!(answer(SYS_pidfd_open, [pid]), expected, "{pid:#x}");
    }
}

#[test]
fn the_priority_of_process_one_can_not_be_taken_away() {
    for call in [SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr, SYS_sched_setaffinity] {
        for (pid, expected) in [(1, deny(EPERM)), (1 | 1 << 32, deny(EPERM)), (0, ALLOW), (7, ALLOW)] {
            assert_eq!(answer(call, [pid]), expected, "{call} of {pid:#x}");
        }
    }
    // A process or a group, but neither process 1 nor a whole user.
    for (call, process, group, user) in [(SYS_setpriority, 0, 1, 2), (SYS_ioprio_set, 1, 2, 3)] {
        assert_eq!(answer(call, [process, 1]), deny(EPERM));
        assert_eq!(answer(call, [process, 0]), ALLOW);
        assert_eq!(answer(call, [group, 1]), ALLOW);
        assert_eq!(answer(call, [user, 1000]), deny(EPERM));
    }
}

#[test]
fn the_limits_of_another_process_can_be_read_but_not_set() {
    for new in [1, 1 << 32, u64::MAX] {
        assert_eq!(answer(SYS_prlimit64, [1, 0, new]), deny(EPERM), "{new:#x}");
        assert_eq!(answer(SYS_prlimit64, [0, 0, new]), ALLOW, "{new:#x}");
    }
    assert_eq!(answer(SYS_prlimit64, [1, 0, 0, 1]), ALLOW);
}

#[test]
fn the_limit_that_keeps_cores_from_the_host_stays_and_nobody_minds() {
    let core = u64::from(RLIMIT_CORE);
    for new in [1, 1 << 32, u64::MAX] {
        assert_eq!(answer(SYS_prlimit64, [0, core, new]), deny(0), "{new:#x}");
        assert_eq!(answer(SYS_prlimit64, [0, core | HIGH_BITS, new]), deny(0), "{new:#x}");
    }
    assert_eq!(answer(SYS_prlimit64, [0, core, 0, 1]), ALLOW);
    assert_eq!(answer(SYS_setrlimit, [core, 1]), deny(0));
    assert_eq!(answer(SYS_setrlimit, [u64::from(RLIMIT_NOFILE), 1]), ALLOW);
}

#[test]
fn no_code_is_handed_to_the_kernel_and_nothing_of_the_hosts_log_is_written() {
    for (operation, expected) in [(0, deny(EINVAL)), (1, deny(EINVAL)), (2, ALLOW), (3, deny(EINVAL))] {
        assert_eq!(answer(SYS_seccomp, [operation | HIGH_BITS]), expected, "{operation}");
    }
    assert_eq!(answer(SYS_prctl, [PR_SET_SECCOMP as u64, 2]), deny(EINVAL));
    for option in [SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF] {
        let option = option as u64;
        assert_eq!(answer(SYS_setsockopt, [0, SOL_SOCKET as u64, option]), deny(EPERM), "{option}");
        let disguised = [0, SOL_SOCKET as u64 | HIGH_BITS, option | HIGH_BITS];
        assert_eq!(answer(SYS_setsockopt, disguised), deny(EPERM), "{option}");
        assert_eq!(answer(SYS_setsockopt, [0, IPPROTO_TCP as u64, option]), ALLOW, "{option}");
    }
    assert_eq!(answer(SYS_setsockopt, [0, SOL_SOCKET as u64, SO_REUSEADDR as u64]), ALLOW);
}

#[test]
fn huge_pages_which_no_ceiling_counts_are_not_to_be_had() {
    let (map, file, segment) = (MAP_HUGETLB as u64, u64::from(MFD_HUGETLB), SHM_HUGETLB as u64);
    assert_eq!(answer(SYS_mmap, [0, 0, 0, map | MAP_PRIVATE as u64]), deny(ENOMEM));
    assert_eq!(answer(SYS_mmap, [0, 0, 0, (MAP_PRIVATE | MAP_ANONYMOUS) as u64]), ALLOW);
    assert_eq!(answer(SYS_memfd_create, [0, file | u64::from(MFD_CLOEXEC)]), deny(ENOMEM));
    assert_eq!(answer(SYS_memfd_create, [0, u64::from(MFD_CLOEXEC)]), ALLOW);
    assert_eq!(answer(SYS_shmget, [0, 0, segment | 0o600]), deny(ENOMEM));
    assert_eq!(answer(SYS_shmget, [0, 0, 0o600]), ALLOW);
}

#[test]
fn only_the_plain_personality_can_be_set() {
    for persona in [0, 0xffff_ffff, u64::MAX] {
        assert_eq!(answer(SYS_personality, [persona]), ALLOW, "{persona:#x}");
    }
    let no_randomisation = ADDR_NO_RANDOMIZE as u64;
    for persona in [no_randomisation, no_randomisation | HIGH_BITS, 8] {
        assert_eq!(answer(SYS_personality, [persona]), deny(EPERM), "{persona:#x}");
    }
}

#[test]
fn a_prctl_option_without_a_line_is_unknown() {
    for option in [PR_SET_MM, PR_SCHED_CORE, PR_SET_MEMORY_MERGE, PR_SET_SECUREBITS] {
        assert_eq!(answer(SYS_prctl, [option as u64]), deny(EINVAL), "{option}");
    }
    for option in [PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_VMA] {
        assert_eq!(answer(SYS_prctl, [option as u64 | HIGH_BITS]), ALLOW, "{option}");
    }
}

// ---- The table itself ----

#[test]
fn two_lines_for_one_call_are_noticed() {
    let line = |number| Line { constant: "SYS_x", number, rule: Rule::Allow, reason: "a test" };
    assert!(repeats(&[&[line(1), line(2)], &[line(1)]]));
    assert!(!repeats(&[&[line(1), line(2)], &[line(3)]]));
}

#[test]
fn every_line_gives_its_reason() {
    for line in CONTAINER.concat() {
        assert!(line.constant.starts_with("SYS_"), "{}", line.constant);
        assert!(line.reason.len() > 3, "{} says why: {:?}", line.name(), line.reason);
    }
}

/// On x86_64 the kernel has given out the numbers 0 to 336 and those from 424 on, without gaps.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_call_that_a_kernel_has_is_decided_on_purpose() {
    let listed: Vec<u32> = CONTAINER.concat().iter().map(|line| line.number).collect();
    for number in (0..=336).chain(424..=SYS_rseq_slice_yield as u32) {
        assert!(listed.contains(&number), "no line for {number}");
    }
}

// ---- The program against the table ----

#[test]
fn the_program_says_what_the_table_says() {
    agree(container().instructions(), CONTAINER);
}

/// The container profile is too short for a jump to need help. This table gives every number another rule
/// than its neighbours, with questions between, so that most of the search lies out of reach.
#[test]
fn a_long_program_says_what_its_table_says() {
    static PID: Question = Question {
        word: Word::Low(0),
        mask: 0xff,
        cases: &[(&[0, 1, 2], Rule::Allow), (&[3], Rule::Deny(EINVAL))],
        otherwise: Rule::Deny(EPERM),
    };
    let rule = |number: u32| match number % 3 {
        0 => Rule::Ask(&PID),
        1 => Rule::Allow,
        _ => Rule::Deny(100 + (number % 7) as c_int),
    };
    let lines: Vec<Line> = (0..NUMBERS as u32)
        .map(|number| Line { constant: "SYS_x", number, rule: rule(number), reason: "a test" })
        .collect();
    let program = compile(&[&lines]);
    assert!(program.iter().any(|instruction| instruction.code == JUMP));
    agree(&program, &[&lines]);
}

#[test]
fn compiling_twice_gives_the_same_program() {
    assert_eq!(container().listing(), container().listing());
}

/// More than `BPF_MAXINSNS` the kernel refuses; and a slow compiler would show in every start.
#[test]
fn the_program_is_short() {
    assert!(container().instructions().len() < 350, "{}", container().instructions().len());
}

/// Set `COFFERDAM_BLESS=1` to write the file anew, and then read the difference as a change of policy.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_listing_is_the_one_that_was_reviewed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/container-x86_64.bpf.txt");
    let listing = container().listing();
    if std::env::var_os("COFFERDAM_BLESS").is_some() {
        std::fs::write(path, &listing).unwrap();
    }
    let reviewed = std::fs::read_to_string(path).unwrap_or_default();
    let changed = listing.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
    assert!(listing == reviewed, "not as reviewed; first difference: {changed:?}");
}

/// Runs `program` on every number near the table and on many arguments, and compares with [`verdict`].
fn agree(program: &[sock_filter], table: &[&[Line]]) {
    let lines = table.concat();
    let words = interesting(&lines);
    let mut random = Random(0x00c0_ffe5);
    for number in (0..=600).chain([X32 - 1, X32, X32_END - 1, X32_END, u32::MAX]) {
        for _ in 0..200 {
            let call = Call::new(number.into(), [(); 6].map(|()| random.argument(&words)));
            let (said, meant) = (run(program, &call), verdict(&lines, &call));
            assert_eq!(said, meant, "{call:x?}");
        }
    }
}

/// What `lines` say to a call of this architecture, read off without compiling.
fn verdict(lines: &[Line], call: &Call) -> u32 {
    if cfg!(target_arch = "x86_64") && (X32..X32_END).contains(&call.number) {
        return KILL;
    }
    let mut rule = lines.iter().find(|line| line.number == call.number).map_or(UNLISTED, |line| line.rule);
    loop {
        rule = match rule {
            Rule::Allow => return ALLOW,
            Rule::Deny(errno) => return deny(errno),
            Rule::Ask(question) => {
                let word = question.mask
                    & match question.word {
                        Word::Low(index) => call.arguments[index as usize] as u32,
                        Word::High(index) => (call.arguments[index as usize] >> 32) as u32,
                    };
                let case = question.cases.iter().find(|(values, _)| values.contains(&word));
                case.map_or(question.otherwise, |(_, rule)| *rule)
            }
        };
    }
}

/// The values and masks that the questions in `lines` mention: where a program goes wrong, if it does.
fn interesting(lines: &[Line]) -> Vec<u32> {
    fn collect(rule: Rule, into: &mut BTreeSet<u32>) {
        if let Rule::Ask(question) = rule {
            into.extend([question.mask, !question.mask]);
            collect(question.otherwise, into);
            for (values, rule) in question.cases {
                into.extend(*values);
                collect(*rule, into);
            }
        }
    }
    let mut words = BTreeSet::from([0, 1, u32::MAX]);
    lines.iter().for_each(|line| collect(line.rule, &mut words));
    words.into_iter().collect()
}

/// The same sequence of numbers in every run, so that a failure repeats (an xorshift generator).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly a value some question looks for; sometimes with one bit wrong, or with its high half set.
    fn argument(&mut self, words: &[u32]) -> u64 {
        let word = u64::from(words[self.next() as usize % words.len()]);
        match self.next() % 8 {
            0 => self.next(),
            1 => word ^ 1 << (self.next() % 32),
            2 => word | self.next() << 32,
            3 => word << 32,
            _ => word,
        }
    }
}

/// A system call as the kernel shows it to a filter.
#[derive(Debug)]
struct Call {
    number: u32,
    architecture: u32,
    arguments: [u64; 6],
}

impl Call {
    /// The call with these first arguments; the others are 0.
    fn new<const N: usize>(number: c_long, first: [u64; N]) -> Call {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&first);
        Call { number: number as u32, architecture: ARCHITECTURE, arguments }
    }

    /// The 32 bits at `offset` of `struct seccomp_data`; its instruction pointer is 0.
    fn word(&self, offset: u32) -> u32 {
        match (offset, offset.checked_sub(16)) {
            (0, _) => self.number,
            (4, _) => self.architecture,
            (_, None) => 0,
            (_, Some(at)) => (self.arguments[at as usize / 8] >> (at % 8 * 8)) as u32,
        }
    }
}

/// What `program` answers to `call`.
fn run(program: &[sock_filter], call: &Call) -> u32 {
    let mut register = 0;
    let mut at = 0;
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        let skip = |holds: bool| u32::from(if holds { jt } else { jf });
        let skipped = match code {
            RETURN => return k,
            LOAD => {
                register = call.word(k);
                0
            }
            AND => {
                register &= k;
                0
            }
            JUMP => k,
            EQUAL => skip(register == k),
            AT_LEAST => skip(register >= k),
            other => panic!("instruction {other:#x} at {at}"),
        };
        at += 1 + skipped as usize;
    }
}

/// What the container filter answers to a call.
fn answer<const N: usize>(number: c_long, first: [u64; N]) -> u32 {
    run(container().instructions(), &Call::new(number, first))
}

fn deny(errno: c_int) -> u32 {
    SECCOMP_RET_ERRNO | errno as u32
}

// ---- The kernel ----

#[test]
fn the_kernel_refuses_what_the_policy_refuses() {
    let allowed = 0;
    let calls = [
        ("a process that can still ask for its id", SYS_getpid, [0, 0, 0], allowed),
        ("a new user namespace", SYS_unshare, [CLONE_NEWUSER as u64, 0, 0], EPERM),
        ("a clone into a user namespace", SYS_clone, [CLONE_NEWUSER as u64, 0, 0], EPERM),
        ("clone3", SYS_clone3, [0, 0, 0], ENOSYS),
        ("a ring", SYS_io_uring_setup, [1, 0, 0], EPERM),
        ("a netlink socket", SYS_socket, [AF_NETLINK as u64, SOCK_RAW as u64, 0], EAFNOSUPPORT),
        ("a raw socket", SYS_socket, [AF_INET as u64, SOCK_RAW as u64, 1], EPERM),
        ("a local socket", SYS_socket, [AF_UNIX as u64, SOCK_DGRAM as u64, 0], allowed),
        ("input into a terminal", SYS_ioctl, [0, 0x5412, 0], EPERM),
        ("the same, disguised", SYS_ioctl, [0, 0x5412 | HIGH_BITS, 0], EPERM),
        ("limits of process 1", SYS_prlimit64, [1, 0, HIGH_BITS], EPERM),
        ("a limit of cores, which isn't changed", SYS_prlimit64, [0, u64::from(RLIMIT_CORE), 1], allowed),
        ("a filter of system calls", SYS_seccomp, [1, 0, 1], EINVAL),
        ("a number nobody knows", 600, [0, 0, 0], ENOSYS),
    ];
    let wrong = under(&container(), || {
        calls.iter().position(|(_, number, arguments, errno)| error_of(*number, *arguments) != *errno)
    });
    assert_eq!(wrong, Ok(None), "{:?}", wrong.map(|found| found.map(|index| calls[index])));
}

#[test]
fn the_kernel_refuses_every_line_that_denies() {
    let lines = CONTAINER.concat();
    let wrong = under(&container(), || {
        let nonsense = [u64::MAX; 3]; // Should a call run after all, it fails and the host is unharmed.
        lines.iter().position(|line| match line.rule {
            Rule::Deny(errno) => error_of(line.number.into(), nonsense) != errno,
            Rule::Allow | Rule::Ask(_) => false,
        })
    });
    assert_eq!(wrong, Ok(None), "{:?}", wrong.map(|found| found.map(|index| lines[index])));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_kernel_ends_a_process_that_uses_the_x32_interface() {
    let ended = under(&container(), || {
        error_of(c_long::from(X32) | SYS_getpid, [0; 3]);
        None
    });
    assert_eq!(ended, Err(SIGSYS));
}

/// Runs `body` in a child under `filter`: what it returns, or the signal that ended the child.
///
/// The child is a copy of one thread of the test program, whose other threads may have held locks: `body`
/// must not allocate, print or panic. It returns an index, which travels in the exit status.
fn under(filter: &Filter, body: impl FnOnce() -> Option<usize>) -> Result<Option<usize>, c_int> {
    let fine = 255;
    // SAFETY: the child makes only system calls, and ends without returning from this function.
    let child = unsafe { fork() };
    if child == 0 {
        error_of(SYS_setsid, [0; 3]); // Away from the terminal, which vhangup would end.
        error_of(SYS_prctl, [PR_SET_NO_NEW_PRIVS as u64, 1, 0]);
        let status = match filter.install() {
            Ok(()) => body().map_or(fine, |index| index as c_int % fine),
            Err(_) => fine - 1,
        };
        // SAFETY: ends the child, without running what the test program registered for its own end.
        unsafe { _exit(status) }
    }
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is writable.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    match WIFSIGNALED(status) {
        true => Err(WTERMSIG(status)),
        false if WEXITSTATUS(status) == fine => Ok(None),
        false => Ok(Some(WEXITSTATUS(status) as usize)),
    }
}

/// Makes a system call; the `errno` it fails with, or 0.
fn error_of(number: c_long, [a, b, c]: [u64; 3]) -> c_int {
    // SAFETY: no caller passes an address of ours: whatever a call would write to, it is refused.
    match unsafe { syscall(number, a, b, c, 0u64, 0u64, 0u64) } {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}
