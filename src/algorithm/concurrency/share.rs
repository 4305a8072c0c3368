//! Who may have how much of a limit that is too small for all.

use crate::algorithm::concurrency::real::real;

/// The level of max-min fairness: whoever wants less than the level gets what it wants, everybody
/// else gets the level, and together they get all of `capacity`. Infinite when all fits.
///
/// Sorts `wants`; negative wants and NaN count as nothing.
pub fn max_min_level(capacity: f64, wants: &mut [f64]) -> f64 {
    for want in wants.iter_mut() {
        *want = want.max(0.0);
    }
    wants.sort_unstable_by(f64::total_cmp);
    let mut left = capacity.max(0.0);
    let mut sharers = real(wants.len() as u64);
    for want in wants.iter() {
        if *want * sharers > left {
            return left / sharers;
        }
        left -= want;
        sharers -= 1.0;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::concurrency::cases::{case, close, number, numbers};

    #[test]
    fn max_min_as_in_the_cases() {
        let little = case("little");
        for name in ["shares", "shares30"] {
            let wants = numbers(&little[name]["wants"]);
            let level = max_min_level(number(&little[name], "cap"), &mut wants.clone());
            let expected = numbers(&little[name]["max_min"]);
            for (want, expected) in wants.iter().zip(expected) {
                close(want.min(level), expected, 1e-9);
            }
        }
    }

    #[test]
    fn enough_for_all_is_no_level() {
        assert!(max_min_level(10.0, &mut [4.0, 6.0]).is_infinite());
        assert!(max_min_level(10.0, &mut []).is_infinite());
        close(max_min_level(0.0, &mut [1.0, 2.0]), 0.0, 0.0);
        close(max_min_level(3.0, &mut [f64::NAN, -1.0, 7.0]), 3.0, 0.0);
    }
}
