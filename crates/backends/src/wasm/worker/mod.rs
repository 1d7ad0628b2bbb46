//! The worker: a process inside a jail that runs one program of WebAssembly after the other, each in a
//! fresh instance; or that compiles a module for such a one.
//!
//! It is told what to do over the socket that is its standard input ([`wire`](super::wire)), and trusts the
//! host. The program inside is kept by the engine; the jail keeps whoever breaks out of that. The deadline is
//! the host's, who kills the jail: code here has no counters in it that would make it slower.

mod limits;
mod network;
mod program;
pub(super) mod python;
mod resident;
mod streams;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use cofferdam_guest::wire::{Frame, Inbox};
use cofferdam_sys::{fd, fdpass, process};
use wasmtime::Engine;

use self::network::Network;
use self::program::{End, Ended, Program, Run};
use self::resident::Resident;
use self::streams::Stream;
use super::engine::{self, HOST_STACK_BYTES, STACK_BYTES};
use super::setup;
use super::wire::{FromWorker, Kind, ToWorker, Trap, VERSION};

/// Where the control socket is: standard input, since a worker is started like any program.
const CONTROL: i32 = 0;

/// Obeys the host until it hangs up.
///
/// # Errors
///
/// If the socket fails, or if it carries what is no frame. The process should end then, and the host sees
/// that it did.
pub fn main() -> io::Result<()> {
    // First, since it opens a file of `/proc` that belongs to somebody else once we are undumpable.
    let engine =
        engine::for_running().map_err(|error| io::Error::other(engine::words(&error).to_string()))?;
    let resident = Resident::new();
    process::become_undumpable()?;
    let control = Arc::new(UnixStream::from(fd::inherited(CONTROL)?));
    // A thread of our own, because the stack of the first is as large as whoever started us said.
    let worker = thread::Builder::new().stack_size(STACK_BYTES + 2 * HOST_STACK_BYTES);
    let serve =
        || Worker { engine, resident, control, inbox: Inbox::default(), fds: vec![], program: None }.serve();
    let worker = worker.spawn(serve);
    worker?.join().unwrap_or_else(|_| Err(io::Error::other("the worker broke down")))
}

struct Worker {
    engine: Engine,
    resident: Resident,
    control: Arc<UnixStream>,
    inbox: Inbox,
    /// Descriptors that came and weren't used yet.
    fds: Vec<OwnedFd>,
    program: Option<Program>,
}

impl Worker {
    fn serve(mut self) -> io::Result<()> {
        // Sleeping and waiting for input need it; one thread beside ours drives it.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let _entered = runtime.enter();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (count, fds) = fdpass::receive(self.control.as_fd(), &mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            self.fds.extend(fds);
            self.inbox.push(&buffer[..count]);
            while let Some(message) = self.inbox.take().map_err(io::Error::other)? {
                self.obey(message)?;
            }
        }
    }

    fn say(&mut self, answer: &FromWorker) -> io::Result<()> {
        (&*self.control).write_all(&answer.encode())
    }

    fn obey(&mut self, message: ToWorker) -> io::Result<()> {
        match message {
            ToWorker::Compile { kind } => {
                let answer = match <[OwnedFd; 2]>::try_from(std::mem::take(&mut self.fds)) {
                    Ok([module, code]) => compile(kind, module, code),
                    Err(_) => Err("a module to compile comes with two descriptors".to_owned()),
                };
                self.say(&answer.map_or_else(FromWorker::Failed, |()| FromWorker::Compiled))
            }
            ToWorker::Open { module, image, kind, memory_bytes, preopens } => {
                let opened =
                    Program::open(&self.engine, &module, image.as_deref(), kind, memory_bytes, preopens);
                let answer = match opened {
                    Ok(program) => {
                        self.program = Some(program);
                        FromWorker::Ready(VERSION)
                    }
                    Err(refusal) => FromWorker::Failed(refusal),
                };
                self.say(&answer)
            }
            ToWorker::Renew => {
                for folder in self.program.iter().flat_map(Program::writable) {
                    empty(folder)?;
                }
                self.say(&FromWorker::Clean)
            }
            ToWorker::Dialled | ToWorker::NotDialled => {
                Err(io::Error::other("the host answers what nobody asked"))
            }
            ToWorker::Run { script, argv, envp, seed } => self.run(&Run { script, argv, envp, seed }),
        }
    }

    fn run(&mut self, run: &Run) -> io::Result<()> {
        let Ok(fds) = <[OwnedFd; 3]>::try_from(std::mem::take(&mut self.fds)) else {
            return self.say(&FromWorker::Failed("a run comes with three descriptors".to_owned()));
        };
        let Some(program) = &self.program else {
            return self.say(&FromWorker::Failed("there is no program open".to_owned()));
        };
        let streams = fds.map(Stream::new);
        let mut said = Ok(());
        let mut control = &*self.control;
        let mut started = || said = control.write_all(&FromWorker::Started.encode());
        let network = Network::new(Arc::clone(&self.control));
        let mut ended = program.run(run, &streams, network, &mut started);
        said?;
        let answer = match ended.as_ref().map(|ended| &ended.end) {
            Ok(End::Exited(code)) => FromWorker::Exited(*code),
            Ok(&End::Trapped(trap)) => {
                let _ = streams[2].write(words(trap).as_bytes()); // nobody may be reading
                FromWorker::Trapped(trap)
            }
            Err(refusal) => FromWorker::Failed(refusal.clone()),
        };
        // Whoever reads the output sees its end before we say so.
        streams.iter().for_each(Stream::close);
        self.say(&answer)?;
        // Nobody waits for this, or for the instance to be wiped.
        let _ = process::give_back_stack(); // it is counted with what the next one may have
        if let Some(memory) = ended.as_mut().ok().and_then(Ended::memory) {
            self.resident.look(memory);
        }
        Ok(())
    }
}

/// Reads a module, and writes what is compiled of it.
fn compile(kind: Kind, module: OwnedFd, code: OwnedFd) -> Result<(), String> {
    let mut wasm = vec![];
    fs::File::from(module).read_to_end(&mut wasm).map_err(|error| format!("read the module: {error}"))?;
    let compiled = setup::compile(&wasm, kind).map_err(|error| error.to_string())?;
    fs::File::from(code).write_all(&compiled).map_err(|error| format!("write what was compiled: {error}"))
}

/// What a person reads where a program was ended by the engine.
fn words(trap: Trap) -> &'static str {
    match trap {
        Trap::Memory => "The program needed more memory than it may have.\n",
        Trap::Other => "The program was ended: it did what WebAssembly does not allow.\n",
        Trap::Stack => "The program was ended: its stack was full.\n",
        Trap::Unreachable => "The program aborted.\n",
    }
}

/// Removes everything in a folder, without following a link, and whatever its times may tell.
fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fd::touch(fs::File::open(folder)?.as_fd())
}
