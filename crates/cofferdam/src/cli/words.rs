//! Where `run`'s own options end and the program begins.
//!
//! Everything after a script, after `-`, after `-c CODE` or after `--` is the program's, whatever it
//! looks like: a driver may append words that it didn't choose, and none of them may become an
//! option of ours.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Command;

/// What `run` was given after its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// `-c CODE` and the arguments.
    Code(OsString, Vec<OsString>),
    /// What followed `--`.
    Command(Vec<OsString>),
    /// A file's name or `-`, and the arguments.
    File(OsString, Vec<OsString>),
}

/// Splits the words after `run` into its options and the program.
///
/// `command` is clap's description of `run`: it says which options take a value. An option that it
/// doesn't know is left among the options, for clap to complain about.
pub(super) fn split(command: &Command, words: &[OsString]) -> (Vec<OsString>, Option<Named>) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let rest = || words[at + 1..].to_vec();
        let bytes = word.as_bytes();
        if bytes == b"--" {
            return (words[..at].to_vec(), Some(Named::Command(rest())));
        }
        if bytes == b"-" || !bytes.starts_with(b"-") {
            return (words[..at].to_vec(), Some(Named::File(word.clone(), rest())));
        }
        if let Some(long) = bytes.strip_prefix(b"--") {
            at += if takes_next(command, long) { 2 } else { 1 };
            continue;
        }
        if let Some(place) = bytes.iter().position(|&byte| byte == b'c') {
            return with_code(words, at, place);
        }
        at += 1;
    }
    (words.to_vec(), None)
}

/// Whether a long option takes the next word as its value.
fn takes_next(command: &Command, long: &[u8]) -> bool {
    command
        .get_arguments()
        .find(|arg| arg.get_long().is_some_and(|name| name.as_bytes() == long))
        .is_some_and(|arg| arg.get_action().takes_values())
}

/// `-c` is the letter at `place` of the word at `at`, perhaps after other flags; the code follows in
/// the same word or is the next.
fn with_code(words: &[OsString], at: usize, place: usize) -> (Vec<OsString>, Option<Named>) {
    let bytes = words[at].as_bytes();
    let mut options = words[..at].to_vec();
    if place > 1 {
        options.push(OsString::from_vec(bytes[..place].to_vec()));
    }
    let attached = &bytes[place + 1..];
    let (code, args) = if attached.is_empty() {
        (words.get(at + 1).cloned(), words.get(at + 2..))
    } else {
        (Some(OsString::from_vec(attached.to_vec())), words.get(at + 1..))
    };
    let args = args.unwrap_or_default().to_vec();
    match code {
        Some(code) => (options, Some(Named::Code(code, args))),
        None => {
            options.push("-c".into()); // clap says that its value is missing
            (options, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        use clap::{Arg, ArgAction};
        Command::new("run")
            .arg(Arg::new("timeout").long("timeout"))
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue))
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn parted(line: &str) -> (Vec<OsString>, Option<Named>) {
        split(&command(), &words(line))
    }

    #[test]
    fn whatever_follows_the_program_is_the_programs() {
        let args = || words("--json --timeout 3s -- -c x");
        for (line, named) in [
            ("--timeout 1s a.py", Named::File("a.py".into(), args())),
            ("--json -", Named::File("-".into(), args())),
            ("-c code", Named::Code("code".into(), args())),
            ("-ccode", Named::Code("code".into(), args())),
            ("--", Named::Command(args())),
            ("--timeout=1s b", Named::File("b".into(), args())),
        ] {
            let whole = format!("{line} --json --timeout 3s -- -c x");
            let (options, found) = parted(&whole);
            assert_eq!(found, Some(named), "{line}");
            assert!(!options.contains(&"3s".into()), "{line}: {options:?}");
        }
    }

    #[test]
    fn options_keep_their_values_and_flags_before_the_code() {
        assert_eq!(
            parted("--timeout 1s -qc x y"),
            (words("--timeout 1s -q"), Some(Named::Code("x".into(), words("y"))))
        );
        assert_eq!(parted("--timeout 1s --json"), (words("--timeout 1s --json"), None));
    }

    #[test]
    fn an_unknown_option_stays_for_clap_to_complain_about() {
        assert_eq!(parted("--timout 2s -- true").0, words("--timout"));
        assert_eq!(parted("-c"), (words("-c"), None));
    }
}
