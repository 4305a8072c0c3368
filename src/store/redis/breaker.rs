//! A circuit breaker: after some failures in a row nobody waits for Redis until a probe got
//! through.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Failures in a row that open it. One slow answer is no outage, but whoever comes after the
/// fifth should not have to wait.
const FAILURES: u32 = 5;

/// Closed while answers come. Failures in a row open it, one answer closes it.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
}

impl Breaker {
    /// Whether requests are not even tried.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// An answer came.
    pub(super) fn succeeded(&self) {
        // Nearly always there is nothing to write, and reading does not move the cache line.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.is_open() {
            self.open.store(false, Ordering::Relaxed);
        }
    }

    /// No answer came. Returns true when this opened the breaker.
    pub(super) fn failed(&self) -> bool {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1) >= FAILURES && !self.open.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_and_an_answer_closes() {
        let breaker = Breaker::default();
        for _ in 1..FAILURES {
            assert!(!breaker.failed());
        }
        breaker.succeeded();
        for _ in 1..FAILURES {
            assert!(!breaker.failed());
        }
        assert!(!breaker.is_open());
        assert!(breaker.failed());
        assert!(breaker.is_open());
        assert!(!breaker.failed());
        breaker.succeeded();
        assert!(!breaker.is_open());
    }
}
