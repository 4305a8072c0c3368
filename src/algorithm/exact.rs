//! Products and quotients without loss: 64-bit operands, 128-bit intermediates.

use crate::model::time::Span;

/// `a × b`; fits always.
pub(super) fn product(a: u64, b: u64) -> u128 {
    u128::from(a).saturating_mul(u128::from(b))
}

/// `⌊a ÷ b⌋`, at most `u64::MAX`, which is also the answer for `b` 0.
pub(super) fn quotient_down(a: u128, b: u64) -> u64 {
    if let Ok(a) = u64::try_from(a) {
        // Nearly always, and several times as fast.
        return a.checked_div(b).unwrap_or(u64::MAX);
    }
    let quotient = a.checked_div(u128::from(b)).unwrap_or(u128::MAX);
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

/// `⌈a ÷ b⌉`, at most `u64::MAX`, which is also the answer for `b` 0.
pub(super) fn quotient_up(a: u128, b: u64) -> u64 {
    let down = quotient_down(a, b);
    if product(down, b) < a {
        down.saturating_add(1)
    } else {
        down
    }
}

/// `⌈a × b ÷ c⌉`, at most `u128::MAX`, without losing a digit on the way.
pub(super) fn scale_up(a: u128, b: u64, c: u64) -> u128 {
    let whole = quotient_down(a, c);
    let rest = a.saturating_sub(product(whole, c));
    let rest = u64::try_from(rest).unwrap_or(u64::MAX);
    product(whole, b).saturating_add(u128::from(quotient_up(product(rest, b), c)))
}

/// `⌈a ÷ b⌉` nanoseconds, at most [`Span::MAX`].
pub(super) fn nanos_up(a: u128, b: u64) -> Span {
    Span::from_nanos(quotient_up(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_round_as_named_and_saturate() {
        assert_eq!(quotient_down(7, 2), 3);
        assert_eq!(quotient_up(7, 2), 4);
        assert_eq!(quotient_up(8, 2), 4);
        assert_eq!(quotient_up(0, 3), 0);
        assert_eq!(quotient_down(u128::MAX, 1), u64::MAX);
        assert_eq!(quotient_up(1, 0), u64::MAX);
    }

    #[test]
    fn scaling_keeps_every_digit() {
        assert_eq!(scale_up(10, 3, 3), 10);
        assert_eq!(scale_up(10, 1, 3), 4);
        let large = product(u64::MAX, u64::MAX - 1);
        assert_eq!(scale_up(large, 7, u64::MAX - 1), product(u64::MAX, 7));
    }
}
