//! The policy of one job of a batch: what of a policy a job can say, as JSON.
//!
//! It has the tables of a policy file and is judged by the same code. That code gives the place of
//! what it refuses as a part of a text; here the text is made of the values' own paths, a line each,
//! so that the place of an error is `policy.limits.memory`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cofferdam_core::policy::Layer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::Loaded;
use super::error::{FileError, Source};
use super::extends;
use super::policy::{EnvironmentTable, FilesTable, LimitsTable, NetworkTable, PolicyFile};
use super::words::{At, CapabilityName, FilePattern, VariableName, VariableValue, Version};

/// What a job may say of its policy. It can only narrow that of the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct JobPolicy {
    /// Ceilings on the job.
    #[serde(default)]
    limits: LimitsTable,
    /// The files that the program sees.
    #[serde(default)]
    files: JobFiles,
    /// The program's environment.
    #[serde(default)]
    environment: JobEnvironment,
    /// Where the program may connect.
    #[serde(default)]
    network: NetworkTable,
    /// Capabilities that are demanded beyond those that the batch demands.
    #[serde(default)]
    require: Vec<At<CapabilityName>>,
}

/// What a job may say of its files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct JobFiles {
    /// What of the workspace is not shown.
    #[serde(default)]
    hide: Vec<At<FilePattern>>,
}

/// What a job may say of its environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct JobEnvironment {
    /// Variables with their values.
    #[serde(default)]
    set: BTreeMap<At<VariableName>, At<VariableValue>>,
}

impl JobPolicy {
    fn into_file(self) -> PolicyFile {
        let JobPolicy { limits, files, environment, network, require } = self;
        PolicyFile {
            version: Version(1).into(),
            profile: None,
            backend: None,
            extends: None,
            accept_gaps: vec![],
            require,
            limits,
            files: FilesTable { hide: files.hide, ..FilesTable::default() },
            environment: EnvironmentTable { set: environment.set, pass: None },
            network,
            credential: None,
            dns: Default::default(),
            audit: Default::default(),
        }
    }
}

/// The layer of a job under a batch's policy.
///
/// # Errors
///
/// [`FileError`] whose [`FileError::at`] is the path of what can't be read or asks for more.
pub(crate) fn narrow(batch: &Loaded, policy: &Value) -> Result<Layer, FileError> {
    let numbers = numbers(policy);
    let mut paths = Paths { text: String::new(), numbers: numbers.iter(), null: None };
    let value = paths.spanned(policy, "policy");
    let source = Source::new("a job's policy", &paths.text);
    if let Some(span) = paths.null {
        let help = "leave the key out instead";
        return Err(source.error(&span, "null is no value of a policy", "null", help));
    }
    if !policy.is_object() {
        let help = "write it as {\"limits\": {…}}; `cofferdam schema job` has its keys";
        return Err(source.error(&(0.."policy".len()), "a policy is an object", "no object", help));
    }
    let read = JobPolicy::deserialize(toml::de::ValueDeserializer::from(value));
    let file = read.map_err(|error| source.toml_error(&error))?.into_file();
    extends::narrow_for_job(batch, &file, &source)
}

/// The paths of values, a line each.
struct Paths<'n> {
    text: String,
    /// The texts of the numbers that are still to come.
    numbers: std::slice::Iter<'n, String>,
    /// The place of a null.
    null: Option<super::error::Span>,
}

impl<'n> Paths<'n> {
    /// The place of a path, which is added.
    fn add(&mut self, path: &str) -> super::error::Span {
        let start = self.text.len();
        self.text.push_str(&path.replace('\n', " "));
        let span = start..self.text.len();
        self.text.push('\n');
        span
    }

    /// A value of JSON as one of TOML, with its path as its place.
    fn spanned(&mut self, value: &Value, path: &str) -> Spanned<DeValue<'n>> {
        let span = self.add(path);
        let value = match value {
            Value::Null => {
                self.null.get_or_insert(span.clone());
                DeValue::Boolean(false)
            }
            Value::Bool(truth) => DeValue::Boolean(*truth),
            Value::Number(_) => number(self.numbers.next().map_or("", String::as_str)),
            Value::String(text) => DeValue::String(Cow::Owned(text.clone())),
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(at, item)| self.spanned(item, &format!("{path}[{at}]")));
                DeValue::Array(items.collect::<DeArray<'n>>())
            }
            Value::Object(members) => {
                let mut table = DeTable::new();
                for (key, member) in members {
                    let path = format!("{path}.{key}");
                    let key = Spanned::new(self.add(&path), Cow::Owned(key.clone()));
                    table.insert(key, self.spanned(member, &path));
                }
                DeValue::Table(table)
            }
        };
        Spanned::new(span, value)
    }
}

/// The numbers in a value, as text, in the order in which they are met.
fn numbers(value: &Value) -> Vec<String> {
    match value {
        Value::Number(number) => vec![number.to_string()],
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::Object(members) => members.values().flat_map(numbers).collect(),
        Value::Bool(_) | Value::Null | Value::String(_) => vec![],
    }
}

/// A number, in the one way in which TOML's are made: from its text. What JSON can write and TOML
/// can't stays a text, which is refused where a number belongs.
fn number(text: &str) -> DeValue<'_> {
    DeValue::parse(text).map_or(DeValue::String(Cow::Borrowed(text)), Spanned::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Rest;
    use cofferdam_core::policy::{Ceiling, Cpus, HostPattern, LimitsLayer, NetworkRule, Policy, Profile};
    use std::time::Duration;

    fn batch() -> Loaded {
        let rule = |host| NetworkRule::https(HostPattern::parse(host).unwrap());
        let layer = Layer {
            profile: Some(Profile::Internal),
            limits: LimitsLayer { timeout: Some(Duration::from_secs(60)), ..Default::default() },
            network: vec![rule("a.test"), rule("b.test")],
            accept_gaps: [cofferdam_core::Capability::Disk].into(),
            ..Layer::default()
        };
        let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
        Loaded { layer: policy.as_layer(), rest: Rest::default() }
    }

    fn job(text: &str) -> Result<Layer, FileError> {
        narrow(&batch(), &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_job_narrows_what_it_names_and_keeps_the_rest() {
        let layer = job(r#"{"limits":{"memory":"64MiB","cpus":0.5,"pids":9},"environment":{"set":{"A":"1"}},
                "network":{"allow":[{"host":"b.test","methods":["GET"]}]},"require":["landlock"]}"#)
        .unwrap();
        assert_eq!(layer.limits.memory_bytes, Some(64 << 20));
        assert_eq!((layer.limits.cpus, layer.limits.pids), (Cpus::from_cores(0.5), Some(9)));
        assert_eq!(layer.limits.timeout, Some(Duration::from_secs(60)));
        assert_eq!((layer.network.len(), layer.environment.set.len()), (1, 1));
        assert_eq!(layer.accept_gaps, batch().layer.accept_gaps, "what the operator accepted");
        assert_eq!(layer.profile, Some(Profile::Internal));
        assert_eq!(job("{}").unwrap(), batch().layer);
        assert!(job(r#"{"network":{"allow":[]}}"#).unwrap().network.is_empty(), "none, said aloud");
    }

    #[test]
    fn more_than_the_batch_grants_is_refused_with_its_key_defaults_included() {
        for (text, path) in [
            (r#"{"limits":{"memory":"2GiB"}}"#, "policy.limits.memory"),
            (r#"{"limits":{"timeout":"2m"}}"#, "policy.limits.timeout"),
            (r#"{"limits":{"grace":"1s"}}"#, "policy.limits.grace"),
            (r#"{"limits":{"pids":257}}"#, "policy.limits.pids"),
            (r#"{"limits":{"cpus":1.5}}"#, "policy.limits.cpus"),
            (r#"{"limits":{"disk":"600MiB"}}"#, "policy.limits.disk"),
            (r#"{"limits":{"files":100001}}"#, "policy.limits.files"),
            (
                r#"{"network":{"allow":[{"host":"a.test"},{"host":"c.test"}]}}"#,
                "policy.network.allow[1].host",
            ),
        ] {
            let error = job(text).unwrap_err();
            assert_eq!(error.at().unwrap(), path);
            assert!(error.message().contains("more than the batch grants"), "{}", error.message());
            assert!(error.fix().contains("than the batch grants"), "{}", error.fix());
        }
    }

    #[test]
    fn what_a_job_may_not_say_or_says_wrongly_is_refused_with_its_path() {
        for (text, path, message) in [
            (r#"{"profile":"internal"}"#, "policy.profile", "unknown key `profile`"),
            (r#"{"limits":{"memroy":"1MiB"}}"#, "policy.limits.memroy", "unknown key `memroy`"),
            (r#"{"limits":{"timeout":5}}"#, "policy.limits.timeout", "`5` has no unit"),
            (r#"{"limits":{"pids":"8"}}"#, "policy.limits.pids", "is a string"),
            (r#"{"limits":{"pids":1e300}}"#, "policy.limits.pids", ""),
            (r#"{"limits":{"pids":0}}"#, "policy.limits.pids", "zero"),
            (r#"{"limits":{"memory":null}}"#, "policy.limits.memory", "null"),
            (r#"{"environment":{"pass":["TZ"]}}"#, "policy.environment.pass", "unknown key"),
            (r#"{"environment":{"set":{"A":1}}}"#, "policy.environment.set.A", "1"),
            ("[]", "policy", "object"),
            ("7", "policy", "object"),
        ] {
            let error = job(text).unwrap_err();
            assert_eq!(error.at().unwrap(), path, "{text}: {}", error.message());
            assert!(error.message().contains(message), "{text}: {}", error.message());
            assert!(!error.fix().is_empty());
        }
    }
}
