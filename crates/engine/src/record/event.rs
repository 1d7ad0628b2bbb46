//! The members that each event adds to its line, in the words of the Outcome.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::SystemTime;

use cofferdam_core::artifact::Rejection;
use cofferdam_core::audit::{Event, Passage};
use cofferdam_core::capability::Gap;
use cofferdam_core::egress::{Denial, Door};
use cofferdam_core::lease::{LeaseEnd, LeaseState};
use cofferdam_core::outcome::{Cancel, End};
use cofferdam_core::policy::PolicyHash;

use super::head::Head;
use super::line::push_text;
use super::time::rfc3339;

/// The event that tells of events that are not there. It belongs to the log, not to a run.
pub(super) const GAP: &str = "audit.gap";

/// The event that a run's history begins with.
pub(super) const START: &str = "task.start";

/// How many events could not be written.
pub(super) const EVENTS_LOST: &str = "events_lost";

/// How many bytes of an unfinished line were cut off.
pub(super) const BYTES_TORN: &str = "bytes_torn";

/// Renders an event's own members, each with a comma before it.
pub(super) fn members(event: &Event) -> String {
    let mut members = Members(String::new());
    match event {
        Event::ArtifactQuarantined { path, more } => {
            members.text("path", path).text("why", Rejection::HostExec.name()).more(*more);
        }
        Event::ArtifactRejected { path, why, more } => {
            members.text("path", path).text("why", why.name()).more(*more);
        }
        Event::BackendRefused { backend, gaps, why } => {
            members.text("backend", backend.name()).text("why", why).gaps(gaps);
        }
        Event::CredentialMisused { denial } => {
            members.denial(denial);
        }
        Event::CredentialReflected { name, host } => {
            members.text("name", name).text("host", host);
        }
        Event::DnsDenied { denial, more } => {
            members.denial(denial).more(*more);
        }
        Event::EgressAllowed(passage) => {
            members.passage(passage);
        }
        Event::EgressDenied { denial, door, ip, more } => {
            members.optional("door", door.map(Door::name)).denial(denial).ip(*ip).more(*more);
        }
        Event::LeaseMinted(lease) => {
            members.text("name", &lease.name).text("issuer", &lease.issuer).scope(&lease.scope);
            members.time("expires", lease.expires).text("fingerprint", &lease.fingerprint);
        }
        Event::LeaseOrphaned(lease) | Event::LeaseRevoked(lease) => {
            members.lease_end(lease);
        }
        Event::LimitHit(limit) => {
            members.text("limit", limit.name());
        }
        Event::OutputTruncated { stream, dropped } => {
            members.text("stream", stream).number("dropped", *dropped);
        }
        Event::PolicyLoaded { policy, profile } => {
            members.text("profile", profile.name()).policy(Some(policy));
        }
        Event::SandboxClosed { left_processes, swept } => {
            members.number("left_processes", u64::from(*left_processes)).flag("swept", *swept);
        }
        Event::SandboxOpened { backend, enforced, gaps } => {
            members.text("backend", backend.name());
            members.list("enforced", enforced, |out, capability| push_text(out, capability.name()));
            members.gaps(gaps);
        }
        Event::TaskEnd { end, policy } => {
            members.end(*end).policy(policy.as_ref());
        }
        Event::TaskStart { program, labels } => {
            members.text("program", program).labels(labels);
        }
    }
    members.0
}

/// Renders the members of the event that tells what the log lacks.
pub(super) fn gap_members(head: &Head) -> String {
    let mut members = Members(String::new());
    members.number(EVENTS_LOST, head.lost).number(BYTES_TORN, head.torn);
    members.0
}

struct Members(String);

impl Members {
    fn lease_end(&mut self, lease: &LeaseEnd) -> &mut Self {
        self.text("name", &lease.name).text("issuer", &lease.issuer).text("state", lease.state.name());
        if let Some(uses) = lease.uses {
            self.number("uses", uses);
        }
        match &lease.state {
            LeaseState::Dead { after, verified } => {
                self.number("revoked_ms", after.as_millis() as u64).text("verified", verified)
            }
            LeaseState::Expires => self.time("expires", lease.expires),
            LeaseState::Unknown { why } => self.text("why", why),
        }
    }

    fn name(&mut self, name: &str) -> &mut String {
        self.0.push(',');
        push_text(&mut self.0, name);
        self.0.push(':');
        &mut self.0
    }

    fn text(&mut self, name: &str, text: &str) -> &mut Self {
        push_text(self.name(name), text);
        self
    }

    fn number(&mut self, name: &str, number: u64) -> &mut Self {
        let _ = write!(self.name(name), "{number}"); // writing to a String can't fail
        self
    }

    fn optional(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    fn time(&mut self, name: &str, time: Option<SystemTime>) -> &mut Self {
        self.optional(name, time.map(rfc3339).as_deref())
    }

    /// What a credential may do: an object with a list for each field.
    fn scope(&mut self, scope: &BTreeMap<String, Vec<String>>) -> &mut Self {
        let out = self.name("scope");
        out.push('{');
        for (at, (field, values)) in scope.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            push_text(out, field);
            out.push_str(":[");
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push_text(out, value);
            }
            out.push(']');
        }
        out.push('}');
        self
    }

    fn ip(&mut self, ip: Option<IpAddr>) -> &mut Self {
        self.optional("ip", ip.map(|ip| ip.to_string()).as_deref())
    }

    /// What was refused; what isn't known of it is left out.
    fn denial(&mut self, denial: &Denial) -> &mut Self {
        let Denial { code, host, port, method, path, rule, needs } = denial;
        self.text("code", code.code()).optional("rule", rule.as_deref()).text("host", host);
        if let Some(port) = port {
            self.number("port", u64::from(*port));
        }
        self.optional("method", method.as_deref()).optional("path", path.as_deref());
        self.optional("needs", needs.as_deref())
    }

    fn passage(&mut self, passage: &Passage) -> &mut Self {
        let Passage { to, terms, ip, request } = passage;
        self.text("door", to.door().name()).text("rule", terms.rule());
        self.text("host", &to.host().to_string()).number("port", u64::from(to.port())).ip(Some(*ip));
        if let Some((method, path)) = request {
            self.text("method", method).text("path", path);
        }
        self
    }

    /// How many others an event stands for, if it does.
    fn more(&mut self, more: u64) -> &mut Self {
        if more > 0 { self.number("more", more) } else { self }
    }

    fn flag(&mut self, name: &str, flag: bool) -> &mut Self {
        self.name(name).push_str(if flag { "true" } else { "false" });
        self
    }

    fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        render: impl Fn(&mut String, T),
    ) -> &mut Self {
        let out = self.name(name);
        out.push('[');
        for (position, item) in items.into_iter().enumerate() {
            if position > 0 {
                out.push(',');
            }
            render(out, item);
        }
        out.push(']');
        self
    }

    fn gaps(&mut self, gaps: &[Gap]) -> &mut Self {
        self.list("gaps", gaps, |out, gap| {
            out.push_str("{\"name\":");
            push_text(out, gap.capability.name());
            out.push_str(",\"why\":");
            push_text(out, &gap.why);
            out.push_str(",\"fix\":");
            push_text(out, &gap.fix);
            out.push('}');
        })
    }

    fn labels(&mut self, labels: &BTreeMap<String, String>) -> &mut Self {
        let out = self.name("label");
        out.push('{');
        for (position, (name, value)) in labels.iter().enumerate() {
            if position > 0 {
                out.push(',');
            }
            push_text(out, name);
            out.push(':');
            push_text(out, value);
        }
        out.push('}');
        self
    }

    fn policy(&mut self, policy: Option<&PolicyHash>) -> &mut Self {
        match policy {
            Some(PolicyHash(hash)) => self.text("policy_sha256", hash),
            None => {
                self.name("policy_sha256").push_str("null");
                self
            }
        }
    }

    /// The end's public name, and what that name alone doesn't say.
    fn end(&mut self, end: End) -> &mut Self {
        self.text("end", end.name());
        match end {
            End::Cancelled(Cancel::Misuse) => self.text("by", "policy"),
            End::Cancelled(Cancel::OutputClosed) => self.text("by", "output_closed"),
            End::Cancelled(Cancel::User) => self.text("by", "user"),
            End::Exited(code) => self.number("exit_code", u64::from(code)),
            End::Signalled(signal) => self.number("signal", u64::from(signal)),
            End::BackendLost
            | End::OutOfMemory
            | End::OutputLimit
            | End::Refused
            | End::SandboxError
            | End::TimedOut => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cofferdam_core::capability::Capability;
    use cofferdam_core::egress::{DenialCode, Host, RequestHead, RequestPermit, Rules, judge};
    use cofferdam_core::outcome::LimitName;
    use cofferdam_core::policy::{AllowFlag, BackendName, NetworkRule, Profile};

    use super::*;

    #[test]
    fn a_run_begins_with_the_event_that_the_vocabulary_has_for_it() {
        let start = Event::TaskStart { program: String::new(), labels: BTreeMap::new() };
        assert_eq!(start.name(), START);
    }

    /// A request that a rule allows, and its passage.
    fn allowed() -> (RequestPermit, Passage) {
        let Ok(AllowFlag::Rule(rule)) = NetworkRule::parse_flag("GET a.test/x") else { panic!("a rule") };
        let rules = Rules::new(&[rule]);
        let connection = rules.connection(Door::Capture, &Host::parse(b"a.test").unwrap(), 443).unwrap();
        let head = RequestHead {
            authorities: &[b"a.test"],
            server_name: Some(b"a.test"),
            method: b"GET",
            path: b"/x?secret",
        };
        let permit = rules.request(&connection, &head).unwrap();
        let address = judge("203.0.113.7".parse().unwrap(), false, &[]).unwrap();
        let passage = Passage::of_request(&permit, address);
        (permit, passage)
    }

    #[test]
    fn every_event_has_its_members_in_a_fixed_order() {
        let gap = Gap { capability: Capability::Cpu, why: "no \"v2\"".into(), fix: "mount it".into() };
        let policy = PolicyHash("ab".into());
        let backend = BackendName::Container;
        let (permit, passage) = allowed();
        let rules = Rules::new(&[]);
        let name = rules.lookup(&Host::parse(b"evil.test").unwrap()).unwrap_err();
        let rendered = [
            Event::ArtifactQuarantined { path: ".envrc".into(), more: 0 },
            Event::ArtifactRejected { path: "a\"b".into(), why: Rejection::Symlink, more: 7 },
            Event::BackendRefused { backend, gaps: vec![gap.clone()], why: "w".into() },
            Event::DnsDenied { denial: name.clone(), more: 0 },
            Event::EgressAllowed(Box::new(passage)),
            Event::EgressDenied { denial: name, door: None, ip: None, more: 3 },
            Event::EgressDenied {
                denial: permit.denial(DenialCode::PrivateAddress),
                door: Some(Door::Connect),
                ip: Some("10.0.0.1".parse().unwrap()),
                more: 0,
            },
            Event::LimitHit(LimitName::Pids),
            Event::OutputTruncated { stream: "stdout", dropped: 9 },
            Event::PolicyLoaded { policy: policy.clone(), profile: Profile::Internal },
            Event::SandboxClosed { left_processes: 2, swept: true },
            Event::SandboxOpened {
                backend,
                enforced: BTreeSet::from([Capability::Network, Capability::Files]),
                gaps: vec![],
            },
            Event::TaskEnd { end: End::Exited(3), policy: Some(policy) },
            Event::TaskEnd { end: End::Cancelled(Cancel::User), policy: None },
            Event::TaskStart { program: "sh".into(), labels: BTreeMap::from([("k".into(), "v".into())]) },
        ]
        .map(|event| members(&event));
        let expected = [
            r#","path":".envrc","why":"host_exec""#,
            r#","path":"a\"b","why":"symlink","more":7"#,
            r#","backend":"container","why":"w","gaps":[{"name":"cpu","why":"no \"v2\"","fix":"mount it"}]"#,
            r#","code":"host_not_allowed","host":"evil.test","needs":"--allow evil.test""#,
            r#","door":"capture","rule":"GET a.test/x","host":"a.test","port":443,"ip":"203.0.113.7","method":"GET","path":"/x""#,
            r#","code":"host_not_allowed","host":"evil.test","needs":"--allow evil.test","more":3"#,
            r#","door":"connect","code":"private_address","rule":"GET a.test/x","host":"a.test","port":443,"method":"GET","path":"/x","ip":"10.0.0.1""#,
            r#","limit":"pids""#,
            r#","stream":"stdout","dropped":9"#,
            r#","profile":"internal","policy_sha256":"ab""#,
            r#","left_processes":2,"swept":true"#,
            r#","backend":"container","enforced":["files","network"],"gaps":[]"#,
            r#","end":"exited","exit_code":3,"policy_sha256":"ab""#,
            r#","end":"cancelled","by":"user","policy_sha256":null"#,
            r#","program":"sh","label":{"k":"v"}"#,
        ];
        assert_eq!(rendered, expected);
    }
}
