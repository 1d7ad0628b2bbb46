//! The name of a job in a batch: whatever its line gave, echoed by its Outcome.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A text or a whole number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobId {
    /// A number below zero.
    Negative(i64),
    /// Any other whole number. A job without an id has the number of its line.
    Number(u64),
    /// A text.
    Text(String),
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobId::Negative(number) => number.fmt(f),
            JobId::Number(number) => number.fmt(f),
            JobId::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            JobId::Negative(number) => serializer.serialize_i64(*number),
            JobId::Number(number) => serializer.serialize_u64(*number),
            JobId::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = JobId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id, which is a text or a whole number")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<JobId, E> {
        Ok(u64::try_from(number).map_or(JobId::Negative(number), JobId::Number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<JobId, E> {
        Ok(JobId::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<JobId, E> {
        Ok(JobId::Text(text.to_owned()))
    }
}

impl JsonSchema for JobId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "JobId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "integer"]})
    }
}
