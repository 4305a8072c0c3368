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
