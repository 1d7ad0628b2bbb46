//! Judges what the proxy says that it decided, and makes of it what is written down.
//!
//! A program may have taken the proxy over. So a passage is written down only if the same rules, asked again here,
//! allow it; and only so many refusals have an event of their own, since a program can cause any number.

use std::net::IpAddr;

use cofferdam_core::audit::{Event, Passage};
use cofferdam_core::egress::{Denial, Host, RequestHead, Rules, judge};
use cofferdam_core::outcome::Denials;
use cofferdam_core::policy::{HostPattern, NetworkRule};

use crate::control::{Allowed, Report};

/// How many refusals of a run have an event of their own.
const MOST_EVENTS: u64 = 1000;

/// What is known of a run's passages and refusals.
#[derive(Debug)]
pub(super) struct Ledger {
    rules: Rules,
    own: Vec<IpAddr>,
    private_hosts: Option<Vec<HostPattern>>,
    denials: Denials,
    events: u64,
    more: [Option<(Denial, u64)>; 2],
}

/// What becomes of something that the proxy said.
#[derive(Debug)]
pub(super) enum Entry {
    /// These are to be written down; then it may go on.
    Record(Vec<Event>),
    /// It may go on.
    Counted,
    /// It must not happen: the rules don't allow it.
    Refused,
}

impl Ledger {
    pub(super) fn new(
        rules: &[NetworkRule],
        own: Vec<IpAddr>,
        private_hosts: Option<Vec<HostPattern>>,
    ) -> Self {
        Ledger {
            rules: Rules::new(rules),
            own,
            private_hosts,
            denials: Denials::default(),
            events: 0,
            more: [None, None],
        }
    }

    /// Takes what the proxy said.
    pub(super) fn enter(&mut self, report: Report) -> Entry {
        match report {
            Report::Allowed(allowed) => match self.passage(&allowed) {
                Some(passage) => Entry::Record(vec![Event::EgressAllowed(Box::new(passage))]),
                None => Entry::Refused,
            },
            Report::Denied { denial, door, ip } => {
                self.denials.add(denial.clone());
                let event = Event::EgressDenied { denial: denial.clone(), door, ip, more: 0 };
                self.refusal(denial, 0, event)
            }
            Report::NameDenied { denial, is_told } => {
                if is_told {
                    self.denials.add(denial.clone());
                }
                let event = Event::DnsDenied { denial: denial.clone(), more: 0 };
                self.refusal(denial, 1, event)
            }
        }
    }

    fn refusal(&mut self, denial: Denial, kind: usize, event: Event) -> Entry {
        if self.events < MOST_EVENTS {
            self.events += 1;
            return Entry::Record(vec![event]);
        }
        let (_, count) = self.more[kind].get_or_insert((denial, 0));
        *count = count.saturating_add(1);
        Entry::Counted
    }

    /// What is left to be written down at the end: how many had no event.
    pub(super) fn rest(&mut self) -> Vec<Event> {
        let [denied, names] = &mut self.more;
        let more = |count: u64| count - 1; // the event itself is one
        let denied = denied.take().map(|(denial, count)| Event::EgressDenied {
            denial,
            door: None,
            ip: None,
            more: more(count),
        });
        let names = names.take().map(|(denial, count)| Event::DnsDenied { denial, more: more(count) });
        denied.into_iter().chain(names).collect()
    }

    /// What was refused.
    pub(super) fn denials(&mut self) -> Denials {
        std::mem::take(&mut self.denials)
    }

    /// A passage that the rules allow.
    fn passage(&self, allowed: &Allowed) -> Option<Passage> {
        let host = Host::parse(allowed.host.as_bytes()).ok()?;
        let permit = self.rules.connection(allowed.door, &host, allowed.port).ok()?;
        let server_name = matches!(host, Host::Name(_)).then_some(allowed.host.as_bytes());
        let address = |private: bool| {
            let is_possible = self
                .private_hosts
                .as_ref()
                .is_none_or(|hosts| hosts.iter().any(|known| known.matches(&host)));
            judge(allowed.ip, private && is_possible, &self.own).ok()
        };
        let Some((method, path)) = &allowed.request else {
            let permit = self.rules.tunnel(&permit, server_name).ok()?;
            return Some(Passage::of_tunnel(&permit, address(permit.terms().private())?));
        };
        let authority = match host {
            Host::Address(IpAddr::V6(ip)) => format!("[{ip}]:{}", allowed.port),
            _ => format!("{host}:{}", allowed.port),
        };
        let head = RequestHead { authorities: &[authority.as_bytes()], server_name, method, path };
        let permit = self.rules.request(&permit, &head).ok()?;
        Some(Passage::of_request(&permit, address(permit.terms().private())?))
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_core::egress::{DenialCode, Door};
    use cofferdam_core::policy::Protocol;

    use super::*;

    fn ledger() -> Ledger {
        let rule = |text: &str| NetworkRule::https(HostPattern::parse(text).unwrap());
        let rules = [
            NetworkRule {
                methods: Some(vec!["GET".into()]),
                paths: Some(vec!["/a/**".into()]),
                ..rule("a.test")
            },
            NetworkRule { protocol: Protocol::Tcp, ports: vec![5432], ..rule("2001:db8::1") },
        ];
        Ledger::new(&rules, vec!["203.0.113.77".parse().unwrap()], None)
    }

    fn request() -> Allowed {
        Allowed {
            door: Door::Capture,
            host: "a.test".into(),
            port: 443,
            ip: "203.0.113.5".parse().unwrap(),
            request: Some((b"GET".to_vec(), b"/a/b".to_vec())),
        }
    }

    fn is_recorded(allowed: Allowed) -> bool {
        match ledger().enter(Report::Allowed(allowed)) {
            Entry::Record(events) => matches!(events[..], [Event::EgressAllowed(_)]),
            Entry::Refused => false,
            Entry::Counted => panic!("a passage is written down or refused"),
        }
    }

    #[test]
    fn a_passage_that_the_rules_do_not_allow_is_not_written_down() {
        assert!(is_recorded(request()), "the positive control");
        let tunnel = Allowed {
            host: "2001:db8::1".into(),
            ip: "2001:db8::1".parse().unwrap(),
            port: 5432,
            request: None,
            ..request()
        };
        assert!(is_recorded(tunnel.clone()), "the positive control");
        for lie in [
            Allowed { host: "b.test".into(), ..request() },
            Allowed { host: "a.test\0".into(), ..request() },
            Allowed { port: 80, ..request() },
            Allowed { request: None, ..request() },
            Allowed { request: Some((b"POST".to_vec(), b"/a/b".to_vec())), ..request() },
            Allowed { request: Some((b"GET".to_vec(), b"/b".to_vec())), ..request() },
            Allowed { ip: "127.0.0.1".parse().unwrap(), ..request() },
            Allowed { ip: "169.254.169.254".parse().unwrap(), ..request() },
            Allowed { ip: "203.0.113.77".parse().unwrap(), ..request() },
            Allowed { port: 443, ..tunnel },
        ] {
            assert!(!is_recorded(lie.clone()), "{lie:?}");
        }
    }

    #[test]
    fn refusals_without_number_have_a_bounded_number_of_events() {
        let mut ledger = ledger();
        let denial = Denial::of_bytes(DenialCode::HostNotAllowed, b"b.test");
        let report = || Report::Denied { denial: denial.clone(), door: None, ip: None };
        let entries: Vec<Entry> = (0..MOST_EVENTS + 5).map(|_| ledger.enter(report())).collect();
        let written = entries.iter().filter(|entry| matches!(entry, Entry::Record(_))).count();
        assert_eq!(written as u64, MOST_EVENTS);
        assert!(matches!(ledger.rest()[..], [Event::EgressDenied { more: 4, .. }]));
        assert_eq!(ledger.denials().counts()[0].count, MOST_EVENTS + 5);
    }
}
