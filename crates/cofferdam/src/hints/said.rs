//! What programs say when they miss something: the phrases, and the names in them.
//!
//! Phrases are those of CPython, Node, the C library and POSIX shells. A program can say anything, so a
//! name from here is a word to compare with, and nothing more.

/// The most names that are taken from one text: each costs a look at the host.
const MOST_NAMES: usize = 8;

/// The longest name of a module that is believed.
const MODULE_BYTES: usize = 100;

/// The module that Python didn't find last: of `a.b`, the `a`.
pub(super) fn missing_module(text: &str) -> Option<&str> {
    let line = text.lines().rev().find(|line| line.contains("No module named "))?;
    let (_, rest) = line.split_once("No module named ")?;
    let name = rest.trim_start_matches('\'').split(['\'', '.', ' ', ';']).next()?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!name.is_empty() && name.len() <= MODULE_BYTES && name.bytes().all(is_name)).then_some(name)
}

/// The names of files that weren't there, the last first.
pub(super) fn missing_files(text: &str) -> Vec<String> {
    const PHRASES: [&str; 5] =
        ["o such file or directory", "annot open ", "an't open ", "ENOENT", "annot find module "];
    let mut names = vec![];
    for line in lines_with(text, &PHRASES) {
        names.extend(names_in(line, ": No such file or directory", &["annot open ", "an't open "]));
        if line.contains("annot find module ") {
            names.extend(quoted(line).flat_map(modules_of_node));
        }
    }
    names.truncate(MOST_NAMES);
    names
}

/// The names of files that couldn't be opened or made, the last first.
pub(super) fn denied_files(text: &str) -> Vec<String> {
    let mut names = vec![];
    for line in lines_with(text, &["ermission denied", "EACCES"]) {
        names.extend(names_in(line, ": Permission denied", &["annot create ", "annot open "]));
    }
    names.truncate(MOST_NAMES);
    names
}

/// Whether something outside couldn't be reached. A refusal by the sandbox's own loopback is the
/// program's business.
pub(super) fn no_network(text: &str) -> bool {
    const PHRASES: [&str; 10] = [
        "Temporary failure in name resolution",
        "Temporary failure resolving",
        "Name or service not known",
        "Could not resolve host",
        "Network is unreachable",
        "EAI_AGAIN",
        "ENETUNREACH",
        "ENOTFOUND",
        "unable to resolve host address",
        "ECONNREFUSED",
    ];
    const LOOPBACK: [&str; 3] = ["127.0.0.1", "::1", "localhost"];
    lines_with(text, &PHRASES).any(|line| !LOOPBACK.iter().any(|own| line.contains(own)))
}

/// Whether a program of Python had no memory left.
pub(super) fn no_memory(text: &str) -> bool {
    lines_with(text, &["MemoryError"])
        .any(|line| line.starts_with("MemoryError") || line.contains("ArrayMemoryError"))
}

/// Whether something was to be written in a read-only place.
pub(super) fn read_only(text: &str) -> bool {
    lines_with(text, &["ead-only file system", "EROFS"]).next().is_some()
}

/// The lines that hold one of some phrases, the last first.
fn lines_with<'a>(text: &'a str, phrases: &'a [&str]) -> impl Iterator<Item = &'a str> {
    text.lines().rev().filter(|line| phrases.iter().any(|phrase| line.contains(phrase)))
}

/// The names in a line: what is quoted; what stands before an `ending`, as in `cat: NAME: No such …`;
/// and what follows an opening, as in `cannot open NAME: …`.
fn names_in(line: &str, ending: &str, openings: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = quoted(line).map(str::to_owned).collect();
    if let Some((before, _)) = line.split_once(ending) {
        names.extend(before.rsplit(": ").next().map(str::to_owned));
    }
    for opening in openings {
        if let Some((_, after)) = line.split_once(opening) {
            names.extend(after.split(": ").next().map(str::to_owned));
        }
    }
    names
}

/// What stands in quotation marks of either kind. The apostrophe of `can't` is none.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let line = line.split_once("an't ").map_or(line, |(_, rest)| rest);
    ['\'', '"'].into_iter().flat_map(move |mark| line.split(mark).skip(1).step_by(2))
}

/// The files that Node looks for by a relative name, and the folder of packages for any other.
fn modules_of_node(name: &str) -> Vec<String> {
    if !name.starts_with(['.', '/']) {
        return vec!["node_modules".to_owned()];
    }
    ["js", "json", "cjs", "mjs"].iter().map(|extension| format!("{name}.{extension}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_by_its_first_part() {
        for (line, name) in [
            ("ModuleNotFoundError: No module named 'numpy'", Some("numpy")),
            ("ModuleNotFoundError: No module named 'a.b'; 'a' is not a package", Some("a")),
            ("/usr/bin/python3: No module named pytest", Some("pytest")),
            ("No module named ''", None),
            ("No module named '../x'", None),
            ("No module named '\u{1b}[2J'", None),
            ("fine", None),
        ] {
            assert_eq!(missing_module(line), name, "{line}");
        }
        assert_eq!(missing_module(&format!("No module named '{}'", "x".repeat(200))), None);
    }

    #[test]
    fn names_of_files_are_found_in_the_words_of_each_program() {
        for (line, name) in [
            ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", "data.csv"),
            ("cat: data.csv: No such file or directory", "data.csv"),
            ("sh: 1: cannot open data.csv: No such file", "data.csv"),
            ("python3: can't open file '/workspace/x.py': [Errno 2] No such", "/workspace/x.py"),
            ("Error: ENOENT: no such file or directory, open 'data.csv'", "data.csv"),
            ("Error: Cannot find module './lib'", "./lib.js"),
            ("Error: Cannot find module 'lodash'", "node_modules"),
            ("ls: cannot access 'a b': No such file or directory", "a b"),
        ] {
            assert!(
                missing_files(line).iter().any(|found| found == name),
                "{line}: {:?}",
                missing_files(line)
            );
        }
        assert_eq!(missing_files("all is well with 'data.csv'"), Vec::<String>::new());
        for line in [
            "PermissionError: [Errno 13] Permission denied: 'out.txt'",
            "sh: 1: cannot create out.txt: Permission denied",
            "touch: cannot touch 'out.txt': Permission denied",
        ] {
            assert!(denied_files(line).iter().any(|found| found == "out.txt"), "{line}");
        }
    }

    #[test]
    fn a_refusal_of_its_own_loopback_is_the_programs_business() {
        assert!(no_network("connect ECONNREFUSED 93.184.216.34:443"));
        assert!(!no_network("connect ECONNREFUSED 127.0.0.1:5432"));
        assert!(no_network("[Errno -3] Temporary failure in name resolution"));
        assert!(read_only("OSError: [Errno 30] Read-only file system: '/usr/x'"));
        assert!(!no_network("") && !read_only(""));
    }

    #[test]
    fn a_lack_of_memory_is_an_error_of_its_own() {
        for line in ["MemoryError", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 5.00 GiB"]
        {
            assert!(no_memory(&format!("Traceback (most recent call last):\n{line}\n")), "{line}");
        }
        assert!(!no_memory("NameError: name 'MemoryErrors' is not defined"));
    }

    #[test]
    fn hostile_text_costs_little() {
        let text = "No such file or directory: 'a' 'b' 'c' 'd' 'e' 'f' 'g' 'h' 'i' 'j'\n".repeat(60);
        assert_eq!(missing_files(&text).len(), MOST_NAMES);
    }
}
