//! Texts of flags and variables → values, each with a word on what is wanted.

use std::{fs, path::PathBuf, time::Duration};

/// A Go duration such as `300ms`, `24h` or `1h30m`, as the reference writes it. A number without a
/// unit is refused: one takes it for seconds, the other for milliseconds. `0` needs none.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    let wanted = || {
        format!(
            "want a duration with units, for example 300ms, 10s or 1h30m{}",
            {
                if text.parse::<f64>().is_ok() {
                    format!("; {text} of what?")
                } else {
                    String::new()
                }
            }
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(wanted());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wanted)?;
        let (number, tail) = rest.split_at(end);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "ns" => Duration::from_nanos(1),
            "us" | "µs" | "μs" => Duration::from_micros(1),
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_mins(1),
            "h" => Duration::from_hours(1),
            _ => return Err(wanted()),
        };
        let part = times(unit, number).ok_or_else(wanted)?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= LONGEST)
            .ok_or("want a duration of at most 100 years")?;
        rest = tail;
    }
    Ok(total)
}

/// Longer waits are typing errors, and timers cannot add them to a clock.
const LONGEST: Duration = Duration::from_hours(24 * 365 * 100);

/// `number` may have a fraction.
fn times(unit: Duration, number: &str) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| -> Option<u128> {
        if text.is_empty() {
            Some(0)
        } else {
            text.bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| text.parse().ok())?
        }
    };
    // More digits than nanoseconds of an hour have say nothing.
    let fraction = &fraction[..fraction.len().min(15)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let nanos = unit.as_nanos();
    let total = digits(whole)?
        .checked_mul(nanos)?
        .checked_add(digits(fraction)?.checked_mul(nanos)? / scale)?;
    u64::try_from(total).ok().map(Duration::from_nanos)
}

/// The same, where 0 means never.
pub(super) fn optional_duration(text: &str) -> Result<Option<Duration>, String> {
    duration(text).map(|duration| (!duration.is_zero()).then_some(duration))
}

/// The same, where 0 would mean at once and never do.
pub(in crate::cli) fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() {
        Err("want more than 0".into())
    } else {
        Ok(duration)
    }
}

/// Go's `ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("want true or false".into()),
    }
}

/// A whole number of at least 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "want a whole number of at least 1".into())
}

/// A count that fits HTTP/2's 32 bits.
pub(super) fn count_u32(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| format!("want a whole number from 1 to {}", u32::MAX))
}

/// A whole number.
pub(super) fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("want a whole number from 0 to {}", u32::MAX))
}

/// Bytes: a number, or one with `KiB`, `MiB` or `GiB`.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("", 1),
    ];
    units
        .into_iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)))
        .and_then(|(number, size)| number.trim_end().parse::<usize>().ok()?.checked_mul(size))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "want bytes, for example 4096, 64KiB or 1MiB".into())
}

/// [`bytes()`] that fit HTTP/2's 32 bits.
pub(super) fn bytes_u32(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| "want less than 4GiB".into())
}

/// A share from 0 to 1.
pub(super) fn ratio(text: &str) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| "want a number from 0 to 1".into())
}

/// The path of a file that can be read now.
pub(super) fn readable(path: &str) -> Result<PathBuf, String> {
    match fs::File::open(path) {
        Ok(_) => Ok(PathBuf::from(path)),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// A header name that any proxy may set.
pub(super) fn header_name(text: &str) -> Result<String, String> {
    http::HeaderName::from_bytes(text.as_bytes())
        .map(|_| text.to_owned())
        .map_err(|_| "want the name of an HTTP header".into())
}

/// `name=value,name=value`, with another character between name and value.
pub(super) fn pairs(text: &str, between: char) -> Result<Vec<(String, String)>, String> {
    let pair = |part: &str| {
        let (name, value) = part.split_once(between)?;
        let (name, value) = (name.trim(), value.trim());
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| pair(part).ok_or(format!("want NAME{between}VALUE,…")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_does() {
        let millis = Duration::from_millis;
        for (text, want) in [
            ("24h", millis(86_400_000)),
            ("1h30m", millis(5_400_000)),
            ("1.5s", millis(1_500)),
            (".5s", millis(500)),
            ("300ms", millis(300)),
            ("1m0.5s", millis(60_500)),
            ("0", millis(0)),
            ("0s", millis(0)),
            ("+2s", millis(2_000)),
            ("7us", Duration::from_micros(7)),
            ("7µs", Duration::from_micros(7)),
            ("1.000000001s", Duration::from_nanos(1_000_000_001)),
        ] {
            assert_eq!(duration(text), Ok(want), "{text}");
        }
        for text in [
            "", "10", "1.5", "s", ".s", "-1s", "1d", "1 s", "1h 2m", "1..5s", "9999999h", "1h30",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("30").unwrap_err().contains("30 of what?"));
    }

    #[test]
    fn bytes_have_units_or_none() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64KiB"), Ok(65_536));
        assert_eq!(bytes("1 MiB"), Ok(1 << 20));
        for text in ["", "0", "-1", "64K", "64kb", "99999999999999999999"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_stay_within_what_they_count() {
        assert!(count("0").is_err() && count("x").is_err() && count("3") == Ok(3));
        assert!(count_u32("4294967296").is_err());
        assert!(ratio("1.01").is_err() && ratio("nan").is_err() && ratio("0.8") == Ok(0.8));
        assert!(header_name("a b").is_err() && header_name("X-Limit").is_ok());
        assert_eq!(boolean("True"), Ok(true));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn pairs_are_read_and_what_is_no_pair_is_refused() {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            pairs(" a=1, b = x=y ,", '='),
            Ok(vec![own("a", "1"), own("b", "x=y")])
        );
        assert_eq!(pairs("a:b", '='), Err("want NAME=VALUE,…".to_owned()));
        assert_eq!(pairs("=b", '='), Err("want NAME=VALUE,…".to_owned()));
        assert_eq!(pairs("", ':'), Ok(vec![]));
    }
}
