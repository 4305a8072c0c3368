//! Counts and times as real numbers and back: the only place where the two meet.
//!
//! Estimates, hints and adaptive limits are floats; what is counted and decided on stays integer.

/// A count as a real number. Exact up to 2⁵³, which no count of permits reaches.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub const fn real(count: u64) -> f64 {
    count as f64
}

/// The integer part; negative and NaN become 0, what is too large the largest count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float to integer conversion saturates, which is what we want"
)]
pub const fn whole(value: f64) -> u64 {
    value as u64
}

/// `max(1, ⌊log₁₀ limit⌋)`, the step size of Vegas.
pub const fn log10_step(limit: u64) -> f64 {
    match limit.checked_ilog10() {
        Some(log @ 1..) => log as f64,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_saturate() {
        assert_eq!(whole(-1.0), 0);
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(f64::INFINITY), u64::MAX);
        assert_eq!(whole(2.999), 2);
        assert_eq!(whole(real(1 << 53)), 1 << 53);
    }

    #[test]
    fn steps_grow_with_the_digits() {
        let steps = [0, 1, 9, 10, 99, 100, 1_000].map(|limit| whole(log10_step(limit)));
        assert_eq!(steps, [1, 1, 1, 1, 1, 2, 3]);
    }
}
