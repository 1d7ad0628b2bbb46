//! How single values are written: durations, sizes, shares, counts, names, methods, paths.
//!
//! One parser for each, used by the files and by the flags alike. Nothing is guessed: a number
//! without its unit, a negative one or one that overflows is refused, with what to write instead.

use std::time::Duration;

use cofferdam_core::egress::BadHost;
use cofferdam_core::files::{BadPattern, Pattern};
use cofferdam_core::policy::{BadGlob, BadHostPattern, Cpus, HostPattern, NetworkRule, OWN_HOST, check_glob};
use cofferdam_core::request::Variable;

/// Something that isn't a value of the kind that belongs there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}: {help}")]
pub(crate) struct BadValue {
    /// What is wrong with it.
    pub(crate) why: String,
    /// What to write instead.
    pub(crate) help: String,
}

impl BadValue {
    /// A reason and a way out.
    pub(crate) fn new(why: impl Into<String>, help: impl Into<String>) -> Self {
        BadValue { why: why.into(), help: help.into() }
    }
}

/// The longest duration. It leaves room to add durations to a clock without overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

const DURATION_UNITS: [&str; 5] = ["ms", "s", "m", "h", "d"];

/// Reads a whole number and a unit: `500ms`, `10s`, `5m`, `1h`, `2d`.
pub(crate) fn duration(text: &str) -> Result<Duration, BadValue> {
    let example = "write a whole number and one of ms, s, m, h, d: `500ms`, `10s`, `5m`";
    refuse_negative(text, "`5m`")?;
    let (number, unit) = split_number(text);
    if number == text && is_digits(number) {
        let help = format!("write `{text}s` for seconds or `{text}m` for minutes");
        return Err(BadValue::new(format!("`{text}` has no unit"), help));
    }
    if !is_digits(number) || !DURATION_UNITS.contains(&unit) {
        return Err(BadValue::new(format!("`{text}` is not a duration"), example));
    }
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(BadValue::new(format!("`{text}` is longer than a year"), "write at most `365d`")),
    }
}

/// The shortest way to write a duration. Less than a millisecond is rounded up to one.
pub(crate) fn write_duration(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    match units.into_iter().find(|(_, factor)| millis.is_multiple_of(*factor) && millis > 0) {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => format!("{millis}ms"),
    }
}

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];

/// Reads a number and a unit: `64MiB`, `1.5GiB`, `100MB`. The result is in bytes.
///
/// The arithmetic is exact: a fraction of a byte and more than the kernel can count are refused,
/// where a general parser of sizes rounds the one and caps the other.
pub(crate) fn size(text: &str) -> Result<u64, BadValue> {
    refuse_negative(text, "`64MiB`")?;
    let (number, unit) = split_number(text);
    if number == text && is_decimal(number) {
        let help = format!("write `{text}MiB` for mebibytes or `{text}B` for bytes");
        return Err(BadValue::new(format!("`{text}` has no unit"), help));
    }
    let factor = SIZE_UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
    let Some(factor) = factor.filter(|_| is_decimal(number)) else {
        return Err(BadValue::new(format!("`{text}` is not a size"), size_hint(number, unit)));
    };
    let whole = scaled(number, factor);
    // Sizes of files and ceilings are signed in the kernel's own interfaces.
    whole.filter(|bytes| i64::try_from(*bytes).is_ok()).ok_or_else(|| {
        BadValue::new(
            format!("`{text}` is not a whole number of bytes, or more than can be counted"),
            "write a smaller number or one with fewer decimals",
        )
    })
}

/// What somebody who wrote `64 mb` or `1G` probably meant.
fn size_hint(number: &str, unit: &str) -> String {
    let letter = unit.trim_start().chars().next().map(|letter| letter.to_ascii_uppercase());
    match letter {
        Some(letter @ ('K' | 'M' | 'G' | 'T')) if is_decimal(number) => format!("write `{number}{letter}iB`"),
        _ => "write a number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB: `64MiB`, `1GiB`".into(),
    }
}

/// `number` times `factor`, if that is whole and fits.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let product = digits.checked_mul(u128::from(factor))?;
    product.is_multiple_of(divisor).then(|| u64::try_from(product / divisor).ok())?
}

/// The shortest exact way to write a size in binary units.
pub(crate) fn write_size(bytes: u64) -> String {
    let exact = |(unit, factor): &(&str, u64)| {
        (unit.ends_with("iB") || *factor == 1) && bytes > 0 && bytes.is_multiple_of(*factor)
    };
    match SIZE_UNITS.iter().find(|unit| exact(unit)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

/// Reads a share of cores: `1`, `0.5`, `2.25`.
pub(crate) fn cpus(text: &str) -> Result<Cpus, BadValue> {
    refuse_negative(text, "`0.5` or `2`")?;
    let cores = text.parse::<f64>().ok().filter(|_| is_decimal(text));
    cores.and_then(Cpus::from_cores).ok_or_else(|| {
        BadValue::new(
            format!("`{text}` is not a share of cores"),
            "write a number of cores from 0.01 on, such as `0.5` or `2`",
        )
    })
}

/// Reads a whole number: `256`.
pub(crate) fn count<N: TryFrom<u64>>(text: &str) -> Result<N, BadValue> {
    refuse_negative(text, "`256`")?;
    if !is_digits(text) {
        return Err(BadValue::new(format!("`{text}` is not a whole number"), "write digits alone: `256`"));
    }
    let number = text.parse::<u64>().ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| BadValue::new(format!("`{text}` is too large"), "write a smaller number"))
}

/// Refuses nothing at all, where a limit of nothing would let nothing run.
pub(crate) fn nonzero<T: Default + PartialEq>(value: T, text: &str) -> Result<T, BadValue> {
    if value == T::default() {
        return Err(BadValue::new(format!("`{text}` would let nothing run"), "write something above zero"));
    }
    Ok(value)
}

/// Reads a port from 1 to 65535.
pub(crate) fn port(text: &str) -> Result<u16, BadValue> {
    let port = text.parse::<u16>().ok().filter(|port| *port > 0 && is_digits(text));
    port.ok_or_else(|| {
        BadValue::new(format!("`{text}` is not a port"), "write a number from 1 to 65535, such as `443`")
    })
}

/// Reads the name of a rule, a credential or an issuer: letters, digits, `-`, `_` and `.`.
pub(crate) fn name(text: &str) -> Result<String, BadValue> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.is_empty() || text.len() > 128 || !text.bytes().all(known) {
        return Err(BadValue::new(
            format!("`{text}` is not a name"),
            "write 1 to 128 letters, digits, `-`, `_` and `.`",
        ));
    }
    Ok(text.to_owned())
}

/// Reads the name of an environment variable that the policy sets.
pub(crate) fn variable_name(text: &str) -> Result<String, BadValue> {
    match Variable::new(text, "") {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(BadValue::new(error.to_string(), "write a name such as `LANG`")),
    }
}

/// Reads the name of an environment variable that is passed on. Patterns are refused: what gets in
/// is named.
pub(crate) fn passed_name(text: &str) -> Result<String, BadValue> {
    if text.contains('*') {
        let why = format!("`{text}` is a pattern, and variables are passed by name alone");
        return Err(BadValue::new(why, "name each variable that the program may see"));
    }
    variable_name(text)
}

/// Reads a pattern for paths below a workspace.
pub(crate) fn pattern(text: &str) -> Result<Pattern, BadValue> {
    Pattern::new(text).map_err(|error| {
        let help = match &error {
            BadPattern::Empty | BadPattern::Outside => "write a path below the workspace, such as `**/*.key`",
            BadPattern::Bracket => "close it, or write `\\[` for the letter",
            BadPattern::Nul => "write the name without it",
            BadPattern::Negated => "name what is meant: there is no way to take something out again",
        };
        BadValue::new(format!("`{text}` is no pattern: {error}"), help)
    })
}

/// Reads a host or a pattern of hosts.
pub(crate) fn host(text: &str) -> Result<HostPattern, BadValue> {
    HostPattern::parse(text).map_err(|error| {
        let (why, help) = match &error {
            BadHostPattern::Broad(_) => (
                format!("`{text}` is too broad: names below a public suffix belong to anybody"),
                "name the hosts, or a wildcard such as `*.example.com`".to_owned(),
            ),
            BadHostPattern::Spelling { address, .. } => {
                (format!("`{text}` is an unusual spelling of an address"), format!("write `{address}`"))
            }
            BadHostPattern::Loopback(_) => (
                error.to_string(),
                format!(
                    "for a service of this machine, write `{OWN_HOST}` with `ports` and `private = true`"
                ),
            ),
            BadHostPattern::Never(_) => (error.to_string(), "leave it out".to_owned()),
            BadHostPattern::WildcardAddress(_) => {
                (format!("`{text}` is not a host name"), "write the address itself".to_owned())
            }
            BadHostPattern::Host { why, .. } => {
                let help = match (why, bare_host(text)) {
                    (BadHost::NotAscii, _) => "write its A-label, which begins with `xn--`".to_owned(),
                    (_, Some(host)) => {
                        format!("write `{host}` alone; a port, a path and a scheme have keys of their own")
                    }
                    (_, None) => "write a name such as `api.example.com`".to_owned(),
                };
                (format!("`{text}` is not a host name"), help)
            }
        };
        BadValue::new(why, help)
    })
}

/// The host in something that looks like a URL or carries a port.
fn bare_host(text: &str) -> Option<&str> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?.split(':').next()?;
    (host != text && HostPattern::parse(host).is_ok()).then_some(host)
}

/// Reads an HTTP method: RFC 9110, section 9.1, of which we take the upper-case tokens.
pub(crate) fn method(text: &str) -> Result<String, BadValue> {
    if NetworkRule::is_method(text) {
        return Ok(text.to_owned());
    }
    let upper = text.to_ascii_uppercase();
    let help = if NetworkRule::is_method(&upper) {
        format!("write `{upper}`")
    } else {
        "write upper-case methods such as `GET`, or leave `methods` out to allow any".to_owned()
    };
    Err(BadValue::new(format!("`{text}` is not an HTTP method"), help))
}

/// Reads a path in which `*` and `**` are wildcards. What could be read in two ways is refused.
pub(crate) fn path(text: &str) -> Result<String, BadValue> {
    let refused = |bad: BadGlob| BadValue::new(bad.to_string(), bad.instead());
    check_glob(text).map(|()| text.to_owned()).map_err(refused)
}

fn refuse_negative(text: &str, example: &str) -> Result<(), BadValue> {
    match text.strip_prefix('-') {
        Some(rest) if rest.starts_with(|first: char| first.is_ascii_digit()) => Err(BadValue::new(
            format!("`{text}` is negative"),
            format!("write zero or more, such as {example}"),
        )),
        _ => Ok(()),
    }
}

/// Cuts a text where its leading digits and dots end.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a text is digits, or digits, a dot and digits.
fn is_decimal(text: &str) -> bool {
    match text.split_once('.') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for text in [
            "",
            "5",
            "-5m",
            "- 5m",
            "5 m",
            "5M",
            "1.5s",
            "5min",
            "5us",
            "1h 30m",
            "1h30m",
            "+5s",
            "s",
            "٥s",
            "5s ",
            "1e3s",
            "366d",
            "99999999999999999999h",
            "0x5s",
            "infinity",
            "5y",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert_eq!(duration("5").unwrap_err().help, "write `5s` for seconds or `5m` for minutes");
        assert_eq!(duration("-5m").unwrap_err().why, "`-5m` is negative");
    }

    #[test]
    fn a_size_is_exact_or_refused() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("1KB"), Ok(1000));
        assert_eq!(size("0B"), Ok(0));
        assert_eq!(size("9007199254740993B"), Ok(9_007_199_254_740_993));
        for text in [
            "",
            "64",
            "1.5",
            "-1MiB",
            "64 MiB",
            "64M",
            "64mib",
            "1PiB",
            "MiB",
            "1.MiB",
            ".5MiB",
            "1.2.3MiB",
            "0.3B",
            "99999999TiB",
            "9223372036854775808B",
            "1e3MiB",
            "+1MiB",
        ] {
            assert!(size(text).is_err(), "{text:?}");
        }
        assert_eq!(size("64mb").unwrap_err().help, "write `64MiB`");
        assert_eq!(size("1 G").unwrap_err().help, "write `1GiB`");
        assert!(size("64").unwrap_err().help.contains("`64MiB`"));
    }

    #[test]
    fn what_is_written_reads_back_as_itself() {
        for millis in [0, 1, 999, 1000, 60_000, 90_000, 3_600_000, 5_400_000, 86_400_000, 86_400_001] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&write_duration(value)), Ok(value));
        }
        for bytes in [0, 1, 1000, 1024, 1025, 3 << 29, 1 << 40, i64::MAX as u64] {
            assert_eq!(size(&write_size(bytes)), Ok(bytes));
        }
        assert_eq!(write_duration(Duration::from_secs(5400)), "90m");
        assert_eq!(write_size(512 << 20), "512MiB");
    }

    #[test]
    fn a_share_or_a_count_is_digits_alone() {
        assert_eq!(cpus("0.5").map(Cpus::thousandths), Ok(500));
        for text in ["", "0", "-1", "0.001", "inf", "NaN", "1e3", "+1", "1,5", "2 "] {
            assert!(cpus(text).is_err(), "{text:?}");
        }
        assert_eq!(count::<u32>("256"), Ok(256));
        for text in ["", "-1", "+1", "1.0", "0x10", "1_000", "4294967296"] {
            assert!(count::<u32>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_pattern_stays_below_the_workspace() {
        assert!(pattern("**/*.key").is_ok());
        for text in ["", "/etc", "../x", "!x"] {
            assert!(!pattern(text).unwrap_err().help.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_port_is_from_1_to_65535() {
        assert_eq!(port("65535"), Ok(65535));
        for text in ["", "0", "65536", "-1", "+80", "https"] {
            assert!(port(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_url_is_not_a_host_and_the_help_names_the_host_in_it() {
        for text in ["https://api.test/x", "api.test:443", "https://user:pass@api.test:443/x?y", "api.test/x"]
        {
            let error = host(text).unwrap_err();
            assert!(
                error.help.contains("`api.test` alone") || error.help.contains("write a name"),
                "{error}"
            );
        }
        for text in ["*", "*.com", "10.0.0.0/0", "0/0", "https://*"] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_method_is_an_upper_case_token() {
        assert!(method("GET").is_ok() && method("M-SEARCH").is_ok());
        for text in ["", "get", "Get", "*", "GET ", "G\u{1b}T", "GET,POST", "1"] {
            assert!(method(text).is_err(), "{text:?}");
        }
        assert_eq!(method("get").unwrap_err().help, "write `GET`");
    }

    #[test]
    fn a_path_that_could_be_read_in_two_ways_is_refused() {
        assert!(path("/repos/acme/shop/**").is_ok() && path("/").is_ok());
        for text in
            ["", "repos", "*", "/a?b", "/a#b", "/a/../b", "/./a", "/a b", "/ä", "/a\\b", "/[a]", "/{a,b}"]
        {
            assert!(path(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn variables_are_passed_by_name_alone() {
        assert!(passed_name("TZ").is_ok());
        for text in ["", "*", "AWS_*", "A=B", "A\0"] {
            assert!(passed_name(text).is_err(), "{text:?}");
        }
    }
}
