//! `cofferdam schema`: JSON Schema (2020-12) of what people write and read.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::batch::JobLine;
use crate::files::PolicyFile;
use crate::report::outcome::OutcomeJson;

/// The schema of a policy file, whose TOML is judged as the JSON that it would be.
pub(crate) fn schema_policy() -> Value {
    let mut schema = schema::<PolicyFile>(SchemaSettings::draft2020_12().for_deserialize());
    remove_null(&mut schema);
    schema
}

/// The schema of a line of `batch`.
pub(crate) fn schema_job() -> Value {
    let mut schema = schema::<JobLine>(SchemaSettings::draft2020_12().for_deserialize());
    remove_null(&mut schema);
    schema
}

/// The schema of an Outcome.
pub(crate) fn schema_outcome() -> Value {
    schema::<OutcomeJson<'static>>(SchemaSettings::draft2020_12().for_serialize())
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Takes null out of every list of types and of values: a key that is left out is null in Rust,
/// and TOML can't write null.
fn remove_null(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(remove_null),
        Value::Object(members) => {
            if let Some(Value::Array(values)) = members.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            if let Some(types) = members.get_mut("type")
                && let Some([one, Value::String(null)]) = types.as_array().map(Vec::as_slice)
                && null == "null"
            {
                *types = one.clone();
            }
            members.values_mut().for_each(remove_null);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::report::outcome::tests::samples;

    /// What a value has that its schema doesn't allow. Knows what our schemas use; patterns and
    /// bounds are for a real validator.
    fn misfits(value: &Value, schema: &Value, root: &Value, at: &str) -> Vec<String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let target = root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
            return misfits(value, target, root, at);
        }
        if let Some(options) = schema["anyOf"].as_array() {
            let fits = options.iter().any(|option| misfits(value, option, root, at).is_empty());
            return if fits { vec![] } else { vec![format!("{at}: fits no option")] };
        }
        let mut found = vec![];
        if let Some(types) = schema.get("type")
            && !types.as_array().unwrap_or(&vec![types.clone()]).iter().any(|name| is_a(value, name))
        {
            found.push(format!("{at}: {value} is not {types}"));
        }
        if schema.get("const").is_some_and(|constant| constant != value)
            || schema["enum"].as_array().is_some_and(|values| !values.contains(value))
        {
            found.push(format!("{at}: {value} is not one of its values"));
        }
        for item in value.as_array().into_iter().flatten() {
            if let Some(items) = schema.get("items") {
                found.extend(misfits(item, items, root, &format!("{at}[]")));
            }
        }
        found.extend(misfits_of_members(value, schema, root, at));
        found
    }

    fn misfits_of_members(value: &Value, schema: &Value, root: &Value, at: &str) -> Vec<String> {
        let Some(members) = value.as_object() else { return vec![] };
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut found: Vec<_> =
            required.filter(|key| !members.contains_key(*key)).map(|key| format!("{at}: no {key}")).collect();
        for (key, member) in members {
            match schema["properties"].get(key) {
                Some(property) => found.extend(misfits(member, property, root, &format!("{at}.{key}"))),
                None if schema["additionalProperties"] == false && schema["patternProperties"].is_null() => {
                    found.push(format!("{at}: {key} is not known"));
                }
                None => {}
            }
        }
        found
    }

    fn is_a(value: &Value, name: &Value) -> bool {
        match name.as_str().unwrap() {
            "array" => value.is_array(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            "object" => value.is_object(),
            "string" => value.is_string(),
            other => panic!("{other} is no type"),
        }
    }

    fn policy(text: &str) -> Vec<String> {
        let value = serde_json::to_value(toml::from_str::<toml::Value>(text).unwrap()).unwrap();
        let schema = schema_policy();
        misfits(&value, &schema, &schema, "")
    }

    #[test]
    fn the_examples_are_policies() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
        let mut seen = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert_eq!(policy(&text), Vec::<String>::new());
            seen += 1;
        }
        assert!(seen >= 2);
    }

    #[test]
    fn the_job_schema_has_what_jobs_say_and_nothing_else() {
        let schema = schema_job();
        let job = |text: &str| misfits(&serde_json::from_str(text).unwrap(), &schema, &schema, "");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/forty.jsonl");
        let examples = fs::read_to_string(path).unwrap();
        let all = r#"{"id":1,"argv":["a"],"args":["b"],"files":{"f":{"base64":"AA=="},"g":"x"},"stdin":"","env":{"A":"1"},
            "timeout":"2s","label":{"a":"b"},"policy":{"limits":{"pids":3},"files":{"hide":["x"]},"require":["cpu"],
            "environment":{"set":{"A":"1"}},"network":{"allow":[{"host":"a.test"}]}}}"#;
        for text in examples.lines().chain([all]) {
            assert_eq!(job(text), Vec::<String>::new(), "{text}");
        }
        for text in [
            r#"{"cod":"1"}"#,
            r#"{"id":[]}"#,
            r#"{"code":1}"#,
            r#"{"code":"1","lang":"cobol"}"#,
            r#"{"code":"1","policy":{"profile":"internal"}}"#,
            r#"{"code":"1","policy":{"files":{"workspace":"."}}}"#,
            r#"{"code":"1","stdin":{"hex":""}}"#,
        ] {
            assert!(!job(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_policy_schema_refuses_what_the_parser_refuses() {
        for text in [
            "profile = \"internal\"",
            "version = 2",
            "version = 1\nprofil = 1",
            "version = 1\nprofile = \"any\"",
            "version = 1\n[limits]\nmemory = 1",
            "version = 1\n[limits]\ncolour = 1",
            "version = 1\n[[network.allow]]\nname = \"x\"",
            "version = 1\n[[network.allow]]\nhost = \"a.test\"\nports = [\"x\"]",
            "version = 1\n[[network.allow]]\nhost = \"a.test\"\ntls = \"off\"",
        ] {
            assert!(!policy(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn an_outcome_fits_its_schema_and_the_schema_knows_every_key() {
        let schema = schema_outcome();
        for outcome in samples() {
            assert_eq!(misfits(&outcome, &schema, &schema, ""), Vec::<String>::new());
            for key in outcome.as_object().unwrap().keys() {
                assert!(!schema["properties"][key].is_null(), "{key}");
                let mut without = outcome.clone();
                without.as_object_mut().unwrap().remove(key);
                assert!(!misfits(&without, &schema, &schema, "").is_empty(), "{key} is always there");
            }
        }
    }

    #[test]
    fn what_is_counted_as_memory_is_said_where_it_is_looked_up() {
        let memory = &schema_outcome()["$defs"]["Usage"]["properties"]["memory_peak"]["description"];
        let words: Vec<_> = memory.as_str().unwrap_or_default().split_whitespace().collect();
        assert!(words.join(" ").contains("not the pages that it shares with the template"), "{memory}");
    }

    #[test]
    fn both_are_of_the_draft_that_they_say() {
        for (schema, title) in [(schema_policy(), "Policy"), (schema_outcome(), "Outcome")] {
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
            assert_eq!(schema["title"], title);
            assert!(schema["description"].is_string());
        }
    }

    #[test]
    fn toml_has_no_null_and_neither_has_the_policys_schema() {
        assert!(!schema_policy().to_string().contains("null"));
    }
}
