//! Finished requests, one by one and as a window.

use crate::{
    algorithm::concurrency::real::real,
    model::time::{Span, Timestamp},
};

/// A finished request as a law sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How long it took.
    pub latency: Span,
    /// Permits in flight when it was admitted, its own included.
    pub in_flight: u64,
    /// It failed for want of capacity (timeout, overload).
    pub dropped: bool,
}

/// Finished requests of a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time since the window before ended.
    pub elapsed: Span,
    /// Requests, dropped ones included.
    pub samples: u64,
    /// Requests that were dropped.
    pub dropped: u64,
    /// Mean latency of all of them.
    pub latency: Span,
    /// Largest number of permits in flight at an admission of one of them.
    pub in_flight: u64,
}

impl Window {
    /// A window of one request, for laws that step at each.
    pub fn of(sample: Sample) -> Self {
        Self {
            elapsed: sample.latency,
            samples: 1,
            dropped: u64::from(sample.dropped),
            latency: sample.latency,
            in_flight: sample.in_flight,
        }
    }

    /// Good completions per second.
    pub fn throughput(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        let done = real(self.samples.saturating_sub(self.dropped));
        if elapsed > 0.0 { done / elapsed } else { 0.0 }
    }
}

/// Gathers requests until a window is full: it is over at the first request at or after its end,
/// and only when it has enough of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collector {
    length: Span,
    least: u64,
    start: Timestamp,
    samples: u64,
    dropped: u64,
    latency: Span,
    in_flight: u64,
}

impl Collector {
    pub(super) fn new(length: Span, least: u64, now: Timestamp) -> Self {
        Self {
            length,
            least,
            start: now,
            samples: 0,
            dropped: 0,
            latency: Span::ZERO,
            in_flight: 0,
        }
    }

    /// Takes in a request; gives out the window that it completes.
    pub(super) fn add(&mut self, sample: Sample, now: Timestamp) -> Option<Window> {
        if self.samples == 0 {
            // Time in which nothing ended is no low throughput, it is no information.
            self.start = self.start.max(now - self.length);
        }
        self.samples = self.samples.saturating_add(1);
        self.dropped = self.dropped.saturating_add(u64::from(sample.dropped));
        self.latency = self.latency.saturating_add(sample.latency);
        self.in_flight = self.in_flight.max(sample.in_flight);
        let elapsed = now.since(self.start);
        if elapsed < self.length || self.samples < self.least {
            return None;
        }
        let window = Window {
            elapsed,
            samples: self.samples,
            dropped: self.dropped,
            latency: Span::from_nanos(self.latency.as_nanos().checked_div(self.samples)?),
            in_flight: self.in_flight,
        };
        *self = Self::new(self.length, self.least, now);
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(millis: u64, in_flight: u64, dropped: bool) -> Sample {
        Sample {
            latency: Span::from_millis(millis),
            in_flight,
            dropped,
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn a_window_ends_with_the_first_request_after_its_end() {
        let mut collector = Collector::new(Span::from_secs(1), 2, at(0));
        assert_eq!(collector.add(sample(10, 3, false), at(400)), None);
        assert_eq!(collector.add(sample(20, 7, true), at(999)), None);
        let window = collector.add(sample(60, 5, false), at(1_000)).unwrap();
        assert_eq!(
            window,
            Window {
                elapsed: Span::from_secs(1),
                samples: 3,
                dropped: 1,
                latency: Span::from_millis(30),
                in_flight: 7,
            }
        );
        assert!((window.throughput() - 2.0).abs() < 1e-9);
        assert_eq!(collector.add(sample(1, 1, false), at(1_999)), None);
    }

    #[test]
    fn it_stays_open_until_it_has_enough() {
        let mut collector = Collector::new(Span::from_secs(1), 2, at(0));
        assert_eq!(collector.add(sample(10, 1, false), at(1_500)), None);
        let window = collector.add(sample(10, 1, false), at(4_500)).unwrap();
        // Counted from one length before the first request, not from the idle time before.
        assert_eq!(window.elapsed, Span::from_secs(4));
    }
}
