//! Lengths of time and rates as rule files write them: `10s`, `1h30m`, `5 days`, `50000/month`.

use crate::{
    config::finding::quoted,
    model::{limit::CalendarUnit, request::Unit, time::Span},
};

/// A length of time, and how it was said when it is a number of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) span: Span,
    /// The unit of the calendar, when the text is exactly one of it.
    pub(super) calendar: Option<CalendarUnit>,
}

/// So many units of cost per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) units: u64,
    pub(crate) period: Period,
}

/// Names of a unit of time, its length in nanoseconds, and its unit of the calendar.
const UNITS: [(&[&str], u64, Option<CalendarUnit>); 10] = {
    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    [
        (&["ns"], 1, None),
        (&["us", "µs"], 1_000, None),
        (&["ms", "millisecond", "milliseconds"], 1_000_000, None),
        (&["s", "sec", "second", "seconds"], SECOND, None),
        (
            &["m", "min", "minute", "minutes"],
            60 * SECOND,
            Some(CalendarUnit::Minute),
        ),
        (
            &["h", "hour", "hours"],
            3_600 * SECOND,
            Some(CalendarUnit::Hour),
        ),
        (&["d", "day", "days"], DAY, Some(CalendarUnit::Day)),
        (&["w", "week", "weeks"], 7 * DAY, Some(CalendarUnit::Week)),
        // As the reference's units: blocks of 30 and 365 days.
        (&["month", "months"], 30 * DAY, Some(CalendarUnit::Month)),
        (&["year", "years"], 365 * DAY, Some(CalendarUnit::Year)),
    ]
};

/// What to write instead.
pub(super) const SPAN_ADVICE: &str =
    "write a number with a unit, such as 500ms, 10s, 15m, 1h30m, 5d";
/// What to write instead.
pub(super) const RATE_ADVICE: &str =
    "write a whole number and a period, such as 5/s, 600/minute, 20/10s, 3/5d, 50000/month";

/// What to write instead.
pub(super) const UNIT_ADVICE: &str = "write second, minute, hour, day, week, month or year";

/// One of the reference's units. Its letters are raised as Unicode has it, so `ſecond` is one too.
pub(super) fn unit(text: &str) -> Option<Unit> {
    Unit::parse(&text.to_uppercase())
}

/// Reads `10s`, `15m`, `1h30m`, `5d`, `2 weeks`; a unit without a number is one of it.
pub(super) fn period(text: &str) -> Result<Period, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("the period is missing".to_owned());
    }
    let mut nanos = 0_u64;
    let mut calendar = None;
    let mut parts = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |character| character.is_ascii_digit());
        let (name, after) = split(after.trim_start(), |character| !character.is_ascii_digit());
        let name = name.trim_end();
        if name.is_empty() {
            return Err(format!("{} has no unit", quoted(text)));
        }
        let Some((_, length, unit)) = UNITS
            .iter()
            .find(|(names, ..)| names.iter().any(|known| is_unit(known, name)))
        else {
            return Err(format!("{} is no unit of time", quoted(name)));
        };
        let count = match number {
            "" if parts == 0 => 1,
            number => number.parse().map_err(|_| too_long(text))?,
        };
        let part = length.checked_mul(count);
        nanos = part
            .and_then(|part| nanos.checked_add(part))
            .ok_or_else(|| too_long(text))?;
        calendar = unit.filter(|_| parts == 0 && count == 1);
        parts += 1;
        rest = after.trim_start();
    }
    Ok(Period {
        span: Span::from_nanos(nanos),
        calendar,
    })
}

/// Reads `N/PERIOD`. Underscores may stand in the number.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let Some((units, period_text)) = text.split_once('/') else {
        return Err(format!("{} is no rate", quoted(text)));
    };
    let units = number(units).ok_or_else(|| format!("{} is no whole number", quoted(units)))?;
    let period = period(period_text)?;
    if period.span.is_zero() {
        return Err("the period is zero".to_owned());
    }
    Ok(Rate { units, period })
}

/// Words may be in any letter case; short forms not, lest somebody take `M` for a month.
fn is_unit(known: &str, name: &str) -> bool {
    known == name || (known.len() > 2 && known.eq_ignore_ascii_case(name))
}

/// A whole number; underscores may stand between its digits.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.starts_with(|first: char| first.is_ascii_digit());
    digits.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// Up to the first character that does not fit.
fn split(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text
        .find(|character| !fits(character))
        .unwrap_or(text.len());
    text.split_at(end)
}

fn too_long(text: &str) -> String {
    format!("{} is longer than 584 years", quoted(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_numbers_with_units() {
        let nanos = |text| period(text).map(|period| period.span.as_nanos());
        for (text, want) in [
            ("10s", 10_000_000_000),
            ("15m", 900_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1h 30min", 5_400_000_000_000),
            ("5d", 432_000_000_000_000),
            ("2 weeks", 1_209_600_000_000_000),
            ("month", 2_592_000_000_000_000),
            ("Year", 31_536_000_000_000_000),
            ("250us", 250_000),
            ("250µs", 250_000),
            ("1ns", 1),
            ("0s", 0),
        ] {
            assert_eq!(nanos(text), Ok(want), "{text}");
        }
        for text in [
            "",
            "5",
            "s5",
            "1h30",
            "fortnight",
            "1.5s",
            "-5s",
            "600 years",
            "5 5s",
            "99999999999999999999s",
            "1h-3m",
        ] {
            assert!(nanos(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_unit_may_be_one_of_the_calendar() {
        let calendar = |text| period(text).unwrap().calendar;
        assert_eq!(calendar("month"), Some(CalendarUnit::Month));
        assert_eq!(calendar("1 d"), Some(CalendarUnit::Day));
        assert_eq!(calendar("2d"), None);
        assert_eq!(calendar("1d1h"), None);
        assert_eq!(calendar("s"), None);
    }

    #[test]
    fn rates_are_a_number_and_a_period() {
        let parts = |text| rate(text).map(|rate| (rate.units, rate.period.span));
        assert_eq!(parts("5/s"), Ok((5, Span::from_secs(1))));
        assert_eq!(parts("3/5d"), Ok((3, Span::from_secs(432_000))));
        assert_eq!(
            parts("1_000_000 / 10s"),
            Ok((1_000_000, Span::from_secs(10)))
        );
        assert_eq!(parts("0/minute"), Ok((0, Span::from_secs(60))));
        for text in [
            "5", "5/", "/s", "-1/s", "1.5/s", "5/0s", "5/5", "x/s", "5/s/s",
        ] {
            assert!(parts(text).is_err(), "{text}");
        }
    }
}
