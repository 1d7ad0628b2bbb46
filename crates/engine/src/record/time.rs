//! The time of an event as text: RFC 3339, UTC, milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// The form of a time, each `0` a digit.
pub(super) const FORM: &str = "0000-00-00T00:00:00.000Z";

/// 9999-12-31T23:59:59Z: the last second whose year has four digits.
const LAST_SECOND: u64 = 253_402_300_799;

/// Renders a time. A clock before 1970 or after 9999 gives the nearest time that has the form.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs().min(LAST_SECOND);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day counted from 1970-01-01.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`. Years
/// are counted from March, so that the leap day is a year's last.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097; // 400 years
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> String {
        rfc3339(UNIX_EPOCH + Duration::from_millis(millis))
    }

    #[test]
    fn known_times_have_their_known_text() {
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(at(1_709_251_199_999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(1_796_069_704_120), "2026-11-30T20:15:04.120Z");
        assert_eq!(at(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn a_clock_that_is_far_off_still_gives_the_form() {
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(1 << 60), "9999-12-31T23:59:59.976Z");
    }
}
