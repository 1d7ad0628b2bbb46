//! What a run may send altogether.

use std::collections::BTreeSet;

use super::denial::{Denial, DenialCode};
use super::host::Host;
use crate::outcome::LimitName;
use crate::policy::Limits;
use crate::weaken::{self, Control};

/// Counters of one run over its policy's limits. Downloads are not counted.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes_out: Counter,
    requests: Counter,
    connections: Counter,
    hosts: u64,
    seen: BTreeSet<Host>,
}

/// A limit that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limits.{} is used up", .limit.name())]
pub struct Exhausted {
    /// Which.
    pub limit: LimitName,
}

impl Exhausted {
    /// The refusal of what was one too many: the limit is what decided, and no flag of rules would help.
    #[must_use]
    pub fn denial(self, of: Denial) -> Denial {
        let rule = Some(format!("limits.{}", self.limit.name()));
        Denial { code: DenialCode::LimitExceeded, rule, needs: None, ..of }
    }
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    used: u64,
    most: u64,
}

impl Counter {
    fn up_to(most: u64) -> Counter {
        Counter { used: 0, most }
    }

    /// Takes so much, or nothing.
    fn take(&mut self, amount: u64, limit: LimitName) -> Result<(), Exhausted> {
        let sum = self.used.saturating_add(amount);
        if sum > self.most && !weaken::is_off(Control::EgressBudget) {
            return Err(Exhausted { limit });
        }
        self.used = sum;
        Ok(())
    }
}

impl Budget {
    /// A budget of which nothing is used.
    #[must_use]
    pub fn new(limits: &Limits) -> Budget {
        Budget {
            bytes_out: Counter::up_to(limits.bytes_out),
            requests: Counter::up_to(limits.requests),
            connections: Counter::up_to(limits.connections),
            hosts: limits.hosts,
            seen: BTreeSet::new(),
        }
    }

    /// Counts a host that rules allow, before it is looked up: names that are asked for can carry bytes out.
    /// One that was counted costs nothing.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] where there were as many others; it is then not counted.
    pub fn host(&mut self, host: &Host) -> Result<(), Exhausted> {
        if self.seen.contains(host) {
            return Ok(());
        }
        let mut count = Counter { used: self.seen.len() as u64, most: self.hosts };
        count.take(1, LimitName::Hosts)?;
        self.seen.insert(host.clone());
        Ok(())
    }

    /// Counts a connection as open, until [`Budget::connection_closed`].
    ///
    /// # Errors
    ///
    /// [`Exhausted`] where as many are open; it is then not counted.
    pub fn connection_opened(&mut self) -> Result<(), Exhausted> {
        self.connections.take(1, LimitName::Connections)
    }

    /// Counts a connection as open no more.
    pub fn connection_closed(&mut self) {
        self.connections.used = self.connections.used.saturating_sub(1);
    }

    /// Counts a request.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] where there were as many; it is then not counted.
    pub fn request(&mut self) -> Result<(), Exhausted> {
        self.requests.take(1, LimitName::Requests)
    }

    /// Counts bytes before they leave.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] where they are more than what is left; none of them is then counted, and none may leave.
    pub fn bytes_out(&mut self, bytes: u64) -> Result<(), Exhausted> {
        self.bytes_out.take(bytes, LimitName::BytesOut)
    }

    /// Bytes that left.
    #[must_use]
    pub fn bytes_out_used(&self) -> u64 {
        self.bytes_out.used
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget() -> Budget {
        Budget::new(&Limits { bytes_out: 10, requests: 2, connections: 2, hosts: 2, ..Limits::DEFAULT })
    }

    fn host(text: &str) -> Host {
        Host::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn each_limit_ends_at_its_own_number() {
        let mut budget = budget();
        let over = |limit| Err(Exhausted { limit });
        assert_eq!([(); 3].map(|()| budget.request()), [Ok(()), Ok(()), over(LimitName::Requests)]);
        assert_eq!([4, 7, 6, 1].map(|bytes| budget.bytes_out(bytes).is_ok()), [true, false, true, false]);
        assert_eq!(budget.bytes_out_used(), 10);
        assert_eq!(budget.bytes_out(u64::MAX), over(LimitName::BytesOut));
        let asked = ["a.test", "b.test", "A.test.", "c.test", "b.test"].map(host);
        assert_eq!(asked.each_ref().map(|host| budget.host(host).is_ok()), [true, true, true, false, true]);
        assert_eq!([(); 3].map(|()| budget.connection_opened().is_ok()), [true, true, false]);
        budget.connection_closed();
        assert!(budget.connection_opened().is_ok() && budget.connection_opened().is_err());
    }

    #[test]
    fn a_limit_of_zero_lets_nothing_out() {
        let nothing = Limits { bytes_out: 0, requests: 0, connections: 0, hosts: 0, ..Limits::DEFAULT };
        let mut budget = Budget::new(&nothing);
        budget.connection_closed();
        assert!(budget.request().is_err() && budget.connection_opened().is_err());
        assert!(budget.bytes_out(1).is_err() && budget.host(&host("a.test")).is_err());
        assert!(budget.bytes_out(0).is_ok());
    }

    #[test]
    fn a_refusal_names_the_limit_and_no_flag() {
        let of = Denial::of_host(DenialCode::HostNotAllowed, &host("a.test"), Some(443));
        let denial =
            Exhausted { limit: LimitName::Requests }.denial(Denial { needs: Some("x".into()), ..of });
        assert_eq!(denial.code, DenialCode::LimitExceeded);
        assert_eq!((denial.rule.as_deref(), denial.needs), (Some("limits.requests"), None));
    }

    proptest! {
        #[test]
        fn never_more_leaves_than_the_limit(chunks in proptest::collection::vec(any::<u64>(), 0..20), most: u64) {
            let mut budget = Budget::new(&Limits { bytes_out: most, ..Limits::DEFAULT });
            let left: u128 =
                chunks.iter().filter(|bytes| budget.bytes_out(**bytes).is_ok()).map(|bytes| u128::from(*bytes)).sum();
            prop_assert!(left <= u128::from(most) && left == u128::from(budget.bytes_out_used()));
        }
    }
}
