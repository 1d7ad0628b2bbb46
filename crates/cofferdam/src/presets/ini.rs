//! Files of `key = value` in sections, as pip and npm have them.

/// One line's key in its section, with its value: lines that begin with a space continue the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Empty before the first section.
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: String,
}

/// Reads a file; what is no entry is passed over, as those who wrote it do.
pub(super) fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = vec![];
    let mut section = String::new();
    for line in text.lines() {
        let word = line.trim();
        if word.is_empty() || word.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t'])
            && let Some(last) = entries.last_mut().filter(|last| last.section == section)
        {
            last.value.push(' ');
            last.value.push_str(word);
        } else if let Some(name) = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let Some((key, value)) = key_and_value(word) {
            let value = value.trim().trim_matches('"').to_owned();
            entries.push(Entry { section: section.clone(), key: key.trim().to_owned(), value });
        }
    }
    entries
}

/// At the first `=`; a key of npm's may hold colons.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    line.split_once('=').or_else(|| line.split_once(':'))
}
