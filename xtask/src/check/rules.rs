//! Rules about single source files: where `unsafe` may be, and that a file says what it holds.

use crate::workspace::Source;

use super::rust;

/// Where `unsafe` may be written. Everything else is checked by the compiler alone.
const UNSAFE_PLACES: &[&str] = &[
    // System calls.
    "crates/sys/",
    // Opening precompiled code is unsafe in Wasmtime: it trusts the file.
    "crates/backends/src/wasm/prepared.rs",
];

/// Files up to this many lines show what they hold without a header.
const LINES_WITHOUT_HEADER: usize = 40;

/// Every `unsafe` outside the places for it.
pub(crate) fn misplaced_unsafe(sources: &[Source]) -> Vec<String> {
    let elsewhere = |source: &&Source| !UNSAFE_PLACES.iter().any(|place| source.path.starts_with(place));
    let mut found = Vec::new();
    for source in sources.iter().filter(elsewhere) {
        for line in rust::unsafe_lines(&source.text) {
            found.push(format!(
                "{}:{line}: unsafe may be in crates/sys/ only; put a safe function there and call it",
                source.path
            ));
        }
    }
    found
}

/// Every longer file whose first line isn't a `//!` comment.
pub(crate) fn missing_headers(sources: &[Source]) -> Vec<String> {
    sources
        .iter()
        .filter(|source| {
            source.text.lines().count() > LINES_WITHOUT_HEADER && !source.text.starts_with("//!")
        })
        .map(|source| {
            format!("{}: the first line must be a `//!` comment that says what the file holds", source.path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn unsafe_is_found_wherever_it_may_not_be() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        for path in ["crates/core/src/lib.rs", "fuzz/fuzz_targets/wire.rs", "crates/backends/src/wasm/mod.rs"]
        {
            let found = misplaced_unsafe(&[source(path, text)]);
            assert_eq!(found.len(), 1, "{path}");
            assert!(found[0].starts_with(&format!("{path}:2:")), "{found:?}");
        }
    }

    #[test]
    fn unsafe_may_be_in_sys_and_where_precompiled_code_is_opened() {
        let text = "unsafe fn f() {}";
        let sources =
            [source("crates/sys/src/process.rs", text), source("crates/backends/src/wasm/prepared.rs", text)];
        assert!(misplaced_unsafe(&sources).is_empty());
    }

    #[test]
    fn a_long_file_needs_a_header_and_a_short_one_does_not() {
        let long = "fn f() {}\n".repeat(41);
        let sources = [
            source("a.rs", &long),
            source("b.rs", &format!("//! Holds f.\n{long}")),
            source("c.rs", "fn f() {}\n"),
        ];
        let found = missing_headers(&sources);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:"), "{found:?}");
    }
}
