//! How much would it matter to forget a counter? Decides which one gives way when the table is
//! full.
//!
//! Forgetting gives a caller back what it has used, for as long as it would have stayed used. So a
//! counter weighs *share of the limit used × time until it is fresh anyway*: an address seen once
//! gives way before a caller near its limit, a bucket that is full again in a second before a quota
//! of the month. Kept as logarithms to eighths of an octave, which fit in a byte.

use crate::model::time::Span;

/// Compares first by weight, then by the time that is left.
pub(super) type Weight = (i32, Span);

/// Steps per doubling.
const STEPS: u32 = 8;

/// `used ÷ capacity` as a number of eighths of an octave below 1; 0 is all or more of it.
pub(super) fn share(used: u64, capacity: u64) -> u8 {
    let below = logarithm(capacity).saturating_sub(logarithm(used));
    u8::try_from(below).unwrap_or(u8::MAX)
}

/// The weight of a counter that is fresh again after `left` and had used `share` of its limit when
/// it was written.
pub(super) fn of(left: Span, share: u8) -> Weight {
    let left_log = i32::try_from(logarithm(left.as_nanos())).unwrap_or(i32::MAX);
    let fresh = if left.is_zero() { i32::MIN / 2 } else { 0 };
    (left_log - i32::from(share) + fresh, left)
}

/// log₂ in eighths, straight between powers of two; that of 0 is that of 1.
fn logarithm(value: u64) -> u32 {
    let value = value.max(1);
    let octave = value.ilog2();
    // The three bits after the leading one.
    let rest = if octave >= 3 {
        value >> (octave - 3)
    } else {
        value << (3 - octave)
    };
    octave * STEPS + u32::try_from(rest & 7).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_rises_by_eight_per_doubling_and_never_falls() {
        assert_eq!(logarithm(0), 0);
        assert_eq!(logarithm(1), 0);
        assert_eq!(logarithm(2), 8);
        assert_eq!(logarithm(3), 12);
        assert_eq!(logarithm(1 << 63), 63 * 8);
        assert_eq!(logarithm(u64::MAX), 63 * 8 + 7);
        let mut latest = 0;
        for value in 1..100_000 {
            assert!(logarithm(value) >= latest);
            latest = logarithm(value);
        }
    }

    #[test]
    fn who_used_more_for_longer_weighs_more() {
        let minute = Span::from_secs(60);
        let seen_once = of(minute, share(1, 100));
        assert!(of(minute, share(2, 100)) > seen_once);
        assert!(of(Span::from_secs(20), share(100, 100)) > seen_once);
        let month = Span::from_secs(30 * 86_400);
        assert!(of(month, share(1, 50_000)) > of(Span::from_secs(10), share(1, 20)));
        // What is fresh already goes before everything else.
        assert!(of(Span::ZERO, share(100, 100)) < of(Span::from_nanos(1), share(1, u64::MAX)));
        // More than all is all.
        assert_eq!(share(200, 100), 0);
        assert_eq!(share(0, 0), 0);
    }
}
