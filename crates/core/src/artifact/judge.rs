//! What of a program's changes may come out.
//!
//! A [`Judge`] is told entry by entry, folders before what is in them, and remembers only what it
//! accepted, so that what a sandbox makes it hold is bounded by [`ENTRIES`]. Whatever is below a
//! rejected folder is rejected as well: a name, a depth or a count that was too much for the folder
//! is too much for what it holds, and a collision is looked for at each component of a path.
//!
//! # Links
//!
//! A link comes out if what it says is `..` as often as there are folders above it, or less often,
//! and after that plain names. Then it stays below the working directory, whichever other links are
//! there, and in whatever order they are made: a link lies in a real folder, so its `..` climb as
//! far as they say and not above the working directory; each name after them leads down, or to
//! another link, of which the same holds. A `..` after a name is refused, since that name may be a
//! link, and the `..` would climb from where that leads. An absolute link is refused too: one into
//! `/workspace` leads nowhere on the host. Links that the workspace had before are whoever's it is;
//! one of those that leads out still does when a link of the program's goes through it.

use std::collections::HashMap;

use super::host_exec::{self, Match};
use super::name::{self, drives_a_terminal, fold};
use super::{Change, Entry, Found, Rejection};
use crate::files::Pattern;

/// The most bytes that come out in all, as sizes say: holes count, deleted files don't.
pub const TOTAL_BYTES: u64 = 1 << 30;

/// The most entries that come out, deleted ones included.
pub const ENTRIES: usize = 10_000;

/// The most bytes in what a link says: PATH_MAX of `linux/limits.h`, with its final NUL.
const TARGET_BYTES: usize = 4095;

/// Says of one entry after the other whether it may come out.
#[derive(Debug)]
pub struct Judge {
    keep: Vec<Pattern>,
    hidden: Vec<Pattern>,
    bytes: u64,
    entries: usize,
    seen: Seen,
}

impl Judge {
    /// A judge of one run, with the patterns of what is let out although a tool of the host may run
    /// it, and of what the program wasn't shown.
    #[must_use]
    pub fn new(keep: Vec<Pattern>, hidden: Vec<Pattern>) -> Judge {
        Judge { keep, hidden, bytes: 0, entries: 0, seen: Seen::default() }
    }

    /// Accepts an entry, whose path is then text that every tool can take.
    ///
    /// # Errors
    ///
    /// Why the entry may not come out. It is then as if it hadn't been there.
    pub fn judge(&mut self, found: &Found<'_>) -> Result<String, Rejection> {
        if let Entry::Refused(why) = found.entry {
            return Err(why);
        }
        let path = name::accept(found.path)?;
        let deleted = found.change == Change::Deleted;
        if self.is_obeyed(path, found) {
            return Err(Rejection::HostExec);
        }
        if self.hidden.iter().any(|pattern| pattern.covers(path.as_bytes())) && !self.keeps(path) {
            return Err(Rejection::Hidden);
        }
        if let (Entry::Link(target), false) = (&found.entry, deleted) {
            self.link(path, target)?;
        }
        let bytes = match &found.entry {
            Entry::File(file) if !deleted => file.bytes,
            _ => 0,
        };
        let total = self.bytes.checked_add(bytes).filter(|total| *total <= TOTAL_BYTES);
        if self.entries >= ENTRIES {
            return Err(Rejection::Count);
        }
        let total = total.ok_or(Rejection::Size)?;
        // Last, since it remembers. What is gone collides with nothing: a file may be renamed to the
        // same letters in another case.
        if !deleted {
            self.seen.take(path, matches!(found.entry, Entry::Folder))?;
        }
        self.bytes = total;
        self.entries += 1;
        Ok(path.to_owned())
    }

    /// Whether a tool of the host may run or obey an entry that the policy doesn't keep. A folder
    /// that is made is nothing to obey; what is put into it is judged when it comes.
    fn is_obeyed(&self, path: &str, found: &Found<'_>) -> bool {
        let deleted = found.change == Change::Deleted;
        let from = match &found.entry {
            Entry::Folder if !deleted => return false,
            // The whole of it would go, or lead elsewhere.
            Entry::Folder | Entry::Link(_) => Match::Above,
            Entry::File(_) | Entry::Refused(_) => Match::Through,
        };
        let obeyed = host_exec::of(path) >= from || (!deleted && host_exec::makes_a_repository(path));
        obeyed && !self.keeps(path)
    }

    /// Whether the policy lets it out by name.
    fn keeps(&self, path: &str) -> bool {
        self.keep.iter().any(|pattern| pattern.covers(path.as_bytes()))
    }

    /// See the head of this module. A link to what a tool would obey is refused like the thing
    /// itself, since what is later written to the link would get there.
    fn link(&self, path: &str, target: &[u8]) -> Result<(), Rejection> {
        let text = std::str::from_utf8(target).map_err(|_| Rejection::Symlink)?;
        if text.is_empty() || text.len() > TARGET_BYTES || text.starts_with('/') {
            return Err(Rejection::Symlink);
        }
        if text.chars().any(drives_a_terminal) {
            return Err(Rejection::Symlink);
        }
        let mut at: Vec<&str> = path.split('/').collect();
        at.pop();
        let mut named = false;
        for part in text.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                if named || at.pop().is_none() {
                    return Err(Rejection::Symlink);
                }
            } else {
                named = true;
                at.push(part);
            }
        }
        let leads_to = at.join("/");
        if named && host_exec::of(&leads_to) >= Match::Through && !self.keeps(&leads_to) {
            return Err(Rejection::HostExec);
        }
        Ok(())
    }
}

/// The paths that were accepted, as a tree of components, so that what many paths share is held once.
#[derive(Debug, Default)]
struct Seen {
    /// By the folder's number and the component as it is where case doesn't count.
    nodes: HashMap<(usize, String), Node>,
}

#[derive(Debug)]
struct Node {
    number: usize,
    /// The component as it was first seen.
    name: String,
    what: What,
}

/// What is known of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// It was told as a folder.
    Folder,
    /// It is a folder, since something is in it; it was there before and nobody told it.
    Implied,
    /// Anything else.
    Leaf,
}

/// The number of the working directory; others count from 1.
const ROOT: usize = 0;

impl Seen {
    /// Remembers a path, or finds that a file system without case would put something else there.
    fn take(&mut self, path: &str, is_folder: bool) -> Result<(), Rejection> {
        let mut parts = path.split('/').peekable();
        let mut at = ROOT;
        let mut new = vec![];
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let what = match (last, is_folder) {
                (false, _) => What::Implied,
                (true, true) => What::Folder,
                (true, false) => What::Leaf,
            };
            let key = (at, fold(part));
            match self.nodes.get_mut(&key) {
                Some(node) if node.name != part || !node.what.admits(what) => {
                    return Err(Rejection::Collision);
                }
                Some(node) => {
                    at = node.number;
                    if what == What::Folder {
                        node.what = What::Folder; // nothing after it fails: it is the last
                    }
                }
                None => {
                    let number = self.nodes.len() + new.len() + 1;
                    new.push((key, Node { number, name: part.to_owned(), what }));
                    at = number;
                }
            }
        }
        self.nodes.extend(new);
        Ok(())
    }
}

impl What {
    /// Whether the same path may be told again, as this: only what was implied is told once more.
    fn admits(self, next: What) -> bool {
        match (self, next) {
            (What::Folder | What::Implied, What::Implied) | (What::Implied, What::Folder) => true,
            (What::Folder, What::Folder | What::Leaf) | (What::Implied | What::Leaf, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{DEPTH, FileFound};
    use super::*;

    fn file<'a>(bytes: u64) -> Entry<'a> {
        Entry::File(FileFound { bytes, executable: false, now: None, before: None })
    }

    fn tell<'a>(
        judge: &mut Judge,
        path: &'a str,
        change: Change,
        entry: Entry<'a>,
    ) -> Result<String, Rejection> {
        judge.judge(&Found { path: path.as_bytes(), change, entry })
    }

    fn added<'a>(judge: &mut Judge, path: &'a str, entry: Entry<'a>) -> Result<String, Rejection> {
        tell(judge, path, Change::Added, entry)
    }

    fn link(path: &str, target: &str) -> Result<String, Rejection> {
        added(&mut Judge::new(vec![], vec![]), path, Entry::Link(target.as_bytes()))
    }

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    #[test]
    fn all_together_are_bounded_in_bytes() {
        let mut judge = Judge::new(vec![], vec![]);
        assert!(added(&mut judge, "a", file(TOTAL_BYTES - 1)).is_ok());
        assert_eq!(added(&mut judge, "b", file(2)), Err(Rejection::Size));
        assert_eq!(added(&mut judge, "c", file(u64::MAX)), Err(Rejection::Size));
        assert!(added(&mut judge, "d", file(1)).is_ok(), "what was rejected does not count");
        assert!(tell(&mut judge, "e", Change::Deleted, file(TOTAL_BYTES)).is_ok(), "nor what is gone");
        assert_eq!(added(&mut judge, "f", file(1)), Err(Rejection::Size));
    }

    #[test]
    fn all_together_are_bounded_in_number() {
        let mut judge = Judge::new(vec![], vec![]);
        for at in 0..ENTRIES {
            let change = if at % 2 == 0 { Change::Added } else { Change::Deleted };
            assert!(tell(&mut judge, &format!("f{at}"), change, file(0)).is_ok());
        }
        assert_eq!(added(&mut judge, "g", Entry::Folder), Err(Rejection::Count));
        assert_eq!(added(&mut judge, "g/x", file(0)), Err(Rejection::Count));
    }

    #[test]
    fn two_names_that_differ_in_case_alone_collide_and_the_first_one_wins() {
        let mut judge = Judge::new(vec![], vec![]);
        assert!(added(&mut judge, "Read", file(1)).is_ok());
        assert_eq!(added(&mut judge, "READ", file(1)), Err(Rejection::Collision));
        assert!(added(&mut judge, "Dir", Entry::Folder).is_ok());
        assert_eq!(added(&mut judge, "dir", Entry::Folder), Err(Rejection::Collision));
        assert_eq!(added(&mut judge, "dir/x", file(1)), Err(Rejection::Collision), "nor what is in it");
        assert!(added(&mut judge, "Dir/x", file(1)).is_ok());
        assert!(added(&mut judge, "other/x", file(1)).is_ok(), "its folder was there and isn't told");
        assert_eq!(added(&mut judge, "Other", file(1)), Err(Rejection::Collision));
        assert!(tell(&mut judge, "rEAD", Change::Deleted, file(1)).is_ok(), "a rename to another case");
    }

    #[test]
    fn nothing_is_told_twice_or_below_what_is_no_folder() {
        let mut judge = Judge::new(vec![], vec![]);
        assert!(added(&mut judge, "a", Entry::Link(b"b")).is_ok());
        assert_eq!(added(&mut judge, "a/x", file(1)), Err(Rejection::Collision));
        assert_eq!(added(&mut judge, "a", file(1)), Err(Rejection::Collision));
    }

    #[test]
    fn a_link_that_leads_out_is_rejected() {
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", "/workspace/b"),
            ("a", ".."),
            ("a", "../x"),
            ("d/a", "../../x"),
            ("d/a", "x/../../b"),
            ("d/a", "x/.."),
            ("d/e/a", "./../../.."),
            ("a", ""),
            ("a", "b\x1b[2J"),
            ("a", "b\u{202e}"),
        ] {
            assert_eq!(link(path, target), Err(Rejection::Symlink), "{path} -> {target}");
        }
        let bytes = Entry::Link(b"\xff");
        assert_eq!(added(&mut Judge::new(vec![], vec![]), "a", bytes), Err(Rejection::Symlink));
    }

    #[test]
    fn a_link_that_stays_inside_comes_out() {
        for (path, target) in
            [("a", "b"), ("d/a", "../b"), ("d/e/a", "../../b/./c/"), ("d/a", ".."), ("a", ".")]
        {
            assert_eq!(link(path, target), Ok(path.to_owned()), "{path} -> {target}");
        }
    }

    #[test]
    fn what_the_host_would_run_stays_inside_unless_it_is_kept() {
        let mut judge = Judge::new(vec![], vec![]);
        for path in [".vscode/tasks.json", ".git", "sub/.GIT", ".git/hooks/x", "bare/HEAD"] {
            assert_eq!(added(&mut judge, path, file(1)), Err(Rejection::HostExec), "{path}");
        }
        assert_eq!(tell(&mut judge, ".npmrc", Change::Deleted, file(1)), Err(Rejection::HostExec));
        assert_eq!(tell(&mut judge, ".git", Change::Deleted, Entry::Folder), Err(Rejection::HostExec));
        assert!(tell(&mut judge, "HEAD", Change::Deleted, file(1)).is_ok());
        assert!(added(&mut judge, ".vscode", Entry::Folder).is_ok(), "an empty folder does nothing");
        let mut judge = Judge::new(vec![pattern(".vscode/tasks.json"), pattern("bare")], vec![]);
        assert!(added(&mut judge, ".vscode/tasks.json", file(1)).is_ok());
        assert!(added(&mut judge, "bare/HEAD", file(1)).is_ok());
        assert_eq!(added(&mut judge, ".vscode/launch.json", file(1)), Err(Rejection::HostExec));
    }

    #[test]
    fn a_link_is_no_way_round_the_table() {
        for (path, target) in [
            (".vscode", "innocent"),
            (".git", "innocent"),
            (".git/modules/x", "../../y"),
            ("notes", ".git/hooks/pre-commit"),
            ("d/notes", "../.git"),
            ("bare/HEAD", "x"),
        ] {
            assert_eq!(link(path, target), Err(Rejection::HostExec), "{path} -> {target}");
        }
    }

    #[test]
    fn what_can_never_come_out_keeps_its_own_reason() {
        let refused = |path| added(&mut Judge::new(vec![], vec![]), path, Entry::Refused(Rejection::Type));
        assert_eq!(refused("fifo"), Err(Rejection::Type));
        assert_eq!(refused("a\nb"), Err(Rejection::Type));
    }

    /// Follows a path as the kernel does: links are entries of a map, everything else is a folder.
    /// None where it climbs above the root, or after too many links.
    fn walk(links: &HashMap<String, String>, path: &str) -> Option<Vec<String>> {
        let mut ahead: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut at: Vec<String> = vec![];
        let mut followed = 0;
        while let Some(part) = ahead.pop() {
            match part.as_str() {
                "" | "." => {}
                ".." => drop(at.pop()?),
                _ => {
                    at.push(part);
                    if let Some(target) = links.get(&at.join("/")) {
                        followed += 1;
                        if followed > 40 {
                            return Some(vec![]); // the kernel gives up: it leads nowhere
                        }
                        at.pop();
                        ahead.extend(target.split('/').rev().map(str::to_owned));
                    }
                }
            }
        }
        Some(at)
    }

    fn part() -> impl Strategy<Value = String> {
        prop_oneof![Just("a"), Just("b"), Just("c"), Just(".."), Just(".")].prop_map(str::to_owned)
    }

    fn some_path() -> impl Strategy<Value = String> {
        prop::collection::vec(part(), 1..5).prop_map(|parts| parts.join("/"))
    }

    proptest! {
        #[test]
        fn no_set_of_accepted_links_leads_out(told in prop::collection::vec((some_path(), some_path()), 1..12)) {
            let mut judge = Judge::new(vec![], vec![]);
            let mut links = HashMap::new();
            for (path, target) in &told {
                if added(&mut judge, path, Entry::Link(target.as_bytes())).is_ok() {
                    links.insert(path.clone(), target.clone());
                }
            }
            for path in links.keys() {
                prop_assert!(walk(&links, path).is_some(), "{path} in {links:?}");
            }
        }

        #[test]
        fn whatever_is_told_the_bounds_hold(
            told in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<u64>()), 0..200)
        ) {
            let mut judge = Judge::new(vec![], vec![]);
            let mut total = 0u64;
            for (path, bytes) in &told {
                let bytes = bytes >> 30;
                if let Ok(text) = judge.judge(&Found { path, change: Change::Added, entry: file(bytes) }) {
                    total += bytes;
                    prop_assert_eq!(text.as_bytes(), path.as_slice());
                    prop_assert!(text.split('/').all(|part| !matches!(part, "" | "." | "..")));
                    prop_assert!(text.split('/').count() <= DEPTH);
                    prop_assert!(!text.chars().any(char::is_control));
                }
            }
            prop_assert!(total <= TOTAL_BYTES);
        }
    }

    #[test]
    fn what_takes_the_place_of_something_hidden_stays_inside() {
        let hidden = vec![pattern("**/.secret*"), pattern("server.key")];
        let mut judge = Judge::new(vec![pattern("kept/.secret")], hidden);
        for path in ["server.key", "a/.secret", "a/.secret.d/x"] {
            assert_eq!(added(&mut judge, path, file(1)), Err(Rejection::Hidden), "{path}");
        }
        for path in ["kept/.secret", "server.pub"] {
            assert!(added(&mut judge, path, file(1)).is_ok(), "{path}");
        }
    }
}
