//! What is wrong with a file: what, where, and what to do next.
//!
//! Every [`FileError`] has a help. One about a text that could be read also has that text, and the
//! places in it that it is about, so that `miette` shows file, line, column and the line itself.
//!
//! The text may come from anybody (`policy check` is for files that one doesn't trust yet), so
//! nothing of it reaches a terminal that could move its cursor or reorder its letters.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode as _};

use super::value::BadValue;

/// A place in a text, in bytes.
pub(crate) type Span = Range<usize>;

/// A file can't be used. Nothing of it was.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub(crate) struct FileError {
    message: String,
    #[source_code]
    text: Option<Arc<NamedSource<String>>>,
    #[label(collection)]
    labels: Vec<LabeledSpan>,
    #[help]
    help: String,
    #[source]
    cause: Option<io::Error>,
}

impl FileError {
    /// An error about a file of which there is no text to show.
    pub(crate) fn without_place(message: &str, help: &str, cause: Option<io::Error>) -> Self {
        FileError { message: harmless(message), text: None, labels: vec![], help: harmless(help), cause }
    }

    /// Adds a second place.
    pub(crate) fn and(mut self, span: Span, label: &str) -> Self {
        self.labels.push(LabeledSpan::new_with_span(Some(harmless(label)), span));
        self
    }

    /// What is wrong and where, in one line: `policy.toml:3:1: unknown key`.
    pub(crate) fn summary(&self) -> String {
        let place = self.text.as_ref().zip(self.labels.first()).and_then(|(text, label)| {
            let place = text.read_span(label.inner(), 0, 0).ok()?;
            Some(format!("{}:{}:{}: ", text.name(), place.line() + 1, place.column() + 1))
        });
        let cause = self.cause.as_ref().map(|cause| format!(": {cause}"));
        format!("{}{}{}", place.unwrap_or_default(), self.message, cause.unwrap_or_default())
    }

    /// The text at the first place that it is about.
    pub(crate) fn at(&self) -> Option<String> {
        let text = self.text.as_ref()?.read_span(self.labels.first()?.inner(), 0, 0).ok()?;
        Some(String::from_utf8_lossy(text.data()).into_owned())
    }

    /// What is wrong, without its place.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What to do next.
    pub(crate) fn fix(&self) -> &str {
        &self.help
    }
}

/// The text of a file, as errors show it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    shown: Arc<NamedSource<String>>,
}

impl Source {
    /// A text by its name.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Source { shown: Arc::new(NamedSource::new(harmless(name), without_controls(text))) }
    }

    /// An error about a place.
    pub(crate) fn error(&self, span: &Span, message: &str, label: &str, help: &str) -> FileError {
        let span = visible(self.shown.inner(), span);
        FileError {
            message: harmless(message),
            text: Some(Arc::clone(&self.shown)),
            labels: vec![LabeledSpan::new_primary_with_span(Some(harmless(label)), span)],
            help: harmless(help),
            cause: None,
        }
    }

    /// An error about a value.
    pub(crate) fn bad_value(&self, span: &Span, error: &BadValue) -> FileError {
        self.error(span, &error.why, "this value", &error.help)
    }

    /// The parser's error, in words that say what to do next.
    pub(crate) fn toml_error(&self, error: &toml::de::Error) -> FileError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message();
        if let Some((why, help)) = message.split_once(HELP_FOLLOWS) {
            return self.error(&span, why, "this value", help);
        }
        if message.starts_with("unknown field") {
            return self.unknown_key(&span, message);
        }
        if let Some(rest) = message.strip_prefix("missing field ") {
            let help = format!("add the key {rest} to this table");
            return self.error(&span, &format!("the key {rest} is missing"), "in this table", &help);
        }
        if message == "duplicate key" {
            return self.error(&span, "this key is there twice", "the second one", "remove one of the two");
        }
        let wrong = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "));
        if let Some((found, expected)) = wrong.and_then(|rest| rest.split_once(", expected ")) {
            let (found, expected) = (in_tomls_words(found), in_tomls_words(expected));
            let label = format!("this should be {expected}");
            return self.error(
                &span,
                &format!("{found} is not {expected}"),
                &label,
                &format!("write {expected} here"),
            );
        }
        let help = "correct the syntax here; https://toml.io says how TOML is written";
        self.error(&span, &format!("this is not TOML: {message}"), "here", help)
    }

    /// serde says: unknown field `x`, expected one of `a`, `b`.
    fn unknown_key(&self, span: &Span, message: &str) -> FileError {
        let mut quoted = message.split('`').skip(1).step_by(2);
        let key = quoted.next().unwrap_or_default();
        let known: Vec<_> = quoted.collect();
        let help = did_you_mean(key, &known).unwrap_or_else(|| match known.as_slice() {
            [] => "remove it: this table has no keys".to_owned(),
            [only] => format!("the only key of this table is {only}"),
            known => format!("the keys of this table are {}", known.join(", ")),
        });
        self.error(span, &format!("unknown key `{key}`"), "not a key of this table", &help)
    }
}

/// serde's own words for two kinds of values are not those of TOML.
fn in_tomls_words(kind: &str) -> &str {
    match kind {
        "a map" | "map" => "a table",
        "a sequence" | "sequence" => "a list",
        other => other,
    }
}

/// A place that can be underlined: an empty one becomes the letter there, or at a line's end the
/// letter before.
fn visible(text: &str, span: &Span) -> Span {
    if !span.is_empty() {
        return span.clone();
    }
    let (before, after) = text.split_at_checked(span.start).unwrap_or((text, ""));
    match (before.chars().next_back(), after.chars().next()) {
        (_, Some(letter)) if letter != '\n' && letter != '\r' => span.start..span.start + letter.len_utf8(),
        (Some(letter), _) => span.start - letter.len_utf8()..span.start,
        (None, _) => span.clone(),
    }
}

/// Between the reason and the help of a [`BadValue`], where serde can carry only one string.
pub(crate) const HELP_FOLLOWS: char = '\u{1f}';

/// `did you mean …?`, where one of the known words is near.
pub(crate) fn did_you_mean(word: &str, known: &[&str]) -> Option<String> {
    let near = known.iter().map(|candidate| (distance(word, candidate), candidate)).min()?;
    let (distance, candidate) = near;
    // A third of the letters may be wrong: `memroy` is near `memory`, `x` is near nothing.
    (distance * 3 <= candidate.len().max(word.len()).max(3)).then(|| format!("did you mean `{candidate}`?"))
}

/// Letters to add, drop, replace or swap with the next, to make one word of the other (optimal
/// string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut before: Vec<usize> = vec![];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

/// One line of words from a file, fit for a terminal.
fn harmless(text: &str) -> String {
    without_controls(text).replace(['\n', '\t'], " ")
}

/// The same text with a stand-in of the same length for each character that a terminal obeys
/// rather than shows. Lengths are kept since places are counted in bytes.
fn without_controls(text: &str) -> String {
    let obeyed = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(letter, '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\r' => shown.push(' '),
            _ if !obeyed(letter) => shown.push(letter),
            _ => shown.push_str(["?", "¿", "\u{fffd}", "\u{fffd}?"][letter.len_utf8() - 1]),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        let known = ["memory", "timeout", "pids", "cpus"];
        assert_eq!(did_you_mean("memroy", &known).unwrap(), "did you mean `memory`?");
        assert_eq!(did_you_mean("timeot", &known).unwrap(), "did you mean `timeout`?");
        assert_eq!(did_you_mean("cpu", &known).unwrap(), "did you mean `cpus`?");
        assert_eq!(did_you_mean("colour", &known), None);
        assert_eq!(did_you_mean("x", &known), None);
        assert_eq!(did_you_mean("", &known), None);
        assert_eq!(did_you_mean("x", &[]), None);
    }

    #[test]
    fn what_a_terminal_obeys_is_shown_as_a_stand_in_of_the_same_length() {
        let hostile = "a\u{1b}[2J\u{9b}31m\u{202e}b\u{e0041}\u{7f}\r\n\t\u{feff}é";
        let shown = without_controls(hostile);
        assert_eq!(shown.len(), hostile.len());
        assert_eq!(shown, "a?[2J¿31m\u{fffd}b\u{fffd}?? \n\t\u{fffd}é");
        assert!(!harmless("a\nb\tc").contains(['\n', '\t']));
    }

    #[test]
    fn a_summary_has_file_line_and_column() {
        let source = Source::new("p.toml", "a = 1\nb = 2\n");
        let error = source.error(&(6..7), "no", "here", "drop it");
        assert_eq!(error.summary(), "p.toml:2:1: no");
        assert_eq!(error.fix(), "drop it");
    }
}
