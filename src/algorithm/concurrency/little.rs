//! Little's law, L = λ·W: what is measured about one key, and the proof that nothing was lost.
//!
//! Everything is weighted by permits: a lease of ten permits counts ten times. Times are seconds
//! as floats, but for [`Audit`], which is exact.

use crate::{
    algorithm::concurrency::real::real,
    model::time::{Span, Timestamp},
};

/// Mean of finished holds, exponentially weighted: `mean += α·(hold − mean)`.
///
/// It knows nothing of leases that are still held; [`Flow::mean_hold`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HoldMean {
    mean: f64,
    alpha: f64,
}

impl HoldMean {
    /// Starts at `prior` seconds. `alpha` in 0…1 is the weight of the newest hold.
    pub const fn new(prior: f64, alpha: f64) -> Self {
        Self { mean: prior, alpha }
    }

    /// Takes in one finished hold, in seconds.
    pub fn feed(&mut self, hold: f64) {
        self.mean += self.alpha * (hold - self.mean);
    }

    /// Seconds.
    pub const fn mean(&self) -> f64 {
        self.mean
    }
}

/// Arrivals, completions and the area under the permits in flight, all forgotten at one rate, so
/// that λ, X, W and L are quotients of the same recent past and obey Little's law.
///
/// With n permits in flight for Δ seconds the area becomes `A·e^(−Δ/τ) + n·τ·(1 − e^(−Δ/τ))`; the
/// counts shrink by the same factor. [`Flow::advance`] must be called before n changes.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    tau: f64,
    at: Timestamp,
    area: f64,
    time: f64,
    arrived: f64,
    completed: f64,
}

impl Flow {
    /// Starts empty at `now`; forgets with time constant `tau` (must be longer than zero).
    pub fn new(tau: Span, now: Timestamp) -> Self {
        Self {
            tau: tau.as_secs_f64().max(1e-9),
            at: now,
            area: 0.0,
            time: 0.0,
            arrived: 0.0,
            completed: 0.0,
        }
    }

    /// Moves to `now`; `permits` were in flight since the last call.
    pub fn advance(&mut self, permits: u64, now: Timestamp) {
        let passed = now.since(self.at).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        self.at = now;
        // 1 − e^(−Δ/τ), without losing the digits of a small Δ.
        let gone = -(-passed / self.tau).exp_m1();
        let kept = 1.0 - gone;
        self.area = self.area * kept + real(permits) * self.tau * gone;
        self.time = self.time * kept + self.tau * gone;
        self.arrived *= kept;
        self.completed *= kept;
    }

    /// Somebody asked for `permits`, granted or not. Call once per request, not per attempt, or
    /// retries inflate λ.
    pub fn arrive(&mut self, permits: u64) {
        self.arrived += real(permits);
    }

    /// A lease of `permits` ended, in whatever way.
    pub fn complete(&mut self, permits: u64) {
        self.completed += real(permits);
    }

    /// W: mean hold as area ÷ completions, the maximum-likelihood mean when some leases are still
    /// held. It grows before the first slow lease ends. None while there is nothing to divide.
    ///
    /// Fewer completions than one lease of `unit` permits count as one lease: when nothing ended
    /// for many time constants the quotient says nothing any more, and the area alone is a lower
    /// bound.
    pub fn mean_hold(&self, unit: f64) -> Option<f64> {
        (self.area > 0.0).then(|| self.area / self.completed.max(unit))
    }

    /// L: mean permits in flight.
    pub fn mean_in_flight(&self) -> f64 {
        quotient(self.area, self.time)
    }

    /// λ: permits asked for per second.
    pub fn arrival_rate(&self) -> f64 {
        quotient(self.arrived, self.time)
    }

    /// X: permits given back per second.
    pub fn throughput(&self) -> f64 {
        quotient(self.completed, self.time)
    }
}

fn quotient(value: f64, time: f64) -> f64 {
    if time > 0.0 { value / time } else { 0.0 }
}

/// The identity of Little's law on any path that starts empty, in permit-nanoseconds:
/// ∫ permits in flight = Σ holds of ended leases + Σ ages of live ones. Exact integers, which may wrap: only their difference counts.
///
/// When it fails, a lease was lost or counted twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Audit {
    area: u128,
    completed: u128,
    at: Timestamp,
}

impl Audit {
    /// Starts empty at `now`.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            area: 0,
            completed: 0,
            at: now,
        }
    }

    /// Moves to `now`; `permits` were in flight since the last call.
    pub fn advance(&mut self, permits: u64, now: Timestamp) {
        self.area = self
            .area
            .wrapping_add(permit_time(permits, now.since(self.at)));
        self.at = self.at.max(now);
    }

    /// A lease ended that had been counted for `hold`.
    pub fn complete(&mut self, permits: u64, hold: Span) {
        self.completed = self.completed.wrapping_add(permit_time(permits, hold));
    }

    /// Area minus holds and ages, in permit-nanoseconds; 0 unless something is wrong. `ages` are
    /// permits and age of each live lease at the time of the last [`Audit::advance`].
    pub fn error(&self, ages: impl Iterator<Item = (u64, Span)>) -> i128 {
        let live = ages
            .map(|(permits, age)| permit_time(permits, age))
            .fold(self.completed, u128::wrapping_add);
        self.area.wrapping_sub(live).cast_signed()
    }

    /// ∫ permits in flight so far, in permit-seconds.
    pub fn area_seconds(&self) -> f64 {
        u64::try_from(self.area / 1_000).map_or(f64::INFINITY, |micros| real(micros) / 1e6)
    }
}

fn permit_time(permits: u64, time: Span) -> u128 {
    u128::from(permits).wrapping_mul(u128::from(time.as_nanos()))
}

#[cfg(test)]
mod tests;
