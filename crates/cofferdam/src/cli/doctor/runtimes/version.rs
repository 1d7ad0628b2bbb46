//! Versions as programs print them, and floors by series.

use std::fmt;

/// A version: three numbers, and whether it is one before that release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    numbers: [u32; 3],
    /// `1.5.0-rc.1`: older than 1.5.0.
    before_release: bool,
}

impl Version {
    /// The first version in the first line of an output that has one: a word, perhaps after a `v`, of
    /// three numbers with dots between.
    pub(super) fn parse(output: &str) -> Option<Self> {
        output.split([' ', '\t', '\n', '\r', ',', ':', '(', ')']).find_map(Version::of_word)
    }

    fn of_word(word: &str) -> Option<Self> {
        let mut rest = word.strip_prefix('v').unwrap_or(word);
        let mut numbers = [0; 3];
        for (at, number) in numbers.iter_mut().enumerate() {
            if at > 0 {
                rest = rest.strip_prefix('.')?;
            }
            let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            *number = rest[..digits].parse().ok()?;
            rest = &rest[digits..];
        }
        let mark = rest.trim_start_matches(['-', '~', '.', '+']).to_ascii_lowercase();
        let before_release = ["alpha", "beta", "dev", "pre", "rc"].iter().any(|it| mark.starts_with(it));
        Some(Version { numbers, before_release })
    }

    fn is_below(&self, [major, minor, patch]: [u32; 3]) -> bool {
        let floor = [major, minor, patch];
        self.numbers < floor || (self.numbers == floor && self.before_release)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        let mark = if self.before_release { " (before its release)" } else { "" };
        write!(f, "{major}.{minor}.{patch}{mark}")
    }
}

/// The first release of each series that has the known holes mended, oldest series first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floors {
    /// Series are told apart by their first two numbers.
    pub(super) releases: &'static [[u32; 3]],
    /// Why it matters.
    pub(super) reason: &'static str,
}

impl Floors {
    /// The floor that a version is below, if it is below one: that of its own series, else of the next
    /// newer series that has one. A series newer than all of these has no floor.
    pub(super) fn above(&self, version: &Version) -> Option<[u32; 3]> {
        let floor = self.releases.iter().find(|floor| floor[..2] >= version.numbers[..2])?;
        version.is_below(*floor).then_some(*floor)
    }
}

impl fmt::Display for Floors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> =
            self.releases.iter().map(|[major, minor, patch]| format!("{major}.{minor}.{patch}")).collect();
        f.write_str(&all.join(" / "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_version_is_not_taken_for_one() {
        for output in ["", "runc version unknown\n", "1.2", "v", "a1.2.3", "99999999999.1.1", "..."] {
            assert_eq!(Version::parse(output), None, "{output}");
        }
    }

    #[test]
    fn a_build_mark_is_no_release_before() {
        for (output, before) in
            [("1.2.3+ds1", false), ("1.2.3-1ubuntu1", false), ("1.2.3~rc1", true), ("v1.2.3-beta.2", true)]
        {
            assert_eq!(Version::parse(output).unwrap().before_release, before, "{output}");
        }
    }

    #[test]
    fn a_series_is_held_against_its_own_floor_and_an_older_one_against_the_first() {
        let floors = Floors { releases: &[[1, 3, 6], [1, 4, 3]], reason: "" };
        let above = |text| floors.above(&Version::parse(text).unwrap());
        assert_eq!(above("1.2.99"), Some([1, 3, 6]));
        assert_eq!(above("1.3.6"), None);
        assert_eq!(above("1.4.2"), Some([1, 4, 3]));
        assert_eq!(above("1.5.0"), None);
        assert_eq!(above("2.0.0"), None);
    }
}
