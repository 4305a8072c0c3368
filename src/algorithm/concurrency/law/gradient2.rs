//! Recent latency against its own long-term mean.
//!
//! Blind spots: the mean follows an incident; drops are ignored; constant timeouts look healthy.

use crate::algorithm::concurrency::{
    law::{Reason, Window},
    real::{real, whole},
};

/// Knobs of [`Gradient2`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient2Settings {
    /// Limit at the start.
    pub initial: u64,
    /// Smallest limit.
    pub min: u64,
    /// Largest limit.
    pub max: u64,
    /// Share of the new value in the limit, 0 to 1.
    pub smoothing: f64,
    /// Permits added at each step for a queue that is allowed.
    pub queue: f64,
    /// Steps that the long-term mean remembers.
    pub memory: f64,
    /// Latency may be this many times the long-term mean without consequence.
    pub tolerance: f64,
}

impl Default for Gradient2Settings {
    fn default() -> Self {
        Self {
            initial: 20,
            min: 20,
            max: 200,
            smoothing: 0.2,
            queue: 4.0,
            memory: 600.0,
            tolerance: 1.5,
        }
    }
}

/// The long-term mean is the plain mean of this many steps before it forgets.
const WARM_UP: f64 = 10.0;

/// g = clamp(0.5, 1, tolerance·long/latency); L ← (1 − s)·L + s·(L·g + queue).
#[derive(Clone, Copy, Debug)]
pub struct Gradient2 {
    settings: Gradient2Settings,
    limit: f64,
    long: f64,
    steps: f64,
}

impl Gradient2 {
    /// At the initial limit, without a mean.
    pub fn new(settings: Gradient2Settings) -> Self {
        Self {
            settings,
            limit: real(settings.initial),
            long: 0.0,
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
        let latency = real(window.latency.as_nanos().max(1));
        self.remember(latency);
        let long = self.long;
        if long / latency > 2.0 {
            // Far below the mean: after an incident the mean comes down faster than it forgets.
            self.long *= 0.95;
        }
        if real(window.in_flight) < self.limit / 2.0 {
            return Reason::Hold;
        }
        let Gradient2Settings {
            min,
            max,
            smoothing,
            queue,
            tolerance,
            ..
        } = self.settings;
        let gradient = (tolerance * long / latency).clamp(0.5, 1.0);
        let wanted = self.limit * gradient + queue;
        let reason = if wanted < self.limit {
            Reason::Slow
        } else {
            Reason::Grow
        };
        // In this form and no other: the last bit decides about the integer part.
        self.limit = (1.0 - smoothing) * self.limit + smoothing * wanted;
        self.limit = self.limit.min(real(max)).max(real(min));
        reason
    }

    fn remember(&mut self, latency: f64) {
        self.steps += 1.0;
        let share = if self.steps <= WARM_UP {
            self.steps.recip()
        } else {
            2.0 / (self.settings.memory + 1.0)
        };
        self.long += share * (latency - self.long);
    }
}
