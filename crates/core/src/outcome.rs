//! What happened to a run, in the words that users script against.
//!
//! An [`Outcome`] is a plain value; its JSON form belongs to the edge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::artifact::{Artifact, Rejected};
use crate::capability::{Capability, Gap};
use crate::egress::Denial;
use crate::lease::LeaseEnd;
use crate::policy::{BackendName, PolicyHash, Profile};

/// The identity of one run: `r_` and 26 characters that sort by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// A new identity: 48 bits of milliseconds since the epoch, then 80 random ones, in Crockford's
    /// base 32 (the form of a ULID, in lower case).
    #[must_use]
    pub fn new(milliseconds: u64, random: [u8; 10]) -> RunId {
        let high = u128::from(milliseconds & 0xFFFF_FFFF_FFFF) << 80;
        let number = random.iter().fold(0u128, |sum, &byte| sum << 8 | u128::from(byte)) | high;
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let digit = |place: u32| char::from(DIGITS[(number >> (5 * place)) as usize & 31]);
        RunId(format!("r_{}", (0..26).rev().map(digit).collect::<String>()))
    }

    /// Takes an identity if it has the form of one, so that it is safe as a file's name.
    #[must_use]
    pub fn parse(text: &str) -> Option<RunId> {
        let rest = text.strip_prefix("r_")?;
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (rest.len() == 26 && rest.bytes().all(known)).then(|| RunId(text.to_owned()))
    }

    /// The identity as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The whole result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// Labels, as they were given.
    pub labels: BTreeMap<String, String>,
    /// Wall-clock time of the start.
    pub started: std::time::SystemTime,
    /// The profile in force; none where the policy couldn't even be read.
    pub profile: Option<Profile>,
    /// The backend that ran it, if one did.
    pub backend: Option<BackendName>,
    /// Why that backend, in a sentence.
    pub why_backend: Option<String>,
    /// How it ended.
    pub end: End,
    /// Whether the program ran.
    pub ran: Ran,
    /// What went wrong and who is to blame, where something did.
    pub error: Option<Fault>,
    /// Advice for a person.
    pub hints: Vec<String>,
    /// Where the time went.
    pub times: Times,
    /// What was used.
    pub usage: Usage,
    /// What went over the network.
    pub network: NetworkUsage,
    /// Limits that were reached on the way.
    pub limits_hit: BTreeSet<LimitName>,
    /// Processes that were alive when the program ended, and were killed.
    pub left_processes: u32,
    /// What was in force.
    pub enforced: BTreeSet<Capability>,
    /// What was accepted as missing.
    pub gaps: Vec<Gap>,
    /// What was refused on its way out.
    pub denials: Denials,
    /// Credentials that were minted, and what became of each.
    pub leases: Vec<LeaseEnd>,
    /// Files that were taken out.
    pub artifacts: Vec<Artifact>,
    /// What was not taken out, and why.
    pub rejected: Vec<Rejected>,
    /// The policy's hash, where one was resolved.
    pub policy: Option<PolicyHash>,
    /// Where the audit log has it.
    pub audit: Option<AuditSpan>,
}

/// How a run ended. Always exactly one.
///
/// Exhaustive on purpose: a new variant must break every place that decides an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sandbox was lost after the start.
    BackendLost,
    /// The user ended it: a signal, or a closed standard output.
    Cancelled(Cancel),
    /// The program exited by itself with this status.
    Exited(u8),
    /// The kernel killed something inside for lack of memory, and the whole sandbox with it.
    OutOfMemory,
    /// The output limit was reached.
    OutputLimit,
    /// Nothing was started.
    Refused,
    /// Cofferdam failed.
    SandboxError,
    /// A signal ended the program.
    Signalled(u8),
    /// The deadline passed and everything was killed.
    TimedOut,
}

/// Who cancelled a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The program sent a credential where it may not be, and its policy ends a run for that.
    Misuse,
    /// The reader of our standard output went away.
    OutputClosed,
    /// A signal told us to stop.
    User,
}

impl End {
    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            End::BackendLost => "backend_lost",
            End::Cancelled(_) => "cancelled",
            End::Exited(_) => "exited",
            End::OutOfMemory => "out_of_memory",
            End::OutputLimit => "output_limit",
            End::Refused => "refused",
            End::SandboxError => "sandbox_error",
            End::Signalled(_) => "signalled",
            End::TimedOut => "timed_out",
        }
    }
}

impl Outcome {
    /// The exit code of the process that reports this outcome.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.end {
            End::BackendLost | End::SandboxError => 125,
            End::Cancelled(Cancel::Misuse) => 137, // it is killed
            End::Cancelled(Cancel::OutputClosed) => 141,
            End::Cancelled(Cancel::User) => 130,
            End::Exited(code) => code,
            End::OutOfMemory => 137,
            End::OutputLimit => 153,
            End::Refused => self.error.as_ref().map_or(125, |fault| fault.code.exit_code()),
            End::Signalled(signal) => 128u8.saturating_add(signal),
            End::TimedOut => 124,
        }
    }
}

/// Whether the program ran, which decides whether it is safe to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Nothing of it ran.
    No,
    /// The sandbox was lost after the start.
    Unknown,
    /// It ran.
    Yes,
}

impl Ran {
    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ran::No => "no",
            Ran::Unknown => "unknown",
            Ran::Yes => "yes",
        }
    }
}

/// What went wrong, who is to blame, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A stable name.
    pub code: FaultCode,
    /// What couldn't be done and why.
    pub message: String,
    /// What to do next.
    pub fix: Option<String>,
}

macro_rules! fault_codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $blame:ident, $exit:literal;)+) => {
        /// The stable names of what can go wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FaultCode { $($(#[$doc])* $variant,)+ }

        impl FaultCode {
            /// The public name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(FaultCode::$variant => $name,)+ }
            }

            /// Who is to blame.
            #[must_use]
            pub fn blame(self) -> Blame {
                match self { $(FaultCode::$variant => Blame::$blame,)+ }
            }

            /// The exit code, where nothing ran.
            #[must_use]
            pub fn exit_code(self) -> u8 {
                match self { $(FaultCode::$variant => $exit,)+ }
            }
        }
    };
}

fault_codes! {
    /// The audit log can't be written, so nothing starts.
    AuditUnavailable = "audit_unavailable", Host, 125;
    /// No backend enforces all that is asked for.
    BackendRefused = "backend_refused", Host, 125;
    /// The sandbox ended without its program having ended.
    BackendLost = "backend_lost", Cofferdam, 125;
    /// The request contradicts itself or can't be read.
    BadRequest = "bad_request", Request, 125;
    /// A credential that was asked for is more than its issuer may give, or none that the operator has.
    CredentialDenied = "credential_denied", Request, 125;
    /// The program sent a credential where it may not be, and its policy ends a run for that.
    CredentialMisused = "credential_misused", Program, 125;
    /// The host refused an operation midway.
    HostError = "host_error", Host, 125;
    /// A state that can't be.
    Internal = "internal", Cofferdam, 125;
    /// An issuer can't be reached, or doesn't mint.
    IssuerFailed = "issuer_failed", Upstream, 125;
    /// The operator's side of credentials is wrong: the file of issuers, a root, the journal.
    IssuersUnusable = "issuers_unusable", Host, 125;
    /// The program's file can't be executed.
    NotExecutable = "not_executable", Request, 126;
    /// The program doesn't exist in the sandbox.
    NotFound = "not_found", Request, 127;
    /// The policy forbids the run, or can't be read.
    PolicyDenied = "policy_denied", Request, 125;
    /// The backends that are there don't run such a program.
    ProgramUnfit = "program_unfit", Request, 125;
}

/// Who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Us.
    Cofferdam,
    /// This machine or its set-up.
    Host,
    /// The program that ran.
    Program,
    /// Whoever asked.
    Request,
    /// A server that was talked to.
    Upstream,
}

impl Blame {
    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Blame::Cofferdam => "cofferdam",
            Blame::Host => "host",
            Blame::Program => "program",
            Blame::Request => "request",
            Blame::Upstream => "upstream",
        }
    }
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From the request to the Outcome.
    pub total: Duration,
    /// Decision and choice of the backend.
    pub select: Duration,
    /// From the choice to a program that runs.
    pub open: Duration,
    /// From the request to the first byte of output, if there was one.
    pub first_output: Option<Duration>,
    /// From the program's start to its end.
    pub run: Duration,
    /// From the program's end to nothing left.
    pub close: Duration,
}

/// What a run used, as the kernel counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of everything inside.
    pub cpu: Duration,
    /// The most memory in use at once, in bytes, where the kernel counted it. What others use as well, who had it
    /// first, such as the pages of a prepared file, isn't counted.
    pub memory_peak_bytes: Option<u64>,
    /// The most processes and threads at once, the agent's included, where the kernel counted.
    pub processes_peak: Option<u32>,
}

/// What went over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkUsage {
    /// What went through the proxy. None where whoever counted it was lost.
    pub traffic: Option<Traffic>,
    /// Datagrams that were refused.
    pub udp_refused: u64,
}

impl Default for NetworkUsage {
    /// Nothing.
    fn default() -> Self {
        NetworkUsage { traffic: Some(Traffic::default()), udp_refused: 0 }
    }
}

/// Bytes of a run's over the network, as the proxy counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Those that left.
    pub bytes_out: u64,
    /// Those that came in.
    pub bytes_in: u64,
}

/// Refusals of one run, the same ones counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    counts: Vec<DenialCount>,
    others: u64,
}

/// A refusal, and how often it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialCount {
    /// The refusal.
    pub denial: Denial,
    /// How often.
    pub count: u64,
}

impl Denials {
    /// How many different ones are kept: what a program does to get out must not grow without bound here.
    pub const MOST: usize = 100;

    /// Counts a refusal: one with the same code, host, port, method and path as the first such.
    pub fn add(&mut self, denial: Denial) {
        self.add_count(DenialCount { denial, count: 1 });
    }

    /// Counts a refusal that happened so often.
    pub fn add_count(&mut self, more: DenialCount) {
        if let Some(known) = self.counts.iter_mut().find(|known| is_same(&known.denial, &more.denial)) {
            known.count = known.count.saturating_add(more.count);
        } else if self.counts.len() < Denials::MOST {
            self.counts.push(more);
        } else {
            self.others = self.others.saturating_add(more.count);
        }
    }

    /// The different ones, in the order in which they happened first.
    #[must_use]
    pub fn counts(&self) -> &[DenialCount] {
        &self.counts
    }

    /// How many more refusals there were that aren't among them.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// Whether two refusals are one that happened twice.
fn is_same(one: &Denial, other: &Denial) -> bool {
    let key = |of: &Denial| (of.code, of.port);
    key(one) == key(other) && (&one.host, &one.method, &one.path) == (&other.host, &other.method, &other.path)
}

/// A limit that can be reached without ending the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitName {
    /// Bytes that leave: some were held back.
    BytesOut,
    /// Connections at once: one was refused.
    Connections,
    /// Writable space: at least 99 % full at the end.
    Disk,
    /// Files and directories: at least 99 % used at the end.
    Files,
    /// Different hosts: one was refused.
    Hosts,
    /// Memory.
    Memory,
    /// Captured output: some was dropped.
    Output,
    /// Processes and threads: a fork was refused.
    Pids,
    /// Requests: one was refused.
    Requests,
    /// The deadline.
    Timeout,
}

impl LimitName {
    /// Every one of them.
    pub const ALL: [LimitName; 10] = [
        LimitName::BytesOut,
        LimitName::Connections,
        LimitName::Disk,
        LimitName::Files,
        LimitName::Hosts,
        LimitName::Memory,
        LimitName::Output,
        LimitName::Pids,
        LimitName::Requests,
        LimitName::Timeout,
    ];

    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LimitName::BytesOut => "bytes_out",
            LimitName::Connections => "connections",
            LimitName::Disk => "disk",
            LimitName::Files => "files",
            LimitName::Hosts => "hosts",
            LimitName::Memory => "memory",
            LimitName::Output => "output",
            LimitName::Pids => "pids",
            LimitName::Requests => "requests",
            LimitName::Timeout => "timeout",
        }
    }
}

/// Where the audit log has a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSpan {
    /// The sequence number of its first event.
    pub first: u64,
    /// The sequence number of its last event.
    pub last: u64,
    /// The hash of its last event, `sha256:` and 64 hexadecimal digits.
    pub head: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::DenialCode;

    #[test]
    fn run_ids_sort_by_time_and_read_back() {
        let (one, two) = (RunId::new(1, [255; 10]), RunId::new(2, [0; 10]));
        assert!(one < two);
        assert_eq!(RunId::parse(one.as_str()), Some(one));
    }

    #[test]
    fn the_same_refusal_is_counted_and_different_ones_are_bounded() {
        let denial = |path: String| {
            let host = Denial::of_bytes(DenialCode::PathNotAllowed, b"a.test");
            host.with_request(b"GET", path.as_bytes())
        };
        let mut denials = Denials::default();
        for number in (0..Denials::MOST + 3).chain(0..2) {
            denials.add(denial(format!("/{number}")));
        }
        denials.add(Denial { rule: Some("another".into()), ..denial("/0".into()) });
        denials.add(Denial { port: Some(1), ..denial("/0".into()) });
        assert_eq!(denials.counts().len(), Denials::MOST);
        assert_eq!(
            (denials.counts()[0].count, denials.counts()[1].count, denials.counts()[2].count),
            (3, 2, 1)
        );
        assert_eq!(denials.others(), 4);
        let most = DenialCount { denial: denial("/0".into()), count: u64::MAX };
        denials.add_count(most);
        assert_eq!(denials.counts()[0].count, u64::MAX);
    }

    #[test]
    fn a_run_id_is_safe_as_a_file_name() {
        assert!(RunId::parse("r_01jd0000000000000000000000").is_some());
        for text in ["", "r_", "../x", "r_01jd000000000000000000000/", "r_01JD0000000000000000000000"] {
            assert!(RunId::parse(text).is_none(), "{text}");
        }
    }
}
