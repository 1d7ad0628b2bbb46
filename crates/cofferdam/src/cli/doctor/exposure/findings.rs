//! What was found, and the object that `--json` prints.
//!
//! No value is in here: a finding names a place and says what kind of thing is there.

use std::collections::BTreeMap;
use std::path::Path;

use cofferdam_core::capability::Capability;
use serde::{Serialize, Serializer};

use crate::report::inert;

/// What a finding is about. The order is the page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    /// Secrets in the environment.
    Environment,
    /// Files that hold credentials.
    CredentialFiles,
    /// Agents and keyrings, which use a secret for whoever asks.
    Agents,
    /// Sockets through which something else is commanded.
    ControlSockets,
    /// Addresses that hand out a cloud's credentials.
    CloudMetadata,
    /// Files whose content is run later.
    StartUpFiles,
    /// What the kernel lets this process do.
    Kernel,
}

impl Group {
    /// Every group, in the page's order.
    pub(super) const ALL: [Group; 7] = [
        Group::Environment,
        Group::CredentialFiles,
        Group::Agents,
        Group::ControlSockets,
        Group::CloudMetadata,
        Group::StartUpFiles,
        Group::Kernel,
    ];
}

/// Whose a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scope {
    /// It comes with the person: their home, their environment, their session.
    Person,
    /// It comes with the machine, whoever looks.
    Machine,
}

/// A finding without its place: what it is and why it matters, declared once for each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The name that programs see.
    pub(super) name: &'static str,
    /// What is there, in a few words.
    pub(super) what: &'static str,
    /// What code could do with it.
    pub(super) why: &'static str,
}

impl Kind {
    /// A kind.
    pub(super) const fn new(name: &'static str, what: &'static str, why: &'static str) -> Self {
        Kind { name, what, why }
    }
}

/// What a person would type that shows a run something of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ShownBy {
    /// `--workspace` with the current folder.
    Workspace,
}

/// One thing that code would inherit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// What it is about.
    pub(super) group: Group,
    /// Whose it is.
    pub(super) scope: Scope,
    /// The kind, by a name that stays.
    pub(super) kind: &'static str,
    /// Where: a variable's name, a path (`~` is the home), a setting. Harmless to a terminal.
    pub(super) place: String,
    /// What is there.
    pub(super) what: String,
    /// What code could do with it.
    pub(super) why: &'static str,
    /// The capabilities that keep it from a run where all of them are enforced; none where no
    /// capability does.
    #[serde(serialize_with = "names")]
    pub(super) hidden_by: &'static [Capability],
    /// What shows it to a run, if that is asked for; null where only naming the very thing would.
    pub(super) shown_by: Option<ShownBy>,
    /// Whether the profile's backend enforces them all here; null where the profile runs nothing.
    pub(super) hidden: Option<bool>,
}

impl Finding {
    /// A finding of a kind. Whether it is hidden is seen later.
    pub(super) fn new(
        group: Group,
        scope: Scope,
        kind: Kind,
        place: &str,
        hidden_by: &'static [Capability],
    ) -> Self {
        Finding {
            group,
            scope,
            kind: kind.name,
            place: one_line(place),
            what: kind.what.to_owned(),
            why: kind.why,
            hidden_by,
            shown_by: None,
            hidden: None,
        }
    }

    /// Notes what shows it, so that no capability is said to hide it.
    pub(super) fn be_shown_by(&mut self, what: ShownBy) {
        self.shown_by = Some(what);
        self.hidden_by = &[];
    }
}

/// Text from anybody, made harmless and a single line.
pub(super) fn one_line(text: &str) -> String {
    inert(text).replace('\n', "\\u{a}")
}

fn names<S: Serializer>(capabilities: &[Capability], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(capabilities.iter().map(|capability| capability.name()))
}

/// What a run of the chosen profile would be in.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProfileSeen {
    /// The profile.
    pub(super) name: &'static str,
    /// The backend that it gets here; null where it runs nothing.
    pub(super) backend: Option<&'static str>,
    /// Why that backend, or why none.
    pub(super) why: String,
    /// What would make it run, where it doesn't.
    pub(super) fix: Option<String>,
    /// What that backend enforces here; empty where there is none.
    #[serde(serialize_with = "names")]
    pub(super) enforced: Vec<Capability>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// The version of this format.
    pub(super) version: u32,
    /// What the findings come to, in a sentence.
    pub(super) summary: String,
    /// How many findings each group has.
    pub(super) counts: BTreeMap<Group, usize>,
    /// Whether nothing of the person's was found; the machine's doesn't count.
    pub(super) clean: bool,
    /// The profile that the findings were held against.
    pub(super) profile: ProfileSeen,
    /// Everything that was found: the person's, then the machine's, by group.
    pub(super) findings: Vec<Finding>,
    /// What couldn't be looked at.
    pub(super) notes: Vec<String>,
}

impl Report {
    /// Holds findings against a profile and counts them.
    pub(super) fn of(mut findings: Vec<Finding>, profile: ProfileSeen, notes: Vec<String>) -> Self {
        for finding in &mut findings {
            let enforced = |capability| profile.enforced.contains(capability);
            let by = finding.hidden_by;
            finding.hidden = profile.backend.map(|_| !by.is_empty() && by.iter().all(enforced));
        }
        // Stable: within a kind the order of discovery stays.
        findings.sort_by_key(|finding| (finding.scope, finding.group));
        let counts = Group::ALL
            .map(|group| (group, findings.iter().filter(|it| it.group == group).count()))
            .into_iter()
            .collect();
        let clean = findings.iter().all(|finding| finding.scope != Scope::Person);
        Report { version: 1, summary: summary(&findings), counts, clean, profile, findings, notes }
    }
}

/// The sentence on top.
fn summary(findings: &[Finding]) -> String {
    let yours = phrases(findings, Scope::Person);
    let machines = phrases(findings, Scope::Machine);
    let first = if yours.is_empty() {
        "Nothing of yours was found that code which runs here as you could take or use: no secrets in the \
         environment, no credential files, no agents, no control sockets and no start-up files."
            .to_owned()
    } else {
        format!("Code that runs here as you today could {}.", listed(&yours))
    };
    if machines.is_empty() {
        first
    } else {
        format!("{first} This machine adds to that: it could {}.", listed(&machines))
    }
}

/// What code could do, by group: `read 7 secrets in the environment and 2 credential files`.
fn phrases(findings: &[Finding], scope: Scope) -> Vec<String> {
    let mut phrases: Vec<String> = vec![];
    let mut before = "";
    for group in Group::ALL {
        let count = findings.iter().filter(|it| it.scope == scope && it.group == group).count();
        if count == 0 {
            continue;
        }
        let (verb, one, many) = words(group);
        let counted = format!("{count} {}", if count == 1 { one } else { many });
        match phrases.last_mut().filter(|_| verb == before) {
            Some(last) => last.push_str(&format!(" and {counted}")),
            None => phrases.push(format!("{verb} {counted}")),
        }
        before = verb;
    }
    phrases
}

/// What code does with the things of a group, and what one and many of them are called.
fn words(group: Group) -> (&'static str, &'static str, &'static str) {
    match group {
        Group::Environment => ("read", "secret in the environment", "secrets in the environment"),
        Group::CredentialFiles => ("read", "credential file", "credential files"),
        Group::Agents => ("use", "agent or keyring", "agents and keyrings"),
        Group::ControlSockets => ("talk to", "control socket", "control sockets"),
        Group::CloudMetadata => {
            ("follow", "sign of a cloud to its credentials", "signs of a cloud to its credentials")
        }
        Group::StartUpFiles => ("change", "start-up file or folder", "start-up files and folders"),
        Group::Kernel => ("try", "opening of the kernel", "openings of the kernel"),
    }
}

fn listed(phrases: &[String]) -> String {
    match phrases {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A path as it is shown: below the home with `~`, and what stands for `/` left out.
pub(super) fn shown(path: &Path, home: Option<&Path>, root: &Path) -> String {
    let below = |folder: &Path| path.strip_prefix(folder).ok().map(Path::to_path_buf);
    if let Some(rest) = home.filter(|home| home.parent().is_some()).and_then(below) {
        return Path::new("~").join(rest).to_string_lossy().into_owned();
    }
    below(root).map_or(path.to_path_buf(), |rest| Path::new("/").join(rest)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(group: Group, scope: Scope, hidden_by: &'static [Capability]) -> Finding {
        Finding::new(group, scope, Kind::new("kind", "what", "why"), "place", hidden_by)
    }

    fn profile(backend: Option<&'static str>, enforced: Vec<Capability>) -> ProfileSeen {
        ProfileSeen { name: "internal", backend, why: String::new(), fix: None, enforced }
    }

    #[test]
    fn a_finding_is_hidden_only_where_every_capability_that_hides_it_is_enforced() {
        const BOTH: &[Capability] = &[Capability::Files, Capability::Network];
        let hidden = |profile| {
            let found = vec![finding(Group::ControlSockets, Scope::Person, BOTH)];
            Report::of(found, profile, vec![]).findings[0].hidden
        };
        assert_eq!(hidden(profile(Some("container"), BOTH.to_vec())), Some(true));
        assert_eq!(hidden(profile(Some("container"), vec![Capability::Files])), Some(false));
        assert_eq!(hidden(profile(None, vec![])), None);
        let by_nothing = vec![finding(Group::ControlSockets, Scope::Person, &[])];
        let report = Report::of(by_nothing, profile(Some("container"), BOTH.to_vec()), vec![]);
        assert_eq!(report.findings[0].hidden, Some(false));
    }

    #[test]
    fn a_machines_findings_do_not_make_a_home_unclean() {
        let machine = vec![finding(Group::Kernel, Scope::Machine, &[])];
        let report = Report::of(machine.clone(), profile(None, vec![]), vec![]);
        assert!(report.clean && report.summary.contains("Nothing of yours"), "{}", report.summary);
        assert!(report.summary.contains("try 1 opening of the kernel"), "{}", report.summary);
        let both = [machine, vec![finding(Group::Environment, Scope::Person, &[])]].concat();
        assert!(!Report::of(both, profile(None, vec![]), vec![]).clean);
    }

    #[test]
    fn the_sentence_counts_by_kind_in_plain_words() {
        let found: Vec<_> =
            [Group::Environment, Group::CredentialFiles, Group::CredentialFiles, Group::Agents]
                .map(|group| finding(group, Scope::Person, &[]))
                .into();
        let expected = "Code that runs here as you today could read 1 secret in the environment and 2 credential \
                        files and use 1 agent or keyring.";
        assert_eq!(summary(&found), expected);
    }

    #[test]
    fn a_place_is_one_harmless_line() {
        assert_eq!(one_line("a\x1b[2J\nb"), "a\\u{1b}[2J\\u{a}b");
    }

    #[test]
    fn a_home_is_shown_as_a_tilde_and_a_home_that_is_the_root_is_not() {
        let shown = |path, home: &str| shown(Path::new(path), Some(Path::new(home)), Path::new("/"));
        assert_eq!(shown("/home/a/.netrc", "/home/a"), "~/.netrc");
        assert_eq!(shown("/etc/shadow", "/"), "/etc/shadow");
    }
}
