//! How long things take: histograms that workers fill without sharing cache lines.

use std::cell::Cell;

use crate::{model::time::Span, telemetry::stripe::Striped};

/// Upper bounds in microseconds: the default buckets of the Prometheus client libraries, which the
/// reference's histogram has and its dashboards know.
pub const CALL_MICROS: &[u64] = &[
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

/// Upper bounds in microseconds for what takes a few of them, or as long as a store.
pub const FINE_MICROS: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000, 1_000_000,
];

/// Most bounds of a histogram.
const MOST_BOUNDS: usize = 16;
/// One counter per bucket, one beyond the last bound, one for the sum in nanoseconds.
const CELLS: usize = MOST_BOUNDS + 2;
const SUM: usize = CELLS - 1;

/// Of so many decisions one is timed: reading the clock costs as much as a small decision.
pub const SAMPLED: u32 = 8;

thread_local! {
    static UNTIL_SAMPLE: Cell<u32> = const { Cell::new(0) };
    /// How many calls until one is timed, and how long the latest timed one took.
    static LATEST_SAMPLE: Cell<(u32, Span)> = const { Cell::new((0, Span::ZERO)) };
}

/// Whether this one is timed; one of [`SAMPLED`] on each thread.
pub fn is_sampled() -> bool {
    let left = UNTIL_SAMPLE.get();
    UNTIL_SAMPLE.set(left.checked_sub(1).unwrap_or(SAMPLED - 1));
    left == 0
}

/// How long a call took that was answered at once. One of [`SAMPLED`] on each thread is timed; the
/// others are taken to be as long as that one, so that all are counted and few clocks are read.
pub fn sampled(time: impl FnOnce() -> Span) -> Span {
    let (left, latest) = LATEST_SAMPLE.get();
    let (left, took) = match left.checked_sub(1) {
        Some(left) => (left, latest),
        None => (SAMPLED - 1, time()),
    };
    LATEST_SAMPLE.set((left, took));
    took
}

/// A latency histogram.
#[derive(Debug)]
pub struct Latency {
    bounds: &'static [u64],
    cells: Striped<CELLS>,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new(CALL_MICROS)
    }
}

/// What a histogram holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Upper bound in seconds, calls at or below it.
    pub cumulative: Vec<(f64, u64)>,
    /// All calls.
    pub count: u64,
    /// Seconds.
    pub sum: f64,
}

impl Latency {
    /// An empty one with these upper bounds in microseconds, at most 16.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds: bounds.get(..MOST_BOUNDS).unwrap_or(bounds),
            cells: Striped::default(),
        }
    }

    /// Adds one call.
    pub fn observe(&self, took: Span) {
        let micros = took.as_nanos().div_ceil(1_000);
        let bucket = self.bounds.partition_point(|bound| *bound < micros);
        self.cells.add(bucket, 1);
        self.cells.add(SUM, took.as_nanos());
    }

    /// Reads all buckets.
    pub fn snapshot(&self) -> Snapshot {
        let cells = self.cells.sums();
        let mut count = 0;
        let bound = |micros: u64| Span::from_micros(micros).as_secs_f64();
        let cumulative = self
            .bounds
            .iter()
            .zip(cells)
            .map(|(micros, calls)| {
                count += calls;
                (bound(*micros), count)
            })
            .collect();
        count += cells[self.bounds.len()];
        Snapshot {
            cumulative,
            count,
            sum: Span::from_nanos(cells[SUM]).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fall_into_the_bucket_that_holds_them() {
        let latency = Latency::default();
        for millis in [0, 5, 6, 20_000] {
            latency.observe(Span::from_millis(millis));
        }
        let snapshot = latency.snapshot();
        assert_eq!(snapshot.cumulative[0], (0.005, 2));
        assert_eq!(snapshot.cumulative[1], (0.01, 3));
        assert_eq!(snapshot.cumulative[10], (10.0, 3));
        assert_eq!(snapshot.count, 4);
        assert!((snapshot.sum - 20.011).abs() < 1e-9);
    }

    #[test]
    fn fine_buckets_hold_up_to_their_bound_and_no_more() {
        let latency = Latency::new(FINE_MICROS);
        for nanos in [1_000, 1_001, 2_000_000_000] {
            latency.observe(Span::from_nanos(nanos));
        }
        let snapshot = latency.snapshot();
        assert_eq!(snapshot.cumulative[..2], [(1e-6, 1), (2e-6, 2)]);
        assert_eq!((snapshot.cumulative[15], snapshot.count), ((1.0, 2), 3));
    }

    #[test]
    fn calls_that_are_not_timed_are_as_long_as_the_one_before_them() {
        let mut timed = 0;
        let spans: Vec<Span> = (0..20)
            .map(|call| {
                sampled(|| {
                    timed += 1;
                    Span::from_secs(call)
                })
            })
            .collect();
        let want = |call: u64| Span::from_secs(call / 8 * 8);
        assert_eq!(spans, (0..20).map(want).collect::<Vec<_>>());
        assert_eq!(timed, 3);
    }

    #[test]
    fn one_of_eight_is_sampled() {
        let sampled = (0..80).filter(|_| is_sampled()).count();
        assert_eq!(sampled, 10);
    }
}
