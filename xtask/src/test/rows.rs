//! What became of the rows of the table of attacks, as their tests told it.
//!
//! A row appends one line, `BACKEND<TAB>USER<TAB>ROW<TAB>VERDICT<TAB>DETAIL`, to the file that the
//! variable [`VARIABLE`] names. VERDICT is `passed`, `inconclusive` or `skipped`; a row that failed tells
//! nothing here, and its test has failed. The detail of one that passed names the attempts that prove
//! nothing on this host, since they don't get through without a sandbox either.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The variable by which tests find the file.
pub(crate) const VARIABLE: &str = "COFFERDAM_ROWS";

/// The file, in the folder of results.
pub(crate) const FILE: &str = "rows.tsv";

/// What one row came to.
#[derive(Debug, PartialEq, Eq)]
struct Told<'a> {
    row: &'a str,
    verdict: &'a str,
    detail: &'a str,
}

/// The rows by backend and user: how many passed, which are inconclusive, which were skipped and why.
pub(crate) fn summary(text: &str) -> String {
    let mut by_backend: BTreeMap<(&str, &str), Vec<Told<'_>>> = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(5, '\t');
        let mut part = || parts.next().unwrap_or_default();
        let (backend, user, row, verdict, detail) = (part(), part(), part(), part(), part());
        by_backend.entry((backend, user)).or_default().push(Told { row, verdict, detail });
    }
    let mut summary = String::new();
    for ((backend, user), mut rows) in by_backend {
        rows.sort_by_key(|told| told.row);
        let count = |verdict| rows.iter().filter(|told| told.verdict == verdict).count();
        // A String takes everything.
        let _ = writeln!(
            summary,
            "rows on {backend} ({user}): {} passed, {} inconclusive, {} skipped",
            count("passed"),
            count("inconclusive"),
            count("skipped")
        );
        for told in rows.iter().filter(|told| !told.detail.is_empty()) {
            let what = if told.verdict == "passed" { "inconclusive in part" } else { told.verdict };
            let _ = writeln!(summary, "  {} {what}: {}", told.row, told.detail);
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_backend_and_user_and_what_they_do_not_prove_is_named() {
        let text = "c\troot\tB-2\tpassed\t\nc\troot\tA-1\tpassed\tx: outside too\nc\trootless\tA-1\tskipped\tno cgroup\n";
        assert_eq!(
            summary(text),
            "rows on c (root): 2 passed, 0 inconclusive, 0 skipped\n  A-1 inconclusive in part: x: outside too\n\
             rows on c (rootless): 0 passed, 0 inconclusive, 1 skipped\n  A-1 skipped: no cgroup\n"
        );
        assert_eq!(summary(""), "");
    }
}
