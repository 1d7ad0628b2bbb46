//! The lines of a batch, read and understood on a thread of their own.
//!
//! A read from a pipe or a terminal can wait for ever and can't be called off, and a long line takes
//! its time; neither may hold up the thread that has the deadlines. A line is handed over as soon as
//! its end is there, so that whoever waits for an answer before the next line gets it.

use std::io::{self, BufRead};

use tokio::sync::mpsc;

use super::job::{self, Job, Refused};

/// The longest line, in bytes: what a program and its files may be together.
const LINE_BYTES: usize = 64 << 20;

/// The most values in a line: each takes many times its letters once it is read. Arguments, variables
/// and files come to some thousands.
const VALUES: usize = 50_000;

/// As much of a line that is too long as is looked through for its id, in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// What a line was.
pub(super) type Read = io::Result<Result<Job, Refused>>;

/// Starts to read standard input. One line is read ahead.
///
/// # Errors
///
/// What the kernel said: EAGAIN where no further thread may be started.
pub(super) fn start() -> io::Result<mpsc::Receiver<Read>> {
    let (send, lines) = mpsc::channel(1);
    std::thread::Builder::new()
        .spawn(move || read_all(io::stdin().lock(), |read| send.blocking_send(read).is_ok()))?;
    Ok(lines)
}

/// Reads to the end, or until nobody wants more.
fn read_all(mut input: impl BufRead, mut hand_over: impl FnMut(Read) -> bool) {
    for number in 1.. {
        let read = match next_line(&mut input) {
            Ok(Line::End) => return,
            Ok(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
            Ok(Line::Whole(line)) if values(&line) > VALUES => {
                let message = format!("this line has more than {VALUES} values");
                let fault = job::bad(message, "put many values into a file of the job, as one text");
                let head = &line[..line.len().min(HEAD_BYTES)];
                Ok(Err(Refused { id: job::id_of(head, number), fault }))
            }
            Ok(Line::Whole(line)) => Ok(job::read(&line, number)),
            Ok(Line::TooLong(head)) => {
                let message = format!("this line is longer than {} MiB", LINE_BYTES >> 20);
                let fault =
                    job::bad(message, "keep large data out of the job: let the program make or fetch it");
                Ok(Err(Refused { id: job::id_of(&head, number), fault }))
            }
            Err(error) => Err(error),
        };
        let failed = read.is_err();
        if !hand_over(read) || failed {
            return;
        }
    }
}

/// At least as many values as a line has: what separates them, outside of texts.
fn values(line: &[u8]) -> usize {
    let (mut count, mut within, mut escaped) = (1, false, false);
    for &byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if within => escaped = true,
            b'"' => within = !within,
            b',' | b'[' | b'{' if !within => count += 1,
            _ => {}
        }
    }
    count
}

enum Line {
    /// There is none.
    End,
    /// All of it, without the line feed.
    Whole(Vec<u8>),
    /// Its beginning; the rest was skipped.
    TooLong(Vec<u8>),
}

fn next_line(input: &mut impl BufRead) -> io::Result<Line> {
    let mut line = vec![];
    let mut too_long = false;
    loop {
        let piece = match input.fill_buf() {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if piece.is_empty() {
            return Ok(match (line.is_empty(), too_long) {
                (_, true) => Line::TooLong(line),
                (true, false) => Line::End,
                (false, false) => Line::Whole(line),
            });
        }
        let end = piece.iter().position(|&byte| byte == b'\n');
        let part = &piece[..end.unwrap_or(piece.len())];
        if !too_long && line.len() + part.len() > LINE_BYTES {
            too_long = true;
            line.truncate(HEAD_BYTES);
            line.shrink_to_fit();
        }
        if !too_long {
            line.extend_from_slice(part);
        }
        let taken = part.len() + usize::from(end.is_some());
        input.consume(taken);
        if end.is_some() {
            return Ok(if too_long { Line::TooLong(line) } else { Line::Whole(line) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::job_id::JobId;

    fn all(input: impl io::Read) -> Vec<Result<JobId, (JobId, String)>> {
        let mut found = vec![];
        read_all(io::BufReader::new(input), |read| {
            found.push(match read.unwrap() {
                Ok(job) => Ok(job.id),
                Err(refused) => Err((refused.id, refused.fault.message)),
            });
            true
        });
        found
    }

    #[test]
    fn what_would_take_more_memory_than_it_is_long_is_refused() {
        let many = format!("{{\"id\":\"x\",\"argv\":[{}\"\"]}}\n", "\"\",".repeat(VALUES));
        let text = format!("{{\"id\":\"y\",\"code\":\"{}\"}}\n", ",[{".repeat(VALUES));
        let mut reads = vec![];
        read_all(io::Cursor::new(many + &text), |read| {
            reads.push(read.unwrap());
            true
        });
        assert!(matches!(&reads[0], Err(Refused { fault, .. }) if fault.message.contains("values")));
        assert!(reads[1].is_ok(), "commas in a text are no values");
    }

    #[test]
    fn blank_lines_are_skipped_and_counted_and_the_last_needs_no_end() {
        let found = all(&b"\n{\"code\":\"1\"}\r\n  \n\n{\"code\":\"2\"}"[..]);
        assert_eq!(found, [Ok(JobId::Number(2)), Ok(JobId::Number(5))]);
        assert_eq!(all(&b""[..]), []);
    }

    #[test]
    fn a_line_that_is_too_long_spoils_only_itself() {
        use io::Read as _;
        let long =
            io::Cursor::new(b"{\"id\":\"long\",\"code\":\"").chain(io::repeat(b'x').take(LINE_BYTES as u64));
        let found = all(long.chain(&b"\"}\n{\"code\":\"1\"}\n"[..]));
        let (id, message) = found[0].clone().unwrap_err();
        assert_eq!((id, found[1].clone()), (JobId::Text("long".into()), Ok(JobId::Number(2))));
        assert!(message.contains("longer than 64 MiB"), "{message}");
    }

    #[test]
    fn bytes_that_are_no_text_spoil_only_their_line() {
        let found = all(&b"{\"id\":1,\"code\":\"\xff\"}\n{\"id\":2,\"code\":\"1\"}\n"[..]);
        let (id, message) = found[0].clone().unwrap_err();
        assert!(id == JobId::Number(1) && message.contains("column 17"), "{message}");
        assert_eq!(found[1], Ok(JobId::Number(2)));
    }
}
