//! The four forms of `run`, and what passes through: arguments, streams, exit codes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use cofferdam_testkit::product::{start, wait};

use crate::{needs_root, product};

#[test]
fn a_script_runs_by_its_extension_with_its_arguments() {
    needs_root!();
    let product = product();
    let script = product.file("say.py", "import sys; print(sys.argv)");
    let ran = product.run(&[script.to_str().unwrap(), "a b", "--json", "--", "-x"]).exits(0);
    assert_eq!(ran.stdout, "['say.py', 'a b', '--json', '--', '-x']\n");
}

#[test]
fn a_script_without_extension_runs_by_its_first_line() {
    needs_root!();
    let product = product();
    for (name, text) in [
        ("p", "#!/usr/bin/env python3\nprint('ok')"),
        ("s", "#!/bin/sh\necho ok"),
        ("pl", "#!/usr/bin/perl\nprint \"ok\\n\";"),
    ] {
        let script = product.file(name, text);
        assert_eq!(product.run(&[script.to_str().unwrap()]).exits(0).stdout, "ok\n", "{text}");
    }
}

#[test]
fn a_program_file_of_machine_code_runs() {
    needs_root!();
    let product = product();
    let copy = product.folder().join("echo-copy");
    std::fs::copy("/bin/echo", &copy).unwrap();
    assert_eq!(product.run(&[copy.to_str().unwrap(), "hi"]).exits(0).stdout, "hi\n");
}

#[test]
fn no_word_after_the_program_is_ever_an_option_of_ours() {
    needs_root!();
    let product = product();
    let print = "import sys; print(sys.argv[1:])";
    let script = product.file("argv.py", print);
    let file = product.folder().join("must-not-appear");
    let words = [
        "--pass-env",
        "SECRET",
        "--outcome",
        file.to_str().unwrap(),
        "--json",
        "--profile",
        "untrusted",
        "-c",
        "--",
        "--help",
    ];
    for program in [vec![script.to_str().unwrap()], vec!["-c", print], vec!["--", "python3", "-c", print]] {
        let mut command = product.command(["run", "--profile", "internal"]);
        command.args(&program).args(words).env("SECRET", "hunter2");
        let ran = cofferdam_testkit::product::finish(command).exits(0);
        let said = ran.stdout.replace('\'', "\"");
        assert_eq!(said, format!("{words:?}\n"), "{program:?}");
    }
    assert!(!file.exists());
}

#[test]
fn a_first_line_wins_over_an_extension() {
    needs_root!();
    let product = product();
    let script = product.file("b.sh", "#!/bin/bash\nset -o pipefail; words=(a b); echo ${#words[@]}");
    assert_eq!(product.run(&[script.to_str().unwrap()]).exits(0).stdout, "2\n");
}

#[test]
fn code_runs_from_the_command_line_in_each_language() {
    needs_root!();
    let product = product();
    assert_eq!(product.run(&["-c", "import sys; print(sys.argv)", "x"]).exits(0).stdout, "['-c', 'x']\n");
    assert_eq!(product.run(&["--lang", "sh", "-c", "echo \"$0 $1\"", "x"]).exits(0).stdout, "sh x\n");
}

#[test]
fn code_runs_from_standard_input_which_is_empty_afterwards() {
    needs_root!();
    let ran =
        product().run_with_input(&["-", "x"], b"import sys; print(sys.argv[1], repr(sys.stdin.read()))");
    assert_eq!(ran.exits(0).stdout, "x ''\n");
}

#[test]
fn code_that_is_too_long_for_an_argument_runs_all_the_same() {
    needs_root!();
    let code = format!("# {}\nprint('ok')", "x".repeat(300_000));
    assert_eq!(product().run_with_input(&["-"], code.as_bytes()).exits(0).stdout, "ok\n");
}

#[test]
fn arguments_arrive_byte_for_byte() {
    needs_root!();
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let product = product();
    let hostile: [&[u8]; 6] = [b"", b"--rm", b"a\nb", b"$(id)", b"\xff\xfe", b"' \" \\"];
    let mut command = product.command([
        "run",
        "--profile",
        "internal",
        "--",
        "python3",
        "-c",
        "import os,sys; print([os.fsencode(a) for a in sys.argv[1:]])",
    ]);
    command.args(hostile.iter().map(|bytes| OsStr::from_bytes(bytes)));
    let ran = cofferdam_testkit::product::finish(command).exits(0);
    assert_eq!(ran.stdout, "[b'', b'--rm', b'a\\nb', b'$(id)', b'\\xff\\xfe', b'\\' \" \\\\']\n");
}

#[test]
fn standard_input_passes_through_byte_for_byte() {
    needs_root!();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let ran = product().run_with_input(&["--", "sha256sum"], &bytes).exits(0);
    let expected = sha256(&bytes);
    assert!(ran.stdout.starts_with(&expected), "{ran:?}");
}

fn sha256(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child =
        std::process::Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout[..64].to_vec()).unwrap()
}

#[test]
fn input_that_nobody_reads_does_not_hold_the_run() {
    needs_root!();
    let ran = product().run_with_input(&["--", "true"], &vec![b'x'; 10_000_000]).exits(0);
    assert!(ran.took < Duration::from_secs(20), "{ran:?}");
}

#[test]
fn the_two_output_streams_stay_apart_and_whole() {
    needs_root!();
    let ran = product()
        .run(&[
            "--",
            "sh",
            "-c",
            "head -c 3000000 /dev/zero | tr '\\0' o; head -c 3000000 /dev/zero | tr '\\0' e >&2",
        ])
        .exits(0);
    assert_eq!(ran.stdout.len(), 3_000_000);
    assert!(ran.stdout.bytes().all(|byte| byte == b'o'));
    assert_eq!(ran.stderr.bytes().filter(|byte| *byte == b'e').count(), 3_000_000);
}

#[test]
fn the_programs_own_exit_code_comes_out() {
    needs_root!();
    let product = product();
    for code in [0, 1, 2, 77, 124, 255] {
        let _ = product.run(&["--", "sh", "-c", &format!("exit {code}")]).exits(code);
    }
    let _ = product.run(&["--", "sh", "-c", "kill -TERM $$"]).exits(128 + 15);
}

#[test]
fn a_program_that_cannot_be_found_or_executed_says_so_at_once() {
    needs_root!();
    let product = product();
    for (program, code) in
        [("no-such-program", 127), ("/usr/bin/no-such", 127), ("/etc/passwd", 126), ("/usr", 126)]
    {
        let ran = product.run(&["--", program]).exits(code);
        assert!(ran.stderr.contains("to mend it"), "{ran:?}");
        assert!(ran.took < Duration::from_secs(5), "{ran:?}");
    }
}

#[test]
fn a_script_whose_interpreter_is_missing_is_not_found() {
    needs_root!();
    let product = product();
    let script = product.file("odd", "#!/opt/no/such/interpreter\n");
    let ran = product.run(&[script.to_str().unwrap()]).exits(127);
    assert!(ran.stderr.contains("#!"), "{ran:?}");
}

#[test]
fn the_working_directory_is_the_workspace_and_the_home_can_be_written() {
    needs_root!();
    let script = "pwd; echo $HOME; id -u; touch a ~/b /tmp/c /dev/shm/d /var/tmp/e && echo written";
    let ran = product().run(&["--", "sh", "-c", script]).exits(0);
    assert_eq!(ran.stdout, "/workspace\n/home/user\n1000\nwritten\n");
}

#[test]
fn only_named_variables_get_in() {
    needs_root!();
    let product = product();
    let mut command = product.command([
        "run",
        "--profile",
        "internal",
        "--pass-env",
        "NAMED",
        "--env",
        "SET=a=b",
        "--",
        "env",
    ]);
    command.env("NAMED", "passed").env("SECRET", "hunter2");
    let ran = cofferdam_testkit::product::finish(command).exits(0);
    let mut lines: Vec<_> = ran.stdout.lines().collect();
    lines.sort_unstable();
    // Where programs find what they should trust, if something here captures what they send.
    lines.retain(|line| !line.contains("=/run/trust/"));
    assert_eq!(
        lines,
        [
            "HOME=/home/user",
            "LANG=C.UTF-8",
            "LOGNAME=user",
            "NAMED=passed",
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE=1",
            "PYTHONUNBUFFERED=1",
            "SET=a=b",
            "SHELL=/bin/sh",
            "USER=user",
        ]
    );
}

#[test]
fn a_closed_standard_output_ends_the_run() {
    needs_root!();
    let product = product();
    let mut command = product.command(["run", "--profile", "internal", "--", "yes"]);
    let began = Instant::now();
    let mut child = start(&mut command);
    drop(child.stdout.take());
    let ran = wait(child, began);
    assert_eq!(ran.code, 141, "{ran:?}");
    assert!(ran.took < Duration::from_secs(10), "{ran:?}");
}

#[test]
fn a_reader_that_never_reads_does_not_hold_the_deadline() {
    needs_root!();
    let product = product();
    let mut command = product.command(["run", "--profile", "internal", "--timeout", "1s", "--", "yes"]);
    let began = Instant::now();
    let mut child = start(&mut command);
    let unread = child.stdout.take();
    let ran = wait(child, began);
    drop(unread);
    assert_eq!(ran.code, 124, "{ran:?}");
    assert!(ran.took < Duration::from_secs(9), "{ran:?}");
}

#[test]
fn a_reader_that_never_reads_does_not_hold_us_against_a_signal() {
    needs_root!();
    let product = product();
    let mut command = product.command([
        "run",
        "--profile",
        "internal",
        "--",
        "sh",
        "-c",
        "head -c 300000 /dev/zero; echo done >&2",
    ]);
    let began = Instant::now();
    let mut child = start(&mut command);
    let unread = child.stdout.take();
    std::thread::sleep(Duration::from_millis(500)); // the program has ended or waits for its reader
    interrupt(child.id());
    interrupt(child.id());
    std::thread::sleep(Duration::from_millis(100));
    interrupt(child.id());
    let ran = wait(child, began);
    drop(unread);
    assert_eq!(ran.code, 130, "{ran:?}");
}

#[test]
fn whoever_started_us_may_ignore_the_end_of_children() {
    needs_root!();
    let product = product();
    let plain = product.command(["run", "--profile", "internal", "--", "sh", "-c", "echo hi; exit 3"]);
    let mut command = std::process::Command::new("/usr/bin/python3");
    command.args(["-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"]);
    command.arg(plain.get_program()).args(plain.get_args()).env("COFFERDAM_STATE", product.state());
    let ran = cofferdam_testkit::product::finish(command).exits(3);
    assert_eq!(ran.stdout, "hi\n");
    assert!(ran.took < Duration::from_secs(10), "{ran:?}");
}

#[test]
fn the_first_signal_is_the_programs_and_the_second_kills() {
    needs_root!();
    let product = product();
    let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let mut command = product.command(["run", "--profile", "internal", "--", "sh", "-c", script]);
    let began = Instant::now();
    let mut child = start(&mut command);
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready\n");
    interrupt(child.id());
    assert_eq!(line(&mut out), "caught\n");
    interrupt(child.id());
    assert_eq!(wait(child, began).code, 130);
}

#[test]
fn a_signal_reaches_whatever_runs_in_the_foreground() {
    needs_root!();
    let product = product();
    let script = "echo ready; sleep 307.3; echo after";
    let mut command = product.command(["run", "--profile", "internal", "--", "sh", "-c", script]);
    let began = Instant::now();
    let mut child = start(&mut command);
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready\n");
    interrupt(child.id());
    let ran = wait(child, began);
    assert!(ran.code == 130 && ran.took.as_secs() < 10, "the shell's child ends too: {ran:?}");
}

#[test]
fn what_python_has_printed_is_there_although_it_is_killed() {
    needs_root!();
    let code = "import time; print('said'); time.sleep(60)";
    let ran = product().run(&["--timeout", "1s", "-c", code]).exits(124);
    assert_eq!(ran.stdout, "said\n");
}

#[test]
fn a_program_that_dies_of_our_signal_was_cancelled() {
    needs_root!();
    let product = product();
    let mut command =
        product.command(["run", "--profile", "internal", "--", "sh", "-c", "echo ready; exec sleep 60"]);
    let began = Instant::now();
    let mut child = start(&mut command);
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready\n");
    interrupt(child.id());
    assert_eq!(wait(child, began).code, 130);
}

fn line(out: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line
}

fn interrupt(pid: u32) {
    let status = std::process::Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}
