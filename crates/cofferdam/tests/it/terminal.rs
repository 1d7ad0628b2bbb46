//! `-t`: a private terminal inside. The program is driven through a pseudo-terminal, as by a person.

use std::process::Command;

use cofferdam_testkit::product::finish;

use crate::{needs_root, product};

/// Starts the words after the script on a terminal and types what the steps say; see the script.
const DRIVER: &str = include_str!("drive_terminal.py");

/// Drives `run -t` with these words; gives what the terminal showed, step by step, and the exit code.
fn drive(words: &[&str], steps: &[&str]) -> Vec<String> {
    let product = product();
    let plain = product.command(["run", "--profile", "internal", "-t"].iter().chain(words));
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", DRIVER]).arg(steps.join("\n")).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = finish(command).exits(0);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_program_has_a_terminal_of_its_own_and_hears_of_its_size() {
    needs_root!();
    let seen = drive(
        &["--", "sh"],
        &[
            "size 33 101",
            "type stty size; tty; ps -o tty= -p $$; ls /dev/pts | wc -l",
            "size 40 120",
            "type stty size",
        ],
    );
    assert!(seen[1].contains("33 101\r\n/dev/pts/0\r\npts/0") && seen[1].contains("\r\n2\r\n"), "{seen:?}");
    assert!(seen[3].contains("40 120"), "{seen:?}");
}

#[test]
fn the_first_control_c_is_the_programs_and_a_second_in_a_row_ends_the_run() {
    needs_root!();
    let seen = drive(
        &["--", "sh"],
        &[
            "type sleep 305.2",
            "keys \\x03",
            "type trap '' INT; sleep 305.1",
            "keys \\x03",
            "keys \\x03",
            "wait",
        ],
    );
    assert!(seen[1].ends_with("$ "), "the shell is back: {seen:?}");
    assert!(seen[5].contains("exit 130"), "{seen:?}");
}

#[test]
fn our_terminal_is_as_it_was_afterwards() {
    needs_root!();
    let seen = drive(&["--", "sh", "-c", "stty raw; echo done"], &["wait"]);
    assert!(seen[0].contains("exit 0") && seen[0].contains("terminal unchanged"), "{seen:?}");
}

#[test]
fn nothing_can_be_typed_into_the_terminal_that_we_run_on() {
    needs_root!();
    let inject = "import fcntl, termios
for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):
    try: fcntl.ioctl(0, request, b'x'); print('typed')
    except OSError as error: print(error.strerror)
    except OverflowError: print('too large')";
    let seen = drive(&["-c", inject], &["wait"]);
    assert!(!seen[0].contains("typed") && seen[0].contains("Operation not permitted"), "{seen:?}");
}

#[test]
fn without_a_terminal_of_ours_the_program_has_one_all_the_same() {
    needs_root!();
    let ran = product().run_with_input(&["-t", "--quiet", "--", "sh", "-c", "tty; cat"], b"typed\n").exits(0);
    // Its echo may come before or after what the first command says.
    assert!(ran.stdout.contains("/dev/pts/0\r\n"), "{ran:?}");
    assert_eq!(ran.stdout.matches("typed\r\n").count(), 2, "{ran:?}");
}

#[test]
fn a_terminal_of_ours_that_nobody_reads_does_not_hold_the_deadline() {
    needs_root!();
    let began = std::time::Instant::now();
    let seen = drive(&["--timeout", "1s", "--", "yes"], &["stare 9", "wait"]);
    assert_eq!(seen[0], "over");
    assert!(
        seen[1].contains("exit 124") && seen[1].contains("terminal unchanged"),
        "{}",
        &seen[1][seen[1].len() - 200..]
    );
    assert!(began.elapsed().as_secs() < 20);
}
