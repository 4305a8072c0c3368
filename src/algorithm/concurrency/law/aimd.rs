//! Additive increase, multiplicative decrease.
//!
//! Blind spot: any latency below the timeout; it fills the queue up to there.

use crate::{
    algorithm::concurrency::{
        law::{Reason, Window},
        real::{real, whole},
    },
    model::time::Span,
};

/// Knobs of [`Aimd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AimdSettings {
    /// Limit at the start.
    pub initial: u64,
    /// Smallest limit.
    pub min: u64,
    /// Largest limit.
    pub max: u64,
    /// Slower than this counts as dropped.
    pub timeout: Span,
    /// Factor of a decrease, 0.5 up to 1.
    pub backoff: f64,
}

impl Default for AimdSettings {
    fn default() -> Self {
        Self {
            initial: 20,
            min: 20,
            max: 200,
            timeout: Span::from_secs(5),
            backoff: 0.9,
        }
    }
}

/// dropped or latency > timeout → ⌊L·backoff⌋; else, with at least half of it in use, L + 1.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    settings: AimdSettings,
    limit: u64,
}

impl Aimd {
    /// At the initial limit.
    pub const fn new(settings: AimdSettings) -> Self {
        Self {
            settings,
            limit: settings.initial,
        }
    }

    /// The limit.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// One step.
    pub fn step(&mut self, window: &Window) -> Reason {
        let AimdSettings {
            min,
            max,
            timeout,
            backoff,
            ..
        } = self.settings;
        let (wanted, reason) = if window.dropped > 0 || window.latency > timeout {
            let reason = if window.dropped > 0 {
                Reason::Drops
            } else {
                Reason::Slow
            };
            (whole(real(self.limit) * backoff), reason)
        } else if window.in_flight.saturating_mul(2) >= self.limit {
            (self.limit.saturating_add(1), Reason::Grow)
        } else {
            (self.limit, Reason::Hold)
        };
        self.limit = wanted.min(max).max(min);
        reason
    }
}
