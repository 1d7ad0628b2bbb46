//! The broker's own side: a process that mints, revokes and tries, and puts credentials into requests, for as long as the
//! host is at the other end of its standard input. When that is gone, whatever it was doing, everything that lives is
//! revoked.
//!
//! - `tasks` has the leases of the runs that it serves, `stand_ins` what of them requests carry, `delivery` what programs
//!   get. `end` ends them, `timer` before that those whose time is over.
//! - `orphans` are those of runs that nobody serves any more; `trials` mint to see whether an issuer does what it should.
//! - `host` is how it tells what happens; over its standard output come the ways by which proxies reach it (`ways`).

mod delivery;
mod end;
mod host;
mod orphans;
mod refusal;
mod stand_ins;
mod tasks;
#[cfg(test)]
mod tests;
mod timer;
mod trials;
mod ways;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use cofferdam_core::secret::Secret;
use cofferdam_sys::{fd, process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::RootCertStore;
use tokio::sync::mpsc;

use crate::config::IssuerConfig;
use crate::control::{self, Answer, Numbered, Refusal, ToBroker};
use crate::upstream::Tls;
use host::Host;
use tasks::Tasks;

/// What it is to serve, or why there is nothing.
pub type Issuers = Result<Vec<IssuerConfig>, Unserved>;

/// Why nothing can be minted: the operator's file is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// What is wrong, with the file's name.
    pub message: String,
    /// What to do next.
    pub fix: String,
}

/// What the process is for. Returns the exit status.
///
/// To be called by a process with one thread, as the first thing that it does: `issuers` is read after its memory is
/// out of reach. `state` is where the journal is, and `roots` are whom it trusts to say who a host is.
#[must_use]
pub fn main(
    state: impl FnOnce() -> std::path::PathBuf,
    issuers: impl FnOnce() -> Issuers,
    roots: impl FnOnce() -> RootCertStore,
) -> u8 {
    // Each connection that is handed over takes two. As many as may be, where that can be had.
    let most = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most.maximum, ..most });
    let served = process::become_undumpable().and_then(|()| {
        let tls = Tls::new(roots()).map_err(io::Error::other)?;
        serve(&state(), issuers(), tls)
    });
    u8::from(served.is_err())
}

fn serve(state: &Path, issuers: Issuers, tls: Tls) -> io::Result<()> {
    let control = Arc::new(fd::inherited(0).map(UnixStream::from)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let mut hears = heard(control.try_clone()?)?;
    let host = Rc::new(Host::new(control.clone()));
    let tasks = Rc::new(Tasks::new(state, issuers, host.clone())?);
    let ways = fd::inherited(1)?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(async move {
        ways::accept(ways, &tasks, tls)?;
        while let Some(Numbered { number, message }) = hears.recv().await {
            if let ToBroker::Written { event, is_written } = message {
                host.written(event, is_written);
                continue;
            }
            let (tasks, control) = (tasks.clone(), control.clone());
            tokio::task::spawn_local(async move {
                let (answer, secrets) = answer(&tasks, message).await;
                let secrets: Vec<&Secret> = secrets.iter().collect();
                let message = Numbered { number, message: answer };
                let _ = control::write(&mut &*control, &message, &secrets); // it may be gone
            });
        }
        // The host is gone. What is still being minted is in the journal, for the next command.
        tasks.end_all().await;
        Ok(())
    }))
}

/// What the host says, read by a thread of its own.
fn heard(mut from: UnixStream) -> io::Result<mpsc::UnboundedReceiver<Numbered<ToBroker>>> {
    let (said, hears) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("host".to_owned()).spawn(move || {
        // Its end, an error and nonsense are one: there is nobody to serve.
        while let Ok(Some((message, _))) = control::read::<ToBroker>(&mut from) {
            if said.send(message).is_err() {
                break;
            }
        }
    })?;
    Ok(hears)
}

async fn answer(tasks: &Rc<Tasks>, message: ToBroker) -> (Answer, Vec<Secret>) {
    match message {
        ToBroker::Describe { issuer } => (tasks.describe(&issuer).unwrap_or_else(refused), vec![]),
        ToBroker::Prepare { task, run, asks } => match tasks.prepare(task, &run, asks).await {
            Ok((variables, secrets, leases)) => (Answer::Prepared { variables, leases }, secrets),
            Err(refusal) => (refused(refusal), vec![]),
        },
        ToBroker::End { task } => (Answer::Ended { leases: tasks.end(task).await }, vec![]),
        ToBroker::Sweep(whose) => {
            let swept = tasks.sweep(&whose).await;
            (swept.map_or_else(refused, |leases| Answer::Ended { leases }), vec![])
        }
        ToBroker::Swept => {
            tasks.forget_swept();
            (Answer::Ended { leases: vec![] }, vec![])
        }
        ToBroker::Test { run, issuer } => {
            let tested = trials::all(tasks, &run, issuer.as_deref()).await;
            (tested.map_or_else(refused, |issuers| Answer::Tested { issuers }), vec![])
        }
        ToBroker::Written { .. } => (Answer::Ended { leases: vec![] }, vec![]), // taken before
    }
}

/// Why something isn't done, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    kind: Refusal,
    message: String,
    fix: String,
}

fn refused(Refused { kind, message, fix }: Refused) -> Answer {
    Answer::Refused { kind, message, fix }
}
