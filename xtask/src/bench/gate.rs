//! Gates: the figure above which a benchmark fails. They are data, in `limits.json`:
//!
//! ```json
//! { "start_vs_bwrap_p50": { "max": 1.25, "unit": "ratio", "what": "…" } }
//! ```
//!
//! A gate that isn't there, or a figure that wasn't measured, is a failure and not a pass.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::problem::Problem;

/// Every gate, by name.
#[derive(Debug)]
pub(crate) struct Limits(BTreeMap<String, Limit>);

/// One gate.
#[derive(Clone, Debug)]
struct Limit {
    max: f64,
    unit: String,
    what: String,
}

/// A figure held against its gate.
#[derive(Debug)]
pub(crate) struct Verdict {
    name: String,
    /// `None` if it could not be measured.
    figure: Option<f64>,
    limit: Limit,
}

impl Limits {
    /// Reads a file of gates.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let text = fs::read_to_string(path).map_err(Problem::at("read", path))?;
        Self::parse(&text).map_err(Problem::form(path.display()))
    }

    /// Reads the text of such a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let entries = value.as_object().ok_or("it must be one object")?;
        let mut limits = BTreeMap::new();
        for (name, entry) in entries {
            limits.insert(name.clone(), Limit::parse(name, entry)?);
        }
        Ok(Self(limits))
    }

    /// The names, sorted.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Refuses if one of these gates is missing.
    pub(crate) fn require(&self, gates: &[&str]) -> Result<(), Problem> {
        match gates.iter().find(|gate| !self.0.contains_key(**gate)) {
            None => Ok(()),
            Some(gate) => {
                Err(Problem::Stop(format!("limits.json has no gate `{gate}`; add it with max, unit, what")))
            }
        }
    }

    /// Holds the figures against these gates. A gate that doesn't exist is left out here: call
    /// [`require`](Self::require) first.
    pub(crate) fn judge(&self, gates: &[&str], figures: &[(&str, f64)]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for gate in gates {
            if let Some(limit) = self.0.get(*gate) {
                let figure = figures.iter().find(|(name, _)| name == gate).map(|(_, figure)| *figure);
                verdicts.push(Verdict { name: (*gate).to_owned(), figure, limit: limit.clone() });
            }
        }
        verdicts
    }
}

impl Limit {
    fn parse(name: &str, entry: &Value) -> Result<Self, String> {
        let text = |key: &str| {
            entry[key].as_str().map(str::to_owned).ok_or_else(|| format!("`{name}` needs a text `{key}`"))
        };
        let max = entry["max"].as_f64().ok_or_else(|| format!("`{name}` needs a number `max`"))?;
        Ok(Self { max, unit: text("unit")?, what: text("what")? })
    }
}

impl Verdict {
    /// The gate's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the figure was measured and is within the gate. A figure that is no number is not.
    pub(crate) fn passed(&self) -> bool {
        self.figure.is_some_and(|figure| figure <= self.limit.max)
    }

    /// For the results file.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "name": self.name, "figure": self.figure, "max": self.limit.max, "unit": self.limit.unit, "passed": self.passed() })
    }
}

impl Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { max, unit, what } = &self.limit;
        let word = if self.passed() { "ok      gate" } else { "MISSED  gate" };
        match self.figure {
            Some(figure) => write!(out, "{word} {}: {figure:.3} {unit}, limit {max} ({what})", self.name),
            None => write!(out, "{word} {}: not measured, limit {max} {unit} ({what})", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = r#"{
        "a": { "max": 1.25, "unit": "ratio", "what": "a against b" },
        "c": { "max": 12, "unit": "MiB", "what": "memory" }
    }"#;

    fn passed(figures: &[(&str, f64)]) -> Vec<bool> {
        Limits::parse(LIMITS).unwrap().judge(&["a", "c"], figures).iter().map(Verdict::passed).collect()
    }

    #[test]
    fn a_figure_above_its_gate_fails_and_says_both_numbers() {
        assert_eq!(passed(&[("a", 1.251), ("c", 12.1)]), [false, false]);
        let limits = Limits::parse(LIMITS).unwrap();
        let text = limits.judge(&["a"], &[("a", 1.3)])[0].to_string();
        assert_eq!(text, "MISSED  gate a: 1.300 ratio, limit 1.25 (a against b)");
    }

    #[test]
    fn a_figure_that_is_missing_or_no_number_fails() {
        assert_eq!(passed(&[("a", f64::NAN)]), [false, false]);
    }

    #[test]
    fn a_figure_at_its_gate_passes() {
        assert_eq!(passed(&[("a", 1.25), ("c", 0.0)]), [true, true]);
    }

    #[test]
    fn a_gate_that_is_not_in_the_file_is_an_error() {
        let limits = Limits::parse(LIMITS).unwrap();
        assert!(limits.require(&["a", "c"]).is_ok());
        assert!(limits.require(&["a", "gone"]).unwrap_err().to_string().contains("`gone`"));
    }

    #[test]
    fn an_entry_without_its_fields_is_refused() {
        for text in [r#"{"a":{"max":"1","unit":"x","what":"y"}}"#, r#"{"a":{"max":1,"what":"y"}}"#, "[]", "{"]
        {
            assert!(Limits::parse(text).is_err(), "{text}");
        }
    }
}
