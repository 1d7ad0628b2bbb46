//! The findings as a person reads them: the answer first, then what it stands on, then what to do.

use std::io::{self, Write};

use super::findings::{
    BackendFound, Captured, CgroupFound, CredentialsFound, Findings, FolderFound, GapFound, HostFound,
    IssuerFound, Node, ProfileFound, PythonsFound, RuntimeFound, Standing, TemplateFound, Trouble,
    WayOutFound,
};
use crate::report::inert;

/// The width of the page, in characters.
const WIDTH: usize = 100;

/// Where the text of a row begins: after its mark and its name.
const TEXT: usize = 24;

/// Where the text begins in a section whose rows are lists of names.
pub(super) const LIST: usize = 7;

/// Colours, or none.
pub(super) struct Paint {
    bold: &'static str,
    good: &'static str,
    bad: &'static str,
    plain: &'static str,
}

impl Paint {
    /// Colours if they are wanted.
    pub(super) fn of(wanted: bool) -> Self {
        if wanted {
            Paint { bold: "\x1b[1m", good: "\x1b[32m", bad: "\x1b[31m", plain: "\x1b[0m" }
        } else {
            Paint { bold: "", good: "", bad: "", plain: "" }
        }
    }
}

/// Whether a row is about something that is there.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    No,
    Note,
    Yes,
}

impl From<bool> for Mark {
    fn from(there: bool) -> Self {
        if there { Mark::Yes } else { Mark::No }
    }
}

/// Prints the page.
///
/// # Errors
///
/// Where `out` can't be written.
pub(super) fn print(findings: &Findings, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page { paint, out };
    page.headline(findings)?;
    page.profiles(findings)?;
    page.backends(findings)?;
    page.pythons(findings.pythons.as_ref())?;
    for backend in findings.backends.iter().filter(|backend| !backend.gaps.is_empty()) {
        page.capabilities(backend)?;
    }
    page.way_out(&findings.way_out)?;
    page.credentials(&findings.credentials)?;
    page.runtimes(&findings.runtimes)?;
    page.host(&findings.host)?;
    page.folders(findings)?;
    page.fixes(findings)
}

/// Where a page is written: its width, its columns and its colours are the same for every report.
pub(super) struct Page<'a> {
    pub(super) paint: &'a Paint,
    pub(super) out: &'a mut dyn Write,
}

impl Page<'_> {
    /// `internal: container · untrusted: nothing here, since …`.
    fn headline(&mut self, findings: &Findings) -> io::Result<()> {
        let mut parts: Vec<String> = vec![];
        for profile in &findings.profiles {
            parts.extend(profile.backend.map(|backend| format!("{}: {backend}", profile.name)));
        }
        let mut reasons: Vec<&str> = vec![];
        for profile in findings.profiles.iter().filter(|profile| !profile.runs) {
            if !reasons.contains(&profile.briefly.as_str()) {
                reasons.push(&profile.briefly);
            }
        }
        for reason in reasons {
            let with_it =
                findings.profiles.iter().filter(|profile| !profile.runs && profile.briefly == reason);
            let names: Vec<_> = with_it.map(|profile| profile.name).collect();
            parts.push(format!("{}: nothing here, since {reason}", names.join(", ")));
        }
        self.bold(&parts.join(" · "))
    }

    /// A text that stands out.
    pub(super) fn bold(&mut self, text: &str) -> io::Result<()> {
        let Paint { bold, plain, .. } = self.paint;
        for line in wrap(&inert(text), WIDTH) {
            writeln!(self.out, "{bold}{line}{plain}")?;
        }
        Ok(())
    }

    /// A line that is not wrapped, so that a path can be copied.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", inert(text))
    }

    fn profiles(&mut self, findings: &Findings) -> io::Result<()> {
        self.section("Profiles, and what a plain run of each gets")?;
        let mut before: Option<&ProfileFound> = None;
        for profile in &findings.profiles {
            if before.is_some_and(|before| before.why == profile.why && !profile.runs) {
                self.row(Mark::No, profile.name, "for the same reason")?;
                continue;
            }
            let text = match profile.backend {
                Some(backend) => format!("{backend}: {}", profile.why),
                None => profile.why.clone(),
            };
            self.row(profile.runs.into(), profile.name, &text)?;
            if let Some(fix) = &profile.fix {
                self.fix(TEXT, fix)?;
            }
            before = Some(profile);
        }
        Ok(())
    }

    fn backends(&mut self, findings: &Findings) -> io::Result<()> {
        self.section("Backends")?;
        let fix_of = |backend: &BackendFound| backend.trouble.as_ref().map(|trouble| trouble.fix.clone());
        // Backends in a row may have the same way to get them, which is told once.
        for alike in
            findings.backends.chunk_by(|one, two| one.trouble.is_some() && fix_of(one) == fix_of(two))
        {
            for backend in alike {
                self.backend(backend)?;
            }
            if let Some(fix) = alike.first().and_then(fix_of) {
                let each = if alike.len() > 1 { "each of these: " } else { "" };
                self.fix(TEXT, &format!("{each}{fix}"))?;
            }
        }
        Ok(())
    }

    fn backend(&mut self, backend: &BackendFound) -> io::Result<()> {
        if let Some(Trouble { why, .. }) = &backend.trouble {
            return self.row(Mark::No, backend.name, why);
        }
        let text = match backend.trial.and_then(|trial| trial.ms) {
            Some(ms) => format!("a sandbox was started to see: ready in {ms} ms"),
            None => "in jails that are made as a container is, which was tried".to_owned(),
        };
        self.row(Mark::Yes, backend.name, &text)?;
        let (can, cannot): (Vec<_>, Vec<_>) = backend.languages.iter().partition(|lang| lang.runs);
        if !can.is_empty() {
            let names: Vec<_> = can.iter().map(|lang| lang.name).collect();
            self.row(Mark::Note, "", &format!("runs scripts in {}", names.join(", ")))?;
        }
        for alike in cannot.chunk_by(|one, two| one.why == two.why) {
            let names: Vec<_> = alike.iter().map(|lang| lang.name).collect();
            let why = alike.first().map_or("", |lang| &lang.why);
            self.row(Mark::Note, "", &format!("no {}: {why}", names.join(", ")))?;
        }
        Ok(())
    }

    fn pythons(&mut self, found: Option<&PythonsFound>) -> io::Result<()> {
        let Some(PythonsFound { folder, code_bytes, templates, trouble }) = found else { return Ok(()) };
        self.section("Pythons that are prepared for WebAssembly")?;
        for TemplateFound { name, ready, bytes, remake, age, loaded, packages, .. } in templates {
            if !ready {
                let text = format!(
                    "made {age} by another version of Cofferdam or for another processor, or damaged: nothing runs \
                     in it"
                );
                self.row(Mark::No, name, &text)?;
                self.fix(TEXT, remake)?;
                continue;
            }
            let added =
                if packages.is_empty() { String::new() } else { format!(", with {}", packages.join(", ")) };
            self.row(Mark::Yes, name, &format!("{} MB, made {age}{added}; loaded: {loaded}", bytes >> 20))?;
        }
        if let Some(bytes) = code_bytes {
            self.row(Mark::Note, "their code", &format!("{} MB, for all of them, in {folder}", bytes >> 20))?;
        }
        match trouble {
            Some(_) => self.there("python", "", trouble.as_ref()),
            None => Ok(()),
        }
    }

    fn capabilities(&mut self, backend: &BackendFound) -> io::Result<()> {
        self.section(&format!("What {} enforces, and what not", backend.name))?;
        if !backend.enforced.is_empty() {
            self.list(Mark::Yes, &backend.enforced.join(", "))?;
        }
        let mut told: Vec<&GapFound> = vec![];
        for gap in &backend.gaps {
            let same = |other: &&GapFound| other.why == gap.why && other.fix == gap.fix;
            if told.iter().any(same) {
                continue;
            }
            told.push(gap);
            let names: Vec<_> = backend.gaps.iter().filter(same).map(|gap| gap.name).collect();
            self.list(Mark::No, &format!("{}: {}", names.join(", "), gap.why))?;
            self.fix(LIST, &gap.fix)?;
        }
        Ok(())
    }

    fn way_out(&mut self, found: &WayOutFound) -> io::Result<()> {
        self.section("Way out of a container, for what a rule allows")?;
        let family = if found.ipv6 { "IPv4 and IPv6" } else { "IPv4; there is no IPv6 here" };
        let captured = format!("connections to every port, {family}");
        self.there("captured", &captured, found.trouble.as_ref())?;
        if found.captured == Some(Captured::ListedPorts) {
            let text = format!("connections to ports that a rule names are, {family}");
            self.row(Mark::Note, "", &text)?;
        }
        let ready = found.proxy.ms.map(|ms| format!("one was started to see: ready in {ms} ms"));
        self.there("proxy", &ready.unwrap_or_default(), found.proxy_trouble.as_ref())?;
        let names = match found.resolvers.as_slice() {
            [] => "asked of whoever the system asks".to_owned(),
            servers => format!("asked of {}", servers.join(", ")),
        };
        self.row(Mark::Note, "names", &names)?;
        match &found.upstream_proxy {
            Some(proxy) => self.row(Mark::Note, "operator's proxy", proxy),
            None => Ok(()),
        }
    }

    fn credentials(&mut self, found: &CredentialsFound) -> io::Result<()> {
        let CredentialsFound { file, places, trouble, issuers } = found;
        self.section("Credentials, and who mints them")?;
        let Some(file) = file else {
            let text = format!("none, at {}: no run gets a credential", places.join(" or "));
            return self.row(Mark::Note, "issuers.toml", &text);
        };
        self.there("issuers.toml", file, trouble.as_ref())?;
        if trouble.is_none() && issuers.is_empty() {
            self.row(Mark::Note, "", "it names no issuer")?;
        }
        for issuer in issuers {
            self.issuer(issuer)?;
        }
        if issuers.iter().any(|issuer| issuer.tried.is_none()) {
            let text =
                "none was tried: `cofferdam doctor --issuers` has each mint a credential, and revokes it";
            self.row(Mark::Note, "", text)?;
        }
        Ok(())
    }

    fn issuer(&mut self, found: &IssuerFound) -> io::Result<()> {
        let IssuerFound { name, hosts, root, trouble, tried } = found;
        let text = format!("for {}; its root is in {root}", hosts.join(", "));
        self.there(&inert(name), &text, trouble.as_ref())?;
        let Some(tried) = tried else { return Ok(()) };
        self.row(tried.passed.into(), "", &tried.seen)?;
        if let Some(Trouble { fix, .. }) = &tried.trouble {
            self.fix(TEXT, fix)?;
        }
        for Trouble { why, fix } in &tried.findings {
            self.row(Mark::No, "", why)?;
            self.fix(TEXT, fix)?;
        }
        Ok(())
    }

    fn runtimes(&mut self, runtimes: &[RuntimeFound]) -> io::Result<()> {
        if runtimes.is_empty() {
            return Ok(());
        }
        self.section("Other runtimes on the path, and their security floors")?;
        for RuntimeFound { name, program, version, floor, standing, trouble } in runtimes {
            let version = version.as_deref().unwrap_or("version unknown");
            let text = match (standing, floor) {
                (Standing::Fine, Some(floor)) => format!("{version} meets the floor ({floor}): {program}"),
                _ => format!("{version}, no floor is known: {program}"),
            };
            let mark = if *standing == Standing::NoFloor { Mark::Note } else { Mark::Yes };
            match trouble {
                None => self.row(mark, name, &text)?,
                Some(_) => self.there(name, &text, trouble.as_ref())?,
            }
        }
        Ok(())
    }

    fn host(&mut self, host: &HostFound) -> io::Result<()> {
        self.section("Host")?;
        let user = if host.root { "run as root" } else { "not run as root" };
        let kernel = host.kernel.as_deref().unwrap_or("unknown: /proc doesn't show it");
        self.row(Mark::Note, "kernel", &format!("{kernel}, {}, {user}", host.architecture))?;
        if !host.container_signs.is_empty() {
            let signs = host.container_signs.join(", ");
            self.row(Mark::Note, "", &format!("perhaps in a container itself: {signs}"))?;
        }
        for cgroup in &host.cgroups {
            self.cgroup(cgroup)?;
        }
        self.user_namespaces(host)?;
        let outer = match host.seccomp.filtered {
            Some(true) => "; an outer filter holds here and inside",
            _ => "",
        };
        self.there("seccomp", &format!("filters{outer}"), host.seccomp.trouble.as_ref())?;
        self.landlock(host)?;
        self.row(host.kvm.usable.map_or(Mark::Note, Mark::from), "kvm", &host.kvm.why)
    }

    fn cgroup(&mut self, cgroup: &CgroupFound) -> io::Result<()> {
        let name = format!("cgroup {}", cgroup.controller);
        let Some(version) = cgroup.version else {
            let why = cgroup.missing.as_deref().unwrap_or("it can't be used");
            return match &cgroup.trouble {
                // What it is for is held without it.
                None => self.row(Mark::Note, &name, &format!("— {why}; what it is for is held without it")),
                trouble => self.there(&name, "", trouble.as_ref()),
            };
        };
        let place = match (&cgroup.folder, &cgroup.a_run_first) {
            (Some(folder), _) => format!(" {folder}"),
            (None, Some(first)) => format!("; a run first {first}"),
            (None, None) => String::new(),
        };
        self.there(&name, &format!("v{version}{place}"), cgroup.trouble.as_ref())
    }

    fn user_namespaces(&mut self, host: &HostFound) -> io::Result<()> {
        let found = &host.user_namespaces;
        let max = found.max.map_or_else(|| "some".to_owned(), |max| format!("up to {max}"));
        self.there("user namespaces", &max, found.trouble.as_ref())?;
        for (name, value, says) in [
            ("kernel.unprivileged_userns_clone", found.unprivileged_clone, "0 means root only"),
            (
                "kernel.apparmor_restrict_unprivileged_userns",
                found.apparmor_restricts_unprivileged,
                "1 means root only, or with an AppArmor profile",
            ),
        ] {
            if let Some(value) = value {
                self.row(Mark::Note, "", &format!("{name} is {value}: {says}"))?;
            }
        }
        Ok(())
    }

    fn landlock(&mut self, host: &HostFound) -> io::Result<()> {
        let found = &host.landlock;
        let (version, used) = (found.version.unwrap_or_default(), found.used.unwrap_or_default());
        let minimum = found.minimum;
        let text = format!("version {version}, used as of version {used} (at least {minimum} is needed)");
        self.there("landlock", &text, found.trouble.as_ref())?;
        for (what, names) in [("rights", &found.rights), ("scopes", &found.scopes)] {
            if !names.is_empty() {
                self.row(Mark::Note, "", &format!("{what}: {}", names.join(", ")))?;
            }
        }
        Ok(())
    }

    fn folders(&mut self, findings: &Findings) -> io::Result<()> {
        self.section("Files of Cofferdam")?;
        for (name, found) in [("state", &findings.state), ("audit log", &findings.audit)] {
            let FolderFound { folder, exists, trouble, .. } = found;
            let made = if *exists { "" } else { " (the first run makes it)" };
            self.there(name, &format!("{folder}{made}"), trouble.as_ref())?;
        }
        let Node { file, places, trouble } = &findings.node;
        match file {
            Some(file) => self.there("node.toml", file, trouble.as_ref()),
            None => self.row(Mark::Note, "node.toml", &format!("none, at {}", places.join(" or "))),
        }
    }

    fn fixes(&mut self, findings: &Findings) -> io::Result<()> {
        self.section("To do first")?;
        if findings.fixes.is_empty() {
            return self.list(Mark::Yes, "nothing has to be mended");
        }
        for (number, fix) in findings.fixes.iter().enumerate() {
            let text = format!("{} (for {})", fix.fix, fix.mends.join(", "));
            self.hanging(&format!("  {:<5}", format!("{}.", number + 1)), LIST, &text)?;
        }
        Ok(())
    }

    pub(super) fn section(&mut self, title: &str) -> io::Result<()> {
        let Paint { bold, plain, .. } = self.paint;
        writeln!(self.out, "\n{bold}{title}{plain}")
    }

    /// A row about something that is there, or isn't and why and how to mend it.
    fn there(&mut self, name: &str, text: &str, trouble: Option<&Trouble>) -> io::Result<()> {
        match trouble {
            None => self.row(Mark::Yes, name, text),
            Some(Trouble { why, fix }) => {
                self.row(Mark::No, name, why)?;
                self.fix(TEXT, fix)
            }
        }
    }

    fn row(&mut self, mark: Mark, name: &str, text: &str) -> io::Result<()> {
        let width = TEXT - LIST;
        let gap = if name.chars().count() < width { "" } else { " " }; // an operator's names may be long
        let start = format!("{}{name:<width$}{gap}", self.mark(mark));
        self.hanging(&start, TEXT, text)
    }

    pub(super) fn list(&mut self, mark: Mark, text: &str) -> io::Result<()> {
        self.hanging(&self.mark(mark), LIST, text)
    }

    fn mark(&self, mark: Mark) -> String {
        let Paint { good, bad, plain, .. } = self.paint;
        match mark {
            Mark::No => format!("  {bad}no{plain}   "),
            Mark::Note => " ".repeat(LIST),
            Mark::Yes => format!("  {good}yes{plain}  "),
        }
    }

    pub(super) fn fix(&mut self, indent: usize, fix: &str) -> io::Result<()> {
        let Paint { good, plain, .. } = self.paint;
        self.hanging(&format!("{}{good}→{plain} ", " ".repeat(indent)), indent + 2, fix)
    }

    /// Text after a start, with its further lines below its first.
    pub(super) fn hanging(&mut self, start: &str, indent: usize, text: &str) -> io::Result<()> {
        for (number, line) in wrap(&inert(text), WIDTH - indent).iter().enumerate() {
            let before = if number == 0 { start.to_owned() } else { " ".repeat(indent) };
            writeln!(self.out, "{before}{line}")?;
        }
        Ok(())
    }
}

/// Breaks a text between words. A word that is too long stays whole, so that a path can be copied.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::findings::IssuerTried;
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_page_and_no_word_is_broken() {
        let lines = wrap("one two three /a/path/that/is/long four", 9);
        assert_eq!(lines, ["one two", "three", "/a/path/that/is/long", "four"]);
        assert_eq!(wrap("", 9), [""]);
    }

    #[test]
    fn a_controller_that_cannot_be_used_has_a_dash_and_the_reason() {
        let cgroup = |version, folder: Option<&str>| CgroupFound {
            controller: "pids",
            version,
            folder: folder.map(str::to_owned),
            a_run_first: None,
            missing: version.is_none().then(|| "it is not mounted".to_owned()),
            trouble: None,
        };
        let said = |cgroup: &CgroupFound| {
            let mut out = vec![];
            Page { paint: &Paint::of(false), out: &mut out }.cgroup(cgroup).unwrap();
            String::from_utf8(out).unwrap()
        };
        let missing = said(&cgroup(None, None));
        assert!(missing.contains("cgroup pids") && missing.contains("— it is not mounted"), "{missing}");
        assert!(!missing.contains("v0") && !missing.contains("yes"), "{missing}");
        assert!(said(&cgroup(Some(1), Some("/x"))).contains("v1 /x"));
    }

    #[test]
    fn an_issuer_has_its_root_and_what_was_seen_of_it() {
        let trouble = |why: &str, fix: &str| Trouble::new(why, fix);
        let tried = IssuerTried {
            passed: true,
            seen: "minted in 3.1 ms, works, revoked and dead".to_owned(),
            trouble: None,
            findings: vec![trouble("PUBLIC may connect to x", "REVOKE CONNECT")],
        };
        let issuer = |name: &str, trouble, tried| IssuerFound {
            name: name.to_owned(),
            hosts: vec!["db.internal:5432".to_owned()],
            root: "the variable ADMIN".to_owned(),
            trouble,
            tried,
        };
        let said = |issuers: Vec<IssuerFound>, file: Option<&str>| {
            let mut out = vec![];
            let places = vec!["/etc/cofferdam/issuers.toml".to_owned()];
            let found = CredentialsFound { file: file.map(str::to_owned), places, trouble: None, issuers };
            Page { paint: &Paint::of(false), out: &mut out }.credentials(&found).unwrap();
            String::from_utf8(out).unwrap()
        };
        let file = Some("/etc/cofferdam/issuers.toml");
        let page = said(vec![issuer("postgres.main", None, Some(tried))], file);
        for text in [
            "  yes  postgres.main    for db.internal:5432; its root is in the variable ADMIN",
            "  yes                   minted in 3.1 ms",
            "  no                    PUBLIC may connect to x",
            "→ REVOKE CONNECT",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("--issuers"), "{page}");
        let page =
            said(vec![issuer("redis.main", Some(trouble("its root isn't set", "set it")), None)], file);
        assert!(
            page.contains("  no   redis.main       its root isn't set") && page.contains("→ set it"),
            "{page}"
        );
        assert!(page.contains("doctor --issuers"), "{page}");
        assert!(said(vec![], file).contains("it names no issuer"));
        assert!(said(vec![], None).contains("none, at /etc/cofferdam/issuers.toml"));
    }

    #[test]
    fn nothing_that_was_found_drives_a_terminal() {
        let mut out = vec![];
        let mut page = Page { paint: &Paint::of(false), out: &mut out };
        page.row(Mark::Yes, "state", "/tmp/\x1b[2Jx").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  yes  state            /tmp/\\u{1b}[2Jx\n");
    }
}
