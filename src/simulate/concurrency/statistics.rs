//! Means, percentiles, counts per second.

use crate::{
    algorithm::concurrency::real::{real, whole},
    model::time::Timestamp,
};

/// The value number ⌊p·n⌋ of n sorted values; none without values.
pub(super) fn percentile(values: &mut [f64], part: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let place = whole(part * real(values.len() as u64));
    let place = usize::try_from(place).ok()?;
    values.get(place.min(values.len().checked_sub(1)?)).copied()
}

/// A quotient of counts; 0 when there is nothing to divide by.
pub(super) fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { real(part) / real(of) }
}

/// Events per second of virtual time.
#[derive(Clone, Debug, Default)]
pub(super) struct PerSecond(Vec<u64>);

impl PerSecond {
    pub(super) fn add(&mut self, at: Timestamp) {
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX);
        if second >= self.0.len() {
            self.0.resize(second.saturating_add(1), 0);
        }
        if let Some(count) = self.0.get_mut(second) {
            *count += 1;
        }
    }

    /// Mean per second over the seconds from `from` up to `to`.
    pub(super) fn mean(&self, from: usize, to: usize) -> f64 {
        mean(&self.0, from, to)
    }

    pub(super) fn into_counts(self) -> Vec<u64> {
        self.0
    }
}

/// A count as it stands after the last event of each second.
#[derive(Clone, Debug, Default)]
pub(super) struct AtSecond(Vec<u64>);

impl AtSecond {
    /// The count is `value` from now on; a second without events keeps the one before.
    pub(super) fn note(&mut self, now: Timestamp, value: u64) {
        let second = usize::try_from(now.as_secs()).unwrap_or(usize::MAX);
        let before = self.0.last().copied().unwrap_or(value);
        if self.0.len() <= second {
            self.0.resize(second, before);
            self.0.push(value);
        } else if let Some(last) = self.0.last_mut() {
            *last = value;
        }
    }

    /// Mean over the seconds from `from` up to `to`.
    pub(super) fn mean(&self, from: usize, to: usize) -> f64 {
        mean(&self.0, from, to)
    }

    pub(super) fn into_counts(self) -> Vec<u64> {
        self.0
    }
}

/// The mean of what stands from `from` up to `to`.
fn mean(counts: &[u64], from: usize, to: usize) -> f64 {
    let length = to.saturating_sub(from);
    let counts = counts.iter().skip(from).take(length);
    real(counts.sum()) / real(length.max(1) as u64)
}

/// The time average of a count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeMean {
    area: f64,
    at: Timestamp,
}

impl TimeMean {
    /// The count was `value` until now.
    pub(super) fn advance(&mut self, value: u64, now: Timestamp) {
        self.area += real(value) * now.since(self.at).as_secs_f64();
        self.at = now;
    }

    /// Since the start of time.
    pub(super) fn mean(&self) -> f64 {
        self.area / self.at.since(Timestamp::ZERO).as_secs_f64().max(1e-9)
    }
}
