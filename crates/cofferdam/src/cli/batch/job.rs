//! A job as it is written: one line of JSON, and the request that it becomes.
//!
//! Reading is all that happens here, on whatever thread the lines come in; a line that can't be read
//! is a [`Refused`] with its column, and spoils only itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_core::outcome::{Fault, FaultCode};
use cofferdam_core::request::{Argv, File, FileName, Lang, Origin, Program, Request, Script, Variable};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::keys::KeysOnce;
use crate::cli::options::check_label;
use crate::cli::run::lang;
use crate::files::{HELP_FOLLOWS, JobPolicy, Time, VariableName, VariableValue, did_you_mean};
use crate::report::job_id::JobId;

/// A job that could be read.
#[derive(Debug)]
pub(super) struct Job {
    /// Its name.
    pub(super) id: JobId,
    /// What to run. Its labels are the job's own.
    pub(super) request: Request,
    /// Its standard input.
    pub(super) stdin: Vec<u8>,
    /// Its own deadline.
    pub(super) timeout: Option<Duration>,
    /// How it narrows the batch's policy.
    pub(super) policy: Option<serde_json::Value>,
}

/// A line that is no job.
#[derive(Debug)]
pub(super) struct Refused {
    /// Its name, or the number of its line.
    pub(super) id: JobId,
    /// What is wrong with it.
    pub(super) fault: Fault,
}

/// One job of a batch: a program, what it is given, and how it narrows the batch's policy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a job, which is an object")]
#[schemars(rename = "Job")]
pub(crate) struct JobLine {
    /// Its name, which its Outcome repeats; the number of its line where it is left out.
    id: Option<JobId>,
    /// Code to run. A job has this or `argv`.
    code: Option<String>,
    /// The language of the code: python where it is left out.
    #[serde(default)]
    #[schemars(schema_with = "languages")]
    lang: Option<String>,
    /// A program and its arguments; no shell splits them. A job has this or `code`.
    argv: Option<Vec<String>>,
    /// More arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Files to put into the working directory, by name.
    #[serde(default)]
    files: BTreeMap<String, Content>,
    /// Standard input; empty where it is left out.
    stdin: Option<Content>,
    /// Variables for the program, on top of those of the policy.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    env: BTreeMap<VariableName, VariableValue>,
    /// Its deadline, at most the batch's.
    timeout: Option<Time>,
    /// Labels for its Outcome and the audit, on top of the batch's.
    #[serde(default)]
    label: BTreeMap<String, String>,
    /// How it narrows the batch's policy.
    #[schemars(with = "Option<JobPolicy>")]
    policy: Option<serde_json::Value>,
}

fn languages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"enum": Lang::ALL.iter().map(|lang| lang.name()).collect::<Vec<_>>()})
}

/// Bytes: a text, or `{"base64": "…"}`.
#[derive(Debug)]
struct Content(Vec<u8>);

impl JsonSchema for Content {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Content".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A text, or bytes as base64.",
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
                    "required": ["base64"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or an object such as {\"base64\": \"AAE=\"}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.into()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content(text.into_bytes()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Content, A::Error> {
                let mut content = None;
                while let Some(key) = members.next_key::<String>()? {
                    if key != "base64" || content.is_some() {
                        return Err(de::Error::unknown_field(&key, &["base64"]));
                    }
                    let text: String = members.next_value()?;
                    let bytes = STANDARD.decode(&text).map_err(|error| {
                        let help = "write standard base64 with its padding";
                        de::Error::custom(format!("this is no base64: {error}{HELP_FOLLOWS}{help}"))
                    })?;
                    content = Some(Content(bytes));
                }
                content.ok_or_else(|| de::Error::missing_field("base64"))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Reads a line, which is the `number`th.
pub(super) fn read(line: &[u8], number: u64) -> Result<Job, Refused> {
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let read = if is_object {
        let read = serde_json::from_slice::<JobLine>(line);
        // Second, since it knows nothing of what a job can hold.
        read.and_then(|job| serde_json::from_slice::<KeysOnce>(line).map(|_| job))
    } else {
        // A list would be taken for the values of the keys, in their order.
        let no_object = |_| Err(de::Error::custom("a job is an object"));
        serde_json::from_slice::<IgnoredAny>(line).and_then(no_object)
    };
    let parsed = match read {
        Ok(parsed) => parsed,
        Err(error) => return Err(Refused { id: id_of(line, number), fault: explain(&error) }),
    };
    let id = parsed.id.clone().unwrap_or(JobId::Number(number));
    request(parsed, id.clone()).map_err(|fault| Refused { id, fault })
}

/// The id in a line that can't be read as a whole, if it comes before what is wrong; else the number
/// of the line.
pub(super) fn id_of(line: &[u8], number: u64) -> JobId {
    struct IdFinder<'a>(&'a RefCell<Option<JobId>>);
    impl<'de> Visitor<'de> for IdFinder<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
            while let Some(key) = members.next_key::<String>()? {
                if key == "id" {
                    *self.0.borrow_mut() = Some(members.next_value()?);
                } else {
                    members.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }
    let found = RefCell::new(None);
    let mut json = serde_json::Deserializer::from_slice(line);
    let _ = json.deserialize_map(IdFinder(&found)); // what is wrong with the rest is said elsewhere
    found.into_inner().unwrap_or(JobId::Number(number))
}

/// A refusal of a request.
pub(super) fn bad(message: impl Into<String>, fix: impl Into<String>) -> Fault {
    Fault { code: FaultCode::BadRequest, message: message.into(), fix: Some(fix.into()) }
}

/// What is wrong with a line, and at which column.
fn explain(error: &serde_json::Error) -> Fault {
    let text = error.to_string();
    // serde_json puts the place at the end.
    let (what, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    let column = if error.line() > 0 { format!("column {}: ", error.column()) } else { String::new() };
    if !error.is_data() {
        let fix = "write each job as one object on one line; `cofferdam schema job` describes it";
        return bad(format!("{column}this is not JSON: {what}"), fix);
    }
    if let Some((why, help)) = what.split_once(HELP_FOLLOWS) {
        return bad(format!("{column}{why}"), help);
    }
    let mut quoted = what.split('`').skip(1).step_by(2);
    if what.starts_with("unknown field")
        && let Some(key) = quoted.next()
    {
        let known: Vec<_> = quoted.collect();
        let fix = did_you_mean(key, &known).unwrap_or_else(|| format!("the keys are {}", known.join(", ")));
        return bad(format!("{column}unknown key `{key}`"), fix);
    }
    bad(format!("{column}{what}"), "`cofferdam schema job` describes what a job can hold")
}

fn request(line: JobLine, id: JobId) -> Result<Job, Fault> {
    for (name, value) in &line.label {
        check_label(name, value).map_err(|why| bad(format!("label: {why}"), "shorten it, or name it"))?;
    }
    let timeout = line.timeout.map(|time| time.0);
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(bad("timeout: nothing can run with zero of this", "write more than zero"));
    }
    let environment = line.env.into_iter().map(|(name, value)| {
        Variable::new(name.0, value.0).map_err(|error| bad(format!("env: {error}"), "choose another"))
    });
    let request = Request {
        program: program(line.code, line.lang.as_deref(), line.argv, line.args)?,
        files: line
            .files
            .into_iter()
            .map(|(name, content)| file(&name, content))
            .collect::<Result<_, _>>()?,
        environment: environment.collect::<Result<_, _>>()?,
        labels: line.label,
        terminal: None,
        collect: false,
    };
    let stdin = line.stdin.map(|content| content.0).unwrap_or_default();
    Ok(Job { id, request, stdin, timeout, policy: line.policy })
}

fn program(
    code: Option<String>,
    language: Option<&str>,
    argv: Option<Vec<String>>,
    args: Vec<String>,
) -> Result<Program, Fault> {
    let word = |text: String| {
        CString::new(text).map_err(|_| bad("an argument holds a NUL byte", "pass such bytes as `stdin`"))
    };
    let words = |texts: Vec<String>| texts.into_iter().map(word).collect::<Result<Vec<_>, _>>();
    match (code, argv) {
        (Some(code), None) => {
            let named = language.map(|name| lang(name).map_err(|why| (name, why))).transpose();
            let lang = named.map_err(|(name, why)| {
                bad(format!("lang: {name:?} is no language that is known here"), why)
            })?;
            Ok(Program::Script(Script {
                lang: lang.unwrap_or(Lang::Python),
                origin: Origin::Inline,
                source: code.into_bytes(),
                args: words(args)?,
            }))
        }
        (None, Some(argv)) => {
            if language.is_some() {
                return Err(bad("`lang` is for `code`", "remove `lang`, or write `code` instead of `argv`"));
            }
            let mut argv = words([argv, args].concat())?.into_iter();
            match argv.next() {
                Some(program) if !program.is_empty() => {
                    Ok(Program::Command(Argv::new(program, argv.collect())))
                }
                _ => Err(bad("argv: there is no program in it", "write the program's name first")),
            }
        }
        (Some(_), Some(_)) => Err(bad("there are both `code` and `argv`", "remove one of the two")),
        (None, None) => Err(bad(
            "there is nothing to run",
            "write `code`, as in {\"code\": \"print(1)\"}, or `argv`, as in {\"argv\": [\"ls\", \"/\"]}",
        )),
    }
}

/// A file for the working directory. What has a first line like a script's, or is machine code, can be
/// executed.
fn file(name: &str, Content(bytes): Content) -> Result<File, Fault> {
    let executable = bytes.starts_with(b"#!") || bytes.starts_with(b"\x7fELF");
    match FileName::new(name) {
        Ok(name) => Ok(File { name, bytes, executable }),
        Err(error) => {
            let fix = "files lie in /workspace itself: let the program make its folders";
            Err(bad(format!("files: {name:?}: {error}"), fix))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(line: &str) -> Job {
        read(line.as_bytes(), 7).unwrap()
    }

    fn refused(line: &str) -> (JobId, String, String) {
        let Refused { id, fault } = read(line.as_bytes(), 7).unwrap_err();
        assert_eq!(fault.code.blame(), cofferdam_core::outcome::Blame::Request);
        (id, fault.message, fault.fix.unwrap())
    }

    #[test]
    fn a_job_is_read_as_it_is_written() {
        let Job { id, request, stdin, timeout, .. } =
            job(r##"{"id":"a","code":"x","args":["b","c"],"env":{"A":"1"},"label":{"k":"v"},"timeout":"2s",
                "stdin":{"base64":"AAE="},"files":{"f":"#!/bin/sh\n","g":{"base64":"/w=="}}}"##);
        assert_eq!((id, stdin, timeout), (JobId::Text("a".into()), vec![0, 1], Some(Duration::from_secs(2))));
        assert_eq!((request.environment.len(), request.labels.len()), (1, 1));
        assert!(request.files[0].executable && !request.files[1].executable);
        assert_eq!(request.files[1].bytes, [255]);
        let Program::Script(Script { lang, args, .. }) = request.program else { panic!() };
        assert_eq!((lang, args.len()), (Lang::Python, 2));
        let Program::Command(argv) = job(r#"{"argv":["a","b"],"args":["c"]}"#).request.program else {
            panic!()
        };
        assert_eq!(argv.words().count(), 3);
    }

    #[test]
    fn a_job_without_a_name_has_the_number_of_its_line() {
        assert_eq!(job(r#"{"code":"1"}"#).id, JobId::Number(7));
        assert_eq!(job(r#"{"code":"1","id":9}"#).id, JobId::Number(9));
        assert_eq!(job(r#"{"code":"1","id":-9}"#).id, JobId::Negative(-9));
    }

    #[test]
    fn a_line_that_is_no_job_says_at_which_column_and_what_to_do() {
        for (line, message, fix) in [
            ("nonsense", "column 2: this is not JSON: expected ident", "one object on one line"),
            ("7", "a job is an object", "schema job"),
            ("[\"a\"]", "a job is an object", "schema job"),
            ("{\"code\":", "column 8: this is not JSON", "one object on one line"),
            (r#"{"code":"1","cod":2}"#, "column 17: unknown key `cod`", "did you mean `code`?"),
            (r#"{"code":1}"#, "column 9: invalid type: integer `1`, expected a string", "schema job"),
            (r#"{"code":"1","timeout":5}"#, "column 23: `5` has no unit", "5s"),
            (r#"{"code":"1","timeout":"0s"}"#, "timeout: nothing can run", "more than zero"),
            (r#"{"code":"1","id":1.5}"#, "column 20: invalid type: floating point `1.5`", "schema job"),
            (r#"{"code":"1","argv":["a"]}"#, "both `code` and `argv`", "remove one"),
            (r#"{"id":"x"}"#, "nothing to run", "`code`"),
            (r#"{"argv":[]}"#, "no program", "name first"),
            (r#"{"argv":["a"],"lang":"sh"}"#, "`lang` is for `code`", "remove"),
            (r#"{"code":"1","lang":"cobol"}"#, "\"cobol\" is no language", "python"),
            (r#"{"argv":["a\u0000"]}"#, "NUL byte", "stdin"),
            (r#"{"code":"1","files":{"a/b":""}}"#, "\"a/b\": a file's name can't hold a slash", "folders"),
            (r#"{"code":"1","files":{"a":{"base64":"?"}}}"#, "no base64", "standard base64"),
            (r#"{"code":"1","files":{"a":{"hex":"?"}}}"#, "unknown key `hex`", "base64"),
            (r#"{"code":"1","env":{"A=B":"c"}}"#, "column", ""),
            (r#"{"code":"1","label":{"":"c"}}"#, "label: a label has a name", "name it"),
            (r#"{"code":"1","env":{"A":"1","A":"2"}}"#, "the key \"A\" is there twice", "remove one"),
            (r#"{"code":"1","policy":{"limits":{"pids":1,"pids":2}}}"#, "\"pids\" is there twice", "remove"),
            (r#"{"code":"1","code":"2"}"#, "duplicate field `code`", "schema job"),
        ] {
            let (_, said, advice) = refused(line);
            assert!(said.contains(message), "{line}: {said}");
            assert!(advice.contains(fix), "{line}: {advice}");
        }
    }

    #[test]
    fn an_id_before_what_is_wrong_is_echoed() {
        assert_eq!(refused(r#"{"id":"x","cod":1}"#).0, JobId::Text("x".into()));
        assert_eq!(refused(r#"{"cod":1,"id":"x"}"#).0, JobId::Text("x".into()));
        assert_eq!(refused(r#"{"id":"x","code":"#).0, JobId::Text("x".into()));
        assert_eq!(refused(r#"{"code": nonsense"#).0, JobId::Number(7));
        assert_eq!(refused(r#"{"id":[],"code":"1"}"#).0, JobId::Number(7));
        assert_eq!(read(b"{\"id\":\"x\",\"code\":\"\xff\"}", 7).unwrap_err().id, JobId::Text("x".into()));
    }
}
