//! Paths of what a sandbox hands out: which are names that a host can take, how two are compared
//! where case doesn't count, and how any bytes are shown.
//!
//! A backslash is a letter like any other: only Linux is a host, and there it separates nothing.

use super::Rejection;

/// The most components that a path may have: far more than source trees need.
pub const DEPTH: usize = 32;

/// The most bytes in a component: NAME_MAX of `linux/limits.h`.
pub const NAME_BYTES: usize = 255;

/// The most bytes in a path: PATH_MAX of `linux/limits.h`.
pub const PATH_BYTES: usize = 4096;

/// The most bytes of a path that a message, an Outcome or the audit shows where it can't come out.
pub const SHOWN_BYTES: usize = 1024;

/// Takes a path if it is a name below the working directory that every tool of a host can take.
pub(super) fn accept(path: &[u8]) -> Result<&str, Rejection> {
    let text = std::str::from_utf8(path).map_err(|_| Rejection::Name)?;
    if text.len() > PATH_BYTES || text.chars().any(drives_a_terminal) {
        return Err(Rejection::Name);
    }
    let bad = |part: &str| matches!(part, "" | "." | "..") || part.len() > NAME_BYTES;
    if text.split('/').any(bad) {
        return Err(Rejection::Name);
    }
    if text.split('/').count() > DEPTH {
        return Err(Rejection::Depth);
    }
    Ok(text)
}

/// Whether a character moves a cursor, ends a line or reorders the letters around it: a control
/// character, a mark of bidirectional text, or a separator of lines or paragraphs.
pub(super) fn drives_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What a name becomes where case doesn't count. Each letter is raised and then lowered, so that
/// letters with two small forms (the long s) fall together; what such file systems leave out of a
/// comparison altogether, zero-width joiners and the like, is left out. Composed and decomposed
/// forms of a letter stay apart.
pub(super) fn fold(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let ignored = |c: &char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let kept = name.chars().filter(|c| !ignored(c));
    kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Any path as text that can be printed: bytes that are no text and characters that drive a
/// terminal are spelled out, and what is longer than [`SHOWN_BYTES`] is cut, with `…` for the rest.
#[must_use]
pub fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if drives_a_terminal(c) {
                text.extend(c.escape_unicode());
            } else {
                text.push(c);
            }
            if text.len() > SHOWN_BYTES {
                return cut(text);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
        if text.len() > SHOWN_BYTES {
            return cut(text);
        }
    }
    text
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SHOWN_BYTES));
    text.push('…');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_refused() {
        for path in ["", "/", "/a", "a/", "a//b", ".", "a/./b", "..", "a/../b", "a\nb", "a\u{7f}", "a\u{85}"]
        {
            assert_eq!(accept(path.as_bytes()), Err(Rejection::Name), "{path:?}");
        }
        for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            assert_eq!(accept(format!("a{c}b").as_bytes()), Err(Rejection::Name), "{c:?}");
        }
        assert_eq!(accept(b"a\xffb"), Err(Rejection::Name));
        for path in ["a", "a/b c", "a\\b", "日本", ".hidden", "..."] {
            assert_eq!(accept(path.as_bytes()), Ok(path));
        }
    }

    #[test]
    fn bounds_hold_exactly() {
        assert!(accept("x".repeat(NAME_BYTES).as_bytes()).is_ok());
        assert_eq!(accept("x".repeat(NAME_BYTES + 1).as_bytes()), Err(Rejection::Name));
        assert!(accept(vec!["x"; DEPTH].join("/").as_bytes()).is_ok());
        assert_eq!(accept(vec!["x"; DEPTH + 1].join("/").as_bytes()), Err(Rejection::Depth));
        let long = vec!["x".repeat(255); 17].join("/"); // 17 times 255 and the slashes: 4,351 bytes
        assert_eq!(accept(long.as_bytes()), Err(Rejection::Name));
    }

    #[test]
    fn names_fall_together_where_case_does_not_count() {
        for (one, two) in [("README", "readme"), ("\u{212a}", "k"), (".vſcode", ".VSCODE"), ("É", "é")] {
            assert_eq!(fold(one), fold(two), "{one} {two}");
        }
        assert_eq!(fold(".g\u{200c}it"), ".git");
        assert_ne!(fold("a"), fold("b"));
    }

    #[test]
    fn a_path_that_is_shown_drives_no_terminal_and_is_bounded() {
        assert_eq!(shown(b"a\x1b[2J\xff\xfe/\xe2\x80\xaeb"), "a\\u{1b}[2J\\xff\\xfe/\\u{202e}b");
        let long = shown("é".repeat(4000).as_bytes());
        assert!(long.len() <= SHOWN_BYTES + 4 && long.ends_with('…'));
        assert!(shown(&[0xff; 9000]).len() <= 4 * 9000);
        assert!(shown(&[b'\n'; 9000]).len() <= SHOWN_BYTES + 4);
    }
}
