//! Paths of requests, as rules judge them.
//!
//! A rule with `paths` judges a path only if there is one way to read it. Servers differ in what they make of
//! `..`, `//`, `\` and what is encoded twice, so a path with any of them is refused there rather than
//! normalised: an honest client doesn't send one. What is left is brought into one form (RFC 3986, section
//! 6.2.2): an encoded letter that needs no encoding is decoded, hexadecimal digits are in upper case. The
//! request itself goes on as it was sent. A query is never judged.

use std::fmt;

/// A path that everybody reads in one way, without its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainPath(String);

impl PlainPath {
    /// Takes the path of a request's target; what follows a `?` is left out.
    ///
    /// None where servers could read it differently, or where it isn't an absolute path.
    pub(crate) fn new(target: &[u8]) -> Option<PlainPath> {
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let text = decoded(path)?;
        let (first, segments) = text.split_once('/')?;
        let mut segments = segments.split('/').peekable();
        while let Some(segment) = segments.next() {
            let is_last = segments.peek().is_none();
            // What follows a `;` is a parameter to some servers, which take the rest for the segment; to some that
            // decode it first, also what follows an encoded one.
            let name = segment.split(';').next().unwrap_or_default();
            let name = name.split("%3B").next().unwrap_or_default();
            if matches!(name, "." | "..") || (name.is_empty() && !(is_last && segment.is_empty())) {
                return None;
            }
        }
        first.is_empty().then_some(PlainPath(text))
    }

    /// Whether a glob matches the whole path: `*` stays within a segment, `**` crosses them. One that ends in
    /// `/**` matches the folder itself too, with and without a slash at its end.
    pub(crate) fn matches(&self, glob: &str) -> bool {
        let path = &self.0;
        let folder = glob.strip_suffix("/**").filter(|folder| !folder.is_empty());
        let is_folder =
            |folder: &str| fast_glob::glob_match(folder, path.strip_suffix('/').unwrap_or(path).as_bytes());
        fast_glob::glob_match(glob, path.as_bytes()) || folder.is_some_and(is_folder)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlainPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path with what needs no encoding decoded; none where a byte or an encoding can be read in two ways.
fn decoded(path: &[u8]) -> Option<String> {
    let (mut text, mut bytes) = (String::with_capacity(path.len()), Vec::with_capacity(path.len()));
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            text.push(is_plain(byte).then_some(char::from(byte))?);
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let encoded = hexadecimal(digits)?;
        rest = after;
        bytes.push(encoded);
        match encoded {
            b'/' | b'\\' | 0..=0x1f | 0x7f => return None,
            _ if encoded.is_ascii_alphanumeric() || b"-._~".contains(&encoded) => {
                text.push(char::from(encoded));
            }
            _ => text.push_str(&format!("%{encoded:02X}")),
        }
    }
    // Overlong forms are letters to some servers: RFC 3629, section 10.
    let is_text = std::str::from_utf8(&bytes).is_ok();
    (is_text && is_decoded_once(&text)).then_some(text)
}

/// Whether no `%` that is encoded itself begins what looks like another encoding.
fn is_decoded_once(text: &str) -> bool {
    let after = |(at, _): (usize, &str)| text.as_bytes().get(at + 3..at + 5).and_then(hexadecimal);
    text.match_indices("%25").all(|found| after(found).is_none())
}

/// Whether a text is a path that rules with paths judge.
pub(crate) fn is_plain_path(text: &str) -> bool {
    PlainPath::new(text.as_bytes()).is_some()
}

/// A glob in the form that paths are brought into, so that `%3a` in a rule stands for `%3A` too. One that no
/// plain path has the form of stays as it is, and matches nothing.
pub(crate) fn glob_form(glob: &str) -> String {
    decoded(glob.as_bytes()).unwrap_or_else(|| glob.to_owned())
}

/// Whether a byte stands for itself in a path: RFC 3986, section 3.3, without `%`.
pub(crate) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
}

/// The value of two hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let value = |digit: &u8| char::from(*digit).to_digit(16);
    let [high, low] = digits else { return None };
    u8::try_from(value(high)? << 4 | value(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(target: &str) -> Option<String> {
        PlainPath::new(target.as_bytes()).map(|path| path.to_string())
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_not_judged() {
        for target in [
            "",
            "*",
            "a",
            "a/b",
            "http://a.test/x",
            "/a/../b",
            "/a/..%3b/b",
            "/a/.%3B/b",
            "/a/%c0%ae%c0%ae/b",
            "/a/%ff",
            "/a/./b",
            "/..",
            "/.",
            "/a//b",
            "//a",
            "//",
            "/a//",
            "/%2e%2e/b",
            "/a/%2E/b",
            "/.%2e/b",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a%00b",
            "/a\0b",
            "/a%0ab",
            "/a b",
            "/a\tb",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1",
            "/a%252fb",
            "/a%25%32f",
            "/a%2525252fb",
            "/a%25b%",
            "/a#b",
            "/a\u{e9}",
            "/a/..;/b",
            "/a/.;x=1/b",
            "/a/;/b",
            "/a/;x",
            "/a|b",
            "/a\"b",
            "/a<b",
            "/a{b",
            "/a[b",
            "/a^b",
            "/a`b",
            "/a%7fb",
        ] {
            assert_eq!(plain(target), None, "{target:?}");
        }
    }

    #[test]
    fn one_form_stands_for_all_that_mean_the_same() {
        for (target, path) in [
            ("/", "/"),
            ("/a/b?x=/../y", "/a/b"),
            ("/?", "/"),
            ("/%61%2D%7e", "/a-~"),
            ("/a%3ab", "/a%3Ab"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/my%20file", "/my%20file"),
            ("/100%25", "/100%25"),
            ("/a/", "/a/"),
            ("/.well-known/x..y/...", "/.well-known/x..y/..."),
            ("/a;v=1/b@c:d", "/a;v=1/b@c:d"),
        ] {
            assert_eq!(plain(target).as_deref(), Some(path), "{target:?}");
        }
    }

    #[test]
    fn a_star_stays_within_a_segment_and_two_cross_them() {
        let matches = |glob: &str, path: &str| PlainPath::new(path.as_bytes()).unwrap().matches(glob);
        for (glob, path) in [
            ("/repos/acme/shop/**", "/repos/acme/shop/issues/1"),
            ("/repos/acme/shop/**", "/repos/acme/shop"),
            ("/repos/acme/shop/**", "/repos/acme/shop/"),
            ("/repos/*/shop", "/repos/acme/shop"),
            ("/**", "/"),
            ("/**", "/a/b"),
            ("/a/**/z", "/a/z"),
            ("/a/**/z", "/a/b/c/z"),
            ("/x", "/%78"),
            ("/v1/*.json", "/v1/a.json"),
        ] {
            assert!(matches(glob, path), "{glob} {path}");
        }
        assert!(matches(&glob_form("/a%3ab/%7E*"), "/a%3Ab/~x"));
        for (glob, path) in [
            ("/repos/acme/shop/**", "/repos/acme/shopping"),
            ("/repos/acme/shop/**", "/repos/acme"),
            ("/repos/*/shop", "/repos/a/b/shop"),
            ("/a", "/a/"),
            ("/a", "/A"),
            ("/a", "/a/b"),
            ("/a/*", "/a/b/c"),
            ("/a/**/z", "/a/zz"),
        ] {
            assert!(!matches(glob, path), "{glob} {path}");
        }
    }

    proptest! {
        #[test]
        fn the_one_form_is_its_own(target in r"[/a.%0-9A-F;?~+\\ *-]{0,30}") {
            if let Some(path) = PlainPath::new(target.as_bytes()) {
                prop_assert_eq!(PlainPath::new(path.as_str().as_bytes()), Some(path.clone()));
                prop_assert!(!path.as_str().contains("//") && !path.as_str().contains("/../"));
            }
        }

        #[test]
        fn no_bytes_panic(target in proptest::collection::vec(any::<u8>(), 0..60), glob in r"/[a*/]{0,12}") {
            if let Some(path) = PlainPath::new(&target) {
                path.matches(&glob);
            }
        }
    }
}
