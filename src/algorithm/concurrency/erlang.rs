//! What a limit would refuse: Erlang B and C, and Kaufman–Roberts for requests of several widths.
//!
//! Load is in Erlang: a = λ·S, the permits that would be busy without a limit. Erlang B depends on
//! the mean hold only, not on its distribution.

use crate::algorithm::concurrency::real::real;

/// Share of requests that a limit of `permits` refuses under `load` when nobody waits.
///
/// Recursion B₀ = 1, Bₖ = a·Bₖ₋₁/(k + a·Bₖ₋₁); takes time in proportion to `permits`.
pub fn blocking(load: f64, permits: u64) -> f64 {
    (1..=permits).fold(1.0, |refused, k| {
        load * refused / (real(k) + load * refused)
    })
}

/// What happens when everybody waits for ever (Erlang C).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// Share of requests that wait at all.
    pub share: f64,
    /// Mean wait over all requests, in seconds.
    pub mean: f64,
    /// Mean number of waiting requests.
    pub queue: f64,
}

/// Waiting at `rate` requests per second that hold for `hold` seconds. None when the load is not
/// below the limit: the queue would grow for ever.
pub fn waiting(rate: f64, hold: f64, permits: u64) -> Option<Waiting> {
    let load = rate * hold;
    let spare = real(permits) - load;
    if spare <= 0.0 {
        return None;
    }
    let refused = blocking(load, permits);
    let share = refused / (1.0 - load / real(permits) * (1.0 - refused));
    let mean = share * hold / spare;
    Some(Waiting {
        share,
        mean,
        queue: rate * mean,
    })
}

/// Smallest limit under which less than `share` of the requests is refused, up to `most`.
pub fn smallest_limit(load: f64, share: f64, most: u64) -> Option<u64> {
    let mut refused = 1.0;
    (1..=most).find(|&k| {
        refused = load * refused / (real(k) + load * refused);
        refused < share
    })
}

/// A class of requests that take the same number of permits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Erlang: arrivals per second times mean hold.
    pub load: f64,
    /// Permits of one request.
    pub permits: u64,
}

/// Refused share of each class when all share `permits` (Kaufman–Roberts):
/// g(0) = 1, n·g(n) = Σ aᵢ·wᵢ·g(n − wᵢ); class i is refused in the states n > C − wᵢ.
///
/// Takes time and memory in proportion to `permits`; callers bound it.
pub fn class_blocking(classes: &[Class], permits: u64) -> Vec<f64> {
    let states = usize::try_from(permits).unwrap_or(usize::MAX - 1);
    let widths: Vec<usize> = classes
        .iter()
        .map(|class| usize::try_from(class.permits).unwrap_or(usize::MAX))
        .collect();
    let mut weights = vec![1.0];
    for state in 1..=states {
        let sum: f64 = classes
            .iter()
            .zip(&widths)
            .filter_map(|(class, &width)| {
                let before = weights.get(state.checked_sub(width)?)?;
                Some(class.load * real(class.permits) * before)
            })
            .sum();
        weights.push(sum / real(state as u64));
    }
    let total: f64 = weights.iter().sum();
    let refused = |&width: &usize| {
        let first = states.saturating_add(1).saturating_sub(width);
        weights.iter().skip(first).sum::<f64>() / total
    };
    widths.iter().map(refused).collect()
}

#[cfg(test)]
mod tests;
