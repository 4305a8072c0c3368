//! Points in time as logs write them.

use crate::model::time::Timestamp;

/// What a time should look like, for messages.
pub const EXPECTED: &str =
    "no time; write 2024-05-01T12:00:00.5Z, or seconds since 1970 such as 1714564800.5";

/// Reads RFC 3339 (`2024-05-01T12:00:00.310Z`, any offset), or a number since the Unix epoch:
/// seconds with up to nine decimals, or whole milli-, micro- or nanoseconds. Which of them is told
/// by the size: up to eleven digits are seconds, fourteen milliseconds, seventeen microseconds;
/// read as seconds they would lie beyond the year 5138.
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    number(text).or_else(|| date(text))
}

fn number(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    // How many of the nine decimals of a second the whole part has in it already.
    let shift: usize = match whole.trim_start_matches('0').len() {
        ..=11 => 0,
        12..=14 => 3,
        15..=17 => 6,
        _ => 9,
    };
    let decimals = 9 - shift;
    let mut nanos: u64 = whole.parse().ok()?;
    for index in 0..decimals {
        let digit = fraction
            .as_bytes()
            .get(index)
            .map_or(0, |digit| digit - b'0');
        nanos = nanos.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(Timestamp::from_nanos(nanos))
}

fn date(text: &str) -> Option<Timestamp> {
    let instant: jiff::Timestamp = text.parse().ok()?;
    let nanos = u64::try_from(instant.as_nanosecond()).ok()?;
    Some(Timestamp::from_nanos(nanos))
}

/// The date and time of day in UTC, to the millisecond.
pub fn show(time: Timestamp) -> String {
    let instant = jiff::Timestamp::from_nanosecond(time.as_nanos().into());
    match instant {
        Ok(instant) => format!("{instant:.3}"),
        Err(_) => format!("{time:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        let nanos = |text: &str| parse(text).map(Timestamp::as_nanos);
        assert_eq!(nanos("0"), Some(0));
        assert_eq!(nanos("0.1"), Some(100_000_000));
        assert_eq!(nanos("1714564800"), Some(1_714_564_800_000_000_000));
        assert_eq!(
            nanos("1714564800.000000001"),
            Some(1_714_564_800_000_000_001)
        );
        assert_eq!(nanos("1714564800123"), Some(1_714_564_800_123_000_000));
        assert_eq!(nanos("1714564800123.5"), Some(1_714_564_800_123_500_000));
        assert_eq!(nanos("1714564800123456"), Some(1_714_564_800_123_456_000));
        assert_eq!(
            nanos("1714564800123456789"),
            Some(1_714_564_800_123_456_789)
        );
        assert_eq!(
            nanos("2024-05-01T12:00:00.310Z"),
            Some(1_714_564_800_310_000_000)
        );
        assert_eq!(
            nanos("2024-05-01T14:00:00+02:00"),
            Some(1_714_564_800_000_000_000)
        );
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "-",
            "-1",
            "yesterday",
            "1.5.2",
            "1e9",
            "2024-05-01",
            "1969-12-31T23:59:59Z",
            "99999999999999999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_shown_as_dates() {
        assert_eq!(
            show(Timestamp::from_nanos(1_714_564_800_310_999_999)),
            "2024-05-01T12:00:00.310Z"
        );
    }
}
