//! From what a rule says to a quota: shared by `rate_limit:` and `limits:`.

use crate::{
    config::{
        finding::Position,
        reader::{Located, Reader},
        units::{self, Period, Rate},
    },
    model::{limit::Quota, request::Unit, time::Span},
    rules::limit::Shown,
};

/// A rate with room for a burst.
pub(super) fn quota(reader: &mut Reader, at: Position, rate: Rate, burst: u64) -> Option<Quota> {
    let quota = Quota::new(rate.units, rate.period.span, burst);
    if let Err(error) = quota {
        let advice = "choose a shorter period or a smaller burst";
        reader.error(at, error.to_string(), advice);
    }
    quota.ok()
}

/// How many units the period is long: at least 1, at most what the protocol can show.
pub(super) fn unit_multiplier(reader: &mut Reader, raw: Option<&Located<u64>>) -> Option<u32> {
    let Some(raw) = raw else { return Some(1) };
    let times = u32::try_from(raw.value).ok().filter(|times| *times > 0);
    if times.is_none() {
        let what = format!("{} units make no period", raw.value);
        reader.error(raw.at, what, "write a number from 1 to 4294967295");
    }
    times
}

/// `units` per `times` units of time.
pub(super) fn rate_of(
    reader: &mut Reader,
    at: Position,
    units: u64,
    unit: Unit,
    times: u32,
) -> Option<(Rate, Shown)> {
    let Some(nanos) = unit.span().as_nanos().checked_mul(times.into()) else {
        reader.error(
            at,
            "the period is longer than 584 years",
            "write a smaller multiplier",
        );
        return None;
    };
    let calendar = units::period(unit.name())
        .ok()
        .and_then(|period| period.calendar);
    let rate = Rate {
        units,
        period: Period {
            span: Span::from_nanos(nanos),
            calendar: calendar.filter(|_| times == 1),
        },
    };
    let shown = Shown {
        requests_per_unit: u32::try_from(units).unwrap_or(u32::MAX),
        unit: Some(unit),
        unit_multiplier: times,
    };
    Some((rate, shown))
}
