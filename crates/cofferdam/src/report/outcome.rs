//! The Outcome as JSON, version 1: what people script against.
//!
//! [`OutcomeJson`] is the whole object, with its keys in the order in which they are written. What
//! a later version fills is there and empty.
//!
//! Captured output may be large and is kept outside this process's memory. It is therefore never
//! held whole here either: it is read twice, in chunks, once to see whether it is UTF-8 and once
//! to write it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use cofferdam_core::artifact::{Artifact, Rejected, Rejection};
use cofferdam_core::capability::{Capability, Gap};
use cofferdam_core::egress::{Denial, DenialCode};
use cofferdam_core::lease::{LeaseEnd, LeaseState};
use cofferdam_core::outcome::{
    AuditSpan, Blame, Cancel, DenialCount, End, Fault, LimitName, NetworkUsage, Outcome, Ran, Times, Usage,
};
use cofferdam_core::policy::{BackendName, Profile};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{Error as _, Serialize, SerializeStruct as _, Serializer};

use super::drives_a_terminal;
use super::job_id::JobId;

/// Output of a program that was kept.
pub(crate) trait Captured {
    /// How many bytes the program wrote, those that were dropped included.
    fn bytes(&self) -> u64;

    /// How many of them were dropped.
    fn dropped(&self) -> u64;

    /// Calls `f` with consecutive chunks of what was kept, from its start, until `f` fails or all
    /// is read. Gives the same bytes each time.
    ///
    /// # Errors
    ///
    /// What `f` gave, or why what was kept can't be read.
    fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>;
}

/// What an Outcome says of one stream.
#[derive(Clone, Copy)]
pub(crate) enum Stream<'a> {
    /// What the program wrote was kept.
    Captured(&'a dyn Captured),
    /// So many bytes went where our own output goes.
    PassedThrough(u64),
}

/// The result of one run.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Outcome")]
pub(crate) struct OutcomeJson<'a> {
    /// The job's own id, or the number of its line: in the answers of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a JobId>,
    /// The version of this format.
    #[schemars(schema_with = "one")]
    version: u32,
    /// The version of the program that wrote it.
    cofferdam: &'static str,
    /// The run.
    #[schemars(regex(pattern = "^r_[0-9a-z]{26}$"))]
    run: &'a str,
    /// The task that the run belongs to; by itself it is a task of its own.
    #[schemars(regex(pattern = "^t_[0-9a-z]{26}$"))]
    task: String,
    /// Labels, as they were given.
    label: &'a BTreeMap<String, String>,
    /// When it started: RFC 3339, UTC, with milliseconds.
    #[schemars(extend("format" = "date-time"))]
    started: String,
    /// How much the program was trusted; null where no policy could be read.
    #[schemars(schema_with = "profiles")]
    profile: Option<&'static str>,
    /// The backend that ran it; null where none did.
    #[schemars(schema_with = "backends")]
    backend: Option<&'static str>,
    /// Why that backend.
    why_backend: Option<&'a str>,
    /// How it ended.
    #[schemars(schema_with = "ends")]
    end: &'static str,
    /// What the process that reports the run exits with: the program's own code if it exited.
    exit_code: u8,
    /// The signal that ended the program, if one did.
    signal: Option<u8>,
    /// Whether the program ran: where it didn't, it is safe to try again.
    #[schemars(schema_with = "rans")]
    ran: &'static str,
    /// Who is to blame for the error.
    #[schemars(schema_with = "blames")]
    blame: Option<&'static str>,
    /// What went wrong.
    error: Option<FaultJson<'a>>,
    /// Advice for a person.
    hints: &'a [String],
    /// Standard output.
    stdout: StreamJson<'a>,
    /// Standard error.
    stderr: StreamJson<'a>,
    /// Where the time went, in milliseconds.
    time_ms: TimesJson,
    /// What was used.
    usage: UsageJson,
    /// Limits that were reached on the way.
    #[schemars(schema_with = "limit_names")]
    limits_hit: Vec<&'static str>,
    /// What was alive when the program had ended, and was killed.
    left: LeftJson,
    /// What was in force.
    #[schemars(schema_with = "capabilities")]
    enforced: Vec<&'static str>,
    /// What was accepted as missing.
    gaps: Vec<GapJson<'a>>,
    /// Requests that were denied.
    denials: Vec<DenialJson<'a>>,
    /// How many more were denied that aren't among these.
    denials_others: u64,
    /// Credentials that were minted, and what became of each.
    leases: Vec<LeaseJson<'a>>,
    /// Files that were taken out: those that are new and those that are others than before.
    artifacts: Vec<ArtifactJson<'a>>,
    /// What was not taken out, and why.
    rejected: Vec<RejectedJson<'a>>,
    /// The hash of the policy that was in force.
    policy_sha256: Option<&'a str>,
    /// Where the audit log has the run.
    audit: Option<AuditJson<'a>>,
}

/// A credential that was minted for the run.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Lease")]
struct LeaseJson<'a> {
    /// Its name in the policy.
    name: &'a str,
    /// Who minted it.
    issuer: &'a str,
    /// What it could do, in the issuer's words.
    scope: &'a BTreeMap<String, Vec<String>>,
    /// When.
    minted: String,
    /// When it ends by itself.
    expires: Option<String>,
    /// Whether its issuer can end it before.
    can_revoke: bool,
    /// Whether it is a long-lived secret that was only kept away from the program.
    weak: bool,
    /// How many requests carried it; none where the program had it itself.
    uses: Option<u64>,
    /// `dead`, seen to be so; `expires`, where it can't be revoked; `unknown`, where nobody knows.
    state: &'static str,
    /// From the end of the program until its death was seen, in milliseconds.
    revoked_ms: Option<f64>,
    /// How its death was seen, or why nobody knows.
    verified: Option<&'a str>,
}

impl<'a> From<&'a LeaseEnd> for LeaseJson<'a> {
    fn from(lease: &'a LeaseEnd) -> Self {
        let (revoked_ms, verified) = match &lease.state {
            LeaseState::Dead { after, verified } => {
                (Some((after.as_secs_f64() * 1e4).round() / 10.0), Some(verified.as_str()))
            }
            LeaseState::Expires => (None, None),
            LeaseState::Unknown { why } => (None, Some(why.as_str())),
        };
        LeaseJson {
            name: &lease.name,
            issuer: &lease.issuer,
            scope: &lease.scope,
            minted: timestamp(lease.minted),
            expires: lease.expires.map(timestamp),
            can_revoke: lease.can_revoke,
            weak: lease.is_weak,
            uses: lease.uses,
            state: lease.state.name(),
            revoked_ms,
            verified,
        }
    }
}

/// What went wrong and what to do next.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Error")]
struct FaultJson<'a> {
    /// A stable name.
    code: &'static str,
    /// What couldn't be done and why.
    message: &'a str,
    /// What to do next.
    fix: Option<&'a str>,
}

/// Durations in milliseconds, to a tenth.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Times")]
struct TimesJson {
    /// From the request to the Outcome.
    total: f64,
    /// Decision and choice of the backend.
    select: f64,
    /// From the choice to a program that runs.
    open: f64,
    /// From the request to the first byte of output; null where there was none.
    first_output: Option<f64>,
    /// From the program's start to its end.
    run: f64,
    /// From the program's end to nothing left.
    close: f64,
}

/// What was used, as the kernel counted it.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
struct UsageJson {
    /// Processor time in milliseconds.
    cpu_ms: u64,
    /// The most memory in use at once, in bytes. In WebAssembly what the program added to its worker: not the
    /// pages that it shares with the template of its Python, as long as it doesn't write to them. Null where the
    /// kernel can't start counting anew for a run in a sandbox that another had.
    memory_peak: Option<u64>,
    /// The most processes and threads at once.
    processes_peak: Option<u32>,
    /// Bytes that left; null where the proxy that counted them was lost.
    bytes_out: Option<u64>,
    /// Bytes that came in; null as above.
    bytes_in: Option<u64>,
    /// UDP packets that were refused.
    udp_refused: u64,
}

/// What was left.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Left")]
struct LeftJson {
    /// Processes.
    processes: u32,
}

/// Something that was not in force.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Gap")]
struct GapJson<'a> {
    /// The capability.
    #[schemars(schema_with = "capability")]
    name: &'static str,
    /// Why it was not in force.
    why: &'a str,
    /// What closes the gap.
    fix: &'a str,
}

/// A file that was taken out.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Artifact")]
struct ArtifactJson<'a> {
    /// Where it was, relative to the working directory.
    path: &'a str,
    /// Its size in bytes.
    bytes: u64,
    /// The SHA-256 of what it holds.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    sha256: &'a str,
}

/// Something that was not taken out.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Rejected")]
struct RejectedJson<'a> {
    /// Where it was; what is no text, or drives a terminal, is spelled out.
    path: &'a str,
    /// Why.
    #[schemars(schema_with = "rejections")]
    why: &'static str,
}

/// Something that was denied on its way out, and how often.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Denial")]
struct DenialJson<'a> {
    /// Why.
    #[schemars(schema_with = "denial_codes")]
    code: &'static str,
    /// The host, as text that drives no terminal.
    host: &'a str,
    /// The port; null for a name that was asked for.
    port: Option<u16>,
    /// The method of the request, if there was one.
    method: Option<&'a str>,
    /// The path of the request without its query, if there was one.
    path: Option<&'a str>,
    /// The rule or the limit that decided.
    rule: Option<&'a str>,
    /// The flag that would allow it; null where none can.
    needs: Option<&'a str>,
    /// How often.
    count: u64,
}

/// Where the audit log has the run.
#[derive(serde::Serialize, JsonSchema)]
#[schemars(rename = "Audit")]
struct AuditJson<'a> {
    /// The number of its first event.
    first: u64,
    /// The number of its last event.
    last: u64,
    /// The hash of its last event.
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    head: &'a str,
}

impl<'a> From<&'a Outcome> for OutcomeJson<'a> {
    /// An Outcome of which no output is known: see [`OutcomeJson::with_output`].
    fn from(outcome: &'a Outcome) -> Self {
        OutcomeJson {
            id: None,
            version: 1,
            cofferdam: env!("CARGO_PKG_VERSION"),
            run: outcome.run.as_str(),
            task: outcome.run.as_str().replacen("r_", "t_", 1),
            label: &outcome.labels,
            started: timestamp(outcome.started),
            profile: outcome.profile.map(Profile::name),
            backend: outcome.backend.map(BackendName::name),
            why_backend: outcome.why_backend.as_deref(),
            end: outcome.end.name(),
            exit_code: outcome.exit_code(),
            signal: match outcome.end {
                End::Signalled(signal) => Some(signal),
                _ => None,
            },
            ran: outcome.ran.name(),
            blame: outcome.error.as_ref().map(|fault| fault.code.blame().name()),
            error: outcome.error.as_ref().map(FaultJson::from),
            hints: &outcome.hints,
            stdout: StreamJson(Stream::PassedThrough(0)),
            stderr: StreamJson(Stream::PassedThrough(0)),
            time_ms: TimesJson::from(&outcome.times),
            usage: UsageJson::of(&outcome.usage, &outcome.network),
            limits_hit: outcome.limits_hit.iter().map(|limit| limit.name()).collect(),
            left: LeftJson { processes: outcome.left_processes },
            enforced: outcome.enforced.iter().map(|capability| capability.name()).collect(),
            gaps: outcome.gaps.iter().map(GapJson::from).collect(),
            denials: outcome.denials.counts().iter().map(DenialJson::from).collect(),
            denials_others: outcome.denials.others(),
            leases: outcome.leases.iter().map(LeaseJson::from).collect(),
            artifacts: outcome.artifacts.iter().map(ArtifactJson::from).collect(),
            rejected: outcome.rejected.iter().map(RejectedJson::from).collect(),
            policy_sha256: outcome.policy.as_ref().map(|hash| hash.0.as_str()),
            audit: outcome.audit.as_ref().map(AuditJson::from),
        }
    }
}

impl<'a> OutcomeJson<'a> {
    /// The same Outcome with what the program wrote.
    pub(crate) fn with_output(mut self, stdout: Stream<'a>, stderr: Stream<'a>) -> Self {
        self.stdout = StreamJson(stdout);
        self.stderr = StreamJson(stderr);
        self
    }

    /// The same Outcome as the answer to a job.
    pub(crate) fn with_id(mut self, id: &'a JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// Writes it as one line that drives no terminal, and flushes.
    ///
    /// # Errors
    ///
    /// Where `out` can't be written, or captured output can't be read again: half an object has
    /// then been written.
    pub(crate) fn write_line(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut out = io::BufWriter::with_capacity(BUFFER_BYTES, out);
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Inert))?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// JSON without spaces, in which whatever would drive a terminal is spelled as a control character is:
/// whoever parses it gets the same text.
struct Inert;

impl serde_json::ser::Formatter for Inert {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        // A look at the bytes is enough for most text; the first that is meant is DEL.
        while rest.bytes().any(|byte| byte >= 0x7f) {
            let Some((at, c)) = rest.char_indices().find(|(_, c)| drives_a_terminal(*c)) else { break };
            write!(out, "{}\\u{:04x}", &rest[..at], u32::from(c))?;
            rest = &rest[at + c.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

/// Text is written in small pieces, between the letters that JSON escapes.
const BUFFER_BYTES: usize = 64 << 10;

impl<'a> From<&'a Fault> for FaultJson<'a> {
    fn from(fault: &'a Fault) -> Self {
        FaultJson { code: fault.code.name(), message: &fault.message, fix: fault.fix.as_deref() }
    }
}

impl From<&Times> for TimesJson {
    fn from(times: &Times) -> Self {
        TimesJson {
            total: millis(times.total),
            select: millis(times.select),
            open: millis(times.open),
            first_output: times.first_output.map(millis),
            run: millis(times.run),
            close: millis(times.close),
        }
    }
}

impl UsageJson {
    fn of(usage: &Usage, network: &NetworkUsage) -> Self {
        UsageJson {
            cpu_ms: u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX),
            memory_peak: usage.memory_peak_bytes,
            processes_peak: usage.processes_peak,
            bytes_out: network.traffic.map(|traffic| traffic.bytes_out),
            bytes_in: network.traffic.map(|traffic| traffic.bytes_in),
            udp_refused: network.udp_refused,
        }
    }
}

impl<'a> From<&'a DenialCount> for DenialJson<'a> {
    fn from(counted: &'a DenialCount) -> Self {
        let Denial { code, host, port, method, path, rule, needs } = &counted.denial;
        DenialJson {
            code: code.code(),
            host,
            port: *port,
            method: method.as_deref(),
            path: path.as_deref(),
            rule: rule.as_deref(),
            needs: needs.as_deref(),
            count: counted.count,
        }
    }
}

impl<'a> From<&'a Gap> for GapJson<'a> {
    fn from(gap: &'a Gap) -> Self {
        GapJson { name: gap.capability.name(), why: &gap.why, fix: &gap.fix }
    }
}

impl<'a> From<&'a Artifact> for ArtifactJson<'a> {
    fn from(file: &'a Artifact) -> Self {
        ArtifactJson { path: &file.path, bytes: file.bytes, sha256: &file.sha256 }
    }
}

impl<'a> From<&'a Rejected> for RejectedJson<'a> {
    fn from(rejected: &'a Rejected) -> Self {
        RejectedJson { path: &rejected.path, why: rejected.why.name() }
    }
}

impl<'a> From<&'a AuditSpan> for AuditJson<'a> {
    fn from(span: &'a AuditSpan) -> Self {
        AuditJson { first: span.first, last: span.last, head: &span.head }
    }
}

/// Milliseconds to a tenth: a clock that is read from outside is no better than that.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

/// RFC 3339 in UTC. A clock that is set to before 1970 or after 9999 is brought into that range,
/// which is all that the format has.
fn timestamp(time: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

/// A stream as JSON: `{text, encoding, bytes, dropped}`, or without the first two.
struct StreamJson<'a>(Stream<'a>);

impl Serialize for StreamJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let captured = match self.0 {
            Stream::Captured(captured) => captured,
            Stream::PassedThrough(bytes) => {
                let mut object = serializer.serialize_struct("Stream", 2)?;
                object.serialize_field("bytes", &bytes)?;
                object.serialize_field("dropped", &0u64)?;
                return object.end();
            }
        };
        let encoding = encoding(captured).map_err(S::Error::custom)?;
        let mut object = serializer.serialize_struct("Stream", 4)?;
        object.serialize_field("text", &TextJson { captured, encoding })?;
        object.serialize_field("encoding", encoding.name())?;
        object.serialize_field("bytes", &captured.bytes())?;
        object.serialize_field("dropped", &captured.dropped())?;
        object.end()
    }
}

/// How bytes are written in JSON, which has no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Base64,
    Utf8,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Encoding::Base64 => "base64",
            Encoding::Utf8 => "utf-8",
        }
    }
}

/// UTF-8 if all that was kept is UTF-8.
fn encoding(captured: &dyn Captured) -> io::Result<Encoding> {
    match utf8(captured, &mut |_| Ok(())) {
        Ok(()) => Ok(Encoding::Utf8),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Encoding::Base64),
        Err(error) => Err(error),
    }
}

/// The text of a captured stream, as one JSON string that is never held whole.
struct TextJson<'a> {
    captured: &'a dyn Captured,
    encoding: Encoding,
}

impl Serialize for TextJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = Text { json: self, unreadable: Cell::new(None) };
        let written = serializer.collect_str(&text)?;
        // A `Display` can only say that its writer failed; that its source did is told here.
        match text.unreadable.take() {
            None => Ok(written),
            Some(error) => Err(S::Error::custom(error)),
        }
    }
}

struct Text<'a> {
    json: &'a TextJson<'a>,
    unreadable: Cell<Option<io::Error>>,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Ok(());
        let mut emit = |piece: &dyn fmt::Display| {
            writer = write!(f, "{piece}");
            writer.map_err(|_| io::Error::other("the writer failed"))
        };
        let read = match self.json.encoding {
            Encoding::Base64 => {
                base64(self.json.captured, &mut |bytes| emit(&Base64Display::new(bytes, &STANDARD)))
            }
            Encoding::Utf8 => utf8(self.json.captured, &mut |text| emit(&text)),
        };
        if let (Ok(()), Err(error)) = (writer, read) {
            self.unreadable.set(Some(error));
        }
        writer
    }
}

/// Calls `emit` with pieces of whole characters. Fails with `InvalidData` on the first byte that
/// isn't UTF-8; a character that two chunks share is put together.
fn utf8(captured: &dyn Captured, emit: &mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let mut cut = Carry::<4>::default();
    captured.for_each_chunk(&mut |mut chunk| {
        while !cut.is_empty() && !chunk.is_empty() {
            cut.push(chunk[0]);
            chunk = &chunk[1..];
            match whole_characters(cut.bytes())? {
                "" => {}
                character => {
                    emit(character)?;
                    cut.clear();
                }
            }
        }
        let text = whole_characters(chunk)?;
        emit(text)?;
        chunk[text.len()..].iter().for_each(|&byte| cut.push(byte));
        Ok(())
    })?;
    if cut.is_empty() { Ok(()) } else { Err(invalid()) }
}

/// All but a character that isn't complete yet.
fn whole_characters(bytes: &[u8]) -> io::Result<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if error.error_len().is_some() => Err(invalid()),
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).map_err(|_| invalid()),
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not UTF-8")
}

/// Calls `emit` with pieces that base64 writes without padding, but for the last.
fn base64(captured: &dyn Captured, emit: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut cut = Carry::<3>::default();
    captured.for_each_chunk(&mut |mut chunk| {
        while !cut.is_empty() && !chunk.is_empty() {
            cut.push(chunk[0]);
            chunk = &chunk[1..];
            if cut.is_full() {
                emit(cut.bytes())?;
                cut.clear();
            }
        }
        let whole = chunk.len() - chunk.len() % 3;
        emit(&chunk[..whole])?;
        chunk[whole..].iter().for_each(|&byte| cut.push(byte));
        Ok(())
    })?;
    emit(cut.bytes())
}

/// The bytes of a group that the next chunk completes: less than `N`, or `N` for a moment.
struct Carry<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Carry<N> {
    fn default() -> Self {
        Carry { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Carry<N> {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn is_full(&self) -> bool {
        self.len == N
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl JsonSchema for StreamJson<'_> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Stream".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let encodings = [Encoding::Utf8, Encoding::Base64].map(Encoding::name);
        json_schema!({
            "description": "What the program wrote; with its text if it was captured.",
            "type": "object",
            "properties": {
                "text": {
                    "description": "What was kept: the first and the last of it, if some was dropped.",
                    "type": "string",
                },
                "encoding": {
                    "description": "`base64` if what was kept is not UTF-8.",
                    "enum": encodings,
                },
                "bytes": {
                    "description": "How many bytes the program wrote.",
                    "type": "integer",
                    "minimum": 0,
                },
                "dropped": {
                    "description": "How many of them were dropped.",
                    "type": "integer",
                    "minimum": 0,
                },
            },
            "required": ["bytes", "dropped"],
            "dependentRequired": {"text": ["encoding"], "encoding": ["text"]},
        })
    }
}

fn one(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"const": 1})
}

/// One of some names, or null.
fn name_or_null(names: impl IntoIterator<Item = &'static str>) -> Schema {
    let names: Vec<_> = names.into_iter().map(Some).chain([None]).collect();
    json_schema!({"enum": names})
}

fn profiles(_: &mut SchemaGenerator) -> Schema {
    name_or_null(Profile::ALL.iter().map(|profile| profile.name()))
}

fn backends(_: &mut SchemaGenerator) -> Schema {
    name_or_null(BackendName::ALL.iter().map(|backend| backend.name()))
}

fn capability(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = Capability::ALL.iter().map(|capability| capability.name()).collect();
    json_schema!({"enum": names})
}

fn capabilities(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": capability(generator)})
}

fn rejections(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"enum": Rejection::ALL.map(Rejection::name)})
}

fn ends(_: &mut SchemaGenerator) -> Schema {
    let all = [
        End::Exited(0),
        End::Signalled(0),
        End::TimedOut,
        End::OutOfMemory,
        End::OutputLimit,
        End::Cancelled(Cancel::User),
        End::Refused,
        End::BackendLost,
        End::SandboxError,
    ];
    json_schema!({"enum": all.map(End::name)})
}

fn rans(_: &mut SchemaGenerator) -> Schema {
    let all = [Ran::Yes, Ran::No, Ran::Unknown];
    json_schema!({"enum": all.map(Ran::name)})
}

fn blames(_: &mut SchemaGenerator) -> Schema {
    let all = [Blame::Program, Blame::Request, Blame::Upstream, Blame::Host, Blame::Cofferdam];
    name_or_null(all.map(Blame::name))
}

fn limit_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"enum": LimitName::ALL.map(LimitName::name)}})
}

fn denial_codes(_: &mut SchemaGenerator) -> Schema {
    let all: Vec<_> = DenialCode::ALL.iter().map(|code| code.code()).collect();
    json_schema!({"enum": all})
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use cofferdam_core::outcome::{Denials, FaultCode, RunId, Traffic};
    use cofferdam_core::policy::PolicyHash;
    use serde_json::Value;

    use super::*;

    /// Output that is kept in pieces of one size.
    struct Kept {
        bytes: Vec<u8>,
        chunk: usize,
        dropped: u64,
    }

    impl Captured for Kept {
        fn bytes(&self) -> u64 {
            self.bytes.len() as u64 + self.dropped
        }

        fn dropped(&self) -> u64 {
            self.dropped
        }

        fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
            self.bytes.chunks(self.chunk).try_for_each(f)
        }
    }

    fn outcome(end: End) -> Outcome {
        Outcome {
            run: RunId::parse("r_01jd0000000000000000000000").unwrap(),
            labels: BTreeMap::from([("team".into(), "a\"b".into())]),
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_069_704_120),
            profile: Some(Profile::Internal),
            backend: Some(BackendName::Container),
            why_backend: Some("it runs any Linux program".into()),
            end,
            ran: Ran::Yes,
            error: None,
            hints: vec![],
            times: Times {
                total: Duration::from_micros(41_249),
                select: Duration::from_micros(50),
                open: Duration::from_millis(6),
                first_output: None,
                run: Duration::from_millis(33),
                close: Duration::from_micros(1_849),
            },
            usage: Usage {
                cpu: Duration::from_micros(20_999),
                memory_peak_bytes: Some(9_437_184),
                processes_peak: None,
            },
            network: NetworkUsage {
                traffic: Some(Traffic { bytes_out: 312, bytes_in: 8120 }),
                udp_refused: 2,
            },
            limits_hit: BTreeSet::from([LimitName::Pids]),
            left_processes: 1,
            enforced: BTreeSet::from([Capability::Network, Capability::Files]),
            gaps: vec![Gap {
                capability: Capability::Cpu,
                why: "no controller".into(),
                fix: "mount it".into(),
            }],
            denials: Denials::default(),
            leases: vec![],
            artifacts: vec![],
            rejected: vec![],
            policy: Some(PolicyHash("00".into())),
            audit: Some(AuditSpan { first: 10, last: 14, head: format!("sha256:{}", "0".repeat(64)) }),
        }
    }

    /// Outcomes of several kinds, for the test of their schema.
    pub(crate) fn samples() -> Vec<Value> {
        let mut refused = outcome(End::Refused);
        (refused.ran, refused.profile, refused.backend, refused.why_backend) = (Ran::No, None, None, None);
        (refused.policy, refused.audit, refused.usage) = (None, None, Usage::default());
        refused.error =
            Some(Fault { code: FaultCode::BadRequest, message: "no".into(), fix: Some("yes".into()) });
        let mut denied = outcome(End::Exited(0));
        let host = Denial::of_bytes(DenialCode::InvalidHost, b"a\0b");
        (0..=Denials::MOST as u16)
            .for_each(|port| denied.denials.add(Denial { port: Some(port), ..host.clone() }));
        let mut collected = outcome(End::Exited(0));
        collected.artifacts =
            vec![Artifact { path: "plot.png".into(), bytes: 8120, sha256: "0a".repeat(32) }];
        let rejected = |why: Rejection| Rejected { path: "x".into(), why };
        collected.rejected = Rejection::ALL.map(rejected).into();
        let kept = |bytes: &[u8]| Kept { bytes: bytes.into(), chunk: 2, dropped: 0 };
        let (text, binary) = (kept("é\n".as_bytes()), kept(b"\xff"));
        let output = (Stream::Captured(&text), Stream::Captured(&binary));
        vec![
            json(&OutcomeJson::from(&outcome(End::Signalled(9))).with_output(output.0, output.1)),
            json(&OutcomeJson::from(&refused)),
            json(&OutcomeJson::from(&collected)),
            json(&OutcomeJson::from(&denied)),
        ]
    }

    fn json(outcome: &OutcomeJson<'_>) -> Value {
        let mut line = vec![];
        outcome.write_line(&mut line).unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    /// A stream's JSON, when it was kept in pieces of a size.
    fn stream(bytes: &[u8], chunk: usize) -> Value {
        let kept = Kept { bytes: bytes.into(), chunk, dropped: 0 };
        serde_json::from_str(&serde_json::to_string(&StreamJson(Stream::Captured(&kept))).unwrap()).unwrap()
    }

    #[test]
    fn the_line_drives_no_terminal_and_says_the_same() {
        let text = "\u{1b}[2J \u{7f}\u{9b}2J é \u{2028}\u{202e}\u{2066}日本\r\n\u{fffd}";
        let kept = Kept { bytes: text.as_bytes().into(), chunk: 1, dropped: 0 };
        let mut outcome = outcome(End::Exited(0));
        outcome.hints = vec![text.to_owned()];
        let outcome = OutcomeJson::from(&outcome);
        let outcome = outcome.with_output(Stream::Captured(&kept), Stream::PassedThrough(0));
        let mut line = vec![];
        outcome.write_line(&mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(!line.trim_end_matches('\n').contains(drives_a_terminal), "{line:?}");
        assert!(line.contains("é") && line.contains("日本") && line.contains("\\u202e"), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&read["stdout"]["text"], &read["hints"][0]), (&text.into(), &text.into()));
    }

    #[test]
    fn the_line_is_what_people_script_against() {
        let outcome = outcome(End::Exited(0));
        let kept = Kept { bytes: b"hello\n".into(), chunk: 4, dropped: 6 };
        let json = OutcomeJson::from(&outcome).with_output(Stream::Captured(&kept), Stream::PassedThrough(3));
        let mut line = vec![];
        json.write_line(&mut line).unwrap();
        let expected = concat!(
            r#"{"version":1,"cofferdam":"VERSION","run":"r_01jd0000000000000000000000","#,
            r#""task":"t_01jd0000000000000000000000","label":{"team":"a\"b"},"started":"2026-11-30T20:15:04.120Z","#,
            r#""profile":"internal","backend":"container","why_backend":"it runs any Linux program","#,
            r#""end":"exited","exit_code":0,"signal":null,"ran":"yes","blame":null,"error":null,"hints":[],"#,
            r#""stdout":{"text":"hello\n","encoding":"utf-8","bytes":12,"dropped":6},"#,
            r#""stderr":{"bytes":3,"dropped":0},"#,
            r#""time_ms":{"total":41.2,"select":0.1,"open":6.0,"first_output":null,"run":33.0,"close":1.8},"#,
            r#""usage":{"cpu_ms":20,"memory_peak":9437184,"processes_peak":null,"#,
            r#""bytes_out":312,"bytes_in":8120,"udp_refused":2},"#,
            r#""limits_hit":["pids"],"left":{"processes":1},"enforced":["files","network"],"#,
            r#""gaps":[{"name":"cpu","why":"no controller","fix":"mount it"}],"#,
            r#""denials":[],"denials_others":0,"leases":[],"artifacts":[],"rejected":[],"policy_sha256":"00","#,
            r#""audit":{"first":10,"last":14,"#,
            r#""head":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}}"#,
            "\n"
        );
        let expected = expected.replace("VERSION", env!("CARGO_PKG_VERSION"));
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }

    #[test]
    fn a_denial_is_told_with_what_would_allow_it_and_how_often() {
        let mut outcome = outcome(End::Exited(0));
        let host = Denial::of_bytes(DenialCode::HostNotAllowed, b"evil.test").with_request(b"GET", b"/");
        let denial = Denial { port: Some(443), needs: Some("--allow evil.test".into()), ..host };
        (0..3).for_each(|_| outcome.denials.add(denial.clone()));
        let mut line = vec![];
        OutcomeJson::from(&outcome).write_line(&mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        let expected = concat!(
            r#""denials":[{"code":"host_not_allowed","host":"evil.test","port":443,"method":"GET","path":"/","#,
            r#""rule":null,"needs":"--allow evil.test","count":3}],"denials_others":0,"leases""#
        );
        assert!(line.contains(expected), "{line}");
    }

    #[test]
    fn an_end_is_told_apart_by_name_code_and_signal() {
        let ended = |end| {
            let json = json(&OutcomeJson::from(&outcome(end)));
            (json["end"].clone(), json["exit_code"].clone(), json["signal"].clone())
        };
        assert_eq!(ended(End::Exited(137)), ("exited".into(), 137.into(), Value::Null));
        assert_eq!(ended(End::Signalled(9)), ("signalled".into(), 137.into(), 9.into()));
        assert_eq!(ended(End::OutOfMemory), ("out_of_memory".into(), 137.into(), Value::Null));
        assert_eq!(ended(End::TimedOut), ("timed_out".into(), 124.into(), Value::Null));
    }

    #[test]
    fn an_error_says_who_is_to_blame() {
        let refused = &samples()[1];
        assert_eq!(refused["blame"], "request");
        assert_eq!(refused["error"]["code"], "bad_request");
        assert_eq!(refused["error"]["fix"], "yes");
        assert_eq!(refused["ran"], "no");
        assert_eq!(refused["backend"], Value::Null);
    }

    #[test]
    fn files_that_came_out_and_those_that_did_not_are_told_apart() {
        let collected = &samples()[2];
        let file = serde_json::json!({"path": "plot.png", "bytes": 8120, "sha256": "0a".repeat(32)});
        assert_eq!(collected["artifacts"], serde_json::json!([file]));
        assert!(
            collected["rejected"].to_string().contains(r#"{"path":"x","why":"host_exec"}"#),
            "{collected}"
        );
    }

    #[test]
    fn text_is_the_same_however_its_chunks_are_cut() {
        let text = "aé€😀\"\\\n\u{0}\u{1b}[2J\u{2028}é";
        for chunk in 1..=text.len() {
            let json = stream(text.as_bytes(), chunk);
            assert_eq!(
                (json["text"].as_str(), json["encoding"].as_str()),
                (Some(text), Some("utf-8")),
                "{chunk}"
            );
            assert_eq!(json["bytes"], text.len());
        }
    }

    #[test]
    fn one_byte_that_is_not_utf8_makes_it_base64_however_its_chunks_are_cut() {
        use base64::Engine as _;
        // A lone continuation, a surrogate, an overlong form, a sequence that never ends.
        for bytes in [
            &b"ab\x80cde"[..],
            b"\xed\xa0\x80",
            b"x\xc0\xaf",
            "abc€".as_bytes().split_last().unwrap().1,
            b"\xff",
        ] {
            for chunk in 1..=bytes.len() {
                let json = stream(bytes, chunk);
                assert_eq!(json["encoding"], "base64");
                assert_eq!(STANDARD.decode(json["text"].as_str().unwrap()).unwrap(), bytes, "{chunk}");
            }
        }
    }

    #[test]
    fn no_output_is_empty_text() {
        let json = stream(b"", 1);
        assert_eq!((json["text"].as_str(), json["encoding"].as_str()), (Some(""), Some("utf-8")));
    }

    /// Output that is made while it is read, so that nobody holds it.
    struct Endless {
        chunks: u64,
        byte: u8,
    }

    const CHUNK: usize = 8192;

    impl Captured for Endless {
        fn bytes(&self) -> u64 {
            self.chunks * CHUNK as u64
        }

        fn dropped(&self) -> u64 {
            0
        }

        fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
            (0..self.chunks).try_for_each(|_| f(&[self.byte; CHUNK]))
        }
    }

    /// Counts what it gets, and how much of it at once.
    #[derive(Default)]
    struct Meter {
        total: u64,
        most: usize,
    }

    impl Write for Meter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.total += bytes.len() as u64;
            self.most = self.most.max(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn large_output_passes_through_in_small_pieces() {
        let outcome = outcome(End::Exited(0));
        let (text, binary) = (Endless { chunks: 1280, byte: b'a' }, Endless { chunks: 1280, byte: 0xff });
        let json =
            OutcomeJson::from(&outcome).with_output(Stream::Captured(&text), Stream::Captured(&binary));
        let mut meter = Meter::default();
        json.write_line(&mut meter).unwrap();
        assert!(meter.total > text.bytes() + binary.bytes() * 4 / 3);
        assert!(meter.most <= BUFFER_BYTES, "{} bytes at once", meter.most);
    }

    /// Output that can be read once and no more.
    struct Lost(Cell<bool>);

    impl Captured for Lost {
        fn bytes(&self) -> u64 {
            1
        }

        fn dropped(&self) -> u64 {
            0
        }

        fn for_each_chunk(&self, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
            f(b"x")?;
            if self.0.replace(true) { Err(io::Error::other("the spool is gone")) } else { Ok(()) }
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_cannot_be_read_again_is_an_error_and_not_a_shorter_text() {
        let outcome = outcome(End::Exited(0));
        for read_before in [false, true] {
            let lost = Lost(Cell::new(read_before));
            let json =
                OutcomeJson::from(&outcome).with_output(Stream::Captured(&lost), Stream::PassedThrough(0));
            let error = json.write_line(&mut vec![]).unwrap_err();
            assert!(error.to_string().contains("the spool is gone"), "{error}");
        }
    }

    #[test]
    fn a_full_disk_is_the_writers_error() {
        let outcome = outcome(End::Exited(0));
        let text = Endless { chunks: 100, byte: b'a' };
        let json = OutcomeJson::from(&outcome).with_output(Stream::Captured(&text), Stream::PassedThrough(0));
        assert_eq!(json.write_line(&mut Full).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_clock_that_is_far_off_is_still_a_time() {
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 50);
        assert_eq!(timestamp(far), "9999-12-31T23:59:59.000Z");
    }
}
