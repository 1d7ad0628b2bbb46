//! Globs of paths, as rules write them.

use crate::egress;

/// Why a text is no glob of paths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// A byte that RFC 3986, section 3.3, doesn't have in a path.
    #[error("`{0}` has a character that no path holds")]
    Character(String),
    /// `**` beside other letters, where it would not cross segments.
    #[error("`{0}` has a `**` that isn't a whole segment")]
    Crossing(String),
    /// A segment that leads elsewhere.
    #[error("`{0}` has a dot segment")]
    DotSegment(String),
    /// No slash at its beginning.
    #[error("`{0}` does not start with `/`")]
    NotAbsolute(String),
    /// A query or a fragment.
    #[error("`{0}` has more than a path")]
    Query(String),
    /// It is written as no request that is judged could be: an empty segment, or an encoding that servers read
    /// differently.
    #[error("`{0}` matches nothing, since such a path is refused: servers read it differently")]
    TwoReadings(String),
}

impl BadGlob {
    /// What to write instead.
    #[must_use]
    pub fn instead(&self) -> String {
        let help = match self {
            BadGlob::NotAbsolute(text) => return format!("write `/{text}`"),
            BadGlob::Character(_) => "write it percent-encoded, such as `%20`",
            BadGlob::Crossing(_) => "write `/a/**` for all below `/a`, `/a*` for what begins so",
            BadGlob::DotSegment(_) => "write the path that it leads to",
            BadGlob::Query(_) => "write the path alone: queries are not judged",
            BadGlob::TwoReadings(_) => "write it without empty segments and without `%2F`, `%5C` and `%25`",
        };
        help.to_owned()
    }
}

/// Takes a glob in which `*` stays within a segment and `**` is one or more of them.
///
/// # Errors
///
/// [`BadGlob`] for what could be read in two ways or would match nothing.
pub fn check_glob(text: &str) -> Result<(), BadGlob> {
    let owned = || text.to_owned();
    if !text.starts_with('/') {
        return Err(BadGlob::NotAbsolute(owned()));
    }
    if text.contains(['?', '#']) {
        return Err(BadGlob::Query(owned()));
    }
    if !text.bytes().all(|byte| egress::is_plain(byte) || byte == b'%') {
        return Err(BadGlob::Character(owned()));
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(BadGlob::DotSegment(owned()));
    }
    if text.split('/').any(|segment| segment.contains("**") && segment != "**") {
        return Err(BadGlob::Crossing(owned()));
    }
    if !egress::is_plain_path(text) { Err(BadGlob::TwoReadings(owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_that_could_not_match_is_refused() {
        let bad = |text: &str| check_glob(text).unwrap_err();
        for text in ["/a//b", "//", "/a%2fb", "/%2e%2e/x", "/a%", "/a%zz", "/a%252f", "/a/..;x"] {
            assert!(matches!(bad(text), BadGlob::TwoReadings(_)), "{text}");
        }
        for text in ["/a**", "/**a/b", "/***"] {
            assert!(matches!(bad(text), BadGlob::Crossing(_)), "{text}");
        }
        assert!(
            matches!(bad("/a/../b"), BadGlob::DotSegment(_)) && matches!(bad("/."), BadGlob::DotSegment(_))
        );
        assert!(matches!(bad("/a b"), BadGlob::Character(_)) && matches!(bad("/[a]"), BadGlob::Character(_)));
        assert!(matches!(bad("a"), BadGlob::NotAbsolute(_)) && matches!(bad(""), BadGlob::NotAbsolute(_)));
        assert!(matches!(bad("/a?b"), BadGlob::Query(_)));
        for text in ["/", "/**", "/a/*/b*c", "/a/**/z", "/caf%c3%a9", "/a%20b", "/.well-known/*", "/a/"] {
            assert_eq!(check_glob(text), Ok(()), "{text}");
        }
    }
}
