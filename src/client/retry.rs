//! When to try again.

use std::time::Duration;

use rand::RngExt as _;

/// How a client waits between tries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Most tries, the first included. Default 5.
    pub tries: u32,
    /// Largest random addition to what the server says, as a fraction of it. Default 0.1.
    pub jitter: f64,
    /// First wait after a call that failed; it doubles with each. Default 50 ms.
    pub base: Duration,
    /// Longest wait after a call that failed. Default 2 s.
    pub cap: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            tries: 5,
            jitter: 0.1,
            base: Duration::from_millis(50),
            cap: Duration::from_secs(2),
        }
    }
}

impl Patience {
    /// What the server says, and a little more.
    pub(super) fn after_hint(self, told: Duration) -> Duration {
        told.mul_f64(1.0 + rand::rng().random_range(0.0..=self.jitter.max(0.0)))
    }

    /// Full jitter: anything up to an exponentially growing bound.
    pub(super) fn after_failure(self, tries: u32) -> Duration {
        let bound = self
            .base
            .saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1)));
        bound
            .min(self.cap)
            .mul_f64(rand::rng().random_range(0.0..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_never_shortened_and_failures_never_exceed_the_cap() {
        let patience = Patience::default();
        let told = Duration::from_millis(100);
        for tries in 1..100 {
            let hinted = patience.after_hint(told);
            assert!(hinted >= told && hinted <= Duration::from_millis(110));
            assert!(patience.after_failure(tries) <= patience.cap);
        }
        assert!(patience.after_failure(1) <= patience.base);
    }
}
