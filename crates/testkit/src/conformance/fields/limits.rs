//! Ceilings: what a program has beyond each of them, as the program finds it.

use std::time::Duration;

use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{End, LimitName};
use cofferdam_core::policy::{Cpus, LimitsLayer};

use crate::conformance::trial::{IDLE, Ran, Trial, is_gone};
use crate::conformance::{Broken, Checked, Subject, Verdict};

/// Runs code in Python under limits.
fn limited(
    trial: &Trial<'_>,
    limits: &LimitsLayer,
    capability: Capability,
    code: &str,
) -> Result<Ran, Broken> {
    let mut what = trial.python(code);
    what.layer = trial.without_accepting(capability, limits);
    trial.run(what)
}

/// The number that is all of what a program said.
fn number(ran: &Ran) -> Result<u64, Broken> {
    ran.said().trim().parse().map_err(|_| Broken(format!("it said no number: {}", ran.story())))
}

pub(in crate::conformance) fn memory_beyond_the_limit_is_not_had(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "held = []
try:
    for n in range(40): held.append(b'x' * (4 << 20))
    print('held', flush=True)
except MemoryError: print('refused', flush=True)";
    let limits = LimitsLayer { memory_bytes: Some(64 << 20), ..LimitsLayer::default() };
    let ran = limited(&trial, &limits, Capability::Memory, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Memory)? {
        return Ok(refused);
    }
    must!(!ran.said().contains("held"), "it had 160 MiB with a limit of 64: {}", ran.story());
    let told = ran.outcome.end == End::OutOfMemory || ran.said() == "refused\n";
    must!(told, "it wasn't told: {}", ran.story());
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn processor_time_beyond_the_share_is_not_had(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    // As many as there are cores and more, so that a busy machine gives a program without a ceiling
    // more than one with it; each says what it used itself.
    let code = "import os, time
end, children = time.monotonic() + 1, []
try:
    for n in range(5):
        pid = os.fork()
        if pid == 0: break
        children.append(pid)
except (OSError, AttributeError): pid = 1
while time.monotonic() < end: pass
if pid == 0: os._exit(0)
for child in children: os.waitpid(child, 0)
print(int(sum(os.times()[:4]) * 1000) if children else 'unknown')";
    let limits = LimitsLayer { cpus: Cpus::from_cores(0.1), ..LimitsLayer::default() };
    let ran = limited(&trial, &limits, Capability::Cpu, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Cpu)? {
        return Ok(refused);
    }
    ran.ends(End::Exited(0))?;
    let run = ran.outcome.times.run.as_millis() as u64;
    // Who has no processes may have no clock of its own either: then what was counted outside.
    let used = match ran.said().trim() {
        "unknown" => ran.outcome.usage.cpu.as_millis() as u64,
        _ => number(&ran)?,
    };
    // A tenth of the time, and a few periods of bandwidth control over.
    let most = run / 10 + 60;
    must!(used <= most, "it used {used} ms in {run} ms with a tenth of a core");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn processes_beyond_the_limit_are_not_had(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os, signal
children = []
try:
    while len(children) < 40:
        pid = os.fork()
        if pid == 0: signal.pause()
        children.append(pid)
except OSError: pass
print(len(children) + 1)";
    let limits = LimitsLayer { pids: Some(10), ..LimitsLayer::default() };
    let ran = limited(&trial, &limits, Capability::Pids, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Pids)? {
        return Ok(refused);
    }
    ran.ends(End::Exited(0))?;
    let had = number(&ran)?;
    must!((5..=10).contains(&had), "it had {had} processes with a limit of 10");
    must!(u64::from(ran.outcome.left_processes) >= had - 1, "{} were left", ran.outcome.left_processes);
    // Without a cgroup that counts, nobody hears of a fork that was refused.
    let counted = ran.outcome.usage.processes_peak.is_some();
    let told = ran.outcome.limits_hit.contains(&LimitName::Pids);
    must!(!counted || told, "that a fork was refused isn't told: {}", ran.story());
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn bytes_beyond_the_disk_are_not_had(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
wrote = 0
for place in ('.', '/tmp', os.environ.get('HOME', '/tmp'), '/dev/shm', '/var/tmp'):
    try:
        with open(os.path.join(place, 'fill'), 'wb', buffering=0) as file:
            while wrote < 8 << 20: wrote += file.write(bytes(64 << 10))
    except OSError: pass
print(wrote)";
    let limits = LimitsLayer { disk_bytes: Some(2 << 20), ..LimitsLayer::default() };
    let ran = limited(&trial, &limits, Capability::Disk, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Disk)? {
        return Ok(refused);
    }
    ran.ends(End::Exited(0))?;
    let wrote = number(&ran)?;
    must!((1 << 20..=2 << 20).contains(&wrote), "it wrote {wrote} bytes in all places with a limit of 2 MiB");
    must!(ran.outcome.limits_hit.contains(&LimitName::Disk), "it isn't told: {}", ran.story());
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn files_beyond_their_number_are_not_had(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
made = 0
for place in ('.', '/tmp', '/dev/shm'):
    try:
        while made < 1000:
            open(os.path.join(place, f'file{made}'), 'w').close(); made += 1
    except OSError: pass
print(made)";
    let limits = LimitsLayer { files: Some(300), ..LimitsLayer::default() };
    let ran = limited(&trial, &limits, Capability::Disk, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Disk)? {
        return Ok(refused);
    }
    ran.ends(End::Exited(0))?;
    let made = number(&ran)?;
    must!((200..=300).contains(&made), "it made {made} files with a limit of 300");
    must!(ran.outcome.limits_hit.contains(&LimitName::Files), "it isn't told: {}", ran.story());
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn nothing_runs_beyond_the_deadline(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let marker = trial.marker();
    let limits = LimitsLayer { timeout: Some(Duration::from_millis(300)), ..LimitsLayer::default() };
    let script = format!("echo on; (setsid sleep {marker} >/dev/null 2>&1 &); exec sleep {marker}");
    let mut what = trial.either(&script, IDLE);
    what.layer = trial.without_accepting(Capability::Timeout, &limits);
    let ran = trial.run(what)?;
    if let Some(refused) = trial.refused(&ran, Capability::Timeout)? {
        return Ok(refused);
    }
    ran.ends(End::TimedOut)?;
    // The deadline is one for the wait for its start and for itself.
    let times = &ran.outcome.times;
    let run = times.open + times.run;
    let within = Duration::from_millis(290)..Duration::from_secs(10);
    must!(within.contains(&run), "it ran for {run:?} with a deadline of 300 ms");
    is_gone(&marker)?;
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn a_program_has_its_grace_and_no_more(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let limits = |grace| LimitsLayer {
        timeout: Some(Duration::from_millis(500)),
        grace: Some(grace),
        ..LimitsLayer::default()
    };
    let run = |grace, on_term: &str| {
        let mut what = trial.sh(&format!("trap '{on_term}' TERM; while :; do sleep 0.02; done"));
        what.layer = trial.without_accepting(Capability::Timeout, &limits(grace));
        trial.run(what)
    };
    let ran = run(Duration::from_secs(4), "echo asked; exit 0")?;
    if let Some(refused) = trial.refused(&ran, Capability::Timeout)? {
        return Ok(refused);
    }
    ran.ends(End::TimedOut)?;
    must!(ran.said() == "asked\n", "it was never asked to end: {}", ran.story());
    must!(ran.outcome.times.run < Duration::from_secs(3), "nobody sees that it has ended: {}", ran.story());
    let ran = run(Duration::from_millis(200), "echo asked")?;
    ran.ends(End::TimedOut)?;
    must!(ran.said() == "asked\n", "it was never asked to end: {}", ran.story());
    let times = &ran.outcome.times;
    must!(times.open + times.run >= Duration::from_millis(690), "it had no grace: {}", ran.story());
    let ran = run(Duration::ZERO, "echo asked")?;
    ran.ends(End::TimedOut)?;
    must!(ran.said().is_empty(), "without grace nobody is asked: {}", ran.story());
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn output_beyond_the_limit_is_not_passed_on(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
while True: os.write(1, b'o' * 700); os.write(2, b'e' * 700)";
    let limits = LimitsLayer {
        timeout: Some(Duration::from_secs(3)),
        output_bytes: Some(10_000),
        ..LimitsLayer::default()
    };
    let ran = limited(&trial, &limits, Capability::Output, code)?;
    if let Some(refused) = trial.refused(&ran, Capability::Output)? {
        return Ok(refused);
    }
    ran.ends(End::OutputLimit)?;
    must!(ran.outcome.exit_code() == 153, "the exit code is {}", ran.outcome.exit_code());
    let came = ran.stdout().len() + ran.stderr().len();
    must!(came == 10_000, "{came} bytes came with a limit of 10000");
    Ok(Verdict::Held)
}
