//! The behaviour that every backend must show: one suite, instantiated for each of them.
//!
//! Two tables, both data. A *behaviour* is a claim about how runs end, what arrives and what stays. A
//! *field* is a claim about one field of the policy: a run that would break it if the backend ignored
//! it. A field is enforced, which is looked at from the far end, or refused before the start with the
//! gap's name; it is never ignored.
//!
//! A check is a function that gives a [`Verdict`] or says that the backend is [`Broken`]; it asserts
//! nothing. So it can be shown that the suite catches what it should: a [`Toy`](toys::Toy) is a real
//! backend with one vice, and each vice is caught by a check of one name.
//!
//! `conformance!(container, subject())` makes a test of each entry; that line is all that a new
//! backend needs. Where it can't be started on this machine, each of its tests says so by name.
//!
//! - [`Subject`]: a backend and how it is made. [`trial`]: runs of it, through the engine and over its
//!   traits; [`wired`] is what the runs are connected to.
//! - [`ends`], [`output`], [`input`], [`signals`], [`handed_in`], [`alone`], [`teardown`]: behaviours.
//! - [`fields`]: fields of the policy.
//! - [`toys`]: backends with a vice.
//! - [`ordinary`]: the same suite again as an ordinary user.

/// Ends a check unless something holds: the backend is broken.
macro_rules! must {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Broken(format!($($words)+)));
        }
    };
}

mod alone;
mod ends;
mod fields;
mod handed_in;
mod input;
pub mod ordinary;
mod output;
mod signals;
mod table;
mod teardown;
pub mod toys;
mod trial;
mod wired;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::backend::Backend;
use cofferdam_core::capability::Gap;
use cofferdam_core::outcome::Outcome;
use cofferdam_core::outlet::Outlets;
use cofferdam_core::policy::{BackendName, LimitsLayer};
use cofferdam_core::request::File;
pub use cofferdam_engine::select::Absent;

pub use table::{BEHAVIOURS, CAUGHT, FIELDS, WITHOUT_TOY};
use toys::{Toy, Vice};
use trial::{Trial, Try};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim holds.
    Held,
    /// This backend has nothing of what the claim is about, and why.
    NotForThis(String),
    /// The run was refused before its start, with this gap's name.
    Refused(Gap),
}

/// What the reason of a skip begins with whose claim is about something that the backend hasn't got.
const NOT_FOR_THIS: &str = "not for this backend: ";

/// A claim that doesn't hold, and what was seen instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What comes of a check.
pub type Checked = Result<Verdict, Broken>;

/// What a check needs of the programs that a backend runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Python that starts processes.
    Processes,
    /// Python source.
    Python,
    /// A command: `sh`, and the usual programs beside it.
    Sh,
}

/// One claim and its check.
#[derive(Debug)]
pub struct Entry {
    /// The claim, as the test's name.
    pub claim: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// The check.
    pub check: fn(&Subject) -> Checked,
}

/// Makes a backend with a state folder of its own, or says what is in the way.
type Make = dyn Fn(&Path) -> Result<Box<dyn Backend>, Absent> + Send + Sync;

/// Kills a sandbox from outside, told a text that its program's command line holds.
type Lose = fn(&str) -> io::Result<()>;

/// A backend that is put to the test.
pub struct Subject {
    name: BackendName,
    make: Box<Make>,
    runs: Vec<Needs>,
    mark: Option<String>,
    lose: Option<Lose>,
    outlets: Option<Arc<dyn Outlets>>,
    vice: Option<Vice>,
}

impl Subject {
    /// A backend by its name, the programs that it runs, and how it is made: fresh for each run.
    #[must_use]
    pub fn new(
        name: BackendName,
        runs: &[Needs],
        make: impl Fn(&Path) -> Result<Box<dyn Backend>, Absent> + Send + Sync + 'static,
    ) -> Self {
        let (make, runs) = (Box::new(make), runs.to_vec());
        Subject { name, make, runs, mark: None, lose: None, outlets: None, vice: None }
    }

    /// Says what is in the command line of each process in which its programs run, where a program isn't a
    /// process of its own; nobody else's may hold it.
    #[must_use]
    pub fn whose_processes_bear(mut self, mark: String) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Says how its sandboxes can be killed under their programs.
    #[must_use]
    pub fn that_can_be_lost(mut self, lose: Lose) -> Self {
        self.lose = Some(lose);
        self
    }

    /// Gives its sandboxes ways out. Without, they have some that let nothing through.
    #[must_use]
    pub fn with_outlets(mut self, outlets: Arc<dyn Outlets>) -> Self {
        self.outlets = Some(outlets);
        self
    }

    /// The same backend with a vice.
    #[must_use]
    pub fn with(mut self, vice: Vice) -> Self {
        self.vice = Some(vice);
        self
    }

    /// Makes it.
    fn make(&self, state: &Path) -> Result<Arc<dyn Backend>, Absent> {
        let backend: Arc<dyn Backend> = Arc::from((self.make)(state)?);
        Ok(match self.vice {
            Some(vice) => Arc::new(Toy::new(backend, vice)),
            None => backend,
        })
    }

    /// Why it can't be started on this machine, if it can't.
    fn absence(&self) -> Option<String> {
        let state = tempfile::tempdir().unwrap();
        let backend = match self.make(state.path()) {
            Ok(backend) => backend,
            Err(absent) => return Some(absent.why),
        };
        let offers = backend.offers();
        let why = || offers.gaps().next().map_or("it enforces nothing".into(), |gap| gap.why.clone());
        offers.enforced().is_empty().then(why)
    }
}

impl Entry {
    /// Checks a subject.
    ///
    /// # Errors
    ///
    /// [`Broken`] if the claim doesn't hold.
    pub fn judge(&self, subject: &Subject) -> Checked {
        if !subject.runs.contains(&self.needs) {
            return Ok(Verdict::NotForThis(format!("{} runs no {:?}", subject.name, self.needs)));
        }
        (self.check)(subject)
    }

    /// The entry of a claim.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn of(claim: &str) -> &'static Entry {
        let found = BEHAVIOURS.iter().chain(FIELDS).find(|entry| entry.claim == claim);
        found.unwrap_or_else(|| panic!("no claim `{claim}`"))
    }
}

/// Runs a command of `sh` with a deadline, and gives the Outcome if it can be true: for tests that make
/// the backend itself go wrong. Files are put first if there are any.
///
/// # Errors
///
/// [`Broken`] if it can't be true, if something is left, or if nothing comes of it.
pub fn outcome_of(
    subject: &Subject,
    code: &str,
    files: Vec<File>,
    deadline: Duration,
) -> Result<Outcome, Broken> {
    let trial = Trial::of(subject)?;
    let limits = LimitsLayer { timeout: Some(deadline), ..LimitsLayer::default() };
    let what = Try { files, layer: trial.limited(&limits), ..trial.sh(code) };
    Ok(trial.run(what)?.outcome)
}

/// The body of each test that [`conformance!`](crate::conformance!) makes.
///
/// # Panics
///
/// If the claim doesn't hold.
pub fn hold(subject: &Subject, claim: &str, test: &str) {
    if let Some(why) = subject.absence() {
        return crate::record_skip(test, &format!("{} can't be started here: {why}", subject.name));
    }
    match Entry::of(claim).judge(subject) {
        Ok(Verdict::Held) => {}
        Ok(Verdict::NotForThis(why)) => crate::record_skip(test, &format!("{NOT_FOR_THIS}{why}")),
        Ok(Verdict::Refused(gap)) => println!("REFUSED {test}: {} ({})", gap.capability, gap.why),
        Err(broken) => panic!("{} is broken: {claim}: {broken}", subject.name),
    }
}

/// The body of each test of a toy: the backend with a vice is caught by a claim, which says what is
/// wrong with it. One that fails for another reason has caught nothing.
///
/// # Panics
///
/// If it isn't.
pub fn caught(subject: Subject, vice: Vice, claim: &str, says: &str, test: &str) {
    if let Some(why) = subject.absence() {
        return crate::record_skip(test, &format!("{} can't be started here: {why}", subject.name));
    }
    if let Some(needs) = vice.needs().filter(|needs| !subject.runs.contains(needs)) {
        let why = format!("{NOT_FOR_THIS}{} runs no {needs:?}", subject.name);
        return crate::record_skip(test, &why);
    }
    match Entry::of(claim).judge(&subject) {
        // What is refused here can't be ignored, but for what the toy claims to have.
        Ok(Verdict::Refused(gap)) if vice.claims().is_empty() => {
            return crate::record_skip(test, &format!("{} isn't had here: {}", gap.capability, gap.why));
        }
        Ok(Verdict::NotForThis(why)) => return crate::record_skip(test, &why),
        Ok(Verdict::Held | Verdict::Refused(_)) => {}
        Err(broken) => panic!("without a vice: {claim}: {broken}"),
    }
    let toy = subject.with(vice);
    // What is ignored is hardly missed while others take the whole processor: then it is tried again.
    let mut tries = std::iter::repeat_with(|| Entry::of(claim).judge(&toy)).take(3);
    let held = |judged: &Checked| matches!(judged, Ok(Verdict::Held));
    match tries.find(|judged| !held(judged)).unwrap_or(Ok(Verdict::Held)) {
        Err(broken) if broken.0.contains(says) => println!("CAUGHT {vice:?} by {claim}: {broken}"),
        Err(broken) => panic!("{vice:?} is caught by {claim} for another reason than {says:?}: {broken}"),
        other => panic!("{vice:?} is not caught by {claim}: {other:?}"),
    }
}

/// Makes a test of each entry of both tables for one backend, and of each toy.
///
/// `$subject` is an expression that gives a [`Subject`], evaluated for each test, so that tests share
/// nothing.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $subject:expr) => {
        $crate::each_entry! { ($crate::conformance_tests) $name, $subject }
    };
}

/// The tests of [`conformance!`](crate::conformance!).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    (
        ($name:ident, $subject:expr)
        behaviours { $($place:ident::$claim:ident $needs:ident;)+ }
        fields { $($field_place:ident::$field:ident $field_needs:ident;)+ }
        toys { $($vice:ident $caught_by:ident $says:literal;)+ }
    ) => {
        mod $name {
            use super::*;

            $(
                #[test]
                fn $claim() {
                    let test = concat!(module_path!(), "::", stringify!($claim));
                    $crate::conformance::hold(&$subject, stringify!($claim), test);
                }
            )+

            $(
                #[test]
                fn $field() {
                    let test = concat!(module_path!(), "::", stringify!($field));
                    $crate::conformance::hold(&$subject, stringify!($field), test);
                }
            )+

            #[test]
            fn every_entry_of_the_tables_has_its_test() {
                let made = [$(stringify!($claim),)+ $(stringify!($field),)+];
                let tables = $crate::conformance::BEHAVIOURS.iter().chain($crate::conformance::FIELDS);
                assert_eq!(tables.map(|entry| entry.claim).collect::<Vec<_>>(), made);
            }

            /// Each vice by itself.
            #[expect(non_snake_case, reason = "a test is named for its vice")]
            mod toys {
                use super::*;

                $(
                    #[test]
                    fn $vice() {
                        let test = concat!(module_path!(), "::", stringify!($vice));
                        let vice = $crate::conformance::toys::Vice::$vice;
                        $crate::conformance::caught($subject, vice, stringify!($caught_by), $says, test);
                    }
                )+
            }
        }
    };
}
