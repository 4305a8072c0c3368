//! The calendar's windows: real minutes, hours, days, weeks, months and years of a time zone.
//!
//! Every instant belongs to exactly one window, windows are half open and follow each other
//! without gaps, also where clocks are put forward or back, where midnight does not exist, and
//! where a zone skipped a day.

use jiff::{
    ToSpan,
    civil::{Date, Time},
    tz::TimeZone,
};

use crate::model::{
    limit::{Calendar, CalendarUnit},
    time::{Span, Timestamp},
};

/// Start and end of the window that holds `now`.
pub(super) fn window(calendar: &Calendar, now: Timestamp) -> (Timestamp, Timestamp) {
    let zone = &calendar.zone;
    let window = match calendar.unit {
        CalendarUnit::Minute => of_clock(zone, Span::from_secs(60), now),
        CalendarUnit::Hour => of_clock(zone, Span::from_secs(3_600), now),
        CalendarUnit::Day | CalendarUnit::Week | CalendarUnit::Month | CalendarUnit::Year => {
            of_dates(zone, calendar.unit, now)
        }
    };
    // The time zone library ends in the year 9999, our time in 2554: it always answers.
    window.unwrap_or((Timestamp::ZERO, Timestamp::MAX))
}

/// Start of the window before the one that holds `now`, its own start and end, and the end of the
/// next: what somebody needs who does not know exactly what the time is.
pub(crate) fn windows_around(calendar: &Calendar, now: Timestamp) -> [Timestamp; 4] {
    let (start, end) = window(calendar, now);
    let (before, _) = window(calendar, start - Span::from_nanos(1));
    let (_, after) = window(calendar, end);
    [before, start, end, after]
}

/// Windows that begin when the clock on the wall shows a multiple of `length`. A change of the
/// offset in the middle of one (half an hour on Lord Howe Island) cuts it there.
fn of_clock(zone: &TimeZone, length: Span, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let instant = to_jiff(now)?;
    let offset = zone.to_offset(instant);
    let local = i128::from(offset.seconds()).checked_mul(1_000_000_000)?;
    let local = local.checked_add(i128::from(now.as_nanos()))?;
    let into = local.checked_rem_euclid(i128::from(length.as_nanos()))?;
    let start = now - Span::from_nanos(u64::try_from(into).ok()?);
    let end = start + length;
    let inside = |change: &jiff::Timestamp| {
        let change = from_jiff(*change);
        start < change && change < end
    };
    let before = zone.preceding(to_jiff(now + Span::from_nanos(1))?);
    let before = before.map(|change| change.timestamp()).next();
    let after = zone.following(instant).map(|change| change.timestamp());
    let after = after.take(1).next();
    Some((
        before.filter(inside).map_or(start, from_jiff),
        after.filter(inside).map_or(end, from_jiff),
    ))
}

/// Windows that begin at the first instant of a date.
fn of_dates(zone: &TimeZone, unit: CalendarUnit, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let first = first_of(unit, zone.to_datetime(to_jiff(now)?).date())?;
    let begin = |date: Date| starts(zone, date);
    let next = next_of(unit, first)?;
    let (start, end) = (begin(first)?, begin(next)?);
    // Clocks put back across midnight show a date again whose successor has begun already, clocks
    // put forward across midnight show one that has not: windows go by the instant they begin at.
    if now < start {
        let previous = first_of(unit, first.yesterday().ok()?)?;
        return Some((begin(previous)?, start));
    }
    if now >= end {
        return Some((end, begin(next_of(unit, next)?)?));
    }
    Some((start, end))
}

/// The date on which the window of `date` begins.
fn first_of(unit: CalendarUnit, date: Date) -> Option<Date> {
    match unit {
        CalendarUnit::Week => {
            let since_monday = i64::from(date.weekday().to_monday_zero_offset());
            date.checked_sub(since_monday.days()).ok()
        }
        CalendarUnit::Month => Some(date.first_of_month()),
        CalendarUnit::Year => Some(date.first_of_year()),
        CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => Some(date),
    }
}

/// The first date of the window after the one that begins on `first`.
fn next_of(unit: CalendarUnit, first: Date) -> Option<Date> {
    let length = match unit {
        CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => 1.day(),
        CalendarUnit::Week => 1.week(),
        CalendarUnit::Month => 1.month(),
        CalendarUnit::Year => 1.year(),
    };
    first.checked_add(length).ok()
}

/// The first instant of `date`: midnight, the first of two, or what follows a skipped one.
fn starts(zone: &TimeZone, date: Date) -> Option<Timestamp> {
    let midnight = date.to_datetime(Time::midnight());
    let instant = zone.to_ambiguous_timestamp(midnight).compatible().ok()?;
    Some(from_jiff(instant))
}

fn to_jiff(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos())).ok()
}

/// Before 1970 becomes 1970: a window that began earlier began at the start of the line.
fn from_jiff(at: jiff::Timestamp) -> Timestamp {
    let nanos = at.as_nanosecond().max(0);
    Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::{prelude::*, sample::select};

    use super::*;

    /// Clocks change at midnight, at one minute past it, by half an hour; a day was skipped; the
    /// offset had seconds; nothing ever changes.
    const ZONES: [&str; 9] = [
        "America/Sao_Paulo",
        "America/St_Johns",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Monrovia",
        "Asia/Kolkata",
        "America/New_York",
        "Asia/Gaza",
        "UTC",
    ];

    const UNITS: [CalendarUnit; 6] = [
        CalendarUnit::Minute,
        CalendarUnit::Hour,
        CalendarUnit::Day,
        CalendarUnit::Week,
        CalendarUnit::Month,
        CalendarUnit::Year,
    ];

    fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
        Calendar {
            unit,
            zone: TimeZone::get(zone).unwrap(),
            zone_name: Arc::from(zone),
        }
    }

    fn instant(text: &str) -> Timestamp {
        from_jiff(text.parse().unwrap())
    }

    #[track_caller]
    fn check(unit: CalendarUnit, zone: &str, now: &str, window: [&str; 2]) {
        let [start, end] = window.map(instant);
        let calendar = calendar(unit, zone);
        assert_eq!(super::window(&calendar, instant(now)), (start, end));
    }

    #[test]
    fn units_of_utc() {
        let now = "2024-02-29T13:14:15.5Z";
        let utc = |unit, window| check(unit, "UTC", now, window);
        utc(
            CalendarUnit::Minute,
            ["2024-02-29T13:14:00Z", "2024-02-29T13:15:00Z"],
        );
        utc(
            CalendarUnit::Hour,
            ["2024-02-29T13:00:00Z", "2024-02-29T14:00:00Z"],
        );
        utc(
            CalendarUnit::Day,
            ["2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"],
        );
        utc(
            CalendarUnit::Week,
            ["2024-02-26T00:00:00Z", "2024-03-04T00:00:00Z"],
        );
        utc(
            CalendarUnit::Month,
            ["2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"],
        );
        utc(
            CalendarUnit::Year,
            ["2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"],
        );
    }

    #[test]
    fn ends_belong_to_the_next_window() {
        check(
            CalendarUnit::Month,
            "UTC",
            "2026-02-28T23:59:59.999999999Z",
            ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"],
        );
        check(
            CalendarUnit::Month,
            "UTC",
            "2026-03-01T00:00:00Z",
            ["2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"],
        );
    }

    #[test]
    fn days_of_23_and_25_hours() {
        check(
            CalendarUnit::Day,
            "America/New_York",
            "2026-03-08T12:00:00Z",
            ["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"],
        );
        check(
            CalendarUnit::Day,
            "America/New_York",
            "2026-11-01T12:00:00Z",
            ["2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"],
        );
    }

    #[test]
    fn an_hour_that_the_clock_shows_twice_is_two_windows() {
        check(
            CalendarUnit::Hour,
            "America/New_York",
            "2026-11-01T05:30:00Z",
            ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"],
        );
        check(
            CalendarUnit::Hour,
            "America/New_York",
            "2026-11-01T06:30:00Z",
            ["2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"],
        );
    }

    #[test]
    fn hours_of_a_zone_with_half_an_hour() {
        check(
            CalendarUnit::Hour,
            "Asia/Kolkata",
            "2026-01-01T10:15:00Z",
            ["2026-01-01T09:30:00Z", "2026-01-01T10:30:00Z"],
        );
        // Back by half an hour at two: from half past one to two again.
        check(
            CalendarUnit::Hour,
            "Australia/Lord_Howe",
            "2026-04-04T15:10:00Z",
            ["2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"],
        );
    }

    #[test]
    fn a_day_without_midnight_begins_at_one() {
        check(
            CalendarUnit::Day,
            "America/Sao_Paulo",
            "2018-11-04T12:00:00Z",
            ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"],
        );
    }

    #[test]
    fn a_change_within_an_hour_cuts_it() {
        // From half past eleven to midnight.
        let (zone, change) = ("Asia/Pyongyang", "2018-05-04T15:00:00Z");
        check(
            CalendarUnit::Hour,
            zone,
            "2018-05-04T14:40:00Z",
            ["2018-05-04T14:30:00Z", change],
        );
        check(
            CalendarUnit::Hour,
            zone,
            change,
            [change, "2018-05-04T16:00:00Z"],
        );
    }

    #[test]
    fn a_midnight_that_is_jumped_over() {
        // From half past eleven to half past twelve: no zone does so after 1970, one may.
        let rule = "XXX0YYY,M3.2.0/23:30,M11.1.0/2";
        let calendar = Calendar {
            unit: CalendarUnit::Day,
            zone: TimeZone::posix(rule).unwrap(),
            zone_name: Arc::from(rule),
        };
        let [begin, jump, end] = [
            "2026-03-08T00:00:00Z",
            "2026-03-08T23:30:00Z",
            "2026-03-09T00:00:00Z",
        ]
        .map(instant);
        assert_eq!(window(&calendar, jump), (begin, end));
        assert_eq!(window(&calendar, end).0, end);
    }

    #[test]
    fn a_skipped_day_has_no_window() {
        check(
            CalendarUnit::Day,
            "Pacific/Apia",
            "2011-12-30T09:59:59Z",
            ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"],
        );
        check(
            CalendarUnit::Day,
            "Pacific/Apia",
            "2011-12-30T10:00:00Z",
            ["2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"],
        );
    }

    #[test]
    fn the_ends_of_the_line() {
        for (unit, zone) in UNITS.into_iter().flat_map(|u| ZONES.map(|z| (u, z))) {
            let calendar = calendar(unit, zone);
            let (start, end) = window(&calendar, Timestamp::ZERO);
            assert!(start == Timestamp::ZERO && end > start);
            assert_eq!(window(&calendar, Timestamp::MAX).1, Timestamp::MAX);
        }
    }

    #[test]
    fn dates_follow_each_other_without_gaps() {
        let until = Timestamp::from_secs(2_600_000_000);
        for zone in ZONES {
            for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month] {
                let calendar = calendar(unit, zone);
                let mut at = Timestamp::from_secs(86_400 * 40);
                at = window(&calendar, at).0;
                while at < until {
                    let (start, end) = window(&calendar, at);
                    assert!(start == at && end > at, "{zone} {unit:?} {at:?}");
                    let last = end - Span::from_nanos(1);
                    assert_eq!(window(&calendar, last), (start, end), "{zone} {unit:?}");
                    at = end;
                }
            }
        }
    }

    /// Around the changes of the clocks, where it matters.
    fn around_changes(zone: &str, seconds: u64, offset: i64) -> Timestamp {
        let zone = TimeZone::get(zone).unwrap();
        let near = to_jiff(Timestamp::from_secs(seconds)).unwrap();
        let change = zone.following(near).map(|change| change.timestamp()).next();
        let at = from_jiff(change.unwrap_or(near)).as_nanos();
        Timestamp::from_nanos(at.saturating_add_signed(offset))
    }

    proptest! {
        #[test]
        fn every_instant_has_one_window(
            zone in select(ZONES.to_vec()),
            unit in select(UNITS.to_vec()),
            seconds in 0..5_000_000_000_u64,
            offset in -10_000_000_000_000_i64..10_000_000_000_000,
        ) {
            let calendar = calendar(unit, zone);
            let now = around_changes(zone, seconds, offset);
            let (start, end) = window(&calendar, now);
            prop_assert!(start <= now && now < end);
            prop_assert_eq!(window(&calendar, start), (start, end));
            prop_assert_eq!(window(&calendar, end - Span::from_nanos(1)), (start, end));
            prop_assert_eq!(window(&calendar, end).0, end);
        }
    }
}
