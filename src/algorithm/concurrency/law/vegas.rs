//! Keeps the estimated queue, L·(1 − base/latency), between two bounds.
//!
//! Blind spot: fed request by request, any spread of the service time looks like a queue; feed it
//! windows. The baseline is the smallest latency seen, forgotten at intervals (the probe).

use crate::{
    algorithm::concurrency::{
        law::{Reason, Window},
        real::{log10_step, real, whole},
    },
    model::time::Span,
};

/// Knobs of [`Vegas`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VegasSettings {
    /// Limit at the start.
    pub initial: u64,
    /// Largest limit.
    pub max: u64,
    /// The limit grows below this queue, in units of max(1, ⌊log₁₀ L⌋).
    pub alpha: f64,
    /// The limit shrinks above this queue, in the same unit.
    pub beta: f64,
    /// Share of the new value in the limit, 0 to 1.
    pub smoothing: f64,
    /// The baseline is taken anew after about this many steps per permit.
    pub probe: f64,
}

impl Default for VegasSettings {
    fn default() -> Self {
        Self {
            initial: 20,
            max: 1_000,
            alpha: 3.0,
            beta: 6.0,
            smoothing: 1.0,
            probe: 30.0,
        }
    }
}

/// Part of the probe interval after which the probe comes. Elsewhere it is random in 0.5 to 1, so
/// that many processes do not probe in step; here one process keeps each limit.
const PROBE_JITTER: f64 = 0.75;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Vegas {
    settings: VegasSettings,
    limit: f64,
    base: Option<Span>,
    steps: f64,
}

impl Vegas {
    /// At the initial limit, without a baseline.
    pub fn new(settings: VegasSettings) -> Self {
        Self {
            settings,
            limit: real(settings.initial),
            base: None,
            steps: 0.0,
        }
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        whole(self.limit)
    }

    /// The limit as a real number.
    pub const fn value(&self) -> f64 {
        self.limit
    }

    /// One step.
    pub fn step(&mut self, window: &Window) -> Reason {
        self.steps += 1.0;
        if self.steps >= PROBE_JITTER * self.settings.probe * self.limit {
            self.steps = 0.0;
            self.base = Some(window.latency);
            return Reason::Hold;
        }
        let base = match self.base {
            Some(base) if window.latency >= base => base,
            _ => {
                self.base = Some(window.latency);
                return Reason::Hold;
            }
        };
        let queue = self.queue(base, window.latency);
        let step = log10_step(self.limit());
        let (alpha, beta) = (self.settings.alpha * step, self.settings.beta * step);
        let (wanted, reason) = if window.dropped > 0 {
            (self.limit - step, Reason::Drops)
        } else if 2.0 * real(window.in_flight) < self.limit {
            return Reason::Hold;
        } else if queue <= step {
            (self.limit + beta, Reason::Grow)
        } else if queue < alpha {
            (self.limit + step, Reason::Grow)
        } else if queue > beta {
            (self.limit - step, Reason::Slow)
        } else {
            return Reason::Hold;
        };
        let wanted = wanted.min(real(self.settings.max)).max(1.0);
        self.limit += self.settings.smoothing * (wanted - self.limit);
        reason
    }

    fn queue(&self, base: Span, latency: Span) -> f64 {
        let share = real(base.as_nanos()) / real(latency.as_nanos().max(1));
        (self.limit * (1.0 - share)).ceil()
    }
}
