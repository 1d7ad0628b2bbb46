//! The report as a person reads it: one sentence, then groups of short lines, and after each whether a
//! run would still have it.

use std::io::{self, Write};

use super::findings::{Finding, Group, ProfileSeen, Report, Scope, ShownBy};
use crate::cli::doctor::page::{LIST, Mark, Page, Paint};

/// How wide a place may be before its text goes on a line of its own, in characters.
const PLACE: usize = 36;

/// Prints the report.
///
/// # Errors
///
/// Where `out` can't be written.
pub(super) fn print(report: &Report, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page { paint, out };
    page.bold(&report.summary)?;
    profile(&mut page, &report.profile)?;
    for scope in [Scope::Person, Scope::Machine] {
        for group in Group::ALL {
            let all = report.findings.iter().filter(|it| it.scope == scope && it.group == group);
            let all: Vec<_> = all.collect();
            if !all.is_empty() {
                page.section(&title(group, scope))?;
                rows(&mut page, &all, &report.profile)?;
            }
        }
    }
    page.section("How this was looked at")?;
    for note in &report.notes {
        page.list(Mark::Note, note)?;
    }
    page.list(
        Mark::Note,
        "The usual places were looked at. Only what this user can reach is listed; no value was kept.",
    )?;
    page.list(Mark::Note, "Nothing was connected to, so a socket counts even if nobody listens any more.")?;
    page.list(Mark::Note, "No address was asked.")
}

/// What the groups are held against.
fn profile(page: &mut Page<'_>, profile: &ProfileSeen) -> io::Result<()> {
    let ProfileSeen { name, backend, why, fix, .. } = profile;
    page.section(&format!("Held against a run of profile {name}"))?;
    match backend {
        Some(backend) => page.list(
            Mark::Yes,
            &format!(
                "{backend}: of yours, such a run sees only the variables and files that you name for it"
            ),
        ),
        None => {
            page.list(Mark::No, &format!("nothing runs with it here, so nothing is promised: {why}"))?;
            fix.as_ref().map_or(Ok(()), |fix| page.fix(LIST, fix))
        }
    }
}

fn title(group: Group, scope: Scope) -> String {
    let title = match group {
        Group::Environment => "Secrets in the environment",
        Group::CredentialFiles => "Credential files",
        Group::Agents => "Agents and keyrings",
        Group::ControlSockets => "Control sockets",
        Group::CloudMetadata => "Cloud metadata, from configuration only",
        Group::StartUpFiles => "Start-up files that can be changed",
        Group::Kernel => "Openings of the kernel",
    };
    match scope {
        Scope::Person => title.to_owned(),
        Scope::Machine => format!("{title} (this machine)"),
    }
}

/// The rows of a group, those with the same answer together and the answer after them.
fn rows(page: &mut Page<'_>, findings: &[&Finding], profile: &ProfileSeen) -> io::Result<()> {
    let answer_of = |finding: &Finding| (finding.hidden_by, finding.shown_by);
    let mut done = vec![];
    for first in findings {
        if done.contains(&answer_of(first)) {
            continue;
        }
        done.push(answer_of(first));
        let mut before = None;
        for finding in findings.iter().filter(|it| answer_of(it) == answer_of(first)) {
            row(page, finding, before)?;
            before = Some(finding.kind);
        }
        answer(page, first, profile)?;
    }
    Ok(())
}

/// `~/.aws/credentials   AWS keys: acts as you in AWS`.
fn row(page: &mut Page<'_>, finding: &Finding, before: Option<&str>) -> io::Result<()> {
    let text = if before == Some(finding.kind) {
        format!("{}, too", finding.what)
    } else {
        format!("{}: {}", finding.what, finding.why)
    };
    let place = format!("    {}", finding.place);
    let column = 4 + PLACE + 2;
    if finding.place.chars().count() > PLACE {
        page.line(&place)?;
        return page.hanging(&" ".repeat(column), column, &text);
    }
    page.hanging(&format!("{place:<column$}"), column, &text)
}

/// Whether a run would still have these.
fn answer(page: &mut Page<'_>, finding: &Finding, profile: &ProfileSeen) -> io::Result<()> {
    let names = |all: &[&str]| all.join(" and ");
    let all: Vec<_> = finding.hidden_by.iter().map(|capability| capability.name()).collect();
    let ProfileSeen { name, enforced, .. } = profile;
    match finding.hidden {
        Some(_) if finding.shown_by == Some(ShownBy::Workspace) => page.list(
            Mark::No,
            &format!(
                "within reach of a run of profile {name} too: shown by --workspace, if you name this folder"
            ),
        ),
        Some(true) => {
            page.list(Mark::Yes, &format!("out of reach for a run of profile {name}, by {}", names(&all)))
        }
        Some(false) if all.is_empty() => page.list(
            Mark::No,
            &format!("within reach of a run of profile {name} too: what lies below /usr is shown to it"),
        ),
        Some(false) => {
            let missing = finding.hidden_by.iter().filter(|it| !enforced.contains(it));
            let missing: Vec<_> = missing.map(|capability| capability.name()).collect();
            let text =
                format!("within reach of a run of profile {name} too: it lacks {} here", names(&missing));
            page.list(Mark::No, &text)
        }
        None if all.is_empty() => Ok(()),
        None => page.list(Mark::Note, &format!("{} would keep this out of reach", names(&all))),
    }
}
