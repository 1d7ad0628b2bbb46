//! Programs inside that wait, so that the host can be looked at meanwhile.

use std::process::Stdio;
use std::time::Instant;

use cofferdam_testkit::host::processes_with;
use cofferdam_testkit::product::{Started, start, wait};
use cofferdam_testkit::rows::Row;

/// A program inside that waits, seen from outside.
pub(crate) struct Waiting {
    child: Started,
    /// Its number on the host.
    pub(crate) pid: i32,
    /// What it said before.
    pub(crate) said: String,
}

/// Starts a shell inside, which runs a script and waits.
pub(crate) fn waiting(row: &Row, script: &str) -> Waiting {
    let mark = format!("row-{}-{:?}", std::process::id(), row.user());
    let script = format!("{script}; echo .; read line");
    let mut command = row.command(&["--quiet", "--", "sh", "-c", &script, &mark]);
    let mut child = start(command.stdin(Stdio::piped()));
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.ends_with(".\n") {
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut said).unwrap(), 0, "{said}");
    }
    let line = format!("sh\0-c\0{script}\0{mark}\0");
    let is_inner =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|at| at == line.as_bytes());
    let pid = processes_with(&mark).into_iter().find(is_inner).unwrap();
    Waiting { child, pid, said }
}

impl Waiting {
    /// Lets it end, and waits until Cofferdam has.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        wait(self.child, Instant::now());
    }
}
