//! A worker without a jail, started and spoken to as the host does it.

#![allow(dead_code, reason = "the tests and the example each use a part")]

use std::error::Error;
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use cofferdam_backends::wasm::setup::Template;
use cofferdam_backends::wasm::wire::{FromWorker, Kind, PYTHON_PREOPENS, Preopen, Script, ToWorker};
use cofferdam_guest::wire::{Frame, Inbox};
use cofferdam_sys::{fd, fdpass};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A worker.
pub(crate) struct Worker {
    child: Child,
    control: UnixStream,
    inbox: Inbox,
    /// Everything that it may write lies in here.
    pub(crate) scratch: PathBuf,
}

impl Worker {
    /// One that runs a template, with folders of its own for everything that can be written.
    pub(crate) fn python(command: Command, template: &Template, memory_bytes: u64) -> Result<Self> {
        let files = (template.module.as_path(), Some(template.image.as_path()));
        Worker::open(command, files, Kind::Python, memory_bytes, |scratch| {
            let place = |(guest, writable): &(&CStr, bool)| {
                let guest = guest.to_string_lossy();
                let own = scratch.join(guest.trim_start_matches('/'));
                let jail = match &*guest {
                    "/usr/local/lib" => &template.library,
                    _ if guest.ends_with("mpl-data") => &template.data,
                    _ => {
                        let _ = fs::create_dir_all(&own);
                        &own
                    }
                };
                preopen(&guest, jail, *writable)
            };
            PYTHON_PREOPENS.iter().map(place).collect()
        })
    }

    /// One that runs any prepared file, or two.
    pub(crate) fn open(
        mut command: Command,
        (module, image): (&Path, Option<&Path>),
        kind: Kind,
        memory_bytes: u64,
        preopens: impl FnOnce(&Path) -> Vec<Preopen>,
    ) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = std::env::temp_dir().join(format!("cofferdam-worker-{}-{number}", std::process::id()));
        fs::create_dir(&scratch)?;
        let (control, theirs) = fdpass::pair()?;
        let child = command.stdin(OwnedFd::from(theirs)).spawn()?;
        drop(command); // it holds the other end
        let mut worker = Worker { child, control, inbox: Inbox::default(), scratch };
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let (module, image) = (path(module)?, image.map(path).transpose()?);
        let preopens = preopens(&worker.scratch);
        worker.say(&ToWorker::Open { module, image, kind, memory_bytes, preopens }, &[])?;
        match worker.hear()? {
            FromWorker::Ready(_) => Ok(worker),
            other => Err(format!("{other:?}").into()),
        }
    }

    /// Starts a run and doesn't wait for it.
    pub(crate) fn start(
        &mut self,
        script: Option<(&str, &[u8])>,
        argv: &[&str],
        envp: &[&str],
        streams: &[OwnedFd; 3],
    ) -> Result<()> {
        let script = match script {
            Some((name, source)) => Some(Script { name: CString::new(name)?, source: source.to_vec() }),
            None => None,
        };
        let strings = |words: &[&str]| words.iter().map(|&word| CString::new(word)).collect();
        let (argv, envp): (std::result::Result<_, _>, std::result::Result<_, _>) =
            (strings(argv), strings(envp));
        self.say(&ToWorker::Run { script, argv: argv?, envp: envp?, seed: fd::random_bytes()? }, streams)
    }

    /// Waits for the end of a run that was started.
    pub(crate) fn end(&mut self) -> Result<FromWorker> {
        match self.hear()? {
            FromWorker::Started => self.hear(),
            other => Ok(other),
        }
    }

    /// Wipes what the last run left.
    pub(crate) fn renew(&mut self) -> Result<()> {
        self.say(&ToWorker::Renew, &[])?;
        match self.hear()? {
            FromWorker::Clean => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    pub(crate) fn say(&mut self, message: &ToWorker, fds: &[OwnedFd]) -> Result<()> {
        let bytes = message.encode();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = fdpass::send(self.control.as_fd(), &bytes, &fds)?;
        Ok(self.control.write_all(&bytes[sent..])?)
    }

    pub(crate) fn hear(&mut self) -> Result<FromWorker> {
        loop {
            if let Some(answer) = self.inbox.take()? {
                return Ok(answer);
            }
            let mut buffer = [0; 4096];
            match self.control.read(&mut buffer)? {
                0 => return Err("the worker has ended".into()),
                count => self.inbox.push(&buffer[..count]),
            }
        }
    }

    /// What of the worker's memory is nobody else's and in no file, in KiB.
    pub(crate) fn private_kib(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let private = text.lines().filter(|line| line.starts_with("Private_Dirty:"));
        let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(kib.sum())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let _ = self.child.kill(); // it may be running for ever
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

pub(crate) fn preopen(guest: &str, jail: &Path, writable: bool) -> Preopen {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    Preopen { guest: text(guest.as_bytes()), jail: text(jail.as_os_str().as_bytes()), writable }
}
