//! Requests against limits, in virtual time and through the counters that serve real requests.

use std::num::NonZeroUsize;

use crate::{
    algorithm::Retry,
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    simulate::arrivals::Arrival,
    store::{
        Charge, Charges,
        memory::{MemoryOptions, MemoryStore},
    },
};

/// What became of each request under one limit, in the order of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    fates: Vec<Fate>,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passed, after this long.
    Admitted(Span),
    /// It was refused, and told this.
    Refused(Retry),
}

/// Something that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// When it left, after the start.
    pub at: Span,
    /// Units.
    pub cost: u64,
}

/// The window in which the most passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fullest {
    /// Units in it.
    pub units: u64,
    /// Where it begins; it does not include its end.
    pub from: Span,
}

/// Mean and percentiles of times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// How many there are.
    pub count: usize,
    /// Shortest.
    pub min: Span,
    /// Mean.
    pub mean: Span,
    /// Half are shorter.
    pub p50: Span,
    /// 99 of a hundred are.
    pub p99: Span,
    /// Longest.
    pub max: Span,
}

/// A limit with one key, in the store that serves real requests.
#[derive(Debug)]
pub(super) struct Counter<'a> {
    limit: &'a Limit,
    store: MemoryStore,
}

impl<'a> Counter<'a> {
    /// The one key.
    pub(super) const KEY: CounterKey = CounterKey::from_bits(0);

    pub(super) fn new(limit: &'a Limit) -> Self {
        let store = MemoryStore::new(MemoryOptions {
            max_keys: NonZeroUsize::MIN,
            ..MemoryOptions::default()
        });
        Self { limit, store }
    }

    /// What becomes of a request.
    pub(super) fn ask(&self, cost: u64, now: Timestamp) -> Fate {
        let charge = Charge::new(Self::KEY, self.limit, cost);
        let charges = Charges::from(charge);
        let outcomes = self.store.decide(&charges, now);
        match outcomes.first() {
            Some(outcome) if outcome.allowed => Fate::Admitted(outcome.delay),
            Some(outcome) => Fate::Refused(outcome.retry),
            None => Fate::Refused(Retry::Never),
        }
    }
}

/// Asks `limit` about every request; the experiment starts at `start`.
pub fn run(limit: &Limit, arrivals: &[Arrival], start: Timestamp) -> Course {
    let counter = Counter::new(limit);
    let decide = |arrival: &Arrival| counter.ask(arrival.cost, start + arrival.at);
    Course {
        fates: arrivals.iter().map(decide).collect(),
    }
}

impl Course {
    /// What became of each request.
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// What passed and when it left, in the order of leaving.
    pub fn passed(&self, arrivals: &[Arrival]) -> Vec<Passed> {
        let mut passed: Vec<Passed> = arrivals
            .iter()
            .zip(&self.fates)
            .filter_map(|(arrival, fate)| match fate {
                Fate::Admitted(delay) => Some(Passed {
                    at: arrival.at.saturating_add(*delay),
                    cost: arrival.cost,
                }),
                Fate::Refused(_) => None,
            })
            .collect();
        passed.sort_by_key(|passed| passed.at);
        passed
    }

    /// How long those waited that passed.
    pub fn waits(&self) -> Spread {
        let wait = |fate: &Fate| match fate {
            Fate::Admitted(delay) => Some(*delay),
            Fate::Refused(_) => None,
        };
        Spread::of(self.fates.iter().filter_map(wait).collect())
    }

    /// After what time the refused were told to come back.
    pub fn hints(&self) -> Spread {
        let hint = |fate: &Fate| match fate {
            Fate::Refused(Retry::After(wait)) => Some(*wait),
            _ => None,
        };
        Spread::of(self.fates.iter().filter_map(hint).collect())
    }

    /// How many were refused, and how many of them for ever.
    pub fn refused(&self) -> (usize, usize) {
        let refused = |fate: &&Fate| matches!(fate, Fate::Refused(_));
        let never = |fate: &&Fate| **fate == Fate::Refused(Retry::Never);
        let count = |which: &dyn Fn(&&Fate) -> bool| self.fates.iter().filter(which).count();
        (count(&refused), count(&never))
    }
}

/// The fullest of all windows of length `window`, wherever it begins. `passed` is in the order of
/// time. Windows are half open, so what passed exactly one window later is not in it.
pub fn fullest(passed: &[Passed], window: Span) -> Fullest {
    let mut best = Fullest::default();
    let mut units = 0_u128;
    let mut first = passed.iter().peekable();
    for last in passed {
        units += u128::from(last.cost);
        let left = |oldest: &&Passed| last.at >= oldest.at.saturating_add(window);
        while let Some(oldest) = first.next_if(left) {
            units -= u128::from(oldest.cost);
        }
        if let Some(oldest) = first.peek().filter(|_| units > u128::from(best.units)) {
            best = Fullest {
                units: u64::try_from(units).unwrap_or(u64::MAX),
                from: oldest.at,
            };
        }
    }
    best
}

impl Spread {
    /// Of a set of times; all zero when it is empty. Percentile p of n sorted values is the value
    /// number ⌊p·n⌋.
    pub fn of(mut times: Vec<Span>) -> Self {
        times.sort_unstable();
        let count = times.len();
        let at = |hundredths: usize| times.get(count * hundredths / 100).copied();
        let sum: u128 = times.iter().map(|time| u128::from(time.as_nanos())).sum();
        let mean = u128::try_from(count)
            .ok()
            .and_then(|count| sum.checked_div(count));
        let mean = mean.and_then(|mean| u64::try_from(mean).ok());
        Self {
            count,
            min: times.first().copied().unwrap_or_default(),
            mean: Span::from_nanos(mean.unwrap_or(0)),
            p50: at(50).unwrap_or_default(),
            p99: at(99).unwrap_or_default(),
            max: times.last().copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(times: &[(u64, u64)]) -> Vec<Passed> {
        let one = |(at, cost): &(u64, u64)| Passed {
            at: Span::from_millis(*at),
            cost: *cost,
        };
        times.iter().map(one).collect()
    }

    #[test]
    fn the_fullest_window_may_begin_anywhere_and_is_half_open() {
        let second = Span::from_secs(1);
        let most = |times: &[(u64, u64)]| {
            let Fullest { units, from } = fullest(&passed(times), second);
            (units, from.as_millis_up())
        };
        assert_eq!(most(&[]), (0, 0));
        assert_eq!(most(&[(100, 1), (1_100, 1)]), (1, 100));
        assert_eq!(most(&[(100, 1), (1_099, 1)]), (2, 100));
        assert_eq!(most(&[(0, 2), (900, 3), (1_000, 4), (1_899, 1)]), (8, 900));
        assert_eq!(most(&[(5, u64::MAX), (6, 2)]), (u64::MAX, 5));
    }

    #[test]
    fn spreads_take_the_value_at_the_place() {
        let spread = Spread::of((1..=200).rev().map(Span::from_millis).collect());
        assert_eq!(spread.count, 200);
        assert_eq!(spread.min, Span::from_millis(1));
        assert_eq!(spread.mean, Span::from_micros(100_500));
        assert_eq!(spread.p50, Span::from_millis(101));
        assert_eq!(spread.p99, Span::from_millis(199));
        assert_eq!(spread.max, Span::from_millis(200));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
