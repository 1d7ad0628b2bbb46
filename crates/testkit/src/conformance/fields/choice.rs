//! Which backend, what it must have and what it may lack; and the terminal, which the request asks for.

use cofferdam_core::capability::Capability;
use cofferdam_core::outcome::{End, FaultCode};
use cofferdam_core::policy::{ALWAYS_ASKED, BackendName, Profile};
use cofferdam_core::request::WindowSize;

use crate::conformance::trial::Trial;
use crate::conformance::{Checked, Subject, Verdict};

pub(in crate::conformance) fn another_backend_is_never_taken_instead(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let other = BackendName::ALL.iter().copied().find(|name| *name != subject.name);
    let mut named = trial.python("print('ran')");
    named.layer.backend = Some(other);
    let ran = trial.run(named)?;
    ran.ends(End::Refused)?;
    must!(ran.outcome.backend.is_none(), "{:?} ran what {other:?} was asked for", ran.outcome.backend);
    let unfit = Profile::ALL.iter().copied().find(|profile| !profile.considers().contains(&subject.name));
    let mut auto = trial.python("print('ran')");
    auto.layer.backend = Some(None);
    auto.layer.profile = unfit;
    let ran = trial.run(auto)?;
    ran.ends(End::Refused)?;
    let code = ran.outcome.error.as_ref().map(|fault| fault.code);
    must!(code == Some(FaultCode::BackendRefused), "profile {unfit:?} got it: {code:?}");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn what_is_required_is_there_or_the_run_is_refused(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let requiring = |capability, code: &str| {
        let mut what = trial.python(code);
        what.layer.accept_gaps.remove(&capability);
        what.layer.require = [capability].into();
        trial.run(what)
    };
    let mut lacking = None;
    for &capability in Capability::ALL {
        if trial.gap(capability).is_some() {
            let ran = requiring(capability, "print('ran')")?;
            lacking = lacking.or(trial.refused(&ran, capability)?);
            must!(ran.outcome.end == End::Refused, "it hasn't got {capability}, and ran: {}", ran.story());
        }
    }
    if trial.gap(Capability::SeparateKernel).is_none() {
        let identity = "/proc/sys/kernel/random/boot_id";
        let ran =
            requiring(Capability::SeparateKernel, &format!("print(open('{identity}').read(), end='')"))?;
        let ours = std::fs::read_to_string(identity).unwrap_or_default();
        must!(!ran.said().is_empty(), "it shows no kernel, and so none of its own: {}", ran.story());
        must!(ran.said() != ours, "it shows the host's kernel, and so none of its own: {}", ran.story());
    }
    Ok(lacking.unwrap_or(Verdict::Held))
}

pub(in crate::conformance) fn an_accepted_gap_is_told_and_not_called_enforced(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    // Accepting what isn't lacking changes nothing: it is enforced all the same.
    let mut what = trial.python("print('ran')");
    what.layer.accept_gaps.extend(ALWAYS_ASKED);
    let ran = trial.run(what)?;
    ran.says("ran\n")?;
    for capability in ALWAYS_ASKED {
        let (lacks, told) = (
            trial.gap(capability).is_some(),
            ran.outcome.gaps.iter().any(|gap| gap.capability == capability),
        );
        must!(
            lacks == told,
            "it {} {capability}, and that is told: {told}",
            if lacks { "lacks" } else { "has" }
        );
        must!(lacks != ran.outcome.enforced.contains(&capability), "{capability} is said to be enforced");
    }
    // What nobody can have here, once it is accepted.
    let missing = Capability::ALL.iter().copied().find(|it| trial.gap(*it).is_some());
    let Some(missing) = missing else { return Ok(Verdict::Held) };
    must!(!ran.outcome.enforced.contains(&missing), "{missing} is said to be enforced");
    Ok(Verdict::Held)
}

pub(in crate::conformance) fn a_terminal_is_had_or_the_run_is_refused(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
print([os.isatty(n) for n in range(3)], *os.get_terminal_size())
os.close(os.open('/dev/tty', os.O_RDWR)); print(os.ttyname(0).startswith('/dev/'))";
    let mut what = trial.python(code);
    what.terminal = Some(WindowSize { columns: 71, rows: 17 });
    let ran = trial.run(what)?;
    if let Some(refused) = trial.refused(&ran, Capability::Tty)? {
        return Ok(refused);
    }
    ran.says("[True, True, True] 71 17\r\nTrue\r\n")?;
    let mut what = trial.python("import os; print([os.isatty(n) for n in range(3)])");
    what.layer.require = [].into();
    trial.run(what)?.says("[False, False, False]\n")?;
    Ok(Verdict::Held)
}
