//! Quotas that counters were written under, as bytes.

use std::{io::Read, sync::Arc};

use super::wire::{Input, Put, Unreadable};
use crate::{
    model::limit::{Algorithm, Anchor, Calendar, CalendarUnit, Quota},
    rules::inherit::Past,
};

/// Each unit at its number in the file.
const UNITS: [CalendarUnit; 6] = [
    CalendarUnit::Minute,
    CalendarUnit::Hour,
    CalendarUnit::Day,
    CalendarUnit::Week,
    CalendarUnit::Month,
    CalendarUnit::Year,
];

pub(super) fn put_past(out: &mut Vec<u8>, past: &Past) {
    out.put_bytes(past.domain.as_bytes());
    out.put_bytes(past.path.as_bytes());
    out.put_u64(past.discriminator);
    put_written(out, past.version, &past.algorithm, past.quota);
    let length = u8::try_from(past.history.len()).unwrap_or(u8::MAX);
    out.put_u8(length);
    for (version, algorithm, quota) in past.history.iter().take(length.into()) {
        put_written(out, *version, algorithm, *quota);
    }
}

pub(super) fn past<R: Read>(input: &mut Input<R>) -> Result<Past, Unreadable> {
    let domain = Arc::from(input.text()?);
    let path = Arc::from(input.text()?);
    let discriminator = input.u64()?;
    let (version, algorithm, quota) = written(input)?;
    let history = (0..input.u8()?).map(|_| written(input));
    Ok(Past {
        domain,
        path,
        discriminator,
        version,
        algorithm,
        quota,
        history: history.collect::<Result<_, _>>()?,
    })
}

fn put_written(out: &mut Vec<u8>, version: u32, algorithm: &Algorithm, quota: Quota) {
    out.put_u32(version);
    let number = match algorithm {
        Algorithm::FixedWindow(Anchor::Clock) => 0,
        Algorithm::FixedWindow(Anchor::FirstHit) => 1,
        Algorithm::FixedWindow(Anchor::LastHit) => 2,
        Algorithm::FixedWindow(Anchor::Calendar(_)) => 3,
        Algorithm::SlidingLog => 4,
        Algorithm::SlidingWindow => 5,
        Algorithm::TokenBucket => 6,
        Algorithm::LeakyBucket => 7,
        Algorithm::LeakyQueue => 8,
    };
    out.put_u8(number);
    if let Algorithm::FixedWindow(Anchor::Calendar(calendar)) = algorithm {
        let unit = UNITS.iter().position(|unit| *unit == calendar.unit);
        let unit = unit.and_then(|unit| u8::try_from(unit).ok());
        out.put_u8(unit.unwrap_or(u8::MAX));
        out.put_bytes(calendar.zone_name.as_bytes());
    }
    out.put_u64(quota.units());
    out.put_span(quota.period());
    out.put_u64(quota.burst());
}

fn written<R: Read>(input: &mut Input<R>) -> Result<(u32, Algorithm, Quota), Unreadable> {
    let version = input.u32()?;
    let algorithm = match input.u8()? {
        0 => Algorithm::FixedWindow(Anchor::Clock),
        1 => Algorithm::FixedWindow(Anchor::FirstHit),
        2 => Algorithm::FixedWindow(Anchor::LastHit),
        3 => Algorithm::FixedWindow(Anchor::Calendar(calendar(input)?)),
        4 => Algorithm::SlidingLog,
        5 => Algorithm::SlidingWindow,
        6 => Algorithm::TokenBucket,
        7 => Algorithm::LeakyBucket,
        8 => Algorithm::LeakyQueue,
        _ => return Err(Unreadable::Meaningless("an algorithm")),
    };
    let (units, period, burst) = (input.u64()?, input.span()?, input.u64()?);
    let quota = Quota::new(units, period, burst);
    let quota = quota.map_err(|_| Unreadable::Meaningless("a quota"))?;
    Ok((version, algorithm, quota))
}

fn calendar<R: Read>(input: &mut Input<R>) -> Result<Calendar, Unreadable> {
    let unit = UNITS.get(usize::from(input.u8()?));
    let unit = *unit.ok_or(Unreadable::Meaningless("a calendar unit"))?;
    let zone_name: Arc<str> = Arc::from(input.text()?);
    let zone = jiff::tz::TimeZone::get(&zone_name);
    let zone = zone.map_err(|_| Unreadable::Meaningless("a time zone"))?;
    Ok(Calendar {
        unit,
        zone,
        zone_name,
    })
}
