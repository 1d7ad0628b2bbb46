//! Signals: to the program, and to what it started.

use std::time::Duration;

use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::End;
use cofferdam_core::policy::LimitsLayer;
use cofferdam_core::request::WindowSize;

use super::trial::{Trial, exec, listen, new_run, said};
use super::wired::Cue;
use super::{Checked, Subject, Verdict};

/// SIGINT and SIGTERM.
const INTERRUPT: i32 = 2;
const TERM: i32 = 15;

pub(super) fn a_signal_reaches_the_program(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    for (name, signal) in [("INT", INTERRUPT), ("TERM", TERM)] {
        let code = format!("trap 'echo got; exit 7' {name}; echo on; while :; do sleep 0.02; done");
        let mut what = trial.sh(&code);
        what.layer =
            trial.limited(&LimitsLayer { timeout: Some(Duration::from_secs(3)), ..LimitsLayer::default() });
        what.cues = vec![(Cue::Said("on"), signal)];
        let ran = trial.run(what)?;
        ran.ends(End::Exited(7))?;
        must!(ran.said().ends_with("got\n"), "{}", ran.story());
    }
    Ok(Verdict::Held)
}

pub(super) fn a_signal_reaches_what_the_program_started(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let child = "trap \"echo child; exit\" INT; echo on; while :; do sleep 0.02; done";
    let mut what = trial.sh(&format!("trap 'echo parent' INT; sh -c '{child}'; exit 0"));
    what.layer =
        trial.limited(&LimitsLayer { timeout: Some(Duration::from_secs(3)), ..LimitsLayer::default() });
    what.cues = vec![(Cue::Said("on"), INTERRUPT)];
    let ran = trial.run(what)?;
    ran.ends(End::Exited(0))?;
    must!(ran.said().contains("child") && ran.said().contains("parent"), "{}", ran.story());
    Ok(Verdict::Held)
}

pub(super) fn a_signal_to_a_program_that_has_ended_is_no_error(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let running = session
            .exec(exec(trial.program("exit 4", "import sys; sys.exit(4)")))
            .await
            .map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        running.signal(TERM).await.map_err(said("signal"))?;
        running.write(b"late").await.map_err(said("write"))?;
        running.close_stdin().await;
        let size = WindowSize { columns: 1, rows: 1 };
        running.resize(size).await.map_err(said("resize"))?;
        must!(running.wait().await.map_err(said("wait"))? == heard.ending, "its end is another now");
        // The next program gets nothing of what was meant for the last.
        let running = session
            .exec(exec(
                trial.program("sleep 0.05; echo well", "import time; time.sleep(0.05); print('well')"),
            ))
            .await
            .map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        must!(heard.stdout == b"well\n", "it said {:?}", String::from_utf8_lossy(&heard.stdout));
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn another_size_reaches_a_program_that_runs_on_a_terminal(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os, signal, time
told = []
signal.signal(signal.SIGWINCH, lambda *_: told.append(1))
print('on')
until = time.monotonic() + 5
while not told and time.monotonic() < until: time.sleep(0.01)
print(len(told[:1]), *os.get_terminal_size())";
    let mut what = trial.python(code);
    what.terminal = Some(WindowSize { columns: 71, rows: 17 });
    what.sizes = vec![(Cue::Said("on"), WindowSize { columns: 132, rows: 43 })];
    let ran = trial.run(what)?;
    if let Some(refused) = trial.refused(&ran, Capability::Tty)? {
        return Ok(refused);
    }
    ran.says("on\r\n1 132 43\r\n")?;
    Ok(Verdict::Held)
}
