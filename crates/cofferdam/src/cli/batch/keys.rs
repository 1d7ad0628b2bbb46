//! JSON in which some object has a key twice says two things, of which readers take the one or the
//! other: a job that was looked at by somebody else would be another than the one that runs.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::files::HELP_FOLLOWS;

/// A value of JSON that was read past, and that has no key twice, however deep.
#[derive(Debug)]
pub(super) struct KeysOnce;

impl<'de> Deserialize<'de> for KeysOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = KeysOnce;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_i64<E>(self, _: i64) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_u64<E>(self, _: u64) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_f64<E>(self, _: f64) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_str<E>(self, _: &str) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_unit<E>(self) -> Result<KeysOnce, E> {
        Ok(KeysOnce)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<KeysOnce, A::Error> {
        while items.next_element::<KeysOnce>()?.is_some() {}
        Ok(KeysOnce)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<KeysOnce, A::Error> {
        let mut known = HashSet::new();
        while let Some(key) = members.next_key::<String>()? {
            if known.contains(&key) {
                let help = "remove one of the two";
                return Err(A::Error::custom(format!("the key {key:?} is there twice{HELP_FOLLOWS}{help}")));
            }
            members.next_value::<KeysOnce>()?;
            known.insert(key);
        }
        Ok(KeysOnce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_found_at_every_depth() {
        let read = |text: &str| serde_json::from_str::<KeysOnce>(text);
        for text in ["1", "-1", "1.5", "null", "true", "\"a\"", "[{\"a\":1},{\"a\":2}]", "{\"a\":{\"a\":{}}}"]
        {
            assert!(read(text).is_ok(), "{text}");
        }
        for text in ["{\"a\":1,\"a\":1}", "[[{\"b\":[],\"a\":{\"c\":1,\"c\":2}}]]", "{\"a\":1,\"\\u0061\":2}"]
        {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains("there twice") && error.column() > 0, "{error}");
        }
    }
}
