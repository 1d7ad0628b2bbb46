//! The words of the files: a type for each kind of value, read and written in one way.
//!
//! A [`Word`] is a TOML string, number or boolean that means something. Its parser is in `value`;
//! here it gets serde's traits and its JSON Schema, so that the tables in `policy` and `node` are
//! declarations. [`At`] keeps where in the file a value was.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use cofferdam_core::capability::Capability;
use cofferdam_core::files::Pattern;
use cofferdam_core::policy::{BackendName, Cpus, HostPattern, Profile, Protocol};
use cofferdam_core::request::Variable;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use super::error::{HELP_FOLLOWS, Span, did_you_mean};
use super::value::{self, BadValue};

/// A value and where it was. Two are equal if their values are.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    /// The value.
    pub(crate) value: T,
    /// Its place in the file; empty where it isn't from a file.
    pub(crate) span: Span,
}

impl<T> From<T> for At<T> {
    fn from(value: T) -> Self {
        At { value, span: 0..0 }
    }
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for At<T> {}

impl<T: Ord> PartialOrd for At<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for At<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value.cmp(&other.value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = toml::Spanned::<T>::deserialize(deserializer)?;
        Ok(At { span: spanned.span(), value: spanned.into_inner() })
    }
}

impl<T: Serialize> Serialize for At<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// What a file can hold in one place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    /// A number with a point.
    Fraction(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// `true` or `false`.
    Truth(bool),
    /// A number without a point.
    Whole(i64),
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // With its point: `256.0` is not a whole number.
            Scalar::Fraction(number) => write!(f, "{number:?}"),
            Scalar::Text(text) => f.write_str(text),
            Scalar::Truth(truth) => write!(f, "{truth}"),
            Scalar::Whole(number) => write!(f, "{number}"),
        }
    }
}

/// A value that is written in one place and means one thing.
pub(crate) trait Word: Sized {
    /// What belongs there, with an example.
    const EXPECTED: &'static str;

    /// Reads it.
    fn read(scalar: &Scalar<'_>) -> Result<Self, BadValue>;

    /// Writes it so that it reads back as itself.
    fn write(&self) -> Scalar<'_>;

    /// What a JSON Schema says of it.
    fn schema() -> Schema;
}

/// Refuses a value of another kind than the one that belongs there.
fn wrong_kind<T: Word>(scalar: &Scalar<'_>) -> BadValue {
    BadValue::new(format!("`{scalar}` is not {}", T::EXPECTED), format!("write {}", T::EXPECTED))
}

/// Reads a word that is a string. A number is read as if it had been quoted, for the sake of the
/// error: `5` is a duration without its unit. It is refused even so.
fn read_text<T: Word>(
    scalar: &Scalar<'_>,
    parse: impl Fn(&str) -> Result<T, BadValue>,
) -> Result<T, BadValue> {
    match scalar {
        Scalar::Text(text) => parse(text),
        Scalar::Fraction(_) | Scalar::Whole(_) => {
            Err(parse(&scalar.to_string()).err().unwrap_or_else(|| wrong_kind::<T>(scalar)))
        }
        Scalar::Truth(_) => Err(wrong_kind::<T>(scalar)),
    }
}

/// Reads a word that is a number.
fn read_number<T: Word>(
    scalar: &Scalar<'_>,
    parse: impl Fn(&str) -> Result<T, BadValue>,
) -> Result<T, BadValue> {
    match scalar {
        Scalar::Fraction(_) | Scalar::Whole(_) => parse(&scalar.to_string()),
        Scalar::Text(text) if parse(text).is_ok() => Err(BadValue::new(
            format!("`\"{text}\"` is a string"),
            format!("write {text} without the quotes"),
        )),
        Scalar::Text(_) | Scalar::Truth(_) => Err(wrong_kind::<T>(scalar)),
    }
}

/// Finds a name among those that exist.
fn choose<T: Copy>(
    what: &str,
    text: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, BadValue> {
    if let Some(&found) = all.iter().find(|&&candidate| name(candidate) == text) {
        return Ok(found);
    }
    let names: Vec<_> = all.iter().map(|&candidate| name(candidate)).collect();
    let help = did_you_mean(text, &names).unwrap_or_else(|| format!("write one of {}", names.join(", ")));
    Err(BadValue::new(format!("`{text}` is not a {what}"), help))
}

struct ScalarVisitor<T>(PhantomData<T>);

impl<T: Word> ScalarVisitor<T> {
    fn read<E: de::Error>(scalar: &Scalar<'_>) -> Result<T, E> {
        T::read(scalar).map_err(|bad| E::custom(format!("{}{HELP_FOLLOWS}{}", bad.why, bad.help)))
    }
}

impl<T: Word> Visitor<'_> for ScalarVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
        Self::read(&Scalar::Truth(truth))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        Self::read(&Scalar::Whole(number))
    }

    /// JSON's parser calls a number without a sign so.
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        // What is larger is too large for every word, and said to be.
        Self::read(&Scalar::Whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        Self::read(&Scalar::Fraction(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Self::read(&Scalar::Text(text.into()))
    }
}

/// Gives a word serde's traits and its JSON Schema.
macro_rules! through_word {
    ($name:ident) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ScalarVisitor(PhantomData))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.write() {
                    Scalar::Fraction(number) => serializer.serialize_f64(number),
                    Scalar::Text(text) => serializer.serialize_str(&text),
                    Scalar::Truth(truth) => serializer.serialize_bool(truth),
                    Scalar::Whole(number) => serializer.serialize_i64(number),
                }
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                Self::schema()
            }
        }
    };
}

/// Words around a type of the core: what belongs there, how it is read and written, its schema.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $expected:literal, $how:ident $parse:expr, $write:expr, $schema:tt;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $inner);

        impl Word for $name {
            const EXPECTED: &'static str = $expected;

            fn read(scalar: &Scalar<'_>) -> Result<Self, BadValue> {
                let parse = $parse;
                $how(scalar, |text| parse(text).map($name))
            }

            fn write(&self) -> Scalar<'_> {
                let write: fn(&$inner) -> Scalar<'_> = $write;
                write(&self.0)
            }

            fn schema() -> Schema {
                json_schema!($schema)
            }
        }

        through_word!($name);
    )+};
}

words! {
    /// The version of the file's format.
    Version(u32), "the number 1",
        read_number version, |number| whole(*number), {"const": 1};
    /// How much the program is trusted.
    ProfileName(Profile), "a profile such as \"internal\"",
        read_text |text: &str| choose("profile", text, Profile::ALL, Profile::name),
        |profile| named(profile.name()), {"enum": names(Profile::ALL, Profile::name)};
    /// A backend, or none for `auto`.
    BackendChoice(Option<BackendName>), "a backend such as \"auto\"",
        read_text |text: &str| choose("backend", text, BACKENDS, backend_name),
        |backend| named(backend_name(*backend)), {"enum": names(BACKENDS, backend_name)};
    /// A capability.
    CapabilityName(Capability), "a capability such as \"separate-kernel\"",
        read_text |text: &str| choose("capability", text, Capability::ALL, Capability::name),
        |capability| named(capability.name()), {"enum": names(Capability::ALL, Capability::name)};
    /// A duration: `500ms`, `10s`, `5m`, `1h`, `2d`.
    Time(Duration), "a duration such as \"5m\"",
        read_text value::duration, |time| Scalar::Text(value::write_duration(*time).into()),
        {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"};
    /// A size: `64MiB`, `1.5GiB`.
    Size(u64), "a size such as \"64MiB\"",
        read_text value::size, |bytes| Scalar::Text(value::write_size(*bytes).into()),
        {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)$"};
    /// Processor time per second of wall-clock time, in cores.
    Cores(Cpus), "a number of cores such as 0.5",
        read_number value::cpus, write_cores, {"type": "number", "minimum": 0.01};
    /// A whole number.
    Count(u64), "a whole number such as 1000",
        read_number value::count::<u64>, |number| Scalar::Whole(i64::try_from(*number).unwrap_or(i64::MAX)),
        {"type": "integer", "minimum": 0};
    /// A whole number of processes and threads.
    Pids(u32), "a whole number such as 256",
        read_number value::count::<u32>, |number| whole(*number),
        {"type": "integer", "minimum": 0, "maximum": u32::MAX};
    /// A TCP port.
    Port(u16), "a port such as 443",
        read_number value::port, |port| whole(u32::from(*port)),
        {"type": "integer", "minimum": 1, "maximum": u16::MAX};
    /// The name of a rule, a credential or an issuer.
    Name(String), "a name such as \"github\"",
        read_text value::name, |name| named(name), {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"};
    /// The name of an environment variable.
    #[derive(PartialOrd, Ord)]
    VariableName(String), "a variable's name such as \"LANG\"",
        read_text value::variable_name, |name| named(name), {"type": "string", "pattern": "^[^=]+$"};
    /// The name of an environment variable of the host.
    PassedName(String), "a variable's name such as \"TZ\"",
        read_text value::passed_name, |name| named(name), {"type": "string", "pattern": "^[^=*]+$"};
    /// The value of an environment variable.
    VariableValue(String), "a variable's value such as \"C.UTF-8\"",
        read_text variable_value, |text| named(text), {"type": "string"};
    /// A host, an address, or `*.` and a name of at least two labels.
    Host(HostPattern), "a host such as \"api.example.com\"",
        read_text value::host, |host| Scalar::Text(host.to_string().into()), {"type": "string", "minLength": 1};
    /// An HTTP method.
    Method(String), "an HTTP method such as \"GET\"",
        read_text value::method, |method| named(method), {"type": "string", "pattern": "^[A-Z][A-Z0-9_-]*$"};
    /// A path, with `*` for a part of a segment and `**` for any number of segments.
    PathPattern(String), "a path such as \"/repos/acme/**\"",
        read_text value::path, |path| named(path), {"type": "string", "pattern": "^/"};
    /// A pattern for paths below the workspace, in the manner of `.gitignore`.
    FilePattern(Pattern), "a pattern such as \"**/*.key\"",
        read_text value::pattern, |pattern| named(pattern.as_str()), {"type": "string", "pattern": "^[^/!]"};
    /// `https` is HTTP over TLS that is ended by us; `http` is in the clear; `tcp` is any bytes.
    ProtocolName(Protocol), "a protocol such as \"tcp\"",
        read_text |text: &str| choose("protocol", text, PROTOCOLS, protocol_name),
        |protocol| named(protocol_name(*protocol)), {"enum": names(PROTOCOLS, protocol_name)};
}

/// Words that are one of a few names.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident, $what:literal, $expected:literal {
        $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            const ALL: &[$name] = &[$($name::$variant,)+];

            /// The word.
            pub(crate) fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl Word for $name {
            const EXPECTED: &'static str = $expected;

            fn read(scalar: &Scalar<'_>) -> Result<Self, BadValue> {
                read_text(scalar, |text| choose($what, text, $name::ALL, $name::name))
            }

            fn write(&self) -> Scalar<'_> {
                named(self.name())
            }

            fn schema() -> Schema {
                json_schema!({"enum": names($name::ALL, $name::name)})
            }
        }

        through_word!($name);
    )+};
}

choices! {
    /// What happens to a name that no rule allows.
    Denied, "answer to a denied name", "\"explain\" or \"nxdomain\"" {
        /// It is answered, so that the denial can be read.
        Explain = "explain",
        /// It doesn't exist.
        Nxdomain = "nxdomain",
    }

    /// How a credential gets into a request.
    Inject, "way to inject a credential", "a way to inject such as \"bearer\"" {
        /// `Authorization: Basic`.
        Basic = "basic",
        /// `Authorization: Bearer`.
        Bearer = "bearer",
        /// A header of the issuer's choice.
        Header = "header",
    }

    /// What happens to a run that uses a credential where it doesn't belong.
    Misuse, "way to answer misuse", "\"deny\" or \"terminate\"" {
        /// The request is denied.
        Deny = "deny",
        /// The run is ended.
        Terminate = "terminate",
    }

    /// What happens to TLS on its way.
    Tls, "way to treat TLS", "\"passthrough\"" {
        /// It is passed through unopened.
        Passthrough = "passthrough",
    }
}

const BACKENDS: &[Option<BackendName>] = &{
    let mut all = [None; BackendName::ALL.len() + 1];
    let mut at = 0;
    while at < BackendName::ALL.len() {
        all[at + 1] = Some(BackendName::ALL[at]);
        at += 1;
    }
    all
};

fn backend_name(backend: Option<BackendName>) -> &'static str {
    backend.map_or("auto", BackendName::name)
}

/// What `protocol` can say. TLS that is passed through has a key of its own.
const PROTOCOLS: &[Protocol] = &[Protocol::Http, Protocol::Https, Protocol::Tcp];

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Https | Protocol::TlsPassthrough => "https",
        Protocol::Tcp => "tcp",
    }
}

fn version(text: &str) -> Result<u32, BadValue> {
    match text {
        "1" => Ok(1),
        _ => Err(BadValue::new(
            format!("version {text} of policy files is not known here"),
            "write `version = 1`, or use a cofferdam that knows the file's version",
        )),
    }
}

fn variable_value(text: &str) -> Result<String, BadValue> {
    match Variable::new("V", text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(BadValue::new(error.to_string(), "write a value without a NUL byte")),
    }
}

/// Whole cores as a whole number.
fn write_cores(cores: &Cpus) -> Scalar<'static> {
    match cores.thousandths() {
        thousandths if thousandths.is_multiple_of(1000) => whole(thousandths / 1000),
        thousandths => Scalar::Fraction(f64::from(thousandths) / 1000.0),
    }
}

fn whole(number: u32) -> Scalar<'static> {
    Scalar::Whole(i64::from(number))
}

fn named(name: &str) -> Scalar<'_> {
    Scalar::Text(name.into())
}

fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().map(|&one| name(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<T: Word + fmt::Debug>(scalar: &Scalar<'_>) -> BadValue {
        T::read(scalar).unwrap_err()
    }

    fn text(text: &str) -> Scalar<'_> {
        Scalar::Text(text.into())
    }

    #[test]
    fn a_number_without_its_unit_is_told_which_units_there_are() {
        assert_eq!(refused::<Time>(&Scalar::Whole(5)).why, "`5` has no unit");
        assert_eq!(refused::<Size>(&Scalar::Fraction(1.5)).why, "`1.5` has no unit");
        assert_eq!(refused::<Time>(&Scalar::Whole(-5)).why, "`-5` is negative");
    }

    #[test]
    fn a_value_of_another_kind_is_not_converted() {
        assert_eq!(refused::<Pids>(&text("256")).help, "write 256 without the quotes");
        refused::<Pids>(&Scalar::Fraction(256.0));
        refused::<Pids>(&Scalar::Truth(true));
        refused::<Cores>(&Scalar::Fraction(f64::INFINITY));
        refused::<Cores>(&Scalar::Fraction(f64::NAN));
        refused::<Name>(&Scalar::Whole(5));
        refused::<Time>(&Scalar::Truth(false));
        refused::<Version>(&text("1"));
        refused::<Version>(&Scalar::Fraction(1.0));
    }

    #[test]
    fn a_name_that_does_not_exist_is_answered_with_the_nearest_or_with_all() {
        assert_eq!(refused::<ProfileName>(&text("intrenal")).help, "did you mean `internal`?");
        assert!(refused::<BackendChoice>(&text("docker")).help.contains("auto, container, gvisor"));
        assert_eq!(BackendChoice::read(&text("auto")), Ok(BackendChoice(None)));
        assert_eq!(refused::<CapabilityName>(&text("memroy")).help, "did you mean `memory`?");
        assert_eq!(refused::<ProtocolName>(&text("udp")).why, "`udp` is not a protocol");
    }

    #[test]
    fn what_is_written_reads_back_as_itself() {
        for thousandths in [10, 500, 1000, 1250, 2000, 999] {
            let cores = Cores(Cpus::from_thousandths(thousandths).unwrap());
            assert_eq!(Cores::read(&cores.write()), Ok(cores));
        }
        for &backend in BACKENDS {
            let choice = BackendChoice(backend);
            assert_eq!(BackendChoice::read(&choice.write()), Ok(choice.clone()));
        }
    }
}
