//! Runs a command and hands over every line of its output as it comes.
//!
//! Both streams go through one pipe: the name of a test binary is on cargo's stderr and the tests' own
//! lines are on stdout, and only their order says what belongs together.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::problem::Problem;

/// How long the pipe may stay open after the command ended. A process that a test leaves behind
/// inherits it, and waiting for that one could take forever.
const AFTERLIFE: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(100);

/// Runs `command` to its end. Bytes that aren't UTF-8 arrive replaced.
pub(crate) fn each_line(command: &mut Command, each: impl FnMut(&str)) -> Result<ExitStatus, Problem> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (reader, writer) = std::io::pipe().map_err(Problem::starting(&name))?;
    let second = writer.try_clone().map_err(Problem::starting(&name))?;
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(second).spawn();
    // The command keeps its ends of the pipe until they are replaced, and the end of the output is seen
    // only when the last one is closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(Problem::starting(&name))?;
    let lines = read_lines(reader);
    follow(&mut child, &lines, each);
    child.wait().map_err(Problem::starting(&name))
}

fn read_lines(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn follow(child: &mut Child, lines: &Receiver<String>, mut each: impl FnMut(&str)) {
    let mut ended: Option<Instant> = None;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended.is_none() && matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            ended = Some(Instant::now());
        }
        if ended.is_some_and(|since| since.elapsed() > AFTERLIFE) {
            eprintln!("note: a process that a test started still holds the output open; it was left behind");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_arrive_in_the_order_they_were_written() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        let status = each_line(&mut command, |line| seen.push(line.to_owned())).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn a_process_left_behind_does_not_keep_us_waiting() {
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 30 & echo done"]);
        let status = each_line(&mut command, |_| {}).unwrap();
        assert!(status.success());
        assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    }
}
