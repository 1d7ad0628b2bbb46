//! Teardown: after a halt nothing of the program lives, after a close nothing is there at all.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_core::backend::{BackendError, Ending, Running, Session};
use cofferdam_core::outcome::RunId;

use super::trial::{GONE_WITHIN, IDLE, Trial, exec, file, is_gone, listen, new_run, said, until_it_says};
use super::{Broken, Checked, Subject, Verdict};
use crate::host::{Snapshot, eventually, processes_with};

/// Starts a program that leaves others about, and waits until all of them run.
async fn busy(
    trial: &Trial<'_>,
    session: &mut dyn Session,
    marker: &str,
) -> Result<Box<dyn Running>, Broken> {
    let code = format!(
        "trap '' TERM INT HUP; sleep {marker} & (setsid sleep {marker} </dev/null >/dev/null 2>&1 &)
         echo on; wait; sleep {marker}"
    );
    let running = session.exec(exec(trial.program(&code, IDLE))).await.map_err(said("exec"))?;
    until_it_says(running.as_ref(), "on").await?;
    Ok(running)
}

/// Opens a sandbox with a busy program, hands it over, and looks at what is left.
fn after(
    trial: &Trial<'_>,
    end: impl AsyncFnOnce(Box<dyn Session>, Box<dyn Running>, String) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let (run, marker): (RunId, String) = (new_run(), trial.marker());
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let running = busy(trial, session.as_mut(), &marker).await?;
        end(session, running, marker.clone()).await
    })?;
    is_gone(&marker)?;
    trial.left_nothing(&run)
}

pub(super) fn after_a_halt_everything_is_dead(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    after(&trial, async |mut session, running, marker| {
        let left = session.halt().await.map_err(said("halt"))?;
        is_gone(&marker)?;
        must!(left.processes >= 3 || !trial.has_sh(), "{} processes were counted", left.processes);
        // The output ends, since nobody is there who could write to it.
        listen(running.as_ref()).await?;
        drop(running);
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn a_halted_sandbox_takes_nothing_and_says_the_same_again(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    after(&trial, async |mut session, running, _| {
        must!(session.is_alive(), "a sandbox with a program isn't alive");
        let left = session.halt().await.map_err(said("halt"))?;
        must!(!session.is_alive(), "a sandbox that was halted is alive");
        let again = session.halt().await.map_err(said("halt again"))?;
        must!(again == left, "halted again it says {again:?} instead of {left:?}");
        let executed = session.exec(exec(trial.program("echo on", IDLE))).await;
        must!(matches!(executed, Err(BackendError::Spent)), "a program starts: {:?}", executed.err());
        let put = session.put(file("late", b"late")).await;
        must!(matches!(put, Err(BackendError::Spent)), "a file that comes late: {put:?}");
        drop(running);
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn closing_ends_everything(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    after(&trial, async |session, running, _| {
        drop(running);
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn dropping_a_session_ends_everything(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    after(&trial, async |session, running, _| {
        drop(running);
        drop(session);
        Ok(())
    })?;
    after(&trial, async |session, running, marker| {
        // A handle on a program holds nothing alive.
        drop(session);
        is_gone(&marker)?;
        listen(running.as_ref()).await.map(drop)
    })?;
    Ok(Verdict::Held)
}

pub(super) fn a_program_in_a_sandbox_that_is_gone_is_lost(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    after(&trial, async |mut session, running, _| {
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))?;
        let ending = running.wait().await.map_err(said("wait"))?;
        let killed = matches!(ending, Ending::Lost | Ending::Signalled(9));
        must!(killed, "it was killed, and is told as {ending:?}");
        must!(running.wait().await.map_err(said("wait"))? == ending, "its end is another now");
        running.write(b"late").await.map_err(said("write"))?;
        running.close_stdin().await;
        while running.output().await.map_err(said("output"))?.is_some() {}
        Ok(())
    })?;
    Ok(Verdict::Held)
}

pub(super) fn a_sandbox_that_was_opened_and_never_used_leaves_nothing(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let closed = new_run();
    trial.until_hung(async {
        trial.open(&closed, trial.layer()).await?.close().await.map_err(said("close"))
    })?;
    trial.left_nothing(&closed)?;
    let dropped = new_run();
    trial.until_hung(async { trial.open(&dropped, trial.layer()).await.map(drop) })?;
    trial.left_nothing(&dropped)?;
    let midway = new_run();
    trial.until_hung(async {
        let _ = tokio::time::timeout(Duration::ZERO, trial.open(&midway, trial.layer())).await;
        Ok(())
    })?;
    trial.left_nothing(&midway)?;
    Ok(Verdict::Held)
}

/// What the host keeps outside of the state folder that bears a run's name.
fn named_for(run: &RunId) -> Vec<PathBuf> {
    let (now, name) = (Snapshot::take(), run.to_string());
    let all = now.cgroups.into_iter().chain(now.files);
    all.filter(|path| path.to_string_lossy().contains(&name)).collect()
}

pub(super) fn a_sweep_takes_what_is_there_and_minds_nothing_else(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let sweep = |traces: &[String]| trial.backend.sweep(traces).map_err(said("sweep"));
    sweep(&trial.backend.traces(&new_run()))?;
    let other = tempfile::tempdir().unwrap();
    let folder = other.path().join(format!("cofferdam-{}", new_run()));
    std::fs::create_dir(&folder).unwrap();
    sweep(&[folder.to_str().unwrap_or_default().into(), String::new(), "\u{1b}[2J".into()])?;
    must!(folder.exists(), "it takes away what it never wrote down");
    let (run, marker) = (new_run(), trial.marker());
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let running = busy(&trial, session.as_mut(), &marker).await?;
        // Nobody sweeps what lives, but what is swept is gone: it may be all that is left of a run.
        sweep(&trial.backend.traces(&run))?;
        let traced = !trial.backend.traces(&run).is_empty();
        must!(!traced || processes_with(&marker).is_empty(), "what was swept lives");
        // Whatever else bears the run's name is all that there would be after a kill.
        let gone = eventually(GONE_WITHIN, || named_for(&run).is_empty());
        must!(gone, "its traces don't lead to {:?}", named_for(&run));
        drop(running);
        drop(session);
        sweep(&trial.backend.traces(&run))
    })?;
    is_gone(&marker)?;
    trial.left_nothing(&run)?;
    Ok(Verdict::Held)
}
