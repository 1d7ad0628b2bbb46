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
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The rows that a source declares by either macro, as `ID MODULE::NAME`.
    fn declared(path: &Path, module: &str) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap().replace("in_wasm!(\"", "row!(\"");
        let rows = text.split("row!(\"").skip(1).filter_map(|rest| {
            let (id, rest) = rest.split_once("\", ")?;
            Some(format!("{id} {module}::{}", rest.split_once(')')?.0))
        });
        rows.collect()
    }

    fn files_below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
        files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
    }

    #[test]
    fn the_table_of_attacks_has_the_rows_that_are_tested_and_no_other() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folder = root.join("crates/cofferdam/tests/rows");
        let tested: BTreeSet<_> = files_below(&folder)
            .iter()
            .flat_map(|file| {
                let module = file.strip_prefix(&folder).unwrap().with_extension("");
                declared(file, &module.to_str().unwrap().replace('/', "::"))
            })
            .collect();
        assert!(tested.len() > 50, "{tested:?}");
        let threats = fs::read_to_string(root.join("THREATS.md")).unwrap();
        let table = threats.split_once("## The table of attacks").unwrap().1;
        let listed: BTreeSet<_> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.strip_suffix("` |"))
            .filter_map(|line| Some(format!("{} {}", line.split_once(" | ")?.0, line.rsplit_once('`')?.1)))
            .collect();
        assert_eq!(listed, tested);
    }

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
