//! The policy file as it is written: its tables, their keys, and what can stand there.
//!
//! These types are the file's whole vocabulary. They are what is read, what `policy show` writes,
//! and what `cofferdam schema policy` describes. Whether the values fit each other is for `check`;
//! an unknown or duplicate key, or a value of the wrong kind, doesn't get this far.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{FileError, Source};
use super::words::{
    At, BackendChoice, CapabilityName, Cores, Count, Denied, FilePattern, Host, Inject, Method, Misuse, Name,
    PassedName, PathPattern, Pids, Port, ProfileName, ProtocolName, Size, Time, Tls, VariableName,
    VariableValue, Version,
};

/// A Cofferdam policy: what a run may use and where it may connect. What it leaves out is denied,
/// or has the default that `cofferdam policy show` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Policy")]
pub(crate) struct PolicyFile {
    /// The version of this format.
    pub(crate) version: At<Version>,
    /// How much the program is trusted, which decides the backends that are considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<At<ProfileName>>,
    /// The backend; `auto` leaves it to the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<At<BackendChoice>>,
    /// A policy file, relative to this one, which this one may only narrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extends: Option<At<String>>,
    /// Capabilities that may be missing; the Outcome then says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) accept_gaps: Vec<At<CapabilityName>>,
    /// Capabilities that are demanded beyond those that the policy implies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) require: Vec<At<CapabilityName>>,
    /// Ceilings on the run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) limits: LimitsTable,
    /// The files that the program sees.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) files: FilesTable,
    /// The program's environment.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) environment: EnvironmentTable,
    /// Where the program may connect.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) network: NetworkTable,
    /// Credentials that are minted for the run and end with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<Vec<CredentialTable>>,
    /// The answers to names.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) dns: DnsTable,
    /// What is recorded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) audit: AuditTable,
}

/// Ceilings on one run. All are enforced or refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Limits")]
pub(crate) struct LimitsTable {
    /// Wall-clock time of the program; everything is killed at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<At<Time>>,
    /// Time between SIGTERM and the kill at the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grace: Option<At<Time>>,
    /// Memory of everything inside together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<At<Size>>,
    /// Processor time per second of wall-clock time, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<At<Cores>>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pids: Option<At<Pids>>,
    /// Bytes in all writable places together; half of the memory where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<At<Size>>,
    /// Files, directories and links in all writable places together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<At<Count>>,
    /// Bytes of standard output and standard error together after which the run is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<At<Size>>,
    /// Bytes that leave; downloads are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_out: Option<At<Size>>,
    /// HTTP requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<At<Count>>,
    /// Connections that are open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<At<Count>>,
    /// Different names that are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<At<Count>>,
}

/// The files of the host that the program sees. Nothing of them is written in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Files")]
pub(crate) struct FilesTable {
    /// The folder that is shown as the working directory, relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<At<String>>,
    /// Files and folders of the host that are shown read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inputs: Option<Vec<InputTable>>,
    /// What of the workspace is not shown, besides `**/.env*` and `**/.git/hooks`, which never are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hide: Vec<At<FilePattern>>,
    /// What is let out although a tool of the host may run it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keep: Vec<At<FilePattern>>,
}

/// A file or folder of the host that is shown read-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table like { host = \"data\" }")]
#[schemars(rename = "Input")]
pub(crate) struct InputTable {
    /// Its path on the host, relative to this file.
    pub(crate) host: At<String>,
    /// Its path inside; in `/inputs` by its own name where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guest: Option<At<String>>,
}

/// The program's environment, beyond what the sandbox itself sets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Environment")]
pub(crate) struct EnvironmentTable {
    /// Variables with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) set: BTreeMap<At<VariableName>, At<VariableValue>>,
    /// Variables of the host that are passed on, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pass: Option<Vec<At<PassedName>>>,
}

/// Where the program may connect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Network")]
pub(crate) struct NetworkTable {
    /// Permissions; what none of them names is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow: Option<Vec<RuleTable>>,
}

/// One permission to connect: HTTP over TLS on port 443, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table like { host = \"api.example.com\" }")]
#[schemars(rename = "Rule")]
pub(crate) struct RuleTable {
    /// The rule's name, for the audit and for messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<At<Name>>,
    /// The host, or `*.` and a name for every host one label below it.
    pub(crate) host: At<Host>,
    /// The ports; 443, or 80 for `http`, where they are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ports: Option<At<Vec<Port>>>,
    /// What is spoken there; `https` where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<At<ProtocolName>>,
    /// What happens to TLS; it is ended by the proxy where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<At<Tls>>,
    /// HTTP methods; any where they are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) methods: Option<At<Vec<Method>>>,
    /// Paths; any where they are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paths: Option<At<Vec<PathPattern>>>,
    /// Whether the host may be at a private address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) private: Option<At<bool>>,
    /// The credential that requests must carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<At<Name>>,
}

/// A credential that is minted for the run and ends with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Credential")]
pub(crate) struct CredentialTable {
    /// The name by which rules refer to it.
    pub(crate) name: At<Name>,
    /// Who mints it, as the operator's `issuers.toml` names it.
    pub(crate) issuer: At<Name>,
    /// What it may do, in the issuer's words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub(crate) scope: BTreeMap<String, toml::Value>,
    /// How long it lives; as long as the run where it is left out, and never longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<At<Time>>,
    /// How often it may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_uses: Option<At<Count>>,
    /// How it gets into a request. The sandbox sees a surrogate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inject: Option<At<Inject>>,
    /// The variable in which the program finds the surrogate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) surrogate_env: Option<At<VariableName>>,
    /// What happens to a run that uses it where it doesn't belong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_misuse: Option<At<Misuse>>,
    /// Variables in which the program finds the credential itself; `{user}` and `{password}` stand
    /// for its parts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) deliver: BTreeMap<At<VariableName>, VariableValue>,
}

/// The answers to names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Dns")]
pub(crate) struct DnsTable {
    /// What is answered for a name that no rule allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<At<Denied>>,
}

/// What is recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "Audit")]
pub(crate) struct AuditTable {
    /// Whether requests that were allowed are recorded, and not the denied ones alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<At<bool>>,
}

fn is_default<T: Default + PartialEq>(table: &T) -> bool {
    *table == T::default()
}

impl PolicyFile {
    /// Reads a policy file's text.
    pub(crate) fn parse(text: &str, source: &Source) -> Result<PolicyFile, FileError> {
        let table = toml::de::DeTable::parse(text).map_err(|error| source.toml_error(&error))?;
        let version = table.get_ref().iter().find(|(key, _)| key.get_ref() == "version");
        let Some((_, version)) = version else {
            let message = "the file does not say its version";
            return Err(source.error(&(0..0), message, "before this", "begin the file with `version = 1`"));
        };
        // Before the rest: a file of another version is told so, and not that its keys are unknown.
        Version::deserialize(toml::de::ValueDeserializer::from(version.clone()))
            .and_then(|_| PolicyFile::deserialize(toml::Deserializer::from(table)))
            .map_err(|error| source.toml_error(&error))
    }
}
