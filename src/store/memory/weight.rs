//! How much would it matter to forget a counter? Decides which one gives way when the table is
//! full.
//!
//! Forgetting gives a caller back what it has used. So a counter weighs *units used × period ÷ units
//! of the limit*, the time that they take to come back at the limit's rate: an address seen once
//! gives way before a caller near its limit, a bucket that is full again in a second before a quota
//! of the month. It does not become less while the window passes: a caller at its limit would give
//! way to addresses seen once near the end of its window, and begin anew before its time. Kept as a
//! logarithm to quarters of an octave, which fits in a byte.

use crate::model::time::Span;

/// Compares first by weight, then by the time until the counter is fresh anyway; what is fresh
/// already is least.
pub(super) type Weight = (u8, Span);

/// Steps per doubling.
const STEPS: u32 = 4;

/// Of so many units used of a limit of `units` in a `period`.
pub(super) fn of(used: u64, units: u64, period: Span) -> u8 {
    let weight = logarithm(used) + logarithm(period.as_nanos());
    let weight = weight.saturating_sub(logarithm(units));
    // 0 is for those that are fresh.
    u8::try_from(weight).unwrap_or(u8::MAX).max(1)
}

/// How a counter compares that weighed so much when it was written and is fresh again after `left`.
pub(super) fn now(weight: u8, left: Span) -> Weight {
    (if left.is_zero() { 0 } else { weight }, left)
}

/// log₂ in quarters, straight between powers of two; that of 0 is that of 1.
fn logarithm(value: u64) -> u32 {
    let value = value.max(1);
    let octave = value.ilog2();
    // The two bits after the leading one.
    let rest = if octave >= 2 {
        value >> (octave - 2)
    } else {
        value << (2 - octave)
    };
    octave * STEPS + u32::try_from(rest & 3).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_rises_by_four_per_doubling_and_never_falls() {
        assert_eq!(logarithm(0), 0);
        assert_eq!(logarithm(1), 0);
        assert_eq!(logarithm(2), 4);
        assert_eq!(logarithm(3), 6);
        assert_eq!(logarithm(1 << 63), 63 * 4);
        assert_eq!(logarithm(u64::MAX), 63 * 4 + 3);
        let mut latest = 0;
        for value in 1..100_000 {
            assert!(logarithm(value) >= latest);
            latest = logarithm(value);
        }
    }

    #[test]
    fn who_used_more_of_a_longer_window_weighs_more() {
        let minute = Span::from_secs(60);
        let seen_once = of(1, 100, minute);
        assert!(of(2, 100, minute) > seen_once);
        assert!(of(100, 100, Span::from_secs(1)) > seen_once);
        let month = Span::from_secs(30 * 86_400);
        assert!(of(1, 50_000, month) > of(1, 20, Span::from_secs(10)));
        // A bucket of 600 at 60 per second is full again in ten seconds.
        let second = Span::from_secs(1);
        assert_eq!(of(600, 60, second), of(10, 1, second));
        assert_eq!(of(0, 0, minute), of(1, 1, minute));
    }

    #[test]
    fn what_is_fresh_goes_first_and_the_time_left_decides_between_equals() {
        let (second, least) = (Span::from_secs(1), Span::from_nanos(1));
        assert!(now(of(100, 100, second), Span::ZERO) < now(of(1, u64::MAX, least), least));
        assert!(now(100, least) < now(100, second));
        assert!(now(100, second) < now(101, least));
    }
}
