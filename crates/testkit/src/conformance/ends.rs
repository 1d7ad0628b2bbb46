//! How runs end: every end that an Outcome can have, each provoked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_core::backend::{BackendError, Ending};
use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{Cancel, End, FaultCode};
use cofferdam_core::policy::LimitsLayer;

use super::trial::{self, IDLE, Trial, exec, is_gone, listen, new_run, said, until_it_says};
use super::wired::{Cue, Reader};
use super::{Broken, Checked, Needs, Subject, Verdict};

/// SIGINT and SIGTERM.
const INTERRUPT: i32 = 2;
const TERM: i32 = 15;

pub(super) fn every_exit_status_arrives_as_it_was(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    let leaves =
        |status| trial.program(&format!("exit {status}"), &format!("import sys; sys.exit({status})"));
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        for status in 0..=255 {
            let running = session.exec(exec(leaves(status))).await.map_err(said("exec"))?;
            let ending = running.wait().await.map_err(said("wait"))?;
            must!(ending == Ending::Exited(status), "exit {status} is told as {ending:?}");
            must!(running.wait().await.map_err(said("wait"))? == ending, "asked again it says otherwise");
        }
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn an_exit_status_is_the_outcomes(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    for status in [0, 1, 124, 137, 255] {
        let ran = trial.run(trial.python(&format!("import sys; sys.exit({status})")))?;
        ran.ends(End::Exited(status))?;
        must!(ran.outcome.exit_code() == status, "the exit code is {}", ran.outcome.exit_code());
        must!(ran.outcome.times.first_output.is_none(), "it said nothing: {}", ran.story());
    }
    Ok(Verdict::Held)
}

pub(super) fn a_signal_that_ends_a_program_is_named(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    // Without processes there is one that a program can bring about: its own giving up.
    let signals: &[_] = if trial.has_sh() { &[6, 1, 9, 11, 15] } else { &[6] };
    for &signal in signals {
        let ran = trial.run(trial.either(&format!("kill -{signal} $$"), "import os; os.abort()"))?;
        ran.ends(End::Signalled(signal))?;
        must!(ran.outcome.exit_code() == 128 + signal, "the exit code is {}", ran.outcome.exit_code());
    }
    Ok(Verdict::Held)
}

pub(super) fn a_program_that_ignores_everything_is_timed_out_and_dead(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let limits = || LimitsLayer { timeout: Some(Duration::from_millis(400)), ..LimitsLayer::default() };
    for (wait, without_sh) in [
        ("kill -STOP $$", "import sys; sys.stdin.read(); time.sleep(300)"),
        ("while :; do :; done", "while True: pass"),
        ("exec <&- >&- 2>&-; wait", "for n in range(3): os.close(n)\ntime.sleep(300)"),
    ] {
        let marker = trial.marker();
        let script =
            format!("trap '' TERM INT HUP; sleep {marker} & setsid sleep {marker} & echo on; {wait}");
        let mut what = trial.either(&script, &format!("import os, time\nprint('on')\n{without_sh}"));
        what.layer = trial.limited(&limits());
        let ran = trial.run(what)?;
        ran.ends(End::TimedOut)?;
        must!(ran.said() == "on\n", "what was said before is kept: {}", ran.story());
        must!(ran.outcome.exit_code() == 124, "the exit code is {}", ran.outcome.exit_code());
        let left = ran.outcome.left_processes;
        must!(left >= 2 || !trial.has_sh(), "{left} were left");
        is_gone(&marker)?;
    }
    Ok(Verdict::Held)
}

pub(super) fn what_was_used_is_told(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    // It says what it used itself, so that this shows something; each has less than it touched.
    let code = "import os, signal, time
held = bytearray(b'x') * (50 << 20)
children = []
for n in range(6 if hasattr(os, 'fork') else 0):
    pid = os.fork()
    if pid == 0: signal.pause()
    children.append(pid)
# Without processes, the clock of this one may be the wall's, of which others may have the most.
while time.process_time() < (0.2 if hasattr(os, 'fork') else 1.5): pass
for pid in children: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
print(len(held), len(children))";
    let ran = trial.run(trial.python(code))?;
    // Where there are no processes to be started, the program is all there is.
    let children = if subject.runs.contains(&Needs::Processes) { 6 } else { 0 };
    ran.says(&format!("52428800 {children}\n"))?;
    let usage = &ran.outcome.usage;
    must!(usage.cpu >= Duration::from_millis(100), "it used 200 ms of processor time, told as {usage:?}");
    // Where the kernel counts them.
    let memory = usage.memory_peak_bytes;
    must!(memory.is_none_or(|bytes| bytes >= 50 << 20), "it had 50 MiB of memory, told as {memory:?}");
    let processes = usage.processes_peak;
    must!(
        processes.is_none_or(|count| count > children),
        "it had {children} children, told as {processes:?}"
    );
    Ok(Verdict::Held)
}

pub(super) fn a_lack_of_memory_is_told_from_a_kill_and_ends_all(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let limits = LimitsLayer { memory_bytes: Some(64 << 20), ..LimitsLayer::default() };
    let marker = trial.marker();
    // The parent outlives the child that the kernel kills, and would say so.
    let eat = "x = bytearray(200 << 20)";
    let mut what = trial.either(
        &format!("sleep {marker} & python3 -c '{eat}'; echo survived; sleep {marker}"),
        &format!("{eat}\nprint('survived')"),
    );
    what.layer = trial.without_accepting(Capability::Memory, &limits);
    let ran = trial.run(what)?;
    if let Some(refused) = trial.refused(&ran, Capability::Memory)? {
        return Ok(refused);
    }
    ran.ends(End::OutOfMemory)?;
    must!(!ran.said().contains("survived"), "its parent went on: {}", ran.story());
    must!(ran.outcome.exit_code() == 137, "the exit code is {}", ran.outcome.exit_code());
    is_gone(&marker)?;
    Ok(Verdict::Held)
}

pub(super) fn a_second_signal_cancels_whenever_it_comes(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let moments = [
        [Cue::After(Duration::ZERO), Cue::After(Duration::ZERO)],
        [Cue::After(Duration::ZERO), Cue::After(Duration::from_millis(30))],
        [Cue::Said("on"), Cue::Said("on")],
    ];
    for [first, second] in moments {
        let marker = trial.marker();
        let script = format!("trap '' INT TERM; echo on; sleep {marker}; echo over");
        let mut what = trial.either(&script, IDLE);
        what.cues = vec![(first, INTERRUPT), (second, TERM)];
        let ran = trial.run(what)?;
        // A signal can come before the program has said that it wants none.
        ran.ends(End::Cancelled(Cancel::User))?;
        must!(ran.outcome.exit_code() == 130, "the exit code is {}", ran.outcome.exit_code());
        is_gone(&marker)?;
    }
    Ok(Verdict::Held)
}

pub(super) fn a_program_that_dies_of_a_signal_that_was_passed_on_was_cancelled(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.either(&format!("echo on; exec sleep {}", trial.marker()), IDLE);
    what.cues = vec![(Cue::Said("on"), INTERRUPT)];
    trial.run(what)?.ends(End::Cancelled(Cancel::User))?;
    Ok(Verdict::Held)
}

pub(super) fn a_reader_that_goes_away_ends_the_run(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let marker = trial.marker();
    let mut what = trial.either(&format!("echo on; sleep {marker}"), IDLE);
    what.reader = Reader::Refuses(io::ErrorKind::BrokenPipe);
    let ran = trial.run(what)?;
    ran.ends(End::Cancelled(Cancel::OutputClosed))?;
    must!(ran.outcome.exit_code() == 141, "the exit code is {}", ran.outcome.exit_code());
    is_gone(&marker)?;
    Ok(Verdict::Held)
}

pub(super) fn output_that_cannot_be_written_is_not_the_programs_fault(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.python("print('on')\nimport time\ntime.sleep(300)");
    what.reader = Reader::Refuses(io::ErrorKind::StorageFull);
    let ran = trial.run(what)?;
    ran.ends(End::SandboxError)?;
    let code = ran.outcome.error.as_ref().map(|fault| fault.code);
    must!(code == Some(FaultCode::HostError), "whose fault it is: {code:?}");
    Ok(Verdict::Held)
}

pub(super) fn a_program_that_is_not_there_is_refused_and_nothing_ran(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    for (words, exit) in [
        (&["no-such-program"][..], 127),
        (&["/no/such/program"], 127),
        (&["/"], 126),
        (&["./plain"], 126),
        (&["./rubbish"], 126),
        (&["./orphan"], 127),
    ] {
        let mut what = trial.sh("");
        what.program = trial::command(words);
        let executable =
            |name, bytes| cofferdam_core::request::File { executable: true, ..trial::file(name, bytes) };
        what.files = vec![
            trial::file("plain", b"#!/bin/sh\necho ran\n"),
            executable("rubbish", b"\x01\x02\x03\x04"),
            executable("orphan", b"#!/no/such/interpreter\n"),
        ];
        let ran = trial.run(what)?;
        ran.ends(End::Refused)?;
        must!(
            ran.outcome.exit_code() == exit,
            "{words:?} gives {}: {}",
            ran.outcome.exit_code(),
            ran.story()
        );
    }
    Ok(Verdict::Held)
}

pub(super) fn a_program_that_cannot_start_leaves_the_sandbox_for_another(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let refused = session.exec(exec(trial::command(&["no-such-program"]))).await;
        must!(matches!(refused, Err(BackendError::Exec { .. })), "it isn't refused: {:?}", refused.err());
        must!(session.is_alive(), "the sandbox ended with it");
        let running =
            session.exec(exec(trial.program("echo well", "print('well')"))).await.map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        must!(heard.stdout == b"well\n" && heard.ending == Ending::Exited(0), "{:?}", heard.ending);
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn a_sandbox_that_was_lost_takes_nothing_more(subject: &Subject) -> Checked {
    let Some(lose) = subject.lose else {
        return Ok(Verdict::NotForThis("nobody said how its sandboxes can be killed".into()));
    };
    let trial = Trial::of(subject)?;
    let (run, marker) = (new_run(), trial.marker());
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let running = session
            .exec(exec(trial.program(&format!("echo on; sleep {marker}; :"), IDLE)))
            .await
            .map_err(said("exec"))?;
        until_it_says(running.as_ref(), "on").await?;
        lose(&marker).map_err(|error| Broken(format!("it couldn't be killed: {error}")))?;
        let ending = running.wait().await.map_err(said("wait"))?;
        must!(ending == Ending::Lost, "it was lost, and is told as {ending:?}");
        must!(!session.is_alive(), "a sandbox that was lost is alive");
        let first = session.exec(exec(trial.program("echo on", IDLE))).await.err();
        let gone = matches!(first, Some(BackendError::Gone | BackendError::Spent));
        must!(gone, "a program in a sandbox that was lost: {first:?}");
        let put = session.put(trial::file("late", b"")).await;
        must!(matches!(put, Err(BackendError::Spent)), "a file, once that is known: {put:?}");
        let left = session.halt().await.map_err(said("halt"))?;
        must!(!left.out_of_memory, "it wasn't for lack of memory");
        drop(running);
        session.close().await.map_err(said("close"))
    })?;
    is_gone(&marker)?;
    trial.left_nothing(&run)?;
    Ok(Verdict::Held)
}

pub(super) fn a_sandbox_that_dies_under_its_program_is_lost(subject: &Subject) -> Checked {
    let Some(lose) = subject.lose else {
        return Ok(Verdict::NotForThis("nobody said how its sandboxes can be killed".into()));
    };
    let trial = Trial::of(subject)?;
    let marker = trial.marker();
    let mut what = trial.either(&format!("echo on; sleep {marker}; echo over"), IDLE);
    what.layer =
        trial.limited(&LimitsLayer { timeout: Some(Duration::from_secs(10)), ..LimitsLayer::default() });
    let runs = Arc::new(AtomicBool::new(false));
    what.reader = Reader::Tells(Arc::clone(&runs));
    let killer = std::thread::spawn({
        let marker = marker.clone();
        move || {
            crate::host::eventually(Duration::from_secs(10), || runs.load(Ordering::Relaxed))
                && lose(&marker).is_ok()
        }
    });
    let ran = trial.run(what);
    must!(killer.join().unwrap_or(false), "it couldn't be killed");
    let ran = ran?;
    ran.ends(End::BackendLost)?;
    must!(ran.outcome.exit_code() == 125, "the exit code is {}", ran.outcome.exit_code());
    is_gone(&marker)?;
    Ok(Verdict::Held)
}
