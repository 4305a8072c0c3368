//! Numbers as the scripts have them: whole numbers in doubles, times in microseconds.
//!
//! A Lua number is exact below 2^53 and the scripts keep intermediates below that, so what goes in
//! is bounded. [`unsupported`] tells beforehand which limits go beyond; a request that brings such
//! a one along (an override) is held to the bound.

use crate::{
    model::{
        limit::Quota,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
};

/// Largest count, burst and length of time in microseconds (71 years) that the scripts calculate
/// with. With all of them within, results are exact until the year 2112.
pub const LARGEST: u64 = 1 << 51;

/// Bytes of one number in a message to or from a script.
pub(super) const WIDTH: usize = 8;

/// Why this limit cannot be counted in Redis exactly; none when it can. For findings at load.
///
/// Units and burst are bounded by [`LARGEST`], the period and the time that filling the burst takes
/// by as many microseconds. A period that is no whole number of microseconds is rounded up.
pub fn unsupported(limit: &Limit) -> Option<&'static str> {
    let quota = limit.quota;
    if micros_up(quota.period()) > LARGEST {
        return Some("a shared store counts in periods of at most 71 years");
    }
    if quota.units() > LARGEST || quota.burst() > LARGEST {
        return Some("a shared store counts up to 2^51");
    }
    if fill_micros(quota) > u128::from(LARGEST) {
        return Some("a shared store needs a burst that fills within 71 years");
    }
    None
}

fn fill_micros(quota: Quota) -> u128 {
    let fill = u128::from(quota.burst()) * u128::from(micros_up(quota.period()));
    fill / u128::from(quota.units().max(1))
}

/// The quota that the scripts work with: its period in whole microseconds, rounded up so that
/// nobody gets more than the rule says, and everything within bounds.
pub(super) fn rounded(quota: Quota) -> Quota {
    let whole = quota.period().as_nanos().is_multiple_of(1_000);
    let small = quota.units().max(quota.burst()) <= LARGEST
        && micros_up(quota.period()) <= LARGEST
        && fill_micros(quota) <= u128::from(LARGEST);
    if whole && small {
        return quota;
    }
    let period = micros_up(quota.period()).min(LARGEST);
    let units = quota.units().min(LARGEST);
    let fits = u128::from(LARGEST) * u128::from(units.max(1)) / u128::from(period.max(1));
    let fits = u64::try_from(fits).unwrap_or(u64::MAX);
    let burst = quota.burst().min(LARGEST).min(fits);
    Quota::new(units, Span::from_micros(period), burst).unwrap_or(quota)
}

/// Whole microseconds, rounded up.
pub(super) const fn micros_up(span: Span) -> u64 {
    span.as_nanos().div_ceil(1_000)
}

/// The span in whole microseconds, rounded up: the clock of the store ticks in those.
pub(super) const fn to_micros(span: Span) -> Span {
    Span::from_micros(micros_up(span))
}

/// An instant in whole microseconds.
pub(super) const fn micros(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000
}

/// An instant so many microseconds after 1970.
pub(super) const fn instant(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

/// A number for a script; beyond 2^53 the nearest double.
#[expect(clippy::cast_precision_loss, reason = "bounded by the callers")]
pub(super) const fn double(number: u64) -> f64 {
    number as f64
}

/// A number from a script; negative and NaN are zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float to integer conversion saturates, and scripts answer whole numbers"
)]
pub(super) const fn whole(number: f64) -> u64 {
    number as u64
}

/// Appends a number as the scripts unpack it.
pub(super) fn push(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&double(number).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_within_bounds_stays_as_it_is() {
        let quota = Quota::new(3, Span::from_secs(7), 9).unwrap();
        assert_eq!(rounded(quota), quota);
    }

    #[test]
    fn odd_nanoseconds_are_rounded_up() {
        let quota = Quota::new(3, Span::from_nanos(1_500), 3).unwrap();
        assert_eq!(rounded(quota).period(), Span::from_micros(2));
    }

    #[test]
    fn beyond_the_bounds_is_held_to_them() {
        let long = Quota::new(u64::MAX, Span::from_secs(100 * 365 * 86_400), 5).unwrap();
        let held = rounded(long);
        assert_eq!(held.units(), LARGEST);
        assert_eq!(held.period(), Span::from_micros(LARGEST));
        let slow = Quota::new(1, Span::from_secs(86_400 * 365), 200).unwrap();
        assert!(rounded(slow).burst() < 200);
        assert!(fill_micros(rounded(slow)) <= u128::from(LARGEST));
    }
}
