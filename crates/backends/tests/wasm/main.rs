//! The Wasm backend's inner half: a worker without a jail, as a process of its own.

#![cfg(feature = "wasm")]
#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

mod alone;
mod hostile;
mod modules;
mod python;
mod setup;
mod templates;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use cofferdam_backends::wasm::wire::FromWorker;
use cofferdam_backends::wasm::worker;
use cofferdam_sys::fd;

use alone::Worker;

/// Set where this program is to be the worker.
const AS_WORKER: &str = "COFFERDAM_TEST_AS_WORKER";

/// More than any run here takes, on a machine that others use too.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program that the other tests start as a worker, and a test of nothing by itself.
#[test]
fn the_worker_itself() {
    if std::env::var_os(AS_WORKER).is_some() {
        worker::main().unwrap();
    }
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_worker_itself", "--nocapture"]).env(AS_WORKER, "1");
    command.stdout(std::process::Stdio::null());
    command
}

/// What came of a run.
struct Came {
    end: FromWorker,
    stdout: String,
    stderr: String,
}

/// A run with its streams, to its end.
struct Trial<'a> {
    script: Option<(&'a str, &'a str)>,
    argv: &'a [&'a str],
    envp: &'a [&'a str],
    stdin: &'a str,
}

impl Trial<'_> {
    fn run(&self, worker: &mut Worker) -> Came {
        let (stdin, ours) = fd::pipe().unwrap();
        let (stdout, out) = fd::pipe().unwrap();
        let (stderr, err) = fd::pipe().unwrap();
        let script = self.script.map(|(name, source)| (name, source.as_bytes()));
        let streams = [stdin, out, err];
        worker.start(script, self.argv, self.envp, &streams).unwrap();
        drop(streams);
        let text = self.stdin.to_owned();
        let fed = std::thread::spawn(move || {
            drop(std::io::Write::write_all(&mut std::fs::File::from(ours), text.as_bytes()));
        });
        let (stdout, stderr) = (all(stdout), all(stderr));
        let end = worker.end().unwrap();
        let text = |pipe: mpsc::Receiver<Vec<u8>>| {
            let bytes = pipe.recv_timeout(PATIENCE).expect("a stream is closed when the run has ended");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        drop(fed);
        Came { end, stdout, stderr }
    }
}

fn all(pipe: OwnedFd) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = std::fs::File::from(pipe).read_to_end(&mut bytes);
        let _ = send.send(bytes);
    });
    receive
}
