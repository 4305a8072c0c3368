//! How long calls take: a histogram that workers fill without sharing cache lines.

use crate::{model::time::Span, telemetry::stripe::Striped};

/// Upper bounds in microseconds: the default buckets of the Prometheus client libraries, which the
/// reference's histogram has and its dashboards know.
pub const BOUNDS_MICROS: [u64; 11] = [
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

/// One counter per bucket, one beyond the last bound, one for the sum in nanoseconds.
const CELLS: usize = BOUNDS_MICROS.len() + 2;
const SUM: usize = CELLS - 1;

/// A latency histogram.
#[derive(Debug, Default)]
pub struct Latency(Striped<CELLS>);

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
    /// Adds one call.
    pub fn observe(&self, took: Span) {
        let micros = took.as_nanos() / 1_000;
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.0.add(bucket, 1);
        self.0.add(SUM, took.as_nanos());
    }

    /// Reads all buckets.
    pub fn snapshot(&self) -> Snapshot {
        let cells = self.0.sums();
        let mut count = 0;
        let bound = |micros: u64| Span::from_micros(micros).as_secs_f64();
        let cumulative = BOUNDS_MICROS
            .into_iter()
            .zip(cells)
            .map(|(micros, calls)| {
                count += calls;
                (bound(micros), count)
            })
            .collect();
        count += cells[BOUNDS_MICROS.len()];
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
}
