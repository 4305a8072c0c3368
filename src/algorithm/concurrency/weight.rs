//! What a request costs, learned from what the work of its kind took beside the others.
//!
//! The cost of one piece of work is its service time × the permits that it really needed; that of a
//! key is the mean of those, the newest with a weight α (an EWMA). The weight of a request is the
//! cost of its key over the median cost of all keys of the rule, rounded, at least 1 and at most
//! what the rule allows.
//!
//! What holders say is not to be trusted: one piece of work counts as no more than the largest
//! weight × the median, so that a lie moves a key by one step of the mean and is forgotten in about
//! ln(max) ÷ α pieces of work.

use crate::algorithm::concurrency::real::{real, whole};

/// Keys whose costs the median is taken of; those that come later are not among them.
const MOST_KEYS: usize = 1_024;

/// The costs of the keys of one rule, in order.
#[derive(Clone, Debug, Default)]
pub struct Costs(Vec<f64>);

impl Costs {
    /// The median cost, the lower one of two; none without keys.
    pub fn median(&self) -> Option<f64> {
        let middle = self.0.len().checked_sub(1)? / 2;
        self.0.get(middle).copied()
    }

    /// The cost of a key after one more piece of work that took `seconds` × `permits`.
    ///
    /// `before` is what this said the last time, none for a key that is new.
    pub fn learn(
        &mut self,
        before: Option<f64>,
        seconds: f64,
        permits: u64,
        alpha: f64,
        max: u64,
    ) -> f64 {
        let seen = seconds.max(0.0) * real(permits.max(1));
        let bound = self.median().filter(|median| *median > 0.0);
        let seen = seen.min(bound.map_or(f64::MAX, |median| median * real(max)));
        let after = before.map_or(seen, |before| before + alpha * (seen - before));
        let was_counted = before.is_none_or(|before| self.forget(before));
        if was_counted && self.0.len() < MOST_KEYS {
            let place = self.0.partition_point(|known| *known < after);
            self.0.insert(place, after);
        }
        after
    }

    /// A key is gone, or has another cost from now on. Whether it was among those that count.
    pub fn forget(&mut self, cost: f64) -> bool {
        let place = self.0.partition_point(|known| *known < cost);
        let found = self.0.get(place).is_some_and(|known| *known <= cost);
        if found {
            self.0.remove(place);
        }
        found
    }

    /// Permits of a request of a key with this cost: 1 to `max`.
    pub fn weight(&self, cost: f64, max: u64) -> u64 {
        match self.median() {
            Some(median) if median > 0.0 => whole((cost / median).round()).clamp(1, max.max(1)),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_cost_over_the_median() {
        let mut costs = Costs::default();
        assert_eq!(costs.weight(5.0, 8), 1, "nothing to compare with");
        let light = costs.learn(None, 0.1, 1, 0.2, 8);
        let middle = costs.learn(None, 0.2, 1, 0.2, 8);
        let heavy = costs.learn(None, 0.1, 7, 0.2, 8);
        let weights = [light, middle, heavy].map(|cost| costs.weight(cost, 8));
        // 0.5, 1 and 3.5 of the median, 0.2; the half goes away from zero.
        assert_eq!(weights, [1, 1, 4]);
        assert_eq!(costs.weight(heavy, 3), 3);
    }

    #[test]
    fn a_mean_moves_by_alpha_and_keeps_its_place() {
        let mut costs = Costs::default();
        let first = costs.learn(None, 1.0, 1, 0.5, 8);
        let other = costs.learn(None, 3.0, 1, 0.5, 8);
        let second = costs.learn(Some(first), 2.0, 1, 0.5, 8);
        assert!((second - 1.5).abs() < 1e-12);
        assert_eq!(costs.0, [1.5, 3.0]);
        assert!(costs.forget(other) && !costs.forget(other));
        assert_eq!(costs.median(), Some(1.5));
    }

    #[test]
    fn lies_stay_within_the_bound_and_are_forgotten() {
        let mut costs = Costs::default();
        for _ in 0..3 {
            costs.learn(None, 1.0, 1, 0.2, 8);
        }
        let mut liar = costs.learn(None, f64::INFINITY, u64::MAX, 0.2, 8);
        for _ in 0..100 {
            liar = costs.learn(Some(liar), 1e12, 1 << 40, 0.2, 8);
        }
        assert!(liar <= 8.0 + 1e-9 && costs.weight(liar, 8) == 8);
        let mut honest = 0;
        while costs.weight(liar, 8) > 1 {
            liar = costs.learn(Some(liar), 1.0, 1, 0.2, 8);
            honest += 1;
        }
        // ln(7 ÷ 0.5) ÷ −ln(0.8) = 11.8
        assert_eq!(honest, 12);
        assert_eq!(costs.median(), Some(1.0));
    }

    #[test]
    fn the_keys_that_are_kept_have_a_bound() {
        let mut costs = Costs::default();
        for _ in 0..MOST_KEYS {
            costs.learn(None, 1.0, 1, 0.2, 8);
        }
        let late = costs.learn(None, 3.0, 1, 0.2, 8);
        assert_eq!(costs.0.len(), MOST_KEYS);
        assert_eq!(costs.weight(late, 8), 3);
        let later = costs.learn(Some(late), 4.0, 1, 0.5, 8);
        assert!((later - 3.5).abs() < 1e-12 && costs.0.len() == MOST_KEYS);
    }

    #[test]
    fn work_of_no_time_costs_one() {
        let mut costs = Costs::default();
        let cost = costs.learn(None, 0.0, 1, 0.2, 8);
        let other = costs.learn(None, 5.0, 1, 0.2, 8);
        assert_eq!([cost, other].map(|cost| costs.weight(cost, 8)), [1, 1]);
    }
}
