//! The backends of this machine, and which profile gets which: asked of the same functions that a
//! run asks, so that this never promises what a run is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cofferdam_backends::container::Host;
use cofferdam_core::backend::{Backend, Fit};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::Files;
use cofferdam_core::grant::Grant;
use cofferdam_core::policy::{ALWAYS_ASKED, BackendName, Ceiling, Layer, Policy, Profile, decide};
use cofferdam_core::request::{Argv, Lang, Origin, Program, Request, Script};
use cofferdam_engine::policy_hash;
use cofferdam_engine::select::{Absent, Candidate, Refusal, select};

use super::findings::{BackendFound, Fix, GapFound, LanguageFound, ProfileFound, Trial, Trouble};

/// Every backend, looked at and tried.
pub(super) struct Boundaries {
    /// What a run would choose from, without those that can't start anything.
    candidates: Vec<Candidate>,
    /// The same backends, in the same order.
    seen: Vec<Seen>,
    /// What no run on this machine may exceed.
    ceiling: Ceiling,
    /// What stops every run, whatever its backend, by name.
    stops: Vec<(&'static str, Trouble)>,
    /// What a container would lack even if one could be started.
    lacks: Vec<(Capability, Trouble)>,
}

/// What a backend says of itself. Nothing where this version doesn't have it.
#[derive(Default)]
struct Seen {
    offers: Option<Offers>,
    trial: Option<Result<Duration, Trouble>>,
    languages: Vec<LanguageFound>,
}

/// What a profile gets.
enum Answer {
    Runs { backend: BackendName, why: String },
    Stopped(Trouble),
    Refused(Vec<Refusal>),
}

impl Boundaries {
    /// Looks at every backend, and starts a sandbox where one can be started.
    pub(super) fn look(
        container: &Host,
        state: &Path,
        ceiling: Ceiling,
        stops: Vec<(&'static str, Trouble)>,
    ) -> Self {
        let looked =
            crate::host::candidates(state).into_iter().map(|candidate| look_at(candidate, container));
        let (candidates, seen) = looked.unzip();
        let lacks =
            |&capability: &Capability| Some((capability, Trouble::from(container.lacks(capability)?)));
        // Whoever isn't root is refused parts that root would have: then only that is worth a word.
        let lacks = if container.root { ALWAYS_ASKED.iter().filter_map(lacks).collect() } else { vec![] };
        Boundaries { candidates, seen, ceiling, stops, lacks }
    }

    /// What each profile would run in.
    pub(super) fn profiles(&self) -> Vec<ProfileFound> {
        Profile::ALL.iter().map(|&profile| self.profile(profile)).collect()
    }

    /// What one profile would run in.
    pub(super) fn profile(&self, profile: Profile) -> ProfileFound {
        let (backend, why, briefly, fix) = match self.ask(profile) {
            Answer::Runs { backend, why } => (Some(backend.name()), why, String::new(), None),
            Answer::Stopped(trouble) => (None, trouble.why.clone(), trouble.why, Some(trouble.fix)),
            Answer::Refused(refusals) => {
                let all: Vec<_> =
                    refusals.iter().map(|refusal| format!("{}: {}", refusal.name, refusal.why)).collect();
                let ours = self.of_this_version(&refusals).next();
                let briefly = ours.map_or_else(|| "the backends are missing".to_owned(), briefly);
                (None, all.join("; "), briefly, ours.map(|refusal| refusal.fix.clone()))
            }
        };
        let considers = profile.considers().iter().map(|backend| backend.name()).collect();
        ProfileFound { name: profile.name(), runs: backend.is_some(), backend, considers, why, fix, briefly }
    }

    /// What a plain run of a profile would get.
    fn ask(&self, profile: Profile) -> Answer {
        match self.stops.first() {
            Some((_, trouble)) => Answer::Stopped(trouble.clone()),
            None => self.choose(profile),
        }
    }

    /// The same if nothing stopped it before.
    fn choose(&self, profile: Profile) -> Answer {
        let request = plain_request(profile);
        let grant = match self.grant(profile, &request) {
            Ok(grant) => grant,
            Err(trouble) => return Answer::Stopped(trouble),
        };
        match select(&self.candidates, &grant, &request).1 {
            Ok(selected) => Answer::Runs { backend: selected.name, why: selected.why },
            Err(none) => Answer::Refused(none.refusals),
        }
    }

    fn grant(&self, profile: Profile, request: &Request) -> Result<Grant, Trouble> {
        let layer = Layer { profile: Some(profile), ..Layer::default() };
        let policy = Policy::resolve(&[layer], &self.ceiling).map_err(|over| {
            Trouble::new(over.to_string(), "have the operator raise the ceiling in node.toml")
        })?;
        decide(&policy, policy_hash(&policy), request)
            .map_err(|denial| Trouble::new(denial.to_string(), denial.fix()))
    }

    /// Every backend by name, with what it enforces.
    pub(super) fn backends(&self) -> Vec<BackendFound> {
        let both = self.candidates.iter().zip(&self.seen);
        both.map(|(candidate, seen)| {
            let absent = candidate.backend.as_ref().err();
            let offers = seen.offers.as_ref();
            let enforced = offers.map(|offers| offers.enforced().iter().map(|it| it.name()).collect());
            BackendFound {
                name: candidate.name.name(),
                available: absent.is_none(),
                trouble: absent.map(|Absent { why, fix, .. }| Trouble::new(why, fix)),
                trial: seen.trial.as_ref().map(trial),
                enforced: enforced.unwrap_or_default(),
                gaps: offers.map(|offers| self.gaps(offers)).unwrap_or_default(),
                languages: seen.languages.clone(),
            }
        })
        .collect()
    }

    /// What a backend enforces here.
    pub(super) fn enforced(&self, name: &str) -> Vec<Capability> {
        let mut both = self.candidates.iter().zip(&self.seen);
        let seen = both.find(|(candidate, _)| candidate.name.name() == name).map(|(_, seen)| seen);
        let offers = seen.and_then(|seen| seen.offers.as_ref());
        offers.map(|offers| offers.enforced().iter().copied().collect()).unwrap_or_default()
    }

    /// The whole vocabulary but for what is enforced.
    fn gaps(&self, offers: &Offers) -> Vec<GapFound> {
        let whole: BTreeSet<_> = Capability::ALL.iter().copied().collect();
        let gaps = offers.missing(&whole).into_iter();
        gaps.map(|Gap { capability, why, fix }| GapFound {
            name: capability.name(),
            why,
            fix: self.with_what_is_missing(fix),
        })
        .collect()
    }

    /// Says of a fix that names a backend if that isn't here either.
    fn with_what_is_missing(&self, fix: String) -> String {
        let named = |candidate: &&Candidate| fix.ends_with(&format!("--backend {}", candidate.name));
        match self.candidates.iter().find(named).map(|candidate| &candidate.backend) {
            Some(Err(absent)) => format!("{fix} ({})", absent.why),
            Some(Ok(_)) | None => fix,
        }
    }

    /// What has to be done for profile `internal`, most important first, each thing once.
    pub(super) fn fixes(&self) -> Vec<Fix> {
        let mut steps: Vec<(String, &'static str)> =
            self.stops.iter().map(|(name, trouble)| (trouble.fix.clone(), *name)).collect();
        match self.choose(Profile::Internal) {
            Answer::Runs { .. } => {}
            Answer::Stopped(trouble) => steps.push((trouble.fix, "policy")),
            Answer::Refused(refusals) => {
                for refusal in self.of_this_version(&refusals).filter(|refusal| refusal.gaps.is_empty()) {
                    steps.push((refusal.fix.clone(), refusal.name.name()));
                }
                let gaps = self.of_this_version(&refusals).flat_map(|refusal| &refusal.gaps);
                steps.extend(gaps.map(|gap| (gap.fix.clone(), gap.capability.name())));
                steps.extend(self.of_this_version(&refusals).flat_map(accepted));
            }
        }
        steps.extend(self.lacks.iter().map(|(capability, it)| (it.fix.clone(), capability.name())));
        each_once(steps)
    }

    /// The refusals of backends that this version has.
    fn of_this_version<'a>(&self, refusals: &'a [Refusal]) -> impl Iterator<Item = &'a Refusal> {
        let has = |name: BackendName| {
            let mut both = self.candidates.iter().zip(&self.seen);
            both.any(|(candidate, seen)| candidate.name == name && seen.offers.is_some())
        };
        refusals.iter().filter(move |refusal| has(refusal.name))
    }
}

/// Asks a backend what it enforces. One that enforces nothing, or that fails a trial, is no choice.
fn look_at(candidate: Candidate, container: &Host) -> (Candidate, Seen) {
    let Candidate { name, backend } = candidate;
    let backend = match backend {
        Ok(backend) => backend,
        Err(absent) => return (Candidate { name, backend: Err(absent) }, Seen::default()),
    };
    let mut offers = backend.offers().clone();
    let languages = Lang::ALL.iter().map(|&lang| language(backend.as_ref(), lang)).collect();
    let mut trial = None;
    let mut obstacle = nothing_at_all(&offers);
    if obstacle.is_none() && name == BackendName::Container {
        let tried = container.try_start().map_err(Trouble::from);
        if let Err(trouble) = &tried {
            for capability in offers.enforced().clone() {
                offers = offers.without(capability, trouble.why.clone(), trouble.fix.clone());
            }
        }
        obstacle = tried.as_ref().err().cloned();
        trial = Some(tried);
    }
    let backend = match obstacle {
        Some(Trouble { why, fix }) => Err(Absent { why, fix, later: false }),
        None => Ok(backend),
    };
    (Candidate { name, backend }, Seen { offers: Some(offers), trial, languages })
}

/// Why a backend enforces nothing, if it enforces nothing.
fn nothing_at_all(offers: &Offers) -> Option<Trouble> {
    if !offers.enforced().is_empty() {
        return None;
    }
    // Capabilities that every run asks for: another one may be missing for a reason of its own.
    let mut gaps = offers.missing(&ALWAYS_ASKED.into()).into_iter();
    gaps.next().map(|gap| Trouble::new(gap.why, gap.fix))
}

pub(super) fn trial(tried: &Result<Duration, Trouble>) -> Trial {
    let tenths = |time: &Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
    Trial { passed: tried.is_ok(), ms: tried.as_ref().ok().map(tenths) }
}

fn language(backend: &dyn Backend, lang: Lang) -> LanguageFound {
    let (runs, why) = match backend.fit(&plain_script(lang), &Files::default()) {
        Fit::No { why, .. } | Fit::NotYet { why, .. } => (false, why),
        Fit::Unlikely { why, .. } | Fit::Yes { why } => (true, why),
    };
    LanguageFound { name: lang.name(), runs, why }
}

/// A request that asks for nothing beyond what every run has: of the kind that a profile is for.
fn plain_request(profile: Profile) -> Request {
    match profile {
        Profile::Compute | Profile::Untrusted => plain_script(Lang::Python),
        Profile::Internal | Profile::Managed => plain(Program::Command(Argv::new(c"true".into(), vec![]))),
    }
}

/// A script that does nothing.
fn plain_script(lang: Lang) -> Request {
    plain(Program::Script(Script { lang, origin: Origin::Inline, source: vec![], args: vec![] }))
}

fn plain(program: Program) -> Request {
    Request {
        program,
        files: vec![],
        environment: vec![],
        labels: BTreeMap::new(),
        terminal: None,
        collect: false,
    }
}

/// The way past the gaps of a backend that a refusal offers, for each of them: to accept them.
fn accepted(refusal: &Refusal) -> Vec<(String, &'static str)> {
    let Some((_, flags)) = refusal.fix.split_once("--accept-gap ") else { return vec![] };
    let names: Vec<_> = flags.split(" --accept-gap ").collect();
    let way = format!("or accept that it isn't enforced, in each run: --accept-gap {flags}");
    let gaps = refusal.gaps.iter().map(|gap| gap.capability.name());
    gaps.filter(|name| names.contains(name)).map(|name| (way.clone(), name)).collect()
}

/// Why a backend of this version refuses, in a few words.
fn briefly(refusal: &Refusal) -> String {
    if refusal.gaps.is_empty() {
        return refusal.why.clone();
    }
    let gaps: Vec<_> = refusal.gaps.iter().map(|gap| gap.capability.name()).collect();
    format!("{} can't enforce {}", refusal.name, gaps.join(", "))
}

/// Puts steps that are the same together, at the place of the first.
fn each_once(steps: Vec<(String, &'static str)>) -> Vec<Fix> {
    let mut fixes: Vec<Fix> = vec![];
    for (fix, name) in steps {
        match fixes.iter_mut().find(|known| known.fix == fix) {
            Some(known) if known.mends.contains(&name) => {}
            Some(known) => known.mends.push(name),
            None => fixes.push(Fix { fix, mends: vec![name] }),
        }
    }
    fixes
}

#[cfg(test)]
mod tests {
    use cofferdam_engine::select::Obstacle;

    use super::*;

    fn host() -> Host {
        Host {
            cgroups: cofferdam_sys::cgroup::Cgroups::parse("", ""),
            landlock: Ok(7),
            no_user_namespaces: None,
            no_proc: None,
            no_seccomp: None,
            root: true,
            captures: Err((String::new(), String::new())),
        }
    }

    fn boundaries(stops: Vec<(&'static str, Trouble)>, lacks: Vec<(Capability, Trouble)>) -> Boundaries {
        let candidates = crate::host::candidates(Path::new("/nonexistent"));
        let seen = candidates
            .iter()
            .map(|candidate| Seen {
                offers: candidate.backend.as_ref().ok().map(|backend| backend.offers().clone()),
                ..Seen::default()
            })
            .collect();
        Boundaries { candidates, seen, ceiling: Ceiling::default(), stops, lacks }
    }

    #[test]
    fn what_stops_every_run_is_the_first_thing_to_mend_and_no_profile_runs() {
        let lacks = host().lacks(Capability::Memory).map(Trouble::from).unwrap();
        let stops = vec![("state", Trouble::new("it is full", "make room"))];
        let found = boundaries(stops, vec![(Capability::Memory, lacks)]);
        assert!(found.profiles().iter().all(|profile| !profile.runs && profile.why == "it is full"));
        let fixes = found.fixes();
        assert_eq!(fixes[0], Fix { fix: "make room".into(), mends: vec!["state"] });
        assert!(fixes[1..].iter().any(|fix| fix.mends.contains(&"memory")), "{fixes:?}");
    }

    #[test]
    fn a_profile_that_the_node_forbids_is_not_promised() {
        let mut found = boundaries(vec![], vec![]);
        found.ceiling.profiles = Some(BTreeSet::from([Profile::Untrusted]));
        let internal = found.profile(Profile::Internal);
        assert!(!internal.runs);
        assert!(internal.why.contains("ceiling"), "{}", internal.why);
        assert_eq!(found.fixes()[0].mends, ["policy"]);
    }

    #[test]
    fn untrusted_never_runs_in_a_container() {
        let untrusted = boundaries(vec![], vec![]).profile(Profile::Untrusted);
        assert!(!untrusted.runs);
        assert!(!untrusted.considers.contains(&"container"));
    }

    #[test]
    fn a_fix_that_needs_a_backend_says_when_that_is_not_here() {
        let found = boundaries(vec![], vec![]);
        let fix = found.with_what_is_missing("choose it: --backend microvm".into());
        assert!(fix.contains("this version has no"), "{fix}");
        assert_eq!(found.with_what_is_missing("run without -t".into()), "run without -t");
    }

    #[test]
    fn what_a_refusal_would_have_accepted_is_a_step_too() {
        let gap = |capability| Gap { capability, why: String::new(), fix: "delegate it".into() };
        let refusal = |fix: &str| Refusal {
            name: BackendName::Container,
            why: String::new(),
            fix: fix.into(),
            fault: Obstacle::Here,
            gaps: vec![gap(Capability::Cpu), gap(Capability::Memory)],
        };
        let offered = refusal("delegate it; or run without: --accept-gap cpu --accept-gap memory");
        let steps = each_once(accepted(&offered));
        assert_eq!(steps.len(), 1);
        assert!(steps[0].fix.ends_with("--accept-gap cpu --accept-gap memory"), "{steps:?}");
        assert_eq!(steps[0].mends, ["cpu", "memory"]);
        assert_eq!(accepted(&refusal("delegate it")), [], "what isn't offered isn't named");
    }

    #[test]
    fn the_same_step_is_told_once_with_all_that_it_mends() {
        let step = |name| ("mount it".to_owned(), name);
        let fixes = each_once(vec![step("memory"), ("boot".into(), "landlock"), step("cpu"), step("cpu")]);
        assert_eq!(fixes.len(), 2);
        assert_eq!(fixes[0].mends, ["memory", "cpu"]);
    }
}
