//! Which requests are counted, and for how many each of them stands.

use std::cell::Cell;

use crate::model::time::Timestamp;

/// One request in so many is counted by a busy worker, unless told otherwise.
pub const SAMPLED: u32 = 32;

/// Requests of a second that each thread counts as they are: with little traffic nothing is an
/// estimate.
const ALL_OF_FIRST: u32 = 64;

/// Sampling of a thread.
#[derive(Clone, Copy, Debug)]
struct State {
    second: u64,
    /// Requests of that second so far, up to [`ALL_OF_FIRST`].
    seen: u32,
    /// Requests until the next one that is counted.
    skip: u32,
    /// Of a xorshift generator; 0 before its first number.
    random: u64,
}

thread_local! {
    static STATE: Cell<State> = const {
        Cell::new(State {
            second: 0,
            seen: 0,
            skip: 0,
            random: 0,
        })
    };
}

/// For how many requests this one stands: 1 for the first of a second, `one_in` for those that are
/// chosen of the rest, 0 for the others. The gaps are random with a mean of `one_in`, so that
/// traffic with a pattern is not seen through a comb. `one_in` 0: nothing is counted.
pub fn weight(one_in: u32, now: Timestamp) -> u64 {
    if one_in <= 1 {
        return one_in.into();
    }
    let mut state = STATE.get();
    let weight = state.weight(one_in, now);
    STATE.set(state);
    weight
}

impl State {
    fn weight(&mut self, one_in: u32, now: Timestamp) -> u64 {
        let second = now.as_secs();
        if second != self.second {
            (self.second, self.seen) = (second, 0);
        }
        if self.seen < ALL_OF_FIRST {
            self.seen += 1;
            return 1;
        }
        if let Some(skip) = self.skip.checked_sub(1) {
            self.skip = skip;
            return 0;
        }
        if self.random == 0 {
            self.random = rand::random::<u64>() | 1;
        }
        // Marsaglia: Xorshift RNGs, the triple 13, 7, 17.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // A gap of 1 to 2 × one_in − 1 requests, this one among them.
        let gaps = u128::from(one_in) * 2 - 1;
        let skip = (u128::from(self.random) * gaps) >> 64;
        self.skip = u32::try_from(skip).unwrap_or(u32::MAX);
        one_in.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_the_requests() {
        let mut state = State {
            second: 0,
            seen: 0,
            skip: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        let mut by_kind = [0_u64; 4];
        let requests = 400_000_usize;
        for number in 0..requests {
            by_kind[number % 4] += state.weight(32, Timestamp::from_secs(1));
        }
        // Standard error of each kind: √(100,000 × 32 ÷ 3) ≈ 1,000.
        for sum in by_kind {
            assert!(sum.abs_diff(100_000) < 5_000, "{by_kind:?}");
        }
    }

    #[test]
    fn the_first_of_a_second_are_counted_as_they_are() {
        let counted = |second| {
            let weights = (0..ALL_OF_FIRST).map(|_| weight(1_000, Timestamp::from_secs(second)));
            weights.sum::<u64>()
        };
        assert_eq!((counted(5), counted(6)), (64, 64));
        assert_eq!(weight(0, Timestamp::from_secs(7)), 0);
        assert_eq!(weight(1, Timestamp::from_secs(6)), 1);
    }
}
