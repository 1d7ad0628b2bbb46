//! The backend for a grant, or a refusal that names every gap.
//!
//! A mode is never replaced by another, looser or stricter: a backend is chosen only if it
//! enforces everything that the grant asks for, but for gaps that were accepted by name.

use cofferdam_core::backend::{Backend, Fit};
use cofferdam_core::capability::Gap;
use cofferdam_core::grant::Grant;
use cofferdam_core::policy::{ALWAYS_ASKED, BackendName};
use cofferdam_core::request::Request;

/// A boundary by its name: there, or not and why.
pub struct Candidate {
    /// The name that policies use.
    pub name: BackendName,
    /// The backend, or what stands in its way.
    pub backend: Result<Box<dyn Backend>, Absent>,
}

/// A backend that isn't there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Why.
    pub why: String,
    /// What would bring it.
    pub fix: String,
    /// Whether it is for a later version to bring: nobody can do anything about it here.
    pub later: bool,
}

/// The backend that a grant gets.
pub struct Selected<'a> {
    /// Its name.
    pub name: BackendName,
    /// The backend.
    pub backend: &'a dyn Backend,
    /// Why this one, in a sentence.
    pub why: String,
    /// What it doesn't enforce and was accepted.
    pub gaps: Vec<Gap>,
}

/// Why one backend was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which.
    pub name: BackendName,
    /// In a sentence.
    pub why: String,
    /// What it lacks of what was asked for.
    pub gaps: Vec<Gap>,
    /// What to do about it.
    pub fix: String,
    /// Whose fault it is.
    pub fault: Obstacle,
}

/// What stands in the way of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Something of this host, or of what was asked to be enforced.
    Here,
    /// This version: it has no such backend.
    Later,
    /// What the program is, or what it needs.
    Program,
}

/// Every backend that was considered refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBackend {
    /// In the order in which they were considered.
    pub refusals: Vec<Refusal>,
}

/// Chooses the first backend that runs the program and enforces what the grant asks for.
///
/// Gives the refusals on the way too: they go into the audit.
///
/// # Errors
///
/// [`NoBackend`] with a refusal for each that was considered.
pub fn select<'a>(
    candidates: &'a [Candidate],
    grant: &Grant,
    request: &Request,
) -> (Vec<Refusal>, Result<Selected<'a>, NoBackend>) {
    let named = grant.backend();
    let considered = match &named {
        Some(name) => std::slice::from_ref(name),
        None => grant.profile().considers(),
    };
    let mut refusals = vec![];
    for &name in considered {
        match consider(candidates, name, grant, request) {
            Ok(selected) => return (refusals, Ok(selected)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    (refusals.clone(), Err(NoBackend { refusals }))
}

fn consider<'a>(
    candidates: &'a [Candidate],
    name: BackendName,
    grant: &Grant,
    request: &Request,
) -> Result<Selected<'a>, Refusal> {
    let refuse = |why, gaps, fix| Refusal { name, why, gaps, fix, fault: Obstacle::Here };
    let Some(candidate) = candidates.iter().find(|candidate| candidate.name == name) else {
        return Err(refuse("it is not part of this build".into(), vec![], "use a build that has it".into()));
    };
    let backend = match &candidate.backend {
        Ok(backend) => backend.as_ref(),
        Err(Absent { why, fix, later }) => {
            let fault = if *later { Obstacle::Later } else { Obstacle::Here };
            return Err(Refusal { fault, ..refuse(why.clone(), vec![], fix.clone()) });
        }
    };
    let fits = match backend.fit(request, grant.files()) {
        Fit::Yes { why } => why,
        // Whoever names a backend may know better than a look at the program does.
        Fit::Unlikely { why, .. } if grant.backend().is_some() => format!("although {why}"),
        Fit::Unlikely { why, fix } | Fit::No { why, fix } => {
            let fix = fix.unwrap_or_else(|| "choose a backend that runs this program".to_owned());
            return Err(Refusal { fault: Obstacle::Program, ..refuse(why, vec![], fix) });
        }
        Fit::NotYet { why, fix } => return Err(refuse(why, vec![], fix)),
    };
    // What enforces nothing is no boundary, whatever was accepted.
    let nothing = backend.offers().enforced().is_empty();
    let (accepted, missing): (Vec<_>, Vec<_>) = backend
        .gaps(grant)
        .into_iter()
        .partition(|gap| !nothing && grant.accepted().contains(&gap.capability));
    if !missing.is_empty() {
        let why = format!("it can't enforce {}", reasons(&missing));
        return Err(refuse(why, missing.clone(), way_out(&missing, nothing)));
    }
    let why = match grant.backend() {
        Some(_) => format!("it was asked for by name; {fits}"),
        None => format!("the first that profile `{}` considers and that fits: {fits}", grant.profile()),
    };
    Ok(Selected { name, backend, why, gaps: accepted })
}

/// The gaps with their reasons, those with the same reason together.
fn reasons(gaps: &[Gap]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = vec![];
    for gap in gaps {
        match groups.iter_mut().find(|(why, _)| *why == gap.why) {
            Some((_, names)) => names.push(gap.capability.name()),
            None => groups.push((&gap.why, vec![gap.capability.name()])),
        }
    }
    let groups: Vec<_> =
        groups.into_iter().map(|(why, names)| format!("{} ({why})", names.join(", "))).collect();
    groups.join("; ")
}

/// How to get past gaps: close each, or accept by name those that every run asks for anyway.
fn way_out(gaps: &[Gap], nothing: bool) -> String {
    let mut ways: Vec<String> = vec![];
    for gap in gaps {
        if !ways.contains(&gap.fix) {
            ways.push(gap.fix.clone());
        }
    }
    let accept: Vec<_> = gaps
        .iter()
        .filter(|gap| !nothing && ALWAYS_ASKED.contains(&gap.capability))
        .map(|gap| format!("--accept-gap {}", gap.capability))
        .collect();
    if !accept.is_empty() {
        ways.push(format!("or run without: {}", accept.join(" ")));
    }
    ways.join("; ")
}
