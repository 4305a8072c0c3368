//! Rules of other systems, compatible with their results: what the comparisons of
//! `porteiro simulate` put beside our own. Their weaknesses are theirs and wanted here.

use crate::{
    algorithm::concurrency::{
        law::Sample,
        real::{real, whole},
    },
    model::time::Span,
};

/// The older gradient of Netflix/concurrency-limits, without its probing: smallest latency
/// against the present one, drops count.
#[derive(Clone, Copy, Debug)]
pub struct Gradient {
    limit: f64,
    min: f64,
    max: f64,
    base: Option<Span>,
}

impl Gradient {
    /// Between 1 and `max`.
    pub fn new(initial: u64, max: u64) -> Self {
        Self {
            limit: real(initial),
            min: 1.0,
            max: real(max),
            base: None,
        }
    }

    /// The limit, also as the real number behind it.
    pub fn limit(&self) -> (u64, f64) {
        (whole(self.limit), self.limit)
    }

    /// One step per request: q = max(4, ⌊√⌊L⌋⌋), g = clamp(0.5, 1, 2·base/latency).
    pub fn step(&mut self, sample: Sample) {
        let base = self
            .base
            .map_or(sample.latency, |base| base.min(sample.latency));
        self.base = Some(base);
        let queue = self.limit.floor().sqrt().floor().max(4.0);
        let ratio = real(base.as_nanos()) / real(sample.latency.as_nanos().max(1));
        let mut wanted = if sample.dropped {
            0.9 * self.limit
        } else if real(sample.in_flight) < self.limit / 2.0 {
            return;
        } else {
            self.limit * (2.0 * ratio).clamp(0.5, 1.0) + queue
        };
        if wanted < self.limit {
            wanted = self.min.max(0.8 * self.limit + 0.2 * wanted);
        }
        self.limit = wanted.min(self.max).max(queue);
    }
}

/// Envoy's `adaptive_concurrency`: g = clamp(0.5, 2, minRTT·1.25/sample), L ← ⌊g·L + √(g·L)⌋,
/// kept within 3 and 1000. The truncation makes it stick below its fixed point g/(1 − g)².
pub fn envoy_gradient(limit: u64, min_rtt: Span, sample: Span) -> u64 {
    let ratio = real(min_rtt.as_nanos()) * 1.25 / real(sample.as_nanos().max(1));
    let scaled = ratio.clamp(0.5, 2.0) * real(limit);
    whole(scaled + scaled.sqrt()).clamp(3, 1_000)
}

/// Vector's adaptive request concurrency: one more when the limit was reached and latency is at
/// most its mean, a tenth less above mean + 2.5·σ or under back-pressure.
#[derive(Clone, Copy, Debug)]
pub struct Arc {
    limit: u64,
    mean: Option<f64>,
    variance: f64,
}

impl Arc {
    /// Between 1 and 200.
    pub const fn new(initial: u64) -> Self {
        Self {
            limit: initial,
            mean: None,
            variance: 0.0,
        }
    }

    /// The limit.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// One step per window of mean `latency` seconds.
    pub fn step(&mut self, latency: f64, reached: bool, back_pressure: bool) {
        let Some(mean) = self.mean else {
            self.mean = Some(latency);
            return;
        };
        let threshold = 2.5 * self.variance.sqrt();
        if self.limit < 200 && reached && !back_pressure && latency <= mean {
            self.limit = self.limit.saturating_add(1);
        } else if self.limit > 1 && (back_pressure || latency >= mean + threshold) {
            self.limit = whole(0.9 * real(self.limit)).max(1);
        }
        let difference = latency - mean;
        let increment = 0.4 * difference;
        self.mean = Some(mean + increment);
        self.variance = 0.6 * (self.variance + difference * increment);
    }
}

/// BBR of kratos: most requests in flight from the best bucket's passes and the least latency.
pub fn bbr_size(most_passed: u64, min_latency: Span, buckets_per_second: u64) -> u64 {
    let per_second = real(most_passed) * real(buckets_per_second);
    whole(per_second * min_latency.as_secs_f64() + 1e-9)
}

/// `limit.conn` of `OpenResty`: the delay of connection number `connections`; None is a refusal.
pub fn limit_conn(connections: u64, max: u64, burst: u64, unit: Span) -> Option<Span> {
    if connections > max.saturating_add(burst) {
        return None;
    }
    let over = if connections > max {
        connections.saturating_sub(1).checked_div(max)?
    } else {
        0
    };
    Some(unit.saturating_mul(over))
}

/// Client throttling of the Google SRE book: share of requests to refuse on the client's side,
/// max(0, (requests − K·accepts)/(requests + 1)), K = 2.
pub fn client_throttling(requests: u64, accepts: u64) -> f64 {
    ((real(requests) - 2.0 * real(accepts)) / (real(requests) + 1.0)).max(0.0)
}

/// Envoy's `admission_control` at its defaults: threshold 95 %, aggression 1, at most 80 %.
pub fn admission_control(requests: u64, successes: u64) -> f64 {
    let share = (real(requests) - real(successes) / 0.95) / (real(requests) + 1.0);
    share.clamp(0.0, 0.8)
}

/// Doorman's proportional share: everybody gets an equal part; what small wants leave over is
/// dealt out in proportion to what the others lack.
pub fn proportional_shares(capacity: f64, wants: &[f64]) -> Vec<f64> {
    let equal = capacity / real(wants.len().max(1) as u64);
    let left: f64 = wants.iter().map(|want| (equal - want).max(0.0)).sum();
    let lacking: f64 = wants.iter().map(|want| (want - equal).max(0.0)).sum();
    let part = if lacking > 0.0 {
        (left / lacking).min(1.0)
    } else {
        0.0
    };
    wants
        .iter()
        .map(|want| want.min(equal) + part * (want - equal).max(0.0))
        .collect()
}

#[cfg(test)]
mod tests;
